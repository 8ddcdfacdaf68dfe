"""Ask in rounds, and stop when the answer is decided. Not in the paper.

A few trials decide most questions, and eighty do not decide some, so a fixed number of trials is
too many for most questions and too few for others. Here a round is a block of trials. Each round
draws new groups, so all rounds have the same expectation: that of infinitely many trials
(groupings/exact.py). After each round a rule says which choices could still be the best. There are
two rules.

`log_wealth` is valid at any time of looking. With a probability of at least 1 - alpha, over the
drawing of the groups, it never stops at a choice that infinitely many trials would not predict.
This holds for every question, model, number of choices and number of rounds, because the scores
lie in [0, 1]; nothing else is assumed. (Groups are drawn by hashing, which counts as chance here.)

`standard_leads` is the plain rule: the lead over every rival exceeds z standard errors. It needs
fewer trials and has no guarantee: it looks again and again, and the spread of a few trials is
itself uncertain. docs/sequential.md measures both.
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
LEAST_SPREAD = 0.02  # of the plain rule: the standard deviation of trials is taken as at least this

Array = NDArray[np.float64]


def log_wealth(values_NK: Array) -> Array:
    """How strongly N independent values of the K scores, each in [0, 1], count against each choice
    being the best: (N, K), the log of the wealth of a bet against that choice, after each value.

    The wealth begins with 1. Each value but the first multiplies it by 1 + b * D, where D is the
    score of the choice that leads so far (for the leader itself, of the second) minus that of the
    choice bet against. The stake b, from 0 to 0.97, depends on earlier values only. If the choice
    bet against is the best, the expectation of D is at most 0, whichever choice leads. So the
    wealth is a supermartingale, and P(it ever reaches 1 / alpha) <= alpha (Ville 1939). To stop at
    a wrong choice a rule must exclude the best one, so alpha needs no correction for the number of
    rivals.

    This is testing by betting (Waudby-Smith and Ramdas 2024, "Estimating means of bounded random
    variables by betting", JRSS B 86). b = (1 + sum of D) / (1 + sum of D^2) is their aGRAPA stake,
    started with one value D = 1, because most questions are clear. One value can at most double the
    wealth, so alpha = 0.01 takes 8 values or more.
    """
    N, K = values_NK.shape
    wealth, choice = np.zeros((N, K)), np.arange(K)
    total = np.zeros(K)
    # [i, j]: sums over the values of the score of j minus that of i, and of its square
    gained, squared = np.zeros((K, K)), np.zeros((K, K))
    for number, value in enumerate(values_NK):
        leads = value - value[:, None]
        if number and K > 1:
            first, second = np.argsort(-total, kind="stable")[:2]
            other = np.where(choice == first, second, first)
            stake = (1 + gained[choice, other]) / (1 + squared[choice, other])
            won = np.log1p(np.clip(stake, 0, MOST_BET) * leads[choice, other])
            wealth[number] = wealth[number - 1] + won
        total += value
        gained += leads
        squared += leads**2
    return wealth


def trial_values(trials: Sequence[Trial], probabilities: Mapping[Group, Array], K: int) -> Array:
    """The probability that each trial gives each choice, (N, K), from those of each group."""
    values = np.empty((len(trials), K))
    for number, trial in enumerate(trials):
        for group in trial:
            values[number, list(group)] = probabilities[group]
    return values


def standard_leads(values_NK: Array) -> Array:
    """By how many standard errors the leader of N trials leads each choice: (K,), 0 for the leader
    itself. The standard deviation is that of the trials' leads, at least LEAST_SPREAD. For N = 1 it
    is LEAST_SPREAD.

    This is the standard error of independent trials. The mean of balanced trials varies less,
    because a choice gets all partners and labels about equally often: for these z = 1 is already
    cautious.
    """
    N, K = values_NK.shape
    leads = values_NK[:, [values_NK.mean(axis=0).argmax()]] - values_NK
    spread = leads.std(axis=0, ddof=1) if N > 1 else np.zeros(K)
    in_errors: Array = leads.mean(axis=0) * N**0.5 / np.maximum(spread, LEAST_SPREAD)
    return in_errors


@dataclass(frozen=True)
class Round(Plan):
    """The plan of one round. `drawn`: its trials. Only groups that no earlier round asked have
    prompts."""

    drawn: tuple[Trial, ...] = ()


@dataclass(frozen=True)
class UntilDecided(Method):
    """Self-Ensemble in rounds of `block` trials, until the predicted choice is decided at level
    `alpha`. If that would take more than `max_trials` trials, it is undecided. By default a round
    has twice as many trials as a group has choices: every choice can take every label twice.

    `z`: stop by the plain rule, which has no guarantee; then alpha has no effect. `grouping`: how a
    round draws its trials. "random", the default with alpha: each trial is a value of the valid
    rule. "balanced", the default with z: a round's mean varies less, but with alpha a whole round
    is only one value.
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
            sizes = f"rounds of {quote(block)} trials, at most {quote(self.max_trials)} trials"
            raise InputError(f"{sizes}; give 1 <= block <= max_trials <= {MOST_TRIALS:,}")
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
        """The next round; None if the answer is decided or the trials are used up."""
        trials, block = len(_drawn(plan)), self._block(len(plan.question.choices))
        if trials + block > self.max_trials or not self.rivals(plan, self.answer(plan, logits)):
            return None
        return self._round(lm, plan.question, seed, trials // block, plan.groups.flat)

    def answer(self, plan: Plan, logits: Sequence[Tensor]) -> Answer:
        """The mean over all trials. A group's weight is the number of trials that hold it. If a
        group has several prompts, the later ones have weight 0."""
        times = Counter(group for trial in _drawn(plan) for group in trial)
        groups = []
        for group in mean_answer(plan, logits).groups:
            groups.append(replace(group, weight=times.pop(group.choices, 0)))
        return combine(len(plan.question.choices), groups, plan.dtype)

    def notes(self, lm: LanguageModel, plan: Plan, answer: Answer, seed: int) -> dict[str, Any]:
        """For the sample. `rivals`: the choices that could still be the best, the highest score
        first; empty if the answer is decided."""
        rivals = sorted(self.rivals(plan, answer), key=lambda i: -float(answer.scores[i]))
        return {
            "decided": not rivals,
            "rounds": max(1, len(plan.rounds)),
            "trials": len(_drawn(plan)),
            "max_trials": self.max_trials,
            "rivals": rivals,
        }

    def draw(self, K: int, number: int, seed: int, question_id: str) -> Groups:
        """The groups of a round."""
        default = random_partitions if self.z is None else balanced_partitions
        key = f"{question_id}/round {number}"
        return make_groups(K, self.group_size, self._block(K), seed, key, self.grouping or default)

    def rivals(self, plan: Plan, answer: Answer) -> list[int]:
        """The choices beside the predicted one that are not excluded: none if the answer is
        decided, all if the predicted choice itself is excluded."""
        probabilities = {group.choices: group.probabilities.numpy() for group in answer.groups}
        K = len(answer.scores)
        values = trial_values(_drawn(plan), probabilities, K)
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
        earlier: Collection[Group],
    ) -> Round:
        """The plan of a round. `earlier`: the groups of the rounds before."""
        drawn = self.draw(len(question.choices), number, seed, question.id)
        ensemble = SelfEnsemble(self.group_size, 1, lambda *_: drawn, self.null_option, self.preset)
        whole = ensemble.plan(lm, question, seed)
        prompts = dict(zip(drawn.flat, whole.prompts, strict=True))
        new = fresh(drawn, earlier)
        values = vars(whole) | {
            "groups": Groups(tuple((group,) for group in new), balance=drawn.balance),
            "prompts": [prompts[group] for group in new],
        }
        return Round(**values, drawn=drawn.trials)

    def _block(self, K: int) -> int:
        """The trials of a round."""
        return self.block or min(2 * min(self.group_size, K), self.max_trials)


def fresh(drawn: Groups, earlier: Collection[Group]) -> list[Group]:
    """The groups of a round that are asked: each once, without those of earlier rounds. If all are
    of earlier rounds, all are asked: a round needs a prompt."""
    groups = list(dict.fromkeys(drawn.flat))
    old = set(earlier)
    return [group for group in groups if group not in old] or groups


def _drawn(plan: Plan) -> list[Trial]:
    """All trials so far."""
    trials: list[Trial] = []
    for one in plan.rounds or (plan,):
        assert isinstance(one, Round)  # it is a plan of `plan` or `more`
        trials += one.drawn
    return trials
