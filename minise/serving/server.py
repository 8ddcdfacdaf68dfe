"""A model that a server runs: vLLM, SGLang, llama.cpp, or any that speaks OpenAI's completions.

Each prompt is asked for one token, and of that token the log-probabilities of the labels are read:
they differ from logits by one constant. No label is taken for impossible because it is not among
the most probable tokens: the prompt is asked again with more of them, or the question is refused.
"""

from __future__ import annotations

import math
import os
import random
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import httpx2
import torch

from minise.errors import InputError, one_line, printable, quote
from minise.lm import LabelLogits, Limits, Prompts, check_prompts
from minise.loading.checkpoint import Elsewhere
from minise.loading.source import find_folder
from minise.tokenizer import Tokenizer

KEY = "MINISE_API_KEY"  # the variable that holds a server's key
TIMEOUT = 300.0  # seconds for an answer
PATIENCE = 120.0  # seconds in which a request is tried again
REQUESTS_AT_ONCE = 32  # to llama.cpp as many as it has slots
LIKELY_TOKENS = 20  # whose log-probabilities are asked for
AGAIN = (408, 429, 500, 502, 503, 504)  # statuses that may pass
LEAST = -87.0  # llama.cpp takes the log of a float32 probability: below, little is left of it
# The model's own distribution, whatever a server or a generation_config.json would change: in
# OpenAI's words, and in those that vLLM and SGLang have beside them.
RAW = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
RAW_MORE = {**RAW, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}

TokenIds = tuple[int, ...]  # of a whole prompt


@dataclass(frozen=True)
class Reply:
    """What a server says after a prompt. found: log-probabilities by token id. counted: how many
    tokens it counts in the prompt, if it says so."""

    found: dict[int, float]
    counted: int | None


class Server:
    """A server of one model. kind: a key of SPEAK. facts: what it says of the model. positions:
    tokens of the longest prompt and the token after it. at_once: requests that it takes at once."""

    def __init__(self, url: str, tokenizer: Tokenizer) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.tokenizer = tokenizer
        self.key = os.environ.get(KEY, "").strip()
        if not (self.key.isascii() and self.key.isprintable()):
            raise InputError(f"{KEY} holds characters that no key has; set it again")
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        self.http = httpx2.Client(
            headers=headers,
            timeout=httpx2.Timeout(TIMEOUT, connect=10.0),
            follow_redirects=True,
        )
        weakref.finalize(self, self.http.close)
        try:
            self.facts: dict[str, Any] = self.request("/v1/models", patience=10.0)["data"][0]
            self.model = str(self.facts["id"])
            owner = self.facts.get("owned_by")
            self.kind = owner if owner in SPEAK else "openai"
            self.at_once = REQUESTS_AT_ONCE
            self.positions = self.facts.get("max_model_len") or 1_000_000
            if self.kind == "llamacpp":
                props = self.request("/props")
                self.at_once = int(props["total_slots"])
                self.positions = int(props["default_generation_settings"]["n_ctx"])
        except (LookupError, TypeError, AttributeError):
            raise self.refused("lists no model at /v1/models; is it a server of models?") from None

    def refused(self, what: str) -> InputError:
        """The error. Of its text the key is taken out: servers repeat it in refusals."""
        what = what.replace(self.key, "***") if self.key else what
        return InputError(f"{self.url}: {printable(' '.join(what.split()))}")

    def request(self, path: str, body: Any = None, patience: float = PATIENCE) -> Any:
        """The JSON that the server answers. After a cut connection, a timeout and the statuses
        AGAIN it is asked again, each time later, until patience ends."""
        limit = time.monotonic() + patience
        method = "GET" if body is None else "POST"
        wait = 0.5
        after = "0"
        while True:
            try:
                reply = self.http.request(method, self.url + path, json=body)
                problem = f"status {reply.status_code}, {one_line(ValueError(reply.text))}"
                after = reply.headers.get("Retry-After", "0")
                if reply.status_code not in AGAIN:
                    break
            except httpx2.RequestError as error:
                problem = one_line(error)
            pause = wait * random.uniform(0.7, 1.0)
            if after.isdecimal():
                pause = max(pause, float(after))
            if time.monotonic() + pause > limit:
                raise self.refused(f"{path} does not answer ({problem}); is the server up?")
            time.sleep(pause)
            wait = min(2 * wait, 30.0)
        if reply.status_code >= 400:
            hint = f"; set {KEY}" if reply.status_code in (401, 403) else ""
            raise self.refused(f"{path} is refused: {problem}{hint}")
        try:
            return reply.json()
        except (ValueError, RecursionError):
            raise self.refused(f"{path} answers no JSON; is it a server of models?") from None

    def ask_all(self, labels_of: Mapping[TokenIds, set[int]]) -> dict[TokenIds, dict[int, float]]:
        """After each prompt the log-probabilities of its tokens, by their ids. The prompts go out
        in the order in which neighbours share most, the first one alone: it fills the server's
        cache."""
        first, *others = sorted(labels_of)
        found = {first: self.ask(first, sorted(labels_of[first]))}

        def ask_one(prompt: TokenIds) -> tuple[TokenIds, dict[int, float]]:
            return prompt, self.ask(prompt, sorted(labels_of[prompt]))

        # Its threads end with the process: an interruption does not wait for the server.
        with ThreadPool(min(self.at_once, len(others) or 1)) as pool:
            found.update(pool.imap_unordered(ask_one, others))
        return found

    def ask(self, prompt: TokenIds, columns: list[int]) -> dict[int, float]:
        """The log-probabilities of the tokens `columns` after a prompt, by their ids."""
        values = {}
        try:
            reply = SPEAK[self.kind](self, list(prompt), columns)
            for token in columns:
                if token in reply.found:
                    values[token] = float(reply.found[token])
        except InputError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError):
            what = "gives no log-probabilities of the next token"
            raise self.refused(f"{what}; use a newer version of {self.kind}") from None
        if reply.counted not in (None, len(prompt)):
            counts = f"counts {reply.counted} tokens, not {len(prompt)}"
            raise self.refused(f"{counts}; check --tokenizer")
        missing = [token for token in columns if token not in values]
        if missing:
            label = quote(self.tokenizer.decode(missing[:1]))
            what = f"the label {label} is not among the {len(reply.found)} tokens that it gives"
            raise self.refused(f"{what}; ask fewer choices at once, or use vLLM or llama.cpp")
        found = list(values.values())
        are_in_range = all(LEAST <= value <= 1e-3 for value in found)  # NaN is not
        if not are_in_range or sum(map(math.exp, found)) > 1.001:
            raise self.refused(f"{quote(found)} are no log-probabilities; is the model sound?")
        return values


