// Split: each trial shuffles the choices and cuts them into groups; each group is a short question.
import { button, colour, el, equation, fill, paragraph, slider } from "./draw.js";
import { MOST_LISTED, NULL_OPTION } from "./method.js";

const splitView = { shown: "" };

export const split = {
  id: "split", title: "Split",
  guess({ state: { K, m, N } }) {
    const prompts = N * Math.ceil(K / m);
    if (prompts === N) return null; // one group holds all choices
    return {
      question: `${N === 1 ? "A trial cuts" : `${N} trials cut`} ${K} choices into groups of ${
        m} at random. How many of the ${prompts} groups hold the right answer?`,
      options: ["It depends on chance", `One in each trial: ${N}`, `All ${prompts}`],
      right: 1,
      because: "A trial uses each choice once, so the right answer is in one of its groups. " +
        `The other groups need “${NULL_OPTION}”.`,
    };
  },
  build: buildSplit, update: updateSplit,
};

function buildSplit(root, app) {
  const control = (key, label, min, max) => {
    splitView[key] = slider({ label, min, max, value: app.state[key],
      oninput: (value) => app.set({ [key]: value }) });
    return splitView[key];
  };
  splitView.list = el("ol", { class: "plain" });
  splitView.groups = el("div", { class: "groups", id: "split-groups" });
  splitView.title = el("h3");
  splitView.rows = el("div", { class: "trials", id: "split-trials", role: "group",
    "aria-label": "All trials. Arrow keys move from trial to trial.", onkeydown: (event) =>
      splitKey(event, app) });
  splitView.told = el("p", { class: "verdict", id: "split-told", "aria-live": "polite" });
  const seed = () => app.set({ seed: (app.state.seed + 1) % 10000, trial: 1 });
  splitView.seed = el("b");
  splitView.key = el("p", { class: "soft" });
  root.append(
    el("div", { class: "side" },
      el("h2", {}, "Many short questions instead of a long one"),
      paragraph("A **trial** shuffles the K choices and cuts them into **groups** of m. Each " +
        "group is a short question of its own, with labels (A), (B), … and one more choice, the " +
        `**null option** “${NULL_OPTION}”. A short list should be easier for the model.`),
      equation("{1, …, K} = G_1 ∪ G_2 ∪ … ∪ G_⌈K/m⌉"),
      el("p", {}, "One trial can be unlucky. So there are N of them."),
      el("div", { class: "controls" },
        control("K", "K, choices:", 2, app.state.most),
        control("m", "m, choices in a group:", 1, MOST_LISTED),
        control("N", "N, trials:", 1, 40)),
      el("div", { class: "row" }, button("Shuffle again", seed, { id: "split-seed" }),
        el("span", { class: "soft" }, "seed ", splitView.seed)),
      splitView.told),
    el("div", { class: "stage" },
      splitView.title,
      el("div", { class: "apart" }, el("div", { class: "card" },
        el("b", { class: "soft" }, "all choices"), splitView.list), splitView.groups),
      el("h3", {}, "All trials"),
      splitView.rows,
      splitView.key));
}

function updateSplit(app) {
  const { state } = app, trials = app.trials();
  // Where the right answer is would tell the guess.
  const right = app.asking ? null : state.answer;
  splitView.K.limit(state.most);
  splitView.m.limit(Math.min(state.most, MOST_LISTED));
  for (const key of ["K", "m", "N"]) splitView[key].set(state[key]);
  fill(splitView.seed, state.seed);
  const count = trials[0].length, prompts = state.N * count;
  fill(splitView.told, count === 1 ? "One group holds all choices. Choose m below K."
    : `${state.N} ${state.N === 1 ? "trial" : "trials"} × ${count} groups = ${prompts} prompts`);
  fill(splitView.title, `Trial ${state.trial}: “${state.question}”`);
  fill(splitView.key, "A line is a trial, a number a choice, a colour a group. ",
    right === null ? "" : "Filled: the right answer. ", "Press a line to see its groups above.");
  drawSplitRows(app, trials, right);
  drawSplitGroups(app, trials[state.trial - 1], right);
}

// The trial's groups.
function drawSplitGroups({ state, label }, trial, right) {
  const key = JSON.stringify([state.choices, trial, right]);
  if (splitView.shown === key) return;
  splitView.shown = key;
  const mark = (i) => (i === right ? { class: "right" } : {});
  const number = (i) => el("small", {}, `${i + 1}`);
  fill(splitView.list, state.choices.map((choice, i) =>
    el("li", mark(i), number(i), " ", el("span", { dir: "auto" }, choice))));
  fill(splitView.groups, trial.map((group, g) => el("div", { class: "card group",
    style: { "--c": colour(g) } }, el("b", {}, `group ${g + 1}`), el("ol", { class: "plain" },
    group.map((i, place) => el("li", mark(i), number(i), ` (${label(place)}) `,
      el("span", { dir: "auto" }, state.choices[i]))),
    el("li", { class: "soft" }, `(${label(group.length)}) ${NULL_OPTION}`)))));
}

function drawSplitRows({ state, set }, trials, right) {
  const focused = splitView.rows.contains(document.activeElement);
  splitView.rows.style.setProperty("--wide", `${3 + 1.75 * state.K}rem`);
  fill(splitView.rows, trials.map((trial, t) => {
    const here = t === state.trial - 1;
    const cells = trial.map((group, g) => el("span", { class: "block",
      style: { "--c": colour(g) } }, el("span", { class: "unseen" }, `, group ${g + 1}: `),
    group.map((i) => [el("i", { class: i === right ? "right" : "" }, i + 1), " "])));
    const number = el("small", {}, el("span", { class: "unseen" }, "Trial "), t + 1);
    return button([number, cells], () => set({ trial: t + 1 }), {
      "aria-pressed": `${here}`, tabindex: here ? 0 : -1 });
  }));
  if (focused) splitView.rows.children[state.trial - 1].focus();
}

function splitKey(event, app) {
  const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  app.set({ trial: Math.min(Math.max(app.state.trial + by, 1), app.state.N) });
}
