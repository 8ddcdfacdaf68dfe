"""Prove, for the prompts of a plan, that packed runs equal separate runs: for all weights.

`verify` compares numbers, of one set of weights. Here the engines run on symbols (symbols.py): the
same layouts, readers, calls and driver, on hashes of what each number is made of. Equal hashes in
two runs are the same operations on the same data. Two things are shown.

Bits: dense and tree make every row of every prompt in the same way as its separate run, in calls of
the same shapes. So their bits are equal for all weights, as far as ASSUMED holds.

Arithmetic: separate and plain compute what is defined here, in `_defined`: the prompt alone, in
which token i reads the tokens up to i within the window, and the logits of its labels at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from minise.attention import masked_attention
from minise.checking.influence import flat_paths
from minise.checking.symbols import CallSymbols, Symbols, symbolic
from minise.checking.traces import pick
from minise.engines import LanguageModel, check_fit, run_alone
from minise.errors import InputError
from minise.exact import run as exact
from minise.layout import pack
from minise.method import Plan, label_logits
from minise.model import Decoder

BY_CALLS = ("dense", "tree")  # compared with a separate run; the others with the definition
ENGINES = (*BY_CALLS, "separate", "plain")
ASSUMED = (
    "in calls of one shape a kernel treats all rows alike, wherever they stand (docs/bits.md)",
    "linear layers and activations: the sizes of calls that were measured to share bits do so",
    "attention: how many calls of a shape run as one batch makes no difference, and a key with "
    "weight 0 adds nothing",
    "norms, rotations, sums, products and the readout's dot products do not depend on how many "
    "rows are in a call",
    "no number overflows; sizes of rows and heads, which are smaller here, change no path of the "
    "code",
    "two different things do not share a hash: 2 times 64 bits in each row",
)

T = TypeVar("T")
Rows = list[Tensor]  # (T, 2) int64 in each layer; then the label logits, as one row


@dataclass(frozen=True)
class Departure:
    """Where an engine departs from the separate run: the first layer in which a row differs, in it
    the first prompt ("branch", from 0), and the first token of that prompt. `what`: in words."""

    engine: str
    layer: str
    branch: int
    token: int
    what: str

    def __str__(self) -> str:
        where = f"{self.layer}, branch {self.branch}, token {self.token}"
        return f"{self.engine} differs first in {where}: {self.what}"


@dataclass(frozen=True)
class Proof:
    """What `prove` found. rows: how many rows were compared, by engine. tokens: of all prompts, the
    prefix once for each. departures: at most one for each engine. not_run: engines whose mask or
    scores would not fit in memory, and why."""

    tokens: int
    branches: int
    layers: int
    rows: dict[str, int]
    departures: list[Departure]
    not_run: dict[str, str]

    @property
    def passed(self) -> bool:
        return not self.departures


@torch.inference_mode()
def prove(lm: LanguageModel, plan: Plan) -> Proof:
    """Run the plan's prompts on symbols in every engine, and compare every row of every token after
    the embedding, each layer and the final norm, and the label logits.

    It uses the model's config and no weights: `lm.decoder` may have none. A layout in the plan is
    ignored. Raises InputError for prompts that do not fit the model.
    """
    return Prover(lm).prove(plan)


class Prover:
    """`prove` for many plans of one model. The runs of single prompts are kept."""

    def __init__(self, lm: LanguageModel) -> None:
        self.calls = replace(lm, decoder=symbolic(lm.config, CallSymbols))
        self.exact = replace(lm, decoder=symbolic(lm.config, Symbols))
        self.known: dict[tuple[object, ...], Rows] = {}

    @torch.inference_mode()
    def prove(self, plan: Plan, engines: Sequence[str] = ENGINES) -> Proof:
        """As the function `prove`, for these engines."""
        config, plan = self.exact.config, replace(plan, layout=None)
        labels = [i for prompt in plan.prompts for i in prompt.label_ids]
        check_fit(self.exact.name, config, plan.prefix, plan.branches, labels)
        layers = [f"layer {i}" for i in range(config.num_hidden_layers)]
        names = ["embedding", *layers, "final norm", "label logits"]
        rows: dict[str, int] = {}
        departures, not_run = [], {}
        for engine in engines:
            lm, alone = (self.calls, _alone) if engine in BY_CALLS else (self.exact, _defined)
            try:
                packed = engine != "separate"
                found = _packed(lm, plan, engine) if packed else self._each(_separate, lm, plan)
            except InputError as error:  # a mask or scores that would not fit in memory
                not_run[engine] = str(error)
                continue
            rows[engine] = sum(len(layer) for branch in found for layer in branch)
            first = _first(self._each(alone, lm, plan), found, ends_only=engine == "tree")
            if first is not None:
                layer, branch, token = first
                what = _what(plan, engine, branch, token)
                departures.append(Departure(engine, names[layer], branch, token, what))
        tokens = sum(len(plan.prefix) + len(branch) for branch in plan.branches)
        return Proof(tokens, len(plan.prompts), len(layers), rows, departures, not_run)

    def _each(
        self, run: Callable[[LanguageModel, Plan], Rows], lm: LanguageModel, plan: Plan
    ) -> list[Rows]:
        """The rows of each prompt, run by itself."""
        runs = []
        for prompt in plan.prompts:
            key = (run, *plan.prefix, *prompt.ids, tuple(prompt.label_ids))
            if key not in self.known:
                self.known[key] = run(lm, replace(plan, prompts=[prompt]))
            runs.append(self.known[key])
        return runs


def _recorded(decoder: Decoder, run: Callable[[], T]) -> tuple[Rows, T]:
    """The rows of one run after the embedding, each layer and the final norm; and its result."""
    model = decoder.model
    rows: Rows = []
    hooks = [
        module.register_forward_hook(lambda _, inputs, output: rows.append(output.flatten(0, -2)))
        for module in (model.embed_tokens, *model.layers, model.norm)
    ]
    try:
        return rows, run()
    finally:
        for hook in hooks:
            hook.remove()


def _alone(lm: LanguageModel, one: Plan) -> Rows:
    """The only prompt of a plan in a separate run, with the logits of its labels at its end."""
    (prompt,) = one.prompts
    rows, _ = _recorded(lm.decoder, partial(run_alone, lm, one.prefix + prompt.ids))
    return [*rows, exact.logits(lm.decoder, rows[-1][-1:], torch.tensor(prompt.label_ids))]


def _separate(lm: LanguageModel, one: Plan) -> Rows:
    """The same, with the label logits as answers read them."""
    rows, logits = _recorded(lm.decoder, partial(label_logits, lm, one, "separate"))
    return [*rows, logits[0][None]]


def _defined(lm: LanguageModel, one: Plan) -> Rows:
    """The same as it is defined: with no layout, no reader and no engine."""
    decoder, (prompt,) = lm.decoder, one.prompts
    tokens = torch.tensor(one.prefix + prompt.ids)
    positions = torch.arange(len(tokens))
    back = positions[:, None] - positions

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        window = lm.config.sliding_windows[layer]
        return masked_attention(q, k, v, (back >= 0) & (back < (window or len(back)))[None])

    rows, _ = _recorded(decoder, lambda: decoder.run(tokens[None], positions[None], attend))
    head = decoder.model.embed_tokens if decoder.lm_head is None else decoder.lm_head
    return [*rows, F.linear(rows[-1][-1:], head.weight[prompt.label_ids])]


def _packed(lm: LanguageModel, plan: Plan, engine: str) -> list[Rows]:
    """The rows of each prompt in a packed run, and its label logits, as answers read them. The tree
    has the last row alone in the top layer and after the final norm."""
    prompts = plan.prefix, plan.branches
    rows, logits = _recorded(lm.decoder, partial(label_logits, lm, plan, engine))
    paths = pack(*prompts, tree=True).paths() if engine == "tree" else flat_paths(*prompts)
    # Of a row that a run does not have nothing is picked: then the comparison sees other shapes.
    return [
        [*pick(rows, path, [branch] if engine == "tree" else None), logits[branch][None]]
        for branch, path in enumerate(paths)
    ]


def _first(expected: list[Rows], found: list[Rows], ends_only: bool) -> tuple[int, int, int] | None:
    """The first layer, branch and token of which the rows differ. `ends_only`: in the top layer and
    after the final norm only each prompt's last row was run."""
    last = len(expected[0]) - 1  # the label logits
    for layer in range(last + 1):
        for branch, (one, other) in enumerate(zip(expected, found, strict=True)):
            a, b = (rows[layer].as_subclass(Tensor) for rows in (one, other))
            at_end = layer == last or (ends_only and layer >= last - 2)
            a = a[-1:] if at_end else a
            if a.shape != b.shape or not torch.equal(a, b):
                same = a.shape == b.shape and not at_end
                token = int((a != b).any(dim=1).nonzero()[0]) if same else len(one[0]) - 1
                return layer, branch, token
    return None


