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
from minise.lab.equal_bits.attention import BLOCK, FEW, MANY
from minise.lab.equal_bits.decoder import EqualBits
from minise.lab.equal_bits.probe import Shape, numbers_for
from minise.lm import LocalModel
from minise.model import Decoder

# Functions that move elements, or ask for something other than their values.
_MOVES = (
    "getitem setitem len any cat chunk clone contiguous cpu data_ptr dim element_size expand "
    "flatten flip index_copy index_select new_empty new_zeros pad permute repeat_interleave "
    "reshape size split stack transpose unbind unflatten view"
)
MOVES = frozenset(_MOVES.split())
ELEMENTWISE = {"add", "iadd", "radd", "mul", "imul", "rmul", "neg", "silu"}
SHARED = 2  # query heads of the symbolic model that share keys, at most
NUMBERS = (*FEW, BLOCK, *MANY)  # of queries in a call, which were measured to share their bits
LENGTHS = {*NUMBERS, *(SHARED * number for number in NUMBERS)}  # of calls of such numbers


class Symbols(Tensor):
    """int64 hashes, which call themselves float64. Made by this class, a hash says what a number is
    in exact arithmetic: attention is its query, and the keys and values that it sees in any order.
    """

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.__name__.strip("_")
        named = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if function.__name__ == "__get__":
                attribute = function.__self__.__name__  # such as `shape`
                return torch.float64 if attribute == "dtype" else function(*args)
            if name in MOVES:
                result = function(*args, **named)
            elif name in ELEMENTWISE:
                result = hashed(name, *args)
            elif name in OPERATIONS:
                by_calls = cls is CallSymbols
                result = OPERATIONS[name](by_calls, *args, **named)
            else:
                raise TypeError(f"no symbol is known for {function.__name__}")
            return as_symbols(cls, result)


class CallSymbols(Symbols):
    """The same, and a hash names the shapes of the calls: it says what the bits of a number are. So
    attention has the numbers of queries and keys, and the place of each key that is seen; a linear
    layer the number of its rows, unless it is one of those measured to give the same bits."""


def as_symbols(cls: type[Symbols], result: Any) -> Any:
    """A result with its int64 tensors made symbols."""
    if isinstance(result, tuple | list):
        parts = [as_symbols(cls, part) for part in result]
        return type(result)(parts)
    is_hashes = isinstance(result, Tensor) and result.dtype == torch.int64
    return result.as_subclass(cls) if is_hashes else result


def raw(x: Tensor) -> Tensor:
    """The hashes as plain integers."""
    return x.as_subclass(Tensor)


# ---- hashes


def hashed(name: str, *parts: Any) -> Tensor:
    """The hash of an operation on these parts, element by element, with broadcasting."""
    total = torch.tensor(factor(name, -1))
    for place, part in enumerate(parts):
        total = torch.add(total, as_integers(part), alpha=factor(name, place))
    return mixed(total)


