"""The page in Firefox."""

from __future__ import annotations

from typing import Any

from tests.support.browser import explained as explained
from tests.support.browser import firefox as firefox
from tests.support.browser import foreign as foreign


def test_firefox_shows_the_same_page(firefox, explained, foreign, tmp_path) -> None:
    data = explained[1].data
    for name, page in (("page", explained[1]), ("foreign", foreign)):
        (tmp_path / f"{name}.html").write_text(page.html, encoding="utf-8")
    firefox.open(tmp_path / "page.html")
    firefox.run("window.errors = []; addEventListener('error', e => errors.push(e.message))")
    assert firefox.run("return document.querySelectorAll('.chart > svg').length") == 4
    seen = firefox.run("return tokens.map((_, row) => sees(row).length)")
    assert seen == [position + 1 for position in data["packed"]["positions"][: len(seen)]]
    drawn: Any = firefox.run(
        """const pen = $("mask").getContext("2d"), size = tokens.length * cell;
        const { data: pixels } = pen.getImageData(0, 0, size, size);
        return pixels.reduce((n, v, i) => n + (i % 4 === 3 && v > 0), 0) / cell ** 2;"""
    )
    assert drawn == sum(seen)
    firefox.run("document.querySelector('input[name=mask][value=off]').click()")
    run = data["ablations"]["without_mask"]["self_ensemble"]
    assert data["choices"][run["prediction"]] in firefox.run("return $('consequence').textContent")
    told = firefox.run("point(9); pointCell(9, 3); return $('cell').textContent")
    assert told.startswith("Token 9 ")
    assert "may attend to token 3 " in told
    assert firefox.run("return errors") == []
    firefox.open(tmp_path / "foreign.html")
    family = "👨\u200d👩\u200d👧"
    glyphs = firefox.run("return [...document.querySelectorAll('.glyph')].map(g => g.textContent)")
    assert {"م", family} <= set(glyphs)
