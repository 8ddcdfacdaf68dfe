// The decoder of minise/model.py in plain JavaScript: LLaMA, Mistral and Qwen2.
//
// A token's numbers depend only on the tokens that it attends to, and each sum is taken in the
// order of the row. Ancestors stand in the same order in a packed row as in a prompt of its own, so
// packed and separate runs are equal bit for bit.
//
// All numbers are float32 in rows, one for each token; sums are taken in float64, or in float32 by
// the kernel of kernel.js.
import { kernelParts, startKernel } from "./kernel.js";

// x W^T + bias. x has `rows` rows of `inputs` numbers, W `outputs` rows of `inputs`.
function linear(x, rows, weight, inputs, bias = null) {
  const outputs = weight.length / inputs;
  const y = new Float32Array(rows * outputs);
  for (let r = 0; r < rows; r++) {
    for (let o = 0; o < outputs; o++) {
      let sum = 0;
      for (let i = 0; i < inputs; i++) sum += weight[o * inputs + i] * x[r * inputs + i];
      y[r * outputs + o] = sum + (bias ? bias[o] : 0);
    }
  }
  return y;
}

// RMSNorm of each row.
function norm(x, weight, eps) {
  const size = weight.length;
  const y = new Float32Array(x.length);
  for (let start = 0; start < x.length; start += size) {
    let squares = 0;
    for (let i = 0; i < size; i++) squares += x[start + i] ** 2;
    const scale = 1 / Math.sqrt(squares / size + eps);
    for (let i = 0; i < size; i++) y[start + i] = weight[i] * (x[start + i] * scale);
  }
  return y;
}

// Radians per position of each pair of a head's dimensions, as minise/rope.py has them.
function frequencies(config) {
  const { rope_type, factor, low_freq_factor, high_freq_factor, ...rest } = config.rope_scaling;
  return Array.from({ length: config.head_dim / 2 }, (_, pair) => {
    const frequency = config.rope_theta ** ((-2 * pair) / config.head_dim);
    if (rope_type === "linear") return frequency / factor;
    if (rope_type !== "llama3") return frequency;
    const turns = (rest.original_max_position_embeddings * frequency) / (2 * Math.PI);
    const ramp = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
    const keep = Math.min(Math.max(ramp, 0), 1);
    return frequency * (keep + (1 - keep) / factor);
  });
}

// Rotate the pairs (i, i + h / 2) of each head of each token by its position, in place.
function rotate(x, positions, turns) {
  const half = turns.length;
  const width = x.length / positions.length;
  positions.forEach((position, t) => {
    for (let i = 0; i < half; i++) {
      const cos = Math.cos(position * turns[i]);
      const sin = Math.sin(position * turns[i]);
      for (let at = t * width + i; at < (t + 1) * width; at += 2 * half) {
        const first = x[at];
        const second = x[at + half];
        x[at] = first * cos - second * sin;
        x[at + half] = second * cos + first * sin;
      }
    }
  });
  return x;
}

// For each token the rows that it reads: those of the mask that are within the window. Positions
// count for a window, not places in the row.
function readable(mask, positions, window) {
  const T = positions.length;
  return positions.map((position, t) => {
    const rows = [];
    for (let u = 0; u < T; u++) {
      if (mask[t * T + u] && (window === null || position - positions[u] < window)) rows.push(u);
    }
    return rows;
  });
}

// softmax(q k / sqrt(h)) v of each token and head. Query head i reads key head i // shared.
// `record`: null, or for each head T * T numbers, which get the weights.
function attend(q, k, v, readers, heads, shared, h, record) {
  const T = readers.length;
  const y = new Float32Array(q.length);
  const kWidth = k.length / T;
  readers.forEach((rows, t) => {
    const weights = new Float64Array(rows.length);
    for (let head = 0; head < heads; head++) {
      const at = (t * heads + head) * h;
      const offset = Math.floor(head / shared) * h;
      let largest = -Infinity;
      for (let n = 0; n < rows.length; n++) {
        const other = rows[n] * kWidth + offset;
        let score = 0;
        for (let i = 0; i < h; i++) score += q[at + i] * k[other + i];
        weights[n] = score / Math.sqrt(h);
        largest = Math.max(largest, weights[n]);
      }
      let total = 0;
      for (let n = 0; n < rows.length; n++) total += weights[n] = Math.exp(weights[n] - largest);
      const sums = new Float64Array(h);
      for (let n = 0; n < rows.length; n++) {
        const other = rows[n] * kWidth + offset;
        const weight = weights[n] / total;
        if (record) record[head][t * T + rows[n]] = weight;
        for (let i = 0; i < h; i++) sums[i] += weight * v[other + i];
      }
      y.set(sums, at);
    }
  });
  return y;
}

// silu(gate) * up, and x + y
const gated = (gate, up) => gate.map((value, i) => (value / (1 + Math.exp(-value))) * up[i]);
const add = (x, y) => x.map((value, i) => value + y[i]);

