"""The tables that answers/tables.json describes, in docs/real.md and other pages, and the figures.
Those of docs/costs.md are of docs/costs/ (tools/bench/costs.py)."""

from __future__ import annotations

import io
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.figure import Figure

from minise.lab.evaluation import figures
from minise.lab.evaluation.metrics import READ_OUT, SHARES, holm
from tools import markdown
from tools.bench import costs
from tools.studies import confidence_tables, verdict
from tools.studies.records import (
    DOCS,
    RECORDS,
    answers_of,
    gain,
    gains_of,
    minus,
    numbers,
    of_subsets,
    sign_p,
)

PAGES = [DOCS / f"{page}.md" for page in ("real", "serving", "costs")]
SEEN = ("†", "‡")  # after the name of a pair that somebody had seen: before the plan, before it ran

Spec = dict[str, Any]  # a table of tables.json
TABLES: dict[str, Spec] = json.loads((RECORDS / "tables.json").read_text("utf-8"))


def page(path: Path) -> str:
    """A page with its tables as the records have them."""

    def drawn(found: re.Match[str]) -> str:
        spec = TABLES[found[2]]
        return f"{found[1]}\n{FORMS[spec['form']](spec)}\n{found[3]}"

    form = r"(<!-- table (\S+) -->).*?(<!-- end -->)"
    return re.sub(form, drawn, path.read_text("utf-8"), flags=re.DOTALL)


# The forms of a table. Each takes what tables.json says of it, and returns its Markdown.


def as_numbers(spec: Spec) -> str:
    """rows: a label and the beginning of a cell. columns: a title, the rest of the cell, and a
    number that `measure` gives; "accuracy+" is with its interval."""
    titles = spec["head"].split(" | ")
    titles += [title for title, _, _ in spec["columns"]]
    body = []
    for label, start in spec["rows"]:
        row = [label]
        for _, end, name in spec["columns"]:
            row.append(written(numbers(start + end), name))
        body.append(row)
    return markdown.table(titles, body)


def as_differences(spec: Spec) -> str:
    """rows: a label and two cells; the first minus the second, by exact McNemar tests, corrected by
    Holm over all rows, and once more over those that nobody had seen."""
    found = [minus(a, b) for _, a, b in spec["rows"]]
    corrected = holm([one["mcnemar_p"] for one in found])
    unseen = [i for i, (label, _, _) in enumerate(spec["rows"]) if not label.endswith(SEEN)]
    again = holm([found[i]["mcnemar_p"] for i in unseen])
    corrected_unseen = dict(zip(unseen, again, strict=True))
    titles = spec["head"].split(" | ")
    titles += ["questions", "points", "p", f"Holm, {len(found)}", f"Holm, {len(unseen)}"]
    body = []
    for i, ((label, _, _), one) in enumerate(zip(spec["rows"], found, strict=True)):
        row = [label, str(one["n"]), points(one), f"{one['mcnemar_p']:.2g}", f"{corrected[i]:.2g}"]
        row.append(f"{corrected_unseen[i]:.2g}" if i in corrected_unseen else "-")
        body.append(row)
    return markdown.table(titles, body)


def as_found_later(spec: Spec) -> str:
    """rows: a label and two lists of cells; the first minus the second over all their questions."""
    body = []
    for label, cells, others in spec["rows"]:
        one = gain(cells, others)
        body.append([label, f"{one['n']:,}", points(one)])
    return markdown.table([*spec["head"].split(" | "), "questions", "points"], body)


def as_planned(spec: Spec) -> str:
    """The same for the first experiment, whose plan is f4d31c0:docs/splitting.md: with a p value by
    random signs, times the number of planned tests, and what the plan says of it."""
    tests, level = spec["tests"], spec["level"]
    body = []
    for label, cells, others in spec["rows"]:
        one = gain(cells, others)
        p = min(1.0, tests * sign_p(gains_of(cells, others)))
        low, high = one["interval"]
        said = []
        if p < 0.05:
            said.append("a short list helps" if one["accuracy"] > 0 else "a short list harms")
        if -level <= 100 * low and 100 * high <= level:
            said.append("level")
        body.append([label, f"{one['n']:,}", points(one), f"{p:.2g}", ", ".join(said) or "open"])
    titles = [*spec["head"].split(" | "), "messages", "points", f"p, times {tests}", "what is said"]
    return markdown.table(titles, body)


