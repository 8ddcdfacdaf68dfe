"""A model that a server runs: vLLM, llama.cpp, or any that speaks OpenAI's completions, of texts or
of chats.

Each prompt is asked for one token, and of that token the log-probabilities of the labels are read:
they differ from logits by one constant. No label is taken for impossible because it is not among
the most probable tokens: the prompt is asked again with more of them, or the question is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import torch

from minise.errors import InputError, QuestionUnsuited, quote
from minise.lab.data.kinds import OBJECT, TEXT, WHOLE, Kind, list_of, number_from, whole_from
from minise.lab.serving import say
from minise.lab.serving.http import KEY, Http, Misread, Refused
from minise.loading.checkpoint import Elsewhere
from minise.loading.source import find_folder
from minise.prompts import LabelLogits, Limits, Prompts, check_prompts
from minise.tokenizer import Tokenizer

AT_START = 10.0  # seconds in which a server must say what it runs
REQUESTS_AT_ONCE = 32  # to llama.cpp as many as it has slots
LIKELY_TOKENS = 20  # whose log-probabilities are asked for
DRAWS = 4  # of a token, until one has log-probabilities
LEAST = -87.0  # llama.cpp takes the log of a float32 probability: below, little is left of it
PADDED = 0.1  # of a vocabulary: models have some ids more than their tokenizers
COMPARED = ("Which is a bird?", "(A) wren", "Answer: A")  # texts that both tokenise
# The model's own distribution, whatever a server or a generation_config.json would change: in
# OpenAI's words, and in those that vLLM has beside them.
RAW = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
RAW_MORE = {**RAW, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}

TokenIds = tuple[int, ...]  # of a whole prompt


def or_nothing(kind: Kind) -> Kind:
    return Kind(f"{kind.words}, or nothing", lambda value: value is None or kind.holds(value))


def is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 500 and value.isprintable()


def one(kind: Kind) -> Kind:
    """What a server gives for one prompt, of which one token is asked."""

    def holds(value: Any) -> bool:
        return isinstance(value, list) and len(value) == 1 and kind.holds(value[0])

    return Kind(f"a list of one: {kind.words}", holds)


LIST = Kind("a list", lambda value: isinstance(value, list))
NAME = Kind("a name", is_name)
TOKENS = list_of(WHOLE)
MODELS = list_of(OBJECT)
POSITIONS = whole_from(2, 10**9)
VOCABULARY = whole_from(1, 10**9)
SLOTS = whole_from(1, 10**6)
LOG_PROBABILITY = number_from(LEAST, 1e-3)
LOGARITHM = number_from(-1e9, 1e-3)  # some write -9999 for what is hardly possible


@dataclass(frozen=True)
class LabelValues:
    """What a server says after a prompt. found: values by token id. given: of how many tokens.
    counted: how many it counts in the prompt, if it says so."""

    found: dict[int, Any]
    given: int
    counted: int | None


@dataclass(frozen=True)
class ServerFacts:
    """What a server says of its model. kind: a key of SPEAK. positions: tokens of the longest
    prompt and the token after it. vocabulary, dtype: None where it does not say. at_once: requests
    that it takes at once. owner: whose server it says it is."""

    model: str
    kind: str
    positions: int
    vocabulary: int | None
    dtype: str | None
    at_once: int = REQUESTS_AT_ONCE
    owner: str | None = None


class Server(Http):
    """A model of a server. url: of the server, or of one of PATHS there, which then is asked.
    wanted: the model's name there; empty: the first."""

    def __init__(self, url: str, tokenizer: Tokenizer, wanted: str = "") -> None:
        self.form: str | None = None  # a key of SPEAK, if the address names it
        for path, form in PATHS.items():
            if url.endswith(path):
                url = url.removesuffix(path)
                self.form = form
        super().__init__(url)
        self.tokenizer = tokenizer
        self.wanted = wanted
        try:
            self.facts = self.read_facts()
        except Misread as error:
            what = f"does not say what it runs ({error})"
            raise self.refused(f"{what}; is it a server of models?") from None

    def read_facts(self) -> ServerFacts:
        models = self.field(self.request("/v1/models", patience=AT_START), "data", MODELS)
        raw = self.chosen(models)
        owner = self.field(raw, "owned_by", or_nothing(TEXT))
        kind = self.form or (owner if owner in OWNERS else "openai")
        at_once = REQUESTS_AT_ONCE
        if owner == "llamacpp":
            props = self.request("/props", patience=AT_START)
            at_once = self.field(props, "total_slots", SLOTS)
            settings = self.field(props, "default_generation_settings", OBJECT)
            positions = self.field(settings, "n_ctx", POSITIONS)
        else:
            positions = self.field(raw, "max_model_len", or_nothing(POSITIONS)) or 1_000_000
        more = self.field(raw, "meta", or_nothing(OBJECT)) or {}
        dtype = self.field(more, "ftype", or_nothing(NAME))
        return ServerFacts(
            model=self.field(raw, "id", NAME),
            kind=kind,
            positions=positions,
            vocabulary=self.field(more, "n_vocab", or_nothing(VOCABULARY)),
            dtype=None if dtype is None else self.hide(dtype),
            at_once=at_once,
            owner=owner,
        )

    def chosen(self, models: list[Any]) -> Any:
        """The model that is wanted, or the first one."""
        names = [self.field(model, "id", NAME) for model in models]
        shown = ", ".join(self.hide(name) for name in names[:20])
        if not self.wanted:
            if len(names) > 1:
                how = f"name another as server:{self.url}#NAME"
                say(f"{self.url} has {shown}: the first is asked; {how}")
            return models[0]
        for name, model in zip(names, models, strict=True):
            if name == self.wanted:
                return model
        raise self.refused(f"has no model {quote(self.wanted)}; it has {shown}")

    def check_tokenizer(self) -> bool:
        """Refuse a tokenizer that is not the model's, as far as the server says. Whether it
        tokenised texts."""
        there = self.facts.vocabulary
        here = self.tokenizer.backend.get_vocab_size()
        if there is not None and abs(there - here) > PADDED * there:
            raise self.other_tokenizer(f"has {here:,} tokens, and the served model {there:,}")
        if self.facts.kind in PATHS.values():
            return False
        for text in COMPARED:
            body = {"model": self.facts.model, "prompt": text, "add_special_tokens": False}
            if self.facts.kind == "llamacpp":
                body = {"content": text, "add_special": False}
            try:
                ids = self.field(self.request("/tokenize", body, AT_START), "tokens", TOKENS)
            except (Misread, Refused):  # an older version, or one that is told not to
                return False
            expected = self.tokenizer.encode([text], add_special_tokens=False)[0]
            if ids != expected:
                ours, theirs = quote(expected), quote(ids)
                raise self.other_tokenizer(f"makes {ours} of {quote(text)}, the server {theirs}")
        return True

    def other_tokenizer(self, what: str) -> InputError:
        remedy = "give --tokenizer the folder or hub id of the served model"
        return self.refused(f"{self.tokenizer.name} {what}; {remedy}")

    def ask_all(self, labels_of: Mapping[TokenIds, set[int]]) -> dict[TokenIds, dict[int, float]]:
        """After each prompt the log-probabilities of its tokens, by their ids. The prompts go out
        in the order in which neighbours share most, the first one alone: it fills the server's
        cache."""
        first, *others = sorted(labels_of)
        found = {first: self.ask(first, sorted(labels_of[first]))}

        def ask_one(prompt: TokenIds) -> tuple[TokenIds, dict[int, float]]:
            return prompt, self.ask(prompt, sorted(labels_of[prompt]))

        # Its threads end with the process: an interruption does not wait for the server.
        with ThreadPool(min(self.facts.at_once, len(others) or 1)) as pool:
            found.update(pool.imap_unordered(ask_one, others))
        return found

    def ask(self, prompt: TokenIds, columns: list[int]) -> dict[int, float]:
        """The log-probabilities of the tokens `columns` after a prompt, by their ids."""
        try:
            reply = SPEAK[self.facts.kind](self, list(prompt), columns)
        except Misread as error:
            what = f"gives no log-probabilities of the next token ({error})"
            raise self.refused(f"{what}; use a newer version of {self.facts.kind}") from None
        if reply.counted not in (None, len(prompt)):
            counts = f"counts {reply.counted} tokens, not {len(prompt)}"
            raise self.refused(f"{counts}; check --tokenizer")
        missing = [token for token in columns if token not in reply.found]
        if missing:
            label = quote(self.tokenizer.decode(missing[:1]))
            what = f"the label {label} is not among the {reply.given} tokens that it gives"
            there = []
            for token in columns:
                if token in reply.found and LOG_PROBABILITY.holds(reply.found[token]):
                    name = quote(self.tokenizer.decode([token]))
                    there.append(f"{name} {math.exp(reply.found[token]):.1%}")
            read = ", ".join(there) or "none"
            fewer = "ask fewer choices at once (self-ensemble, --group-size 2)"
            remedy = f"{fewer}, or use vLLM or llama.cpp"
            if self.form and self.facts.owner in OWNERS:
                remedy = f"give server:{self.url}, which is asked for each label by its id"
            words = str(self.refused(f"{what}; {remedy}; read were {read}"))
            raise QuestionUnsuited(words)
        values: dict[int, float] = {}
        for token in columns:
            value = reply.found[token]
            if not LOG_PROBABILITY.holds(value):
                what = f"{self.heard(value)} is no log-probability, {LOG_PROBABILITY.words}"
                raise self.refused(f"{what}; is the model sound?")
            values[token] = float(value)
        total = sum(map(math.exp, values.values()))
        if total > 1.001:
            what = f"the probabilities of {len(values)} labels add up to {total:.4g}"
            raise self.refused(f"{what}; is the model sound?")
        return values


