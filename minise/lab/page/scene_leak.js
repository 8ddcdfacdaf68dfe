// Leak: groups of one question in one row. A reader changes a word in group 1, watches group 2's
// answer, and paints the mask until nothing changes; then come the positions.
import { button, chooser, colour, el, equation, fill, layerPlot, maskCanvas, paragraph, percent,
  shownPiece } from "./draw.js";
import { packed, runOn, separate } from "./layout.js";
import { blockMask, cellWords, changeWords, largestChange, paintBlock, readBlocks, readersOfFirst,
  relativeChange, windowKinds, writeBlocks } from "./leak.js";
import { NULL_OPTION, prompts, softmax } from "./method.js";
import { switchOff } from "./recording.js";

const LEAK_GROUPS = 3; // at most in the row
const LEAK_WORD = 40; // characters of a word
const LEAK_CASES = [["none", true], ["groups", true], ["none", false], ["groups", false]];
const leakView = { rows: new Map(), measured: new Map(), queue: Promise.resolve() };

export const leak = {
  id: "leak", title: "Leak", defaults: { word: "", cells: "none" },
  guess: () => ({
    question: "Groups of choices stand in one row. A word in group 1 changes. " +
      "Does the answer of group 2 change?",
    options: ["No, it has a question and choices of its own",
      "Yes, unless something hides the first", "Only if the words are alike"],
    right: 1,
    because: "Group 2 attends to all tokens before it in the row, those of group 1 too.",
  }),
  build: buildLeak,
  async update(app) {
    const run = app.run;
    readLeakState(app);
    showLeak(app);
    const measured = leakView.queue.catch(() => {}).then(() => measureAll(app, run));
    leakView.queue = measured;
    await measured;
  },
};

// --------------------------------------------------------------------------------------- the row

// The groups of the trial that is shown; one group alone is cut in two.
function leakGroups(app) {
  const drawn = app.trials()[app.state.trial - 1];
  if (drawn.length > 1) return drawn.slice(0, LEAK_GROUPS);
  const half = Math.ceil(drawn[0].length / 2);
  return [drawn[0].slice(0, half), drawn[0].slice(half)];
}

// The row in which group 1's first choice is `word`: its layout, the label ids of each group, and
// the names of its choices.
function leakRow(app, groups, word) {
  if (leakView.rows.has(word)) return leakView.rows.get(word);
  const choices = [...app.state.choices, word, NULL_OPTION];
  const listed = groups.map((group, g) => (g ? group : [choices.length - 2, ...group.slice(1)]));
  const { prefix, branches, labels } = prompts(app.tokenizer, app.state.question, choices, listed);
  const layout = packed(prefix, branches);
  layout.texts = layout.ids.map((id) => shownPiece(app.tokenizer, id));
  const names = listed.map((group) => [...group.map((i) => choices[i]), NULL_OPTION]);
  const row = { word, labels, layout, alone: separate(prefix, branches)[1], names };
  leakView.rows.set(word, row);
  return row;
}

const leakText = (word) => String(word).replace(/\s+/g, " ").trim().slice(0, LEAK_WORD);

function readLeakState(app) {
  const { question, choices, trial, m, seed, word, cells, positions } = app.state;
  const key = JSON.stringify([question, choices, trial, m, seed]);
  if (leakView.key !== key) for (const kept of [leakView.measured, leakView.rows]) kept.clear();
  const groups = leakGroups(app), others = otherWords(app, groups);
  const now = leakRow(app, groups, leakText(word) || others[0]);
  const before = leakRow(app, groups, choices[groups[0][0]]);
  const blocks = readBlocks(cells, now.layout);
  Object.assign(leakView, { app, key, others, now, before, blocks, runsOn: positions === "runOn",
    named: writeBlocks(blocks, now.layout), changed: now.word !== before.word,
    window: app.config.sliding_windows.find(Boolean) ?? 0 });
}

// Choices of the question that group 1 has not: the right one first, because it changes most; then
// those that are not in the row.
function otherWords(app, groups) {
  if (app.recorded) return app.recorded.words;
  const { q, choices, answer } = app.state;
  const within = (some, one) => some.flat().some((i) => choices[i] === one);
  const rank = (one) => (one === choices[answer] ? -1 : within(groups, one) ? 1 : 0);
  return (app.world[q]?.choices ?? choices).filter((one) => !within([groups[0]], one))
    .sort((a, b) => rank(a) - rank(b)).slice(0, 3);
}

