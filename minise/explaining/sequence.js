// Parts 1 and 2: trials and groups, the packed sequence, its mask, and the pointed token.

// ------------------------------------------------------------------- the sequence: what sees what

const layout = () => data[state.layout];
const shownGroups = (trials) => GROUPS.filter((g, i) => i < data.shown && g.trial < trials).length;
const rowCount = () => Math.max(...layout().ends.slice(0, shownGroups(state.trials))) + 1;
const rowOf = (at) => (state.layout === "tree" ? data.tree_rows[at] : at);
const tokenAt = (row) => (state.layout === "tree" ? data.tree_rows.indexOf(row) : row);
const position = (row) => (state.restart ? layout().positions[row] : row);

// The rows that a row may attend to: its ancestors and itself, or everything before it; within the
// window, which counts positions.
function sees(row) {
  const { parents } = layout(), found = [], here = position(row);
  for (let column = row; column >= 0; column = state.mask ? parents[column] : column - 1) {
    if (!state.window || here < position(column) + state.window) found.push(column);
  }
  return found.reverse();
}

// Rising numbers as runs [first, count], to draw many cells at once.
function runs(columns) {
  const found = [];
  for (const column of columns) {
    const last = found[found.length - 1];
    if (last && last[0] + last[1] === column) last[1] += 1;
    else found.push([column, 1]);
  }
  return found;
}

// ---------------------------------------------------------------------- part 1: trials and groups

function drawTrials() {
  const K = data.choices.length;
  const head = make("tr", {}, make("td"), ...data.choices.map((choice, i) =>
    make("th", { scope: "col", title: choice }, `${i + 1}`)));
  const rows = []; // a trial that holds a choice twice, as of all orders, takes several
  GROUPS.forEach((group, g) => {
    let row = rows.find((one) => one.trial === group.trial && group.choices.every((choice) => !one.cells[choice]));
    if (!row) rows.push(row = { trial: group.trial, cells: [] });
    group.choices.forEach((choice, place) => {
      row.cells[choice] = make("button", { type: "button", tabindex: -1, colour: colour(g), "data-group": g,
        "aria-pressed": "false", "aria-label": `${data.choices[choice]}: label ${data.labels[place]} in ${groupName(g)}` },
      data.labels[place]);
    });
  });
  const body = rows.map(({ trial, cells }) => make("tr", {}, make("th", { scope: "row" }, `${trial + 1}`),
    ...Array.from({ length: K }, (_, choice) => make("td", {}, cells[choice] || ""))));
  $("trials").replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}

function drawGroup() {
  const group = GROUPS[state.group], found = result(state.group);
  for (const button of $("trials").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", `${Number(button.dataset.group) === state.group}`);
  }
  $("partition-title").textContent = `The groups of trial ${group.trial + 1}`;
  $("partition").replaceChildren(...GROUPS.flatMap((one, g) => (one.trial === group.trial
    ? [make("li", { colour: colour(g), dir: "auto", ...(g === state.group ? { "aria-current": "true" } : {}) },
      one.choices.map((choice) => data.choices[choice]).join(", "))] : [])));
  const name = groupName(state.group);
  $("prompt-title").textContent = `The prompt of ${name}`;
  $("prompt").replaceChildren(make("span", { class: "shared" }, data.shared), group.prompt);
  $("prompt").style.setProperty("--c", colour(state.group));
  $("said").style.setProperty("--c", colour(state.group));
  const said = found ? group.choices.map((choice, i) => [data.choices[choice], found.probabilities[i]]) : [];
  if (found && found.nothing !== null) said.push(["None of the above", found.nothing]);
  fillTable($("said"), ["Label", "Choice", "Probability", ""], said.map(([text, p], i) => {
    const bar = make("span", { class: "bar", style: `width: ${Math.round(100 * p)}%` });
    return [data.labels[i], text, percent(p), bar];
  }));
  drawLens();
  markDots();
}

function pick(g) { // a group: its prompt, and where its labels are read
  state.group = clamp(g, 0, GROUPS.length - 1);
  drawGroup();
  if (state.group < data.shown) point(data.packed.ends[state.group]);
}

// ------------------------------------------------------------------------- tokens and their texts

// The rows of a layout in stretches: of one prompt, or of what several share.
function blocks({ parents, groups }, T) {
  const found = [];
  for (let row = 0; row < T; row++) {
    if (!row || parents[row] !== row - 1 || groups[row] !== groups[row - 1]) found.push([]);
    found[found.length - 1].push(row);
  }
  return found;
}

