"""The tables of real answers, counted again from the records by pandas alone: no code of minise and
none of tools/ is used here. Intervals come from other draws, so they may differ by a point."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pd = pytest.importorskip("pandas")
np = pytest.importorskip("numpy")
optimize = pytest.importorskip("scipy.optimize")
sklearn_metrics = pytest.importorskip("sklearn.metrics")

DOCS = Path(__file__).parents[3] / "docs"
STUDIES = Path(__file__).parents[1]
ANSWERS = STUDIES / "answers"
TABLES = json.loads((ANSWERS / "tables.json").read_text("utf-8"))
NAMES = ("real.md", "serving.md", "costs.md", "decisions.md")
PAGES = "".join((DOCS / name).read_text("utf-8") for name in NAMES)
FOLDS = 5
ENDPOINT = 1.1  # points by which an end of an interval may differ between two sets of draws

pytestmark = pytest.mark.slow


def shown(name: str, bold: bool = False) -> list[list[str]]:
    """The rows of a table as the page has them, without heads; without bold marks, unless asked."""
    found = re.search(rf"<!-- table {name} -->\n(.*?)<!-- end -->", PAGES, flags=re.DOTALL)
    assert found, f"no page has the table {name}"
    text = found[1] if bold else found[1].replace("**", "")
    lines = text.strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def frame_of(cell: str) -> Any:
    frame = pd.read_json(ANSWERS / f"{cell}.jsonl.gz", lines=True, precise_float=True)
    frame["right"] = frame.prediction == frame.answer
    frame["normalized"] = frame.probabilities.map(max)
    frame["f"] = frame.normalized * summed(cell, frame)
    return frame


def summed(cell: str, frame: Any) -> Any:
    """The sum of a question's scores: what the prompts that list each choice once give to choices,
    and not to "None of the above"."""
    run = json.loads((ANSWERS / cell).with_name("run.json").read_text("utf-8"))
    K = len(frame.probabilities[0])
    m = K
    for task, facts in run["tasks"].items():
        for method, about in facts["methods"].items():
            if cell.endswith(f"/{task}-{method}"):
                m = about["settings"].get("group_size", K)
    return math.ceil(K / m) * (1 - frame.null.astype(float).fillna(0))


def on_one_scale(cell: str) -> Any:
    """The frame sorted by id, and its log p at the temperature that is best on the other folds."""
    frame = frame_of(cell).sort_values("id", ignore_index=True)
    return matched(frame, np.array(frame.probabilities.tolist()))


def matched(frame: Any, p: Any) -> Any:
    """The frame with the largest p as `f`, and `nll`, at that temperature."""
    frame = frame.copy()
    log_p = np.log(np.maximum(p, 1e-300))
    folds = np.random.Generator(np.random.PCG64(0)).permutation(len(frame)) % FOLDS
    answers = frame.answer.to_numpy()
    found = np.zeros_like(log_p)
    for fold in range(FOLDS):
        others = folds != fold

        def of(sharper: float, some: Any) -> Any:
            scaled = math.exp(sharper) * log_p[some]
            return scaled - np.logaddexp.reduce(scaled, axis=1)[:, None]

        def loss(sharper: float, others: Any = others) -> float:
            each = of(sharper, others)[range(others.sum()), answers[others]]
            return float(sharper**2 / (8 * others.sum()) - each.mean())

        best = optimize.minimize_scalar(loss, bounds=(-5, 5), options={"xatol": 1e-8}).x
        found[~others] = of(best, ~others)
    frame["nll"] = -found[range(len(frame)), answers]
    frame["f"] = np.exp(found.max(axis=1))
    return frame


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def measured(cell: str, name: str) -> str:
    """A number of a cell as a page writes it, without an interval."""
    if name.startswith("matched_"):
        frame = on_one_scale(cell)
        if name == "matched_nll":
            return f"{frame.nll.mean():.3f}"
        return ratio(frame, name.removeprefix("matched_"))
    frame = frame_of(cell)
    if name.startswith("normalized_"):
        frame["f"] = frame.normalized
        return ratio(frame, name.removeprefix("normalized_"))
    if name in ("under", "over"):
        return ratio(frame, name)
    if name == "auroc":
        return f"{sklearn_metrics.roc_auc_score(frame.right, frame.f):.3f}"
    if name == "n":
        return f"{len(frame):,}"
    if name == "tokens":
        return f"{frame.tokens.mean():,.0f}"
    if name == "accuracy":
        return percent(frame.right.mean())
    if name == "confidence":
        return percent(frame.f.mean())
    if name == "on_labels":
        return percent(frame.on_labels.mean()) if frame.on_labels.notna().any() else "-"
    if name == "nll":
        right_p = [p[answer] for p, answer in zip(frame.probabilities, frame.answer, strict=True)]
        return f"{-np.log(right_p).mean():.3f}"
    if name == "brier":
        p = np.array(frame.probabilities.tolist())
        p[range(len(p)), frame.answer] -= 1
        return f"{(p**2).sum(axis=1).mean():.3f}"
    if name == "ece":
        bins = pd.cut(frame.f, np.linspace(0, 1, 16))
        gaps = (frame.right - frame.f).groupby(bins, observed=True).sum().abs()
        return f"{gaps.sum() / len(frame):.3f}"
    if name == "flips":
        return flips(frame)
    raise ValueError(name)


def ratio(frame: Any, name: str) -> str:
    if name == "under":
        return percent((frame.f[frame.right] < 0.5).mean())
    return percent((frame.f[~frame.right] > 0.5).mean())


def flips(frame: Any) -> str:
    """Of all pairs of seeds of a question, the share with two answers."""
    pairs = frame.merge(frame, on="id")
    pairs = pairs[pairs.seed_x != pairs.seed_y]
    if pairs.empty:
        return "-"
    return percent((pairs.prediction_x != pairs.prediction_y).mean())


def near(text: str, low: float, high: float) -> None:
    """The interval in `text` is near this one, in points."""
    ends = [float(end) for end in text[text.index("[") + 1 : -1].split(", ")]
    assert abs(ends[0] - low) <= ENDPOINT, text
    assert abs(ends[1] - high) <= ENDPOINT, text


def resampled(values: Sequence[float]) -> tuple[float, float]:
    """The 95% interval of a mean, in points."""
    generator = np.random.default_rng(1)
    array = np.asarray(values, dtype=float)
    drawn = generator.integers(0, len(array), (4000, len(array)))
    low, high = np.quantile(array[drawn].mean(axis=1), [0.025, 0.975])
    return 100 * low, 100 * high


def by_question(cells: Sequence[str]) -> Any:
    """The share of right answers of each question."""
    frames = pd.concat([frame_of(cell) for cell in cells])
    return frames.groupby("question_hash").right.mean()


@pytest.mark.parametrize("name", [name for name in TABLES if TABLES[name]["form"] == "numbers"])
def test_accuracies_tokens_and_confidence(name: str) -> None:
    spec = TABLES[name]
    heads = len(spec["head"].split(" | "))
    rows = shown(name)
    assert len(rows) == len(spec["rows"])
    for row, (label, start) in zip(rows, spec["rows"], strict=True):
        assert row[:heads] == label.split(" | ")
        for text, (_, end, what) in zip(row[heads:], spec["columns"], strict=True):
            value = measured(start + end, what.removesuffix("+"))
            if not (what.endswith("+") and "[" in text):
                assert text == value, (name, label, what)
                continue
            assert text.split(" ")[0] == value, (name, label, what)
            if what == "auroc+":
                near_auroc(text, frame_of(start + end))
            else:
                near(text, *resampled(by_question([start + end])))


def near_auroc(text: str, *frames: Any) -> None:
    """The interval in `text` is near that of the AUROC of a frame, or of its difference from that
    of a second one on the same questions."""
    generator = np.random.default_rng(1)
    found = []
    for _ in range(1000):
        some = generator.integers(0, len(frames[0]), len(frames[0]))
        values = []
        for frame in frames:
            right, f = frame.right.to_numpy()[some], frame.f.to_numpy()[some]
            values.append(sklearn_metrics.roc_auc_score(right, f))
        found.append(values[0] - sum(values[1:]))
    ends = [float(end) for end in text[text.index("[") + 1 : -1].split(", ")]
    assert ends == pytest.approx(np.quantile(found, [0.025, 0.975]).tolist(), abs=0.012), text


def mcnemar(gains: Any) -> tuple[int, int]:
    return int((gains > 0).sum()), int((gains < 0).sum())


def exact_p(more: int, less: int) -> float:
    """Two-sided, of a fair coin."""
    n = more + less
    tail = sum(math.comb(n, k) for k in range(min(more, less) + 1)) / 2**n
    return min(1.0, 2 * tail)


def holm(ps: Sequence[float]) -> list[float]:
    corrected = [0.0] * len(ps)
    worst = 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        worst = max(worst, min(1.0, ps[i] * (len(ps) - rank)))
        corrected[i] = worst
    return corrected


def test_the_planned_differences() -> None:
    spec = TABLES["counts"]
    ps = []
    rows = shown("counts")
    for row, (label, ours, theirs) in zip(rows, spec["rows"], strict=True):
        gains = (by_question([ours]) - by_question([theirs])).dropna()
        assert row[3] == str(len(gains))
        assert row[4].split(" ")[0] == f"{100 * gains.mean():+.1f}", label
        near(row[4], *resampled(gains))
        ps.append(exact_p(*mcnemar(gains)))
        assert row[5] == f"{ps[-1]:.2g}", label
    assert [row[6] for row in rows] == [f"{p:.2g}" for p in holm(ps)]
    unseen = [i for i, (label, _, _) in enumerate(spec["rows"]) if not label.endswith(("†", "‡"))]
    again = holm([ps[i] for i in unseen])
    for i, p in zip(unseen, again, strict=True):
        assert rows[i][7] == f"{p:.2g}"


@pytest.mark.parametrize("name", [name for name in TABLES if TABLES[name]["form"] == "found later"])
def test_the_differences_that_have_no_test(name: str) -> None:
    for row, (label, cells, others) in zip(shown(name), TABLES[name]["rows"], strict=True):
        gains = (by_question(cells) - by_question(others)).dropna()
        assert row[-2] == f"{len(gains):,}"
        assert row[-1].split(" ")[0] == f"{100 * gains.mean():+.1f}", label
        near(row[-1], *resampled(gains))


def test_the_planned_experiment() -> None:
    spec = TABLES["splitting"]
    for row, (label, cells, others) in zip(shown("splitting"), spec["rows"], strict=True):
        gains = (by_question(cells) - by_question(others)).dropna().to_numpy()
        assert row[1] == str(len(gains))
        assert row[2].split(" ")[0] == f"{100 * gains.mean():+.1f}", label
        near(row[2], *resampled(gains))
        signs = np.random.default_rng(1).choice([-1, 1], (20_000, len(gains)))
        as_far = abs((signs * gains).mean(axis=1)) >= abs(gains.mean()) - 1e-12
        assert float(row[3]) == pytest.approx(min(1, spec["tests"] * as_far.mean()), abs=0.02)
        assert row[4] == "open"  # this p, and this interval


@pytest.mark.parametrize("name", [name for name in TABLES if TABLES[name]["form"] == "changed"])
def test_how_many_answers_change(name: str) -> None:
    for row, (label, a, b) in zip(shown(name), TABLES[name]["rows"], strict=True):
        both = frame_of(a).merge(frame_of(b), on="id")
        far = 0.0
        for p, q in zip(both.probabilities_x, both.probabilities_y, strict=True):
            far = max(far, float(np.abs(np.subtract(p, q)).max()))
        changed = int((both.prediction_x != both.prediction_y).sum())
        accuracies = [percent(both.right_x.mean()), percent(both.right_y.mean())]
        assert row[-5:] == [str(len(both)), str(changed), f"{far:.4f}", *accuracies], label


def test_what_tokens_buy() -> None:
    """In bold: nothing that takes as few tokens has as many right."""
    spec = TABLES["tokens"]
    rows = shown("tokens", bold=True)
    assert [row[0] for row in rows] == [method for method, *_ in spec["rows"]]
    for place in range(1, 1 + len(spec["data"])):
        cells = [row[place] for row in spec["rows"]]
        frames = [frame_of(cell) for cell in cells]
        bought = [(frame.tokens.mean(), frame.right.mean()) for frame in frames]
        for row, cell, (tokens, right) in zip(rows, cells, bought, strict=True):
            as_cheap = [other for most, other in bought if most <= tokens]
            number = measured(cell, "accuracy")
            if max(as_cheap) == right and as_cheap.count(right) == 1:
                number = f"**{number}**"
            assert row[place] == f"{number} for {measured(cell, 'tokens')}", (row[0], place)


def test_random_subsets_of_the_trials() -> None:
    spec = TABLES["subsets"]
    generator = np.random.default_rng(1)
    for row, (label, cell) in zip(shown("subsets"), spec["rows"], strict=True):
        frame = frame_of(cell)
        rows = []
        for question, groups in enumerate(frame.groups):
            for group in groups:
                for choice, p in zip(group["choices"], group["probabilities"], strict=True):
                    rows.append((question, group["trial"], choice, p))
        long = pd.DataFrame(rows, columns=["question", "trial", "choice", "p"])
        table = long.set_index(["trial", "question", "choice"]).p.unstack().sort_index()
        trials = table.index.get_level_values(0).nunique()
        values = table.to_numpy().reshape(trials, len(frame), -1)
        answers = frame.answer.to_numpy()
        for text, size in zip(row[1:], spec["sizes"], strict=True):
            found = []
            for _ in range(1000):
                some = generator.choice(trials, size, replace=False)
                found.append((values[some].mean(axis=0).argmax(axis=1) == answers).mean())
            assert float(text) == pytest.approx(100 * np.mean(found), abs=0.3), (label, size)
