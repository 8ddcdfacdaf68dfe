// Is a packed row equal to separate runs, and where is it wrong first? `minise check` reads more
// fields, names the mistake and says how to mend it (minise/lab/packing). Of the fields that are
// read here, both find the same.
import { ancestors } from "./layout.js";
const CHECK_FILE = "run minise check FILE";
const MOST_TOKENS = 512; // of a row
const FOR_EACH_TOKEN = ["position_ids", "segment_ids", "input_ids"]; // these have a number
const CHOICES = { padding: ["left", "right"], mask_is: ["bool", "additive"] };
const LEAST = { documents: 1, branches: 1, trunk: 0, window: 1 };
const FIELDS = ["documents", "branches", "trunk", "attention_mask", "cu_seqlens", "window",
  ...FOR_EACH_TOKEN, ...Object.keys(CHOICES)];
const HIDING = -1e3; // an additive mask of this, relative to the row's largest, hides

// What is wrong with a text, in one line.
export class RowError extends Error {}

function need(holds, line) {
  if (!holds) throw new RowError(line);
}

// ---------------------------------------------------------------------------------------- reading

// The fields of a text: lines of "name: numbers", JSON, or a dictionary as Python prints it.
function readFields(text) {
  const plain = text
    .replace(/["'{}]/g, " ")
    .replace(/\b(dtype|device)\s*=\s*[\w.:]+/g, " ")
    .replace(/\b(torch\.|np\.)?(tensor|array)\s*\(|\)/gi, " ")
    .trim();
  need(plain, "there is nothing to read; paste a row, or load an example");
  const names = [...plain.matchAll(/\b([a-z_]+)\s*[:=]/gi)];
  need(names[0]?.index === 0, "the first line has no name; write it as position_ids: 0 1 2");
  const given = {};
  names.forEach((match, i) => {
    const name = match[1].toLowerCase();
    const begin = match.index + match[0].length;
    const value = plain.slice(begin, names[i + 1]?.index).replace(/[\s,]+$/, "").trim();
    need(FIELDS.includes(name), `"${name.slice(0, 30)}" is not read here; ${CHECK_FILE}`);
    if (value === "null" || value === "None") return;
    if (name in CHOICES) {
      const wanted = CHOICES[name].join(" or ");
      need(CHOICES[name].includes(value), `${name}: is not ${wanted}; ${CHECK_FILE}`);
      given[name] = value;
    } else if (name === "attention_mask") {
      given[name] = readRows(name, value);
      given.isOfFloats = /[.]|\de|inf/i.test(value); // added, if mask_is says nothing else
    } else {
      given[name] = readIntegers(name, value);
    }
  });
  return given;
}

// The rows of numbers of a text, in brackets or on lines.
function readRows(name, text) {
  need(!text.includes("..."), `${name}: is cut short by "..."; print all of its numbers`);
  const known = new Map([["true", 1], ["false", 0], ["-inf", -Infinity]]);
  const rows = [];
  for (const line of text.split(text.includes("[") ? /[[\]]/ : "\n")) {
    const words = line.split(/[\s,;]+/).filter(Boolean);
    if (words.length) rows.push(words.map((word) => known.get(word.toLowerCase()) ?? Number(word)));
  }
  need(rows.length, `${name}: is empty; leave it out, or give numbers`);
  need(!rows.flat().some(Number.isNaN), `${name}: holds what is no number; fix it`);
  return rows;
}

function readIntegers(name, text) {
  const rows = readRows(name, text);
  need(rows.length === 1, `${name}: has ${rows.length} rows; give one, or ${CHECK_FILE}`);
  const isOne = rows[0].length === 1 || !["trunk", "window"].includes(name);
  need(isOne, `${name}: holds ${rows[0].length} numbers; give one`);
  const wanted = name in LEAST ? `integers from ${LEAST[name]}` : "integers";
  const wrong = rows[0].find((one) => !Number.isSafeInteger(one) || one < LEAST[name]);
  need(wrong === undefined, `${name}: holds ${wrong}; give ${wanted}`);
  return rows[0];
}

// What was meant: of each token the row of the one before it in its prompt, -1 for a first one, and
// its part of the row; and the names of the parts. Tokens of no prompt are padding.
function readMeant(given) {
  const names = ["documents", "branches"].filter((name) => name in given);
  need(names.length === 1, "give what was meant, by documents, or by trunk and branches");
  need("branches" in given || !given.trunk, "trunk: comes without branches; give their lengths");
  const lengths = given[names[0]];
  const [trunk] = given.trunk ?? [0];
  const held = lengths.reduce((sum, length) => sum + length, trunk);
  const first = FOR_EACH_TOKEN.find((name) => name in given);
  const T = given[first]?.length ?? given.attention_mask?.[0].length ?? held;
  need(T > 1 && T <= MOST_TOKENS,
    `${T} tokens: this page reads rows of 2 to ${MOST_TOKENS}; for others ${CHECK_FILE}`);
  need(held <= T, `${names[0]}: hold ${held} tokens, but the row has ${T}; fix the lengths`);
  for (const name of FOR_EACH_TOKEN) {
    const size = given[name]?.length ?? T;
    need(size === T, `${name}: has ${size} entries, but ${first} has ${T}; cut or pad it`);
  }

  const meant = { parents: [], parts: [], names: [] };
  const append = (name, length, before) => {
    if (length) meant.names.push(name);
    for (let i = 0; i < length; i++) {
      meant.parents.push(i ? meant.parents.length - 1 : before);
      meant.parts.push(meant.names.length - 1);
    }
  };
  if (given.padding === "left") append("padding", T - held, -1);
  append("the trunk", trunk, -1);
  const stem = trunk ? meant.parents.length - 1 : -1;
  const kind = "branches" in given ? "branch" : "document";
  lengths.forEach((length, i) => append(`${kind} ${i + 1}`, length, stem));
  if (given.padding !== "left") append("padding", T - held, -1);
  return meant;
}

function cellsWhere(T, holds) {
  const mask = new Uint8Array(T * T);
  for (let t = 0; t < T; t++) for (let u = 0; u < T; u++) mask[t * T + u] = holds(t, u) ? 1 : 0;
  return mask;
}

// Who may attend to whom, as given. hidden: the tokens that a row of 0 and 1 hides.
function causalMask(given, T) {
  const [row] = given.attention_mask ?? [Array(T).fill(1)];
  const isOf01 = row.every((one) => one === 0 || one === 1);
  const isRead = given.mask_is ? given.mask_is === "bool" : isOf01;
  need(row.length === T && (isRead || !given.attention_mask),
    `attention_mask: is neither ${T} numbers of 0 and 1 nor ${T}x${T}; ${CHECK_FILE}`);
  let segments = given.segment_ids ?? Array(T).fill(0);
  if ("cu_seqlens" in given) {
    const [begin, ...ends] = given.cu_seqlens;
    const isRising = ends.every((end, i) => end > given.cu_seqlens[i]);
    need(begin === 0 && ends.at(-1) === T && isRising,
      `cu_seqlens: is wrong; it begins with 0, rises with each document, and ends at ${T}`);
    segments = Array.from({ length: T }, (_, t) => ends.findIndex((end) => end > t));
  }
  const window = given.window?.[0] ?? T; // kernels count it by index
  const mask = cellsWhere(T, (t, u) =>
    u <= t && t - u < window && segments[t] === segments[u] && row[u] !== 0);
  return { mask, hidden: row.map((one) => one === 0) };
}

// biased: the tokens to whose scores an additive mask adds more than one number.
function squareMask(given, T) {
  const rows = given.attention_mask;
  need(rows.length === T && rows.every((row) => row.length === T),
    `attention_mask: is not ${T}x${T}, of one head; ${CHECK_FILE}`);
  const isAdditive = given.mask_is ? given.mask_is === "additive" : given.isOfFloats;
  if (!isAdditive) return { mask: cellsWhere(T, (t, u) => rows[t][u] !== 0) };
  const below = rows.map((row) => {
    const added = row.map(Math.fround);
    const most = Math.max(...added);
    return added.map((one) => one - most);
  });
  return { mask: cellsWhere(T, (t, u) => below[t][u] >= HIDING),
    biased: below.map((row) => row.some((one) => one < 0 && one >= HIDING)) };
}

// One row of a text. T tokens; real: those of a prompt; unjudged: how many are neither judged nor
// said to be padding; ends: the last token of each prompt; right, places: the mask and positions
// that should be given. Throws RowError.
export function readRow(text) {
  const given = readFields(text);
  const { parents, parts, names } = readMeant(given);
  const T = parents.length;
  const index = parents.map((_, t) => t);
  const isSquare = given.attention_mask?.length > 1;
  const sources = [isSquare, "segment_ids" in given, "cu_seqlens" in given].filter(Boolean);
  need(sources.length < 2, "two fields say who may attend to whom; give the one that is used");
  const isOfOne = (given.documents ?? given.branches).length < 2;
  need(!("cu_seqlens" in given && given.attention_mask) || isOfOne,
    "cu_seqlens: the attention_mask beside it may switch it off; leave the mask out");
  const { mask, hidden = [], biased = [] } = (isSquare ? squareMask : causalMask)(given, T);
  const places = [];
  for (const parent of parents) places.push(parent < 0 ? 0 : places[parent] + 1);
  const family = ancestors(parents);
  const window = given.window?.[0] ?? T;
  const right = cellsWhere(T, (t, u) => family[t * T + u] && places[t] - places[u] < window);
  const real = parts.map((part) => names[part] !== "padding");
  const isUnjudged = (t) => (real[t] ? biased[t] : !hidden[t] && !given.padding);
  return { T, parents, parts, names, places, mask, right, real,
    positions: given.position_ids ?? index,
    ends: index.filter((t) => real[t] && !parents.includes(t)),
    unjudged: index.filter(isUnjudged).length };
}

// ---------------------------------------------------------------------------------------- judging

// A token in words, such as "token 14 of document 3".
export function tokenWords({ real, parts, names }, t) {
  return real[t] ? `token ${t} of ${names[parts[t]]}` : `token ${t}, which is padding`;
}

// A cell in words, such as "token 14 of document 3 may attend to itself".
export function attendWords(row, t, u) {
  const may = row.mask[t * row.T + u] ? "may attend to" : "may not attend to";
  return `${tokenWords(row, t)} ${may} ${t === u ? "itself" : tokenWords(row, u)}`;
}

// What is wrong with the mask and with the positions: the first place in words, and how many there
// are. What padding attends to does not matter.
export function judgeRow(row) {
  const { T, mask, right, real, positions, places } = row;
  const tokens = positions.map((_, t) => t).filter((t) => real[t]);
  const cells = tokens.flatMap((t) => positions.map((_, u) => t * T + u))
    .filter((cell) => mask[cell] !== right[cell]);
  const moved = tokens.filter((t) => positions[t] !== places[t]);
  const findings = [];
  if (cells.length) {
    const words = attendWords(row, Math.floor(cells[0] / T), cells[0] % T);
    findings.push({ what: "mask", words, wrong: cells.length, of: tokens.length * T });
  }
  if (moved.length) {
    const [t] = moved;
    const words = `${tokenWords(row, t)} has the position ${positions[t]}, not ${places[t]}`;
    findings.push({ what: "positions", words, wrong: moved.length, of: tokens.length });
  }
  return findings;
}
