"""Another's packed row: what was meant, and what a model is given.

Documents, or the branches of a tree, are packed into one row of T tokens. Who packs them hands a
model token ids, position ids, something that says who may attend to whom, and labels. `read` turns
these into one mask (formats.py) and positions, beside the tree that was meant. judging.py compares
the two. Tokens are counted from 0, documents and branches from 1; docs/check.md has the fields.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

import torch
from torch import Tensor

from minise.checks import free_bytes
from minise.errors import quote
from minise.layout import Tree
from minise.verify import formats
from minise.verify.formats import CU_SEQLENS, Finding, Given, depth_of, integers, need, numbers

MEANT = ("documents", "branches", "tree")  # one of them; branches with a trunk
ROWS = ("input_ids", "position_ids", "segment_ids", "parents", "labels", "tree")  # T integers each
WORDS = {
    "padding": ("right", "left"),
    "mask_is": ("bool", "additive", "segments"),
    "labels_are": ("unshifted", "shifted"),
}
MORE = ("trunk", "padded", "positions_alone", "window", "context_parallel")
FIELDS = tuple(dict.fromkeys((*MEANT, *MORE, *ROWS, *formats.MASKS, *formats.WITH, *WORDS)))
SHORT = {"tokens": "input_ids", "positions": "position_ids", "mask": "attention_mask"}
SHORT |= {"cu_seqlens_q": "cu_seqlens", "cu_seqlens_q_padded": "cu_seqlens_padded"}
TABLES = ("q_ranges", "k_ranges", "tree_kv_index", "prefix_seg_info")  # of one row
AXES = (1, 3, 4)  # of positions: M-RoPE has time, height, width; before them those of texts
SHARDED = ("input_ids", "position_ids", "labels")  # of context-parallel ranks
NONE, PADDING = -2, -3  # parents of a token of no prompt, and of one that is said to be padding


@dataclass(frozen=True, eq=False)
class Packing:
    """meant: in which a token of no prompt is a root by itself. real: (T,) bool, False for such a
    token; padding: (T,) bool, those of them that the row says are padding. parts: (T,) int64, which
    unbranched stretch a token is of. names: of the parts, such as "document 2". mask: (T, T) bool,
    as given. positions: (A, T) int64, as given, where A is 1, or more for M-RoPE; places: the
    right ones. labels: (T,) int64, or None. faults: found on reading. given: the fields."""

    meant: Tree
    real: Tensor
    padding: Tensor
    parts: Tensor
    names: list[str]
    mask: Tensor
    positions: Tensor
    places: Tensor
    labels: Tensor | None
    faults: tuple[Finding, ...]
    given: Mapping[str, Any]

    @property
    def is_tree(self) -> bool:
        """Whether prompts share tokens."""
        return "the trunk" in self.names

    def token(self, row: int) -> str:
        """A token in words, such as "token 14, the first of document 3,"."""
        if not self.real[row]:
            return f"token {row}, which is padding,"
        rows = (self.parts == self.parts[row]).nonzero().flatten().tolist()
        name = self.names[int(self.parts[row])]
        for end, word in ((rows[0], "first"), (rows[-1], "last")):
            if row == end:
                return f"token {row}, the {word} of {name},"
        return f"token {row} of {name}"


def split(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields of each row of a batch, in which what was meant has a list for each row. The
    others have one for each too, or one for all."""
    given = {SHORT.get(name, name): one for name, one in fields.items() if one is not None}
    number = max((len(given[name]) for name in MEANT if depth_of(given.get(name)) > 1), default=1)

    def of(name: str, value: Any, row: int) -> Any:
        depth = depth_of(value)
        if name.startswith("position") and depth == 3:  # M-RoPE: (3, batch, tokens)
            return numbers(name, value)[:, row]
        if name == "trunk" or depth < 2 + (name in TABLES) or len(value) != number:
            return value[row] if name == "trunk" and depth else value
        if name not in (*MEANT[:2], "padded"):
            return value[row]
        lengths = [*map(int, value[row])]
        while lengths[1:] and not lengths[-1]:  # in a table, rows are filled up with 0
            lengths.pop()
        return lengths

    if number == 1:
        return [given]
    return [{name: of(name, one, row) for name, one in given.items()} for row in range(number)]


