"""The guard never says "equal" where it is not: rows that are hard to tell from right ones, and the
reasons for which there is no verdict."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import minise
from minise.lab.packing.changes import groups
from minise.lab.packing.guard import Guard
from minise.layout import causal_mask

transformers = pytest.importorskip("transformers")

WEIGHTS = Path(__file__).parents[3] / "weights" / "tiny-reasoner"
SHAPE = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 6, "vocab_size": 200}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}


def model(kind: str, seed: int = 0, dtype: Any = torch.bfloat16, **facts: Any) -> Any:
    """Every matrix is random, and so large that attention tells tokens apart."""
    config = transformers.AutoConfig.for_model(kind, **SHAPE | HEADS | EXPERTS | facts)
    torch.manual_seed(seed)
    made = transformers.AutoModelForCausalLM.from_config(config)
    draw = torch.Generator().manual_seed(seed)
    for one in made.parameters():
        if one.dim() > 1:
            one.data = torch.randn(one.shape, generator=draw) * 1.3 / one.shape[-1] ** 0.5
    return made.to(dtype).eval()


def call_of(
    made: Any, lengths: list[int], seed: int = 0, mask: Any = None, positions: Any = None
) -> dict[str, Any]:
    """A call that packs documents of these lengths; by another mask (T, T) or positions (T,)."""
    T = sum(lengths)
    if mask is None:
        mask = blocks(lengths)
    if positions is None:
        positions = torch.cat([torch.arange(length) for length in lengths])
    added = torch.where(mask, 0.0, torch.finfo(made.dtype).min).to(made.dtype)
    ids = torch.randint(5, 200, (1, T), generator=torch.Generator().manual_seed(seed))
    call = {"input_ids": ids, "position_ids": positions[None], "attention_mask": added[None, None]}
    return call | {"use_cache": False}


def blocks(lengths: list[int]) -> Tensor:
    """The mask by which each document of these lengths attends to itself alone."""
    T = sum(lengths)
    of = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    return causal_mask(T) & (of[:, None] == of)


def said(made: Any, call: dict[str, Any], **options: Any) -> Guard:
    """The guard of one call, which says nothing aloud."""
    watch = minise.guard(made, lambda words, again: None, **options)
    made(**call)
    watch.remove()
    return watch


ROWS = [[30, 25, 40], [100, 120, 80]]


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
def test_documents_that_see_each_other_are_told_from_rounding_with_experts(kind: str) -> None:
    """In bfloat16 rounding sends a token to another expert: it is off by all of its size."""
    for seed in range(4):
        made = model(kind, seed)
        lengths = ROWS[seed % 2]
        right = said(made, call_of(made, lengths, seed))
        assert right.compared == 3
        assert not right.mismatches
        leak = call_of(made, lengths, seed, mask=causal_mask(sum(lengths)))
        assert said(made, leak).mismatches or said(made, leak, documents=lengths).mismatches


@pytest.mark.parametrize("fault", ["border", "position", "one token seen"])
def test_one_token_at_a_wrong_place_is_told_from_rounding(fault: str) -> None:
    """In bfloat16 it moves most tokens by less than rounding does: weights that were trained."""
    made = transformers.AutoModelForCausalLM.from_pretrained(WEIGHTS, dtype=torch.bfloat16).eval()
    for seed in range(6):
        draw = random.Random(seed)
        low, high = [(15, 40), (80, 150)][seed % 2]
        lengths = [draw.randrange(low, high) for _ in range(3)]
        mask = blocks(lengths)
        positions = None
        if fault == "border":
            mask = blocks([lengths[0] + 1, lengths[1] - 1, lengths[2]])
        elif fault == "position":
            positions = torch.cat([torch.arange(length) for length in lengths])
            positions[4 - lengths[2] :] += 1  # from the fifth token of the last document on
        else:
            mask[lengths[0] :, lengths[0] - 1] = True
        call = call_of(made, lengths, seed, mask, positions)
        assert said(made, call, documents=lengths).mismatches
        right = said(made, call_of(made, lengths, seed), documents=lengths)
        assert right.compared == 3
        assert not right.mismatches


@pytest.mark.filterwarnings("ignore:guard. no verdict")
def test_one_cell_is_never_called_equal() -> None:
    """One token of 600 sees one that it should not: in bfloat16 less than rounding can do."""
    lengths = [200, 180, 220]
    for seed in range(2):
        made = model("llama", seed, num_hidden_layers=8)
        mask = blocks(lengths)
        mask[390, 100] = True
        watch = said(made, call_of(made, lengths, seed, mask), documents=lengths)
        assert watch.mismatches or not watch.compared


def test_right_rows_in_float32_have_a_verdict() -> None:
    """Sums of float32 are rounded more often than once. Short documents show little of it."""
    for seed in range(40, 60):
        draw = random.Random(seed)
        made = model("llama", seed, torch.float32, num_hidden_layers=2, hidden_size=32)
        lengths = [draw.randint(3, 7) for _ in range(9)]
        call = call_of(made, lengths, seed)
        if seed % 2:
            del call["attention_mask"]
        watch = said(made, call)
        assert (watch.compared, watch.mismatches) == (3, [])


def test_positions_that_run_on_far_are_rounding_with_rotary_positions_alone() -> None:
    """Angles are rounded by as much as a position is large. All else is found there, too."""
    lengths = [20, 30]
    off = blocks([21, 29])
    for first in (0, 300, 10_000):
        on = first + torch.arange(50)
        for kind in ("llama", "qwen3"):
            made = model(kind, dtype=torch.float32)
            watch = said(made, call_of(made, lengths, positions=on), documents=lengths)
            assert (watch.compared, watch.mismatches) == (2, [])
            call = call_of(made, lengths, mask=off, positions=on)
            assert said(made, call, documents=lengths).mismatches
    made = model("gpt2", dtype=torch.float32)
    call = call_of(made, lengths, positions=300 + torch.arange(50))
    assert said(made, call, documents=lengths).mismatches


def test_documents_that_leave_tokens_out_are_no_verdict() -> None:
    """As where the last text is cut off, and has no end."""
    made = model("llama", dtype=torch.float32)
    call = call_of(made, [3, 4], mask=causal_mask(7))
    for documents in ([3], lambda call: [3]):
        with pytest.warns(
            UserWarning, match="documents: leave out 4 tokens of row 0, from token 3"
        ):
            watch = said(made, call, documents=documents)
        assert watch.compared == 0
        assert "no verdict" in watch.report()
    assert said(made, call, documents=[3, 4]).mismatches

    padded = call_of(made, [3, 2, 1, 1])  # nobody sees the last two
    assert said(made, padded, documents=[3, 2]).compared == 2
    hidden = {"input_ids": call["input_ids"], "use_cache": False}
    hidden["attention_mask"] = torch.tensor([[1, 1, 1, 1, 1, 0, 0]])
    assert said(made, hidden, documents=[5]).compared == 1


def test_the_longest_document_is_always_compared() -> None:
    """A 4-D mask that does not hold the model's window is wrong in long documents alone."""
    made = model("mistral", dtype=torch.float32, sliding_window=8)
    for place in range(8):
        lengths = [2, 3, 4, 5, 4, 3, 2, 5]
        lengths[place] = 12
        assert said(made, call_of(made, lengths)).mismatches


