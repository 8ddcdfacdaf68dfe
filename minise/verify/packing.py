"""Another's packed row: what was meant, and what a model is given.

Documents, or the branches of a tree, are packed into one row of T tokens. Who packs them hands a
model token ids, position ids, something that says who may attend to whom, and labels. `read` turns
these into one mask (formats.py) and positions, beside the tree that was meant. judging.py compares
the two. Tokens are counted from 0, documents and branches from 1; docs/check.md has the fields.
"""

from __future__ import annotations

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
from minise.verify.formats import Finding, Given, depth_of, integers, need, numbers

MEANT = ("documents", "branches", "tree")  # one of them; branches with a trunk
ROWS = ("input_ids", "position_ids", "segment_ids", "parents", "labels", "tree")  # T integers each
WORDS = {
    "padding": ("right", "left"),
    "mask_is": ("bool", "additive", "segments"),
    "labels_are": ("unshifted", "shifted"),
}
COUNTS = (
    ("window", 1, "a number of positions, from 1"),
    ("context_parallel", 1, "a number of ranks, from 1"),
    ("trunk", 0, "the number of its tokens"),
)
MORE = ("trunk", "padded", "positions_alone", "window", "context_parallel")
FIELDS = tuple(dict.fromkeys((*MEANT, *MORE, *ROWS, *formats.MASKS, *formats.WITH, *WORDS)))
SHORT = {"tokens": "input_ids", "positions": "position_ids", "mask": "attention_mask"}
SHORT |= {"cu_seqlens_q": "cu_seqlens", "cu_seqlens_q_padded": "cu_seqlens_padded"}
TABLES = ("q_ranges", "k_ranges", "tree_kv_index", "prefix_seg_info")  # of one row
AXES = (1, 3, 4)  # of positions: M-RoPE has time, height, width; before them those of texts
SHARDED = ("input_ids", "position_ids", "labels")  # of context-parallel ranks
IGNORED = -100  # the label of a token that is no target, as in torch's cross_entropy
NONE, PADDING = -2, -3  # parents of a token of no prompt, and of one that is said to be padding


@dataclass(frozen=True, eq=False)
class Packing:
    """meant: in which a token of no prompt is a root by itself. real: (T,) bool, False for such a
    token; padding: (T,) bool, those of them that the row says are padding. parts: (T,) int64, which
    unbranched stretch a token is of. names: of the parts, such as "document 2". mask: (T, T) bool,
    as given. positions: (A, T) int64, as given, where A is 1, or more for M-RoPE; places: the
    right ones. labels: (T,) int64. faults: found on reading. given: the fields."""

    meant: Tree
    real: Tensor
    padding: Tensor
    parts: Tensor
    names: list[str]
    mask: Tensor
    positions: Tensor
    places: Tensor
    labels: Tensor
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
        name = self.names[int(self.parts[row])]
        rows = (self.parts == self.parts[row]).nonzero().flatten().tolist()
        word = {rows[-1]: "last", rows[0]: "first"}.get(row)
        return f"token {row}, the {word} of {name}," if word else f"token {row} of {name}"


