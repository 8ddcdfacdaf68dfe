"""Tables in Markdown, as docs/ has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [line(heads), "|---" * len(heads) + "|"]
    for cells in rows:
        lines.append(line(cells))
    return "\n".join(lines)


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
