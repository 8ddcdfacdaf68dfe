"""Text to token ids and back, by a tokenizer.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from minise import InputError
from minise.prompt import DEFAULT_TEMPLATE, write_prompts
from minise.tokenizer import Tokenizer
from tests.support.tiny import make_tokenizer


def byte_tokenizer(bos: bool = True) -> Tokenizer:
    return Tokenizer(make_tokenizer(bos), "tiny")


def test_without_a_beginning_token_none_is_added() -> None:
    tokenizer = byte_tokenizer(bos=False)
    prefix, prompts = write_prompts(tokenizer, DEFAULT_TEMPLATE, "Q", [["a"], ["b"]])
    assert 0 not in prefix + prompts[0].ids


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file; a checkpoint folder needs"):
        Tokenizer.from_file(tmp_path / "tokenizer.json")


def test_truncation_and_padding_stored_in_a_tokenizer_are_ignored() -> None:
    backend = make_tokenizer()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    assert len(Tokenizer(backend, "t").encode(["a long text"])[0]) == 1 + len("a long text")


def test_decoding_shows_special_tokens() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.backend.add_special_tokens(["<s>", "<|end|>"])
    ids = tokenizer.encode(["Yes<|end|>"])[0]
    assert tokenizer.decode(ids) == "<s>Yes<|end|>"


def test_half_a_surrogate_pair_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="cannot encode a prompt") as caught:
        byte_tokenizer().encode(["a\udcff"], add_special_tokens=False)
    assert len(str(caught.value).splitlines()) == 1
