"""Show that a change of the code leaves every number as it was, to the last bit.

    python -m tools.same_numbers check                          the shipped models on the miniature
    python -m tools.same_numbers check --data DIR               also on real questions: the files of
                                                                the three data sets in DIR
    python -m tools.same_numbers check --data DIR --model FOLDER       another checkpoint
    python -m tools.same_numbers record ...                     write the golden, before a change

The golden (tests/support/numbers.json) was made by commit d179a07, before the house was made small.
For each model, dtype, data set and way of asking it holds two hashes over all questions: `ids`, of
the groups and of all token ids, and `bits`, of all probabilities and scores as float64. `ids` must
be equal everywhere. `bits` must be equal on the kind of machine that recorded them; elsewhere the
last digits may differ, and the probabilities of the first question are compared within 1e-4.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from minise import InputError, LanguageModel, Method, Question, load
from minise.data.tasks import Selection, load_tasks
from minise.equal_bits.machine import facts
from minise.method import label_logits
from minise.methods.fitted import Fitted, Row
from minise.methods.registry import make_method

GOLDEN = Path(__file__).parents[1] / "tests" / "support" / "numbers.json"
SHIPPED = ("weights/tiny-llama", "weights/tiny-mistral", "weights/tiny-qwen2")
FILES = {
    "qasc": "qasc-validation.parquet",
    "truthfulqa": "TruthfulQA.csv",
    "mmlu_pro_biology": "mmlu-pro-biology-test.parquet",
}
# Group size and trials: the paper's, but for Biology, whose 40 trials would take minutes.
SIZES = {"miniature": (4, 20), "qasc": (4, 20), "truthfulqa": (3, 6), "mmlu_pro_biology": (5, 5)}
WAYS = {
    "standard": "standard",
    "standard separate": "standard",
    "standard authors-code": "authors-standard",
    "self-ensemble": "self-ensemble(SIZES)",
    "self-ensemble dense": "self-ensemble(SIZES)",
    "self-ensemble separate": "self-ensemble(SIZES)",
    "self-ensemble independent": "self-ensemble(SIZES,grouping=independent)",
    "self-ensemble exact": "self-ensemble(group_size=2,grouping=exact)",
    "self-ensemble no null option": "self-ensemble(SIZES,null_option=false)",
    "self-ensemble authors-code": "authors-code(SIZES)",
    "without-mask": "without-mask(SIZES)",
    "without-positions": "without-positions(SIZES)",
    "cyclic": "cyclic",
    "cloze": "cloze",
    "presence": "presence",
    "cot": "cot(max_new_tokens=24)",
}
SLOW = ("dense", "separate", "exact", "without-mask", "without-positions")  # left out on Biology
WRITES = 6  # questions for a method that writes text
CLOSE = 1e-4


def cases(model: str, dtype: str, data: Path | None, small: bool) -> Iterator[tuple[str, Row]]:
    """Every case of a model by its name in the golden. small: fewer questions, for a real model."""
    lm = load(model, dtype=dtype)
    for task, (m, trials) in SIZES.items():
        if task == "miniature":
            selection = Selection(limit=6 if small else 40)
            questions: Sequence[Question] = load_tasks([task], selection)[0].questions
        elif data is not None:
            questions = fitting(lm, load_tasks([f"{task}@{data / FILES[task]}"])[0].questions)
            questions = questions[: 3 if small else 6]
        else:
            continue
        for name, text in WAYS.items():
            if task == "mmlu_pro_biology" and name.removeprefix("self-ensemble ") in SLOW:
                continue
            text = text.replace("SIZES", f"group_size={m},trials={trials}")
            asked = questions[:WRITES] if name == "cot" else questions
            engine = name.split()[-1] if name.endswith(("dense", "separate")) else "tree"
            where = f"{Path(model).name} / {dtype} / {task} / "
            case, rows = numbers(lm, name, text, asked, engine)
            yield where + name, case
            if name == "standard" and task == "miniature":
                for fitted in ("vector-scaling", "dirichlet"):
                    yield where + fitted, refitted(fitted, rows)


def fitting(lm: LanguageModel, questions: Sequence[Question]) -> list[Question]:
    """The questions whose longest prompts leave room to write, in both templates."""
    kept = []
    for question in questions[:60]:
        try:
            for name in ("standard", "authors-standard"):
                plan = asking(name).plan(lm, question)
                if len(plan.prefix + plan.branches[0]) > lm.config.max_position_embeddings - 40:
                    raise InputError("too long")
        except InputError:
            continue
        kept.append(question)
    return kept


def asking(text: str) -> Method:
    method = make_method(text, {})[1]
    assert isinstance(method, Method)
    return method


def numbers(
    lm: LanguageModel, name: str, text: str, questions: Sequence[Question], engine: str
) -> tuple[Row, list[Row]]:
    """What the golden holds for one way of asking, and the answers for the fitted methods."""
    method, ids, bits, tokens = asking(text), hashlib.sha256(), hashlib.sha256(), 0
    rows: list[Row] = []
    for question in questions:
        try:
            plan = method.plan(lm, question)
        except InputError as error:
            return {"refused": str(error)[:80]}, rows
        # Cloze reads more prompts than there are groups, in an order of its own.
        hidden = name == "cloze"
        prompts = [] if hidden else [[*plan.prefix, *branch] for branch in plan.branches]
        groups = [list(group) for group in plan.groups.flat]
        ids.update(json.dumps([question.id, prompts, groups]).encode())
        tokens += plan.tokens(engine)
        logits = label_logits(lm, plan, engine)
        answer = method.answer(plan, logits)
        p = answer.probabilities.tolist()
        bits.update(packed([*p, *answer.scores.tolist()]))
        row = {"id": question.id, "answer": question.answer, "cluster": question.cluster}
        rows.append({**row, "probabilities": p, "logits": logits[0].tolist()})
    case = {"ids": ids.hexdigest()[:16], "bits": bits.hexdigest()[:16], "tokens": tokens}
    return {**case, "first": [round(x, 6) for x in rows[0]["probabilities"]]}, rows


def refitted(name: str, rows: list[Row]) -> Row:
    """The same for a method that is fitted on standard inference."""
    method = make_method(name, {})[1]
    assert isinstance(method, Fitted)
    try:
        p = [row["probabilities"] for row in method.fit({"standard": rows})]
    except InputError as error:
        return {"refused": str(error)[:80]}
    bits = hashlib.sha256(b"".join(map(packed, p))).hexdigest()[:16]
    return {"bits": bits, "first": [round(x, 6) for x in p[0]]}


def packed(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


def close(first: Iterable[float], second: Iterable[float]) -> bool:
    return all(abs(a - b) <= CLOSE for a, b in zip(first, second, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("record", "check"))
    parser.add_argument("--data", type=Path, metavar="DIR", help="with real questions")
    parser.add_argument("--model", metavar="FOLDER", help="in place of the shipped models")
    parser.add_argument("--golden", type=Path, default=GOLDEN)
    args = parser.parse_args()
    torch.set_num_threads(1)
    golden: dict[str, Any] = {"machine": facts(), "cases": {}}
    if args.command == "check" or args.model:
        golden = json.loads(args.golden.read_text())
    same_kernels = golden["machine"] == facts()
    different = checked = 0
    for model in [args.model] if args.model else SHIPPED:
        for dtype in ("float32", "bfloat16"):
            for name, case in cases(model, dtype, args.data, small=bool(args.model)):
                if args.command == "record":
                    golden["cases"][name] = case
                    continue
                old: Row = golden["cases"].get(name, {})
                wrong = [key for key in case if case[key] != old.get(key)]
                if not same_kernels and close(old.get("first", []), case.get("first", [])):
                    wrong = [key for key in wrong if key not in ("bits", "first")]
                checked, different = checked + 1, different + bool(wrong)
                print(f"{name}: {', '.join(wrong) + ' differ' if wrong else 'equal'}", flush=True)
    if args.command == "record":
        args.golden.write_text(json.dumps(golden, indent=0) + "\n")
    print(f"{checked} cases, {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
