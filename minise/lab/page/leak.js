// Masks that a reader paints block by block, and what leaks under them. Nothing here runs a model.
// A mask is a Uint8Array(T * T): mask[t * T + u] = 1 where token t may attend to token u.
import { cellText } from "./draw.js";

// A block is the tokens of one segment as rows, those of another as columns. The blocks of S
// segments that are not above the diagonal, in rows from the top: (0, 0), (1, 0), (1, 1), ...
const blockAt = (reader, read) => (reader * (reader + 1)) / 2 + read;
const segmentsOf = ({ segments }) => Math.max(...segments) + 2; // the question is number 0

export const NAMED = {
  none: () => 1, // no mask
  groups: (reader, read) => (read === reader || read === 0 ? 1 : 0),
};

// The blocks that are shown, as 0 and 1, by a name or by themselves as text, such as "b101"; of
// another text those without a mask.
export function readBlocks(text, layout) {
  const S = segmentsOf(layout), count = (S * (S + 1)) / 2;
  if (/^b[01]+$/.test(text) && text.length === count + 1) return [...text.slice(1)].map(Number);
  const shown = Object.hasOwn(NAMED, text) ? NAMED[text] : NAMED.none;
  return Array.from({ length: S }, (_, reader) =>
    Array.from({ length: reader + 1 }, (_, read) => shown(reader, read))).flat();
}

// The shortest text of these blocks: never read as a number.
export function writeBlocks(blocks, layout) {
  const text = blocks.join("");
  return Object.keys(NAMED).find((name) => readBlocks(name, layout).join("") === text)
    ?? `b${text}`;
}

export function paintBlock(blocks, layout, t, u, value) {
  const [reader, read] = [layout.segments[t] + 1, layout.segments[u] + 1];
  return blocks.map((one, i) => (reader >= read && i === blockAt(reader, read) ? value : one));
}

// Later tokens are hidden, and a token always sees itself.
export function blockMask(blocks, { segments }) {
  const T = segments.length, mask = new Uint8Array(T * T);
  for (let t = 0; t < T; t++) {
    for (let u = 0; u < t; u++) {
      mask[t * T + u] = blocks[blockAt(segments[t] + 1, segments[u] + 1)];
    }
    mask[t * T + t] = 1;
  }
  return mask;
}

// The groups from the second on that see the first.
export const readersOfFirst = (blocks, layout) =>
  Array.from({ length: segmentsOf(layout) - 2 }, (_, i) => i + 2)
    .filter((reader) => blocks[blockAt(reader, 1)]).map((reader) => `group ${reader}`);

// A cell in words. window: of the model, in positions; 0 for none.
export function cellWords(layout, t, u, window = 0) {
  const { ids, positions, mask } = layout, words = cellText(layout, mask, t, u);
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

// How far a row of numbers is from another, as a part of that one's size.
export function relativeChange(wanted, found) {
  let size = 0, apart = 0;
  wanted.forEach((value, i) => {
    size += value ** 2;
    apart += (value - found[i]) ** 2;
  });
  return Math.sqrt(apart / size);
}

// A difference of probabilities in words.
export function changeWords(change) {
  if (change === 0) return "exactly 0";
  if (change < 1e-6) return `${change.toExponential(0)}, rounding`;
  return change < 0.001 ? change.toExponential(1) : change.toFixed(3);
}
