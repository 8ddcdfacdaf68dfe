"""The tables made from tools/studies/answers/, and the figure, show what their records say."""

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pandas")

from matplotlib.testing.compare import compare_images

from tools.studies import real
from tools.studies.records import RECORDS, short, sign_p

pytestmark = pytest.mark.slow


def test_tables_and_figure_are_not_older_than_the_records() -> None:
    """If they are: python -m tools.studies."""
    made = real.texts()
    assert {path: path.read_text("utf-8") for path in made} == made
    shown = re.findall(r"<!-- table (\S+) -->", "".join(made.values()))
    assert set(shown) == real.TABLES.keys()


def test_the_pictures_are_not_older_than_the_records(tmp_path: Path) -> None:
    """Letters of another matplotlib may differ a little, so it is no comparison of bytes."""
    for path, content in real.pictures().items():
        drawn = tmp_path / path.name
        drawn.write_bytes(content)
        assert compare_images(str(path), str(drawn), tol=3) is None


def test_a_record_names_its_model_and_no_path() -> None:
    records = list(RECORDS.glob("*/run.json"))
    assert len(records) >= 6
    for path in records:
        model = re.search(r'"model": "(.*)"', path.read_text("utf-8"))
        assert model
        assert re.search(r"Q4_", model[1]), path


def test_numbers_are_kept_with_four_digits() -> None:
    assert short([0.123456, 1 / 3e9, 7, None, "x"]) == [0.1235, 3.333e-10, 7, None, "x"]


@pytest.mark.parametrize(
    ("gains", "exact"), [([1, 1, 1, 1, 1], 2 / 32), ([1, 1, 1, -1], 10 / 16), ([0, 0], 1)]
)
def test_random_signs_give_the_share_of_all_signs(gains: list[float], exact: float) -> None:
    """How many of all 2^n signs give a mean as far from 0."""
    assert sign_p(np.array(gains, dtype=float)) == pytest.approx(exact, abs=0.01)
