"""How many cases hypothesis draws: few where a person waits, MINISE_CASES of them in CI."""

import os

from hypothesis import HealthCheck, Phase, settings


def cases(few: int) -> settings:
    """The same cases in every run, however slow the machine."""
    return settings(
        max_examples=int(os.environ.get("MINISE_CASES", few)),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],  # to shrink a failing case would take minutes
        suppress_health_check=list(HealthCheck),
    )
