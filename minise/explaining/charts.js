// Charts, and with them parts 3 and 4: equality, attention, and readouts after every layer.

// ------------------------------------------------------------------------------------ SVG charts

// A chart's width in its own units, which grow with the font: 16 are 1 rem.
const room = (host) => Math.max(host.clientWidth / (parseFloat(getComputedStyle(document.documentElement).fontSize) / 16), 260);

// Axes, grid and ticks. xs, ys: [low, high]; ticks: [value, text].
function plot(host, { height, xs, ys, xTicks, yTicks, left = 48, right = 12, top = 10, bottom = 28 }) {
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
  host.replaceChildren(svg);
  return { svg, x, y, width };
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// Names at the right end of lines, pushed apart where they would cover each other.
function nameLines(svg, names, x, low, high) {
  const gap = 14, sorted = [...names].sort((a, b) => a.y - b.y);
  sorted.forEach((one, i) => { if (i) one.y = Math.max(one.y, sorted[i - 1].y + gap); });
  let limit = high;
  for (const one of sorted.reverse()) {
    one.y = Math.max(Math.min(one.y, limit), low);
    limit = one.y - gap;
  }
  for (const { y, text, colour: c, strong } of names) {
    svg.append(make("text", { x, y: y + 4, style: `fill: ${c}${strong ? "; font-weight: 700" : ""}` }, text));
  }
}

function lines(at, series) { // series: {name, colour, dash, values: [x, y] pairs or null}
  for (const { colour: c, dash, values, marks } of series) {
    const points = values.filter(([, v]) => !Number.isNaN(v)).map(([a, b]) => [at.x(a), at.y(b)]);
    at.svg.append(make("path", { class: "line", d: path(points), colour: c, "stroke-dasharray": dash || "" }));
    if (marks) for (const [a, b] of points) at.svg.append(make("circle", { class: "mark", cx: a, cy: b, r: 3, colour: c }));
  }
}

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
  const said = ["dense", "tree"].filter((run) => run in RUNS).map((run) => {
    const most = equality[run].reduce((a, b) => (b > a ? b : a), 0);
    return `${RUNS[run]}: ${data.bitwise[run] ? "equal bit for bit"
      : `not bit for bit; hidden states differ by at most ${small(most)} of their size`}.`;
  });
  const absent = Object.keys(ALL_RUNS).filter((run) => !(run in RUNS)).map((run) => ALL_RUNS[run]);
  const both = data.bitwise.dense && data.bitwise.tree;
  const rest = absent.length ? ` Left out: ${absent.join(", ")}. The end of the page says why.`
    : data.engine === "tree" ? " (Of its top layer the tree engine computes the groups' last tokens alone.)" : "";
  $("bitwise").replaceChildren(
    make("b", {}, both ? "Equal bit for bit: every token, every layer, in both engines." : said.join(" ")), rest,
    ` Computed on: ${data.machine}.`);
}

function drawEquality() {
  if (!Object.keys(RUNS).length) return;
  const [low, high] = exponents, zero = low - 1, wide = room($("equality"));
  const ticks = [[zero, "0"]];
  for (let e = low; e <= high; e += Math.ceil((high - low) / 5) || 1) ticks.push([e, `10${superscript(e)}`]);
  const at = plot($("equality"), { height: 250, xs: [1, L + 1], ys: [zero, high], yTicks: ticks,
    xTicks: layerTicks(wide, true), right: wide < 480 ? 24 : 160 });
  const values = Object.keys(RUNS).map((run) => apart(run, state.at));
  const series = Object.keys(RUNS).map((run, i) => ({
    colour: colour([0, 2, 1, 3][i]), dash: DASHES[i], marks: true,
    values: values[i].map((v, layer) => [layer + 1, v === 0 ? zero : Math.log10(v)]),
  }));
  lines(at, series);
  const names = Object.values(RUNS).map((name, i) => {
    const known = series[i].values.filter(([, v]) => !Number.isNaN(v));
    const end = known[known.length - 1][1];
    return { text: end === zero ? `${name}: equal` : name, y: at.y(end), colour: series[i].colour };
  });
  if (wide >= 480) nameLines(at.svg, names, at.width - 150, 12, 216);
  else legend($("equality"), names, DASHES);
  fillTable($("equalitytable"), ["After layer", ...Object.values(RUNS)],
    values[0].map((_, layer) => [layer < L ? `${layer + 1}` : "norm", ...values.map((row) => small(row[layer]))]));
}

