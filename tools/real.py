"""Tables of docs/real.md and other pages, the README's second figure, and their records.

python -m tools.real record RUN NAME --model "MODEL, dequantised from Q4_K_M"
python -m tools.real tables

`record` keeps the answers of a finished run of `minise eval` in docs/real/, without its texts and
groups, with four digits a number. `tables` writes the tables into the pages, and the figure.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from functools import partial
from pathlib import Path

import matplotlib.style

from minise.evaluation import figures
from minise.files import write_file
from tools.records import RECORDS, Changed, Differences, Table, answers_of, minus, numbers, record

PAGES = [RECORDS.with_name(f"{page}.md") for page in ("real", "serving", "costs")]
MODELS = {"135M": "smollm2", "0.5B": "qwen05", "1.5B": "qwen15"}
DATA = {"QASC": "qasc", "TruthfulQA": "truthfulqa", "Biology": "biology"}
TASK = {"qasc": "qasc", "truthfulqa": "truthfulqa", "biology": "mmlu_pro_biology-k10"}
METHODS = {
    "standard": "standard",
    "vector scaling": "vector-scaling",
    "Dirichlet": "dirichlet",
    "Self-Ensemble": "self-ensemble",
    "cyclic": "cyclic",
    "presence": "presence",
    "cloze": "cloze",
}
SEEN = "1.5B | QASC"  # looked at before the plan was written
MAIN = {
    f"{model} | {data}": f"main-{short_data}-{short_model}/{TASK[short_data]}-"
    for model, short_model in MODELS.items()
    for data, short_data in DATA.items()
}
PROMPTS = ("mmlu-0", "chat-0", "default-5", "mmlu-5", "chat-5")  # a template, and shots
BOTH = OURS, STANDARD = "self-ensemble", "standard"
PROMPTED = {x: f"prompt-{x}-qwen15/qasc-" for x in PROMPTS}
ON = {data: f"{x}-qwen15/{x}-" for data, x in DATA.items()}  # the ends of records' names
AGAIN = {"QASC": "bfloat16-qwen15/qasc-", "TruthfulQA": f"again-{ON['TruthfulQA']}"}  # on a GPU
# The plan's comparisons: a label, and two cells.
AGAINST = [(f"standard | {x}", *(at + m for m in BOTH)) for x, at in MAIN.items()]
AGAINST += [(f"standard, {x} | {SEEN}", *(at + m for m in BOTH)) for x, at in PROMPTED.items()]
AGAINST += [
    (f"{m} | {x}", MAIN[x] + OURS, MAIN[x] + m)
    for x in ("1.5B | TruthfulQA", "1.5B | Biology")
    for m in ("cyclic", "cloze")
]
del AGAINST[[*MAIN].index(SEEN)]


def page(path: Path) -> str:
    """A page with its tables as the records have them."""

    def table(found: re.Match[str]) -> str:
        return f"{found[1]}\n{TABLES[found[2]].text()}\n{found[3]}"

    form = r"(<!-- table (\S+) -->).*?(<!-- end -->)"
    return re.sub(form, table, path.read_text("utf-8"), flags=re.DOTALL)


FIGURES = {"real.svg": "#1f2328", "real-dark.svg": "#d6dbe1"}  # the second for a dark page
KEY = "Percent right: ○ standard inference, ● Self-Ensemble, ┊ guessing"


def figure(ink: str) -> str:
    """The accuracy of both methods for each model and data set, the largest model first."""
    drawn, y, last = [_text(8, 18, KEY), _text(888, 18, "points, 95% interval", "end")], 18, ""
    for label, start in [cell for m in reversed(MODELS) for cell in MAIN.items() if m in cell[0]]:
        answers, one = answers_of(start + OURS), minus(start + OURS, start + STANDARD)
        what = json.loads((RECORDS / start).with_name("run.json").read_text("utf-8"))
        name, y = what["model"].split(",")[0].removesuffix("-Instruct"), y + 28
        if name != last:
            drawn.append(_text(8, (y := y + 8), name))
            last = name
        after, before = (numbers(start + m)["accuracy"] for m in BOTH)
        x, to, guess = (330 + 380 * p for p in (before, after, 1 / len(answers[0].probabilities)))
        low, high = (f"{100 * p:+.1f}" for p in one["interval"])
        colour = "#0072b2" if float(low) > 0 else "#8c8c8c"
        drawn += [
            _text(195, y, f"{label.split(' | ')[1]}, {len(answers)}"),
            f'<path d="M{guess:.0f} {y - 17}v24" stroke="#8c8c8c" stroke-dasharray="2"/>',
            f'<g stroke="{colour}" stroke-width="4" fill="{colour}">'
            f'<path d="M{x:.0f} {y - 5}H{to:.0f}"/>'
            f'<circle cx="{x:.0f}" cy="{y - 5}" r="6" fill="#fff"/>'
            f'<circle cx="{to:.0f}" cy="{y - 5}" r="6"/></g>',
            _text(max(x, to) + 14, y, f"{100 * before:.1f}% → {100 * after:.1f}%"),
            _text(888, y, f"{100 * one['accuracy']:+.1f} [{low}, {high}]", "end"),
        ]
    size = f'viewBox="0 0 896 {y + 16}" font-size="15" font-family="sans-serif" fill="{ink}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', *drawn, "</svg>\n"])


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y}" text-anchor="{anchor}">{words}</text>'


SURE = [  # whose confidence is shown: data, method and cell
    (data, name, MAIN[f"1.5B | {data}"] + METHODS[name])
    for data in DATA
    for name in ("standard", "vector scaling", "Self-Ensemble")
]


def draw_curves(path: Path) -> None:
    """The paper's curves of under- and over-confidence, of the largest model."""
    cells = [{"data": data, "method": name, **numbers(cell)} for data, name, cell in SURE]
    panels = figures.grouped(cells, "data")
    with matplotlib.style.context(figures.STYLE):
        drawn = figures.sheet(panels, partial(figures.curves, "method"), "τ", *figures.CURVES)
        drawn.savefig(path, dpi=100, metadata={"Software": None})


