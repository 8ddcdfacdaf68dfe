"""The naive functions of flash-linear-attention, each prompt alone. Their files are read by their
place: the package itself asks for a GPU's compiler. Needs torch and einops."""

import importlib.util
from pathlib import Path

from torch_alone import alone
from transformers_operators import HELD


def naive(operator, function):
    spec = importlib.util.find_spec("fla")
    path = Path(spec.submodule_search_locations[0]) / "ops" / operator / "naive.py"
    of_file = importlib.util.spec_from_file_location(f"naive_{operator}", path)
    module = importlib.util.module_from_spec(of_file)
    of_file.loader.exec_module(module)
    return getattr(module, function)


def delta(rule, local):
    inputs = {name: local[name] for name in ("q", "k", "v", "g", "beta")}

    def run(q, k, v, g, beta, initial):
        given = {"scale": local["scale"], "initial_state": initial, "output_final_state": True}
        return rule(q=q, k=k, v=v, g=g, beta=beta, **given)

    return alone(run, inputs, {name: local[name] for name in HELD})


def gated_delta_rule(
    q, k, v, g, beta, scale, parents, ends, grad_out, dtype, begins=None, initial_states=None
):
    return delta(naive("gated_delta_rule", "naive_recurrent_gated_delta_rule"), locals())


def kda(q, k, v, g, beta, scale, parents, ends, grad_out, dtype, begins=None, initial_states=None):
    return delta(naive("kda", "naive_recurrent_kda"), locals())