const superscript = (n) => `${n}`.replace(/./g, (c) => ({ "-": "⁻" })[c] || "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]);

function legend(host, names, dashes) { // where there is no room beside the lines
  host.append(make("div", { class: "hint" }, ...names.map(({ text, colour: c }, i) => make("div", {},
    make("svg", { width: 34, height: 8, style: "display: inline; width: auto; margin-right: .5em" },
      make("path", { class: "line", d: "M0 4H34", colour: c, "stroke-dasharray": dashes[i] || "" })), text))));
}

function drawStrips() {
  const T = data.packed.texts.length, [low, high] = exponents, heat = css("--heat").split(" ").map(Number);
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
    const off = values.reduce((n, v, i) => n + (i % (L + 1) === L && v > 0.01), 0);
    const told = data.bitwise[run] ? "equal everywhere"
      : `${off.toLocaleString("en")} of ${T.toLocaleString("en")} tokens differ by over 1% after the final norm`;
    return make("div", { class: "strip" }, `${name}: ${told}`, canvas, make("i"));
  });
  $("strips").replaceChildren(...strips);
  const tint = (alpha) => `rgb(${heat.join(" ")} / ${alpha})`;
  $("scale").style.background = `linear-gradient(to right, ${tint(0.15)}, ${tint(1)})`;
  $("scaleend").textContent = `10${superscript(high)}`;
}

function markStrips() {
  const T = data.packed.texts.length;
  for (const strip of $("strips").children) {
    strip.lastChild.style.left = `${(100 * (state.at + 0.5)) / T}%`;
    strip.lastChild.style.height = strip.querySelector("canvas").style.height;
  }
}

// ------------------------------------------------------------------ part 4: attention, and readouts

let attention = null, starts = [];

// The weights of the pointed token over the tokens of its prompt up to itself, in order.
function weights() {
  const row = data.tree_rows[state.at], n = data.tree.positions[row] + 1, H = data.heads;
  const of = (head) => attention.subarray(starts[row] + ((state.layer - 1) * H + head) * n).subarray(0, n);
  if (state.head) return Array.from(of(state.head - 1), (step) => step / 255);
  const sum = new Array(n).fill(0);
  for (let head = 0; head < H; head++) of(head).forEach((step, i) => { sum[i] += step / 255 / H; });
  return sum;
}

function drawAttention() {
  if (!attention) return;
  const { texts, parents } = data.packed, found = weights(), most = Math.max(...found), rows = [];
  for (let row = state.at; row >= 0; row = parents[row]) rows.unshift(row);
  $("layername").textContent = `${state.layer} of ${L}`;
  const heads = `mean of ${data.query_heads}`;
  $("headname").textContent = state.head ? `${state.head} of ${data.heads}` : heads;
  $("attended").replaceChildren(...rows.flatMap((row, i) => {
    const strength = most ? found[i] / most : 0;
    const token = make("span", { class: row === state.at ? "t at" : "t", title: percent(found[i]) }, visible(texts[row]));
    token.style.background = `rgb(${css("--heat")} / ${strength.toFixed(2)})`;
    if (strength > 0.5) token.style.color = "var(--paper)";
    return texts[row].endsWith("\n") ? [token, make("br")] : [token];
  }));
  const first = rows.map((row, i) => [found[i], texts[row]]).sort((a, b) => b[0] - a[0]).slice(0, 3);
  $("most").textContent = `Most: ${first.map(([p, text]) => `${quoted(text)} ${percent(p)}`).join(", ")}. In steps of 1/255.`;
  fillTable($("attentiontable"), ["Index", "Token", "Weight"],
    rows.map((row, i) => [`${row}`, visible(texts[row]), percent(found[i])]));
}

function drawLens() {
  if (!GROUPS[0].lens.length) return;
  const left = state.group >= data.shown;
  $("lens-title").textContent = left ? `The readouts of ${groupName(state.group)} are left out`
    : `Label probabilities after every layer, at the end of ${groupName(state.group)}`;
  if (left) {
    $("lens").replaceChildren();
    $("lenstable").replaceChildren();
    return;
  }
  const group = GROUPS[state.group], wide = room($("lens"));
  const names = [...group.choices.map((choice) => data.choices[choice]), "None of the above"];
  const at = plot($("lens"), { height: 240, xs: [1, L], ys: [0, 1], xTicks: layerTicks(wide, false),
    yTicks: [0, 0.25, 0.5, 0.75, 1].map((p) => [p, `${100 * p}%`]), right: wide < 480 ? 24 : 170 });
  const series = group.lens[0].map((_, i) => ({
    colour: colour(i), dash: DASHES[i % 4], marks: true, values: group.lens.map((row, layer) => [layer + 1, row[i]]),
  }));
  lines(at, series);
  const ends = group.lens[L - 1].map((p, i) => ({
    text: cut(`${data.labels[i]} ${names[i]}`, 24), y: at.y(p), colour: colour(i), strong: p === Math.max(...group.lens[L - 1]),
  }));
  if (wide >= 480) nameLines(at.svg, ends, at.width - 160, 12, 216);
  else legend($("lens"), ends, series.map((one) => one.dash));
  fillTable($("lenstable"), ["After layer", ...ends.map((_, i) => `${data.labels[i]} ${names[i]}`)],
    group.lens.map((row, layer) => [`${layer + 1}`, ...row.map(percent)]));
}
