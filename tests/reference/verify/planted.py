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

import minise.attention as attention
import minise.layout as layout
from minise import Decoder, LabelLogits, LocalModel
from minise.attention import Chunk
from minise.engines import ENGINES
from minise.layout import Layout
from tests.reference.verify.cases import during

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


# ---- the layout


def of_pack(name: str, change: Callable[[Layout, int], Any], trees: bool = False) -> None:
    """A fault that changes what `pack` returns for several prompts, given the prefix's length."""

    def plant(patch: Patch) -> None:
        real = layout.pack

        def pack(prefix: Any, branches: Any, tree: bool = False) -> Layout:
            packed = real(prefix, branches, tree)
            if len(branches) > 1 and tree == trees:
                change(packed, len(prefix))
            return packed

        everywhere(patch, real, pack)

    PLANTED[name] = plant


def swap_ends(tree: Layout, prefix: int) -> None:
    tree.ends[:2] = tree.ends[:2].flip(0)


def repeat_a_token(tree: Layout, prefix: int) -> None:
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
    """One wrong cell of the mask that packed and tree run under: in the row of the last group's
    end, or of a token before it. Its column is another group's token, or the row's parent."""

    def plant(patch: Patch) -> None:
        real = Layout.mask

        def mask(self: Layout) -> Tensor:
            cells = real.func(self).clone()
            row, near = int(self.ends[-1]) - (0 if end else 4), int(self.ends[0])
            if len(self.ends) > 1:
                cells[row, near if leak else row - 1] = leak
            return cells

        patch.setattr(Layout, "mask", property(mask))

    PLANTED[name] = plant


of_mask("a cell of the mask leaks to an end", end=True, leak=True)
of_mask("a cell of the mask is missing at an end", end=True, leak=False)
of_mask("a cell of the mask leaks to a group", end=False, leak=True)
of_mask("a cell of the mask is missing in a group", end=False, leak=False)


# ---- the chunks of the plain decoder


def of_chunks(name: str, change: Callable[[Chunk], Chunk], separate: bool = False) -> None:
    """A fault in the last chunk: of packed runs, or of separate ones too."""

    def plant(patch: Patch) -> None:
        real = attention.chunks_of

        def chunks_of(mask: Tensor, *given: Any) -> list[Chunk]:
            chunks = real(mask, *given)
            is_packed = mask.shape[1] > 1 and not mask.diagonal(-1, 1, 2).all()
            if is_packed or (separate and mask.shape[1] > 1):
                chunks[-1] = change(chunks[-1])
            return chunks

        patch.setattr(attention, "chunks_of", chunks_of)

    PLANTED[name] = plant


def forget_a_key(chunk: Chunk) -> Chunk:
    """The third key, and with it what all queries read of it."""
    kept = torch.arange(len(chunk.keys_S)) != 2
    return replace(chunk, keys_S=chunk.keys_S[kept], mask_BCS=chunk.mask_BCS[:, :, kept])


def read_another_key(chunk: Chunk) -> Chunk:
    keys = chunk.keys_S.clone()
    keys[2] = keys[3]
    return replace(chunk, keys_S=keys)


def see_the_rows_before(chunk: Chunk) -> Chunk:
    return replace(chunk, mask_BCS=chunk.mask_BCS.roll(1, dims=1))


of_chunks("a chunk forgets a key", forget_a_key)
of_chunks("a chunk forgets a key in every run", forget_a_key, separate=True)
of_chunks("a chunk reads another key", read_another_key)
of_chunks("a chunk has the mask of the rows before", see_the_rows_before)


def of_windows(name: str, change: Callable[..., Any]) -> None:
    """Windows that are narrowed by other arguments than those given."""

    def plant(patch: Patch) -> None:
        real = attention.within
        faulty = lambda *given: real(*change(*given))  # noqa: E731
        patch.setattr(attention, "within", faulty)

    WINDOWED.add(name)
    PLANTED[name] = plant


def wider(by: int) -> Callable[..., Any]:
    return lambda mask, at, of, w: (mask, at, of, None if w is None else w + by)


def by_index(mask: Tensor, at: Tensor, of: Tensor, window: int | None) -> tuple[Any, ...]:
    index = torch.arange(of.shape[-1])[None]
    return mask, index[:, -at.shape[-1] :], index, window


