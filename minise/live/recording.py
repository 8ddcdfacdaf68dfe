"""The scenes with recorded answers, for a checkpoint that does not run in a page.

The scenes ask a model in one way: a row of tokens with positions and a mask, and the tokens at
which to read. Here Python asks all that they can ask about one question, with the package's own
engines, and the page finds each answer by a hash of what it asks (recording.js). So the scenes are
those of the live page. What is recorded: the prompt with each number of choices (Ask); one trial
with another word in group 1, under both masks and with both positions (Leak); one trial with each
line hidden (Read); all trials (Mean). Split, Pack and the judgement of a mask need no model.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minise.engines import LanguageModel, layout_ends, read_logits
from minise.errors import InputError
from minise.explaining.ablations import ablated_layouts
from minise.explaining.runs import attention_weights, by_layer
from minise.grouping import Groups
from minise.layout import Layout, pack
from minise.live.page import MOST_CHOICES, page_of
from minise.method import Plan, SelfEnsemble, label_logits, plan_groups
from minise.prompt import DEFAULT_TEMPLATE, LABELS, NULL_OPTION, write_prompts
from minise.question import Question

MOST_TRIALS, MOST_SEED = 40, 9999  # that the scenes can show
GROUPS = 3  # at most, in the row of Leak
WORDS = 2  # that Leak puts in place of group 1's first choice
MARKS = 400  # for the logits of all tokens, in Read


@dataclass(frozen=True)
class Said:
    """What the model says of a layout, at some of its rows. logits: of labels, by row and token id.
    every: of all tokens, see `_every`. attention: (L, heads, T) by row, what the row's token
    reads."""

    layout: Layout
    logits: dict[int, dict[int, float]]
    every: dict[int, dict[str, Any]] = field(default_factory=dict)
    attention: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """A question, and how it is asked: N trials with groups of m."""

    lm: LanguageModel
    question: Question
    m: int
    N: int
    seed: int

    def trials(self) -> Plan:
        """The prompts of all trials."""
        return SelfEnsemble(self.m, self.N).plan(self.lm, self.question, self.seed)

    def prompts(self, lists: Sequence[Sequence[str]]) -> Plan:
        """Prompts with these choices and the null option."""
        texts = [[*one, NULL_OPTION] for one in lists]
        tokenizer, text = self.lm.tokenizer, self.question.text
        prefix, prompts = write_prompts(tokenizer, DEFAULT_TEMPLATE, text, texts)
        return Plan(self.question, Groups(()), prefix, prompts)


def recorded_page(
    lm: LanguageModel, question: Question, m: int, N: int, seed: int, why: str
) -> str:
    """The page for one question, asked with groups of m in N trials. `why` the model does not run
    in the page stands there.

    Raises InputError as `check_scenes` does, for a prompt beyond the model's positions, and for a
    tokenizer that joins two lines of a prompt.
    """
    check_scenes(question, m, N, seed)
    asked = Asked(lm, question, m, N, seed)
    lines = Lines(asked)
    words = other_words(question, leak_groups(asked.trials().groups.trials[0]))
    embedded = {
        "name": Path(lm.name).name,
        "config": {"sliding_windows": list(lm.config.sliding_windows)},
        "tokenizer": {"lines": lines.ids, "pieces": lines.pieces()},
        "weights": "",
        "world": [world_item(question)],
        "recording": {
            "why": why,
            "settings": {"m": m, "N": N, "seed": seed},
            "words": words,
            "answers": as_json(all_said(asked, lines)),
        },
    }
    return page_of(embedded)


def check_scenes(question: Question, m: int, N: int, seed: int) -> None:
    """Raise InputError for what the scenes cannot show."""
    limits = {
        "choices": (len(question.choices), 2, MOST_CHOICES),
        "choices in a group": (m, 1, MOST_CHOICES),
        "trials": (N, 1, MOST_TRIALS),
        "as seed": (seed, 0, MOST_SEED),
    }
    for what, (value, least, most) in limits.items():
        if not least <= value <= most:
            own = f"the scenes of --live have {least} to {most:,}"
            raise InputError(f"{value:,} {what}, but {own}; leave --live out")


def world_item(question: Question) -> dict[str, Any]:
    """The question as the page has it. rank: the question with K choices has those below K, the
    right one among them."""
    first = question.answer or 0
    order = [first, *(i for i in range(len(question.choices)) if i != first)]
    return {
        "id": question.id,
        "question": question.text,
        "choices": list(question.choices),
        "answer": question.answer,
        "rank": [order.index(i) for i in range(len(order))],
    }


# What the scenes ask.


def all_said(asked: Asked, lines: Lines) -> list[Said]:
    """The answers to all that the page can ask. Leak comes before Read, whose row it has, too: its
    numbers are compared bit for bit."""
    return [*ask_said(asked), *mean_said(asked), *leak_said(asked), *read_said(asked, lines)]


def ask_said(asked: Asked) -> list[Said]:
    """Standard inference with 2, 3, ... of the choices."""
    rank = world_item(asked.question)["rank"]
    orders = [
        (tuple(i for i, place in enumerate(rank) if place < K),) for K in range(2, len(rank) + 1)
    ]
    groups = Groups(tuple(orders))
    plan = plan_groups(asked.lm, asked.question, DEFAULT_TEMPLATE, groups, null_option=False)
    layouts = [pack(plan.prefix, [ids]) for ids in plan.branches]
    return _said(plan, layouts, label_logits(asked.lm, plan))


def mean_said(asked: Asked) -> list[Said]:
    """All trials at once. The page asks trial after trial, each as a tree of its groups."""
    plan = asked.trials()
    groups = iter(plan.branches)
    layouts = [
        pack(plan.prefix, [next(groups) for _ in trial], tree=True) for trial in plan.groups.trials
    ]
    return _said(plan, layouts, label_logits(asked.lm, plan))


def _said(plan: Plan, layouts: Sequence[Layout], logits: Sequence[Tensor]) -> list[Said]:
    """The label logits of each prompt of the plan, by the layouts in whose ends they stand."""
    said = iter(zip(plan.prompts, logits, strict=True))
    answers = []
    for layout in layouts:
        rows = {}
        for end, (prompt, values) in zip(layout.ends.tolist(), said, strict=False):
            rows[end] = dict(zip(prompt.label_ids or (), values.tolist(), strict=True))
        answers.append(Said(layout, rows))
    return answers


def leak_groups(trial: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The groups in the row of Leak; one group alone is cut in two."""
    if len(trial) > 1:
        return list(trial[:GROUPS])
    half = -(-len(trial[0]) // 2)
    return [trial[0][:half], trial[0][half:]]


def other_words(question: Question, groups: Sequence[Sequence[int]]) -> list[str]:
    """Choices that can take the place of group 1's first: the right one first, for it changes most,
    then those that are not in the row."""
    in_row = {i for group in groups for i in group}
    others = [i for i in range(len(question.choices)) if i not in groups[0]]
    others.sort(key=lambda i: (i != question.answer, i in in_row))
    return [question.choices[i] for i in others[:WORDS]]


def leak_said(asked: Asked) -> list[Said]:
    """The row with each word in group 1, as it should be and ablated, and group 2 alone."""
    choices = asked.question.choices
    groups = leak_groups(asked.trials().groups.trials[0])
    lists = [[choices[i] for i in group] for group in groups]
    answers = []
    for word in [lists[0][0], *other_words(asked.question, groups)]:
        plan = asked.prompts([[word, *lists[0][1:]], *lists[1:]])
        flat = pack(plan.prefix, plan.branches)
        for layout in (flat, *ablated_layouts(flat).values()):
            logits = label_logits(asked.lm, replace(plan, layout=layout))
            answers += _said(plan, [layout], logits)
    alone = replace(plan, prompts=plan.prompts[1:2])
    logits = label_logits(asked.lm, alone, "separate")
    return [*answers, *_said(alone, [pack(alone.prefix, alone.branches)], logits)]


def read_said(asked: Asked, lines: Lines) -> list[Said]:
    """The groups of the first trial in one row, and each line of a group hidden from its end.

    One pass has all of it: behind the row stands, for each hidden line, one more end token. At the
    end's own position, it sees what the end sees, but for that line.
    """
    choices, (trial, *_) = asked.question.choices, asked.trials().groups.trials
    lists = [[choices[i] for i in group] for group in trial]
    plan = asked.prompts(lists)
    flat = pack(plan.prefix, plan.branches)
    hidden = []  # for each copy: its group, and the mask that it stands for
    for g, (names, end) in enumerate(zip(lists, flat.ends.tolist(), strict=True)):
        start = end + 1 - len(plan.prefix) - len(plan.branches[g])  # of the prompt, but its prefix
        stops = lines.stops([*names, NULL_OPTION])
        for first, last in pairwise(stops):
            mask = flat.mask.clone()
            mask[end, start + first : start + last] = False
            hidden.append((g, mask))
    T, places = len(flat.tokens), flat.ends[[g for g, _ in hidden]]
    mask = torch.eye(T + len(hidden), dtype=torch.bool)
    mask[:T, :T] = flat.mask
    for copy, ((_, one), place) in enumerate(zip(hidden, places.tolist(), strict=True), T):
        mask[copy, :T] = one[place]
        mask[copy, place] = False  # it sees itself in its place
    longer = Layout(
        torch.cat([flat.tokens, flat.tokens[places]]),
        torch.cat([flat.positions, flat.positions[places]]),
        mask,
        torch.cat([flat.ends, torch.arange(T, T + len(hidden))]),
    )
    layouts = [flat, *(flat.replace(mask=one) for _, one in hidden)]
    owners = [*range(len(lists)), *(g for g, _ in hidden)]  # of each end of `longer`
    logits = read_logits(asked.lm, layout_ends(asked.lm, longer)).cpu().double()
    weights = torch.cat(by_layer(attention_weights(asked.lm, longer))).float().cpu()
    answers = []
    for number, (row, owner) in enumerate(zip(longer.ends.tolist(), owners, strict=True)):
        end, ids = int(flat.ends[owner]), plan.prompts[owner].label_ids or []
        said = dict(zip(ids, logits[number, ids].tolist(), strict=True))
        reads = weights[:, :, row, :T].clone()
        reads[:, :, end] += weights[:, :, row, row] if row >= T else 0  # its own weight
        layout = layouts[max(0, number - len(lists) + 1)]
        answers.append(Said(layout, {end: said}, {end: _every(logits[number])}, {end: reads}))
    return answers


def _every(logits: Tensor) -> dict[str, Any]:
    """What Read draws of the logits (V,) of all tokens. marks: some of them, from the smallest to
    the largest. total: the logarithm of the sum of their exponentials."""
    places = torch.linspace(0, len(logits) - 1, min(MARKS, len(logits))).round().long()
    marks = [round(value, 3) for value in logits.sort().values[places].tolist()]
    return {"count": len(logits), "total": float(logits.logsumexp(dim=0)), "marks": marks}


# How the page gets it.


class Lines:
    """The token ids of each line of the prompts, by its text: the page puts all prompts together of
    them. The question's begin with what the tokenizer writes before a text.

    Raises InputError where the ids of a prompt are not those of its lines.
    """

    def __init__(self, asked: Asked) -> None:
        plan = asked.trials()
        self.lm, question, template = asked.lm, asked.question, DEFAULT_TEMPLATE
        self.first = template.prefix(question.text)
        labels = LABELS[: len(question.choices) + 1]
        texts = [template.cue, *(template.cue + template.label.format(label=x) for x in labels)]
        for choice in (*question.choices, NULL_OPTION):
            texts += [template.choice.format(label=label, choice=choice) for label in labels]
        begin, *longer = self.lm.tokenizer.encode([self.first, *(self.first + t for t in texts)])
        self.ids = {self.first: begin}
        self.ids |= {text: ids[len(begin) :] for text, ids in zip(texts, longer, strict=True)}
        apart = all(ids[: len(begin)] == begin for ids in longer)
        if not apart or any(self.encode(p.text) != plan.prefix + p.ids for p in plan.prompts):
            own = "its tokenizer joins lines of a prompt, which the scenes keep apart"
            raise InputError(f"{self.lm.name}: {own}; leave --live out")

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt. At each place the longest line that fits is taken."""
        ids, at, lines = list[int](), 0, sorted(self.ids, key=len, reverse=True)
        while at < len(text):
            line = next(line for line in lines if text.startswith(line, at))
            ids += self.ids[line]
            at += len(line)
        return ids

    def stops(self, names: Sequence[str]) -> list[int]:
        """How many tokens of a prompt stand before its first choice, before its second, ..., and
        before its cue."""
        lines = [
            DEFAULT_TEMPLATE.choice.format(label=label, choice=name)
            for label, name in zip(LABELS, names, strict=False)
        ]
        return list(accumulate([len(self.ids[line]) for line in [self.first, *lines]]))

    def pieces(self) -> dict[int, str]:
        """The text of each token as it stands after the question. Some tokenizers would decode a
        token alone without its space."""
        decode, first = self.lm.tokenizer.decode, self.ids[self.first]
        before = len(decode(first))
        ids = sorted({token for line in self.ids.values() for token in line})
        return {token: decode([*first, token])[before:] for token in ids}


def as_json(all_answers: Sequence[Said]) -> dict[str, dict[str, Any]]:
    """All answers by the key of their layout, ready for JSON. Where two are of one layout, the
    first one's logits stay."""
    answers: dict[str, dict[str, Any]] = {}
    for said in all_answers:
        empty: dict[str, Any] = {"logits": {}, "every": {}, "attention": {}}
        kept = answers.setdefault(layout_key(said.layout), empty)
        kept["logits"] = said.logits | kept["logits"]
        kept["every"] |= said.every
        kept["attention"] |= {end: _packed(w) for end, w in said.attention.items()}
    return answers


def _packed(weights: Tensor) -> dict[str, Any]:
    """Attention weights in steps of 1/65535, little-endian, in base64."""
    steps = (weights.double() * 65535).round().clamp(0, 65535).numpy().astype("<u2")
    return {"shape": list(steps.shape), "steps": base64.b64encode(steps.tobytes()).decode()}


def layout_key(layout: Layout) -> str:
    """A hash of tokens, positions and mask, as recording.js takes it. The mask is written as the
    lengths of runs below the diagonal, the first of cells that may be seen (leak.js)."""
    T = len(layout.tokens)
    below = layout.mask.numpy()[np.tril_indices(T, -1)].astype(np.int8)
    ends = np.flatnonzero(np.diff(np.concatenate([[1], below])))  # where another value begins
    runs = np.diff(np.concatenate([[0], ends, [len(below)]]))
    cells = "x" + "_".join(np.base_repr(run, 36).lower() for run in runs)
    numbers = [",".join(map(str, row.tolist())) for row in (layout.tokens, layout.positions)]
    return hashlib.sha256("|".join([*numbers, cells]).encode()).hexdigest()
