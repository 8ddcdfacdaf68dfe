"""The guard finds planted faults in models of the reference library, and no fault where none is."""

import warnings
from typing import Any

import pytest
import torch
from torch.nn import functional

import minise
from minise.lab.packing.calls import kind_of
from minise.lab.packing.guard import print_reports
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


def model(kind: str, **facts: Any) -> Any:
    """Every parameter is random."""
    config = transformers.AutoConfig.for_model(kind, **SHAPE, **MORE, **facts)
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
    fork = FORK | AFTER_TRUNK
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "autocast"):
        for right in ({}, {"attention_mask": added}, {"attention_mask": None}, padded, fork):
            assert found(made, RIGHT | right) == []
        (lost,) = found(made, LOST)
    assert "there is no block mask" in lost


ONE_LEAK = "no known mistake; 1 cells leak and 0 are missing"
AFTER_TRUNK = {"position_ids": PLACES + 5 * (OF > 0)}


def leaking(call: dict[str, Any], row: int, column: int) -> dict[str, Any]:
    """The call with one more cell of its mask shown."""
    mask = (RIGHT | call)["attention_mask"].clone()
    mask[..., row, column] = True
    return call | {"attention_mask": mask}


def windowed(window: int) -> dict[str, Any]:
    index = torch.arange(T)
    return RIGHT | {"attention_mask": BLOCKS & (index[:, None] - index < window)}


FAULTS = [
    ("gpt2", {"position_ids": None}, "positions run on"),
    ("gpt2", {"position_ids": PLACES + (OF > 0)}, "has the position 1, not 0: no known mistake"),
    ("gpt2", FORK | {"position_ids": torch.arange(T)[None]}, "position 14, not 5"),
    ("llama", {"attention_mask": BLOCKS.roll(1, -1) | BLOCKS}, "mask: token"),
    ("llama", {"position_ids": PLACES * 2}, "no known mistake"),
    ("llama", {"attention_mask": None, "use_cache": True}, EQUAL),  # transformers: one document
    ("llama", {"attention_mask": 1 + OF[None]}, EQUAL),  # segments, which it takes for ones
    ("llama", leaking({}, 5, 4), f"4, the last of document 1: {ONE_LEAK}"),
    ("llama", leaking(FORK | AFTER_TRUNK, 14, 13), f"13, the last of branch 1: {ONE_LEAK}"),
    ("llama", FORK | AFTER_TRUNK | {"attention_mask": ONES}, "the first of branch 2, may attend"),
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

    watch = minise.guard(made, fall_back, every=1)
    for _ in range(2):
        assert torch.equal(made(**LOST).logits, right)
    watch.remove()
    watch = minise.guard(made)
    with pytest.warns(UserWarning, match="packed is not equal to separate"):
        made(**LOST)
    watch.remove()
    watch = minise.guard(made)
    with pytest.warns(UserWarning, match="no verdict: pixel_values: no document alone has it"):
        made(**LOST, pixel_values=torch.ones(1))
    watch.remove()
    minise.guard(made, "raise")
    with pytest.raises(RuntimeError, match="rounding explains"):
        made(**LOST)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_mismatch": "stop"}, "on_mismatch: give warn, raise"),
        ({"every": 0}, "every: give a number of calls from 1"),
        ({"every": True}, "every: give a number of calls from 1"),
        ({"every": 2.0}, "every: give a number of calls from 1"),
        ({"documents": 5}, "documents: give lengths, a list of them"),
    ],
)
def test_unusable_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(minise.InputError, match=words):
        minise.guard(torch.nn.Linear(1, 1), **options)