def as_changed(spec: Spec) -> str:
    """rows: a label and two cells. How many predictions differ over the questions that both have,
    the largest distance of a probability, and the accuracy of each."""
    body = []
    for label, a, b in spec["rows"]:
        of_b = {answer.id: answer for answer in answers_of(b)}
        n = 0
        changed = 0
        right_a = 0
        right_b = 0
        largest = 0.0
        for one in answers_of(a):
            other = of_b.get(one.id)
            if other is None:
                continue
            n += 1
            changed += one.prediction != other.prediction
            right_a += one.prediction == one.answer
            right_b += other.prediction == other.answer
            for p, q in zip(one.normalized, other.normalized, strict=True):
                largest = max(largest, abs(p - q))
        percents = [f"{100 * right / n:.1f}" for right in (right_a, right_b)]
        body.append([label, str(n), str(changed), f"{largest:.4f}", *percents])
    titles = [*spec["head"].split(" | "), "questions", "changed", "largest distance"]
    return markdown.table([*titles, "accuracy of the first", "of the second"], body)


def as_bought(spec: Spec) -> str:
    """rows: a method and its cell of each data set. Accuracy and the tokens that it takes; in bold
    where nothing that takes no more tokens has more right."""
    front = {data: front_of(spec, data) for data in spec["data"]}
    body = []
    for method, *cells in spec["rows"]:
        row = [method]
        for data, cell in zip(spec["data"], cells, strict=True):
            value = numbers(cell)
            text = f"{100 * value['accuracy']:.1f}"
            if method in front[data]:
                text = f"**{text}**"
            row.append(f"{text} for {value['tokens']:,.0f}")
        body.append(row)
    return markdown.table(["method", *spec["data"]], body)


def as_subsets(spec: Spec) -> str:
    """rows: a label and a cell. The accuracy of so many random trials."""
    body = []
    for label, cell in spec["rows"]:
        accuracies = of_subsets(cell, spec["sizes"])
        body.append([label, *(f"{100 * accuracies[size]:.1f}" for size in spec["sizes"])])
    titles = [f"N = {size}" for size in spec["sizes"]]
    return markdown.table([*spec["head"].split(" | "), *titles], body)


FORMS = {
    "numbers": as_numbers,
    "differences": as_differences,
    "found later": as_found_later,
    "planned": as_planned,
    "changed": as_changed,
    "bought": as_bought,
    "subsets": as_subsets,
    "beside": costs.as_beside,
    "questions": costs.as_questions,
    "verdict": lambda spec: verdict.as_tests(),
    "verdict, by orders": lambda spec: verdict.as_curve(),
    "verdict, arms": lambda spec: verdict.as_arms(),
    "parts": costs.as_parts,
    "scale-free": confidence_tables.as_scale_free,
    "readings": confidence_tables.as_readings,
    "unseen confidence": confidence_tables.as_unseen,
    "planned confidence": confidence_tables.as_planned,
}


def front_of(bought: Spec, data: str) -> list[str]:
    """The methods that no other one beats for as few tokens, by their tokens."""
    place = bought["data"].index(data)
    by_tokens = []
    for method, *cells in bought["rows"]:
        value = numbers(cells[place])
        by_tokens.append((value["tokens"], -value["accuracy"], method))
    front = []
    most = -1.0
    for _, negative, method in sorted(by_tokens):
        if -negative > most:
            most = -negative
            front.append(method)
    return front


def points(one: dict[str, Any]) -> str:
    """A difference of accuracies with its interval, in points."""
    low, high = one["interval"]
    return f"{100 * one['accuracy']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def written(values: dict[str, Any], name: str) -> str:
    """A number as a page shows it."""
    value = values.get(name.removesuffix("+"))
    if value is None:
        return "-"  # a run does not have it
    if name in ("n", "tokens"):
        return f"{value:,.0f}"
    is_percent = name.removesuffix("+") in (*SHARES, *READ_OUT)
    factor, digits = (100, ".1f") if is_percent else (1, ".3f")
    text = format(factor * value, digits)
    if name.endswith("+"):
        low, high = (format(factor * end, digits) for end in values[f"{name[:-1]}_interval"])
        text += f" [{low}, {high}]"
    return text


# The figures.

INK = {"real.svg": "#1f2328", "real-dark.svg": "#d6dbe1"}  # the second for a dark page
KEY = "Percent right: ○ standard inference, ● Self-Ensemble, ┊ guessing"
TICKS = (100, 300, 1_000, 3_000)  # tokens
CALLED = {"135M": "SmolLM2-135M", "0.5B": "Qwen2.5-Coder-0.5B", "1.5B": "Qwen2.5-Coder-1.5B"}


