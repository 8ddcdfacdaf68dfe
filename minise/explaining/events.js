// Mouse, finger and keys, and how the page starts.

function move(step) { // along the rows that are drawn
  state.pinned = true;
  point(tokenAt(clamp(rowOf(state.at) + step, 0, tokens.length - 1)));
}

function nextGroup(step) { // to the end of the next group, or of the one before
  const here = rowOf(state.at), ends = layout().ends.slice(0, shownGroups(state.trials)).sort((a, b) => a - b);
  const row = step > 0 ? ends.find((end) => end > here) : ends.reverse().find((end) => end < here);
  state.pinned = true;
  if (row !== undefined) point(tokenAt(row));
}

function moveCell(down, right) { // on the mask; its row is the pointed token
  const [row, column] = state.cell || [rowOf(state.at), rowOf(state.at)], most = tokens.length - 1;
  const next = [clamp(row + down, 0, most), clamp(column + right, 0, most)];
  state.pinned = true;
  point(tokenAt(next[0]));
  pointCell(...next);
}

function release() {
  state.pinned = false;
  light();
}

function hold(at) { // a click holds a token; another one on it lets go
  state.pinned = !(state.pinned && state.at === at);
  point(at, false);
}

function onPointer(element, find) { // mouse, pen and finger alike
  element.addEventListener("pointermove", (event) => {
    const at = state.pinned && event.pointerType === "mouse" ? null : find(event);
    if (at !== null && at !== state.at) point(at, element !== $("sequence"));
  });
  element.addEventListener("click", (event) => {
    const at = find(event);
    if (at !== null) hold(at);
  });
}

const share = (event, axis) => {
  const box = event.currentTarget.getBoundingClientRect();
  return axis === "x" ? (event.clientX - box.left) / box.width : (event.clientY - box.top) / box.height;
};

function onKeys(element, keys) {
  element.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
}

function asPacked() { // back to what the paper does
  [state.mask, state.restart] = [true, true];
  for (const [name, value] of [["mask", "on"], ["positions", "restart"]]) {
    document.querySelector(`input[name=${name}][value=${value}]`).checked = true;
  }
  switched();
}

function listen() {
  onPointer($("sequence"), (event) => {
    const token = event.target.closest(".t");
    return token ? tokenAt(Number(token.id.slice(1))) : null;
  });
  const index = (event, axis) => clamp(Math.floor(share(event, axis) * tokens.length), 0, tokens.length - 1);
  onPointer($("lit"), (event) => tokenAt(index(event, "y")));
  for (const kind of ["pointermove", "click"]) {
    $("lit").addEventListener(kind, (event) => pointCell(index(event, "y"), index(event, "x")));
  }
  onKeys($("lit"), { ArrowRight: () => moveCell(0, 1), ArrowLeft: () => moveCell(0, -1),
    ArrowDown: () => moveCell(1, 0), ArrowUp: () => moveCell(-1, 0), Escape: release });
  onKeys($("sequence"), {
    ArrowRight: () => move(1), ArrowLeft: () => move(-1), Home: () => move(-1e9), End: () => move(1e9),
    ArrowDown: () => nextGroup(1), ArrowUp: () => nextGroup(-1), Escape: release,
  });
  onKeys(document.body, { Escape: release });
  $("before").addEventListener("click", () => move(-1));
  $("after").addEventListener("click", () => move(1));
  $("trials").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) pick(Number(button.dataset.group));
  });
  onKeys($("trials"), { ArrowRight: () => pick(state.group + 1), ArrowLeft: () => pick(state.group - 1),
    ArrowDown: () => pick(state.group + 1), ArrowUp: () => pick(state.group - 1) });
  $("switches").addEventListener("change", () => {
    const { layout: layout_, mask, positions, window: window_, trials } = $("switches").elements;
    Object.assign(state, { layout: layout_.value, mask: mask.value === "on", restart: positions.value === "restart",
      window: Number(window_.value), trials: Number(trials.value) });
    switched();
  });
  for (const back of document.querySelectorAll(".run button")) back.addEventListener("click", asPacked);
  for (const id of Object.keys(TABLES)) $(id).addEventListener("toggle", () => fill(id));
  $("heads").addEventListener("input", () => {
    state.layer = Number($("layer").value);
    state.head = Number($("head").value);
    drawAttention();
  });
  $("step").addEventListener("input", () => { state.step = Number($("step").value); drawAnswer(); });
  for (const kind of ["pointermove", "click"]) {
    $("dots").addEventListener(kind, (event) => {
      const dot = nearestDot(event);
      if (dot !== null && (kind === "click" || dot !== state.dot)) pickDot(dot, kind === "click");
    });
  }
  const step = (by) => pickDot(clamp((state.dot ?? -1) + by, 0, dots.length - 1));
  onKeys($("dots"), { ArrowRight: () => step(1), ArrowLeft: () => step(-1) });
  for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());

  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; drawAll(); } });
  // On paper the canvases stay as they are: drawn anew for it, Chromium prints the upper one opaque.
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}

function listenStrip(canvas) {
  const T = data.packed.texts.length;
  onPointer(canvas, (event) => clamp(Math.floor(share(event, "x") * T), 0, T - 1));
}

function fillSelects() {
  const counts = [...new Set([1, 2, 5, 10, SHOWN_TRIALS])].filter((n) => n <= SHOWN_TRIALS);
  $("shown").replaceChildren(...counts.map((n) =>
    make("option", { value: n }, n === SHOWN_TRIALS ? `all ${n}` : `${n}`)));
  const examples = [8, 16, 32].filter((n) => !data.windows.includes(n));
  $("window").replaceChildren(make("option", { value: 0 }, "none"),
    ...data.windows.map((n) => make("option", { value: n }, `${n} (the model's)`)),
    ...examples.map((n) => make("option", { value: n }, `${n} (example)`)));
  $("head").disabled = data.heads === 1;
}

function drawAll() { // also after a change of size or colours
  const names = ["--shared", "--wash", "--rule", "--accent", "--heat", ...[0, 1, 2, 3, 4, 5, 6].map((i) => `--g${i}`)];
  inks = Object.fromEntries(names.map((name) => [name, css(name)]));
  drawPart2();
  drawEquality();
  drawLens();
  drawStrips();
  for (const canvas of $("strips").querySelectorAll("canvas")) listenStrip(canvas);
  drawAnswer();
  point(state.at, false);
}

async function start() {
  for (const [run, packed] of Object.entries(data.equality)) equality[run] = await unpack(packed);
  attention = await unpack(data.attention);
  for (const [name, { attention: packed }] of Object.entries(data.ablations)) {
    if (packed) ablatedAttention[name] = await unpack(packed);
  }
  prepareAttention();
  prepareTexts();
  state.run = null;
  state.group = shownGroups(1) - 1; // the last one of the first trial: the ablations spoil it
  state.at = data.packed.ends[state.group];
  fillSelects();
  prepareEquality();
  prepareDots();
  drawTrials();
  drawGroup();
  drawAll();
  tellRuns();
  listen();
  document.documentElement.dataset.ready = "yes"; // for tests, and for printing by a program
}

start().catch((error) => {
  console.error(error);
  const told = `The pictures could not be drawn (${error.message}). A browser of 2023 or later can.`;
  document.querySelector("header").append(make("p", { class: "note" }, told));
});
