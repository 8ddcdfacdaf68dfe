// What the scenes share: elements, bars, charts, the mask, sliders. Text is only ever set as text.
// The page's policy forbids style attributes, so styles are set one by one: `style: {name: value}`.

const SVG = new Set(["svg", "g", "path", "line", "circle", "rect", "text", "title", "tspan"]);

export function el(tag, attributes, ...children) {
  const space = SVG.has(tag) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml";
  const element = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style" && typeof value === "string") element.style.cssText = value;
    else if (name === "style") {
      for (const [key, one] of Object.entries(value)) element.style.setProperty(key, `${one}`);
    } else if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : `${value}`);
  }
  return fill(element, ...children);
}

export function fill(element, ...children) {
  const known = children.flat(Infinity).filter((child) => child !== null && child !== undefined);
  element.replaceChildren(...known.map((child) => (child instanceof Node ? child : `${child}`)));
  return element;
}

// A paragraph, in which **bold** and `code` are elements.
export function paragraph(text, attributes = {}) {
  const parts = text.split(/(\*\*[^*]+\*\*|`[^`]+`)/).map((part) =>
    part.startsWith("**") ? el("b", {}, part.slice(2, -2))
      : part.startsWith("`") ? el("code", {}, part.slice(1, -1)) : part);
  return el("p", attributes, parts);
}

// An equation. x_i and x^y put what follows, up to a space, below or above the line.
export const equation = (text) => el("p", { class: "equation" }, text.split(/([_^][^\s_^,()]+)/)
  .map((part) => (part.startsWith("_") ? el("sub", {}, part.slice(1))
    : part.startsWith("^") ? el("sup", {}, part.slice(1)) : part)));

// Colours. Groups alone have one; the question is grey, what is measured is ink.
export const colour = (group) => (group < 0 ? "var(--shared)" : `var(--g${group % 6})`);
export const css = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const groupCss = (group) => css(group < 0 ? "--shared" : `--g${group % 6}`);

export const percent = (p, digits = 1) => `${(100 * p).toFixed(digits)}%`;
export const thousands = (n) => Math.round(n).toLocaleString("en");
export const edgeName = (segment) => (segment < 0 ? "question" : `group ${segment + 1}`);

// Motion: step(0..1) at each frame, or step(1) at once where the reader wants no motion.
export const reducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

export function animate(milliseconds, step) {
  if (reducedMotion()) {
    step(1);
    return () => {};
  }
  let frame = 0, began = null;
  const next = (now) => {
    began ??= now;
    const t = Math.min((now - began) / milliseconds, 1);
    step(t < 0.5 ? 4 * t ** 3 : 1 - (2 - 2 * t) ** 3 / 2);
    if (t < 1) frame = requestAnimationFrame(next);
  };
  frame = requestAnimationFrame(next);
  return () => cancelAnimationFrame(frame);
}

// Controls. Each returns its element; `.value = ...` of what it holds is set by `set`.
export function slider({ label, min, max, value, oninput }) {
  const input = el("input", { type: "range", min, max, value, "aria-label": label });
  const shown = el("b", {}, `${value}`);
  input.addEventListener("input", () => {
    fill(shown, input.value);
    oninput(Number(input.value));
  });
  const root = el("label", { class: "slider" },
    el("span", {}, label, " ", shown), input,
    el("span", { class: "range", "aria-hidden": true },
      el("span", {}, min), el("span", {}, max)));
  const set = (now) => {
    input.value = now;
    fill(shown, `${now}`);
  };
  const limit = (most) => {
    input.max = most;
    fill(root.querySelector(".range").lastChild, most);
  };
  return Object.assign(root, { input, set, limit });
}

// One of a few: options are [value, text] pairs.
export function chooser({ label, options, value, onchange }) {
  const name = `c${(chooser.count = (chooser.count || 0) + 1)}`;
  const inputs = options.map(([one]) => el("input", { type: "radio", name, value: one,
    checked: one === value, onchange: () => onchange(one) }));
  const root = el("fieldset", { class: "chooser" }, el("legend", {}, label),
    el("div", {}, options.map(([, text], i) => el("label", {}, inputs[i], el("span", {}, text)))));
  const set = (now) => inputs.forEach((input, i) => { input.checked = options[i][0] === now; });
  return Object.assign(root, { inputs, set });
}

export const button = (text, onclick, attributes = {}) =>
  el("button", { type: "button", onclick, ...attributes }, text);

// Bars, one line each: {label, name, value, top, right, note}. The top is ink, the rest grey.
// Called again on the same host, the bars move.
export function bars(host, rows, { max = 1, title = "probability", show = percent } = {}) {
  if (host.dataset.rows !== `${rows.length}`) {
    host.dataset.rows = rows.length;
    host.classList.add("bars");
    const line = () => el("div", { class: "bar" }, el("span", { class: "name" }),
      el("span", { class: "track" }, el("i")), el("span", { class: "value" }));
    const tick = (t) => el("span", { style: { left: `${100 * t}%` } }, show(max * t, 0));
    fill(host, rows.map(line), el("div", { class: "bar axis", "aria-hidden": "true" },
      el("span"), el("span", { class: "track" }, [0, 0.5, 1].map(tick), el("b", {}, title)),
      el("span")));
  }
  rows.forEach((row, i) => {
    const [name, track, value] = host.children[i].children;
    host.children[i].className = `bar${row.top ? " top" : ""}${row.right ? " right" : ""}`;
    fill(name, row.label ? el("b", {}, row.label) : null, el("span", { dir: "auto" }, row.name),
      row.right ? el("em", {}, " ✓ right") : null,
      row.note ? el("small", {}, ` ${row.note}`) : null);
    track.firstChild.style.width = `${100 * Math.min(row.value / max, 1)}%`;
    fill(value, show(row.value));
    host.children[i].dataset.probability = row.value;
  });
  return host;
}

// A chart with axes: ticks are [value, text]. Returns the scales x and y, and where to draw: `marks`,
// which `label` describes.
export function plot(host, { height = 220, xs, ys, xTicks, yTicks, xTitle, yTitle, label,
  left = 52, right = 14, top = 24, bottom = 44 }) {
  const width = Math.max(host.clientWidth, 240);
  const x = (v) => left + ((v - xs[0]) / (xs[1] - xs[0] || 1)) * (width - left - right);
  const y = (v) => height - bottom - ((v - ys[0]) / (ys[1] - ys[0] || 1)) * (height - top - bottom);
  const axes = el("g", { "aria-hidden": "true" });
  const marks = el("g", { class: "marks", role: "img", "aria-label": label });
  for (const [value, text] of yTicks) {
    const line = { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) };
    axes.append(el("line", line),
      el("text", { class: "tick", x: left - 8, y: y(value) + 4, "text-anchor": "end" }, text));
  }
  for (const [value, text] of xTicks) {
    axes.append(el("text", { class: "tick", x: x(value), y: height - bottom + 18,
      "text-anchor": "middle" }, text));
  }
  axes.append(el("text", { class: "title", x: 0, y: 12 }, yTitle),
    el("text", { class: "title", x: (left + width - right) / 2, y: height - 6,
      "text-anchor": "middle" }, xTitle));
  host.classList.add("plot");
  fill(host, el("svg", { viewBox: `0 0 ${width} ${height}`, width, height }, axes, marks));
  return { marks, x, y };
}

