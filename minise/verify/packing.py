"""Another's packed row: what was meant, and what a model is given.

Documents, or the branches of a tree, are packed into one row of T tokens. Who packs them hands a
model token ids, position ids, something that says who may attend to whom, and labels. `read` turns
these into one mask and one list of positions, beside the tree that was meant. judging.py compares
the two. Tokens are counted from 0, documents and branches from 1; docs/check.md has the fields.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minise.attention import within
from minise.checks import free_bytes
from minise.errors import InputError, one_line, quote
from minise.layout import Tree, causal_mask, pack

MEANT = ("documents", "branches", "tree")  # one of them; branches with a trunk
ROWS = ("input_ids", "position_ids", "segment_ids", "parents", "labels", "tree")  # T integers each
SOURCES = ("attention_mask", "mask_mod", "cu_seqlens", "segment_ids", "parents", "restarts")
WORDS = {
    "padding": ("right", "left"),
    "mask_is": ("bool", "additive"),
    "labels_are": ("unshifted", "shifted"),
}
FIELDS = tuple(dict.fromkeys((*MEANT, "trunk", *ROWS, *SOURCES, *WORDS, "window")))
SHORT = {"tokens": "input_ids", "positions": "position_ids", "mask": "attention_mask"}
HIDDEN = -1e3  # an additive mask of this, relative to the row's largest, gives the weight 0


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. what: "mask", "positions", "labels" or "cu_seqlens". words: the
    first wrong place, and what explains it. name: the known mistake, if one does. wrong of `of`
    places are wrong. mend: what to do."""

    what: str
    words: str
    name: str
    wrong: int
    of: int
    mend: str


@dataclass(frozen=True, eq=False)
class Packing:
    """meant: in which padding is a root by itself. real: (T,) bool, False for padding. parts: (T,)
    int64, which unbranched stretch a token is of. names: of the parts, such as "document 2". What a
    model is given: mask (T, T) bool; positions (T,) int64; labels (T,) int64, or None. faults:
    found on reading."""

    meant: Tree
    real: Tensor
    parts: Tensor
    names: list[str]
    mask: Tensor
    positions: Tensor
    labels: Tensor | None
    shifted: bool
    window: int | None
    has_tokens: bool
    faults: tuple[Finding, ...] = ()

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


def read(fields: Mapping[str, Any]) -> Packing:
    """One row from the fields that docs/check.md lists. Raises InputError for a malformed one."""
    given = {SHORT.get(name, name): one for name, one in fields.items() if one is not None}
    for name in sorted(given.keys() - set(FIELDS)):
        raise InputError(f"{quote(name)} is unknown; the fields are {', '.join(FIELDS)}")
    for name in WORDS.keys() & given.keys():
        known, words = [quote(word) for word in WORDS[name]], " or ".join(WORDS[name])
        need(quote(given[name]) in known, f"{name}: is {quote(given[name])}; give {words}")
    restarts, window = given.get("restarts", False), given.get("window")
    need(type(restarts) is bool, f"restarts: is {quote(restarts)}; give true or false")
    if window is not None:
        fits = type(window) is int and 1 <= window < 2**31
        need(fits, f"window: is {quote(window)}; give a number of positions, from 1")
    rows = {name: integers(name, given[name]) for name in ROWS if name in given}
    T = _length(given, rows)
    parents, index = _meant(given, rows, T), torch.arange(T)
    meant, real = _tree(rows.get("input_ids", index), parents), torch.tensor(parents) > -2
    places = rows.get("position_ids", index)
    mask, faults, is_whole = _mask(given, rows, places)
    if not is_whole:
        # Kernels count a window by index; who walks a tree knows positions.
        by = places if "parents" in rows else index
        mask = within(mask, by, by, window)
    parts, names = _parts(meant, real.tolist())
    labels, shifted = rows.get("labels"), given.get("labels_are") == "shifted"
    state = (mask, places, labels, shifted, window, "input_ids" in rows, faults)
    return Packing(meant, real, parts, names, *state)


def need(holds: object, message: str) -> None:
    """Raise InputError if it does not hold."""
    if not holds:
        raise InputError(message)


