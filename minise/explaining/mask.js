// Part 2's picture: the mask, what stands at its edges, the ruler of position ids below its columns,
// and the cell under the pointer. What is lit is drawn over it, so pointing draws nothing anew.

const EDGE = { left: 54, top: 40, right: 2, bottom: 96 }; // pixels around the mask
let cell = 1, side = 1; // of a token: pixels of the canvas; of the mask: pixels of the page
let strip = null; // of the overlay: what is lit now
let inks = {}; // colours by name, read once

const across = (rows) => (rows * side) / tokens.length; // a number of tokens, in pixels of the page

function drawMask() {
  const T = rowCount(), canvas = $("mask"), over = $("lit"), ratio = window.devicePixelRatio || 1;
  const room = $("maskbox").clientWidth - EDGE.left - EDGE.right;
  cell = Math.max(1, Math.floor((room * ratio) / T));
  side = Math.min(room, (T * cell) / ratio);
  $("maskbox").style.height = `${EDGE.top + side + EDGE.bottom}px`;
  for (const one of [canvas, over]) {
    one.width = one.height = T * cell;
    Object.assign(one.style, { left: `${EDGE.left}px`, top: `${EDGE.top}px`, width: `${side}px`, height: `${side}px` });
  }
  const pen = canvas.getContext("2d"), { groups } = layout();
  for (let row = 0; row < T; row++) {
    pen.fillStyle = inks[groups[row] < 0 ? "--shared" : `--g${groups[row] % 7}`];
    for (const [first, count] of runs(sees(row))) pen.fillRect(first * cell, row * cell, count * cell, cell);
  }
  pen.fillStyle = inks["--wash"]; // a thin grid
  for (let line = 1; cell >= 5 && line <= T; line++) {
    pen.fillRect(line * cell - 1, 0, 1, T * cell);
    pen.fillRect(0, line * cell - 1, T * cell, 1);
  }
  strip = null;
  drawEdges(T);
  if (state.cell && Math.max(...state.cell) < T) pointCell(...state.cell);
  else forgetCell();
}

// -------------------------------------------------------------------------- the edges and the ruler

const wide = (text) => 6.6 * text.length; // about, in pixels

function drawEdges(T) {
  const { left, top } = EDGE, part = layout(), edges = $("edges"), gap = 30;
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((n) => across(n) >= gap) || 1000;
  const nodes = [];
  for (let row = 0; row < T; row += step) {
    nodes.push(make("text", { class: "tick", x: left + across(row + 0.5), y: top - 10, "text-anchor": "middle" }, `${row}`),
      make("text", { class: "tick", x: left - 10, y: top + across(row + 0.5) + 4, "text-anchor": "end" }, `${row}`));
  }
  for (const rows of blocks(part, T)) {
    const g = part.groups[rows[0]], first = across(rows[0]), length = across(rows.length), middle = first + length / 2;
    const name = [g >= 0 ? `group ${g + 1}` : rows[0] ? "shared" : "question", g >= 0 ? `${g + 1}` : ""]
      .find((text) => wide(text) <= length) || "";
    const more = { "text-anchor": "middle", colour: colour(g), class: "owner" };
    nodes.push(make("rect", { x: left + first, y: top - 6, width: Math.max(length - 1, 0.5), height: 4, colour: colour(g), class: "edge" }),
      make("rect", { x: left - 6, y: top + first, width: 4, height: Math.max(length - 1, 0.5), colour: colour(g), class: "edge" }),
      make("text", { ...more, x: left + middle, y: 14 }, name),
      make("text", { ...more, transform: `translate(14 ${top + middle}) rotate(-90)` }, name));
  }
  edges.replaceChildren(...nodes, ...drawRuler(part, T));
}

