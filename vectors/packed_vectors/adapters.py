"""An adapter: a file of Python whose functions have known names, and ask by the names of their
parameters for what they want. They get copies: what they change is not what they are judged by."""

import copy
import inspect
import runpy
import sys
from pathlib import Path

OF_MODELS = (
    *("tokens", "positions", "mask", "mask_in_window", "parents", "documents", "real"),
    *("cu_seqlens", "until", "prompts", "ends", "cached", "edges", "labels", "labels_shifted"),
    *("lengths", "width", "M", "Pos", "index", "Q", "G", "weights", "config", "folder", "dtype"),
)
OF_ROWS = (
    *("positions", "mask", "mask_in_window", "parents", "documents", "real", "cu_seqlens"),
    *("until", "lengths", "width", "ends", "begins", "initial_states", "grad_out", "dtype"),
)
OF_OPERATORS = {
    "attention": ("q", "k", "v", "scale", "window"),
    "gated_delta_rule": ("q", "k", "v", "g", "beta", "scale"),
    "kda": ("q", "k", "v", "g", "beta", "scale"),
    "mamba2": ("x", "dt", "A", "B", "C"),
    "short_convolution": ("x", "weight", "bias"),
}
KINDS = ("logits", "ends", "loss", "gradients")  # of a model
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")  # that an adapter runs if it names no others


def names_for(function):
    """What a function of this name may ask for."""
    return OF_MODELS if function in KINDS else (*OF_OPERATORS[function], *OF_ROWS)


class Adapter:
    """functions: those of known names. model_types: whose rows it runs, MODEL_TYPES in its file.
    device: what its file says by DEVICE, else cpu. Ends the program where a parameter is not known:
    a misspelt one would leave the function out of every row."""

    def __init__(self, path):
        sys.path.insert(0, str(Path(path).parent))
        found = runpy.run_path(str(path))
        self.path = str(path)
        self.functions = {n: found[n] for n in (*KINDS, *OF_OPERATORS) if n in found}
        self.model_types = found.get("MODEL_TYPES", MODEL_TYPES)
        self.device = str(found.get("DEVICE", "cpu"))
        self.optional = {}
        for name, function in self.functions.items():
            self.optional[name] = parameters_of(name, function)

    def answer(self, name, given):
        """What the function says, and None; or None, and why it was not run."""
        optional = self.optional[name]
        missing = [n for n in optional if n not in given and not optional[n]]
        if missing:
            return None, f"the row has no {missing[0]}"
        of_row = {n: copy.deepcopy(given[n]) for n in optional if n in given}
        got = self.functions[name](**of_row)
        return got, "the adapter answers None" if got is None else None


def parameters_of(name, function):
    """Its parameters by name: whether it can do without one."""
    optional, known = {}, names_for(name)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in known or parameter.kind != parameter.POSITIONAL_OR_KEYWORD:
            sys.exit(f"{name}: {parameter} is not known; a parameter is one of {', '.join(known)}")
        optional[parameter.name] = parameter.default is not parameter.empty
    return optional
