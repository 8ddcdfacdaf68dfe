// Shows the data in the page; computes nothing about the model. Two things are derived here, because
// switches change them: a token's position and what it sees (the same rules as minise/layout.py).
// Text of users and models is only ever set as text, never as markup. The scripts of this folder
// become one, in the order page.js, sequence.js, mask.js, charts.js, answer.js, events.js.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const L = data.layers, GROUPS = data.groups, SHOWN_TRIALS = GROUPS[data.shown - 1].trial + 1;
// What the switches can ask for beside the paper's packing, as the data name it.
const ABLATIONS = {
  without_mask: "mask off", without_positions: "positions run on", without_both: "mask off, positions run on",
};
const ALL_RUNS = {
  dense: "dense engine", tree: "tree engine",
  without_mask: "without the mask", without_positions: "positions run on", without_both: "both: no mask, run on",
};
// Those that there are: one whose numbers make no answer is left out.
const RUNS = Object.fromEntries(Object.entries(ALL_RUNS).filter(([run]) => run in data.equality));
const DASHES = ["", "7 4", "2 3", "9 3 2 3"];

const state = {
  layout: "packed", mask: true, restart: true, window: 0, // what part 2 is switched to
  trials: 1, // shown in part 2
  at: 0, // the pointed token: a row of the packed sequence
  cell: null, // the pointed cell of the mask: [row, column] of the layout that is drawn
  pinned: false, // the mouse leads until a token is clicked
  group: 0, layer: L, head: 0, // head 0: their mean
  step: data.trials, dot: null,
};

// ------------------------------------------------------------------------------- small helpers

function make(tag, attributes, ...children) {
  const space = ["svg", "g", "path", "line", "circle", "text", "rect"].includes(tag)
    ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const element = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "colour") element.style.setProperty("--c", value);
    else element.setAttribute(name, value);
  }
  element.append(...children); // strings become text
  return element;
}

// ------------------------------------------------------------- which run's numbers are shown

// The name of the ablation that the switches ask for, null for the model as it answers.
const ablated = () => (state.mask ? (state.restart ? null : "without_positions")
  : state.restart ? "without_mask" : "without_both");
const ablation = () => data.ablations[ablated()] || null; // null too where it could not run

// What a group gives in that run: of its choices, of the null option, and after every layer. Null
// for a group that was not in the run.
function result(g) {
  const run = ablation(), { probabilities, null: nothing, lens } = GROUPS[g];
  if (!run) return { probabilities, nothing, lens };
  if (g >= run.probabilities.length) return null;
  return { probabilities: run.probabilities[g], nothing: run.nulls[g], lens: run.lens[g] };
}

const ensemble = () => (ablation() && ablation().self_ensemble) || data.self_ensemble;
const verdict = (choice) => (data.answer === null ? "" : choice === data.answer ? " (right)" : " (wrong)");

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (index) => (index < 0 ? "var(--shared)" : `var(--g${index % 7})`);
const percent = (p) => `${(100 * p).toFixed(1)}%`;
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const groupName = (g) => `group ${g + 1} (trial ${GROUPS[g].trial + 1})`;

// A token as it is written, with line ends and what has no shape as marks.
const visible = (text) =>
  text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/[\p{Cc}\p{Cs}]/gu, "�") || "�";
// Text from right to left keeps its direction to itself.
const isolated = (text) => (/[\u0590-\u08ff\ufb1d-\ufefc]/.test(text) ? `\u2068${text}\u2069` : text);
const quoted = (text) => `“${isolated(visible(text))}”`;

function small(value) { // a difference, as text
  if (Number.isNaN(value)) return "not computed";
  return value === 0 ? "0" : value.toExponential(1).replace("e", " · 10^");
}

function fillTable(table, head, rows) { // the first cell of a row is its heading
  const caption = table.caption;
  const line = (cells, tag) => make("tr", {}, ...cells.map((cell, i) =>
    tag === "th" && cell ? make("th", { scope: "col", dir: "auto" }, cell)
      : i ? make("td", { dir: "auto" }, cell) : make("th", { scope: "row", dir: "auto" }, cell)));
  table.replaceChildren(...(caption ? [caption] : []),
    make("thead", {}, line(head, "th")), make("tbody", {}, ...rows.map((row) => line(row, "td"))));
}

// A table in details is filled when they are open: pointing fills it again and again.
const TABLES = {}; // by the id of the details, a function that fills it
function fill(id) {
  if ($(id).open) TABLES[id]($(id).querySelector("table"));
}

// The arrays of the data are deflated: see _packed in page.py.
async function unpack({ dtype, deflated }) {
  const bytes = Uint8Array.from(atob(deflated), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  return dtype === "float32" ? new Float32Array(buffer) : new Uint8Array(buffer);
}
