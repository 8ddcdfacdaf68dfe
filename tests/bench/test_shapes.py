"""The published shapes are configs that the decoder can be built from, as large as the models.

tests/loading/test_config_json.py has what else their configs say.
"""

from __future__ import annotations

import pytest
import torch

from minise import Decoder
from minise.bench.shapes import SHAPES
from minise.loading.config_json import config_from_dict

# As published: the number of parameters, rope_theta, rms_norm_eps, query heads.
FACTS = {
    "meta-llama/Meta-Llama-3-8B": (8_030_261_248, 5e5, 1e-5, 32),
    "meta-llama/Llama-3.2-1B": (1_235_814_400, 5e5, 1e-5, 32),
    "meta-llama/Llama-3.2-3B": (3_212_749_824, 5e5, 1e-5, 24),
    "mistralai/Mistral-7B-v0.1": (7_241_732_096, 1e4, 1e-5, 32),
    "Qwen/Qwen2-7B": (7_615_616_512, 1e6, 1e-6, 28),
    "Qwen/Qwen2.5-1.5B": (1_543_714_304, 1e6, 1e-6, 12),
    "Qwen/Qwen2.5-3B": (3_085_938_688, 1e6, 1e-6, 16),
    "Qwen/Qwen2.5-7B": (7_615_616_512, 1e6, 1e-6, 28),
    "Qwen/Qwen2.5-14B": (14_770_033_664, 1e6, 1e-5, 40),
    "Qwen/Qwen3-0.6B": (596_049_920, 1e6, 1e-6, 16),
    "Qwen/Qwen3-8B": (8_190_735_360, 1e6, 1e-6, 32),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": (8_030_261_248, 5e5, 1e-5, 32),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": (7_615_616_512, 1e4, 1e-6, 28),
    "benchmark": (133_182_464, 5e5, 1e-5, 16),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_as_many_parameters_as_its_model(name: str) -> None:
    config = config_from_dict(SHAPES[name])
    with torch.device("meta"):
        parameters = sum(each.numel() for each in Decoder(config).parameters())
    facts = (parameters, config.rope_theta, config.rms_norm_eps, config.num_attention_heads)
    assert facts == FACTS[name]


def test_the_small_shape_has_positions_for_every_workload() -> None:
    config = config_from_dict(SHAPES["benchmark"])
    assert (config.max_position_embeddings, config.vocab_size) == (8192, 32000)
    assert set(config.sliding_windows) == {None}
