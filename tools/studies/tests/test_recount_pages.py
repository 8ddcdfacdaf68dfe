"""The tables of the second experiment, of confidence, costs and decisions, counted again from the
records by pandas alone, as test_recount.py does those of real answers."""

import gzip
import json
from itertools import combinations
from statistics import median
from typing import Any

import pytest

from tools.studies.tests.test_recount import (
    DOCS,
    STUDIES,
    TABLES,
    exact_p,
    frame_of,
    holm,
    matched,
    mcnemar,
    measured,
    near,
    near_auroc,
    on_one_scale,
    percent,
    ratio,
    shown,
)

pd = pytest.importorskip("pandas")
np = pytest.importorskip("numpy")
sklearn_metrics = pytest.importorskip("sklearn.metrics")

pytestmark = pytest.mark.slow
SETS = {"QASC": "verdict-qasc-qwen15/qasc-", "Banking77": "verdict-banking-qwen15/banking77-k20-"}
ARMS = {"A0": "full-list-null", "B": "short-lists"}


def by_trial(frame: Any, what: str = "probabilities") -> Any:
    """What the prompts say of each choice: trials x questions x choices."""
    rows = []
    for question, groups in enumerate(frame.groups):
        for group in groups:
            for place, choice in enumerate(group["choices"]):
                value = group["null"] if what == "null" else group["probabilities"][place]
                rows.append((group["trial"], question, choice, value))
    long = pd.DataFrame(rows, columns=["trial", "question", "choice", "p"])
    table = long.set_index(["trial", "question", "choice"]).p.unstack().sort_index()
    return table.to_numpy().reshape(table.index.levshape[0], len(frame), -1)


def right_by_orders(cell: str) -> Any:
    """For each number of orders, the mean over all subsets of whether a question is right."""
    frame = frame_of(cell)
    values = by_trial(frame)
    found = {}
    for n in range(1, 5):
        hits = []
        for some in combinations(range(5), n):
            hits.append(values[list(some)].mean(axis=0).argmax(axis=1) == frame.answer)
        found[n] = np.mean(hits, axis=0)
    found[5] = frame.right.to_numpy(float)
    return found


def gains() -> Any:
    found = {}
    for name, start in SETS.items():
        a0, b = (right_by_orders(start + end) for end in ARMS.values())
        found[name] = {n: b[n] - a0[n] for n in b}
    return found


def check_points(text: str, parts: Any) -> None:
    whole = np.concatenate(parts)
    assert text.split(" ")[0] == f"{100 * whole.mean():+.1f}", text
    generator = np.random.default_rng(1)
    drawn = np.zeros(4000)
    for part in parts:
        drawn += part[generator.integers(0, len(part), (4000, len(part)))].sum(axis=1)
    low, high = np.quantile(100 * drawn / len(whole), [0.025, 0.975])
    near(text, low, high)


def test_the_second_experiment() -> None:
    of_all = {name: of_set[5] for name, of_set in gains().items()}
    parts = [list(of_all.values()), *([one] for one in of_all.values())]
    exact = [exact_p(*mcnemar(np.concatenate(part))) for part in parts]
    ps = [exact[0], *holm(exact[1:])]
    said = ["a short list helps" if p < 0.05 else "open" for p in ps]
    rows = shown("verdict")
    labels = ["both sets together", "QASC alone", "Banking77 alone"]
    assert [row[0] for row in rows] == labels
    for row, part, p, words in zip(rows, parts, ps, said, strict=True):
        assert row[1] == f"{sum(map(len, part)):,}"
        check_points(row[2], part)
        assert float(row[3]) == pytest.approx(p, abs=0.0005 + 0.06 * p)  # by drawn signs
        assert row[4] == words


def test_the_second_experiment_by_the_number_of_orders() -> None:
    of_sets = gains()
    rows = shown("verdict-orders")
    assert [row[0] for row in rows] == list("12345")
    for row in rows:
        parts = [of_set[int(row[0])] for of_set in of_sets.values()]
        check_points(row[1], parts)
        for text, part in zip(row[2:], parts, strict=True):
            check_points(text, [part])


