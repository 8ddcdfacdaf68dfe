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
  const group = GROUPS[state.group], null_ = group.null === null ? [] : [["None of the above", group.null]];
  for (const button of $("trials").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", `${Number(button.dataset.group) === state.group}`);
  }
  $("partition-title").textContent = `The groups of trial ${group.trial + 1}`;
  $("partition").replaceChildren(...GROUPS.flatMap((one, g) => (one.trial === group.trial
    ? [make("li", { colour: colour(g), ...(g === state.group ? { "aria-current": "true" } : {}) },
      one.choices.map((choice) => data.choices[choice]).join(", "))] : [])));
  const name = groupName(state.group);
  $("prompt-title").textContent = `The prompt of ${name}`;
  $("prompt").replaceChildren(make("span", { class: "shared" }, data.shared), group.prompt);
  $("prompt").style.setProperty("--c", colour(state.group));
  const said = group.choices.map((choice, i) => [data.choices[choice], group.probabilities[i]]);
  fillTable($("said"), ["Label", "Choice", "Probability", ""], [...said, ...null_].map(([text, p], i) => {
    const bar = make("span", { class: "bar", style: `width: ${Math.round(100 * p)}%` });
    return [data.labels[i], text, percent(p), bar];
  }));
}

function pick(g) { // a group: its prompt, and where its labels are read
  state.group = clamp(g, 0, GROUPS.length - 1);
  drawGroup();
  if (state.group < data.shown) point(data.packed.ends[state.group]);
  else drawLens();
}

// -------------------------------------------------------------- part 2: the sequence and the mask

let tokens = [], lit = [], cell = 1;

function drawSequence() {
  const { texts, parents, groups } = layout(), T = rowCount(), box = $("sequence");
  const blocks = [];
  tokens = [];
  lit = [];
  for (let row = 0; row < T; row++) {
    if (row === 0 || parents[row] !== row - 1 || groups[row] !== groups[row - 1]) {
      const after = row && parents[row] !== row - 1 && state.layout === "tree" ? `, after token ${parents[row]}` : "";
      const name = (row === 0 ? "shared by all" : groups[row] < 0 ? "shared" : groupName(groups[row])) + after;
      blocks.push(make("div", { class: "block", role: "group", "aria-label": name, colour: colour(groups[row]) },
        make("span", { class: "name", "aria-hidden": "true" }, name)));
    }
    const token = make("span", { class: "t", role: "option", id: `t${row}`, "aria-selected": "false" }, visible(texts[row]));
    tokens.push(token);
    blocks[blocks.length - 1].append(token, ...(texts[row].endsWith("\n") ? [make("br")] : []));
  }
  box.replaceChildren(...blocks);
}

function drawMask() {
  const T = rowCount(), canvas = $("mask"), over = $("lit"), ratio = window.devicePixelRatio || 1;
  const room = $("maskbox").parentElement.clientWidth * ratio;
  cell = Math.max(1, Math.floor(room / T));
  for (const one of [canvas, over]) one.width = one.height = T * cell;
  canvas.style.width = `${(T * cell) / ratio}px`;
  const pen = canvas.getContext("2d"), { groups } = layout();
  const shades = new Map([-1, 0, 1, 2, 3, 4, 5, 6].map((i) => [i, css(i < 0 ? "--shared" : `--g${i}`)]));
  for (let row = 0; row < T; row++) {
    pen.fillStyle = shades.get(groups[row] < 0 ? -1 : groups[row] % 7);
    for (const [first, count] of runs(sees(row))) pen.fillRect(first * cell, row * cell, count * cell, cell);
  }
  pen.fillStyle = css("--wash"); // a thin grid
  for (let line = 1; cell >= 5 && line <= T; line++) {
    pen.fillRect(line * cell - 1, 0, 1, T * cell);
    pen.fillRect(0, line * cell - 1, T * cell, 1);
  }
}

