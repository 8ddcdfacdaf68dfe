"""Check on this machine that packed runs equal separate runs, token by token.

The decoder that answers runs every group prompt alone, packed and as a tree. Every hidden state is
compared, the logits, and the label logits that answers are read from: in float64 within 1e-10, in
another dtype within what rounding explains. Then every token that a group must not see is replaced,
for up to 8 groups: the group's numbers must not change. Exit status 1 if a check fails. An engine
of your own is not checked: docs/extending.md compares one.

Instead, --equal-bits compares the decoder of that option, bit for bit; --proof shows it for all
weights by symbols (docs/verify.md); --training compares gradients of a loss over packed prompts, in
float64. With --model server:URL it compares the answers to some questions with those of the weights
in --tokenizer, run here.

example: minise verify --dtype bfloat16 --trials 5
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from minise.commands.options import Dtype, Option, QuestionOptions, load_model, read_question
from minise.errors import InputError, printable

if TYPE_CHECKING:
    from minise.lm import LocalModel
    from minise.question import Question


@dataclass(frozen=True, kw_only=True)
class Options(QuestionOptions):
    dtype: Annotated[Dtype, Option("what the model runs in; the verdict is float64's")] = "float64"
    proof: Annotated[bool, Option("prove it for all weights instead; reads none")] = False
    training: Annotated[bool, Option("compare gradients of a packed loss instead")] = False
    json: Annotated[bool, Option("print one JSON object")] = False


@dataclass(frozen=True)
class Outcome:
    """facts: what --json prints, after the model's name. text: what is printed without it."""

    facts: dict[str, Any]
    text: str


def run(options: Options) -> int:
    kinds = {
        "--equal-bits": options.equal_bits,
        "--proof": options.proof,
        "--training": options.training,
    }
    chosen = [name for name, is_chosen in kinds.items() if is_chosen]
    if len(chosen) > 1:
        raise InputError(f"{chosen[0]} is a check of its own; leave {chosen[1]} out")
    elsewhere = options.model.startswith(("server:", "transformers:"))
    if elsewhere and chosen:
        raise InputError(f"{chosen[0]} needs weights that minise runs itself; leave it out")
    question = read_question(options)
    if options.model.startswith("server:"):
        outcome = served(options, question)
    elif options.proof:
        outcome = proved(options, question)
    elif options.training:
        outcome = trained(options, question)
    else:
        outcome = verified(options, question)
    if options.json:
        print(json.dumps({"model": options.model, **outcome.facts}))
    else:
        print(printable(outcome.text))
    return 0 if outcome.facts["passed"] else 1


def verified(options: Options, question: Question) -> Outcome:
    from minise.lab.proof.bits import measure_bits, shapes_of
    from minise.method import SelfEnsemble
    from minise.verify.verify import as_json, as_text, verify

    lm = local_model(options)
    method = SelfEnsemble(options.group_size, options.trials)
    _, prompts = method.prompts(lm, question, options.seed)
    result = verify(lm, prompts)
    dtype = str(lm.decoder.dtype).removeprefix("torch.")
    facts = {"dtype": dtype, **as_json(result)}
    text = as_text(options.model, dtype, result)
    if options.equal_bits:
        facts["bits"] = []
        text += "\n\nNumbers of rows that share their bits, a line for each class:"
        for shape in shapes_of(lm.decoder):
            bits = measure_bits(shape)
            facts["bits"].append(asdict(bits))
            text += f"\n{bits}"
    return Outcome(facts, text)


def proved(options: Options, question: Question) -> Outcome:
    from minise.lab.proof.proof import Prover
    from minise.lm import LocalModel
    from minise.loading.checkpoint import read_small
    from minise.method import SelfEnsemble

    small = read_small(options.model, options.revision)
    # No weights are read, so there is no decoder.
    lm = LocalModel(options.model, small.config, None, small.tokenizer, engine="separate")
    method = SelfEnsemble(options.group_size, options.trials)
    _, prompts = method.prompts(lm, question, options.seed)
    proof = Prover(small.config).prove(prompts)
    facts = {**asdict(proof), "passed": proof.passed}
    return Outcome(facts, f"{options.model}: {proof}")


def trained(options: Options, question: Question) -> Outcome:
    from minise.method import SelfEnsemble
    from minise.verify.training import TOLERANCE, as_text, check_gradients, is_same

    lm = local_model(replace(options, dtype="float64"))
    method = SelfEnsemble(options.group_size, options.trials)
    _, prompts = method.prompts(lm, question, options.seed)
    largest = check_gradients(lm, prompts)
    facts = {"largest": largest, "tolerance": TOLERANCE, "passed": is_same(largest)}
    return Outcome(facts, f"{options.model}: {as_text(largest)}")


def served(options: Options, question: Question) -> Outcome:
    """The question that is given, or the first ones of the miniature, asked there and here."""
    from minise.lab.data.tasks import Selection, load_tasks
    from minise.lab.serving.served import as_text, distance
    from minise.method import SelfEnsemble

    is_given = options.question is not None or options.file is not None
    if is_given:
        questions = [question]
    else:
        first = Selection(limit=5, question_seed=options.seed)
        (miniature,) = load_tasks(["miniature"], first)
        questions = miniature.questions
    # Loaded first: it says what is missing.
    there = load_model(replace(options, dtype="auto"))
    source = str(options.tokenizer)
    here = load_model(replace(options, model=source, tokenizer=None))
    method = SelfEnsemble(options.group_size, options.trials)
    found = distance(there, here, method, questions)
    facts = {"local": source, **asdict(found)}
    return Outcome(facts, f"{options.model}, here {source}: {as_text(found)}")


def local_model(options: Options) -> LocalModel:
    """The model, which runs in this process."""
    from minise.lm import LocalModel

    lm = load_model(options)
    assert isinstance(lm, LocalModel)
    return lm
