// Your own mask: who sees whom in a row that packing code gives a model, whether it is equal to
// separate runs, and what leaks when the model of this page runs it.
import { attendWords, judgeRow, readRow, RowError, tokenWords } from "./check.js";
import { button, el, fill, maskCanvas, paragraph } from "./draw.js";
import { ancestors } from "./layout.js";
import { changeWords, largestChange } from "./leak.js";
import { softmax } from "./method.js";

const OWN_RUN = 96; // tokens of a row that is run
const OWN_PARTS = 8; // parts that are changed, one at a time
const OWN_URL = 3000; // characters that still go into the address
const THREE = "documents: 4 4 4\n";
const RESET = "position_ids: 0 1 2 3 0 1 2 3 0 1 2 3";
const ALONG = "position_ids: 0 1 2 3 4 5 6 7 8 9 10 11";
const OWN_EXAMPLES = [
  ["no mask", `${THREE}${RESET}`],
  ["no mask, positions run on", `${THREE}${ALONG}`],
  ["mask, but positions run on", `${THREE}segment_ids: 1 1 1 1 2 2 2 2 3 3 3 3\n${ALONG}`],
  ["borders off by one", `${THREE}segment_ids: 1 1 1 2 2 2 2 3 3 3 3 3\n${RESET}`],
  ["padding is seen", "documents: 6\npadding: left\nattention_mask: 1 1 1 1 1 1 1 1\n" +
    "position_ids: 0 0 0 1 2 3 4 5"],
  ["right: documents", `${THREE}cu_seqlens: 0 4 8 12\n${RESET}`],
  ["right: a trunk with two branches", "trunk: 2\nbranches: 2 2\n" +
    "position_ids: 0 1 2 3 2 3\nattention_mask:\n1 0 0 0 0 0\n1 1 0 0 0 0\n1 1 1 0 0 0\n" +
    "1 1 1 1 0 0\n1 1 0 0 1 0\n1 1 0 0 1 1"],
];
const ownView = { queue: Promise.resolve(), pasted: "", waiting: 0 };

export const own = {
  id: "own", title: "Your own mask", defaults: { row: "" },
  build: buildOwn,
  async update(app) {
    const run = app.run, view = ownView;
    const text = String(app.state.row || view.pasted || OWN_EXAMPLES[0][1]);
    if (document.activeElement !== view.text || view.pasted !== text) view.text.value = text;
    view.examples.forEach((one, i) =>
      one.setAttribute("aria-pressed", `${OWN_EXAMPLES[i][1] === text}`));
    const { row, fault: unread } = readOwn(text);
    fill(view.fault, unread ?? "");
    view.result.hidden = Boolean(unread);
    if (unread) return;
    showOwn(row);
    const fault = ownRunFault(row, app.recorded);
    fill(view.leaks, el("li", {}, fault ?? "Running ..."));
    fill(view.about, "");
    if (fault) return;
    const stopped = () => run !== app.run;
    view.queue = view.queue.catch(() => {})
      .then(() => (stopped() ? null : runOwn(app, row, stopped)));
    const found = await view.queue;
    if (found && !stopped()) showLeaks(row, found);
  },
};

// ---------------------------------------------------------------------------------------- reading

// The row of a text: {row}, or {fault: one line}.
function readOwn(text) {
  try {
    return { row: readRow(text) };
  } catch (error) {
    if (!(error instanceof RowError)) throw error;
    return { fault: error.message };
  }
}

function setOwn(app, text) {
  ownView.pasted = text;
  app.set({ row: text.length <= OWN_URL ? text : null });
}

// --------------------------------------------------------------------------------- what is shown

