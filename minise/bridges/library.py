"""How a model of the transformers library runs prompts, and whether each engine is exact on it.

separate: every prompt alone, as the library runs it by itself; the definition. dense: the packed
sequence with a 4-D mask and position ids. tree: the prefix that all prompts share goes into the
library's cache once; the rest of each prompt is a row of a batch behind it.

Whether the library follows a mask, position ids and its cache depends on the family. So dense and
tree are tried on a few random tokens when they are first used. An engine that does not give the
numbers of separate is refused in one line. promises.py finds out which promise fails.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from minise.checking.traces import relative
from minise.engines import check_mask_fits
from minise.errors import InputError, Unsuited, one_line
from minise.layout import Layout, pack

UNLIMITED = 2**20  # positions of a model whose config names no limit
TOKENS_PER_BATCH = 2**14  # in a batch behind the cache, cached tokens and padding included
FACTOR = 4  # two runs of one prompt may differ by this many times the model's own rounding
TOO_MUCH = 0.5  # of a row of logits: if rounding may move so much, no comparison says anything
KINDS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
# Windows that some families apply by index, in addition to a 4-D mask.
INDEX_WINDOWS = ("window_size", "attention_window_size", "local_window_size")


@dataclass(frozen=True)
class Facts:
    """What minise reads from a config.

    kinds: each layer's kind of attention, by the library's names; empty if all layers are alike.
    window, chunk: in positions; None if the model has none. index_window: a window in tokens that
    the model applies by index, in addition to any mask. attention: the implementation, such as
    "eager". library: its name and version.
    """

    model_type: str
    vocab_size: int
    max_position_embeddings: int
    num_hidden_layers: int
    kinds: tuple[str, ...]
    window: int | None
    chunk: int | None
    index_window: int | None
    attention: str
    library: str

    def __getattr__(self, name: str) -> Any:
        raise _missing(name, f"a {self.model_type} of the transformers library")

    @classmethod
    def of(cls, model: Any) -> Facts:
        """The facts of a model of the library."""
        import transformers

        config = model.config.get_text_config(decoder=True)
        kinds = tuple(getattr(config, "layer_types", None) or ())
        window, chunk = (getattr(config, name, None) for name in KINDS.values())
        off = getattr(config, "use_sliding_window", True) is False
        names = ("max_position_embeddings", "max_seq_len", "seq_length")
        limits = [n for name in names if type(n := getattr(config, name, None)) is int]
        sizes = [n for name in INDEX_WINDOWS if type(n := getattr(config, name, None)) is int]
        return cls(
            model_type=config.model_type,
            vocab_size=config.vocab_size,
            max_position_embeddings=limits[0] if limits else UNLIMITED,
            num_hidden_layers=config.num_hidden_layers,
            kinds=kinds,
            window=None if off or (kinds and "sliding_attention" not in kinds) else window,
            chunk=chunk if "chunked_attention" in kinds else None,
            index_window=next((size for size in sizes if size > 0), None),
            attention=model.config._attn_implementation or "eager",
            library=f"transformers {transformers.__version__}",
        )


class Library:
    """The library's model, used where minise's own models have a `Decoder`. It runs whole prompts.

    network: the model as it was given, adapters included. takes: the parameters of its `forward`.
    cache: the parameter that takes the library's cache, empty if there is none. What a `Decoder`
    has and this lacks raises Unsuited when it is looked up.
    """

    def __init__(self, network: Any, base: Any, name: str) -> None:
        self.network, self.name, self.config = network, name, Facts.of(base)
        self.takes = inspect.signature(base.forward).parameters.keys()
        self.embedding = base.get_input_embeddings()
        self.cache = next((n for n in ("past_key_values", "cache_params") if n in self.takes), "")
        self._reasons: dict[str, str] = {}  # by engine: why it is refused, empty if it is exact

    def __getattr__(self, name: str) -> Any:
        raise _missing(name, self.name)

    def __call__(self, *arguments: object) -> Tensor:
        raise _missing("forward", self.name)

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.network.parameters()

    def modules(self) -> Iterator[nn.Module]:
        return self.network.modules()

    # What `LibraryModel` runs. The "ends" of prompts are whole rows of logits here.

    def branch_ends(
        self, prefix: Sequence[int], branches: Sequence[Sequence[int]], engine: str
    ) -> Tensor:
        """The logits (G, V) after each prompt. Raises InputError for an engine that is not exact on
        this model."""
        # One call of the library on a packed sequence is the engine plain, too.
        engine = "dense" if engine == "plain" else engine
        if engine == "separate":
            return torch.cat([self.alone([*prefix, *branch]) for branch in branches])
        self.check(engine)
        if engine == "dense":
            return self.layout_ends(pack(prefix, branches))
        return torch.cat(self.cached(prefix, branches))

    def check(self, engine: str) -> None:
        """Raise InputError for dense or tree where it is not exact on this model."""
        if engine not in self._reasons:
            self._reasons[engine] = self._why_not(engine)
        if reason := self._reasons[engine]:
            other = "use the engine separate; minise verify tells more"
            raise InputError(f"{self.name}: engine {engine} is not exact here ({reason}); {other}")

    def layout_ends(self, layout: Layout) -> Tensor:
        """The logits (G, V) at the ends of a layout, run with its mask and positions."""
        window, T = self.config.index_window, len(layout.tokens)
        if window and window < T:
            reason = f"its own window of {window} is by index, and there are {T} packed tokens"
            raise InputError(f"{self.name}: {reason}; use the engine separate or tree")
        return self.packed(layout)

    def logits(self, ends: Tensor, columns: Tensor | None = None) -> Tensor:
        """The logits of "ends" (G, V): the same, or those of the token ids `columns`, (G, C)."""
        return ends if columns is None else ends[:, columns]

    # The ways to run prompts. All logits are in the model's dtype, on its device.

    def alone(self, prompt: Sequence[int]) -> Tensor:
        """The logits (1, V) after a prompt, as the library runs it by itself."""
        return self.within(prompt, len(prompt) - 1)

    def within(self, prompt: Sequence[int], row: int) -> Tensor:
        """The logits (1, V) after a token inside a prompt."""
        return self._run(torch.tensor([prompt]), torch.tensor([row]))[0]

    def unmasked(self, layout: Layout) -> Tensor:
        """The logits (G, V) at the ends of a layout without a mask."""
        positions = layout.positions[None].to(self.device)
        return self._run(layout.tokens[None], layout.ends, position_ids=positions)[0]

    def packed(self, layout: Layout, windows: bool = True) -> Tensor:
        """The logits (G, V) at the ends of a layout under a 4-D mask. The library uses such a mask
        as it is, so the model's windows have to be in it: `windows=False` leaves them out."""
        check_mask_fits(len(layout.tokens))
        arguments = {"attention_mask": self._masks(layout, windows)}
        if "position_ids" in self.takes:
            arguments["position_ids"] = layout.positions[None].to(self.device)
        return self._run(layout.tokens[None], layout.ends, **arguments)[0]

    def cached(self, prefix: Sequence[int], branches: Sequence[Sequence[int]]) -> list[Tensor]:
        """The logits (G, V), in pieces, after each prompt. The prefix runs once. The branches,
        padded on the right, run in batches behind its cache."""
        if not all(branches):  # one prompt is the prefix alone: run the prefix's last token again
            prefix, branches = prefix[:-1], [[prefix[-1], *branch] for branch in branches]
        rows = max(1, TOKENS_PER_BATCH // (len(prefix) + max(map(len, branches))))
        pieces = []
        for start in range(0, len(branches), rows):
            batch = [list(branch) for branch in branches[start : start + rows]]
            lengths = torch.tensor([len(branch) for branch in batch])
            width, P = int(lengths.max()), len(prefix)
            tokens = torch.tensor([[*b, *b[-1:] * (width - len(b))] for b in batch])
            real = torch.arange(P + width) < P + lengths[:, None]
            arguments: dict[str, Any] = {"attention_mask": real.long().to(self.device)}
            if "position_ids" in self.takes:
                positions = torch.arange(P, P + width, device=self.device)
                arguments["position_ids"] = positions.expand(len(batch), -1)
            if prefix:
                arguments[self.cache] = self._prefilled(prefix, len(batch))
                arguments["use_cache"] = True
            # The library computes logits for the same columns of every row.
            columns = lengths.unique() - 1
            logits = self._run(tokens, columns, **arguments)
            place = torch.searchsorted(columns, lengths - 1).to(logits.device)
            pieces.append(logits[torch.arange(len(batch), device=logits.device), place])
        return pieces

    def _prefilled(self, prefix: Sequence[int], rows: int) -> Any:
        """The library's cache after the prefix, for a batch of `rows`."""
        tokens = torch.tensor([list(prefix)], device=self.device)
        fewer = {"logits_to_keep": 1} if "logits_to_keep" in self.takes else {}
        output = self.network(input_ids=tokens, use_cache=True, return_dict=True, **fewer)
        cache = getattr(output, self.cache)
        cache.reorder_cache(torch.zeros(rows, dtype=torch.long, device=self.device))
        return cache

    def _run(self, tokens: Tensor, columns: Tensor, **arguments: Any) -> Tensor:
        """The logits (B, C, V) of a batch (B, T) at its columns `columns` (C,)."""
        columns = columns.to(self.device)
        arguments = {"use_cache": False, **arguments}
        keeps = "logits_to_keep" in self.takes
        if keeps:
            arguments["logits_to_keep"] = columns
        output = self.network(input_ids=tokens.to(self.device), return_dict=True, **arguments)
        return output.logits if keeps else output.logits[:, columns]

    def _masks(self, layout: Layout, windows: bool) -> Tensor | dict[str, Tensor]:
        """The 4-D mask, or one for each kind of layer if the model has several."""
        config, positions, mask = self.config, layout.positions, layout.mask
        rows = positions[:, None]
        masks = dict.fromkeys(("full_attention", *KINDS), mask)
        if windows and config.window is not None:
            masks["sliding_attention"] = mask & (rows - positions < config.window)
        if windows and config.chunk is not None:
            masks["chunked_attention"] = mask & (rows // config.chunk == positions // config.chunk)
        if windows and set(config.kinds) & KINDS.keys():
            return {kind: self._added(masks[kind]) for kind in masks if kind in config.kinds}
        return self._added(mask if config.kinds else masks["sliding_attention"])

    def _added(self, mask: Tensor) -> Tensor:
        """A boolean mask (T, T) in the library's form: numbers (1, 1, T, T) to add to scores."""
        added = torch.zeros(mask.shape, dtype=self.dtype)
        added.masked_fill_(~mask, torch.finfo(self.dtype).min)
        return added[None, None].to(self.device)

    # Whether the engines are exact.

    @torch.no_grad()
    def rounding(self, prompt: Sequence[int]) -> float:
        """How far rounding may move a prompt's logits, as a part of the size of their row: FACTOR
        times as far as changes in the last bits of the embedding do."""
        eps = torch.finfo(torch.promote_types(self.dtype, torch.bfloat16)).eps
        eps = max(eps, torch.finfo(torch.float32).eps)  # inside, the library is float32 at most
        draw = torch.Generator().manual_seed(0)

        def shake(_: object, inputs: object, output: Tensor) -> Tensor:
            sign = torch.randint(2, output.shape, generator=draw).to(output) * 2 - 1
            return output * (1 + eps * sign)

        logits = self.alone(prompt)
        hook = self.embedding.register_forward_hook(shake)
        try:
            shifts = [relative(logits, self.alone(prompt)) for _ in range(3)]
        finally:
            hook.remove()
        return FACTOR * max(*shifts, eps)

    @torch.no_grad()
    def _why_not(self, engine: str) -> str:
        """Why an engine does not give the numbers of separate runs on random tokens; empty if it
        does."""
        if engine == "tree" and not self.cache:
            return "it has no cache"
        prefix, branches, expected, most = self._trial
        try:
            if engine == "dense":
                logits = self.packed(pack(prefix, branches))
            else:
                logits = torch.cat(self.cached(prefix, branches))
        except Exception as error:  # any error of a model that does not support such a call
            return f"the library fails: {one_line(error)}"
        difference = relative(expected, logits)
        if difference <= most:
            return ""
        return f"logits are off by {difference:.0e}, and rounding explains {most:.0e}"

    @cached_property
    def _trial(self) -> tuple[list[int], list[list[int]], Tensor, float]:
        """Prompts of random tokens (prefix and branches), their logits in separate runs, and the
        largest difference that rounding explains."""
        draw, lengths = torch.Generator().manual_seed(0), (17, 7, 5, 6, 1)
        texts = (torch.randint(self.config.vocab_size, (n,), generator=draw) for n in lengths)
        prefix, *branches = (tokens.tolist() for tokens in texts)
        logits = torch.cat([self.alone(prefix + branch) for branch in branches])
        return prefix, branches, logits, min(self.rounding(prefix + branches[0]), TOO_MUCH)


def _missing(name: str, model: str) -> Exception:
    """The error for an attribute that minise's own decoder has and the library's model lacks."""
    if name.startswith("__"):  # Python looks many of these up
        return AttributeError(name)
    return Unsuited(f"{model}: this needs minise's own decoder; load it by minise.load")
