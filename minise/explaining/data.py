"""What the page shows, as one typed dictionary, and how it is computed.

Everything comes from PyTorch and from the library's own parts. Numbers are JSON's or numpy arrays.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any, TypedDict

import torch

from minise.engines import LanguageModel, check_fit
from minise.errors import InputError, quote
from minise.exact.machine import in_words
from minise.explaining.runs import Runs, run_all, tree_rows
from minise.explaining.watch import Watch, watched
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
# Of equality and attention, before they are packed. As base64 and with the rest: below 5 MB.
MOST_BYTES = 3_200_000
_DIGITS = 6  # of probabilities


class Sequence_(TypedDict):
    """A packed sequence, row by row. `groups`: whose own token it is, -1 where groups share it.
    `parents`: the row before it in its prompt, -1 for the first. `ends`: each group's last row."""

    texts: list[str]
    positions: list[int]
    parents: list[int]
    groups: list[int]
    ends: list[int]


class GroupPart(TypedDict):
    """A group and what its prompt said. `prompt`: its text after the `shared` one of all prompts.
    `probabilities`: of its choices, in their order. `null`: of "None of the above". `lens`: these
    (the null option last) as read out after each layer; empty where the group is not `shown`, and
    where the model does not tell them."""

    trial: int
    choices: list[int]
    prompt: str
    probabilities: list[float]
    null: float | None
    lens: list[list[float]]


class AnswerPart(TypedDict):
    """Self-Ensemble's answer. `running[t]`: the scores of the first t + 1 trials; `errors[t]`:
    their standard errors, None where the trials do not tell them."""

    prediction: int
    probabilities: list[float]
    running: list[list[float]]
    errors: list[list[float] | None]


class Other(TypedDict):
    """Another method's answer; `left_out` says why there is none."""

    prediction: int | None
    probabilities: list[float]
    left_out: str


class Data(TypedDict):
    """All that the page shows. Parts 2 to 4 show the first `shown` groups.

    `packed`: the paper's layout of T tokens; `tree`: common prefixes merged, R rows; `tree_rows`:
    the row of each packed token in it. `complete`: all groups there are, as one trial.

    `equality[run]`: (T, L + 1) float32, how far each packed token's hidden state is from that of
    the separate run of its prompt, as a part of its size (root mean square), after each layer and
    after the final norm. The runs: the engines "dense" and "tree", "without_mask" and
    "without_positions"; one that the model cannot run is not there. NaN: not computed, as the tree
    engine's top layer has the groups' ends alone. `bitwise`: whether nothing differs in any bit.

    `attention`: uint8, in steps of 1/255, for row after row of the tree: (L, heads, position + 1),
    how much it reads the tokens of its prompt up to itself. With `heads` 1 their mean; with 0 there
    is none.

    `machine`: in words, where the page was made: equal bits are a fact about it.

    `engine`: how the answers were computed. "tree": minise's own; "cache": the same by a library,
    what all prompts share first and the rest behind it; "separate": each prompt by itself.
    """

    model: str
    dtype: str
    device: str
    machine: str
    layers: int
    query_heads: int
    heads: int
    windows: list[int]
    engine: str
    question: str
    choices: list[str]
    labels: str
    answer: int | None
    group_size: int
    trials: int
    complete: bool
    seed: int
    shared: str
    groups: list[GroupPart]
    shown: int
    packed: Sequence_
    tree: Sequence_
    tree_rows: list[int]
    equality: dict[str, Any]
    bitwise: dict[str, bool]
    attention: Any
    self_ensemble: AnswerPart
    others: dict[str, Other]
    detail: str
    left_out: list[str]