function buildOwn(root, app) {
  const view = ownView;
  view.text = el("textarea", { rows: 10, spellcheck: "false", class: "own-text",
    "aria-label": "The row, as text", "aria-describedby": "own-fault", oninput: () => {
      clearTimeout(view.waiting);
      view.waiting = setTimeout(() => setOwn(app, view.text.value), 250);
    } });
  view.examples = OWN_EXAMPLES.map(([name, text]) => button(name, () => setOwn(app, text)));
  view.fault = el("p", { id: "own-fault", class: "verdict", role: "alert" });
  view.picture = maskCanvas({ words: ownCell, name: ownName, ruler: true,
    label: "Mask of the row" });
  view.verdict = el("p", { class: "verdict", "aria-live": "polite" });
  view.findings = el("div");
  view.leaks = el("ul", { class: "own-list", "aria-live": "polite" });
  view.about = el("p", { class: "soft" });
  const key = [["1", "right"], ["2", "leaks"], ["3", "missing"], ["0", "hidden"]];
  view.result = el("div", { class: "stage own-stage" },
    el("figure", {}, view.picture.root, el("p", { class: "own-key" },
      key.map(([kind, word]) => el("span", {}, el("i", { class: `kind-${kind}` }), word)))),
    el("div", {}, view.verdict, view.findings,
      el("h3", {}, "What leaks when it runs"), view.leaks, view.about));
  root.append(
    el("div", { class: "side" },
      el("h2", {}, "Bring your own mask ", el("span", { class: "tag" }, "for developers")),
      paragraph("Programs that train a model also write several texts into one row. Then each " +
        "text should be read as if it were alone. This page says whether it is, and if not, " +
        "where it goes wrong first."),
      paragraph("Paste what your packing code gives a model: `position_ids`, and " +
        "`attention_mask` (2-D or 4-D), `segment_ids` or `cu_seqlens`. Say what was meant by " +
        "`documents`, or `trunk` and `branches`, as numbers of tokens. JSON works too."),
      view.text, view.fault,
      el("h3", {}, "Examples"), el("div", { class: "own-examples" }, view.examples),
      paragraph("For a mistake's name and how to mend it, for labels and for other fields: run " +
        "`minise check FILE`. Nothing that you paste leaves this page.", { class: "soft" })),
    view.result);
}

const ownPart = (segment) => (segment < 0 ? -1 - segment : segment);

// A part's name, or the end of it where there is little room.
function ownName(segment) {
  const { names, parts, T } = ownView.row, part = ownPart(segment);
  const room = parts.filter((one) => one === part).length / T;
  return room > 0.19 ? names[part] : room < 0.04 ? "" : names[part].split(" ").at(-1).slice(0, 7);
}

// The row as draw.js draws it. A trunk and padding are grey.
function ownLayout({ parts, names, positions, mask }) {
  const grey = (part) => names[part] === "the trunk" || names[part] === "padding";
  const segments = parts.map((part) => (grey(part) ? -1 - part : part));
  return { ids: parts, segments, positions, mask };
}

function ownCell(t, u) {
  const { row } = ownView, cell = t * row.T + u, words = attendWords(row, t, u);
  if (!row.real[t] || row.mask[cell] === row.right[cell]) return words;
  return `${words}: it ${row.mask[cell] ? "leaks" : "is missing"}`;
}

function showOwn(row) {
  const { T, mask, right, real } = row;
  ownView.row = row;
  const kinds = mask.map((shown, i) => {
    if (shown === right[i] || !real[Math.floor(i / T)]) return shown;
    return shown ? 2 : 3;
  });
  ownView.picture.draw({ layout: ownLayout(row), kinds,
    most: Math.max(240, Math.min(26 * T, 480)) });
  const findings = judgeRow(row);
  const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
  const equal = findings.length ? "NOT equal" : "equal";
  const but = findings.length ? "and" : "but for";
  const rest = row.unjudged ? `, ${but} ${count(row.unjudged, "token")} not judged` : "";
  fill(ownView.verdict, `${count(T, "token")}, ${count(row.ends.length, "separate prompt")}: ${
    equal} to the separate runs${rest}`);
  fill(ownView.findings, findings.map(({ what, words, wrong, of }) =>
    el("div", { class: "own-finding" },
      el("p", {}, el("b", {}, `${what}: `), words),
      el("p", { class: "soft" }, `wrong: ${wrong} of ${of}`))));
}

// ------------------------------------------------------------------------------------ what leaks

// The tokens of a built-in text, and others for a part that is changed.
function ownTokens(app, T) {
  const ids = [];
  for (let i = 0; ids.length < 2 * T; i++) {
    const { question, choices } = app.world[i % app.world.length];
    ids.push(...app.tokenizer.encode(`${question} ${choices.join(", ")}. `));
  }
  const rest = ids.slice(T);
  const other = (t) => rest.find((id, i) => i >= t && id !== ids[t]) ?? (ids[t] ? 0 : 1);
  return { ids: ids.slice(0, T), others: Array.from({ length: T }, (_, t) => other(t)) };
}

