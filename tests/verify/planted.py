"""Faults of packed runs, planted in this process. `minise verify` must find each in any dtype.

Most are small: one cell of a mask, one position, two ends, a hundredth of another group. The name
of a fault says which code has it, and so whether one engine is wrong or all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import minise.attention as definition
import minise.engines as engines
import minise.exact.attention as attention
import minise.exact.run as exact
import minise.layout as layout
import minise.method as ensemble
from minise import Decoder
from minise.layout import Tree, causal_mask

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
PLANTED: dict[str, Plant] = {}
WINDOWED: set[str] = set()  # faults that only a sliding window shows


def planted(name: str, windowed: bool = False) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        PLANTED[name] = plant
        if windowed:
            WINDOWED.add(name)
        return plant

    return register


def everywhere(patch: Patch, real: Any, faulty: Any) -> None:
    """Replace a function by `faulty`, in every module that imported it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("minise"):
            for attribute, value in list(vars(module).items()):
                if value is real:
                    patch.setattr(module, attribute, faulty)


# ---- the layout, which dense, tree and plain share


def of_pack(name: str, trees: bool = True) -> Callable[[Callable[[Tree, int], None]], Any]:
    """A fault that changes what `pack` returns for several prompts, given the prefix's length."""

    def register(change: Callable[[Tree, int], None]) -> None:
        def plant(patch: Patch) -> None:
            real = layout.pack

            def pack(prefix: Any, branches: Any, tree: bool = False) -> Tree:
                packed = real(prefix, branches, tree)
                if len(branches) > 1 and (tree or not trees):
                    change(packed, len(prefix))
                return packed

            everywhere(patch, real, pack)

        PLANTED[name] = plant

    return register


def swap_ends(tree: Tree, prefix: int) -> None:
    tree.ends[:2] = tree.ends[:2].flip(0)


of_pack("two ends are swapped", trees=False)(swap_ends)
of_pack("two ends of the tree are swapped")(swap_ends)


@of_pack("an end is one row early", trees=False)
def _(tree: Tree, prefix: int) -> None:
    tree.ends[-1] -= 1


@of_pack("every group's positions are off by one", trees=False)
def _(tree: Tree, prefix: int) -> None:
    tree.positions[prefix:] += 1


@of_pack("one group's positions are off by one", trees=False)
def _(tree: Tree, prefix: int) -> None:
    tree.positions[tree.paths()[-1][prefix:]] += 1


@of_pack("the last token's position is off by one", trees=False)
def _(tree: Tree, prefix: int) -> None:
    tree.positions[-1] += 1


@of_pack("the last token's position in the tree is off by one")
def _(tree: Tree, prefix: int) -> None:
    tree.positions[-1] += 1


@of_pack("one position in a group is off by one", trees=False)
def _(tree: Tree, prefix: int) -> None:
    tree.positions[-9] -= 1


@of_pack("one token is another", trees=False)
def _(tree: Tree, prefix: int) -> None:
    tree.tokens[-4] = tree.tokens[-5]


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


def of_calls(patch: Patch, reader: str, change: Callable[[attention.Reader, Any], Any]) -> None:
    """Change the calls of each reader of this kind: change(reader, the first argument)."""
    real = getattr(attention, reader)

    def faulty(what: Any, *arguments: Any) -> attention.Reader:
        made = real(what, *arguments)
        made.calls = list(made.calls)
        change(made, what)
        return made

    everywhere(patch, real, faulty)


def of_tree(name: str, change: Callable[[attention.Calls, Tree, dict[str, Any]], Any]) -> None:
    """A fault in the one call of a tree in which its last end is a query."""

    def of_last(reader: attention.Reader, tree: Tree) -> None:
        last = int(tree.ends[-1])
        for i, call in enumerate(reader.calls):
            if len(tree.ends) > 1 and not call.far and (call.queries == last).any():
                item, place = (call.queries == last).nonzero()[0].tolist()
                reader.calls[i] = change(call, tree, {"item": item, "place": place})

    PLANTED[name] = lambda patch: of_calls(patch, "tree_reader", of_last)


def at_column(call: attention.Calls, item: int, place: int) -> int:
    """Where in its keys the query at this place stands itself."""
    keys = call.keys[item if len(call.keys) > 1 else 0]
    return int((keys == call.queries[item, place]).nonzero()[0])


