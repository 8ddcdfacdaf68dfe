// The words of `minise check` for one packed row: docs/check.md has the fields, and
// minise/lab/packing/packing.py and judging.py the same code in Python.
import { ancestors } from "./layout.js";
export const MOST_TOKENS = 512; // of a row that is read here
const MOST_LEVELS = 8; // of lists in lists
const ROW_LISTS = ["position_ids", "segment_ids", "parents", "tree"];
const ROW_LENGTHS = ["documents", "branches"];
const ROW_SOURCES = ["attention_mask", "cu_seqlens", "segment_ids", "parents", "restarts"];
const ROW_WORDS = ["padding", "mask_is"];
const ROW_NUMBERS = ["trunk", "window"];
const ROW_FIELDS = [...ROW_LENGTHS, "trunk", "tree", "position_ids", ...ROW_SOURCES,
  ...ROW_WORDS, "window"];
const ROW_IGNORED = ["input_ids", "labels", "labels_are"]; // they do not change who sees whom
const LEAST_SCORE = -1e3; // an additive mask of this, relative to the row's largest, hides
const CAUSAL_MASK = "the mask is causal over the whole row, there is no block mask";
const NOTHING_HIDDEN = "nothing is hidden: every token may attend to every other";
const MASK_MEND = "show each token its own prompt up to itself: by cu_seqlens, a block mask, " +
  "or a mask_mod that compares prompts; in a bool mask True shows, in one that is added 0";

// What is wrong with a text, in one line.
export class RowError extends Error {}

function refuse(line) {
  throw new RowError(line);
}

// Reading

