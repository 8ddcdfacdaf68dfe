"""Is a long list hard because of its labels, or because of its length? Each alone, at four choices.

    python -m tools.studies.labels_and_lengths weights/tiny-llama weights/tiny-qwen2

Standard inference, on the same questions:

- `A to D`: the prompt as always; `eight choices` beside it, whose labels and length are rare in the
  training of the shipped models.
- `E to H`, `Q to T`: the same prompt with other labels. A question of at most 8 choices and the
  null option has no label after I, so Q to T never stood in a list of the training.
- `far from the question`, `far from the end`: statements of facts of other kinds, between the
  question and the list, or between the list and the cue, until the prompt is as long as with eight
  choices.
- `behind other text`: the same statements before the question. All distances in the prompt itself
  are as always; only the positions are later.

Percent of right answers, with 95% intervals by fact, and the difference from `A to D` in points.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

from minise import LanguageModel, Question, load
from minise.data.miniature import Fact, evaluation_questions, load_facts
from minise.engines import run_alone
from minise.prompt import DEFAULT_TEMPLATE
from minise.report.tables import percent
from tools.markdown import table
from tools.studies.facts import mean_interval, share_interval

FEW, MANY = 4, 8
Parts = tuple[str, list[str], str]  # the question, the lines of the list, the cue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="DIR")
    parser.add_argument("--questions", type=int, default=500)
    args = parser.parse_args()
    few = evaluation_questions(args.questions, FEW, seed=0)
    many = evaluation_questions(args.questions, MANY, seed=0)
    rows = []
    for name in args.models:
        lm, base = load(name), None
        for condition, write in CONDITIONS.items():
            right = [write(lm, *pair) for pair in zip(few, many, strict=True)]
            base = base or right
            short = name.rstrip("/").rsplit("/", 1)[-1]
            rows.append([short, condition, *cells(right, base, [one.cluster for one in few])])
    print(table(["model", "prompt", "right", "minus A to D"], rows))


def parts(question: Question, labels: str) -> Parts:
    """The parts of a prompt in the default template."""
    template = DEFAULT_TEMPLATE
    lines = [
        template.choice.format(label=label, choice=choice)
        for label, choice in zip(labels, question.choices, strict=True)
    ]
    return template.prefix(question.text), lines, template.cue


@torch.inference_mode()
def is_right(lm: LanguageModel, text: str, labels: str, answer: int) -> bool:
    """Whether the most probable of the labels after the text is that of the answer."""
    whole, *longer = lm.tokenizer.encode([text, *(f"{text} {label}" for label in labels)])
    ids = torch.tensor([one[-1] for one in longer])
    return int(lm.decoder.logits(run_alone(lm, whole)[-1], ids).argmax()) == answer


def by_labels(labels: str, lm: LanguageModel, few: Question, many: Question) -> bool:
    """The list under these labels: of four choices for four labels, else of eight."""
    one = few if len(labels) == FEW else many
    question, lines, cue = parts(one, labels)
    assert one.answer is not None
    return is_right(lm, question + "".join(lines) + cue, labels, one.answer)


def padded(place: str, lm: LanguageModel, few: Question, many: Question) -> bool:
    """Four choices, with statements at a place of the prompt."""
    question, lines, cue = parts(few, "ABCD")
    whole_question, whole_lines, _ = parts(many, "ABCDEFGH")
    goal = length(lm, whole_question + "".join(whole_lines) + cue)
    statements = neutral(few, FACTS)

    def text() -> str:
        pad = "".join(f"{statement}\n" for statement in used)
        between = {name: pad if name == place else "" for name in ("before", "middle", "end")}
        listed = "".join(lines)
        return between["before"] + question + between["middle"] + listed + between["end"] + cue

    used: list[str] = []
    while length(lm, text()) < goal:
        used.append(next(statements))
    assert few.answer is not None
    return is_right(lm, text(), "ABCD", few.answer)


def length(lm: LanguageModel, text: str) -> int:
    return len(lm.tokenizer.encode([text])[0])


def neutral(question: Question, facts: Sequence[Fact]) -> Iterator[str]:
    """Statements of facts of other kinds that hold no choice of the question, in a random order
    that the question decides."""
    (kind,) = {fact.kind for fact in facts if fact.question == question.text}
    others = [
        fact.statement
        for fact in facts
        if fact.kind != kind and not any(choice in fact.statement for choice in question.choices)
    ]
    random.Random(f"neutral/{question.id}").shuffle(others)
    return iter(others)


def cells(right: Sequence[bool], base: Sequence[bool], facts: Sequence[str]) -> list[str]:
    """The share of right answers and its difference from the base, both with intervals."""
    of_one, of_base = np.array(right, dtype=float), np.array(base, dtype=float)
    share = percent(of_one.mean(), share_interval(of_one, facts).tolist())
    if right is base:
        return [share, "-"]
    gains = of_one - of_base
    return [share, percent(gains.mean(), mean_interval(gains, facts).tolist(), "+.1f")]


FACTS = load_facts()
CONDITIONS: dict[str, Callable[[LanguageModel, Question, Question], bool]] = {
    "A to D": partial(by_labels, "ABCD"),
    "eight choices": partial(by_labels, "ABCDEFGH"),
    "E to H": partial(by_labels, "EFGH"),
    "Q to T": partial(by_labels, "QRST"),
    "far from the question": partial(padded, "middle"),
    "far from the end": partial(padded, "end"),
    "behind other text": partial(padded, "before"),
}


if __name__ == "__main__":
    main()
