"""The logits after each prompt, by each engine: from which layers, and with how much work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from minise import Decoder, LanguageModel, branch_logits, pack
from minise.engines import ENGINES, layout_ends, read_logits, token_counts
from minise.equal_bits.layers import FixedLinear
from minise.layout import causal_mask
from tests.support.tiny import FAMILIES, write_checkpoint

PREFIX, BRANCHES = [40, 41, 42], [[50, 51], [50, 52, 53], [60]]


@pytest.mark.parametrize("engine", ENGINES)
def test_branch_logits_are_those_of_separate_runs(lm: LanguageModel, engine: str) -> None:
    every = branch_logits(lm, PREFIX, BRANCHES, engine)
    assert every.shape == (3, lm.config.vocab_size)
    for row, branch in zip(every, BRANCHES, strict=True):
        T = 3 + len(branch)
        hidden = lm.decoder(torch.tensor(PREFIX + branch), torch.arange(T), causal_mask(T))
        assert (row - lm.decoder.logits(hidden[-1])).abs().max() <= 1e-10
    columns = [9, 1, 280]
    some = branch_logits(lm, PREFIX, BRANCHES, engine, columns)
    assert (every[:, columns] - some).abs().max() <= 1e-12


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("separate", [(5, None)] * 3 + [(6, None)] * 3 + [(4, None)] * 3),
        ("dense", [(9, None)] * 3),
        ("plain", [(9, None)] * 3),
        ("tree", [(8, None), (8, None), (8, 3)]),
    ],
)
def test_each_engine_runs_the_expected_numbers_of_tokens(
    lm: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    expected: list[tuple[int, int | None]],
) -> None:
    """Expected for each layer that runs: its tokens, and how many of them it computes in full, if
    not all."""
    work: list[tuple[int, int | None]] = []
    real = Decoder.run

    def run(decoder, tokens, positions, attend, rows=None):
        def counting_attend(layer, q, k, v):
            work.append((k.shape[1], None if q.shape[1] == k.shape[1] else q.shape[1]))
            return attend(layer, q, k, v)

        return real(decoder, tokens, positions, counting_attend, rows)

    monkeypatch.setattr(Decoder, "run", run)
    branch_logits(lm, PREFIX, BRANCHES, engine)
    assert work == expected
    first = [tokens for tokens, _ in work[:: lm.config.num_hidden_layers]]
    assert sum(first) == token_counts(PREFIX, BRANCHES)[engine]


def test_any_layout_is_run_under_its_mask_as_it_is(lm: LanguageModel) -> None:
    layout = pack(PREFIX, BRANCHES)
    dense = branch_logits(lm, PREFIX, BRANCHES, "dense")
    assert torch.equal(read_logits(lm, layout_ends(lm, layout)), dense)
    assert torch.equal(read_logits(lm, layout_ends(lm, pack(PREFIX, BRANCHES, tree=True))), dense)
    some = read_logits(lm, layout_ends(lm, layout), [7, 3])
    assert torch.equal(some, branch_logits(lm, PREFIX, BRANCHES, "dense", [7, 3]))
    # Tokens that see themselves only, at position 0, are prompts of one token.
    blind = layout.replace(mask=torch.eye(9).bool(), positions=torch.zeros(9, dtype=torch.int64))
    expected = branch_logits(lm, [], [branch[-1:] for branch in BRANCHES])
    assert torch.equal(read_logits(lm, layout_ends(lm, blind)), expected)


class TestTheTwoDecoders:
    """The plain decoder is what model.py shows. The refined one computes with the same numbers."""

    def test_what_is_printed_is_what_was_read(self, lm: LanguageModel) -> None:
        shown = str(lm.decoder)
        assert "(q_proj): Linear(in_features=32, out_features=32" in shown
        assert "Fixed" not in shown
        assert {type(x) for x in lm.decoder.modules() if "Linear" in type(x).__name__} == {
            nn.Linear
        }

    def test_they_share_every_parameter(self, lm: LanguageModel) -> None:
        mine = dict(lm.decoder.named_parameters())
        refined = lm.refined
        assert refined is lm.refined is not lm.decoder
        assert {id(x) for x in refined.parameters()} == {id(x) for x in mine.values()}
        addresses = {x.data_ptr() for x in mine.values()}
        assert {x.data_ptr() for x in refined.parameters()} == addresses
        assert sum(isinstance(x, FixedLinear) for x in refined.modules()) == 7 * 3

    def test_only_plain_runs_the_plain_one(
        self, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is written as the definition, from the mask to the output matrix."""
        ran: list[Decoder] = []
        real = Decoder.run

        def run(decoder, *arguments, **named):
            ran.append(decoder)
            return real(decoder, *arguments, **named)

        monkeypatch.setattr(Decoder, "run", run)
        for engine in ENGINES:
            ran.clear()
            branch_logits(lm, PREFIX, BRANCHES, engine)
            wanted = lm.decoder if engine == "plain" else lm.refined
            assert ran
            assert all(decoder is wanted for decoder in ran)
        for name in ("forward", "read_ends", "logits"):
            monkeypatch.delattr(f"minise.equal_bits.run.{name}")
        assert branch_logits(lm, PREFIX, BRANCHES, "plain").shape == (3, lm.config.vocab_size)
        for engine in ("separate", "dense", "tree"):
            with pytest.raises(AttributeError):
                branch_logits(lm, PREFIX, BRANCHES, engine)


PEAK = """
import resource, sys
from minise import branch_logits, load
lm = load(sys.argv[1])
branch_logits(lm, [5], [[6] * 9])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
branch_logits(lm, [40, 41] * 4000, [[50, 51], [60]])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kB on Linux")
def test_a_prompt_of_8000_tokens_takes_memory_for_its_tokens_not_for_their_pairs(
    tmp_path: Path,
) -> None:
    """77 MiB. Of masks of all pairs, one for each size of call, it took 3.0 GiB."""
    facts = {**FAMILIES["llama"], "num_hidden_layers": 2, "max_position_embeddings": 10_000}
    folder = write_checkpoint(tmp_path / "model", facts)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(folder)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 300_000  # kB
