"""What a model of the transformers library shows of its inside: hidden states by
`output_hidden_states`, attention weights by `output_attentions`.

How much that is depends on the family and on the attention implementation. What a model does not
show in the usual form is left out, and a sentence says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minise.bridges.library import TOO_MUCH, Library
from minise.checking.traces import Trace, relative
from minise.errors import InputError, Unsuited, one_line
from minise.explaining.watch import Alone
from minise.layout import Layout
from minise.method import Plan


class _Pass(NamedTuple):
    """One pass of the model: the library's output, and the final norm with its input and output."""

    output: Any
    norm: nn.Module
    unnormed: Tensor
    normed: Tensor


def _fault(library: Library, engine: str) -> str:
    """Why the model cannot run an engine; empty if it can."""
    try:
        library.check(engine)
    except InputError as error:
        return str(error)
    return ""


class WatchedLibrary:
    """The `Watch` (watch.py) of a library's model. What it shows is tried on one prompt first."""

    def __init__(self, library: Library, prompt: list[int]) -> None:
        self.library, facts = library, library.config
        self.layers, self.attention = facts.num_hidden_layers, facts.attention
        self.positions: float = facts.max_position_embeddings
        self.windows = [] if facts.window is None else [facts.window]
        self.left_out: list[str] = []
        if size := facts.chunk or facts.index_window:
            kind = "attention chunks" if facts.chunk else "own window"
            self.left_out.append(f"Part 2 has no switch for this model's {kind} of {size} tokens.")
        cache_fault, self.packing_fault = (_fault(library, name) for name in ("tree", "dense"))
        self.engine = "separate" if cache_fault else "cache"
        if cache_fault:
            self.left_out.append(f"Each prompt was asked by itself. {cache_fault}.")
        one_pass = self._run_alone(prompt)
        self._prompt, self._norm = prompt, one_pass.norm
        self.heads = 0
        if self._works(lambda: self._weights(len(prompt), one_pass)):
            weights = self._weights(len(prompt), one_pass)
            self.heads = weights.shape[1]
            if (weights.sum(dim=-1) - 1).abs().max() > 0.01:
                sink = "a sink, for example, that is no token"
                self.left_out.append(f"Attention weights do not sum to 1 in this model: {sink}.")
        self.traces = self._works(lambda: self._trace(one_pass))
        self.reads = self.traces and self._works(lambda: self._try_readouts(prompt, one_pass))

    def _works(self, part: Callable[[], object]) -> bool:
        """Whether the model shows a part. If not, the reason is noted."""
        try:
            part()
        except Unsuited as error:
            self.left_out.append(f"{error}.")
            return False
        return True

    def alone(self, prompt: list[int], label_ids: Sequence[int]) -> Alone:
        one_pass = self._run_alone(prompt)
        readouts: list[list[float]] = []
        if self.reads:
            logits = self._readouts(prompt, one_pass)[:, list(label_ids)]
            readouts = logits.double().softmax(dim=-1).tolist()
        trace = [rows[0] for rows in self._trace(one_pass)] if self.traces else []
        weights = self._weights(len(prompt), one_pass) if self.heads else None
        return Alone(trace, weights, readouts)

    def readouts(self, rows: Tensor, label_ids: Sequence[int]) -> list[list[float]]:
        if not self.reads:
            return []
        logits = self._read(rows, self._prompt, self._norm)[:, list(label_ids)]
        return logits.double().softmax(dim=-1).tolist()

    def weights(self, layout: Layout) -> Tensor:
        run = partial(self.library.packed, layout)
        return self._weights(len(layout.tokens), self._passes(run, output_attentions=True)[-1])

    def packed(self, run: Callable[[], object]) -> Trace:
        return [rows[0] for rows in self._trace(self._passes(run)[-1])]

    def tree(self, plan: Plan, rows: Sequence[int]) -> Trace:
        """From the pass of the prefix and the batches behind its cache. `rows` plays no part: the
        library's tree merges nothing but the prefix."""
        passes = self._passes(lambda: self.library.cached(plan.prefix, plan.branches))
        traces = [self._trace(one_pass) for one_pass in passes]
        cached = len(plan.prefix) - (not all(plan.branches))  # tokens in the cache
        firsts, batches = (traces[::2], traces[1::2]) if cached else ([], traces)
        layers: list[list[Tensor]] = [[] for _ in traces[0]]
        places = [(i, row) for i, batch in enumerate(batches) for row in range(len(batch[0]))]
        for group, ((i, row), branch) in enumerate(zip(places, plan.branches, strict=True)):
            start = len(plan.prefix) if group else 0  # the packed sequence has the prefix once
            for layer, parts in enumerate(layers):
                first = firsts[i][layer][0] if cached else batches[i][layer][0, :0]
                prompt = torch.cat([first, batches[i][layer][row]])
                parts.append(prompt[start : len(plan.prefix) + len(branch)])
        return [torch.cat(parts) for parts in layers]

    def _run_alone(self, prompt: list[int]) -> _Pass:
        """The one pass of a prompt alone."""
        more = {"output_attentions": True} if self.attention == "eager" else {}
        return self._passes(lambda: self.library.alone(prompt), **more)[-1]

    def _passes(self, run: Callable[[], object], **outputs: bool) -> list[_Pass]:
        """Every pass of the model in `run`, with hidden states and the `outputs` in its output."""
        network, passes, last_norm = self.library.network, list[_Pass](), list[Any]()
        outputs["output_hidden_states"] = True

        def add_outputs(_: object, inputs: Any, options: dict[str, Any]) -> Any:
            return inputs, {**options, **outputs}

        def note_norm(norm: nn.Module, inputs: tuple[Any, ...], normed: Any) -> None:
            last_norm[:] = [norm, inputs[0] if inputs else None, normed]

        def end(_: object, inputs: object, output: Any) -> None:
            passes.append(_Pass(output, *(last_norm or [None] * 3)))

        # A layer's own norms have the layer's number in their names. The final norm has none.
        modules = network.named_modules()
        outer = [module for name, module in modules if not re.search(r"\.\d+\.", name)]
        norms = [module for module in outer if "norm" in type(module).__name__.lower()]
        hooks = [norm.register_forward_hook(note_norm) for norm in norms]
        hooks.append(network.register_forward_pre_hook(add_outputs, with_kwargs=True))
        hooks.append(network.register_forward_hook(end))
        try:
            run()
        finally:
            for hook in hooks:
                hook.remove()
        return passes

    def _trace(self, one_pass: _Pass) -> list[Tensor]:
        """(B, T, D) after each layer and after the final norm. The library returns the last layer's
        rows only after the final norm; the rows before it are taken from the norm's input."""
        hidden = list(getattr(one_pass.output, "hidden_states", None) or ())[1:]
        rows = [*hidden[:-1], one_pass.unnormed, one_pass.normed]
        shapes = {getattr(states, "shape", None) for states in [*rows, *hidden]}
        complete = len(hidden) == self.layers and len(shapes) == 1
        if not complete or not torch.equal(one_pass.normed, hidden[-1]):
            states = "hidden states after each layer, before and after the final norm"
            raise Unsuited(f"Equality and readouts: the library does not tell {states}")
        return rows

    def _weights(self, T: int, one_pass: _Pass) -> Tensor:
        """(L, heads, T, T)."""
        if self.attention != "eager":
            remedy = 'load the model with attn_implementation="eager"'
            raise Unsuited(f"Attention weights: {self.attention} does not tell them; {remedy}")
        layers: Any = getattr(one_pass.output, "attentions", None) or ()
        shapes = {getattr(weights, "shape", None) for weights in layers}
        if len(layers) != self.layers or len(shapes) > 1 or layers[0].shape[2:] != (T, T):
            raise Unsuited("Attention weights: the library does not tell them for every layer")
        weights = torch.cat(layers)
        if weights.min() < 0 or weights.max() > 1:
            raise Unsuited("Attention weights: in this model they are not between 0 and 1")
        return weights

    def _readouts(self, prompt: list[int], one_pass: _Pass) -> Tensor:
        """The logits (L, V) after the prompt as read out after each layer."""
        layers = self._trace(one_pass)[:-1]
        rows = torch.stack([layer[0, -1].to(one_pass.unnormed) for layer in layers])
        return self._read(rows, prompt, one_pass.norm)

    def _read(self, rows: Tensor, prompt: list[int], norm: nn.Module) -> Tensor:
        """The logits (L, V) of the rows (L, D): from a pass whose final norm gets them. All that
        follows the norm is the model's own. `prompt`: any tokens."""
        tokens = torch.tensor([(prompt * self.layers)[: self.layers]], device=rows.device)
        hook = norm.register_forward_pre_hook(lambda _, inputs: (rows[None], *inputs[1:]))
        try:
            output = self.library.network(input_ids=tokens, use_cache=False, return_dict=True)
        finally:
            hook.remove()
        logits: Tensor = output.logits[0]
        return logits

    def _try_readouts(self, prompt: list[int], one_pass: _Pass) -> None:
        """Raise Unsuited if what is read out after the last layer is not the model's answer."""
        try:
            logits = self._readouts(prompt, one_pass)[-1:]
        except Exception as error:  # any error of a model that does not support such rows
            raise Unsuited(f"Readouts: the library fails: {one_line(error)}") from None
        most = min(self.library.rounding(prompt), TOO_MUCH)
        if relative(self.library.alone(prompt), logits) > most:
            raise Unsuited("Readouts: what its final norm gets does not make the model's logits")
