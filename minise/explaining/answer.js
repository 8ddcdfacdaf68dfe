// Part 5: from groups to the answer.

const MARKS = { standard: "M-6 0L0 -6L6 0L0 6Z", cyclic: "M-6 5L0 -6L6 5Z" };
let dots = [], spots = []; // every choice in every group; where it is drawn
// The choices in the order of their last scores, so that the answer is on top, however many there are.
let order = [];

function prepareDots() {
  dots = GROUPS.flatMap((group, g) => (result(g) === null ? [] : group.choices.map((choice, place) =>
    ({ group: g, choice, place, p: result(g).probabilities[place] })))).sort((a, b) => a.choice - b.choice || a.p - b.p);
  state.dot = null;
  const { running } = ensemble(), trials = running.length, last = running[trials - 1];
  order = data.choices.map((_, i) => i).sort((a, b) => last[b] - last[a] || a - b);
  $("step").max = trials;
  state.step = Math.min(state.step, trials);
  $("step").value = state.step;
}

function drawAnswer() {
  const { running, errors, prediction } = ensemble(), K = data.choices.length, line = 42;
  const top = narrow($("dots")) ? 58 : 38;
  const scores = running[state.step - 1], error = errors[state.step - 1];
  $("stepname").textContent = `${state.step} of ${running.length}`;
  const at = plot($("dots"), { height: K * line + top + 48, xs: [0, 1], ys: [0, 1], left: 14, right: 24, top, yTicks: [],
    xTicks: [0, 0.25, 0.5, 0.75, 1].map((p) => [p, `${100 * p}%`]), xTitle: "probability" });
  const y = (choice) => top + (order.indexOf(choice) + 0.68) * line;
  data.choices.forEach((choice, i) => {
    const mark = i === data.answer ? " ✓" : "";
    const own = { x: 14, y: y(i) - 13, class: i === prediction ? "strong" : "" };
    at.svg.append(make("line", { class: "grid", x1: at.x(0), x2: at.x(1), y1: y(i), y2: y(i) }),
      make("text", own, `${i === prediction ? "› " : ""}${isolated(cut(choice, Math.floor(at.width / 9)))}${mark}`));
  });
  spots = [];
  dots.forEach((dot, i) => {
    if (GROUPS[dot.group].trial >= state.step) return;
    const shift = ((dot.group * 7) % 11) - 5;
    spots.push({ i, x: at.x(dot.p), y: y(dot.choice) + shift });
    at.svg.append(make("circle", { class: "dot", "data-dot": i, r: 5, cx: at.x(dot.p), cy: y(dot.choice) + shift, colour: colour(dot.group) }));
  });
  scores.forEach((score, i) => {
    const half = error ? error[i] : 0;
    at.svg.append(make("path", { class: "mean",
      d: `M${at.x(score)} ${y(i) - 11}V${y(i) + 11}M${at.x(clamp(score - half, 0, 1))} ${y(i)}H${at.x(clamp(score + half, 0, 1))}` }));
    for (const [name, shape] of Object.entries(MARKS)) {
      const other = data.others[name];
      if (!other.left_out) at.svg.append(make("path", { class: "other", d: shape,
        transform: `translate(${at.x(other.probabilities[i])} ${y(i)})` }));
    }
  });
  drawKey(at.svg, at.width);
  markDots();
  tellDot();
  drawForming(running, errors, prediction);
  for (const id of ["dottable", "formingtable"]) fill(id);
  fillAnswer();
}

function markDots() { // those of the picked group are in its colour
  const above = $("dots").querySelector("path.mean");
  for (const dot of $("dots").querySelectorAll("circle[data-dot]")) {
    const i = Number(dot.dataset.dot), own = dots[i].group === state.group;
    dot.classList.toggle("own", own);
    dot.classList.toggle("here", state.dot === i);
    if (own) above.before(dot); // over the grey ones
  }
}

// The nearest dot within reach of a pointer: a finger is wider than a dot.
function nearestDot(event) {
  const box = $("dots").querySelector("svg").getBoundingClientRect(), scale = room($("dots")) / box.width;
  const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
  let best = null, reach = 24;
  for (const spot of spots) {
    const far = Math.hypot(spot.x - x, spot.y - y);
    if (far < reach) [best, reach] = [spot.i, far];
  }
  return best;
}

function drawKey(svg, width) { // what the marks mean, above the dots
  const key = make("g", { transform: "translate(14 14)" });
  let x = 0, y = 0;
  const add = (mark, text) => {
    const wide = 27 + 6.6 * text.length;
    if (x + wide > width - 20) [x, y] = [0, y + 20];
    mark.setAttribute("transform", `translate(${x + 6} ${y - 4})`);
    key.append(mark, make("text", { x: x + 17, y }, text));
    x += wide;
  };
  add(make("path", { class: "mean", d: "M0 -7V7M-6 0H6" }), "mean ± s.e.");
  for (const [name, shape] of Object.entries(MARKS)) {
    if (!data.others[name].left_out) add(make("path", { class: "other", d: shape }), name);
  }
  add(make("circle", { class: "dot", r: 5 }), "one group");
  svg.append(key);
}

