#!/usr/bin/env python3
"""Install minise and the extras named, in .venv here: python3 install.py [test] [eval] ...

Everything comes by pip, which uses the proxy, the mirror or the folder of wheels in its settings.
The versions are those of constraints.txt. torch comes first, from PyTorch's own index, which has a
small build without CUDA. For Linux, PyPI has only the build with CUDA, ten times as large.
"""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Iterable, Iterator  # noqa: UP035

ROOT = Path(__file__).resolve().parent
BIN = Path(".venv", "Scripts" if os.name == "nt" else "bin")
PYTHON = str(BIN / ("python.exe" if os.name == "nt" else "python"))
DONE = Path(".venv", "minise-installed")  # the request of the last installation that succeeded

# (GB to download, GB on disk) of a build of torch, and of extras. Measured without CUDA. With CUDA
# estimated: the sum of the files that pip names for torch 2.13 on Linux; on disk 1.8 times that.
SIZES = {"cpu": (0.3, 1.1), "cu126": (3.3, 6), "cu130": (2.8, 5)}
SIZES.update({"eval": (0.2, 0.5), "parity": (0.1, 0.3)})


def refuse(message: str) -> None:
    print(f"install.py: {message}", file=sys.stderr)
    raise SystemExit(2)


# Nothing above and no syntax below is newer than Python 3.6, so that an old one can say this.
if sys.version_info < (3, 10):  # noqa: UP036
    version = ".".join(map(str, sys.version_info[:2]))
    refuse(f"this is Python {version}; minise needs 3.10 or newer: try python3.12 install.py")


def run(*command: str) -> tuple[bool, str]:
    """Whether a command succeeded, and what it printed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError:
        return False, ""
    return done.returncode == 0, " ".join((done.stdout + done.stderr).split())


def pip(*arguments: str) -> bool:
    """Install by pip; whether it succeeded. pip itself shows its warnings and errors. Its other
    lines, some ninety, are left out but for what takes long; with -q it would hide that, too."""
    version = re.match(r"pip (\d+)\.(\d+)", run(PYTHON, "-m", "pip", "--version")[1])
    has_raw = version and (int(version[1]), int(version[2])) >= (24, 1)
    bar = "--progress-bar={}".format("raw" if has_raw else "off")
    command = [PYTHON, "-m", "pip", "install", bar, "-c", "constraints.txt", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, universal_newlines=True) as process:
        for text in steps(process.stdout or (), sys.stdout.isatty()):
            print(text, end="", flush=True)
    return process.returncode == 0


def steps(lines: Iterable[str], is_terminal: bool) -> Iterator[str]:
    """Of pip's lines, as text to print: each download of 10 MB or more, on a terminal with how much
    of it is here (if pip is new enough to say so), and the installation."""
    shown = ""  # the last line, if more may be written to it
    for line in lines:
        download = re.match(r"\s*Downloading (\S+) \((\d+\.?\d*) ([MG]B)\)", line)
        progress = re.match(r"Progress (\d+) of ([1-9]\d*)", line)
        packages = re.match("Installing collected packages: (.*)", line)
        if progress:
            if shown and is_terminal:
                yield f"\r{shown}: {int(progress[1]) / int(progress[2]):3.0%}"
            continue
        if shown:
            yield "\n"
            shown = ""
        if download and (download[3] == "GB" or float(download[2]) >= 10):
            name = "-".join(download[1].rpartition("/")[2].replace("%2B", "+").split("-")[:2])
            shown = f"  Downloading {name}, {download[2]} {download[3]}"
            yield shown
        elif packages:
            yield "  Installing {} packages\n".format(len(packages[1].split(", ")))
    if shown:
        yield "\n"


def check(extras: list[str]) -> None:
    """Refuse an installation that cannot succeed, before anything is made."""
    if not (ROOT / "pyproject.toml").is_file() or not (ROOT / "minise").is_dir():
        refuse("minise is not beside this file: clone the repository, and run it there")
    if not os.path.samefile(ROOT, os.curdir):
        refuse(f"run it at the root of the clone: cd {shlex.quote(str(ROOT))}")
    project = Path("pyproject.toml").read_text("utf-8")
    newest = max(map(int, re.findall(r"Python :: 3\.(\d+)", project)))
    if sys.version_info[:2] > (3, newest):
        version = ".".join(map(str, sys.version_info[:2]))
        refuse(
            f"this is Python {version}, for which the torch of constraints.txt has no build: "
            f"try python3.{newest} install.py"
        )
    section = project.partition("optional-dependencies]")[2]
    names = re.findall(r"^([\w-]+) = \[", section.partition("\n[")[0], re.MULTILINE)
    for extra in extras:
        if extra not in names:
            refuse(f"no extra is named {extra[:40]!r}; there are {', '.join(names)}")
    if not find_spec("venv") or not find_spec("ensurepip"):
        package = f"python3.{sys.version_info[1]}-venv"
        refuse(f"this Python has no venv module; on Debian or Ubuntu: sudo apt install {package}")


def make_environment() -> None:
    """.venv, with a Python that is new enough and a pip that reaches packages."""
    if not Path(".venv").exists():
        print("Making .venv", flush=True)
        succeeded, output = run(sys.executable, "-m", "venv", ".venv")
        if not succeeded:
            refuse(f"could not make .venv: {output[-200:]}")
    if not run(PYTHON, "-c", "import pip, sys; sys.exit(sys.version_info < (3, 10))")[0]:
        refuse("the .venv here does not work (no pip, or an old Python): delete it and try again")
    with tempfile.TemporaryDirectory() as folder:  # try a small package that is needed anyway
        options = ["--no-deps", "--retries=0", "--timeout=10", f"--dest={folder}"]
        if not run(PYTHON, "-m", "pip", "download", *options, "hatchling")[0]:
            refuse("pip finds no packages: check the network, and pip's settings (pip config list)")


def torch_build() -> tuple[str, str]:
    """The build of torch for the NVIDIA driver here, and why."""
    succeeded, output = run("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    version = re.match(r"(\d+)\.[\d.]+", output)
    if not succeeded or not version:
        return "cpu", "there is no NVIDIA driver"
    if int(version[1]) < 525:
        return "cpu", f"the NVIDIA driver is {version[0]}, and CUDA 12 needs 525"
    return "cu126" if int(version[1]) < 580 else "cu130", f"the NVIDIA driver is {version[0]}"


def install_torch(build: str) -> bool:
    """torch from PyTorch's own index, if that answers; its dependencies come with minise."""
    index = f"https://download.pytorch.org/whl/{build}"
    try:
        urllib.request.urlopen(f"{index}/torch/", timeout=5).close()
    except Exception:  # no network, a proxy that refuses, ...: pip's own index may still work
        return False
    return pip("--no-deps", "--index-url", index, "torch")


