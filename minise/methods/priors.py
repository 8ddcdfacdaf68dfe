"""Label priors, divided out: how probable the labels A, B, ... are whatever the choices are."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from math import ceil
from typing import ClassVar

import torch
from torch import Tensor

from minise.errors import InputError
from minise.methods.fitted import Fitted, Row, check_same_size, remade


@dataclass(frozen=True)
class PriDe(Fitted):
    """PriDe (Zheng et al. 2023, arXiv 2309.03882): the prior is estimated from the rotations of a
    few questions and divided out of the others: p = softmax(logits - log prior). No right answer is
    used.

    For an estimation question, over its K rotations r: prior_q(label) = softmax(mean over r of
    log p_r(label)). Every choice has every label once, so only the effect of the label is left. The
    prior is the mean of prior_q. An estimation question is answered by the mean over its rotations
    (`cyclic`), every other question by standard inference without the prior.

    `share`: the share of estimation questions (in the publication 2 to 5% are enough), at least one
    question. They are those with the smallest seeded hashes of the id. `tokens`: an estimation
    question costs its rotations, every other one prompt, as in the publication. (A run asks the
    rotations of all questions, because `cyclic` is one of its methods.)
    """

    name: ClassVar[str] = "pride"
    needs = ("standard", "cyclic")
    share: float = 0.05

    def fit(self, answers: dict[str, list[Row]]) -> list[Row]:
        if not 0 < self.share <= 1:
            raise InputError(f"pride: share={self.share} is wrong; give a number above 0, up to 1")
        check_same_size(self.name, (len(row["scores"]) for row in answers["standard"]))
        rotated = {(row["seed"], row["id"]): row for row in answers["cyclic"]}
        keys = sorted(rotated, key=lambda key: sha256(f"{key[0]}/{key[1]}/pride".encode()).digest())
        fitted: dict[tuple[int, str], Row] = {}
        for seed in {seed for seed, _ in keys}:
            of_seed = [key for key in keys if key[0] == seed]
            estimation = of_seed[: ceil(self.share * len(of_seed))]
            prior = torch.stack([_prior_of(rotated[key]) for key in estimation]).mean(dim=0)
            for row in answers["standard"]:
                if row["seed"] == seed:
                    logits = torch.tensor(row["logits"], dtype=torch.float64)
                    new = torch.softmax(logits - prior.clamp_min(1e-300).log(), dim=-1)
                    fitted[seed, row["id"]] = remade(row, new.tolist())
            for key in estimation:
                fitted[key] = remade(rotated[key], rotated[key]["probabilities"])
        return [fitted[row["seed"], row["id"]] for row in answers["standard"]]


def _prior_of(row: Row) -> Tensor:
    """The prior of the labels (K,) in the rotations of one question."""
    # A group's probabilities are in the order of its prompt: label by label.
    p = torch.tensor([group["probabilities"] for group in row["groups"]], dtype=torch.float64)
    return torch.softmax(p.clamp_min(1e-300).log().mean(dim=0), dim=-1)
