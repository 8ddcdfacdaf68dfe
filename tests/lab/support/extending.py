"""What docs/extending.md shows: its sections with their blocks, and the package with its diff."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
# Section title -> its blocks in order, each as language and text.
SECTIONS = {
    title: re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    for title, text in re.findall(r"^## (.*)\n((?:(?!^## ).*\n?)*)", PAGE, flags=re.MULTILINE)
}


def patched_package(folder: Path) -> Path:
    """A copy of the package in `folder`, with the page's diff applied as the page says."""
    ignore = shutil.ignore_patterns("__pycache__", "weights")
    shutil.copytree(ROOT / "minise", folder / "minise", ignore=ignore)
    [diff] = [text for language, text in SECTIONS["A model family"] if language == "diff"]
    (folder / "smollm3.diff").write_text(diff, encoding="utf-8")
    # Inside another repository git would leave out files that are not that repository's.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    subprocess.run(["git", "apply", "smollm3.diff"], cwd=folder, env=environment, check=True)
    return folder


def run_patched(folder: Path, *arguments: str) -> str:
    """What Python prints with these arguments, where `import minise` finds the patched copy."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**variables, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


# As the published 270M writes them; a window shorter than a prompt, and two bases far apart.
GEMMA3 = {
    "model_type": "gemma3_text",
    "vocab_size": 1024,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "query_pre_attn_scalar": 12,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 5,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 100.0,
    "rope_scaling": None,
}


OLMO2 = {
    "model_type": "olmo2",
    "vocab_size": 1024,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def write_olmo2(folder: Path) -> Path:
    """As `write_gemma3`."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (1024, 32),
        "model.norm": (32,),
        "lm_head": (1024, 32),
    }
    for number in range(3):
        layer = f"model.layers.{number}"
        shapes[f"{layer}.post_attention_layernorm"] = (32,)
        shapes[f"{layer}.post_feedforward_layernorm"] = (32,)
        shapes |= matrices(layer, queries=32, keys=16)
        shapes[f"{layer}.self_attn.q_norm"] = (32,)
        shapes[f"{layer}.self_attn.k_norm"] = (16,)
    return write_random(folder, shapes, OLMO2)


def write_gemma3(folder: Path) -> Path:
    """A small random checkpoint in which every parameter matters, with tiny-llama's tokenizer."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (1024, 32), "model.norm": (32,)}
    for number in range(3):
        layer = f"model.layers.{number}"
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            shapes[f"{layer}.{norm}_layernorm"] = (32,)
        shapes |= matrices(layer, queries=48, keys=24)
        shapes[f"{layer}.self_attn.q_norm"] = (12,)
        shapes[f"{layer}.self_attn.k_norm"] = (12,)
    return write_random(folder, shapes, GEMMA3)


def matrices(layer: str, queries: int, keys: int) -> dict[str, tuple[int, ...]]:
    """Of attention and MLP; the stream has 32 numbers, all queries of a token have so many."""
    return {
        f"{layer}.self_attn.q_proj": (queries, 32),
        f"{layer}.self_attn.k_proj": (keys, 32),
        f"{layer}.self_attn.v_proj": (keys, 32),
        f"{layer}.self_attn.o_proj": (32, queries),
        f"{layer}.mlp.gate_proj": (48, 32),
        f"{layer}.mlp.up_proj": (48, 32),
        f"{layer}.mlp.down_proj": (32, 48),
    }


def write_random(
    folder: Path, shapes: dict[str, tuple[int, ...]], config: dict[str, object]
) -> Path:
    """A checkpoint of random tensors of these shapes, with tiny-llama's tokenizer."""
    random = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in shapes.items():
        tensors[f"{name}.weight"] = 0.3 * torch.randn(shape, generator=random)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(ROOT / "weights" / "tiny-llama" / "tokenizer.json", folder)
    return folder