def test_it_looks_again_when_rows_grow_or_arguments_change_and_only_then() -> None:
    made, counts = model("llama"), []
    watch = minise.guard(made, "raise")
    short = {"input_ids": IDS[:, :9], "attention_mask": BLOCKS[..., :9, :9]}
    plain = {"input_ids": IDS, "attention_mask": ONES}
    for call in (plain, short, short, plain, RIGHT, short, RIGHT):
        made(**call)
        counts.append((watch.longest, watch.compared))
    assert counts == [(1, 0), (9, 2), (9, 2), (9, 2), (T, 5), (T, 5), (T, 5)]
    with pytest.raises(RuntimeError, match="there is no block mask"):
        made(**LOST)  # a mask that had a row for each query


def test_every_so_many_calls_it_looks_again() -> None:
    """At a mask of the same kind that shows what it had hidden, in rows of the same length."""
    made, seen = model("llama"), []
    watch = minise.guard(made, lambda words, again: seen.append(watch.calls), every=4)
    for step in range(1, 13):
        mask = BLOCKS if step < 6 else causal_mask(T)[None, None]
        made(**RIGHT | {"attention_mask": mask})
    assert seen == [8, 12]


def test_arguments_by_place_are_understood() -> None:
    for kind, call in (("llama", (IDS, ONES, PLACES)), ("gpt2", (IDS, None, ONES))):
        made, seen = model(kind), []
        minise.guard(made, lambda words, again, seen=seen: seen.append(words))
        made(*call, position_ids=PLACES) if kind == "gpt2" else made(*call)
        (words,) = seen
        assert "there is no block mask" in words


class Anything(torch.nn.Module):
    """A model that takes whatever it is given."""

    def forward(self, *args: Any, **given: Any) -> torch.Tensor:
        return torch.zeros(1, T, 3)


def test_silence_is_broken_after_twenty_calls_in_which_nothing_packed_is_seen() -> None:
    """Documents one after the other without positions or a mask, or by other arguments."""
    for call in ({"input_ids": IDS}, {"input_ids": IDS, "attention_mask": ONES}, {"embeds": IDS}):
        made = Anything()
        watch = minise.guard(made)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(19):
                made(**call)
        with pytest.warns(UserWarning, match="20 times nothing packed was seen"):
            made(**call)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(30):
                made(**call)
        assert watch.compared == 0
    with pytest.warns(UserWarning, match="no verdict: .* give them by name"):
        made(IDS)


def test_a_window_in_a_mask_is_seen() -> None:
    """One that the model has too is right; and another is named, with a row that is right by it."""
    assert found(model("mistral", sliding_window=4), windowed(4)) == []
    for made in (model("llama"), model("mistral", sliding_window=3)):
        (words,) = found(made, windowed(4))
        assert "the mask holds a window of 4 tokens" in words
        assert words.endswith(EQUAL)
    (words,) = found(model("llama"), LOST)
    assert "window" not in words


def test_a_mismatch_names_the_cache_that_explains_it_and_the_line_of_the_call() -> None:
    made = model("llama")
    (words,) = found(made, {"input_ids": IDS, "position_ids": PLACES})  # with a cache: one document
    assert "use_cache explains it: with use_cache=False the two are equal" in words
    (words,) = found(made, LOST | {"use_cache": True})
    assert "use_cache" not in words
    minise.guard(made)
    with pytest.warns(UserWarning, match="packed is not equal") as caught:
        made(**LOST)
    (warned,) = caught
    assert warned.filename == __file__
    assert f"the call: {__file__}, line {warned.lineno}\n" in str(warned.message)


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


def test_borders_that_a_mask_of_ones_switches_off_are_told_as_that() -> None:
    """And a model that does not go by a right row is told by what the row says its borders."""
    borders = {"cu_seq_lens_q": torch.tensor(ENDS), "cu_seq_lens_k": torch.tensor(ENDS)}
    (words,) = found(model("llama"), LOST | borders)
    assert "an attention_mask beside cu_seqlens switches packing off" in words
    assert EQUAL not in words
    (words,) = found(model("llama"), LOST | {"attention_mask": 1 + OF[None]})
    assert "the row is right, and the model does not go by its attention_mask\n" in words


