"""A number with an interval on a page stands in the record of a run."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RECORD = "docs/miniature/numbers.csv"  # what reports said
PAGES = [
    path.relative_to(ROOT).as_posix()
    for pattern in ("docs/miniature.md", "weights/*/README.md")
    for path in sorted(ROOT.glob(pattern))
]
NUMBER = re.compile(r"([+-]?\d+\.(\d+)) \[([+-]?\d+\.\d+),\s+([+-]?\d+\.\d+)\]")
Numbers = tuple[float, float, float]  # a value and its interval


def numbers(text: str) -> dict[str, tuple[Numbers, int]]:
    """By what is written, the numbers with an interval and how many digits they have."""
    return {
        match[0]: ((float(match[1]), float(match[3]), float(match[4])), len(match[2]))
        for match in NUMBER.finditer(text)
    }


def differing(text: str, source: str) -> set[str]:
    """The numbers of a text that no number of the source rounds to."""
    recorded = {one for one, _ in numbers(source).values()}
    return {
        written
        for written, (shown, digits) in numbers(text).items()
        if not any(
            all(abs(a - b) < 0.501 * 10**-digits for a, b in zip(shown, one, strict=True))
            for one in recorded
        )
    }


@pytest.mark.parametrize("page", PAGES)
def test_each_number_of_a_page_is_recorded(page: str) -> None:
    text, record = ((ROOT / name).read_text(encoding="utf-8") for name in (page, RECORD))
    assert numbers(text)
    assert differing(text, record) == set()


def test_a_number_that_was_not_recorded_is_noticed() -> None:
    source = "52.71 [49.84, 55.66], 1.4 [0.5, 2.3]"
    assert differing("52.7 [49.8, 55.7] and +1.4 [+0.5,\n+2.3]", source) == set()
    wrong = {"52.7 [49.8, 55.8]", "-1.4 [-2.3, -0.5]"}
    assert differing(" and ".join(wrong), source) == wrong
