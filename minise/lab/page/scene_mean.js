// Mean: each trial adds a dot for each choice, and the intervals shrink. At the end, standard
// inference and Self-Ensemble on the same questions, and what both cost.
import { button, el, equation, fill, paragraph, percent, plot, slider, thousands } from "./draw.js";
import { tree } from "./layout.js";
import { estimate, MOST_LISTED, prompts, scores, softmax, topOf, trials,
  trialValues } from "./method.js";
import { switchOff } from "./recording.js";
import { ASKED, askModel } from "./scene_ask.js";

const meanView = { known: new Map(), compared: [], playing: false };
const MEAN_PAPER = { m: 4, N: 20, seed: 0 }; // of the comparison
// docs/real.md, "What it is worth per token": QASC, with the model of 1.5B.
const MEAN_WORTH = "On 300 real questions with 8 choices (QASC), Qwen2.5-Coder-1.5B has " +
  "54.7% right for 53 tokens a question by standard inference, 64.7% for 266 by Self-Ensemble " +
  "with 5 trials, 63.7% for 883 with 20, and 60.3% for 109 if each choice is asked about alone. " +
  "This run was on a GPU; one on a CPU has 55.0% by standard inference and 65.3% with 20 trials. " +
  "A point is 3 questions.";
const MEAN_PAUSE = 150; // milliseconds between trials

export const mean = {
  id: "mean", title: "Mean", defaults: { n: 1 },
  build: buildMean, update: updateMean,
};

