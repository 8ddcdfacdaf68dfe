// Masks that a reader paints, and what leaks under them. Nothing here runs a model.
// A mask is a Uint8Array(T * T): mask[t * T + u] = 1 where token t may attend to token u.

import { blocks, cellText } from "./draw.js";

// A copy in which the rectangle of rows t0..t1 and columns u0..u1 (inclusive, in any order) is
// `value`. Later tokens stay hidden, and a token always sees itself.
export function paintCells(mask, T, [t0, u0], [t1, u1], value) {
  const painted = mask.slice();
  for (let t = Math.min(t0, t1); t <= Math.max(t0, t1); t++) {
    for (let u = Math.min(u0, u1); u <= Math.max(u0, u1) && u < t; u++) painted[t * T + u] = value;
  }
  return painted;
}

// The corners of the blocks that hold two cells.
export function wholeBlocks(segments, from, to) {
  const found = blocks(segments);
  const span = (a, b) => [
    found.find(({ end }) => Math.min(a, b) < end).start,
    found.find(({ end }) => Math.max(a, b) < end).end - 1,
  ];
  const [t0, t1] = span(from[0], to[0]);
  const [u0, u1] = span(from[1], to[1]);
  return [
    [t0, u0],
    [t1, u1],
  ];
}

// For each token of a row the token of another row that it stands for: equal beginnings and ends
// stand for each other, and what is between for what is between.
export function matchTokens(ids, others) {
  const shorter = Math.min(ids.length, others.length);
  let begin = 0;
  while (begin < shorter && ids[begin] === others[begin]) begin++;
  let end = 0;
  while (end < shorter - begin && ids.at(-1 - end) === others.at(-1 - end)) end++;
  const last = Math.max(others.length - end - 1, 0);
  return ids.map((_, t) =>
    t >= ids.length - end ? t + others.length - ids.length : Math.min(t, last)
  );
}

// The mask of a row, where token t stands for token match[t] of a row with this mask.
export function carryMask(mask, match) {
  const T = match.length;
  const size = Math.sqrt(mask.length);
  const carried = new Uint8Array(T * T);
  for (let t = 0; t < T; t++) {
    carried[t * T + t] = 1;
    for (let u = 0; u < t; u++) carried[t * T + u] = mask[match[t] * size + match[u]];
  }
  return carried;
}

// The cells below the diagonal as lengths of runs, the first of 1s: for the address of the page.
export function writeCells(mask, T) {
  const runs = [0];
  let value = 1;
  for (let t = 1; t < T; t++) {
    for (let u = 0; u < t; u++) {
      if (mask[t * T + u] !== value) {
        runs.push(0);
        value = 1 - value;
      }
      runs[runs.length - 1]++;
    }
  }
  return `x${runs.map((run) => run.toString(36)).join("_")}`; // never read as a number
}

// The mask of such a text; null where it is not one of a row of T tokens.
export function readCells(text, T) {
  if (!/^x[0-9a-z]+(_[0-9a-z]+)*$/.test(text)) return null;
  const runs = text
    .slice(1)
    .split("_")
    .map((run) => parseInt(run, 36));
  if (runs.reduce((sum, run) => sum + run, 0) !== (T * (T - 1)) / 2) return null;
  const values = runs.flatMap((run, i) => Array(run).fill(1 - (i % 2)));
  const mask = new Uint8Array(T * T);
  let i = 0;
  for (let t = 0; t < T; t++) {
    for (let u = 0; u < t; u++) mask[t * T + u] = values[i++];
    mask[t * T + t] = 1;
  }
  return mask;
}

// A cell in words, such as "token 41 of group 2 may not attend to token 17 of group 1".
// window: of the model, in positions; 0 for none.
export function cellWords(layout, t, u, window = 0) {
  const { ids, positions, mask } = layout;
  const words = cellText(layout, mask, t, u);
  if (u > t) return `${words}, which comes later`;
  const apart = positions[t] - positions[u];
  if (!mask[t * ids.length + u] || !window || apart < window) return words;
  return `${words}, but it is ${apart} positions back, outside of the window of ${window}`;
}

// Cells as draw.js draws them: 1 shown, 4 shown but outside of the window.
export function windowKinds({ ids, positions, mask }, window = 0) {
  const T = ids.length;
  const outside = (i) => window && positions[Math.floor(i / T)] - positions[i % T] >= window;
  return mask.map((shown, i) => (shown && outside(i) ? 4 : shown));
}

// The largest difference between the numbers of two lists of lists.
export function largestChange(before, after) {
  const changes = before.flatMap((row, i) => row.map((value, j) => Math.abs(value - after[i][j])));
  return Math.max(0, ...changes);
}

// A difference of probabilities in words.
export function changeWords(change) {
  if (change === 0) return "exactly 0";
  if (change < 1e-6) return `${change.toExponential(0)}, rounding`;
  return change < 0.001 ? change.toExponential(1) : change.toFixed(3);
}
