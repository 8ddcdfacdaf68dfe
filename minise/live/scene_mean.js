// Mean: each trial adds a dot for each choice, the intervals shrink, and asking can stop when the
// answer is decided.
import { animate, button, chooser, el, fill, percent, plot, linePath, slider } from "./draw.js";
import { tree } from "./layout.js";
import { switchOff } from "./recording.js";
import {
  decidedAfter, estimate, logWealth, rivals, scores, softmax, trialValues,
} from "./method.js";

const meanView = { known: new Map(), playing: false, drawn: "" };
const MEAN_PAUSE = 150; // milliseconds between trials
const MEAN_NAMES = 130; // pixels for the name of a line

export const mean = {
  id: "mean",
  title: "Mean",
  defaults: { n: 1, stop: 0.01 },
  guess: {
    question: "The band around the mean of 10 trials has a certain width. How many trials make " +
      "it about half as wide?",
    options: ["20", "40", "100"],
    right: 1,
    because: "The error of a mean falls with the square root of the number of trials: four times " +
      "as many, half the error. Try both, and compare the width of the band.",
    tries: [["10 trials", { N: 40, n: 10, stop: 0 }], ["40 trials", { N: 40, n: 40, stop: 0 }]],
  },
  build: buildMean,
  update: updateMean,
};

function buildMean(root, app) {
  const restart = (changes) => app.set({ n: 1, ...changes });
  const levels = [[0.1, "10%"], [0.01, "1%"], [0.001, "0.1%"], [0, "never"]];
  meanView.N = slider({ label: "N, the most trials:", min: 1,
    max: app.recorded?.settings.N ?? 40, value: app.state.N, oninput: (N) => app.set({ N }) });
  meanView.m = slider({ label: "m, choices in a group:", min: 1, max: 8, value: app.state.m,
    oninput: (m) => restart({ m }) });
  meanView.stop = chooser({ label: "Stop when decided, with a risk of at most", options: levels,
    value: app.state.stop, onchange: (stop) => app.set({ stop }) });
  meanView.play = button("Play", () => playMean(app, !meanView.playing), { id: "mean-play" });
  meanView.step = button("One more trial", () => stepMean(app), { id: "mean-step" });
  meanView.strip = el("div", { id: "mean-strip" });
  meanView.verdict = el("p", { class: "verdict", id: "mean-verdict", "aria-live": "polite" });
  meanView.told = el("p", { class: "soft", id: "mean-told" });
  meanView.evidence = el("div", { id: "mean-evidence" });
  root.append(
    el("div", { class: "side" },
      el("h2", {}, "The mean over the trials"),
      el("p", {}, "One trial depends on chance: which choices share a group, and in which order. ",
        "The mean over many trials hardly does. Each dot is a choice's probability in one trial. ",
        "The line is the mean; the band is where the mean of very many trials probably lies."),
      el("div", { class: "controls" }, meanView.play, meanView.step,
        button("Start again", () => restart({}), { id: "mean-again" })),
      el("div", { class: "controls" }, meanView.N, meanView.m),
      el("div", { class: "controls" }, meanView.stop),
      meanView.verdict, meanView.told, meanFormulas()),
    el("div", { class: "stage" },
      el("h3", {}, "Probability of each choice, trial by trial"), meanView.strip,
      el("h3", {}, "Which choices can be ruled out?"), meanView.evidence));
  if (app.recorded) switchOff(meanView.m);
}

function meanFormulas() {
  return el("details", { id: "mean-formulas" }, el("summary", {}, "How this is computed"),
    el("p", { class: "soft" }, "The band is the 95% interval of the mean by Student's t."),
    el("p", { class: "soft" }, "The evidence is the natural logarithm of the wealth of a bet ",
      "against the choice. The wealth begins with 1. Each trial multiplies it by 1 + b (p − q): ",
      "p is the probability of the leader, q that of the choice, b the stake, from 0 to 0.97. If ",
      "the choice is the winner, the wealth reaches 1/α with a probability of at most α (Ville ",
      "1939). So −ln α is enough: 4.6 for a risk α of 1%. This is testing by betting ",
      "(Waudby-Smith and Ramdas 2024)."));
}

