"""A small workload and model, and timings as they could be, for the tests of `minise bench`."""

from __future__ import annotations

import torch

from minise.bench.measure import Row, Timings, random_model
from minise.bench.workloads import Workload
from minise.engines import token_counts
from tests.support.tiny import FAMILIES

SMALL = Workload(choices=5, group_size=2, trials=3, question=9, choice=4)
CPU = torch.device("cpu")
LLAMA = random_model(FAMILIES["llama"], torch.float32, CPU)


def timings(workload: Workload = SMALL, **seconds: float) -> Timings:
    """Timings in which the engines took these seconds on the workload."""
    counts = token_counts(*workload.prompts(99, 0)[:2])
    rows = [Row(name, time, counts[name], None, 0.0) for name, time in seconds.items()]
    return Timings(0.0, rows)