TWENTY, MANY = "many-qwen15/banking77-k20", "many-77-qwen15/banking77"
ANSWERS = (
    *(("answers", "", "n"), ("right", "", "accuracy+"), ("order flips", "", "flips")),
    *(("confidence", "", "confidence"), ("tokens", "", "tokens")),
)
TABLES: dict[str, Table | Differences | Changed] = {
    "main": Table(
        "model | data",
        [*MAIN.items()],
        [("n", "standard", "n"), *((name, end, "accuracy") for name, end in METHODS.items())],
    ),
    "counts": Differences("Self-Ensemble minus | model | data", AGAINST),
    "prompts": Table(
        "data | prompt | solved questions",
        [
            ("QASC | default | 0", AGAIN["QASC"]),
            *(("QASC | " + x.replace("-", " | "), at) for x, at in PROMPTED.items()),
            ("TruthfulQA | default | 0", AGAIN["TruthfulQA"]),
            ("Biology | default | 0", MAIN["1.5B | Biology"]),
        ],
        [
            ("standard", STANDARD, "accuracy+"),
            *((f"N = {n}", f"first-trials(trials={n})", "accuracy") for n in (1, 5)),
            ("Self-Ensemble", OURS, "accuracy+"),
            *((x, m, x.replace(" ", "_")) for x in ("tokens", "on labels") for m in reversed(BOTH)),
        ],
    ),
    "machines": Changed(
        "H200 against CPU | method",
        [
            (
                f"{data} | {name}",
                AGAIN[data] + METHODS[name],
                MAIN[f"1.5B | {data}"] + METHODS[name],
            )
            for data in AGAIN
            for name in ("standard", "Self-Ensemble", "cyclic")
        ],
    ),
    "choices": Table(
        "model | choices",
        [
            (f"{name} | {k}", f"choices-{short}/qasc-k{k}-")
            for name, short in MODELS.items()
            for k in (2, 4, 6, 8)
        ],
        [
            *(("questions", STANDARD, "n"), ("standard", STANDARD, "accuracy+")),
            ("Self-Ensemble", OURS, "accuracy+"),
        ],
    ),
    "without": Changed(
        "changed | data",
        [
            (f"{name} | {data}", f"{run}-{ON[data]}{end}", f"ablation-{ON[data]}{of}")
            for name, run, end, of in (
                ("without the mask", "ablation", "without-mask", OURS),
                ("without positional re-encoding", "ablation", "without-positions", OURS),
                ('without "None of the above"', "null", OURS, OURS),
                ("in nf4", "nf4", OURS, OURS),
                ("standard inference in nf4", "nf4", STANDARD, STANDARD),
            )
            for data in AGAIN
        ],
    ),
    "sizes": Table(
        "m",
        [(str(m), f"sizes-{m}-qwen15/qasc-") for m in (2, 3, 4, 5)],
        [
            *((f"N = {n}", f"first-trials(trials={n})", "accuracy") for n in (1, 5, 10, 20, 40)),
            *(("N = 80", OURS, "accuracy+"), ("tokens", OURS, "tokens")),
        ],
    ),
    "many": Table(
        "choices | method",
        [
            ("20 | standard", "many-alone-qwen15/banking77-k20-standard"),
            ("20 | standard, shuffled", f"{TWENTY}-standard(shuffled=True)"),
            ("20 | Self-Ensemble, N = 20", f"{TWENTY}-self-ensemble"),
            ("20 | Self-Ensemble, N = 5", f"{TWENTY}-first-trials(trials=5)"),
            ("20 | cyclic", f"{TWENTY}-cyclic"),
            ("20 | cyclic, geometric mean", f"{TWENTY}-cyclic(mean=geometric)"),
            ("20 | presence", "many-alone-qwen15/banking77-k20-presence"),
            ("20 | cloze", "many-alone-qwen15/banking77-k20-cloze"),
            ("77 | Self-Ensemble, m = 4", f"{MANY}-self-ensemble(group_size=4)"),
            ("77 | Self-Ensemble, m = 8", f"{MANY}-self-ensemble(group_size=8)"),
            ("77 | Self-Ensemble, m = 20", f"{MANY}-self-ensemble(group_size=20)"),
            ("77 | cloze", f"{MANY}-cloze"),
        ],
        ANSWERS,
    ),
    "seeds": Table(
        "data | method",
        [
            ("QASC | Self-Ensemble, five seeds", f"seeds-{ON['QASC']}{OURS}"),
            ("TruthfulQA | Self-Ensemble, five seeds", f"seeds-{ON['TruthfulQA']}{OURS}"),
            ("QASC | standard", "reasoning-qwen15/qasc-standard"),
            ("QASC | cot, 256 tokens", "reasoning-qwen15/qasc-cot"),
            ("QASC | cot, 512 tokens", "reasoning-qwen15/qasc-cot(max_new_tokens=512)"),
        ],
        ANSWERS,
    ),
    "confidence": Table(
        "data | method",
        [(f"{data} | {name}", cell) for data, name, cell in SURE],
        [
            *(("confidence", "", "confidence"), ("under", "", "under"), ("over", "", "over")),
            *(("NLL", "", "nll"), ("matched NLL", "", "matched_nll"), ("ECE", "", "ece")),
            ("tokens", "", "tokens"),
        ],
    ),
    "dtype": Changed(
        "bfloat16 against float32 | method",
        [
            (f"{name} | {method}", f"bfloat16-{short}/qasc-{end}", f"float32-{short}/qasc-{end}")
            for name, short in MODELS.items()
            for method, end in (("standard", STANDARD), ("Self-Ensemble", OURS))
        ],
    ),
    "served": Changed(
        "llama.cpp against minise | method",
        [
            (f"{dtype} | {method}", f"served-qwen05/qasc-{end}", f"{dtype}-qwen05/qasc-{end}")
            for dtype in ("float32", "bfloat16")
            for method, end in (("standard", STANDARD), ("Self-Ensemble", OURS))
        ],
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    actions = parser.add_subparsers(required=True, dest="action")
    one = actions.add_parser("record")
    one.add_argument("run", type=Path)
    one.add_argument("name")
    one.add_argument("--model", required=True)
    actions.add_parser("tables")
    wanted = parser.parse_args()
    if wanted.action == "record":
        record(wanted.run, wanted.name, wanted.model)
    else:
        for path in PAGES:
            write_file(path, page(path))
        for name, ink in FIGURES.items():
            write_file(RECORDS.with_name(name), figure(ink))
        draw_curves(RECORDS.with_name("real-confidence.png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
