"""The measured seconds and memory of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from minise.evaluation import meter
from minise.evaluation.meter import high_water, peak_bytes, timed

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A stand-in for a card: what was called, in order. 100 bytes are held; a run takes 70 more."""
    calls: list[str] = []

    def put(name: str, result: int | None = None) -> None:
        monkeypatch.setattr(torch.cuda, name, lambda device: calls.append(name) or result)

    put("synchronize")
    put("reset_peak_memory_stats")
    put("memory_allocated", 100)
    put("max_memory_allocated", 170)
    return calls


def test_the_peak_is_the_memory_a_run_takes() -> None:
    peak, _ = peak_bytes(lambda: torch.ones(50_000_000).sum(), CPU)
    if peak is None:
        pytest.skip("this system does not say")
    assert 190e6 < peak < 260e6


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not say")
def test_memory_is_counted_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert high_water() > 0.9 * resident
    lines = "Name:\tpython\nVmHWM:\t   2000 kB\nVmRSS:\t   1000 kB\n"
    monkeypatch.setattr(Path, "read_text", lambda self: lines)
    assert high_water() == 2000 * 1024


def test_a_card_is_waited_for_before_and_after_what_is_timed(card: list[str]) -> None:
    assert timed(lambda: card.append("run"), CUDA) >= 0
    assert card == ["synchronize", "run", "synchronize"]


def test_a_cpu_is_timed_without_a_card(card: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.5])
    monkeypatch.setattr(meter.time, "perf_counter", lambda: next(clock))
    assert timed(lambda: card.append("run"), CPU) == 2.5
    assert card == ["run"]


def test_the_peak_of_a_card_is_what_the_run_takes_above_what_is_held(card: list[str]) -> None:
    assert peak_bytes(lambda: card.append("run") or "result", CUDA) == (70, "result")
    assert card == [
        *("reset_peak_memory_stats", "memory_allocated"),
        *("run", "synchronize", "max_memory_allocated"),
    ]


def test_without_a_measure_the_run_still_gives_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> int:
        raise OSError(name)

    monkeypatch.setattr(meter, "_status", missing)
    assert peak_bytes(lambda: "result", CPU) == (None, "result")