function buildMean(root, app) {
  const restart = (changes) => app.set({ n: 1, ...changes });
  meanView.N = slider({ label: "N, the most trials:", min: 1,
    max: app.recorded ? app.settings.N : 40, value: app.state.N, oninput: (N) => app.set({ N }) });
  meanView.m = slider({ label: "m, choices in a group:", min: 1, max: MOST_LISTED, value: app.state.m,
    oninput: (m) => restart({ m }) });
  meanView.play = button("Play", () => playMean(app, !meanView.playing), { id: "mean-play" });
  meanView.step = button("One more trial", () => stepMean(app), { id: "mean-step" });
  meanView.strip = el("div", { id: "mean-strip" });
  meanView.squares = el("div", { class: app.recorded ? "both" : "squares", id: "mean-squares" });
  meanView.cost = el("p", { id: "mean-cost", "aria-live": "polite" });
  meanView.verdict = el("p", { class: "verdict", id: "mean-verdict", "aria-live": "polite" });
  meanView.told = el("p", { class: "soft", id: "mean-told" });
  root.append(
    el("div", { class: "side" },
      el("h2", {}, "The mean over the trials"),
      paragraph("One trial depends on chance: which choices share a group, and in which order. " +
        "The mean over many trials hardly does. Each dot is a choice's probability in one trial. " +
        "The line is the mean, the **score** of the choice. The band is its 95% interval: it " +
        "shrinks with the root of the number of trials."),
      equation("Pr(op) = mean of p_G(op) over the groups G with op"),
      equation("standard error = s / √N, s: spread of the dots"),
      el("div", { class: "controls" }, meanView.play, meanView.step,
        button("Start again", () => restart({}), { id: "mean-again" })),
      el("div", { class: "controls" }, meanView.N, meanView.m),
      meanView.verdict, meanView.told),
    el("div", { class: "stage" },
      el("h3", {}, "Probability of each choice, trial by trial"), meanView.strip,
      el("h3", {}, app.recorded ? "This question, both ways"
        : `Both ways on ${ASKED} built-in questions: 8 choices, groups of ${MEAN_PAPER.m}, ${
          MEAN_PAPER.N} trials`), meanView.squares,
      meanView.cost, paragraph(MEAN_WORTH, { class: "soft", id: "mean-worth" })));
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
  drawMeanSquares(app);
  meanCompare(app);
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

// The first n trials' probabilities of each choice; null if the state changed.
async function meanValues(app, n) {
  const { run, state } = app, values = [];
  for (const trial of app.trials().slice(0, n)) {
    values.push(await meanTrial(app, state, trial));
    if (run !== app.run) return null;
  }
  return values;
}

// One trial's probabilities of each choice. It is run once.
async function meanTrial(app, { question, choices }, trial) {
  const key = JSON.stringify([question, choices, trial]);
  if (!meanView.known.has(key)) {
    const { prefix, branches, labels } = prompts(app.tokenizer, question, choices, trial);
    const { ids, positions, mask, ends } = tree(prefix, branches);
    const { logits } = await app.forward(ids, positions, mask, { rows: ends });
    const results = labels.map((label, g) => softmax(logits[g], label));
    meanView.known.set(key, trialValues([trial], results, choices.length)[0]);
  }
  return meanView.known.get(key);
}

// Both ways on one question after the other, while this scene is shown.
async function meanCompare(app) {
  if (meanView.comparing) return;
  meanView.comparing = true;
  const { m, N, seed } = app.recorded ? app.settings : MEAN_PAPER;
  for (const item of app.world.slice(meanView.compared.length, ASKED)) {
    const picked = app.pick(item, item.choices.length), { question, choices, answer, id } = picked;
    const drawn = trials(choices.length, m, N, seed, id), values = [];
    const standard = await askModel(app, picked);
    for (const trial of drawn) {
      if (app.state.scene !== "mean") break;
      values.push(await meanTrial(app, picked, trial));
    }
    if (values.length < N) break;
    const { prefix, branches } = prompts(app.tokenizer, question, choices, drawn.flat());
    const answers = [topOf(standard.probabilities), topOf(scores(values))];
    meanView.compared.push({ question, answers: answers.map((i) => choices[i]),
      right: answers.map((i) => (answer === null ? null : i === answer)),
      tokens: [standard.tokens, tree(prefix, branches).ids.length] });
    drawMeanSquares(app);
  }
  meanView.comparing = false;
}

// Of the one question of a recorded page both answers. Of many a line of squares for each way, a
// square for each question. Dark: right.
function drawMeanSquares(app) {
  const { compared } = meanView, all = Math.min(app.world.length, ASKED), done = compared.length;
  const count = (way) => compared.filter(({ right }) => right[way]).length;
  const answered = (way) => compared.map(({ answers, right }) => [el("b", { dir: "auto" },
    answers[way]), right[way] === null ? "" : right[way] ? ": right" : ": wrong"]);
  const squares = (name, way) => [el("b", { "data-right": count(way) }, `${count(way)}`),
    el("span", { class: "row-of", role: "img", "aria-label": `${name}: ${count(way)} of ${done}` },
      Array.from({ length: all }, (_, i) => el("i", { class: i >= done ? ""
        : compared[i].right[way] ? "right" : "wrong", title: i < done
        ? `${compared[i].question} ${compared[i].answers[way]}` : null })))];
  fill(meanView.squares, ["Standard inference", "Self-Ensemble"].map((name, way) => [
    el("span", {}, name), app.recorded ? el("span", {}, answered(way)) : squares(name, way)]));
  const [one, many] = [0, 1].map((way) =>
    compared.reduce((sum, { tokens }) => sum + tokens[way], 0) / done);
  const right = app.recorded ? "" : `${count(0)} → ${count(1)} right. `;
  fill(meanView.cost, done < all ? `The model is answering: ${done} of ${all} questions so far.`
    : [el("b", {}, right), `A question costs ${thousands(one)} tokens by standard inference, `,
      `${thousands(many)} by Self-Ensemble as a tree: ${(many / one).toFixed(0)} times as many.`]);
}

function drawMeanControls(app, n) {
  const { N, m, most } = app.state;
  meanView.N.set(N);
  meanView.m.limit(Math.min(most, MOST_LISTED));
  meanView.m.set(m);
  meanView.step.disabled = meanView.play.disabled = n >= N;
}

// A choice's score, and its standard error in points if several trials gave it.
const scoreText = ({ mean, error }) =>
  percent(mean) + (error === null ? "" : ` ± ${(100 * error).toFixed(1)}`);

// A row for each choice: dots of the trials, mean and interval, and the score as a number.
function drawMeanStrip(app, values) {
  const { choices, answer } = app.state;
  if (!meanView.strip.clientWidth) return;
  const high = choices.length > 12 ? 26 : 34;
  const left = Math.min(150, meanView.strip.clientWidth / 3);
  const at = plot(meanView.strip, { height: high * choices.length + 50, xs: [0, 1],
    ys: [choices.length, 0], left, right: 100, top: 8, bottom: 42, yTicks: [], yTitle: "",
    xTicks: [[0, "0%"], [0.5, "50%"], [1, "100%"]], xTitle: "probability",
    label: `Scores after ${values.length} trials: ` + choices.map((choice, i) =>
      `${choice} ${scoreText(estimate(values.map((row) => row[i])))}`).join(", ") });
  const score = scores(values);
  const top = score.indexOf(Math.max(...score));
  choices.forEach((choice, i) => {
    const y = at.y(i + 0.5), is = i === top ? "mean-top" : "mean-other";
    const found = estimate(values.map((row) => row[i]));
    const { mean: center, low, high: above } = found;
    const [from, to] = [low ?? 0, above ?? 1].map((p) => at.x(Math.min(Math.max(p, 0), 1)));
    at.marks.append(
      el("text", { x: left - 10, y: y + 4, "text-anchor": "end", class: i === top ? "here" : "" },
        meanName(choice, left), i === answer ? " ✓" : ""),
      el("rect", { class: `mean-band ${is}`, x: from, y: y - 11, width: to - from, height: 22,
        opacity: low === null ? 0.35 : 1 }));
    values.forEach((row, trial) => {
      // The same small shift for all dots of a trial keeps equal values apart.
      const cy = y + ((trial * 7) % 13) - 6;
      at.marks.append(el("circle", { class: `mean-dot ${is}`, cx: at.x(row[i]), cy, r: 3 }));
    });
    at.marks.append(el("path", { class: "line", d: `M${at.x(center)} ${y - 13}v26`,
      "data-mean": center }), el("text", { x: at.x(1) + 8, y: y + 4, "data-score": choice,
      class: i === top ? "here" : "" }, scoreText(found)));
  });
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