def split(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields of each row of a batch, in which what was meant has a list for each row. The
    others have one for each too, or one for all."""
    given = {SHORT.get(name, name): one for name, one in fields.items() if one is not None}
    number = max((len(given[name]) for name in MEANT if depth_of(given.get(name)) > 1), default=0)

    def of(name: str, value: Any, row: int) -> Any:
        depth = depth_of(value)
        if name.startswith("position") and depth == 3:  # M-RoPE: (3, batch, tokens)
            return numbers(name, value)[:, row]
        is_batch = depth > 1 + (name in TABLES) and len(value) == number
        if not is_batch and not (name == "trunk" and depth):
            return value
        if name not in ("documents", "branches", "padded"):
            return value[row]
        lengths = [*map(int, value[row])]
        while lengths[1:] and not lengths[-1]:  # in a table, rows are filled up with 0
            lengths.pop()
        return lengths

    if number == 0:
        return [given]
    return [{name: of(name, one, row) for name, one in given.items()} for row in range(number)]


def read(given: dict[str, Any], batch_row: int = 0) -> Packing:
    """One row from fields that docs/check.md lists. Raises InputError for a malformed one."""
    _check_words(given)
    given = {**given, **_unsharded(given)}
    parents, T = _meant(given)
    index = torch.arange(T)
    axes = integers("position_ids", given["position_ids"], 2) if "position_ids" in given else index
    axes = axes.view(-1, T)
    shape = f"holds numbers of the shape {tuple(axes.shape)}"
    need(len(axes) in AXES, f"position_ids: {shape}; give one row, or three axes (M-RoPE)")
    tokens = integers("input_ids", given["input_ids"]) if "input_ids" in given else index
    labels = integers("labels", given.get("labels", torch.full((T,), IGNORED)))
    meant, real = as_tree(parents, tokens), torch.tensor(parents) > NONE
    mask, faults, hidden = Given(given, axes[0], batch_row).mask()
    padding = (torch.tensor(parents) == PADDING) | (~real & hidden)
    places = meant.positions[None]
    if "positions_alone" in given:
        places = integers("positions_alone", given["positions_alone"], 2)
        fits = places.shape in {(1, T), axes.shape}
        need(fits, f"positions_alone: has the shape {tuple(places.shape)}; give {len(axes)}x{T}")
    parts, places = _parts(meant, real.tolist()), places.expand_as(axes)
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
    for name, least, what in COUNTS:
        one = given.get(name, 1)
        fits = type(one) is int and least <= one < 2**31
        need(fits, f"{name}: is {quote(one)}; give {what}")
    is_needed = "branches" in given or not given.get("trunk")
    need(is_needed, "trunk: comes without branches; give their lengths")


def _unsharded(given: Mapping[str, Any]) -> dict[str, Tensor]:
    """The fields that come as shards of context-parallel ranks, one after the other: of 2 N parts
    of each document, rank r has part r from the front and part r from the back."""
    ranks, found = given.get("context_parallel", 1), dict[str, Tensor]()
    ends = [integers(one, given[one]).tolist() for one in formats.CU_SEQLENS if one in given]
    for name in [one for one in SHARDED if one in given and ranks > 1]:
        shards = numbers(name, given[name]).flatten()
        order: list[int] = []
        for rank in range(ranks):
            for start, end in pairwise(ends[0] if ends else [0, len(shards)]):
                size, rest = divmod(end - start, 2 * ranks)
                parts = f"{end - start} tokens make no {2 * ranks} equal parts"
                need(rest == 0, f"context_parallel: {parts}; pad each document")
                for part in (rank, 2 * ranks - 1 - rank):
                    order += range(start + part * size, start + (part + 1) * size)
        what = f"context_parallel: its parts are not the {len(shards)} tokens of {name}"
        need(sorted(order) == [*range(len(shards))], f"{what}; mend cu_seqlens")
        found[name] = shards[torch.tensor(order).argsort()]
    return found


def _meant(given: Mapping[str, Any]) -> tuple[list[int], int]:
    """What was meant: the row of the token before each, -1 for a first one, -2 for a token of no
    prompt, -3 for one that is said to be padding. And T, which all rows agree on."""
    kinds = [name for name in MEANT if name in given]
    both = f"{' and '.join(kinds)} both say" if kinds else "nothing says"
    need(len(kinds) == 1, f"{both} what was meant; give one of {', '.join(MEANT)}")
    (kind,), trunk = kinds, given.get("trunk", 0)
    lengths: list[int] = integers(kind, given[kind]).tolist()
    places = integers("padded", given["padded"]).tolist() if "padded" in given else lengths
    held = len(lengths) if kind == "tree" else trunk + sum(places)
    T = _length(given, held)
    need(held <= T, f"{kind}: hold {held:,} tokens, but the row has {T:,}; fix the lengths")
    is_left, rest = given.get("padding") == "left", PADDING if "padding" in given else NONE
    if kind == "tree":
        formats.check_parents("tree", lengths, NONE)
        follows = any(parent >= 0 and lengths[parent] == NONE for parent in lengths)
        need(not follows, "tree: a token follows padding (-2); give it a real parent, or -1")
        for row in takewhile(lambda row: lengths[row] == NONE, range(T)[:: 1 if is_left else -1]):
            lengths[row] = rest
        return lengths, T
    need(min(lengths) > 0, f"{kind}: holds the length {min(lengths)}; give them from 1")
    fits = len(places) == len(lengths) and all(map(int.__le__, lengths, places))
    need(fits, f"padded: does not hold the {kind}; give each with its padding")
    left = T - held if is_left else 0
    parents = [rest] * left + [left + row if row >= 0 else -1 for row in range(-1, trunk - 1)]
    stem = len(parents) - 1 if trunk else -1  # of a branch
    for length, place in zip(lengths, places, strict=True):
        start = len(parents)
        parents += [stem, *range(start, start + length - 1), *[PADDING] * (place - length)]
    return parents + [rest] * (T - len(parents)), T


def _length(given: Mapping[str, Any], held: int) -> int:
    """T. Raises InputError if rows do not agree on it, or if masks would not fit."""
    rows = {name: given[name] for name in (*ROWS, "attention_mask") if name in given}
    shapes = {name: one.shape if hasattr(one, "mask_mod") else numbers(name, one).shape
              for name, one in rows.items()}  # fmt: skip
    (first, T), *others = [(name, shape[-1]) for name, shape in shapes.items()] or [("", held)]
    for name, size in others:
        need(size == T, f"{name}: has {size:,} entries, but {first} has {T:,}; cut or pad it")
    free, size = free_bytes(), 10 * T**2  # bytes of the masks that are compared
    most = f"{T:,} tokens need masks of {size / 2**30:.1f} GiB; check a shorter row"
    need(free is None or size <= free, most)
    return int(T)


def as_tree(parents: list[int], tokens: Tensor | None = None) -> Tree:
    """The tree of the rows before each token, in which one of no prompt is a root."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    inner, before = set(parents), torch.tensor(parents).clamp(min=-1)
    ends = [row for row, parent in enumerate(parents) if parent > NONE and row not in inner]
    tokens = before if tokens is None else tokens
    return Tree(tokens, before, torch.tensor(depths), torch.tensor(ends))


def _parts(meant: Tree, real: list[bool]) -> tuple[Tensor, list[str]]:
    """The unbranched stretches: the number of each token's, and their names."""
    parents: list[int] = meant.parents.tolist()
    children, counts = Counter(parents), Counter[str]()
    is_tree = any(count > 1 for parent, count in children.items() if parent >= 0)
    parts: list[int] = []
    names: list[str] = []
    for row, parent in enumerate(parents):
        if parent < 0 or parent != row - 1 or children[parent] > 1:
            kind = ("trunk" if parent < 0 else "branch") if is_tree else "document"
            counts[kind] += real[row]
            is_first = (kind, counts[kind]) == ("trunk", 1)
            name = "the trunk" if is_first else f"{kind} {counts[kind]}"
            names.append(name if real[row] else "padding")
        parts.append(len(names) - 1)
    return torch.tensor(parts), names
