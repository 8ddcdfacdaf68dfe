// Your own mask: what packing code gives a model, read with the words of `minise check`, and what
// leaks when the model of this page runs a row with it.

import {
  judgePacking,
  meantMask,
  readFields,
  readPacking,
  RowError,
  tokenWords,
  whoSeesWhom,
} from "./check.js";
import { button, el, fill, maskCanvas, small } from "./draw.js";
import { ancestors } from "./layout.js";
import { changeWords, largestChange } from "./leak.js";
import { softmax } from "./method.js";

const OWN_RUN = 96; // tokens of a row that is run
const OWN_PARTS = 8; // parts that are changed, one at a time
const OWN_LINES = 10; // of whom each part sees
const OWN_URL = 3000; // characters that still go into the address
const OWN_EXAMPLES = [
  [
    "no mask",
    `documents: 4 4 4
position_ids: 0 1 2 3 0 1 2 3 0 1 2 3`,
  ],
  [
    "no mask, positions run on",
    `documents: 4 4 4
position_ids: 0 1 2 3 4 5 6 7 8 9 10 11`,
  ],
  [
    "mask, but positions run on",
    `documents: 4 4 4
segment_ids: 1 1 1 1 2 2 2 2 3 3 3 3
position_ids: 0 1 2 3 4 5 6 7 8 9 10 11`,
  ],
  [
    "borders off by one",
    `documents: 4 4 4
segment_ids: 1 1 1 2 2 2 2 3 3 3 3 3
position_ids: 0 1 2 3 0 1 2 3 0 1 2 3`,
  ],
  [
    "padding is seen",
    `documents: 6
padding: left
attention_mask: 1 1 1 1 1 1 1 1
position_ids: 0 0 0 1 2 3 4 5`,
  ],
  [
    "right: documents",
    `documents: 4 4 4
cu_seqlens: 0 4 8 12
position_ids: 0 1 2 3 0 1 2 3 0 1 2 3`,
  ],
  [
    "right: a trunk with two branches, as a mask",
    `trunk: 3
branches: 3 3
position_ids: 0 1 2 3 4 5 3 4 5
attention_mask:
1 0 0 0 0 0 0 0 0
1 1 0 0 0 0 0 0 0
1 1 1 0 0 0 0 0 0
1 1 1 1 0 0 0 0 0
1 1 1 1 1 0 0 0 0
1 1 1 1 1 1 0 0 0
1 1 1 0 0 0 1 0 0
1 1 1 0 0 0 1 1 0
1 1 1 0 0 0 1 1 1`,
  ],
];
const ownView = { queue: Promise.resolve(), pasted: "", waiting: 0 };

// Reading

// The row of a text: {packing, guessed}, or {fault: one line}.
function readOwn(text) {
  try {
    const { fields, guessed } = readFields(text);
    const read = readPacking(fields);
    return { read, packing: onePadding(read), guessed };
  } catch (error) {
    if (!(error instanceof RowError)) throw error;
    return { fault: error.message };
  }
}

// All padding as one part.
function onePadding(p) {
  const first = p.names.indexOf("padding");
  return { ...p, parts: p.parts.map((part) => (p.names[part] === "padding" ? first : part)) };
}

function setOwn(app, text) {
  ownView.pasted = text;
  app.set({ row: text.length <= OWN_URL ? text : null });
}

// What is shown

function buildOwn(root, app) {
  const view = ownView;
  view.text = el("textarea", {
    rows: 9,
    spellcheck: "false",
    class: "own-text",
    "aria-label": "The row, as text",
    "aria-describedby": "own-fault",
    oninput: () => {
      clearTimeout(view.waiting);
      view.waiting = setTimeout(() => setOwn(app, view.text.value), 250);
    },
  });
  view.examples = OWN_EXAMPLES.map(([name, text]) => button(name, () => setOwn(app, text)));
  view.fault = el("p", { id: "own-fault", class: "verdict", role: "alert" });
  view.picture = maskCanvas({
    words: ownCell,
    name: ownName,
    ruler: true,
    label: "Mask of the row",
  });
  view.verdict = el("p", { class: "verdict", "aria-live": "polite" });
  view.findings = el("div");
  view.seen = el("ul", { class: "own-list" });
  view.leaks = el("ul", { class: "own-list", "aria-live": "polite" });
  view.about = el("p", { class: "soft" });
  const key = [
    ["1", "right"],
    ["2", "leaks"],
    ["3", "missing"],
    ["0", "hidden"],
  ];
  view.result = el(
    "div",
    { class: "stage own-stage" },
    el(
      "figure",
      {},
      view.picture.root,
      el(
        "p",
        { class: "own-key" },
        key.map(([kind, word]) => el("span", {}, el("i", { class: `kind-${kind}` }), word))
      )
    ),
    el(
      "div",
      {},
      view.verdict,
      view.findings,
      el("h3", {}, "Who sees whom"),
      view.seen,
      el("h3", {}, "What leaks when it runs"),
      view.leaks,
      view.about
    )
  );
  root.append(ownSide(view), view.result);
}

