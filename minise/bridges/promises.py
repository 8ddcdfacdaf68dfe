"""Does a model of the transformers library do what a 4-D mask, position ids and its cache say?

Five promises, each tried alone on the same prompts and held against the library's own run of every
prompt by itself. `minise verify --model transformers:ID_OR_FOLDER` prints them.

mask: what a 4-D mask hides cannot change a row: scrambled, the row stays equal bit for bit, and its
derivative is exactly 0. positions: a token stands where its position id says, wherever it lies.
window: a sliding window holds also where a 4-D mask is given. cache: tokens behind cached ones.
batch: prompts of several lengths, padded on the right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from minise.bridges.library import TOO_MUCH, Library
from minise.checking.influence import GRADIENT_GROUPS, Influence, flat_paths, groups_to_keep
from minise.checking.traces import Apart, absolute, relative
from minise.engines import check_finite
from minise.errors import InputError, one_line
from minise.layout import Tree, causal_mask, pack

CACHED = 4  # prompts that are tried behind the cache one by one
LONGEST = 512  # tokens to which a prompt is repeated, to reach a window


@dataclass(frozen=True)
class Promise:
    """Whether it holds; None: these prompts cannot tell. difference: the largest of a row of
    logits, as part of its size; None where nothing could be compared."""

    holds: bool | None
    difference: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Report:
    """What was found. tolerance: the differences that rounding explains, as parts of a row of
    logits. documents: without a mask, the library takes tokens whose positions start over for
    documents of their own. engines: dense and tree against separate, an InputError's line for one
    that is refused. passed: no promise is broken."""

    tokens: int
    groups: int
    tolerance: float
    promises: dict[str, Promise]
    documents: bool | None
    engines: dict[str, dict[str, Any] | str]
    influence: Influence
    attention: str
    library: str

    @property
    def passed(self) -> bool:
        return all(promise.holds is not False for promise in self.promises.values())


def verify_prompts(
    decoder: Library,
    prefix: Sequence[int],
    branches: Sequence[Sequence[int]],
    tolerance: float | None = None,
    gradients: bool = False,
) -> Report:
    """Try every promise on the prompts `prefix + branch`; the mask also by derivatives, if asked
    for. `tolerance` is relative; by default it is what the model's own rounding explains."""
    found = _Trial(decoder, list(prefix), [list(one) for one in branches])
    with torch.no_grad():
        found.measure(tolerance)
        names = ("mask", "positions", "window", "cache", "batch")
        promises = {}
        for name in names:
            promises[name] = found.tell(getattr(found, name))
            found.masked = promises["mask"].holds is True
        documents = found.tell(found.documents).holds
        engines = {name: _engine(found, name) for name in ("dense", "tree")}
    if gradients and promises["mask"].holds:
        with torch.enable_grad():
            promises["mask"] = found.tell(found.gradients)
    facts = decoder.config
    tokens = sum(len(prefix) + len(branch) for branch in branches)
    told = (promises, documents, engines, found.seen, facts.attention, facts.library)
    return Report(tokens, len(branches), found.tolerance, *told)


