"""Train controls of the miniatures: does what docs/miniature.md says hold for other trainings?

    python -m tools.train_controls runs/controls --jobs 2

Six kinds of training, three seeds of each: llama and qwen2 with the shipped mix of choices and with
2 to 8 choices equally often; mistral with its window of 40 and without one. Of llama also five
seeds with balanced labels (each of A to I is right equally often, the lists are as short as in the
shipped mix), one without open questions, and one each with 0.5 and with 8 million numbers. A
shipped checkpoint is seed 0 of its kind; the others are trained, each in its own process with one
thread (some 20 minutes; the large one 80). Each is then asked 500 evaluation questions of 4 and of
8 choices. Results stay in DIR/KIND-SEED: after an interruption the same command goes on. At the
end, and with `--jobs 0` at once, it prints the accuracies of all that is done: mean and standard
deviation over the seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import mean, stdev

from tools.markdown import table

ROOT = Path(__file__).parents[1]
KINDS = {  # the options of tools/train_miniature.py
    "llama": ("--family", "llama"),
    "llama-evenly": ("--family", "llama", "--choices", "evenly"),
    "qwen2": ("--family", "qwen2"),
    "qwen2-evenly": ("--family", "qwen2", "--choices", "evenly"),
    "mistral": ("--family", "mistral"),
    "mistral-no-window": ("--family", "mistral", "--window", "0"),
    "llama-balanced": ("--family", "llama", "--labels", "balanced", "--steps", "1500"),
    "llama-no-open": ("--family", "llama", "--open", "0"),
    "llama-small": ("--family", "llama", "--size", "small"),
    "llama-large": ("--family", "llama", "--size", "large", "--learning-rate", "2e-3"),
}
SEEDS = dict.fromkeys(KINDS, 3) | {
    "llama-balanced": 5,
    "llama-no-open": 1,
    "llama-small": 1,
    "llama-large": 1,
}
METHODS = ("standard", "self-ensemble", "cyclic", "cloze")
CHOICES = (4, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time; 0: only the table")
    args = parser.parse_args()
    # Seed by seed, so that the table of finished runs has as many kinds as possible.
    todo = [(kind, seed) for seed in range(5) for kind in KINDS if seed < SEEDS[kind]]
    if args.jobs:
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(partial(make, args.folder), todo))
    print(accuracies(args.folder))


def commands(folder: Path, kind: str, seed: int) -> list[list[str]]:
    """What is still to run for one control: its training and its evaluation."""
    run_folder = folder / f"{kind}-{seed}"
    model, needed = ROOT / "weights" / f"tiny-{kind}", []
    if seed or not model.exists():
        model = run_folder / "model"
        train = ["-m", "tools.train_miniature", str(model), "--seed", str(seed)]
        if not (model / "model.safetensors").exists():
            needed.append([sys.executable, *train, *KINDS[kind]])
    ask = ["-m", "minise", "eval", "--task", "miniature", "--limit", "500"]
    ask += ["--cut-to", ",".join(map(str, CHOICES)), "--method", ",".join(METHODS)]
    if not (run_folder / "results.json").exists():
        needed.append([sys.executable, *ask, "--model", str(model), "-o", str(run_folder)])
    return needed


def make(folder: Path, which: tuple[str, int]) -> None:
    """Train and evaluate one control. Its log is DIR/KIND-SEED.log."""
    name = "{}-{}".format(*which)
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for command in commands(folder, *which):
        print(f"{name}: {'evaluate' if 'eval' in command else 'train'}", flush=True)
        with (folder / f"{name}.log").open("a") as log:
            done = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
        if done.returncode:
            print(f"{name}: failed, see {log.name}; the same command tries again", flush=True)
            return
    print(f"{name}: done", flush=True)


def accuracies(folder: Path) -> str:
    """Accuracy in percent: mean over training seeds ± standard deviation (each seed)."""
    rows = []
    for kind in KINDS:
        paths = [folder / f"{kind}-{seed}" / "results.json" for seed in range(SEEDS[kind])]
        reports = [json.loads(path.read_text())["results"] for path in paths if path.exists()]
        for K in CHOICES if reports else ():
            cells = []
            for method in METHODS:
                each = [100 * one[f"miniature-k{K}"][method]["accuracy"] for one in reports]
                spread = f" ± {stdev(each):.1f}" if len(each) > 1 else ""
                cells.append(f"{mean(each):.1f}{spread} ({', '.join(f'{x:.1f}' for x in each)})")
            rows.append([kind, str(K), *cells])
    return table(["training", "K", *METHODS], rows)


if __name__ == "__main__":
    main()