function ownSide(view) {
  return el(
    "div",
    { class: "side" },
    el("h2", {}, "Bring your own mask ", el("span", { class: "tag" }, "for developers")),
    el(
      "p",
      {},
      "Programs that train a model also write several texts into one row. Then each text should ",
      "be read as if it were alone. This page says whether it is, and if not, why."
    ),
    el(
      "p",
      {},
      "Paste what your packing code gives a model: ",
      el("code", {}, "position_ids"),
      ", and ",
      el("code", {}, "attention_mask"),
      " (2-D or 4-D), ",
      el("code", {}, "segment_ids"),
      ", ",
      el("code", {}, "cu_seqlens"),
      " or ",
      el("code", {}, "parents"),
      ". Say what was meant by ",
      el("code", {}, "documents"),
      ", or ",
      el("code", {}, "trunk"),
      " and ",
      el("code", {}, "branches"),
      ", as numbers of tokens. JSON works too."
    ),
    view.text,
    view.fault,
    el("h3", {}, "Examples"),
    el("div", { class: "own-examples" }, view.examples),
    el(
      "p",
      { class: "soft" },
      "The same fields in a file: ",
      el("code", {}, "minise check row.json"),
      ". Nothing that you paste leaves this page."
    )
  );
}

const ownPart = (segment) => (segment < 0 ? -1 - segment : segment);

// A part's name, or the end of it where there is little room.
function ownName(segment) {
  const { names, parts, T } = ownView.packing;
  const part = ownPart(segment);
  const room = parts.filter((one) => one === part).length / T;
  if (room < 0.04) return "";
  return room > 0.19
    ? names[part]
    : names[part]
        .split(" ")
        .at(-1)
        .slice(0, room > 0.1 ? 7 : 3);
}

// The packing as draw.js draws it. A trunk and padding are grey.
function ownLayout({ parts, names, positions, mask }) {
  const grey = (part) => names[part] === "the trunk" || names[part] === "padding";
  const segments = parts.map((part) => (grey(part) ? -1 - part : part));
  return { ids: parts, segments, positions, mask };
}

function ownCell(t, u) {
  const { packing: p, right } = ownView;
  const may = p.mask[t * p.T + u] ? "may" : "may not";
  const seen = t === u ? "itself" : tokenWords(p, u).replace(/,$/, "");
  const words = `${tokenWords(p, t)} ${may} attend to ${seen}`;
  if (!p.real[t]) return words;
  const wrong = p.mask[t * p.T + u] - right[t * p.T + u];
  return words + (wrong > 0 ? ": it leaks" : wrong < 0 ? ": it is missing" : "");
}

function showOwn({ read, packing, guessed }) {
  const p = packing;
  Object.assign(ownView, { packing: p, right: meantMask(p) });
  const kinds = p.mask.map((shown, i) => {
    if (shown === ownView.right[i] || !p.real[Math.floor(i / p.T)]) return shown;
    return shown ? 2 : 3;
  });
  ownView.picture.draw({
    layout: ownLayout(p),
    kinds,
    most: Math.max(240, Math.min(26 * p.T, 480)),
  });
  const findings = judgePacking(read);
  const equal = findings.length ? "NOT equal to the separate runs" : "equal to the separate runs";
  const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
  fill(
    ownView.verdict,
    `${count(p.T, "token")}, ${count(p.ends.length, "separate prompt")}: ${equal}`
  );
  const taken = p.source && `Nothing says what was meant; it is taken from ${p.source}.`;
  fill(
    ownView.findings,
    guessed
      ? el(
          "p",
          { class: "soft" },
          `The numbers are read as ${guessed}. Write another name before ` +
            `them to change that, such as segment_ids: ...`
        )
      : null,
    p.source
      ? el(
          "p",
          { class: "soft" },
          p.source === "nothing"
            ? "Nothing says what was meant; it is taken as one document."
            : taken
        )
      : null,
    findings.map(({ what, words, wrong, of, mend }) =>
      el(
        "div",
        { class: "own-finding" },
        el("p", {}, el("b", {}, `${what}: `), words),
        el("p", { class: "soft" }, `wrong: ${wrong} of ${of}. To mend it: ${mend}`)
      )
    )
  );
  fill(ownView.seen, seenWords(p));
}