def test_a_model_that_fails_on_a_document_alone_ends_nothing_and_is_not_compared() -> None:
    class NotShort(type(model("llama"))):  # type: ignore[misc]
        def forward(self, input_ids: Any, **given: Any) -> Any:
            if input_ids.shape[1] < 7:
                raise ValueError("too short")
            return super().forward(input_ids, **given)

    made = model("llama", dtype=torch.float32)
    made.__class__ = NotShort
    for options in ({}, {"every": 1}):
        with pytest.warns(UserWarning, match="fails when it runs 1x4 tokens anew: ValueError: too"):
            watch = said(made, call_of(made, [3, 4]), **options)
        assert (watch.compared, watch.mismatches, made.training) == (0, [], False)
        assert "0 of 1 calls compared" in watch.report()
        assert "equal" not in watch.report()


def test_a_function_of_documents_that_fails_ends_nothing() -> None:
    made = model("llama", dtype=torch.float32)
    with pytest.warns(UserWarning, match="documents: failed .*; fix it"):
        watch = said(made, call_of(made, [3, 4]), documents=lambda call: call["lengths"])
    assert watch.compared == 0


def test_nothing_counts_as_compared_as_long_as_a_kind_of_call_has_no_verdict() -> None:
    """So `assert guard.compared and not guard.mismatches` is enough."""
    made = model("llama", dtype=torch.float32)
    unread = torch.ones(1)
    watch = minise.guard(made, "raise")
    made(**call_of(made, [3, 4]))
    assert watch.compared == 2
    with pytest.warns(UserWarning, match="pixel_values: no document alone has it"):
        made(**call_of(made, [3, 4]), pixel_values=unread)
    assert watch.compared == 0
    first, second = watch.report().splitlines()
    assert "1 of 2 calls compared" in first
    assert "all equal" not in first
    assert second == "  no verdict on 1 of the calls: pixel_values: no document alone has it"


class Noisy(torch.nn.Module):
    """Logits of which a last layer leaves only `kept`, in bfloat16: what a token changes is rounded
    away, as is what a border does."""

    def __init__(self, kept: float) -> None:
        super().__init__()
        self.kept = kept
        self.table = torch.nn.Embedding(200, 64)
        self.last = torch.nn.Identity()

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, attention_mask: Any = None
    ) -> Tensor:
        mask = causal_mask(input_ids.shape[1]) if attention_mask is None else attention_mask[0, 0]
        seen = self.table(input_ids) * 10
        mean = (mask.float() / mask.sum(dim=1, keepdim=True)) @ seen[0]
        return self.last((100 + self.kept * mean).bfloat16())[None]


def test_there_is_no_verdict_where_rounding_hides_what_a_border_does() -> None:
    torch.manual_seed(0)
    lengths = [20, 30, 25]
    ids = torch.randint(5, 200, (1, 75))
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    call = {
        "input_ids": ids,
        "position_ids": positions,
        "attention_mask": blocks(lengths)[None, None],
    }
    assert said(Noisy(1.0), call).compared == 3
    with pytest.warns(UserWarning, match="no verdict: rounding is too large: without its first"):
        watch = said(Noisy(0.01), call)
    assert watch.compared == 0
    assert not watch.mismatches
    assert "no verdict on 1 of the calls: rounding is too large" in watch.report()


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_each_document_is_seen_beside_others_of_each(count: int) -> None:
    pairs = set()
    for kept in groups(count):
        pairs |= {(one, other) for one in kept for other in range(count) if other not in kept}
    assert len(pairs) == count * (count - 1)


def test_a_leak_into_any_of_many_documents_is_found() -> None:
    """Three of them run alone; of the others the model itself says whether they change."""
    made = model("llama", dtype=torch.float32)
    draw = random.Random(0)
    lengths = [draw.randint(2, 5) for _ in range(12)]
    starts = [sum(lengths[:number]) for number in range(12)]
    for number in range(1, 12):
        mask = blocks(lengths)
        mask[starts[number], draw.randrange(starts[number])] = True
        assert said(made, call_of(made, lengths, mask=mask), documents=lengths).mismatches
