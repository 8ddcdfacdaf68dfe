"""What the page shows, as one typed dictionary. Numbers are JSON's or numpy arrays.

The keys are also those of the page's JSON, which page.js reads.
"""

from __future__ import annotations

from typing import Any, TypedDict


class Sequence_(TypedDict):
    """A packed sequence, row by row. `groups`: the group that a token belongs to, -1 if groups
    share it. `parents`: the row before it in its prompt, -1 for the first. `ends`: each group's
    last row. `inside`: the rows that end inside a character; they have no text, and the row that
    completes the character has it."""

    texts: list[str]
    inside: list[int]
    positions: list[int]
    parents: list[int]
    groups: list[int]
    ends: list[int]


class GroupPart(TypedDict):
    """A group and its answer. `prompt`: its text after the `shared` text of all prompts.
    `probabilities`: of its choices, in their order. `null`: of "None of the above". `lens`: these
    (the null option last) as read out after each layer; empty if the group is not `shown`."""

    trial: int
    choices: list[int]
    prompt: str
    probabilities: list[float]
    null: float | None
    lens: list[list[float]]


class AnswerPart(TypedDict):
    """Self-Ensemble's answer. `running[t]`: the scores of the first t + 1 trials; `errors[t]`:
    their standard errors, None for one trial and where a trial holds some of the choices only."""

    prediction: int
    probabilities: list[float]
    running: list[list[float]]
    errors: list[list[float] | None]


class Ablation(TypedDict):
    """The packed sequence run without its mask, with positions that run on, or with both.

    `probabilities`, `nulls`, `lens`: of each shown group, as in GroupPart. `self_ensemble`: the
    answer from the trials that are shown whole, None if there are none. `attention`: uint8, in
    steps of 1/255, for the first `rows` rows of the packed sequence, one after the other: (L,
    heads, c), where c is the number of rows that the mask shows; None if it would take too much.
    """

    probabilities: list[list[float]]
    nulls: list[float | None]
    lens: list[list[list[float]]]
    self_ensemble: AnswerPart | None
    rows: int
    attention: Any


class Other(TypedDict):
    """Another method's answer; `left_out` says why there is none."""

    prediction: int | None
    probabilities: list[float]
    left_out: str


class Data(TypedDict):
    """All that the page shows. Parts 2 to 4 show the first `shown` groups.

    `packed`: the paper's layout of T tokens. `tree`: common prefixes merged, R rows. `tree_rows`:
    the row of each packed token in the tree. `complete`: whether the groups are all possible ones,
    as one trial.

    `equality[run]`: (T, L + 1) float32, how far each packed token's hidden state is from that of
    the separate run of its prompt, as a part of its size (root mean square), after each layer and
    after the final norm. The runs: the engines "dense" and "tree", and the `ablations`
    "without_mask", "without_positions" and "without_both"; one whose numbers make no answer is
    missing. NaN: not computed, because the tree engine's top layer has the groups' ends only.
    `bitwise`: whether all bits are equal.

    `attention`: uint8, in steps of 1/255, for row after row of the tree: (L, heads, position + 1),
    how much it reads the tokens of its prompt up to itself. With `heads` 1 the mean of the heads.

    `machine`: the machine that made the page, in words. Equal bits are a fact about a machine.
    """

    model: str
    dtype: str
    device: str
    machine: str
    layers: int
    query_heads: int
    heads: int
    windows: list[int]
    question: str
    choices: list[str]
    labels: str
    answer: int | None
    group_size: int
    trials: int
    complete: bool
    seed: int
    shared: str
    groups: list[GroupPart]
    shown: int
    packed: Sequence_
    tree: Sequence_
    tree_rows: list[int]
    equality: dict[str, Any]
    bitwise: dict[str, bool]
    attention: Any
    ablations: dict[str, Ablation]
    self_ensemble: AnswerPart
    others: dict[str, Other]
    detail: str
    left_out: list[str]
