"""The scenes with recorded answers, for a checkpoint that does not run in a page.

The scenes ask a model in one way: a row of tokens with positions and a mask, and the tokens at
which to read. Here Python asks all that they can ask about one question, and the page finds each
answer by a hash of what it asks (recording.js). So the scenes are those of the live page. What is
recorded: the prompt with each number of choices (Ask), with other labels and with a text before the
list (Why); one trial with another word in group 1, under both masks and with both positions, and
how far from a run of its own each layer is (Leak); one trial with each line hidden, its attention,
and the answer after each layer (Read); all trials (Mean). Split, Pack and the judgement of a mask
need no model.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minise.equal_bits.decoder import EqualBits
from minise.errors import InputError
from minise.grouping import Groups, random_partitions
from minise.layout import Layout, causal_mask, pack
from minise.lm import LocalModel, Prompts, check_finite, check_prompts
from minise.method import SelfEnsemble
from minise.page.page import MOST_CHOICES, page_of, page_question
from minise.prompt import DEFAULT_TEMPLATE, LABELS, NULL_OPTION, write_prompts
from minise.question import Question
from minise.verify.recording import record

MOST_TRIALS, MOST_SEED = 40, 9999  # that the scenes can show
GROUPS = 3  # at most, in the row of Leak
WORDS = 2  # that Leak puts in place of group 1's first choice
MARKS = 400  # for the logits of all tokens, in Read
FEW = 4  # choices in Why, once under the labels behind the first FEW, once behind FILLER
FILLER = (  # neutral text, about as long as FEW lines of choices
    "The door was made of old wood.\n",
    "It was a quiet day in the town.\n",
    "The table stood near the window.\n",
    "A man walked slowly along the road.\n",
)


@dataclass(frozen=True, eq=False)
class Row:
    """Prompts in one row of tokens. label_ids: for each of its ends, the ids of its labels."""

    layout: Layout
    label_ids: list[list[int]]


@dataclass(frozen=True, eq=False)
class Said:
    """What the model says of a layout. logits: at some of its rows, of labels, by row and token id.
    read: more of such a row, for Read (see `whole_said`). apart: after each layer, how far group
    2's end is from a run of its own, as a part of its size."""

    layout: Layout
    logits: dict[int, dict[int, float]]
    read: dict[int, dict[str, Any]] = field(default_factory=dict)
    apart: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Asked:
    """A question, and how it is asked: N trials with groups of m."""

    lm: LocalModel
    question: Question
    m: int
    N: int
    seed: int

    @cached_property
    def lines(self) -> Lines:
        return Lines(self)

    @cached_property
    def groups(self) -> Groups:
        """Of all trials."""
        K = len(self.question.choices)
        return random_partitions(K, self.m, self.N, self.seed, self.question.id)

    @cached_property
    def prompts(self) -> Prompts:
        """Of all trials: a prompt for each group."""
        _, prompts = SelfEnsemble(self.m, self.N).prompts(self.lm, self.question, self.seed)
        check_prompts(self.lm, prompts)
        return prompts

    def prompts_of(self, lists: Sequence[Sequence[str]]) -> Prompts:
        """Prompts with these choices and the null option."""
        texts = [[*one, NULL_OPTION] for one in lists]
        return write_prompts(self.lm.tokenizer, DEFAULT_TEMPLATE, self.question.text, texts)

    def embedded(self) -> dict[str, Any]:
        """The question and its settings, as the page has them."""
        settings = {"m": self.m, "N": self.N, "seed": self.seed}
        return {"asked": world_item(self.question), "settings": settings, "filler": FILLER}


