"""What a model is asked for, counted wherever a method asks: also inside `Method.prompts`, where it
may have earlier rounds."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from minise.engines import Ids, token_counts
from minise.lm import LocalModel
from minise.prompts import LabelLogits, LanguageModel, Prompts

ENGINES = ("separate", "packed", "tree")


@dataclass
class Counts:
    """How many prompts, and how many tokens by each of ENGINES."""

    prompts: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENGINES, 0))

    def add(self, prefix: Ids, branches: Sequence[Ids]) -> None:
        self.prompts += len(branches)
        for engine, number in token_counts(prefix, branches).items():
            self.tokens[engine] += number

    def run_by(self, engine: str) -> int:
        """Tokens that this engine runs. The ablations run the packed sequence, and an engine of
        one's own is counted as if it did."""
        return self.tokens.get(engine, self.tokens["packed"])


def counted(lm: LanguageModel, counts: Counts) -> LanguageModel:
    """The same model. What it is asked for is added to `counts`, by its `logits`, and of a model
    that runs here by `branch_logits`, too."""
    twin: Any = copy.copy(lm)
    if isinstance(lm, LocalModel):

        def hidden_at_ends(prefix: Ids, branches: Sequence[Ids]) -> Tensor:
            counts.add(prefix, branches)
            return lm.hidden_at_ends(prefix, branches)

        object.__setattr__(twin, "hidden_at_ends", hidden_at_ends)  # its class is frozen
    else:

        def logits(prompts: Prompts) -> list[LabelLogits]:
            counts.add(prompts.prefix, prompts.branches)
            return lm.logits(prompts)

        object.__setattr__(twin, "logits", logits)
    counted_model: LanguageModel = twin
    return counted_model
