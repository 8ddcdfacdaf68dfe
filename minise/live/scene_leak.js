// Leak: groups of one question in one row. A reader changes a word in group 1, watches group 2's
// answer, and paints the mask until nothing changes; then come the positions.

import { button, chooser, colour, el, fill, maskCanvas, percent } from "./draw.js";
import { dense, noMask, runOn, separate } from "./layout.js";
import {
  carryMask,
  cellWords,
  changeWords,
  largestChange,
  matchTokens,
  paintCells,
  readCells,
  wholeBlocks,
  windowKinds,
  writeCells,
} from "./leak.js";
import { NULL_OPTION, prompts, softmax } from "./method.js";
import { switchOff } from "./recording.js";

const LEAK_GROUPS = 3; // at most in the row
const LEAK_WORD = 40; // characters of a word
const leakView = {
  rows: new Map(),
  measured: new Map(),
  queue: Promise.resolve(),
  brush: "block",
};

// The row

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
  const layout = dense(prefix, branches);
  const T = layout.ids.length;
  const row = {
    word,
    labels,
    layout,
    alone: separate(prefix, branches),
    names: listed.map((group) => [...group.map((i) => choices[i]), NULL_OPTION]),
    cells: new Map([
      [writeCells(noMask(layout).mask, T), "none"],
      [writeCells(layout.mask, T), "groups"],
    ]),
  };
  leakView.rows.set(word, row);
  return row;
}

function leakMask(cells, { layout }) {
  if (cells === "groups") return layout.mask;
  return readCells(cells, layout.ids.length) ?? noMask(layout).mask;
}

// The shortest text for a mask.
function leakCells(mask, row) {
  const text = writeCells(mask, row.layout.ids.length);
  return row.cells.get(text) ?? text;
}

function readLeakState(app) {
  const groups = leakGroups(app);
  const first = app.state.choices[groups[0][0]];
  const others = otherWords(app, groups);
  const now = leakRow(app, groups, leakText(app.state.word ?? "") || others[0]);
  const before = leakRow(app, groups, first);
  const mask = leakMask(app.state.cells, now);
  Object.assign(leakView, {
    groups,
    others,
    now,
    before,
    mask,
    changed: now.word !== before.word,
    runsOn: app.state.positions === "runOn",
    windows: app.config.sliding_windows,
    window: app.config.sliding_windows.find(Boolean) ?? 0,
  });
}

const leakText = (word) => String(word).replace(/\s+/g, " ").trim().slice(0, LEAK_WORD);

// Another word, under the same mask: what is painted stays on the tokens on which it is.
function chooseWord(app, word) {
  const { now, mask, groups, others } = leakView;
  const next = leakRow(app, groups, leakText(word) || others[0]);
  const carried = carryMask(mask, matchTokens(next.layout.ids, now.layout.ids));
  app.set({ word: leakText(word) || null, cells: leakCells(carried, next) });
}

// A word and a painted mask belong to one row. With another row they go, unless they came with it;
// the two masks with a name stay.
function forgetWord(app) {
  const { question, choices, trial, m, seed, K, word, cells } = app.state;
  const key = JSON.stringify([question, choices, trial, m, seed, K]);
  const mine = `${word} ${cells}`;
  const stale = leakView.key !== undefined && leakView.key !== key && leakView.mine === mine;
  if (leakView.key !== key) {
    leakView.measured.clear();
    leakView.rows.clear();
  }
  Object.assign(leakView, { key, mine });
  const named = ["none", "groups"].includes(cells);
  if (!stale || (word === "" && named)) return false;
  app.set({ word: null, cells: named ? cells : null });
  return true;
}

// What the model says

// The label probabilities of each group, for one row under one mask.
function measureLeak(app, row, mask, runsOn) {
  const { layout, labels } = row;
  const key = `${row.word}|${runsOn}|${leakCells(mask, row)}`;
  if (!leakView.measured.has(key)) {
    const { positions } = runsOn ? runOn(layout) : layout;
    const answer = app
      .forward(layout.ids, positions, mask, { rows: layout.ends })
      .then(({ logits }) => logits.map((one, g) => softmax(one, labels[g])));
    leakView.measured.set(key, answer);
    if (leakView.measured.size > 400) leakView.measured.clear();
  }
  return leakView.measured.get(key);
}

