// The page: its state, its URL (#scene?K=4&...), the tabs, the guess cards, and the start.
import { button, el, fill } from "./draw.js";
import { MOST_CHOICES, MOST_LISTED, prompts, questionId, trials } from "./method.js";
import { keepRecorded, recordedForward, RecordedTokenizer, tellRecorded } from "./recording.js";
import { Tokenizer } from "./tokenizer.js";
import { readCheckpoint, startModel } from "./worker.js";
import { ask } from "./scene_ask.js";
import { why } from "./scene_why.js";
import { split } from "./scene_split.js";
import { pack } from "./scene_pack.js";
import { leak } from "./scene_leak.js";
import { read } from "./scene_read.js";
import { mean } from "./scene_mean.js";
import { own } from "./scene_own.js";

const SCENES = [ask, why, split, pack, leak, read, mean, own];
const DEFAULTS = { q: 2, m: 4, N: 20, seed: 0, trial: 1, mask: "own", positions: "reset" };
const LIMITS = { m: [1, MOST_LISTED], N: [1, 40], seed: [0, 9999] };
const TYPED = ["choice", "choices", "question", "answer", "own", "scene"]; // not plain values
const NEW_ROW = ["q", "K", "m", "seed", "trial", "question"]; // with these, Leak has other words
const LONGEST = { question: 300, choice: 80 };

const frame = { chosen: {}, sections: {}, guessed: {}, tabs: {}, written: 0 };
const $ = (id) => document.getElementById(id);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

const app = {
  state: {},
  run: 0,
  asking: false, // a guess is awaited: what would give it away is not drawn
  label: (i) => String.fromCharCode(65 + i),
  trials: () => {
    const { K, m, N, seed, id } = app.state;
    return trials(K, m, N, seed, id);
  },
  prompts: (groups) => prompts(app.tokenizer, app.state.question, app.state.choices, groups),
  pick: (item, K) => pickChoices(item, K),
  set(changes) {
    const typed = "question" in changes || "choices" in changes;
    if (NEW_ROW.some((key) => key in changes)) delete frame.chosen.word;
    if ("q" in changes) delete frame.chosen.own;
    if (typed) {
      frame.chosen.own = ownQuestion({ answer: null, ...frame.chosen.own, ...changes });
      delete frame.chosen.q;
    }
    for (const [key, value] of Object.entries(changes)) {
      if (TYPED.includes(key) && key !== "scene") continue;
      if (value === null || value === "") delete frame.chosen[key];
      else frame.chosen[key] = value;
    }
    refresh(changes.scene && changes.scene !== app.state.scene);
  },
};

// Of all choices those of the question with K of them: the ranks below K, in their order.
function pickChoices({ id, question, choices, answer, rank }, K) {
  const kept = choices.map((_, i) => i).filter((i) => rank[i] < K);
  const at = kept.indexOf(answer), texts = kept.map((i) => choices[i]);
  return { id: id ?? questionId(question, texts), question, choices: texts,
    answer: at < 0 ? null : at };
}

// A typed question. The right answer, where it is known, stays when choices are taken away.
function ownQuestion({ question, choices, answer }) {
  const texts = choices.map((text) => text.trim().slice(0, LONGEST.choice)).filter(Boolean);
  const known = Number.isInteger(answer) && answer >= 0 && answer < texts.length;
  const kept = texts.slice(0, MOST_CHOICES);
  const right = known && answer < MOST_CHOICES ? answer : null, first = right ?? 0;
  const rank = kept.map((_, i) => (i === first ? 0 : i < first ? i + 1 : i));
  return { question: question.trim().slice(0, LONGEST.question), choices: kept,
    answer: right, rank };
}

// ------------------------------------------------------------------------------------ state, URL

