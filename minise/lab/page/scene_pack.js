// Pack: the prompts become one row. The question they share is written once; then, in the tree,
// every common beginning.
import { animate, colour, edgeName, el, equation, fill, groupCss, paragraph, shownPiece,
  thousands } from "./draw.js";
import { packed, separate, tree } from "./layout.js";

const STAGES = {
  separate: ["separate prompts", "Each prompt has its own copy of the question."],
  packed: ["one row", "The question is written once. The groups follow it, and each counts its " +
    "positions on from the question, as if it were the only one."],
  tree: ["tree", "Some groups begin alike, with the same first choice: that is written once too. " +
    "Where two prompts begin to differ, the row forks. So it is a tree: the question is its trunk, " +
    "and a prompt is one path from there to the end of a branch. A token attends to its own path " +
    "only, as if its prompt were alone, so the answers stay the same."],
};
const packView = { key: "", stage: "separate", stop: () => {} };

export const pack = {
  id: "pack", title: "Pack", defaults: { stage: "separate" },
  guess: () => ({
    question: "Many prompts begin with the same question. They move into one row. " +
      "How often must the question be written there?",
    options: ["Once per prompt", "Once per trial", "Once"],
    right: 2,
    because: "What the model computes for a token depends only on the tokens up to it and their " +
      "positions. The question comes first in all prompts, so one copy serves all.",
  }),
  build: buildPack, update: updatePack,
};

function buildPack(root, app) {
  packView.counter = el("b", { class: "counter", id: "pack-counter" });
  packView.stages = Object.entries(STAGES).map(([stage, [name]]) => el("button", { type: "button",
    id: `pack-${stage}`, onclick: () => app.set({ stage }) },
  el("b", { class: stage === "separate" ? null : "result" }), ` ${name}`));
  packView.more = el("div", { class: "more" });
  packView.text = el("p", { "aria-live": "polite", class: "stage-text" });
  packView.words = el("div", { class: "words", id: "pack-words" });
  packView.title = el("h3");
  packView.canvas = el("canvas", { role: "img", id: "pack-all",
    onpointermove: (event) => tellPackCell(app, event) });
  packView.pointed = el("p", { class: "readout" }, "Point at a square.");
  packView.lines = el("span");
  packView.legend = el("span");
  root.append(
    el("div", { class: "side" },
      el("h2", {}, "Many prompts in one row"),
      paragraph("The model reads **tokens**, pieces of words, and each of them takes time. " +
        "**Packing** writes all prompts into one row."),
      el("p", {}, packView.counter, " tokens to read"),
      el("div", { class: "steps", role: "group", "aria-label": "How the prompts are laid out" },
        packView.stages)),
    el("div", { class: "stage" }, packView.text,
      el("h3", {}, "The first two prompts. The number below a token is its position."),
      packView.words, packView.title, packView.canvas, packView.pointed,
      el("p", { class: "soft" }, "A square is a token. ", packView.legend, packView.lines)),
    packView.more);
}

// What keeps the prompts of the row apart: its mask and its positions.
const packApart = {
  packed: () => [
    paragraph("Now each group stands behind the others. Token i may attend to token j (1) or " +
      "not (0) by the mask M, and its position counts on from the question Q:"),
    equation("M_ij = 1 if j ≤ i and j ∈ Q ∪ G(i), else 0"),
    equation("pos(i) = |Q| + place of i in its group G(i)")],
  tree: () => [
    paragraph("P(i) is the path from the first token to token i. Token i may attend to token j " +
      "(1) or not (0) by the mask M, and its position is its place on the path:"),
    equation("M_ij = 1 if j ∈ P(i), else 0"),
    equation("pos(i) = |P(i)| − 1")],
};

