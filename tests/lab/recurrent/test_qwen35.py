"""Qwen3.5, whose layers are mostly recurrent: packed as each prompt alone, by one call."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from minise import (
    InputError,
    LocalModel,
    Question,
    explain,
    load,
    packed_loss,
    record,
    self_ensemble,
)
from minise.commands.cli import main
from minise.engines import ENGINES, separate, tree
from minise.lab.decisions import decide
from minise.lab.recurrent.definition import Definition
from minise.lab.recurrent.qwen35 import Qwen35
from minise.lab.recurrent.qwen35_config import read_hybrid_config
from minise.layout import causal_mask, pack
from minise.method import SelfEnsemble
from minise.prompts import Prompts
from minise.verify.training import loss_alone
from minise.verify.verify import verify
from tests.lab.recurrent.hybrid import (
    TINY,
    load_hybrid,
    make_decoder,
    prompts_of,
    randomise,
    write_hybrid,
)

SEEDS = range(12)
BIRDS = {"wren": "A small bird", "oak": "A tree", "trout": "A fish"}


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).detach().abs().max())


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    return load_hybrid(tmp_path_factory.mktemp("hybrid"))


@pytest.mark.parametrize("seed", SEEDS)
def test_packed_and_tree_are_each_prompt_alone(lm: LocalModel, seed: int) -> None:
    prompts = prompts_of(seed)
    alone = separate(lm.decoder, *prompts)
    for engine in ("tree", "packed"):
        assert gap(ENGINES[engine](lm.decoder, *prompts), alone) < 1e-12
    assert gap(ENGINES["without-mask"](lm.decoder, *prompts), alone) > 0.01
    if prompts[0]:  # without a beginning each branch sees itself alone, wherever it stands
        assert gap(ENGINES["without-positions"](lm.decoder, *prompts), alone) > 1e-3


@pytest.mark.parametrize("seed", SEEDS)
def test_the_numbers_are_those_of_the_library_for_each_prompt(seed: int) -> None:
    library = pytest.importorskip("transformers")
    config = library.Qwen3_5TextConfig(**{k: v for k, v in TINY.items() if k != "model_type"})
    model = library.Qwen3_5ForCausalLM(config).eval()
    ours = Qwen35(read_hybrid_config(config.to_dict()))
    randomise(ours)
    model.load_state_dict(ours.state_dict())
    prefix, branches = prompts_of(seed)
    with torch.inference_mode():
        found = ours.logits(tree(ours, prefix, branches))
        for row, branch in enumerate(branches):
            ids = torch.tensor([prefix + branch])
            expected = model(input_ids=ids, use_cache=False).logits[0, -1]
            assert gap(found[row], expected) < 2e-5 * float(expected.std())


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_the_numbers_are_those_of_the_definition_under_the_mask(lm: LocalModel, seed: int) -> None:
    assert isinstance(lm.decoder, Qwen35)
    definition = Definition(TINY, lm.decoder.state_dict())
    layout = pack(*prompts_of(seed), tree=True)
    expected = definition.logits(layout.tokens, layout.positions, layout.mask)
    hidden = lm.decoder(layout.tokens, layout.positions, layout.mask)
    assert gap(lm.decoder.logits(hidden), expected) < 1e-12 * float(expected.abs().max())


def test_a_batch_is_its_sequences(lm: LocalModel) -> None:
    layout = pack(*prompts_of(3), tree=True)
    tokens = torch.stack([layout.tokens, layout.tokens.flip(0)])
    both = lm.decoder(tokens, layout.positions, layout.mask)
    for one, ids in zip(both, tokens, strict=True):
        assert gap(one, lm.decoder(ids, layout.positions, layout.mask)) < 1e-12


def test_a_top_layer_with_a_state_gives_the_rows_that_are_asked_for() -> None:
    kinds = ["full_attention", "linear_attention", "full_attention", "linear_attention"]
    decoder = make_decoder({**TINY, "layer_types": kinds})
    layout = pack(*prompts_of(4), tree=True)
    whole = decoder(layout.tokens, layout.positions, layout.mask)
    rows = decoder(layout.tokens, layout.positions, layout.mask, layout.ends)
    assert gap(rows, whole[layout.ends]) < 1e-12
    assert gap(rows, separate(decoder, *prompts_of(4))) < 1e-12


@pytest.mark.parametrize("method", ["presence", "self-ensemble(group_size=2)"])
def test_decide_answers_many_questions_in_one_pass(lm: LocalModel, method: str) -> None:
    """Each as alone, prompt by prompt."""
    asked = {
        "bird": {"type": "choice", "instructions": "Which flies?", "criteria": BIRDS},
        "late": {"type": "noul", "instructions": "Is it late?"},
        "tall": {"type": "score", "instructions": "How tall?", "criteria": ["Low", "Mid", "High"]},
    }
    together = decide(lm, "A wren sat on an oak.", asked, method)
    for name, question in asked.items():
        one = {name: question}
        alone = decide(lm.with_engine("separate"), "A wren sat on an oak.", one, method)[name]
        expected = pytest.approx(alone.probabilities, abs=1e-12)
        assert together[name].probabilities == expected
    assert len({*together["bird"].probabilities.values()}) == 3


def test_texts_under_one_mask_run_side_by_side(lm: LocalModel) -> None:
    """As in training: a batch of texts, whose paths are found once."""
    tokens = torch.arange(5, 245).view(3, 80)
    together = lm.decoder(tokens, torch.arange(80), causal_mask(80))
    for row, text in zip(together, tokens, strict=True):
        alone = lm.decoder(text, torch.arange(80), causal_mask(80))
        assert (row - alone).abs().max() <= 1e-12


def test_a_mask_that_is_no_tree_is_refused_in_one_line(lm: LocalModel) -> None:
    window = causal_mask(9) & ~causal_mask(9).tril(-4)
    with pytest.raises(InputError, match="layers with a state need the mask of a tree"):
        lm.decoder(torch.arange(9), torch.arange(9), window)


def test_an_attend_of_ones_own_runs_one_prompt_and_nothing_else(lm: LocalModel) -> None:
    assert isinstance(lm.decoder, Qwen35)
    layout = pack([1, 2, 3], [[4, 5], [6]])
    T = 5
    read = lm.decoder.reader(causal_mask(T)[None], torch.arange(T)[None], None)
    hidden = lm.decoder.run(torch.arange(T)[None], torch.arange(T)[None], read)[0]
    expected = lm.decoder(torch.arange(T), torch.arange(T), causal_mask(T))
    assert gap(hidden, expected) < 1e-12
    read = lm.decoder.reader(layout.mask[None], layout.positions[None], None)
    with pytest.raises(InputError, match="call the decoder with a mask"):
        lm.decoder.run(layout.tokens[None], layout.positions[None], read)


def test_recording_shows_the_streams_and_the_weights_of_attention(lm: LocalModel) -> None:
    assert isinstance(lm.decoder, Qwen35)
    layout = pack(*prompts_of(5), tree=True)
    expected = lm.decoder(layout.tokens, layout.positions, layout.mask)
    with record(lm.decoder, attention=True) as seen:
        assert torch.equal(lm.decoder(layout.tokens, layout.positions, layout.mask), expected)
    assert sorted(seen.residual) == [0, 1, 2, 3]
    assert sorted(seen.attention) == [3]  # the only layer of attention
    weights_HTT = seen.attention[3][0]
    assert gap(weights_HTT.sum(dim=-1), torch.ones(())) < 1e-12
    assert not weights_HTT[:, ~layout.mask].any()


def test_the_loss_of_one_pass_has_the_gradients_of_separate_prompts(lm: LocalModel) -> None:
    """Through states, convolutions and the trunk."""
    decoder = copy.deepcopy(lm.decoder).requires_grad_()  # type: ignore[type-var]
    lm = LocalModel(lm.name, lm.config, decoder, lm.tokenizer)
    parameters = list(decoder.parameters())
    prefix, branches = prompts_of(7)
    losses = []
    for branch in branches:
        prompt = [*prefix, *branch]
        losses.append(loss_alone(lm, prompt, [*prompt[1:], -100]))
    expected = torch.autograd.grad(torch.stack(losses).sum(), parameters)
    for merged in (False, True):
        loss = packed_loss(lm, pack(prefix, branches, tree=merged))
        assert gap(loss, torch.stack(losses).sum()) < 1e-10 * float(loss.detach())
        for mine, other in zip(torch.autograd.grad(loss, parameters), expected, strict=True):
            assert gap(mine, other) < 1e-12 * float(other.abs().max())


def test_thirty_steps_of_training_on_a_packed_row_lower_the_loss(tmp_path: Path) -> None:
    lm = load_hybrid(tmp_path, "float32")
    decoder = lm.decoder
    assert isinstance(decoder, Qwen35)
    decoder.requires_grad_()
    layout = pack(*prompts_of(8), tree=True)
    step = torch.optim.AdamW(decoder.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        step.zero_grad()
        loss = packed_loss(lm, layout)
        loss.backward()
        step.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def inside_another(**changes: Any) -> dict[str, Any]:
    """A config.json as the hub has it: text inside a model that sees images."""
    text = {
        **TINY,
        **{"attn_output_gate": True, "full_attention_interval": 4, "mamba_ssm_dtype": "float32"},
        **{"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False},
        **{"attention_bias": False, "attention_dropout": 0.0, "dtype": "bfloat16"},
    }
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "image_token_id": 280,
        "text_config": {**text, **changes},
        "tie_word_embeddings": False,
        "vision_config": {"depth": 1, "model_type": "qwen3_5"},
        "vision_start_token_id": 281,
    }


def test_a_checkpoint_inside_one_that_sees_images_has_the_same_numbers(
    lm: LocalModel, tmp_path: Path
) -> None:
    folder = write_hybrid(tmp_path, inside_another(), prefix="model.language_model.")
    other = load(folder, dtype="float64")
    assert isinstance(other, LocalModel)
    prompts = prompts_of(2)
    assert torch.equal(tree(other.decoder, *prompts), tree(lm.decoder, *prompts))


def test_bfloat16_and_4_bits_answer(tmp_path: Path, question: Question) -> None:
    folder = write_hybrid(tmp_path)
    scores = {}
    for name, options in {
        "float32": {"dtype": "float32"},
        "bfloat16": {"dtype": "bfloat16"},
        "nf4": {"dtype": "float32", "quantize": "nf4"},
    }.items():
        lm = load(folder, **options)  # type: ignore[arg-type]
        for engine in ("tree", "separate"):
            answer = self_ensemble(lm, question, group_size=3, trials=4, engine=engine)
            scores[name, engine] = answer.scores
    assert gap(scores["nf4", "tree"], scores["nf4", "separate"]) < 1e-5
    assert gap(scores["bfloat16", "tree"], scores["float32", "tree"]) < 0.1
    assert gap(scores["nf4", "tree"], scores["float32", "tree"]) > 1e-4


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a key that nothing reads": ({"new_key": 1}, 'the key "new_key" is not read here'),
    "no gate": ({"attn_output_gate": False}, "attn_output_gate is false"),
    "a kind of layer": ({"layer_types": ["conv"] * 4}, "layer_types is"),
    "too few kinds": ({"layer_types": ["full_attention"]}, "for each of 4 layers"),
    "heads that do not divide": ({"linear_num_value_heads": 3}, "a multiple of 2"),
    "a rotated part beyond the head": (
        {"rope_parameters": {"rope_theta": 5.0, "partial_rotary_factor": 2.0}},
        "partial_rotary_factor is 2.0",
    ),
    "windows": ({"use_sliding_window": True, "max_window_layers": 0}, "has no windows"),
    "another rotation": ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type"),
    "weights in 8 bits": ({"quantization_config": {"bits": 8}}, "quantization_config is"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_implemented_is_refused_in_one_line(what: str, tmp_path: Path) -> None:
    changes, said = REFUSED[what]
    for number, raw in enumerate([{**TINY, **changes}, inside_another(**changes)]):
        folder = write_hybrid(tmp_path / str(number))
        (folder / "config.json").write_text(json.dumps(raw))
        with pytest.raises(InputError) as refused:
            load(folder)
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)


def test_equal_bits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not of qwen3_5_text; leave --equal-bits out"):
        load_hybrid(tmp_path, equal_bits=True)


def test_verify_holds_it_against_its_definition_and_against_separate_prompts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_hybrid(tmp_path)
    for dtype in ("float64", "float32", "bfloat16"):
        words = ["verify", "--model", str(folder), "--dtype", dtype, "--trials", "1"]
        assert main(words) == 0, capsys.readouterr().out
        assert "passed" in capsys.readouterr().out
    assert main(["verify", "--model", str(folder), "--proof"]) == 2
    assert "a proof knows no layers with a state" in capsys.readouterr().err


@pytest.mark.parametrize("part", ["A_log", "dt_bias", "conv1d.weight", "in_proj_z.weight"])
def test_verify_finds_a_part_of_a_recurrent_layer_that_is_another(
    tmp_path: Path, part: str
) -> None:
    """Packed still equals separate: only the definition shows it."""
    lm = load_hybrid(tmp_path)
    prompts = prompts_to_verify(lm)
    right = lm.decoder.state_dict()
    assert isinstance(lm.decoder, Qwen35)
    lm = dataclasses.replace(lm, definition=lambda _: Definition(TINY, right))
    assert verify(lm, prompts).passed
    other = copy.deepcopy(lm.decoder)
    tensor = other.get_parameter(f"model.layers.1.linear_attn.{part}")
    tensor.data = tensor.data.flip(0)
    result = verify(dataclasses.replace(lm, decoder=other), prompts)
    assert "layer 1" in str(result.failure)


def prompts_to_verify(lm: LocalModel) -> Prompts:
    question = Question("Which is a bird?", ["wren", "a trout", "oak", "quartz"])
    _, prompts = SelfEnsemble(group_size=2, trials=1).prompts(lm, question)
    return prompts


def test_what_it_does_not_do_is_refused_in_one_line(lm: LocalModel, question: Question) -> None:
    with pytest.raises(InputError, match="a state has them already"):
        explain(lm, question)
