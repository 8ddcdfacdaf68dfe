"""The peers that `minise bench` times are right: all give the separate runs' logits."""

from __future__ import annotations

import pytest
import torch

from minise.bench.measure import random_model, time_engines
from minise.bench.workloads import Workload
from tests.support.tiny import ALL_FAMILIES

pytest.importorskip("transformers")


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_every_peer_gives_the_logits_of_the_separate_runs(family: str) -> None:
    # The library skips a model's window where it is given a 4-D mask, so here none may bite.
    raw = {**ALL_FAMILIES[family], "sliding_window": 512, "use_sliding_window": False}
    lm = random_model(raw, torch.float32, torch.device("cpu"))
    work = Workload(choices=5, group_size=2, trials=3, question=9, choice=4)
    report = time_engines(lm, work, rounds=1, seed=0)
    assert len([row for row in report.rows if row.name.startswith("library")]) == 5
    for row in report.rows:
        assert row.max_difference <= 1e-5, row.name
