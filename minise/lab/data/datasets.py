"""The paper's data sets and Banking77: where their files are, and how rows become questions.

A new data set is a function from its row to the fields of a question, and an entry of DATASETS.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from string import ascii_uppercase

from minise.grouping import permutation
from minise.lab.data.question_file import Placed, Row
from minise.lab.data.rows import Fields
from minise.question import Question


@dataclass(frozen=True)
class Dataset:
    """A published data set, with the paper's group size m and trials N. convert: the question of a
    row, by the seed of its draws; None: the row is not asked. A damaged row may raise anything.
    prepare: puts into each row what it needs of the others."""

    repository: str
    file: str
    convert: Callable[[Row, int], Fields | None]
    group_size: int = 4
    trials: int = 20
    prepare: Callable[[list[Placed]], list[Placed]] = list


def _qasc(row: Row, seed: int) -> Fields:
    choices = row["choices"]
    answer = choices["label"].index(row["answerKey"])
    return Fields(row["id"], row["question"], choices["text"], answer)


def _mmlu_pro_biology(row: Row, seed: int) -> Fields | None:
    answer = row["answer_index"]
    if row["answer"] != ascii_uppercase[answer]:
        raise ValueError("answer and answer_index differ")
    fields = Fields(row["question_id"], row["question"], row["options"], answer)
    return fields if row["category"] == "biology" else None


def _truthfulqa(row: Row, seed: int) -> Fields | None:
    """The best answer and five incorrect ones, drawn and in a random order (Section 5.1). The id is
    the hash of the question with all its answers, whatever is drawn."""
    named = {header.lower().replace(" ", "_"): cell for header, cell in row.items()}  # of the CSV
    right = named["best_answer"].strip()
    answers = named["incorrect_answers"]
    if isinstance(answers, str):
        answers = answers.split(";")
    stripped = [answer.strip() for answer in answers]
    wrong = list(dict.fromkeys(answer for answer in stripped if answer))
    if right in wrong:
        raise ValueError(f"{right!r} is right and wrong")
    if len(wrong) < 5:
        return None
    text = named["question"]
    identity = Question(text, [right, *wrong]).id
    choices = [right]
    for i in permutation(len(wrong), f"wrong/{seed}/{identity}")[:5]:
        choices.append(wrong[i])
    order = permutation(6, f"order/{seed}/{identity}")
    return Fields(identity, text, [choices[i] for i in order], order.index(0))


def _with_intents(rows: list[Placed]) -> list[Placed]:
    """The intents of all messages, each where it comes first, are the choices of every message. The
    published files are sorted by intent, so the messages are shuffled, always in the same way."""
    intents = []
    for placed in rows:
        intents.append(placed.row.get("category") or placed.row.get("label_text"))
    names = list(dict.fromkeys(intent for intent in intents if intent))
    order = permutation(len(rows), "banking77") if names else range(len(rows))
    prepared = []
    for i in order:
        row = {**rows[i].row, "intent": intents[i], "intents": names}
        prepared.append(replace(rows[i], row=row))
    return prepared


def _banking77(row: Row, seed: int) -> Fields:
    if "choices" in row:  # a question already
        return Fields(row["id"], row["question"], row["choices"], row["answer"])
    text = f"What does this bank customer want? {json.dumps(row['text'], ensure_ascii=False)}"
    choices = [name.replace("_", " ") for name in row["intents"]]
    return Fields(None, text, choices, row["intents"].index(row["intent"]))


_PART = "-00000-of-00001.parquet"
DATASETS = {
    "qasc": Dataset("allenai/qasc", f"data/validation{_PART}", _qasc),
    # The hub has the first release, 817 questions. The paper's 277 are among the 790 of
    # TruthfulQA.csv of January 2025, which is not on the hub: give it by --task truthfulqa@FILE.
    "truthfulqa": Dataset(
        "truthfulqa/truthful_qa",
        f"generation/validation{_PART}",
        _truthfulqa,
        group_size=3,
        trials=6,
    ),
    "mmlu_pro_biology": Dataset(
        "TIGER-Lab/MMLU-Pro",
        f"data/test{_PART}",
        _mmlu_pro_biology,
        group_size=5,
        trials=40,
    ),
    # 3,076 questions; all 3,080 are in the authors' test.csv: give it by --task banking77@FILE.
    "banking77": Dataset(
        "mteb/banking77",
        f"data/test{_PART}",
        _banking77,
        group_size=8,
        trials=20,
        prepare=_with_intents,
    ),
}