of_windows("the window is one more", wider(1))
of_windows("the window is one less", wider(-1))
of_windows("the window counts indices", by_index)


def of_run(name: str, change: Callable[[Tensor], Tensor]) -> None:
    """The top layer computes other rows than it was asked for, in packed runs."""

    def plant(patch: Patch) -> None:
        real = Decoder.run

        def run(self: Any, tokens: Any, positions: Any, attend: Any, rows: Any = None) -> Tensor:
            if rows is not None and len(rows) > 1:
                rows = change(rows)
            return real(self, tokens, positions, attend, rows)

        patch.setattr(Decoder, "run", run)

    PLANTED[name] = plant


of_run("the rows of the top layer are in another order", lambda rows: rows.flip(0))
of_run("a row of the top layer is the one before", lambda rows: rows - (rows == rows.max()).long())


# ---- attention, in all runs but the definition


def of_attention(name: str, owner: Any, function: str, change: Callable[..., Any]) -> None:
    """A function that is given other arguments."""

    def plant(patch: Patch) -> None:
        real = getattr(owner, function)
        patch.setattr(owner, function, lambda *given: real(*change(*given)))

    PLANTED[name] = plant


def tiled(q: Tensor, k: Tensor) -> Tensor:
    """Query heads in another order: q (..., H, h), k (..., K, h)."""
    H, K = q.shape[-2], k.shape[-2]
    return q[..., torch.arange(H).view(H // K, K).T.flatten(), :]


of_attention(
    "query heads are tiled", Chunk, "read", lambda self, q, k, v: (self, tiled(q, k), k, v)
)
of_attention("scores are scaled", Chunk, "read", lambda self, q, k, v: (self, q * 1.01, k, v))


def leak(share: float) -> Callable[[Any], Callable[[], None]]:
    """The last row reads a part of the first, in each layer."""

    def change(decoder: Any) -> Callable[[], None]:
        real = decoder.run

        def run(tokens: Tensor, positions: Tensor, attend: Any, *rows: Any) -> Tensor:
            def leaking(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                out = attend(layer, q, k, v).clone()
                out[:, -1] += out[:, 0] * share
                return out

            return real(tokens, positions, leaking, *rows)

        decoder.run = run

        def undo() -> None:
            decoder.run = real

        return undo

    return change


def of_engine(name: str, engine: str, change: Callable[[Any], Callable[[], None]]) -> None:
    """An engine during which something is changed of its decoder."""

    def plant(patch: Patch) -> None:
        patch.setitem(ENGINES, engine, during(engine, change))

    PLANTED[name] = plant


of_engine("a leak of 1e-2 in packed", "packed", leak(1e-2))
of_engine("a leak of 1e-5 in the tree", "tree", leak(1e-5))


# ---- what is read at the ends


def of_labels(
    name: str, engine: str | None, change: Callable[[list[LabelLogits]], list[LabelLogits]]
) -> None:
    """The label logits of an engine, or of all."""

    def plant(patch: Patch) -> None:
        real = LocalModel.logits

        def logits(self: LocalModel, prompts: Any) -> list[LabelLogits]:
            found = real(self, prompts)
            return change(found) if engine in (None, self.engine) else found

        patch.setattr(LocalModel, "logits", logits)

    PLANTED[name] = plant


def turned(one: LabelLogits) -> LabelLogits:
    return LabelLogits(one.labels.flip(0), one.total)


of_labels("the answers of packed are in another order", "packed", lambda found: found[::-1])
of_labels("the labels of the tree are reversed", "tree", lambda found: [*map(turned, found)])
of_labels("one prompt's labels are reversed", None, lambda found: [*found[:-1], turned(found[-1])])


def of_logits(name: str, owner: type[Decoder], change: Callable[[Tensor], Tensor]) -> None:
    """The logits of the whole vocabulary, in all engines."""

    def plant(patch: Patch) -> None:
        real = owner.logits
        patch.setattr(owner, "logits", lambda self, hidden: change(real(self, hidden)))

    PLANTED[name] = plant


of_logits("columns of logits are reversed", Decoder, lambda rows: rows.flip(-1))
