"""How a model of the transformers library runs prompts, and whether its ways are exact.

separate: every prompt alone, as the library runs it by itself; the definition. dense: the packed
sequence with a 4-D mask and position ids. tree: what the prompts share goes into the library's
cache once, and the rest of them are a batch behind it.

Whether the library does what a mask, position ids or its cache say depends on the family. So dense
and tree are tried on a few random tokens when they are first used, and refused in one line where
they do not give the numbers of separate. promises.py tells which promise fails.
"""

from __future__ import annotations

import hashlib
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

UNLIMITED = 2**20  # positions of a model that names no limit
TOKENS_PER_BATCH = 2**14  # in a batch behind the cache, with the cached ones and the padding
FACTOR = 4  # how many times a model's own rounding may part two runs of one prompt
TOO_MUCH = 0.5  # of a row of logits: where rounding may move so much, nothing can be told
KINDS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
# Windows that some families apply by themselves, by index and beside a 4-D mask.
OWN_WINDOWS = ("window_size", "attention_window_size", "local_window_size")


@dataclass(frozen=True)
class Facts:
    """What minise asks of a config. kinds: of each layer's attention, as the library calls them;
    empty where all are alike. window, chunk: in positions, where there is one."""

    model_type: str
    vocab_size: int
    max_position_embeddings: int
    num_hidden_layers: int
    kinds: tuple[str, ...]
    window: int | None
    chunk: int | None
    own_window: int | None
    attention: str
    library: str

    def __getattr__(self, name: str) -> Any:
        raise _absent(name, f"a {self.model_type} of the transformers library")

    @classmethod
    def of(cls, model: Any) -> Facts:
        """Those of a model."""
        import transformers

        config = model.config.get_text_config(decoder=True)
        kinds = tuple(getattr(config, "layer_types", None) or ())
        window, chunk = (getattr(config, name, None) for name in KINDS.values())
        off = getattr(config, "use_sliding_window", True) is False
        limits = ("max_position_embeddings", "max_seq_len", "seq_length")
        own = [getattr(config, name, None) for name in OWN_WINDOWS]
        return cls(
            model_type=config.model_type,
            vocab_size=config.vocab_size,
            max_position_embeddings=next(
                (n for name in limits if type(n := getattr(config, name, None)) is int), UNLIMITED
            ),
            num_hidden_layers=config.num_hidden_layers,
            kinds=kinds,
            window=None if off or (kinds and "sliding_attention" not in kinds) else window,
            chunk=chunk if "chunked_attention" in kinds else None,
            own_window=next((n for n in own if type(n) is int and n > 0), None),
            attention=model.config._attn_implementation or "eager",
            library=f"transformers {transformers.__version__}",
        )