function listed(words, most = 5) {
  const more = words.length > most ? ` and ${words.length - most} more` : "";
  return words.slice(0, most).join(", ") + more;
}

// A line for each part: whom it sees, and what of that is wrong.
function seenWords(p) {
  const pairs = whoSeesWhom(p);
  const named = ({ reader, read, seen, of }) => {
    const name = reader === read ? "itself" : p.names[read];
    return seen && seen !== of ? `${name} (${seen} of ${of} pairs)` : name;
  };
  const readers = [...new Set(p.parts)].filter((part) => p.names[part] !== "padding");
  const lines = readers.map((part) => {
    const mine = pairs.filter(({ reader }) => reader === part);
    const right = mine.filter(({ seen, meant }) => seen && seen === meant).map(named);
    const leaks = mine.filter(({ seen, meant }) => seen > meant).map(named);
    const missing = mine.filter(({ seen, meant }) => seen < meant).map(named);
    const said = [right.length ? `sees ${listed(right)}` : null];
    if (leaks.length) said.push(el("b", {}, `leaks: ${listed(leaks)}`));
    if (missing.length) said.push(el("b", {}, `missing: ${listed(missing)}`));
    const words = said.filter(Boolean).flatMap((one, i) => (i ? ["; ", one] : [one]));
    return el("li", {}, `${p.names[part]} `, words, ".");
  });
  if (lines.length <= OWN_LINES) return lines;
  const more = lines.length - OWN_LINES;
  return [...lines.slice(0, OWN_LINES), el("li", {}, `and ${more} more`)];
}

// What leaks

// The tokens of a built-in text, and others for a part that is changed.
function ownTokens(app, T) {
  const ids = [];
  for (let i = 0; ids.length < 2 * T; i++) {
    const { question, choices } = app.world[i % app.world.length];
    ids.push(...app.tokenizer.encode(`${question} ${choices.join(", ")}. `));
  }
  const rest = ids.slice(T);
  const other = (t) => rest.find((id, i) => i >= t && id !== ids[t]) ?? (ids[t] ? 0 : 1);
  return { ids: ids.slice(0, T), others: Array.from({ length: T }, (_, t) => other(t)) };
}

// The probabilities of the next token at each row.
async function nextTokens(app, ids, positions, mask) {
  const { logits } = await app.forward(ids, positions, mask, {});
  const all = Array.from({ length: logits[0].length }, (_, id) => id);
  return logits.map((one) => softmax(one, all));
}

function rowsOf(p, part) {
  return p.parts.flatMap((one, t) => (one === part ? [t] : []));
}

// The row under its own mask, with one part after the other changed: for each part how much each
// other one changes, and how far each is from a run of its own.
async function runOwn(app, p, stopped) {
  const { ids, others } = ownTokens(app, p.T);
  const mask = p.mask.slice();
  p.real.forEach((one, t) => {
    if (!one) mask[t * p.T + t] = 1;
  });
  const pick = (rows, values) => rows.map((t) => values[t]);
  const first = await nextTokens(app, ids, p.positions, mask);
  const changes = [];
  const parts = [...new Set(p.parts)];
  for (const part of parts.slice(0, OWN_PARTS)) {
    if (stopped()) break;
    const changed = ids.map((id, t) => (p.parts[t] === part ? others[t] : id));
    const after = await nextTokens(app, changed, p.positions, mask);
    const rest = parts.filter((one) => one !== part && p.names[one] !== "padding");
    const found = rest.map((one) => {
      const rows = rowsOf(p, one);
      return { part: one, change: largestChange(pick(rows, first), pick(rows, after)) };
    });
    changes.push({ part, found: found.filter(({ change }) => change) });
  }
  const apart = p.names.map(() => 0);
  for (const end of p.ends.slice(0, 2 * OWN_PARTS)) {
    if (stopped()) break;
    const path = [];
    for (let t = end; t >= 0; t = p.parents[t]) path.unshift(t);
    const index = path.map((_, i) => i);
    const alone = await nextTokens(app, pick(path, ids), index, ancestors(index.map((i) => i - 1)));
    path.forEach((t, i) => {
      const part = p.parts[t];
      apart[part] = Math.max(apart[part], largestChange([first[t]], [alone[i]]));
    });
  }
  return { changes, apart };
}

