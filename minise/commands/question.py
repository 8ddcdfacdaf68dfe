"""The question of a request, and the method with the request's settings."""

from __future__ import annotations

from minise.commands.options import QUESTION, QuestionRequest
from minise.data import question_file
from minise.errors import InputError
from minise.grouping import make_groups
from minise.groupings.registry import grouping_named
from minise.method import SelfEnsemble
from minise.methods.public import named_self_ensemble
from minise.prompt import check_labels
from minise.question import Question


def read_question(request: QuestionRequest) -> Question:
    """The question of --file, or of --question and --choice, or the built-in one."""
    if request.file is not None:
        if request.text is not None or request.choices is not None:
            raise InputError("--file and --question or --choice exclude each other; give one")
        return question_file.read_question(request.file, request.columns, request.answers)
    if request.columns or request.answers:
        raise InputError("--columns and --answers are for --file; name one")
    if request.text is None and request.choices is None:
        return QUESTION
    if request.text is None:
        raise InputError("--choice without a question; add --question TEXT")
    return Question(request.text, request.choices or ())


def check_groups(question: Question, request: QuestionRequest) -> None:
    """Form the groups once, so that what is wrong is said before a large model is loaded."""
    K = len(question.choices)
    check_labels(min(K, request.group_size))
    grouping = grouping_named(request.grouping or "random")
    make_groups(K, request.group_size, request.trials, request.seed, question.id, grouping)


def self_ensemble(request: QuestionRequest) -> SelfEnsemble:
    """The method with the settings of the request."""
    return named_self_ensemble(
        request.group_size, request.trials, request.grouping, request.null_option, request.preset
    )
