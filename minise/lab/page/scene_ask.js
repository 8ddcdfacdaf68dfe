// Ask: one prompt with all choices. With more of them the model is right less often.
import { bars, button, el, fill, paragraph, plot, slider, thousands } from "./draw.js";
import { MOST_CHOICES, prompts, render, softmax, topOf } from "./method.js";
import { switchOff } from "./recording.js";

export const ASKED = 20;
const askView = { known: new Map(), running: false };

export const ask = {
  id: "ask", title: "Ask",
  guess: ({ toy, recorded }) => (!toy || recorded ? null : { // of 20 questions of its world
    question: "A model gets 20 questions, first with 2 choices each, then with 8. " +
      "What happens to its share of right answers?",
    options: ["It rises", "It stays", "It falls"],
    right: 2,
    because: "The model knows most of these facts, but a longer list of choices confuses it. " +
      "Drag K and see.",
  }),
  build: buildAsk, update: updateAsk,
};

function buildAsk(root, app) {
  const items = app.world.slice(0, ASKED).map(({ question }, i) =>
    el("option", { value: i }, `${i + 1}. ${question}`));
  askView.own = el("option", { value: "" });
  askView.question = el("select", { id: "ask-question", onchange: (event) =>
    app.set({ q: Number(event.target.value) }) }, askView.own, items);
  askView.K = slider({ label: "K, the number of choices:", min: 2, max: app.state.most, value: app.state.K,
    oninput: (K) => app.set({ K }) });
  askView.prompt = el("pre", { class: "prompt", tabindex: 0, "aria-label": "The prompt" });
  askView.bars = el("div", { id: "ask-bars" });
  askView.verdict = el("p", { class: "verdict result", "aria-live": "polite" });
  askView.strip = el("div", { id: "ask-strip" });
  askView.told = el("p", { class: "soft result", id: "ask-told" });
  root.append(
    el("div", { class: "side" },
      el("h2", {}, `The same question${app.recorded ? "" : "s"}, more choices`),
      paragraph("The model reads the question and its choices, the **prompt**. Then it gives " +
        "each label (A), (B), … a probability. The largest is its answer. To ask so, with all " +
        "choices in one prompt, is **standard inference**."),
      paragraph(askedModel(app), { class: "soft", id: "ask-model" }),
      el("label", { for: "ask-question" }, "Question"), askView.question,
      el("div", { class: "controls" }, askView.K)),
    el("div", { class: "stage" },
      askView.verdict, askView.bars,
      el("h3", {}, app.recorded ? "The same question, at each K"
        : `The same for ${ASKED} built-in questions, at each K`), askView.strip, askView.told),
    el("div", { class: "more" },
      el("h3", {}, "The prompt"), askView.prompt, app.recorded ? null : askTyped(app)));
  if (app.recorded) switchOff(askView.question);
}

// Who answers, in words: docs/miniature.md has the numbers of the toy's training.
function askedModel({ name, model: { parameters, facts }, toy, recorded }) {
  const size = parameters < 1e6 ? thousands(parameters) : parameters < 1e9
    ? `${(parameters / 1e6).toFixed(1)} million` : `${(parameters / 1e9).toFixed(1)} billion`;
  if (!toy) {
    return `The model, **${name}**, has ${size} parameters. ${recorded
      ? "It answered when this page was made."
      : "The built-in questions are of a small world that it may not know."}`;
  }
  return `The model, **${name}**, is a toy: ${size} parameters, trained on ${facts} facts. It ` +
    "knows nothing else. 84% of its training questions had at most four choices, so to it long " +
    "lists and the labels E to H are rare. Real models may find long lists hard for other reasons.";
}

// A question of the reader's own, with one choice per line.
function askTyped(app) {
  const question = el("input", { type: "text", maxlength: 300, "aria-label": "Your question",
    placeholder: "What is the capital of Kenya?" });
  const choices = el("textarea", { rows: 4, maxlength: 2200, "aria-label":
    `Its choices, one in a line, 2 to ${MOST_CHOICES} of them`, placeholder: "Nairobi\nAccra\nLagos" });
  const said = el("p", { class: "soft", role: "status" });
  const send = () => {
    const lines = choices.value.split("\n").map((line) => line.trim()).filter(Boolean);
    const fault = !question.value.trim() ? "Write a question."
      : lines.length < 2 || lines.length > MOST_CHOICES
        ? `Write 2 to ${MOST_CHOICES} choices, one in a line.`
        : new Set(lines).size < lines.length ? "Two choices are the same." : "";
    fill(said, fault);
    if (fault) return;
    // The right choice is written first; they are shown in the order of the alphabet.
    const sorted = [...lines].sort();
    app.set({ question: question.value, choices: sorted, answer: sorted.indexOf(lines[0]),
      K: lines.length, m: null });
  };
  return el("details", { class: "typed" }, el("summary", {}, "Type a question of your own"),
    el("p", { class: "soft" }, "One choice in a line, the right one first. ",
      app.toy ? "The model knows capitals, currencies, rivers, authors, opposites and little else."
        : null),
    question, choices, button("Ask it", send), said);
}

