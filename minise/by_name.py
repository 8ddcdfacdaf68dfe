"""What is found by its name when it is asked for: the one file here that names the lab.

No file of the reference imports minise/lab. A command, an option or a public name of it is looked
up in these tables, and its code is imported at that moment. Imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from minise.errors import InputError

# What an option or a call asks for -> module:object.
LAB = {
    "--equal-bits": "minise.lab.equal_bits.decoder:EqualBits",
    "strict MKL": "minise.lab.equal_bits.strict:ask_for",
    "--file": "minise.lab.data.tasks:load_tasks",
    "--grouping": "minise.lab.methods.groupings:grouping_named",
    "--method": "minise.lab.methods.registry:methods_to_ask",
    "--template": "minise.lab.methods.templates:template_named",
    "--quantize nf4": "minise.lab.quantize:pack_layers",
    "--model server:": "minise.lab.serving.server:connect",
    "--model transformers:": "minise.lab.serving.transformers:load",
    "model_type qwen3_5": "minise.lab.recurrent.qwen35:ARCHITECTURE",
    "model_type qwen3_5_text": "minise.lab.recurrent.qwen35:ARCHITECTURE",
    "verify --equal-bits": "minise.lab.proof.command:measured",
    "verify --proof": "minise.lab.proof.command:proved",
    "verify --decisions": "minise.lab.commands.decide:prompts_of_file",
    "verify --model server:": "minise.lab.serving.command:served",
}

# A command -> its module, and what the overview says of it.
COMMANDS = {
    "ask": ("minise.commands.ask", "answer a question by Self-Ensemble and by standard inference"),
    "eval": ("minise.lab.commands.eval", "measure methods on a data set"),
    "report": ("minise.lab.commands.report", "tables and pictures of finished runs"),
    "verify": ("minise.commands.verify", "check on this machine that packed equals separate"),
    "check": ("minise.lab.commands.check", "check a packed row of another program"),
    "decide": ("minise.lab.commands.decide", "many typed questions on one text, in one pass"),
    "explain": ("minise.lab.commands.explain", "write a page that shows the mask token by token"),
}

# Where the names of `import minise` live.
PUBLIC = {
    "minise.config": "Config RopeScaling",
    "minise.errors": "InputError",
    "minise.grouping": "Groups random_partitions",
    "minise.layout": "Layout pack",
    "minise.lm": "LocalModel branch_logits",
    "minise.loading.checkpoint": "load",
    "minise.loading.config_json": "read_config",
    "minise.method": "Answer Group Method SelfEnsemble Standard ask combine",
    "minise.public": "self_ensemble standard",
    "minise.model": "Block Decoder MLP RMSNorm",
    "minise.prompts": "LabelLogits LanguageModel Prompts",
    "minise.question": "Question",
    "minise.rope": "cos_sin",
    "minise.template": "Template write_prompts",
    "minise.tokenizer": "Tokenizer",
    "minise.verify.recording": "record",
    "minise.verify.training": "packed_loss",
    "minise.lab.methods.fitted": "Fitted remade",
    "minise.lab.packing.guard": "guard",
    "minise.lab.packing.judging": "check",
    "minise.lab.page.explain": "Page explain",
    "minise.lab.writing.generation": "Generation generate",
}


# A fork may have no lab.
HAS_LAB = find_spec("minise.lab") is not None


def is_here(module: str) -> bool:
    """Whether this copy has a module of these tables."""
    return HAS_LAB or not module.startswith("minise.lab.")


def command_named(name: str) -> Any:
    """The module of a command; raises InputError as `imported`."""
    module, _ = COMMANDS[name]
    return imported(module, name)


def from_lab(asked: str) -> Any:
    """The object that the table LAB has for what was asked; raises InputError as `imported`."""
    module, _, name = LAB[asked].partition(":")
    return getattr(imported(module, asked), name)


def imported(module: str, asked: str) -> Any:
    """The module in which what was asked is. Raises InputError where it is of the lab, and this
    copy of the reference has none."""
    if not is_here(module):
        raise InputError(f"{asked} is of the lab, and this copy has none; copy minise/lab, too")
    return import_module(module)