def draw_main(ink: str) -> str:
    """The accuracy of both methods for each model and data set, the largest model first."""
    drawn = [text_at(8, 18, KEY), text_at(888, 18, "points, 95% interval", "end")]
    y = 18
    for model in reversed(CALLED):
        y += 8
        drawn.append(text_at(8, y + 28, CALLED[model]))
        for label, start in TABLES["main"]["rows"]:
            of_model, data = label.split(" | ")
            if of_model == model:
                y += 28
                drawn += row_of_main(data, start, y)
    size = f'viewBox="0 0 896 {y + 16}" font-size="15" font-family="sans-serif" fill="{ink}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', *drawn, "</svg>\n"])


def row_of_main(data: str, start: str, y: int) -> list[str]:
    ours = start + "self-ensemble"
    standard = start + "standard"
    answers = answers_of(ours)
    before = numbers(standard)["accuracy"]
    after = numbers(ours)["accuracy"]
    more = minus(ours, standard)
    x = 330 + 380 * before
    to = 330 + 380 * after
    guess = 330 + 380 / len(answers[0].normalized)
    colour = "#0072b2" if more["interval"][0] > 0 else "#8c8c8c"
    return [
        text_at(195, y, f"{data}, {len(answers)}"),
        f'<path d="M{guess:.0f} {y - 17}v24" stroke="#8c8c8c" stroke-dasharray="2"/>',
        f'<g stroke="{colour}" stroke-width="4" fill="{colour}">'
        f'<path d="M{x:.0f} {y - 5}H{to:.0f}"/>'
        f'<circle cx="{x:.0f}" cy="{y - 5}" r="6" fill="#fff"/>'
        f'<circle cx="{to:.0f}" cy="{y - 5}" r="6"/></g>',
        text_at(max(x, to) + 14, y, f"{100 * before:.1f}% → {100 * after:.1f}%"),
        text_at(888, y, points(more), "end"),
    ]


def text_at(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y}" text-anchor="{anchor}">{words}</text>'


def draw_curves() -> Figure:
    """The paper's curves of under- and over-confidence, of the largest model."""
    cells = []
    for label, cell in TABLES["confidence"]["rows"]:
        data, method = label.split(" | ")
        cells.append({"data": data, "method": method, **numbers(cell)})
    paint = partial(figures.curves, "method")
    return figures.sheet(figures.grouped(cells, "data"), paint, figures.F, *figures.CURVES)


def draw_tokens() -> Figure:
    """Accuracy against tokens: a panel for each data set, and a line through the methods that
    nothing beats for as few tokens."""
    bought = TABLES["tokens"]
    figure = Figure((9, 7), layout="constrained")
    panels = figure.subplots(2, 2)
    for i, (data, ax) in enumerate(zip(bought["data"], panels.flat, strict=True)):
        front = front_of(bought, data)
        at = {}
        for method, *cells in bought["rows"]:
            value = numbers(cells[i])
            at[method] = (value["tokens"], 100 * value["accuracy"])
        ax.plot(*zip(*(at[method] for method in front), strict=True), "-", color="#b8b8b8")
        for method, (tokens, percent) in at.items():
            ax.plot(tokens, percent, "o", color="C0" if method in front else "#8c8c8c")
            ax.annotate(method, (tokens, percent), (5, -10), textcoords="offset points", fontsize=8)
        ax.set_title(data)
        ax.set_xscale("log")
        ax.set_xlim(20, 30_000)  # room for the last name
        ax.set_xticks(TICKS, [f"{tokens:,}" for tokens in TICKS])
        ax.minorticks_off()
        ax.margins(y=0.1)
        ax.set_xlabel("tokens a question")
        ax.set_ylabel("right answers (%)")
    return figure


def texts() -> dict[Path, str]:
    """The pages with their tables, and the README's figure."""
    made = {path: page(path) for path in PAGES}
    for name, ink in INK.items():
        made[DOCS / name] = draw_main(ink)
    return made


def pictures() -> dict[Path, bytes]:
    """In PNG."""
    made = {}
    with matplotlib.style.context(figures.STYLE):
        for name, draw in (("real-confidence", draw_curves), ("real-tokens", draw_tokens)):
            content = io.BytesIO()
            draw().savefig(content, format="png", dpi=100, metadata={"Software": None})
            made[DOCS / f"{name}.png"] = content.getvalue()
    return made
