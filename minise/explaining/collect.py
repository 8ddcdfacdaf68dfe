"""Ask a question, and collect all that the page shows.

Everything comes from PyTorch and from the package's own parts.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from minise.engines import LanguageModel, check_fit
from minise.errors import InputError, quote
from minise.exact.machine import in_words
from minise.explaining.ablations import (
    MOST_ABLATED,
    ablated_layouts,
    ablation_part,
    groups_that_fit,
)
from minise.explaining.answers import answer_part, rounded, rounded_null
from minise.explaining.data import Ablation, Data, GroupPart, Other
from minise.explaining.runs import Runs, run_all, tree_rows
from minise.explaining.sequence import sequence_part
from minise.explaining.watch import OwnModel, Watch
from minise.layout import Tree, pack
from minise.loading.checkpoint import name_of
from minise.method import Answer, Method, Plan, Preset, SelfEnsemble, Standard
from minise.methods.rotations import Cyclic
from minise.prompt import LABELS
from minise.question import Question
from minise.rounds import ask, run_plan

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
    _check_detail(detail)
    plan = _plan(lm, method, question, seed)
    watch = watch_of(lm, plan.prefix + plan.branches[0])
    engine = "separate" if watch.engine == "separate" else "tree"
    plan, logits = run_plan(lm, method, plan, seed, engine)
    answer = method.answer(plan, logits)
    level, shown = _what_fits(watch, lm.config.num_hidden_layers, plan, detail)
    part = replace(plan, prompts=plan.prompts[:shown])
    flat, tree = (pack(part.prefix, part.branches, tree=merge) for merge in (False, True))
    rows = tree_rows(flat, tree)
    runs = run_all(lm, watch, part, flat, tree, rows, every_head=level == "full")
    ablations, missing = _ablations(watch, part, flat, runs, level, large=detail == "full")
    shared = method.preset.of(lm.config.model_type).template.prefix(question.text)
    others = _others(lm, method.preset, question, seed, engine)
    return {
        "model": lm.name,
        "dtype": name_of(lm.decoder.dtype),
        "device": str(lm.decoder.device),
        "layers": lm.config.num_hidden_layers,
        "machine": in_words(),
        "query_heads": watch.heads,
        "heads": watch.heads if level == "full" else min(watch.heads, 1),
        "windows": watch.windows,
        "engine": watch.engine,
        "question": question.text,
        "choices": list(question.choices),
        "labels": LABELS,
        "answer": question.answer,
        "group_size": method.group_size,
        "trials": len(plan.groups.trials),
        "complete": plan.groups.complete,
        "seed": seed,
        "shared": shared,
        "groups": _groups(plan, answer, len(shared), runs),
        "shown": shown,
        "packed": sequence_part(lm, flat),
        "tree": sequence_part(lm, tree),
        "tree_rows": rows,
        "equality": runs.equality,
        "bitwise": runs.bitwise,
        "attention": runs.attention,
        "ablations": ablations,
        "self_ensemble": answer_part(plan, answer),
        "others": others,
        "detail": level,
        "left_out": _left_out(watch, plan, level, shown, others) + runs.left_out + missing,
    }


def _plan(lm: LanguageModel, method: SelfEnsemble, question: Question, seed: int) -> Plan:
    """The plan of the answer. Raises InputError if it has too many groups or does not fit."""
    plan = method.plan(lm, question, seed)
    if len(plan.prompts) > MOST_GROUPS:
        many = f"{len(plan.prompts):,} groups are too many for a page"
        raise InputError(f"{many}, which shows {MOST_GROUPS:,}; use fewer trials")
    check_fit(lm.name, lm.config, plan.prefix, plan.branches)
    return plan


@torch.inference_mode()
def watch_of(lm: LanguageModel, prompt: list[int]) -> Watch:
    """The `Watch` of a model."""
    return OwnModel(lm)


def _what_fits(watch: Watch, layers: int, plan: Plan, detail: str | None) -> tuple[str, int]:
    """The detail, and how many groups are shown: as many as fit in the picture and the file."""
    tree = pack(plan.prefix, plan.branches, tree=True)
    # For each group, counting it and all before it: packed tokens; bytes of equality (four runs in
    # float32); bytes of attention in the tree, whose rows are in the order of the groups.
    tokens = len(plan.prefix) + torch.tensor(list(map(len, plan.branches))).cumsum(0)
    reached = tree.ends.cummax(0).values
    cells = (tree.positions + 1).cumsum(0)[reached] * layers * min(watch.heads, 1)
    equality = tokens * (layers + 1) * 4 * 4
    in_picture, small = tokens <= MOST_TOKENS, cells + equality <= MOST_BYTES
    if detail is None:
        every_head = cells * watch.heads + equality <= MOST_BYTES
        detail = "full" if every_head[in_picture].all() else "low"
    shown = int((in_picture if detail == "full" else in_picture & small).sum())
    if not shown:
        long = f"one prompt has {int(tokens[0]):,} tokens, too many for a page"
        raise InputError(f"{long}; shorten the question or its choices")
    return detail, shown


def _ablations(
    watch: Watch, plan: Plan, flat: Tree, runs: Runs, detail: str, large: bool
) -> tuple[dict[str, Ablation], list[str]]:
    """What the page shows of the ablated runs, and what it leaves out, in sentences. `large`: the
    file may be larger than 5 MB, so the attention of every head takes as many times the bytes."""
    groups, missing, every_head = 0, [], detail == "full"
    if runs.ablated and watch.heads:
        layers = runs.equality["dense"].shape[1] - 1
        most = MOST_ABLATED * (watch.heads if large else 1)
        groups = groups_that_fit(flat, layers, watch.heads if every_head else 1, most)
        if not groups:
            missing.append("Without mask or positions, attention is left out: it takes too much.")
    parts, layouts = {}, ablated_layouts(flat)
    for name, run in runs.ablated.items():
        try:
            parts[name] = ablation_part(watch, plan, layouts[name], run, groups, every_head)
        except InputError as error:  # all probability to the null option, for example
            missing.append(f"The run {name} is left out: {error}.")
    return parts, missing


def _left_out(
    watch: Watch, plan: Plan, detail: str, shown: int, others: dict[str, Other]
) -> list[str]:
    """What the page does not show, in sentences."""
    sentences = []
    for name, other in others.items():
        if other["left_out"]:
            sentences.append(f"{name}: {other['left_out']}.")
    if detail == "low" and watch.heads:
        sentences.append(
            f"Attention is the mean over the {watch.heads} heads. With full detail the file holds "
            "every head, and is larger."
        )
    G = len(plan.prompts)
    if shown < G:
        sentences.append(
            f"Parts 2 to 4 show {shown} of the {G} groups, as many as fit. Parts 1 and 5 show all."
        )
    return sentences + watch.left_out


def _groups(plan: Plan, answer: Answer, shared: int, runs: Runs) -> list[GroupPart]:
    trials = [number for number, trial in enumerate(plan.groups.trials) for _ in trial]
    parts: list[GroupPart] = []
    for number, (trial, group) in enumerate(zip(trials, answer.groups, strict=True)):
        readouts = runs.lens[number] if number < len(runs.lens) else []
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


def _check_detail(detail: str | None) -> None:
    if detail not in (None, *DETAILS):
        raise InputError(f"detail {quote(detail)} is unknown; use one of {', '.join(DETAILS)}")


def _others(
    lm: LanguageModel, preset: Preset, question: Question, seed: int, engine: str
) -> dict[str, Other]:
    methods: tuple[Method, ...] = (Standard(preset), Cyclic(preset))
    return {one.name: _other(lm, one, question, seed, engine) for one in methods}


def _other(lm: LanguageModel, method: Method, question: Question, seed: int, engine: str) -> Other:
    try:
        answer = ask(lm, method, question, seed, engine)
    except InputError as error:  # more choices than labels, for example
        return {"prediction": None, "probabilities": [], "left_out": str(error)}
    probabilities = rounded(answer.probabilities.tolist())
    return {"prediction": answer.prediction, "probabilities": probabilities, "left_out": ""}
