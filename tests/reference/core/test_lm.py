"""A language model answers prompts with the logits of their labels, and the total beside them."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from minise import Decoder, InputError, LocalModel, Prompts, branch_logits
from minise.engines import ENGINES, NamedEngine
from minise.lm import check_finite
from minise.prompts import Limits, check_prompts

PREFIX, BRANCHES = [40, 41, 42], [[50, 51], [50, 52, 53], [60]]
LABELS = [[9, 1, 280], [1], [280, 9]]


@pytest.mark.parametrize("engine", ENGINES)
def test_each_prompt_gets_the_logits_of_its_own_labels_and_the_total(
    lm: LocalModel, engine: str
) -> None:
    lm = lm.with_engine(engine)
    whole = branch_logits(lm, PREFIX, BRANCHES).double()
    answers = lm.logits(Prompts(PREFIX, BRANCHES, LABELS))
    for row, ids, one in zip(whole, LABELS, answers, strict=True):
        assert (one.labels - row[ids]).abs().max() <= 1e-12
        assert (one.total - row.logsumexp(dim=0)).abs() <= 1e-12
        assert (one.log_probabilities - row.log_softmax(dim=0)[ids]).abs().max() <= 1e-12
        assert one.labels.dtype == one.total.dtype == torch.float64


def test_many_prompts_have_the_totals_of_few(qwen: LocalModel) -> None:
    """The logits of the whole vocabulary are made for 64 prompts at a time."""
    branches = [[50 + i] for i in range(130)]
    many = qwen.logits(Prompts(PREFIX, branches, [[7]] * 130))
    for i in (0, 63, 64, 129):
        [one] = qwen.logits(Prompts(PREFIX, [branches[i]], [[7]]))
        assert (one.total - many[i].total).abs() <= 1e-12


def overflowing(decoder: Decoder) -> Decoder:
    huge = deepcopy(decoder)
    huge.model.embed_tokens.weight *= 1e300
    return huge


REFUSED: dict[str, tuple[Callable[[LocalModel], object], str]] = {
    "no branches": (lambda lm: Prompts([1], [], []), "no token"),
    "an empty prompt": (lambda lm: Prompts([], [[1], []], [[1], [1]]), "no token"),
    "a prompt without labels": (lambda lm: Prompts([1], [[2], [3]], [[1], []]), "labels"),
    "labels of another number of prompts": (lambda lm: Prompts([1], [[2]], []), "0 lists"),
    "a negative token": (lambda lm: Prompts([1], [[-2]], [[1]]), "-2"),
    "a negative label": (lambda lm: Prompts([1], [[2]], [[-1]]), "-1"),
    "an unknown engine": (lambda lm: branch_logits(lm, [1], [[2]], "fast"), '"fast"'),
    "a token beyond the vocabulary": (lambda lm: branch_logits(lm, [1], [[288]]), "288"),
    "a prompt beyond the positions": (lambda lm: branch_logits(lm, [4] * 1024, [[5]]), "1025"),
    "prompts beyond the positions": (
        lambda lm: lm.logits(Prompts([4] * 1024, [[5]], [[1]])),
        "1025",
    ),
    "logits that overflow": (
        lambda lm: check_finite(lm, torch.tensor([[1.0, torch.inf]]), torch.ones(1, 4)),
        "torch.float32",
    ),
    "a run that overflows": (
        lambda lm: branch_logits(replace(lm, decoder=overflowing(lm.decoder)), [1], [[2]]),
        "torch.float64",
    ),
    "a hidden state that overflowed": (
        lambda lm: check_finite(lm, torch.ones(2, 2), torch.tensor([[1.0, 0.0], [0.0, 0.0]])),
        "torch.float32",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_one_line_that_names_it(qwen: LocalModel, name: str) -> None:
    act, offending = REFUSED[name]
    with pytest.raises(InputError) as caught:
        act(qwen)
    message = str(caught.value)
    assert offending in message
    assert "\n" not in message
    assert len(message) < 400


def test_what_is_just_allowed_passes(qwen: LocalModel) -> None:
    check_finite(qwen, torch.zeros(2, 2), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    check_prompts(qwen, Prompts([4] * 1023, [[287]], [[0, 287]]))
    branch_logits(qwen, [4] * 1023, [[287]])
    assert qwen.limits == Limits(positions=1024, vocabulary=288)


def test_an_engine_that_gives_other_rows_is_refused_by_its_shape(lm: LocalModel) -> None:
    prompts = ([5, 6, 7], [[8], [9, 10]])
    wrongs = (
        lambda hidden: hidden[None],
        lambda hidden: hidden[:1],
        lambda hidden: hidden.long(),
        lambda hidden: hidden.numpy(),
        lambda hidden: None,
    )
    for wrong in wrongs:
        engine = lambda *given, wrong=wrong: wrong(ENGINES["tree"](*given))  # noqa: E731
        with pytest.raises(InputError, match=r"engine own gives .*; give .*\(2, D\)"):
            lm.with_engine(NamedEngine("own", engine)).hidden_at_ends(*prompts)
