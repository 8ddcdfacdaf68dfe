"""The modules of minise/live in node, as they are: `node(script, data)` runs a script that imports
them, and returns what it prints as JSON. Without node tests are skipped."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minise

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="no node here; on Debian: apt install nodejs")
MODULES = Path(minise.__file__).parent / "live"
Run = Callable[..., Any]


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("node")
    for path in MODULES.glob("*.js"):
        shutil.copy(path, folder)
    # Without this, node takes the files for scripts of its older kind.
    (folder / "package.json").write_text('{"type": "module"}')

    def run(script: str, data: Any = None) -> Any:
        """`script` finds `data` under this name and gives its result to `tell`."""
        (folder / "data.json").write_text(json.dumps(data))
        text = (
            'import { readFileSync, writeFileSync } from "node:fs";\n'
            'const data = JSON.parse(readFileSync("data.json"));\n'
            "const tell = (value) => console.log(JSON.stringify(value));\n"
        )
        (folder / "script.js").write_text(text + script)
        command = [str(NODE), "script.js"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    return run