function updatePack(app) {
  const { state } = app, trials = app.trials();
  const known = Object.hasOwn(STAGES, state.stage) && !app.asking;
  const stage = known ? state.stage : "separate";
  const { prefix, branches } = app.prompts(trials.flat());
  const key = JSON.stringify([prefix, branches]);
  const moved = packView.key === key && packView.stage !== stage;
  if (packView.key !== key) {
    const layouts = { separate: separate(prefix, branches), packed: [packed(prefix, branches)],
      tree: [tree(prefix, branches)] };
    const perTrial = trials[0].length;
    Object.assign(packView, { key, cells: packCells(layouts, prefix.length, perTrial),
      sizes: packSizes(layouts), trunk: prefix.length });
  }
  const before = packView.stage;
  packView.stage = stage;
  packView.stages.forEach((one, i) => {
    const name = Object.keys(STAGES)[i];
    fill(one.querySelector("b"), thousands(packView.sizes[name]));
    one.setAttribute("aria-pressed", `${name === stage}`);
    one.disabled = app.asking && name !== stage;
  });
  packView.more.hidden = stage === "separate";
  fill(packView.more, packApart[stage]?.(),
    paragraph("The next scene shows what goes wrong without them.", { class: "soft" }));
  fill(packView.text, STAGES[stage][1]);
  fill(packView.title, `All ${branches.length} prompts: `,
    `${state.N} ${state.N > 1 ? "trials" : "trial"}, `,
    `groups of ${state.m} of the ${state.K} choices`);
  fill(packView.legend, [-1, ...trials[0].keys()].map((g) =>
    [el("span", { class: "key", style: { "--c": colour(g) } },
      g < 0 && stage === "tree" ? "shared by several prompts" : edgeName(g)), " "]));
  packView.canvas.setAttribute("aria-label", `${branches.length} prompts as ${STAGES[stage][0]}: ` +
    `${thousands(packView.sizes[stage])} tokens`);
  drawPackWords(app, stage);
  movePack(moved ? before : stage, stage);
}

const packSizes = (layouts) => Object.fromEntries(Object.entries(layouts).map(([name, list]) =>
  [name, list.reduce((sum, { ids }) => sum + ids.length, 0)]));

// ------------------------------------------------------------------ all prompts, a square a token

// Each token of the separate prompts, and its row in the packed layout and in the tree. `first`: the
// token that stays where several are merged. `shared`: several prompts have it in the tree.
function packCells(layouts, P, perTrial) {
  const cells = [], kept = { packed: new Set(), tree: new Set() };
  layouts.separate.forEach(({ ids }, prompt) => {
    const rows = { packed: packPath(layouts.packed[0], prompt),
      tree: packPath(layouts.tree[0], prompt) };
    ids.forEach((_, at) => {
      const cell = { prompt, at, id: ids[at], segment: at < P ? -1 : prompt % perTrial, first: {} };
      for (const name of ["packed", "tree"]) {
        cell[name] = rows[name][at];
        cell.first[name] = !kept[name].has(cell[name]);
        kept[name].add(cell[name]);
      }
      cells.push(cell);
    });
  });
  const merged = new Set(cells.filter(({ first }) => !first.tree).map(({ tree: row }) => row));
  for (const cell of cells) cell.shared = merged.has(cell.tree);
  return cells;
}

// The text of the square under the pointer.
function tellPackCell(app, { offsetX, offsetY }) {
  const { cells, places, stage } = packView;
  const found = cells.find((cell) => {
    const [x, y] = places.of(cell, stage);
    return (stage === "separate" || cell.first[stage]) && offsetX >= x &&
      offsetX < x + places.size && offsetY >= y && offsetY < y + 1.5 * places.size;
  });
  if (!found) return;
  const { id, at, prompt, segment } = found, perTrial = app.trials()[0].length;
  fill(packView.pointed, `“${shownPiece(app.tokenizer, id)}”, ${edgeName(segment)}, `,
    segment < 0 ? "" : `trial ${Math.floor(prompt / perTrial) + 1}, `, `position ${at}`);
}

// The rows of a branch's whole prompt, first token to last.
function packPath({ parents, ends }, branch) {
  const path = [];
  for (let row = ends[branch]; row >= 0; row = parents[row]) path.push(row);
  return path.reverse();
}