// A chart over the layers: of each line its value after every layer, and its place on the axis. The
// one of `ink` is dark. Returns the chart.
export function layerPlot(host, lines, { ink, name, place = (value) => value, ...options }) {
  const L = lines[0].length, every = Math.ceil(L / 8);
  const ticks = lines[0].map((_, l) => [l + 1, `${l + 1}`]).filter((_, l) => l % every === 0);
  const at = plot(host, { xs: [1, L], xTicks: ticks, xTitle: "layer", right: 26, bottom: 38,
    ...options });
  lines.forEach((line, i) => at.marks.append(el("path", { class: i === ink ? "line" : "faint",
    [`data-${name}`]: line.join(" "), d: line.map((value, l) =>
      `${l ? "L" : "M"}${at.x(l + 1)} ${at.y(place(value))}`).join("") })));
  return at;
}

// A token's text; "<|begin_of_text|>" is shorter as "<begin>".
export const shownPiece = (tokenizer, id) =>
  tokenizer.piece(id).replace(/^<\|?(\w+?)(_of_text)?\|?>$/, "<$1>");

// Runs of equal segments: {segment, start, end}, end not included.
export function blocks(segments) {
  const found = [];
  segments.forEach((segment, t) => {
    const last = found[found.length - 1];
    if (last && last.segment === segment) last.end = t + 1;
    else found.push({ segment, start: t, end: t + 1 });
  });
  return found;
}

// A token in words, such as "“Rome”, group 2, position 9". texts: of the layout's tokens.
export const tokenName = ({ texts, segments, positions }, t) =>
  `“${texts[t].replaceAll("␣", " ").trim() || texts[t]}”, ${edgeName(segments[t])}, position ${
    positions[t]}`;