// --------------------------------------------------------------------------- what the model says

// For one row under one mask the label probabilities of each group, and after each layer the
// stream at group 2's end; of a recorded page, how far that is from a run of its own.
function measureLeak(app, key, { ids, positions, ends }, mask, labels) {
  if (!leakView.measured.has(key)) {
    const D = app.config.hidden_size, end = ends[Math.min(1, ends.length - 1)];
    const answer = app.forward(ids, positions, mask, { rows: ends, hidden: true })
      .then(({ logits, hidden, apart }) => ({
        groups: logits.map((one, g) => softmax(one, labels[g])),
        layers: hidden?.slice(1).map((x) => x.slice(end * D, (end + 1) * D)), apart }));
    if (leakView.measured.size > 400) leakView.measured.clear();
    leakView.measured.set(key, answer);
  }
  return leakView.measured.get(key);
}

function measureRow(app, row, blocks, runsOn) {
  const layout = runsOn ? runOn(row.layout) : row.layout;
  return measureLeak(app, `${row.word}|${runsOn}|${blocks.join("")}`, layout,
    blockMask(blocks, layout), row.labels);
}

// The row with the word and without it, under the same mask. leak: the largest change outside of
// group 1. apart, layers: how far group 2's answer and its end are from a run of its own.
async function measurePair(app, blocks, runsOn) {
  const { now, before, changed } = leakView, single = now.alone;
  const alone = await measureLeak(app, "alone", single, single.mask, [now.labels[1]]);
  const after = await measureRow(app, now, blocks, runsOn);
  const first = changed ? await measureRow(app, before, blocks, runsOn) : after;
  return {
    now: after.groups[1], before: first.groups[1], alone: alone.groups[0],
    leak: changed ? largestChange(after.groups.slice(1), first.groups.slice(1)) : null,
    apart: largestChange([after.groups[1]], alone.groups),
    layers: after.apart
      ?? after.layers.map((found, layer) => relativeChange(alone.layers[layer], found)),
  };
}

async function measureAll(app, run) {
  if (run !== app.run) return; // a newer state waits behind this one
  const { key, blocks, now, runsOn } = leakView;
  const answer = await measurePair(app, blocks, runsOn);
  if (key === leakView.key) showAnswers(answer);
  const found = [];
  for (const [cells, onward] of LEAK_CASES) {
    if (run !== app.run) return;
    found.push(await measurePair(app, readBlocks(cells, now.layout), onward));
  }
  if (run === app.run) showCases(found, answer);
}

// --------------------------------------------------------------------------------- what is shown

function buildLeak(root, app) {
  const view = leakView;
  view.words = el("div", { class: "leak-words" });
  view.typed = el("input", { type: "text", maxlength: LEAK_WORD, "aria-label": "Another word",
    placeholder: "another word",
    onchange: () => app.set({ word: leakText(view.typed.value) || null }) });
  view.prompt = el("p", { class: "leak-prompt" });
  view.picture = maskCanvas({ label: "Attention mask of the row", ruler: true,
    onPaint: app.recorded ? null : paintLeak, words: (t, u) => cellWords(view.shown, t, u,
      view.window) });
  view.masks = [["none", "no mask"], ["groups", "group mask"]].map(([cells, text]) =>
    button(text, () => app.set({ cells })));
  view.places = chooser({ label: "Positions", value: "reset",
    options: [["reset", "positions reset"], ["runOn", "run on"]],
    onchange: (positions) => app.set({ positions }) });
  view.places.querySelector("legend").className = "unseen"; // the first option says it
  view.about = el("p", { class: "soft" });
  view.bars = el("div", { class: "leak-bars" });
  view.meter = el("div", { class: "leak-meter result", role: "meter", "aria-valuemin": 0,
    "aria-label": "Change when the word changes", "aria-valuemax": 1 }, el("i"));
  view.leaks = el("p", { class: "verdict result", "aria-live": "polite" });
  view.why = el("p", { class: "soft result" });
  view.apart = el("p", { class: "soft result", id: "leak-apart" });
  view.one = el("p", { class: "soft result", "aria-live": "polite" });
  view.layers = el("div", { id: "leak-layers" });
  root.append(
    el("div", { class: "side" },
      el("h2", {}, "Does one group read another?"),
      paragraph("Groups of choices stand in one row behind their question. A token **attends** " +
        "to, that is reads, all tokens before it, unless a **mask** hides them. Change group 1's " +
        "first word: does group 2's answer change?"),
      view.words, view.typed, view.prompt,
      el("h3", {}, el("span", { style: { "--c": colour(1) }, class: "of" }, "Group 2"),
        "'s answer, now"), view.bars),
    el("div", { class: "stage leak-stage" },
      el("figure", { class: "leak-mask" },
        el("div", { class: "leak-change" },
          el("h3", {}, "Change of the answer when the word changes"), view.leaks, view.meter),
        el("div", { class: "leak-words" }, view.masks, view.places),
        view.picture.root, view.about),
      leakSwitches(app)));
  if (app.recorded) switchOff(view.typed);
}

