"""Tiny random models of the transformers library, of any family, and a tokenizer for them."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from minise import LanguageModel, Question, from_transformers, self_ensemble
from minise.bridges.transformers_model import LibraryModel
from tests.support.tiny import SIZES as OURS
from tests.support.tiny import make_tokenizer

transformers.utils.logging.disable_progress_bar()

# The sizes of our own tiny models, without their activation and epsilon.
SIZES = {name: size for name, size in OURS.items() if isinstance(size, int)}
SIZES |= {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": None}
GEMMA = {"head_dim": 8, "sliding_window": 13, "layer_types": ["sliding_attention"] * 2}
GEMMA["layer_types"] += ["full_attention"]  # type: ignore[operator]
GPT_NEO = {"num_layers": 3, "num_heads": 4, "window_size": 13}
GPT_NEO["attention_types"] = [[["global", "local"], 1], [["global"], 1]]  # type: ignore[assignment]
LLAMA4 = {"head_dim": 8, "attention_chunk_size": 13, "no_rope_layers": [1, 1, 0]}
LLAMA4 |= {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size_mlp": 32}
# Each with what is special about it, and with windows shorter than a prompt.
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 12},
    "mistral": {"sliding_window": 13},
    "gemma3_text": GEMMA,
    "gpt_oss": {"head_dim": 8, "sliding_window": 13},
    "llama4_text": LLAMA4,  # chunks by position
    "gpt2": {},  # learned positions, by the position ids
    "gpt_neo": GPT_NEO,  # a window of its own, by index
    "mpt": {},  # ALiBi, by index
    "bloom": {},  # ALiBi, from a 2-D mask
    "mamba": {},  # no attention at all
}


def make_model(family: str, attention: str = "eager", **more: Any) -> Any:
    """A model with every parameter random, in float32."""
    settings = {**SIZES, **FAMILIES.get(family, {}), **more}
    config = transformers.AutoConfig.for_model(family, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = 0.3 * noise if parameter.dim() > 1 else 1.0 + 0.5 * noise
    return model.eval()


def make_reader(bos: bool = True) -> Any:
    """The tokenizer of tests/support/tiny.py as the library's."""
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=make_tokenizer(bos), bos_token="<s>"
    )


def make_lm(family: str, attention: str = "eager", **more: Any) -> LibraryModel:
    """The model and the tokenizer as a model of minise."""
    return from_transformers(make_model(family, attention, **more), make_reader())


def scores(lm: LanguageModel, question: Question, engine: str) -> torch.Tensor:
    """Self-Ensemble's scores (K,) of a question by an engine."""
    return self_ensemble(lm, question, group_size=2, trials=3, engine=engine).scores
