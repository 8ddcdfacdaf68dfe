"""Another's packed row: what was meant, and what a model is given (formats.py). Tokens are counted
from 0, documents and branches from 1; docs/check.md has the fields. judging.py compares the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from minise.attention import within
from minise.errors import quote
from minise.layout import Tree
from minise.memory import free_bytes
from minise.verify import formats
from minise.verify.formats import Given, as_tree, depth_of, integers, need, numbers

MEANT = ("documents", "branches", "tree")  # one of them; branches with a trunk
ROWS = ("input_ids", "position_ids", "attention_mask", "segment_ids", "parents", "labels", "tree")
CHOICES: dict[str, Any] = {  # what a word or a number may be
    "padding": ("right", "left"),
    "mask_is": ("bool", "additive", "segments"),
    "labels_are": ("unshifted", "shifted"),
    "restarts": (True, False),
    "trunk": range(2**31),
    "window": range(1, 2**31),
    "context_parallel": range(1, 2**31),
}
MORE = ("padded", "positions_alone", *ROWS, *CHOICES, *formats.MASKS, *formats.WITH)
FIELDS = tuple(dict.fromkeys(MEANT + MORE))
SHORT = {"tokens": "input_ids", "positions": "position_ids", "mask": "attention_mask"}
SHORT |= {"cu_seqlens_q": "cu_seqlens", "cu_seqlens_q_padded": "cu_seqlens_padded"}
DIMS = {"trunk": 0, "q_ranges": 2, "k_ranges": 2, "tree_kv_index": 2, "prefix_seg_info": 2}  # or 1
SHARDED = ("input_ids", "position_ids", "labels")  # of context-parallel ranks
IGNORED = -100  # the label of a token that is no target, as in torch's cross_entropy
NONE, PADDING = -2, -3  # parents of a token of no prompt, and of one that is said to be padding


class Packing(Given):
    """A row beside what was meant. Raises InputError for a malformed one. meant: a token of no
    prompt is a root by itself. real: (T,) bool, False for such a token; padding: (T,) bool, those
    that the row says are padding. right, places: the mask and positions that should be given.
    parts: (T,) int64, which unbranched stretch a token is of. names: theirs. labels: (T,) int64."""

    def __init__(self, given: Mapping[str, Any], batch_row: int = 0) -> None:
        _check_words(given)
        given = {**given, **_unsharded(given)}
        parents = _meant(given)
        super().__init__(given, len(parents), batch_row)
        self.labels = self.ids("labels", torch.full_like(self.index, IGNORED))
        self.meant = as_tree(parents, self.ids("input_ids", self.index))
        self.real = torch.tensor(parents) > NONE
        self.padding = (torch.tensor(parents) == PADDING) | (~self.real & self.hidden)
        depth = self.meant.positions
        self.right = within(self.meant.mask & self.real, depth, depth, given.get("window"))
        places = given.get("positions_alone", depth)
        places = integers("positions_alone", places, {1, len(self.positions)}, [self.T])
        self.places = places.expand_as(self.positions)
        self.parts, self.names = _parts(self.meant, self.real.tolist())

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
        if name.startswith("position") and depth_of(value) == 3:  # M-RoPE: (3, batch, tokens)
            return numbers(name, value)[:, row : row + 1].flatten(1)
        if depth_of(value) <= DIMS.get(name, 1) or len(value) != number:
            return value
        if name not in ("documents", "branches", "padded"):
            return value[row]
        lengths = integers(name, value[row], ())
        return lengths[lengths != 0]  # in a table, rows are filled up with 0

    rows = range(number)
    return [{name: of(name, one, row) for name, one in given.items()} for row in rows] or [given]


def _check_words(given: Mapping[str, Any]) -> None:
    """Refuse unknown fields, and words and numbers that say nothing."""
    for name in sorted(given.keys() - set(FIELDS)):
        need(False, f"{quote(name)} is unknown; the fields are {', '.join(FIELDS)}")
    for name, known in CHOICES.items():
        one = given.get(name, known[0])
        is_number, fits = isinstance(known, range), type(one) is type(known[0]) and one in known
        words = f"a number from {known[0]}" if is_number else " or ".join(map(str, known)).lower()
        need(fits, f"{name}: is {quote(one)}; give {words}")
    is_needed = "branches" in given or not given.get("trunk")
    need(is_needed, "trunk: comes without branches; give their lengths")


def _unsharded(given: Mapping[str, Any]) -> dict[str, Tensor]:
    """The fields that come as shards of context-parallel ranks, one after the other: of 2 N parts
    of each document, rank r has part r from the front and part r from the back."""
    ranks, found = given.get("context_parallel", 1), dict[str, Tensor]()
    ends = [integers(one, given[one], ()) for one in formats.CU_SEQLENS if one in given]
    for name in [one for one in SHARDED if one in given and ranks > 1]:
        shards = numbers(name, given[name]).flatten()
        steps = ends[0].diff() if ends else torch.tensor([len(shards)])
        fits = int(steps.sum()) == len(shards) and not (steps % (2 * ranks)).any()
        what = f"the documents of {name} make no {2 * ranks} equal parts"
        need(fits and steps.min() >= 0, f"context_parallel: {what}; pad each, and mend cu_seqlens")
        holder = torch.tensor([*range(ranks), *range(ranks)[::-1]] * len(steps))  # of each part
        sizes = (steps // (2 * ranks)).repeat_interleave(2 * ranks)
        order = holder.repeat_interleave(sizes).argsort(stable=True)
        found[name] = shards[order.argsort()]
    return found


def _meant(given: Mapping[str, Any]) -> list[int]:
    """What was meant: the row of the token before each, -1 for a first one, -2 for a token of no
    prompt, -3 for one that is said to be padding."""
    kinds = [name for name in MEANT if name in given]
    both = f"{' and '.join(kinds)} both say" if kinds else "nothing says"
    need(len(kinds) == 1, f"{both} what was meant; give one of {', '.join(MEANT)}")
    (kind,), trunk = kinds, given.get("trunk", 0)
    is_left, rest = given.get("padding") == "left", PADDING if "padding" in given else NONE
    lengths: list[int] = integers(kind, given[kind], ()).tolist()
    places: list[int] = integers("padded", given.get("padded", lengths), [len(lengths)]).tolist()
    T = held = len(lengths) if kind == "tree" else trunk + sum(places)
    for name in [one for one in ROWS if one in given][:1]:
        row = given[name] if hasattr(given[name], "mask_mod") else numbers(name, given[name])
        T = int(row.shape[-1])
    free, size = free_bytes(), 10 * T**2  # bytes of the masks that are compared
    most = f"{T:,} tokens need masks of {size / 2**30:.1f} GiB; check a shorter row"
    need(free is None or size <= free, most)
    if kind == "tree":
        parents = formats.parents_of("tree", lengths, T, NONE)
        follows = any(parent >= 0 and parents[parent] == NONE for parent in parents)
        need(not follows, "tree: a token follows padding (-2); give it a real parent, or -1")
        for row in takewhile(lambda row: parents[row] == NONE, range(T)[:: 1 if is_left else -1]):
            parents[row] = rest
        return parents
    need(min(lengths) > 0, f"{kind}: holds the length {min(lengths)}; give them from 1")
    need(held <= T, f"{kind}: hold {held:,} tokens, but the row has {T:,}; fix the lengths")
    fits = all(map(int.__le__, lengths, places))
    need(fits, f"padded: does not hold the {kind}; give each with its padding")
    left = T - held if is_left else 0
    parents = [rest] * left + [left + row if row >= 0 else -1 for row in range(-1, trunk - 1)]
    stem = len(parents) - 1 if trunk else -1  # of a branch
    for length, place in zip(lengths, places, strict=True):
        start = len(parents)
        parents += [stem, *range(start, start + length - 1), *[PADDING] * (place - length)]
    return parents + [rest] * (T - len(parents))


def _parts(meant: Tree, real: list[bool]) -> tuple[Tensor, list[str]]:
    """The unbranched stretches: the number of each token's, and their names."""
    parents: list[int] = meant.parents.tolist()
    children, counts = Counter(parent for parent in parents if parent >= 0), Counter[str]()
    is_tree = max(children.values(), default=0) > 1
    parts: list[int] = []
    names: list[str] = []
    for row, parent in enumerate(parents):
        if parent < 0 or parent != row - 1 or children[parent] > 1:
            kind = ("trunk" if parent < 0 else "branch") if is_tree else "document"
            counts[kind] += real[row]
            name = f"{kind} {counts[kind]}" if real[row] else "padding"
            names.append("the trunk" if name == "trunk 1" else name)
        parts.append(len(names) - 1)
    return torch.tensor(parts), names