async function measureAlone(app, { alone, labels }, g) {
  const key = `alone ${g}`;
  if (!leakView.measured.has(key)) {
    const { ids, positions, mask, ends } = alone[g];
    const { logits } = await app.forward(ids, positions, mask, { rows: ends });
    leakView.measured.set(key, softmax(logits[0], labels[g]));
  }
  return leakView.measured.get(key);
}

// The mask of the row before the change: that of the same name, or what is painted.
function maskBefore(mask) {
  const { now, before } = leakView;
  const cells = leakCells(mask, now);
  if (cells === "none" || cells === "groups") return leakMask(cells, before);
  return carryMask(mask, matchTokens(before.layout.ids, now.layout.ids));
}

// The row with the word and without it, under the same mask: {now, before, leak, apart}.
async function measurePair(app, mask, runsOn) {
  const { now, before, changed } = leakView;
  const back = changed ? maskBefore(mask) : mask;
  const alone = await measureAlone(app, now, 1);
  const after = await measureLeak(app, now, mask, runsOn);
  const first = changed ? await measureLeak(app, before, back, runsOn) : after;
  return {
    now: after[1],
    before: first[1],
    alone,
    leak: changed ? largestChange(after.slice(1), first.slice(1)) : null,
    apart: largestChange([after[1]], [alone]),
  };
}

const LEAK_CASES = [
  { cells: "none", runsOn: true },
  { cells: "groups", runsOn: true },
  { cells: "none", runsOn: false },
  { cells: "groups", runsOn: false },
];

async function measureAll(app, run) {
  if (run !== app.run) return; // a newer state waits behind this one
  const { key, mask, now, runsOn } = leakView;
  const answer = await measurePair(app, mask, runsOn);
  if (key === leakView.key) showAnswers(answer);
  const found = [];
  for (const { cells, runsOn: onward } of LEAK_CASES) {
    if (run !== app.run) return;
    found.push(await measurePair(app, leakMask(cells, now), onward));
  }
  if (run === app.run) showCases(found);
}

// What is shown

function buildLeak(root, app) {
  const view = leakView;
  view.words = el("div", { class: "leak-words" });
  view.typed = el("input", {
    type: "text",
    maxlength: LEAK_WORD,
    "aria-label": "Another word",
    placeholder: "another word",
    onchange: () => chooseWord(app, view.typed.value),
  });
  view.prompt = el("p", { class: "leak-prompt" });
  view.picture = maskCanvas({
    onPaint: app.recorded ? null : (...press) => paintLeak(app, ...press),
    words: (t, u) => cellWords(view.shown, t, u, view.window),
    ruler: true,
    label: "Attention mask of the row",
  });
  view.about = el("p", { class: "soft" });
  view.bars = el("div", { class: "leak-bars" });
  view.meter = el(
    "div",
    {
      class: "leak-meter",
      role: "meter",
      "aria-label": "Change when the word changes",
      "aria-valuemin": 0,
      "aria-valuemax": 1,
    },
    el("i")
  );
  view.leaks = el("p", { class: "verdict", "aria-live": "polite" });
  view.why = el("p", { class: "soft" });
  view.apart = el("p", { class: "soft", id: "leak-apart" });
  view.cases = buildCases(app);
  view.one = el("p", { class: "soft", "aria-live": "polite" });
  root.append(
    leakSide(),
    el(
      "div",
      { class: "stage leak-stage" },
      el(
        "figure",
        { class: "leak-mask" },
        view.picture.root,
        view.about,
        app.recorded ? null : leakBrush()
      ),
      leakSwitches(app)
    )
  );
  if (app.recorded) switchOff(view.typed);
}

