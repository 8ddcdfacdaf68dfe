"""The fixed workloads of `minise bench`: prompts as long as real ones, of random token ids."""

from __future__ import annotations

import random
from dataclasses import dataclass

from minise.grouping import make_groups


@dataclass(frozen=True)
class Workload:
    """The sizes of one question's group prompts.

    `choices` is K, `group_size` m, `trials` N. The rest are lengths in tokens: of the question, the
    text of a choice, the text of the null option, and the answer cue. A label adds one token.
    """

    choices: int
    group_size: int
    trials: int
    question: int
    choice: int
    null: int = 7
    cue: int = 3

    def prompts(self, vocabulary: int, seed: int) -> tuple[list[int], list[list[int]], list[int]]:
        """Prefix, branches and label ids. A choice has the same random ids in every group, so that
        prompts share prefixes as real prompts do."""
        draw = random.Random(f"bench/{seed}")
        labels = draw.sample(range(vocabulary), self.group_size + 1)

        def text(length: int) -> list[int]:
            return [int(draw.random() * vocabulary) for _ in range(length)]

        prefix, null, cue = text(self.question), text(self.null), text(self.cue)
        choices = [text(self.choice) for _ in range(self.choices)]
        groups = make_groups(self.choices, self.group_size, self.trials, seed, "bench")
        branches = []
        for group in groups.flat:
            branch: list[int] = []
            options = [*(choices[i] for i in group), null]
            for label, option in zip(labels, options, strict=False):
                branch += [label, *option]
            branches.append(branch + cue)
        return prefix, branches, labels


WORKLOADS = {
    "qasc": Workload(choices=8, group_size=4, trials=20, question=22, choice=6),
    "truthfulqa": Workload(choices=6, group_size=3, trials=6, question=18, choice=13),
    "biology": Workload(choices=10, group_size=5, trials=40, question=60, choice=18),
    # As the longest real question of Biology with LLaMA-3's tokenizer: 40,813 packed tokens.
    "longest": Workload(choices=10, group_size=5, trials=40, question=333, choice=98),
}