def recorded_page(asked: Asked, why: str, tell: Callable[[str], object]) -> str:
    """The page for one question. `why` the model does not run in the page stands there. `tell` is
    called with what is asked.

    Raises InputError for a prompt beyond the model's positions, and for a tokenizer that joins two
    lines of a prompt.
    """
    lm, lines = asked.lm, asked.lines
    first_trial = asked.groups.trials[0]
    embedded = {
        "name": Path(lm.name).name,
        "config": {"sliding_windows": list(lm.config.sliding_windows)},
        "tokenizer": {"lines": lines.ids, "pieces": lines.pieces()},
        "weights": "",
        "world": [world_item(asked.question)],
        **asked.embedded(),
        "recording": {
            "why": why,
            "words": other_words(asked.question, leak_groups(first_trial)),
            "answers": as_json(all_said(asked, tell)),
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
            raise InputError(f"{value:,} {what}; the page shows {least} to {most:,}, so give these")


def world_item(question: Question) -> dict[str, Any]:
    """The question as the page has it; with fewer choices, the right one is among them."""
    first = question.answer or 0
    order = [first, *(i for i in range(len(question.choices)) if i != first)]
    return page_question(question, [order.index(i) for i in range(len(order))])


# What the scenes ask.


def all_said(asked: Asked, tell: Callable[[str], object]) -> list[Said]:
    """The answers to all that the page can ask. Leak comes before Read, which has one of its rows:
    the logits of Leak are compared bit for bit, so those are kept."""
    said: list[Said] = []
    steps = {
        "Ask and Why: prompts with all choices": ask_said,
        f"Mean: {asked.N} trials": mean_said,
        "Leak: each word, with each mask and positions": leak_said,
        "Read: each line hidden": read_said,
    }
    for number, (what, step) in enumerate(steps.items(), 1):
        tell(f"recording {number} of {len(steps)}, {what}")
        said += step(asked)
    return said


@torch.inference_mode()
def row_said(lm: LocalModel, row: Row) -> Said:
    """Run a row, and read the labels at its ends."""
    layout = row.layout
    hidden_GD = lm.decoder(layout.tokens, layout.positions, layout.mask, layout.ends)
    return Said(layout, label_logits(lm, hidden_GD, row))


def label_logits(lm: LocalModel, hidden_GD: Tensor, row: Row) -> dict[int, dict[int, float]]:
    """The logits of the labels at the ends of a row: by end, by token id."""
    logits = {}
    for hidden_D, end, ids in zip(hidden_GD, row.layout.ends.tolist(), row.label_ids, strict=True):
        values = logits_of(lm, hidden_D, ids)
        logits[end] = dict(zip(ids, values.tolist(), strict=True))
    return logits


def logits_of(lm: LocalModel, hidden_D: Tensor, ids: list[int]) -> Tensor:
    """The logits (C,) of some token ids."""
    values: Tensor = lm.decoder.logits(hidden_D, torch.tensor(ids, device=hidden_D.device))
    check_finite(lm, values, hidden_D)
    return values


def by_layer(recorded: dict[int, Tensor]) -> list[Tensor]:
    """What was recorded of a row of tokens, from the first layer to the last."""
    return [recorded[layer].squeeze(0) for layer in sorted(recorded)]


def ask_said(asked: Asked) -> list[Said]:
    """Standard inference with 2, 3, ... of the choices, and the two prompts of Why."""
    item = world_item(asked.question)
    said = []
    for K in range(2, len(item["choices"]) + 1):
        said.append(list_said(asked, K, LABELS[:K], before=""))
    few = min(FEW, len(item["choices"]))
    said.append(list_said(asked, few, LABELS[FEW : FEW + few], before=""))
    said.append(list_said(asked, few, LABELS[:few], before="".join(FILLER)))
    return said


def list_said(asked: Asked, K: int, labels: str, before: str) -> Said:
    """The answer to one list of K of the choices, with these labels, and a text before the list."""
    item, template = world_item(asked.question), DEFAULT_TEMPLATE
    names = []
    for name, rank in zip(item["choices"], item["rank"], strict=True):
        if rank < K:
            names.append(name)
    text = template.prefix(item["question"]) + before
    for label, name in zip(labels, names, strict=True):
        text += template.choice.format(label=label, choice=name)
    text += template.cue
    answered = [text + template.label.format(label=label) for label in labels]
    ids, *longer = asked.lm.tokenizer.encode([text, *answered])
    prompt = Prompts(ids[:-1], [ids[-1:]], [[one[-1] for one in longer]])
    check_prompts(asked.lm, prompt)
    return row_said(asked.lm, Row(pack(prompt.prefix, prompt.branches), prompt.label_ids))


def mean_said(asked: Asked) -> list[Said]:
    """The trials, each as a tree of its groups."""
    prompts = asked.prompts
    said = []
    first = 0
    for trial in asked.groups.trials:
        own = slice(first, first + len(trial))
        first += len(trial)
        layout = pack(prompts.prefix, prompts.branches[own], tree=True)
        said.append(row_said(asked.lm, Row(layout, prompts.label_ids[own])))
    return said


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
    lm = with_equal_bits(asked.lm)
    choices = asked.question.choices
    groups = leak_groups(asked.groups.trials[0])
    first_group, *others = [[choices[i] for i in group] for group in groups]

    prompts = asked.prompts_of([first_group, *others])
    layout = pack(prompts.prefix, prompts.branches[1:2])
    alone = leak_row_said(lm, Row(layout, prompts.label_ids[1:2]), int(layout.ends[0]))
    said = [alone.said]

    for word in [first_group[0], *other_words(asked.question, groups)]:
        prompts = asked.prompts_of([[word, *first_group[1:]], *others])
        packed = pack(prompts.prefix, prompts.branches)
        T = len(packed.tokens)
        for mask in (packed.mask, causal_mask(T)):
            for positions in (packed.positions, torch.arange(T)):
                row = Row(packed.replace(mask=mask, positions=positions), prompts.label_ids)
                beside = leak_row_said(lm, row, int(packed.ends[1]))
                for a_D, b_D in zip(alone.streams, beside.streams, strict=True):
                    beside.said.apart.append(distance(a_D, b_D))
                said.append(beside.said)
    return said


def with_equal_bits(lm: LocalModel) -> LocalModel:
    """The model by which Leak is recorded: a row's bits do not depend on what runs beside it. On a
    GPU there is none, and the page shows what rounding leaves."""
    if isinstance(lm.decoder, EqualBits) or lm.decoder.device.type != "cpu":
        return lm
    return replace(lm, decoder=EqualBits(lm.decoder))


@dataclass(frozen=True, eq=False)
class LeakRow:
    """An answer, and after each layer the residual stream (D,) of group 2's end."""

    said: Said
    streams: list[Tensor]


@torch.inference_mode()
def leak_row_said(lm: LocalModel, row: Row, end: int) -> LeakRow:
    """Run a row, and keep the streams of the token `end`."""
    layout = row.layout
    with record(lm.decoder) as seen:
        hidden_TD = lm.decoder(layout.tokens, layout.positions, layout.mask)
    said = Said(layout, label_logits(lm, hidden_TD[layout.ends], row))
    return LeakRow(said, [stream_TD[end] for stream_TD in by_layer(seen.residual)])


def distance(a_D: Tensor, b_D: Tensor) -> float:
    """The size of the difference, as a part of the size of `a_D`."""
    wide = a_D.double()
    return float((wide - b_D.double()).norm() / wide.norm())


def read_said(asked: Asked) -> list[Said]:
    """The groups of the first trial in one row, and each line of a group hidden from its end."""
    choices = asked.question.choices
    lists = [[choices[i] for i in group] for group in asked.groups.trials[0]]
    prompts = asked.prompts_of(lists)
    packed = pack(prompts.prefix, prompts.branches)
    columns = sorted({token for ids in prompts.label_ids for token in ids})
    said = [whole_said(asked.lm, Row(packed, prompts.label_ids), columns)]
    P = len(prompts.prefix)
    for number, names in enumerate(lists):
        end = int(packed.ends[number])
        start = end + 1 - len(prompts.branches[number])  # the row of the group's first token
        for first, last in pairwise(asked.lines.stops([*names, NULL_OPTION])):
            mask = packed.mask.clone()
            mask[end, start + first - P : start + last - P] = False
            layout = packed.replace(mask=mask, ends=torch.tensor([end]))
            row = Row(layout, [prompts.label_ids[number]])
            said.append(whole_said(asked.lm, row, columns))
    return said


@torch.inference_mode()
def whole_said(lm: LocalModel, row: Row, columns: list[int]) -> Said:
    """All that Read draws of a row: the attention weights of each end, and the logits of `columns`
    after each layer, read out as after the last one."""
    decoder, layout = lm.decoder, row.layout
    with record(decoder, attention=True) as seen:
        hidden_TD = decoder(layout.tokens, layout.positions, layout.mask)
    hidden_GD = hidden_TD[layout.ends]
    logits_GV = decoder.logits(hidden_GD).double().cpu()
    weights_LHTT = torch.stack(by_layer(seen.attention)).float().cpu()
    said = Said(layout, label_logits(lm, hidden_GD, row))
    for logits_V, end in zip(logits_GV, layout.ends.tolist(), strict=True):
        lens = []
        for stream_TD in by_layer(seen.residual):
            values = logits_of(lm, decoder.model.norm(stream_TD[end]), columns)
            lens.append(dict(zip(columns, values.tolist(), strict=True)))
        said.read[end] = {
            **_every(logits_V),
            "attention": _packed(weights_LHTT[:, :, end]),
            "lens": lens,
        }
    return said


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
        self.lm = asked.lm
        question, template = asked.question, DEFAULT_TEMPLATE
        self.first = template.prefix(question.text)
        labels = LABELS[: max(len(question.choices) + 1, 2 * FEW)]
        texts = [template.cue, *FILLER]
        texts += [template.cue + template.label.format(label=label) for label in labels]
        for choice in (*question.choices, NULL_OPTION):
            texts += [template.choice.format(label=label, choice=choice) for label in labels]
        whole = [self.first + text for text in texts]
        first_ids, *longer = self.lm.tokenizer.encode([self.first, *whole])
        length = len(first_ids)
        self.ids = {self.first: first_ids}
        for text, ids in zip(texts, longer, strict=True):
            self.ids[text] = ids[length:]
        joins = any(ids[:length] != first_ids for ids in longer)
        prompts = asked.prompts
        for text, branch in zip(prompts.texts, prompts.branches, strict=True):
            joins = joins or self.encode(text) != prompts.prefix + branch
        if joins:
            why = "its tokenizer joins lines of a prompt; choose another model"
            raise InputError(f"{self.lm.name}: {why}")

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt. At each place the longest line that fits is taken."""
        lines = "|".join(map(re.escape, sorted(self.ids, key=len, reverse=True)))
        ids: list[int] = []
        for line in re.findall(lines, text):
            ids += self.ids[line]
        return ids

    def stops(self, names: Sequence[str]) -> list[int]:
        """How many tokens of a prompt stand before its first choice, before its second, ..., and
        before its cue."""
        lengths = [len(self.ids[self.first])]
        for label, name in zip(LABELS, names, strict=False):
            line = DEFAULT_TEMPLATE.choice.format(label=label, choice=name)
            lengths.append(len(self.ids[line]))
        return list(accumulate(lengths))

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
        empty: dict[str, Any] = {"logits": {}, "read": {}, "apart": []}
        kept = answers.setdefault(layout_key(said.layout), empty)
        kept["logits"] = said.logits | kept["logits"]
        kept["read"] |= said.read
        kept["apart"] = kept["apart"] or said.apart
    return answers


def _packed(weights: Tensor) -> dict[str, Any]:
    """Attention weights in steps of 1/65535, little-endian, in base64."""
    steps = (weights.double() * 65535).round().clamp(0, 65535).numpy().astype("<u2")
    return {"shape": list(steps.shape), "steps": base64.b64encode(steps.tobytes()).decode()}


def layout_key(layout: Layout) -> str:
    """A hash of tokens, positions and mask, as recording.js takes it."""
    numbers = [",".join(map(str, row.tolist())) for row in (layout.tokens, layout.positions)]
    cells = "".join(map(str, layout.mask.int().flatten().tolist()))
    return hashlib.sha256("|".join([*numbers, cells]).encode()).hexdigest()
