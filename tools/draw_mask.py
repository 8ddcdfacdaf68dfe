"""Draw the packed sequence of a small real question: tokens, positions and attention mask.

    python tools/draw_mask.py                       the paper's layout, as in the README
    python tools/draw_mask.py --tree                with common prefixes merged

A row attends to the columns marked with a block. Read it top to bottom: every group sees the
question and itself, and its positions go on where the question ended.
"""

from __future__ import annotations

import argparse

from minise import PAPER, Layout, Question, load, pack
from minise.ensemble import plan_groups
from minise.tokenizer import Tokenizer

QUESTION = Question("What is the capital of Peru?", ["Lima", "Quito", "Oslo"], id="drawing")


def draw(layout: Layout, tokenizer: Tokenizer) -> str:
    """One line per token: its text, position and row of the mask; the ends read out."""
    ends = set(layout.ends.tolist())
    lines = ["token      position  attends to"]
    for row, token in enumerate(layout.tokens.tolist()):
        text = tokenizer.decode([token]).replace("\n", "\\n").replace(" ", "_")
        text = text.replace("<|begin_of_text|>", "<begin>")
        cells = "".join("█" if seen else "·" for seen in layout.mask[row].tolist())
        note = "  <- reads out" if row in ends else ""
        lines.append(f"{text:<10} {layout.positions[row]:>8}  {cells}{note}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="weights/tiny-llama")
    parser.add_argument("--tree", action="store_true", help="merge common prefixes")
    args = parser.parse_args()
    lm = load(args.model)
    prompts = plan_groups(lm, QUESTION, group_size=2, trials=1, seed=0, preset=PAPER).prompts
    print(draw(pack(prompts.prefix, prompts.branches, tree=args.tree), lm.tokenizer))


if __name__ == "__main__":
    main()
