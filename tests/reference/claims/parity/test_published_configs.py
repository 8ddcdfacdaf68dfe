"""The configs of published checkpoints, changed at random: what is read has the library's numbers.

The library may refuse a config that is read here, such as a null for a number. Nothing can be
compared then. It may not compute other numbers.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the reference library, extra [parity], is missing")
pytest.importorskip("hypothesis", reason="it draws the changes; the extra [test] has it")

import transformers
from hypothesis import given
from hypothesis import strategies as st

from minise import Decoder, InputError
from minise.loading.config_json import WITHOUT_EFFECT, read_config
from tests.reference.support.cases import cases
from tests.reference.support.reference import causal_run, float64_islands
from tests.reference.support.tiny import randomise

FILE = Path(__file__).parents[2] / "support" / "published.json"
PUBLISHED: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
SMALL = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "vocab_size": 96}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2}
OUTPUT = {"lm_head.weight"}  # absent in a tied model of ours
SLIDING, FULL = "sliding_attention", "full_attention"
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64}
ROPES: list[Any] = [
    *(None, {}, "linear", {"rope_type": "default"}, {"rope_theta": 50.0}),
    *({"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2.0, "type": "llama3"}),
    *(LLAMA3, {**LLAMA3, "type": "llama3"}, {**LLAMA3, "type": "linear"}),
    *({**LLAMA3, "rope_theta": 50.0}, {**LLAMA3, "original_max_position_embeddings": 16}),
    *({**LLAMA3, "partial_rotary_factor": 0.5}, {**LLAMA3, "attention_factor": 2.0}),
    *({"rope_type": "yarn", "factor": 4.0}, {"rope_type": "dynamic", "factor": 4.0}),
    *({FULL: LLAMA3}, {"x": None}, {"rope_type": "default", "factor": 2.0}),
]
ANY: list[Any] = [None, False, True, 0, 1, 3, -1, 0.5, "x", "float16", [], [1], {}, {"0": {}}]
# What may stand for a key: likely values, and those of ANY.
LIKELY: dict[str, list[Any]] = {
    "head_dim": [4, 6, 12, 7],
    "hidden_act": ["swish", "gelu", "relu"],
    "num_key_value_heads": [1, 2, 4],
    "num_attention_heads": [2, 8],
    "max_position_embeddings": [16, 64],
    "rms_norm_eps": [1e-5, 1e-2],
    "rope_theta": [20.0, 500, 1e6],
    "rope_scaling": ROPES,
    "rope_parameters": ROPES,
    "original_max_position_embeddings": [16, 64, 64.0],
    "partial_rotary_factor": [1.0, 0.5],
    "sliding_window": [2, 5],
    "use_sliding_window": [True],
    "max_window_layers": [0, 1, 2],
    "layer_types": [[SLIDING] * 3, [FULL] * 3, [SLIDING, FULL, SLIDING], [FULL], ["moe"] * 3],
    "tie_word_embeddings": [True, False],
    "attention_bias": [],
    "mlp_bias": [],
}
# The library reads these, or one of its versions did, or its other models do.
ODD = ["is_causal", "per_layer_config", "attention_chunk_size", "_rope_type_labels", "rope_type"]
ODD += ["is_encoder_decoder", "pruned_heads", "rope_interleaved", "use_mrope", "attribute_map"]
ODD += ["quantization_config", "transformers_weights", "logit_scale", "type", "default_theta", "x"]
ODD += ["attn_logit_softcapping", "no_rope_layers", "default_rope_type", "residual_multiplier"]
ODD += ["_attn_implementation", "_name_or_path", "_x", "unsloth_version", "_output_attentions"]
ODD += ["image_token_id", "hidden_dropout", "embd_pdrop", "attention_dropout", "pad_token_id"]


@st.composite
def changed(draw: st.DrawFn) -> dict[str, Any]:
    """A published config in small, with one to four other values, and often with odd keys."""
    raw = dict(PUBLISHED[draw(st.sampled_from(list(PUBLISHED)))])
    for name in raw.keys() & SMALL.keys():
        raw[name] = SMALL[name]
    if "head_dim" in raw:
        raw["head_dim"] = 12
    if draw(st.booleans()):  # the window of Mistral, and those of Qwen, which are switched on
        raw |= {"sliding_window": 5} if raw.get("sliding_window") else {}
        raw |= {"use_sliding_window": True, "max_window_layers": 1} if "qwen" in str(raw) else {}
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["likely", "likely", "odd", "without effect", "any", "delete"]))
        if kind == "likely":
            name = draw(st.sampled_from(list(LIKELY)))
            raw[name] = draw(st.sampled_from([*LIKELY[name], None, False]))
        elif kind == "delete":
            raw.pop(draw(st.sampled_from(list(raw))), None)
        else:
            names = {"odd": ODD, "without effect": WITHOUT_EFFECT.split(), "any": list(LIKELY)}
            raw[draw(st.sampled_from(names[kind]))] = draw(st.sampled_from(ANY))
    return raw


def test_what_is_read_has_the_numbers_of_the_library(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    counted: Counter[str] = Counter()

    @cases(40)
    @given(raw=changed())
    def compare(raw: dict[str, Any]) -> None:
        try:
            config = read_config(raw)
        except InputError:
            counted["refused"] += 1
            return
        ours = Decoder(config).double().requires_grad_(False)
        randomise(ours, seed=1)
        try:
            library = library_model(raw, tmp_path_factory.mktemp("config"))
        except Exception:  # it has many kinds
            counted["refused by the library"] += 1
            return
        state = ours.state_dict()
        assert library.state_dict().keys() | OUTPUT == state.keys() | OUTPUT
        library.load_state_dict(state, strict=False)
        tokens, positions, mask = causal_run()
        try:
            with torch.no_grad(), float64_islands():
                expected = library(input_ids=tokens[None], position_ids=positions[None])[0][0]
        except Exception:
            counted["refused by the library"] += 1
            return
        counted["compared"] += 1
        assert (ours.logits(ours(tokens, positions, mask)) - expected).abs().max() <= 1e-9

    compare()
    assert counted["compared"] > counted["refused by the library"]
    assert counted["refused"] > 0


def test_the_published_configs_are_read() -> None:
    for name, raw in PUBLISHED.items():
        assert read_config(raw, name).model_type == raw["model_type"]


def library_model(raw: dict[str, Any], folder: Path) -> Any:
    """The library's model of a config.json, in float64."""
    (folder / "config.json").write_text(json.dumps(raw))
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = model.double().eval()
    with float64_islands():  # else its frequencies would be rounded to float32
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return model