def vllm(server: Server, ids: list[int], columns: list[int]) -> Reply:
    """https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html. A version from before
    logprob_token_ids (github.com/vllm-project/vllm/pull/43463) gives the most probable tokens."""
    body = {
        "model": server.model,
        "prompt": [ids],
        "max_tokens": 1,
        "logprobs": LIKELY_TOKENS,
        "logprob_token_ids": columns,
        "return_tokens_as_token_ids": True,
        **RAW_MORE,
    }
    answer = server.request("/v1/completions", body)
    top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    found = {}
    for name, value in top.items():
        found[int(name.removeprefix("token_id:"))] = value
    return Reply(found, answer["usage"]["prompt_tokens"])


def sglang(server: Server, ids: list[int], columns: list[int]) -> Reply:
    """https://docs.sglang.ai/basic_usage/sampling_params.html. An entry is [value, id, text]."""
    body = {
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 1, **RAW_MORE},
        "return_logprob": True,
        "token_ids_logprob": columns,
    }
    about = server.request("/generate", body)["meta_info"]
    found = {}
    for value, token, *_ in about["output_token_ids_logprobs"][0]:
        found[int(token)] = value
    return Reply(found, about["prompt_tokens"])


def llamacpp(server: Server, ids: list[int], columns: list[int]) -> Reply:
    """https://github.com/ggml-org/llama.cpp/tree/master/tools/server. Without post_sampling_probs
    the values are those before any sampler. If the token drawn is a part of a character, an answer
    has none: then another is drawn. If a label is missing, more tokens are asked for."""
    body: dict[str, Any] = {
        "prompt": ids,
        "n_predict": 1,
        "samplers": [],
        "temperature": 1.0,
        "post_sampling_probs": False,
        "cache_prompt": True,
        "response_fields": ["completion_probabilities", "tokens_evaluated"],
        "n_probs": 100,
    }
    found: dict[int, float] = {}
    for seed in range(16):
        body["seed"] = seed
        answer = server.request("/completion", body)
        drawn = answer.get("completion_probabilities")
        if not drawn:
            continue
        found = {}
        for token in drawn[0]["top_logprobs"]:
            found[int(token["id"])] = token["logprob"]
        if found.keys() >= set(columns) or len(found) < body["n_probs"]:
            break
        body["n_probs"] *= 50
    return Reply(found, answer["tokens_evaluated"])


