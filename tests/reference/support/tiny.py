"""Tiny checkpoints with the facts of real ones and every parameter random, for any test to load."""

import json
import shutil
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers, processors

from minise import Decoder, LocalModel, load
from minise.loading.config_json import read_config

SIZES = {
    "vocab_size": 288,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 1024,
    "hidden_act": "silu",
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# Each family with its special parts in use. Windows are shorter than a prompt, so that they matter,
# and long enough that a prompt's beginning reaches its end through three layers.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**SIZES, "model_type": "llama", "rope_theta": 500.0, "rope_scaling": LLAMA3},
    "mistral": {**SIZES, "model_type": "mistral", "rope_theta": 100.0, "sliding_window": 29},
    "qwen2": {
        **SIZES,
        "model_type": "qwen2",
        "rope_theta": 100.0,
        "tie_word_embeddings": True,
        "use_sliding_window": True,
        "sliding_window": 13,
        "max_window_layers": 1,
    },
}
# A fourth, for the tests in which its facts matter: norms of queries and keys, heads wider than
# their share of the stream, and no biases. In all else it is a Qwen2.
QWEN3: dict[str, Any] = {**FAMILIES["qwen2"], "model_type": "qwen3", "head_dim": 12}
ALL_FAMILIES = {**FAMILIES, "qwen3": QWEN3}


def make_decoder(raw: dict[str, Any], dtype: torch.dtype = torch.float64) -> Decoder:
    """A random decoder for the facts of a config.json."""
    decoder = Decoder(read_config(raw)).to(dtype)
    randomise(decoder, seed=1)
    return decoder.requires_grad_(False)


def randomise(decoder: Decoder, seed: int) -> None:
    """Every parameter, norms and biases too. Matrices are wide enough for attention scores of a few
    units: a near-uniform softmax would hide a wrong mask."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in decoder.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        noise = 0.3 * noise if parameter.dim() == 2 else 1.0 + 0.5 * noise
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            noise *= 1.5  # they alone decide the size of the scores
        parameter.data = noise.to(parameter.dtype)


def make_tokenizer(bos: bool = True, split_labels: bool = False) -> tokenizers.Tokenizer:
    """Bytes, and " A" ... " Z" as one token each (two, with `split_labels`)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    # Ids out of the alphabet's order, as real tokenizers have them.
    letters = "" if split_labels else "ZYXWVUTSRQPONMLKJIHGFEDCBA"
    vocabulary = {token: i for i, token in enumerate(["<s>", *alphabet])}
    vocabulary |= {f"Ġ{letter}": len(vocabulary) + i for i, letter in enumerate(letters)}
    merges = [("Ġ", letter) for letter in letters]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    return tokenizer


def write_checkpoint(
    folder: Path, raw: dict[str, Any], seed: int = 0, dtype: torch.dtype = torch.float32
) -> Path:
    """A checkpoint folder for the config `raw`: config.json, tokenizer.json, model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    decoder = Decoder(read_config(raw))
    randomise(decoder, seed)
    state = {name: tensor.to(dtype).contiguous() for name, tensor in decoder.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw))
    bos = not raw["model_type"].startswith("qwen")
    make_tokenizer(bos).save(str(folder / "tokenizer.json"))
    return folder


def load_tiny(
    folder: Path, raw: dict[str, Any], seed: int = 0, dtype: torch.dtype = torch.float64
) -> LocalModel:
    return load(write_checkpoint(folder, raw, seed), dtype=dtype)


def load_folder(folder: Path, copy: Path, dtype: torch.dtype) -> LocalModel:
    """Load a checkpoint that has no tokenizer, by way of a copy that has one."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folder / name, copy)
    make_tokenizer().save(str(copy / "tokenizer.json"))
    return load(copy, dtype=dtype)
