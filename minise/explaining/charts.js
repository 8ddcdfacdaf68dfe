// Charts, and with them parts 3 and 4: equality, attention, and readouts after every layer.

// ------------------------------------------------------------------------------------ SVG charts

// A chart's width in its own units, which grow with the font: 16 are 1 rem.
const room = (host) => Math.max(host.clientWidth / (parseFloat(getComputedStyle(document.documentElement).fontSize) / 16), 260);

// Axes with titles, grid and ticks. xs, ys: [low, high]; ticks: [value, text].
function plot(host, { height, xs, ys, xTicks, yTicks, xTitle, yTitle = "", left = 48, right = 12, top = 26, bottom = 44 }) {
  const width = room(host);
  const x = (v) => left + ((v - xs[0]) / (xs[1] - xs[0] || 1)) * (width - left - right);
  const y = (v) => height - bottom - ((v - ys[0]) / (ys[1] - ys[0] || 1)) * (height - top - bottom);
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  for (const [value, text] of yTicks) {
    svg.append(make("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      make("text", { class: "tick", x: left - 7, y: y(value) + 4, "text-anchor": "end" }, text));
  }
  for (const [value, text] of xTicks) {
    svg.append(make("text", { class: "tick", x: x(value), y: height - bottom + 18, "text-anchor": "middle" }, text));
  }
  svg.append(make("text", { class: "title", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, xTitle),
    make("text", { class: "title", x: 0, y: 12 }, yTitle));
  host.replaceChildren(svg);
  return { svg, x, y, width, right: width - right, low: height - bottom, high: top };
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// Colours are for groups. Lines are told apart by ink and dashes: the first three, the rest grey.
const LINES = [
  { kind: "line top", dash: "" }, { kind: "line top", dash: "7 4" }, { kind: "line top", dash: "2 3" },
];
const REST = { kind: "line rest", dash: "" };

function ranked(values) { // for each value, its line
  const order = values.map((_, i) => i).sort((a, b) => values[b] - values[a] || a - b);
  return values.map((_, i) => LINES[order.indexOf(i)] || REST);
}

// Names at the right end of lines, pushed apart where they would cover each other. If there are too
// many, the grey ones share a name.
function nameLines(at, names) {
  const gap = 14, low = at.high, high = at.low - 2, room = Math.floor((high - low) / gap) + 1;
  const letters = Math.floor((at.width - at.right - 8) / 6.4);
  let shown = names;
  if (names.length > room) {
    const rest = names.filter(({ kind }) => kind === REST.kind);
    const y = rest.reduce((sum, one) => sum + one.y, 0) / rest.length;
    shown = [...names.filter(({ kind }) => kind !== REST.kind), { y, text: `${rest.length} others`, kind: REST.kind }];
  }
  const sorted = shown.map((one) => ({ ...one })).sort((a, b) => a.y - b.y);
  sorted.forEach((one, i) => { if (i) one.y = Math.max(one.y, sorted[i - 1].y + gap); });
  let limit = high;
  for (const one of sorted.reverse()) {
    one.y = Math.max(Math.min(one.y, limit), low);
    limit = one.y - gap;
  }
  return sorted.map(({ y, text, kind, strong }) =>
    make("text", { class: kind === REST.kind ? "tick" : strong ? "strong" : "", x: at.right + 8, y: y + 4 }, cut(text, letters)));
}

function lines(at, series) { // series: {kind, dash, marks, values: [x, y] pairs, y NaN where unknown}
  return series.flatMap(({ kind, dash, values, marks }) => {
    const points = values.filter(([, v]) => !Number.isNaN(v)).map(([a, b]) => [at.x(a), at.y(b)]);
    const own = kind === REST.kind ? "mark rest" : "mark";
    return [make("path", { class: kind, d: path(points), "stroke-dasharray": dash }),
      ...(marks ? points.map(([a, b]) => make("circle", { class: own, cx: a, cy: b, r: 3 })) : [])];
  });
}

const narrow = (host) => room(host) < 480;
const margin = (host) => (narrow(host) ? 104 : 170); // for the names at the lines

// Every layer has a mark; so many get a number that they stay apart.
function layerTicks(width, final) {
  const step = Math.ceil((L * 34) / width), ticks = [];
  for (let layer = 1; layer <= L; layer += step) ticks.push([layer, `${layer}`]);
  return final ? [...ticks, [L + 1, "norm"]] : ticks;
}

// ------------------------------------------------------------------------- part 3: packed = alone

let equality = {}, exponents = [-8, 0]; // of the smallest and the largest difference there is

const apart = (run, at) => Array.from(equality[run].subarray(at * (L + 1), (at + 1) * (L + 1)));

function prepareEquality() {
  let low = Infinity, high = -Infinity;
  for (const values of Object.values(equality)) {
    for (const value of values) if (value > 0) { low = Math.min(low, value); high = Math.max(high, value); }
  }
  if (low < Infinity) exponents = [Math.floor(Math.log10(low)), Math.max(Math.ceil(Math.log10(high)), 0)];
  const said = ["dense", "tree"].map((run) => {
    const most = equality[run].reduce((a, b) => (b > a ? b : a), 0);
    return `${RUNS[run]}: ${data.bitwise[run] ? "equal bit for bit"
      : `not bit for bit; hidden states differ by at most ${small(most)} of their size`}.`;
  });
  const absent = Object.keys(ALL_RUNS).filter((run) => !(run in RUNS)).map((run) => ALL_RUNS[run]);
  const both = data.bitwise.dense && data.bitwise.tree;
  const rest = absent.length ? ` Left out: ${absent.join(", ")}. The end of the page says why.`
    : " (Of its top layer the tree engine computes the groups' last tokens alone.)";
  $("bitwise").replaceChildren(
    make("b", {}, both ? "Equal bit for bit: every token, every layer, in both engines." : said.join(" ")), rest,
    ` Computed on: ${data.machine}.`);
}

let equalityAt, traced; // the chart's axes, and what is drawn anew for each token

const SHORT = { dense: "dense", tree: "tree", without_mask: "mask off", without_positions: "run on",
  without_both: "both" };

// The run that the switches ask for: its line is in ink.
const currentRun = () => ablated() || (state.layout === "tree" ? "tree" : "dense");

function drawEquality() {
  const [low, high] = exponents, zero = low - 1, host = $("equality");
  const ticks = [[zero, "0"]];
  for (let e = low; e <= high; e += Math.ceil((high - low) / 5) || 1) ticks.push([e, `10${superscript(e)}`]);
  equalityAt = plot(host, { height: 280, xs: [1, L + 1], ys: [zero, high], yTicks: ticks, yTitle: "relative difference",
    xTicks: layerTicks(room(host), true), xTitle: "layer", right: margin(host) });
  traced = make("g", {});
  equalityAt.svg.append(traced);
}

function traceEquality() {
  const zero = exponents[0] - 1, at = equalityAt;
  const series = Object.keys(RUNS).map((run, i) => ({
    ...(run === currentRun() ? LINES[0] : { ...REST, dash: DASHES[i % 4] }), marks: true, run,
    values: apart(run, state.at).map((v, layer) => [layer + 1, v === 0 ? zero : Math.log10(v)]),
  }));
  const names = series.map(({ run, kind, values }) => {
    const known = values.filter(([, v]) => !Number.isNaN(v)), end = known[known.length - 1][1];
    const name = at.width < 480 ? SHORT[run] : RUNS[run];
    return { text: end === zero ? `${name}: equal` : name, y: at.y(end), kind, strong: true };
  });
  series.sort((a, b) => (a.kind === REST.kind ? 0 : 1) - (b.kind === REST.kind ? 0 : 1)); // ink on top
  traced.replaceChildren(...lines(at, series), ...nameLines(at, names));
  fill("equalitytable");
}

TABLES.equalitytable = (table) => {
  const values = Object.keys(RUNS).map((run) => apart(run, state.at));
  fillTable(table, ["After layer", ...Object.values(RUNS)],
    values[0].map((_, layer) => [layer < L ? `${layer + 1}` : "norm", ...values.map((row) => small(row[layer]))]));
};

const superscript = (n) => `${n}`.replace(/./g, (c) => ({ "-": "⁻" })[c] || "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]);

function drawStrips() {
  const T = data.packed.texts.length, [low, high] = exponents, heat = inks["--heat"].split(" ").map(Number);
  const strips = Object.entries(RUNS).map(([run, name]) => {
    const canvas = make("canvas", { width: T, height: L + 1, "aria-hidden": "true" });
    canvas.style.height = `${clamp(6 * (L + 1), 30, 120)}px`;
    const pen = canvas.getContext("2d"), image = pen.createImageData(T, L + 1), values = equality[run];
    for (let token = 0; token < T; token++) {
      for (let layer = 0; layer <= L; layer++) {
        const value = values[token * (L + 1) + layer], i = 4 * (layer * T + token);
        if (!(value > 0)) continue; // equal, or not computed
        image.data.set([...heat, 255 * (0.15 + (0.85 * (Math.log10(value) - low)) / (high - low || 1))], i);
      }
    }
    pen.putImageData(image, 0, 0);
    const mark = make("i", {});
    mark.style.height = canvas.style.height;
    const off = values.reduce((n, v, i) => n + (i % (L + 1) === L && v > 0.01), 0);
    const told = data.bitwise[run] ? "equal everywhere"
      : `${off.toLocaleString("en")} of ${T.toLocaleString("en")} tokens differ by over 1% after the final norm`;
    return make("div", { class: "strip" }, `${name}: ${told}`, canvas, mark);
  });
  $("strips").replaceChildren(...strips);
  const tint = (alpha) => `rgb(${heat.join(" ")} / ${alpha})`;
  $("scale").style.background = `linear-gradient(to right, ${tint(0.15)}, ${tint(1)})`;
  $("scaleend").textContent = `10${superscript(high)}`;
}

function markStrips() {
  const left = `${(100 * (state.at + 0.5)) / data.packed.texts.length}%`;
  for (const one of $("strips").children) one.lastChild.style.left = left;
}

// ------------------------------------------------------------------ part 4: attention, and readouts

let attention, starts = []; // of the model as it answers, by row of the tree
const ablatedAttention = {}, ablatedStarts = {}; // of the other runs, by row of the packed sequence

function prepareAttention() {
  let next = 0;
  for (const depth of data.tree.positions) {
    starts.push(next);
    next += (depth + 1) * L * data.heads;
  }
  for (const [name, { rows }] of Object.entries(data.ablations)) {
    const seen = (row) => (name === "without_positions" ? data.packed.positions[row] : row) + 1;
    next = 0;
    ablatedStarts[name] = Array.from({ length: rows }, (_, row) => {
      next += seen(row) * L * data.heads;
      return next - seen(row) * L * data.heads;
    });
  }
}

// The tokens that the pointed token reads, in order, as rows of the packed sequence: its prompt up to
// itself, or, without the mask, all before it.
function readRows() {
  const { parents } = data.packed, found = [], alone = !ablation() || ablated() === "without_positions";
  for (let row = state.at; row >= 0; row = alone ? parents[row] : row - 1) found.push(row);
  return found.reverse();
}

// Its weights over these n tokens; null where they were not recorded.
function weights(n) {
  const run = ablation(), H = data.heads, name = ablated();
  if (run && state.at >= run.rows) return null;
  const [all, start] = run ? [ablatedAttention[name], ablatedStarts[name][state.at]]
    : [attention, starts[data.tree_rows[state.at]]];
  const of = (head) => all.subarray(start + ((state.layer - 1) * H + head) * n).subarray(0, n);
  if (state.head) return Array.from(of(state.head - 1), (step) => step / 255);
  const sum = new Array(n).fill(0);
  for (let head = 0; head < H; head++) of(head).forEach((step, i) => { sum[i] += step / 255 / H; });
  return sum;
}

// How dark a token is: its text stays readable, in ink on the lighter half and in paper on the other.
const shade = (strength) => (strength <= 0.5 ? 0.7 * strength : 0.62 + 0.76 * (strength - 0.5));

let read = null; // what is shown: rows and weights

function drawAttention() {
  const rows = readRows(), found = weights(rows.length), part = data.packed;
  $("layername").textContent = `${state.layer} of ${L}`;
  $("headname").textContent = state.head ? `${state.head} of ${data.heads}` : `mean of ${data.query_heads}`;
  read = found && { rows, found };
  if (!found) {
    $("attended").replaceChildren();
    const groups = data.packed.ends.filter((end) => end < ablation().rows).length;
    $("most").textContent = groups ? `The weights of this run are here for the first ${groups} groups: point at a token of theirs.`
      : "The weights of this run are left out: they take too much.";
  } else {
    drawRead(rows, found, part);
    tellMost(rows, found, part);
  }
  fill("attentiontable");
}

function drawRead(rows, found, part) {
  const most = Math.max(...found), weight = new Map(rows.map((row, i) => [row, found[i]]));
  const token = (row) => {
    const strength = most ? weight.get(row) / most : 0;
    const span_ = make("span", { class: row === state.at ? "t at" : "t", title: percent(weight.get(row)) });
    span_.style.background = `rgb(${inks["--heat"]} / ${shade(strength).toFixed(2)})`;
    if (strength > 0.5) span_.style.color = "var(--paper)";
    return span_;
  };
  const parts = [];
  for (const stretch of part.pieces) {
    const first = stretch[0][0];
    if (first > state.at) break;
    if (!weight.has(first)) continue;
    const shown = stretch.map((piece) => piece.filter((row) => weight.has(row))).filter((piece) => piece.length);
    if (parts.length && part.parents[first] !== first - 1 && parts[parts.length - 1].tagName !== "BR") parts.push(make("br"));
    parts.push(...shown.flatMap((piece) => written(piece, part, token)));
  }
  $("attended").replaceChildren(...parts);
}

function tellMost(rows, found, { names, groups }) {
  const first = rows.map((row, i) => [found[i], names[row]]).sort((a, b) => b[0] - a[0]).slice(0, 3);
  const own = groups[state.at], leak = rows.reduce((sum, row, i) => sum + (groups[row] >= 0 && groups[row] !== own ? found[i] : 0), 0);
  const others = own >= 0 && !state.mask && ablation() ? ` Tokens of other groups get ${percent(leak)}.` : "";
  $("most").textContent = `Most: ${first.map(([p, name]) => `${name} ${percent(p)}`).join(", ")}.${others} In steps of 1/255.`;
}

TABLES.attentiontable = (table) => fillTable(table, ["Index", "Token", "Weight"], !read ? []
  : read.rows.map((row, i) => [`${row}`, data.packed.names[row].replace(/^“(.*)”$/s, "$1"), percent(read.found[i])]));

function drawLens() {
  const group = GROUPS[state.group], host = $("lens"), found = result(state.group);
  const left = state.group >= data.shown || !found;
  $("lens-title").textContent = left ? `The readouts of ${groupName(state.group)} are left out`
    : `Label probabilities after every layer, at the end of ${groupName(state.group)}`;
  if (left) host.replaceChildren();
  else {
    const at = plot(host, { height: 270, xs: [1, L], ys: [0, 1], xTicks: layerTicks(room(host), false), xTitle: "layer",
      yTicks: [0, 0.25, 0.5, 0.75, 1].map((p) => [p, `${100 * p}%`]), yTitle: "probability", right: margin(host) });
    const last = found.lens[L - 1], kinds = ranked(last);
    const series = last.map((_, i) => ({ ...kinds[i], marks: true, values: found.lens.map((row, layer) => [layer + 1, row[i]]) }));
    const names = last.map((p, i) => ({ text: `${data.labels[i]} ${optionName(group, i)}`, y: at.y(p), kind: kinds[i].kind,
      strong: p === Math.max(...last) }));
    at.svg.append(...lines(at, series.filter((one) => one.kind === REST.kind)),
      ...lines(at, series.filter((one) => one.kind !== REST.kind)), ...nameLines(at, names));
  }
  fill("lenstable");
}

const optionName = (group, i) => (i < group.choices.length ? data.choices[group.choices[i]] : "None of the above");

TABLES.lenstable = (table) => {
  const found = result(state.group), lens = found && state.group < data.shown ? found.lens : [];
  fillTable(table, ["After layer", ...(lens[0] || []).map((_, i) => `${data.labels[i]} ${optionName(GROUPS[state.group], i)}`)],
    lens.map((row, layer) => [`${layer + 1}`, ...row.map(percent)]));
};
