"""Presence: each choice alone against "None of the above"."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from minise.method import SelfEnsemble


@dataclass(frozen=True)
class Presence(SelfEnsemble):
    """Self-Ensemble with groups of one choice and one trial: each choice is asked once, alone,
    against "None of the above". K prompts.

    The score of a choice is the probability of its label against that of the null option: is the
    answer there or not? No list is read, and no choice is compared with another. What grouping
    gains beside this is the comparison.
    """

    name: ClassVar[str] = "presence"
    group_size: int = field(default=1, init=False)
    trials: int = field(default=1, init=False)
    grouping: None = field(default=None, init=False)
    null_option: bool = field(default=True, init=False)
