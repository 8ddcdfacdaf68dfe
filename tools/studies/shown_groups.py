"""Does a group help more if the training could show it? The facts of the evaluation are all in the
training, and so are most groups: a hash keeps one in eight sets of choices out.

    minise eval --task miniature --model weights/tiny-llama --questions 500 --method self-ensemble \
        --keep-groups --output-path runs/llama-groups
    python -m tools.studies.shown_groups runs/llama-groups

A group is right if its most probable label is that of the right choice or, where that is not in the
group, of the null option. The table has the share of right groups, for those that the training
could show and those that it could not, and the difference in points. Intervals: 95%, a percentile
bootstrap over facts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from minise.data.miniature import held_out
from minise.methods.sample import Sample
from minise.report.tables import number
from tools.markdown import table
from tools.studies.facts import resampled
from tools.studies.null_option import named_runs

Counts = tuple[int, int, int, int]  # of one fact: shown groups, right ones; others, right ones


def main() -> None:
    rows = []
    for run, samples in named_runs(__doc__.splitlines()[0]):
        for present in (True, False):
            where = "in the group" if present else "not in it"
            rows.append([run, where, *cells(by_fact(samples, present))])
    heads = ["run", "the right choice is", "shown groups", "right", "others", "right", "difference"]
    print(table(heads, rows))


def by_fact(samples: Sequence[Sample], present: bool) -> list[Counts]:
    """The counts of each fact, of the groups that hold the right choice or of those that do not."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for sample in samples:
        for group in sample.groups or ():
            if (sample.answer in group["choices"]) == present:
                place = 0 if is_shown(sample, group["choices"]) else 2
                fact = counts[sample.cluster or sample.id]
                fact[place] += 1
                fact[place + 1] += is_right(sample, group)
    return [(a, b, c, d) for a, b, c, d in counts.values()]


def is_shown(sample: Sample, group: Sequence[int]) -> bool:
    """Whether the training may show the group, in some order (`multiple_choice` in
    tools/train_miniature.py): neither its set of choices nor, where the right one is not in it, the
    set with it is held out."""
    assert sample.text is not None, "the run was made with --no-text"
    assert sample.answer is not None
    question, choices = sample.text["question"], sample.text["choices"]
    texts = [choices[i] for i in group]
    whole = {*texts, choices[sample.answer]}
    return not (held_out(question, texts) or held_out(question, list(whole)))


def is_right(sample: Sample, group: dict[str, Any]) -> bool:
    """Whether the most probable label is that of the right choice, or of the null option."""
    probabilities = [*group["probabilities"], group["null"]]
    best = max(range(len(probabilities)), key=probabilities.__getitem__)
    return [*group["choices"], None][best] == (
        sample.answer if sample.answer in group["choices"] else None
    )


def cells(facts: Sequence[Counts]) -> list[str]:
    """Groups and the share of right ones, for both kinds, and the difference with its interval."""
    counts = np.array(facts, dtype=float)
    shown, shown_right, others, others_right = counts.sum(axis=0)
    sums = resampled(counts)
    gains = 100 * (sums[:, 1] / sums[:, 0] - sums[:, 3] / sums[:, 2])
    first, second = 100 * shown_right / shown, 100 * others_right / others
    gain = number(first - second, np.quantile(gains, [0.025, 0.975]).tolist(), "+.1f")
    return [f"{shown:,.0f}", f"{first:.1f}", f"{others:,.0f}", f"{second:.1f}", gain]


if __name__ == "__main__":
    main()
