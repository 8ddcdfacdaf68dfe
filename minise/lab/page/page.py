"""The live page in one HTML file: the modules of this folder, a checkpoint and the miniature's
questions. This file is the only build step; the modules also run as they are."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from minise.errors import InputError
from minise.lab.data.miniature import evaluation_questions
from minise.lab.equal_bits.decoder import EqualBits
from minise.lm import LocalModel
from minise.model import Decoder
from minise.question import Question
from minise.verify.recording import own_decoder

LIVE_FAMILIES = ("llama", "mistral", "qwen2")  # that model.js runs
MOST_NUMBERS = 10_000_000  # of a checkpoint: 20 MB in bfloat16, in base64 a page of 27 MB
QUESTIONS = 40
WORLD_CHOICES = 8
# Of a tokenizer.json: what tokenizer.js does not do, and the ways of adding tokens that it has.
SETTINGS = (
    "dropout",
    "unk_token",
    "byte_fallback",
    "ignore_merges",
    "continuing_subword_prefix",
    "end_of_word_suffix",
)
FLAGS = ("single_word", "lstrip", "rstrip")
ADDING = (None, "TemplateProcessing", "ByteLevel")
_HERE = Path(__file__).parent
_START = "app.js"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let) )", re.MULTILINE)


def live_page(lm: LocalModel, opens_with: dict[str, Any]) -> str:
    """The page in which a model runs: one file, which needs no network, and whose policy forbids
    every request. `opens_with`: its first question (`ShownQuestion.embedded`).

    Raises InputError where `why_not_live` has a reason.
    """
    why = why_not_live(lm)
    if why:
        raise InputError(f"{lm.name}: {why}")
    decoder = own_decoder(lm)
    state = decoder.state_dict()
    is_lossless = all(torch.equal(x.bfloat16().to(x.dtype), x) for x in state.values())
    dtype = torch.bfloat16 if is_lossless else torch.float32
    tensors = {}
    for name, x in state.items():
        tensors[name] = x.to("cpu", dtype, copy=True).contiguous()
    weights = safetensors.torch.save(tensors)
    embedded = {
        "name": Path(lm.name).name,
        "config": asdict(decoder.config),
        "tokenizer": json.loads(lm.tokenizer.backend.to_str()),
        "weights": base64.b64encode(weights).decode(),
        "world": world(),
        **opens_with,
    }
    return page_of(embedded)


def why_not_live(lm: LocalModel) -> str:
    """Why a model does not run in a page; empty if it does. It must be of LIVE_FAMILIES, have at
    most MOST_NUMBERS numbers, none of them in 4 bits, and a tokenizer of byte-level BPE."""
    if lm.family not in LIVE_FAMILIES:
        return f"the live page has no {lm.family}, only {', '.join(LIVE_FAMILIES)}"
    if isinstance(lm.decoder, EqualBits):
        return "it runs with equal bits, which the live page has not"
    decoder = own_decoder(lm)
    if type(decoder) is not Decoder:
        return f"the live page has no {type(decoder).__name__}"
    for name, layer in decoder.named_modules():
        if name.endswith("_proj") and not isinstance(layer, nn.Linear):
            return "its weights are in 4 bits, which the live page has not"
    numbers = sum(x.numel() for x in decoder.parameters())
    if numbers > MOST_NUMBERS:
        return f"it has {numbers:,} numbers, a live page at most {MOST_NUMBERS:,}"
    problem = tokenizer_problem(json.loads(lm.tokenizer.backend.to_str()))
    if problem:
        return f"{problem}; the live page has byte-level BPE only, as GPT-2 cuts words"
    return ""


def page_of(embedded: dict[str, Any]) -> str:
    """The page with what it shows, ready for JSON: a checkpoint, or recorded answers."""
    style = _text(_HERE / "page.css")
    script = _script()
    checkpoint = json.dumps(embedded, allow_nan=False, separators=(",", ":"))
    parts = {
        "policy": _policy(style, script),
        "style": style,
        "script": script,
        # "<" could end the script that holds the JSON.
        "checkpoint": checkpoint.replace("<", "\\u003c"),
    }
    # In one go: a part may hold text that looks like the place of another.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _text(_HERE / "page.html"))


def world(count: int = QUESTIONS) -> list[dict[str, Any]]:
    """Evaluation questions of the miniature with 8 choices, ready for JSON: of the first `count`
    those whose text no earlier one has.

    The question with K choices is that which `evaluation_questions` draws.
    """
    by_size = [evaluation_questions(count, K, 0) for K in range(2, WORLD_CHOICES + 1)]
    by_text: dict[str, dict[str, Any]] = {}
    for number, largest in enumerate(by_size[-1]):
        # A choice that the question of two lacks, that of three has, and so on.
        ranks = []
        for choice in largest.choices:
            smaller = sum(choice not in questions[number].choices for questions in by_size)
            ranks.append(1 + smaller)
        ranks[largest.answer or 0] = 0
        by_text.setdefault(largest.text, page_question(largest, ranks))
    return list(by_text.values())


def page_question(question: Question, ranks: list[int]) -> dict[str, Any]:
    """A question as the page has it. ranks: that with K choices has those of rank 0 ... K - 1."""
    return {
        "question": question.text,
        "rank": ranks,
        "id": question.id,
        "choices": list(question.choices),
        "answer": question.answer,
    }


def _script() -> str:
    """The modules as one script in one scope, the one that starts last. So no two may define one
    name, none uses another before that, and they import and export in one way."""
    paths = [path for path in sorted(_HERE.glob("*.js")) if path.name != _START]
    texts = []
    for path in [*paths, _HERE / _START]:
        text = _IMPORT.sub("", _text(path))
        texts.append(_EXPORT.sub("", text))
    return "\n".join(['"use strict";', "{", *texts, "}", ""])


def tokenizer_problem(raw: dict[str, Any]) -> str:
    """What of a tokenizer.json tokenizer.js does not do, in words; empty if it does all."""
    model = raw["model"]
    cut = raw["pre_tokenizer"] or {}
    after = raw["post_processor"] or {}
    used = [name for name in SETTINGS if model.get(name)]
    has_plain_cut = not cut.get("add_prefix_space") and cut.get("use_regex", True)
    if model["type"] != "BPE":
        return "its tokenizer is not BPE"
    if used:
        return f"its tokenizer uses {', '.join(used)}"
    if raw["normalizer"] is not None:
        return "its tokenizer changes the text"
    if cut.get("type") != "ByteLevel" or not has_plain_cut:
        return "its tokenizer cuts words in another way"
    if after.get("type") not in ADDING:
        return "its tokenizer adds tokens in another way"
    for token in raw["added_tokens"]:
        if any(token.get(flag) for flag in FLAGS):
            return "its tokenizer has a special token that takes the space beside it"
    return ""


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """The Content-Security-Policy: this style and script, a worker, and nothing from outside.

    "wasm-unsafe-eval" allows WebAssembly (kernel.js) and no evaluation of text.
    """

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; style-src 'sha256-{digest(style)}'; "
        f"script-src 'sha256-{digest(script)}' 'wasm-unsafe-eval'; "
        "worker-src blob:; img-src data:; base-uri 'none'; form-action 'none'"
    )
