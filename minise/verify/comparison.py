"""Compare packed runs with separate runs, and check that no group depends on another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from minise.engines import ENGINES, AnyDecoder, Engine, Ids, NamedEngine
from minise.layout import causal_mask, pack
from minise.lm import LocalModel
from minise.model import Decoder
from minise.prompts import Prompts
from minise.verify.recording import Recording, own_decoder, record

PACKED = ("packed", "tree")  # the engines that are compared with separate runs
ABLATIONS = ("without-mask", "without-positions")
SAMPLE = 8  # prompts at most, where all would take too long or too much memory
ZERO = torch.zeros((), dtype=torch.float64)
TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, eq=False)
class Rows:
    """What a run computed for one prompt of T tokens. states: after each layer (T, D), after the
    top layer and the final norm (1, D), that of the end; none of a decoder that is not ours.
    labels: their logits (1, m), float64 on the CPU. logits: those of the vocabulary, (1, V)."""

    states: list[Tensor]
    labels: Tensor
    logits: Tensor

    @property
    def parts(self) -> list[Tensor]:
        return [*self.states, self.labels, self.logits]


def one_prompt(prompts: Prompts, number: int) -> Prompts:
    """The prompt of this number alone."""
    branch = prompts.branches[number]
    label_ids = prompts.label_ids[number]
    return Prompts(prompts.prefix, [branch], [label_ids])


def sample(prompts: Prompts) -> Prompts:
    """At most SAMPLE of the prompts, spread over all."""
    numbers = sampled(len(prompts.branches))
    branches = [prompts.branches[number] for number in numbers]
    label_ids = [prompts.label_ids[number] for number in numbers]
    return Prompts(prompts.prefix, branches, label_ids)


def sampled(number: int) -> range:
    """At most SAMPLE of 0, 1, ..., number - 1, spread over all."""
    step = math.ceil(number / SAMPLE)
    return range(0, number, step)


def rows_of(
    lm: LocalModel,
    prompts: Prompts,
    engine: str,
    numbers: Sequence[int] | None = None,
    run: Engine | None = None,
) -> Iterator[Rows]:
    """The rows of the prompts of these numbers, by default of all, as the engine of this name runs
    them, or `run` in its place. The engine separate has a run for each prompt."""
    if numbers is None:
        numbers = range(len(prompts.branches))
    if engine == "separate" and len(prompts.branches) > 1:
        for number in numbers:
            yield from rows_of(lm, one_prompt(prompts, number), engine, run=run)
        return
    if run is None:
        run = ENGINES[engine]
    ends: list[Tensor] = []

    def kept(decoder: AnyDecoder, prefix: Ids, branches: Sequence[Ids]) -> Tensor:
        hidden_GD = run(decoder, prefix, branches)
        ends.append(hidden_GD)
        return hidden_GD

    is_watched = isinstance(lm.decoder, Decoder)
    watch = record(own_decoder(lm)) if is_watched else nullcontext(Recording())
    with watch as seen:
        answers = lm.with_engine(NamedEngine(engine, kept)).logits(prompts)
    (hidden_GD,) = ends
    streams = [stream[0] for stream in seen.residual.values()]
    paths = pack(prompts.prefix, prompts.branches, tree=engine == "tree").paths()
    for number in numbers:
        states = [stream_TD[paths[number]] for stream_TD in streams[:-1]]
        if is_watched:
            states += [streams[-1][[number]], hidden_GD[[number]]]
        labels = answers[number].labels[None]
        logits = lm.decoder.logits(hidden_GD[[number]])
        yield Rows(states, labels, logits)


def one_later(decoder: AnyDecoder, prefix: Ids, branches: Sequence[Ids]) -> Tensor:
    """An only prompt, every token one position later. Rotary scores depend on distances alone, so
    what changes is rounding, in every layer. (Where positions are absolute, it is far more.)"""
    (branch,) = branches
    tokens = torch.tensor([*prefix, *branch])
    T = len(tokens)
    return decoder(tokens, torch.arange(T) + 1, causal_mask(T), torch.tensor([T - 1]))


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference of a row, as part of that row's size in `a`. Infinite if the shapes
    differ. A row of zeros differs by 0 from itself and by a huge number from any other."""
    if a.shape != b.shape:
        return math.inf
    expected = a.double()
    sizes = size_of_rows(expected).clamp(min=TINY)
    differences = size_of_rows(expected - b.double())
    return float((differences / sizes).max())


def size_of_rows(x: Tensor) -> Tensor:
    """The root of the mean square of each row."""
    return x.square().mean(dim=-1).sqrt()


def absolute(a: Tensor, b: Tensor) -> float:
    """The largest difference of an entry. Infinite if the shapes differ."""
    if a.shape != b.shape:
        return math.inf
    differences = a.double() - b.double()
    return float(differences.abs().max())


