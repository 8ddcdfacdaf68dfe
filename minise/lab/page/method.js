// Self-Ensemble around the model: prompts, groups, and what the label logits say. The Python
// functions of the same purpose are named at each.
import { sha256 } from "./sha256.js";

export const NULL_OPTION = "None of the above";
export const MOST_CHOICES = 26; // a label for each, A to Z
export const MOST_LISTED = MOST_CHOICES - 1; // in a group, with the null option
export const label = (i) => String.fromCharCode(65 + i);

// The default template of minise/template.py. `choices` are all that is listed, the null option too.
// In the scene Why: the number of the first label, and a text before the list.
export function render(question, choices, { first = 0, filler = "" } = {}) {
  const lines = choices.map((choice, i) => `(${label(first + i)}) ${choice}\n`);
  return `${question}\n${filler}${lines.join("")}Answer:`;
}

// N trials of random_partitions of minise/grouping.py, the same as in Python for this seed and
// question: K choices in a random order, cut into groups of m; the last one may be smaller. A trial
// depends on its number only: with more trials the first stay.
export function trials(K, m, N, seed, id = "") {
  return Array.from({ length: N }, (_, trial) => {
    const bits = (i) => sha256(`${seed}/${id}/${trial}/${i}`);
    const keyed = Array.from({ length: K }, (_, i) => [bits(i), i]);
    const order = keyed.sort(([a], [b]) => (a < b ? -1 : 1)).map(([, i]) => i);
    const groups = [];
    for (let start = 0; start < K; start += m) groups.push(order.slice(start, start + m));
    return groups;
  });
}

// The id of a question that has none: Question.content_hash of minise/question.py, which hashes the
// JSON of Python.
export function questionId(question, choices) {
  const text = (value) => JSON.stringify(value).replace(/[\u007f-\uffff]/g, (unit) =>
    `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return sha256(`[${text(question)}, [${choices.map(text).join(", ")}]]`).slice(0, 16);
}

// The prompts of groups (indices of choices), as write_prompts of minise/template.py: whole texts are
// encoded, and what they all share with the question is cut off as the prefix. `labels`: the token
// ids of each prompt's labels, the null option's last. Standard inference has no null option.
export function prompts(tokenizer, question, choices, groups, options = {}) {
  const { nullOption = true, first = 0 } = options;
  const texts = groups.map((group) => {
    const listed = group.map((i) => choices[i]);
    return render(question, nullOption ? [...listed, NULL_OPTION] : listed, options);
  });
  const whole = texts.map((text) => tokenizer.encode(text));
  const longest = Math.max(...whole.map(({ length }) => length));
  if (longest > tokenizer.most) {
    throw new Error(`a prompt has ${longest} tokens, but the model has positions for ${
      tokenizer.most}; shorten the question or its choices`);
  }
  const all = [tokenizer.encode(`${question}\n`), ...whole];
  let shared = 0;
  while (shared < all[0].length && all.every((ids) => ids[shared] === all[0][shared])) shared++;
  return {
    prefix: whole[0].slice(0, shared),
    branches: whole.map((ids) => ids.slice(shared)),
    labels: groups.map((group, g) =>
      labelIds(tokenizer, texts[g], whole[g], group.length + (nullOption ? 1 : 0), first)),
  };
}

// The ids of labels as they follow a prompt.
function labelIds(tokenizer, text, ids, count, first) {
  return Array.from({ length: count }, (_, i) => {
    const longer = tokenizer.encode(`${text} ${label(first + i)}`);
    if (longer.length !== ids.length + 1 || ids.some((id, t) => id !== longer[t])) {
      throw new Error(`the label ${label(first + i)} is not one token`);
    }
    return longer.at(-1);
  });
}

// The probabilities of these token ids alone.
export function softmax(logits, ids) {
  const largest = Math.max(...ids.map((id) => logits[id]));
  const raised = ids.map((id) => Math.exp(logits[id] - largest));
  const total = raised.reduce((sum, value) => sum + value, 0);
  return raised.map((value) => value / total);
}

export const topOf = (probabilities) => probabilities.indexOf(Math.max(...probabilities));

// The probability that each trial gives each choice: of each trial, K numbers. `results`: the
// softmax of each group, trial after trial; the null option's share is left out.
export function trialValues(drawn, results, K) {
  let next = 0;
  return drawn.map((trial) => {
    const values = new Array(K).fill(0);
    for (const group of trial) {
      const probabilities = results[next++];
      group.forEach((choice, i) => (values[choice] = probabilities[i]));
    }
    return values;
  });
}

// The scores: of each choice the mean over the trials (Eq. 2 of the paper).
export function scores(values) {
  return values[0].map((_, choice) => average(values.map((row) => row[choice])));
}

const average = (numbers) => numbers.reduce((sum, value) => sum + value, 0) / numbers.length;

// The mean of independent samples, its standard error, and the 95% interval by Student's t. Of one
// sample only the mean is known: the others are null.
export function estimate(samples) {
  const center = average(samples);
  const n = samples.length;
  if (n < 2) return { mean: center, error: null, low: null, high: null };
  const squares = samples.reduce((sum, value) => sum + (value - center) ** 2, 0);
  const error = Math.sqrt(squares / (n - 1) / n);
  const reach = studentQuantile(n - 1) * error;
  return { mean: center, error, low: center - reach, high: center + reach };
}

// The 97.5% quantile of Student's t, by its expansion around the normal one (Abramowitz and Stegun
// 1964, 26.7.5). From 4 degrees of freedom on it is right to 0.2%, for 1 to 11%.
export function studentQuantile(n) {
  const z = 1.959963984540054;
  const first = (z ** 3 + z) / 4;
  const second = (5 * z ** 5 + 16 * z ** 3 + 3 * z) / 96;
  const third = (3 * z ** 7 + 19 * z ** 5 + 17 * z ** 3 - 15 * z) / 384;
  const fourth = (79 * z ** 9 + 776 * z ** 7 + 1482 * z ** 5 - 1920 * z ** 3 - 945 * z) / 92160;
  return z + first / n + second / n ** 2 + third / n ** 3 + fourth / n ** 4;
}
