"""Draw the packed sequence of a small question: tokens, positions and attention mask.

    python -m tools.draw_mask                       the paper's layout, as in docs/reading.md
    python -m tools.draw_mask --tree                with common prefixes merged

A row attends to the columns marked with a block. No group has a "None of the above" here.
"""

from __future__ import annotations

import argparse

from minise import Layout, Question, SelfEnsemble, load, pack
from minise.tokenizer import Tokenizer

QUESTION = Question("The capital of Spain?", ["Paris", "Rome", "Madrid"], id="drawing")


def draw(layout: Layout, tokenizer: Tokenizer) -> str:
    """One line per token: its text, its position and its row of the mask. The probabilities are
    read out at the groups' ends."""
    ends = set(layout.ends.tolist())
    lines = ["token      position  attends to"]
    for row, token in enumerate(layout.tokens.tolist()):
        text = tokenizer.decode([token]).replace("\n", "\\n").replace(" ", "_")
        text = text.replace("<|begin_of_text|>", "<begin>")
        cells = "".join("█" if visible else "·" for visible in layout.mask[row].tolist())
        note = "  <- reads out" if row in ends else ""
        lines.append(f"{text:<10} {layout.positions[row]:>8}  {cells}{note}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", action="store_true", help="merge common prefixes")
    args = parser.parse_args()
    lm = load("weights/tiny-llama")
    method = SelfEnsemble(group_size=2, trials=1, null_option=False)
    _, prompts = method.prompts(lm, QUESTION)
    print(draw(pack(prompts.prefix, prompts.branches, tree=args.tree), lm.tokenizer))


if __name__ == "__main__":
    main()