def numbers(name: str, value: Any) -> Tensor:
    """A tensor without its leading dimensions of 1."""
    try:
        tensor = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
        raise InputError(f"{name}: is no table of numbers ({one_line(error)}); fix it") from None
    is_table = tensor.numel() and tensor.dim() and not tensor.is_complex()
    need(is_table, f"{name}: is empty or no table; leave it out, or give a number for each token")
    while tensor.dim() > 1 and len(tensor) == 1:
        tensor = tensor[0]
    return tensor


def integers(name: str, value: Any) -> Tensor:
    """(T,) int64."""
    tensor = numbers(name, value)
    is_whole = not (tensor.dtype == torch.bool or tensor.is_floating_point())
    holds = f"{tensor.dtype} of the shape {tuple(tensor.shape)}"
    need(tensor.dim() == 1 and is_whole, f"{name}: holds {holds}; give integers, for one row")
    return tensor.long()


def _lengths(given: dict[str, Any]) -> list[int]:
    """The trunk, and the documents or branches after it."""
    trunk = given.get("trunk", 0)
    counts = type(trunk) is int and trunk >= 0
    need(counts, f"trunk: is {quote(trunk)}; give the number of its tokens")
    need(not trunk or "branches" in given, "trunk: comes without branches; give their lengths")
    for name in MEANT[:2]:
        if name in given:
            lengths: list[int] = integers(name, given[name]).tolist()
            need(min(lengths) > 0, f"{name}: holds the length {min(lengths)}; give them from 1")
            return [trunk, *lengths]
    return [0]


def _length(given: dict[str, Any], rows: dict[str, Tensor]) -> int:
    """T, which all rows agree on. Raises InputError if they do not, or if masks would not fit."""
    sizes = {name: len(row) for name, row in rows.items()}
    if "attention_mask" in given:
        sizes["attention_mask"] = numbers("attention_mask", given["attention_mask"]).shape[-1]
    (first, T), *others = (sizes or {"the lengths": sum(_lengths(given))}).items()
    for name, size in others:
        need(size == T, f"{name}: has {size:,} entries, but {first} has {T:,}; cut or pad it")
    free, size = free_bytes(), 10 * T**2  # bytes of the masks that are compared
    most = f"{T:,} tokens need masks of {size / 2**30:.1f} GiB; check a shorter row"
    need(free is None or size <= free, most)
    return T


def _meant(given: dict[str, Any], rows: dict[str, Tensor], T: int) -> list[int]:
    """What was meant: the row of the token before each, -1 for a first one, -2 for padding."""
    kinds = [name for name in MEANT if name in given]
    both = f"{' and '.join(kinds)} both say" if kinds else "nothing says"
    need(len(kinds) == 1, f"{both} what was meant; give one of {', '.join(MEANT)}")
    if "tree" in given:
        tree: list[int] = rows["tree"].tolist()
        _check_parents("tree", tree, -2)
        follows = any(parent >= 0 and tree[parent] == -2 for parent in tree)
        need(not follows, "tree: a token follows padding (-2); give it a real parent, or -1")
        return tree
    trunk, *lengths = _lengths(given)
    padding = T - trunk - sum(lengths)
    more = f"{kinds[0]}: hold {T - padding:,} tokens, but the row has {T:,}; fix the lengths"
    need(padding >= 0, more)
    # Which tokens they are makes no difference.
    parents = pack([0] * trunk, [[0] * length for length in lengths]).parents
    if given.get("padding") == "left":
        return [-2] * padding + torch.where(parents < 0, -1, parents + padding).tolist()
    return parents.tolist() + [-2] * padding


def _check_parents(name: str, parents: list[int], least: int) -> None:
    rule = f"the row of a token before it, or {' or '.join(map(str, range(least, 0)))}"
    for row, parent in enumerate(parents):
        wrong = f"{name}: token {row} has the parent {parent}; give {rule}"
        need(least <= parent < row, wrong)


def _tree(tokens: Tensor, parents: list[int]) -> Tree:
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    inner = set(parents)
    ends = [row for row, parent in enumerate(parents) if parent > -2 and row not in inner]
    before = torch.tensor(parents).clamp(min=-1)
    return Tree(tokens, before, torch.tensor(depths), torch.tensor(ends))


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


