"""The functions that `import minise` offers for one question. Names become objects here."""

from __future__ import annotations

from minise.engines import LanguageModel
from minise.grouping import Grouping
from minise.groupings.registry import grouping_named
from minise.method import Answer, Preset, SelfEnsemble, Standard
from minise.methods.presets import preset_named
from minise.question import Question
from minise.rounds import ask


def self_ensemble(
    lm: LanguageModel,
    question: Question,
    group_size: int = 4,
    trials: int = 20,
    seed: int = 0,
    engine: str = "tree",
    grouping: str | Grouping | None = None,
    null_option: bool | None = None,
    preset: str | Preset = "paper",
) -> Answer:
    """Answer a question by Self-Ensemble (Section 3.2; packed as in Section 4).

    group_size is m, trials is N. `grouping` (a name in `GROUPINGS`, or a function) and
    `null_option` override the preset's; in the default preset they are "random" and True. Raises
    InputError for sizes below 1, more choices than labels, labels that are not single tokens, or a
    prompt beyond the model's positions.
    """
    fixed = named_self_ensemble(group_size, trials, grouping, null_option, preset)
    return ask(lm, fixed, question, seed, engine)


def named_self_ensemble(
    group_size: int,
    trials: int,
    grouping: str | Grouping | None,
    null_option: bool | None,
    preset: str | Preset,
) -> SelfEnsemble:
    """The method, with objects for the names of a grouping and a preset. Raises InputError for an
    unknown name."""
    function = None if grouping is None else grouping_named(grouping)
    return SelfEnsemble(group_size, trials, function, null_option, preset_named(preset))


def standard(
    lm: LanguageModel, question: Question, engine: str = "tree", preset: str | Preset = "paper"
) -> Answer:
    """Standard inference: one prompt with all K choices and no null option; one group."""
    return ask(lm, Standard(preset_named(preset)), question, 0, engine)
