"""The logits after each prompt, by each engine, and what the engines refuse to run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from minise import (
    InputError,
    LanguageModel,
    Question,
    SelfEnsemble,
    Standard,
    branch_logits,
    self_ensemble,
    standard,
)
from minise.engines import check_scores_fit
from minise.memory import free_bytes


@pytest.mark.parametrize("engine", ["separate", "dense", "tree", "plain"])
def test_branch_logits_of_columns_are_those_of_the_vocabulary(
    lm: LanguageModel, engine: str
) -> None:
    prefix, branches, columns = [40, 41, 42], [[50, 51], [50, 52, 53], [60]], [9, 1, 280]
    every = branch_logits(lm, prefix, branches, engine)
    some = branch_logits(lm, prefix, branches, engine, columns)
    assert every.shape == (3, lm.config.vocab_size)
    assert (every[:, columns] - some).abs().max() <= 1e-12
    separate = branch_logits(lm, prefix, branches, "separate")
    assert (every - separate).abs().max() <= 1e-10


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
    lm: LanguageModel, engine: str, expected: list[tuple[int, int | None]]
) -> None:
    """Expected for each layer that runs: its tokens, and how many of them it computes in full, if
    not all. (Linear layers add rows up to a multiple of 8.)"""
    prefix, branches = [40, 41, 42], [[50, 51], [50, 52, 53], [60]]
    work: list[tuple[int, int | None]] = []
    real = lm.decoder.run

    def run(tokens, positions, attend, rows=None):
        def counting_attend(layer, q, k, v):
            work.append((k.shape[1], None if q.shape == k.shape[:2] + q.shape[2:] else q.shape[1]))
            return attend(layer, q, k, v)

        return real(tokens, positions, counting_attend, rows)

    lm.decoder.run = run
    try:
        branch_logits(lm, prefix, branches, engine)
    finally:
        del lm.decoder.run
    assert work == expected


def test_the_engine_plain_alone_uses_nothing_of_exact(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written as the definition, from the mask to the output matrix."""
    for name in ("forward", "read_ends", "logits"):
        monkeypatch.delattr(f"minise.exact.run.{name}")
    assert branch_logits(lm, [40, 41], [[50], [51]], "plain").shape == (2, lm.config.vocab_size)
    for engine in ("separate", "dense", "tree"):
        with pytest.raises(AttributeError):
            branch_logits(lm, [40, 41], [[50], [51]], engine)


class TestRefusals:
    def test_the_refusal_of_a_large_dense_mask_names_an_engine_that_fits(
        self, lm: LanguageModel, question: Question, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("minise.engines.free_bytes", lambda device: 10_000)
        with pytest.raises(InputError, match=r"tokens need a mask of .* use the engine tree"):
            self_ensemble(lm, question, engine="dense")
        with pytest.raises(InputError, match=r"need a mask and scores of .* use the engine tree"):
            self_ensemble(lm, question, engine="plain")
        assert self_ensemble(lm, question, engine="tree")
        assert free_bytes(torch.device("cpu")) is not None

    def test_a_mask_and_its_scores_may_take_all_free_memory_but_no_more(
        self, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A byte for each cell; in each head a score before the softmax and one after it, of four
        bytes or, in float64, eight."""
        heads = lm.config.num_attention_heads
        for dtype, size in ((torch.bfloat16, 4), (torch.float32, 4), (torch.float64, 8)):
            monkeypatch.setattr(type(lm.decoder), "dtype", dtype)
            needed = 30**2 * (1 + 2 * heads * size)
            monkeypatch.setattr("minise.engines.free_bytes", lambda device, n=needed: n)
            check_scores_fit(lm, 30)
            monkeypatch.setattr("minise.engines.free_bytes", lambda device, n=needed: n - 1)
            with pytest.raises(InputError, match=r"30 packed tokens need a mask and scores of 900"):
                check_scores_fit(lm, 30)

    def test_an_unknown_engine_preset_or_grouping_is_refused(
        self, lm: LanguageModel, question: Question
    ) -> None:
        with pytest.raises(InputError, match='engine "fast" is unknown; use one of separate'):
            self_ensemble(lm, question, engine="fast")
        with pytest.raises(InputError, match='preset "draft" is unknown; use one of paper'):
            self_ensemble(lm, question, preset="draft")
        with pytest.raises(InputError, match='grouping "best" is unknown'):
            self_ensemble(lm, question, grouping="best")

    @pytest.mark.parametrize("engine", ["separate", "dense", "tree"])
    def test_a_prompt_beyond_the_models_positions_is_refused(
        self, lm: LanguageModel, engine: str
    ) -> None:
        limit = lm.config.max_position_embeddings
        fits, longer = [40] * (limit - 1), [40] * limit
        branch_logits(lm, fits, [[41]], engine)
        with pytest.raises(InputError, match=f"{limit + 1} tokens, but .* positions for {limit}"):
            branch_logits(lm, longer, [[41]], engine)

    def test_a_packed_sequence_may_be_longer_than_the_positions(
        self, lm: LanguageModel, question: Question
    ) -> None:
        """Positions restart after the question, so their number bounds a prompt, not the pack."""
        prefix, branches = [40] * 20, [[50 + i] * 15 for i in range(80)]
        assert lm.config.max_position_embeddings < 20 + 80 * 15
        packed = branch_logits(lm, prefix, branches, "dense")
        assert (packed - branch_logits(lm, prefix, branches, "separate")).abs().max() <= 1e-10

    @pytest.mark.parametrize("method", [SelfEnsemble(2, 2), Standard()])
    def test_a_text_far_too_long_is_refused_before_its_prompts_are_written(
        self, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, method: Any
    ) -> None:
        monkeypatch.setattr("minise.method.write_prompts", None)
        for long in (Question("Q" * 5000, ["a", "b"]), Question("Q", ["a", "b" * 5000])):
            with pytest.raises(InputError, match="has positions for 1024"):
                method.plan(lm, long, 0)

    def test_tokens_beyond_the_vocabulary_are_refused(self, lm: LanguageModel) -> None:
        with pytest.raises(InputError, match="token id 288 is beyond the vocabulary"):
            branch_logits(lm, [1], [[288]])

    def test_a_group_with_more_choices_than_labels_is_refused(self, lm: LanguageModel) -> None:
        many = Question("Q", [f"choice {i}" for i in range(27)])
        with pytest.raises(InputError, match="only 26 labels"):
            standard(lm, many)
        with pytest.raises(InputError, match="only 26 labels"):
            self_ensemble(lm, many, group_size=26, grouping=lambda *_: pytest.fail("drawn"))
        assert len(self_ensemble(lm, many, group_size=25, trials=1).groups) == 2


def test_a_model_is_one_line_where_it_is_printed(lm: LanguageModel) -> None:
    assert repr(lm).startswith(f"LanguageModel(name={lm.name!r}, config=Config(")
    assert "\n" not in repr(lm)
    assert "decoder" not in repr(lm)
    assert "tokenizer" not in repr(lm)
