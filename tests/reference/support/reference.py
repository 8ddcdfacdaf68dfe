"""The reference library's side of the comparison: transformers, eager attention, tiny checkpoints.

The library runs as it is, except within `float64_islands`. Its float32 parts are then too coarse to
compare to 1e-9, so they get float64 instead.
"""

import functools
import math
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.overrides import TorchFunctionMode

from minise import Layout, pack
from tests.reference.support.tiny import make_tokenizer

transformers.utils.logging.disable_progress_bar()

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
}
# With this theta and 4 pairs per head, one pair is kept, one is on the ramp, two are slowed.
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _rope(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


# Each case sets what its name says; between them they cover what the families differ in.
CASES: dict[str, dict[str, Any]] = {
    "llama-grouped": {**SIZES, "model_type": "llama", "rope_parameters": _rope(10000.0)},
    "llama-tied-llama3": {
        **SIZES,
        "model_type": "llama",
        "tie_word_embeddings": True,
        "rope_parameters": LLAMA3,
    },
    # Three query heads per key/value head, and heads wider than their share of the stream.
    "llama-linear-wide-heads": {
        **SIZES,
        "model_type": "llama",
        "hidden_size": 36,
        "num_attention_heads": 6,
        "head_dim": 8,
        "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0},
    },
    "mistral-window": {
        **SIZES,
        "model_type": "mistral",
        "sliding_window": 5,
        "rope_parameters": _rope(100.0),
    },
    # As many key/value heads as query heads.
    "mistral-no-window": {
        **SIZES,
        "model_type": "mistral",
        "num_key_value_heads": 4,
        "sliding_window": None,
        "rope_parameters": _rope(1000000.0),
    },
    "qwen2-biases": {
        **SIZES,
        "model_type": "qwen2",
        "rms_norm_eps": 1e-6,
        "rope_parameters": _rope(1000000.0),
    },
    # One full layer, then two windowed ones.
    "qwen2-tied-mixed-windows": {
        **SIZES,
        "model_type": "qwen2",
        "tie_word_embeddings": True,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
        "rope_parameters": _rope(100.0),
    },
    # Heads wider than their share of the stream, as in the published checkpoints.
    "qwen3-untied": {
        **SIZES,
        "model_type": "qwen3",
        "head_dim": 12,
        "rms_norm_eps": 1e-6,
        "rope_parameters": _rope(1000000.0),
    },
    "qwen3-tied-mixed-windows": {
        **SIZES,
        "model_type": "qwen3",
        "head_dim": 12,
        "tie_word_embeddings": True,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
        "rope_parameters": _rope(100.0),
    },
}


def causal_run(length: int = 24) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, positions and mask of one plain prompt."""
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    return _random_tokens(length, seed=1), torch.arange(length), mask


def packed_layout() -> Layout:
    """A trunk and branches of unequal length, the longest ones well beyond the cases' windows."""
    ids = _random_tokens(32, seed=2).tolist()
    return pack(ids[:7], [ids[7:16], ids[16:20], ids[20:]])


def runs() -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Tokens (T,), positions (T,) and mask (T, T) by the name of the run."""
    layout = packed_layout()
    return {"causal": causal_run(), "packed": (layout.tokens, layout.positions, layout.mask)}


def _random_tokens(length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(SIZES["vocab_size"], (length,), generator=generator)


def write_checkpoint(case: dict[str, Any], folder: Path, seed: int = 2) -> Path:
    """A checkpoint as the library saves it, of float32 weights that hide nothing.

    The library initialises norms to 1 and biases to 0, which swapping or dropping them would not
    change, and matrices so small that attention is near uniform, which no mask would change much.
    Weights this wide amplify rounding too; under this seed float32 stays within 2e-5 of float64.
    """
    config = transformers.AutoConfig.for_model(**case)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            parameter.data = 0.5 * noise
        elif parameter.dim() == 1:
            parameter.data = 1.0 + 0.5 * noise
        else:
            parameter.data = 0.3 * noise
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            parameter.data *= 1.5  # they alone decide how sharp attention is
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    make_tokenizer().save(str(folder / "tokenizer.json"))  # so that minise can load the folder
    return folder


@functools.cache
def reference_model(folder: Path, dtype: torch.dtype) -> Any:
    """The library's model of a folder. Kept, for loading takes longer than a run."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", local_files_only=True
    )
    if dtype == torch.float64:
        with float64_islands():  # else its frequencies would be rounded to float32
            model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return model.eval()


@torch.no_grad()
def reference_logits(
    folder: Path, tokens: Tensor, positions: Tensor, mask: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """The logits (T, V) of the library's model on explicit positions (T,).

    mask=None leaves the masking to the library, its sliding windows included. That is right for
    one plain prompt only: where positions start over, the library takes it for packed documents.
    A bool mask (T, T), True = attend, is narrowed by each layer's window here, because the library
    takes a 4-D mask as it is and skips the window.
    """
    model = reference_model(folder, dtype)
    out = model(
        input_ids=tokens[None],
        position_ids=positions[None],
        attention_mask=None if mask is None else _masks(model.config, positions, mask, dtype),
        use_cache=False,
    )
    logits: Tensor = out.logits[0]
    return logits


def windows(config: transformers.PreTrainedConfig) -> list[int | None]:
    """Each layer's sliding window, by the library's reading of its config."""
    if config.model_type in ("qwen2", "qwen3"):
        windowed = [kind == "sliding_attention" for kind in config.layer_types]
        return [config.sliding_window if is_windowed else None for is_windowed in windowed]
    return [getattr(config, "sliding_window", None)] * config.num_hidden_layers


def windowed_mask(positions: Tensor, mask: Tensor, window: int | None) -> Tensor:
    """Without the pairs that lie `window` or more positions from each other."""
    if window is None:
        return mask
    return mask & (positions[:, None] - positions[None, :] < window)


def _masks(
    config: transformers.PreTrainedConfig, positions: Tensor, mask: Tensor, dtype: torch.dtype
) -> Tensor | dict[str, Tensor]:
    """What the library's eager attention adds to the scores: (1, 1, T, T), or one per layer type.

    LLaMA and Mistral take one mask for all layers, Qwen2 and Qwen3 a dictionary.
    """

    def additive(window: int | None) -> Tensor:
        allowed = windowed_mask(positions, mask, window)
        added = torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, -math.inf)
        return added[None, None]

    if config.model_type in ("qwen2", "qwen3"):
        kinds = zip(config.layer_types, windows(config), strict=True)
        return {kind: additive(window) for kind, window in kinds}
    return additive(windows(config)[0])


class float64_islands(TorchFunctionMode):
    """Let a float64 model compute in float64 throughout, in the library's own formulas.

    Three places name float32 whatever the model's dtype: the norm, the rotary tables and the
    softmax. Here they get float64 instead.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        def wide(x: Any) -> Any:
            return torch.float64 if x is torch.float32 else x

        if func is Tensor.float:
            func = Tensor.double
        return func(*map(wide, args), **{k: wide(x) for k, x in (kwargs or {}).items()})
