"""Check that no group depends on another: what a group must not see cannot change its rows.

Scrambling: every token outside a group's own prompt is replaced by a random other one in the packed
run. The group's rows must stay equal bit for bit. One run serves many groups at once: where prompts
fork, each way is kept in half of the runs, and no two ways are kept in the same half. So for any
two ways some run keeps the one and scrambles the other: 8 runs serve 70 ways (Sperner's theorem).

Gradients: the derivative of a group's last hidden state by the embedding of a token is exactly 0.0
for every token outside the prompt, and for no token inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, count
from math import comb

import torch
from torch import Tensor

from minise.checking.traces import Apart, pick, trace
from minise.engines import LanguageModel, hidden_states
from minise.exact.run import read_ends
from minise.layout import Layout, Tree, pack

GRADIENT_GROUPS = 8  # at most: each takes a backward pass in each engine


@dataclass(frozen=True)
class Influence:
    """scrambled: how much a group's rows change in `runs` runs in which all others are scrambled.

    gradient_outside: the largest derivative by a token that a group must not see; it must be 0.0.
    gradient_inside: the smallest derivative by a token that it sees (the largest over the entries
    of that token's embedding); it must be above 0. Both are None without `gradients`. groups: the
    groups that were differentiated.
    """

    runs: int
    scrambled: Apart
    gradient_outside: float | None = None
    gradient_inside: float | None = None
    groups: list[int] = field(default_factory=list)

    @property
    def gradients_hold(self) -> bool:
        """True also if there are none."""
        inside = self.gradient_inside
        return inside is None or (self.gradient_outside == 0.0 and inside > 0.0)


@dataclass(frozen=True, eq=False)
class _Engine:
    """An engine on one layout. run: tokens (T,) -> hidden states. paths: each group's rows. ends:
    where each group's last row is in the result of `run`. ends_only: whether the result and the top
    layer have no other rows."""

    run: Callable[[Tensor], Tensor]
    tokens: Tensor
    paths: list[list[int]]
    ends: Sequence[int]
    ends_only: bool


def flat_paths(prefix: Sequence[int], branches: Sequence[Sequence[int]]) -> list[list[int]]:
    """Each prompt's rows in the packed sequence, computed from the lengths and not from a layout,
    which could be wrong."""
    paths, start = [], len(prefix)
    for branch in branches:
        paths.append([*range(len(prefix)), *range(start, start + len(branch))])
        start += len(branch)
    return paths


@torch.inference_mode(False)
def influence(
    lm: LanguageModel,
    prefix: Sequence[int],
    branches: Sequence[Sequence[int]],
    layout: Layout | None = None,
    gradients: bool = False,
) -> Influence:
    """Scramble, and with `gradients` differentiate, in the dense and in the tree engine. `layout`
    replaces the packed sequence: tests give one with a wrong mask, which must be detected."""
    flat = pack(prefix, branches) if layout is None else layout
    tree, paths = pack(prefix, branches, tree=True), flat_paths(prefix, branches)
    rest = (tree.parents, tree.positions, tree.ends)

    def dense_run(tokens: Tensor) -> Tensor:
        return hidden_states(lm, flat.replace(tokens=tokens))

    def tree_run(tokens: Tensor) -> Tensor:
        return read_ends(lm.decoder, Tree(tokens, *rest))

    engines = (
        _Engine(dense_run, flat.tokens, paths, [path[-1] for path in paths], False),
        _Engine(tree_run, tree.tokens, tree.paths(), range(len(branches)), True),
    )
    scrambled = Apart()
    with torch.inference_mode():
        runs = sum(_scramble(lm, engine, scrambled) for engine in engines)
    if not gradients:
        return Influence(runs, scrambled)
    groups = list(range(0, len(branches), -(-len(branches) // GRADIENT_GROUPS)))
    derivatives = [_derivatives(lm, engine, groups) for engine in engines]
    outside, inside = (torch.cat(sizes) for sizes in zip(*derivatives, strict=True))
    most = float(outside.max()) if len(outside) else 0.0
    return Influence(runs, scrambled, most, float(inside.min()), groups)


def _scramble(lm: LanguageModel, engine: _Engine, apart: Apart) -> int:
    """Compare the rows of the kept groups with a run in which nothing is scrambled. Returns the
    number of scrambled runs."""
    tokens, V = engine.tokens, lm.config.vocab_size
    whole, _ = trace(lm.decoder, partial(engine.run, tokens))
    generator, runs = torch.Generator().manual_seed(0), groups_to_keep(engine.paths)
    for groups in runs:
        rows = {row for group in groups for row in engine.paths[group] if row < len(tokens)}
        shift = torch.randint(1, V, tokens.shape, generator=generator)
        shift[list(rows)] = 0
        changed, _ = trace(lm.decoder, partial(engine.run, (tokens + shift) % V))
        top = groups if engine.ends_only else None
        apart.add(pick(whole, list(rows), top), pick(changed, list(rows), top))
    return len(runs)


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


def _derivatives(lm: LanguageModel, engine: _Engine, groups: list[int]) -> tuple[Tensor, Tensor]:
    """The sizes of the derivatives of `groups` by every token outside, and by every one inside."""
    embedded: list[Tensor] = []

    def watch(_: object, inputs: object, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    hook = lm.decoder.model.embed_tokens.register_forward_hook(watch)
    try:
        with torch.enable_grad():
            hidden = engine.run(engine.tokens)
    finally:
        hook.remove()
    # A layer reads at most window - 1 positions back.
    reach = sum((w or len(engine.tokens)) - 1 for w in lm.config.sliding_windows)
    # In a random direction: 0 for a token means 0 in every entry of the state.
    direction = torch.randn(hidden.shape[-1], generator=torch.Generator().manual_seed(0)).to(hidden)
    outside, inside = [], []
    for group in groups:
        end = hidden[engine.ends[group]] @ direction
        (slope,) = torch.autograd.grad(end, embedded, retain_graph=True)
        sizes = slope[0].abs().amax(dim=1).cpu()
        visible = torch.zeros(len(sizes), dtype=torch.bool)
        visible[engine.paths[group][-reach - 1 :]] = True
        outside.append(sizes[~visible])
        inside.append(sizes[visible])
    return torch.cat(outside), torch.cat(inside)
