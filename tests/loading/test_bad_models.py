"""A model that cannot answer is refused in one line, by every method: no NaN, no traceback."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import models, pre_tokenizers

import minise
from minise import InputError, LanguageModel, Question, SelfEnsemble, Standard, branch_logits
from minise.checking.traces import Apart, largest
from minise.checking.verify import verify
from minise.method import Group, combine
from minise.methods.ablations import WithoutMask, WithoutPositions
from minise.methods.rotations import Cyclic
from minise.names import ENGINES
from minise.prompt import DEFAULT_TEMPLATE, write_prompts
from minise.rounds import ask
from minise.tokenizer import Tokenizer
from tests.support.commands import Q, assert_one_line, run
from tests.support.tiny import make_tokenizer

METHODS = (SelfEnsemble(2, 1), Standard(), Cyclic(), WithoutMask(2, 1), WithoutPositions(2, 1))
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    """A checkpoint to damage."""
    return shutil.copytree(llama_folder, tmp_path / "llama")


def with_large_weights(folder: Path) -> Path:
    """The checkpoint with some weights of 30,000 and more."""
    state = load_file(folder / "model.safetensors")
    state["model.layers.1.mlp.down_proj.weight"] *= 3e4
    save_file(state, folder / "model.safetensors")
    return folder


class TestOverflow:
    """The weights are within the range of the dtype, but what is computed from them is not."""

    @pytest.mark.parametrize("engine", ENGINES)
    @each_method
    def test_every_method_and_engine_names_the_dtype_and_what_to_use(
        self, folder: Path, question: Question, method: Any, engine: str
    ) -> None:
        with_large_weights(folder)
        message = "overflow torch.float16; use bfloat16 or float32"
        with pytest.raises(InputError, match=message) as refused:
            ask(minise.load(folder, dtype=torch.float16), method, question, engine=engine)
        assert str(refused.value).startswith(f"{folder}: ")
        for dtype in (torch.bfloat16, torch.float32):
            ask(minise.load(folder, dtype=dtype), method, question, engine=engine)

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("part", ["model.norm", "model.embed_tokens"])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
    def test_the_message_in_a_wide_dtype_names_the_weights(
        self, llama_folder: Path, question: Question, dtype: torch.dtype, part: str, engine: str
    ) -> None:
        """Large logits overflow in their sum; large embeddings in the square of the norms, which
        would leave zeros, and the same probability for all choices."""
        lm = minise.load(llama_folder, dtype=dtype)
        weight = lm.decoder.get_parameter(f"{part}.weight")
        weight.copy_(weight.sign() * torch.finfo(dtype).max)
        with pytest.raises(InputError, match=f"overflow {dtype}; its weights are too large"):
            minise.standard(lm, question, engine)

    def test_overflow_in_one_of_several_prompts_is_refused(
        self, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A norm whose squares overflow leaves zeros."""
        ends = torch.ones(2, lm.config.hidden_size, dtype=torch.float64)
        monkeypatch.setattr("minise.exact.run.read_ends", lambda decoder, tree: ends)
        assert branch_logits(lm, [5], [[6], [7]]).shape == (2, lm.config.vocab_size)
        ends[1] = 0
        with pytest.raises(InputError, match="overflow"):
            branch_logits(lm, [5], [[6], [7]])

    @pytest.mark.parametrize("command", [["ask"], ["ask", "--json"], ["verify"]])
    def test_each_command_ends_with_that_message(self, capsys, folder: Path, command: Any) -> None:
        question = Q if command[0] == "ask" else []
        done = run(
            capsys, *command, "--model", with_large_weights(folder), "--dtype", "float16", *question
        )
        assert_one_line(*done, ["overflow torch.float16", "use bfloat16 or float32"])

    def test_verify_does_not_count_nan_as_within_the_tolerance(self) -> None:
        for values in ([math.nan, 1.0], [1.0, math.nan]):
            assert math.isnan(largest(values))
        differences, one = Apart(), torch.ones(2, 3)
        differences.add([one], [one * math.nan])
        differences.add([one], [one])
        assert math.isnan(differences.absolute[0])
        assert math.isnan(differences.relative[0])
        assert not differences.equal

    def test_an_answer_without_probability_for_any_choice_is_refused(self) -> None:
        """ "None of the above" has all the probability, to the last bit."""
        nothing = Group((0, 1), torch.zeros(2, dtype=torch.float64), 1.0)
        with pytest.raises(InputError, match="None of the above"):
            combine(2, [nothing, nothing])


