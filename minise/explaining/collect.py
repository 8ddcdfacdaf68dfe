"""Ask a question, and collect all that the page shows.

Everything comes from PyTorch and from the package's own parts.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from minise.checks import check_name, check_prompts
from minise.engines import LanguageModel
from minise.errors import InputError
from minise.exact.machine import in_words
from minise.explaining.ablations import (
    MOST_ABLATED,
    ablated_layouts,
    groups_that_fit,
    run_ablated,
)
from minise.explaining.answers import answer_part, rounded, rounded_null
from minise.explaining.data import Ablation, Data, GroupPart, Other
from minise.explaining.runs import compare, run_each_alone, run_packed, tree_rows
from minise.explaining.sequence import sequence_part
from minise.layout import pack
from minise.method import Answer, Method, Plan, SelfEnsemble, Standard, ask, label_logits
from minise.methods.groupings import all_ordered_groups
from minise.methods.rotations import Cyclic
from minise.prompt import LABELS
from minise.question import Question

DETAILS = ("low", "full")
MOST_GROUPS = 1000  # on a page
MOST_TOKENS = 2000  # packed, in the picture of the mask
# Of equality and attention, before they are compressed. As base64 and with the rest: below 5 MB.
# The ablations' part comes on top: their attention (MOST_ABLATED) and the equality of a fifth run.
MOST_BYTES = 3_200_000


def explain_data(
    lm: LanguageModel,
    method: SelfEnsemble,
    question: Question,
    seed: int = 0,
    detail: str | None = None,
) -> Data:
    """Ask the question, and record all that the page shows.

    `detail`: "full" has every head's attention, "low" their mean; by default "full" if the file
    stays below 5 MB. Raises InputError for any other detail, for over 1,000 groups, for a prompt
    too long to show, and as `self_ensemble` does.
    """
    if detail is not None:
        check_name("detail", detail, DETAILS)
    config, plan = lm.config, checked_plan(lm, method, question, seed)
    answer = method.answer(plan, label_logits(lm, plan))
    level, shown = what_fits(lm, plan, detail)
    part, every_head = replace(plan, prompts=plan.prompts[:shown]), level == "full"
    flat, tree = (pack(part.prefix, part.branches, tree=merge) for merge in (False, True))
    rows = tree_rows(flat, tree)

    alone = run_each_alone(lm, part, tree, every_head)
    compared = {
        name: compare(alone.trace, states, flat.ends)
        for name, states in run_packed(lm, part, rows).items()
    }
    heads = config.num_attention_heads if every_head else 1
    # With detail "full" the file may be larger than 5 MB, by as many times as there are heads.
    most = MOST_ABLATED * (heads if detail == "full" else 1)
    groups = groups_that_fit(flat, config.num_hidden_layers, heads, most)
    ablations: dict[str, Ablation] = {}
    left_out = []
    if not groups:
        left_out.append("Without mask or positions, attention is left out: it takes too much.")
    for name, layout in ablated_layouts(flat).items():
        try:
            states, ablations[name] = run_ablated(lm, part, layout, groups, every_head)
        except InputError as error:  # all probability to the null option, for example
            left_out.append(f"The run {name} is left out: {error}.")
        else:
            compared[name] = compare(alone.trace, states, flat.ends)

    shared = method.template.prefix(question.text)
    beside: list[Method] = [Standard(method.template), Cyclic(method.template)]
    others = {one.name: _other(lm, one, question, seed) for one in beside}
    return {
        "model": lm.name,
        "dtype": f"{lm.decoder.dtype}".removeprefix("torch."),
        "device": str(lm.decoder.device),
        "layers": config.num_hidden_layers,
        "machine": in_words(),
        "query_heads": config.num_attention_heads,
        "heads": heads,
        "windows": sorted({w for w in config.sliding_windows if w is not None}),
        "question": question.text,
        "choices": list(question.choices),
        "labels": LABELS,
        "answer": question.answer,
        "group_size": method.group_size,
        "trials": len(plan.groups.trials),
        "complete": method.grouping is all_ordered_groups,
        "seed": seed,
        "shared": shared,
        "groups": _groups(plan, answer, len(shared), alone.lens),
        "shown": shown,
        "packed": sequence_part(lm, flat),
        "tree": sequence_part(lm, tree),
        "tree_rows": rows,
        "equality": {name: differences for name, (differences, _) in compared.items()},
        "bitwise": {name: equal for name, (_, equal) in compared.items()},
        "attention": alone.attention,
        "ablations": ablations,
        "self_ensemble": answer_part(plan, answer),
        "others": others,
        "detail": level,
        "left_out": _left_out(config.num_attention_heads, plan, level, shown, others) + left_out,
    }


def checked_plan(lm: LanguageModel, method: SelfEnsemble, question: Question, seed: int) -> Plan:
    """The plan of the answer. Raises InputError if it has too many groups or does not fit."""
    plan = method.plan(lm, question, seed)
    if len(plan.prompts) > MOST_GROUPS:
        many = f"{len(plan.prompts):,} groups are too many for a page"
        raise InputError(f"{many}, which shows {MOST_GROUPS:,}; use fewer trials")
    check_prompts(lm, plan.prefix, plan.branches)
    return plan


def what_fits(lm: LanguageModel, plan: Plan, detail: str | None) -> tuple[str, int]:
    """The detail, and how many groups are shown: as many as fit in the picture and the file."""
    layers, heads = lm.config.num_hidden_layers, lm.config.num_attention_heads
    tree = pack(plan.prefix, plan.branches, tree=True)
    # For each group, counting it and all before it: packed tokens; bytes of equality (four runs in
    # float32); bytes of attention in the tree, whose rows are in the order of the groups.
    tokens = len(plan.prefix) + torch.tensor(list(map(len, plan.branches))).cumsum(0)
    reached = tree.ends.cummax(0).values
    cells = (tree.positions + 1).cumsum(0)[reached] * layers
    equality = tokens * (layers + 1) * 4 * 4
    in_picture, small = tokens <= MOST_TOKENS, cells + equality <= MOST_BYTES
    if detail is None:
        every_head = cells * heads + equality <= MOST_BYTES
        detail = "full" if every_head[in_picture].all() else "low"
    shown = int((in_picture if detail == "full" else in_picture & small).sum())
    if not shown:
        long = f"one prompt has {int(tokens[0]):,} tokens, too many for a page"
        raise InputError(f"{long}; shorten the question or its choices")
    return detail, shown


def _left_out(
    heads: int, plan: Plan, detail: str, shown: int, others: dict[str, Other]
) -> list[str]:
    """What the page does not show, in sentences."""
    sentences = [
        f"{name}: {other['left_out']}." for name, other in others.items() if other["left_out"]
    ]
    if detail == "low":
        sentences.append(
            f"Attention is the mean over the {heads} heads. With full detail the file holds every "
            "head, and is larger."
        )
    G = len(plan.prompts)
    if shown < G:
        sentences.append(
            f"Parts 2 to 4 show {shown} of the {G} groups, as many as fit. Parts 1 and 5 show all."
        )
    return sentences


def _groups(
    plan: Plan, answer: Answer, shared: int, lens: list[list[list[float]]]
) -> list[GroupPart]:
    trials = [number for number, trial in enumerate(plan.groups.trials) for _ in trial]
    parts: list[GroupPart] = []
    for number, (trial, group) in enumerate(zip(trials, answer.groups, strict=True)):
        readouts = lens[number] if number < len(lens) else []
        parts.append(
            {
                "trial": trial,
                "choices": list(group.choices),
                "prompt": plan.prompts[number].text[shared:],
                "probabilities": rounded(group.probabilities.tolist()),
                "null": rounded_null(group.null),
                "lens": [rounded(row) for row in readouts],
            }
        )
    return parts


def _other(lm: LanguageModel, method: Method, question: Question, seed: int) -> Other:
    try:
        answer = ask(lm, method, question, seed)
    except InputError as error:  # more choices than labels, for example
        return {"prediction": None, "probabilities": [], "left_out": str(error)}
    probabilities = rounded(answer.probabilities.tolist())
    return {"prediction": answer.prediction, "probabilities": probabilities, "left_out": ""}