function light() { // what the pointed token sees, in the sequence and in the mask
  const row = rowOf(state.at), seen = sees(row);
  for (const token of lit) token.classList.remove("lit", "at");
  lit = [...seen.map((column) => tokens[column]), tokens[row]];
  for (const column of seen) tokens[column].classList.add("lit");
  tokens[row].classList.add("at");
  for (const token of $("sequence").querySelectorAll("[aria-selected=true]")) token.setAttribute("aria-selected", "false");
  tokens[row].setAttribute("aria-selected", "true");
  $("sequence").setAttribute("aria-activedescendant", `t${row}`);

  const over = $("lit"), pen = over.getContext("2d"), size = over.width;
  const thick = Math.max(cell, Math.ceil(size / 180)), top = row * cell - (thick - cell) / 2;
  pen.clearRect(0, 0, size, size);
  pen.fillStyle = css("--rule");
  pen.fillRect(0, top, size, thick);
  pen.fillStyle = css("--accent");
  for (const [first, count] of runs(seen)) {
    pen.fillRect(first * cell, top, Math.max(count * cell - (cell >= 5 ? 1 : 0), 2), thick);
  }
  tellPointed(row, seen.length);
}

function tellPointed(row, count) {
  const { texts, groups, ends } = layout(), g = groups[row];
  const owner = g >= 0 ? `in ${groupName(g)}` : "shared by several groups";
  const reads = ends.includes(row) ? " Its group's labels are read out here." : "";
  const held = state.pinned ? " Held: Escape lets go." : "";
  $("pointed").textContent = `Token ${quoted(texts[row])}, ${owner}: index ${row}, position ${position(row)}, `
    + `sees ${count} token${count > 1 ? "s" : ""}.${reads}${held}`;
}

function tellSwitches() {
  const told = [];
  const rows = { packed: data.packed.texts.length, tree: data.tree.texts.length };
  if (state.layout === "tree") {
    told.push(`Tree: whatever two prompts begin with is there once, ${rows.tree} tokens instead of ${rows.packed}.`);
  }
  if (!state.mask) told.push("Mask off: a group reads all groups before it. This is the first ablation.");
  if (!state.restart) told.push("Positions run on: late groups stand far from the question. This is the second ablation.");
  if (state.window) {
    const whose = data.windows.includes(state.window) ? "this model's own" : "an example; this model has none like it";
    told.push(`Window ${state.window}: a token sees that many positions, itself included (${whose}).`);
  }
  $("switched").textContent = told.join(" ") || "As the paper packs it.";
}

function fillTokens() {
  if (!$("tokentable").open) return;
  const { texts, groups } = layout();
  const rows = tokens.map((_, row) => [`${row}`, visible(texts[row]),
    groups[row] < 0 ? "shared" : `${groups[row] + 1}`, `${position(row)}`, `${sees(row).length}`]);
  fillTable($("tokentable").querySelector("table"), ["Index", "Token", "Group", "Position", "Sees"], rows);
}

function drawPart2() {
  drawSequence();
  drawMask();
  tellSwitches();
  fillTokens();
}

function point(at, show = true) { // move the pointed token
  state.at = at;
  const own = data.packed.groups[at];
  if (own >= 0 && own !== state.group) {
    state.group = own;
    drawGroup();
  }
  if (tokenCount() <= rowOf(at)) { // of a trial that is not in the picture
    const options = [...$("shown").options].map((option) => Number(option.value));
    state.trials = options.find((trials) => trials > GROUPS[own].trial);
    $("shown").value = state.trials;
    drawPart2();
  }
  light();
  if (show) reveal(tokens[rowOf(at)], $("sequence"));
  drawEquality();
  markStrips();
  drawAttention();
  drawLens();
}
const tokenCount = () => tokens.length;

function reveal(element, box) { // scroll the box alone, not the page
  const inner = element.getBoundingClientRect(), outer = box.getBoundingClientRect();
  if (inner.top < outer.top) box.scrollTop -= outer.top - inner.top + 30;
  else if (inner.bottom > outer.bottom) box.scrollTop += inner.bottom - outer.bottom + 30;
}
