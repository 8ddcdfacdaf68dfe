"""What `minise verify` shows with --proof, and with --equal-bits: found by minise/by_name.py."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from minise.commands.verify import Options, Outcome, prompts_of
from minise.errors import InputError
from minise.lab.proof.bits import measure_bits, shapes_of
from minise.lab.proof.proof import Prover
from minise.lm import LocalModel
from minise.loading.checkpoint import OURS, read_small
from minise.question import Question
from minise.verify.recording import own_decoder


def proved(options: Options, question: Question) -> Outcome:
    small = read_small(options.model, options.revision)
    if small.architecture is not OURS:
        what = "a proof knows no layers with a state"
        raise InputError(f"{options.model}: {what}; run verify without --proof")
    nothing: Any = None  # no weights are read, so there is no decoder
    lm = LocalModel(options.model, small.config, nothing, small.tokenizer)
    proof = Prover(small.config).prove(prompts_of(lm, options, question))
    facts = {**asdict(proof), "passed": proof.passed}
    return Outcome(facts, f"{options.model}: {proof}")


def measured(lm: LocalModel, outcome: Outcome) -> Outcome:
    """The outcome of a check of equal bits, and which numbers of rows share their bits here."""
    measured = [measure_bits(shape) for shape in shapes_of(own_decoder(lm))]
    lines = [outcome.text, "", "Numbers of rows that share their bits, a line for each class:"]
    lines += [str(bits) for bits in measured]
    facts = {**outcome.facts, "bits": [asdict(bits) for bits in measured]}
    return Outcome(facts, "\n".join(lines))
