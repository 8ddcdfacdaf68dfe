"""The proof on symbols: it holds for the code as it is, and finds every fault that is planted."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from minise import LanguageModel, Plan
from minise.checking import proof
from minise.checking.proof import prove
from minise.checking.symbols import Symbols, symbolic
from minise.engines import run_alone
from minise.layout import Tree
from minise.loading.config_json import config_from_dict
from minise.writing.generation import _Branches
from tests.checking.test_verify_faults import plant
from tests.support.faults import FAULTS
from tests.support.planted import PLANTED, WINDOWED
from tests.support.tiny import ALL_FAMILIES
from tests.support.verified import SHORT
from tools.prove import plan_of

# Faults of the arithmetic: every engine and the definition have them alike, and no token reads
# another one than it should. What symbols say of them is nothing; the goldens and parity do.
ARITHMETIC = {
    "swapped norms",
    "dropped key bias",
    "dropped value bias",
    "wrong epsilon",
    "norms narrowed to float32",
    "interleaved rotary pairs",
    "rotation the other way",
    "angles in the model's dtype",
}
# After the logits are read.
ANSWERS = {"null option outside the softmax", "the mean (Eq. 2) read literally"}
WINDOW_FAULTS = {"windows by index", "a window of one more", "a tree that forgets windows"}


def model(family: str, **changes: Any) -> LanguageModel:
    """A config alone: no weights and no tokenizer are needed."""
    config = replace(config_from_dict(ALL_FAMILIES[family]), **changes)
    nothing: Any = None
    return LanguageModel(family, config, nothing, nothing)


def random_plan(seed: int, branches: int = 5, most: int = 80) -> Plan:
    """Branches that begin with parts of one another, some over the end of a block of attention."""
    draw = random.Random(seed)
    texts = [draw.choices(range(50, 280), k=draw.randrange(1, most))]
    while len(texts) < branches:
        begun = texts[-1][: draw.randrange(len(texts[-1]) + 1)]
        texts.append(begun + draw.choices(range(50, 280), k=draw.randrange(1, most)))
    return plan_of(draw.choices(range(50, 280), k=draw.randrange(70)), texts)


# Short, for many runs: branches that begin alike, and labels in no order.
SHARED = plan_of(
    [*range(30, 36)], [[*range(60, 72)], [*range(60, 67), *range(100, 106)], [61, *range(120, 129)]]
)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_every_family_is_proved_with_its_windows_norms_and_biases(family: str) -> None:
    for plan in (SHORT, random_plan(1)):
        proof = prove(model(family), plan)
        assert proof.passed, proof.departures
        assert set(proof.rows) == {"dense", "tree", "separate", "plain"}
        # Embedding, three layers and the final norm of each token, and a row of label logits.
        assert proof.rows["dense"] == 5 * proof.tokens + proof.branches
        assert proof.rows["tree"] == 3 * proof.tokens + 3 * proof.branches


@pytest.mark.parametrize("fault", [*PLANTED, *FAULTS])
def test_a_fault_is_found_if_it_touches_layout_mask_position_reader_or_readout(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    windowed = fault in WINDOWED | WINDOW_FAULTS
    windows = (7, 7) if windowed else (None, 13)
    lm = model("qwen2", num_hidden_layers=2, sliding_windows=windows)
    if fault in PLANTED:
        PLANTED[fault](monkeypatch)
    else:
        plant(monkeypatch, fault)
    assert prove(lm, SHARED).passed == (fault in ARITHMETIC | ANSWERS)


@pytest.mark.parametrize(
    ("fault", "first"),
    [
        ("one token is another", "dense differs first in embedding, branch 2, token 12: "
         "it is token id 124, not 125"),
        ("one position in a group is off by one", "dense differs first in layer 0, branch 2, "
         "token 7: its position is 6, not 7"),
        ("a cell of the mask leaks to an end", "dense differs first in layer 0, branch 2, "
         "token 15: it may attend to token 17 of branch 0"),
        ("a cell of the mask is missing in a group", "dense differs first in layer 0, branch 2, "
         "token 11: it may not attend to token 10 of its own prompt"),
        ("an end is one row early", "dense differs first in label logits, branch 2, token 15: "
         "the branch is read at row 39, not at its end, row 40"),
        ("a cell is missing at an end of the tree", "tree differs first in layer 0, branch 2, "
         "token 15: its token, position and mask are right: what it reads or how it is read out "
         "is not"),
    ],
)  # fmt: skip
def test_the_first_difference_is_named(
    monkeypatch: pytest.MonkeyPatch, fault: str, first: str
) -> None:
    PLANTED[fault](monkeypatch)
    lm = model("llama", num_hidden_layers=2, sliding_windows=(None, None))
    assert str(prove(lm, SHARED).departures[0]) == first


def raw(x: Tensor) -> Tensor:
    return x.as_subclass(Tensor)


def test_text_that_grows_token_by_token_is_what_whole_runs_compute() -> None:
    """The growing tree of writing/, over the end of a block and with windows."""
    lm = model("qwen2")
    lm = replace(lm, decoder=symbolic(lm.config, Symbols))
    draw = random.Random(4)
    ids = [draw.choices(range(50, 280), k=k) for k in (3, 40, 62)]
    ids.append(ids[2][:50])
    with torch.inference_mode():
        tree = _Branches(lm.decoder)
        hidden = tree.start(ids)
        for _ in range(4):
            whole = torch.stack([raw(run_alone(lm, prompt)[-1]) for prompt in ids])
            assert torch.equal(raw(hidden), whole)
            new = draw.choices(range(50, 280), k=len(ids))
            ids = [[*prompt, token] for prompt, token in zip(ids, new, strict=True)]
            hidden = tree.step(new)


def test_a_layout_whose_mask_or_scores_do_not_fit_is_proved_in_the_other_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("minise.engines.free_bytes", lambda device: 100)
    proof = prove(model("llama"), SHARED)
    assert proof.passed
    assert set(proof.rows) == {"tree", "separate"}
    assert set(proof.not_run) == {"dense", "plain"}
    assert "free; use the engine tree" in proof.not_run["dense"]


def test_a_wrong_separate_run_is_said_to_be_one() -> None:
    words = proof._what(plan_of([7, 8], [[1, 2], [1, 3]]), "separate", 0, 1)
    assert words == "its separate run is not what is defined: masks, windows or calls of one prompt"


def test_a_layout_that_lacks_tokens_is_said_to_have_too_few(monkeypatch) -> None:
    plan, real = plan_of([7, 8], [[1, 2], [1, 3]]), proof.pack

    def short(*args: object, **kwargs: object) -> Tree:
        tree = real(*args, **kwargs)
        return Tree(tree.tokens[:5], tree.parents[:5], tree.positions[:5], tree.ends)

    assert "too few" not in proof._what(plan, "dense", 1, 3)
    monkeypatch.setattr(proof, "pack", short)
    words = proof._what(plan, "dense", 1, 3)
    assert words == "the layout has 5 tokens, too few for all branches"
