"""Self-Ensemble for many-choice questions, in code that can be read and checked token by token."""

from minise.checkpoint import LanguageModel, load
from minise.config import Config
from minise.ensemble import Answer, Group, branch_logits, self_ensemble, standard
from minise.errors import InputError
from minise.layout import Layout, pack
from minise.model import Decoder
from minise.presets import AUTHORS_CODE, PAPER, Preset
from minise.prompt import Question, Template

__version__ = "0.1.0"
__all__ = [
    "AUTHORS_CODE",
    "PAPER",
    "Answer",
    "Config",
    "Decoder",
    "Group",
    "InputError",
    "LanguageModel",
    "Layout",
    "Preset",
    "Question",
    "Template",
    "branch_logits",
    "load",
    "pack",
    "self_ensemble",
    "standard",
]
