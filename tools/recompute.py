"""Ask the questions of a run again by the transformers library, each prompt alone.

python -m tools.recompute RUN FOLDER [--limit 30]

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
    lines = [f"({letter}) {text}" for letter, text in zip(LETTERS, options, strict=False)]
    prompt = "\n".join([question, *lines, "Answer:"])
    ids = tokenizer(prompt)["input_ids"]
    labels = [tokenizer(f"{prompt} {letter}")["input_ids"] for letter in LETTERS[: len(options)]]
    assert all(longer[:-1] == ids for longer in labels)
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, -1]
    return logits[[longer[-1] for longer in labels]].double().softmax(dim=0)


def recomputed(model: Any, tokenizer: Any, row: dict[str, Any]) -> list[float]:
    """The probabilities of the choices, from the groups that the row names."""
    total, count = torch.zeros(2, len(row["choices"]), dtype=torch.float64)
    for group in row["groups"]:
        options = [row["choices"][i] for i in group["choices"]]
        options += ["None of the above"] * (group["null"] is not None)
        p = group_probabilities(model, tokenizer, row["question"], options)
        total[group["choices"]] += p[: len(group["choices"])]
        count[group["choices"]] += 1
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
        rows = [json.loads(line) for line in path.read_text().splitlines()[: wanted.limit]]
        gaps, same = [0.0], 0
        for row in rows:
            p = recomputed(model, tokenizer, row)
            gaps += [abs(a - b) for a, b in zip(p, row["probabilities"], strict=True)]
            same += p.index(max(p)) == row["prediction"]
        found = f"{same} of {len(rows)} predictions equal, probabilities within {max(gaps):.1e}"
        print(f"{path.name}: {found}")
        worst = max(worst, *gaps)
    return int(worst > BOUND)


if __name__ == "__main__":
    sys.exit(main())