// Rows in the pieces in which they are written: one token each, and several where a character (what
// a reader takes for one: a letter with its accents, a whole emoji) needs them.
function pieces(rows, { texts, inside }) {
  const text = rows.map((row) => texts[row]).join("");
  const cuts = /[\u0300-\uffff]/.test(text) && Intl.Segmenter
    ? new Set([...new Intl.Segmenter().segment(text)].map(({ index }) => index)).add(text.length) : null;
  const found = [];
  let open = [], at = 0;
  for (const row of rows) {
    open.push(row);
    at += texts[row].length;
    if (inside.has(row) || (cuts && !cuts.has(at))) continue;
    found.push(open);
    open = [];
  }
  return open.length ? [...found, open] : found;
}

const hex = (byte) => byte.toString(16).toUpperCase().padStart(2, "0");

// How the tokens of a piece are written, and what they are called.
function describe(rows, part) {
  const { texts, inside } = part, text = rows.map((row) => texts[row]).join(""), n = rows.length;
  const bytes = n > 1 ? [...new TextEncoder().encode(text)].map(hex) : [];
  rows.forEach((row, i) => {
    part.marks[row] = n === 1 ? (inside.has(row) ? "…" : visible(text)) : bytes.length === n ? bytes[i] : `${i + 1}/${n}`;
    part.names[row] = n === 1 ? (inside.has(row) ? "the first bytes of a character" : quoted(text))
      : `part ${i + 1} of ${n} of ${quoted(text)}`;
  });
}

function prepareTexts() {
  for (const part of [data.packed, data.tree]) {
    part.inside = new Set(part.inside);
    part.marks = [];
    part.names = [];
    part.pieces = blocks(part, part.texts.length).map((rows) => pieces(rows, part));
    for (const rows of part.pieces.flat()) describe(rows, part);
  }
}

// A piece as it is written: a token, or a character over its tokens; a line end ends the line.
function written(rows, part, token) {
  const text = rows.map((row) => part.texts[row]).join("");
  const spans = rows.map((row) => {
    const span = token(row);
    span.append(part.marks[row]);
    const nameless = !part.marks[row].trim(); // a space is no name
    if (span.role && (rows.length > 1 || nameless)) span.setAttribute("aria-label", nameless ? "space" : part.names[row]);
    return span;
  });
  const over = make("span", { class: "glyph", dir: "auto", "aria-hidden": "true" }, visible(text));
  const shown = rows.length > 1 ? [make("span", { class: "char" }, over, make("span", { class: "parts" }, ...spans))] : spans;
  return text.endsWith("\n") ? [...shown, make("br")] : shown;
}

// ------------------------------------------------------------------------- part 2: the sequence

let tokens = [], lit = [];

const span = (numbers) => (numbers.length > 1 ? `${numbers[0]} to ${numbers[numbers.length - 1]}` : `${numbers[0]}`);

function drawSequence() {
  const part = layout(), { parents, groups } = part, T = rowCount();
  tokens = [];
  lit = [];
  $("sequence").replaceChildren(...part.pieces.filter(([[first]]) => first < T).map((rows) => {
    const first = rows[0][0], g = groups[first];
    const after = first && parents[first] !== first - 1 && state.layout === "tree" ? `, after token ${parents[first]}` : "";
    const where = `position${rows.flat().length > 1 ? "s" : ""} ${span(rows.flat().map(position))}`;
    const name = `${first === 0 ? "the question, shared by all" : g < 0 ? "shared" : groupName(g)}${after}: ${where}`;
    return make("div", { class: "block", role: "group", "aria-label": name, colour: colour(g) },
      make("span", { class: "name", "aria-hidden": "true" }, name),
      ...rows.flatMap((piece) => written(piece, part, (row) => {
        tokens[row] = make("span", { class: "t", role: "option", id: `t${row}`, "aria-selected": "false" });
        return tokens[row];
      })));
  }));
}

function light() { // what the pointed token sees, in the sequence and in the mask
  const row = rowOf(state.at), seen = sees(row);
  for (const token of lit) token.classList.remove("lit", "at");
  if (lit.length) lit[lit.length - 1].setAttribute("aria-selected", "false");
  lit = [...seen.map((column) => tokens[column]), tokens[row]];
  for (const column of seen) tokens[column].classList.add("lit");
  tokens[row].classList.add("at");
  tokens[row].setAttribute("aria-selected", "true");
  $("sequence").setAttribute("aria-activedescendant", `t${row}`);
  lightMask(row, seen);
  tellPointed(row, seen.length);
}