def test_checkpointing_in_training_is_kept() -> None:
    """With it transformers has no cache, and so reads documents from the positions."""
    made = model("llama").train()
    made.activation_checkpointing_enable()
    watch = minise.guard(made, "raise")
    made(input_ids=IDS, position_ids=PLACES)
    assert watch.compared == 3


BATCH = {"labels": IDS, "seq_idx": OF[None].int(), "max_length_q": 9, "fused_lm_head": True}


def test_what_trl_gives_is_compared() -> None:
    """Beside the borders a number for each document, and no logits where the head is fused."""

    class Fused(type(model("llama"))):  # type: ignore[misc]
        def forward(self, *args: Any, fused_lm_head: bool = False, **given: Any) -> Any:
            output = super().forward(*args, **given)
            return {"loss": output.loss} if fused_lm_head else output

    made = model("llama")
    made.__class__ = Fused
    borders = {"cu_seq_lens_q": torch.tensor(ENDS), "cu_seq_lens_k": torch.tensor(ENDS)}
    flat = RIGHT | BATCH | borders | {"attention_mask": None}
    watch = minise.guard(made, "raise")
    made(**flat)
    equal = "all equal to separate runs, within rounding, with the borders as the row itself says"
    counted = "1 of 1 calls compared (logits of 3 documents, no losses)"
    assert watch.report() == f"guard: {counted}: {equal}"
    with pytest.raises(RuntimeError, match="packed is not equal to separate"):
        # With a cache transformers makes one document of a row.
        made(**flat | {"use_cache": True, "fused_lm_head": False})
    assert "2 of 2 calls compared (logits of 4 documents, no losses): 1 NOT" in watch.report()
    assert "call 2: packed is not equal to separate" in watch.report()


def test_what_was_meant_is_compared_where_the_call_says_it_wrong() -> None:
    """Positions that run on look like one document, and a border off by one like two others."""
    lengths = torch.tensor(ENDS).diff().tolist()
    on = RIGHT | {"attention_mask": None, "position_ids": torch.arange(T)[None]}
    off = torch.arange(T) - torch.tensor([0, 6, 14, 18])[(OF - (PLACES[0] == 0).int()).clamp(0)]
    off = RIGHT | {"attention_mask": None, "position_ids": off.clamp(min=0)[None]}
    by_call = {"documents": lambda call: [lengths] * len(call["input_ids"])}
    for told in ({"documents": lengths}, {"documents": [lengths]}, by_call):
        for wrong in (on, off):
            seen: list[str] = []
            made = model("llama")
            watch = minise.guard(made, lambda words, again, seen=seen: seen.append(words), **told)
            made(**wrong)
            (words,) = seen
            assert "25 tokens, 4 separate prompts: NOT equal" in words
            watch.remove()
            watch = minise.guard(made, "raise", **told)
            made(**RIGHT)
            assert watch.compared == 3
            assert watch.report().endswith("with the borders as documents= says")
    watch = minise.guard(model("llama"), documents=[[5], [5]])
    with pytest.raises(minise.InputError, match="documents: 2 rows meant, the batch has 1; give"):
        watch.look(RIGHT, kind_of(RIGHT))


def test_a_report_says_why_nothing_was_compared(capsys: pytest.CaptureFixture[str]) -> None:
    made = model("llama")
    watch = minise.guard(made)
    nothing = "calls compared (logits of 0 documents, no losses)"
    assert watch.report().endswith(f"0 of 0 {nothing}: the model was not called")
    made(input_ids=IDS)
    assert watch.report().endswith(
        "nothing packed was seen; if rows hold several documents, give documents="
    )
    with pytest.warns(UserWarning, match="no verdict"):
        made(**LOST, pixel_values=torch.ones(1))
    first, second = watch.report().splitlines()
    assert first.endswith(f"0 of 2 {nothing}: no verdict")
    assert second == "  no verdict on 1 of the calls: pixel_values: no document alone has it"
    print_reports()
    assert watch.report() in capsys.readouterr().err
