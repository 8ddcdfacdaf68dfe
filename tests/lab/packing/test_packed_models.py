"""The oracle of `check` and `guard`: rows in every form that collators and trainers make, right and
wrong, in tiny random models of ten classes of the library transformers and three with axes of
positions, in each of its attentions. What each row is comes out of the model itself: logits, and
losses and gradients where it has labels, beside those of the documents alone, in float32. `guard`
is asked of copies in bfloat16 and float16, too, and the gradients of the one in bfloat16 are held
to the same, by its own rounding.

    python -m tests.lab.packing.test_packed_models

prints the counts that docs/check.md has; names of classes behind it: of these alone.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import minise
from tests.lab.packing import ways
from tests.lab.packing.rows import TRUNK, Case, cases, cases_with_axes

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NAMES = ("llama", "mistral", "qwen2", "qwen3", "olmo2", "mixtral", "gpt_oss", "gpt2")
NAMES += ("opt", "biogpt")
WITH_AXES = ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL")
GUARDS = ("guard, float32", "guard, bfloat16", "guard, float16")
MOST = 1e-3  # of a token's logits, a loss or a gradient, in float32
LIMIT = 0.8  # of a gradient's distance in bfloat16, in what rounding does to it
OF_TRAINERS = ("completion_mask", "ref_chosen_logps", "ref_rejected_logps", "margin")
NOT_OF_MODELS = ("labels", "seq_idx", *OF_TRAINERS)


def with_axes(name: str) -> Any:
    """A tiny model of text and images, every parameter random."""
    text = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 288}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    text["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "mrope_section": [1, 1, 2],
    }
    vision = {"depth": 1, "hidden_size": 32, "embed_dim": 32, "num_heads": 2, "out_hidden_size": 32}
    library = ways.library
    config = getattr(library, f"{name}Config")(text_config=text, vision_config=vision)
    torch.manual_seed(0)
    model = getattr(library, f"{name}ForConditionalGeneration")(config).eval()
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        width = 0.3 if parameter.dim() > 1 else 0.1
        parameter.data += width * torch.randn(parameter.shape, generator=draw)
    return model


# ---- what comes out


@dataclass
class Truth:
    """logits: those of all prompts are equal. loss: so are the loss, and the gradients, if there
    are labels."""

    logits: bool
    loss: bool


@dataclass
class Runs:
    """Of a call and its prompts alone. paths: the row and the tokens of each prompt. alone: its
    logits. packed: (rows, T, V)."""

    paths: list[tuple[int, list[int]]]
    alone: list[Tensor]
    packed: Tensor


def run(model: Any, case: Case) -> Runs | None:
    """None if the model refuses the call."""
    call = {name: value for name, value in case.call.items() if name not in NOT_OF_MODELS}
    mask = call.get("attention_mask")
    if mask is not None and mask.is_floating_point():
        call["attention_mask"] = mask.to(model.dtype).clamp(min=torch.finfo(model.dtype).min)
    with torch.set_grad_enabled("labels" in case.call):
        try:
            packed = model(**call).logits
        except Exception:  # whatever the library raises
            return None
        found = Runs([], [], packed)
        for row, prompts in enumerate(case.prompts):
            for tokens in prompts:
                ids = call["input_ids"][row, tokens][None]
                found.paths.append((row, tokens))
                found.alone.append(model(input_ids=ids, use_cache=False).logits[0])
    return found


def truth(model: Any, case: Case) -> Truth:
    """In float32. A model that refuses the call gives nothing that is equal."""
    found = run(model, case)
    if found is None:
        return Truth(False, False)
    logits = True
    for (row, tokens), expected in zip(found.paths, found.alone, strict=True):
        logits = logits and near(expected, found.packed[row, tokens])
    if "labels" not in case.call:
        return Truth(logits, True)
    given, meant = losses(case, found)
    loss = near(meant[None, None], given[None, None])
    loss = loss and near(gradients(model, meant), gradients(model, given))
    return Truth(logits, loss)


def losses(case: Case, found: Runs) -> tuple[Tensor, Tensor]:
    """The loss of the call, and that of its prompts alone."""
    given = torch.zeros(())
    for logits, labels in zip(found.packed, case.call["labels"], strict=True):
        given = given + loss_of(logits, labels)
    meant = torch.zeros(())
    for (row, tokens), logits in zip(found.paths, found.alone, strict=True):
        targets = case.call["input_ids"][row, tokens].clone()
        if "trunk" in case.meant:
            targets[:TRUNK] = -100
        meant = meant + loss_of(logits, targets)
    return given, meant


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum over targets, each predicted by the row before."""
    return torch.nn.functional.cross_entropy(
        logits[:-1].float(), labels[1:], ignore_index=-100, reduction="sum"
    )


def gradients(model: Any, loss: Tensor) -> Tensor:
    """(1, all parameters)."""
    parameters = [one for one in model.parameters() if one.requires_grad]
    options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    parts = torch.autograd.grad(loss, parameters, **options)
    return torch.cat([part.flatten().double() for part in parts])[None]


