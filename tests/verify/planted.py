"""Faults of packed runs, planted in this process. `minise verify` must find each in any dtype.

Most are small: one cell of a mask, one position, two ends, a hundredth of another group. The name
of a fault says which code has it, and so whether one engine is wrong or all.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import minise.attention as definition
import minise.engines as engines
import minise.equal_bits.attention as attention
import minise.equal_bits.run as exact
import minise.layout as layout
import minise.method as ensemble
from minise import Decoder
from minise.layout import Tree, causal_mask

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
PLANTED: dict[str, Plant] = {}
WINDOWED: set[str] = set()  # faults that only a sliding window shows


def everywhere(patch: Patch, real: Any, faulty: Any) -> None:
    """Replace a function by `faulty`, in every module that imported it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("minise"):
            for attribute, value in list(vars(module).items()):
                if value is real:
                    patch.setattr(module, attribute, faulty)


# ---- the layout, which dense, tree and plain share


def of_pack(name: str, change: Callable[[Tree, int], Any], trees: bool = False) -> None:
    """A fault that changes what `pack` returns for several prompts, given the prefix's length."""

    def plant(patch: Patch) -> None:
        real = layout.pack

        def pack(prefix: Any, branches: Any, tree: bool = False) -> Tree:
            packed = real(prefix, branches, tree)
            if len(branches) > 1 and tree == trees:
                change(packed, len(prefix))
            return packed

        everywhere(patch, real, pack)

    PLANTED[name] = plant


def swap_ends(tree: Tree, prefix: int) -> None:
    tree.ends[:2] = tree.ends[:2].flip(0)


def repeat_a_token(tree: Tree, prefix: int) -> None:
    tree.tokens[-4] = tree.tokens[-5]


of_pack("two ends are swapped", swap_ends)
of_pack("two ends of the tree are swapped", swap_ends, trees=True)
of_pack("an end is one row early", lambda tree, prefix: tree.ends[-1].sub_(1))
of_pack("every group's positions are off by one", lambda tree, n: tree.positions[n:].add_(1))
of_pack("one position in a group is off by one", lambda tree, n: tree.positions[-9].sub_(1))
of_pack("one token is another", repeat_a_token)
of_pack(
    "the last token's position in the tree is off by one",
    lambda tree, prefix: tree.positions[-1].add_(1),
    trees=True,
)


def of_mask(name: str, end: bool, leak: bool) -> None:
    """One wrong cell of the mask that dense and plain run under: in the row of the last group's
    end, or of a token before it. Its column is another group's token, or the row's parent."""

    def plant(patch: Patch) -> None:
        real = Tree.mask

        def mask(self: Tree) -> Tensor:
            cells = real.func(self).clone()
            row, near = int(self.ends[-1]) - (0 if end else 4), int(self.ends[0])
            if len(self.ends) > 1:
                cells[row, near if leak else row - 1] = leak
            return cells

        patch.setattr(Tree, "mask", property(mask))

    PLANTED[name] = plant


of_mask("a cell of the mask leaks to an end", end=True, leak=True)
of_mask("a cell of the mask is missing at an end", end=True, leak=False)
of_mask("a cell of the mask leaks to a group", end=False, leak=True)
of_mask("a cell of the mask is missing in a group", end=False, leak=False)


# ---- the calls of the tree, and those of the others


def of_call(name: str, tree: bool, leak: bool, separate: bool = False) -> None:
    """One cell of the call in which the last end is a query: of the tree, or of dense and, if
    `separate`, of a separate run too. It hides a key that is seen, or shows another prompt's."""
    reader = "tree_reader" if tree else "mask_reader"

    def plant(patch: Patch) -> None:
        real = getattr(attention, reader)

        def faulty(what: Any, *arguments: Any) -> attention.Reader:
            made = real(what, *arguments)
            is_packed = (
                len(what.ends) > 1 if tree else not torch.equal(what, causal_mask(len(what)))
            )
            if is_packed or separate:
                last = int(what.ends[-1]) if tree else len(what) - 1
                made.calls = [changed(call, what, last) for call in made.calls]
            return made

        everywhere(patch, real, faulty)

    def changed(call: attention.Calls, what: Any, last: int) -> attention.Calls:
        if call.far or not (call.queries == last).any():
            return call
        item, place = (call.queries == last).nonzero()[0].tolist()
        keys, N = call.keys.clone(), len(call.queries)
        itself = int((keys[item] == last).nonzero()[0])
        if leak:
            keys[item, itself - 3] = what.ends[0]
            return replace(call, keys=keys)
        cells = call.seen(None).expand(N, -1, -1).clone()
        cells[item, place:, itself - 2] = False  # the last query fills empty places
        return replace(call, mask=cells)

    PLANTED[name] = plant


