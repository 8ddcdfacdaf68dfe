"""Self-Ensemble for many-choice questions, in code that can be read and checked token by token."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_NAMES = {
    "minise.lab.packing.guard": "guard",
    "minise.lab.packing.judging": "check",
    "minise.verify.recording": "record",
    "minise.verify.training": "packed_loss",
    "minise.config": "Config",
    "minise.errors": "InputError",
    "minise.grouping": "Groups",
    "minise.layout": "Layout Tree pack",
    "minise.lm": "LabelLogits LanguageModel LocalModel Prompts branch_logits",
    "minise.loading.checkpoint": "load",
    "minise.method": "Answer Group Method SelfEnsemble Standard ask",
    "minise.lab.methods.public": "self_ensemble standard",
    "minise.model": "Decoder",
    "minise.lab.page.explain": "Page explain",
    "minise.template": "Template",
    "minise.question": "Question",
    "minise.lab.writing.generation": "Generation generate",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used: `minise --help` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'minise' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
