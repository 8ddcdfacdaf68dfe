"""Draw how each engine's time grows with the number of trials and the number of choices."""

from __future__ import annotations

import statistics
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from minise.bench.measure import Timings
from minise.bench.workloads import Workload
from minise.engines import LanguageModel, branch_logits, token_counts
from minise.errors import InputError, one_line, say
from minise.evaluation.meter import timed
from minise.evaluation.progress import duration, progress
from minise.files import write_file
from minise.loading.plugin import load_extra
from minise.names import ENGINES
from minise.report.drawing import looks, picture, sheet, style

TRIALS = (5, 10, 20, 40, 80, 160)
CHOICES = (4, 8, 12, 16)
# The most tokens of a call: the memory of dense's mask and of plain's scores grows with the square.
LONGEST = {"plain": 4_000, "dense": 16_000}
LONGEST_CALL = 60.0  # seconds


@dataclass(frozen=True)
class Call:
    """One engine on one workload of a sweep, and the seconds of each round."""

    axis: str  # N or K
    value: int
    engine: str
    prompts: tuple[list[int], list[list[int]], list[int]]
    expected: float  # seconds
    seconds: list[float] = field(default_factory=list)


def plan_calls(
    lm: LanguageModel, workload: Workload, seed: int, timings: Timings
) -> tuple[list[Call], list[str]]:
    """The calls of one round, and the names of those that are left out because they would take too
    long. A call's time is expected to be in proportion to its tokens, at the rate just measured."""
    rates = {row.name: row.seconds / row.tokens for row in timings.rows}
    sweeps = [("N", n, replace(workload, trials=n)) for n in TRIALS]
    sweeps += [("K", k, replace(workload, choices=k)) for k in CHOICES]
    calls, left_out = [], []
    for axis, value, sizes in sweeps:
        prompts = sizes.prompts(lm.config.vocab_size, seed)
        counts = token_counts(*prompts[:2])
        for engine in ENGINES:
            if engine not in rates:
                continue
            expected = rates[engine] * counts[engine]
            too_many = counts[engine] > LONGEST.get(engine, counts[engine])
            if expected > LONGEST_CALL or too_many:
                left_out.append(f"{engine} at {axis}={value}")
            else:
                calls.append(Call(axis, value, engine, prompts, expected))
    return calls, left_out


@torch.inference_mode()
def plot_growth(
    lm: LanguageModel, workload: Workload, seed: int, rounds: int, timings: Timings, path: Path
) -> list[dict[str, Any]]:
    """Draw the median seconds of each engine over `rounds`, in which the engines run in turn, to
    `path`. The ending of the path names the picture's format. How long it will take is printed on
    stderr first. Returns what was measured: axis ("N" or "K"), value, engine, seconds (by round).

    Raises InputError if every call would take too long, if matplotlib is missing, and if the path
    cannot be written.
    """
    calls, left_out = plan_calls(lm, workload, seed, timings)
    if not calls:
        reason = f"each call would take over {duration(LONGEST_CALL)}"
        raise InputError(f"nothing to draw: {reason}; choose a smaller --shape or --workload")
    if left_out:
        say(f"left out of the plot, as too long: {', '.join(left_out)}")
    seconds = max(2, rounds * sum(call.expected for call in calls))
    say(f"the plot takes about {duration(seconds)}: {rounds} rounds of {len(calls)} calls")
    with closing(progress(calls * rounds, "plot", "call")) as running:
        for call in running:
            prefix, branches, labels = call.prompts
            run = partial(branch_logits, lm, prefix, branches, call.engine, labels)
            call.seconds.append(timed(run, lm.decoder.device))
    with style():
        try:
            drawn = picture(make_figure(calls, workload, rounds), path.suffix[1:].lower(), dpi=150)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be drawn as a picture ({one_line(error)})") from None
    write_file(path, drawn)
    names = ("axis", "value", "engine", "seconds")
    return [{name: getattr(call, name) for name in names} for call in calls]


def make_figure(calls: list[Call], workload: Workload, rounds: int) -> Any:
    """Matplotlib's figure of timed calls: a panel for N and one for K."""
    sizes = {"N": f"K={workload.choices}", "K": f"N={workload.trials}"}
    panels = []
    for axis, fixed in sizes.items():
        title = f"m={workload.group_size}, {fixed}, question of {workload.question} tokens"
        panels.append((title, [call for call in calls if call.axis == axis]))
    caption = (
        f"Lines: medians of {rounds} rounds; bands: from the fastest to the slowest. N: partitions "
        "of a question's K choices into groups. m: choices in a group."
    )
    return sheet(panels, _growth, {"seconds a question": ("", 3.0)}, caption, sharey=True)


def _growth(calls: list[Call], ax: Any) -> None:
    """Draw one panel: a line and a band for each engine."""
    values = sorted({call.value for call in calls})
    for engine, look in looks(ENGINES).items():
        line = [call for call in calls if call.engine == engine]
        xs = [call.value for call in line]
        medians = [statistics.median(call.seconds) for call in line]
        fastest = [min(call.seconds) for call in line]
        slowest = [max(call.seconds) for call in line]
        ax.plot(xs, medians, label=engine, **look.line)
        ax.fill_between(xs, fastest, slowest, color=look.colour, alpha=0.2)
    ax.set(xscale="log", yscale="log")
    ax.set_xticks(values, map(str, values))
    ax.minorticks_off()
    ax.yaxis.set_major_locator(load_extra("matplotlib.ticker").LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_xlabel({"N": "trials N", "K": "choices K"}[calls[0].axis] if calls else "")