function tellDot() {
  if (state.dot === null) {
    $("dot").textContent = "A dot is a choice in one group; those of the picked group are in its colour. Point at one.";
    return;
  }
  const { group: g, choice, place, p } = dots[state.dot], group = GROUPS[g];
  const beside = group.choices.filter((other) => other !== choice).map((other) => isolated(data.choices[other]));
  const { nothing } = result(g), null_ = nothing === null ? "" : ` None of the above: ${percent(nothing)}.`;
  $("dot").textContent = `${isolated(data.choices[choice])} in ${groupName(g)}: ${percent(p)} under label ${data.labels[place]}, `
    + `${beside.length ? `beside ${beside.join(", ")}` : "alone"}.${null_}`;
}

function drawForming(running, errors, leader) {
  const host = $("forming"), N = running.length;
  const high = Math.max(...running.flat()) * 1.05 || 1, step = [0.02, 0.05, 0.1, 0.2, 0.25].find((s) => high / s <= 5) || 0.25;
  const ticks = Array.from({ length: Math.floor(high / step) + 1 }, (_, i) => [i * step, `${Math.round(100 * i * step)}%`]);
  const every = Math.ceil(N / Math.min(10, N));
  const at = plot(host, { height: 290, xs: [1, N], ys: [0, high], yTicks: ticks, right: margin(host), xTitle: "trials", yTitle: "mean probability",
    xTicks: Array.from({ length: N }, (_, i) => i + 1).filter((n) => n === 1 || (n % every === 0 && n > every)).map((n) => [n, `${n}`]) });
  const now = running.slice(0, state.step), known = now.map((_, t) => t).filter((t) => errors[t]);
  const edge = (sign) => known.map((t) => [at.x(t + 1), at.y(clamp(running[t][leader] + sign * errors[t][leader], 0, high))]);
  if (known.length > 1) {
    at.svg.append(make("path", { class: "band", colour: "var(--ink)", d: `${path([...edge(1), ...edge(-1).reverse()])}Z` }));
  }
  const kinds = ranked(now[now.length - 1]);
  const series = data.choices.map((_, i) => ({ ...kinds[i], marks: N === 1, values: now.map((scores, t) => [t + 1, scores[i]]) }));
  const names = data.choices.map((choice, i) => ({
    text: isolated(choice), y: at.y(now[now.length - 1][i]), kind: kinds[i].kind, strong: i === leader,
  }));
  at.svg.append(...lines(at, series.filter((one) => one.kind === REST.kind)),
    ...lines(at, series.filter((one) => one.kind !== REST.kind)), ...nameLines(at, names),
    make("line", { class: "cursor", x1: at.x(state.step), x2: at.x(state.step), y1: at.high - 6, y2: at.low }));
}

TABLES.dottable = (table) => fillTable(table, ["Choice", "Trial", "Group", "Label", "Probability"],
  dots.map(({ choice, group, place, p }) => [data.choices[choice], `${GROUPS[group].trial + 1}`, `${group + 1}`,
    data.labels[place], percent(p)]));

TABLES.formingtable = (table) => { // a score, and its standard error where it is known
  const { running, errors } = ensemble();
  fillTable(table, ["Trials", ...data.choices], running.map((scores, t) => [`${t + 1}`,
    ...scores.map((p, i) => percent(p) + (errors[t] ? ` ± ${percent(errors[t][i])}` : ""))]));
};

function fillAnswer() { // the columns of the answer that the switches change
  const { running, errors, prediction, probabilities } = ensemble(), last = running.length - 1;
  $("trialcount").textContent = `${running.length} trial${last ? "s" : ""}`;
  const body = $("answer").tBodies[0], rows = new Map([...body.rows].map((row) => [Number(row.dataset.choice), row]));
  for (const i of order) {
    const row = rows.get(i), cells = [running[last][i], errors[last] ? errors[last][i] : null, probabilities[i]];
    cells.forEach((value, column) => { row.cells[column + 1].textContent = value === null ? "–" : percent(value); });
    row.cells[3].classList.toggle("first", i === prediction);
    body.append(row);
  }
}

function pickDot(i, thenGroup = true) {
  state.dot = i;
  tellDot();
  if (thenGroup && dots[i].group !== state.group) {
    state.group = dots[i].group;
    drawGroup();
  } else markDots();
}
