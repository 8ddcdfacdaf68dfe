"""A packed sequence as the page shows it: it is the layout, and its texts are the prompts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tokenizers import decoders

from minise import Question, pack
from minise.explaining.page import Page, explain
from minise.method import SelfEnsemble
from minise.tokenizer import Tokenizer
from tests.support.explained import FOREIGN
from tests.support.tiny import make_tokenizer


def test_the_pages_sequences_are_the_layouts(lm, page, bird) -> None:
    plan = SelfEnsemble(2, 3).plan(lm, bird, 4)
    for name, merge in (("packed", False), ("tree", True)):
        layout, shown = pack(plan.prefix, plan.branches, tree=merge), page.data[name]
        assert shown["parents"] == layout.parents.tolist()
        assert shown["positions"] == layout.positions.tolist()
        assert shown["ends"] == layout.ends.tolist()
    flat, tree = page.data["packed"], page.data["tree"]
    for row, tree_row in enumerate(page.data["tree_rows"]):
        assert flat["texts"][row] == tree["texts"][tree_row]
        assert flat["positions"][row] == tree["positions"][tree_row]
    lengths = [len(branch) for branch in plan.branches]
    assert [flat["groups"].count(group) for group in range(len(lengths))] == lengths
    assert flat["groups"].count(-1) == len(plan.prefix)


def test_the_tokens_texts_are_the_prompts(page) -> None:
    for name in ("packed", "tree"):
        shown = page.data[name]
        for group, row in zip(page.data["groups"], shown["ends"], strict=True):
            text = ""
            while row >= 0:
                text, row = shown["texts"][row] + text, shown["parents"][row]
            assert text.removeprefix("<s>") == page.data["shared"] + group["prompt"]


def test_spaces_of_a_tokenizer_with_special_spaces_are_kept(lm, bird) -> None:
    """As SentencePiece does, whose decoder drops the space before a text's first word."""
    backend = make_tokenizer()
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    other = replace(lm, tokenizer=Tokenizer(backend, "spaces"))
    texts = explain(other, bird, group_size=2, trials=1).data["packed"]["texts"]
    assert "".join(texts).count("Which is a bird?") == 1
    first = explain(other, replace(bird, text=" Which?"), group_size=2, trials=1).data["packed"]
    assert "".join(first["texts"]).removeprefix("<s>").startswith(" Which?")


# Characters of several tokens. The tokenizer of these tests has a token for every byte.


@pytest.fixture(scope="module")
def foreign(lm) -> Page:
    return explain(lm, FOREIGN, group_size=2, trials=2)


def test_texts_outside_english_are_the_prompts_too(foreign) -> None:
    test_the_tokens_texts_are_the_prompts(foreign)


def test_the_last_token_of_a_character_has_its_whole_text(foreign) -> None:
    packed = foreign.data["packed"]
    assert packed["inside"]
    assert {packed["texts"][row] for row in packed["inside"]} == {""}
    assert not any("\ufffd" in text for text in packed["texts"])
    row = packed["texts"].index("👩")
    assert packed["inside"][packed["inside"].index(row - 3) :][:3] == [row - 3, row - 2, row - 1]


def test_groups_may_complete_a_character_that_they_share_the_beginning_of(lm) -> None:
    """Of é and è the first byte is the same, so it is in the prefix."""
    tree = explain(lm, Question("Which?", ["é", "è"]), group_size=1, trials=1).data["tree"]
    (shared,) = (row for row in tree["inside"] if tree["groups"][row] < 0)
    after = [row for row, parent in enumerate(tree["parents"]) if parent == shared]
    assert sorted(tree["texts"][row] for row in after) == ["è", "é"]


def test_a_replacement_character_of_the_user_is_not_lost(lm) -> None:
    page = explain(lm, Question("a\ufffdb\ufffd?", ["x", "\ufffd"]), group_size=2, trials=1)
    test_the_tokens_texts_are_the_prompts(page)
