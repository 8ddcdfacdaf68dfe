"""Freeze the reference library's logits on tiny random checkpoints, for tests without the library.

    python -m tools.make_goldens                     (needs the extra [parity])

For each case of tests/reference/support/reference.py this writes a folder of three files,
goldens/<case>: config.json and model.safetensors, as the library saves them (float32 weights,
fixed seed), and
golden.safetensors, which holds for the runs "causal" and "packed"

    <run>.tokens     (T,)    int64
    <run>.positions  (T,)    int64
    <run>.mask       (T, T)  bool, True = attend, before any sliding window
    <run>.logits     (T, V)  float64, of the library computing in float64 throughout
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

from tests.reference.support.reference import (
    CASES,
    float64_islands,
    reference_logits,
    runs,
    write_checkpoint,
)

GOLDENS = Path(__file__).parents[1] / "tests" / "reference" / "support" / "goldens"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=GOLDENS, help="where the folders are made")
    root = parser.parse_args().folder
    for name, case in CASES.items():
        folder = write_checkpoint(case, root / name)
        golden: dict[str, torch.Tensor] = {}
        for run, (tokens, positions, mask) in runs().items():
            # A plain prompt is left to the library's own masking, its sliding windows included.
            explicit_mask = None if run == "causal" else mask
            with float64_islands():
                logits = reference_logits(folder, tokens, positions, explicit_mask, torch.float64)
            golden[f"{run}.tokens"] = tokens
            golden[f"{run}.positions"] = positions
            golden[f"{run}.mask"] = mask
            golden[f"{run}.logits"] = logits
        save_file(golden, folder / "golden.safetensors")
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{folder}: {size / 1000:.0f} kB, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
