"""The classes of the installed mlx-lm, tiny and random, each asked five things.

No class takes positions or borders of documents: a packed row cannot be asked for. Prompts meet in
a batch, and in a cache. mlx_sizes.json has the sizes: by the names of fields, and of models whose
fields need more.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm.models
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache, trim_prompt_cache

from tools.sweep.answers import LENGTHS, SLOW, answer, off

SIZES = json.loads(Path(__file__).with_name("mlx_sizes.json").read_text(encoding="utf-8"))
BESIDE = [5, 30]  # of prompts of a batch; windows have 16
TOKENS = 3  # that a batch writes of each prompt
LARGEST = 5_000_000  # parameters; what has more was not made tiny by the sizes
# What is small where a state fades slowly, by the ends of a parameter's name.
DECAYS = {"A_log": SLOW, "recurrent_param": -5.0, "w_lora.lora.2.bias": -4.0}
COLUMNS = {
    "right": "padded right",
    "pieces": "in pieces, cached",
    "beside": "batch beside others",
    "joins": "joins a batch later",
    "rollback": "cache trimmed",
}


class Refuses(Exception):
    """The library says that it cannot do what is asked."""


def versions() -> dict[str, str]:
    return {"mlx-lm": version("mlx-lm"), "mlx": version("mlx")}


def names() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(mlx_lm.models.__path__)]


def model_of(name: str) -> Any:
    """A tiny model in float32 whose states fade slowly; None where the module has none. Raises
    what the library raises."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    if not hasattr(module, "ModelArgs"):
        return None
    mx.random.seed(0)
    sizes = SIZES["fields"] | {"model_type": name} | SIZES["models"].get(name, {})
    if "text_config" in inspect.signature(module.ModelArgs).parameters:
        sizes = {"model_type": name, "vocab_size": sizes["vocab_size"], "text_config": sizes}
    model = module.Model(module.ModelArgs.from_dict(sizes))
    parameters = tree_flatten(model.parameters())
    count = sum(x.size for _, x in parameters)
    if count > LARGEST:
        raise ValueError(f"{count:,} parameters")
    drawn = [(path, drawn_like(path, x)) for path, x in parameters]
    model.update(tree_unflatten(drawn))
    mx.eval(model(mx.array([[5]])))  # what a kernel needs and is not here, is no answer
    return model


def drawn_like(path: str, x: mx.array) -> mx.array:
    if not mx.issubdtype(x.dtype, mx.floating):
        return x
    noise = mx.random.normal(x.shape)
    for end, mean in DECAYS.items():
        if path.endswith(end):
            return mean + 0.3 * noise
    return x + 0.2 * noise


def title(name: str, model: Any) -> str:
    return name


def ids_of(*lengths: int) -> list[list[int]]:
    draw = np.random.default_rng(0)
    return [draw.integers(5, 90, length).tolist() for length in lengths]


def centred(x: mx.array) -> np.ndarray:
    """Logits without their mean: log-probabilities have another. 0 where a token is forbidden."""
    values = np.array(x.astype(mx.float32), dtype=np.float64)
    values[np.isneginf(values)] = 0
    return values - values.mean(-1, keepdims=True)


# ---- the questions. Each: how far the worst token is off ----------------------------------------
def padded_right(model: Any) -> float:
    """As its trainer pads, without a cache."""
    prompts = ids_of(*LENGTHS)
    most = max(LENGTHS)
    got = centred(model(mx.array([prompt + [0] * (most - len(prompt)) for prompt in prompts])))
    worst = 0.0
    for prompt, row in zip(prompts, got, strict=True):
        alone = centred(model(mx.array([prompt])))[0]
        worst = max(worst, off(row[: len(prompt)], alone))
    return worst


def in_pieces(model: Any) -> float:
    """A prompt through a cache: some tokens, some more, then one by one."""
    (prompt,) = ids_of(sum(LENGTHS))
    cache, got, start = make_prompt_cache(model), [], 0
    for length in [*LENGTHS[:2], *[1] * LENGTHS[2]]:
        piece = prompt[start : start + length]
        got.append(centred(model(mx.array([piece]), cache=cache))[0])
        start += length
    return off(np.concatenate(got), centred(model(mx.array([prompt])))[0])


def batched(model: Any, first: list[list[int]], late: list[list[int]]) -> float:
    """The log-probabilities that BatchGenerator gives of each prompt's next tokens; `late` prompts
    are inserted when the first have written a token, and have as many still to write."""
    generator = BatchGenerator(model)
    asked_for = [3 * TOKENS if late else TOKENS] * len(first)
    prompts = dict(zip(generator.insert(first, max_tokens=asked_for), first, strict=True))
    written: dict[int, list[int]] = {uid: [] for uid in prompts}
    worst, together = 0.0, 0
    while responses := generator.next_generated():
        together = max(together, len(responses))
        for one in responses:
            so_far = prompts[one.uid] + written[one.uid]
            alone = centred(model(mx.array([so_far])))[:, -1]
            worst = max(worst, off(centred(one.logprobs)[None], alone))
            written[one.uid].append(int(one.token))
        for prompt in late:
            (uid,) = generator.insert([prompt], max_tokens=[TOKENS])
            prompts[uid], written[uid] = prompt, []
        late = []
    assert together == len(prompts), "they were never in one batch"
    return worst


def beside(model: Any) -> float:
    return batched(model, ids_of(*BESIDE), [])


def joins(model: Any) -> float:
    short, long = ids_of(*BESIDE)
    return batched(model, [long], [short])


def rollback(model: Any) -> float:
    """A prompt, and a first continuation in its cache; trimmed to the prompt, and a second one."""
    prompt, first, second = ids_of(*LENGTHS)
    cache = make_prompt_cache(model)
    for tokens in (prompt, first):
        mx.eval(model(mx.array([tokens]), cache=cache))
    if not can_trim_prompt_cache(cache):
        raise Refuses("cannot be trimmed")
    trim_prompt_cache(cache, len(first))
    got = centred(model(mx.array([second]), cache=cache))[0]
    return off(got, centred(model(mx.array([prompt + second])))[0, len(prompt) :])


QUESTIONS: dict[str, Callable[[Any], float]] = {
    "right": padded_right,
    "pieces": in_pieces,
    "beside": beside,
    "joins": joins,
    "rollback": rollback,
}


def asked(model: Any) -> dict[str, str]:
    """The answer to each question, by column."""
    answers = {}
    for column, question in QUESTIONS.items():
        try:
            answers[column] = answer(question(model))
        except Refuses as error:
            answers[column] = f"refuses ({error})"
        except Exception as error:  # whatever the library raises is its answer
            answers[column] = f"refuses ({type(error).__name__})"
    return answers


def prepare() -> None:
    mx.set_default_device(mx.cpu)