def another_key(call: attention.Calls, tree: Tree, at: dict[str, Any]) -> attention.Calls:
    keys, column = call.keys.clone().expand(len(call.queries), -1).clone(), at_column(call, **at)
    keys[at["item"], column - 3] = tree.ends[0]
    return replace(call, keys=keys)


def missing_key(call: attention.Calls, tree: Tree, at: dict[str, Any]) -> attention.Calls:
    column, N = at_column(call, **at), len(call.queries)
    cells = call.seen(None, slice(0, N)).expand(N, -1, -1).clone()
    cells[at["item"], at["place"] :, column - 2] = False  # and where the query is repeated
    return replace(call, mask=cells)


def swapped_queries(call: attention.Calls, tree: Tree, at: dict[str, Any]) -> attention.Calls:
    queries, place = call.queries.clone(), at["place"]
    queries[at["item"], place - 1 : place + 1] = queries[at["item"], place - 1 : place + 1].flip(0)
    return replace(call, queries=queries)


of_tree("an end of the tree reads a row of another prompt", another_key)
of_tree("a cell is missing at an end of the tree", missing_key)
of_tree("two queries of the tree are swapped", swapped_queries)


def of_windows(name: str, function: str, more: int) -> None:
    """Readers whose windows are wider by `more`."""

    def widen(reader: attention.Reader, _: Any) -> None:
        reader.windows = tuple(None if w is None else w + more for w in reader.windows)

    WINDOWED.add(name)
    PLANTED[name] = lambda patch: of_calls(patch, function, widen)


of_windows("the tree's window is one more", "tree_reader", 1)
of_windows("the tree's window is one less", "tree_reader", -1)
of_windows("the window of dense and separate is one more", "mask_reader", 1)


def of_dense(name: str, change: Callable[[Tensor], None], packed: bool) -> None:
    """A fault in the mask of the last call of dense; unless `packed`, of separate as well."""

    def of_last(reader: attention.Reader, mask: Tensor) -> None:
        if packed and torch.equal(mask, causal_mask(len(mask))):
            return
        last = reader.calls[-1]
        N = len(last.queries)
        cells = last.seen(None, slice(0, N)).expand(N, -1, -1).clone()
        for row in cells[0, len(last.queries[0].unique()) - 1 :]:  # the last fills empty places
            change(row)
        reader.calls[-1] = replace(last, mask=cells)

    PLANTED[name] = lambda patch: of_calls(patch, "mask_reader", of_last)


def forget_a_key(row: Tensor) -> None:
    row[row.nonzero()[-2]] = False


of_dense("a cell is missing in a call of dense", forget_a_key, packed=True)
of_dense("a cell is missing in a call of dense and separate", forget_a_key, packed=False)


# ---- attention


@planted("plain's window is one more", windowed=True)
def _(patch: Patch) -> None:
    real = definition.within
    wider = lambda mask, rows, at, w: real(mask, rows, at, None if w is None else w + 1)  # noqa: E731
    patch.setattr(definition, "within", wider)


def of_plain(name: str, change: Callable[[Tensor], None]) -> None:
    def plant(patch: Patch) -> None:
        real = definition.masked_attention

        def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            wrong = mask.clone()
            change(wrong.view(-1, wrong.shape[-1])[-1])
            return real(q, k, v, wrong)

        patch.setattr(definition, "masked_attention", masked)

    PLANTED[name] = plant


def see_one_more(row: Tensor) -> None:
    row[(~row).nonzero()[-1]] = True


of_plain("a cell is missing at an end of plain", forget_a_key)
of_plain("a cell leaks to an end of plain", see_one_more)


def of_attention(name: str, owner: Any, function: str, change: Callable[..., Any]) -> None:
    """Attention of plain, or of all others, given other queries, keys and values."""

    def plant(patch: Patch) -> None:
        real = getattr(owner, function)
        faulty = lambda q, k, v, mask: real(*change(q, k, v), mask)  # noqa: E731
        patch.setattr(owner, function, faulty)

    PLANTED[name] = plant