function leakSwitches(app) {
  const view = leakView;
  view.cards = LEAK_CASES.map(([cells, runsOn]) => el("button", { type: "button",
    class: "leak-case",
    onclick: () => app.set({ cells, positions: runsOn ? "runOn" : "reset" }) }));
  view.reference = el("div", { class: "leak-case reference" });
  const head = (text) => el("b", { "aria-hidden": "true" }, text);
  const [first, second, third, fourth] = view.cards;
  return el("div", { class: "leak-switches" },
    paragraph(`${app.recorded ? "" : "Press a block of the mask to hide it. "}The numbers below ` +
      "it are **positions**. “Reset” counts group 2 right after the question, as if it were alone."),
    view.why,
    el("h3", {}, "Group 2's distance from a run of its own"),
    el("div", { class: "leak-cases" }, ["", "no mask", "group mask", ""].map(head),
      [head("run on"), first, second, view.reference, head("reset"), third, fourth]),
    view.apart, view.one,
    el("h3", {}, "The same at its last token, after each layer ℓ"),
    equation("d_ℓ = ‖ h_ℓ^packed − h_ℓ^alone ‖ / ‖ h_ℓ^alone ‖"), view.layers);
}

function paintLeak(t, u, allowed) {
  const { app, blocks, now: { layout } } = leakView;
  app.set({ cells: writeBlocks(paintBlock(blocks, layout, t, u, allowed ? 1 : 0), layout) });
}

function showLeak(app) {
  const { now, before, blocks, named, runsOn, changed, picture, window } = leakView;
  const placed = runsOn ? runOn(now.layout) : now.layout, mask = blockMask(blocks, placed);
  leakView.shown = { ...placed, mask };
  const kinds = windowKinds(leakView.shown, window);
  const most = Math.max(320, Math.min(400, innerHeight - 480)); // all of the scene on one screen
  picture.draw({ layout: placed, mask, kinds, most });
  fill(leakView.about, window ? leakWindow(app, kinds, window) : null);
  leakView.masks.forEach((one, i) =>
    one.setAttribute("aria-pressed", `${named === ["none", "groups"][i]}`));
  leakView.places.set(runsOn ? "runOn" : "reset");
  const words = [before.word, ...leakView.others];
  showWords(app, words);
  const typed = changed && !words.includes(now.word);
  if (document.activeElement !== leakView.typed) leakView.typed.value = typed ? now.word : "";
  fill(leakView.prompt, el("span", { class: "soft", dir: "auto" }, app.state.question, el("br")),
    el("b", { style: { "--c": colour(0) }, class: "of" }, "group 1: "),
    now.names[0].map((name, i) => [i ? " " : "", `(${app.label(i)}) `,
      i || !changed ? name : el("mark", {}, name)]));
}

function leakWindow(app, kinds, window) {
  const outside = kinds.includes(4) ? "pale cells are farther back" : "no cell is farther back";
  const where = app.config.sliding_windows.every(Boolean) ? "" : " in some layers";
  return `This model has a window of ${window} positions${where}; ${outside}.`;
}

// The buttons stay while their words do, and with them the keyboard's focus.
function showWords(app, words) {
  if (leakView.offered !== words.join("\n")) {
    leakView.offered = words.join("\n");
    fill(leakView.words, words.map((word) => button(word,
      () => app.set({ word: word === words[1] ? null : word }), { dir: "auto" })));
  }
  words.forEach((word, i) =>
    leakView.words.children[i].setAttribute("aria-pressed", `${word === leakView.now.word}`));
}

function leakBar(app, i, { now, before, alone }) {
  const width = (p) => ({ width: percent(p) });
  return el("div", { class: `bar${now[i] === Math.max(...now) ? " top" : ""}` },
    el("span", { class: "name" }, el("b", {}, app.label(i)), " ",
      el("span", { dir: "auto" }, leakView.now.names[1][i])),
    el("span", { class: "track" }, el("i", { style: width(now[i]) }),
      el("s", { class: "was", style: width(before[i]) }),
      el("s", { class: "alone", style: { left: percent(alone[i]) } })),
    el("span", { class: "value" }, percent(now[i])));
}