def vllm(server: Server, ids: list[int], columns: list[int]) -> LabelValues:
    """https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html. A version from before
    logprob_token_ids (github.com/vllm-project/vllm/pull/43463) gives the most probable tokens."""
    body = {
        "model": server.facts.model,
        "prompt": [ids],
        "max_tokens": 1,
        "logprobs": LIKELY_TOKENS,
        "logprob_token_ids": columns,
        "return_tokens_as_token_ids": True,
        **RAW_MORE,
    }
    answer = server.request("/v1/completions", body)
    top = likely_tokens(server, answer)
    found = {}
    for token in columns:
        name = f"token_id:{token}"
        if name in top:
            found[token] = top[name]
    if not any(name.startswith("token_id:") for name in top):
        raise Misread("it names tokens by their texts")
    usage = server.field(answer, "usage", OBJECT)
    return LabelValues(found, len(top), server.field(usage, "prompt_tokens", WHOLE))


def likely_tokens(server: Server, answer: Any) -> dict[str, Any]:
    """Of an answer in OpenAI's form: the values of the next tokens, by their names."""
    (choice,) = server.field(answer, "choices", one(OBJECT))
    logprobs = server.field(choice, "logprobs", OBJECT)
    (top,) = server.field(logprobs, "top_logprobs", one(OBJECT))
    return dict(top)


