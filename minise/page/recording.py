"""The scenes with recorded answers, for a checkpoint that does not run in a page.

The scenes ask a model in one way: a row of tokens with positions and a mask, and the tokens at
which to read. Here Python asks all that they can ask about one question, with the package's own
engines, and the page finds each answer by a hash of what it asks (recording.js). So the scenes are
those of the live page. What is recorded: the prompt with each number of choices (Ask), with other
labels and with a text before the list (Why); one trial with another word in group 1, under both
masks and with both positions, and how far from a run of its own each layer is (Leak); one trial
with each line hidden, its attention, and the answer after each layer (Read); all trials (Mean).
Split, Pack and the judgement of a mask need no model.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minise.engines import LanguageModel, layout_ends, on, read_logits
from minise.errors import InputError
from minise.grouping import Groups
from minise.layout import Layout, Tree, causal_mask, pack
from minise.method import Plan, SelfEnsemble
from minise.page.page import MOST_CHOICES, page_of, page_question
from minise.prompt import DEFAULT_TEMPLATE, LABELS, NULL_OPTION, Prompt, write_prompts
from minise.question import Question
from minise.verify.comparison import relative
from minise.verify.recording import record

MOST_TRIALS, MOST_SEED = 40, 9999  # that the scenes can show
GROUPS = 3  # at most, in the row of Leak
AT_ONCE = 10  # trials in a pass
WORDS = 2  # that Leak puts in place of group 1's first choice
MARKS = 400  # for the logits of all tokens, in Read
FEW = 4  # choices in Why, once under the labels behind the first FEW, once behind FILLER
FILLER = (  # neutral text, about as long as FEW lines of choices
    "The door was made of old wood.\n",
    "It was a quiet day in the town.\n",
    "The table stood near the window.\n",
    "A man walked slowly along the road.\n",
)


@dataclass(frozen=True)
class Said:
    """What the model says of a layout. logits: at some of its rows, of labels, by row and token id.
    read: more of such a row, for Read (see `read_said`). apart: after each layer, how far group 2's
    end is from a run of its own, as a part of its size."""

    layout: Layout
    logits: dict[int, dict[int, float]]
    read: dict[int, dict[str, Any]] = field(default_factory=dict)
    apart: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Asked:
    """A question, and how it is asked: N trials with groups of m."""

    lm: LanguageModel
    question: Question
    m: int
    N: int
    seed: int

    @cached_property
    def lines(self) -> Lines:
        return Lines(self)

    def trials(self) -> Plan:
        """The prompts of all trials."""
        return SelfEnsemble(self.m, self.N).plan(self.lm, self.question, self.seed)

    def prompts(self, lists: Sequence[Sequence[str]]) -> Plan:
        """Prompts with these choices and the null option."""
        texts = [[*one, NULL_OPTION] for one in lists]
        tokenizer, text = self.lm.tokenizer, self.question.text
        prefix, prompts = write_prompts(tokenizer, DEFAULT_TEMPLATE, text, texts)
        return Plan(self.question, Groups(()), prefix, prompts)

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
    lm, lines, item = asked.lm, asked.lines, world_item(asked.question)
    embedded = {
        "name": Path(lm.name).name,
        "config": {"sliding_windows": list(lm.config.sliding_windows)},
        "tokenizer": {"lines": lines.ids, "pieces": lines.pieces()},
        "weights": "",
        "world": [item],
        **asked.embedded(),
        "recording": {
            "why": why,
            "words": other_words(asked.question, leak_groups(asked.trials().groups.trials[0])),
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
    """The answers to all that the page can ask. Leak comes before Read, whose row it has, too: its
    numbers are compared bit for bit."""
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


def run_all(
    lm: LanguageModel, rows: Sequence[tuple[Layout, list[list[int]]]]
) -> Iterator[tuple[Said, list[Tensor]]]:
    """Run layouts in one pass, and read labels (ids for each end): of each layout the answer, and
    after each layer the stream (G, D) at its ends. By the decoder whose bits do not depend on what
    runs together."""
    layouts, lengths = [layout for layout, _ in rows], [len(layout.tokens) for layout, _ in rows]
    starts = [0, *accumulate(lengths)]
    whole = Layout(
        torch.cat([layout.tokens for layout in layouts]),
        torch.cat([layout.positions for layout in layouts]),
        torch.block_diag(*[layout.mask for layout in layouts]).bool(),
        torch.cat([one.ends + start for one, start in zip(layouts, starts, strict=False)]),
    )
    columns = sorted({i for _, labels in rows for ids in labels for i in ids})
    with torch.inference_mode(), record(lm.refined) as seen:
        logits = read_logits(lm, layout_ends(lm, whole), columns).double().cpu()
    values = iter(logits.tolist())
    for (layout, labels), start in zip(rows, starts, strict=False):
        said = {
            end: {i: value for i, value in zip(columns, next(values), strict=True) if i in ids}
            for end, ids in zip(layout.ends.tolist(), labels, strict=True)
        }
        yield Said(layout, said), [rows[layout.ends + start] for rows in by_layer(seen.residual)]


def by_layer(recorded: dict[int, Tensor]) -> list[Tensor]:
    """What was recorded of a row of tokens, from the first layer to the last."""
    return [one.squeeze(0) for _, one in sorted(recorded.items())]


def ask_said(asked: Asked) -> list[Said]:
    """Standard inference with 2, 3, ... of the choices, and the two prompts of Why."""
    item, encode, template = world_item(asked.question), asked.lm.tokenizer.encode, DEFAULT_TEMPLATE
    ways = [(K, LABELS[:K], "") for K in range(2, len(item["choices"]) + 1)]
    few = min(FEW, len(item["choices"]))
    ways += [(few, LABELS[FEW : FEW + few], ""), (few, LABELS[:few], "".join(FILLER))]
    rows = []
    for K, labels, filler in ways:
        names = [one for one, at in zip(item["choices"], item["rank"], strict=True) if at < K]
        pairs = zip(labels, names, strict=True)
        listed = [template.choice.format(label=label, choice=name) for label, name in pairs]
        text = template.prefix(item["question"]) + filler + "".join(listed) + template.cue
        cues = [text + template.label.format(label=label) for label in labels]
        whole, *longer = encode([text, *cues])
        rows.append((pack(whole[:-1], [whole[-1:]]), [[ids[-1] for ids in longer]]))
    return [said for said, _ in run_all(asked.lm, rows)]


def mean_said(asked: Asked) -> list[Said]:
    """The trials, each as a tree of its groups, some in a pass."""
    plan = asked.trials()
    prompts = iter(plan.prompts)
    rows = [_row(plan, [next(prompts) for _ in one], tree=True) for one in plan.groups.trials]
    parts = [rows[first : first + AT_ONCE] for first in range(0, len(rows), AT_ONCE)]
    return [said for part in parts for said, _ in run_all(asked.lm, part)]


def _row(plan: Plan, prompts: Sequence[Prompt], tree: bool = False) -> tuple[Tree, list[list[int]]]:
    """Prompts of a plan in one row, and the ids of their labels."""
    layout = pack(plan.prefix, [prompt.ids for prompt in prompts], tree=tree)
    return layout, [prompt.label_ids or [] for prompt in prompts]


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
    rows = []
    for word in [lists[0][0], *other_words(asked.question, groups)]:
        plan = asked.prompts([[word, *lists[0][1:]], *lists[1:]])
        flat, labels = _row(plan, plan.prompts)
        masks = flat.mask, causal_mask(len(flat.tokens))
        places = flat.positions, torch.arange(len(flat.tokens))
        pairs = product(masks, places)
        rows += [(flat.replace(mask=mask, positions=place), labels) for mask, place in pairs]
    alone = _row(plan, plan.prompts[1:2])
    (first, streams), *others = run_all(asked.lm, [alone, *rows])
    return [first] + [
        replace(said, apart=[relative(a[-1:], b[1:2]) for a, b in zip(streams, there, strict=True)])
        for said, there in others
    ]


def read_said(asked: Asked) -> list[Said]:
    """The groups of the first trial in one row, and each line of a group hidden from its end."""
    choices, (trial, *_) = asked.question.choices, asked.trials().groups.trials
    lists = [[choices[i] for i in group] for group in trial]
    plan = asked.prompts(lists)
    flat, labels = _row(plan, plan.prompts)
    columns = sorted({i for ids in labels for i in ids})
    answers = [whole_said(asked.lm, flat, labels, columns)]
    for names, prompt, end in zip(lists, plan.prompts, flat.ends, strict=True):
        start = int(end) + 1 - len(plan.prefix) - len(prompt.ids)  # of the prompt but its prefix
        for first, last in pairwise(asked.lines.stops([*names, NULL_OPTION])):
            mask = flat.mask.clone()
            mask[end, start + first : start + last] = False
            hidden = flat.replace(mask=mask, ends=end[None])
            answers.append(whole_said(asked.lm, hidden, [prompt.label_ids or []], columns))
    return answers


def whole_said(lm: LanguageModel, row: Layout, labels: list[list[int]], columns: list[int]) -> Said:
    """All that Read draws of a row: labels (ids for each end), the attention weights of each end,
    and the logits of `columns` after each layer, read out as after the last one."""
    decoder = lm.decoder
    with torch.inference_mode(), record(decoder, attention=True) as seen:
        hidden = decoder(*on(lm, row.tokens, row.positions), row.mask)[row.ends]
        logits = read_logits(lm, hidden, is_plain=True).double().cpu()
        streams = [decoder.model.norm(stream[row.ends]) for stream in by_layer(seen.residual)]
        lens = [read_logits(lm, one, columns, is_plain=True).tolist() for one in streams]
    weights = torch.stack(by_layer(seen.attention)).float().cpu()
    said = Said(row, {})
    for number, (end, ids) in enumerate(zip(row.ends.tolist(), labels, strict=True)):
        said.logits[end] = dict(zip(ids, logits[number, ids].tolist(), strict=True))
        said.read[end] = {
            **_every(logits[number]),
            "attention": _packed(weights[:, :, end]),
            "lens": [dict(zip(columns, rows[number], strict=True)) for rows in lens],
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
        plan = asked.trials()
        self.lm, question, template = asked.lm, asked.question, DEFAULT_TEMPLATE
        self.first = template.prefix(question.text)
        labels = LABELS[: max(len(question.choices) + 1, 2 * FEW)]
        cues = [template.cue + template.label.format(label=label) for label in labels]
        texts = [template.cue, *FILLER, *cues]
        for choice in (*question.choices, NULL_OPTION):
            texts += [template.choice.format(label=label, choice=choice) for label in labels]
        begin, *longer = self.lm.tokenizer.encode([self.first, *(self.first + t for t in texts)])
        self.ids = {self.first: begin}
        self.ids |= {text: ids[len(begin) :] for text, ids in zip(texts, longer, strict=True)}
        apart = all(ids[: len(begin)] == begin for ids in longer)
        if not apart or any(self.encode(p.text) != plan.prefix + p.ids for p in plan.prompts):
            why = "its tokenizer joins lines of a prompt; choose another model"
            raise InputError(f"{self.lm.name}: {why}")

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt. At each place the longest line that fits is taken."""
        lines = "|".join(map(re.escape, sorted(self.ids, key=len, reverse=True)))
        return [token for line in re.findall(lines, text) for token in self.ids[line]]

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