def mixed(hashes: Tensor) -> Tensor:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection in which every bit of the
    result depends on every bit of the argument. In numpy, because torch cannot shift uint64."""
    x: Any = hashes.numpy().view(np.uint64)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    x = np.asarray(x ^ x >> np.uint64(31))
    result: Tensor = torch.from_numpy(x.view(np.int64))
    return result


@lru_cache(65536)
def factor(name: str, place: int) -> int:
    """A factor for this part of this operation: odd, so that no bit is lost."""
    digest = hashlib.sha256(f"{name}/{place}".encode()).digest()
    number = int.from_bytes(digest[:8], "little", signed=True)
    return number | 1


def as_integers(part: Any) -> Tensor:
    """Hashes or integers as they are; floats as their bits: 1 and 1.0 are not the same."""
    if isinstance(part, float):
        part = torch.tensor(part, dtype=torch.float64)
    x = raw(torch.as_tensor(part))
    return x.double().view(torch.int64) if x.is_floating_point() else x


# ---- operations: by_calls says whether a hash names the shapes of the calls


def add_up(
    by_calls: bool, x: Tensor, dim: int = -1, keepdim: bool = False, name: str = "sum"
) -> Tensor:
    parts = raw(x).unbind(dim)
    result = hashed(name, *parts)
    return result.unsqueeze(dim) if keepdim else result


def linear(by_calls: bool, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    products = hashed("mul", x[..., None, :], weight)
    out = add_up(by_calls, products)
    if bias is not None:
        out = hashed("add", out, bias)
    if not by_calls:
        return out
    outputs, inputs = weight.shape
    rows = x.shape[:-1].numel()
    shape = Shape(inputs, outputs, bias is not None, torch.float64, torch.get_num_threads())
    is_of_class = rows in numbers_for(shape)
    return hashed("linear", out, 0 if is_of_class else rows)


def kernel(
    by_calls: bool, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """q (..., L, h), k (..., S, h), v (..., S, w), attn_mask (..., L, S) bool: what is read, (...,
    L, w), and in place of the log of the sum (..., L) a hash of the query. The first is the second
    and a sum over the keys, so that two parts of the keys can be joined by a sum."""
    L, S = q.shape[-2], k.shape[-2]
    call: list[int] = []
    place: Any = 0
    if by_calls:
        is_of_class = L in LENGTHS
        has_no_mask = attn_mask is None
        call = [0 if is_of_class else L, S, int(has_no_mask)]
        place = torch.arange(S)[:, None]
    if attn_mask is None:
        attn_mask = torch.ones(1, L, S)
    keys = add_up(by_calls, k, keepdim=True)
    read = hashed("key and value", keys, v, place)
    seen = attn_mask.long() @ read
    # 1 / sqrt(h) and h**-0.5 differ in their last digit.
    asked = hashed("attention", add_up(by_calls, q), round(scale, 12), *call)
    return asked[..., None] + seen, asked


def joined(by_calls: bool, one: Any, other: Any) -> tuple[Tensor, Tensor]:
    """What was read of two parts of the keys, each as `kernel` gives it, as if it were one."""
    read, asked = raw(one[0]), raw(one[1])
    more, again = raw(other[0]), raw(other[1])
    if by_calls:
        both = hashed("joined", asked, again)
        return hashed("joined", read, more, both[..., None]), both
    return read + more - asked[..., None], asked


def one_call(
    by_calls: bool,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Tensor:
    """torch's `scaled_dot_product_attention`: q (B, H, L, h), k and v (B, K, S, h), attn_mask (B,
    1, L, S) bool. With is_causal query i sees keys 0 to i. With enable_gqa query head i reads head
    i // (H / K)."""
    if is_causal:
        attn_mask = torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool).tril()
    if enable_gqa:
        shared = q.shape[1] // k.shape[1]
        k = k.repeat_interleave(shared, dim=1)
        v = v.repeat_interleave(shared, dim=1)
    scale = 1 / math.sqrt(q.shape[-1])
    read, _ = kernel(by_calls, q, k, v, attn_mask, scale)
    return read


def defined(by_calls: bool, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The definition's `softmax_attention`: q (B, T, H, h), k and v (B, T, K, h), mask (T, T)."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    read = one_call(by_calls, q, k, v, mask[None, None], enable_gqa=True)
    return read.transpose(1, 2)


def convert(by_calls: bool, x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if dtype == torch.float64 else hashed(str(dtype), x)


def double(by_calls: bool, x: Tensor) -> Tensor:
    return x


def is_finite(by_calls: bool, x: Tensor) -> Tensor:
    return torch.ones(x.shape, dtype=torch.bool)


def rms_norm(
    by_calls: bool, x: Tensor, shape: Any, weight: Tensor | None = None, eps: float = 0.0
) -> Tensor:
    squares = add_up(by_calls, hashed("square", x), keepdim=True)
    return hashed("rms_norm", x, squares, eps)


def embedding(by_calls: bool, tokens: Tensor, weight: Tensor, **settings: Any) -> Tensor:
    return raw(weight)[tokens]


OPERATIONS: dict[str, Callable[..., Any]] = {
    "to": convert,
    "double": double,
    "isfinite": is_finite,
    "logsumexp": partial(add_up, name="logsumexp"),
    "sum": add_up,
    "linear": linear,
    "rms_norm": rms_norm,
    "softmax_attention": defined,
    "scaled_dot_product_attention": one_call,
    "kernel": kernel,
    "joined": joined,
    "embedding": embedding,
}


# ---- decoders


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
    shared = min(config.num_attention_heads // config.num_key_value_heads, SHARED)
    small = replace(
        config,
        num_attention_heads=K * shared,
        num_key_value_heads=K,
        hidden_size=2,
        intermediate_size=2,
        head_dim=2,
    )
    decoder: Decoder = PlainSymbols(small)
    if equal_bits:
        decoder = EqualBitsSymbols(decoder)
    for path, parameter in list(decoder.named_parameters()):
        owner, _, name = path.rpartition(".")
        module = decoder.get_submodule(owner)
        del module._parameters[name]
        # A layer of equal bits holds the plain one as `layer`.
        original = path.replace(".layer.", ".")
        places = torch.arange(parameter.numel()).view(parameter.shape)
        values = hashed(original, places)
        setattr(module, name, values.as_subclass(kind))
    nothing: Any = None
    return LocalModel("symbols", small, decoder, nothing)
