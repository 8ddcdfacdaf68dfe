"""docs/api.md has every public name, as the code has it today."""

import re

import minise
from tools import draw_api


def test_the_page_is_not_older_than_the_code() -> None:
    """If it is: python -m tools.draw_api."""
    assert draw_api.PAGE.read_text(encoding="utf-8") == draw_api.page()


def test_every_public_name_is_on_the_page_once() -> None:
    names = re.findall(r"^### `(\w+)`$", draw_api.page(), re.MULTILINE)
    assert sorted(names) == sorted(minise.__all__)
    listed = [name for part in draw_api.PARTS.values() for name in part]
    assert {*listed} <= {*minise.__all__}  # the others stand under "More"


def test_every_public_name_is_explained_and_no_address_is_shown() -> None:
    page = draw_api.page()
    assert " at 0x" not in page
    for entry in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        words = re.sub(r"```.*?```", "", entry.partition("\n")[2], flags=re.DOTALL)
        assert len(words.split()) >= 4, entry