async function updateMean(app) {
  const { run, state } = app;
  const block = Math.min(2 * Math.min(state.m, state.K), state.N);
  const n = Math.min(Math.max(Math.round(state.n) || 1, 1), state.N);
  const shown = await meanValues(app, n, block);
  if (!shown || run !== app.run) return;
  const decided = meanDecided(app, shown, block);
  drawMeanControls(app, shown.length, decided);
  drawMeanStrip(app, shown);
  drawMeanVerdict(app, shown, decided, block);
  drawMeanEvidence(app, shown, block);
  if (meanView.playing && (decided || shown.length === state.N)) playMean(app, false);
  else if (meanView.playing) {
    clearTimeout(meanView.waiting);
    meanView.waiting = setTimeout(stepMean, MEAN_PAUSE, app);
  }
}

function playMean(app, playing) {
  meanView.playing = playing;
  clearTimeout(meanView.waiting);
  fill(meanView.play, playing ? "Pause" : "Play");
  if (playing) stepMean(app);
}

function stepMean(app) {
  if (app.state.scene !== "mean") playMean(app, false);
  else app.set({ n: Math.min((Math.round(app.state.n) || 1) + 1, app.state.N) });
}

const meanDecided = ({ state }, values, block) =>
  state.stop > 0 ? decidedAfter(values, state.stop, block) : null;

// The first n trials' probabilities of each choice, fewer if the answer is decided before. A trial
// is run once; null if the state changed.
async function meanValues(app, n, block) {
  const { run, state } = app;
  const values = [];
  for (const trial of app.trials().slice(0, n)) {
    const key = JSON.stringify([state.question, state.choices, trial]);
    if (!meanView.known.has(key)) {
      const { prefix, branches, labels } = app.prompts(trial);
      const { ids, positions, mask, ends } = tree(prefix, branches);
      const { logits } = await app.forward(ids, positions, mask, { rows: ends });
      const results = labels.map((label, g) => softmax(logits[g], label));
      meanView.known.set(key, trialValues([trial], results, state.choices.length)[0]);
      if (run !== app.run) return null;
    }
    values.push(meanView.known.get(key));
    if (meanDecided(app, values, block)) break;
  }
  return values;
}

function drawMeanControls(app, n, decided) {
  const { N, m, most, stop } = app.state;
  meanView.N.set(N);
  meanView.m.set(m);
  meanView.m.input.max = most;
  fill(meanView.m.querySelector(".range").lastChild, most);
  meanView.stop.set(stop);
  meanView.step.disabled = meanView.play.disabled = Boolean(decided) || n >= N;
}

// A row for each choice: dots of the trials, mean and interval. The last trial's dots fall in.
function drawMeanStrip(app, values) {
  const { choices, answer } = app.state;
  if (!meanView.strip.clientWidth) return;
  const high = 34, left = Math.min(150, meanView.strip.clientWidth / 3);
  const at = plot(meanView.strip, { height: high * choices.length + 50, xs: [0, 1],
    ys: [choices.length, 0], left, right: 22, top: 8, bottom: 42, yTicks: [], yTitle: "",
    xTicks: [[0, "0%"], [0.5, "50%"], [1, "100%"]], xTitle: "probability",
    label: `Means after ${values.length} trials` });
  const score = scores(values);
  const top = score.indexOf(Math.max(...score));
  const falling = [];
  choices.forEach((choice, i) => {
    const y = at.y(i + 0.5), is = i === top ? "mean-top" : "mean-other";
    const { mean: center, low, high: above } = estimate(values.map((row) => row[i]));
    const [from, to] = [low ?? 0, above ?? 1].map((p) => at.x(Math.min(Math.max(p, 0), 1)));
    at.svg.append(
      el("text", { x: left - 10, y: y + 4, "text-anchor": "end", class: i === top ? "here" : "" },
        meanName(choice, left), i === answer ? " ✓" : ""),
      el("rect", { class: `mean-band ${is}`, x: from, y: y - 11, width: to - from, height: 22,
        opacity: low === null ? 0.35 : 1 }));
    values.forEach((row, trial) => {
      // The same small shift for all dots of a trial keeps equal values apart.
      const cy = y + ((trial * 7) % 13) - 6;
      const dot = el("circle", { class: `mean-dot ${is}`, cx: at.x(row[i]), cy, r: 3 });
      at.svg.append(dot);
      if (trial === values.length - 1) falling.push([dot, cy]);
    });
    at.svg.append(el("path", { class: "line", d: `M${at.x(center)} ${y - 13}v26`,
      "data-mean": center }));
  });
  const drawn = JSON.stringify([app.state.question, app.state.m, app.state.seed, values.length]);
  if (meanView.drawn === drawn) return;
  meanView.drawn = drawn;
  animate(300, (t) => falling.forEach(([dot, cy]) => dot.setAttribute("cy", cy * t)));
}

