"""Does a model of the transformers library do what a 4-D mask, position ids and its cache say?

Five promises. Each is tried by itself on the same prompts, and compared with the library's own run
of every prompt alone. `minise verify --model transformers:ID_OR_FOLDER` prints them.

mask: what a 4-D mask hides cannot change a row. If the hidden tokens are replaced by random ones,
the row stays equal bit for bit, and its derivative by each of them is exactly 0. positions: a token
stands where its position id says, wherever it is in the sequence. window: a sliding window also
holds under a 4-D mask. cache: tokens behind cached ones are as in the whole prompt. batch: prompts
of several lengths, padded on the right, are as each alone.
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
    """holds: whether it is kept; None if these prompts cannot show it. difference: the largest
    difference of a row of logits, as a part of its size; None if nothing was compared. why: the
    reason if it does not hold."""

    holds: bool | None
    difference: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Report:
    """What the trials of one model showed.

    tolerance: the largest difference that rounding explains, as a part of a row of logits.
    documents: whether the library, without a mask, treats tokens whose positions start over as
    separate documents. engines: dense and tree compared with separate, or an InputError's line for
    one that is refused. passed: no promise is broken.
    """

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
    """Try every promise on the prompts `prefix + branch`; with `gradients` the mask also by
    derivatives. `tolerance` is a part of a row of logits; by default it is what the model's own
    rounding explains."""
    trial = _Trial(decoder, list(prefix), [list(branch) for branch in branches])
    with torch.no_grad():
        trial.run_alone(tolerance)
        promises = {"mask": trial.outcome(trial.mask)}
        trial.masked = promises["mask"].holds is True
        for name in ("positions", "window", "cache", "batch"):
            promises[name] = trial.outcome(getattr(trial, name))
        documents = trial.outcome(trial.documents).holds
        engines = {name: _engine(trial, name) for name in ("dense", "tree")}
    if gradients and promises["mask"].holds:
        with torch.enable_grad():
            promises["mask"] = trial.outcome(trial.gradients)
    return Report(
        tokens=sum(len(prefix) + len(branch) for branch in branches),
        groups=len(branches),
        tolerance=trial.tolerance,
        promises=promises,
        documents=documents,
        engines=engines,
        influence=trial.influence,
        attention=decoder.config.attention,
        library=decoder.config.library,
    )


@dataclass
class _Trial:
    """The promises, one method each. alone: the logits (G, V) of every prompt alone, which define
    what is right. masked: whether the promise of the mask holds."""

    decoder: Library
    prefix: list[int]
    branches: list[list[int]]
    tolerance: float = 0.0
    alone: Tensor = field(default_factory=lambda: torch.zeros(0))
    masked: bool = False
    influence: Influence = field(default_factory=lambda: Influence(0, Apart()))

    @property
    def prompts(self) -> list[list[int]]:
        return [self.prefix + branch for branch in self.branches]

    def run_alone(self, tolerance: float | None) -> None:
        """Run every prompt alone. Without a tolerance, measure the rounding on the longest."""
        self.alone = torch.cat([self.decoder.alone(prompt) for prompt in self.prompts])
        check_finite(self.decoder.name, self.alone, self.alone)
        if tolerance is None:
            tolerance = self.decoder.rounding(max(self.prompts, key=len))
        self.tolerance = tolerance

    def outcome(self, promise: Callable[[], Promise]) -> Promise:
        """Try a promise. It is broken if the library fails, and unknown if minise refuses."""
        try:
            return promise()
        except InputError as error:
            return Promise(None, None, str(error))
        except Exception as error:  # any error of a model that does not support such a call
            return Promise(False, None, f"the library fails: {one_line(error)}")

    def judged(self, expected: Tensor, logits: Tensor, why: str) -> Promise:
        """Whether two runs are equal up to rounding. why: what it means if they are not."""
        difference = relative(expected, logits)
        if difference > 0 and self.tolerance > TOO_MUCH:
            return Promise(None, difference, "rounding moves as much; use a wider dtype")
        holds = difference <= self.tolerance
        return Promise(holds, difference, "" if holds else why)

    def flat(self) -> Tree:
        return pack(self.prefix, self.branches)

    def mask(self) -> Promise:
        prompt = max(self.prompts, key=len)
        half = len(prompt) // 2 + 1
        within = self.decoder.within(prompt, half - 1)
        causal = self.judged(self.decoder.alone(prompt[:half]), within, "it is not causal itself")
        if not causal.holds:
            return causal
        layout, V = self.flat(), self.decoder.config.vocab_size
        logits, paths = self.decoder.packed(layout), flat_paths(self.prefix, self.branches)
        draw, runs, scrambled = torch.Generator().manual_seed(0), groups_to_keep(paths), Apart()
        for groups in runs:
            shift = torch.randint(1, V, layout.tokens.shape, generator=draw)
            shift[list({row for group in groups for row in paths[group]})] = 0
            changed = layout.replace(tokens=(layout.tokens + shift) % V)
            scrambled.add([logits[groups]], [self.decoder.packed(changed)[groups]])
        self.influence = Influence(len(runs), scrambled)
        if not runs:
            return Promise(None, None, "there is one group, so nothing is hidden")
        most = scrambled.relative[0]
        if scrambled.equal:
            return Promise(True, most)
        if most <= min(self.tolerance, TOO_MUCH):
            # Experts that get other tokens multiply them in matrices of other shapes.
            return Promise(True, most, "within rounding, though not bit for bit")
        return Promise(False, most, "a row depends on tokens that the mask hides")

    def positions(self) -> Promise:
        layout, config = self.flat(), self.decoder.config
        logits = self.decoder.packed(layout)
        promise = self.judged(self.alone, logits, "a packed row differs from the same row alone")
        if promise.holds is not False:
            return promise
        if not self.masked:
            return Promise(None, promise.difference, "the mask does not hold")
        T = len(layout.tokens)
        by_index = self.decoder.packed(layout.replace(positions=torch.arange(T)))
        why, window = promise.why, config.index_window
        if window and window < T:
            why = f"its own window of {window} is by index"
        elif "position_ids" not in self.decoder.takes:
            why = "it takes no position ids; positions are by index"
        elif torch.equal(logits, by_index):
            why = "position ids change nothing; positions are by index"
        return Promise(False, promise.difference, why)

    def window(self) -> Promise:
        config = self.decoder.config
        sizes = [size for size in (config.window, config.chunk) if size is not None]
        if not sizes:
            return Promise(True, None, "it has none")
        size, prompt = min(sizes), max(self.prompts, key=len)
        if len(prompt) <= size < LONGEST:
            prompt = (prompt * (size // len(prompt) + 2))[: size + len(prompt)]
        if len(prompt) <= size:
            return Promise(None, None, f"no prompt reaches its window of {size:,} tokens")
        layout = pack([], [prompt]).replace(mask=causal_mask(len(prompt)))
        logits = self.decoder.packed(layout, windows=False)
        why = f"its window of {size} is skipped where a 4-D mask is given; minise adds it to masks"
        return self.judged(self.decoder.alone(prompt), logits, why)

    def cache(self) -> Promise:
        branches = self.branches[:CACHED]
        rows = torch.cat([self.decoder.cached(self.prefix, [branch])[0] for branch in branches])
        why = "tokens behind cached ones differ from a whole prompt"
        return self.judged(self.alone[: len(branches)], rows, why)

    def batch(self) -> Promise:
        rows = torch.cat(self.decoder.cached([], self.prompts))
        return self.judged(self.alone, rows, "a padded prompt differs from the same prompt alone")

    def documents(self) -> Promise:
        if "position_ids" not in self.decoder.takes:
            return Promise(False)
        rows = self.decoder.unmasked(pack([], self.prompts[:2]))
        return self.judged(self.alone[:2], rows, "")

    def gradients(self) -> Promise:
        """The promise of the mask, by the derivatives of a group's logits by every embedding."""
        logits, embedded = self._packed_with_gradients()
        G, paths = len(self.branches), flat_paths(self.prefix, self.branches)
        draw = torch.Generator().manual_seed(0)
        direction = torch.randn(logits.shape[-1], generator=draw).to(logits)
        outside, inside, groups = [0.0], [float("inf")], list(range(0, G, -(-G // GRADIENT_GROUPS)))
        for group in groups:
            end = logits[group] @ direction
            (slope,) = torch.autograd.grad(end, embedded, retain_graph=True)
            sizes = slope[0].abs().amax(dim=1).cpu()
            hidden = torch.ones(len(sizes), dtype=torch.bool)
            hidden[paths[group]] = False
            outside += sizes[hidden].tolist()
            inside += sizes[paths[group][-self._reach(len(paths[group])) - 1 :]].tolist()
        scrambled = self.influence.scrambled
        self.influence = Influence(
            self.influence.runs, scrambled, max(outside), min(inside), groups
        )
        difference = scrambled.relative[0]
        if self.influence.gradients_hold:
            return Promise(True, difference)
        why = "by its gradient, a token that the mask shows has no effect"
        if max(outside):
            why = f"by its gradient, a hidden token has an effect of {max(outside):.0e}"
        return Promise(False, difference, why)

    def _packed_with_gradients(self) -> tuple[Tensor, Tensor]:
        """The logits (G, V) of the packed sequence, and its embeddings (1, T, D)."""
        outputs: list[Tensor] = []

        def watch(_: object, inputs: object, output: Tensor) -> Tensor:
            outputs.append(output.detach().requires_grad_())
            return outputs[-1].clone()  # which the model may change in place

        hook = self.decoder.embedding.register_forward_hook(watch)
        try:
            logits = self.decoder.packed(self.flat())
        finally:
            hook.remove()
        return logits, outputs[0]

    def _reach(self, length: int) -> int:
        """How many positions back the end of a prompt of this length reads, through all layers."""
        config, reach = self.decoder.config, length - 1
        if "full_attention" in config.kinds:
            return reach
        if config.window:
            reach = config.num_hidden_layers * (config.window - 1)
        if config.chunk:
            reach %= config.chunk
        return reach


def _engine(trial: _Trial, engine: str) -> dict[str, Any] | str:
    """An engine's logits compared with the separate ones, or why it is refused."""
    try:
        logits = trial.decoder.branch_ends(trial.prefix, trial.branches, engine)
    except InputError as error:
        return str(error)
    difference = relative(trial.alone, logits)
    changed = (trial.alone.argmax(-1) != logits.argmax(-1)).double().mean()
    return {
        "relative": difference,
        "logits": absolute(trial.alone, logits),
        "changed": float(changed),
        "exact": difference <= trial.tolerance,
    }