def rounding_of_gradients(model: Any, narrow: Any, case: Case) -> float | None:
    """How far the gradients of a call in bfloat16 are from those of its prompts alone in bfloat16,
    in what is measured of rounding: those alone, from the same in float32."""
    wide, found = run(model, case), run(narrow, case)
    if wide is None or found is None:
        return None
    given, meant = losses(case, found)
    right = gradients(narrow, meant)
    rounding = (right - gradients(model, losses(case, wide)[1])).norm()
    return float((gradients(narrow, given) - right).norm() / rounding)


def near(expected: Tensor, given: Tensor) -> bool:
    expected, given = expected.detach().double(), given.detach().double()
    return bool(((expected - given).norm(dim=-1) <= MOST * expected.norm(dim=-1)).all())


# ---- what is said


def checked(case: Case, model: Any) -> minise.Report:
    """By `check`, of this model or (None) of any."""
    call = dict(case.call)
    if "attention_mask" not in call and "cu_seq_lens_q" not in call:
        call["restarts"] = True
    if model is None and call.get("use_cache"):
        del call["use_cache"]  # which is refused beside restarts
    try:
        return minise.check(**case.meant, **call, model=model)
    except minise.InputError:
        return minise.check(documents=[1], model=None, attention_mask=[[0]])  # refused: not equal


def guarded(case: Case, model: Any) -> str:
    """By `guard`: "equal", "not equal" or "no verdict"."""
    left_out = ("labels", *OF_TRAINERS)
    call = {name: value for name, value in case.call.items() if name not in left_out}
    mask = call.get("attention_mask")
    if mask is not None and mask.is_floating_point():
        low = torch.finfo(model.dtype).min
        call["attention_mask"] = torch.where(mask < 0, low, 0.0).to(model.dtype)
    watch = minise.guard(model, lambda words, again: None, documents=case.guarded)
    try:
        with torch.no_grad():
            model(**call)
    except Exception:
        return "no verdict"  # the model refuses the call
    finally:
        watch.remove()
    if watch.mismatches:
        return "not equal"
    return "equal" if watch.compared else "no verdict"


@dataclass
class Counts:
    """By who said it ("check", "check, this model", "guard, bfloat16", ...), what was said, and
    what came out. wrong: said equal and was not. too_strict: the other way. gradients: how far
    those in bfloat16 are, in rounding, of calls that came out equal in float32, and of others."""

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    too_strict: list[str] = field(default_factory=list)
    gradients: dict[bool, list[tuple[float, str]]] = field(
        default_factory=lambda: {True: [], False: []}
    )

    def add(self, who: str, said: str, is_equal: bool, what: str, why: Callable[[], str]) -> None:
        self.counts[who, said, "equal" if is_equal else "not equal"] += 1
        if said == "equal" and not is_equal:
            self.wrong.append(f"{who}: {what}: {why()}")
        if said == "not equal" and is_equal:
            self.too_strict.append(f"{who}: {what}: {why()}")


def reasons(report: Any) -> str:
    return "; ".join(finding.words for finding in report.findings)


def judge(name: str, counts: Counts) -> None:
    forms = cases_with_axes if name in WITH_AXES else cases
    model = with_axes(name) if name in WITH_AXES else ways.tiny(name)
    narrow = copy.deepcopy(model).to(torch.bfloat16)
    half = copy.deepcopy(model).to(torch.float16)
    for attention in ways.attentions_of(model):
        for one in (model, narrow, half):
            ways.set_attention(one, attention)
        for form, case in forms(attention):
            what = f"{name}, {attention}, {form}"
            out = truth(model, case)
            is_equal = out.logits and out.loss
            report = checked(case, model)
            said = "equal" if report.equal else "not equal" if report.findings else "not judged"
            counts.add("check, this model", said, is_equal, what, lambda one=report: reasons(one))
            report = checked(case, None)
            said = "equal" if report.equal else "not equal"
            if report.equal and report.conditions:
                said = "equal on a condition"
            counts.add("check, any model", said, is_equal, what, lambda one=report: reasons(one))
            for dtype, one in (("float32", model), ("bfloat16", narrow), ("float16", half)):
                verdict = guarded(case, one)
                counts.add(f"guard, {dtype}", verdict, out.logits, what, str)
            if "labels" in case.call:
                apart = rounding_of_gradients(model, narrow, case)
                if apart is not None:
                    counts.gradients[is_equal].append((apart, what))


def all_counts(names: tuple[str, ...] = NAMES + WITH_AXES) -> Counts:
    counts = Counts()
    with ways.flash_kernel():
        for name in names:
            judge(name, counts)
    return counts


def test_equal_is_said_only_where_it_comes_out() -> None:
    counts = all_counts()
    assert counts.wrong == []
    guards = [line for line in counts.too_strict if line.startswith("guard")]
    assert guards == []
    for who in ("check, this model", *GUARDS):
        assert counts.counts[who, "equal", "equal"] > 100
        assert counts.counts[who, "not equal", "not equal"] > 100
    assert max(counts.gradients[True])[0] < LIMIT < min(counts.gradients[False])[0]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found = all_counts(tuple(sys.argv[1:]) or NAMES + WITH_AXES)
    for key, count in sorted(found.counts.items()):
        print(count, *key, sep=" | ")
    for is_equal, apart in found.gradients.items():
        if apart:
            print(len(apart), "gradients in bfloat16, equal" if is_equal else "not equal")
            print(*min(apart), *max(apart))
    for line in (*found.wrong, *found.too_strict):
        print(line)
