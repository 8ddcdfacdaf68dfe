"""No picture in docs/ is older than what it shows."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_rgb

from minise.report import drawing
from tests.support.contrast import contrast, luminance
from tools import draw_docs
from tools.draw_docs import DARK, DOCS, PICTURES, RECORD

AGAIN = "python -m tools.draw_docs draws it again"


def figure(name: str) -> Any:
    return draw_docs.make(name)[0]


@pytest.mark.parametrize("name", [*PICTURES, *DARK])
def test_a_picture_shows_what_its_data_say_and_the_code_draws_today(name: str) -> None:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    assert draw_docs.shown(figure(name)) == recorded[name], AGAIN


def test_every_picture_is_drawn_by_the_tool() -> None:
    drawn = {*PICTURES, *DARK}
    assert {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.png")} == drawn


def test_the_readme_shows_each_of_its_pictures_also_for_a_dark_page() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    tag = re.compile(
        r'<picture><source media="\(prefers-color-scheme: dark\)" srcset="docs/([^"]+)">'
        r'<img src="docs/([^"]+)" alt="[^"]{20,}"></picture>'
    )
    assert dict(tag.findall(readme)) == DARK
    assert readme.count("<img") + readme.count("![") == len(DARK)


@pytest.mark.parametrize("name", DARK)
def test_a_dark_picture_has_the_same_content_and_no_text_or_line_too_dark_to_see(name: str) -> None:
    """WCAG 2.1: a contrast of 4.5 for text (1.4.3) and of 3 for lines (1.4.11)."""
    dark, light = figure(name), figure(DARK[name])
    page = to_rgb(dark.get_facecolor())
    assert luminance(page) < 0.02 < 0.98 < luminance(to_rgb(light.get_facecolor()))
    assert words(dark) == words(light)
    for text in texts(dark):
        assert contrast(to_rgb(text.get_color()), page) >= 4.5, text.get_text()
    for line in [line for ax in dark.axes for line in ax.lines]:
        assert contrast(to_rgb(line.get_color()), page) >= 3, line.get_label()


def texts(figure: Any) -> list[Any]:
    found = [text for legend in figure.legends for text in legend.get_texts()]
    for ax in figure.axes:
        found += [ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts]
        found += [*ax.get_xticklabels(), *ax.get_yticklabels()]
    return [*found, *figure.texts]


def words(figure: Any) -> list[str]:
    return [text.get_text() for text in texts(figure)]


def test_the_figure_of_the_readme_has_the_numbers_of_its_tables() -> None:
    """With chance, and with the control that the text names."""
    drawn = figure("miniature/choices/accuracy-choices.png")
    llama, mistral, _ = drawn.axes
    standard, ours, rotations = (bars.lines[0] for bars in llama.containers)
    chance = next(line for line in llama.lines if line.get_label().startswith("chance"))
    assert [*standard.get_ydata()] == pytest.approx([92.4, 79.0, 65.9, 52.7])
    assert [*ours.get_ydata()] == pytest.approx([92.6, 85.6, 83.4, 79.8])
    assert [*rotations.get_ydata()] == pytest.approx([78.2])
    assert [*chance.get_ydata()] == pytest.approx([50, 25, 100 / 6, 12.5])
    assert [*mistral.containers[0].lines[0].get_ydata()] == pytest.approx([80.6, 53.1, 37.0, 25.1])
    (legend,) = drawn.legends
    assert any("rotations" in text.get_text() for text in legend.get_texts())


def test_what_a_figure_shows_changes_with_a_number_a_text_and_a_colour(monkeypatch) -> None:
    name = "miniature/sensitivity/sensitivity.png"
    recorded = draw_docs.shown(figure(name))
    other = figure(name)
    other.axes[0].set_title("another")
    assert draw_docs.shown(other) != recorded
    read = draw_docs.read

    def more(text: str) -> draw_docs.Numbers:
        value, interval = read(text)
        return value + 0.1 * (text == "79.6 [75.6, 83.9]"), interval

    with monkeypatch.context() as patch:
        patch.setattr(draw_docs, "read", more)
        assert draw_docs.shown(figure(name)) != recorded
    looks = drawing.looks
    with monkeypatch.context() as patch:
        patch.setattr(
            "minise.report.panels.looks",
            lambda *a, **k: {n: replace(one, colour="red") for n, one in looks(*a, **k).items()},
        )
        assert draw_docs.shown(figure(name)) != recorded
    assert draw_docs.shown(figure(name)) == recorded


def test_a_table_is_read_by_its_title(tmp_path) -> None:
    report = tmp_path / "report.md"
    report.write_text("One, m\n\n| N | v |\n|---|---|\n| 1 | 2 |\n\nOther\n\n| a |\n")
    assert [*draw_docs.tables(report, "One")] == [("One, m", [{"N": "1", "v": "2"}])]
    assert draw_docs.read("+52.7 [51.4, 54.1]") == (52.7, (51.4, 54.1))
