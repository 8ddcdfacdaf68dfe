"""Set-Based Prompting: the choices side by side, so that their order cannot matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from minise.engines import LanguageModel, check_length, check_mask_fits
from minise.errors import Unsuited
from minise.grouping import Groups
from minise.layout import Layout, pack
from minise.method import Answer, Group, Method, Plan
from minise.prompt import Prompt, shared_length
from minise.question import Question

CUE = "Answer:"


@dataclass(frozen=True)
class SetPlan(Plan):
    """`reads`: for each choice, in the order of the layout, its index in the question, and where
    its text is read: for each of its tokens a prompt and the token's id."""

    reads: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()


@dataclass(frozen=True)
class SetBased(Method):
    """Set-Based Prompting (McIlroy-Young et al. 2024, arXiv 2406.06581).

    A fork and join of the question Q, the choices c_1 ... c_K and the cue:

        mask        a choice sees Q and itself; the cue sees Q, all choices and itself
        positions   every choice begins at |Q|; the cue at |Q| + max_i |c_i|

    A choice has neither a label nor a place: the model is given a set. The sequence is laid out in
    the order of the choices' token ids, so it is the same for all K! orders of a question, and the
    answer has the same bits by construction.

    Readout by text, because there are no labels: p(i) is proportional to the probability of the
    choice's text after the cue, prod_j p(t_j | Q, choices, cue, t_<j), each over the whole
    vocabulary. The publication lets the model write greedily, and counts what holds the right
    choice and no other; that gives no probability, and the text's own is the nearest that does.
    `per_token`: the geometric mean over the text's tokens in place of the product. It takes away
    what favours short texts, and favours long ones whose first token decides the others.

    A choice is a line, as in `standard` without its label. (The publication's lines begin with a
    dash or have quotation marks, by data set.)
    """

    name: ClassVar[str] = "set-based"
    per_token: bool = False

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> SetPlan:
        check_length(lm, question)
        prefix, cue, written = _write(lm, question)
        order = sorted(range(len(written)), key=lambda i: written[i])
        lines, answers = zip(*(written[i] for i in order), strict=True)
        fork = pack(prefix, lines)
        join = pack(cue, [ids[:-1] for ids in answers], tree=True)  # the last is read, not run
        F, J = len(fork.tokens), len(join.tokens)
        check_mask_fits(F + J)
        mask = torch.zeros(F + J, F + J, dtype=torch.bool)
        mask[:F, :F], mask[F:, :F], mask[F:, F:] = fork.mask, True, join.mask
        paths = [path[len(cue) - 1 :] for path in join.paths()]  # for each token of a choice a row
        # From the last row to the first: the first prompt stands for all tokens of the layout.
        rows = sorted({row for path in paths for row in path}, reverse=True)
        layout = Layout(
            torch.cat([fork.tokens, join.tokens]),
            torch.cat([fork.positions, join.positions + fork.positions.max() + 1]),
            mask,
            torch.tensor(rows) + F,
        )
        text = "\n".join([question.text, *(question.choices[i] for i in order), CUE])
        longest, vocabulary = max(lines, key=len), list(range(lm.config.vocab_size))
        seen = {
            path[j]: [*cue, *ids[:j]]
            for path, ids in zip(paths, answers, strict=True)
            for j in range(len(path))
        }
        prompts = [Prompt(text, [*longest, *seen[row]], vocabulary) for row in rows]
        reads = tuple(
            (i, tuple((rows.index(row), token) for row, token in zip(path, ids, strict=True)))
            for i, path, ids in zip(order, paths, answers, strict=True)
        )
        groups = Groups(((tuple(range(len(order))),),), complete=True)
        return SetPlan(question, groups, prefix, prompts, layout, reads=reads)

    def answer(self, plan: Plan, logits: Sequence[Tensor]) -> Answer:
        assert isinstance(plan, SetPlan)  # it is the one of `plan`
        # In the order of the layout up to the end: a sum in another order could round otherwise.
        log_p = torch.stack(list(logits)).log_softmax(dim=-1)
        said = torch.stack([log_p[tuple(zip(*read, strict=True))].sum() for _, read in plan.reads])
        if self.per_token:
            said = said / torch.tensor([len(read) for _, read in plan.reads])
        p = torch.empty_like(said)
        p[[i for i, _ in plan.reads]] = said.softmax(dim=-1)
        best = max(range(len(p)), key=p.tolist().__getitem__)
        return Answer(p, p, best, (Group(plan.groups.flat[0], p, None),))


Ids = list[int]


def _write(lm: LanguageModel, question: Question) -> tuple[Ids, Ids, list[tuple[Ids, Ids]]]:
    """Token ids of the question, of the cue, and of each choice: its line, and its text after the
    cue. Raises Unsuited for a tokenizer that makes one token of parts of two of these."""
    start = f"{question.text}\n"
    lines = [f"{start}{choice}\n" for choice in question.choices]
    cued = [line + CUE for line in lines]
    told = [f"{text} {choice}" for text, choice in zip(cued, question.choices, strict=True)]
    K = len(lines)
    first, *others = lm.tokenizer.encode([start, *lines, *cued, *told])
    ends = list(zip(others[:K], others[K : 2 * K], others[2 * K :], strict=True))
    cues = [b[len(a) :] for a, b, _ in ends]
    nested = all(a == b[: len(a)] and b == c[: len(b)] and c != b for a, b, c in ends)
    if not nested or any(cue != cues[0] for cue in cues):
        raise Unsuited(
            f"{lm.tokenizer.name}: a choice, {CUE!r} and the text after it share a token; "
            "use another tokenizer"
        )
    shared = shared_length([first, *others[:K]])
    return first[:shared], cues[0], [(a[shared:], c[len(b) :]) for a, b, c in ends]