def read(fields: Mapping[str, Any], batch_row: int = 0) -> Packing:
    """One row from the fields that docs/check.md lists. Raises InputError for a malformed one."""
    given = {SHORT.get(name, name): one for name, one in fields.items() if one is not None}
    _check_words(given)
    T = _length(given)
    order = _shards(given, T)

    def ids(name: str, dim: int = 1) -> Tensor:
        row = numbers(name, given[name])
        row = integers(name, row.flatten() if "context_parallel" in given else row, dim)
        return row.index_copy(-1, order, row)

    index = torch.arange(T)
    axes = ids("position_ids", 2) if "position_ids" in given else index[None]
    shape = f"holds numbers of the shape {tuple(axes.shape)}"
    need(len(axes) in AXES, f"position_ids: {shape}; give one row, or three axes (M-RoPE)")
    tokens = ids("input_ids") if "input_ids" in given else index
    parents = _meant(given, T)
    meant, real = as_tree(parents, tokens), torch.tensor(parents) > NONE
    mask, faults, hidden = Given(given, axes[0], batch_row).mask()
    padding = (torch.tensor(parents) == PADDING) | (~real & hidden)
    places = meant.positions[None]
    if "positions_alone" in given:
        places = integers("positions_alone", given["positions_alone"], 2)
        fits = places.shape in {(1, T), axes.shape}
        need(fits, f"positions_alone: has the shape {tuple(places.shape)}; give {len(axes)}x{T}")
    labels = ids("labels") if "labels" in given else None
    places = places.expand_as(axes)
    parts = _parts(meant, real.tolist())
    return Packing(meant, real, padding, *parts, mask, axes, places, labels, faults, given)


def _check_words(given: Mapping[str, Any]) -> None:
    """Refuse unknown fields, and words and numbers that say nothing."""
    for name in sorted(given.keys() - set(FIELDS)):
        need(False, f"{quote(name)} is unknown; the fields are {', '.join(FIELDS)}")
    for name in WORDS.keys() & given.keys():
        known, words = [quote(word) for word in WORDS[name]], " or ".join(WORDS[name])
        need(quote(given[name]) in known, f"{name}: is {quote(given[name])}; give {words}")
    restarts = given.get("restarts", False)
    need(type(restarts) is bool, f"restarts: is {quote(restarts)}; give true or false")
    for name, what in (("window", "positions"), ("context_parallel", "ranks")):
        one = given.get(name, 1)
        fits = type(one) is int and 1 <= one < 2**31
        need(fits, f"{name}: is {quote(one)}; give a number of {what}, from 1")


def _length(given: Mapping[str, Any]) -> int:
    """T, which all rows agree on. Raises InputError if they do not, or if masks would not fit."""
    sizes = {}
    for name in (one for one in (*ROWS, "attention_mask") if one in given):
        is_blocks = hasattr(given[name], "mask_mod")
        shape = given[name].shape if is_blocks else numbers(name, given[name]).shape
        is_shards = "context_parallel" in given and name in SHARDED
        sizes[name] = math.prod(shape) if is_shards else int(shape[-1])
    trunk, _, places = _lengths(given)
    (first, T), *others = (sizes or {"the lengths": trunk + sum(places)}).items()
    for name, size in others:
        need(size == T, f"{name}: has {size:,} entries, but {first} has {T:,}; cut or pad it")
    free, size = free_bytes(), 10 * T**2  # bytes of the masks that are compared
    most = f"{T:,} tokens need masks of {size / 2**30:.1f} GiB; check a shorter row"
    need(free is None or size <= free, most)
    return T


def _lengths(given: Mapping[str, Any]) -> tuple[int, list[int], list[int]]:
    """The trunk, the documents or branches after it, and the places that they stand in."""
    trunk = given.get("trunk", 0)
    counts = type(trunk) is int and trunk >= 0
    need(counts, f"trunk: is {quote(trunk)}; give the number of its tokens")
    need(not trunk or "branches" in given, "trunk: comes without branches; give their lengths")
    for name in MEANT[:2]:
        if name in given:
            lengths: list[int] = integers(name, given[name]).tolist()
            need(min(lengths) > 0, f"{name}: holds the length {min(lengths)}; give them from 1")
            places = integers("padded", given["padded"]).tolist() if "padded" in given else lengths
            pairs = [*zip(lengths, places, strict=False)]
            fits = len(places) == len(lengths) and all(one <= place for one, place in pairs)
            need(fits, f"padded: does not hold the {name}; give each with its padding")
            return trunk, lengths, places
    return trunk, [], []