function makeState() {
  const scene = SCENES.find(({ id }) => id === frame.chosen.scene) || ask;
  const state = { ...DEFAULTS, ...app.settings, ...scene.defaults, ...frame.chosen,
    scene: scene.id };
  for (const [key, [low, high]] of Object.entries(LIMITS)) {
    state[key] = clamp(Math.round(Number(state[key])) || 0, low, high);
  }
  state.q = clamp(Math.round(Number(state.q)) || 0, 0, app.world.length - 1);
  const typed = app.recorded ? null
    : frame.chosen.own ?? ("q" in frame.chosen || app.place >= 0 ? null : app.asked);
  const item = typed || app.world[state.q];
  state.q = typed ? null : state.q;
  state.most = item.choices.length;
  if (app.recorded) keepRecorded(state, app.recorded, app.settings);
  state.K = clamp(Math.round(Number(state.K ?? state.most)) || 0, 2, state.most);
  // One group of all choices would be no group.
  const chosen = "m" in frame.chosen || app.recorded;
  if (!chosen && state.m >= state.K) state.m = Math.ceil(state.K / 2);
  state.trial = clamp(Math.round(Number(state.trial)) || 1, 1, state.N);
  app.state = Object.assign(state, pickChoices(item, state.K));
  return scene;
}

function writeUrl(push) {
  const { scene, own: typed, ...rest } = frame.chosen;
  const query = new URLSearchParams(Object.entries(rest).map(([key, value]) => [key, `${value}`]));
  if (typed) {
    query.set("question", typed.question);
    for (const choice of typed.choices) query.append("choice", choice);
    if (typed.answer !== null) query.set("answer", typed.answer);
  }
  const hash = `#${app.state.scene}${query.size ? `?${query}` : ""}`;
  // Not over an address that the reader has just changed, of which the event is still to come.
  if (hash === location.hash || location.hash !== frame.hash) return;
  try {
    history[push ? "pushState" : "replaceState"](null, "", hash);
    frame.hash = location.hash;
  } catch { /* a frame without an address: the page works, its URL does not change */ }
}

function readUrl() {
  frame.hash = location.hash;
  const [scene, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
  const found = new URLSearchParams(query), choices = found.getAll("choice");
  const chosen = { scene };
  for (const [key, value] of found) {
    if (TYPED.includes(key)) continue;
    chosen[key] = value !== "" && Number.isFinite(Number(value)) ? Number(value) : value;
  }
  const answer = found.has("answer") ? Number(found.get("answer")) : null;
  const typed = ownQuestion({ question: found.get("question") || "", choices, answer });
  if (typed.question && typed.choices.length > 1) chosen.own = typed;
  frame.chosen = chosen;
}

// ----------------------------------------------------------------------------------- the frame

// Shows the state: its scene, built when it is first shown, then updated.
async function refresh(push = false) {
  const scene = makeState(), run = (app.run += 1), root = document.documentElement;
  root.dataset.ready = "no";
  // A browser limits how often an address may change; a slider changes more often.
  clearTimeout(frame.written);
  if (push) writeUrl(true);
  else frame.written = setTimeout(writeUrl, 200, false);
  showFrame(scene);
  try {
    if (!frame.sections[scene.id].built) {
      frame.sections[scene.id].built = true;
      scene.build(frame.sections[scene.id].root, app);
    }
    await scene.update(app);
    if (run === app.run) $("fault").hidden = true;
  } catch (error) {
    console.error(error);
    $("fault").hidden = false;
    fill($("fault"), `This scene stopped: ${error.message}`);
  }
  if (run === app.run) root.dataset.ready = "yes";
}

function showFrame(scene) {
  const at = SCENES.indexOf(scene);
  for (const { id } of SCENES) {
    const shown = id === scene.id;
    frame.sections[id].root.hidden = !shown;
    frame.tabs[id].setAttribute("aria-selected", `${shown}`);
    frame.tabs[id].tabIndex = shown ? 0 : -1;
  }
  for (const [id, other] of [["before", SCENES[at - 1]], ["after", SCENES[at + 1]]]) {
    $(id).style.visibility = other ? "visible" : "hidden";
    if (other) fill($(id).querySelector("span"), other.title);
  }
  const tab = frame.tabs[scene.id], { scrollLeft: left, clientWidth: wide } = $("tabs");
  if (tab.offsetLeft < left || tab.offsetLeft + tab.offsetWidth > left + wide) {
    $("tabs").scrollLeft = tab.offsetLeft - wide / 3;
  }
  document.title = `${scene.title} - Self-Ensemble`;
  showGuess(scene);
}

// The guess card. Until there is a guess, a scene shows its prompt and its axes, but no result. A
// scene has none where its answer would not hold.
function showGuess({ id, guess: guessOf }) {
  const guess = guessOf?.(app), host = $("guess"), said = frame.guessed[id];
  host.hidden = !guess;
  const open = app.asking = !host.hidden && said === undefined;
  host.classList.toggle("open", open);
  frame.sections[id].root.classList.toggle("asking", open);
  const shown = JSON.stringify([id, said, guess]);
  if (host.hidden || host.dataset.shown === shown) return;
  host.dataset.shown = shown;
  const choose = (i) => () => {
    frame.guessed[id] = i;
    refresh();
    host.querySelector("p").focus();
  };
  if (open) {
    fill(host, el("p", {}, el("span", { class: "soft" }, "Guess first: "),
      el("b", {}, guess.question)),
    el("div", { class: "options" }, guess.options.map((text, i) => button(text, choose(i))),
      button("Skip", choose(-1), { class: "skip" })));
    return;
  }
  const told = said === guess.right ? "Right: " : said < 0 ? "The answer is: "
    : "Not quite. The answer is: ";
  fill(host, el("p", { tabindex: -1, role: "status" },
    el("b", {}, told, `${guess.options[guess.right]}. `), guess.because));
}

function makeTabs() {
  for (const [i, { id, title }] of SCENES.entries()) {
    frame.tabs[id] = el("button", { type: "button", role: "tab", id: `tab-${id}`,
      "aria-controls": `scene-${id}`, onclick: () => app.set({ scene: id }) }, `${i + 1} ${title}`);
    const root = el("section", { class: "scene", role: "tabpanel", id: `scene-${id}`,
      "aria-labelledby": `tab-${id}`, hidden: true });
    frame.sections[id] = { root, built: false };
    $("tabs").append(frame.tabs[id]);
    $("scenes").append(root);
  }
  for (const [id, by] of [["before", -1], ["after", 1]]) {
    $(id).addEventListener("click", () => step(by));
  }
  document.addEventListener("keydown", (event) => {
    const inTabs = $("tabs").contains(event.target);
    if (!(inTabs || event.target === document.body) || event.altKey || event.ctrlKey) return;
    const all = SCENES.length;
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -all, End: all }[event.key];
    if (!by || event.metaKey) return;
    event.preventDefault();
    step(by);
    if (inTabs) frame.tabs[app.state.scene].focus();
  });
}

