"""Windows of models of transformers: applied where the class goes by them, and compared when a
prompt first passes one."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from minise import InputError, load
from minise.lab.serving import transformers as serving
from minise.lab.serving.transformers import TransformersModel
from tests.lab.serving.zoo import build, load_tiny_of, names, prompts_of

library = pytest.importorskip("transformers")

WINDOW = 16
PREFIX = 6
WITHIN = prompts_of(1, PREFIX, 8, 10)  # prompts of 14 and 16 tokens
BEYOND = prompts_of(2, PREFIX, 14, 9)  # 20 and 15: less than a quarter more
GOES_BY_ONE = ["mistral", "gemma3_text", "gpt_oss", "qwen2, windows", "starcoder2", "phi3"]
CARRIES_ONE = ["llama", "gpt2", "gpt_neox", "gemma", "qwen3", "olmo2", "granite", "stablelm"]


def load_with_window(folder: Path, name: str, window: int = WINDOW) -> TransformersModel:
    """A tiny model whose config.json names a window, whether its class goes by it or not."""
    build(folder, name)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "sliding_window": window}))
    lm = load(f"transformers:{folder}", dtype="float32")
    assert isinstance(lm, TransformersModel)
    return lm


def alone(lm: TransformersModel, prefix: list[int], branches: list[list[int]]) -> torch.Tensor:
    """The logits (G, V) that the library gives for each prompt, without anything of ours."""
    rows = []
    for branch in branches:
        ids = torch.tensor([prefix + branch])
        rows.append(lm.decoder.model(input_ids=ids, use_cache=False).logits[0, -1])
    return torch.stack(rows)


@pytest.mark.parametrize("name", [*CARRIES_ONE, *GOES_BY_ONE])
def test_packed_prompts_beyond_a_window_have_the_numbers_of_the_library(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = load_with_window(tmp_path, name)
    capsys.readouterr()
    for prefix, branches in (WITHIN, BEYOND):
        expected = alone(lm, prefix, branches)
        packed = lm.hidden_at_ends(prefix, branches)
        assert float((packed - expected).abs().max()) < 1e-4 * float(expected.std())
    assert not lm.packing.given_up
    assert capsys.readouterr().err == ""  # it was packed to the end
    assert (lm.decoder.window is not None) == (name in GOES_BY_ONE)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_the_first_prompt_beyond_a_window_is_compared(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the first net says of the window: here it says the contrary of what is true."""
    reads = serving.reads_window
    monkeypatch.setattr(serving, "reads_window", lambda model: not reads(model))
    lm = load_with_window(tmp_path, name)
    lm.hidden_at_ends(*WITHIN)
    assert not lm.packing.given_up
    expected = alone(lm, *BEYOND)
    packed = lm.hidden_at_ends(*BEYOND)
    assert float((packed - expected).abs().max()) < 1e-4 * float(expected.std())
    assert lm.packing.given_up


def test_a_prompt_is_compared_again_when_a_quarter_more_is_out_of_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = load_with_window(tmp_path, "mistral", window=40)
    compared: list[int] = []
    error_of = serving.error_of_packing

    def noted(packed: Any, separate: Any) -> float:
        compared.append(lengths[-1])
        return error_of(packed, separate)

    monkeypatch.setattr(serving, "error_of_packing", noted)
    lengths: list[int] = []
    for longest in (40, 41, 41, 42, 45, 46, 47, 48):
        lengths.append(longest)
        lm.hidden_at_ends(*prompts_of(3, PREFIX, longest - PREFIX, 5))
    assert compared == [40, 41, 42, 45, 47]  # beyond: 0, 1, 2, 5, 7


@pytest.mark.slow
def test_no_packed_model_of_the_library_is_wrong_beyond_a_window_that_its_config_names(
    tmp_path: Path,
) -> None:
    """Every causal class that is packed, with a window in its config.json."""
    tried = 0
    for name in names():
        try:
            lm = load_with_window(tmp_path / name, name)
            expected = [alone(lm, *prompts) for prompts in (WITHIN, BEYOND)]
        except Exception as error:  # of many kinds: not built, or not run at all
            print(name, " ".join(str(error).split())[:80])
            continue
        tried += not lm.packing.given_up
        for prompts, logits in zip((WITHIN, BEYOND), expected, strict=True):
            packed = lm.hidden_at_ends(*prompts)
            assert float((packed - logits).abs().max()) < 1e-3 * float(logits.std()), name
        if not lm.packing.given_up:
            print(name, "goes by it" if lm.decoder.window else "carries it")
    assert tried >= 90


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_experts_run_in_float64(name: str, tmp_path: Path) -> None:
    """Torch has no grouped product for it: the library's other way is taken."""
    lm = load_tiny_of(tmp_path, name, dtype="float64")
    assert lm.decoder.dtype == torch.float64
    packed = lm.hidden_at_ends(*BEYOND)
    assert float((packed - alone(lm, *BEYOND)).abs().max()) < 1e-4 * float(packed.std())
    assert not lm.packing.given_up


def test_a_dtype_in_which_the_library_cannot_run_a_model_is_one_line(tmp_path: Path) -> None:
    """xglm makes a float32 of the lowest float64."""
    lm = load_tiny_of(tmp_path, "xglm", dtype="float64")
    named = r"xglm does not run in torch.float64 .*; name another --dtype, or take another model$"
    with pytest.raises(InputError, match=named) as refused:
        lm.hidden_at_ends(*BEYOND)
    assert "\n" not in str(refused.value)
