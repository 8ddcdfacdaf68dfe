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
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minise.errors import InputError
from minise.grouping import Groups, random_partitions
from minise.lab.data.miniature import load_facts
from minise.lab.equal_bits.decoder import EqualBits
from minise.lab.page.page import page_of, page_question
from minise.lab.quantize import count_weights
from minise.layout import Layout, causal_mask, pack
from minise.lm import LocalModel, check_finite
from minise.method import SelfEnsemble
from minise.model import Decoder
from minise.prompts import Prompts, check_prompts
from minise.question import Question
from minise.template import DEFAULT_TEMPLATE, LABELS, NULL_OPTION, write_prompts
from minise.verify.recording import own_decoder, record

MOST_CHOICES = len(LABELS)  # that the scenes can show
MOST_LISTED = MOST_CHOICES - 1  # in a group, with the null option
MOST_TRIALS = 40
MOST_SEED = 9999
GROUPS = 3  # at most, in the row of Leak
WORDS = 2  # that Leak puts in place of group 1's first choice
MARKS = 400  # for the logits of all tokens, in Read
IN_WHY = 4  # choices, once under the labels behind the first IN_WHY, once behind FILLER
FILLER = (  # neutral text; to a shipped model about as long as IN_WHY lines of choices
    "The door was made of old wood.\n",
    "It was a quiet day in the town.\n",
)
MINIATURES = ("tiny-llama", "tiny-mistral", "tiny-qwen2")  # trained as docs/miniature.md says


@dataclass(frozen=True, eq=False)
class PackedRow:
    """What a decoder is given, with a mask and positions that need not be the layout's own. ends:
    the rows that are read."""

    tokens: Tensor
    positions: Tensor
    mask: Tensor
    ends: Tensor


def row_of(layout: Layout, mask: Tensor | None = None) -> PackedRow:
    """The row of a layout, with its own mask or another one."""
    own = layout.mask if mask is None else mask
    return PackedRow(layout.tokens, layout.positions, own, layout.ends)


@dataclass(frozen=True, eq=False)
class PackedPrompts:
    """Prompts in one row of tokens. label_ids: for each of its ends, the ids of its labels."""

    row: PackedRow
    label_ids: list[list[int]]


@dataclass(frozen=True, eq=False)
class RowRecording:
    """What the model says of a row of tokens. logits: at some places of it, of labels, by place and
    token id. read: more of such a place, for Read (see `whole_said`). apart: after each layer,
    how far group 2's end is from a run of its own, as a part of its size."""

    row: PackedRow
    logits: dict[int, dict[int, float]]
    read: dict[int, dict[str, Any]] = field(default_factory=dict)
    apart: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class ShownQuestion:
    """The question of a page, and how it is asked: N trials with groups of m. Raises InputError for
    what the scenes cannot show, and for a prompt beyond the model's positions."""

    lm: LocalModel
    question: Question
    m: int
    N: int
    seed: int

    def __post_init__(self) -> None:
        check_shown("choices", len(self.question.choices), 2, MOST_CHOICES)
        check_shown("choices in a group", self.m, 1, MOST_LISTED)
        check_shown("trials", self.N, 1, MOST_TRIALS)
        check_shown("as seed", self.seed, 0, MOST_SEED)
        for prompts in (*self.lists, self.prompts):
            check_prompts(self.lm, prompts)

    @cached_property
    def lines(self) -> Lines:
        return Lines(self)

    @cached_property
    def lists(self) -> list[Prompts]:
        """The prompts of Ask and Why: 2, 3, ... of the choices, then the first few of them with
        other labels, and with a text before the list."""
        count = len(self.question.choices)
        prompts = []
        for K in range(2, count + 1):
            prompts.append(self.list_prompt(K))
        few = min(IN_WHY, count)
        prompts.append(self.list_prompt(few, first=IN_WHY))
        prompts.append(self.list_prompt(few, before="".join(FILLER)))
        return prompts

    def list_prompt(self, K: int, first: int = 0, before: str = "") -> Prompts:
        """The prompt of K of the choices, with the labels from number `first` on, and a text before
        the list. Raises InputError for a label that is not one token."""
        template = DEFAULT_TEMPLATE
        item = world_item(self.question)
        names = []
        for name, rank in zip(item["choices"], item["rank"], strict=True):
            if rank < K:
                names.append(name)
        text = template.prefix(item["question"]) + before
        for label, name in zip(LABELS[first:], names, strict=False):
            text += template.choice.format(label=label, choice=name)
        text += template.cue
        [ids] = self.lm.tokenizer.encode([text])
        label_ids = template.label_ids(self.lm.tokenizer, text, ids, first + K)
        return Prompts(ids[:-1], [ids[-1:]], [label_ids[first:]])

    @cached_property
    def groups(self) -> Groups:
        """Of all trials."""
        K = len(self.question.choices)
        return random_partitions(K, self.m, self.N, self.seed, self.question.id)

    @cached_property
    def prompts(self) -> Prompts:
        """Of all trials: a prompt for each group."""
        _, prompts = SelfEnsemble(self.m, self.N).prompts(self.lm, self.question, self.seed)
        return prompts

    def prompts_of(self, lists: Sequence[Sequence[str]]) -> Prompts:
        """Prompts with these choices and the null option."""
        with_null = [[*choices, NULL_OPTION] for choices in lists]
        return write_prompts(self.lm.tokenizer, DEFAULT_TEMPLATE, self.question.text, with_null)

    def embedded(self) -> dict[str, Any]:
        """The question, its settings and its model, as the page has them."""
        return {
            "asked": world_item(self.question),
            "settings": {"m": self.m, "N": self.N, "seed": self.seed},
            "filler": FILLER,
            "model": model_words(self.lm),
        }


