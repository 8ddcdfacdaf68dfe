"""Another's packed row: what was meant, and what a model is given.

Documents, or the branches of a tree, are packed into one row of T tokens (Section 4 of the paper
has one such packing). Who packs them hands a model token ids, position ids, something that says
who may attend to whom, and labels. `read` turns these into one mask and one list of positions,
beside the tree that was meant (layout.py). packing_check.py compares the two.

Tokens are counted from 0, as positions are; documents and branches from 1. Whatever should run as
if it were alone is a prompt here. The fields are described in docs/check.md.

Dimension legend: T tokens of the row.
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
from minise.errors import InputError, one_line, quote
from minise.layout import Tree, causal_mask, pack
from minise.memory import free_bytes

MEANT = ("documents", "branches", "prompts", "tree")  # one of them; branches with a trunk
ROWS = ("input_ids", "position_ids", "segment_ids", "parents", "labels", "tree")  # T integers each
SOURCES = ("attention_mask", "mask_mod", "cu_seqlens", "segment_ids", "parents", "restarts")
CHOICES = {
    "padding": ("right", "left"),
    "mask_is": ("bool", "additive"),
    "labels_are": ("unshifted", "shifted"),
}
FIELDS = (*dict.fromkeys((*MEANT, "trunk", *ROWS, *SOURCES, *CHOICES, "window")),)
HIDDEN = -1e3  # an additive mask of this, relative to the row's largest, gives the weight 0


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. what: "mask", "positions", "labels", "cu_seqlens" or "logits".
    words: the first wrong place, and what explains it. name: the known mistake; empty if none is.
    wrong of `of` places are wrong. mend: what to do."""

    what: str
    words: str
    name: str
    wrong: int
    of: int
    mend: str


@dataclass(frozen=True, eq=False)
class Packing:
    """What was meant, and what a model is given.

    meant: its parents, positions and, if input_ids are known, tokens; padding is a root by itself.
    real: (T,) bool, False for padding. parts: (T,) int64, which unbranched stretch a token is of.
    names: of the parts, such as "document 2". mask: (T, T) bool; None if none is given, which is
    allowed beside logits. positions, labels: (T,) int64 or None. faults: found on reading.
    """

    meant: Tree
    real: Tensor
    parts: Tensor
    names: list[str]
    mask: Tensor | None
    positions: Tensor | None
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


# Reading


def read(fields: Mapping[str, Any], numbers_only: bool = False) -> Packing:
    """One row from the fields that docs/check.md lists. numbers_only: logits will be judged, so a
    mask and positions that are not given are not judged. Raises InputError for a malformed one."""
    given = {name: value for name, value in fields.items() if value is not None}
    if unknown := sorted(given.keys() - set(FIELDS)):
        raise InputError(f"{quote(unknown[0])} is unknown; the fields are {', '.join(FIELDS)}")
    for name, values in CHOICES.items():
        if name in given and not (isinstance(given[name], str) and given[name] in values):
            raise InputError(f"{name}: is {quote(given[name])}; give {' or '.join(values)}")
    if type(given.get("restarts", False)) is not bool:
        raise InputError(f"restarts: is {quote(given['restarts'])}; give true or false")
    rows = {name: _row(name, given[name]) for name in ROWS if name in given}
    T = _length(given, rows)
    parents, real = _parents(given, rows, T)
    tokens = rows.get("input_ids", torch.zeros(T, dtype=torch.int64))
    meant = _tree(tokens, parents, real)
    parts, names = _parts(meant, real)
    index = torch.arange(T)
    mask, faults = _mask(given, rows, rows.get("position_ids", index))
    window = given.get("window")
    if window is not None and not (type(window) is int and 1 <= window < 2**31):
        raise InputError(f"window: is {quote(window)}; give a number of positions, from 1")
    if mask is None and not numbers_only:
        mask = causal_mask(T)
    if mask is not None and "mask_mod" not in given and not _is_square(given.get("attention_mask")):
        # Kernels count a window by index; who walks a tree knows positions.
        by = rows.get("position_ids", index) if "parents" in rows else index
        mask = within(mask, by, by, window)
    positions = rows.get("position_ids", None if numbers_only else index)
    shifted = given.get("labels_are") == "shifted"
    state = (mask, positions, rows.get("labels"), shifted, window, "input_ids" in rows, faults)
    return Packing(meant, torch.tensor(real), parts, names, *state)


def numbers(name: str, value: Any) -> Tensor:
    """A tensor without its leading dimensions of 1."""
    try:
        tensor = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
        raise InputError(f"{name}: is no table of numbers ({one_line(error)}); fix it") from None
    if not tensor.numel() or not tensor.dim() or tensor.is_complex():
        kind = "complex" if tensor.is_complex() else "one number" if tensor.numel() else "empty"
        raise InputError(f"{name}: is {kind}; leave it out, or give a number for each token")
    while tensor.dim() > 1 and len(tensor) == 1:
        tensor = tensor[0]
    return tensor