class TestVocabulary:
    @pytest.mark.parametrize("engine", ENGINES)
    @each_method
    def test_a_label_beyond_the_vocabulary_is_named_with_its_size(
        self, folder: Path, question: Question, method: Any, engine: str
    ) -> None:
        """The label " A" is token 282; all tokens of prompts have smaller ids."""
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 282}))
        state = load_file(folder / "model.safetensors")
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            state[name] = state[name][:282].clone()
        save_file(state, folder / "model.safetensors")
        lm = minise.load(folder)
        message = (
            r"token id 282 is beyond the vocabulary of .* \(vocab_size 282\); its tokenizer.json"
        )
        with pytest.raises(InputError, match=message):
            ask(lm, method, question, engine=engine)
        if isinstance(method, SelfEnsemble):
            with pytest.raises(InputError, match=message):
                verify(lm, method.plan(lm, question))

    def test_the_last_token_of_the_vocabulary_is_usable(self, lm: LanguageModel) -> None:
        last = lm.config.vocab_size - 1
        for engine in ENGINES:
            assert branch_logits(lm, [last], [[last]], engine, [last]).shape == (1, 1)
            with pytest.raises(InputError, match=f"token id {last + 1} is beyond"):
                branch_logits(lm, [last], [[last]], engine, [last + 1])


def damaged_tokenizer(folder: Path, **parts: Any) -> Path:
    """The tokenizer.json with parts replaced."""
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **parts}))
    return path


BPE = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
START = {"type": "TemplateProcessing", "pair": [], "special_tokens": {}}
# What makes the library panic while it reads the file ...
PANICS = {
    "an empty charsmap": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
    "a prefix longer than a merge": {"model": {**BPE, "continuing_subword_prefix": "##"}},
    "a merge of nothing known": {"model": {**BPE, "vocab": {"a": 0, "b": 1}}},
}
# ... or while it encodes a text.
ENCODES_BADLY = {
    "a charsmap of zeros": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}
    },
    "a template of an unknown token": {
        "post_processor": {**START, "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]}
    },
    "pieces of no length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "no unknown token": {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}},
    "an unknown token that is absent": {"model": {**BPE, "unk_token": "<unk>"}},
    "unigrams without one": {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": None}},
}


class TestTokenizer:
    @pytest.mark.parametrize("damage", [*PANICS, *ENCODES_BADLY])
    def test_a_tokenizer_that_makes_the_library_panic_is_refused_in_one_line(
        self, folder: Path, damage: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        path = damaged_tokenizer(folder, **{**PANICS, **ENCODES_BADLY}[damage])
        with pytest.raises(InputError) as refused:
            minise.load(folder)
        what = "not a tokenizer" if damage in PANICS else "cannot encode a prompt"
        assert str(refused.value).startswith(f"{path}: {what} (")
        assert str(refused.value).endswith("; fetch it again")
        assert "\n" not in str(refused.value)
        assert capfd.readouterr().err == ""  # a panic prints a backtrace by itself

    def test_stderr_works_again_after_a_panic(
        self, folder: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        Tokenizer.from_file(folder / "tokenizer.json")
        os.write(2, b"a line")
        assert capfd.readouterr().err == "a line"

    def test_an_interrupt_is_not_reported_as_a_damaged_tokenizer(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Interrupted:
            def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> None:
                raise KeyboardInterrupt

        tokenizer = Tokenizer(make_tokenizer(), "tiny")
        tokenizer.backend = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            tokenizer.encode(["a"])

    @pytest.mark.parametrize("engine", ENGINES)
    def test_a_prompt_without_tokens_is_refused(self, lm: LanguageModel, engine: str) -> None:
        with pytest.raises(InputError, match="makes no token of a prompt"):
            branch_logits(lm, [], [[5], []], engine)
        assert len(branch_logits(lm, [5], [[6], []], engine)) == 2

    def test_a_tokenizer_that_drops_all_text_is_refused(self, question: Question) -> None:
        backend = tokenizers.Tokenizer(models.BPE(vocab={"☃": 0}, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        with pytest.raises(InputError, match=r"deaf: label ' A' after .* is not one token"):
            write_prompts(Tokenizer(backend, "deaf"), DEFAULT_TEMPLATE, "Q", [["x", "y"]])


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("depth", [500, 5000, 100_000])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("write", [str, '{{"rope_scaling": {0}, "model": {0}}}'.format])
def test_deeply_nested_json_is_refused_in_one_line(
    folder: Path, name: str, depth: int, write: Callable[[str], str]
) -> None:
    (folder / name).write_text(write(nested(depth)))
    with pytest.raises(InputError) as refused:
        minise.load(folder)
    assert str(refused.value).startswith(f"{folder / name}: ")
    assert len(str(refused.value)) < len(str(folder)) + 350


def test_a_deeply_nested_header_of_weights_is_refused_in_one_line(folder: Path) -> None:
    header = nested(50_000).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(InputError, match="not a whole safetensors file"):
        minise.load(folder)