class Library:
    """The library's model in the place of a `Decoder`. It runs prompts itself."""

    def __init__(self, model: Any, base: Any, name: str) -> None:
        self.model, self.name, self.config = model, name, Facts.of(base)
        self.takes = inspect.signature(base.forward).parameters.keys()
        self.embedding = base.get_input_embeddings()
        self.cache = next((n for n in ("past_key_values", "cache_params") if n in self.takes), "")
        self._reasons: dict[str, str] = {}  # by engine, why it is refused; empty: it is exact

    def __getattr__(self, name: str) -> Any:
        raise _absent(name, self.name)

    def __call__(self, *given: object) -> Tensor:
        raise _absent("forward", self.name)

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.model.parameters()

    def modules(self) -> Iterator[nn.Module]:
        return self.model.modules()

    def identity(self) -> dict[str, Any]:
        """What tells this model from another: a few values of every tensor."""
        digest = hashlib.sha256()
        for name, tensor in self.model.named_parameters():
            values = tensor.detach().flatten()
            some = values[:: max(1, len(values) // 64)].to("cpu", copy=True)
            digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            digest.update(some.contiguous().view(torch.uint8).numpy().tobytes())
        return {"weights_sha256": digest.hexdigest()}

    # What engines.py asks for. The ends of prompts are whole rows of logits here.

    def branch_ends(
        self, prefix: Sequence[int], branches: Sequence[Sequence[int]], engine: str
    ) -> Tensor:
        """The logits (G, V) after each prompt. Raises InputError for an engine that is not exact on
        this model."""
        # A packed sequence in one call of that library is the engine plain as well.
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

    def watched(self, prompt: list[int]) -> Any:
        """What it tells of its inside, for `minise explain`; tried on a prompt."""
        from minise.bridges.watching import Watched

        return Watched(self, prompt)

    def layout_ends(self, layout: Layout) -> Tensor:
        """The logits (G, V) at the ends of a layout, run with its mask and positions."""
        if (own := self.config.own_window) and own < (T := len(layout.tokens)):
            told = f"its own window of {own} is by index, and there are {T} packed tokens"
            raise InputError(f"{self.name}: {told}; use the engine separate or tree")
        return self.packed(layout)

    def logits(self, ends: Tensor, columns: Tensor | None = None) -> Tensor:
        """Those of the columns (C,): (G, C)."""
        return ends if columns is None else ends[:, columns]

    # The ways to run prompts.

    def alone(self, prompt: Sequence[int]) -> Tensor:
        """The logits (1, V) after a prompt, as the library runs it by itself."""
        return self.within(prompt, len(prompt) - 1)

    def within(self, prompt: Sequence[int], row: int) -> Tensor:
        """The logits (1, V) after a token inside a prompt."""
        return self._run(torch.tensor([prompt]), torch.tensor([row]))[0]

    def unmasked(self, layout: Layout) -> Tensor:
        """The logits (G, V) at the ends of a layout without a mask."""
        at = layout.positions[None].to(self.device)
        return self._run(layout.tokens[None], layout.ends, position_ids=at)[0]

    def packed(self, layout: Layout, windows: bool = True) -> Tensor:
        """The logits (G, V) at the ends of a layout under a 4-D mask. The library takes such a mask
        as it is, so the model's windows have to be in it: `windows=False` leaves them out."""
        check_mask_fits(len(layout.tokens))
        given = {"attention_mask": self._masks(layout, windows)}
        if "position_ids" in self.takes:
            given["position_ids"] = layout.positions[None].to(self.device)
        return self._run(layout.tokens[None], layout.ends, **given)[0]

    def cached(self, prefix: Sequence[int], branches: Sequence[Sequence[int]]) -> list[Tensor]:
        """The logits (G, V), in pieces, after the prefix ran once and the branches, padded on the
        right, as batches behind its cache."""
        if not all(branches):  # a prompt that ends with the prefix
            prefix, branches = prefix[:-1], [[prefix[-1], *branch] for branch in branches]
        rows = max(1, TOKENS_PER_BATCH // (len(prefix) + max(map(len, branches))))
        pieces = []
        for start in range(0, len(branches), rows):
            piece = branches[start : start + rows]
            lengths = torch.tensor([len(branch) for branch in piece])
            width, P = int(lengths.max()), len(prefix)
            tokens = torch.tensor([[*b, *b[-1:] * (width - len(b))] for b in map(list, piece)])
            kept = torch.arange(P + width) < P + lengths[:, None]
            given: dict[str, Any] = {"attention_mask": kept.long().to(self.device)}
            if "position_ids" in self.takes:
                at = torch.arange(P, P + width, device=self.device)
                given["position_ids"] = at.expand(len(piece), -1)
            if prefix:
                given |= {self.cache: self._prefilled(prefix, len(piece)), "use_cache": True}
            read = lengths.unique() - 1
            found = self._run(tokens, read, **given)
            column = torch.searchsorted(read, lengths - 1).to(found.device)
            pieces.append(found[torch.arange(len(piece), device=found.device), column])
        return pieces

    def _prefilled(self, prefix: Sequence[int], rows: int) -> Any:
        """The library's cache after the prefix, for a batch of `rows`."""
        tokens = torch.tensor([list(prefix)], device=self.device)
        fewer = {"logits_to_keep": 1} if "logits_to_keep" in self.takes else {}
        output = self.model(input_ids=tokens, use_cache=True, return_dict=True, **fewer)
        cache = getattr(output, self.cache)
        cache.reorder_cache(torch.zeros(rows, dtype=torch.long, device=self.device))
        return cache

    def _run(self, tokens: Tensor, read: Tensor, **given: Any) -> Tensor:
        """The logits (B, R, V) of a batch (B, T) at the columns `read` (R,)."""
        read = read.to(self.device)
        if keeps := "logits_to_keep" in self.takes:
            given["logits_to_keep"] = read
        given = {"use_cache": False, **given}
        output = self.model(input_ids=tokens.to(self.device), return_dict=True, **given)
        return output.logits if keeps else output.logits[:, read]

    def _masks(self, layout: Layout, windows: bool) -> Tensor | dict[str, Tensor]:
        """The 4-D mask, or one for each kind of layer where the model has several."""
        config, at = self.config, layout.positions
        seen, apart = layout.mask, at[:, None] - at
        narrow = {"full_attention": seen, "sliding_attention": seen, "chunked_attention": seen}
        if windows and config.window is not None:
            narrow["sliding_attention"] = seen & (apart < config.window)
        if windows and config.chunk is not None:
            narrow["chunked_attention"] = seen & (at[:, None] // config.chunk == at // config.chunk)
        if windows and set(config.kinds) & KINDS.keys():
            return {kind: self._added(narrow[kind]) for kind in narrow if kind in config.kinds}
        return self._added(seen if config.kinds else narrow["sliding_attention"])

    def _added(self, mask: Tensor) -> Tensor:
        """A boolean mask (T, T) in the library's form: added to the scores, (1, 1, T, T)."""
        added = torch.zeros(mask.shape, dtype=self.dtype)
        added.masked_fill_(~mask, torch.finfo(self.dtype).min)
        return added[None, None].to(self.device)

    # Whether they are exact.

    @torch.no_grad()
    def rounding(self, prompt: Sequence[int]) -> float:
        """How far rounding may part two runs of a prompt, as part of a row of logits: FACTOR times
        as far as the embedding's last bits do."""
        eps = torch.finfo(torch.promote_types(self.dtype, torch.bfloat16)).eps
        eps = max(eps, torch.finfo(torch.float32).eps)  # inside, the library is float32 at most
        signs = torch.Generator().manual_seed(0)

        def shake(_: object, given: object, output: Tensor) -> Tensor:
            sign = torch.randint(2, output.shape, generator=signs).to(output) * 2 - 1
            return output * (1 + eps * sign)

        plain = self.alone(prompt)
        hook = self.embedding.register_forward_hook(shake)
        try:
            moved = [relative(plain, self.alone(prompt)) for _ in range(3)]
        finally:
            hook.remove()
        return FACTOR * max(*moved, eps)

    @torch.no_grad()
    def _why_not(self, engine: str) -> str:
        """Why an engine does not give the numbers of separate runs on random tokens; empty where it
        does."""
        if engine == "tree" and not self.cache:
            return "it has no cache"
        prefix, branches, alone, most = self._tried
        try:
            if engine == "dense":
                found = self.packed(pack(prefix, branches))
            else:
                found = torch.cat(self.cached(prefix, branches))
        except Exception as error:  # whatever a model makes of what it does not take
            return f"the library fails: {one_line(error)}"
        if (apart := relative(alone, found)) <= most:
            return ""
        return f"logits are off by {apart:.0e}, and rounding explains {most:.0e}"

    @cached_property
    def _tried(self) -> tuple[list[int], list[list[int]], Tensor, float]:
        """Prompts of random tokens, their logits in separate runs, and what rounding explains."""
        draw, sizes = torch.Generator().manual_seed(0), (17, 7, 5, 6, 1)
        drawn = (torch.randint(self.config.vocab_size, (n,), generator=draw) for n in sizes)
        prefix, *branches = (tokens.tolist() for tokens in drawn)
        alone = torch.cat([self.alone(prefix + branch) for branch in branches])
        return prefix, branches, alone, min(self.rounding(prefix + branches[0]), TOO_MUCH)


def _absent(name: str, model: str) -> Exception:
    """What minise's own decoder has and the library's model has not."""
    if name.startswith("__"):  # Python asks for many of these
        return AttributeError(name)
    return Unsuited(f"{model}: this needs minise's own decoder; load it by minise.load")
