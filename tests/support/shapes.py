"""The configs of published models: the paper's eleven and two Qwen3."""

from __future__ import annotations

from typing import Any


def _shape(
    family: str, hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": family,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        **more,
    }


def _llama3(factor: float) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


_LLAMA: dict[str, Any] = {
    "vocab_size": 128256,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
}
_SMALL_LLAMA = {**_LLAMA, "rope_scaling": _llama3(32.0), "tie_word_embeddings": True}
_QWEN: dict[str, Any] = {
    "vocab_size": 152064,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "use_sliding_window": False,
}
_SMALL_QWEN = {**_QWEN, "vocab_size": 151936, "tie_word_embeddings": True}
_QWEN3 = {**_QWEN, "vocab_size": 151936, "head_dim": 128, "max_position_embeddings": 40960}
PUBLISHED: dict[str, dict[str, Any]] = {
    "meta-llama/Meta-Llama-3-8B": _shape(
        *("llama", 4096, 32, 32, 8, 14336), **{**_LLAMA, "max_position_embeddings": 8192}
    ),
    "meta-llama/Llama-3.2-1B": _shape("llama", 2048, 16, 32, 8, 8192, head_dim=64, **_SMALL_LLAMA),
    "meta-llama/Llama-3.2-3B": _shape("llama", 3072, 28, 24, 8, 8192, head_dim=128, **_SMALL_LLAMA),
    "mistralai/Mistral-7B-v0.1": _shape(
        *("mistral", 4096, 32, 32, 8, 14336),
        vocab_size=32000,
        rope_theta=10000.0,
        sliding_window=4096,
        max_position_embeddings=32768,
    ),
    "Qwen/Qwen2-7B": _shape(
        *("qwen2", 3584, 28, 28, 4, 18944),
        sliding_window=131072,
        max_window_layers=28,
        max_position_embeddings=131072,
        **_QWEN,
    ),
    "Qwen/Qwen2.5-1.5B": _shape("qwen2", 1536, 28, 12, 2, 8960, **_SMALL_QWEN),
    "Qwen/Qwen2.5-3B": _shape("qwen2", 2048, 36, 16, 2, 11008, **_SMALL_QWEN),
    "Qwen/Qwen2.5-7B": _shape("qwen2", 3584, 28, 28, 4, 18944, **_QWEN),
    "Qwen/Qwen2.5-14B": _shape(
        *("qwen2", 5120, 48, 40, 8, 13824), **{**_QWEN, "rms_norm_eps": 1e-5}
    ),
    "Qwen/Qwen3-0.6B": _shape(
        *("qwen3", 1024, 28, 16, 8, 3072), **{**_QWEN3, "tie_word_embeddings": True}
    ),
    "Qwen/Qwen3-8B": _shape("qwen3", 4096, 36, 32, 8, 12288, **_QWEN3),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": _shape(
        *("llama", 4096, 32, 32, 8, 14336), rope_scaling=_llama3(8.0), **_LLAMA
    ),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _shape(
        *("qwen2", 3584, 28, 28, 4, 18944),
        sliding_window=4096,
        max_position_embeddings=131072,
        **{**_QWEN, "rope_theta": 10000.0},
    ),
}
