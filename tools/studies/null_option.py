"""How much probability a group gives "None of the above", where the right choice is in the group
and where it is not.

    minise eval --task miniature --model weights/tiny-llama --questions 500 --method self-ensemble \
        --keep-groups --output-path runs/llama-groups
    python -m tools.studies.null_option runs/llama-groups

The paper's appendix on normalization says that the null option takes a negligible share where the
right choice is there. `mass`: the mean probability of the null option. `refuses`: the share of
groups in which it is the most probable. Intervals: 95%, a percentile bootstrap over facts.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from minise.evaluation.samples import read_samples
from minise.methods.sample import Sample
from minise.report.tables import percent
from tools.markdown import table
from tools.studies.facts import resampled


def main() -> None:
    rows = []
    for run, samples in named_runs(__doc__.splitlines()[0]):
        for present, facts in by_presence(samples).items():
            where = "in the group" if present else "not in it"
            cells = [interval(facts, column) for column in (0, 1)]
            rows.append([run, where, f"{sum(map(len, facts)):,}", *cells])
    print(table(["run", "the right choice is", "groups", "mass", "refuses"], rows))


def named_runs(about: str) -> Iterator[tuple[str, list[Sample]]]:
    """The samples of Self-Ensemble in the folders of the command line, each with its folder's
    name."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    for folder in parser.parse_args().folders:
        for path in sorted(folder.glob("samples-*-self-ensemble.jsonl")):
            yield folder.name, read_samples(path)


def by_presence(samples: Sequence[Sample]) -> dict[bool, list[list[tuple[float, bool]]]]:
    """By whether the group holds the right choice: for each fact, of each group the probability of
    the null option and whether it is the most probable."""
    cells: dict[bool, dict[str, list[tuple[float, bool]]]] = {
        True: defaultdict(list),
        False: defaultdict(list),
    }
    for sample in samples:
        for group in sample.groups or ():
            null = group["null"]
            refuses = null > max(group["probabilities"])
            present = sample.answer in group["choices"]
            cells[present][sample.cluster or sample.id].append((null, refuses))
    return {present: list(facts.values()) for present, facts in cells.items()}


def interval(facts: Sequence[Sequence[tuple[float, bool]]], column: int) -> str:
    """The mean of a column over all groups, with its interval over facts, in percent."""
    sums = np.array([sum(float(group[column]) for group in fact) for fact in facts])
    counts = np.array([len(fact) for fact in facts])
    means = resampled(sums) / resampled(counts)
    return percent(sums.sum() / counts.sum(), np.quantile(means, [0.025, 0.975]).tolist())


if __name__ == "__main__":
    main()
