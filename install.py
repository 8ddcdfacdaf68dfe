#!/usr/bin/env python3
"""Install minise and the extras named, in .venv here: python3 install.py [test] [eval] ...

All by pip, in the versions of constraints.txt. torch comes first, from PyTorch's own index: for
Linux, PyPI has only the build with CUDA, ten times as large. docs/index.md has the same by hand.
"""

import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent
BIN = Path(".venv", "Scripts" if os.name == "nt" else "bin")
PYTHON = str(BIN / ("python.exe" if os.name == "nt" else "python"))
NEWEST = (3, 14)  # for which the torch of constraints.txt has a build


def refuse(message: str) -> None:
    print(f"install.py: {message}", file=sys.stderr)
    raise SystemExit(2)


# Nothing above and no syntax below is newer than Python 3.6, so that an old one can say this.
if not (3, 10) <= sys.version_info[:2] <= NEWEST:
    version = ".".join(map(str, sys.version_info[:2]))
    refuse(f"this is Python {version}; minise needs 3.10 to 3.14: try python3.12 install.py")


def printed(*command: str) -> str:
    """What a command prints; nothing where it fails or does not exist."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return ""
    return "" if done.returncode else done.stdout.decode(errors="replace")


def torch_build() -> str:
    """The build of torch for the NVIDIA driver here: without CUDA where there is none, or one that
    is too old for CUDA 12."""
    driver = printed("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    version = re.match(r"(\d+)\.", driver)
    if not version or int(version.group(1)) < 525:
        return "cpu"
    return "cu126" if int(version.group(1)) < 580 else "cu130"


def answers(index: str) -> bool:
    try:
        urllib.request.urlopen(f"{index}/torch/", timeout=5).close()
    except Exception:  # no network, a proxy that refuses, ...: pip's own index may still work
        return False
    return True


def pip(*arguments: str) -> None:
    command = [PYTHON, "-m", "pip", "install", "-c", "constraints.txt", *arguments]
    if subprocess.run(command).returncode:
        refuse("pip failed, as it says above; to go on, run the same command again")


def main(extras: "list[str]") -> None:
    os.chdir(str(ROOT))
    if not Path(PYTHON).exists():
        made = subprocess.run([sys.executable, "-m", "venv", ".venv"])
        if made.returncode:
            refuse("could not make .venv, as Python says above")
    here = printed(PYTHON, "-c", "import importlib.metadata as m; print(m.version('torch'))")
    pinned = "torch=={}\n".format(here.strip().partition("+")[0])
    if sys.platform != "darwin" and pinned not in Path("constraints.txt").read_text("utf-8"):
        index = f"https://download.pytorch.org/whl/{torch_build()}"
        if answers(index):
            pip("--no-deps", "--index-url", index, "torch")
        else:
            print(f"{index} does not answer: pip takes torch from its usual index.")
    pip("-e", f".[{','.join(extras)}]" if extras else ".")
    print(f"Installed. Next: {BIN / 'minise'} ask")


if __name__ == "__main__":
    try:
        print(__doc__) if {"-h", "--help"} & set(sys.argv) else main(sys.argv[1:])
    except KeyboardInterrupt:
        refuse("stopped; to go on, run the same command again")
