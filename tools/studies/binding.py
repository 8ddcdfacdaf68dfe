"""Where a model loses the right choice: in reading the list, or in saying the label?

    python -m tools.studies.binding weights/tiny-llama weights/tiny-mistral weights/tiny-qwen2

Linear probes on the residual stream of standard inference, layer by layer:

- `choice`: at the end of each choice's line. Is this the right choice? The choice with the largest
  value is the probe's answer.
- `label`: at the end of the prompt, where the model answers. Which label is right?

Both are logistic regressions on questions about one half of the facts, and answer questions about
the other half: they cannot learn facts, only how the model marks what it knows. Beside them stands
what the model says itself, on the same questions. If `choice` is high and the label is not, the
model has recognised the right choice where it stands, and loses it on the way to the label
("decide, then bind"). A probe shows what can be read, not what the model uses.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from minise import LanguageModel, Question, load
from minise.checking.recording import record
from minise.data.miniature import evaluation_questions
from minise.method import Standard, label_logits
from tools.markdown import table

Array = NDArray[np.float64]
CHOICES = (2, 4, 8)


@dataclass(frozen=True, eq=False)
class States:
    """The residual stream of one prompt, after each of L layers. choices: (L, K, D), at the end of
    each choice's line; end: (L, D), at the end of the prompt. said: the label that the model gives
    the most probability. answer: the right one. fact: what the question is about."""

    choices: Array
    end: Array
    said: int
    answer: int
    fact: str


def main() -> None:
    rows = []
    for lm, names, questions in asked(__doc__.splitlines()[0]):
        rows += probe([read(lm, one) for one in questions], names)
    layers = [f"after layer {layer + 1}" for layer in range(len(rows[0]) - 4)]
    print(table(["model", "K", "probe", *layers, "the model says"], rows))


def asked(about: str) -> Iterator[tuple[LanguageModel, list[str], list[Question]]]:
    """Each model of the command line with questions of each number of choices, and the names of
    both for a table."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("models", nargs="+", metavar="DIR")
    parser.add_argument("--questions", type=int, default=1000, help="for each number of choices")
    args = parser.parse_args()
    for name in args.models:
        lm = load(name)
        for K in CHOICES:
            names = [name.rstrip("/").rsplit("/", 1)[-1], str(K)]
            yield lm, names, evaluation_questions(args.questions, K, seed=0)


@torch.inference_mode()
def read(lm: LanguageModel, question: Question) -> States:
    """Run standard inference on a question that has its answer, and keep the states."""
    assert question.answer is not None
    plan = Standard().plan(lm, question)
    rows = ends_of_choices(lm, question)
    with record(lm.decoder) as recording:
        (logits,) = label_logits(lm, plan, "separate")
    layers = [recording.residual[i].flatten(0, -2) for i in sorted(recording.residual)]
    choices = torch.stack([layer[rows] for layer in layers]).double().numpy()
    end = torch.stack([layer[-1] for layer in layers]).double().numpy()
    return States(choices, end, int(logits.argmax()), question.answer, question.cluster)


def ends_of_choices(lm: LanguageModel, question: Question) -> list[int]:
    """For each choice the row of the last token of its line in the prompt of standard inference."""
    template = Standard().standard_template(lm)
    texts = [
        template.render(question.text, question.choices[: i + 1]).removesuffix(template.cue)
        for i in range(len(question.choices))
    ]
    return [len(ids) - 1 for ids in lm.tokenizer.encode(texts)]


def probe(states: Sequence[States], names: list[str]) -> list[list[str]]:
    """The rows of both probes: the accuracy in percent on the facts that they were not fitted on,
    after each layer; each half of the facts is fitted on the other."""
    facts = sorted({one.fact for one in states})
    halves = [[one for one in states if (facts.index(one.fact) % 2) == half] for half in (0, 1)]
    L, rows = len(states[0].end), []
    said = float(np.mean([one.said == one.answer for one in states]))
    for kind, right in (("choice", right_choices), ("label", right_labels)):
        cells = []
        for layer in range(L):
            right_of_halves = [right(fit, test, layer) for fit, test in (halves, halves[::-1])]
            cells.append(f"{100 * np.concatenate(right_of_halves).mean():.1f}")
        rows.append([*names, kind, *cells, f"{100 * said:.1f}"])
    return rows


def right_choices(fit: Sequence[States], test: Sequence[States], layer: int) -> Array:
    """Whether the choice with the largest value is the right one, for each question of `test`."""
    x = np.concatenate([one.choices[layer] for one in fit])
    y = np.concatenate([np.arange(len(one.choices[layer])) == one.answer for one in fit])
    model = _regression().fit(x, y)
    best = [int(model.decision_function(one.choices[layer]).argmax()) for one in test]
    return np.array([i == one.answer for i, one in zip(best, test, strict=True)], dtype=float)


def right_labels(fit: Sequence[States], test: Sequence[States], layer: int) -> Array:
    """Whether the most probable label is the right one, for each question of `test`."""
    model = _regression().fit([one.end[layer] for one in fit], [one.answer for one in fit])
    best = model.predict([one.end[layer] for one in test])
    return np.array([i == one.answer for i, one in zip(best, test, strict=True)], dtype=float)


def _regression() -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000))


if __name__ == "__main__":
    main()
