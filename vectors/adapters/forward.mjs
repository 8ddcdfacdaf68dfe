// One row through minise's page: its model.js, the config, tokens, positions, mask and the path of the
// weights (float32) as JSON on stdin; the logits as JSON on stdout.
import { readFileSync } from "node:fs";

const { page, config, tokens, positions, mask, weights } = JSON.parse(readFileSync(0, "utf8"));
const { Model } = await import(page);
const bytes = readFileSync(weights);
const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
const { logits } = Model.fromSafetensors(config, buffer).forward(tokens, positions, mask);
console.log(JSON.stringify(logits.map((row) => Array.from(row))));
