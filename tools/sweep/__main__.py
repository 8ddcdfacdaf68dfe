"""Who leaks, by version: each causal class of an installed library, tiny and random, asked what
becomes of prompts that share a row, a batch or a cache.

    python -m tools.sweep transformers        all classes; writes docs/sweep.json and docs/sweep.md
    python -m tools.sweep mlx_lm --only jamba llama             these, printed

A library needs no other: each can be asked in an environment of its own, and the page keeps what
was found in the others. A class that cannot be built so tiny is named with the reason.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import time
from datetime import date
from typing import Any

from tools.sweep.page import DOCS, LIBRARIES, page_of

MODULES = {"transformers": "in_transformers", "mlx_lm": "in_mlx"}


def swept(library: Any, names: list[str]) -> dict[str, Any]:
    """The answers of each class, and why one was not built."""
    classes: dict[str, dict[str, str]] = {}
    failures: dict[str, str] = {}
    start = time.process_time()
    for name in names:
        try:
            model = library.model_of(name)
        except (Exception, SystemExit) as error:  # of many kinds; a module may end the program
            failures[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:90]}"
            continue
        if model is None:
            continue
        title = library.title(name, model)
        classes[title] = library.asked(model)
        print(title, *classes[title].values(), sep=" | ", flush=True)
    return {
        "versions": library.versions(),
        "python": platform.python_version(),
        "date": str(date.today()),
        "cpu_seconds": round(time.process_time() - start),
        "columns": library.COLUMNS,
        "classes": classes,
        "failures": failures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    options = parser.parse_args()
    library = importlib.import_module(f"tools.sweep.{MODULES[options.library]}")
    library.prepare()
    one = swept(library, options.only or library.names())
    if options.only:
        return
    known = DOCS / "sweep.json"
    found = json.loads(known.read_text(encoding="utf-8")) if known.exists() else {}
    found[options.library] = one
    known.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (DOCS / "sweep.md").write_text(page_of(found), encoding="utf-8")


if __name__ == "__main__":
    main()
