"""Check on this machine that packed runs equal separate runs, token by token.

For each engine every hidden state of every group prompt is compared, its logits, and the label
logits that answers are read from: in float64 within 1e-10, on a CPU bit for bit. Then every token
that a group must not see is replaced, for up to 8 groups: the group's numbers must not change. Exit
status 1 if a check fails.

Instead, --proof shows it for all weights by symbols (docs/verify.md); --training compares gradients
of a loss over packed prompts, in float64. With --model server:URL or transformers:ID it compares
the answers to some questions with those of the weights in --tokenizer, or in ID, run here.

example: minise verify --dtype bfloat16 --trials 5
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from minise.commands.options import Dtype, Option, QuestionOptions, load_model, read_question
from minise.errors import InputError, printable

if TYPE_CHECKING:
    from minise.engines import LanguageModel
    from minise.method import Plan
    from minise.question import Question


@dataclass(frozen=True, kw_only=True)
class Options(QuestionOptions):
    dtype: Annotated[Dtype, Option("what the model runs in; the verdict is float64's")] = "float64"
    proof: Annotated[bool, Option("prove it for all weights instead; reads none")] = False
    training: Annotated[bool, Option("compare gradients of a packed loss instead")] = False
    bits: Annotated[bool, Option("also show which numbers of rows share their bits")] = False
    require_bits: Annotated[bool, Option("fail without equal bits, also on a GPU")] = False
    json: Annotated[bool, Option("print one JSON object")] = False


def run(options: Options) -> int:
    from minise.loading.checkpoint import read_small
    from minise.method import SelfEnsemble

    kinds = [name for name in ("proof", "training") if getattr(options, name)]
    if len(kinds) > 1 or (kinds and (options.bits or options.require_bits)):
        raise InputError(f"--{kinds[0]} is a check of its own; leave the others out")
    question = read_question(options)
    if options.model.startswith(("server:", "transformers:")):
        return run_served(options, question, kinds)
    if options.training:
        options = replace(options, dtype="float64")
    where = options.model, options.revision
    lm = read_small(*where)[1] if options.proof else load_model(options)
    plan = SelfEnsemble(options.group_size, options.trials).plan(lm, question, options.seed)
    facts, text = (proved if options.proof else trained if options.training else verified)(
        lm, plan, options
    )
    print(json.dumps({"model": options.model, **facts}) if options.json else printable(text))
    return 0 if facts["passed"] else 1


def run_served(options: Options, question: Question, kinds: list[str]) -> int:
    """The question that is given, or the first ones of the miniature."""
    from minise.data.tasks import Selection, load_tasks
    from minise.method import SelfEnsemble
    from minise.verify.served import as_text, distance

    if kinds or options.bits or options.require_bits:
        raise InputError("a model that runs elsewhere is compared only; leave the checks out")
    few = Selection(limit=5, question_seed=options.seed)
    given = options.question is not None or options.file is not None
    questions = [question] if given else load_tasks(["miniature"], few)[0].questions
    # Loaded first: it says what is missing.
    served = load_model(replace(options, dtype="auto"))
    source = options.tokenizer or options.model
    local = load_model(
        replace(options, model=source.partition("transformers:")[2] or source, tokenizer=None)
    )
    method = SelfEnsemble(options.group_size, options.trials)
    found = distance(served, local, method, questions)
    facts = {"model": options.model, "local": source, **found}
    text = f"{options.model}, here {source}: {as_text(found)}"
    print(json.dumps(facts) if options.json else printable(text))
    return 0 if found["passed"] else 1


def proved(lm: LanguageModel, plan: Plan, options: Options) -> tuple[dict[str, Any], str]:
    """What --proof prints: the facts, and the same as text."""
    from minise.verify.proof import Prover

    proof = Prover(lm).prove(plan)
    return {**asdict(proof), "passed": proof.passed}, f"{options.model}: {proof}"


def trained(lm: LanguageModel, plan: Plan, options: Options) -> tuple[dict[str, Any], str]:
    from minise.verify.training import as_text, check_gradients

    found = check_gradients(lm, plan)
    return found, f"{options.model}: {as_text(found)}"


def verified(lm: LanguageModel, plan: Plan, options: Options) -> tuple[dict[str, Any], str]:
    from minise.verify.bits import as_lines, measure_bits, shapes_of
    from minise.verify.verify import as_json, as_text, verify

    result, dtype = verify(lm, plan, options.require_bits), str(lm.decoder.dtype)[6:]
    facts, text = {"dtype": dtype, **as_json(result)}, as_text(options.model, dtype, result)
    if options.bits:
        facts["bits"] = [measure_bits(shape) for shape in shapes_of(lm.decoder)]
        head = "Numbers of rows that share their bits, a line for each class:"
        text = "\n".join([text, "", head, *map(as_lines, facts["bits"])])
    return facts, text
