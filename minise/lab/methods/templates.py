"""Prompts by name, from a file, in the checkpoint's chat template, and after solved questions."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from minise.errors import InputError, check_name
from minise.grouping import Groups, permutation
from minise.lab.methods.authors_code import released
from minise.lab.writing.chat import user_turn
from minise.prompts import LanguageModel, Prompts
from minise.question import Question
from minise.template import DEFAULT_TEMPLATE, LABELS, Template


@dataclass(frozen=True)
class Adapting(Template):
    """A template that knows the model or the question. `adapt` gives the one that is written, for
    prompts of at most `size` choices (0: without a list), with the null option or without."""

    def adapt(self, lm: LanguageModel, question: Question, size: int, null: bool) -> Template:
        raise NotImplementedError

    def prompts(
        self, lm: LanguageModel, question: Question, groups: Groups, null_option: bool
    ) -> Prompts:
        template = self.adapt(lm, question, groups.largest, null_option)
        return template.prompts(lm, question, groups, null_option)


def adapted(
    template: Template, lm: LanguageModel, question: Question, size: int, null: bool
) -> Template:
    """The template that is written: itself, but where it knows the model or the question."""
    if isinstance(template, Adapting):
        return template.adapt(lm, question, size, null)
    return template


@dataclass(frozen=True)
class Authors(Adapting):
    """The group prompt of the released code, which depends on the model's family."""

    def adapt(self, lm: LanguageModel, question: Question, size: int, null: bool) -> Template:
        return released(lm).group


@dataclass(frozen=True)
class Chat(Adapting):
    """Another template in the checkpoint's chat template: the question and its choices are the
    user's message, and the cue begins the model's."""

    inner: Template = DEFAULT_TEMPLATE

    def adapt(self, lm: LanguageModel, question: Question, size: int, null: bool) -> Template:
        inner = adapted(self.inner, lm, question, size, null)
        mark = "QUESTION-AND-CHOICES"
        before, found, after = user_turn(lm, mark).partition(mark)
        if not found or mark in after:
            raise InputError(f"{lm.name}: its chat template changes a message; ask it plainly")
        asked = inner.question
        choice = inner.choice
        if asked.endswith("\n") and choice.endswith("\n"):  # no message ends in a newline
            asked = asked.removesuffix("\n")
            choice = "\n" + choice.removesuffix("\n")
        return replace(inner, question=plain(before) + asked, choice=choice, cue=after + inner.cue)


@dataclass(frozen=True)
class Solved(Adapting):
    """Another template after solved questions: all of `pool` but one, never the asked one. Each is
    written as the method writes its prompts. In groups of m it lists m choices, drawn at random,
    and if the right one is not among them, "None of the above" is its answer."""

    inner: Template = DEFAULT_TEMPLATE
    pool: tuple[Question, ...] = field(default=(), repr=False)

    def adapt(self, lm: LanguageModel, question: Question, size: int, null: bool) -> Template:
        inner = adapted(self.inner, lm, question, size, null)
        others = [other for other in self.pool if other.text != question.text]
        solved = ""
        for other in others[: len(self.pool) - 1]:
            solved += f"{solution(inner, other, size, null)}\n\n"
        return replace(inner, question=plain(solved) + inner.question)


def solution(template: Template, question: Question, size: int, null: bool) -> str:
    """The prompt of a question with its answer, for groups of `size` choices; 0: without a list."""
    answer = question.answer or 0  # `draw_solved` takes none without an answer
    if size == 0:
        start = replace(template, choice="").render(question.text, [])
        return start + template.label.format(label=question.choices[answer])
    group = list(range(len(question.choices)))
    if size < len(group):
        group = permutation(len(group), f"solved/{question.id}")[:size]
        if not null and answer not in group:
            group[answer % size] = answer
    right = group.index(answer) if answer in group else size
    choices = [question.choices[i] for i in group]
    if null:
        choices.append(template.null)
    return template.render(question.text, choices) + template.label.format(label=LABELS[right])


def draw_solved(count: int, questions: Sequence[Question], seed: int) -> tuple[Question, ...]:
    """One question more than `count`, because a question never stands before itself. No two have
    the same text. Raises InputError if fewer have an answer."""
    pool = [one for one in questions if one.answer is not None]
    drawn: dict[str, Question] = {}
    for i in permutation(len(pool), f"solved/{seed}"):
        drawn.setdefault(pool[i].text, pool[i])
    if len(drawn) <= count:
        raise InputError(f"{len(drawn)} questions with an answer are too few for {count} shots")
    return tuple(drawn.values())[: count + 1]


def after_solved(template: Template, pool: tuple[Question, ...]) -> Template:
    """The template after solved questions. In a chat they are in the user's message."""
    if isinstance(template, Chat):
        return replace(template, inner=after_solved(template.inner, pool))
    if isinstance(template, Authors):
        raise InputError("the template authors has no place for shots; use another")
    return Solved(inner=template, pool=pool)


TEMPLATES: dict[str, Template] = {
    "default": DEFAULT_TEMPLATE,
    "mmlu": Template(choice="{label}. {choice}\n"),  # as most harnesses write MMLU
    "paren": Template(cue="Answer: (", label="{label}"),  # as labels stand in the list
    "authors": Authors(),
}


def template_named(text: str) -> Template:
    """A template of TEMPLATES, "chat" or "chat:NAME" for one in the checkpoint's chat template, or
    one from a JSON file. Raises InputError for what is none of these."""
    kind, _, name = text.partition(":")
    if kind == "chat":
        return Chat(inner=template_named(name or "default"))
    if text.endswith(".json"):
        return read_template(Path(text))
    check_name("template", text, [*TEMPLATES, "chat", "chat:NAME", "FILE.json"])
    return TEMPLATES[text]


def read_template(path: Path) -> Template:
    """A template from a JSON object, as {"choice": "{label}. {choice}\\n"}: fields of Template that
    differ from the default. Raises InputError for a file that is none."""
    try:
        template = Template(**json.loads(path.read_text("utf-8")))
        written = template.render("QUESTION", ["CHOICE"]) + template.label.format(label="LABEL")
        null = template.null.strip()
        f"{written}{null}".encode()  # half of a surrogate pair is no text
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        form = 'give an object of texts such as {"choice": "{label}. {choice}\\n"}'
        raise InputError(f"{path}: {error}; {form}") from None
    for part in ("QUESTION", "CHOICE", "LABEL"):
        if part not in written:
            raise InputError(f"{path}: no {{{part.lower()}}} in its texts; add it")
    if not null:
        raise InputError(f"{path}: null is empty; write 'None of the above' in your language")
    return template


def plain(text: str) -> str:
    """The text as a part of a template, in which braces have a meaning."""
    return text.replace("{", "{{").replace("}", "}}")