def test_the_arms_of_the_second_experiment() -> None:
    rows = iter(shown("verdict-arms"))
    for name, start in SETS.items():
        for arm, end in ARMS.items():
            frame = frame_of(start + end)
            shares = [percent(hits.mean()) for hits in right_by_orders(start + end).values()]
            rest = [f"{frame.tokens.mean():,.0f}"]
            rest += [percent(frame.on_labels.mean()), percent(frame.null.mean())]
            assert next(rows) == [name, arm, *shares, *rest]


def difference_of(one: Any, other: Any, name: str) -> float:
    of = [(f.f[f.right] < 0.5) if name == "under" else (f.f[~f.right] > 0.5) for f in (one, other)]
    return float(100 * (of[0].mean() - of[1].mean()))


def check_ratio(text: str, one: Any, other: Any, name: str) -> None:
    one, other = (frame.sort_values("id", ignore_index=True) for frame in (one, other))
    assert text.split(" ")[0] == f"{difference_of(one, other, name):+.1f}"
    generator = np.random.default_rng(1)
    drawn = []
    for _ in range(1000):
        some = generator.integers(0, len(one), len(one))
        drawn.append(difference_of(one.iloc[some], other.iloc[some], name))
    ends = [float(end) for end in text[text.index("[") + 1 : -1].split(", ")]
    assert ends == pytest.approx(np.quantile(drawn, [0.025, 0.975]).tolist(), abs=2), text


def test_the_differences_of_confidence() -> None:
    for row, (label, a, b) in zip(
        shown("confidence-gains"), TABLES["confidence-gains"]["rows"], strict=True
    ):
        one, other = (frame_of(cell).sort_values("id", ignore_index=True) for cell in (a, b))
        values = [sklearn_metrics.roc_auc_score(f.right, f.f) for f in (one, other)]
        assert row[:2] == [label, f"{values[0] - values[1]:+.3f} {row[1].partition(' ')[2]}"]
        near_auroc(row[1], one, other)
        scaled = [on_one_scale(cell) for cell in (a, b)]
        for text, frames, name in (
            *((row[2], scaled, "under"), (row[3], scaled, "over")),
            *((row[4], (one, other), "under"), (row[5], (one, other), "over")),
        ):
            check_ratio(text, frames[0], frames[1], name)


def readings_of(frame: Any) -> dict[str, Any]:
    """The probabilities that each reading of f gives: questions x choices."""
    p, null = by_trial(frame), by_trial(frame, "null")
    mean = p.mean(axis=0)
    mean_null = null.mean(axis=(0, 2))
    geometric = np.exp(np.log(p).mean(axis=0))
    odds = np.exp(np.log(p / null).mean(axis=0))
    return {
        "score": mean,
        "score / sum": mean / mean.sum(axis=1)[:, None],
        "with null": mean / (mean.sum(axis=1) + mean_null)[:, None],
        "no null": (p / (1 - null)).mean(axis=0),
        "geometric": geometric / geometric.sum(axis=1)[:, None],
        "odds": odds / odds.sum(axis=1)[:, None],
    }


def as_read(frame: Any, p: Any) -> Any:
    """The frame with what a reading answers, and its f."""
    read = frame.assign(f=p.max(axis=1), right=p.argmax(axis=1) == frame.answer)
    read.attrs["p"] = p
    return read


def auroc_of(frame: Any) -> float:
    return float(sklearn_metrics.roc_auc_score(frame.right, frame.f))


def test_the_readings_of_confidence() -> None:
    [[_, cell, standard]] = TABLES["confidence-readings"]["rows"]
    rows = iter(shown("confidence-readings"))
    names = ("under", "over", "auroc")
    assert next(rows) == ["standard", *(measured(standard, name) for name in names)]
    frame = frame_of(cell)
    for name, p in readings_of(frame).items():
        read = as_read(frame, p)
        numbers = [ratio(read, "under"), ratio(read, "over"), f"{auroc_of(read):.3f}"]
        assert next(rows) == [name, *numbers]


