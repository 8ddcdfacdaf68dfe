"""`minise bench --workload generate` times text after prompts, by minise and by the library."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from minise import load
from minise.bench import generating
from minise.bench.generating import time_generation
from minise.bench.workloads import WORKLOADS
from tests.support.commands import assert_one_line, run


class TestGenerating:
    def test_each_way_of_generating_has_a_row(self, capsys) -> None:
        command = ("bench", "--workload", "generate", "--model", "weights/tiny-llama")
        status, out, _ = run(capsys, *command, "--rounds", 1, "--no-peers", "--json")
        assert status == 0
        report = json.loads(out)
        assert report["workload"] == "generate"
        one, tree = report["rows"]
        assert (one["name"], one["prompts"]) == ("one prompt: minise", 1)
        assert (tree["name"], tree["prompts"]) == ("all prompts: minise", 40)
        for row in (one, tree):
            assert row["new_tokens"] == 64 * row["prompts"]
            assert row["seconds"] > 0
            assert row["differing"] == 0

    def test_the_transformers_library_generates_the_same_tokens(
        self, capsys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("transformers")
        monkeypatch.setattr(generating, "NEW_TOKENS", 5)
        workload = replace(WORKLOADS["qasc"], trials=2)
        rows = time_generation(load("weights/tiny-mistral"), workload, 1, 0)
        assert [row.name.split(": ", 1)[1] for row in rows] == [
            *("minise", "library", "minise", "library, one by one", "library, padded batch")
        ]
        assert {row.differing for row in rows} == {0}
        assert "tokens/s" in generating.as_text(rows)

    def test_generating_has_no_plot(self, capsys, tmp_path: Path) -> None:
        plot = ("--plot", tmp_path / "x.png")
        assert_one_line(
            *run(capsys, "bench", "--workload", "generate", *plot), ["--plot draws the"]
        )
