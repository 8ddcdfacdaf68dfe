// Recorded answers in place of a model: recorded.py has asked all that the scenes can ask about
// one question. What it has not asked is switched off in the scenes.
import { el, fill } from "./draw.js";
import { sha256 } from "./sha256.js";
import { visibleText } from "./tokenizer.js";

// A text is put together of recorded lines.
export class RecordedTokenizer {
  constructor({ lines, pieces }) {
    this.lines = lines;
    this.pieces = pieces;
    this.longest = Object.keys(lines).sort((a, b) => b.length - a.length);
  }

  encode(text) {
    const ids = [];
    for (let at = 0; at < text.length;) {
      const line = this.longest.find((one) => text.startsWith(one, at));
      if (line === undefined) throw new Error("the tokens of this text are not recorded");
      ids.push(...this.lines[line]);
      at += line.length;
    }
    return ids;
  }

  piece(id) {
    return visibleText(this.pieces[id]);
  }
}

// As layout_key of recorded.py.
export function layoutKey(ids, positions, mask) {
  return sha256([ids.join(), positions.join(), mask.join("")].join("|"));
}

// The forward of Model, from the record: logits by token id, of labels only. Of the first of `rows`,
// every: what is known of all tokens' logits; attention: what it reads; lens. apart: see
// recorded.py.
export function recordedForward(answers) {
  return async (ids, positions, mask, { rows }) => {
    const found = answers[layoutKey(ids, positions, mask)];
    if (!found) throw new Error("this run is not recorded");
    const read = found.read[rows[0]];
    return { logits: rows.map((row) => found.logits[row]), apart: found.apart, every: read,
      attention: recordedAttention(read?.attention), lens: read?.lens };
  };
}

// For each layer and head the weights of one row.
function recordedAttention(packed) {
  if (!packed) return [];
  const [layers, heads, T] = packed.shape;
  const bytes = Uint8Array.from(atob(packed.steps), (character) => character.charCodeAt(0));
  const weight = (at) => (bytes[2 * at] + 256 * bytes[2 * at + 1]) / 65535;
  return Array.from({ length: layers }, (_, l) => Array.from({ length: heads }, (_, h) =>
    Float32Array.from({ length: T }, (_, u) => weight((l * heads + h) * T + u))));
}

// The state of a scene that asks the model, as far as it is recorded.
export function keepRecorded(state, { words }, settings) {
  if (!["ask", "why", "leak", "read", "mean"].includes(state.scene)) return;
  Object.assign(state, { m: settings.m, seed: settings.seed, N: Math.min(state.N, settings.N) });
  if (state.scene !== "ask") state.K = state.most;
  if (state.scene !== "mean") state.trial = 1;
  if (state.scene !== "leak") return;
  if (!words.includes(state.word)) state.word = "";
  if (state.cells !== "groups") state.cells = "none";
}

// What the page says of its record, in place of what a live page says of its model.
export function tellRecorded(why, { m, N, seed }, name, about, foot) {
  fill(about, el("b", {}, `Recorded answers of ${name} to one question. `), ...about.childNodes);
  about.classList.add("recorded");
  foot.classList.add("recorded");
  fill(foot, `${name} does not run here: ${why}. Recorded: ${N} trials, groups of ${
    m}, seed ${seed}; what needs a run is off.`);
}

// Switches controls off that have no recording.
export function switchOff(...elements) {
  for (const element of elements) {
    const inputs = element.matches("input, select, button") ? [element]
      : element.querySelectorAll("input, select, button");
    for (const input of inputs) {
      input.disabled = true;
      input.setAttribute("aria-describedby", "where");
    }
  }
}
