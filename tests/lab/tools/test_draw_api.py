"""docs/api.md has every public name, as the code has it today."""

import re

import pytest

pytest.importorskip("griffe2md")

import minise
from tools import draw_api

PAGE = draw_api.PAGE.read_text("utf-8")
pytestmark = pytest.mark.slow


def test_the_page_is_not_older_than_the_code() -> None:
    """If it is: python -m tools.draw_api."""
    assert draw_api.page() == PAGE


def test_every_public_name_is_on_the_page_once_with_its_words() -> None:
    entries = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    assert sorted(entry.split("`")[1] for entry in entries) == minise.__all__
    for entry in entries:
        words = re.sub(r"```.*?```", "", entry.partition("\n")[2], flags=re.DOTALL)
        assert len(words.split()) >= 4, entry
