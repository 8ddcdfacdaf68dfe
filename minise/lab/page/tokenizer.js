// Text to token ids and back, by a checkpoint's tokenizer.json: byte-level BPE, as the Python
// package does it by the tokenizers library. page.py refuses a file that asks for anything else.

// A text is cut into pieces first, as GPT-2 does; merges never cross the end of a piece.
const PIECE = new RegExp(
  "'(?:s|t|re|ve|m|ll|d)| ?\\p{L}+| ?\\p{N}+| ?[^\\p{White_Space}\\p{L}\\p{N}]+" +
    "|\\p{White_Space}+(?!\\P{White_Space})|\\p{White_Space}+",
  "gu",
);
const MARKS = { " ": "␣", "\n": "⏎", "\t": "⇥" };

// Spaces and line ends as marks.
export const visibleText = (text) =>
  [...text].map((c) => MARKS[c] ?? (/\p{Cc}/u.test(c) ? "�" : c)).join("");

// The vocabulary writes each byte as one visible character: itself where it has one, else one of
// those from 256 on.
function byteCharacters() {
  const visible = (b) => (b > 32 && b < 127) || (b > 160 && b !== 173);
  let next = 256;
  return Array.from({ length: 256 }, (_, b) => String.fromCharCode(visible(b) ? b : next++));
}

export class Tokenizer {
  // most: tokens that the model can read.
  constructor(json, most) {
    this.most = most;
    this.ids = new Map(Object.entries(json.model.vocab));
    this.added = new Map((json.added_tokens ?? []).map((token) => [token.content, token.id]));
    this.texts = new Map([...this.ids, ...this.added].map(([text, id]) => [id, text]));
    const pairs = json.model.merges.map((pair) => (pair.join ? pair.join(" ") : pair));
    this.ranks = new Map(pairs.map((pair, rank) => [pair, rank]));
    this.characters = byteCharacters();
    this.bytes = new Map(this.characters.map((character, byte) => [character, byte]));
    this.known = new Map(); // piece -> ids
    [this.before, this.after] = specialIds(json.post_processor);
    const escaped = [...this.added.keys()]
      .sort((a, b) => b.length - a.length)
      .map((text) => text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"));
    this.special = escaped.length ? new RegExp(`(${escaped.join("|")})`) : null;
  }

  // The ids of a whole text, with the begin token if the tokenizer adds one.
  encode(text) {
    const ids = [...this.before];
    for (const part of this.special ? text.split(this.special) : [text]) {
      if (this.added.has(part)) ids.push(this.added.get(part));
      else for (const [piece] of part.matchAll(PIECE)) ids.push(...this.pieceIds(piece));
    }
    return [...ids, ...this.after];
  }

  // A token as text to be shown. Bytes that are no whole character are shown in hexadecimal.
  piece(id) {
    const bytes = this.bytesOf([id]);
    try {
      return visibleText(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes));
    } catch {
      return [...bytes].map((b) => `<${b.toString(16).toUpperCase()}>`).join("");
    }
  }

  bytesOf(ids) {
    const text = ids.map((id) => this.texts.get(id) ?? "").join("");
    return Uint8Array.from([...text].map((character) => this.bytes.get(character) ?? 63));
  }

  pieceIds(piece) {
    if (!this.known.has(piece)) this.known.set(piece, this.merged(piece));
    return this.known.get(piece);
  }

  // Merge two neighbours, the pair that was learnt first before all others, until none is left.
  merged(piece) {
    let parts = [...new TextEncoder().encode(piece)].map((byte) => this.characters[byte]);
    for (;;) {
      const rank = (i) => this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
      const best = Math.min(...parts.slice(1).map((_, i) => rank(i)));
      if (best === Infinity) break;
      const next = [];
      for (let i = 0; i < parts.length; i++) {
        const merge = i + 1 < parts.length && rank(i) === best;
        next.push(merge ? parts[i] + parts[++i] : parts[i]);
      }
      parts = next;
    }
    return parts.map((part) => this.ids.get(part)).filter((id) => id !== undefined);
  }
}

// The ids that the post-processor puts before and after each text.
function specialIds(processor) {
  const before = [];
  const after = [];
  let target = before;
  for (const part of processor?.single ?? []) {
    if (part.Sequence) target = after;
    else target.push(...processor.special_tokens[part.SpecialToken.id].ids);
  }
  return [before, after];
}