of_call("an end of the tree reads a row of another prompt", tree=True, leak=True)
of_call("a cell is missing at an end of the tree", tree=True, leak=False)
of_call("a cell is missing in a call of dense", tree=False, leak=False)
of_call("a cell is missing in a call of dense and separate", tree=False, leak=False, separate=True)


def of_windows(name: str, function: str, more: int) -> None:
    """Readers whose windows are wider by `more`."""

    def plant(patch: Patch) -> None:
        real = getattr(attention, function)

        def reader(*arguments: Any) -> attention.Reader:
            made = real(*arguments)
            made.windows = tuple(None if w is None else w + more for w in made.windows)
            return made

        everywhere(patch, real, reader)

    WINDOWED.add(name)
    PLANTED[name] = plant


of_windows("the tree's window is one more", "tree_reader", 1)
of_windows("the tree's window is one less", "tree_reader", -1)
of_windows("the window of dense and separate is one more", "mask_reader", 1)


# ---- attention


def of_attention(name: str, owner: Any, function: str, change: Callable[..., Any]) -> None:
    """A function of plain, or of all others, given other arguments."""

    def plant(patch: Patch) -> None:
        real = getattr(owner, function)
        patch.setattr(owner, function, lambda *given: real(*change(*given)))

    PLANTED[name] = plant


def tiled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    H, K = q.shape[-2], k.shape[-2]
    return q[..., torch.arange(H).view(H // K, K).T.flatten(), :], k, v, mask


def scaled(q: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    return q * 1.01, *others


def wider(mask: Tensor, rows: Tensor, at: Tensor, window: int | None) -> tuple[Any, ...]:
    return mask, rows, at, None if window is None else window + 1


of_attention("query heads of plain are tiled", definition, "masked_attention", tiled)
of_attention("query heads of all but plain are tiled", attention, "attention_call", tiled)
of_attention("scores of plain are scaled", definition, "masked_attention", scaled)
of_attention("scores of all but plain are scaled", attention, "attention_call", scaled)
of_attention("plain's window is one more", definition, "within", wider)
WINDOWED.add("plain's window is one more")


def of_reader(name: str, dense: bool, share: float) -> None:
    """The last row of a tree, or of a packed sequence, reads a part of the first."""

    def plant(patch: Patch) -> None:
        real, real_ends, packed = attention.Reader.attend, engines.layout_ends, [False]

        def ends(*arguments: Any) -> Tensor:
            packed[0] = dense
            try:
                return real_ends(*arguments)
            finally:
                packed[0] = False

        def attend(self: Any, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = real(self, layer, q, k, v).clone()
            if packed[0] or (not dense and self.ends is not None and len(self.ends) > 1):
                out[:, -1] += share * out[:, 0]
            return out

        everywhere(patch, real_ends, ends)
        patch.setattr(attention.Reader, "attend", attend)

    PLANTED[name] = plant


of_reader("a leak of 1e-2 in dense", dense=True, share=1e-2)
of_reader("a leak of 1e-5 in the tree", dense=False, share=1e-5)


# ---- what is read at the ends


def of_labels(name: str, engine: str | None, change: Callable[[list[Tensor]], Any]) -> None:
    """The label logits of an engine, or of all."""

    def plant(patch: Patch) -> None:
        real = ensemble.label_logits

        def label_logits(lm: Any, plan: Any, name: str = "tree") -> list[Tensor]:
            rows = real(lm, plan, name)
            return change(rows) if engine in (None, name) else rows

        everywhere(patch, real, label_logits)

    PLANTED[name] = plant


of_labels("plain's ends are in another order", "plain", lambda rows: rows[::-1])
of_labels("the labels of the tree are reversed", "tree", lambda rows: [r.flip(0) for r in rows])
of_labels("one prompt's labels are reversed", None, lambda rows: [*rows[:-1], rows[-1].flip(0)])


def of_logits(name: str, owner: Any, change: Callable[[Tensor], Tensor]) -> None:
    """The logits of some columns, by the definition or in the way of all engines."""

    def plant(patch: Patch) -> None:
        real = owner.logits
        patch.setattr(
            owner,
            "logits",
            lambda *given: change(real(*given)) if len(given) > 2 else real(*given),
        )

    PLANTED[name] = plant


of_logits("columns of logits are 0.1% too large", exact, lambda rows: rows * 1.001)
of_logits("columns of the definition's logits are reversed", Decoder, lambda rows: rows.flip(-1))