def llamacpp(server: Server, ids: list[int], columns: list[int]) -> LabelValues:
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
    found: dict[int, Any] = {}
    for seed in range(16):
        body["seed"] = seed
        answer = server.request("/completion", body)
        if not server.field(answer, "completion_probabilities", or_nothing(LIST)):
            continue
        (drawn,) = server.field(answer, "completion_probabilities", one(OBJECT))
        found = {}
        for entry in server.field(drawn, "top_logprobs", LIST):
            token = server.field(entry, "id", WHOLE)
            value = entry.get("logprob")
            if token in found and found[token] != value:
                raise Misread(f"it gives the token {token} twice, with two values")
            found[token] = value
        if found.keys() >= set(columns) or len(found) < body["n_probs"]:
            break
        body["n_probs"] *= 50
    return LabelValues(found, len(found), server.field(answer, "tokens_evaluated", WHOLE))


def openai(server: Server, ids: list[int], columns: list[int]) -> LabelValues:
    """OpenAI's completions: text goes out, and tokens come back by their texts. The server adds the
    special tokens at the beginning itself."""
    tokenizer = server.tokenizer
    special = tokenizer.encode([""])[0]
    has_special = ids[: len(special)] == special
    body = {
        "model": server.facts.model,
        "prompt": tokenizer.decode(ids[len(special) :] if has_special else ids),
        "max_tokens": 1,
        "logprobs": LIKELY_TOKENS,
        **RAW,
    }
    answer = draw_one(server, "/v1/completions", body)
    (choice,) = server.field(answer, "choices", one(OBJECT))
    logprobs = server.field(choice, "logprobs", OBJECT)
    if "content" in logprobs:  # llama.cpp gives them as in a chat
        top = {}
        for entry in tokens_of_chat(server, logprobs):
            top[server.field(entry, "token", TEXT)] = entry.get("logprob")
    else:
        top = likely_tokens(server, answer)
    before = len(tokenizer.decode(ids))
    found = {}
    for token in columns:
        text = tokenizer.decode([*ids, token])[before:]
        if text in top:
            found[token] = top[text]
    usage = server.field(answer, "usage", or_nothing(OBJECT)) or {}
    counted = server.field(usage, "prompt_tokens", or_nothing(WHOLE))
    return LabelValues(found, len(top), counted)