// The largest squares with which all prompts fit the width and the height; where each token is.
function packPlaces(cells, wide, high) {
  // Counted one by one: a call takes so many arguments only, and these can be more.
  const largest = (name) => cells.reduce((most, cell) => Math.max(most, cell[name]), 0);
  const prompts = cells.at(-1).prompt + 1, longest = largest("at") + 1;
  const most = largest("packed") + 1;
  let size = 9, beside, columns, lines;
  for (; size > 1; size -= 0.5) {
    beside = Math.max(Math.floor((wide + 2 * size) / ((longest + 2) * size)), 1);
    columns = Math.max(Math.floor(wide / size), 1);
    lines = Math.max(Math.ceil(prompts / beside), Math.ceil(most / columns));
    if (lines * size * 1.5 <= high && longest * size <= wide) break;
  }
  const row = (index) => [(index % columns) * size, Math.floor(index / columns) * size * 1.5];
  const separately = ({ prompt, at }) => [((prompt % beside) * (longest + 2) + at) * size,
    Math.floor(prompt / beside) * size * 1.5];
  return { size, height: lines * size * 1.5, columns,
    of: (cell, stage) => (stage === "separate" ? separately(cell) : row(cell[stage])) };
}

function movePack(from, to) {
  const wide = packView.canvas.parentElement.clientWidth;
  if (!wide) return;
  packView.stop();
  const places = packView.places = packPlaces(packView.cells, wide, 300);
  const ratio = devicePixelRatio || 1, { canvas, sizes, cells } = packView;
  canvas.width = wide * ratio;
  canvas.height = Math.ceil(places.height * ratio);
  canvas.style.width = `${wide}px`;
  canvas.style.height = `${places.height}px`;
  const lines = to === "separate" ? 1 : Math.ceil(sizes[to] / places.columns);
  fill(packView.lines, lines > 1 ? `The one row is shown in ${lines} lines.` : "");
  const pen = canvas.getContext("2d");
  const colours = [groupCss(-1), ...[0, 1, 2, 3, 4, 5].map(groupCss)];
  const moves = cells.map((cell) => ({ start: places.of(cell, from), end: places.of(cell, to),
    hue: colours[cell.segment < 0 || (to === "tree" && cell.shared) ? 0 : 1 + (cell.segment % 6)],
    leaves: to !== "separate" && !cell.first[to],
    absent: from !== "separate" && !cell.first[from] }));
  const step = (t) => {
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, wide, places.height);
    for (const { start, end, hue, leaves, absent } of moves) {
      if ((leaves && t === 1) || (absent && leaves)) continue;
      pen.globalAlpha = leaves ? 1 - t : absent ? t : 1;
      pen.fillStyle = hue;
      pen.fillRect(start[0] + (end[0] - start[0]) * t, start[1] + (end[1] - start[1]) * t,
        places.size - Math.min(1, places.size / 4), places.size * 1.2);
    }
    pen.globalAlpha = 1;
    fill(packView.counter, thousands(sizes[from] + (sizes[to] - sizes[from]) * t));
  };
  if (from === to) step(1);
  else packView.stop = animate(1600, step);
}

// ------------------------------------------------------------ the first two prompts, as words

function packWord(app, { id, at }) {
  return el("span", { class: "token", dir: "auto" }, shownPiece(app.tokenizer, id),
    el("small", {}, at));
}

function drawPackWords(app, stage) {
  const two = packView.cells.filter(({ prompt }) => prompt < 2);
  const merged = new Set(two.filter(({ first }) => !first.tree).map(({ tree: row }) => row));
  const [one, other] = [0, 1].map((mine) => two.filter(({ prompt, first }) =>
    prompt === mine && (stage === "separate" || first[stage])).map((cell) => {
    const shared = cell.at < packView.trunk || (stage === "tree" && merged.has(cell.tree));
    const word = packWord(app, cell);
    word.style.setProperty("--c", colour(shared ? -1 : cell.prompt));
    return word;
  }));
  if (stage !== "tree") {
    fill(packView.words, (stage === "packed" ? [[...one, ...other]] : [one, other]).map((line) =>
      el("div", {}, line)));
    return;
  }
  // The tokens that both share are a trunk; what is left of each is a branch.
  fill(packView.words, el("div", { class: "fork" },
    el("div", { class: "trunk" }, one.slice(0, merged.size)),
    el("div", { class: "branches" }, [one.slice(merged.size), other].map((branch) =>
      el("div", { class: "branch" }, branch)))));
}