// A saw where positions restart with every group, one slope where they run on.
function drawRuler(part, T) {
  const { left } = EDGE, top = EDGE.top + side + 10, height = 44, low = top + height;
  const most = Math.max(...Array.from({ length: T }, (_, row) => position(row)), 1);
  const y = (value) => low - (value / most) * height;
  const nodes = [make("line", { class: "grid", x1: left, x2: left + side, y1: low, y2: low }),
    make("text", { class: "tick", x: left - 10, y: top + 5, "text-anchor": "end" }, `${most}`),
    make("text", { class: "tick", x: left - 10, y: low + 2, "text-anchor": "end" }, "0"),
    make("text", { class: "title", x: left, y: low + 34 }, 
      state.restart ? "position ids: every group restarts" : "position ids: they run on")];
  for (const rows of blocks(part, T)) {
    const paint = { colour: colour(part.groups[rows[0]]) }, ids = rows.map(position);
    const from = left + across(rows[0]), to = left + across(rows[0] + rows.length);
    const slope = path([[from, y(ids[0])], [to, y(ids[ids.length - 1])]]);
    nodes.push(make("path", { class: "band", d: `${slope}L${to} ${low}L${from} ${low}Z`, ...paint }),
      make("path", { class: "line ids", d: slope, ...paint }));
    const text = rows.length > 1 ? `${ids[0]}–${ids[ids.length - 1]}` : `${ids[0]}`;
    if (wide(text) <= to - from) {
      nodes.push(make("text", { class: "owner", x: (from + to) / 2, y: low + 15, "text-anchor": "middle", ...paint }, text));
    }
  }
  return nodes;
}

// ------------------------------------------------------------------- over the mask: row, cell, column

function lightMask(row, seen) {
  const pen = $("lit").getContext("2d"), size = $("lit").width;
  const thick = Math.max(cell, Math.ceil(size / 180)), top = row * cell - (thick - cell) / 2;
  if (strip) pen.clearRect(0, strip[0] - 1, size, strip[1] + 2);
  else pen.clearRect(0, 0, size, size);
  strip = [top, thick];
  pen.fillStyle = inks["--rule"];
  pen.fillRect(0, top, size, thick);
  pen.fillStyle = inks["--accent"];
  for (const [first, count] of runs(seen)) {
    pen.fillRect(first * cell, top, Math.max(count * cell - (cell >= 5 ? 1 : 0), 2), thick);
  }
  const ruled = $("rulemark");
  ruled.style.transform = `translate(${EDGE.left + across(row + 0.5)}px, ${EDGE.top + side + 6}px)`;
}

function pointCell(row, column) {
  state.cell = [row, column];
  const size = Math.max(across(1), 4), x = EDGE.left + across(column + 0.5), y = EDGE.top + across(row + 0.5);
  const cellmark = $("cellmark"), columnmark = $("columnmark");
  cellmark.hidden = columnmark.hidden = false;
  cellmark.style.width = cellmark.style.height = `${size}px`;
  cellmark.style.transform = `translate(${x - size / 2}px, ${y - size / 2}px)`;
  columnmark.style.transform = `translate(${x}px, ${EDGE.top}px)`;
  columnmark.style.height = `${side}px`;
  $("cell").textContent = cellSentence(row, column);
}

function forgetCell() {
  state.cell = null;
  $("cellmark").hidden = $("columnmark").hidden = true;
  $("cell").textContent = "Point at a cell of the mask, or move there with the arrow keys.";
}

function cellSentence(row, column) {
  const may = sees(row).includes(column);
  const reason = may ? (!state.mask && !kin(row, column) ? ": the mask is off" : "")
    : column > row ? ": it comes later"
      : state.mask && !kin(row, column) ? ": it is of another group"
        : `: it is ${position(row) - position(column)} positions back, and the window is ${state.window}`;
  return `Token ${called(row)} may ${may ? "" : "not "}attend to token ${called(column)}${reason}.`;
}

function called(row) { // a token and whose it is
  const { names, groups, pieces: all } = layout(), g = groups[row];
  const whose = g >= 0 ? `group ${g + 1}` : row < all[0].flat().length ? "the question" : "several groups";
  return `${row} ${names[row]} of ${whose}`;
}

function kin(row, column) { // whether the column is of the row's own prompt, and before it
  for (let one = row; one >= column; one = layout().parents[one]) if (one === column) return true;
  return false;
}