def tiled(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    H, K = q.shape[-2], k.shape[-2]
    return q[..., torch.arange(H).view(H // K, K).T.flatten(), :], k, v


def scaled(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return q * 1.01, k, v


of_attention("query heads of plain are tiled", definition, "masked_attention", tiled)
of_attention("query heads of all but plain are tiled", attention, "attention_call", tiled)
of_attention("scores of plain are scaled", definition, "masked_attention", scaled)
of_attention("scores of all but plain are scaled", attention, "attention_call", scaled)


def of_reader(name: str, dense: bool, change: Callable[..., Tensor]) -> None:
    """How the rows of a tree, or of a packed sequence, read one another."""

    def plant(patch: Patch) -> None:
        real, real_ends, packed = attention.Reader.attend, engines.layout_ends, [False]

        def ends(*arguments: Any) -> Tensor:
            packed[0] = dense
            try:
                return real_ends(*arguments)
            finally:
                packed[0] = False

        def attend(self: Any, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            tree = not dense and self.ends is not None and len(self.ends) > 1
            whole = lambda keys: real(self, layer, q, keys, v)  # noqa: E731
            return change(whole, k) if tree or packed[0] else whole(k)

        everywhere(patch, real_ends, ends)
        patch.setattr(attention.Reader, "attend", attend)

    PLANTED[name] = plant


def leak(share: float) -> Callable[..., Tensor]:
    def change(read: Callable[[Tensor], Tensor], k: Tensor) -> Tensor:
        out = read(k).clone()
        out[:, -1] += share * out[:, 0]
        return out

    return change


def mixed_heads(read: Callable[[Tensor], Tensor], k: Tensor) -> Tensor:
    k = k.clone()
    k[:, -3] = k[:, -3].flip(1)
    return read(k)


of_reader("a leak of 1e-2 in the tree", False, leak(1e-2))
of_reader("a leak of 1e-2 in dense", True, leak(1e-2))
of_reader("a leak of 1e-5 in the tree", False, leak(1e-5))
of_reader("the keys of one token's heads are mixed in the tree", False, mixed_heads)
of_reader("the keys of one token's heads are mixed in dense", True, mixed_heads)


# ---- what is read at the ends


def of_ends(name: str, engine: str) -> None:
    real = engines.ENGINES[engine]
    flipped = lambda *arguments: real(*arguments).flip(0)  # noqa: E731
    PLANTED[name] = lambda patch: patch.setitem(engines.ENGINES, engine, flipped)


of_ends("plain's ends are in another order", "plain")
of_ends("dense's ends are in another order", "dense")


def of_labels(name: str, engine: str | None, change: Callable[[list[Tensor]], Any]) -> None:
    """The label logits of an engine, or of all."""

    def plant(patch: Patch) -> None:
        real = ensemble.label_logits

        def label_logits(lm: Any, plan: Any, name: str = "tree") -> list[Tensor]:
            rows = real(lm, plan, name)
            return change(rows) if engine in (None, name) else rows

        everywhere(patch, real, label_logits)

    PLANTED[name] = plant


of_labels("the labels are reversed", None, lambda rows: [row.flip(0) for row in rows])
of_labels("the labels of the tree are reversed", "tree", lambda rows: [r.flip(0) for r in rows])
of_labels("one prompt's labels are reversed", None, lambda rows: [*rows[:-1], rows[-1].flip(0)])
of_labels("the null option comes first", None, lambda rows: [row.roll(1) for row in rows])


def of_logits(name: str, owner: Any, change: Callable[[Tensor], Tensor]) -> None:
    """The logits of some columns, by the definition or in the way of all engines."""

    def plant(patch: Patch) -> None:
        real = owner.logits

        def logits(self: Any, hidden: Tensor, columns: Tensor | None = None) -> Tensor:
            rows: Tensor = real(self, hidden, columns)
            return rows if columns is None else change(rows)

        patch.setattr(owner, "logits", logits)

    PLANTED[name] = plant


of_logits("columns of logits are reversed", exact, lambda rows: rows.flip(-1))
of_logits(
    "two columns of logits are swapped", exact, lambda x: x[..., [1, 0, *range(2, x.shape[-1])]]
)
of_logits("columns of logits are 0.1% too large", exact, lambda rows: rows * 1.001)
of_logits("columns of the definition's logits are reversed", Decoder, lambda rows: rows.flip(-1))