def _mask(
    given: dict[str, Any], rows: dict[str, Tensor], positions: Tensor
) -> tuple[Tensor, tuple[Finding, ...], bool]:
    """Who may attend to whom, as given: (T, T) bool; what is wrong with that; and whether it is a
    whole mask, in which the window is contained."""
    T, faults, shown = len(positions), tuple[Finding, ...](), torch.tensor(True)
    sources = [name for name in SOURCES if name in given and given[name] is not False]
    if "attention_mask" in sources:
        shown = numbers("attention_mask", given["attention_mask"])
        if shown.dim() == 1:  # it hides padding, beside another source or none
            sources.remove("attention_mask")
    both = " and ".join(sources[:2])
    need(len(sources) < 2, f"{both} both say who may attend to whom; give the one that is used")
    kind = sources[0] if sources else "causal"
    if kind == "attention_mask":
        return _square(shown, given.get("mask_is"), T), (), True
    if kind == "mask_mod":
        return _by_function(given["mask_mod"], T), (), True
    mask, segments = causal_mask(T), torch.zeros_like(positions)
    if kind == "parents":
        _check_parents("parents", rows["parents"].tolist(), -1)
        mask = _tree(positions, rows["parents"].tolist()).mask
    elif kind == "cu_seqlens":
        segments, faults = _segments(integers(kind, given[kind]), T)
    elif kind == "segment_ids":
        segments = rows[kind]
    elif kind == "restarts":  # a position that does not follow the one before begins a document
        segments = (positions.diff(prepend=positions[:1] - 1) != 1).cumsum(0)
    return mask & (segments[:, None] == segments) & (shown != 0), faults, False


def _square(mask: Tensor, kind: str | None, T: int) -> Tensor:
    """A mask with a row for each query: bool or 0 and 1, or added to the scores."""
    shape = "x".join(map(str, mask.shape))
    need(mask.shape == (T, T), f"attention_mask: has the shape {shape}; give {T}x{T}, of one head")
    need(not mask.isnan().any(), "attention_mask: holds NaN; give numbers, or true and false")
    if (kind or ("additive" if mask.is_floating_point() else "bool")) == "bool":
        return mask != 0
    # A softmax sees what is not far below the row's largest. Only minus infinity gives NaN.
    added = mask.double().nan_to_num(posinf=1e30, neginf=-math.inf)
    return added - added.amax(dim=1, keepdim=True) >= HIDDEN


def _by_function(mask_mod: Any, T: int) -> Tensor:
    """The mask of a FlexAttention mask_mod(batch, head, query, key), on all pairs at once."""
    zero, index = torch.tensor(0), torch.arange(T)
    try:
        return torch.as_tensor(mask_mod(zero, zero, index[:, None], index)).bool().expand(T, T)
    except Exception as error:  # whatever a function of the user's own raises
        raise InputError(f"mask_mod: failed ({one_line(error)}); fix the function") from None


def _segments(borders: Tensor, T: int) -> tuple[Tensor, tuple[Finding, ...]]:
    """Each token's document by cu_seqlens, and what is wrong with these."""
    index, steps, words, name = torch.arange(T), borders.diff(), "", ""
    if len(borders) < 2 or borders[0] != 0 or int(borders[-1]) != T:
        name, ends = "cu_seqlens has a wrong total", f"{int(borders[0])} to {int(borders[-1])}"
        words = f"it goes from {ends}, but the row has {T:,} tokens: {name}"
    elif (steps < 1).any():
        name, first = "cu_seqlens has an empty document", int((steps < 1).nonzero()[0]) + 1
        words = f"its document {first} has {int(steps.min())} tokens: {name}"
    segments = torch.bucketize(index, borders.cummax(0).values, right=True)
    segments = torch.where(index < borders[-1], segments, -1 - index)  # the rest has no document
    mend = f"begin it with 0, add the length of each document, and end it at {T:,}, the tokens"
    return segments, (Finding("cu_seqlens", words, name, 1, len(borders), mend),) if name else ()
