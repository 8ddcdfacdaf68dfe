"""Self-Ensemble for many-choice questions, in code that can be read and checked token by token."""

from __future__ import annotations

TYPE_CHECKING = False  # for type checkers it is true; to import typing would take long (stop.py)
if TYPE_CHECKING:
    from typing import Any

    from minise.authors_code import AUTHORS_CODE
    from minise.bridges.transformers_model import from_transformers
    from minise.checkpoint import load
    from minise.config import Config
    from minise.engines import LanguageModel, branch_logits
    from minise.ensemble import Answer, Group, Plan, SelfEnsemble, Standard
    from minise.errors import InputError
    from minise.explain import Page, explain
    from minise.generation import Generation, generate
    from minise.grouping import Groups
    from minise.layout import Layout, Tree, pack
    from minise.model import Decoder
    from minise.presets import PAPER, Preset
    from minise.prompt import Template
    from minise.question import Question
    from minise.recording import record
    from minise.rounds import ask, self_ensemble, standard

__version__ = "0.1.0"

# Where the public names live. They are imported when first used, so that `minise --help` does not
# wait for torch.
_HOMES = {
    "authors_code": "AUTHORS_CODE",
    "bridges.transformers_model": "from_transformers",
    "checkpoint": "load",
    "config": "Config",
    "engines": "LanguageModel branch_logits",
    "ensemble": "Answer Group Plan SelfEnsemble Standard",
    "errors": "InputError",
    "explain": "Page explain",
    "generation": "Generation generate",
    "grouping": "Groups",
    "layout": "Layout Tree pack",
    "model": "Decoder",
    "presets": "PAPER Preset",
    "prompt": "Template",
    "question": "Question",
    "recording": "record",
    "rounds": "ask self_ensemble standard",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = [
    "AUTHORS_CODE",
    "PAPER",
    "Answer",
    "Config",
    "Decoder",
    "Generation",
    "Group",
    "Groups",
    "InputError",
    "LanguageModel",
    "Layout",
    "Page",
    "Plan",
    "Preset",
    "Question",
    "SelfEnsemble",
    "Standard",
    "Template",
    "Tree",
    "ask",
    "branch_logits",
    "explain",
    "from_transformers",
    "generate",
    "load",
    "pack",
    "record",
    "self_ensemble",
    "standard",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        from importlib import import_module

        return getattr(import_module(f"minise.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'minise' has no attribute '{name}'")