def unseen() -> dict[str, Any]:
    """What standard inference and each reading of the arms say of QASC's 614 questions."""
    standard = frame_of("confidence-qasc-qwen15/qasc-standard")
    found = {"standard": as_read(standard, np.array(standard.probabilities.tolist()))}
    for arm, end in ARMS.items():
        frame = frame_of(SETS["QASC"] + end).set_index("question_hash")
        frame = frame.loc[standard.question_hash].reset_index()
        for name, p in readings_of(frame).items():
            found[f"{arm}, {name}"] = as_read(frame, p)
    return found


def equal_ratio(frame: Any) -> float:
    """The mean of under and over at the threshold where they are nearest."""
    found = []
    for tau in sorted(frame.f):
        below = (frame.f[frame.right] < tau).mean()
        above = (frame.f[~frame.right] > tau).mean()
        found.append((abs(below - above), (below + above) / 2))
    return float(min(found, key=lambda one: one[0])[1])


def ece_of(frame: Any, debiased: bool) -> float:
    total = 0.0
    for _, some in frame.groupby(pd.cut(frame.f, np.linspace(0, 1, 16)), observed=True):
        gap = some.f.mean() - some.right.mean()
        if not debiased:
            total += len(some) * abs(gap)
        elif len(some) > 1:
            total += len(some) * (gap**2 - some.right.var(ddof=0) / (len(some) - 1))
    total /= len(frame)
    return float(max(0.0, total) ** 0.5) if debiased else total


