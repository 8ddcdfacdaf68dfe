"""What balanced groupings gain if the answers of groups are noise and nothing else.

    python -m tools.studies.noise

The probability that an ordered group gives each of its choices is drawn independently of all
others: no choice, no label and no partner matters. The table has the mean squared distance of the
scores from their expectation over all ordered groups. Where groups share structure, balanced ones
are ahead (`python -m tools.studies.groupings`). Here there is nothing to balance.
"""

from __future__ import annotations

import argparse

import numpy as np

from minise.grouping import make_groups
from minise.groupings.exact import all_ordered_groups
from minise.groupings.registry import GROUPINGS
from tools.markdown import table
from tools.studies.groupings import trial_values

CHOICES, GROUP_SIZE = 8, 4
TRIALS = (5, 10, 20, 40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=400, help="how many draws of the noise")
    args = parser.parse_args()
    rows = []
    for trials in TRIALS:
        pairs = [variances(trials, number) for number in range(args.questions)]
        random, balanced = np.array(pairs).T
        error = (random - balanced).std(ddof=1) / len(pairs) ** 0.5
        difference = f"{(random - balanced).mean():.1e} ± {1.96 * error:.1e}"
        rows.append([str(trials), f"{random.mean():.2e}", f"{balanced.mean():.2e}", difference])
    print(table(["N", "random", "balanced", "random - balanced"], rows))


def variances(trials: int, number: int) -> tuple[float, float]:
    """The mean squared distance of the scores from their expectation, for one draw of the noise:
    of random and of balanced trials."""
    draw = np.random.default_rng(number)
    groups = make_groups(CHOICES, GROUP_SIZE, 1, 0, "", all_ordered_groups).flat
    shares = {group: draw.dirichlet(np.ones(len(group) + 1))[:-1] for group in groups}
    total = np.zeros(CHOICES)
    for group, share in shares.items():
        total[list(group)] += share
    exact = total * CHOICES / sum(map(len, groups))  # each choice is in as many groups
    distances = []
    for name in ("random", "balanced"):
        drawn = make_groups(CHOICES, GROUP_SIZE, trials, 0, f"noise-{number}", GROUPINGS[name])
        scores = trial_values(drawn.trials, shares, CHOICES).mean(axis=0)
        distances.append(float(np.mean((scores - exact) ** 2)))
    return distances[0], distances[1]


if __name__ == "__main__":
    main()
