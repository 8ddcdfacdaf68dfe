// Read: the last token of a group, its logits, the softmax over the labels, and where the heads of
// that token look.
import { bars, chooser, el, equation, fill, layerPlot, paragraph, percent, plot,
  shownPiece, slider } from "./draw.js";
import { separate } from "./layout.js";
import { NULL_OPTION, render, softmax, topOf } from "./method.js";
import { switchOff } from "./recording.js";

const readView = { group: null, hide: null };

export const read = {
  id: "read", title: "Read", defaults: { group: 1, hide: 0, head: "" },
  guess: ({ toy, recorded }) => (!toy || recorded ? null : { // another model may not take it
    question: "The right choice is in one group only. What do the wrong choices of the other " +
      "groups get?",
    options: ["All the probability of their group",
      `Mostly less than half: “${NULL_OPTION}” takes the rest`, "Nothing"],
    right: 1,
    because: `Each prompt ends its list with “${NULL_OPTION}”. Its label takes part in the ` +
      "softmax, so a group of wrong choices can say: none of these.",
  }),
  build: buildRead, update: updateRead,
};

function buildRead(root, app) {
  readView.trial = slider({ label: "Trial", min: 1, max: app.state.N, value: app.state.trial,
    oninput: (trial) => app.set({ trial, hide: null, head: null }) });
  readView.choosers = el("div", { class: "controls" });
  readView.tokens = el("p", { class: "read-tokens", id: "read-tokens" });
  readView.logits = el("div", { id: "read-logits" });
  readView.bars = el("div", { id: "read-bars" });
  readView.share = el("p", { class: "soft result", id: "read-share" });
  readView.heads = el("div", { id: "read-heads", role: "group", "aria-label": "Heads" });
  readView.lens = el("div", { id: "read-lens" });
  readView.told = el("p", { class: "soft result", id: "read-told", "aria-live": "polite" });
  root.append(
    el("div", { class: "side" },
      el("h2", {}, "One token answers for its group"),
      paragraph("At the last token of a group, the **end token**, the model has a number for " +
        "each token that could follow: a **logit** z. The labels' logits are the group's answer."),
      el("div", { class: "controls" }, readView.trial), readView.choosers,
      el("h3", {}, "The prompt of the group. Under a token: how much the chosen head looks at it"),
      readView.tokens,
      paragraph("A **layer** is one step of the model. A **head** is a part of it that chooses " +
        "which tokens to read. Each small chart is a head, with a bar for each line; press one " +
        "to see its tokens. The stream x after each layer can be read out as after the last.",
      { class: "soft" }), equation("a_ij = softmax_j ( q_i · k_j / √h )")),
    el("div", { class: "stage" },
      el("h3", {}, "1  The logits at the end token"), readView.logits,
      el("div", { class: "row" }, el("h3", {}, "2  Softmax over the labels alone"),
        equation("p_A = exp(z_A) / Σ exp(z)")),
      readView.bars, readView.share,
      el("div", { class: "read-two" },
        el("div", {}, el("h3", {}, "3  Where each head (column) of each layer (row) looks"),
          readView.heads, readView.told),
        el("div", {}, el("div", { class: "row" }, el("h3", {}, "4  The answer after each layer"),
          equation("p_ℓ = softmax( W · norm(x_ℓ) )")), readView.lens))));
  if (app.recorded) switchOff(readView.trial);
}

async function updateRead(app) {
  const { run, state } = app;
  const drawn = app.trials()[state.trial - 1];
  const at = Math.min(Math.max(Math.round(state.group) || 1, 1), drawn.length) - 1;
  const group = drawn[at];
  const { prefix, branches, labels } = app.prompts(drawn);
  const layout = separate(prefix, [branches[at]])[0];
  const names = [...group.map((i) => state.choices[i]), NULL_OPTION];
  const parts = readParts(app, layout, names);
  const hidden = Math.min(Math.max(Math.round(state.hide) || 0, 0), names.length);
  drawReadControls(app, drawn, at, names.length, hidden);

  const [end] = layout.ends;
  const ask = (mask) => readEnd(app, layout, mask, end);
  const plain = await ask(layout.mask);
  const result = hidden ? await ask(readWithout(layout, parts, end, hidden - 1)) : plain;
  if (run !== app.run) return;
  const shown = { names, parts, end, group, labels: labels[at], before: hidden ? plain : null,
    right: group.indexOf(state.answer) };
  shown.top = drawReadAnswer(app, result, shown);
  drawReadLens(app, result, shown);
  // By the run in which nothing is hidden: to hide a line does not choose another head.
  const top = topOf(softmax(plain.logits, labels[at]));
  const [layer, head] = readHead(state.head, plain, { ...shown, top });
  drawReadHeads(app, result, shown, layer, head);
  drawReadTokens(app, layout, shown, result.attention[layer][head]);
}