def main(extras: list[str]) -> None:
    extras = [extra.lower().replace("_", "-") for extra in extras]  # to pip, these are one name
    check(extras)
    files = [Path(name).read_text("utf-8") for name in ("pyproject.toml", "constraints.txt")]
    request = "\n".join([*sorted(extras), str(ROOT), *files])
    torch = run(PYTHON, "-c", "import importlib.metadata as m; print(m.version('torch'))")[1]
    has_torch = f"\ntorch=={torch.partition('+')[0]}\n" in files[1]
    if not has_torch or not DONE.exists() or DONE.read_text("utf-8") != request:
        build, why = torch_build()
        parts = [SIZES.get(name, (0, 0)) for name in (build, *extras)]
        download, disk = sum(part[0] for part in parts), sum(part[1] for part in parts)
        free = shutil.disk_usage(".").free / 1e9
        if free < download + disk and not has_torch:
            refuse(f"{free:.1f} GB are free on this disk, and {download + disk:.1f} GB are needed")
        make_environment()
        if not has_torch:
            print(f"torch {'without' if build == 'cpu' else 'with'} CUDA, because {why}.")
            print(f"To download: about {download:.1f} GB. On disk, in .venv: about {disk:.1f} GB.")
            if platform.system() != "Darwin" and not install_torch(build):
                print("PyTorch's own index cannot be used, so pip takes torch from its usual one.")
                print("If that is PyPI, on Linux, it has CUDA: 2.8 GB to download, 5 GB on disk.")
        if not pip("-e", f".[{','.join(extras)}]" if extras else "."):
            refuse("pip failed, as it says above; to go on, run the same command again")
        DONE.write_text(request, "utf-8")
    print(f"Installed. Next: {BIN / 'minise'} ask" + f", {PYTHON} -m pytest" * ("test" in extras))


if __name__ == "__main__":
    try:
        print(__doc__) if {"-h", "--help"} & set(sys.argv) else main(sys.argv[1:])
    except KeyboardInterrupt:
        refuse("stopped; to go on, run the same command again")