def test_confidence_on_unseen_questions() -> None:
    frames = unseen()
    rows = shown("confidence-unseen")
    assert [row[0] for row in rows] == TABLES["confidence-unseen"]["rows"]
    for row in rows:
        frame = frames[row[0]]
        by_f = frame.sort_values("f", ascending=False, kind="stable")
        risks = (~by_f.right).cumsum().to_numpy() / np.arange(1, len(by_f) + 1)
        scaled = matched(frame, frame.attrs["p"])
        assert row[1:-1] == [
            percent(frame.right.mean()),
            ratio(frame, "under"),
            ratio(frame, "over"),
            percent(frame.f.mean() - frame.right.mean()),
            f"{ece_of(frame, debiased=False):.3f}",
            f"{ece_of(frame, debiased=True):.3f}",
            f"{auroc_of(frame):.3f}",
            percent(equal_ratio(frame)),
            percent(by_f.right.head(len(by_f) // 2).mean()),
            f"{risks.mean():.3f}",
            ratio(scaled, "under"),
            ratio(scaled, "over"),
        ]
        if row[0] != "standard":
            standard = frames["standard"]
            ends = [drawn(frame, standard, under_or_over(name)) for name in ("under", "over")]
            falls = [high < 0 for _, high in ends]
            grows = [low > 0 for low, _ in ends]
            said = "the scale moved" if any(falls) and any(grows) else "open"
            assert row[-1] == ("both fall, as in the paper" if all(falls) else said)


def under_or_over(name: str) -> Any:
    if name == "under":
        return lambda frame: (frame.f[frame.right] < 0.5).mean()
    return lambda frame: (frame.f[~frame.right] > 0.5).mean()


def drawn(one: Any, other: Any, of: Any) -> tuple[float, float]:
    """The 95% interval of a difference, over questions."""
    generator = np.random.default_rng(1)
    found = []
    for _ in range(500):
        some = generator.integers(0, len(one), len(one))
        found.append(of(one.iloc[some]) - of(other.iloc[some]))
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def test_what_the_plan_of_confidence_compares() -> None:
    frames = unseen()
    standard = frames["standard"]
    b, a0 = frames["B, score"], frames["A0, score"]
    scaled, plain = (matched(frame, frame.attrs["p"]) for frame in (b, standard))
    compared = [
        (b, standard, auroc_of),
        (b, standard, equal_ratio),
        (scaled, plain, under_or_over("under")),
        (scaled, plain, under_or_over("over")),
        (frames["B, score / sum"], standard, auroc_of),
        (a0, standard, auroc_of),
    ]
    rows = shown("confidence-planned")
    ps = []
    for row, (one, other, of) in zip(rows, compared, strict=False):
        assert row[1].split(" ")[0] == f"{of(one) - of(other):+.3f}", row
        ends = [float(end) for end in row[1][row[1].index("[") + 1 : -1].split(", ")]
        if of is not equal_ratio:  # which takes minutes
            assert ends == pytest.approx(drawn(one, other, of), abs=0.012), row
        ps.append(float(row[2]))
    assert [row[1] for row in rows[len(compared) :]] == ["not asked", "not asked"]
    corrected = holm([*ps[1:], 1.0, 1.0])[:5]
    assert [float(row[3]) for row in rows[1:6]] == pytest.approx(corrected, rel=0.06)
    [low, high] = [float(end) for end in rows[0][1].split("[")[1].rstrip("]").split(", ")]
    assert (ps[0] < 0.05) == (low > 0 or high < 0)
    assert rows[0][4] == "open"


# Costs.

WAYS = {
    "floor": "floor",
    "packed": "packed",
    "equal bits": "tree, equal bits",
    "transformers": "transformers, kept question",
    "transformers, the rest of the tree": "transformers, the rest of the token tree",
    "FlexAttention": "transformers, FlexAttention",
    "llama.cpp": "llama.cpp",
    "vLLM": "vLLM",
}
MODELS = {"smollm2": "135M", "qwen05": "0.5B", "qwen15": "1.5B"}


def rounds_of(name: str) -> Any:
    """A row for each round of each way: its seconds, and those by `tree` in the same round."""
    rows = []
    for text in (DOCS / "costs" / name).read_text("utf-8").splitlines():
        line = json.loads(text)
        key = (line["model"].split("-")[-1], line["dtype"], line["work"])
        tree = line["ways"]["tree"]["cpu"]
        for way, timed in line["ways"].items():
            for seconds, of_tree in zip(timed["cpu"], tree, strict=True):
                rows.append((*key, way, seconds, seconds / of_tree))
    return pd.DataFrame(rows, columns=["model", "dtype", "work", "way", "cpu", "by"])


def fastest(frame: Any, start: str) -> float | None:
    ways = frame[frame.way.str.startswith(start)]
    return None if ways.empty else float(ways.groupby("way").by.median().min())


def test_the_table_beside_others() -> None:
    kept: dict[str, list[float]] = {}
    for _, frame in rounds_of("beside.jsonl").groupby(["model", "dtype", "work"]):
        if frame.groupby("way").size().min() > 1:
            for title, start in WAYS.items():
                value = fastest(frame, start)
                if value is not None:
                    kept.setdefault(title, []).append(value)
    expected = []
    for title, seen in kept.items():
        numbers = [f"{value:.2f}" for value in (min(seen), median(seen), max(seen))]
        expected.append([title, *numbers, str(len(seen))])
    assert shown("beside") == expected


def test_the_table_of_another_cpu() -> None:
    frame = rounds_of("xeon.jsonl")
    titles = [title for title, start in WAYS.items() if fastest(frame, start) is not None]
    rows = shown("xeon")
    assert len(rows) == frame.groupby(["model", "dtype", "work"]).ngroups
    for row in rows:
        model = {title: name for name, title in MODELS.items()}[row[0]]
        same = (frame.model == model) & (frame.dtype == row[1])
        of_row = frame[same & (frame.work == row[2].lower().replace(",", ""))]
        tree = of_row[of_row.way == "tree"].cpu
        values = [fastest(of_row, WAYS[title]) for title in titles]
        cells = ["-" if value is None else f"{value:.2f}" for value in values]
        assert row[3:] == [f"{tree.median():.1f}", *cells, str(len(tree))]


def test_the_table_of_parts() -> None:
    lines = (DOCS / "costs" / "parts.jsonl").read_text("utf-8").splitlines()
    for row, line in zip(shown("parts"), map(json.loads, lines), strict=True):
        cpu = "AMD EPYC" if "AMD EPYC" in line["machine"] else "Intel Xeon"
        mark = "*" if line["rounds"] == 1 else ""
        cells = [MODELS[line["model"].split("-")[-1]], line["dtype"], cpu]
        cells += [f"{line['load']:.1f}", f"{line['peak_gb']:.1f}"]
        cells.append(f"{mark}{line['question']['all']:.1f}{mark}")
        nf4 = line.get("weights", {}).get("nf4")
        cells.append(f"{line['load_nf4']:.1f}" if "load_nf4" in line else "-")
        cells.append(f"{mark}{nf4:.1f}{mark}" if nf4 else "-")
        assert row == [*cells, f"{mark}{line['rounds']}{mark}", line["commit"], line["source"]]


# Decisions.

DIMENSIONS = ["REP", "BAT", "MEA", "LOG", "CHO"]


def test_the_laws_of_decisions() -> None:
    for row in shown("jevbench"):
        words = row[0].replace("`", "").split(", ")
        name = "equal"
        if len(words) == 2:
            name = f"{ {title: name for name, title in MODELS.items()}[words[0]] }-{words[1]}"
        content = gzip.decompress((STUDIES / "decided" / f"{name}.jsonl.gz").read_bytes())
        facts, *tests = map(json.loads, content.splitlines())
        frame = pd.DataFrame(tests)
        generator = np.random.default_rng(1)
        cases = list(frame.case.unique())
        held = (~frame.violated.astype(bool)).astype(float)

        def scores(weights: Any, frame: Any = frame, held: Any = held) -> Any:
            sums = pd.DataFrame({"d": frame.dimension, "r": frame.relation})
            sums["held"], sums["n"] = held * weights, weights
            laws = sums.groupby(["d", "r"]).sum()
            laws = laws[laws.n > 0]
            means = (laws.held / laws.n).groupby("d").mean()
            return [means.mean(), *means[DIMENSIONS]]

        drawn = []
        for _ in range(200):
            counts = pd.Series(generator.integers(0, len(cases), len(cases))).value_counts()
            of_case = {cases[i]: count for i, count in counts.items()}
            drawn.append(scores(frame.case.map(of_case).fillna(0)))
        low, high = np.quantile(100 * np.array(drawn), [0.025, 0.975], axis=0)
        for place, value in enumerate(scores(pd.Series(1.0, index=frame.index))):
            text = row[1 + place]
            assert text.split(" ")[0] == percent(value), (name, place)
            ends = [float(end) for end in text[text.index("[") + 1 : -1].split(", ")]
            assert ends == pytest.approx([low[place], high[place]], abs=3), (name, place)
        assert row[7] == f"{100 * facts['from_equal']:.0f}"
        if name != "equal":
            model, _, method = name.partition("-")
            timed = json.loads((STUDIES / "decided" / f"time-{model}.json").read_text("utf-8"))
            seconds = f"{timed[method]['suite']:.1f}" if method in timed else "-"
            assert row[8:10] == [f"{facts['tokens']:,.0f}", seconds]


def test_the_times_of_decisions() -> None:
    for row in shown("times"):
        model = {f"{title}, `standard`": name for name, title in MODELS.items()}[row[0]]
        timed = json.loads((STUDIES / "decided" / f"time-{model}.json").read_text("utf-8"))
        seconds = [f"{value:.1f}" for value in timed["standard"]["seconds"].values()]
        assert row[1:] == [str(timed["standard"]["prompts"]), *seconds]


def test_whether_decisions_are_right() -> None:
    proportion = pytest.importorskip("scipy.stats").binomtest
    for row in shown("right"):
        title, method = row[0].replace("`", "").split(", ")
        model = {title: name for name, title in MODELS.items()}[title]
        path = STUDIES / "decided" / f"right-{model}-{method}.json"
        record = json.loads(path.read_text("utf-8"))
        n, hits = len(record["right"]), sum(record["right"])
        interval = proportion(hits, n).proportion_ci(method="wilson")
        ends = f"[{percent(interval.low)}, {percent(interval.high)}]"
        on_labels = f"{100 * record['on_labels']:.0f}" if "on_labels" in record else "-"
        tokens = f"{record['tokens']:,.0f}"
        assert row[1:] == [str(n), f"{percent(hits / n)} {ends}", tokens, on_labels]
