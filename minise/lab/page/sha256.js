// SHA-256 (FIPS 180-4), by which Python draws the groups. A browser's own needs a secure address,
// which a file has not everywhere.

// The digest of a text's bytes in UTF-8, in hexadecimal.
export function sha256(text) {
  const { starts, rounds } = shaConstants();
  const bytes = new TextEncoder().encode(text);
  const padded = new Uint8Array(Math.ceil((bytes.length + 9) / 64) * 64);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 4, bytes.length * 8);
  const state = [...starts];
  for (let at = 0; at < padded.length; at += 64) {
    const words = Array.from({ length: 16 }, (_, i) => view.getInt32(at + 4 * i));
    shaMix(state, words, rounds);
  }
  return state.map((word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
}

const turn = (word, by) => (word >>> by) | (word << (32 - by));

function shaMix(state, words, rounds) {
  for (let i = 16; i < 64; i++) {
    const [near, far] = [words[i - 2], words[i - 15]];
    const first = turn(near, 17) ^ turn(near, 19) ^ (near >>> 10);
    const second = turn(far, 7) ^ turn(far, 18) ^ (far >>> 3);
    words.push((first + words[i - 7] + second + words[i - 16]) | 0);
  }
  let [a, b, c, d, e, f, g, h] = state;
  for (let i = 0; i < 64; i++) {
    const chosen = (e & f) ^ (~e & g);
    const one = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + chosen + rounds[i] + words[i]) | 0;
    const majority = (a & b) ^ (a & c) ^ (b & c);
    const two = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + majority;
    [h, g, f, e, d, c, b, a] = [g, f, e, (d + one) | 0, c, b, a, (one + two) | 0];
  }
  [a, b, c, d, e, f, g, h].forEach((word, i) => (state[i] = (state[i] + word) | 0));
}

// The first 32 bits behind the point of the square roots of 8 primes, and the cube roots of 64.
const shaKnown = {};

function shaConstants() {
  if (!shaKnown.rounds) {
    const primes = [];
    for (let n = 2; primes.length < 64; n++) {
      if (primes.every((prime) => n % prime)) primes.push(n);
    }
    const fraction = (root) => Math.floor((root % 1) * 2 ** 32) | 0;
    shaKnown.starts = primes.slice(0, 8).map((prime) => fraction(Math.sqrt(prime)));
    shaKnown.rounds = primes.map((prime) => fraction(Math.cbrt(prime)));
  }
  return shaKnown;
}
