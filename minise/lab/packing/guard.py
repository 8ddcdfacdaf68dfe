"""A guard for a trainer or a server: does the model that runs give packed documents the logits of
separate runs? docs/check.md says how it looks, and what it does not look at."""

from __future__ import annotations

import atexit
import inspect
import sys
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from minise.errors import InputError, one_line
from minise.lab.packing.caller import warn
from minise.lab.packing.calls import (
    Document,
    Model,
    PackedRow,
    is_unpacked,
    kind_of,
    read_row,
    readable,
)
from minise.lab.packing.formats import depth_of, need
from minise.lab.packing.packing import need_rows
from minise.lab.packing.running import Looked, explained, look_at

PATIENCE = 20  # looks at nothing packed, until it says so; or without a verdict, until it gives up


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
    They hold every token that no mask hides. Else raises InputError.

    Returns a `Guard`. longest: tokens of the longest row that was compared. compared: how many
    documents ran alone and have a verdict; 0 until something is packed, and as long as a kind of
    call has none, for it could not be compared, or rounding is too large: so `assert guard.compared
    and not guard.mismatches` is enough. If it finds nothing packed 20 times, a warning says so.
    mismatches: what was wrong, in words; none if all was equal. report(): what was compared and
    found, or why nothing was; it is printed to stderr when the process ends. remove(): takes it off
    the model.
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


class Guard:
    """Watches a model: made by `guard`, which says what it holds."""

    def __init__(
        self, model: nn.Module, on_mismatch: Any, every: int | None, documents: Any
    ) -> None:
        self.longest = 1
        self.calls = 0
        self.passes = 0  # calls with a verdict
        self.documents_compared = 0  # in these
        self.mismatches: list[str] = []
        self.unpacked = 0  # looks since something packed was seen
        self.longest_of: dict[frozenset[Any], int] = {}  # by the kinds of arguments
        self.unsettled: dict[frozenset[Any], int] = {}  # kinds without a verdict: so many calls
        self.refusals: dict[str, int] = {}  # why there is none: in so many calls
        self.on_mismatch = on_mismatch
        self.is_acting = False  # on_mismatch may call the model
        self.every = every
        self.documents = documents
        self.inner: Any = getattr(model, "_orig_mod", model)  # what torch.compile wraps
        hook: Any = torch.compiler.disable(self._hook)
        self.remove = model.register_forward_hook(hook, with_kwargs=True).remove

    @property
    def compared(self) -> int:
        """How many documents have a verdict; 0 as long as a kind of call has none."""
        return 0 if self.unsettled else self.documents_compared

    def _hook(self, model: nn.Module, args: Any, given: dict[str, Any], output: Any) -> Any:
        if self.is_acting:
            return None
        self.calls += 1
        words = ""
        kind = kind_of(given)
        try:
            given_by_name = self.named(args, given)
            kind = kind_of(given_by_name)
            words = self.look(given_by_name, kind)
        except InputError as error:  # no reason to stop a training
            self.count_refusal(str(error), kind)
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
        by = "as the row itself says" if self.documents is None else "as documents= says"
        if self.mismatches:
            found = f"{len(self.mismatches):,} NOT equal to separate runs. {self.mismatches[0]}"
        elif self.passes:
            all_are = "all" if self.compared else "these are"
            found = f"{all_are} equal to separate runs, within rounding, with the borders {by}"
        elif not self.calls:
            found = "the model was not called"
        elif self.refusals:
            found = "no verdict"
        else:
            found = "nothing packed was seen"
            if self.documents is None:
                found += "; if rows hold several documents, give documents="
        documents = f"logits of {self.documents_compared:,} documents, no losses"
        lines = [f"guard: {self.passes:,} of {self.calls:,} calls compared ({documents}): {found}"]
        for refusal, count in sorted(self.refusals.items()):
            lines.append(f"  no verdict on {count:,} of the calls: {refusal}")
        return "\n".join(lines)

    def count_refusal(self, why: str, kind: frozenset[Any]) -> None:
        if why not in self.refusals:
            warn(f"guard: no verdict: {why}")
        self.refusals[why] = self.refusals.get(why, 0) + 1
        self.unsettled[kind] = self.unsettled.get(kind, 0) + 1

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
    def look(self, given: dict[str, Any], kind: frozenset[Any]) -> str:
        """What is wrong, in words; none if there is no need to look, if nothing is packed, or if
        all is equal. Raises InputError if there is no verdict."""
        # 1. Is it a longer row, does it have other arguments, or is it time to look again? A kind
        #    of call that has no verdict is tried some more times.
        ids = given.get("input_ids")
        if ids is None:
            self.count_unpacked()
            return ""
        T = ids.shape[-1]
        is_longer = self.longest_of.get(kind, 1) < T and self.unsettled.get(kind, 0) < PATIENCE
        is_due = self.every is not None and self.calls % self.every == 0
        if T == 1 or not (is_longer or is_due):
            return ""

        # 2. The documents, as the call says them. One that is a whole row is alone already.
        call = readable(given)
        rows: list[PackedRow] = []
        documents = []
        if self.documents is not None or not is_unpacked(call):
            meant = self.meant(given, len(call["input_ids"]))
            for number, lengths in enumerate(meant):
                rows.append(read_row(call, number, lengths))
        for number, row in enumerate(rows):
            for tokens in row.meant.paths():
                documents.append(Document(number, tokens))
        if all(len(document.tokens) == T for document in documents):
            self.count_unpacked()
            return ""
        self.unpacked = 0

        # 3. The numbers, with the model in eval mode.
        training = [module for module in self.inner.modules() if module.training]
        if any(getattr(module, "gradient_checkpointing", False) for module in training):
            call["use_cache"] = False  # as in training; with a cache, transformers masks otherwise
        try:
            self.inner.eval()
            model = Model(self.inner)
            looked = look_at(model, call, documents)
            if looked.words:
                row = rows[looked.document.row]
                looked.words += f"\n{explained(model, call, looked.document, row)}"
        finally:
            for module in training:
                module.training = True
        return self.verdict(looked, kind, T)

    def verdict(self, looked: Looked, kind: frozenset[Any], T: int) -> str:
        """Count what was found in a row of T tokens. Raises InputError if there is no verdict."""
        need(looked.words or not looked.doubt, looked.doubt)
        self.passes += 1
        self.documents_compared += looked.compared
        self.unsettled.pop(kind, None)
        self.longest_of[kind] = max(T, self.longest_of.get(kind, 1))
        self.longest = max(self.longest, T)
        return looked.words

    def meant(self, given: Mapping[str, Any], count: int) -> list[Any]:
        """The lengths of the documents of each row, as the user says; None: as the row does."""
        if self.documents is None:
            return [None] * count
        lengths = self.documents
        if callable(lengths):
            try:
                lengths = lengths(given)
            except Exception as error:  # whatever a function of the user's own raises
                raise InputError(f"documents: failed ({one_line(error)}); fix it") from None
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
