"""Shapes to benchmark with random weights: the paper's eleven checkpoints, and a small one."""

from __future__ import annotations

from typing import Any


def _llama3(factor: float) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def _llama(hidden: int, layers: int, heads: int, intermediate: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "intermediate_size": intermediate,
        "vocab_size": 128256,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        **more,
    }


def _qwen2(
    hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": "qwen2",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": 152064,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        **more,
    }


_SMALL_LLAMA = {
    "rope_scaling": _llama3(32.0),
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
}
_SMALL_QWEN = {"tie_word_embeddings": True, "vocab_size": 151936}
PUBLISHED: dict[str, dict[str, Any]] = {
    "meta-llama/Meta-Llama-3-8B": _llama(4096, 32, 32, 14336, max_position_embeddings=8192),
    "meta-llama/Llama-3.2-1B": _llama(2048, 16, 32, 8192, head_dim=64, **_SMALL_LLAMA),
    "meta-llama/Llama-3.2-3B": _llama(3072, 28, 24, 8192, head_dim=128, **_SMALL_LLAMA),
    "mistralai/Mistral-7B-v0.1": {
        "model_type": "mistral",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 32000,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "max_position_embeddings": 32768,
    },
    "Qwen/Qwen2-7B": _qwen2(
        *(3584, 28, 28, 4, 18944),
        sliding_window=131072,
        max_window_layers=28,
        max_position_embeddings=131072,
    ),
    "Qwen/Qwen2.5-1.5B": _qwen2(1536, 28, 12, 2, 8960, **_SMALL_QWEN),
    "Qwen/Qwen2.5-3B": _qwen2(2048, 36, 16, 2, 11008, **_SMALL_QWEN),
    "Qwen/Qwen2.5-7B": _qwen2(3584, 28, 28, 4, 18944),
    "Qwen/Qwen2.5-14B": _qwen2(5120, 48, 40, 8, 13824, rms_norm_eps=1e-5),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": _llama(
        4096, 32, 32, 14336, rope_scaling=_llama3(8.0), max_position_embeddings=131072
    ),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _qwen2(
        *(3584, 28, 28, 4, 18944),
        rope_theta=10000.0,
        sliding_window=4096,
        max_position_embeddings=131072,
    ),
}

# The default shape: small enough for two cores, with the proportions of real models.
BENCH_SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
}
BENCHMARK = "benchmark"
SHAPES = {BENCHMARK: BENCH_SHAPE, **PUBLISHED}
