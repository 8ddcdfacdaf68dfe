"""Make a checkpoint folder of a GGUF file: a llama (Mistral's are that, too), qwen2 or qwen3.

    python -m tools.from_gguf FILE.gguf FOLDER [--dtype bfloat16]

Needs the extra `gguf`, and memory for all weights. They are dequantised: the model is that of the
file, not the original one. FOLDER appears only after these checks:

- what the file calls its way of splitting a text into words ("tokenizer.ggml.pre") is in WORDS;
- the ids of TEXT are those that `ids_by_hand` makes of the file's merges, or of its tokens' scores
  (both take the words from the library: a test holds those to known ones), and are decoded to it;
- all numbers are finite, no tensor is left over, and minise loads it: config, names, shapes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from minise.errors import InputError, one_line, quote
from minise.loading import DTYPES
from minise.loading.checkpoint import EMBEDDING, OUTPUT, load
from minise.loading.config_json import read_config
from minise.loading.plugin import load_extra
from minise.model import Decoder
from minise.rope import inverse_frequencies

TEXT = "It's 2,024: WE'LL pay 1234567 (A) naïve\n\n  x  y\tz\r\n\r\n 日本語 Ωμέγα 🦜½ \n  (B) end"
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,DIGITS}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = pre_tokenizers.Split(Regex(PATTERN.replace("DIGITS", "1")), "isolated")
LLAMA = pre_tokenizers.Split(Regex(PATTERN.replace("DIGITS", "3")), "isolated")
BYTES = pre_tokenizers.ByteLevel(False, use_regex=False)
GPT2 = pre_tokenizers.ByteLevel(False)
WORDS: dict[str, list[Any]] = {
    "gpt-2": [GPT2],
    "smollm": [pre_tokenizers.Digits(True), GPT2],
    "qwen2": [QWEN, BYTES],
    "deepseek-r1-qwen": [QWEN, BYTES],
    "llama-bpe": [LLAMA, BYTES],
}


UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # kinds of tokens in a file


class Found(dict[str, Any]):
    """Facts or tensors by their names."""

    def __missing__(self, name: str) -> Any:
        raise InputError(f"{name} is missing")

    def below(self, prefix: str) -> Found:
        """All of them; the names that begin with `prefix` without it."""
        return Found((name.removeprefix(prefix), value) for name, value in self.items())


def convert(gguf: Any, path: Path, folder: Path, dtype: torch.dtype) -> None:
    """Make `folder`. Any fault of the file raises some exception, and leaves nothing behind."""
    reader = gguf.GGUFReader(path)
    facts = Found((name, field.contents()) for name, field in reader.fields.items())
    tensors = Found((tensor.name, tensor) for tensor in reader.tensors)

    def take(name: str, dtype: torch.dtype) -> torch.Tensor:
        tensor = tensors[name]
        x = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type)).to(dtype)
        if not x.isfinite().all():
            raise InputError(f"tensor {name} has values that are not finite in {dtype}")
        del tensors[name]
        return x

    config = read_facts(facts, tied="output.weight" not in tensors, dtype=dtype)
    tokenizer, settings = read_tokenizer(facts)
    if "rope_freqs.weight" in tensors:
        config["rope_scaling"] = llama3(config, take("rope_freqs.weight", torch.float32))
    with torch.device("meta"):
        needed = Decoder(read_config(config)).state_dict()
    kind = facts["general.architecture"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], config["num_hidden_layers"])
    state = {name: take(names.get_name(name, (".weight", ".bias")), dtype) for name in needed}
    if tensors:
        raise InputError(f"tensor {quote(min(tensors))} has no place in this model")
    for name, x in state.items():
        # llama.cpp turns the pair 2i and 2i + 1 of a llama's head, a checkpoint i and i + h/2.
        if kind == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            pairs = x.view(-1, config["head_dim"] // 2, 2, x.shape[1])
            state[name] = pairs.transpose(1, 2).reshape(x.shape)
    if OUTPUT in state and torch.equal(state[OUTPUT], state[EMBEDDING]):  # stored twice
        del state[OUTPUT]
        config["tie_word_embeddings"] = True
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
        made = Path(partial, folder.name)
        made.mkdir()
        (made / "config.json").write_text(json.dumps(config, indent=2))
        (made / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
        tokenizer.save(str(made / "tokenizer.json"))
        save_file(state, made / "model.safetensors", {"format": "pt"})
        load(made, dtype=dtype, device="cpu")
        made.rename(folder)


def read_facts(facts: Found, tied: bool, dtype: torch.dtype) -> dict[str, Any]:
    """The content of config.json, but for Llama 3's scaling of the rotary frequencies."""
    kind = facts["general.architecture"]
    if kind not in ("llama", "qwen2", "qwen3"):
        raise InputError(f"architecture {quote(kind)} is not llama, qwen2 or qwen3")
    of = facts.below(f"{kind}.")
    heads = of["attention.head_count"]
    window = of.get("attention.sliding_window")
    head_dim = of.get("attention.key_length", of["embedding_length"] // heads)
    if of.get("rope.dimension_count", head_dim) != head_dim or (window and kind != "llama"):
        raise InputError("heads that are turned in part, or a window, are not known here")
    scaling = None
    if of.get("rope.scaling.type") not in (None, "none"):
        scaling = {"rope_type": of["rope.scaling.type"], "factor": of.get("rope.scaling.factor")}
    model_type = "mistral" if window else kind
    return {
        "architectures": [f"{model_type.capitalize()}ForCausalLM"],
        "model_type": model_type,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "vocab_size": len(of["tokenizer.ggml.tokens"]),
        "hidden_size": of["embedding_length"],
        "intermediate_size": of["feed_forward_length"],
        "num_hidden_layers": of["block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": of.get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        # The shortest decimal: 1e-05, not 9.999999747378752e-06.
        "rms_norm_eps": float(str(np.float32(of["attention.layer_norm_rms_epsilon"]))),
        "rope_theta": of.get("rope.freq_base", 10000.0),
        "rope_scaling": scaling,
        "max_position_embeddings": of["context_length"],
        "sliding_window": window,
        "tie_word_embeddings": tied,
        "bos_token_id": of.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": of.get("tokenizer.ggml.eos_token_id"),
    }


def llama3(config: dict[str, Any], divisors: torch.Tensor) -> dict[str, Any]:
    """The rope_scaling that gives these divisors of the frequencies: Llama 3.1's and later."""
    scaling = {
        "rope_type": "llama3",
        "factor": divisors.max().item(),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }

    def frequencies(rope_scaling: dict[str, Any] | None) -> torch.Tensor:
        scaled_config = read_config({**config, "rope_scaling": rope_scaling})
        return inverse_frequencies(scaled_config, torch.float32, torch.device("cpu"))

    if not torch.allclose(frequencies(None) / frequencies(scaling), divisors, rtol=1e-4):
        raise InputError("rope_freqs.weight is not the scaling of Llama 3")
    return scaling


def read_tokenizer(facts: Found) -> tuple[Tokenizer, dict[str, str]]:
    """The tokenizer, checked, and the content of tokenizer_config.json."""
    of = facts.below("tokenizer.ggml.")
    tokens = of["tokens"]
    model = of["model"]
    words = of.get("pre", "default")
    if model == "gpt2" and words in WORDS:
        made = byte_level(of, words)
    elif model == "llama":
        made = sentence_piece(of)
    else:
        raise InputError(f"tokenizer {quote([model, words])} is not llama or gpt2 with {[*WORDS]}")
    tokenizer = made.tokenizer
    for token, kind in zip(tokens, of["token_type"], strict=True):
        if kind in (UNKNOWN, CONTROL, USER_DEFINED):
            is_special = kind != USER_DEFINED
            tokenizer.add_tokens([AddedToken(token, special=is_special, normalized=False)])
    settings = {}
    for short, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        token_id = of.get(f"{name}_token_id")
        if token_id is not None:
            settings[f"{short}_token"] = tokens[token_id]
    if of.get("add_bos_token", made.adds_bos):
        bos = settings["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            f"{bos} $A", None, [(bos, made.ids[bos])]
        )
    check_tokenizer(made)
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    if "tokenizer.chat_template" in of:
        settings["chat_template"] = of["tokenizer.chat_template"]
    return tokenizer, settings


@dataclass(frozen=True)
class Made:
    """A tokenizer, and what it was made of. ids: of the tokens. ranks: of the pairs that it joins.
    words: those of TEXT. keeps_words: a word that is a token is not put together. adds_bos: unless
    the file says otherwise."""

    tokenizer: Tokenizer
    ids: dict[str, int]
    ranks: dict[tuple[str, str], float]
    words: list[str]
    keeps_words: bool
    adds_bos: bool


def ids_of_tokens(of: Found) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(of["tokens"])}


def byte_level(of: Found, name: str) -> Made:
    """Byte-level BPE, as GPT-2's: the file has its merges in their order."""
    ids = ids_of_tokens(of)
    ranks: dict[tuple[str, str], float] = {}
    for rank, merge in enumerate(of["merges"]):
        left, right = merge.split(" ")
        ranks[left, right] = rank
    is_llama = name == "llama-bpe"
    tokenizer = Tokenizer(models.BPE(ids, [*ranks], ignore_merges=is_llama))
    if "qwen" in name:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(WORDS[name])
    tokenizer.decoder = decoders.ByteLevel()
    words = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(TEXT)]
    return Made(tokenizer, ids, ranks, words, keeps_words=is_llama, adds_bos=is_llama)


