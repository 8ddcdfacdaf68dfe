"""The causal classes of the installed transformers, tiny and random, each asked in seven ways what
becomes of a packed row. Needs the extras [test,parity]."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

from minise.layout import causal_mask
from tests.lab.packing import ways
from tests.lab.serving import zoo
from tools.sweep.answers import LENGTHS, SLOW, answer, off

COLUMNS = {
    "positions": "positions alone",
    "flattening": "flattening batch",
    "mask": "4-D mask",
    "branches": "branches, 4-D mask",
    "left": "padded left",
    "right": "padded right",
    "rollback": "cache rolled back",
}
Run = Callable[..., Tensor]
names = zoo.names


def versions() -> dict[str, str]:
    return {"transformers": transformers.__version__, "torch": torch.__version__}


def prepare() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)


def model_of(name: str) -> Any:
    """A tiny model in float32 whose states fade slowly. Raises what the library raises."""
    model = ways.tiny(name)
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("A_log"):
            parameter.data = SLOW + 0.3 * torch.randn_like(parameter)
    ways.set_attention(model, "sdpa" if model._supports_sdpa else "eager")
    return model


def title(name: str, model: Any) -> str:
    """The class, and what its config has of its own."""
    _, comma, variant = name.partition(", ")
    return type(model).__name__ + (f" ({variant})" if comma else "")


def ids_of(*lengths: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randint(5, 280, (1, length), generator=draw) for length in lengths]


# ---- the questions. Each: the answer, or what the library raises --------------------------------
def documents(run: Run, form: str) -> str:
    parts = ids_of(*LENGTHS)
    ids = torch.cat(parts, dim=1)
    right = torch.cat([run(input_ids=part) for part in parts], dim=1)
    if form == "flattening":
        collator = transformers.DataCollatorWithFlattening(
            return_flash_attn_kwargs=True, return_seq_idx=True
        )
        batch = dict(collator([{"input_ids": part[0].tolist()} for part in parts]))
        batch.pop("labels")
        got = run(**batch)
    else:
        call = ways.call_of("additive" if form == "mask" else "restarts", ids)
        call.pop("use_cache")
        got = run(**call)
    return answer(off(got, right), off(got, run(input_ids=ids)))


def branches(run: Run) -> str:
    trunk, one, other = ids_of(*LENGTHS)
    P, A, B = LENGTHS
    mask = causal_mask(P + A + B)
    mask[P + A :, P : P + A] = False
    additive = torch.where(mask, 0.0, torch.finfo(torch.float32).min)[None, None]
    where = torch.cat([torch.arange(P + A), torch.arange(P, P + B)])[None]
    ids = torch.cat([trunk, one, other], dim=1)
    got = run(input_ids=ids, position_ids=where, attention_mask=additive)[:, P + A :]
    right = run(input_ids=torch.cat([trunk, other], dim=1))[:, P:]
    one_text = run(input_ids=ids)[:, P + A :]
    return answer(off(got, right), off(got, one_text))


def padded(run: Run, side: str, takes_positions: bool) -> str:
    """The shortest of a batch of three, beside the same prompt alone."""
    rows, most = ids_of(*LENGTHS), max(LENGTHS)
    ids, mask = torch.zeros(3, most).long(), torch.zeros(3, most).long()
    for number, row in enumerate(rows):
        place = slice(most - row.shape[1], most) if side == "left" else slice(0, row.shape[1])
        ids[number, place], mask[number, place] = row[0], 1
    call = {"input_ids": ids, "attention_mask": mask}
    if takes_positions:
        call["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    got = run(**call)
    worst = 0.0
    for number, row in enumerate(rows):
        worst = max(worst, off(got[number][mask[number] == 1], run(input_ids=row)[0]))
    return answer(worst)


def rollback(model: Any) -> str:
    """A prompt, and a first continuation in its cache; cut back to the prompt, and a second one."""
    prompt, first, second = ids_of(*LENGTHS)
    right = model(input_ids=torch.cat([prompt, second], dim=1), use_cache=False).logits
    out = model(input_ids=prompt, use_cache=True)
    name = next((n for n in ("past_key_values", "cache_params") if getattr(out, n, None)), None)
    if name is None:
        return "gives no cache"
    cache = getattr(out, name)
    cache.activate_past_recording()
    model(input_ids=first, use_cache=True, **{name: cache})
    cache.crop(-first.shape[1])
    got = model(input_ids=second, use_cache=True, **{name: cache}).logits
    return answer(off(got, right[:, prompt.shape[1] :].double()))


@torch.no_grad()
def asked(model: Any) -> dict[str, str]:
    """The answer to each question, by column."""
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    def run(**call: Any) -> Tensor:
        return model(**call, use_cache=False).logits.double()

    questions: dict[str, Callable[[], str]] = {
        "positions": lambda: documents(run, "positions"),
        "flattening": lambda: documents(run, "flattening"),
        "mask": lambda: documents(run, "mask"),
        "branches": lambda: branches(run),
        "left": lambda: padded(run, "left", takes_positions),
        "right": lambda: padded(run, "right", takes_positions),
        "rollback": lambda: rollback(model),
    }
    answers = {}
    for column, ask in questions.items():
        try:
            answers[column] = ask()
        except Exception as error:  # whatever the library raises is its answer
            answers[column] = f"refuses ({type(error).__name__})"
    return answers
