"""Draw how each engine's time grows with the number of trials and of choices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from minise.bench.measure import engine_seconds
from minise.bench.workloads import Workload
from minise.engines import LanguageModel, token_counts
from minise.errors import InputError
from minise.names import ENGINES
from minise.plugin import load_extra

TRIALS = (10, 20, 40, 80, 160, 320)
CHOICES = (4, 8, 12, 16, 20)
LONGEST_DENSE = 16_000  # packed tokens; a longer dense run takes minutes and shows nothing new


def plot_growth(lm: LanguageModel, workload: Workload, seed: int, path: Path) -> None:
    """Draw N = 10 ... 320 and K = 4 ... 20 to `path`, whose ending names the picture's format.

    Raises InputError if matplotlib is not installed or the path cannot be written.
    """
    load_extra("matplotlib", "bench").use("agg")
    import matplotlib.pyplot as plt

    sweeps: list[tuple[str, tuple[int, ...], Callable[[int], Workload]]] = [
        ("trials N", TRIALS, lambda n: replace(workload, trials=n)),
        ("choices K", CHOICES, lambda k: replace(workload, choices=k)),
    ]
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, layout="constrained")
    bar = tqdm(total=len(ENGINES) * (len(TRIALS) + len(CHOICES)), desc="plot", disable=None)
    for axis, (name, values, at) in zip(axes, sweeps, strict=True):
        for engine in ENGINES:
            points = []
            for value in values:
                prefix, branches, labels = at(value).prompts(lm.config.vocab_size, seed)
                flat = token_counts(prefix, branches)["dense"]
                if engine != "dense" or flat <= LONGEST_DENSE:
                    seconds = engine_seconds(lm, engine, prefix, branches, labels)
                    points.append((value, seconds))
                bar.update()
            axis.plot(*zip(*points, strict=True), marker="o", label=engine)
        axis.set(xlabel=name, xscale="log", yscale="log", xticks=values, xticklabels=values)
        axis.yaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    bar.close()
    fixed = f"K={workload.choices}", f"N={workload.trials}"
    for axis, other in zip(axes, fixed, strict=True):
        axis.set_title(f"m={workload.group_size}, {other}, question of {workload.question} tokens")
    axes[0].set_ylabel("seconds a question")
    axes[0].legend()
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be written as a picture ({error})") from None
    finally:
        plt.close(figure)
