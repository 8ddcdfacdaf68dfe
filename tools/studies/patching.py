"""Where does the answer stand, layer by layer? States of one run are put into another.

    python -m tools.studies.patching weights/tiny-llama weights/tiny-mistral weights/tiny-qwen2

A question is asked twice, the second time with the right choice and a wrong one in each other's
place. Of the second run, the residual stream after one layer is put into the first, at some rows:

- `choices`: all tokens of the two lines that changed places;
- `cue`: the tokens after the list ("Answer"), without the last;
- `end`: the last token of the prompt (":"), where the model answers;
- `others`: the question and the other choices.

If the first run then gives the label of the second, the model has at this layer what decides the
answer at these rows, and uses it (an interchange intervention: Geiger et al. 2021, arXiv
2106.02997). So a probe's finding gets a cause. Asked are questions that the model answers rightly
in both orders, with two lines of equally many tokens; the table says how many. Intervals: 95%, by
fact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from minise import LanguageModel, Question
from minise.checking.recording import record
from minise.layout import causal_mask
from minise.method import Standard
from minise.report import tables
from tools.markdown import table
from tools.studies.binding import asked, ends_of_choices
from tools.studies.facts import share_interval

REGIONS = ("choices", "cue", "end", "others")


@dataclass(frozen=True, eq=False)
class Pair:
    """A prompt and the same one with two lines exchanged. ids, swapped: (T,) int64. regions: the
    rows of each of REGIONS. labels: the token ids of all labels. answers: the place of the right
    choice in each. fact: what the question is about."""

    ids: Tensor
    swapped: Tensor
    regions: dict[str, list[int]]
    labels: list[int]
    answers: tuple[int, int]
    fact: str


def main() -> None:
    rows = []
    for lm, names, questions in asked(__doc__.splitlines()[0]):
        pairs = [pair for one in questions if (pair := make_pair(lm, one)) is not None]
        answered = [pair for pair in pairs if is_right(lm, pair)]
        flips = [(pair.fact, flipped(lm, pair)) for pair in answered]
        rows += cells(flips, [*names, f"{len(flips)} of {len(pairs)}"])
    layers = [f"after layer {layer + 1}" for layer in range(len(rows[0]) - 4)]
    print(table(["model", "K", "questions", "patched", *layers], rows))


def make_pair(lm: LanguageModel, question: Question) -> Pair | None:
    """The question and its exchange with the first wrong choice whose line is as long as that of
    the right one; None if there is none."""
    right, choices = question.answer, question.choices
    assert right is not None
    (prompt,) = (plan := Standard().plan(lm, question)).prompts
    ids = [*plan.prefix, *prompt.ids]
    for wrong in range(len(choices)):
        order = list(choices)
        order[right], order[wrong] = order[wrong], order[right]
        other = replace(question, choices=order, answer=wrong)
        plan = Standard().plan(lm, other)
        swapped = [*plan.prefix, *plan.prompts[0].ids]
        ends = ends_of_choices(lm, question)
        if wrong == right or len(swapped) != len(ids) or ends_of_choices(lm, other) != ends:
            continue
        starts = [question_end(lm, question), *(end + 1 for end in ends[:-1])]
        lines = [row for i in sorted((right, wrong)) for row in range(starts[i], ends[i] + 1)]
        end, cue = [len(ids) - 1], [*range(ends[-1] + 1, len(ids) - 1)]
        rest = [row for row in range(ends[-1] + 1) if row not in lines]
        regions = dict(zip(REGIONS, (lines, cue, end, rest), strict=True))
        answers, fact = (right, wrong), question.cluster
        return Pair(
            torch.tensor(ids), torch.tensor(swapped), regions, prompt.label_ids, answers, fact
        )
    return None


def question_end(lm: LanguageModel, question: Question) -> int:
    """The row of the first token after the question's line."""
    template = Standard().standard_template(lm)
    return len(lm.tokenizer.encode([template.prefix(question.text)])[0])


@torch.inference_mode()
def is_right(lm: LanguageModel, pair: Pair) -> bool:
    """Whether the model gives the right label in both orders."""
    labels = said(lm, run(lm, torch.stack([pair.ids, pair.swapped])), pair)
    return labels == list(pair.answers)


@torch.inference_mode()
def flipped(lm: LanguageModel, pair: Pair) -> dict[str, list[bool]]:
    """For each region, after each layer: whether the first run then gives the second's label."""
    layers, L = lm.decoder.model.layers, lm.config.num_hidden_layers
    with record(lm.decoder) as recording:
        run(lm, pair.swapped[None])
    states = [recording.residual[layer].flatten(0, -2) for layer in range(L)]
    hooks = []
    for number, layer in enumerate(layers):

        def put(_: object, inputs: object, stream: Tensor, number: int = number) -> Tensor:
            stream = stream.clone()
            for place, region in enumerate(REGIONS):  # rows of the batch: region by region
                at = pair.regions[region]
                stream[0, place * L + number, at] = states[number][at]
            return stream

        hooks.append(layer.register_forward_hook(put))
    try:
        labels = said(lm, run(lm, pair.ids.expand(len(REGIONS) * L, -1)), pair)
    finally:
        for hook in hooks:
            hook.remove()
    flips = [label == pair.answers[1] for label in labels]
    return {region: flips[place * L : place * L + L] for place, region in enumerate(REGIONS)}


def run(lm: LanguageModel, ids: Tensor) -> Tensor:
    """The last hidden states (B, D) of prompts of one length (B, T)."""
    B, T = ids.shape
    return lm.decoder(ids, torch.arange(T).expand(B, T), causal_mask(T).expand(B, T, T))[:, -1]


def said(lm: LanguageModel, hidden: Tensor, pair: Pair) -> list[int]:
    """The most probable label of each row of `hidden`."""
    logits = lm.decoder.logits(hidden, torch.tensor(pair.labels))
    return [int(row.argmax()) for row in logits]


def cells(flips: Sequence[tuple[str, dict[str, list[bool]]]], about: list[str]) -> list[list[str]]:
    """A row for each region: the share of flipped answers after each layer, in percent, with its
    interval. `flips`: of each question, with its fact."""
    changed = np.array([[one[region] for region in REGIONS] for _, one in flips])
    low, high = share_interval(changed, [fact for fact, _ in flips])
    mean = changed.mean(axis=0)
    return [
        [
            *about,
            region,
            *(
                tables.percent(value, (least, most))
                for value, least, most in zip(mean[i], low[i], high[i], strict=True)
            ),
        ]
        for i, region in enumerate(REGIONS)
    ]


if __name__ == "__main__":
    main()
