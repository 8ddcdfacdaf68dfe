"""What tools/mutate.py found, one line of JSON for each file: how many mutants the tests noticed,
and why the others live.

    python -m tools.mutate minise/layout.py --record docs/mutants.jsonl
    python -m tools.mutation_record
    python -m tools.mutation_record --survivors

A reason is written by hand, into "reason" of the record. It stays when the same mutant survives
again: the same change of the same line of code, wherever that line is then.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

Entry = dict[str, Any]  # the line of a file
RECORD = "docs/mutants.jsonl"


def digest(file: str | Path) -> str:
    """The sha256 of a file: an entry tells of that source."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def read(record: str) -> dict[str, Entry]:
    """The entries, by file; none if there is no record yet."""
    path = Path(record)
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["file"]: entry for entry in map(json.loads, lines)}


def write(record: str, entry: Entry) -> None:
    """Put an entry in the place of the file's old one, with the reasons of that."""
    entries = read(record)
    old = entries.get(entry["file"], {"survivors": []})
    reasons = {(each["code"], each["change"]): each["reason"] for each in old["survivors"]}
    for each in entry["survivors"]:
        each["reason"] = reasons.get((each["code"], each["change"]), "")
    entries[entry["file"]] = entry
    lines = [json.dumps(entries[file], ensure_ascii=False) + "\n" for file in sorted(entries)]
    temporary = Path(f"{record}.new")
    temporary.write_text("".join(lines))
    os.replace(temporary, record)


def noticed(entry: Entry) -> int:
    """How many mutants the tests noticed."""
    return int(entry["killed"] + entry["timed_out"])


def held(entry: Entry) -> float:
    """The share of the tried mutants that the tests noticed, or that live for a stated reason."""
    reasons = sum(bool(each["reason"]) for each in entry["survivors"])
    return float((noticed(entry) + reasons) / entry["tried"])


def table(entries: dict[str, Entry]) -> str:
    """A line for each file; a file that has changed since is marked."""
    rows: list[tuple[str, ...]] = [
        ("file", "mutants", "tried", "noticed", "with a reason", "without", "")
    ]
    total = [0, 0, 0, 0, 0]
    for file, entry in entries.items():
        reasons = sum(bool(each["reason"]) for each in entry["survivors"])
        rest = len(entry["survivors"]) - reasons
        counts = [entry["mutants"], entry["tried"], noticed(entry), reasons, rest]
        total = [a + b for a, b in zip(total, counts, strict=True)]
        state = "" if Path(file).is_file() and digest(file) == entry["sha256"] else "changed since"
        rows.append((file, *map(str, counts), state))
    rows.append((f"{len(entries)} files", *map(str, total), ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *cells in rows:
        numbers = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *numbers]).rstrip())
    return "\n".join(lines)


def survivors(entries: dict[str, Entry]) -> str:
    """The mutants that live, each with its reason."""
    lines = []
    for file, entry in entries.items():
        for each in entry["survivors"]:
            lines.append(f"{file}:{each['line']}  {each['change']}")
            lines.append(f"    {each['reason'] or 'NO REASON'}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Print what tools/mutate.py found, as a table.")
    parser.add_argument("--record", default=RECORD)
    parser.add_argument("--survivors", action="store_true", help="the mutants that live, and why")
    args = parser.parse_args(arguments)
    entries = read(args.record)
    print(survivors(entries) if args.survivors else table(entries))
    return 0


if __name__ == "__main__":
    sys.exit(main())