function leakSide() {
  const view = leakView;
  return el(
    "div",
    { class: "side" },
    el("h2", {}, "Who sees whom?"),
    el(
      "p",
      {},
      "Groups of choices stand in one row behind their question. A token ",
      el("b", {}, "attends"),
      " to, that is reads, all tokens before it, unless a ",
      el("b", {}, "mask"),
      " hides them. Change group 1's first word: does group 2's answer change?"
    ),
    view.words,
    view.typed,
    view.prompt,
    el("h3", {}, el("span", { style: { color: colour(1) } }, "Group 2"), "'s answer, now"),
    view.bars,
    el("h3", {}, "Change when the word changes"),
    view.meter,
    view.leaks,
    view.why
  );
}

function leakBrush() {
  return chooser({
    label: "A press on the mask changes",
    options: [
      ["block", "a block"],
      ["cell", "a cell"],
    ],
    value: leakView.brush,
    onchange: (brush) => (leakView.brush = brush),
  });
}

function leakSwitches(app) {
  const view = leakView;
  view.masks = ["none", "groups"].map((cells) =>
    button(cells === "none" ? "no mask" : "group mask", () => app.set({ cells }))
  );
  view.places = chooser({
    label: "Positions",
    options: [
      ["reset", "reset after the question"],
      ["runOn", "run on"],
    ],
    value: "reset",
    onchange: (positions) => app.set({ positions }),
  });
  view.places.querySelector("legend").className = "unseen"; // the heading says it
  return el(
    "div",
    { class: "leak-switches" },
    el("h3", {}, "Hide group 1 from group 2"),
    app.recorded
      ? el("p", {}, "Two masks are recorded.")
      : el("p", {}, "Press on the mask or drag over it; arrow keys and Space work too."),
    el("div", { class: "leak-words" }, view.masks),
    el("h3", {}, "Then choose the positions"),
    el(
      "p",
      {},
      "A position tells the model where a token stands; the numbers below the mask are the ",
      "positions. In a run of its own, group 2 comes right after the question. “Reset” counts ",
      "as there. “Run on” counts on from the end of group 1."
    ),
    el("div", { class: "controls" }, view.places),
    el("h3", {}, "Distance from a run of its own, four ways"),
    view.cases,
    view.apart,
    view.one
  );
}

function paintLeak(app, t, u, allowed, from) {
  const { now, brush } = leakView;
  const { ids, segments } = now.layout;
  if (leakView.from !== from) Object.assign(leakView, { from, unpainted: leakView.mask });
  const corners = brush === "block" ? wholeBlocks(segments, from, [t, u]) : [from, [t, u]];
  const mask = paintCells(leakView.unpainted, ids.length, ...corners, allowed ? 1 : 0);
  app.set({ cells: leakCells(mask, now) });
}

function showLeak(app) {
  const { now, before, mask, runsOn, changed, picture, window } = leakView;
  const placed = runsOn ? runOn(now.layout) : now.layout;
  leakView.shown = { ...placed, mask };
  const kinds = windowKinds(leakView.shown, window);
  picture.draw({ layout: placed, mask, kinds });
  fill(leakView.about, window ? leakWindow(kinds, window) : null);
  const pressed = leakCells(mask, now);
  leakView.masks.forEach((one, i) =>
    one.setAttribute("aria-pressed", String(pressed === ["none", "groups"][i]))
  );
  leakView.places.set(runsOn ? "runOn" : "reset");
  const words = [before.word, ...leakView.others];
  showWords(app, words);
  const typed = changed && !words.includes(now.word);
  if (document.activeElement !== leakView.typed) leakView.typed.value = typed ? now.word : "";
  fill(
    leakView.prompt,
    el("span", { class: "soft", dir: "auto" }, app.state.question, el("br")),
    el("b", { style: { color: colour(0) } }, "group 1: "),
    now.names[0].map((name, i) => [
      i ? " " : "",
      `(${app.label(i)}) `,
      i || !changed ? name : el("mark", {}, name),
    ])
  );
}

function leakWindow(kinds, window) {
  const outside = kinds.includes(4) ? "pale cells are farther back" : "no cell is farther back";
  const where = leakView.windows.every(Boolean) ? "" : " in some layers";
  return `This model has a window of ${window} positions${where}; ${outside}.`;
}