def chat(server: Server, ids: list[int], columns: list[int]) -> LabelValues:
    """OpenAI's chat completions: the prompt is the user's message, and the server adds its chat
    template. An answer begins with "A" or with " A": their probabilities are added."""
    tokenizer = server.tokenizer
    special = tokenizer.encode([""])[0]
    has_special = ids[: len(special)] == special
    text = tokenizer.decode(ids[len(special) :] if has_special else ids)
    body = {
        "model": server.facts.model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 1,
        "logprobs": True,
        "top_logprobs": LIKELY_TOKENS,
        **RAW,
    }
    answer = draw_one(server, "/v1/chat/completions", body)
    (choice,) = server.field(answer, "choices", one(OBJECT))
    logprobs = server.field(choice, "logprobs", or_nothing(OBJECT))
    if not logprobs or not logprobs.get("content"):
        how = f"if it has completions too, give server:{server.url}/v1/completions"
        raise server.refused(f"gives no log-probabilities of chats; {how}")
    top = tokens_of_chat(server, logprobs)
    found: dict[int, Any] = {}
    for token in columns:
        label = tokenizer.decode([token]).strip()
        total = 0.0
        for entry in top:
            value = server.field(entry, "logprob", LOGARITHM)
            if server.field(entry, "token", TEXT).strip() == label:
                total += math.exp(value)
        if total > 0:
            found[token] = math.log(total)
    return LabelValues(found, len(top), None)


def draw_one(server: Server, path: str, body: dict[str, Any]) -> Any:
    """The answer after a draw that is the same each time: vLLM's chat lists the token drawn in the
    place of the least probable one that it would give. Some tokens come without log-probabilities
    (llama.cpp: a part of a character): then another is drawn."""
    answer = None
    for seed in range(DRAWS):
        answer = server.request(path, {**body, "seed": seed})
        (choice,) = server.field(answer, "choices", one(OBJECT))
        logprobs = server.field(choice, "logprobs", or_nothing(OBJECT))
        if logprobs and any(logprobs.values()):
            break
    return answer


def tokens_of_chat(server: Server, logprobs: Any) -> list[Any]:
    """The most probable tokens of one that was drawn, each with its `token` and `logprob`."""
    (drawn,) = server.field(logprobs, "content", one(OBJECT))
    return list(server.field(drawn, "top_logprobs", MODELS))


OWNERS = {"vllm": vllm, "llamacpp": llamacpp}  # by what a server says of itself
# By the path in the address, of a server of any kind.
PATHS = {"/v1/completions": "openai", "/v1/chat/completions": "chat"}
SPEAK = {**OWNERS, "openai": openai, "chat": chat}


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

    @property
    def writes_chat(self) -> bool:
        """Whether each prompt is sent as a message, of which the server makes a chat."""
        return self.server.form == "chat"

    def about(self) -> dict[str, str]:
        """What is known of the model, for the record of a run."""
        facts = self.server.facts
        return {"server": facts.kind, "dtype": facts.dtype or "its own dtype"}

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
    url, _, wanted = asked.source.partition("#")
    if not url.startswith(("http://", "https://")) or any(sign in url for sign in "@?"):
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
    server = Server(url, tokenizer, wanted)
    facts = server.facts
    model = server.hide(facts.model)
    name = f"server:{Path(model).name if model.startswith('/') else model}"
    if not server.check_tokenizer():
        how = f"minise verify --model server:{server.url} --tokenizer FOLDER"
        say(f"{name}: its tokens were not compared with --tokenizer; {how} compares its answers")
    positions = facts.positions - 1  # one is for the token that is drawn
    vocabulary = facts.vocabulary or tokenizer.backend.get_vocab_size()
    return ServedModel(name, server, tokenizer, Limits(positions, vocabulary))