// The fields of a text: a JSON object, or lines of "name: numbers".
export function readFields(text) {
  const trimmed = text.trim();
  if (!trimmed) refuse("there is nothing to read; paste a row, or load an example");
  const { fields, written } = trimmed.startsWith("{")
    ? { fields: readObject(trimmed), written: /"attention_mask"([^"]*)/.exec(trimmed)?.[1] }
    : readLines(trimmed);
  // A mask of floats is added to the scores.
  const floats = /\d\.|\.\d|\de[-+]?\d|inf/i.test(written ?? "");
  if (floats && fields.mask_is === undefined) fields.mask_is = "additive";
  return fields;
}

// written: the attention mask as it stands in the text.
function readLines(text) {
  const names = [...text.matchAll(/^[ \t]*([a-z_]+)[ \t]*[:=]/gim)], fields = {};
  if (names[0]?.index !== 0) refuse("the first line has no name; write it as position_ids: 0 1 2");
  let written = "";
  names.forEach((match, i) => {
    const name = match[1].toLowerCase();
    const value = text.slice(match.index + match[0].length, names[i + 1]?.index).trim();
    fields[name] = readField(name, value);
    if (name === "attention_mask") written = value;
  });
  return { fields, written };
}

function readObject(text) {
  let fields;
  try {
    fields = JSON.parse(text.replace(/-Infinity\b/g, "-1e999"));
  } catch {
    refuse("this is no JSON; check its quotes, commas and brackets");
  }
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== null));
}

function readField(name, text) {
  const word = text.replace(/["',]/g, "").toLowerCase();
  if (ROW_WORDS.includes(name)) return word;
  if (name === "restarts") return word === "true" || (word === "false" ? false : word);
  const value = readNumbers(name, text);
  return ROW_NUMBERS.includes(name) ? value.flat()[0] : value;
}

// Nested lists of the numbers of a text, in brackets or with a row on each line. What Python
// prints of a tensor or an array is read too.
function readNumbers(name, text) {
  const plain = text
    .replace(/\b(dtype|device)\s*=\s*[\w.:'"]+/g, " ")
    .replace(/\b(torch\.)?(tensor|np\.array|array|Tensor)\s*\(/g, " ")
    .replace(/[()]/g, " ");
  if (plain.includes("...")) refuse(`${name}: is cut short by "..."; print all of its numbers`);
  if (plain.includes("[")) return readBrackets(name, plain);
  const rows = plain.split("\n").map((line) => line.split(/[\s,;]+/).filter(Boolean))
    .filter((row) => row.length).map((row) => row.map((one) => toNumber(name, one)));
  if (!rows.length) refuse(`${name}: is empty; leave it out, or give a number for each token`);
  const square = name === "attention_mask" && rows.some((row) => row.length > 1);
  return square && rows.length > 1 ? rows : rows.flat();
}

function readBrackets(name, text) {
  const words = { true: "1", false: "0", "-inf": "-1e999", "-infinity": "-1e999" };
  const json = text.replace(/-?[a-z]{3,}/gi, (word) => words[word.toLowerCase()] ?? word)
    .replace(/(\d)\.(?=\D)/g, "$1.0").replace(/[\s,]+$/, ""); // Python writes "1."
  try {
    return JSON.parse(json);
  } catch {
    return refuse(`${name}: cannot be read; write numbers with commas, such as [0, 1, 2]`);
  }
}

function toNumber(name, text) {
  const word = text.toLowerCase();
  if (word === "true" || word === "false") return word === "true" ? 1 : 0;
  if (/^-(inf|infinity)$/.test(word)) return -Infinity;
  const number = Number(text);
  if (Number.isNaN(number))
    refuse(`${name}: ${JSON.stringify(text.slice(0, 20))} is no number; fix it`);
  return number;
}

// The numbers of nested lists without leading dimensions of 1: {shape, data}.
function shapeOf(name, value) {
  const shape = [];
  let level = value;
  while (Array.isArray(level)) {
    shape.push(level.length);
    level = level[0];
  }
  const count = shape.reduce((product, size) => product * size, 1);
  const data = [value].flat(MOST_LEVELS)
    .map((one) => (typeof one === "boolean" ? Number(one) : one));
  if (data.some(Array.isArray)) refuse(`${name}: has lists in lists; give one row of a batch`);
  if (!shape.length || !data.length) {
    const kind = data.length ? "one number" : "empty";
    refuse(`${name}: is ${kind}; leave it out, or give a number for each token`);
  }
  if (data.some((one) => typeof one !== "number"))
    refuse(`${name}: holds what is no number; fix it`);
  if (count !== data.length) refuse(`${name}: its rows have different lengths; cut or pad them`);
  if (data.some(Number.isNaN)) refuse(`${name}: holds NaN; give numbers, or true and false`);
  while (shape.length > 1 && shape[0] === 1) shape.shift();
  return { shape, data };
}

function listOf(name, value) {
  const { shape, data } = shapeOf(name, value);
  if (shape.length !== 1) {
    refuse(`${name}: holds ${shape.join("x")} numbers; give a list, for one row of a batch`);
  }
  const wrong = data.find((one) => !Number.isInteger(one));
  if (wrong !== undefined) refuse(`${name}: holds ${wrong}; give integers`);
  return data;
}

function lengthsOf(name, value) {
  const lengths = listOf(name, value);
  const least = Math.min(...lengths);
  if (least < 1) refuse(`${name}: holds the length ${least}; give lengths from 1`);
  return lengths;
}

function checkWords(given) {
  for (const name of Object.keys(given)) {
    if (!ROW_FIELDS.includes(name) && !ROW_IGNORED.includes(name)) {
      refuse(`"${name.slice(0, 30)}" is unknown; the fields are ${ROW_FIELDS.join(", ")}`);
    }
  }
  const from = (least) => (value) => Number.isInteger(value) && value >= least;
  const rules = [
    ["padding", (value) => ["right", "left"].includes(value), "right or left"],
    ["mask_is", (value) => ["bool", "additive"].includes(value), "bool or additive"],
    ["restarts", (value) => typeof value === "boolean", "true or false"],
    ["window", from(1), "a number from 1"],
    ["trunk", from(0), "a number from 0"],
  ];
  for (const [name, holds, wanted] of rules) {
    if (name in given && !holds(given[name])) {
      refuse(`${name}: is ${JSON.stringify(given[name])}; give ${wanted}`);
    }
  }
  if (given.trunk && !("branches" in given)) {
    refuse("trunk: comes without branches; give their lengths, or documents alone");
  }
}

// T, which all lists agree on.
function lengthOf(given, lists) {
  const sizes = Object.entries(lists).map(([name, list]) => [name, list.length]);
  if ("attention_mask" in given) {
    sizes.push(["attention_mask", shapeOf("attention_mask", given.attention_mask).shape.at(-1)]);
  }
  if (!sizes.length) {
    const named = ROW_LENGTHS.find((name) => name in given);
    const lengths = named ? lengthsOf(named, given[named]) : [];
    const total = lengths.reduce((sum, one) => sum + one, given.trunk ?? 0);
    if (total) sizes.push(["the lengths", total]);
    else if ("cu_seqlens" in given)
      sizes.push(["cu_seqlens", listOf("cu_seqlens", given.cu_seqlens).at(-1)]);
  }
  if (!sizes.length) refuse("nothing says how long the row is; give position_ids or a mask");
  const [[first, T], ...others] = sizes;
  for (const [name, size] of others) {
    if (size !== T) refuse(`${name}: has ${size} entries, but ${first} has ${T}; cut or pad it`);
  }
  if (!(T >= 1)) refuse(`${first}: makes a row of ${T} tokens; give one token or more`);
  if (T > MOST_TOKENS) {
    refuse(`${T} tokens are too many for this page, which reads ${MOST_TOKENS}; use minise check`);
  }
  return T;
}

function checkRowParents(name, parents, least = -1) {
  parents.forEach((parent, row) => {
    if (parent >= least && parent < row) return;
    const roots = least < -1 ? "-2 or -1" : "-1";
    refuse(`${name}: token ${row} has the parent ${parent}; ` +
        `give the row of a token before it, or ${roots}`);
  });
}

// What was meant: the row of the token before each, -1 for a first one; and which are real.
function meantParents(given, lists, T) {
  const kinds = ["documents", "branches", "tree"].filter((name) => name in given);
  if (kinds.length !== 1) {
    const both = kinds.length ? `${kinds.join(" and ")} both say` : "nothing says";
    refuse(`${both} what was meant; give one of documents, branches, tree`);
  }
  if (kinds[0] === "tree") {
    checkRowParents("tree", lists.tree, -2);
    const real = lists.tree.map((parent) => parent > -2);
    if (lists.tree.some((parent) => parent >= 0 && !real[parent])) {
      refuse("tree: a token follows padding (-2); give it a real parent, or -1");
    }
    return { parents: lists.tree.map((parent) => Math.max(parent, -1)), real };
  }
  const lengths = lengthsOf(kinds[0], given[kinds[0]]);
  const trunk = given.trunk ?? 0;
  const held = lengths.reduce((sum, one) => sum + one, trunk);
  if (held > T) refuse(`${kinds[0]}: hold ${held} tokens, but the row has ${T}; fix the lengths`);
  const before = given.padding === "left" ? T - held : 0;
  const parents = Array(T).fill(-1);
  const real = Array(T).fill(false).fill(true, before, before + held);
  const starts = [];
  let row = before;
  for (const length of [trunk, ...lengths]) {
    starts.push(row);
    for (let i = 0; i < length; i++, row++) parents[row] = i ? row - 1 : -1;
  }
  if (trunk) starts.slice(1).forEach((start) => (parents[start] = before + trunk - 1));
  return { parents, real };
}

function depthsOf(parents) {
  const depths = [];
  for (const parent of parents) depths.push(parent < 0 ? 0 : depths[parent] + 1);
  return depths;
}

// The unbranched stretches: the number of each token's, and their names.
function partsOf(parents, real) {
  const children = new Map();
  for (const parent of parents) children.set(parent, (children.get(parent) ?? 0) + 1);
  const branching = [...children].some(([parent, count]) => parent >= 0 && count > 1);
  const parts = [], names = [];
  const counts = { document: 0, trunk: 0, branch: 0 };
  parents.forEach((parent, t) => {
    if (parent >= 0 && parent === t - 1 && children.get(parent) === 1) {
      parts.push(parts[parent]);
      return;
    }
    parts.push(names.length);
    const kind = !branching ? "document" : parent < 0 ? "trunk" : "branch";
    counts[kind] += real[t];
    const name = kind === "trunk" && counts[kind] === 1 ? "the trunk" : `${kind} ${counts[kind]}`;
    names.push(real[t] ? name : "padding");
  });
  return { parts, names };
}

function isSquare(given) {
  const value = given.attention_mask;
  const { shape } = shapeOf("attention_mask", value);
  if (shape.length > 1) return true;
  const isAlone = !ROW_SOURCES.slice(1).some((name) => name in given && given[name] !== false);
  return shape[0] === 1 && Array.isArray(value[0]) && isAlone; // 1 x 1, of one token
}

// A mask with a row for each query: 0 and 1, or what is added to the scores. biased: the tokens to
// which it adds different numbers.
function squareMask(given, T) {
  const { shape, data } = shapeOf("attention_mask", given.attention_mask);
  if (data.length > 1 && (shape.length !== 2 || shape[0] !== T)) {
    refuse(`attention_mask: has the shape ${shape.join("x")}; give ${T}x${T}, of one head`);
  }
  if ((given.mask_is ?? "bool") === "bool") {
    return { mask: Uint8Array.from(data, (one) => (one !== 0 ? 1 : 0)), biased: [] };
  }
  const mask = new Uint8Array(T * T);
  const biased = [];
  for (let t = 0; t < T; t++) {
    const row = data.slice(t * T, t * T + T);
    const most = Math.max(...row);
    row.forEach((one, u) => (mask[t * T + u] = one - most >= LEAST_SCORE ? 1 : 0));
    if (row.some((one) => one < most && one - most >= LEAST_SCORE)) biased.push(t);
  }
  return { mask, biased };
}

// Each token's document by cu_seqlens, and what is wrong with these.
function segmentsOfLengths(borders, T) {
  const end = borders.at(-1);
  let sofar = -Infinity;
  const rising = borders.map((border) => (sofar = Math.max(sofar, border)));
  const segments = Array.from({ length: T }, (_, t) =>
    t < end ? rising.filter((border) => border <= t).length : -1 - t);
  let words = "", name = "";
  const short = borders.findIndex((border, i) => i && border - borders[i - 1] < 1);
  if (borders.length < 2 || borders[0] !== 0 || end !== T) {
    words = `it goes from ${borders[0]} to ${end}, but the row has ${T} tokens`;
    name = "cu_seqlens has a wrong total";
  } else if (short > 0) {
    const least = Math.min(...borders.slice(1).map((border, i) => border - borders[i]));
    words = `its document ${short} has ${least} tokens`;
    name = "cu_seqlens has an empty document";
  }
  if (!name) return { segments, faults: [] };
  const mend = `begin it with 0, add the length of each document, and end it at ${T}, the tokens`;
  return { segments, faults: [{ what: "cu_seqlens", words: `${words}: ${name}`, name, wrong: 1,
    of: borders.length, mend }] };
}

function cellsWhere(T, holds) {
  const mask = new Uint8Array(T * T);
  for (let t = 0; t < T; t++) for (let u = 0; u < T; u++) mask[t * T + u] = holds(t, u) ? 1 : 0;
  return mask;
}

// The mask narrowed to a window: a token may attend to another if i - j < window.
function withinWindow(mask, T, places, window) {
  if (!window) return mask;
  return cellsWhere(T, (t, u) => mask[t * T + u] && places[t] - places[u] < window);
}

// Who may attend to whom, as given: {mask, biased, faults}.
function givenMask(given, lists, positions) {
  const T = positions.length;
  const square = "attention_mask" in given && isSquare(given);
  const sources = ROW_SOURCES.slice(1).filter((name) => name in given && given[name] !== false);
  if (square) sources.unshift("attention_mask");
  if (sources.length > 1) {
    refuse(`${sources[0]} and ${sources[1]} both say who may attend to whom; ` +
        "give the one that the model uses");
  }
  const [kind] = sources;
  if (square) return { ...squareMask(given, T), faults: [] };
  let faults = [];
  let mask = cellsWhere(T, (t, u) => u <= t);
  if (kind === "parents") {
    checkRowParents("parents", lists.parents);
    mask = ancestors(lists.parents);
  } else if (kind) {
    let segments = lists.segment_ids;
    if (kind === "cu_seqlens")
      ({ segments, faults } = segmentsOfLengths(listOf(kind, given[kind]), T));
    if (kind === "restarts") {
      let count = 0;
      segments = positions.map((one, t) => (t && one === positions[t - 1] + 1 ? count : ++count));
    }
    mask = cellsWhere(T, (t, u) => u <= t && segments[t] === segments[u]);
  }
  if ("attention_mask" in given) {
    const { data } = shapeOf("attention_mask", given.attention_mask);
    mask = cellsWhere(T, (t, u) => mask[t * T + u] && data[u] !== 0);
  }
  return { mask, biased: [], faults };
}

// One row from the fields of docs/check.md. Throws RowError for a malformed one.
export function readPacking(given) {
  checkWords(given);
  const lists = {};
  for (const name of ROW_LISTS) if (name in given) lists[name] = listOf(name, given[name]);
  const T = lengthOf(given, lists);
  const { parents, real } = meantParents(given, lists, T);
  const index = parents.map((_, t) => t);
  const positions = lists.position_ids ?? index;
  const { mask, biased, faults } = givenMask(given, lists, positions);
  const places = "parents" in given ? positions : index;
  const square = "attention_mask" in given && isSquare(given);
  const { parts, names } = partsOf(parents, real);
  const ends = index.filter((t) => real[t] && !parents.includes(t));
  return { T, parents, real, parts, names, ends, faults, positions,
    hasBias: biased.some((t) => real[t]),
    depths: depthsOf(parents), window: given.window ?? 0, isTree: names.includes("the trunk"),
    mask: square ? mask : withinWindow(mask, T, places, given.window) };
}

// Judging

// A token in words, such as "token 14, the first of document 3,".
export function tokenWords(p, row) {
  if (!p.real[row]) return `token ${row}, which is padding,`;
  const name = p.names[p.parts[row]];
  if (row === p.parts.indexOf(p.parts[row])) return `token ${row}, the first of ${name},`;
  if (row === p.parts.lastIndexOf(p.parts[row])) return `token ${row}, the last of ${name},`;
  return `token ${row} of ${name}`;
}

// What a row should be given: each token attends to its ancestors and itself, within the window.
export function meantMask(p) {
  const full = ancestors(p.parents);
  const real = cellsWhere(p.T, (t, u) => full[t * p.T + u] && p.real[u]);
  return withinWindow(real, p.T, p.depths, p.window);
}

// Known wrong masks: [name, mask].
function knownMasks(p) {
  const { T, real, parts, parents, depths, window } = p;
  const family = ancestors(parents);
  const right = (t, u) => family[t * T + u] === 1 && real[u];
  const trunk = new Set(parts.filter((_, t) => parents[t] < 0));
  const known = [
    ["padding may be attended to", (t, u) => right(t, u) || (u <= t && !real[u])],
    [CAUSAL_MASK, (t, u) => u <= t && real[u]],
    [`${CAUSAL_MASK}, and padding may be attended to`, (t, u) => u <= t],
    [NOTHING_HIDDEN, () => true],
    ["the mask is inverted: it shows what it must hide", (t, u) => !right(t, u)],
    ["the tree is read as one trunk and leaves: what is between them is hidden",
      (t, u) => right(t, u) && (parts[t] === parts[u] || trunk.has(parts[u]))],
  ];
  const masks = known.map(([name, holds]) =>
    [name, withinWindow(cellsWhere(T, holds), T, depths, window)]);
  if (!window) return masks;
  const wide = withinWindow(cellsWhere(T, right), T, depths, window + 1);
  return [["the window is one too wide", wide], ...masks];
}

// Known wrong positions: [name, positions].
function knownPositions({ depths, real, isTree }) {
  let count = -1;
  const runOn = real.map((one) => (count += one ? 1 : 0));
  const index = depths.map((_, t) => t);
  const known = [["positions are by index: they count every token of the row", index]];
  if (isTree) return known;
  return [["positions run on, and do not start over with each document", runOn], ...known];
}

function judgeMask(p) {
  const { T, mask } = p;
  const right = meantMask(p);
  const differs = (other, t) => {
    for (let u = 0; u < T; u++) if (other[t * T + u] !== mask[t * T + u]) return true;
    return false;
  };
  const rows = p.depths.map((_, t) => t).filter((t) => p.real[t]); // padding may read anything
  const row = rows.find((t) => differs(right, t));
  if (row === undefined) return [];
  let leaks = 0, missing = 0;
  for (const t of rows) {
    for (let u = 0; u < T; u++) {
      if (mask[t * T + u] > right[t * T + u]) leaks++;
      if (mask[t * T + u] < right[t * T + u]) missing++;
    }
  }
  const column = p.depths.findIndex((_, u) => mask[row * T + u] !== right[row * T + u]);
  const may = mask[row * T + column] ? "may attend to" : "may not attend to";
  const seen = row === column ? "itself" : tokenWords(p, column).replace(/,$/, "");
  let name = "";
  for (const [known, other] of knownMasks(p)) {
    if (rows.some((t) => differs(other, t))) continue;
    name = known;
    break;
  }
  const why = name || `no known mistake; ${leaks} cells leak and ${missing} are missing`;
  const words = `${tokenWords(p, row)} ${may} ${seen}: ${why}`;
  return [{ what: "mask", words, name, wrong: leaks + missing, of: rows.length * T, mend: MASK_MEND }];
}

function judgePositions(p) {
  const shift = p.positions.map((one, t) => (p.real[t] ? one - p.depths[t] : 0));
  const row = shift.findIndex(Boolean);
  if (row < 0) return [];
  const equal = knownPositions(p).find(([, known]) =>
    known.every((one, t) => !p.real[t] || one === p.positions[t]));
  const name = equal ? equal[0] : "";
  let mend = "number the tokens of each prompt 0, 1, 2, ..., as if it were alone";
  if (p.parents.every((parent, t) => parent < 0 || shift[t] === shift[parent])) {
    mend += "; with rotary positions alone, a shift of a whole prompt changes only rounding";
  }
  const places = `${p.positions[row]}, not ${p.depths[row]}`;
  const words = `${tokenWords(p, row)} has the position ${places}: ${name || "no known mistake"}`;
  const of = p.real.filter(Boolean).length;
  return [{ what: "positions", words, name, wrong: shift.filter(Boolean).length, of, mend }];
}

// What is wrong with the row: [{what, words, name, wrong, of, mend}], as `minise check` says it.
export function judgePacking(p) {
  return [...p.faults, ...judgeMask(p), ...judgePositions(p)];
}

// The pairs of parts of which one was meant to see the other, as "read reader".
export function meantPairs(p) {
  const pairs = new Set();
  meantMask(p).forEach((one, i) => {
    if (one) pairs.add(`${p.parts[i % p.T]} ${p.parts[Math.floor(i / p.T)]}`);
  });
  return pairs;
}