// Choices of the question that group 1 has not: the right one first, because it changes most; then
// those that are not in the row.
function otherWords(app, groups) {
  const { q, choices, answer } = app.state;
  const within = (some, one) => some.flat().some((i) => choices[i] === one);
  const rank = (one) => (one === choices[answer] ? -1 : within(groups, one) ? 1 : 0);
  if (app.recorded) return app.recorded.words;
  return (app.world[q]?.choices ?? choices)
    .filter((one) => !within([groups[0]], one))
    .sort((a, b) => rank(a) - rank(b))
    .slice(0, 3);
}

// The buttons stay while their words do, and with them the keyboard's focus.
function showWords(app, words) {
  if (leakView.offered !== words.join("\n")) {
    leakView.offered = words.join("\n");
    const choose = (word) => () => chooseWord(app, word === words[1] ? "" : word);
    fill(
      leakView.words,
      words.map((word) => button(word, choose(word), { dir: "auto" }))
    );
  }
  words.forEach((word, i) =>
    leakView.words.children[i].setAttribute("aria-pressed", String(word === leakView.now.word))
  );
}

function leakBar(app, g, i, { now, before, alone }) {
  const width = (p) => ({ width: percent(p) });
  const top = now[i] === Math.max(...now);
  return el(
    "div",
    { class: `bar${top ? " top" : ""}` },
    el(
      "span",
      { class: "name" },
      el("b", {}, app.label(i)),
      " ",
      el("span", { dir: "auto" }, leakView.now.names[g][i])
    ),
    el(
      "span",
      { class: "track" },
      el("i", { style: width(now[i]) }),
      el("s", { class: "was", style: width(before[i]) }),
      el("s", { class: "alone", style: { left: percent(alone[i]) } })
    ),
    el("span", { class: "value" }, percent(now[i]))
  );
}

function showAnswers(answer) {
  const { app, changed, before, now } = leakView;
  fill(
    leakView.bars,
    answer.now.map((_, i) => leakBar(app, 1, i, answer)),
    el(
      "p",
      { class: "soft leak-key" },
      el("i", { class: "was" }),
      " before the change  ",
      el("i", { class: "alone" }),
      " in a run of its own"
    )
  );
  const leak = answer.leak ?? 0;
  leakView.meter.firstChild.style.width = percent(leak);
  leakView.meter.setAttribute("aria-valuenow", leak);
  leakView.meter.setAttribute("aria-valuetext", changed ? changeWords(leak) : "not measured");
  fill(leakView.leaks, changed ? changeWords(leak) : `Choose another word than ${before.word}.`);
  const said = changed
    ? `From “${before.word}” to “${now.word}”: the largest change of any label's probability ` +
      "outside of group 1. "
    : "The largest change of any label's probability outside of group 1 will stand here.";
  fill(leakView.why, said, changed ? leakReason(answer) : null);
  fill(leakView.apart, leakDistance(answer.apart));
}

// Why group 2's answer changes, in a sentence.
function leakReason({ leak }) {
  const { mask, now, before } = leakView;
  const { segments } = now.layout;
  const T = segments.length;
  const sees = (by, of) =>
    segments.some(
      (one, t) => one === by && segments.some((other, u) => other === of && mask[t * T + u])
    );
  const longer = now.layout.ids.length - before.layout.ids.length;
  if (!leak) return "Nothing leaks.";
  const readers = now.labels.flatMap((_, g) => (g && sees(g, 0) ? [`group ${g + 1}`] : []));
  const who = readers.join(" and ");
  if (who) return `G${who.slice(1)} ${readers.length > 1 ? "see" : "sees"} group 1.`;
  const count = `${Math.abs(longer)} ${longer < 0 ? "fewer" : "more"} token`;
  const more = Math.abs(longer) === 1 ? count : `${count}s`;
  return `No group sees group 1, but positions run on, and the word has ${more}.`;
}

// How far group 2's answer is from the right one, and why, in a sentence.
function leakDistance(apart) {
  const { mask, now, runsOn } = leakView;
  if (apart === 0) return "Now: distance 0. Group 2's answer is that of a run of its own, exactly.";
  const said = `Now: distance ${changeWords(apart)}. `;
  const hidden = leakCells(mask, now);
  if (hidden === "none") {
    return `${said}Without a mask, “run on” can come nearer than “reset”: the row is then a long ` +
      "text like any other, while with “reset” group 2 reads two groups at the same positions.";
  }
  const right = hidden === "groups" && runsOn;
  return `${said}Group 2 ${
    right ? "reads the right tokens at wrong positions" : "does not read just what it would alone"
  }.`;
}