function tellPointed(row, count) {
  const { names, groups, ends } = layout(), g = groups[row];
  const owner = g >= 0 ? `in ${groupName(g)}` : "shared by several groups";
  const reads = ends.includes(row) ? " Its group's labels are read out here." : "";
  const held = state.pinned ? " Held: Escape lets go." : "";
  $("pointed").textContent = `Token ${names[row]}, ${owner}: index ${row}, position ${position(row)}, `
    + `sees ${count} token${count > 1 ? "s" : ""}.${reads}${held}`;
}

function tellSwitches() {
  const told = [];
  const rows = { packed: data.packed.texts.length, tree: data.tree.texts.length };
  if (state.layout === "tree") {
    told.push(`Tree: whatever two prompts begin with is there once, ${rows.tree} tokens instead of ${rows.packed}.`);
  }
  if (!state.mask) told.push("Mask off: a group reads all groups before it.");
  if (!state.restart) told.push("Positions run on: late groups stand far from the question.");
  if (state.window) {
    const own = data.windows.includes(state.window);
    const whose = own ? "this model's own" : "an example, which is drawn but was not run";
    told.push(`Window ${state.window}: a token sees that many positions, itself included (${whose}).`);
  }
  $("switched").textContent = told.join(" ") || "As the paper packs it.";
}

// What the switches do to the answer, and in every part whose numbers they change.
function tellRuns() {
  const name = ablated(), run = ablation(), own = data.self_ensemble;
  const flat = state.layout === "tree" ? " of the flat sequence" : "";
  const answer = ({ prediction, probabilities }) =>
    `${isolated(data.choices[prediction])}${verdict(prediction)} with ${percent(probabilities[prediction])}`;
  const after = run && run.self_ensemble && ensemble().running.length < data.trials
    ? `, after ${ensemble().running.length} of the trials` : "";
  $("consequence").hidden = !name;
  $("consequence").textContent = !name ? "" : !run ? `The model was not run so${flat}: all numbers are those of the paper's packing.`
    : run.self_ensemble ? `So it answers ${answer(run.self_ensemble)}${after}; as the paper packs it, ${answer(own)}.`
      : "It was run so for the shown groups alone, too few for an answer.";
  for (const note of document.querySelectorAll(".run")) {
    const has = run && (note.id !== "run5" || run.self_ensemble);
    note.hidden = !name;
    note.querySelector("span").textContent = name && has ? `These are the numbers${flat} with ${ABLATIONS[name]}.`
      : `Not run with ${ABLATIONS[name]}: these are the numbers of the paper's packing.`;
  }
}

function fillTokens(table) {
  const { names, groups } = layout();
  const rows = tokens.map((_, row) => [`${row}`, names[row].replace(/^“(.*)”$/s, "$1"),
    groups[row] < 0 ? "shared" : `${groups[row] + 1}`, `${position(row)}`, `${sees(row).length}`]);
  fillTable(table, ["Index", "Token", "Group", "Position", "Sees"], rows);
}
TABLES.tokentable = fillTokens;

function drawPart2() {
  drawSequence();
  drawMask();
  tellSwitches();
  fill("tokentable");
}

function point(at, show = true) { // move the pointed token
  state.at = at;
  const own = data.packed.groups[at];
  if (own >= 0 && own !== state.group) {
    state.group = own;
    drawGroup();
  }
  if (tokens.length <= rowOf(at)) { // of a trial that is not in the picture
    const options = [...$("shown").options].map((option) => Number(option.value));
    state.trials = options.find((trials) => trials > GROUPS[own].trial);
    $("shown").value = state.trials;
    drawPart2();
  }
  light();
  if (show) reveal(tokens[rowOf(at)], $("sequence"));
  traceEquality();
  markStrips();
  drawAttention();
}

function switched() { // after a switch of part 2: what it changes, everywhere
  const name = ablated(), changed = name !== state.run;
  state.run = name;
  drawPart2();
  tellRuns();
  if (changed) {
    drawGroup();
    prepareDots();
    drawAnswer();
  }
  point(tokens.length > rowOf(state.at) ? state.at : data.packed.ends[0]);
}

function reveal(element, box) { // scroll the box alone, not the page
  const inner = element.getBoundingClientRect(), outer = box.getBoundingClientRect();
  if (inner.top < outer.top) box.scrollTop -= outer.top - inner.top + 30;
  else if (inner.bottom > outer.bottom) box.scrollTop += inner.bottom - outer.bottom + 30;
}
