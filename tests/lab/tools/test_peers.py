"""The other libraries that tools/bench/ways.py times do the same work as the engines."""

import pytest

from minise import load
from tools.bench import peers
from tools.bench import ways as bench

pytest.importorskip("transformers", reason="the reference library, extra [parity], is missing")


def test_transformers_answers_as_the_tree_does_with_the_weights_of_the_tree() -> None:
    lm = load("weights/tiny-llama")
    model = peers.transformers_model("weights/tiny-llama", lm.decoder)
    ours = {weight.data_ptr() for weight in lm.decoder.parameters()}
    assert {weight.data_ptr() for weight in model.parameters()} == ours
    prompts = bench.prompts_of(bench.WORK["truthfulqa"], lm.config.vocab_size)
    ways = bench.our_ways(lm, prompts)
    ways |= peers.kept_question(model, prompts)
    timings = bench.timed(ways, 1)
    assert sum(name.startswith("transformers") for name in timings) == 3
    assert all(timing.distance < 1e-4 for timing in timings.values())
