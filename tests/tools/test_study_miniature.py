"""What tools/studies/miniature.py says about runs, on samples made by hand."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

pytest.importorskip("scipy")

import numpy as np

from minise.methods.sample import Sample
from tools.studies.miniature import (
    METHODS,
    best_bias,
    correlation,
    print_accuracy_by_label,
    print_differences,
    print_intervals_by_fact,
    print_matched_losses,
    samples_of,
)


def write(folder: Path, method: str, samples: list[Sample]) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / f"samples-miniature-{method}.jsonl"
    path.write_text("".join(sample.line() for sample in samples), encoding="utf-8")


def sample(number: int, answer: int, logits: list[float], fact: int) -> Sample:
    p = np.exp(logits) / np.exp(logits).sum()
    best = int(np.argmax(logits))
    id, cluster = f"miniature-0-{number}", f"miniature-fact-{fact}"
    texts = {"logits": logits, "cluster": cluster}
    return Sample(id, 0, "hash", answer, best, p.tolist(), p.tolist(), 9, **texts)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Eight questions of each of 20 facts; the model knows some, and never says H."""
    draw = random.Random(0)
    samples = []
    for number in range(160):
        answer = number % 8
        logits = [draw.random() for _ in range(8)]
        logits[answer] += 1.5 if number // 8 % 3 else 0.2
        logits[7] -= 5
        samples.append(sample(number, answer, logits, number // 8))
    for method in METHODS:
        write(tmp_path / "run", method, samples)
    return tmp_path / "run"


def test_labels_that_a_model_does_not_read_are_listed_separately(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_accuracy_by_label([folder])
    head, _, row = capsys.readouterr().out.splitlines()
    assert head == "| run | A | B | C | D | E | F | G | H | all | with the best bias |"
    *shares, whole, best = row.split("|")[2:-1]
    assert min(map(float, shares[:7])) > 60
    assert float(shares[7]) == 0
    assert float(whole) == pytest.approx(np.mean([float(share) for share in shares]), abs=0.5)
    assert float(best) > float(whole) + 5


def test_the_best_bias_is_the_best_on_a_grid() -> None:
    draw = np.random.default_rng(3)
    for _ in range(5):
        logits, answers = draw.normal(size=(12, 3)), draw.integers(3, size=12)
        grid = np.linspace(-5, 5, 81)
        most = max(
            ((logits + np.array([0, a, b])).argmax(axis=1) == answers).mean()
            for a, b in itertools.product(grid, grid)
        )
        best = best_bias(logits, answers)
        plain = (logits.argmax(axis=1) == answers).mean()
        assert plain <= best <= 1
        assert best >= most - 1.01 / 12  # label by label can end one question below the best


def test_equal_methods_have_no_lead_and_facts_widen_intervals(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_matched_losses([folder])
    *_, row = capsys.readouterr().out.splitlines()
    assert row.count("0.000 [-0.000, -0.000]") + row.count("0.000 [0.000, 0.000]") == 2
    print_intervals_by_fact([folder])
    *_, row = capsys.readouterr().out.splitlines()
    assert row.startswith("| run | self-ensemble | 160 | 20 | ")


def test_differences_of_pairs_are_in_points_and_a_method_that_did_not_run_has_a_dash(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Self-Ensemble is right on every question; standard inference only on the first 8 facts."""
    for method, facts in (*((name, 20) for name in METHODS), ("standard", 8)):
        logits = [[9.0, 0.0] if i // 8 < facts else [0.0, 9.0] for i in range(160)]
        write(folder, method, [sample(i, 0, z, i // 8) for i, z in enumerate(logits)])
    write(folder, "dirichlet", samples_of(folder, "standard"))
    print_differences([folder])
    *_, row = capsys.readouterr().out.splitlines()
    gain, dirichlet, cyclic, _ = (cell.strip() for cell in row.split("|")[2:-1])
    assert gain.startswith("+60.0 [+")
    low, high = map(float, gain.partition("[")[2].strip("]").split(","))
    assert high - low > 30  # 20 facts are drawn, and not 160 questions: those would give 15
    assert dirichlet == "+0.0 [+0.0, +0.0]"
    assert cyclic == "-"


def test_the_correlation_within_a_fact_is_estimated() -> None:
    """1 where all questions of a fact agree, about 0 where the fact says nothing, and 1/2 where
    half of the variance is the fact's."""
    draw = np.random.default_rng(5)
    samples = [sample(i, 0, [1.0, 0.0], i // 4) for i in range(4000)]
    of_fact = np.repeat(draw.normal(size=1000), 4)
    of_sample = draw.normal(size=4000)
    assert correlation(samples, of_fact.tolist()) == pytest.approx(1)
    assert correlation(samples, of_sample.tolist()) == pytest.approx(0, abs=0.05)
    assert correlation(samples, (of_fact + of_sample).tolist()) == pytest.approx(0.5, abs=0.05)
