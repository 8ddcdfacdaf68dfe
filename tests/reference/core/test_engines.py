"""The hidden states after each prompt, by each engine: the same numbers, with less work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from minise import Decoder, InputError, LocalModel, SelfEnsemble, ask, branch_logits, pack
from minise.engines import ENGINES, NamedEngine, token_counts
from minise.layout import causal_mask
from tests.reference.support.tiny import FAMILIES, write_checkpoint

PREFIX, BRANCHES = [40, 41, 42], [[50, 51], [50, 52, 53], [60]]
EQUAL = ("tree", "packed", "separate")
ABLATIONS = ("without-mask", "without-positions")


@pytest.mark.parametrize("engine", EQUAL)
def test_branch_logits_are_those_of_separate_runs(lm: LocalModel, engine: str) -> None:
    every = branch_logits(lm, PREFIX, BRANCHES, engine)
    assert every.shape == (3, lm.config.vocab_size)
    for row, branch in zip(every, BRANCHES, strict=True):
        T = 3 + len(branch)
        hidden = lm.decoder(torch.tensor(PREFIX + branch), torch.arange(T), causal_mask(T))
        assert (row - lm.decoder.logits(hidden[-1])).abs().max() <= 1e-10


@pytest.mark.parametrize("count", [64, 150])
def test_many_prompts_that_are_one_token_are_answered(qwen: LocalModel, count: int) -> None:
    """More rows are read than there are tokens."""
    (expected,) = branch_logits(qwen, [7], [[]], "separate")
    for logits in branch_logits(qwen, [7], [[]] * count):
        assert (logits - expected).abs().max() <= 1e-10


def test_the_engine_of_the_model_is_the_default(lm: LocalModel) -> None:
    for engine in ENGINES:
        own = branch_logits(lm.with_engine(engine), PREFIX, BRANCHES)
        assert torch.equal(own, branch_logits(lm, PREFIX, BRANCHES, engine))


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_leaves_out_one_part_of_the_packed_sequence(lm: LocalModel, name: str) -> None:
    layout = pack(PREFIX, BRANCHES)
    T = len(layout.tokens)
    mask = causal_mask(T) if name == "without-mask" else layout.mask
    positions = torch.arange(T) if name == "without-positions" else layout.positions
    hidden = lm.decoder(layout.tokens, positions, mask)[layout.ends]
    ablated = branch_logits(lm, PREFIX, BRANCHES, name)
    assert (ablated - lm.decoder.logits(hidden)).abs().max() <= 1e-10
    whole = branch_logits(lm, PREFIX, BRANCHES, "packed")
    assert (ablated - whole).abs().max() > 1e-3


def test_an_answer_changes_with_an_ablation_and_with_no_other_engine(
    lm: LocalModel, question
) -> None:
    answers = {}
    for engine in ENGINES:
        answers[engine] = ask(lm.with_engine(engine), SelfEnsemble(2, 3), question).normalized
    for engine in EQUAL:
        assert (answers[engine] - answers["separate"]).abs().max() <= 1e-10
    for engine in ABLATIONS:
        assert (answers[engine] - answers["separate"]).abs().max() > 1e-4


def test_an_engine_of_ones_own_is_called_with_the_decoder_and_the_prompts(lm: LocalModel) -> None:
    def last_tokens_alone(decoder, prefix, branches) -> Tensor:
        layout = pack([], [branch[-1:] for branch in branches])
        return decoder(layout.tokens, layout.positions, layout.mask, layout.ends)

    own = lm.with_engine(NamedEngine("own.py:last_tokens_alone", last_tokens_alone))
    expected = branch_logits(lm, [], [[51], [53], [60]])
    assert (branch_logits(own, PREFIX, BRANCHES) - expected).abs().max() <= 1e-10
    with pytest.raises(InputError, match="use one of tree, packed, separate"):
        lm.with_engine("last_tokens_alone")


@pytest.mark.parametrize(
    ("engine", "layers"),
    [
        # For each layer that runs: its tokens, and how many of them are queries.
        ("separate", [(5, 5), (5, 5), (5, 1), (6, 6), (6, 6), (6, 1), (4, 4), (4, 4), (4, 1)]),
        ("packed", [(9, 9), (9, 9), (9, 3)]),
        ("without-mask", [(9, 9), (9, 9), (9, 3)]),
        ("without-positions", [(9, 9), (9, 9), (9, 3)]),
        ("tree", [(8, 8), (8, 8), (8, 3)]),
    ],
)
def test_each_engine_runs_as_many_tokens_as_its_count_says(
    lm: LocalModel, monkeypatch: pytest.MonkeyPatch, engine: str, layers: list[tuple[int, int]]
) -> None:
    """And the top layer computes the ends of the prompts alone."""
    work: list[tuple[int, int]] = []
    real = Decoder.run

    def run(decoder, tokens, positions, attend, rows=None):
        def counting_attend(layer, q, k, v):
            work.append((k.shape[1], q.shape[1]))
            return attend(layer, q, k, v)

        return real(decoder, tokens, positions, counting_attend, rows)

    monkeypatch.setattr(Decoder, "run", run)
    branch_logits(lm, PREFIX, BRANCHES, engine)
    assert work == layers
    tokens = [tokens for tokens, _ in work[:: lm.config.num_hidden_layers]]
    counts = token_counts(PREFIX, BRANCHES)
    assert sum(tokens) == counts.get(engine, counts["packed"])


def test_the_tokens_of_each_way_are_counted() -> None:
    assert token_counts(PREFIX, BRANCHES) == {"separate": 15, "packed": 9, "tree": 8}


PEAK = """
import resource, sys
from minise import branch_logits, load
lm = load(sys.argv[1])
branch_logits(lm, [5], [[6] * 9])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
branch_logits(lm, [40, 41] * 4000, [[50, 51], [60]])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kB on Linux")
def test_a_prompt_of_8000_tokens_takes_memory_for_one_mask_not_for_scores_of_all_pairs(
    tmp_path: Path,
) -> None:
    """The mask takes 64 MB, its chunks half of that. Scores of all pairs would take 3 GB."""
    facts = {**FAMILIES["llama"], "num_hidden_layers": 2, "max_position_embeddings": 10_000}
    folder = write_checkpoint(tmp_path / "model", facts)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(folder)],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 300_000  # kB