def recorded_page(shown: ShownQuestion, why: str, tell: Callable[[str], object]) -> str:
    """The page for one question. `why` the model does not run in the page stands there. `tell` is
    called with what is asked.

    Raises InputError for a tokenizer that joins two lines of a prompt.
    """
    lm = shown.lm
    question = shown.question
    lines = shown.lines
    first_trial = shown.groups.trials[0]
    embedded = {
        "name": Path(lm.name).name,
        "config": {"sliding_windows": list(own_decoder(lm).config.sliding_windows)},
        "tokenizer": {"lines": lines.ids, "pieces": lines.pieces()},
        "weights": "",
        "world": [world_item(question)],
        **shown.embedded(),
        "recording": {
            "why": why,
            "words": other_words(question, leak_groups(first_trial)),
            "answers": embedded_answers(all_said(shown, tell)),
        },
    }
    return page_of(embedded)


def model_words(lm: LocalModel) -> dict[str, int | None]:
    """What the page says of its model: how many parameters it has; of a miniature also how many
    facts it knows."""
    path = Path(lm.name)
    is_miniature = path.parent.name == "weights" and path.name in MINIATURES
    facts = len(load_facts()) if is_miniature else None
    return {"parameters": count_weights(lm.decoder), "facts": facts}


def check_shown(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InputError(f"{value:,} {what}; the page shows {least} to {most:,}, so give these")


def world_item(question: Question) -> dict[str, Any]:
    """The question as the page has it; with fewer choices, the right one is among them."""
    right = question.answer or 0
    ranks = []
    for i in range(len(question.choices)):
        if i == right:
            ranks.append(0)
        elif i < right:
            ranks.append(i + 1)
        else:
            ranks.append(i)
    return page_question(question, ranks)


# What the scenes ask.


def all_said(shown: ShownQuestion, tell: Callable[[str], object]) -> list[RowRecording]:
    """The answers to all that the page can ask. Leak comes before Read, which has one of its rows:
    the logits of Leak are compared bit for bit, so those are kept."""
    said: list[RowRecording] = []
    steps = {
        "Ask and Why: prompts with all choices": ask_said,
        f"Mean: {shown.N} trials": mean_said,
        "Leak: each word, with each mask and positions": leak_said,
        "Read: each line hidden": read_said,
    }
    for number, (what, step) in enumerate(steps.items(), 1):
        tell(f"recording {number} of {len(steps)}, {what}")
        said += step(shown)
    return said


@torch.inference_mode()
def packed_said(lm: LocalModel, packed: PackedPrompts) -> RowRecording:
    """Run packed prompts, and read the labels at their ends."""
    row = packed.row
    hidden_GD = lm.decoder(row.tokens, row.positions, row.mask, row.ends)
    return RowRecording(row, label_logits(lm, hidden_GD, packed))


def label_logits(
    lm: LocalModel, hidden_GD: Tensor, packed: PackedPrompts
) -> dict[int, dict[int, float]]:
    """The logits of the labels at the ends of packed prompts: by end, by token id."""
    logits = {}
    ends = packed.row.ends.tolist()
    for hidden_D, end, ids in zip(hidden_GD, ends, packed.label_ids, strict=True):
        logits[end] = logits_of(lm, hidden_D, ids)
    return logits


def logits_of(lm: LocalModel, hidden_D: Tensor, ids: list[int]) -> dict[int, float]:
    """The logits of some token ids, by id."""
    logits_V = lm.decoder.logits(hidden_D)
    check_finite(lm, logits_V, hidden_D)
    return dict(zip(ids, logits_V[ids].tolist(), strict=True))


def by_layer(recorded: dict[int, Tensor]) -> list[Tensor]:
    """What was recorded of one sequence, from the first layer to the last."""
    return [recorded[layer].squeeze(0) for layer in sorted(recorded)]


def ask_said(shown: ShownQuestion) -> list[RowRecording]:
    """The answers to the prompts of Ask and Why."""
    said = []
    for prompt in shown.lists:
        layout = pack(prompt.prefix, prompt.branches)
        said.append(packed_said(shown.lm, PackedPrompts(row_of(layout), prompt.label_ids)))
    return said


def mean_said(shown: ShownQuestion) -> list[RowRecording]:
    """The trials, each as a tree of its groups."""
    prompts = shown.prompts
    said = []
    first = 0
    for trial in shown.groups.trials:
        own = slice(first, first + len(trial))
        first += len(trial)
        layout = pack(prompts.prefix, prompts.branches[own], tree=True)
        said.append(packed_said(shown.lm, PackedPrompts(row_of(layout), prompts.label_ids[own])))
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
    in_row: set[int] = set()
    for group in groups:
        in_row.update(group)
    others = [i for i in range(len(question.choices)) if i not in groups[0]]
    others.sort(key=lambda i: (i != question.answer, i in in_row))
    return [question.choices[i] for i in others[:WORDS]]


def leak_said(shown: ShownQuestion) -> list[RowRecording]:
    """The row with each word in group 1, as it should be and ablated, and group 2 alone."""
    lm = with_equal_bits(shown.lm)
    groups = leak_groups(shown.groups.trials[0])
    lists = names_of(shown.question, groups)

    prompts = shown.prompts_of(lists)
    layout = pack(prompts.prefix, prompts.branches[1:2])
    group_2 = PackedPrompts(row_of(layout), prompts.label_ids[1:2])
    alone = leak_row_said(lm, group_2, int(layout.ends[0]))
    said = [alone.said]

    for word in [lists[0][0], *other_words(shown.question, groups)]:
        with_word = [word, *lists[0][1:]]
        prompts = shown.prompts_of([with_word, *lists[1:]])
        layout = pack(prompts.prefix, prompts.branches)
        T = len(layout.tokens)
        for mask in (layout.mask, causal_mask(T)):
            for positions in (layout.positions, torch.arange(T)):
                ablated = PackedRow(layout.tokens, positions, mask, layout.ends)
                packed = PackedPrompts(ablated, prompts.label_ids)
                beside = leak_row_said(lm, packed, int(layout.ends[1]))
                for a_D, b_D in zip(alone.streams, beside.streams, strict=True):
                    beside.said.apart.append(distance(a_D, b_D))
                said.append(beside.said)
    return said


def names_of(question: Question, groups: Sequence[Sequence[int]]) -> list[list[str]]:
    """The texts of the choices in each group."""
    lists = []
    for group in groups:
        lists.append([question.choices[i] for i in group])
    return lists


def with_equal_bits(lm: LocalModel) -> LocalModel:
    """The model by which Leak is recorded: a row's bits do not depend on what runs beside it. On a
    GPU, and for a decoder of the user's own, there is none: the page shows what rounding leaves."""
    if type(lm.decoder) is not Decoder or lm.decoder.device.type != "cpu":
        return lm
    return replace(lm, decoder=EqualBits(own_decoder(lm)))


@dataclass(frozen=True, eq=False)
class LeakRow:
    """An answer, and after each layer the residual stream (D,) of group 2's end."""

    said: RowRecording
    streams: list[Tensor]


@torch.inference_mode()
def leak_row_said(lm: LocalModel, packed: PackedPrompts, end: int) -> LeakRow:
    """Run packed prompts, and keep the streams of the token `end`."""
    row = packed.row
    with record(own_decoder(lm)) as seen:
        hidden_TD = lm.decoder(row.tokens, row.positions, row.mask)
    said = RowRecording(row, label_logits(lm, hidden_TD[row.ends], packed))
    return LeakRow(said, [stream_TD[end] for stream_TD in by_layer(seen.residual)])


def distance(a_D: Tensor, b_D: Tensor) -> float:
    """The size of the difference, as a part of the size of `a_D`."""
    wide_D = a_D.double()
    difference_D = wide_D - b_D.double()
    return float(difference_D.norm() / wide_D.norm())


def read_said(shown: ShownQuestion) -> list[RowRecording]:
    """Each group of the first trial, and each of its lines hidden from its end."""
    lists = names_of(shown.question, shown.groups.trials[0])
    prompts = shown.prompts_of(lists)
    all_labels: set[int] = set()
    for ids in prompts.label_ids:
        all_labels.update(ids)
    columns = sorted(all_labels)
    said = []
    for number, names in enumerate(lists):
        label_ids = [prompts.label_ids[number]]
        layout = pack(prompts.prefix, [prompts.branches[number]])
        said.append(whole_said(shown.lm, PackedPrompts(row_of(layout), label_ids), columns))
        stops = shown.lines.stops([*names, NULL_OPTION])
        for first, last in pairwise(stops):
            mask = layout.mask.clone()
            mask[-1, first:last] = False
            hidden_line = PackedPrompts(row_of(layout, mask), label_ids)
            said.append(whole_said(shown.lm, hidden_line, columns))
    return said


@torch.inference_mode()
def whole_said(lm: LocalModel, packed: PackedPrompts, columns: list[int]) -> RowRecording:
    """All that Read draws of one prompt: the attention weights of its end, and the logits of
    `columns` after each layer, read out as after the last one."""
    decoder = own_decoder(lm)
    row = packed.row
    end = int(row.ends[0])
    with record(decoder, attention=True) as seen:
        hidden_TD = decoder(row.tokens, row.positions, row.mask)
    logits_V = decoder.logits(hidden_TD[end]).double().cpu()
    weights_LHT = torch.stack([weights_HTT[:, end] for weights_HTT in by_layer(seen.attention)])
    lens = []
    for stream_TD in by_layer(seen.residual):
        normed_D = decoder.model.norm(stream_TD[end])
        lens.append(logits_of(lm, normed_D, columns))
    said = RowRecording(row, label_logits(lm, hidden_TD[row.ends], packed))
    said.read[end] = {
        "count": len(logits_V),
        "total": float(logits_V.logsumexp(dim=0)),
        "marks": marks_of(logits_V),
        "attention": in_steps(weights_LHT.cpu()),
        "lens": lens,
    }
    return said


def marks_of(logits_V: Tensor) -> list[float]:
    """Some of the logits of all tokens, from the smallest to the largest."""
    V = len(logits_V)
    places = torch.linspace(0, V - 1, min(MARKS, V)).round().long()
    ascending_V = logits_V.sort().values
    return [round(value, 3) for value in ascending_V[places].tolist()]


# How the page gets it.


class Lines:
    """The token ids of each line of the prompts, by its text: the page puts all prompts together of
    them. The question's begin with what the tokenizer writes before a text.

    Raises InputError where the ids of a prompt are not those of its lines.
    """

    def __init__(self, shown: ShownQuestion) -> None:
        self.lm = shown.lm
        question = shown.question
        self.first = DEFAULT_TEMPLATE.prefix(question.text)
        texts = texts_after_question(question)
        first_ids, *longer = self.lm.tokenizer.encode(
            [self.first, *(self.first + text for text in texts)]
        )
        self.ids = {self.first: first_ids}
        for text, ids in zip(texts, longer, strict=True):
            if ids[: len(first_ids)] != first_ids:
                raise self.joins()
            self.ids[text] = ids[len(first_ids) :]
        prompts = shown.prompts
        for branch in prompts.branches:
            whole = prompts.prefix + branch
            if self.encode(self.lm.tokenizer.decode(whole)) != whole:
                raise self.joins()

    def joins(self) -> InputError:
        why = "its tokenizer joins lines of a prompt; choose another model"
        return InputError(f"{self.lm.name}: {why}")

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt. At each place the longest line that fits is taken."""
        longest_first = sorted(self.ids, key=len, reverse=True)
        a_line = "|".join(re.escape(line) for line in longest_first)
        ids: list[int] = []
        for line in re.findall(a_line, text):
            ids += self.ids[line]
        return ids

    def stops(self, names: Sequence[str]) -> list[int]:
        """How many tokens of a prompt stand before its first choice, before its second, ..., and
        before its cue."""
        stop = len(self.ids[self.first])
        stops = [stop]
        for label, name in zip(LABELS, names, strict=False):
            line = DEFAULT_TEMPLATE.choice.format(label=label, choice=name)
            stop += len(self.ids[line])
            stops.append(stop)
        return stops

    def pieces(self) -> dict[int, str]:
        """The text of each token as it stands after the question. Some tokenizers would decode a
        token alone without its space."""
        decode = self.lm.tokenizer.decode
        first = self.ids[self.first]
        before = len(decode(first))
        tokens: set[int] = set()
        for ids in self.ids.values():
            tokens.update(ids)
        return {token: decode([*first, token])[before:] for token in sorted(tokens)}


def texts_after_question(question: Question) -> list[str]:
    """All lines that a scene writes after the question, and the cue with each label."""
    template = DEFAULT_TEMPLATE
    labels = LABELS[: max(len(question.choices) + 1, 2 * IN_WHY)]
    texts = [template.cue, *FILLER]
    for label in labels:
        texts.append(template.cue + template.label.format(label=label))
    for choice in (*question.choices, NULL_OPTION):
        for label in labels:
            texts.append(template.choice.format(label=label, choice=choice))
    return texts


def embedded_answers(all_answers: Sequence[RowRecording]) -> dict[str, dict[str, Any]]:
    """All answers by the key of their layout, ready for JSON. Where two are of one layout, the
    first one's logits stay."""
    answers: dict[str, dict[str, Any]] = {}
    for said in all_answers:
        key = row_key(said.row)
        if key not in answers:
            answers[key] = {"logits": {}, "read": {}, "apart": []}
        kept = answers[key]
        kept["logits"] = said.logits | kept["logits"]
        kept["read"] |= said.read
        kept["apart"] = kept["apart"] or said.apart
    return answers


def in_steps(weights: Tensor) -> dict[str, Any]:
    """Attention weights in steps of 1/65535, little-endian, in base64."""
    rounded = (weights.double() * 65535).round().clamp(0, 65535)
    steps = rounded.numpy().astype("<u2")
    return {"shape": list(steps.shape), "steps": base64.b64encode(steps.tobytes()).decode()}


def row_key(row: PackedRow) -> str:
    """A hash of tokens, positions and mask, as recording.js takes it."""
    tokens = ",".join(map(str, row.tokens.tolist()))
    positions = ",".join(map(str, row.positions.tolist()))
    cells = "".join(map(str, row.mask.int().flatten().tolist()))
    return hashlib.sha256(f"{tokens}|{positions}|{cells}".encode()).hexdigest()
