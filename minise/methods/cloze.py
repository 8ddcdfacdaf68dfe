"""Cloze: how probable the text of each choice is as the answer. No list, and no labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from minise.checks import check_length, check_name
from minise.engines import LanguageModel
from minise.errors import Unsuited
from minise.grouping import Groups
from minise.layout import shared_length
from minise.method import Answer, Group, Method, Plan
from minise.prompt import DEFAULT_TEMPLATE, Prompt, Template
from minise.question import Question
from minise.writing.chat import stop_tokens

SCORES = ("sum", "mean")


@dataclass(frozen=True)
class Read:
    """Where the text of a choice is read. prompts, tokens: for each token of its text, the prompt
    after which it is read, and its id. end: the prompt after the whole text, and the ids of which
    any ends it; None: the end is not read."""

    prompts: list[int]
    tokens: list[int]
    end: tuple[int, list[int]] | None


@dataclass(frozen=True)
class ClozePlan(Plan):
    """A plan that also says where the text of each choice is read."""

    reads: tuple[Read, ...] = ()


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

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> ClozePlan:
        """A prompt for each place at which a text is read, and these places. Texts that begin alike
        are read at the same ones."""
        check_name("score of cloze", self.score, SCORES)
        check_length(lm, question.text, question.choices)
        template = self.template.adapt(lm, question, 0, null=False)
        start = replace(template, choice="").render(question.text, [])
        texts = [start + template.label.format(label=choice) for choice in question.choices]
        first, *encoded = lm.tokenizer.encode([start, *texts, *(f"{text}\n" for text in texts)])
        whole, line_ended = encoded[: len(texts)], encoded[len(texts) :]
        # If a tokenizer merges the cue and a text, all are read from the token before that.
        shared = shared_length([first, *whole])
        places: dict[tuple[int, ...], int] = {}  # the ids before a place -> its prompt

        def place(ids: Sequence[int]) -> int:
            return places.setdefault(tuple(ids), len(places))

        reads = []
        for ids, longer in zip(whole, line_ended, strict=True):
            tokens = ids[shared:]
            before = [place(tokens[:j]) for j in range(len(tokens))]
            end = (place(tokens), ids_of_end(lm, ids, longer)) if self.end else None
            reads.append(Read(before, tokens, end))
        prompts = [Prompt(start + lm.tokenizer.decode(ids), list(ids), None) for ids in places]
        groups = Groups(((tuple(range(len(question.choices))),),))
        return ClozePlan(question, groups, first[:shared], prompts, reads=tuple(reads))

    def answer(self, plan: Plan, logits: Sequence[Tensor]) -> Answer:
        assert isinstance(plan, ClozePlan)  # it is the one of `plan`
        log_p = torch.stack(list(logits)).log_softmax(dim=-1)
        sums = []
        for read in plan.reads:
            text = log_p[read.prompts, read.tokens].sum()
            if read.end is not None:
                prompt, ids = read.end
                text = text + log_p[prompt, ids].logsumexp(dim=0)
            sums.append(text)
        score = torch.stack(sums)
        if self.score == "mean":
            lengths = [len(read.tokens) + (read.end is not None) for read in plan.reads]
            score = score / torch.tensor(lengths)
        p = score.softmax(dim=-1)
        best = p.tolist().index(max(p.tolist()))
        return Answer(p, p, best, (Group(plan.groups.flat[0], p, None),))


def ids_of_end(lm: LanguageModel, ids: list[int], line_ended: list[int]) -> list[int]:
    """The ids of which any ends a text: the model's stop tokens, and the first token of a line end
    after the text, where the tokenizer makes tokens of its own for it. Raises Unsuited where there
    are neither."""
    try:
        ends = set(stop_tokens(lm))
    except Unsuited:
        ends = set()
    if line_ended[: len(ids)] == ids and len(line_ended) > len(ids):
        ends.add(line_ended[len(ids)])
    if not ends:
        raise Unsuited(f"{lm.name}: nothing ends a text; write cloze(end=false)")
    return sorted(ends)