def explain_data(
    lm: LanguageModel,
    method: SelfEnsemble,
    question: Question,
    seed: int = 0,
    detail: str | None = None,
) -> Data:
    """Ask the question, and record all that the page shows.

    `detail`: "full" has every head's attention, "low" their mean; by default "full" where the file
    stays below 5 MB. Raises InputError for another one, for over 1,000 groups, for a prompt too
    long to show, and as `self_ensemble` does.
    """
    if detail not in (None, *DETAILS):
        raise InputError(f"detail {quote(detail)} is unknown; use one of {', '.join(DETAILS)}")
    plan = method.plan(lm, question, seed)
    if len(plan.prompts) > MOST_GROUPS:
        many = f"{len(plan.prompts):,} groups are too many for a page"
        raise InputError(f"{many}, which shows {MOST_GROUPS:,}; use fewer trials")
    check_fit(lm.name, lm.config, plan.prefix, plan.branches)
    watch = watched(lm, plan.prefix + plan.branches[0])
    engine = "separate" if watch.engine == "separate" else "tree"
    plan, logits = run_plan(lm, method, plan, seed, engine)
    answer = method.answer(plan, logits)
    detail, shown = _what_fits(watch, lm.config.num_hidden_layers, plan, detail)
    part = replace(plan, prompts=plan.prompts[:shown])
    flat, tree = (pack(part.prefix, part.branches, tree=merge) for merge in (False, True))
    rows = tree_rows(flat, tree)
    found = run_all(lm, watch, part, flat, tree, rows, every_head=detail == "full")
    config = lm.config
    template = method.preset.of(config.model_type).template
    shared = template.prefix(question.text)
    methods: tuple[Method, ...] = (Standard(method.preset), Cyclic(method.preset))
    others = {one.name: _other(lm, one, question, seed, engine) for one in methods}
    return {
        "model": lm.name,
        "dtype": name_of(lm.decoder.dtype),
        "device": str(lm.decoder.device),
        "layers": config.num_hidden_layers,
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
        "groups": _groups(plan, answer, len(shared), found),
        "shown": shown,
        "packed": _sequence(lm, flat),
        "tree": _sequence(lm, tree),
        "tree_rows": rows,
        "equality": found.equality,
        "bitwise": found.bitwise,
        "attention": found.attention,
        "self_ensemble": _running(plan, answer),
        "others": others,
        "detail": detail,
        "left_out": _left_out(watch, plan, detail, shown, others) + found.left_out,
    }


def _what_fits(watch: Watch, layers: int, plan: Plan, detail: str | None) -> tuple[str, int]:
    """The detail, and how many groups are shown: as many as fit in the picture and the file."""
    tree = pack(plan.prefix, plan.branches, tree=True)
    # By group, of it and those before it: packed tokens, and bytes of equality (four runs in
    # float32) and of attention in the tree, whose rows are numbered in the order of the groups.
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
    told = [f"{name}: {one['left_out']}." for name, one in others.items() if one["left_out"]]
    if detail == "low" and watch.heads:
        told.append(
            f"Attention is the mean over the {watch.heads} heads. With full detail the file holds "
            "every head, and is larger."
        )
    if shown < (G := len(plan.prompts)):
        told.append(
            f"Parts 2 to 4 show {shown} of the {G} groups, as many as fit. Parts 1 and 5 show all."
        )
    return told + watch.left_out


def _sequence(lm: LanguageModel, tree: Tree) -> Sequence_:
    owners: list[set[int]] = [set() for _ in tree.tokens]
    for group, path in enumerate(tree.paths()):
        for row in path:
            owners[row].add(group)
    return {
        "texts": _texts(lm, tree),
        "positions": tree.positions.tolist(),
        "parents": tree.parents.tolist(),
        "groups": [min(own) if len(own) == 1 else -1 for own in owners],
        "ends": tree.ends.tolist(),
    }


def _texts(lm: LanguageModel, tree: Tree) -> list[str]:
    """Each token's text as it goes on from the one before it. Alone, some tokenizers would write it
    without its space."""
    tokens, decode = tree.tokens.tolist(), lm.tokenizer.decode
    before = [[tokens[row]] if row >= 0 else [] for row in tree.parents.tolist()]
    pairs = zip(before, tokens, strict=True)
    return [decode([*first, token])[len(decode(first)) :] for first, token in pairs]


def _groups(plan: Plan, answer: Answer, shared: int, found: Runs) -> list[GroupPart]:
    trials = [number for number, trial in enumerate(plan.groups.trials) for _ in trial]
    lens = [*found.lens, *([[]] * (len(plan.prompts) - len(found.lens)))]
    return [
        {
            "trial": trial,
            "choices": list(group.choices),
            "prompt": prompt.text[shared:],
            "probabilities": rounded(group.probabilities.tolist()),
            "null": None if group.null is None else round(group.null, _DIGITS),
            "lens": [rounded(row) for row in layers],
        }
        for trial, group, prompt, layers in zip(
            trials, answer.groups, plan.prompts, lens, strict=True
        )
    ]


def _running(plan: Plan, answer: Answer) -> AnswerPart:
    """The answer as it forms, trial by trial."""
    running, errors, groups, K = [], [], plan.groups, len(plan.question.choices)
    ends = [*accumulate(map(len, groups.trials))]
    for number, end in enumerate(ends, 1):
        # The first trials of a complete grouping are not complete.
        complete = groups.complete and number == len(ends)
        so_far = replace(groups, trials=groups.trials[:number], complete=complete)
        said = combine(K, answer.groups[:end], plan.dtype)
        known = uncertainty(so_far, said).standard_errors
        running.append(rounded(said.scores.tolist()))
        errors.append(None if known is None else rounded(known.tolist()))
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
    said = rounded(answer.probabilities.tolist())
    return {"prediction": answer.prediction, "probabilities": said, "left_out": ""}


def rounded(values: list[float]) -> list[float]:
    """To the digits that the page has."""
    return [round(value, _DIGITS) for value in values]
