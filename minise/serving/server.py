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
from collections.abc import Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import httpx2
import torch
from torch import Tensor

from minise.engines import LanguageModel
from minise.errors import InputError, Unsuited, one_line, printable, quote
from minise.serving.elsewhere import Elsewhere, Place, language_model, read_tokenizer
from minise.tokenizer import Tokenizer

KEY = "MINISE_API_KEY"  # the variable that holds a server's key
TIMEOUT, PATIENCE = 300.0, 120.0  # seconds: for an answer; in which a request is tried again
AT_ONCE = 32  # requests; to llama.cpp as many as it has slots
AGAIN = (408, 429, 500, 502, 503, 504)  # statuses that may pass
LEAST = -87.0  # llama.cpp takes the log of a float32 probability: below, little is left of it
# One token from the model's own distribution, with nothing that a server or a checkpoint's
# generation_config.json may change about it. A temperature of 1 divides by 1.
RAW = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
RAW_MORE = {**RAW, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
# Log-probabilities of some tokens by their ids; how many tokens the server counts in the prompt,
# and how many of them it had cached. None: it does not say.
Reply = tuple[dict[int, float], int | None, int | None]


class Server:
    """A server, called as `LanguageModel.elsewhere`. kind: a key of SPEAK. tokens: how many were
    asked so far, and how many of them the server said that it had cached."""

    def __init__(self, url: str, tokenizer: Tokenizer) -> None:
        self.url, self.tokenizer = url.rstrip("/").removesuffix("/v1"), tokenizer
        self.tokens, self.key = {"asked": 0, "cached": 0}, os.environ.get(KEY, "").strip()
        if not (self.key.isascii() and self.key.isprintable()):
            raise InputError(f"{KEY} holds characters that no key has; set it again")
        self.http = httpx2.Client(
            headers={"Authorization": f"Bearer {self.key}"} if self.key else {},
            timeout=httpx2.Timeout(TIMEOUT, connect=10.0),
            follow_redirects=True,
        )
        weakref.finalize(self, self.http.close)
        try:
            self.about: dict[str, Any] = self.request("/v1/models", patience=10.0)["data"][0]
            self.model, owner = str(self.about["id"]), self.about.get("owned_by")
            self.kind = owner if owner in SPEAK else "openai"
            self.at_once, self.positions = AT_ONCE, self.about.get("max_model_len") or 1_000_000
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

    def request(self, path: str, body: Any = None, patience: float | None = None) -> Any:
        """The JSON that the server answers. After a cut connection, a timeout and the statuses
        AGAIN it is asked again, each time later, until patience ends."""
        limit = time.monotonic() + (PATIENCE if patience is None else patience)
        method, wait, after = "GET" if body is None else "POST", 0.5, "0"
        while True:
            try:
                reply = self.http.request(method, self.url + path, json=body)
                problem = f"status {reply.status_code}, {one_line(ValueError(reply.text))}"
                after = reply.headers.get("Retry-After", "0")
                if reply.status_code not in AGAIN:
                    break
            except httpx2.RequestError as error:
                problem = one_line(error)
            pause = max(wait * random.uniform(0.7, 1.0), float(after) if after.isdecimal() else 0.0)
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

    def __call__(
        self,
        prefix: Sequence[int],
        branches: Sequence[Sequence[int]],
        columns: Sequence[int] | None,
        total: bool = False,
    ) -> Tensor:
        """The log-probabilities (G, len(columns)) after each prompt, float64 on the CPU. total: one
        column more, the log of their sum over the vocabulary, which is 0. The prompts go out in the
        order in which neighbours share most, the first one alone: it fills the server's cache."""
        if columns is None:
            raise Unsuited("no server gives the logits of all tokens; leave this method out")
        prompts = [(*prefix, *branch) for branch in branches]
        first, *others = sorted(set(prompts))
        rows = {first: self.ask(first, columns)}
        # Its threads end with the process: an interruption does not wait for the server.
        with ThreadPool(min(self.at_once, len(others) or 1)) as pool:
            rows.update(pool.imap_unordered(lambda one: (one, self.ask(one, columns)), others))
        self.tokens["asked"] += sum(map(len, rows))
        self.tokens["cached"] += sum(cached for _, cached in rows.values())
        table = torch.tensor([rows[one][0] for one in prompts], dtype=torch.float64)
        return torch.cat([table, table.new_zeros(len(table), 1)], dim=1) if total else table

    def ask(self, prompt: Sequence[int], columns: Sequence[int]) -> tuple[list[float], int]:
        """The log-probabilities of the tokens `columns` after a prompt, and how many of its tokens
        were cached."""
        hits = None  # of the first time: the second finds all
        for most in (100, 5_000, 1_000_000) if self.kind == "llamacpp" else (20,):
            try:
                found, counted, cached = SPEAK[self.kind](self, list(prompt), list(columns), most)
                row = [float(found[i]) for i in columns if i in found]
            except InputError:
                raise
            except (LookupError, TypeError, ValueError, AttributeError):
                what = "gives no log-probabilities of the next token"
                raise self.refused(f"{what}; use a newer version of {self.kind}") from None
            hits = cached or 0 if hits is None else hits
            if counted not in (None, len(prompt)):
                raise self.refused(f"counts {counted} tokens, not {len(prompt)}; check --tokenizer")
            if len(row) == len(columns):
                break
        else:
            label = quote(self.tokenizer.decode([i for i in columns if i not in found][:1]))
            what = f"the label {label} is not among the {len(found)} tokens that it gives"
            raise self.refused(f"{what}; ask fewer choices at once, or use vLLM or llama.cpp")
        if not all(LEAST <= value <= 1e-3 for value in row) or sum(map(math.exp, row)) > 1.001:
            raise self.refused(f"{quote(row)} are no log-probabilities; is the model sound?")
        return row, hits or 0


def vllm(server: Server, ids: list[int], columns: list[int], most: int) -> Reply:
    """https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html. A version from before
    logprob_token_ids (github.com/vllm-project/vllm/pull/43463) gives the most probable tokens."""
    body = {"model": server.model, "prompt": [ids], "max_tokens": 1, "logprobs": most, **RAW_MORE}
    body |= {"logprob_token_ids": columns, "return_tokens_as_token_ids": True}
    answer = server.request("/v1/completions", body)
    top, usage = answer["choices"][0]["logprobs"]["top_logprobs"][0], answer["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    found = {int(name.removeprefix("token_id:")): value for name, value in top.items()}
    return found, usage["prompt_tokens"], cached


def sglang(server: Server, ids: list[int], columns: list[int], most: int) -> Reply:
    """https://docs.sglang.ai/basic_usage/sampling_params.html. An entry is [value, id, text]."""
    body: dict[str, Any] = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1, **RAW_MORE}}
    body |= {"return_logprob": True, "token_ids_logprob": columns}
    about = server.request("/generate", body)["meta_info"]
    found = {int(i): value for value, i, *_ in about["output_token_ids_logprobs"][0]}
    return found, about["prompt_tokens"], about.get("cached_tokens")