// "“Rome”, group 2, position 9, may not attend to “Paris”, group 1, position 6".
export function cellText(layout, mask, t, u) {
  const may = mask[t * layout.ids.length + u] ? "may" : "may not";
  return `${tokenName(layout, t)}, ${may} attend to ${t === u ? "itself" : tokenName(layout, u)}`;
}

// The mask as a picture, with the segments' names at its edges, a read-out of the cell under the
// pointer, and, with `ruler`, the positions below the columns. A cell has the colour of the group
// that is seen. Optional: onPaint(t, u, allowed), called for the cell that is
// pressed (`from`) and each one that it is dragged to, Space too; words(t, u) for the read-out;
// name(segment). draw({layout, mask, kinds, most}): kinds of cells: 0 hidden, 1 shown, 2 leaks,
// 3 missing, 4 shown but outside of the window; without it, the mask. Returns {root, canvas, draw}.
export function maskCanvas(options = {}) {
  const { onPaint, ruler = false, label = "Attention mask" } = options;
  const { words = (t, u) => cellText(view.layout, view.mask, t, u), name = edgeName } = options;
  const view = { layout: null, mask: null, at: [0, 0], wide: 1, pointed: false, painting: null,
    from: null };
  const parts = {
    top: el("div", { class: "edge top", "aria-hidden": "true" }),
    side: el("div", { class: "edge side", "aria-hidden": "true" }),
    canvas: el("canvas", { tabindex: 0, role: "application", "aria-label":
      `${label}. Arrow keys move from cell to cell, with Shift from block to block${
        onPaint ? "; Space changes what is under the cursor" : ""}.` }),
    ruler: ruler ? el("canvas", { class: "ruler", "aria-hidden": "true" }) : null,
    readout: el("p", { class: "readout", "aria-live": "polite" }, "Point at a cell."),
  };
  const root = el("div", { class: "mask" }, parts.top, parts.side,
    el("div", { class: "cells" }, parts.canvas), parts.ruler,
    el("p", { class: "edges" }, "row: the token that looks · column: the token it looks at",
      ruler ? " · below: positions" : ""), parts.readout);
  parts.canvas.classList.toggle("paint", Boolean(onPaint));

  const point = ([t, u]) => {
    Object.assign(view, { at: [t, u], pointed: true });
    drawPointed(parts.canvas, view);
    fill(parts.readout, words(t, u));
  };
  const paint = ([t, u]) => onPaint(t, u, view.painting, view.from);
  listenToMask(parts.canvas, view, point, onPaint ? paint : null);

  const draw = ({ layout, mask = layout.mask, kinds = mask, most = 520 }) => {
    Object.assign(view, { layout, mask, kinds });
    const T = layout.ids.length;
    view.at = view.at.map((at) => Math.min(at, T - 1));
    // One size for all rows: a longer one has smaller cells. A cell begins at a whole device pixel.
    const ratio = devicePixelRatio || 1;
    const side = Math.floor(Math.min(root.clientWidth - 28 || 300, most));
    view.wide = Math.round(side * ratio);
    root.style.setProperty("--side", `${side}px`);
    parts.canvas.dataset.tokens = T;
    drawEdges(parts, layout, name);
    drawMask(view);
    drawPointed(parts.canvas, view);
    if (parts.ruler) drawRuler(parts.ruler, layout, side, ratio);
    if (view.pointed) fill(parts.readout, words(...view.at));
  };
  return { root, canvas: parts.canvas, draw };
}

function listenToMask(canvas, view, point, paint) {
  const cellAt = (event) => {
    const box = canvas.getBoundingClientRect(), T = view.layout.ids.length;
    const at = (v, size) => Math.min(Math.max(Math.floor((v / size) * T), 0), T - 1);
    return [at(event.clientY - box.top, box.height), at(event.clientX - box.left, box.width)];
  };
  const press = (cell) => {
    view.painting = !view.mask[cell[0] * view.layout.ids.length + cell[1]];
    view.from = cell;
    paint(cell);
  };
  canvas.addEventListener("pointermove", (event) => {
    if (!view.layout) return;
    const cell = cellAt(event);
    if (cell.join() === view.at.join()) return;
    if (paint && view.painting !== null) paint(cell);
    point(cell);
  });
  canvas.addEventListener("pointerdown", (event) => {
    if (!view.layout || event.button > 0) return;
    const cell = cellAt(event);
    if (paint) {
      canvas.setPointerCapture(event.pointerId);
      press(cell);
    }
    point(cell);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, () => { view.painting = null; });
  }
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const by = move[event.key];
    if (!view.layout || !(by || (paint && event.key === " "))) return;
    event.preventDefault();
    if (!by) {
      press(view.at);
      view.painting = null;
    }
    point(by ? stepInMask(view, by, event.shiftKey) : view.at);
  });
}

