"""Check that no group depends on another: what a group must not see cannot change its rows.

Every token outside a group's own prompt is replaced by a random other one in the packed run. The
group's rows must stay equal bit for bit. One run serves many groups at once: where prompts fork,
each way is kept in half of the runs, and no two ways are kept in the same half. So for any two ways
some run keeps the one and scrambles the other: 8 runs serve 70 ways (Sperner's theorem).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, count
from math import comb

import torch
from torch import Tensor

from minise.engines import LanguageModel, layout_ends
from minise.exact.run import read_ends
from minise.layout import Tree, pack
from minise.verify.traces import Apart, flat_paths, pick, trace


@dataclass
class Influence(Apart):
    """How far a group's rows change in `runs` runs in which all others are scrambled."""

    runs: int = 0


@torch.inference_mode()
def influence(
    lm: LanguageModel, prefix: Sequence[int], branches: Sequence[Sequence[int]]
) -> Influence:
    """Scramble in the dense and in the tree engine."""
    found = Influence()
    _scramble(lm, pack(prefix, branches), flat_paths(prefix, branches), False, found)
    merged = pack(prefix, branches, tree=True)
    _scramble(lm, merged, merged.paths(), True, found)
    return found


def _scramble(
    lm: LanguageModel, layout: Tree, paths: list[list[int]], is_tree: bool, found: Influence
) -> None:
    """Compare the rows of the kept groups with a run in which nothing is scrambled."""

    def run(tokens: Tensor) -> Tensor:
        if is_tree:
            changed = Tree(tokens, layout.parents, layout.positions, layout.ends)
            return read_ends(lm.refined, changed)
        return layout_ends(lm, layout.replace(tokens=tokens))

    tokens, generator = layout.tokens, torch.Generator().manual_seed(0)
    whole, _ = trace(lm.refined, partial(run, tokens))
    for groups in groups_to_keep(paths):
        rows = {row for group in groups for row in paths[group] if row < len(tokens)}
        shift = torch.randint(1, lm.config.vocab_size, tokens.shape, generator=generator)
        shift[list(rows)] = 0
        changed, _ = trace(lm.refined, partial(run, (tokens + shift) % lm.config.vocab_size))
        top = groups if is_tree else None  # the tree's top layer has the ends only
        found.add(pick(whole, list(rows), top), pick(changed, list(rows), top))
        found.runs += 1


def groups_to_keep(paths: list[list[int]]) -> list[list[int]]:
    """The groups kept in each run, so that for every group and every row outside its path some run
    keeps the group and no path with that row."""
    steps = [list(zip([-1, *path], [*path, -1], strict=True)) for path in paths]
    ways: dict[int, list[int]] = {}  # row -> the rows that come next, -1 for a prompt's end
    for row, after in dict.fromkeys(step for path in steps for step in path):
        ways.setdefault(row, []).append(after)
    # The forks on each path: (which way it goes, of how many).
    forks: list[list[tuple[int, int]]] = []
    for path in steps:
        forks.append([(ways[a].index(b), len(ways[a])) for a, b in path if len(ways[a]) > 1])
    runs = []
    for level in range(max(map(len, forks))):
        # The groups that have so many forks, and which way each goes at this one.
        turns = {group: path[level] for group, path in enumerate(forks) if len(path) > level}
        most = max(number for _, number in turns.values())
        needed = next(r for r in count() if comb(r, r // 2) >= most)
        halves = list(combinations(range(needed), needed // 2))
        for run in range(needed):
            runs.append([group for group, (way, _) in turns.items() if run in halves[way]])
    return [groups for groups in runs if groups]