def _row(name: str, value: Any) -> Tensor:
    tensor = numbers(name, value)
    if tensor.dim() != 1:
        shape = "x".join(map(str, tensor.shape))
        raise InputError(f"{name}: holds {shape} numbers; give a list, for one row of a batch")
    if tensor.dtype == torch.bool or tensor.is_floating_point():
        raise InputError(f"{name}: holds {tensor.dtype}; give integers")
    return tensor.long()


def _lengths(name: str, value: Any) -> list[int]:
    lengths: list[int] = _row(name, value).tolist()
    if min(lengths) < 1:
        raise InputError(f"{name}: holds the length {min(lengths)}; give lengths from 1")
    return lengths


def _length(given: dict[str, Any], rows: dict[str, Tensor]) -> int:
    """T, which all rows agree on. Raises InputError if they do not, or if masks would not fit."""
    sizes = {name: len(row) for name, row in rows.items()}
    if "attention_mask" in given:
        sizes["attention_mask"] = numbers("attention_mask", given["attention_mask"]).shape[-1]
    if "prompts" in given and "input_ids" not in rows:
        raise InputError("prompts need input_ids, to say where their tokens stand; add them")
    if not sizes:
        lengths = (_lengths(name, given[name]) for name in MEANT[:2] if name in given)
        sizes["the lengths"] = sum(map(sum, lengths)) + _trunk(given)
    (first, T), *others = sizes.items()
    for name, size in others:
        if size != T:
            raise InputError(f"{name}: has {size:,} entries, but {first} has {T:,}; cut or pad it")
    free = free_bytes(torch.device("cpu"))
    need = 10 * T**2  # bytes of the masks that are compared
    if free is not None and need > free:
        most = f"{need / 2**30:.1f} GiB, and {free / 2**30:.1f} are free"
        raise InputError(f"{T:,} tokens need masks of {most}; check a shorter row")
    return T


def _trunk(given: dict[str, Any]) -> int:
    trunk = given.get("trunk", 0)
    if type(trunk) is not int or trunk < 0:
        raise InputError(f"trunk: is {quote(trunk)}; give the number of its tokens")
    if trunk and "branches" not in given:
        raise InputError("trunk: comes without branches; give their lengths, or documents alone")
    return trunk


def _parents(
    given: dict[str, Any], rows: dict[str, Tensor], T: int
) -> tuple[list[int], list[bool]]:
    """What was meant: the row of the token before each, -1 for a first one; and which are real."""
    kinds = [name for name in MEANT if name in given]
    if len(kinds) != 1:
        both = f"{kinds[0]} and {kinds[1]} both say" if kinds else "nothing says"
        raise InputError(f"{both} what was meant; give one of {', '.join(MEANT)}")
    if kinds == ["tree"]:
        parents = rows["tree"].tolist()
        _check_parents("tree", parents, -2)
        real = [parent > -2 for parent in parents]
        if any(parent >= 0 and not real[parent] for parent in parents):
            raise InputError("tree: a token follows padding (-2); give it a real parent, or -1")
        return [max(parent, -1) for parent in parents], real
    left = given.get("padding") == "left"
    if kinds == ["prompts"]:
        parents = _find(_prompts(given["prompts"]), rows, left)
    else:
        trunk, lengths = _trunk(given), _lengths(kinds[0], given[kinds[0]])
        if trunk + sum(lengths) > T:
            has = f"{kinds[0]}: hold {trunk + sum(lengths):,} tokens, but the row has {T:,}"
            raise InputError(f"{has}; fix the lengths")
        # Which tokens they are makes no difference.
        parents = pack([0] * trunk, [[0] * length for length in lengths]).parents.tolist()
    before = T - len(parents) if left else 0
    after = T - len(parents) - before
    shifted = [parent + before if parent >= 0 else -1 for parent in parents]
    real = [False] * before + [True] * len(parents) + [False] * after
    return [-1] * before + shifted + [-1] * after, real


def _check_parents(name: str, parents: list[int], least: int = -1) -> None:
    for row, parent in enumerate(parents):
        if not least <= parent < row:
            rule = f"the row of a token before it, or {' or '.join(map(str, range(least, 0)))}"
            raise InputError(f"{name}: token {row} has the parent {parent}; give {rule}")


def _prompts(value: Any) -> list[list[int]]:
    if not isinstance(value, list | tuple) or not value:
        raise InputError("prompts: is no list; give a list of token ids for each prompt")
    return [_row(f"prompts[{i}]", prompt).tolist() for i, prompt in enumerate(value)]


