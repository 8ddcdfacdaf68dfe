"""Ask a question, and collect all that the page shows.

Everything comes from PyTorch and from the package's own parts.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import torch

from minise.bridges.transformers_model import LibraryModel
from minise.engines import LanguageModel, check_fit
from minise.errors import InputError, quote
from minise.exact.machine import in_words
from minise.explaining.data import AnswerPart, Data, GroupPart, Other, Sequence_
from minise.explaining.library_model import WatchedLibrary
from minise.explaining.runs import Runs, run_all, tree_rows
from minise.explaining.watch import OwnModel, Watch
from minise.layout import Tree, pack
from minise.loading.placement import name_of
from minise.method import Answer, Method, Plan, SelfEnsemble, Standard, combine
from minise.methods.rotations import Cyclic
from minise.methods.uncertainty import uncertainty
from minise.prompt import LABELS
from minise.question import Question
from minise.rounds import ask, run_plan

DETAILS = ("low", "full")
MOST_GROUPS = 1000  # on a page
MOST_TOKENS = 2000  # packed, in the picture of the mask
# Of equality and attention, before they are compressed. As base64 and with the rest: below 5 MB.
MOST_BYTES = 3_200_000
_DIGITS = 6  # of probabilities


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
    if detail not in (None, *DETAILS):
        raise InputError(f"detail {quote(detail)} is unknown; use one of {', '.join(DETAILS)}")
    plan = _plan(lm, method, question, seed)
    watch = watch_of(lm, plan.prefix + plan.branches[0])
    engine = "separate" if watch.engine == "separate" else "tree"
    plan, logits = run_plan(lm, method, plan, seed, engine)
    answer = method.answer(plan, logits)
    detail, shown = _what_fits(watch, lm.config.num_hidden_layers, plan, detail)
    part = replace(plan, prompts=plan.prompts[:shown])
    flat, tree = (pack(part.prefix, part.branches, tree=merge) for merge in (False, True))
    rows = tree_rows(flat, tree)
    runs = run_all(lm, watch, part, flat, tree, rows, every_head=detail == "full")
    shared = method.preset.of(lm.config.model_type).template.prefix(question.text)
    methods: tuple[Method, ...] = (Standard(method.preset), Cyclic(method.preset))
    others = {one.name: _other(lm, one, question, seed, engine) for one in methods}
    return {
        "model": lm.name,
        "dtype": name_of(lm.decoder.dtype),
        "device": str(lm.decoder.device),
        "layers": lm.config.num_hidden_layers,
        "machine": in_words(),
        "query_heads": watch.heads,
        "heads": watch.heads if detail == "full" else min(watch.heads, 1),
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
        "packed": _sequence(lm, flat),
        "tree": _sequence(lm, tree),
        "tree_rows": rows,
        "equality": runs.equality,
        "bitwise": runs.bitwise,
        "attention": runs.attention,
        "self_ensemble": _running(plan, answer),
        "others": others,
        "detail": detail,
        "left_out": _left_out(watch, plan, detail, shown, others) + runs.left_out,
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
    """The `Watch` of a model. What a library's model shows is tried on the prompt."""
    if isinstance(lm, LibraryModel):
        return WatchedLibrary(lm.library, prompt)
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


def _sequence(lm: LanguageModel, tree: Tree) -> Sequence_:
    owners: list[set[int]] = [set() for _ in tree.tokens]
    for group, path in enumerate(tree.paths()):
        for row in path:
            owners[row].add(group)
    return {
        "texts": _texts(lm, tree),
        "positions": tree.positions.tolist(),
        "parents": tree.parents.tolist(),
        "groups": [min(groups) if len(groups) == 1 else -1 for groups in owners],
        "ends": tree.ends.tolist(),
    }


def _texts(lm: LanguageModel, tree: Tree) -> list[str]:
    """Each token's text after the token before it. Some tokenizers would decode a token alone
    without its space."""
    tokens, decode, texts = tree.tokens.tolist(), lm.tokenizer.decode, []
    for token, parent in zip(tokens, tree.parents.tolist(), strict=True):
        before = [tokens[parent]] if parent >= 0 else []
        texts.append(decode([*before, token])[len(decode(before)) :])
    return texts


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
                "null": None if group.null is None else round(group.null, _DIGITS),
                "lens": [rounded(row) for row in readouts],
            }
        )
    return parts


def _running(plan: Plan, answer: Answer) -> AnswerPart:
    """The answer as it forms, trial by trial."""
    running, errors, groups, K = [], [], plan.groups, len(plan.question.choices)
    ends = [*accumulate(map(len, groups.trials))]
    for number, end in enumerate(ends, 1):
        # The first trials of a complete grouping are not complete.
        complete = groups.complete and number == len(ends)
        so_far = replace(groups, trials=groups.trials[:number], complete=complete)
        mean = combine(K, answer.groups[:end], plan.dtype)
        standard_errors = uncertainty(so_far, mean).standard_errors
        running.append(rounded(mean.scores.tolist()))
        errors.append(None if standard_errors is None else rounded(standard_errors.tolist()))
    return {
        "prediction": answer.prediction,
        "probabilities": rounded(answer.probabilities.tolist()),
        "running": running,
        "errors": errors,
    }


def _other(lm: LanguageModel, method: Method, question: Question, seed: int, engine: str) -> Other:
    try:
        answer = ask(lm, method, question, seed, engine)
    except InputError as error:  # more choices than labels, for example
        return {"prediction": None, "probabilities": [], "left_out": str(error)}
    probabilities = rounded(answer.probabilities.tolist())
    return {"prediction": answer.prediction, "probabilities": probabilities, "left_out": ""}


def rounded(values: list[float]) -> list[float]:
    """The values with as many digits as the page shows."""
    return [round(value, _DIGITS) for value in values]
