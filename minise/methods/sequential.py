"""Ask in rounds, and stop when the answer is decided. Not in the paper.

Most questions are decided by a few trials and a few are not by eighty, so a fixed number of trials
is too many for most and too few for some. Here a round is a block of trials. Each round draws its
groups anew, so all rounds have the same expectation: that of infinitely many trials
(expectation.py). After each round a rule says which choices could still be the best. Two rules:

`log_wealth`, valid whenever one looks. With a probability of at least 1 - alpha, over the drawing
of the groups, it never stops at a choice that infinitely many trials would not predict. This holds
for every question, model, number of choices and time at which one looks, because the scores lie in
[0, 1]; nothing else is assumed. Groups are drawn by hashing, which counts as chance here.

`standard_leads`, the plain rule: the lead over every rival exceeds z standard errors. It is cheaper
and promises nothing: it looks again and again, and the spread of a few trials is itself uncertain.
docs/sequential.md measures both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from minise.engines import LanguageModel
from minise.errors import InputError, quote
from minise.grouping import Group, Grouping, Groups, Trial, make_groups, random_partitions
from minise.groupings.balanced import balanced_partitions
from minise.groupings.registry import grouping_name
from minise.method import PAPER, Answer, Method, Plan, Preset, SelfEnsemble, combine, mean_answer
from minise.question import Question

MOST_TRIALS = 1000
MOST_BET = 0.97  # of the wealth: with all of it one loss would end the betting
LEAST_SPREAD = 0.02  # of the plain rule: trials that are all alike are taken to vary by this

Array = NDArray[np.float64]


def log_wealth(values_NK: Array) -> Array:
    """How strongly N independent values of the K scores, each in [0, 1], speak against each choice
    being the best: (N, K), the log of the wealth of a bet against it, after each value.

    The wealth begins with 1. Each value but the first multiplies it by 1 + b * D, where D is the
    score of the choice that leads so far (of the second for the leader itself) minus that of the
    choice bet against. The stake b, from 0 to 0.97, is set by earlier values alone. If that choice
    is the best, D has no expectation above 0, whoever leads. So the wealth is a supermartingale,
    and P(it ever reaches 1 / alpha) <= alpha (Ville 1939). To stop at a wrong choice a rule must
    exclude the best one, so alpha needs no correction for the number of rivals.

    This is testing by betting (Waudby-Smith and Ramdas 2024, "Estimating means of bounded random
    variables by betting", JRSS B 86). b = (1 + sum of D) / (1 + sum of D^2) is their aGRAPA stake,
    begun with one value D = 1, because most questions are clear. A value can at most double the
    wealth: for alpha = 0.01 it takes 8 values or more.
    """
    N, K = values_NK.shape
    wealth, each = np.zeros((N, K)), np.arange(K)
    total = np.zeros(K)
    # [i, j]: of the score of j minus that of i
    gained, squared = np.zeros((K, K)), np.zeros((K, K))
    for number, value in enumerate(values_NK):
        leads = value - value[:, None]
        if number and K > 1:
            first, second = np.argsort(-total, kind="stable")[:2]
            other = np.where(each == first, second, first)
            stake = (1 + gained[each, other]) / (1 + squared[each, other])
            won = np.log1p(np.clip(stake, 0, MOST_BET) * leads[each, other])
            wealth[number] = wealth[number - 1] + won
        total += value
        gained += leads
        squared += leads**2
    return wealth


def trial_values(trials: Sequence[Trial], said: Mapping[Group, Array], K: int) -> Array:
    """The probability that each trial gives each choice, (N, K), by what each group says."""
    values = np.empty((len(trials), K))
    for number, trial in enumerate(trials):
        for group in trial:
            values[number, list(group)] = said[group]
    return values


def standard_leads(values_NK: Array) -> Array:
    """By how many standard errors the leader of N trials leads each choice: (K,), 0 for the leader
    itself. The standard deviation is that of the trials' leads, LEAST_SPREAD or more, and that for
    N = 1.

    So the standard error is that of independent trials. The mean of balanced ones, in which the
    partners and labels of a choice even out, varies less: for these a z of 1 is cautious already.
    """
    N, K = values_NK.shape
    leads = values_NK[:, [values_NK.mean(axis=0).argmax()]] - values_NK
    spread = leads.std(axis=0, ddof=1) if N > 1 else np.zeros(K)
    found: Array = leads.mean(axis=0) * N**0.5 / np.maximum(spread, LEAST_SPREAD)
    return found


@dataclass(frozen=True)
class Round(Plan):
    """A plan that asks those groups of a round's trials, `drawn`, that were not asked before."""

    drawn: tuple[Trial, ...] = ()


@dataclass(frozen=True)
class UntilDecided(Method):
    """Self-Ensemble in rounds of `block` trials, until the predicted choice is decided at level
    `alpha`, or `max_trials` would be exceeded: then it is undecided. A round has by default twice
    as many trials as a group has choices: every choice can take every label twice.

    `z`: stop by the plain rule instead, which promises nothing; alpha has no effect. `grouping`:
    how a round draws its trials. "random", the default with alpha: every trial is a value of the
    valid rule. "balanced", the default with z: a round's mean varies less, but with alpha it is
    only one value.
    """

    name: ClassVar[str] = "until-decided"
    group_size: int = 4
    alpha: float = 0.01
    max_trials: int = 80
    block: int | None = None
    z: float | None = None
    grouping: Grouping | None = None
    null_option: bool | None = None
    preset: Preset = PAPER

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise InputError(f"alpha {quote(self.alpha)} is not between 0 and 1; 0.01 is usual")
        block = 1 if self.block is None else self.block
        if not 1 <= block <= self.max_trials <= MOST_TRIALS:
            asked = f"rounds of {quote(block)} trials, at most {quote(self.max_trials)} trials"
            raise InputError(f"{asked}; give 1 <= block <= max_trials <= {MOST_TRIALS:,}")
        if self.z is not None and not self.z > 0:
            raise InputError(f"z {quote(self.z)} is not above 0; 1 is usual")
        if self.grouping not in (None, random_partitions, balanced_partitions):
            name = grouping_name(self.grouping)
            reason = "gives no rounds of independent trials; use random or balanced"
            raise InputError(f"until-decided: grouping {quote(name)} {reason}")

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        """The first round."""
        return self._round(lm, question, seed, 0, ())

    def more(
        self, lm: LanguageModel, plan: Plan, logits: Sequence[Tensor], seed: int
    ) -> Plan | None:
        """The next round; None where the answer is decided, or the trials are used up."""
        asked, block = len(_drawn(plan)), self._block(len(plan.question.choices))
        if asked + block > self.max_trials or not self.rivals(plan, self.answer(plan, logits)):
            return None
        return self._round(lm, plan.question, seed, asked // block, plan.groups.flat)

    def answer(self, plan: Plan, logits: Sequence[Tensor]) -> Answer:
        """The mean over all trials. A group has as its weight how many trials hold it; one that was
        asked again has 0 from then on."""
        times = Counter(group for trial in _drawn(plan) for group in trial)
        asked = mean_answer(plan, logits).groups
        groups = [replace(group, weight=times.pop(group.choices, 0)) for group in asked]
        return combine(len(plan.question.choices), groups, plan.dtype)

    def notes(self, lm: LanguageModel, plan: Plan, answer: Answer, seed: int) -> dict[str, Any]:
        """What a sample keeps. `rivals`: the choices that could still be the best, the nearest
        first; none where it is decided."""
        rivals = sorted(self.rivals(plan, answer), key=lambda i: -float(answer.scores[i]))
        asked = {"rounds": max(1, len(plan.rounds)), "trials": len(_drawn(plan))}
        return {"decided": not rivals, **asked, "max_trials": self.max_trials, "rivals": rivals}

    def draw(self, K: int, number: int, seed: int, question_id: str) -> Groups:
        """The groups of a round."""
        default = random_partitions if self.z is None else balanced_partitions
        key = f"{question_id}/round {number}"
        return make_groups(K, self.group_size, self._block(K), seed, key, self.grouping or default)

    def rivals(self, plan: Plan, answer: Answer) -> list[int]:
        """The choices that are not excluded, without the predicted one: none where that is decided.
        All others, where the predicted one is excluded itself."""
        said = {group.choices: group.probabilities.numpy() for group in answer.groups}
        K = len(answer.scores)
        values = trial_values(_drawn(plan), said, K)
        if self.z is None:
            if self.grouping is balanced_partitions:
                values = values.reshape(-1, self._block(K), K).mean(axis=1)
            excluded = log_wealth(values).max(axis=0) >= -log(self.alpha)
            excluded &= not excluded[answer.prediction]
        else:
            excluded = standard_leads(values) > self.z
        return [i for i in range(K) if i != answer.prediction and not excluded[i]]

    def _round(
        self,
        lm: LanguageModel,
        question: Question,
        seed: int,
        number: int,
        known: Collection[Group],
    ) -> Round:
        drawn = self.draw(len(question.choices), number, seed, question.id)
        settings = (self.null_option, self.preset)
        whole = SelfEnsemble(self.group_size, 1, lambda *_: drawn, *settings).plan(
            lm, question, seed
        )
        prompts = dict(zip(drawn.flat, whole.prompts, strict=True))
        asked = fresh(drawn, known)
        groups = Groups(tuple((group,) for group in asked), balance=drawn.balance)
        kept = {**vars(whole), "groups": groups, "prompts": [prompts[group] for group in asked]}
        return Round(**kept, drawn=drawn.trials)

    def _block(self, K: int) -> int:
        """The trials of a round."""
        return self.block or min(2 * max(1, min(self.group_size, K)), self.max_trials)


def fresh(drawn: Groups, known: Collection[Group]) -> list[Group]:
    """The groups of a round that are asked: each once, and none that is known; all of them where
    every one is known."""
    groups = list(dict.fromkeys(drawn.flat))
    seen = set(known)
    return [group for group in groups if group not in seen] or groups


def _drawn(plan: Plan) -> list[Trial]:
    """All trials so far."""
    return [trial for one in plan.rounds or (plan,) for trial in getattr(one, "drawn", ())]
