"""Self-Ensemble for many-choice questions, in code that can be read and checked token by token."""

from typing import Any

__version__ = "0.1.0"

# The public names, each with the module where it lives.
NAMES = {
    "check": "minise.checking.packing_formats",
    "record": "minise.checking.recording",
    "packed_loss": "minise.checking.training",
    "Config": "minise.config",
    "LanguageModel": "minise.engines",
    "branch_logits": "minise.engines",
    "InputError": "minise.errors",
    "Page": "minise.explaining.page",
    "explain": "minise.explaining.page",
    "Groups": "minise.grouping",
    "Layout": "minise.layout",
    "Tree": "minise.layout",
    "pack": "minise.layout",
    "load": "minise.loading.checkpoint",
    "PAPER": "minise.method",
    "Answer": "minise.method",
    "Group": "minise.method",
    "Method": "minise.method",
    "Plan": "minise.method",
    "Preset": "minise.method",
    "SelfEnsemble": "minise.method",
    "Standard": "minise.method",
    "AUTHORS_CODE": "minise.methods.authors_code",
    "self_ensemble": "minise.methods.public",
    "standard": "minise.methods.public",
    "Decoder": "minise.model",
    "Template": "minise.prompt",
    "Question": "minise.question",
    "ask": "minise.rounds",
    "Generation": "minise.writing.generation",
    "generate": "minise.writing.generation",
}
__all__ = sorted(NAMES)


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used: `minise --help` does not wait for torch."""
    from importlib import import_module

    if name not in NAMES:
        raise AttributeError(f"module 'minise' has no attribute '{name}'")
    return getattr(import_module(NAMES[name]), name)
