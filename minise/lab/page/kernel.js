// x W^T by WebAssembly with vectors of four numbers: several times as fast as `linear` of model.js,
// which runs where a browser has no such vectors or forbids WebAssembly. The few instructions are
// assembled here. Each sum is taken in the same order wherever its row stands, so equal rows give
// equal bits here too.

// The kernel, as the bytes of a module: linear(x, w, y, rows, inputs, outputs), all numbers of type
// i32, the first three places in the memory that it imports. It multiplies four rows of x by two of
// W at a time: rows is a multiple of 4, outputs of 2, inputs of 4.
function kernelBytes() {
  const [X, W, Y, ROWS, INPUTS, OUTPUTS] = [0, 1, 2, 3, 4, 5]; // parameters
  const [XI, WI, YO, WO, END, LEFT] = [6, 7, 8, 9, 10, 11]; // i32
  const [WIDTH, OUT] = [12, 15]; // i32, three each: the bytes of one, two and three rows of x and y
  const [SUM, A, B] = [18, 26, 27]; // v128: eight sums, and a vector of each of two rows of W
  const leb = (n) => (n < 128 ? [n] : [(n & 127) | 128, ...leb(n >> 7)]);
  const get = (i) => [0x20, i];
  const set = (i) => [0x21, i];
  const constant = (n) => [0x41, n];
  const [plus, minus, times, shift, below] = [0x6a, 0x6b, 0x6c, 0x74, 0x49].map((code) => [code]);
  const simd = (code, ...more) => [0xfd, ...leb(code), ...more];
  const load = simd(0, 2, 0);
  const [zero, mul, add] = [simd(12, ...new Array(16).fill(0)), simd(0xe6), simd(0xe4)];
  const lane = (n) => simd(0x1f, n);
  const [plusFloat, store] = [[0x92], [0x38, 2, 0]];
  const loop = (...body) => [0x03, 0x40, ...body.flat(), 0x0b];
  const again = [0x0d, 0]; // branch to the loop's beginning if the stack's top is not 0
  const step = (local, by) => [...get(local), ...by, ...plus, ...set(local)];
  const rowOf = (base, n, width) => [...get(base), ...(n ? [...get(width + n - 1), ...plus] : [])];
  const eight = [0, 1, 2, 3, 4, 5, 6, 7]; // sum 2 n + m: row n of x, row m of W

  const inner = loop(
    [...get(WI), ...load, ...set(A)],
    [...get(WI), ...get(WIDTH), ...plus, ...load, ...set(B)],
    ...eight.map((k) => [
      ...rowOf(XI, k >> 1, WIDTH), ...load, ...get(k & 1 ? B : A), ...mul,
      ...get(SUM + k), ...add, ...set(SUM + k),
    ]),
    step(XI, constant(16)), step(WI, constant(16)),
    get(XI), get(END), below, again,
  );
  const total = (k) => [0, 1, 2, 3].flatMap((n) => [
    ...get(SUM + k), ...lane(n), ...(n ? plusFloat : []),
  ]);
  const pair = loop( // two rows of W
    ...eight.map((k) => [...zero, ...set(SUM + k)]),
    [...get(X), ...set(XI), ...get(WO), ...set(WI)],
    inner,
    ...eight.map((k) => [
      ...rowOf(YO, k >> 1, OUT), ...constant(4 * (k & 1)), ...plus,
      ...total(k), ...store,
    ]),
    step(WO, get(WIDTH + 1)), step(YO, constant(8)),
    [...get(LEFT), ...constant(2), ...minus, 0x22, LEFT], again,
  );
  const four = loop( // four rows of x
    [...get(X), ...get(WIDTH), ...plus, ...set(END)],
    [...get(W), ...set(WO), ...get(Y), ...set(YO), ...get(OUTPUTS), ...set(LEFT)],
    pair,
    step(X, [...get(WIDTH), ...constant(2), ...shift]),
    step(Y, [...get(OUT), ...constant(2), ...shift]),
    [...get(ROWS), ...constant(4), ...minus, 0x22, ROWS], again,
  );
  const widths = (numbers, first) => [1, 2, 3].flatMap((n) => [
    ...get(numbers), ...constant(4 * n), ...times, ...set(first + n - 1),
  ]);
  const locals = [2, 12, 0x7f, 10, 0x7b]; // i32 and v128
  const body = [...locals, ...widths(INPUTS, WIDTH), ...widths(OUTPUTS, OUT), ...four, 0x0b];
  const section = (id, content) => [id, ...leb(content.length), ...content];
  const name = (text) => [text.length, ...new TextEncoder().encode(text)];
  return Uint8Array.from([
    0, 0x61, 0x73, 0x6d, 1, 0, 0, 0,
    ...section(1, [1, 0x60, 6, ...new Array(6).fill(0x7f), 0]),
    ...section(2, [1, ...name("page"), ...name("memory"), 2, 0, 1]),
    ...section(3, [1, 0]),
    ...section(7, [1, ...name("linear"), 0, 0]),
    ...section(10, [1, ...leb(body.length), ...body]),
  ]);
}

// The tensors moved into the kernel's memory, and a `linear` like that of model.js; null where the
// kernel cannot run. `widest`: the most numbers of a row. `plain`: what multiplies other shapes.
export function startKernel(tensors, widest, plain) {
  const ROWS = 64; // at a time
  const scratch = 4 * ROWS * widest;
  const size = Object.values(tensors).reduce((sum, tensor) => sum + 16 + tensor.byteLength, 0);
  let memory, kernel;
  try {
    memory = new WebAssembly.Memory({ initial: Math.ceil((2 * scratch + size) / 65536) });
    const module = new WebAssembly.Module(kernelBytes());
    kernel = new WebAssembly.Instance(module, { page: { memory } }).exports.linear;
  } catch {
    return null;
  }
  const xs = new Float32Array(memory.buffer, 0, ROWS * widest);
  const ys = new Float32Array(memory.buffer, scratch, ROWS * widest);
  const moved = {};
  let place = 2 * scratch;
  for (const [name, tensor] of Object.entries(tensors)) {
    moved[name] = new Float32Array(memory.buffer, place, tensor.length);
    moved[name].set(tensor);
    place += Math.ceil(tensor.byteLength / 16) * 16;
  }
  const linear = (x, rows, weight, inputs, bias = null) => {
    const outputs = weight.length / inputs;
    if (inputs % 4 || outputs % 2) return plain(x, rows, weight, inputs, bias);
    const y = new Float32Array(rows * outputs);
    for (let start = 0; start < rows; start += ROWS) {
      const n = Math.min(ROWS, rows - start);
      xs.set(x.subarray(start * inputs, (start + n) * inputs));
      kernel(0, weight.byteOffset, scratch, Math.ceil(n / 4) * 4, inputs, outputs);
      y.set(ys.subarray(0, n * outputs), start * outputs);
    }
    if (bias) for (let at = 0; at < y.length; at++) y[at] += bias[at % outputs];
    return y;
  };
  return { tensors: moved, linear };
}

// What startKernel needs to run without this module.
export const kernelParts = [kernelBytes, startKernel];