def sentence_piece(of: Found) -> Made:
    """SentencePiece: the file has scores, and a pair is as good as the token that it makes."""
    tokens = of["tokens"]
    ids = ids_of_tokens(of)
    found = []
    for token, token_id in ids.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                found.append((-of["scores"][token_id], token_id, ids[left], ids[right]))
    ranks: dict[tuple[str, str], float] = {}
    for rank, _, left_id, right_id in sorted(found):
        ranks[tokens[left_id], tokens[right_id]] = rank
    unknown = tokens[of["unknown_token_id"]]
    tokenizer = Tokenizer(
        models.BPE(ids, [*ranks], byte_fallback=True, unk_token=unknown, fuse_unk=True)
    )
    adds_space = of.get("add_space_prefix", True)
    steps: list[Any] = [normalizers.Replace(" ", "▁")]
    back: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if adds_space:
        steps.insert(0, normalizers.Prepend("▁"))
        back.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(back)
    words = [tokenizer.normalizer.normalize_str(TEXT)]
    return Made(tokenizer, ids, ranks, words, keeps_words=False, adds_bos=True)


def check_tokenizer(made: Made) -> None:
    """Refuse one that gives other ids to TEXT than its merges or scores do, or another text."""
    ids = made.tokenizer.encode(TEXT, add_special_tokens=False).ids
    by_hand = []
    for word in made.words:
        by_hand += ids_by_hand(word, made)
    if ids != by_hand:
        raise InputError("its merges or scores give other ids than the tokenizer made of them")
    if made.tokenizer.decode(ids) != TEXT:
        raise InputError("its tokenizer does not give a text back")


