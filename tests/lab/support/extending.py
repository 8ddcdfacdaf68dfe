"""What docs/extending.md shows: its sections with their blocks, and the package with its diff."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
# Section title -> its blocks in order, each as language and text.
SECTIONS = {
    title: re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    for title, text in re.findall(r"^## (.*)\n((?:(?!^## ).*\n?)*)", PAGE, flags=re.MULTILINE)
}


def patched_package(folder: Path) -> Path:
    """A copy of the package in `folder`, with the page's diff applied as the page says."""
    ignore = shutil.ignore_patterns("__pycache__", "weights")
    shutil.copytree(ROOT / "minise", folder / "minise", ignore=ignore)
    [diff] = [text for language, text in SECTIONS["A model family"] if language == "diff"]
    (folder / "smollm3.diff").write_text(diff, encoding="utf-8")
    # Inside another repository git would leave out files that are not that repository's.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    subprocess.run(["git", "apply", "smollm3.diff"], cwd=folder, env=environment, check=True)
    return folder


def run_patched(folder: Path, *arguments: str) -> str:
    """What Python prints with these arguments, where `import minise` finds the patched copy."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**variables, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