// One run, read at the end token: its logits, all of them (every), and for each layer and head the
// weights of its row (attention).
async function readEnd(app, { ids, positions }, mask, end) {
  const T = ids.length;
  const options = { rows: [end], attention: true, lens: true };
  const answer = await app.forward(ids, positions, mask, options);
  const row = (weights) => (weights.length > T ? weights.slice(end * T, (end + 1) * T) : weights);
  return { logits: answer.logits[0], every: answer.every ?? readEvery(answer.logits[0]),
    lens: answer.lens,
    attention: answer.attention.map((heads) => heads.map(row)) };
}

// Of all tokens' logits: how many, the logarithm of the sum of their exponentials, and marks.
function readEvery(logits) {
  const marks = [...logits].sort((a, b) => a - b), most = marks.at(-1);
  const sum = marks.reduce((total, value) => total + Math.exp(value - most), 0);
  return { count: marks.length, total: most + Math.log(sum), marks };
}

// Of each token of the prompt the part that it is in: "question", the number of a choice's line, or
// "cue". Lines are tokens of their own.
function readParts(app, { ids }, names) {
  const cue = render("", []).trim();
  const count = (lines) => app.tokenizer.encode(
    render(app.state.question, names.slice(0, lines)).slice(0, -cue.length)).length;
  const stops = [...names.keys(), names.length].map(count); // of the question, then of each line
  return ids.map((_, place) => {
    const line = stops.findIndex((stop) => place < stop);
    return line < 0 ? "cue" : line ? line - 1 : "question";
  });
}

// The mask in which the end token may not look at one line.
function readWithout(layout, parts, end, line) {
  const mask = layout.mask.slice();
  parts.forEach((part, u) => {
    if (part === line) mask[end * layout.ids.length + u] = 0;
  });
  return mask;
}

function drawReadControls(app, drawn, at, lines, hidden) {
  readView.trial.limit(app.state.N);
  readView.trial.set(app.state.trial);
  const shape = `${drawn.length} ${lines}`;
  if (readView.shape !== shape) {
    readView.shape = shape;
    readView.group = chooser({ label: "Group", options: drawn.map((_, g) => [g + 1, `${g + 1}`]),
      value: at + 1, onchange: (group) => app.set({ group, hide: null, head: null }) });
    const options = Array.from({ length: lines }, (_, i) => [i + 1, `(${app.label(i)})`]);
    readView.hide = chooser({ options: [[0, "none"], ...options], value: hidden,
      label: "Hide a line from the end token (a change of one row of the mask)",
      onchange: (hide) => app.set({ hide: hide || null }) });
    fill(readView.choosers, readView.group, readView.hide);
  }
  readView.group.set(at + 1);
  readView.hide.set(hidden);
}

// Logits and softmax. Returns the index of the label with the largest probability.
function drawReadAnswer(app, result, { names, labels, before, right }) {
  const { logits, every } = result;
  const share = labels.reduce((sum, id) => sum + Math.exp(logits[id] - every.total), 0);
  drawReadLogits(app, logits, every, labels);
  const p = softmax(logits, labels);
  const top = topOf(p);
  const was = before ? softmax(before.logits, labels) : null;
  bars(readView.bars, names.map((name, i) => ({ label: `(${app.label(i)})`, name, value: p[i],
    top: i === top, right: i === right, note: was ? `was ${percent(was[i])}` : "" })));
  fill(readView.share, el("b", {}, "Softmax"), " turns the labels' logits into probabilities that ",
    `add up to 100% (of all tokens' probability they have ${percent(share)}). `,
    `“${NULL_OPTION}” has ${percent(p.at(-1))} of this group. The mean leaves it out.`);
  return top;
}

// A line for each label: its probability as read after each layer.
function drawReadLens(app, { lens }, { labels, top }) {
  if (!readView.lens.clientWidth) return;
  const each = lens.map((logits) => softmax(logits, labels)), high = 170;
  const at = layerPlot(readView.lens, labels.map((_, i) => each.map((p) => p[i])), { ink: top,
    name: "lens", height: high, ys: [0, 1], yTicks: [[0, "0%"], [0.5, "50%"], [1, "100%"]],
    yTitle: "probability",
    label: `The answer after each layer: ${each.map((p) => app.label(topOf(p))).join(", ")}` });
  let free = -Infinity; // names stand below each other
  for (const i of [...labels.keys()].sort((a, b) => each.at(-1)[b] - each.at(-1)[a])) {
    free = Math.max(at.y(each.at(-1)[i]) + 4, free);
    if (free > high) break; // no room for more
    at.marks.append(el("text", { x: at.x(lens.length) + 6, y: free, class: i === top ? "here" : "" },
      app.label(i)));
    free += 11;
  }
}

