"""The study that puts states of one run into another."""

from __future__ import annotations

import pytest
import torch

from minise import LanguageModel, load
from minise.attention import masked_attention
from minise.data.miniature import evaluation_questions
from minise.layout import causal_mask

pytest.importorskip("scipy")
pytest.importorskip("sklearn")

from tools.studies import patching
from tools.studies.patching import REGIONS, cells, flipped, is_right, make_pair


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return load("weights/tiny-llama")


@pytest.fixture(scope="module")
def pair(lm: LanguageModel) -> patching.Pair:
    pairs = (make_pair(lm, one) for one in evaluation_questions(30, 4, seed=0))
    return next(pair for pair in pairs if pair is not None and is_right(lm, pair))


def test_the_second_prompt_is_the_first_with_two_lines_exchanged(
    lm: LanguageModel, pair: patching.Pair
) -> None:
    decode = lm.tokenizer.decode
    right, wrong = pair.answers
    question, *lines, cue = decode(pair.ids.tolist()).split("\n")
    texts = [line[4:] for line in lines]
    texts[right], texts[wrong] = texts[wrong], texts[right]
    swapped = [line[:4] + text for line, text in zip(lines, texts, strict=True)]
    assert decode(pair.swapped.tolist()) == "\n".join([question, *swapped, cue])
    changed = (pair.ids != pair.swapped).nonzero().flatten().tolist()
    assert {*changed} <= {*pair.regions["choices"]}


def test_each_row_is_in_one_region(lm: LanguageModel, pair: patching.Pair) -> None:
    rows = [row for region in REGIONS for row in pair.regions[region]]
    assert sorted(rows) == list(range(len(pair.ids)))
    cue = lm.tokenizer.decode(pair.ids[pair.regions["cue"] + pair.regions["end"]].tolist())
    assert cue == "Answer:"


def test_all_rows_of_the_second_run_give_its_answer_and_none_leaves_the_first(
    lm: LanguageModel, pair: patching.Pair
) -> None:
    assert is_right(lm, pair)
    every = {region: list(range(len(pair.ids))) for region in REGIONS}
    none: dict[str, list[int]] = {region: [] for region in REGIONS}
    for regions, expected in ((every, True), (none, False)):
        changed = patching.Pair(**{**vars(pair), "regions": regions})
        assert flipped(lm, changed) == dict.fromkeys(REGIONS, [expected] * 4)
    # After the last layer only the last token is read.
    flips = flipped(lm, pair)
    assert [flips[region][-1] for region in REGIONS] == [False, False, True, False]
    assert not any(layer._forward_hooks for layer in lm.decoder.model.layers)


def test_a_patch_changes_the_rows_of_its_region_after_its_layer_alone(
    lm: LanguageModel, pair: patching.Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another way: the layers written out, one patch at a time."""
    real, seen = patching.run, []
    monkeypatch.setattr(patching, "run", lambda lm, ids: seen.append(real(lm, ids)) or seen[-1])
    with torch.inference_mode():
        flipped(lm, pair)
        batch = seen[-1]
        L = lm.config.num_hidden_layers
        states = streams(lm, pair.swapped)
        for place, region in enumerate(REGIONS):
            for layer in range(L):
                stream = streams(lm, pair.ids)[layer]
                stream[pair.regions[region]] = states[layer][pair.regions[region]]
                for block in lm.decoder.model.layers[layer + 1 :]:
                    stream = step(lm, block, stream)
                end = lm.decoder.model.norm(stream)[-1]
                torch.testing.assert_close(batch[place * L + layer], end, rtol=1e-4, atol=1e-4)


def step(lm: LanguageModel, block: torch.nn.Module, stream: torch.Tensor) -> torch.Tensor:
    T = len(stream)
    angles = lm.decoder.model.rotary_emb(torch.arange(T), stream.dtype)
    return block(stream, angles, lambda q, k, v: masked_attention(q, k, v, causal_mask(T)), None)


def streams(lm: LanguageModel, ids: torch.Tensor) -> list[torch.Tensor]:
    stream, kept = lm.decoder.model.embed_tokens(ids), []
    for block in lm.decoder.model.layers:
        stream = step(lm, block, stream)
        kept.append(stream)
    return kept


def test_shares_are_of_questions_and_intervals_of_facts() -> None:
    one, other = ({region: [True, False] for region in REGIONS} for _ in range(2))
    other["end"] = [True, True]
    rows = cells([("a", one), ("a", one), ("b", other), ("c", other)], ["tiny", "4", "4 of 9"])
    assert [row[3] for row in rows] == list(REGIONS)
    assert rows[0][4:] == ["100.0 [43.9, 100.0]", "0.0 [0.0, 56.1]"]  # Wilson's, of 3 facts
    assert rows[2][5] == "50.0 [0.0, 100.0]"