def _what(plan: Plan, engine: str, branch: int, token: int) -> str:
    """What is wrong with a token of the layout that the engine runs, in words."""
    prompt = [*plan.prefix, *plan.branches[branch]]
    if engine == "separate":
        return "its separate run is not what is defined: masks, windows or calls of one prompt"
    layout = pack(plan.prefix, plan.branches, tree=engine == "tree")
    paths = layout.paths() if engine == "tree" else flat_paths(plan.prefix, plan.branches)
    path = paths[branch]
    if len(path) != len(prompt):
        return f"its branch has {len(path)} tokens in the layout, not {len(prompt)}"
    if path[-1] >= len(layout.tokens):
        return f"the layout has {len(layout.tokens)} tokens, too few for all branches"
    row, owner = path[token], {row: at for at, rows in enumerate(paths) for row in rows}
    if int(layout.tokens[row]) != prompt[token]:
        return f"it is token id {int(layout.tokens[row])}, not {prompt[token]}"
    if int(layout.positions[row]) != token:
        return f"its position is {int(layout.positions[row])}, not {token}"
    if engine != "tree":  # the tree has no mask
        seen, meant = set(layout.mask[row].nonzero().flatten().tolist()), set(path[: token + 1])
        if seen - meant:
            other = min(seen - meant)
            at = paths[owner[other]].index(other)
            return f"it may attend to token {at} of branch {owner[other]}"
        if meant - seen:
            return f"it may not attend to token {path.index(min(meant - seen))} of its own prompt"
    if token == len(prompt) - 1 and int(layout.ends[branch]) != row:
        return f"the branch is read at row {int(layout.ends[branch])}, not at its end, row {row}"
    return "its token, position and mask are right: what it reads or how it is read out is not"