def _meant(given: Mapping[str, Any], T: int) -> list[int]:
    """What was meant: the row of the token before each, -1 for a first one, -2 for a token of no
    prompt, -3 for one that is said to be padding."""
    kinds = [name for name in MEANT if name in given]
    both = f"{' and '.join(kinds)} both say" if kinds else "nothing says"
    need(len(kinds) == 1, f"{both} what was meant; give one of {', '.join(MEANT)}")
    is_left, rest = given.get("padding") == "left", PADDING if "padding" in given else NONE
    if "tree" in given:
        tree: list[int] = integers("tree", given["tree"]).tolist()
        formats.check_parents("tree", tree, NONE)
        follows = any(parent >= 0 and tree[parent] == NONE for parent in tree)
        need(not follows, "tree: a token follows padding (-2); give it a real parent, or -1")
        rows = range(T) if is_left else reversed(range(T))
        for row in takewhile(lambda row: tree[row] == NONE, rows):
            tree[row] = rest
        return tree
    trunk, lengths, places = _lengths(given)
    left = T - trunk - sum(places)
    need(left >= 0, f"{kinds[0]}: hold {T - left:,} tokens, but the row has {T:,}; fix the lengths")
    parents = [rest] * left if is_left else []
    stem = len(parents) + trunk - 1 if trunk else -1  # of a branch
    for length, place in ((trunk, trunk), *zip(lengths, places, strict=True)):
        start = len(parents)
        before = stem if start > stem else -1
        parents += [before, *range(start, start + length - 1)][:length]
        parents += [PADDING] * (place - length)
    return parents if is_left else parents + [rest] * left


def _shards(given: Mapping[str, Any], T: int) -> Tensor:
    """The rows of the tokens of context-parallel ranks, one rank after the other: of 2 N parts of
    each document, rank r has part r from the front and part r from the back."""
    ranks = given.get("context_parallel", 1)
    ends = next((integers(one, given[one]).tolist() for one in CU_SEQLENS if one in given), [0, T])
    order: list[int] = []
    for rank in range(ranks if ranks > 1 else 0):
        for start, end in pairwise(ends):
            size, rest = divmod(end - start, 2 * ranks)
            parts = f"{end - start} tokens make no {2 * ranks} equal parts"
            need(rest == 0, f"context_parallel: {parts}; pad each document")
            for part in (rank, 2 * ranks - 1 - rank):
                order += range(start + part * size, start + (part + 1) * size)
    need(not order or sorted(order) == [*range(T)], f"context_parallel: its parts are not the {T} "
         "tokens of the row; mend cu_seqlens")  # fmt: skip
    return torch.tensor(order or range(T))


def as_tree(parents: list[int], tokens: Tensor | None = None) -> Tree:
    """The tree of the rows before each token, in which one of no prompt is a root."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    inner = set(parents)
    ends = [row for row, parent in enumerate(parents) if parent > NONE and row not in inner]
    before = torch.tensor(parents).clamp(min=-1)
    return Tree(
        before if tokens is None else tokens, before, torch.tensor(depths), torch.tensor(ends)
    )


def _parts(meant: Tree, real: list[bool]) -> tuple[Tensor, list[str]]:
    """The unbranched stretches: the number of each token's, and their names."""
    parents: list[int] = meant.parents.tolist()
    children = Counter(parents)
    branching = any(count > 1 for parent, count in children.items() if parent >= 0)
    parts: list[int] = []
    names: list[str] = []
    counts = Counter[str]()
    for row, parent in enumerate(parents):
        if parent >= 0 and parent == row - 1 and children[parent] == 1:
            parts.append(parts[parent])
            continue
        parts.append(len(names))
        kind = "document"
        if branching:
            kind = "trunk" if parent < 0 else "branch"
        counts[kind] += real[row]
        name = "the trunk" if (kind, counts[kind]) == ("trunk", 1) else f"{kind} {counts[kind]}"
        names.append(name if real[row] else "padding")
    return torch.tensor(parts), names
