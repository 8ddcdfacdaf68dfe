"""How much memory is free."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from minise import memory
from minise.memory import free_bytes, left_by_limit


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


def test_a_cpu_has_what_the_system_says_or_what_a_container_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = "MemTotal:  9000 kB\nMemFree:  1000 kB\nMemAvailable:  5000 kB\n"
    files = {"/proc/meminfo": lines}
    monkeypatch.setattr(Path, "read_text", lambda self: files[str(self)])
    for left, expected in (([], 5000), ([3000 * 1024], 3000), ([7000 * 1024], 5000)):
        monkeypatch.setattr(memory, "left_by_limit", lambda group, left=left: left)
        assert free_bytes(torch.device("cpu")) == expected * 1024


def test_a_system_that_does_not_say_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Path) -> str:
        raise OSError(str(self))

    monkeypatch.setattr(Path, "read_text", missing)
    assert free_bytes(torch.device("cpu")) is None


def test_a_card_has_what_is_free_and_what_torch_keeps_unused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 90)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 5000))
    assert free_bytes(torch.device("cuda")) == 1060