function showAnswers(answer) {
  const { app, changed, before, meter } = leakView, leaked = answer.leak ?? 0;
  fill(leakView.bars, answer.now.map((_, i) => leakBar(app, i, answer)),
    el("p", { class: "soft leak-key" }, el("i", { class: "was" }), " before the change  ",
      el("i", { class: "alone" }), " in a run of its own"));
  meter.firstChild.style.width = percent(leaked);
  meter.setAttribute("aria-valuenow", leaked);
  meter.setAttribute("aria-valuetext", changed ? changeWords(leaked) : "not measured");
  fill(leakView.leaks, changed ? changeWords(leaked) : `Choose another word than ${before.word}.`);
  fill(leakView.why, changed ? leakReason(leaked) : null);
  fill(leakView.apart, answer.apart ? `Now: distance ${changeWords(answer.apart)}.`
    : "Now: distance 0. Group 2's answer is that of a run of its own, exactly.");
}

// Why group 2's answer changes, in a sentence.
function leakReason(leaked) {
  const { blocks, now, before } = leakView;
  if (!leaked) return "Nothing leaks.";
  const readers = readersOfFirst(blocks, now.layout), who = readers.join(" and ");
  if (who) return `G${who.slice(1)} ${readers.length > 1 ? "see" : "sees"} group 1.`;
  const longer = now.layout.ids.length - before.layout.ids.length, many = Math.abs(longer);
  return `No group sees group 1, but positions run on, and the word has ${many} ${
    longer < 0 ? "fewer" : "more"} ${many === 1 ? "token" : "tokens"}.`;
}

function showCases(found, answer) {
  const { app, named, runsOn, cards } = leakView;
  LEAK_CASES.forEach(([cells, onward], i) => {
    const { now, alone, apart } = found[i];
    const equal = apart === 0 ? "0, equal" : apart < 1e-6 ? "equal to 1e-6" : null;
    cards[i].classList.toggle("equal", Boolean(equal));
    cards[i].setAttribute("aria-pressed", `${named === cells && runsOn === onward}`);
    fill(cards[i], el("span", { class: "unseen" },
      `${onward ? "run on" : "reset"}, ${cells === "none" ? "no" : "group"} mask`),
    miniBars(now, alone, app), el("span", { class: "result" }, equal ?? changeWords(apart)));
  });
  fill(leakView.reference, miniBars(found[0].alone, null, app),
    el("span", {}, "alone: what it must be"));
  const equal = found.filter(({ apart }) => apart < 1e-6).length;
  const how = found.every(({ apart }) => apart === 0 || apart >= 1e-6) ? "exactly" : "to 1e-6";
  fill(leakView.one, `${equal} of the 4 ${equal === 1 ? "equals" : "equal"} the separate run`,
    `${equal ? `, ${how}` : ""}. `,
    app.recorded ? "Recorded when this page was made." : "Measured just now, in this browser.");
  drawLayers([...found, answer].map(({ layers }) => layers));
}

// Label probabilities as short bars, with a line where a run of its own has them.
function miniBars(answer, alone, app) {
  const top = Math.max(...answer);
  const words = answer.map((p, i) => `${app.label(i)} ${percent(p)}`).join(", ");
  return el("span", { class: "mini", role: "img", "aria-label": words }, answer.map((p, i) =>
    el("span", { class: p === top ? "top" : null }, el("i", { style: { width: percent(p) } }),
      alone ? el("s", { style: { left: percent(alone[i]) } }) : null)));
}

// A line for each of the four ways, on a logarithmic scale; the last one is the state's, in ink.
function drawLayers(ways) {
  const none = -9; // where 0 stands
  if (!leakView.layers.clientWidth) return;
  layerPlot(leakView.layers, ways, { ink: ways.length - 1, name: "layers", height: 128, top: 22,
    place: (d) => (d ? Math.max(Math.log10(d), none + 1) : none), ys: [none, 1],
    yTicks: [[none, "0"], [-6, "10⁻⁶"], [-3, "10⁻³"], [0, "1"]], yTitle: "distance",
    label: `Distance after each layer: ${ways.at(-1).map(changeWords).join(", ")}` });
}
