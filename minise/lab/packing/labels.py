"""Are the labels of a packed row those of separate runs?

Behind a trunk the first token of each branch is predicted by the trunk's last row, once for each
branch. A row of labels has one place for that, so the loss of such a row misses the other branches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from minise.lab.packing.conditions import Condition
from minise.lab.packing.formats import Finding
from minise.lab.packing.packing import IGNORED, Packing

CROSSES = "a label crosses a border"
MISSING = "the first target of a branch is missing"
NO_TARGET = f"set it to {IGNORED}: nothing before a prompt's first token predicts it"
READ_TRUNK = (
    "read the trunk's last row once for each branch, as minise.packed_loss does, or repeat the "
    f"trunk's last token, with the label {IGNORED}, at the beginning of each branch"
)


@dataclass(frozen=True)
class WrongLabel:
    """label: the id. source: the token that predicts it. target: the row where it should stand.
    crosses: nothing there follows the source in a prompt."""

    label: int
    source: int
    target: int
    crosses: bool


def judge_labels(p: Packing) -> list[Finding]:
    """A label must be the token that follows its source in a prompt, and the first token of each
    branch must be a target, if others of its branches are."""
    findings = [judge_targets(p)]
    forks = [fork for fork in forks_of(p) if fork.missing and not fork.is_repeated]
    missing = [row for fork in forks for row in fork.missing]
    if missing:
        first = min(missing)
        row = "which predicts it, has one label for all branches"
        words = f"{p.token(first)} has no target: the last row before its branch, {row}"
        of = sum(len(fork.branches) for fork in forks)
        finding = Finding("labels", f"{words}: {MISSING}", MISSING, len(missing), of, READ_TRUNK)
        findings.append(finding)
    return [finding for finding in findings if finding is not None]


def repeated_trunk(p: Packing) -> list[Condition]:
    """Of branches that all begin with one token, which is no target: it may be the trunk's last."""
    conditions = []
    for fork in forks_of(p):
        if fork.missing and fork.is_repeated:
            words = "the first token of the branches, which is no target, repeats the trunk's last"
            rows = ", ".join(str(row) for row in fork.branches)
            how = f"it stands at {rows}; if it is of the branches, their first target is missing"
            conditions.append(Condition(words, how))
    return conditions[:1]


def judge_targets(p: Packing) -> Finding | None:
    """Shifted: the source is the label's own token. Unshifted, as in transformers: it is the token
    before in the row."""
    is_shifted = p.fields.get("labels_are") == "shifted"
    tokens = p.meant.tokens.tolist()
    labels = p.labels.tolist()
    following = followers(p)

    rows = (p.labels != IGNORED).nonzero().flatten().tolist()
    wrong = []
    for row in rows:
        target = row + 1 if is_shifted else row
        source = target - 1
        if source < 0:
            continue  # the first, unshifted, has no prediction
        next_ones = following.get(source, [])
        if not is_shifted:
            next_ones = [row] if row in next_ones else []
        right = [tokens[follower] for follower in next_ones]
        is_right = labels[row] in right if "input_ids" in p.fields else bool(right)
        if not is_right:
            wrong.append(WrongLabel(labels[row], source, target, crosses=not next_ones))
    if not wrong:
        return None
    first = wrong[0]
    source_words = p.token(first.source).rstrip(",")
    if first.crosses:
        name = CROSSES
        predicted = p.token(first.target) if first.target < p.T else f"the label {first.label}"
        words = f"{predicted} is predicted from {source_words}: {name}"
    else:
        name = ""
        words = f"{source_words} has the target {first.label}, which does not follow it"
    is_of_branch = first.target < p.T and bool(p.meant.parents[first.target] >= 0)
    mend = READ_TRUNK if is_of_branch else NO_TARGET
    return Finding("labels", words, name, len(wrong), len(rows), mend)


def followers(p: Packing) -> dict[int, list[int]]:
    """Of each token: those that follow it in a prompt."""
    following: dict[int, list[int]] = {}
    for row, parent in enumerate(p.meant.parents.tolist()):
        if p.real[row]:
            following.setdefault(parent, []).append(row)
    return following


@dataclass(frozen=True)
class Fork:
    """Where branches begin. branches: the row of the first token of each. missing: of those that
    are no target, though others behind the fork are. is_repeated: none is, and all are one id."""

    branches: list[int]
    missing: list[int]
    is_repeated: bool


def forks_of(p: Packing) -> list[Fork]:
    """The forks behind which there are targets."""
    is_shifted = p.fields.get("labels_are") == "shifted"
    targets = p.labels != IGNORED
    if is_shifted:  # the label of the token before
        targets = torch.cat([torch.zeros(1, dtype=torch.bool), targets[:-1]])
    forks = []
    for parent, branches in followers(p).items():
        if parent < 0 or len(branches) < 2:
            continue
        if not targets[behind(p, branches)].any():
            continue
        missing = [row for row in branches if not targets[row]]
        ids = p.meant.tokens[branches]
        is_alike = "input_ids" in p.fields and bool((ids == ids[0]).all())
        forks.append(Fork(branches, missing, is_alike and len(missing) == len(branches)))
    return forks


def behind(p: Packing, branches: list[int]) -> Tensor:
    """(T,) bool: the tokens of these branches."""
    is_behind = torch.zeros(p.T, dtype=torch.bool)
    is_behind[branches] = True
    for row, parent in enumerate(p.meant.parents.tolist()):
        if parent >= 0 and is_behind[parent]:
            is_behind[row] = True
    return is_behind