def _find(prompts: list[list[int]], rows: dict[str, Tensor], left: bool) -> list[int]:
    """The parents of input_ids by which each prompt is a path, for prompts that stand one after the
    other, behind their common beginning, or merged into a tree whose tokens follow their parents.
    Tokens that are left over, at the end or with `left` at the beginning, are padding. Where equal
    tokens leave a choice, `parents` decide if they are given, else the tree is depth first."""
    tokens = rows["input_ids"].tolist()
    hints = rows["parents"].tolist() if "parents" in rows else [-2] * len(tokens)
    shared = 0
    while all(len(p) > shared + 1 and p[shared] == prompts[0][shared] for p in prompts):
        shared += 1
    for start in (0, shared):
        flat = pack(prompts[0][:start], [prompt[start:] for prompt in prompts])
        if flat.tokens.tolist() == _held(tokens, len(flat.tokens), left):
            found: list[int] = flat.parents.tolist()
            return found
    merged = pack([], prompts, tree=True)
    ids, above = merged.tokens.tolist(), merged.parents.tolist()
    children: dict[int, list[int]] = {}
    for node, up in enumerate(above):
        children.setdefault(up, []).append(node)
    ready: dict[int, list[int]] = {}  # by token id, the nodes of `merged` that may stand next
    place, last = {-1: -1}, -1  # where each node stands; the last one
    for row, token in enumerate(_held(tokens, len(ids), left)):
        for node in children.get(last, []):
            ready.setdefault(ids[node], []).append(node)
        fits = ready.get(token)
        if not fits:
            more = "give documents, trunk and branches, or tree instead"
            raise InputError(f"input_ids: token {row} is not the next of any prompt; {more}")
        by_hint = (node for node in fits if place[above[node]] == hints[row])
        last = next(by_hint, next((node for node in fits if above[node] == last), fits[-1]))
        fits.remove(last)
        place[last] = row
    if len(place) <= len(ids):
        raise InputError(f"input_ids: has {len(tokens)} tokens, too few for the prompts; add them")
    return [place[above[node]] for node in place if node >= 0]


def _held(tokens: list[int], count: int, left: bool) -> list[int]:
    return tokens[max(len(tokens) - count, 0) :] if left else tokens[:count]


def _tree(tokens: Tensor, parents: list[int], real: list[bool]) -> Tree:
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    inner = set(parents)
    ends = [row for row, is_real in enumerate(real) if is_real and row not in inner]
    return Tree(tokens, *(torch.tensor(rows) for rows in (parents, depths, ends)))


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


def _is_square(value: Any) -> bool:
    return value is not None and numbers("attention_mask", value).dim() > 1


def _mask(
    given: dict[str, Any], rows: dict[str, Tensor], positions: Tensor
) -> tuple[Tensor | None, tuple[Finding, ...]]:
    """Who may attend to whom, as given: (T, T) bool; None if nothing says it."""
    T, faults = len(positions), tuple[Finding, ...]()
    sources = [name for name in SOURCES[1:] if name in given and given[name] is not False]
    square = _is_square(given.get("attention_mask"))
    if square:
        sources.insert(0, SOURCES[0])
    if len(sources) > 1:
        both = f"{sources[0]} and {sources[1]} both say who may attend to whom"
        raise InputError(f"{both}; give the one that the model uses")
    causal, kind = causal_mask(T), sources[0] if sources else ""
    if square:
        return _square(given, T), ()
    if kind == "mask_mod":
        return _by_function(given["mask_mod"], T), ()
    if kind == "parents":
        _check_parents("parents", rows["parents"].tolist())
        causal = _tree(positions, rows["parents"].tolist(), [True] * T).mask
    elif kind:
        if kind == "cu_seqlens":
            segments, faults = _segments(_row(kind, given[kind]), T)
        elif kind == "segment_ids":
            segments = rows[kind]
        else:  # a position that does not follow the one before begins a document
            segments = (positions.diff(prepend=positions[:1] - 1) != 1).cumsum(0)
        causal = causal & (segments[:, None] == segments)
    if "attention_mask" in given:
        return causal & (numbers("attention_mask", given["attention_mask"]) != 0), faults
    return (causal if kind else None), faults


def _square(given: dict[str, Any], T: int) -> Tensor:
    """A mask with a row for each query: bool or 0 and 1, or added to the scores."""
    mask = numbers("attention_mask", given["attention_mask"])
    if mask.shape != (T, T):
        shape = "x".join(map(str, mask.shape))
        raise InputError(f"attention_mask: has the shape {shape}; give {T}x{T}, of one head")
    if mask.is_floating_point() and mask.isnan().any():
        raise InputError("attention_mask: holds NaN; give numbers, or true and false")
    kind = given.get("mask_is", "additive" if mask.is_floating_point() else "bool")
    if kind == "bool":
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
    mend = f"begin it with 0, add the length of each document, and end it at {T:,}, the tokens"
    steps, words = borders.diff(), ""
    if len(borders) < 2 or borders[0] != 0 or int(borders[-1]) != T:
        words = (
            f"it goes from {int(borders[0])} to {int(borders[-1])}, but the row has {T:,} tokens"
        )
        name = "cu_seqlens has a wrong total"
    elif (steps < 1).any():
        words = f"its document {int((steps < 1).nonzero()[0]) + 1} has {int(steps.min())} tokens"
        name = "cu_seqlens has an empty document"
    index = torch.arange(T)
    segments = torch.bucketize(index, borders.cummax(0).values, right=True)
    segments = torch.where(index < borders[-1], segments, -1 - index)  # the rest has no document
    if not words:
        return segments, ()
    return segments, (Finding("cu_seqlens", f"{words}: {name}", name, 1, len(borders), mend),)