// The probabilities of the next token at each row.
async function nextTokens(app, ids, positions, mask) {
  const { logits } = await app.forward(ids, positions, mask, {});
  const all = Array.from({ length: logits[0].length }, (_, id) => id);
  return logits.map((one) => softmax(one, all));
}

// The row under its own mask, with one part after the other changed: for each part how much each
// other one changes, and how far each is from a run of its own.
async function runOwn(app, p, stopped) {
  const { ids, others } = ownTokens(app, p.T);
  const mask = p.mask.slice();
  p.real.forEach((one, t) => {
    if (!one) mask[t * p.T + t] = 1;
  });
  const pick = (rows, values) => rows.map((t) => values[t]);
  const first = await nextTokens(app, ids, p.positions, mask);
  const changes = [];
  const parts = [...new Set(p.parts)];
  for (const part of parts.slice(0, OWN_PARTS)) {
    if (stopped()) break;
    const changed = ids.map((id, t) => (p.parts[t] === part ? others[t] : id));
    const after = await nextTokens(app, changed, p.positions, mask);
    const rest = parts.filter((one) => one !== part && p.names[one] !== "padding");
    const found = rest.map((one) => {
      const rows = p.parts.flatMap((other, t) => (other === one ? [t] : []));
      return { part: one, change: largestChange(pick(rows, first), pick(rows, after)) };
    });
    changes.push({ part, found: found.filter(({ change }) => change) });
  }
  const apart = p.names.map(() => 0);
  for (const end of p.ends.slice(0, 2 * OWN_PARTS)) {
    if (stopped()) break;
    const path = [];
    for (let t = end; t >= 0; t = p.parents[t]) path.unshift(t);
    const index = path.map((_, i) => i);
    const alone = await nextTokens(app, pick(path, ids), index, ancestors(index.map((i) => i - 1)));
    path.forEach((t, i) => {
      const part = p.parts[t];
      apart[part] = Math.max(apart[part], largestChange([first[t]], [alone[i]]));
    });
  }
  return { changes, apart };
}

function ownRunFault(p, recorded) {
  if (p.T > OWN_RUN) return `Not run: ${p.T} tokens; this page runs ${OWN_RUN}.`;
  if (recorded) return "Not run: no model runs in this page.";
  const blind = p.real.findIndex((one, t) => one && !p.mask[t * p.T + t]);
  if (blind < 0) return null;
  return `Not run: ${tokenWords(p, blind)} may not attend to itself.`;
}

function showLeaks(p, { changes, apart }) {
  const isMeant = (read, reader) => p.right.some((shown, i) =>
    shown && p.parts[i % p.T] === read && p.parts[Math.floor(i / p.T)] === reader);
  const names = (parts) => parts.map((part) => p.names[part]).join(", ");
  const lines = changes.filter(({ found }) => found.length).map(({ part, found }) => {
    const words = found.map(({ part: other, change }) => {
      const said = `${p.names[other]} by ${changeWords(change)}`;
      return isMeant(part, other) ? `${said}, as it should`
        : el("b", {}, `${said}, a leak`);
    });
    const joined = words.flatMap((word, i) => (i ? ["; ", word] : [word]));
    return el("li", {}, `Change ${p.names[part]}: it changes `, joined, ".");
  });
  const still = changes.filter(({ found }) => !found.length).map(({ part }) => part);
  const real = [...new Set(p.parts)].filter((part) => p.names[part] !== "padding");
  const exact = real.filter((part) => apart[part] === 0);
  fill(ownView.leaks,
    real.length > 1 || still.length < changes.length ? lines : null,
    still.length ? el("li", {}, `Change ${names(still)}: nothing else changes, exactly.`) : null,
    exact.length ? el("li", {}, `Equal to a run of its own, exactly: ${names(exact)}.`) : null,
    real.filter((part) => apart[part]).map((part) => el("li", {}, `${p.names[part]}: ${
      apart[part] < 1e-6 ? "equal to a run of its own up to rounding" : "apart from a run of its own"
    }, by ${changeWords(apart[part])}.`)));
  fill(ownView.about, "Run on a built-in text, with the model of this page. A number is the ",
    "largest change of any next token's probability.",
    changes.length === OWN_PARTS ? ` The first ${OWN_PARTS} parts were changed.` : "");
}
