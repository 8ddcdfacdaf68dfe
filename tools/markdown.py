"""Tables in Markdown, as the studies print them for docs/."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return "\n".join([lines[0], "|---" * len(heads) + "|", *lines[1:]])


def tell(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print(f"{title}\n\n{table(heads, rows)}\n")