// The tensors of a safetensors file, as float32.
function readTensors(buffer) {
  const size = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, size)));
  const tensors = {};
  for (const [name, { dtype, data_offsets }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const bytes = buffer.slice(...data_offsets.map((offset) => 8 + size + offset));
    if (dtype === "F32") tensors[name] = new Float32Array(bytes);
    else if (dtype === "BF16") {
      const halves = new Uint16Array(bytes);
      const words = new Uint32Array(halves.length);
      // bfloat16 is the upper half of a float32.
      for (let i = 0; i < halves.length; i++) words[i] = halves[i] << 16;
      tensors[name] = new Float32Array(words.buffer);
    } else throw new Error(`${name} is ${dtype}; only F32 and BF16 are read`);
  }
  return tensors;
}

export class Model {
  // config: the fields of minise.config.Config. tensors: Float32Arrays by their names. multiply:
  // the linear layer.
  constructor(config, tensors, multiply = linear) {
    this.config = config;
    this.tensors = tensors;
    this.linear = multiply;
    this.turns = frequencies(config);
  }

  static fromSafetensors(config, buffer) {
    const tensors = readTensors(buffer);
    const widest = Math.max(config.hidden_size, config.intermediate_size, config.vocab_size,
      config.num_attention_heads * config.head_dim);
    const kernel = startKernel(tensors, widest, linear);
    return kernel ? new Model(config, kernel.tensors, kernel.linear) : new Model(config, tensors);
  }

  // ids, positions: T numbers. mask: Uint8Array of T * T, mask[t * T + u] = 1: t may attend to u.
  // logits: for each of `rows` (all, if none are given) those of the vocabulary. hidden: the
  // embedding, then the stream after each layer, before the final norm (as verify/recording.py
  // has it). attention[layer][head]: T * T weights. lens[layer]: the logits of the first of `rows`,
  // read after the layer as after the last one.
  forward(ids, positions, mask, options = {}) {
    const { rows = null, hidden = false, attention = false, lens = false } = options;
    const T = ids.length;
    const D = this.config.hidden_size;
    let x = new Float32Array(T * D);
    ids.forEach((id, t) => x.set(this.row("model.embed_tokens.weight", id), t * D));
    const result = { logits: [], hidden: hidden ? [x] : [], attention: [], lens: [] };
    const readers = new Map(); // of each window that a layer has
    for (const window of new Set(this.config.sliding_windows)) {
      readers.set(window, readable(mask, positions, window));
    }
    for (let layer = 0; layer < this.config.num_hidden_layers; layer++) {
      const length = attention ? this.config.num_attention_heads : 0;
      const weights = Array.from({ length }, () => new Float32Array(T * T));
      x = this.block(layer, x, positions, readers, attention ? weights : null);
      if (hidden) result.hidden.push(x);
      if (attention) result.attention.push(weights);
      if (lens) result.lens.push(this.logits(x, rows[0]));
    }
    for (const t of rows ?? ids.keys()) result.logits.push(this.logits(x, t));
    return result;
  }

  // The final norm and the output matrix, for one row of the stream.
  logits(x, t) {
    const D = this.config.hidden_size, row = x.subarray(t * D, (t + 1) * D);
    const normed = norm(row, this.tensors["model.norm.weight"], this.config.rms_norm_eps);
    const output = this.config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    return this.linear(normed, 1, this.tensors[output], D);
  }

  block(layer, x, positions, readers, record) {
    const { num_attention_heads: heads, num_key_value_heads, head_dim, ...config } = this.config;
    const T = positions.length;
    const at = (name) => this.tensors[`model.layers.${layer}.${name}`];
    const project = (y, name) => {
      const weight = at(`${name}.weight`);
      return this.linear(y, T, weight, y.length / T, at(`${name}.bias`));
    };
    const normed = norm(x, at("input_layernorm.weight"), config.rms_norm_eps);
    const q = rotate(project(normed, "self_attn.q_proj"), positions, this.turns);
    const k = rotate(project(normed, "self_attn.k_proj"), positions, this.turns);
    const v = project(normed, "self_attn.v_proj");
    const rows = readers.get(config.sliding_windows[layer]);
    const read = attend(q, k, v, rows, heads, heads / num_key_value_heads, head_dim, record);
    const stream = add(x, project(read, "self_attn.o_proj"));
    const inner = norm(stream, at("post_attention_layernorm.weight"), config.rms_norm_eps);
    const wide = gated(project(inner, "mlp.gate_proj"), project(inner, "mlp.up_proj"));
    return add(stream, project(wide, "mlp.down_proj"));
  }

  row(name, index) {
    const D = this.config.hidden_size;
    return this.tensors[name].subarray(index * D, (index + 1) * D);
  }
}

// This module as the text of a script, for a worker: a page in one file has no file to load.
export const modelSource = () => {
  const functions = [linear, norm, frequencies, rotate, readable, attend, readTensors];
  const constants = { gated, add };
  const written = Object.entries(constants).map(([name, value]) => `const ${name} = ${value};`);
  return [...kernelParts, ...functions, ...written, Model].join("\n");
};