def ids_by_hand(word: str, made: Made) -> list[int]:
    """Join the neighbours of the lowest rank, the first of them, as long as any have one."""
    parts = [word] if made.keeps_words and word in made.ids else list(word)
    while len(parts) > 1:
        ranks = [made.ranks.get(pair, inf) for pair in pairwise(parts)]
        first = ranks.index(min(ranks))
        if ranks[first] == inf:
            break
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    ids = []
    for part in parts:
        if part in made.ids:
            ids.append(made.ids[part])
        else:
            ids += [made.ids[f"<0x{byte:02X}>"] for byte in part.encode()]
    return ids


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, metavar="FILE.gguf")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--dtype", choices=DTYPES[1:], default="bfloat16")
    args = parser.parse_args()
    what = ""
    try:
        is_empty = args.folder.is_dir() and not any(args.folder.iterdir())
        if args.folder.exists() and not is_empty:
            raise InputError(f"{args.folder}: is there already; name a new folder")
        gguf = load_extra("gguf", "gguf")
        what = f"{args.file}: makes no checkpoint; take another file, or the original weights: "
        convert(gguf, args.file, args.folder, getattr(torch, args.dtype))
    except Exception as error:  # a damaged file raises anything
        print(f"{what}{one_line(error)}", file=sys.stderr)
        return 2
    print(f"{args.folder}: a checkpoint for --model")
    return 0


if __name__ == "__main__":
    sys.exit(main())
