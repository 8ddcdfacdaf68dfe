"""docs/sweep.md, from what was found in each library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
INTRODUCTION = """
# Who leaks, by version

Made by `python -m tools.sweep transformers` and `python -m tools.sweep mlx_lm`. Every model is
tiny, random, in float32 and on a CPU, with slow decay where it has a state. **Random tiny models on
a CPU say nothing of GPU kernels**: those of flash attention, mamba_ssm, causal_conv1d,
flash-linear-attention and Metal are other code.

**right**: every token's logits are those of its prompt alone, in one pass without a cache, within
0.001 of their size. A number: how far the worst token is off, as a part of that size. **as one
text**: exactly what the row gives without any borders. **refuses**: an error, which leaks nothing.
What should come out, is in [the MUSTs](packed.md).
"""
LIBRARIES = {
    "transformers": """
## transformers

Documents of 7, 5 and 9 tokens in a row, or a trunk and two branches; a batch of these, padded; a
cache that is rolled back from a first continuation, and goes on with a second
(`tools/sweep/in_transformers.py`).
""",
    "mlx_lm": """
## mlx-lm

No class takes positions or borders of documents (three take a mask: minicpm3, minimax, phixtral),
so there is no packed row to ask for. **Padded right**: a batch of 7, 5 and 9 tokens without a
cache, as its trainer pads. **In pieces**: a prompt of 7, 5 and nine times 1 token. **Beside
others**: `BatchGenerator.insert` of prompts of 5 and 30 tokens, and three tokens written. **Joins
later**: the short one is inserted when the long one has written a token. **Trimmed**:
`trim_prompt_cache`, where `can_trim_prompt_cache` allows it. Windows have 16 tokens
(`tools/sweep/in_mlx.py`).
""",
}


def page_of(found: dict[str, Any]) -> str:
    """found: by library, what tools.sweep.__main__ wrote of it."""
    parts = [unwrapped(INTRODUCTION)]
    for library, words in LIBRARIES.items():
        if library in found:
            parts += [unwrapped(words), *tables_of(found[library])]
    reports = []
    for path in sorted((DOCS / "reports").glob("*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        reports.append(f"- [{title}](reports/{path.name})")
    parts += ["## Reports", "What was looked into, one page each; sent to nobody.", lines(reports)]
    return "\n\n".join(parts) + "\n"


def tables_of(one: dict[str, Any]) -> list[str]:
    """Of one library: versions and time, a count for each question, the classes, what failed."""
    classes, columns = one["classes"], one["columns"]
    versions = ", ".join(f"{name} {number}" for name, number in one["versions"].items())
    made = (
        f"{one['date']}: {versions}, Python {one['python']}; {len(classes)} classes, "
        f"{one['cpu_seconds']} CPU seconds."
    )
    counts = ["| | right | off | refuses |", "|---|---|---|---|"]
    for column, words in columns.items():
        given = [answers[column] for answers in classes.values()]
        right = given.count("right")
        refuses = sum(text.startswith(("refuses", "gives no cache")) for text in given)
        counts.append(f"| {words} | {right} | {len(given) - right - refuses} | {refuses} |")
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, answers in classes.items():
        groups.setdefault(tuple(answers[column] for column in columns), []).append(name)
    rows = ["| class | " + " | ".join(columns.values()) + " |", "|---" * (1 + len(columns)) + "|"]
    for alike, names in sorted(groups.items(), key=lambda group: (-len(group[1]), group[1])):
        rows.append(f"| {', '.join(names)} | {' | '.join(alike)} |")
    failures = [f"- {name}: {why}".replace("<", "&lt;") for name, why in one["failures"].items()]
    return [made, lines(counts), lines(rows), "Not built:", lines(failures)]


def unwrapped(text: str) -> str:
    """A line for each paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n"))


def lines(parts: list[str]) -> str:
    return "\n".join(parts)
