"""How much memory is free."""

from __future__ import annotations

from pathlib import Path

from minise.memory import left_by_limit


def test_a_containers_limit_bounds_the_free_memory(tmp_path: Path) -> None:
    assert left_by_limit(tmp_path) == []
    for name, content in (
        ("max", "1000\n"),
        ("current", "700\n"),
        ("stat", "anon 5\ninactive_file 40\nactive_file 2\nfile 50\n"),
    ):
        (tmp_path / f"memory.{name}").write_text(content)
    assert left_by_limit(tmp_path) == [342]
    (tmp_path / "memory.max").write_text("max\n")
    assert left_by_limit(tmp_path) == []
