"""The guard finds planted faults in models of the reference library, and no fault where none is."""

from typing import Any

import pytest
import torch
from torch.nn import functional

import minise
from minise.layout import causal_mask

transformers = pytest.importorskip("transformers")

ENDS = [0, 5, 14, 18, 25]
T = ENDS[-1]
SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "vocab_size": 300}
MORE = {"num_attention_heads": 4, "num_key_value_heads": 2, "n_embd": 32, "n_layer": 3, "n_head": 4}
IDS = torch.randint(5, 290, (1, T), generator=torch.Generator().manual_seed(0))
OF = torch.bucketize(torch.arange(T), torch.tensor(ENDS[1:]), right=True)
PLACES = (torch.arange(T) - torch.tensor(ENDS)[OF])[None]
BLOCKS = (causal_mask(T) & (OF[:, None] == OF))[None, None]
ONES = torch.ones_like(IDS)
RIGHT = {"input_ids": IDS, "position_ids": PLACES, "attention_mask": BLOCKS, "use_cache": False}
LOST = RIGHT | {"attention_mask": ONES}
FORK = RIGHT | {"attention_mask": BLOCKS | (causal_mask(T) & (OF == 0))}  # a trunk of 5 tokens
EQUAL = "25 tokens, 4 separate prompts: equal to the separate runs"


def model(kind: str) -> Any:
    """Every parameter is random."""
    config = transformers.AutoConfig.for_model(kind, **SHAPE, **MORE)
    made = transformers.AutoModelForCausalLM.from_config(config)
    draw = torch.Generator().manual_seed(1)
    for one in made.parameters():
        one.data = torch.randn(one.shape, generator=draw) * 0.2 + (one.data == 1)
    return made.eval()


def found(made: Any, call: dict[str, Any]) -> list[str]:
    """What a guard finds in one call. The output is untouched."""
    seen: list[str] = []
    without = made(**call).logits
    watch = minise.guard(made, lambda words, again: seen.append(words))
    assert torch.equal(made(**call).logits, without)
    assert watch.compared > 0
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, "autocast"], ids=str)
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_right_rows_pass_and_a_lost_mask_does_not(kind: str, dtype: Any) -> None:
    made = model(kind).to(torch.float32 if dtype == "autocast" else dtype)
    added = torch.where(BLOCKS, 0.0, torch.finfo(made.dtype).min).to(made.dtype)
    padded = {"input_ids": IDS.repeat(2, 1), "attention_mask": ONES.repeat(2, 1)}
    padded["attention_mask"][1, :4] = 0
    padded["position_ids"] = (padded["attention_mask"].cumsum(1) - 1).clamp(min=0)
    fork = FORK | {"position_ids": PLACES + 5 * (OF > 0)}
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "autocast"):
        for right in ({}, {"attention_mask": added}, {"attention_mask": None}, padded, fork):
            assert found(made, RIGHT | right) == []
        (lost,) = found(made, LOST)
    assert "there is no block mask" in lost


FAULTS = [
    ("gpt2", {"position_ids": None}, "positions run on"),
    ("gpt2", {"position_ids": PLACES + (OF > 0)}, "has the position 1, not 0: no known mistake"),
    ("gpt2", FORK | {"position_ids": torch.arange(T)[None]}, "position 14, not 5"),
    ("llama", {"attention_mask": BLOCKS.roll(1, -1) | BLOCKS}, "mask: token"),
    ("llama", {"position_ids": PLACES * 2}, "no known mistake"),
    ("llama", {"attention_mask": None, "use_cache": True}, EQUAL),  # transformers: one document
    ("llama", {"attention_mask": 1 + OF[None]}, EQUAL),  # segments, which it takes for ones
]


@pytest.mark.parametrize(("kind", "fault", "words"), FAULTS)
def test_rows_that_are_wrong_or_not_understood_are_found(kind: str, fault: Any, words: str) -> None:
    (one,) = found(model(kind), RIGHT | fault)
    assert words in one


def test_a_path_that_ignores_the_mask_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a flash kernel does to which the mask is not handed on."""
    real = functional.scaled_dot_product_attention

    def lost(*qkv: Any, attn_mask: Any = None, **more: Any) -> Any:
        return real(*qkv, **more | {"is_causal": True})

    monkeypatch.setattr(functional, "scaled_dot_product_attention", lost)
    for told in ({}, {"attention_mask": None, "cu_seq_lens_q": torch.tensor(ENDS)}):
        (one,) = found(model("llama"), RIGHT | told)
        assert one.endswith(EQUAL)


def test_a_mismatch_warns_raises_or_falls_back() -> None:
    made = model("llama")
    right, wrong = made(**RIGHT).logits, made(**LOST).logits

    def fall_back(words: str, again: Any) -> Any:
        assert torch.equal(again().logits, wrong)
        return made(**RIGHT)

    minise.guard(made, fall_back)
    assert torch.equal(made(**LOST).logits, right)
    minise.guard(made)
    with pytest.warns(UserWarning, match="packed is not equal to separate"):
        made(**LOST)
    minise.guard(made)
    with pytest.warns(UserWarning, match="no verdict: pixel_values: no document alone has it"):
        made(**LOST, pixel_values=torch.ones(1))
    minise.guard(made, "raise")
    with pytest.raises(RuntimeError, match="rounding explains"):
        made(**LOST)
    with pytest.raises(minise.InputError, match="give warn, raise"):
        minise.guard(made, "stop")


def test_it_looks_again_when_rows_grow_and_only_then() -> None:
    made, counts = model("llama"), []
    watch = minise.guard(made, "raise")
    short = {"input_ids": IDS[:, :9], "attention_mask": BLOCKS[..., :9, :9]}
    plain = {"input_ids": IDS, "attention_mask": ONES}
    for call in (plain, short, short, plain, RIGHT, short, RIGHT):
        made(**call)
        counts.append((watch.longest, watch.compared))
    assert counts == [(1, 0), (9, 2), (9, 2), (9, 2), (T, 5), (T, 5), (T, 5)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_it_works_with_compile_and_gradients_and_changes_nothing(way: str) -> None:
    torch._dynamo.reset()
    made, seen, gradients = model("gpt2").train(), [], []  # which has dropout
    first = torch.compile(made, backend="eager") if way == "before" else made
    watch = minise.guard(first, lambda words, again: seen.append(words))
    run = torch.compile(made, backend="eager") if way == "after" else first
    for _ in range(2):
        torch.manual_seed(0)
        run(**LOST, labels=IDS).loss.backward()
        gradients.append(made.transformer.wte.weight.grad)
        made.zero_grad()
        watch.remove()
    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-6)
    assert len(seen) == made.training


def test_checkpointing_in_training_is_kept() -> None:
    """With it transformers has no cache, and so reads documents from the positions."""
    made = model("llama").train()
    made.activation_checkpointing_enable()
    watch = minise.guard(made, "raise")
    made(input_ids=IDS, position_ids=PLACES)
    assert watch.compared == 3
