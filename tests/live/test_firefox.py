"""The live page in Firefox."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.browser import Firefox
from tests.support.browser import firefox as firefox
from tests.support.live import live_file as live_file


def shown(firefox: Firefox, script: str, wanted: Callable[[Any], bool]) -> Any:
    """What the script returns once it is as `wanted`, or after a minute. The page's policy forbids
    scripts that are added to it, so this one runs beside the page."""
    for _ in range(240):
        command = {"script": f"return {script}", "args": []}
        if wanted(value := firefox.send("WebDriver:ExecuteScript", command)["value"]):
            break
        time.sleep(0.25)
    return value


def test_firefox_runs_the_model_and_packed_equals_separate(
    firefox: Firefox, live_file: Path
) -> None:
    firefox.send("WebDriver:Navigate", {"url": f"{live_file.as_uri()}#ask?K=3"})
    answer = "document.getElementById('scene-ask')?.innerText ?? ''"
    assert "The model answers Ottawa: right." in shown(firefox, answer, lambda text: "%" in text)
    firefox.send("WebDriver:Navigate", {"url": f"{live_file.as_uri()}#leak?K=4&m=2"})
    cases = "[...document.querySelectorAll('.leak-case[aria-pressed]')].map(one => one.innerText)"
    whole = shown(firefox, cases, lambda all_: len(all_) == 4 and any("equal" in x for x in all_))
    assert ["0, equal" in case for case in whole].count(True) == 1  # group mask, positions reset
    press = "document.querySelectorAll('.leak-case[aria-pressed]')[{}].click()"
    verdict = "document.querySelector('#scene-leak .verdict').innerText"
    right = next(i for i, case in enumerate(whole) if "0, equal" in case)
    shown(firefox, press.format(right), lambda _: True)
    assert shown(firefox, verdict, lambda text: text == "exactly 0") == "exactly 0"
    shown(firefox, press.format(0 if right else 1), lambda _: True)
    assert float(shown(firefox, verdict, lambda text: "exactly" not in text)) > 0.01
    assert shown(firefox, "document.getElementById('fault').hidden", lambda _: True)