def openai(server: Server, ids: list[int], columns: list[int]) -> Reply:
    """OpenAI's completions: text goes out, and tokens come back by their texts. The server adds the
    special tokens at the beginning itself."""
    tokenizer = server.tokenizer
    special = tokenizer.encode([""])[0]
    has_special = ids[: len(special)] == special
    body = {
        "model": server.model,
        "prompt": tokenizer.decode(ids[len(special) :] if has_special else ids),
        "max_tokens": 1,
        "logprobs": LIKELY_TOKENS,
        **RAW,
    }
    answer = server.request("/v1/completions", body)
    top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    before = len(tokenizer.decode(ids))
    found = {}
    for token in columns:
        text = tokenizer.decode([*ids, token])[before:]
        if text in top:
            found[token] = top[text]
    usage = answer.get("usage") or {}
    return Reply(found, usage.get("prompt_tokens"))


SPEAK = {"vllm": vllm, "sglang": sglang, "llamacpp": llamacpp, "openai": openai}


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A `LanguageModel` that a server runs, prompt by prompt. Its logits are log-probabilities:
    they differ from logits by one constant, so `total` is 0."""

    name: str
    server: Server = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    limits: Limits
    family: str = ""  # a server does not say
    engine: str = "separate"

    def about(self) -> dict[str, str]:
        """What is known of the model, for the record of a run."""
        facts = self.server.facts.get("meta") or {}
        return {"server": self.server.kind, "dtype": str(facts.get("ftype") or "its own dtype")}

    def logits(self, prompts: Prompts) -> list[LabelLogits]:
        """Each prompt asks for its own labels. Equal prompts are asked once, for the labels of
        all. Raises InputError where the server does not give one of them."""
        check_prompts(self, prompts)
        whole: list[TokenIds] = [(*prompts.prefix, *branch) for branch in prompts.branches]
        labels_of: dict[TokenIds, set[int]] = {}
        for prompt, ids in zip(whole, prompts.label_ids, strict=True):
            labels_of.setdefault(prompt, set()).update(ids)
        found = self.server.ask_all(labels_of)
        total = torch.zeros((), dtype=torch.float64)
        answers = []
        for prompt, ids in zip(whole, prompts.label_ids, strict=True):
            values = [found[prompt][token] for token in ids]
            answers.append(LabelLogits(torch.tensor(values, dtype=torch.float64), total))
        return answers


def connect(asked: Elsewhere) -> ServedModel:
    """The model that a server has loaded. Raises InputError for an address that is none, a missing
    tokenizer, and settings that only weights have."""
    url = asked.source
    if not url.startswith(("http://", "https://")) or "@" in url or "?" in url:
        raise InputError(f"give server:http://HOST:PORT without a key; set {KEY} to it instead")
    if asked.tokenizer is None:
        raise InputError(f"server:{url}: say whose tokens it reads; add --tokenizer FOLDER_OR_ID")
    for name in ("dtype", "device", "quantize"):
        if getattr(asked, name) is not None:
            raise InputError(f"a server has a {name} of its own; leave --{name} out")
    if asked.engine != "tree":  # what `load` asks by default
        raise InputError("a server runs prompt by prompt; leave --engine out")
    if asked.equal_bits:
        raise InputError("nothing is known of the bits of a server; leave --equal-bits out")
    folder, _ = find_folder(asked.tokenizer.removeprefix("transformers:"), asked.revision)
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    server = Server(url, tokenizer)
    facts = server.facts.get("meta") or {}
    name = Path(server.model).name if server.model.startswith("/") else server.model
    positions = server.positions - 1  # one is for the token that is drawn
    vocabulary = facts.get("n_vocab") or tokenizer.backend.get_vocab_size()
    return ServedModel(f"server:{name}", server, tokenizer, Limits(positions, vocabulary))
