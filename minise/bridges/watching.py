"""What a model of the transformers library tells of its inside, for `minise explain`: hidden states
(output_hidden_states) and attention weights (output_attentions).

How much that is depends on the family and on the attention implementation. What is not told in the
usual form is left out, and a sentence says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minise.bridges.library import TOO_MUCH, Library
from minise.checking.traces import Trace, relative
from minise.errors import InputError, Unsuited, one_line
from minise.explaining.watch import Alone
from minise.method import Plan


class _Pass(NamedTuple):
    """A pass of the model: the library's output, and the norm that ran last with its input and its
    output."""

    output: Any
    norm: nn.Module
    given: Tensor
    normed: Tensor


class Watched:
    """A `Watch` (explain/watch.py) of a library's model. What it tells is tried on a prompt."""

    def __init__(self, library: Library, prompt: list[int]) -> None:
        self.library, facts = library, library.config
        self.layers, self.attention = facts.num_hidden_layers, facts.attention
        self.windows = [] if facts.window is None else [facts.window]
        self.left_out: list[str] = []
        if other := facts.chunk or facts.own_window:
            kind = "attention chunks" if facts.chunk else "own window"
            self.left_out.append(f"Part 2 has no switch for this model's {kind} of {other} tokens.")
        self.engine = "cache"
        try:
            library.check("tree")
        except InputError as error:
            self.engine = "separate"
            self.left_out.append(f"Each prompt was asked by itself. {error}.")
        found = self._alone(prompt)
        self.heads = 0
        if self._tells(lambda: self._weights(prompt, found)):
            weights = self._weights(prompt, found)
            self.heads = weights.shape[1]
            if (weights.sum(dim=-1) - 1).abs().max() > 0.01:
                sink = "a sink, for example, that is no token"
                self.left_out.append(f"Attention weights do not sum to 1 in this model: {sink}.")
        self.traces = self._tells(lambda: self._trace(found))
        self.reads = self.traces and self._tells(lambda: self._try_readouts(prompt, found))

    def _tells(self, what: Callable[[], object]) -> bool:
        try:
            what()
        except Unsuited as error:
            self.left_out.append(f"{error}.")
            return False
        return True

    def alone(self, prompt: list[int], label_ids: Sequence[int]) -> Alone:
        found = self._alone(prompt)
        readouts: list[list[float]] = []
        if self.reads:
            logits = self._readouts(prompt, found)[:, list(label_ids)]
            readouts = logits.double().softmax(dim=-1).tolist()
        trace = [rows[0] for rows in self._trace(found)] if self.traces else []
        return Alone(trace, self._weights(prompt, found) if self.heads else None, readouts)

    def packed(self, run: Callable[[], object]) -> Trace:
        return [rows[0] for rows in self._trace(self._passes(run)[-1])]

    def tree(self, plan: Plan, rows: Sequence[int]) -> Trace:
        """From the prefix' pass and the batches behind it: the library's tree has no `rows`."""
        passes = self._passes(lambda: self.library.cached(plan.prefix, plan.branches))
        traces = [self._trace(one) for one in passes]
        kept = len(plan.prefix) - (not all(plan.branches))  # tokens in the cache
        firsts, batches = (traces[::2], traces[1::2]) if kept else ([], traces)
        found: list[list[Tensor]] = [[] for _ in traces[0]]
        behind = [(i, row) for i, batch in enumerate(batches) for row in range(len(batch[0]))]
        for group, ((i, row), branch) in enumerate(zip(behind, plan.branches, strict=True)):
            own = len(plan.prefix) if group else 0
            for layer, parts in enumerate(found):
                first = firsts[i][layer][0] if kept else batches[i][layer][0, :0]
                whole = torch.cat([first, batches[i][layer][row]])
                parts.append(whole[own : len(plan.prefix) + len(branch)])
        return [torch.cat(parts) for parts in found]

    def _alone(self, prompt: list[int]) -> _Pass:
        """The one pass of a prompt alone."""
        asked = {"output_attentions": True} if self.attention == "eager" else {}
        return self._passes(lambda: self.library.alone(prompt), **asked)[-1]

    def _passes(self, run: Callable[[], object], **asked: bool) -> list[_Pass]:
        """Every pass of the model in `run`."""
        model, found, norms = self.library.model, list[_Pass](), list[Any]()
        asked["output_hidden_states"] = True

        def ask(_: object, given: Any, named: dict[str, Any]) -> Any:
            return given, {**named, **asked}

        def note(norm: nn.Module, given: tuple[Any, ...], normed: Any) -> None:
            norms[:] = [norm, given[0] if given else None, normed]

        def end(_: object, given: object, output: Any) -> None:
            found.append(_Pass(output, *(norms or [None] * 3)))

        # The final norm is none of a layer's own, whose names have the layer's number.
        outer = [one for name, one in model.named_modules() if not re.search(r"\.\d+\.", name)]
        final = [one for one in outer if "norm" in type(one).__name__.lower()]
        hooks = [one.register_forward_hook(note) for one in final]
        hooks.append(model.register_forward_pre_hook(ask, with_kwargs=True))
        hooks.append(model.register_forward_hook(end))
        try:
            run()
        finally:
            for hook in hooks:
                hook.remove()
        return found

    def _trace(self, found: _Pass) -> list[Tensor]:
        """(B, T, D) after each layer and after the final norm. The library gives the last layer's
        rows as the final norm leaves them; what they were before is taken at the norm."""
        hidden = list(getattr(found.output, "hidden_states", None) or ())[1:]
        rows = [*hidden[:-1], found.given, found.normed]
        alike = len({getattr(one, "shape", None) for one in [*rows, *hidden]}) == 1
        if len(hidden) != self.layers or not alike or not torch.equal(found.normed, hidden[-1]):
            told = "hidden states after each layer, before and after the final norm"
            raise Unsuited(f"Equality and readouts: the library does not tell {told}")
        return rows

    def _weights(self, prompt: list[int], found: _Pass) -> Tensor:
        """(L, heads, T, T)."""
        if self.attention != "eager":
            how = 'load the model with attn_implementation="eager"'
            raise Unsuited(f"Attention weights: {self.attention} does not tell them; {how}")
        T = len(prompt)
        told: Any = getattr(found.output, "attentions", None) or ()
        shapes = {getattr(one, "shape", None) for one in told}
        if len(told) != self.layers or len(shapes) > 1 or told[0].shape[2:] != (T, T):
            raise Unsuited("Attention weights: the library does not tell them for every layer")
        weights = torch.cat(told)
        if weights.min() < 0 or weights.max() > 1:
            raise Unsuited("Attention weights: in this model they are not between 0 and 1")
        return weights

    def _readouts(self, prompt: list[int], found: _Pass) -> Tensor:
        """The logits (L, V) after the prompt as read out after each layer: a pass whose final norm
        gets these rows. What comes after the norm is the model's own, whatever it is."""
        layers = self._trace(found)[:-1]
        rows = torch.stack([layer[0, -1].to(found.given) for layer in layers])
        tokens = torch.tensor([(prompt * self.layers)[: self.layers]], device=rows.device)
        hook = found.norm.register_forward_pre_hook(lambda _, given: (rows[None], *given[1:]))
        try:
            output = self.library.model(input_ids=tokens, use_cache=False, return_dict=True)
        finally:
            hook.remove()
        logits: Tensor = output.logits[0]
        return logits

    def _try_readouts(self, prompt: list[int], found: _Pass) -> None:
        """Raise Unsuited if what is read out after the last layer is not the model's answer."""
        try:
            read = self._readouts(prompt, found)[-1:]
        except Exception as error:  # whatever a model makes of such rows
            raise Unsuited(f"Readouts: the library fails: {one_line(error)}") from None
        most = min(self.library.rounding(prompt), TOO_MUCH)
        if relative(self.library.alone(prompt), read) > most:
            raise Unsuited("Readouts: what its final norm gets does not make the model's logits")
