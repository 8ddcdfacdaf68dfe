// Mean: each trial adds a dot for each choice, and the intervals shrink.
import { animate, button, el, fill, plot, slider } from "./draw.js";
import { tree } from "./layout.js";
import { switchOff } from "./recording.js";
import { estimate, scores, softmax, trialValues } from "./method.js";

const meanView = { known: new Map(), playing: false, drawn: "" };
const MEAN_PAUSE = 150; // milliseconds between trials

export const mean = {
  id: "mean",
  title: "Mean",
  defaults: { n: 1 },
  guess: {
    question: "The band around the mean of 10 trials has a certain width. How many trials make " +
      "it about half as wide?",
    options: ["20", "40", "100"],
    right: 1,
    because: "The error of a mean falls with the square root of the number of trials: four times " +
      "as many, half the error. Try both, and compare the width of the band.",
    tries: [["10 trials", { N: 40, n: 10 }], ["40 trials", { N: 40, n: 40 }]],
  },
  build: buildMean,
  update: updateMean,
};

function buildMean(root, app) {
  const restart = (changes) => app.set({ n: 1, ...changes });
  meanView.N = slider({ label: "N, the most trials:", min: 1,
    max: app.recorded?.settings.N ?? 40, value: app.state.N, oninput: (N) => app.set({ N }) });
  meanView.m = slider({ label: "m, choices in a group:", min: 1, max: 8, value: app.state.m,
    oninput: (m) => restart({ m }) });
  meanView.play = button("Play", () => playMean(app, !meanView.playing), { id: "mean-play" });
  meanView.step = button("One more trial", () => stepMean(app), { id: "mean-step" });
  meanView.strip = el("div", { id: "mean-strip" });
  meanView.verdict = el("p", { class: "verdict", id: "mean-verdict", "aria-live": "polite" });
  meanView.told = el("p", { class: "soft", id: "mean-told" });
  root.append(
    el("div", { class: "side" },
      el("h2", {}, "The mean over the trials"),
      el("p", {}, "One trial depends on chance: which choices share a group, and in which order. ",
        "The mean over many trials hardly does. Each dot is a choice's probability in one trial. ",
        "The line is the mean; the band is where the mean of very many trials probably lies: ",
        "the 95% interval by Student's t."),
      el("div", { class: "controls" }, meanView.play, meanView.step,
        button("Start again", () => restart({}), { id: "mean-again" })),
      el("div", { class: "controls" }, meanView.N, meanView.m),
      meanView.verdict, meanView.told),
    el("div", { class: "stage" },
      el("h3", {}, "Probability of each choice, trial by trial"), meanView.strip));
  if (app.recorded) switchOff(meanView.m);
}

async function updateMean(app) {
  const { run, state } = app;
  const n = Math.min(Math.max(Math.round(state.n) || 1, 1), state.N);
  const shown = await meanValues(app, n);
  if (!shown || run !== app.run) return;
  drawMeanControls(app, shown.length);
  drawMeanStrip(app, shown);
  drawMeanVerdict(app, shown);
  if (meanView.playing && shown.length === state.N) playMean(app, false);
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

// The first n trials' probabilities of each choice. A trial is run once; null if the state changed.
async function meanValues(app, n) {
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
  }
  return values;
}

function drawMeanControls(app, n) {
  const { N, m, most } = app.state;
  meanView.N.set(N);
  meanView.m.set(m);
  meanView.m.input.max = most;
  fill(meanView.m.querySelector(".range").lastChild, most);
  meanView.step.disabled = meanView.play.disabled = n >= N;
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

function drawMeanVerdict(app, values) {
  const { choices, answer } = app.state;
  const score = scores(values);
  const [first, second] = [...score.keys()].sort((a, b) => score[b] - score[a] || a - b);
  const lead = score[first] - score[second];
  const said = answer === null ? "" : first === answer ? ": right" : ": wrong";
  const trials = values.length === 1 ? "1 trial" : `${values.length} trials`;
  fill(meanView.verdict, `After ${trials} the answer is ${choices[first]}${said}.`);
  const { low, high } = estimate(values.map((row) => row[first]));
  const by = `It leads ${choices[second]} by ${(100 * lead).toFixed(1)} points. `;
  const band = low === null ? "One trial says nothing about the error."
    : `Its band is ${(100 * (high - low)).toFixed(1)} points wide.`;
  fill(meanView.told, `${by}${band}`);
}
