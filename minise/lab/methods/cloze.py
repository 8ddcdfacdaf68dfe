"""Cloze: how probable the text of each choice is as the answer. No list, and no labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from minise.errors import Unsuited, check_name
from minise.lab.methods.templates import adapted
from minise.lab.writing.chat import stop_tokens
from minise.layout import shared_length
from minise.method import Answer, Group, Method, answer_of
from minise.prompts import LabelLogits, LanguageModel, Prompts, check_length
from minise.question import Question
from minise.template import DEFAULT_TEMPLATE, Template

SCORES = ("sum", "mean")


@dataclass(frozen=True)
class Read:
    """Where a token of a choice's text is read. place: after which prompt. tokens: which of the
    tokens that are read there. It is one, or at the end of the text any of several."""

    place: int
    tokens: list[int]


@dataclass(frozen=True)
class ClozePlan:
    """For each choice, what is read: its tokens in their order, and its end."""

    reads: list[list[Read]]


class Places:
    """The places at which the texts of a question are read. Each is a prompt: the ids before it,
    after the beginning that all share. Texts that begin alike are read at the same ones."""

    def __init__(self) -> None:
        self.before: list[list[int]] = []
        self.tokens: list[list[int]] = []  # those that are read there
        self._numbers: dict[tuple[int, ...], int] = {}

    def read(self, before: list[int], wanted: list[int]) -> Read:
        """That one of the tokens `wanted` is read after `before`."""
        place = self._numbers.setdefault(tuple(before), len(self.before))
        if place == len(self.before):
            self.before.append(before)
            self.tokens.append([])
        tokens = self.tokens[place]
        for token in wanted:
            if token not in tokens:
                tokens.append(token)
        return Read(place, [tokens.index(token) for token in wanted])


@dataclass(frozen=True)
class Cloze(Method):
    """The probability of each choice's text after the question, as most evaluation harnesses score
    choices by default (Brown et al. 2020, arXiv 2005.14165, Section 2.4).

    The prompt is the question and the cue, without the choices. Each choice is a branch after it,
    read at every token and not at its end alone. With the text t_1 ... t_L of choice i:

        log p(i) = sum_j log p(t_j | question, cue, t_<j)       each over the whole vocabulary

    `score`: "sum" is that; "mean" divides it by L, which does not favour short texts. The answer's
    probabilities are the softmax of these over the choices.

    `end`: whether the end of the text counts as one more token t_(L+1), so that "red" is not as
    good an answer as "red ant". Text ends by a stop token of the model or by a line end.
    """

    name: ClassVar[str] = "cloze"
    score: str = "sum"
    end: bool = True
    template: Template = DEFAULT_TEMPLATE

    def __post_init__(self) -> None:
        check_name("score", self.score, SCORES)

    def prompts(
        self, lm: LanguageModel, question: Question, seed: int = 0
    ) -> tuple[ClozePlan, Prompts]:
        """A prompt for each place at which a text is read, and what is read there."""
        check_length(lm, question.text, question.choices)
        template = adapted(self.template, lm, question, 0, null=False)
        start = replace(template, choice="").render(question.text, [])
        texts = [start + template.label.format(label=choice) for choice in question.choices]
        line_ended = [f"{text}\n" for text in texts]
        first, *encoded = lm.tokenizer.encode([start, *texts, *line_ended])
        ids_of_texts = encoded[: len(texts)]
        ids_of_lines = encoded[len(texts) :]
        # If a tokenizer merges the cue and a text, all are read from the token before that.
        shared = shared_length([first, *ids_of_texts])

        places = Places()
        reads = []
        for ids, ids_of_line in zip(ids_of_texts, ids_of_lines, strict=True):
            tokens = ids[shared:]
            of_choice = []
            for j, token in enumerate(tokens):
                of_choice.append(places.read(tokens[:j], [token]))
            if self.end:
                of_choice.append(places.read(tokens, ids_of_end(lm, ids, ids_of_line)))
            reads.append(of_choice)
        prompts = Prompts(first[:shared], places.before, places.tokens)
        return ClozePlan(reads), prompts

    def answer(self, plan: ClozePlan, logits: Sequence[LabelLogits]) -> Answer:
        scores = []
        for reads in plan.reads:
            log_p = []
            for read in reads:
                of_tokens = logits[read.place].log_probabilities[read.tokens]
                log_p.append(of_tokens.logsumexp(dim=0))
            score = torch.stack(log_p).sum()
            if self.score == "mean":
                score = score / len(reads)
            scores.append(score)
        p = torch.stack(scores).softmax(dim=0)
        everything = tuple(range(len(p)))
        return answer_of(p, [Group(everything, p, None)])


def ids_of_end(lm: LanguageModel, ids: list[int], ids_of_line: list[int]) -> list[int]:
    """The ids of which any ends a text: the model's stop tokens, and the first token of a line end
    after the text, where the tokenizer makes tokens of its own for it. ids_of_line: of the text
    with its line end. Raises Unsuited where there are neither."""
    try:
        ends = set(stop_tokens(lm))
    except Unsuited:
        ends = set()
    if ids_of_line[: len(ids)] == ids and len(ids_of_line) > len(ids):
        ends.add(ids_of_line[len(ids)])
    if not ends:
        raise Unsuited(f"{lm.name}: nothing ends a text; write cloze(end=false)")
    return sorted(ends)