def llamacpp(server: Server, ids: list[int], columns: list[int], most: int) -> Reply:
    """https://github.com/ggml-org/llama.cpp/tree/master/tools/server. Without post_sampling_probs
    the values are those before any sampler. If the token drawn is a part of a character, an answer
    has none: then another is drawn."""
    body: dict[str, Any] = {"prompt": ids, "n_predict": 1, "n_probs": most, "samplers": []}
    body |= {"temperature": 1.0, "post_sampling_probs": False, "cache_prompt": True}
    body["response_fields"] = ["completion_probabilities", "tokens_evaluated", "timings"]
    for seed in range(16):
        answer = server.request("/completion", {**body, "seed": seed})
        if answer.get("completion_probabilities"):
            break
    top = answer["completion_probabilities"][0]["top_logprobs"]
    found = {int(one["id"]): one["logprob"] for one in top}
    return found, answer["tokens_evaluated"], answer["timings"].get("cache_n")


def openai(server: Server, ids: list[int], columns: list[int], most: int) -> Reply:
    """OpenAI's completions: text goes out, and tokens come back by their texts. The server adds the
    special tokens at the beginning itself."""
    words, (special,) = server.tokenizer, server.tokenizer.encode([""])
    text = words.decode(ids[len(special) :] if ids[: len(special)] == special else ids)
    body = {"model": server.model, "prompt": text, "max_tokens": 1, "logprobs": most, **RAW}
    answer = server.request("/v1/completions", body)
    top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    texts = {i: words.decode([*ids, i])[len(words.decode(ids)) :] for i in columns}
    found = {i: top[text] for i, text in texts.items() if text in top}
    return found, (answer.get("usage") or {}).get("prompt_tokens"), None


SPEAK = {"vllm": vllm, "sglang": sglang, "llamacpp": llamacpp, "openai": openai}


def connect(
    url: str, tokenizer: str | Path | None, revision: str | None, **local: str | None
) -> LanguageModel:
    """The model that a server has loaded. tokenizer: the folder or hub id of its tokenizer.json,
    revision: of that. local: settings of weights, which must all be None."""
    if "@" in url or "?" in url:
        raise InputError(f"a server's address is shown, so it must hold no key; set {KEY} instead")
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{quote(url)} is no server's address; give server:http://HOST:PORT")
    if tokenizer is None:
        raise InputError(f"server:{url}: say whose tokens it reads; add --tokenizer FOLDER_OR_ID")
    for name in [name for name, value in local.items() if value is not None]:
        raise InputError(f"a server has a {name} of its own; leave --{name} out")
    server = Server(url, words := read_tokenizer(tokenizer, revision)[2])
    meta = server.about.get("meta") or {}
    name = Path(server.model).name if server.model.startswith("/") else server.model
    decoder = Elsewhere(meta.get("ftype") or "its own dtype", Place(server.kind))
    sizes = {"vocab_size": meta.get("n_vocab") or words.backend.get_vocab_size()}
    sizes["max_position_embeddings"] = server.positions - 1  # and one for the token that is drawn
    return language_model(f"server:{name}", server, decoder, words, **sizes)
