"""Show that a change of the code leaves every number as it was, to the last bit.

    python -m tools.same_numbers record                 before the change: write the golden
    python -m tools.same_numbers check                  after it: compare
    python -m tools.same_numbers check --data DIR       also on real questions, files of the three
                                                        published data sets in DIR

For each shipped checkpoint, set of questions and way of asking, the golden
(tests/support/numbers.json) holds two hashes over all questions: `ids`, of the groups, weights,
token ids and label ids; and `bits`, of all probabilities and scores as float64. It also holds the
probabilities of the first questions. `ids` must be equal everywhere. `bits` must be equal on the
kind of machine that recorded them, which the golden names; another processor, another torch or
other settings may round the last digits differently, and there the first probabilities are compared
within 1e-4.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from minise import InputError, LanguageModel, Question, load
from minise.data.tasks import Selection, load_tasks
from minise.exact.machine import facts
from minise.method import label_logits
from minise.methods.build import build, build_asking
from minise.methods.fitted import Fitted
from minise.methods.registry import Variant
from minise.methods.sample import Sample

GOLDEN = Path(__file__).parents[1] / "tests" / "support" / "numbers.json"
MODELS = ("tiny-llama", "tiny-mistral", "tiny-qwen2")
FILES = {
    "qasc": "qasc-validation-sample.parquet",
    "truthfulqa": "TruthfulQA-sample.csv",
    "mmlu_pro_biology": "mmlu-pro-biology-test-sample.parquet",
}
SIZES = {
    "miniature": (4, 20),
    "qasc": (4, 20),
    "truthfulqa": (3, 6),
    "mmlu_pro_biology": (5, 10),  # the paper's 40 trials would take minutes
}
REAL_QUESTIONS = 20
CLOSE = 1e-4


def ways(group_size: int, trials: int) -> dict[str, Variant]:
    """Every way of asking, by its name in the golden."""

    def ensemble(engine: str = "tree", **settings: Any) -> Variant:
        sizes = {"group_size": group_size, "trials": trials}
        return Variant("x", "self-ensemble", {**sizes, **settings}, engine)

    sizes = {"group_size": group_size, "trials": trials}
    return {
        "standard": Variant("x", "standard"),
        "standard separate": Variant("x", "standard", {}, "separate"),
        "standard authors-code": Variant("x", "standard", {"preset": "authors-code"}),
        "self-ensemble": ensemble(),
        "self-ensemble dense": ensemble("dense"),
        "self-ensemble separate": ensemble("separate"),
        "self-ensemble independent": ensemble(grouping="independent"),
        "self-ensemble exact": ensemble(group_size=2, grouping="exact"),
        "self-ensemble no null option": ensemble(null_option=False),
        "self-ensemble authors-code": ensemble(preset="authors-code"),
        "without-mask": Variant("x", "without-mask", sizes),
        "without-positions": Variant("x", "without-positions", sizes),
        "cyclic": Variant("x", "cyclic"),
    }


SLOW_ON_REAL = (
    "self-ensemble dense",
    "self-ensemble exact",
    "without-mask",
    "without-positions",
)


def numbers(
    lm: LanguageModel, way: Variant, questions: Sequence[Question], answered: int | None = None
) -> tuple[dict[str, Any], list[Sample]]:
    """What the golden holds for one way of asking, and the samples for the fitted methods. With
    `answered` only the first questions are run on the model, and `bits` are of those."""
    method = build_asking(way)
    ids, bits, tokens = hashlib.sha256(), hashlib.sha256(), 0
    samples: list[Sample] = []
    for number, question in enumerate(questions):
        plan = method.plan(lm, question, 0)
        flat = [list(group) for group in plan.groups.flat]
        identity = [
            question.id,
            len(plan.prefix),
            [[*plan.prefix, *branch] for branch in plan.branches],
            [prompt.label_ids for prompt in plan.prompts],
            flat,
            list(plan.groups.weights or [1.0] * len(flat)),
        ]
        ids.update(json.dumps(identity).encode())
        tokens += plan.tokens(way.engine)
        if answered is not None and number >= answered:
            continue
        logits = label_logits(lm, plan, way.engine)
        answer = method.answer(plan, logits)
        values = [*answer.probabilities.tolist(), *answer.scores.tolist()]
        bits.update(struct.pack(f"<{len(values)}d", *values))
        assert question.answer is not None
        samples.append(
            Sample(
                id=question.id,
                seed=0,
                question_hash=question.content_hash,
                answer=question.answer,
                prediction=answer.prediction,
                probabilities=answer.probabilities.tolist(),
                scores=answer.scores.tolist(),
                tokens=0,
                seconds=None,
                logits=logits[0].tolist(),
            )
        )
    case = {
        "questions": len(questions),
        "ids": ids.hexdigest()[:16],
        "bits": bits.hexdigest()[:16],
        "tokens": tokens,
        "first": rounded(samples[:2]),
    }
    return case, samples


def rounded(samples: Sequence[Sample]) -> list[list[float]]:
    return [[round(p, 6) for p in sample.probabilities] for sample in samples]


def fitted(samples: list[Sample]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same for the two methods that are fitted on standard inference."""
    for name in ("vector-scaling", "dirichlet"):
        method = build(Variant(name, name))
        assert isinstance(method, Fitted)
        answers = method.fit({"standard": samples})
        packed = b"".join(struct.pack("<d", p) for sample in answers for p in sample.probabilities)
        yield (
            name,
            {
                "questions": len(answers),
                "bits": hashlib.sha256(packed).hexdigest()[:16],
                "first": rounded(answers[:2]),
            },
        )


