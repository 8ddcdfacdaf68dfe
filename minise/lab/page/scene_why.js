// Why: is a long list hard because of its labels, or because of its length? Each alone, at four
// choices.
import { bars, button, el, fill, paragraph, percent } from "./draw.js";
import { topOf } from "./method.js";
import { ASKED, askModel } from "./scene_ask.js";

const WHY_FEW = 4;
const whyView = { asking: null };

export const why = {
  id: "why", title: "Why", defaults: { way: "few" },
  guess(app) {
    if (!app.toy || app.recorded) return null; // another training
    const { few, first, later } = whySizes(app);
    return {
      question: `${few} choices with the labels ${later}, which the model also knows: are they ` +
        `as easy as ${few} with ${first}?`,
      options: ["As easy", "Harder"],
      right: 1,
      because: "In training, E to H were rare, and stood only behind A to D. " +
        "Over many questions, labels and length each cost something alone.",
    };
  },
  build: buildWhy, update: updateWhy,
};

// How many choices a long and a short list have, and the first labels of a short one and later ones.
function whySizes(app) {
  // The other questions may have fewer choices than the reader's own.
  const most = Math.min(app.state.most, app.world[0].choices.length);
  const few = Math.min(WHY_FEW, most);
  const labels = (first) => `${app.label(first)} to ${app.label(first + few - 1)}`;
  return { most, few, first: labels(0), later: labels(WHY_FEW) };
}

// The ways to ask: a name, how many of the choices, and how the prompt is written.
function whyWays(app) {
  const { most, few, first, later } = whySizes(app);
  const ways = {
    few: [`${few} choices, ${first}`, few, {}],
    labels: [`${few} choices, ${later}`, few, { first: WHY_FEW }],
    length: [`${few} choices, after a text`, few, { filler: app.filler.join("") }],
    many: [`${most} choices`, most, {}],
  };
  if (few === most) delete ways.many;
  return ways;
}

function buildWhy(root, app) {
  whyView.ways = el("div", { class: "steps", role: "group", "aria-label": "Ways to ask" });
  whyView.bars = el("div", { id: "why-bars" });
  whyView.told = el("p", { class: "soft result", id: "why-told", "aria-live": "polite" });
  whyView.alone = el("p");
  whyView.title = el("h3");
  whyView.answer = el("div", { id: "why-answer" });
  whyView.prompt = el("pre", { class: "prompt", tabindex: 0, "aria-label": "The prompt" });
  const wanted = app.world[0].answer === null ? "the model's answer" : "the right choice";
  root.append(
    el("div", { class: "side" },
      el("h2", {}, "Labels, or length?"),
      paragraph("A long list has **labels** that a short one has not, from E on. And it has " +
        "**length**: its choices stand far from the question."), whyView.alone,
      paragraph("Self-Ensemble asks short lists only, with the first labels."),
      whyView.ways, el("h3", {}, "The prompt"), whyView.prompt),
    el("div", { class: "stage" },
      el("h3", {}, app.recorded ? `Probability of ${wanted}, each way`
        : `Right answers of ${ASKED}, each way`), whyView.bars, whyView.told,
      whyView.title, whyView.answer));
}

async function updateWhy(app) {
  const { run, state } = app, ways = whyWays(app), { few, first, later } = whySizes(app);
  const way = Object.hasOwn(ways, state.way) ? state.way : "few";
  const [name, K, options] = ways[way];
  fill(whyView.ways, Object.entries(ways).map(([one, [text]]) =>
    button(text, () => app.set({ way: one }), { "aria-pressed": `${one === way}` })));
  fill(whyView.alone, `Here each comes alone, with ${few} choices: the labels ${later} in place of ${
    first}, or ${app.filler.length} neutral sentences between the question and the list.`);
  const item = state.q === null ? state.own ?? app.asked : app.world[state.q];
  const picked = app.pick(item, Math.min(K, item.choices.length));
  const { probabilities, text } = await askModel(app, picked, options);
  if (run !== app.run) return;
  fill(whyView.prompt, text);
  const cut = way === "many" && K < item.choices.length;
  fill(whyView.title, cut ? `This question, ${K} of its ${item.choices.length} choices`
    : `This question, ${name}`);
  const top = topOf(probabilities);
  bars(whyView.answer, probabilities.map((value, i) => ({ value, name: picked.choices[i],
    label: `(${app.label(i + (options.first ?? 0))})`, top: i === top,
    right: i === picked.answer })));
  whyOthers(app, ways);
}

// The other questions, one after the other while this scene is shown with these ways: a question
// with fewer choices has other ones.
async function whyOthers(app, ways) {
  const asking = JSON.stringify(ways);
  if (whyView.asking === asking) return;
  whyView.asking = asking;
  const isShown = () => app.state.scene === "why" && whyView.asking === asking;
  const right = Object.keys(ways).map(() => 0), all = Math.min(ASKED, app.world.length);
  const draw = (done) => {
    const rows = Object.values(ways).map(([name], i) => ({ name, value: right[i], top: i === 0 }));
    bars(whyView.bars, rows, app.recorded ? { show: percent }
      : { max: ASKED, title: "right answers", show: (value) => `${Math.round(value)}` });
    fill(whyView.told, done < all ? `${done} of ${all} questions so far.` : whyTold(app, ways, all));
  };
  draw(0);
  for (const [number, item] of app.world.slice(0, ASKED).entries()) {
    for (const [i, [, K, options]] of Object.values(ways).entries()) {
      if (!isShown()) break;
      const picked = app.pick(item, Math.min(K, item.choices.length));
      const { probabilities } = await askModel(app, picked, options);
      const top = topOf(probabilities), wanted = picked.answer ?? top;
      right[i] += app.recorded ? probabilities[wanted] : top === wanted ? 1 : 0;
    }
    if (!isShown()) break;
    draw(number + 1);
  }
  if (whyView.asking === asking) whyView.asking = null;
}

// What was run, on how many, and why a change alone may look worse than both together.
function whyTold(app, ways, all) {
  const run = !app.recorded ? `Each way asks the same ${all} built-in questions once. They are ` +
      "few: a difference of 3 or 4 may be chance."
    : `Each way asks this question once${app.world[0].answer === null
      ? ", and may have another answer" : ""}. One question says little.`;
  if (!ways.many) return run;
  const alone = ` A change alone may cost more than all ${ways.many[1]} choices do: `;
  return run + alone + (app.toy
    ? "the model's training had long lists, if rarely, but no list that begins at E, and no text " +
      "before a list."
    : "a list that begins at E, or stands behind a strange text, is unusual; a longer list is not.");
}
