"""Cloze: how probable the text of each choice is as the answer. No list, and no labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from minise.engines import LanguageModel, check_length
from minise.errors import InputError, Unsuited, quote
from minise.grouping import Groups
from minise.method import PAPER, Answer, Group, Method, Plan, Preset
from minise.methods.text_reads import Read, text_log_p
from minise.prompt import Prompt, Template, shared_length
from minise.question import Question
from minise.rounds import join
from minise.writing.chat import stop_tokens

SCORES = ("sum", "mean", "pmi")


@dataclass(frozen=True)
class ClozePlan(Plan):
    """A plan that also says where the text of each choice is read: after the question, and for
    "pmi" also after the bare cue."""

    reads: tuple[Read, ...] = ()
    bare: tuple[Read, ...] = ()


@dataclass(frozen=True)
class Cloze(Method):
    """The probability of each choice's text after the question, as most evaluation harnesses score
    choices by default (Brown et al. 2020, arXiv 2005.14165, Section 2.4).

    The prompt is the question and the cue, without the choices. Each choice is a branch after it,
    read at every token and not at its end alone. With the text t_1 ... t_L of choice i:

        log p(i) = sum_j log p(t_j | question, cue, t_<j)       each over the whole vocabulary

    `score`: "sum" is that; "mean" divides it by L, which does not favour short texts; "pmi"
    subtracts the same sum after the bare cue, without the question (Holtzman et al. 2021, arXiv
    2104.08315), which does not favour frequent texts. The answer's probabilities are the softmax of
    these over the choices.

    `end`: whether the end of the text counts as one more token t_(L+1), so that "red" is not as
    good an answer as "red ant". Text ends by a stop token of the model or by a line end.
    """

    name: ClassVar[str] = "cloze"
    score: str = "sum"
    end: bool = True
    preset: Preset = PAPER

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> ClozePlan:
        if self.score not in SCORES:
            raise InputError(f"cloze: score {quote(self.score)} is none of {', '.join(SCORES)}")
        check_length(lm, question)
        template = self.standard_template(lm)
        start = open_prompt(template, question.text)
        prefix, prompts, reads = self._read(lm, template, start, question)
        order = tuple(range(len(question.choices)))
        groups = Groups(((order,),), complete=True)
        plan = Plan(question, groups, prefix, prompts)
        if self.score != "pmi":
            return ClozePlan(question, groups, prefix, prompts, reads=reads)
        prefix, prompts, bare = self._read(lm, template, template.cue, question)
        both = join([plan, replace(plan, prefix=prefix, prompts=prompts)])  # all in one pass
        bare = _moved(bare, len(plan.prompts))
        return ClozePlan(question, groups, both.prefix, both.prompts, reads=reads, bare=bare)

    def answer(self, plan: Plan, logits: Sequence[Tensor]) -> Answer:
        assert isinstance(plan, ClozePlan)  # it is the one of `plan`
        score = text_log_p(logits, plan.reads)
        if self.score == "mean":
            lengths = [len(read.tokens) + (read.end is not None) for read in plan.reads]
            score = score / torch.tensor(lengths)
        if self.score == "pmi":
            score = score - text_log_p(logits, plan.bare)
        p = score.softmax(dim=-1)
        best = max(range(len(p)), key=p.tolist().__getitem__)
        return Answer(p, p, best, (Group(plan.groups.flat[0], p, None),))

    def _read(
        self, lm: LanguageModel, template: Template, start: str, question: Question
    ) -> tuple[list[int], list[Prompt], tuple[Read, ...]]:
        """The ids that all texts share, a prompt for each place at which a text is read, and these
        places for each choice. Texts that begin alike are read at the same places."""
        texts = [start + template.label.format(label=choice) for choice in question.choices]
        ended = [f"{text}\n" for text in texts] if self.end else []
        first, *encoded = lm.tokenizer.encode([start, *texts, *ended])
        whole, longer = encoded[: len(texts)], encoded[len(texts) :]
        # If a tokenizer merges the cue and a text, all are read from the token before that.
        shared = shared_length([first, *whole])
        vocabulary = list(range(lm.config.vocab_size))
        places: dict[tuple[int, ...], int] = {}  # the ids before a place -> its prompt
        prompts: list[Prompt] = []

        def place(text: str, ids: list[int]) -> int:
            if tuple(ids) not in places:
                places[tuple(ids)] = len(prompts)
                prompts.append(Prompt(text, ids, vocabulary))
            return places[tuple(ids)]

        reads = []
        for i, (text, ids) in enumerate(zip(texts, whole, strict=True)):
            tokens = ids[shared:]
            before = tuple(place(text, tokens[:j]) for j in range(len(tokens)))
            end = None
            if self.end:
                end = place(text, tokens), ids_of_end(lm, ids, longer[i])
            reads.append(Read(i, before, tuple(tokens), end))
        return first[:shared], prompts, tuple(reads)


def open_prompt(template: Template, question: str) -> str:
    """The prompt without any choice: the question and the cue."""
    return replace(template, choice="").render(question, [])


def ids_of_end(lm: LanguageModel, ids: Sequence[int], line_ended: Sequence[int]) -> tuple[int, ...]:
    """The ids of which any ends a text: the model's stop tokens, and the first token of a line end
    after the text, where the tokenizer makes tokens of its own for it. Raises Unsuited where there
    are neither."""
    try:
        ends = set(stop_tokens(lm))
    except Unsuited:
        ends = set()
    if list(line_ended[: len(ids)]) == list(ids) and len(line_ended) > len(ids):
        ends.add(line_ended[len(ids)])
    if not ends:
        raise Unsuited(f"{lm.name}: nothing ends a text; write cloze(end=false)")
    return tuple(sorted(ends))


def _moved(reads: Sequence[Read], by: int) -> tuple[Read, ...]:
    """The places of prompts that come after `by` others."""
    moved = []
    for read in reads:
        end = None if read.end is None else (read.end[0] + by, read.end[1])
        moved.append(replace(read, prompts=tuple(p + by for p in read.prompts), end=end))
    return tuple(moved)