function meanName(text, width) {
  const most = Math.floor((width - 30) / 7);
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function drawMeanVerdict(app, values, decided, block) {
  const { choices, answer, stop, N } = app.state;
  const score = scores(values);
  const order = [...score.keys()].sort((a, b) => score[b] - score[a] || a - b);
  const [first, second] = order;
  const lead = estimate(values.map((row) => row[first] - row[second]));
  const said = answer === null ? "" : first === answer ? ": right" : ": wrong";
  const trials = values.length === 1 ? "1 trial" : `${values.length} trials`;
  fill(meanView.verdict, `After ${trials} the answer is ${choices[first]}${said}${
    decided ? ". Decided." : "."}`);
  const { low, high } = estimate(values.map((row) => row[first]));
  const by = `It leads ${choices[second]} by ${(100 * lead.mean).toFixed(1)} points. `;
  const band = low === null ? "One trial says nothing about the error."
    : `Its band is ${(100 * (high - low)).toFixed(1)} points wide.`;
  const left = stop > 0 ? rivals(values, stop).length : 0;
  const checked = `After every ${block} trials the page looks whether it is decided: ${
    left === 1 ? "1 rival is" : `${left} rivals are`} not ruled out.`;
  const sure = "All rivals are ruled out. The risk that many more trials would answer otherwise " +
    `is at most ${percent(stop)}, so ${N - decided} of ${N} trials are not needed.`;
  const rule = decided ? sure : stop > 0 ? checked : "";
  fill(meanView.told, `${by}${band} ${rule}`);
}

// The log wealth of the bets against the rivals; who reaches the line is ruled out.
function drawMeanEvidence(app, values, block) {
  const { N, stop, choices } = app.state;
  if (!meanView.evidence.clientWidth) return;
  const score = scores(values);
  const top = score.indexOf(Math.max(...score));
  const wealth = logWealth(values);
  const line = stop > 0 ? -Math.log(stop) : null;
  const most = Math.max(line ?? 0, 3, ...wealth.flat()) + 0.5;
  const right = Math.min(MEAN_NAMES, meanView.evidence.clientWidth / 4);
  const ends = Array.from({ length: Math.floor(N / block) }, (_, i) => (i + 1) * block);
  const at = plot(meanView.evidence, { height: 190, xs: [1, Math.max(N, 2)], ys: [-1, most],
    xTicks: [1, ...ends.filter((n) => n > 2)].map((n) => [n, `${n}`]),
    yTicks: [[0, "none"], ...(line ? [[line, "enough"]] : [])], xTitle: "trials", left: 60,
    right, top: 30, yTitle: "evidence that this choice is not the winner",
    label: "Evidence that a choice is not the winner, for each rival" });
  const lines = [...choices.keys()].filter((i) => i !== top).map((i) => ({ i,
    out: line !== null && wealth.some((row) => row[i] >= line),
    points: wealth.map((row, trial) => [at.x(trial + 1), at.y(Math.max(row[i], -1))]) }));
  for (const { points } of lines) {
    const [x, y] = points.at(-1);
    at.svg.append(el("path", { class: "faint", d: linePath(points) }),
      el("circle", { class: "mean-dot mean-other", cx: x, cy: y, r: 3 }));
  }
  if (line) {
    const [left, end, y] = [at.x(1), at.x(Math.max(N, 2)), at.y(line)];
    at.svg.append(el("path", { class: "line", d: `M${left} ${y}H${end}` }),
      el("text", { x: left + 4, y: y - 6 }, "above: ruled out, ×"));
  }
  drawMeanNames(at, choices, lines, right);
}

// The names of the lines, at their ends and one below the other; with a cross if ruled out.
function drawMeanNames(at, choices, lines, wide) {
  const gap = 13, lowest = at.height - 44;
  const end = ({ points }) => points.at(-1);
  const sorted = [...lines].sort((a, b) => end(a)[1] - end(b)[1]);
  let free = -Infinity;
  sorted.forEach((one, place) => {
    const [x, y] = end(one), below = sorted.length - 1 - place; // names that still need room
    free = Math.min(Math.max(y + 4, free + gap), lowest - gap * below);
    at.svg.append(el("path", { class: "grid", d: `M${x + 4} ${y}L${x + 14} ${free - 4}` }),
      el("text", { class: "mean-name", x: x + 17, y: free }, one.out ? "× " : "",
        meanName(choices[one.i], wide + 10)));
  });
}