@dataclass
class Gaps:
    """The largest differences that were seen: of each of the states, of the label logits, and of
    the logits of the vocabulary. A NaN stays. float64."""

    states: Tensor = ZERO
    labels: Tensor = ZERO
    logits: Tensor = ZERO

    def add(self, found: list[float]) -> None:
        """Differences of all `Rows.parts`."""
        *states, labels, logits = torch.tensor(found, dtype=torch.float64)
        if states:
            self.states = torch.maximum(self.states, torch.stack(states))
        self.labels = torch.maximum(self.labels, labels)
        self.logits = torch.maximum(self.logits, logits)

    @property
    def every(self) -> Tensor:
        return torch.cat([self.states.flatten(), self.labels[None], self.logits[None]])


@dataclass
class Difference:
    """How far two runs of so many `pairs` of prompts are apart. relative: of a row, as part of its
    size. absolute: of an entry. probabilities: of a label among the labels. equal: whether all bits
    are. changed: in how many of the prompts the most probable label is another."""

    relative: Gaps = field(default_factory=Gaps)
    absolute: Gaps = field(default_factory=Gaps)
    probabilities: Tensor = ZERO
    equal: bool = True
    changed: int = 0
    pairs: int = 0

    @property
    def most(self) -> float:
        """The largest of `relative`; NaN if one is."""
        return float(self.relative.every.max())

    def add(self, a: Rows, b: Rows) -> None:
        """Compare the rows of a prompt with those, `a`, of another run."""
        pairs = list(zip(a.parts, b.parts, strict=True))
        self.relative.add([relative(x, y) for x, y in pairs])
        self.absolute.add([absolute(x, y) for x, y in pairs])
        p = a.labels.softmax(dim=-1)
        q = b.labels.softmax(dim=-1)
        largest = (p - q).abs().max()
        self.probabilities = torch.maximum(self.probabilities, largest)
        self.changed += int(p.argmax()) != int(q.argmax())
        for x, y in pairs:
            self.equal = self.equal and torch.equal(x.double(), y.double())
        self.pairs += 1


@contextmanager
def in_float64(decoder: Decoder) -> Iterator[None]:
    """Let a decoder compute in float64 while the block lasts. A layer's weights are widened when it
    runs, and the narrow ones are put back after it; those outside the layers are wide all the
    time."""
    narrow: dict[int, tuple[Tensor, Tensor]] = {}

    def widen(part: nn.Module, *given: Any) -> None:
        for tensor in tensors_of(part):
            if tensor.is_floating_point():
                narrow[id(tensor)] = tensor, tensor.data
                tensor.data = tensor.data.double()

    def put_back(part: nn.Module, *given: Any) -> None:
        for tensor in tensors_of(part):
            if id(tensor) in narrow:
                _, data = narrow.pop(id(tensor))
                tensor.data = data

    hooks = []
    layers = decoder.model.layers
    for layer in layers:
        hooks.append(layer.register_forward_pre_hook(widen))
        hooks.append(layer.register_forward_hook(put_back))
    inside = {id(tensor) for tensor in tensors_of(layers)}
    for tensor in tensors_of(decoder):
        if id(tensor) not in inside and tensor.is_floating_point():
            narrow[id(tensor)] = tensor, tensor.data
            tensor.data = tensor.data.double()
    try:
        yield
    finally:
        for tensor, data in narrow.values():
            tensor.data = data
        for hook in hooks:
            hook.remove()


def tensors_of(part: nn.Module) -> list[Tensor]:
    return [*part.parameters(), *part.buffers()]


@dataclass(frozen=True, eq=False)
class Scrambled:
    """A decoder that reads other tokens than it is given: `shift` (T,) is added to them."""

    decoder: AnyDecoder
    shift: Tensor
    vocabulary: int

    def __call__(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        other_tokens = (tokens + self.shift) % self.vocabulary
        return self.decoder(other_tokens, positions, mask, rows)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.decoder.logits(hidden)

    @property
    def device(self) -> torch.device:
        return self.decoder.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.dtype


@torch.inference_mode()
def influence(lm: LocalModel, prompts: Prompts) -> Difference:
    """Replace every token outside a group's own prompt by a random other one, in the packed
    engines: the group's rows must stay. This is done for at most SAMPLE groups."""
    found = Difference()
    if len(prompts.branches) == 1:
        return found
    for engine in PACKED:
        layout = pack(prompts.prefix, prompts.branches, tree=engine == "tree")
        paths = layout.paths()
        generator = torch.Generator().manual_seed(0)
        groups = sampled(len(paths))
        unchanged = rows_of(lm, prompts, engine, groups)
        for group, before in zip(groups, unchanged, strict=True):
            size = layout.tokens.shape
            shift = torch.randint(1, lm.config.vocab_size, size, generator=generator)
            shift[paths[group]] = 0
            run = scrambled(engine, shift, lm)
            (after,) = rows_of(lm, prompts, engine, [group], run)
            found.add(before, after)
    return found


def scrambled(engine: str, shift: Tensor, lm: LocalModel) -> Engine:
    """An engine under which the decoder reads other tokens."""

    def run(decoder: AnyDecoder, prefix: Ids, branches: Sequence[Ids]) -> Tensor:
        other = Scrambled(decoder, shift, lm.config.vocab_size)
        return ENGINES[engine](other, prefix, branches)

    return run
