"""Tensors of symbols: decoders run on them as they are, and nothing is computed but hashes.

An element of a `Symbols` is a 64-bit hash of what made it: the operation, the weight's name, the
hashes that went in. Functions that only move elements move the hashes; the operations of a decoder
make new ones; any other raises TypeError. Positions, token ids and masks are ordinary tensors. Two
elements that were not made alike have the same hash with a chance of 2**-64; a row has two.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minise.config import Config
from minise.equal_bits.attention import BLOCK, FEW, MANY
from minise.equal_bits.decoder import EqualBits
from minise.equal_bits.probe import Shape, numbers_for
from minise.lm import LocalModel
from minise.model import Decoder

# Functions that move elements, or ask for something other than their values.
_MOVES = (
    "getitem setitem len any cat chunk clone contiguous cpu data_ptr dim element_size expand "
    "flatten flip index_copy index_select new_empty new_zeros pad permute repeat_interleave "
    "reshape size split stack transpose unbind unflatten view"
)
MOVES = frozenset(_MOVES.split())
ELEMENTWISE = {"add", "iadd", "radd", "mul", "imul", "rmul", "neg", "square", "rsqrt", "silu"}


class Symbols(Tensor):
    """int64 hashes, which call themselves float64. Made by this class, a hash says what a number is
    in exact arithmetic: attention is its query, and the keys and values that it sees in any order.
    """

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.__name__.strip("_")
        with torch._C.DisableTorchFunctionSubclass():
            if function.__name__ == "__get__":
                name = function.__self__.__name__  # an attribute, such as `shape`
                return torch.float64 if name == "dtype" else function(*args)
            if name in MOVES:
                return _as(cls, function(*args, **kwargs or {}))
            if name in ELEMENTWISE:
                return _as(cls, hashed(name, *args))
            if name not in _OPERATIONS:
                raise TypeError(f"no symbol is known for {function.__name__}")
            return _as(cls, _OPERATIONS[name](cls is CallSymbols, *args, **kwargs or {}))


class CallSymbols(Symbols):
    """The same, and a hash names the shapes of the calls: it says what the bits of a number are. So
    attention has the numbers of queries and keys, and the place of each key that is seen; a linear
    layer the number of its rows, unless it is one of those measured to give the same bits."""


def _as(cls: type[Symbols], result: Any) -> Any:
    """A result with its int64 tensors made symbols."""
    if isinstance(result, tuple | list):
        return type(result)(_as(cls, one) for one in result)
    is_hashes = isinstance(result, Tensor) and result.dtype == torch.int64
    return result.as_subclass(cls) if is_hashes else result


def hashed(name: str, *parts: Any) -> Tensor:
    """The hash of an operation on these parts, element by element, with broadcasting."""
    total = torch.tensor(_odd(name, -1))
    for place, part in enumerate(parts):
        total = torch.add(total, _bits(part), alpha=_odd(name, place))
    return _mixed(total)


def _mixed(hashes: Tensor) -> Tensor:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection in which every bit of the
    result depends on every bit of the argument. In numpy, because torch cannot shift uint64."""
    x: Any = hashes.numpy().view(np.uint64)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    result: Tensor = torch.from_numpy(np.asarray(x ^ x >> np.uint64(31)).view(np.int64))
    return result


