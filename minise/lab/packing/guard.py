"""A guard for a trainer or a server: does the model that runs give packed documents the logits of
separate runs? docs/check.md says how it looks, and what it does not look at."""

from __future__ import annotations

import atexit
import inspect
import sys
import warnings
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minise.attention import within
from minise.errors import InputError
from minise.lab.packing.formats import Given, as_tree, depth_of, need
from minise.lab.packing.judging import check
from minise.lab.packing.packing import meant_parents, need_rows
from minise.layout import Layout
from minise.verify.comparison import relative

ALONE = 3  # documents that run alone, at most
ALLOWED = 2  # times the measured rounding; docs/check.md says why
PATIENCE = 20  # looks at nothing packed, until it says so
READ = {"input_ids": 2, "position_ids": 2, "attention_mask": 4}  # dimensions of each, at most
KNOWN = READ | {"cu_seq_lens_q": 1, "cu_seq_lens_k": 1, "seq_idx": 2}
# What logits do not depend on. With `fused_lm_head` a model of trl gives no logits, and without it
# those of the same hidden states.
UNUSED = ("labels", "num_items_in_batch", "logits_to_keep", "fused_lm_head")
BORDERS = {"cu_seq_lens_q": "cu_seqlens", "cu_seq_lens_k": "cu_seqlens_k"}
LIBRARIES = str(Path(torch.__file__).parents[1])


def guard(
    model: nn.Module,
    on_mismatch: Any = "warn",
    every: int | None = None,
    documents: Any = None,
) -> Guard:
    """Watch a model for packed rows that are not equal to separate runs. It looks at the first call
    that packs, again when rows grow longer than any before or the arguments are others, and, if
    `every` is a number, at one call of so many. model: any module that is called with
    input_ids=(batch, tokens), position_ids, attention_mask, by name or by place, is causal without
    a mask, and gives logits. on_mismatch: "warn", "raise" (RuntimeError), or a function(words,
    again), where again() runs the call anew; what it returns, if not None, becomes the output.
    documents: what was meant, if the call itself may say it wrong: the number of tokens of each
    document, a list for each row, or a function of the call's arguments by name that gives them.
    Else raises InputError.

    Returns a `Guard`. longest: tokens of the longest row that was compared. compared: how many
    documents ran alone, 0 until something is packed; if it finds nothing packed 20 times, a warning
    says so. mismatches: what was wrong, in words; none if all was equal. report(): what was
    compared and found, or why nothing was; it is printed to stderr when the process ends. remove():
    takes it off the model.
    """
    is_known = on_mismatch in ("warn", "raise") or callable(on_mismatch)
    need(is_known, "on_mismatch: give warn, raise, or a function")
    is_number = every is None or (type(every) is int and every > 0)
    need(is_number, "every: give a number of calls from 1, or None")
    is_meant = documents is None or callable(documents) or depth_of(documents) in (1, 2)
    need(is_meant, "documents: give lengths, a list of them for each row, or a function")
    made = Guard(model, on_mismatch, every, documents)
    ALIVE.add(made)
    return made


ALIVE: weakref.WeakSet[Guard] = weakref.WeakSet()


@atexit.register
def print_reports() -> None:
    """What each guard has to say, when the process ends: a progress bar may have hidden it."""
    for one in ALIVE:
        print(one.report(), file=sys.stderr)


@dataclass(frozen=True)
class PackedRow:
    """A row of a call. fields: as `check` takes them. parents: of each token the row of the one
    before it in its document, -1 for a first one, -2 for padding. meant: their tree. window: that
    of its mask, if it hides anything."""

    fields: dict[str, Any]
    parents: list[int]
    meant: Layout
    window: int | None


@dataclass(frozen=True)
class Document:
    """Tokens of a row of a call that are one document, first to last."""

    row: int
    tokens: list[int]


