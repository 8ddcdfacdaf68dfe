"""The functions that `import minise` offers for one question."""

from __future__ import annotations

from minise.grouping import Grouping
from minise.lab.methods.groupings import grouping_named
from minise.lab.methods.registry import find_template
from minise.lm import LanguageModel, LocalModel
from minise.loading.plugin import find_engine
from minise.method import Answer, SelfEnsemble, Standard, ask
from minise.question import Question
from minise.template import Template


def self_ensemble(
    lm: LanguageModel,
    question: Question,
    group_size: int = 4,
    trials: int = 20,
    seed: int = 0,
    engine: str | None = None,
    grouping: str | Grouping = "random",
    null_option: bool = True,
    template: str | Template = "default",
) -> Answer:
    """Answer a question by Self-Ensemble: group_size is m, trials is N, template a name that
    `minise ask` takes, or a Template. engine: as for `load`; by default the model's. Raises
    InputError for sizes below 1, more choices than labels, labels that are not single tokens, or a
    prompt beyond the model's positions."""
    written = find_template(template)
    method = SelfEnsemble(group_size, trials, grouping_named(grouping), null_option, written)
    return ask(using(lm, engine), method, question, seed)


def standard(
    lm: LanguageModel,
    question: Question,
    engine: str | None = None,
    template: str | Template = "default",
) -> Answer:
    """Answer a question by standard inference. Raises InputError as `self_ensemble` does."""
    return ask(using(lm, engine), Standard(find_template(template)), question)


def using(lm: LanguageModel, engine: str | None) -> LanguageModel:
    """The model with this engine, if one is named. A served model has one way to run prompts."""
    if engine is None or not isinstance(lm, LocalModel):
        return lm
    return lm.with_engine(engine, find_engine(engine))
