// Part 5: from groups to the answer.

const dots = GROUPS.flatMap((group, g) => group.choices.map((choice, place) =>
  ({ group: g, choice, place, p: group.probabilities[place] }))).sort((a, b) => a.choice - b.choice || a.p - b.p);
const MARKS = { standard: "M-6 0L0 -6L6 0L0 6Z", cyclic: "M-6 5L0 -6L6 5Z" };

function drawAnswer() {
  const { running, errors, prediction } = data.self_ensemble, K = data.choices.length, line = 42;
  const top = room($("dots")) < 480 ? 58 : 38;
  const scores = running[state.step - 1], error = errors[state.step - 1];
  $("stepname").textContent = `${state.step} of ${data.trials}`;
  const at = plot($("dots"), { height: K * line + top + 28, xs: [0, 1], ys: [0, 1], left: 14, right: 24, top, yTicks: [],
    xTicks: [0, 0.25, 0.5, 0.75, 1].map((p) => [p, `${100 * p}%`]) });
  const y = (choice) => top + (choice + 0.68) * line;
  data.choices.forEach((choice, i) => {
    const mark = i === data.answer ? " ✓" : "";
    const own = { x: 14, y: y(i) - 13, ...(i === prediction ? { style: "font-weight: 700" } : {}) };
    at.svg.append(make("line", { class: "grid", x1: at.x(0), x2: at.x(1), y1: y(i), y2: y(i) }),
      make("text", own, cut(choice, Math.floor(at.width / 9)) + mark));
  });
  dots.forEach((dot, i) => {
    if (GROUPS[dot.group].trial >= state.step) return;
    const shift = ((dot.group * 7) % 11) - 5;
    at.svg.append(make("circle", { class: state.dot === i ? "dot here" : "dot", "data-dot": i, r: 5,
      cx: at.x(dot.p), cy: y(dot.choice) + shift, colour: colour(dot.place) }));
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
  tellDot();
  drawForming(running, errors, prediction);
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
  const used = Math.max(...dots.map((dot) => dot.place)) + 1;
  if (used <= 6) for (let i = 0; i < used; i++) add(make("circle", { class: "dot", r: 5, colour: colour(i) }), data.labels[i]);
  svg.append(key);
}

function tellDot() {
  if (state.dot === null) {
    $("dot").textContent = "A dot is a choice in one group, coloured by its label. Point at one.";
    return;
  }
  const { group: g, choice, place, p } = dots[state.dot], group = GROUPS[g];
  const beside = group.choices.filter((other) => other !== choice).map((other) => data.choices[other]);
  const null_ = group.null === null ? "" : ` None of the above: ${percent(group.null)}.`;
  $("dot").textContent = `${data.choices[choice]} in ${groupName(g)}: ${percent(p)} under label ${data.labels[place]}, `
    + `${beside.length ? `beside ${beside.join(", ")}` : "alone"}.${null_}`;
}

function drawForming(running, errors, leader) {
  const host = $("forming"), wide = room(host), N = data.trials;
  const high = Math.max(...running.flat()) * 1.05 || 1, step = [0.02, 0.05, 0.1, 0.2, 0.25].find((s) => high / s <= 5) || 0.25;
  const ticks = Array.from({ length: Math.floor(high / step) + 1 }, (_, i) => [i * step, `${Math.round(100 * i * step)}%`]);
  const every = Math.ceil(N / Math.min(10, N));
  const at = plot(host, { height: 260, xs: [1, N], ys: [0, high], yTicks: ticks, right: wide < 480 ? 24 : 130,
    xTicks: Array.from({ length: N }, (_, i) => i + 1).filter((n) => n % every === 0 || n === 1).map((n) => [n, `${n}`]) });
  const now = running.slice(0, state.step), known = now.map((_, t) => t).filter((t) => errors[t]);
  const edge = (sign) => known.map((t) => [at.x(t + 1), at.y(clamp(running[t][leader] + sign * errors[t][leader], 0, high))]);
  if (known.length > 1) {
    at.svg.append(make("path", { class: "band", colour: colour(leader), d: `${path([...edge(1), ...edge(-1).reverse()])}Z` }));
  }
  lines(at, data.choices.map((_, i) => ({
    colour: colour(i), dash: i === leader ? "" : DASHES[i % 4], marks: N === 1, values: now.map((scores, t) => [t + 1, scores[i]]),
  })));
  at.svg.append(make("line", { class: "cursor", x1: at.x(state.step), x2: at.x(state.step), y1: 10, y2: 232 }));
  const names = data.choices.map((choice, i) => ({
    text: cut(choice, 18), y: at.y(now[now.length - 1][i]), colour: colour(i), strong: i === leader,
  }));
  if (wide >= 480 && names.length <= 16) nameLines(at.svg, names, at.width - 122, 12, 226);
  else legend(host, names, names.map((_, i) => (i === leader ? "" : DASHES[i % 4])));
}

function fillDots() {
  fillTable($("dottable").querySelector("table"), ["Choice", "Trial", "Group", "Label", "Probability"],
    dots.map(({ choice, group, place, p }) => [data.choices[choice], `${GROUPS[group].trial + 1}`, `${group + 1}`,
      data.labels[place], percent(p)]));
}

function fillForming() { // a score, and its standard error where it is known
  const { running, errors } = data.self_ensemble;
  fillTable($("formingtable").querySelector("table"), ["Trials", ...data.choices], running.map((scores, t) => [`${t + 1}`,
    ...scores.map((p, i) => percent(p) + (errors[t] ? ` ± ${percent(errors[t][i])}` : ""))]));
}

function pickDot(i, thenGroup = true) {
  state.dot = i;
  for (const dot of $("dots").querySelectorAll("circle[data-dot]")) {
    dot.classList.toggle("here", Number(dot.dataset.dot) === i);
  }
  tellDot();
  if (thenGroup) { state.group = dots[i].group; drawGroup(); drawLens(); }
}
