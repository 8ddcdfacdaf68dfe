"""Ask the questions of a run again by the transformers library, each prompt alone.

python -m tools.studies.recompute RUN FOLDER [--limit 30]

RUN is a folder of `minise eval --task TASK --method standard,self-ensemble --dtype float32
--keep-groups --keep-text`, FOLDER the checkpoint. Prompts, softmax and mean are written here once
more, after the paper (Section 3.2) and without minise. Exit status 1 if a probability differs by
more than 1e-5. Needs the extra `parity`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

BOUND = 1e-5
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def group_probabilities(model: Any, tokenizer: Any, question: str, options: Sequence[str]) -> Any:
    """The softmax over the labels of one prompt: (len(options),) float64."""
    letters = LETTERS[: len(options)]
    prompt = f"{question}\n"
    for letter, text in zip(letters, options, strict=True):
        prompt += f"({letter}) {text}\n"
    prompt += "Answer:"
    ids = tokenizer(prompt)["input_ids"]
    labels = []
    for letter in letters:
        *before, label = tokenizer(f"{prompt} {letter}")["input_ids"]
        assert before == ids
        labels.append(label)
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, -1]
    return logits[labels].double().softmax(dim=0)


def recomputed(model: Any, tokenizer: Any, row: dict[str, Any]) -> list[float]:
    """The probabilities of the choices, from the groups that the row names."""
    K = len(row["choices"])
    total = torch.zeros(K, dtype=torch.float64)
    count = torch.zeros(K, dtype=torch.float64)
    for group in row["groups"]:
        chosen = group["choices"]
        options = [row["choices"][i] for i in chosen]
        if group["null"] is not None:
            options.append("None of the above")
        p = group_probabilities(model, tokenizer, row["question"], options)
        total[chosen] += p[: len(chosen)]
        count[chosen] += 1
    scores = total / count
    return list((scores / scores.sum()).tolist())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("run", type=Path)
    parser.add_argument("folder")
    parser.add_argument("--limit", type=int, default=30, help="questions of each method")
    wanted = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(wanted.folder)
    model = AutoModelForCausalLM.from_pretrained(wanted.folder, dtype=torch.float32).eval()
    worst = 0.0
    for path in sorted(wanted.run.glob("samples-*.jsonl")):
        lines = path.read_text().splitlines()[: wanted.limit]
        largest = 0.0
        same = 0
        for line in lines:
            row = json.loads(line)
            p = recomputed(model, tokenizer, row)
            for a, b in zip(p, row["normalized"], strict=True):
                largest = max(largest, abs(a - b))
            same += p.index(max(p)) == row["prediction"]
        found = f"{same} of {len(lines)} predictions equal, probabilities within {largest:.1e}"
        print(f"{path.name}: {found}")
        worst = max(worst, largest)
    return int(worst > BOUND)


if __name__ == "__main__":
    sys.exit(main())