@dataclass
class _Trial:
    decoder: Library
    prefix: list[int]
    branches: list[list[int]]
    tolerance: float = 0.0
    alone: Tensor = field(default_factory=lambda: torch.zeros(0))  # (G, V), the definition
    masked: bool = False  # the promise of the mask holds
    seen: Influence = field(default_factory=lambda: Influence(0, Apart()))

    def measure(self, tolerance: float | None) -> None:
        """Run every prompt alone, and the longest with a little noise."""
        prompts = [self.prefix + branch for branch in self.branches]
        self.alone = torch.cat([self.decoder.alone(prompt) for prompt in prompts])
        check_finite(self.decoder.name, self.alone, self.alone)
        noise = self.decoder.rounding(max(prompts, key=len)) if tolerance is None else tolerance
        self.tolerance = noise

    def tell(self, promise: Callable[[], Promise]) -> Promise:
        """What a promise says, broken where the library fails."""
        try:
            return promise()
        except InputError as error:
            return Promise(None, None, str(error))
        except Exception as error:  # whatever a model makes of what it does not take
            return Promise(False, None, f"the library fails: {one_line(error)}")

    def judged(self, ours: Tensor, theirs: Tensor, why: str) -> Promise:
        """Whether two runs are equal but for rounding."""
        apart = relative(ours, theirs)
        if apart > 0 and self.tolerance > TOO_MUCH:
            return Promise(None, apart, "rounding moves as much; use a wider dtype")
        return Promise(apart <= self.tolerance, apart, "" if apart <= self.tolerance else why)

    def flat(self) -> Tree:
        return pack(self.prefix, self.branches)

    def mask(self) -> Promise:
        prompt = max((self.prefix + branch for branch in self.branches), key=len)
        half = len(prompt) // 2 + 1
        within = self.decoder.within(prompt, half - 1)
        causal = self.judged(self.decoder.alone(prompt[:half]), within, "it is not causal itself")
        if not causal.holds:
            return causal
        layout, V = self.flat(), self.decoder.config.vocab_size
        whole, paths = self.decoder.packed(layout), flat_paths(self.prefix, self.branches)
        draw, choice, scrambled = torch.Generator().manual_seed(0), groups_to_keep(paths), Apart()
        for kept in choice:
            shift = torch.randint(1, V, layout.tokens.shape, generator=draw)
            shift[list({row for group in kept for row in paths[group]})] = 0
            other = layout.replace(tokens=(layout.tokens + shift) % V)
            scrambled.add([whole[kept]], [self.decoder.packed(other)[kept]])
        self.seen = Influence(len(choice), scrambled)
        if not choice:
            return Promise(None, None, "there is one group, so nothing is hidden")
        most, why = scrambled.relative[0], "a row hears of tokens that the mask hides"
        if not scrambled.equal and most <= min(self.tolerance, TOO_MUCH):
            # Experts that get other tokens multiply them in matrices of other shapes.
            return Promise(True, most, "within rounding, though not bit for bit")
        return Promise(scrambled.equal, most, "" if scrambled.equal else why)

    def positions(self) -> Promise:
        layout, config = self.flat(), self.decoder.config
        packed = self.decoder.packed(layout)
        told = self.judged(self.alone, packed, "a packed row differs from the same row alone")
        if told.holds is not False:
            return told
        if not self.masked:
            return Promise(None, told.difference, "the mask does not hold")
        T = len(layout.tokens)
        why, counted = told.why, self.decoder.packed(layout.replace(positions=torch.arange(T)))
        if (own := config.own_window) and own < T:
            why = f"its own window of {own} is by index"
        elif "position_ids" not in self.decoder.takes:
            why = "it takes no position ids; positions are by index"
        elif torch.equal(packed, counted):
            why = "position ids change nothing; positions are by index"
        return Promise(False, told.difference, why)

    def window(self) -> Promise:
        config = self.decoder.config
        sizes = [size for size in (config.window, config.chunk) if size is not None]
        if not sizes:
            return Promise(True, None, "it has none")
        size, prompt = min(sizes), max((self.prefix + b for b in self.branches), key=len)
        if len(prompt) <= size < LONGEST:
            prompt = (prompt * (size // len(prompt) + 2))[: size + len(prompt)]
        if len(prompt) <= size:
            return Promise(None, None, f"no prompt reaches its window of {size:,} tokens")
        one = pack([], [prompt])
        found = self.decoder.packed(one.replace(mask=causal_mask(len(prompt))), windows=False)
        why = f"its window of {size} is skipped where a 4-D mask is given; minise adds it to masks"
        return self.judged(self.decoder.alone(prompt), found, why)

    def cache(self) -> Promise:
        some = self.branches[:CACHED]
        rows = torch.cat([self.decoder.cached(self.prefix, [branch])[0] for branch in some])
        return self.judged(
            self.alone[: len(some)], rows, "tokens behind cached ones differ from a whole prompt"
        )

    def batch(self) -> Promise:
        prompts = [self.prefix + branch for branch in self.branches]
        rows = torch.cat(self.decoder.cached([], prompts))
        return self.judged(self.alone, rows, "a padded prompt differs from the same prompt alone")

    def documents(self) -> Promise:
        if "position_ids" not in self.decoder.takes:
            return Promise(False)
        two = pack([], [self.prefix + branch for branch in self.branches[:2]])
        rows = self.decoder.unmasked(two)
        return self.judged(self.alone[:2], rows, "")

    def gradients(self) -> Promise:
        """The promise of the mask, by the derivatives of a group's logits by every embedding."""
        layout, config = self.flat(), self.decoder.config
        embedded: list[Tensor] = []

        def watch(_: object, given: object, output: Tensor) -> Tensor:
            embedded.append(output.detach().requires_grad_())
            return embedded[-1].clone()  # which the model may change in place

        hook = self.decoder.embedding.register_forward_hook(watch)
        try:
            logits = self.decoder.packed(layout)
        finally:
            hook.remove()
        G, paths = len(self.branches), flat_paths(self.prefix, self.branches)
        full = "full_attention" in config.kinds or not (config.window or config.chunk)
        draw = torch.Generator().manual_seed(0)
        direction = torch.randn(logits.shape[-1], generator=draw).to(logits)
        outside, inside, groups = [0.0], [float("inf")], list(range(0, G, -(-G // GRADIENT_GROUPS)))
        for group in groups:
            end = logits[group] @ direction
            (slope,) = torch.autograd.grad(end, embedded[0], retain_graph=True)
            sizes = slope[0].abs().amax(dim=1).cpu()
            hidden = torch.ones(len(sizes), dtype=torch.bool)
            hidden[paths[group]] = False
            outside += sizes[hidden].tolist()
            reach = len(paths[group]) - 1
            if config.window and not full:
                reach = config.num_hidden_layers * (config.window - 1)
            if config.chunk and not full:
                reach %= config.chunk
            inside += sizes[paths[group][-reach - 1 :]].tolist()
        scrambled, most = self.seen.scrambled, self.seen.scrambled.relative[0]
        self.seen = Influence(self.seen.runs, scrambled, max(outside), min(inside), groups)
        hears = f"by its gradient, a hidden token counts {max(outside):.0e}"
        why = hears if max(outside) else "by its gradient, a token that it shows counts nothing"
        return Promise(self.seen.gradients_hold, most, "" if self.seen.gradients_hold else why)


def _engine(found: _Trial, name: str) -> dict[str, Any] | str:
    """An engine's logits against the separate ones, or why it is refused."""
    try:
        logits = found.decoder.branch_ends(found.prefix, found.branches, name)
    except InputError as error:
        return str(error)
    apart = relative(found.alone, logits)
    changed = (found.alone.argmax(-1) != logits.argmax(-1)).double().mean()
    told = {"relative": apart, "logits": absolute(found.alone, logits), "changed": float(changed)}
    return {**told, "exact": apart <= found.tolerance}
