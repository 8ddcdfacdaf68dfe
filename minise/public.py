"""The two functions for one question: minise.self_ensemble and minise.standard."""

from __future__ import annotations

from minise.by_name import from_lab
from minise.errors import InputError
from minise.grouping import Grouping, random_partitions
from minise.lm import LocalModel
from minise.loading.plugin import find_engine
from minise.method import Answer, SelfEnsemble, Standard, ask
from minise.prompts import LanguageModel
from minise.question import Question
from minise.template import DEFAULT_TEMPLATE, Template


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
    """Answer a question by Self-Ensemble: group_size is m, trials is N. grouping, template: names
    that `minise ask` takes, or a function and a Template. engine: as for `load`; by default the
    model's. Raises InputError for sizes below 1, more choices than labels, labels that are not
    single tokens, or a prompt beyond the model's positions."""
    drawn = grouping_of(grouping)
    written = template_of(template)
    method = SelfEnsemble(group_size, trials, drawn, null_option, written)
    return ask(using(lm, engine), method, question, seed)


def standard(
    lm: LanguageModel,
    question: Question,
    engine: str | None = None,
    template: str | Template = "default",
) -> Answer:
    """Answer a question by standard inference. Raises InputError as `self_ensemble` does."""
    return ask(using(lm, engine), Standard(template_of(template)), question)


def grouping_of(grouping: str | Grouping) -> Grouping:
    """The grouping of a name."""
    if grouping == "random":
        return random_partitions
    named: Grouping = from_lab("--grouping")(grouping)
    return named


def template_of(template: str | Template) -> Template:
    """The template of a name."""
    if isinstance(template, Template):
        return template
    if template == "default":
        return DEFAULT_TEMPLATE
    named: Template = from_lab("--template")(template)
    return named


def using(lm: LanguageModel, engine: str | None) -> LanguageModel:
    """The model with this engine, if one is named. A served model has one way to run prompts: it
    refuses any."""
    if engine is None:
        return lm
    if not isinstance(lm, LocalModel):
        raise InputError(f"{lm.name} runs prompts in its own way; leave engine={engine!r} out")
    return lm.with_engine(find_engine(engine))