def real_questions(lm: LanguageModel, task: str, path: Path) -> list[Question]:
    """The first questions that fit into the model's positions in both presets."""
    questions = []
    for question in load_tasks([f"{task}@{path}"])[0].questions:
        try:
            for preset in ("paper", "authors-code"):
                way = Variant("x", "standard", {"preset": preset})
                numbers(lm, way, [question])  # refuses what is too long
        except InputError:
            continue
        questions.append(question)
        if len(questions) == REAL_QUESTIONS:
            break
    return questions


def all_cases(data: Path | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every case by its name in the golden."""
    for model in MODELS:
        lm = load(f"weights/{model}")
        for task, (group_size, trials) in SIZES.items():
            if task == "miniature":
                questions = load_tasks([task], Selection(questions=60))[0].questions
            elif data is not None:
                questions = real_questions(lm, task, data / FILES[task])
            else:
                continue
            for name, way in ways(group_size, trials).items():
                if task != "miniature" and name in SLOW_ON_REAL:
                    continue
                if task == "mmlu_pro_biology" and name == "self-ensemble separate":
                    continue
                case, samples = numbers(lm, way, questions)
                yield f"{model} / {task} / {name}", case
                if (task, name) == ("miniature", "standard"):
                    for kind, refit in fitted(samples):
                        yield f"{model} / {task} / {kind}", refit


def close(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> bool:
    """Whether the probabilities of the first questions are."""
    pairs = zip(first, second, strict=True)
    return all(abs(a - b) <= CLOSE for p, q in pairs for a, b in zip(p, q, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("record", "check"))
    parser.add_argument("--data", type=Path, metavar="DIR", help="with the real samples")
    parser.add_argument("--golden", type=Path, default=GOLDEN)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.command == "record":
        cases = dict(all_cases(args.data))
        record = {"machine": facts(), "cases": cases}
        args.golden.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{args.golden}: {len(cases)} cases")
        return 0
    recorded = json.loads(args.golden.read_text())
    golden, same_kernels = recorded["cases"], recorded["machine"] == facts()
    if not same_kernels:
        origin = ", ".join(map(str, recorded["machine"].values()))
        print(f"recorded on {origin}; here bits may differ: probabilities within {CLOSE}")
    different = checked = 0
    for name, case in all_cases(args.data):
        checked += 1
        wrong = [key for key in golden[name] if golden[name][key] != case[key]]
        if not same_kernels and close(golden[name]["first"], case["first"]):
            wrong = [key for key in wrong if key not in ("bits", "first")]
        different += bool(wrong)
        print(f"{name}: {', '.join(wrong) + ' differ' if wrong else 'equal'}", flush=True)
    print(f"{checked} cases, {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
