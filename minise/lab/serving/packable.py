"""Which models of transformers may be packed: those of which every part is known to read the mask
and the position ids, or to work on each token alone.

This is a table to be read. What it does not name is asked by separate prompts, and one line says
which part that is. It was made with transformers 5.24.0: `pytest -m slow
tests/lab/serving/test_zoo.py` builds every causal model of the installed library, and compares
packed prompts with prompts alone, beyond windows and chunks. To add a model, add its name to
MODELS, run that, and read how its class makes its mask: tiny models show only what they reach.

Not here, though tiny ones are right: doge, which in rows of more than 2,048 tokens keeps the best
keys and counts all prompts; encoders (bert, ...) that are told to be decoders; and whisper.
Layers with a state or a short convolution read along the paths of the mask, by functions that are
exchanged for the pass (minise/lab/recurrent/in_transformers.py): RECURRENT has the models in which
all of them do, seen with states that fade slowly.
Not here, because they are wrong: all with chunked, compressed or index-based layers; inkling2,
whose dynamic convolution is no function that could be exchanged; mpt, gpt_neo and bloom, which
count by index; moshi, whose window only its flash attention knows; roberta and its kin, whose
positions begin after the padding's id.
"""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from minise.loading.config_json import FULL, SLIDING

TABLE_OF = "transformers 5.24.0"

# The kinds of layers, in config.json's layer_types and mlp_layer_types; and those of RECURRENT.
LAYERS = (FULL, SLIDING, "dense", "sparse")
STATES = ("linear_attention", "conv")  # such a layer reads no mask of scores
RECURRENT_LAYERS = (*LAYERS, *STATES, "hybrid", "hybrid_sliding", "mlp", "moe")

# With these, the angles of all tokens depend on the longest prompt of a pass.
BY_LENGTH = ("dynamic", "longrope")

# The model_type of config.json.
MODELS = """
afmoe apertus apertus1p5_text arcee aria_text axk1 beam biogpt bitnet codegen cohere cohere2
cohere2_moe ctrl cwm deepseek_v2 deepseek_v3 diffllama dots1 ernie4_5 ernie4_5_moe
exaone exaone4 exaone_moe falcon flex_olmo flint fuyu gemma gemma2 gemma3 gemma3_text
gemma3n_text gemma4 gemma4_text gemma4_unified gemma4_unified_text glm glm4 glm4_moe
glm4_moe_lite gpt-sw3 gpt2 gpt_bigcode gpt_neox gpt_neox_japanese gpt_oss gptj granite
granite_swa granitemoe granitemoe_swa granitemoeshared helium hrm_text
hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax internlm3 iquestcoder jais2 jetmoe
kolibri1 laguna llama longcat_flash mellum mimo_v2_flash minicpm3 minimax_m2
minimax_m3_vl_text ministral ministral3 mistral mixtral mllama modernbert-decoder nanochat
nemotron olmo olmo2 olmo3 olmoe opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3
qwen3_moe sarvam_mla sarvam_moe seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma
xglm youtu
"""

# Those with recurrent layers or short convolutions.
RECURRENT = """
bamba falcon_h1 falcon_mamba granitemoehybrid inkling_text jamba kimi_linear lara_mini lfm2
lfm2_moe lfm3 mamba mamba2 minimax nemotron_h olmo_hybrid qwen3_5 qwen3_5_moe
qwen3_5_moe_text qwen3_5_text qwen3_next recurrent_gemma zamba zamba2 zaya
"""
# What of them reads no mask at all, and what has a window in its layers of full attention.
WITHOUT_ATTENTION = ("falcon_mamba", "mamba", "mamba2")
WINDOW_IN_FULL = ("minimax",)

# The classes of the modules, by the last words of their names. All but attention work on each token
# alone, or only hold others. (Conv1D is GPT-2's linear layer; those of torch are Conv1d, ...)
PARTS = re.compile(
    "(Attention|MLA|MoA|RotaryEmbedding|Embedding|Linear|Conv1D|Norm|Norm1P|NormPerHead|MLP|Experts"
    "|Router|Gate|Gating|MoE|Moe|Statics|Activation|ReLU|GELU|SiLU|Tanh|GELUTanh|Dropout|Identity"
    "|LaurelBlock|AltUp|ModuleList|ModuleDict|Sequential|Block|Layer|Stack|Model|Decoder"
    "|DecoderWrapper)$"
)
RECURRENT_PARTS = re.compile(
    "(Conv1d|Mixer|GatedDeltaNet|ShortConv|ShortConvolution|Rglru|RMSNormGated|Mlp|CCAProjection"
    "|ResidualScaling|RelativeLogits)$"
)


def unknown_part(model: Any) -> str | None:
    """Why a model is not packed: the part of it that is not known. None if all are."""
    config = model.config.get_text_config()
    kinds = kinds_of_layers(config)
    recurrent = is_recurrent(model)
    for kind in kinds:
        if kind not in (RECURRENT_LAYERS if recurrent else LAYERS):
            return f"its layers of kind {kind} are not known"
    if SLIDING in kinds and not getattr(config, "sliding_window", None):
        return "the size of its window is not known"
    if rope_type(config) in BY_LENGTH:
        return f"its rope_type is {rope_type(config)}"
    if getattr(config, "alibi", False):
        return "it has alibi, which counts by index"
    decoder: nn.Module = model.get_decoder()
    for module in decoder.modules():
        name = type(module).__name__
        if not PARTS.search(name) and not (recurrent and RECURRENT_PARTS.search(name)):
            return f"its part {name} is not known"
    name = model.config.model_type
    if name not in MODELS.split() and not recurrent:
        return f"its model_type {name} is not in the table of {TABLE_OF}"
    return None


def is_recurrent(model: Any) -> bool:
    """Whether the recurrent layers of a model can read along the paths of a mask."""
    return model.config.model_type in RECURRENT.split()


def kinds_of_layers(config: Any) -> list[str]:
    """The kinds that a text config names, each once."""
    kinds: list[str] = []
    for name in ("layer_types", "mlp_layer_types"):
        kinds.extend(getattr(config, name, None) or [])
    return sorted(set(kinds))


def rope_type(config: Any) -> str:
    """How the rotary angles are scaled, of a text config: the first of BY_LENGTH that occurs, or
    "default"."""
    parameters = getattr(config, "rope_parameters", None) or {}
    for some in [parameters, *parameters.values()]:  # of all layers, or by the type of layer
        if isinstance(some, dict) and some.get("rope_type") in BY_LENGTH:
            return str(some["rope_type"])
    return "default"