async function updateAsk(app) {
  const { run, state } = app;
  const listed = state.q !== null && state.q < ASKED;
  askView.own.hidden = listed;
  fill(askView.own, listed ? "" : state.question);
  askView.question.value = listed ? `${state.q}` : "";
  askView.K.limit(state.most);
  askView.K.set(state.K);
  const { probabilities, text } = await askModel(app, state);
  if (run !== app.run) return;
  fill(askView.prompt, text);
  const top = topOf(probabilities);
  bars(askView.bars, probabilities.map((value, i) => ({ label: `(${app.label(i)})`,
    name: state.choices[i], value, top: i === top, right: i === state.answer })));
  const known = state.answer !== null;
  fill(askView.verdict, `The model answers ${state.choices[top]}`,
    known ? (top === state.answer ? ": right." : `: wrong. It is ${state.choices[state.answer]}.`)
      : ".");
  drawAskStrip(app);
  askOthers(app);
}

// Standard inference: the one prompt with all choices, and no null option. With options as `render`
// has them. -> {probabilities, text, tokens: how many}
export async function askModel(app, { question, choices }, options = {}) {
  const key = askKey(question, choices, options);
  if (!askView.known.has(key)) {
    const all = choices.map((_, i) => i);
    const { prefix, branches, labels } = prompts(app.tokenizer, question, choices, [all],
      { ...options, nullOption: false });
    const ids = [...prefix, ...branches[0]], T = ids.length;
    const mask = Uint8Array.from({ length: T * T }, (_, at) => (at % T <= at / T ? 1 : 0));
    const { logits } = await app.forward(ids, ids.map((_, t) => t), mask, { rows: [T - 1] });
    askView.known.set(key, { probabilities: softmax(logits[0], labels[0]), tokens: T,
      text: render(question, choices, options) });
  }
  return askView.known.get(key);
}

const askKey = (question, choices, options = {}) => JSON.stringify([question, choices, options]);

// The questions of the strip, one after the other while this scene is shown.
async function askOthers(app) {
  if (askView.running) return;
  askView.running = true;
  for (const item of app.world.slice(0, ASKED)) {
    for (let K = 2; K <= item.choices.length; K++) {
      const picked = app.pick(item, K);
      if (askView.known.has(askKey(picked.question, picked.choices))) continue;
      if (app.state.scene !== "ask") break;
      await askModel(app, picked);
    }
    if (app.state.scene !== "ask") break;
    drawAskStrip(app);
  }
  askView.running = false;
}

// Of each K a column of squares, one for each question: right answers at the bottom.
function askColumns(app) {
  return [2, 3, 4, 5, 6, 7, 8].map((K) => {
    const told = app.world.slice(0, ASKED).map((item) => {
      const { question, choices, answer } = app.pick(item, K);
      const known = askView.known.get(askKey(question, choices));
      return known && topOf(known.probabilities) === answer;
    });
    const asked = told.filter((right) => right !== undefined);
    return { K, asked: asked.length, right: asked.filter(Boolean).length };
  });
}

function drawAskStrip(app) {
  if (!askView.strip.clientWidth) return;
  if (app.recorded) {
    drawAskOne(app);
    return;
  }
  const columns = askColumns(app), done = Math.min(...columns.map(({ asked }) => asked));
  const high = 0.9 / ASKED;
  const at = plot(askView.strip, { height: 214, xs: [1.5, 8.5], ys: [0, 1], top: 40, bottom: 42,
    xTicks: columns.map(({ K }) => [K, `${K}`]),
    yTicks: [0, 5, 10, 15, 20].map((count) => [count / ASKED, `${count}`]),
    xTitle: "K, the number of choices", yTitle: `right answers, of ${ASKED} questions`,
    label: `Right answers of ${ASKED}: ${askTold(columns)}` });
  const wide = Math.min(at.x(1) - at.x(0) - 8, 46);
  for (const { K, asked, right } of columns) {
    for (let i = 0; i < asked; i++) {
      at.marks.append(el("rect", { class: i < right ? "right" : "wrong", x: at.x(K) - wide / 2,
        y: at.y((i + 0.95) / ASKED), width: wide, height: at.y(0) - at.y(high) }));
    }
    at.marks.append(el("text", { x: at.x(K), y: 32, "text-anchor": "middle",
      class: K === app.state.K ? "here" : "" }, asked ? `${right}` : ""));
  }
  fill(askView.told, done < ASKED ? `The model is answering: ${done} of ${ASKED} questions so far.`
    : `Filled: right, empty: wrong. Right answers: ${askTold(columns)}.`);
}

// Of one question: at each K the probability of the right choice, or of the answer where the right
// one is not known. Dark: it is the answer.
function drawAskOne(app) {
  const [item] = app.world, rows = [];
  for (let K = 2; K <= item.choices.length; K++) {
    const { question, choices, answer } = app.pick(item, K);
    const known = askView.known.get(askKey(question, choices));
    if (!known) continue;
    const top = topOf(known.probabilities), wanted = answer ?? top;
    rows.push({ name: `${K} choices${answer === null ? `: ${choices[top]}` : ""}`,
      value: known.probabilities[wanted], top: top === wanted });
  }
  const who = item.answer === null ? "the model's answer" : item.choices[item.answer];
  bars(askView.strip, rows, { title: `probability of ${who}` });
  fill(askView.told, item.answer === null ? ""
    : `Bold: the model answers ${who}. Else: another choice.`);
}

const askTold = (columns) => columns.filter(({ K }) => K === 2 || K === 8)
  .map(({ K, right }) => `${right} with ${K} choices`).join(", ");