const LEAK_NAMES = LEAK_CASES.map(
  ({ cells, runsOn }) => `${runsOn ? "run on" : "reset"}, ${cells === "none" ? "no" : "group"} mask`
);

// The table of four buttons, and the separate run beside it.
function buildCases(app) {
  leakView.cards = LEAK_CASES.map(({ cells, runsOn }) =>
    el("button", {
      type: "button",
      class: "leak-case",
      onclick: () => app.set({ cells, positions: runsOn ? "runOn" : "reset" }),
    })
  );
  leakView.reference = el("div", { class: "leak-case reference" });
  const head = (text) => el("b", { "aria-hidden": "true" }, text);
  const [first, second, third, fourth] = leakView.cards;
  return el(
    "div",
    { class: "leak-cases" },
    ["", "no mask", "group mask", ""].map(head),
    [head("run on"), first, second, leakView.reference, head("reset"), third, fourth]
  );
}

function showCases(found) {
  const { app, mask, now, runsOn, cards } = leakView;
  const here = leakCells(mask, now);
  LEAK_CASES.forEach(({ cells, runsOn: onward }, i) => {
    const { now: answer, alone, apart } = found[i];
    const equal = apart === 0 ? "0, equal" : apart < 1e-6 ? "equal to 1e-6" : null;
    cards[i].classList.toggle("equal", Boolean(equal));
    cards[i].setAttribute("aria-pressed", String(here === cells && runsOn === onward));
    fill(
      cards[i],
      el("span", { class: "unseen" }, LEAK_NAMES[i]),
      miniBars(answer, alone, app),
      el("span", {}, equal ?? changeWords(apart))
    );
  });
  const { alone } = found[0];
  const wanted = el("span", {}, "alone: what it must be");
  fill(leakView.reference, miniBars(alone, null, app), wanted);
  const equal = found.filter(({ apart }) => apart < 1e-6).length;
  const how = found.every(({ apart }) => apart === 0 || apart >= 1e-6) ? "exactly" : "to 1e-6";
  fill(
    leakView.one,
    `${equal} of the 4 ${equal === 1 ? "equals" : "equal"} the separate run`,
    `${equal ? `, ${how}` : ""}. `,
    app.recorded ? "Recorded when this page was made." : "Measured just now, in this browser."
  );
}

// Label probabilities as short bars, with a line where a run of its own has them.
function miniBars(answer, alone, app) {
  const top = Math.max(...answer);
  const words = answer.map((p, i) => `${app.label(i)} ${percent(p)}`).join(", ");
  return el(
    "span",
    { class: "mini", role: "img", "aria-label": words },
    answer.map((p, i) =>
      el(
        "span",
        { class: p === top ? "top" : null },
        el("i", { style: { width: percent(p) } }),
        alone ? el("s", { style: { left: percent(alone[i]) } }) : null
      )
    )
  );
}

export const leak = {
  id: "leak",
  title: "Leak",
  defaults: { word: "", cells: "none" }, // no word: the one that changes most
  guess: {
    question:
      "Two prompts stand one after the other in one row. A word of the first one changes. " +
      "Does the second one's answer change?",
    options: [
      "No, it has a question and choices of its own",
      "Yes, unless something hides the first",
      "Only if the words are alike",
    ],
    right: 1,
    because:
      "A token attends to all tokens before it in the row, whatever prompt they belong to. " +
      "Only a mask hides them.",
  },
  build(root, app) {
    leakView.app = app;
    buildLeak(root, app);
  },
  async update(app) {
    const run = app.run;
    if (forgetWord(app)) return;
    readLeakState(app);
    showLeak(app);
    // One at a time, and only the newest: a drag changes the mask faster than the model answers.
    const measured = leakView.queue.catch(() => {}).then(() => measureAll(app, run));
    leakView.queue = measured;
    await measured;
  },
};