function step(by) {
  const at = SCENES.findIndex(({ id }) => id === app.state.scene);
  const { id } = SCENES[clamp(at + by, 0, SCENES.length - 1)];
  if (id !== app.state.scene) app.set({ scene: id });
}

function start() {
  const checkpoint = readCheckpoint($("checkpoint").textContent);
  app.name = checkpoint.name;
  app.config = checkpoint.config;
  app.world = checkpoint.world;
  app.settings = checkpoint.settings ?? {};
  app.filler = checkpoint.filler;
  app.model = checkpoint.model;
  app.toy = app.model.facts !== null;
  app.asked = checkpoint.asked ?? null;
  app.place = app.world.findIndex(({ question, choices }) => question === app.asked?.question &&
    choices.join("\n") === app.asked.choices.join("\n"));
  if (app.place >= 0) DEFAULTS.q = app.place;
  app.recorded = checkpoint.recording ?? null;
  if (app.recorded) {
    app.tokenizer = new RecordedTokenizer(checkpoint.tokenizer);
    app.forward = recordedForward(app.recorded.answers);
    tellRecorded(app.recorded.why, app.settings, app.name, $("about"), $("where"));
  } else {
    app.tokenizer = new Tokenizer(checkpoint.tokenizer, app.config.max_position_embeddings);
    app.forward = startModel(checkpoint).forward;
    fill($("model"), app.name);
  }
  makeTabs();
  readUrl();
  addEventListener("popstate", () => {
    readUrl();
    refresh();
  });
  let width = innerWidth, waiting = 0;
  addEventListener("resize", () => {
    if (width === innerWidth) return; // a phone's address bar comes and goes
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(refresh, 100);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => refresh());
  refresh();
}

start();