// The next cell in a direction, or with `far` the first of the next block.
function stepInMask({ layout, at }, by, far) {
  const last = layout.ids.length - 1;
  return at.map((here, i) => {
    const starts = blocks(layout.segments).map(({ start }) => start);
    if (!far || !by[i]) return Math.min(Math.max(here + by[i], 0), last);
    return by[i] > 0 ? starts.find((start) => start > here) ?? last
      : starts.findLast((start) => start < here) ?? 0;
  });
}

// The cells are drawn once for a mask; what is pointed at is drawn over a copy of them.
function drawMask(view) {
  const { layout, kinds, wide } = view, T = layout.ids.length, gap = cellGap(view);
  view.picture = el("canvas", { width: wide, height: wide });
  const pen = view.picture.getContext("2d"), from = (i) => cellStart(view, i);
  const [ink, wash] = [css("--ink"), css("--wash")];
  pen.fillStyle = wash;
  pen.fillRect(0, 0, wide, wide);
  for (const { segment, start, end } of blocks(layout.segments)) {
    const group = groupCss(segment);
    for (let t = 0; t < T; t++) {
      for (let u = start; u < end; u++) {
        const kind = kinds[t * T + u];
        if (!kind) continue;
        pen.globalAlpha = kind === 4 ? 0.3 : 1;
        pen.fillStyle = kind > 1 && kind < 4 ? ink : group;
        const [across, down] = [from(u + 1) - from(u) - gap, from(t + 1) - from(t) - gap];
        pen.fillRect(from(u), from(t), across, down);
        pen.fillStyle = wash;
        if (kind === 3) pen.fillRect(from(u) + 1, from(t) + 1, across - 2, down - 2);
      }
    }
  }
  pen.globalAlpha = 1;
  pen.fillStyle = css("--paper");
  for (const { start } of blocks(layout.segments).slice(1)) {
    pen.fillRect(from(start) - 1, 0, 2, wide);
    pen.fillRect(0, from(start) - 1, wide, 2);
  }
}

const cellStart = ({ layout, wide }, i) => Math.round((i * wide) / layout.ids.length);
const cellGap = ({ layout, wide }) => (wide / layout.ids.length >= 4 ? 1 : 0);

function drawPointed(canvas, view) {
  const { picture, at: [t, u] } = view, gap = cellGap(view);
  if (canvas.width !== picture.width) canvas.width = canvas.height = picture.width;
  const pen = canvas.getContext("2d"), from = (i) => cellStart(view, i);
  pen.drawImage(picture, 0, 0);
  pen.strokeStyle = css("--ink");
  pen.lineWidth = 2;
  pen.strokeRect(from(u) - 1, from(t) - 1, from(u + 1) - from(u) + 2 - gap,
    from(t + 1) - from(t) + 2 - gap);
}

function drawEdges(parts, layout, name) {
  const T = layout.ids.length;
  const names = (from, size) => blocks(layout.segments).map(({ segment, start, end }) =>
    el("span", { style: { [from]: `${(100 * start) / T}%`, [size]: `${(100 * (end - start)) / T}%`,
      "--c": colour(segment) } }, name(segment)));
  fill(parts.top, names("left", "width"));
  fill(parts.side, names("top", "height"));
}

// A bar below each column, as high as the token's position; numbers where a segment begins and
// ends.
function drawRuler(canvas, layout, side, ratio) {
  const T = layout.ids.length, height = 64, step = side / T;
  canvas.width = Math.round(side * ratio);
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d"), most = Math.max(...layout.positions, 1);
  pen.scale(ratio, ratio);
  pen.font = `11px ${css("--sans")}`;
  let free = 0; // a number stands right of the one before it, or not at all
  const write = (position, left) => {
    const wide = pen.measureText(position).width;
    if (left < free || left + wide > side) return;
    pen.fillText(position, left, height - 2);
    free = left + wide + 2;
  };
  for (const { segment, start, end } of blocks(layout.segments)) {
    pen.fillStyle = groupCss(segment);
    for (let t = start; t < end; t++) {
      const high = 1 + (layout.positions[t] / most) * (height - 22);
      pen.fillRect(t * step, 0, Math.max(step - 0.5, 0.5), high);
    }
    pen.fillStyle = css("--ink");
    const last = layout.positions[end - 1];
    write(layout.positions[start], start * step + 1);
    write(last, end * step - 2 - pen.measureText(last).width);
  }
}
