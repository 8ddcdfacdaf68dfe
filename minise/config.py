"""The facts of a checkpoint, under the names that its config.json uses.

LLaMA, Mistral, Qwen2 and Qwen3 share one architecture. They differ only in the facts of `FAMILIES`.
loading/config_json.py reads a config.json; `Decoder` of definition.py looks its keys up where it
needs them. Next to read: rope.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Family:
    """What a model_type fixes, and its defaults for what a config.json leaves out."""

    qkv_bias: bool  # the query, key and value projections have a bias
    num_key_value_heads: int | None  # default; None: as many as query heads
    max_position_embeddings: int  # default, in tokens
    sliding_window: int | None  # default, in positions; None: no window
    windowed_layers: Literal["none", "all", "some"]  # "some": config.json says which
    head_dim: int | None = None  # default; None: hidden_size / num_attention_heads
    qk_norm: bool = False  # queries and keys are normed, head by head, before the rotation


FAMILIES = {
    "llama": Family(
        qkv_bias=False,
        num_key_value_heads=None,
        max_position_embeddings=2048,
        sliding_window=None,
        windowed_layers="none",
    ),
    "mistral": Family(
        qkv_bias=False,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        sliding_window=4096,
        windowed_layers="all",
    ),
    "qwen2": Family(
        qkv_bias=True,
        num_key_value_heads=32,
        max_position_embeddings=32768,
        sliding_window=4096,
        windowed_layers="some",
    ),
    "qwen3": Family(
        qkv_bias=False,
        num_key_value_heads=32,
        max_position_embeddings=32768,
        sliding_window=4096,
        windowed_layers="some",
        head_dim=128,
        qk_norm=True,
    ),
}


@dataclass(frozen=True)
class RopeScaling:
    """How the rotary frequencies are scaled: "default" (not at all), "linear" or "llama3".

    "linear" uses `factor` alone, "llama3" all fields; `rope.inverse_frequencies` has the formulas.
    """

    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0  # in full turns of a pair within the original context
    high_freq_factor: float = 4.0  # likewise
    original_max_position_embeddings: int = 8192  # in tokens


@dataclass(frozen=True)
class Config:
    """A decoder's sizes and constants. loading/config_json.py checks them."""

    model_type: str  # a key of FAMILIES
    vocab_size: int  # token ids are 0 ... vocab_size - 1
    hidden_size: int
    intermediate_size: int  # width inside the MLP
    num_hidden_layers: int
    num_attention_heads: int  # query heads
    num_key_value_heads: int  # divides num_attention_heads
    head_dim: int  # even
    rms_norm_eps: float
    rope_theta: float  # base of the rotary frequencies
    rope_scaling: RopeScaling
    max_position_embeddings: int  # the longest prompt, in tokens (a packed sequence may be longer)
    qkv_bias: bool  # the query, key and value projections have a bias
    # The window of each layer, in positions: position i attends to j only if i - j < window.
    # None: no window.
    sliding_windows: tuple[int | None, ...]
    tie_word_embeddings: bool  # the output matrix is the embedding matrix
    qk_norm: bool  # queries and keys are normed, head by head, before the rotation
