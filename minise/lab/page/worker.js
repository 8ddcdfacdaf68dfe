// The model in a worker, so that the page stays responsive; where a browser has none, in the page.

import { Model, modelSource } from "./model.js";

// What page.py embeds: {name, config, tokenizer, weights, world}. The weights, a safetensors file
// in base64, become an ArrayBuffer.
export function readCheckpoint(text) {
  const embedded = JSON.parse(text);
  const bytes = Uint8Array.from(atob(embedded.weights), (character) => character.charCodeAt(0));
  return { ...embedded, weights: bytes.buffer };
}

// checkpoint: {config, weights: ArrayBuffer}. The result has forward(ids, positions, mask,
// options), a promise of what Model.forward returns.
export function startModel(checkpoint) {
  try {
    return inWorker(checkpoint);
  } catch {
    return inPage(checkpoint);
  }
}

function inPage({ config, weights }) {
  const model = Model.fromSafetensors(config, weights);
  return { forward: async (...row) => model.forward(...row) };
}

// The worker answers with {number, result} or {number, error}.
function answerRuns() {
  let model;
  self.onmessage = ({ data: { config, weights, number, row } }) => {
    try {
      if (config) {
        model = Model.fromSafetensors(config, weights);
        return;
      }
      const result = model.forward(...row);
      const { logits, hidden, attention, lens } = result;
      const arrays = [...logits, ...hidden, ...attention.flat(), ...lens];
      self.postMessage({ number, result }, [...new Set(arrays.map((array) => array.buffer))]);
    } catch (error) {
      self.postMessage({ number, error: String(error.message) });
    }
  };
}

function inWorker(checkpoint) {
  const script = `"use strict";\n${modelSource()}\n(${answerRuns})();`;
  const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const worker = new Worker(url);
  const waiting = new Map();
  let fallback = null;
  let count = 0;
  worker.onmessage = ({ data: { number, result, error } }) => {
    const { resolve, reject } = waiting.get(number);
    waiting.delete(number);
    if (error) reject(new Error(error));
    else resolve(result);
  };
  // The browser refused the worker, or stopped it: what is still waiting runs in the page.
  worker.onerror = () => {
    fallback ??= inPage(checkpoint);
    for (const { row, resolve, reject } of waiting.values()) {
      fallback.forward(...row).then(resolve, reject);
    }
    waiting.clear();
  };
  worker.postMessage({ config: checkpoint.config, weights: checkpoint.weights });
  const forward = (...row) =>
    fallback?.forward(...row) ??
    new Promise((resolve, reject) => {
      const number = count++;
      waiting.set(number, { row, resolve, reject });
      worker.postMessage({ number, row });
    });
  return { forward };
}