class Guard:
    """Watches a model: made by `guard`, which says what it holds."""

    def __init__(
        self, model: nn.Module, on_mismatch: Any, every: int | None, documents: Any
    ) -> None:
        self.longest = 1
        self.compared = 0
        self.calls = 0
        self.passes = 0  # calls of which documents ran alone
        self.mismatches: list[str] = []
        self.unpacked = 0  # looks since something packed was seen
        self.longest_of: dict[frozenset[Any], int] = {}  # by the kinds of arguments
        self.refusals: set[str] = set()
        self.on_mismatch = on_mismatch
        self.is_acting = False  # on_mismatch may call the model
        self.every = every
        self.documents = documents
        self.inner: Any = getattr(model, "_orig_mod", model)  # what torch.compile wraps
        hook: Any = torch.compiler.disable(self._hook)
        self.remove = model.register_forward_hook(hook, with_kwargs=True).remove

    def _hook(self, model: nn.Module, args: Any, given: dict[str, Any], output: Any) -> Any:
        if self.is_acting:
            return None
        self.calls += 1
        try:
            words = self.look(self.named(args, given))
        except InputError as error:  # no reason to stop a training
            if str(error) not in self.refusals:
                self.refusals.add(str(error))
                warn(f"guard: no verdict: {error}")
            return None
        if not words:
            return None
        self.mismatches.append(f"call {self.calls}: {words}")
        if callable(self.on_mismatch):
            self.is_acting = True
            try:
                return self.on_mismatch(words, lambda: model(*args, **given))
            finally:
                self.is_acting = False
        if self.on_mismatch == "raise":
            raise RuntimeError(words)
        warn(words)
        return None

    def report(self) -> str:
        """How many calls were compared, and what was found, or why nothing was."""
        if self.mismatches:
            found = f"{len(self.mismatches):,} NOT equal to separate runs. {self.mismatches[0]}"
        elif self.passes:
            by = "as the row itself says" if self.documents is None else "as documents= says"
            found = f"all equal to separate runs, within rounding, with the borders {by}"
        elif not self.calls:
            found = "the model was not called"
        elif self.refusals:
            found = "no verdict"
        else:
            found = "nothing packed was seen"
            if self.documents is None:
                found += "; if rows hold several documents, give documents="
        compared = f"{self.passes:,} of {self.calls:,} calls compared"
        lines = [f"guard: {compared} ({self.compared:,} documents): {found}"]
        for refusal in sorted(self.refusals):
            lines.append(f"  not compared: {refusal}")
        return "\n".join(lines)

    def named(self, args: Any, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name. One that is given by its place has that of `forward`."""
        if not args:
            return given
        by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(self.inner.forward).parameters.values()
        names = [parameter.name for parameter in parameters if parameter.kind in by_place]
        need(len(args) <= len(names), "forward(*args) names no arguments; give them by name")
        return dict(zip(names, args, strict=False)) | given

    @torch.no_grad()
    def look(self, given: dict[str, Any]) -> str:
        """What is wrong, in words; none if there is no need to look, if nothing is packed, or if
        all is equal."""
        # 1. Is it a longer row, does it have other arguments, or is it time to look again?
        ids = given.get("input_ids")
        if ids is None:
            self.count_unpacked()
            return ""
        T = ids.shape[-1]
        kind = kind_of(given)
        is_longer = self.longest_of.get(kind, 1) < T
        is_due = self.every is not None and self.calls % self.every == 0
        if T == 1 or not (is_longer or is_due):
            return ""

        # 2. The documents, as the call says them. One that is a whole row is alone already.
        call = readable(given)
        rows = []
        documents = []
        if self.documents is not None or not is_unpacked(call):
            meant = self.meant(given, len(call["input_ids"]))
            for number, lengths in enumerate(meant):
                rows.append(read_row(call, number, lengths))
        for number, row in enumerate(rows):
            for tokens in row.meant.paths():
                if len(tokens) < T:
                    documents.append(Document(number, tokens))
        if not documents:
            self.count_unpacked()
            return ""
        self.unpacked = 0
        self.longest_of[kind] = max(T, self.longest_of.get(kind, 1))
        self.longest = max(self.longest, T)

        # 3. Some of them alone, spread over all, with the model in eval mode.
        training = [module for module in self.inner.modules() if module.training]
        if any(getattr(module, "gradient_checkpointing", False) for module in training):
            call["use_cache"] = False  # as in training; with a cache, transformers masks otherwise
        step = max(1, len(documents) // ALONE)
        self.passes += 1
        try:
            self.inner.eval()
            packed = self.run(call)
            for document in documents[::-1][::step][:ALONE]:
                self.compared += 1
                words = self.compare(call, packed, document)
                if words:
                    return f"{words}\n{self.explain(call, document, rows[document.row])}"
        finally:
            for module in training:
                module.training = True
        return ""

    def meant(self, given: Mapping[str, Any], count: int) -> list[Any]:
        """The lengths of the documents of each row, as the user says; None: as the row does."""
        if self.documents is None:
            return [None] * count
        lengths = self.documents(given) if callable(self.documents) else self.documents
        need_rows("documents", lengths, count)
        return list(lengths) if depth_of(lengths) > 1 else [lengths]

    def count_unpacked(self) -> None:
        self.unpacked += 1
        if self.unpacked == PATIENCE:
            warn(
                f"guard: {PATIENCE} times nothing packed was seen, and nothing compared: no mask, "
                "borders or positions show more than one document in a row; if it holds several, "
                "they attend to each other: give documents= and see"
            )

    def explain(self, call: dict[str, Any], document: Document, row: PackedRow) -> str:
        """What may explain a mismatch: a cache, a window, and what `check` says of the row."""
        lines = [f"the call: {place_of_call()}"]
        takes_cache = "use_cache" in inspect.signature(self.inner.forward).parameters
        if takes_cache and call.get("use_cache") is not False:
            without = call | {"use_cache": False}
            if not self.compare(without, self.run(without), document):
                lines.append("use_cache explains it: with use_cache=False the two are equal")
        fields = dict(row.fields)
        if row.window is not None:
            fields["window"] = row.window
            alone = "a document alone has the model's own, or none"
            lines.append(f"the mask holds a window of {row.window} tokens: {alone}")
        report = check(tree=row.parents, **fields)
        if report.equal and row.window is None:
            said_by = [name for name in ("attention_mask", "cu_seqlens") if name in fields]
            source = [*said_by, "position_ids"][0]
            lines.append(f"the row is right, and the model does not go by its {source}")
        lines.append(f"the given row: {report}")
        return "\n".join(lines)

    def compare(self, call: dict[str, Any], packed: Tensor, document: Document) -> str:
        """How the logits of a document alone differ from the packed ones; none if they do not."""
        ids = call["input_ids"]
        positions = torch.arange(len(document.tokens), device=ids.device)
        alone: dict[str, Any] = {}
        for name, value in call.items():
            if isinstance(value, bool | str):
                alone[name] = value
        alone["input_ids"] = ids[document.row, document.tokens][None]
        alone["position_ids"] = positions[None]

        right = self.run(alone)
        with nn.modules.module.register_module_forward_hook(nudge):
            rounding = relative(right, self.run(alone))
        allowed = ALLOWED * max(rounding, torch.finfo(right.dtype).eps)
        apart = relative(right, packed[document.row, document.tokens][None])
        if apart <= allowed:  # NaN is not
            return ""
        return (
            f"packed is not equal to separate: in row {document.row} the logits of the "
            f"document up to token {document.tokens[-1]} are off by {apart:.1e} of their size; "
            f"rounding explains {allowed:.1e}"
        )

    def run(self, call: dict[str, Any]) -> Tensor:
        """The logits of a call, past the hooks of the module."""
        output = self.inner.forward(**call)
        logits = output if isinstance(output, Tensor) else output[0]
        is_table = isinstance(logits, Tensor) and logits.shape[:2] == call["input_ids"].shape
        need(is_table, "the model gives no logits or hidden states of all tokens")
        return logits


def kind_of(given: dict[str, Any]) -> frozenset[Any]:
    """Which arguments a call has: the dimensions of tensors, and what is switched on or off."""
    kinds = []
    for name, value in given.items():
        if name not in UNUSED and value is not None:
            is_switch = isinstance(value, bool)
            kinds.append((name, value if is_switch else getattr(value, "ndim", 0)))
    return frozenset(kinds)


def readable(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call that the logits depend on. Refuse one that is not understood."""
    call = {}
    for name, value in given.items():
        if name in UNUSED or value is None:
            continue
        is_known = isinstance(value, Tensor) and value.ndim <= KNOWN.get(name, -1)
        is_word = isinstance(value, bool | int | str)
        need(is_known or is_word, f"{name}: no document alone has it")
        call[name] = value
    if given.get("fused_lm_head"):
        call["use_cache"] = False  # as trl does then
    return call


def is_unpacked(call: dict[str, Any]) -> bool:
    """Whether each row is one document: no padding, no borders, and positions that run on."""
    mask = call.get("attention_mask")
    positions = call.get("position_ids")
    if "cu_seq_lens_q" in call:
        return False
    if mask is not None and (mask.ndim != 2 or bool((mask != 1).any())):
        return False
    return positions is None or bool((positions.diff() == 1).all())


def read_row(call: dict[str, Any], number: int, lengths: Any) -> PackedRow:
    """A row of a call. lengths: of its documents, if the user says them. Else its tree is what the
    mask says; where positions disagree, what they say."""
    fields: dict[str, Any] = {}
    for name in (*READ, "seq_idx"):
        if name in call:
            rows = call[name]
            fields[name] = rows[number % len(rows)]  # one may stand for all
    for name, field in BORDERS.items():
        if name in call:
            fields[field] = call[name]
    mask = fields.get("attention_mask")
    if mask is None:
        fields["restarts"] = "cu_seqlens" not in fields
    elif mask.ndim == 1 and (mask > 1).any():
        fields["mask_is"] = "segments"
    given = Given(fields, len(fields["input_ids"]))
    real = ~given.hidden
    if lengths is not None:
        parents = meant_parents({"documents": lengths, "input_ids": fields["input_ids"]})
        return PackedRow(fields, parents, as_tree(parents), window=None)
    positions = given.positions[0]
    before = last_before(given.mask & real)
    follows = real & (before >= 0)
    if not torch.equal(positions[follows], positions[before[follows]] + 1):
        # By positions, a token follows the last one that is a place before it, if all do. They may
        # also count the row as one document: no two tokens follow one.
        by_positions = last_before((positions[:, None] == positions + 1) & real)
        is_tree = ((by_positions >= 0) | (positions == 0))[real].all()
        if is_tree and len(by_positions[real].unique()) < int(real.sum()):
            before = by_positions
    parents = torch.where(real, before, -2).tolist()
    meant = as_tree(parents)
    return PackedRow(fields, parents, meant, window_of(given.mask, meant, real))


def last_before(cells: Tensor) -> Tensor:
    """The last column before the diagonal that is set in each row: (T,), -1 for none."""
    places = torch.arange(1, len(cells) + 1, dtype=torch.int32)
    return (cells.tril(-1) * places).amax(dim=1).long() - 1


def window_of(mask: Tensor, meant: Layout, real: Tensor) -> int | None:
    """The window of a mask that shows each token the last ones of its document, but not all."""
    depths = meant.positions
    most = int((mask & real[:, None]).sum(dim=1).amax())
    right = within(meant.mask & real, depths, depths, most)
    is_window = 0 < most <= int(depths.max()) and torch.equal(mask[real], right[real])
    return most if is_window else None


def nudge(layer: nn.Module, inputs: Any, output: Any) -> Any:
    """A layer's output, off by half a unit, up and down in turn: all later rounding changes."""
    is_leaf = not list(layer.children())
    is_computed = isinstance(output, Tensor) and output.is_floating_point()
    if not is_leaf or not is_computed:
        return None
    up_and_down = torch.arange(output.shape[-1], device=output.device) % 2 - 0.5
    error = (up_and_down * torch.finfo(output.dtype).eps).to(output.dtype)
    return output + output * error


# ---- where the user called the model


def warn(words: str) -> None:
    """Warn of the user's line."""
    warnings.warn(words, stacklevel=level_of_user())


def place_of_call() -> str:
    frame = sys._getframe(level_of_user() - 1)
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"


def level_of_user() -> int:
    """How many frames it is from the caller of this function, which is 1, up to the user's."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
        level += 1
    return level


def is_of_library(file: str) -> bool:
    return file == __file__ or file.startswith(LIBRARIES)