// All logits as marks on one axis; the labels stand above it.
function drawReadLogits(app, logits, { marks: all, count }, labels) {
  const low = Math.floor(all[0]), high = Math.ceil(all.at(-1));
  const ticks = [low, Math.round((low + high) / 2), high];
  const at = plot(readView.logits, { height: 98, xs: [low, high], ys: [0, 1], top: 40, bottom: 40,
    left: 14, xTicks: ticks.map((value) => [value, `${value}`.replace("-", "−")]), yTicks: [],
    xTitle: "logit", yTitle: `all ${count.toLocaleString("en")} tokens; labels above`,
    label: `Logits of the labels: ${labels.map((id, i) =>
      `${app.label(i)} ${logits[id].toFixed(1)}`).join(", ")}` });
  const marks = all.map((value) => `M${at.x(value).toFixed(1)} ${at.y(0)}v-12`).join("");
  at.marks.append(el("path", { class: "faint", d: marks, opacity: 0.45 }));
  // From the right, a name stands in the first of two lines that has room, or not at all.
  const last = [Infinity, Infinity];
  const order = [...labels.keys()].sort((a, b) => logits[labels[b]] - logits[labels[a]]);
  for (const i of order) {
    const x = at.x(logits[labels[i]]), up = last.findIndex((one) => one - x >= 12);
    const y = at.y(0) - 18 - 12 * Math.max(up, 0);
    at.marks.append(el("path", { class: "line", d: `M${x} ${at.y(0)}V${y}` }));
    if (up < 0) continue;
    last[up] = x;
    at.marks.append(el("text", { x, y: y - 2, "text-anchor": "middle" }, app.label(i)));
  }
}

// How much a head looks at each part from the end token.
function readLooks(weights, { parts, names }) {
  const looks = { lines: names.map(() => 0), question: 0, cue: 0 };
  parts.forEach((part, u) => {
    if (typeof part === "number") looks.lines[part] += weights[u];
    else looks[part] += weights[u];
  });
  return looks;
}

// The head of the state, or the one of the last layer that looks most at the top choice's line.
function readHead(chosen, result, shown) {
  const asked = `${chosen}`.split(".").map(Number);
  if (result.attention[asked[0] - 1]?.[asked[1] - 1]) return asked.map((n) => n - 1);
  const most = result.attention.at(-1).map((weights) => readLooks(weights, shown).lines[shown.top]);
  return [result.attention.length - 1, most.indexOf(Math.max(...most))];
}

function drawReadHeads(app, result, shown, layer, head) {
  const { names, top } = shown;
  const cell = (weights, l, h) => {
    const { lines } = readLooks(weights, shown);
    const words = lines.map((share, i) => `(${app.label(i)}) ${percent(share, 0)}`).join(", ");
    const wide = 9 * names.length;
    const picture = lines.map((share, i) => el("rect", { class: i === top ? "most" : "other",
      x: 9 * i, y: 30 - 30 * share, width: 7, height: 30 * share }));
    const pressed = `${l === layer && h === head}`;
    return el("td", {}, el("button", { type: "button", "aria-pressed": pressed,
      "aria-label": `layer ${l + 1}, head ${h + 1}: ${words}`,
      onclick: () => app.set({ head: `${l + 1}.${h + 1}` }) },
      el("svg", { viewBox: `0 0 ${wide} 30`, preserveAspectRatio: "none", "aria-hidden": "true" },
        picture)));
  };
  const many = result.attention[0].length > 8;
  readView.heads.classList.toggle("many", many || result.attention.length > 8);
  const heads = result.attention[0].map((_, h) => el("th", { scope: "col" },
    many ? `${h + 1}` : `head ${h + 1}`));
  const rows = result.attention.map((all, l) => el("tr", {},
    el("th", { scope: "row" }, `${many ? "" : "layer "}${l + 1}`), all.map((one, h) => cell(one, l, h))));
  const focused = readView.heads.contains(document.activeElement);
  fill(readView.heads, el("table", { class: "heads" },
    el("thead", {}, el("tr", {}, el("td"), heads)), el("tbody", {}, rows)));
  if (focused) readView.heads.querySelector("[aria-pressed=true]").focus();
  const looks = readLooks(result.attention[layer][head], shown);
  const shares = looks.lines.map((share, i) => `(${app.label(i)}) ${percent(share, 0)}`);
  fill(readView.told, `Layer ${layer + 1}, head ${head + 1}: question ${
    percent(looks.question, 0)}, ${shares.join(", ")}, answer cue ${percent(looks.cue, 0)}. `,
  "Hide a line to see whether it matters.");
}

function drawReadTokens(app, layout, { end }, weights) {
  fill(readView.tokens, layout.ids.map((id, t) => {
    const share = weights[t];
    return el("span", { class: t === end ? "read-token end" : "read-token", dir: "auto",
      title: `${percent(share)} of the attention` },
      shownPiece(app.tokenizer, id), el("i", { style: { height: `${14 * share}px` } }));
  }));
}