function ownRunFault(p, recorded) {
  if (p.T > OWN_RUN) return `Not run: ${p.T} tokens; this page runs ${OWN_RUN}.`;
  if (recorded) return "Not run: no model runs in this page.";
  const blind = p.real.findIndex((one, t) => one && !p.mask[t * p.T + t]);
  if (blind < 0) return null;
  return `Not run: ${tokenWords(p, blind).replace(/,$/, "")} may not attend to itself.`;
}

function showLeaks(p, { changes, apart }) {
  const meant = new Set(
    whoSeesWhom(p)
      .filter((one) => one.meant)
      .map((one) => `${one.read} ${one.reader}`)
  );
  const names = (parts) => parts.map((part) => p.names[part]).join(", ");
  const lines = changes
    .filter(({ found }) => found.length)
    .map(({ part, found }) => {
      const words = found.map(({ part: other, change }) => {
        const said = `${p.names[other]} by ${changeWords(change)}`;
        return meant.has(`${part} ${other}`)
          ? `${said}, as it should`
          : el("b", {}, `${said}, a leak`);
      });
      const joined = words.flatMap((word, i) => (i ? ["; ", word] : [word]));
      return el("li", {}, `Change ${p.names[part]}: it changes `, joined, ".");
    });
  const still = changes.filter(({ found }) => !found.length).map(({ part }) => part);
  const real = [...new Set(p.parts)].filter((part) => p.names[part] !== "padding");
  const exact = real.filter((part) => apart[part] === 0);
  fill(
    ownView.leaks,
    real.length > 1 || still.length < changes.length ? lines : null,
    still.length ? el("li", {}, `Change ${names(still)}: nothing else changes, exactly.`) : null,
    exact.length ? el("li", {}, `Equal to a run of its own, exactly: ${names(exact)}.`) : null,
    real
      .filter((part) => apart[part])
      .map((part) => {
        const far = apart[part] < 1e-6 ? "equal to a run of its own up to rounding, by " : "";
        const rest = far ? "" : " apart from a run of its own";
        return el("li", {}, `${p.names[part]}: ${far}${small(apart[part])}${rest}.`);
      })
  );
  fill(
    ownView.about,
    "Run on a built-in text, with the model of this page. A number is the largest change of any ",
    "next token's probability.",
    changes.length === OWN_PARTS ? ` The first ${OWN_PARTS} parts were changed.` : ""
  );
}

export const own = {
  id: "own",
  title: "Your own mask",
  defaults: { row: "" },
  guess: null,
  build(root, app) {
    buildOwn(root, app);
  },
  async update(app) {
    const run = app.run;
    const text = String(app.state.row || ownView.pasted || OWN_EXAMPLES[0][1]);
    if (document.activeElement !== ownView.text || ownView.text.value === "")
      ownView.text.value = text;
    ownView.examples.forEach((one, i) =>
      one.setAttribute("aria-pressed", String(OWN_EXAMPLES[i][1] === text))
    );
    const row = readOwn(text);
    fill(ownView.fault, row.fault ?? "");
    ownView.result.hidden = Boolean(row.fault);
    if (row.fault) return;
    showOwn(row);
    const fault = ownRunFault(row.packing, app.recorded);
    fill(ownView.leaks, el("li", {}, fault ?? "Running ..."));
    fill(ownView.about, "");
    if (fault) return;
    const stopped = () => run !== app.run;
    const measured = ownView.queue
      .catch(() => {})
      .then(() => (stopped() ? null : runOwn(app, row.packing, stopped)));
    ownView.queue = measured;
    const found = await measured;
    if (found && !stopped()) showLeaks(row.packing, found);
  },
};