@lru_cache(65536)
def _odd(name: str, place: int) -> int:
    """A factor for this part of this operation: odd, so that no bit is lost."""
    digest = hashlib.sha256(f"{name}/{place}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True) | 1


def _bits(part: Any) -> Tensor:
    """Hashes or integers as they are; floats as their bits: 1 and 1.0 are not the same."""
    x = torch.tensor(part, dtype=torch.float64) if isinstance(part, float) else part
    x = torch.as_tensor(x).as_subclass(Tensor)
    return x.double().view(torch.int64) if x.is_floating_point() else x


def _sum(_: bool, x: Tensor, dim: int = -1, keepdim: bool = False, name: str = "sum") -> Tensor:
    result = hashed(name, *x.as_subclass(Tensor).unbind(dim))
    return result.unsqueeze(dim) if keepdim else result


def _linear(by_calls: bool, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out = _sum(by_calls, hashed("mul", x[..., None, :], weight))
    out = out if bias is None else hashed("add", out, bias)
    if not by_calls:
        return out
    (outputs, inputs), rows = weight.shape, x.shape[:-1].numel()
    shape = Shape(inputs, outputs, bias is not None, torch.float64, torch.get_num_threads())
    return hashed("linear", out, 0 if rows in numbers_for(shape) else rows)


def _attention(
    by_calls: bool, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """q (..., L, h), k (..., S, h), v (..., S, w), attn_mask (..., L, S) bool: what is read, (...,
    L, w), and in place of the log of the sum (..., L) a hash of the query. The first is the second
    and a sum over the keys, so that two parts of the keys can be joined by a sum."""
    L, S = q.shape[-2], k.shape[-2]
    # In the symbolic model one or two query heads share keys.
    many = by_calls and L not in {n * shared for n in (*FEW, BLOCK, *MANY) for shared in (1, 2)}
    call = (L if many else 0, S, int(attn_mask is None)) if by_calls else ()
    attn_mask = torch.ones(1, L, S) if attn_mask is None else attn_mask
    place = torch.arange(S)[:, None] if by_calls else 0
    read = hashed("key and value", _sum(by_calls, k, keepdim=True), v, place)
    seen = attn_mask.long() @ read
    # 1 / sqrt(h) and h**-0.5 differ in their last digit.
    asked = hashed("attention", _sum(by_calls, q), round(scale, 12), *call)
    return asked[..., None] + seen, asked


def _joined(by_calls: bool, one: Any, other: Any) -> tuple[Tensor, Tensor]:
    (a, asked), (b, again) = (tuple(x.as_subclass(Tensor) for x in part) for part in (one, other))
    if by_calls:
        asked = hashed("joined", asked, again)
        return hashed("joined", a, b, asked[..., None]), asked
    return a + b - asked[..., None], asked


def _one_call(
    by_calls: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch's `scaled_dot_product_attention`: q (B, H, L, h), k and v (B, K, S, h), attn_mask (B,
    1, L, S) bool. With enable_gqa query head i reads head i // (H / K)."""
    if enable_gqa:
        shared = q.shape[1] // k.shape[1]
        k = k.repeat_interleave(shared, dim=1)
        v = v.repeat_interleave(shared, dim=1)
    read, _ = _attention(by_calls, q, k, v, attn_mask, 1 / math.sqrt(q.shape[-1]))
    return read


def _defined(by_calls: bool, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The definition's `softmax_attention`: q (B, T, H, h), k and v (B, T, K, h), mask (T, T)."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return _one_call(by_calls, q, k, v, mask[None, None], enable_gqa=True).transpose(1, 2)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "to": lambda _, x, dtype: x if dtype == torch.float64 else hashed(str(dtype), x),
    "double": lambda _, x: x,
    "isfinite": lambda by_calls, x: torch.ones(x.shape, dtype=torch.bool),
    "mean": partial(_sum, name="mean"),
    "logsumexp": partial(_sum, name="logsumexp"),
    "sum": _sum,
    "linear": _linear,
    "softmax_attention": _defined,
    "scaled_dot_product_attention": _one_call,
    "kernel": _attention,
    "joined": _joined,
    "embedding": lambda by_calls, tokens, weight, **_: weight.as_subclass(Tensor)[tokens],
}


class FewLogits:
    """Leaves out the logits of the whole vocabulary: they would be too many symbols. The total,
    which is made of them, is made of the hidden state instead."""

    def logits(self, hidden: Tensor, columns: Tensor | None = None) -> Tensor:
        if columns is None:
            return hidden
        logits: Tensor = super().logits(hidden, columns)  # type: ignore[misc]
        return logits


class PlainSymbols(FewLogits, Decoder):
    """The plain decoder, for weights that are symbols."""


class EqualBitsSymbols(FewLogits, EqualBits):
    """The decoder of equal bits, for weights that are symbols."""


def symbolic(config: Config, kind: type[Symbols], equal_bits: bool = False) -> LocalModel:
    """A model whose weights are symbols of this kind: each element the hash of a weight's name and
    its place, the same in the plain decoder and in that of equal bits. A row of the stream and a
    head have 2 elements each; at most 2 key/value heads are kept, with at most 2 query heads each.
    Layers, windows, biases, norms and the vocabulary are those of the config. It has no tokenizer.
    """
    K = min(config.num_key_value_heads, 2)
    H = K * min(config.num_attention_heads // config.num_key_value_heads, 2)
    small = replace(config, num_attention_heads=H, num_key_value_heads=K)
    small = replace(small, hidden_size=2, intermediate_size=2, head_dim=2)
    decoder: Decoder = PlainSymbols(small)
    if equal_bits:
        decoder = EqualBitsSymbols(decoder)
    for path, parameter in list(decoder.named_parameters()):
        owner, _, name = path.rpartition(".")
        module = decoder.get_submodule(owner)
        del module._parameters[name]
        # A layer of equal bits holds the plain one as `layer`.
        original = path.replace(".layer.", ".")
        values = hashed(original, torch.arange(parameter.numel())).view(parameter.shape)
        setattr(module, name, values.as_subclass(kind))
    nothing: Any = None
    return LocalModel("symbols", small, decoder, nothing)
