"""Text to token ids and back, by a tokenizer.json."""

from pathlib import Path

import pytest

from minise import InputError
from minise.tokenizer import Tokenizer
from tests.reference.support.tiny import make_tokenizer


def test_a_beginning_token_is_added_only_by_a_tokenizer_that_has_one() -> None:
    for bos, expected in ((True, 1), (False, 0)):
        tokenizer = Tokenizer(make_tokenizer(bos), "tiny")
        for ids in tokenizer.encode(["some text", ""]):
            assert ids.count(0) == expected
        assert 0 not in tokenizer.encode(["some text"], add_special_tokens=False)[0]


def test_truncation_and_padding_stored_in_a_tokenizer_are_ignored() -> None:
    backend = make_tokenizer()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    assert len(Tokenizer(backend, "t").encode(["a long text"])[0]) == 1 + len("a long text")


def test_a_tokenizer_that_draws_its_tokens_is_refused(tmp_path: Path) -> None:
    """With BPE dropout a text has other ids in every call."""
    backend = make_tokenizer()
    backend.model.dropout = 0.0
    assert Tokenizer(backend, "tiny").encode(["Answer: A"])  # drops none
    backend.model.dropout = 0.1
    path = tmp_path / "tokenizer.json"
    backend.save(str(path))
    with pytest.raises(InputError, match=r"dropout 0\.1") as caught:
        Tokenizer.from_file(path)
    assert str(path) in str(caught.value)
    assert "not a tokenizer" not in str(caught.value)
    with pytest.raises(InputError, match="tiny"):
        Tokenizer(backend, "tiny")


def test_decoding_shows_special_tokens() -> None:
    tokenizer = Tokenizer(make_tokenizer(), "tiny")
    tokenizer.backend.add_special_tokens(["<s>", "<|end|>"])
    assert tokenizer.decode(tokenizer.encode(["Yes<|end|>"])[0]) == "<s>Yes<|end|>"


@pytest.mark.parametrize("content", [None, "{}", "no json", '{"model": {"type": "BPE"}}'])
def test_a_file_that_is_no_tokenizer_is_named_in_one_line(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError) as caught:
        Tokenizer.from_file(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_half_a_surrogate_pair_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="tiny") as caught:
        Tokenizer(make_tokenizer(), "tiny").encode(["a\udcff"], add_special_tokens=False)
    assert "\n" not in str(caught.value)
