"""The paper's data sets and Banking77: where their files are, and how rows become questions.

A new data set is a function from its row to the fields of a question, and an entry of DATASETS.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from string import ascii_uppercase

from minise.data.question_file import Row
from minise.data.rows import Fields
from minise.grouping import permutation
from minise.question import Question

Rows = list[tuple[str, Row]]


@dataclass(frozen=True)
class Dataset:
    """A published data set, with the paper's group size m and trials N. convert: the question of a
    row, by the seed of its draws; None: the row is not asked. A damaged row may raise anything.
    prepare: puts into each row what it needs of the others; rows are with their places."""

    repository: str
    file: str
    convert: Callable[[Row, int], Fields | None]
    group_size: int = 4
    trials: int = 20
    prepare: Callable[[Rows], Rows] = list


def _qasc(row: Row, seed: int) -> Fields:
    answer = row["choices"]["label"].index(row["answerKey"])
    return row["id"], row["question"], row["choices"]["text"], answer


def _mmlu_pro_biology(row: Row, seed: int) -> Fields | None:
    if row["answer"] != ascii_uppercase[row["answer_index"]]:
        raise ValueError("answer and answer_index differ")
    fields = row["question_id"], row["question"], row["options"], row["answer_index"]
    return fields if row["category"] == "biology" else None


def _truthfulqa(row: Row, seed: int) -> Fields | None:
    """The best answer and five incorrect ones, drawn and in a random order (Section 5.1). The id is
    the hash of the question with all its answers, whatever is drawn."""
    row = {header.lower().replace(" ", "_"): cell for header, cell in row.items()}  # of the CSV
    right, answers = row["best_answer"].strip(), row["incorrect_answers"]
    answers = answers.split(";") if isinstance(answers, str) else answers
    wrong = list(dict.fromkeys(answer.strip() for answer in answers if answer.strip()))
    if right in wrong:
        raise ValueError(f"{right!r} is right and wrong")
    if len(wrong) < 5:
        return None
    identity = Question(row["question"], [right, *wrong]).id
    drawn = permutation(len(wrong), f"wrong/{seed}/{identity}")[:5]
    order = permutation(6, f"order/{seed}/{identity}")
    choices = [right, *(wrong[i] for i in drawn)]
    return identity, row["question"], [choices[i] for i in order], order.index(0)


def _with_intents(rows: Rows) -> Rows:
    """The intents of all messages, each where it comes first, are the choices of every message. The
    published files are sorted by intent, so the messages are shuffled, always in the same way."""
    given = [row.get("category") or row.get("label_text") for _, row in rows]
    names = list(dict.fromkeys(name for name in given if name))
    order = permutation(len(rows), "banking77") if names else range(len(rows))
    return [(rows[i][0], {**rows[i][1], "intent": given[i], "intents": names}) for i in order]


def _banking77(row: Row, seed: int) -> Fields:
    if "choices" in row:  # a question already
        return row["id"], row["question"], row["choices"], row["answer"]
    text = f"What does this bank customer want? {json.dumps(row['text'], ensure_ascii=False)}"
    choices = [name.replace("_", " ") for name in row["intents"]]
    return None, text, choices, row["intents"].index(row["intent"])


_PART = "-00000-of-00001.parquet"
_TRUTHFUL, _TEST = f"generation/validation{_PART}", f"data/test{_PART}"
DATASETS = {
    "qasc": Dataset("allenai/qasc", f"data/validation{_PART}", _qasc),
    # The hub has the first release, 817 questions. The paper's 277 are among the 790 of
    # TruthfulQA.csv of January 2025, which is not on the hub: give it by --task truthfulqa@FILE.
    "truthfulqa": Dataset("truthfulqa/truthful_qa", _TRUTHFUL, _truthfulqa, 3, 6),
    "mmlu_pro_biology": Dataset("TIGER-Lab/MMLU-Pro", _TEST, _mmlu_pro_biology, 5, 40),
    # 3,076 questions; all 3,080 are in the authors' test.csv: give it by --task banking77@FILE.
    "banking77": Dataset("mteb/banking77", _TEST, _banking77, 8, 20, _with_intents),
}
