"""Self-Ensemble and standard inference: prompts -> logits -> probabilities (Sections 3 and 4).

Question -> groups -> prompts -> logits at each prompt's end -> group probabilities -> scores
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from minise.checkpoint import LanguageModel
from minise.errors import InputError
from minise.grouping import exact_groups, exact_sizes, make_groups
from minise.layout import causal_mask, pack
from minise.presets import Preset, get_preset
from minise.prompt import (
    NULL_OPTION,
    Prompts,
    Question,
    estimate_exact_tokens,
    write_prompts,
)
from minise.tree import read_ends

ENGINES = ("separate", "dense", "tree")
MAX_TOKENS = 100_000  # of exact grouping, unless the caller allows more


@dataclass(frozen=True, eq=False)
class Group:
    """One group's prompt: `choices`, their indices in the order listed; `probabilities`, (m,)
    float64 over them; `null`, the probability of "None of the above", None where it had no part;
    `weight`, how much it counts in the mean: all the same where groups are sampled."""

    choices: tuple[int, ...]
    probabilities: Tensor
    null: float | None
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class Answer:
    """probabilities: (K,) float64, sums to 1. scores: (K,) float64, the paper's Pr(op_i), Eq. 3:
    the mean over the groups in which op_i appears. prediction: the index of the largest, the lower
    one on a tie. groups: what each prompt said."""

    probabilities: Tensor
    scores: Tensor
    prediction: int
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Plan:
    """What will be asked of the model for one question: groups, their weights in the mean, and
    their prompts, one each. `grouping` says how the groups came about."""

    question: Question
    groups: list[list[int]]
    weights: list[float]
    prompts: Prompts
    grouping: str = "all"


@dataclass(frozen=True, eq=False)
class Precision:
    """How far the scores may be from those of infinitely many trials.

    standard_errors: (K,) float64, of each choice's score; lead: by how much the predicted choice's
    score exceeds the next one's; lead_error: the standard error of that difference. The errors are
    None where the trials say nothing about them."""

    standard_errors: Tensor | None
    lead: float
    lead_error: float | None


def self_ensemble(
    lm: LanguageModel,
    question: Question,
    group_size: int = 4,
    trials: int = 20,
    seed: int = 0,
    engine: str = "tree",
    grouping: str | None = None,
    null_option: bool | None = None,
    preset: str | Preset = "paper",
    max_tokens: int = MAX_TOKENS,
) -> Answer:
    """Answer a question by Self-Ensemble (Section 3.2; packed as in Section 4).

    group_size is m, trials is N. `grouping` and `null_option` override the preset; with the default
    preset they are "random" and True. grouping="balanced" takes partitions that make up for one
    another (`minise.designs`): the same expectation with less variance. grouping="exact" evaluates
    every ordered group that random partitions can give, weighted by its probability: the limit of
    N -> infinity; trials and seed then have no effect, and more than `max_tokens` merged tokens are
    refused.

    Raises InputError for sizes below 1, more choices than labels, labels that are not single
    tokens, or a prompt beyond the model's positions.
    """
    preset = resolve(lm, preset, grouping, null_option)
    plan = plan_groups(lm, question, group_size, trials, seed, preset, max_tokens)
    return run(lm, plan, engine)


def standard(
    lm: LanguageModel, question: Question, engine: str = "tree", preset: str | Preset = "paper"
) -> Answer:
    """Standard inference: one prompt with all K choices and no null option; one group."""
    return run(lm, plan_standard(lm, question, resolve(lm, preset)), engine)


def resolve(
    lm: LanguageModel,
    preset: str | Preset,
    grouping: str | None = None,
    null_option: bool | None = None,
) -> Preset:
    """A preset by name for this model's family, with the given fields overridden."""
    if isinstance(preset, str):
        preset = get_preset(preset, lm.config.model_type)
    if grouping is not None:
        preset = replace(preset, grouping=grouping)
    if null_option is not None:
        preset = replace(preset, null_option=null_option)
    return preset


def plan_groups(
    lm: LanguageModel,
    question: Question,
    group_size: int,
    trials: int,
    seed: int,
    preset: Preset,
    max_tokens: int = MAX_TOKENS,
) -> Plan:
    """Steps 1 and 2 up to the model: draw the groups and write their prompts."""
    key = question.id if preset.groups_per_question else ""
    K, m = len(question.choices), group_size
    if preset.grouping == "exact":
        tokens = estimate_exact_tokens(
            lm.tokenizer, preset.template, question, exact_sizes(K, m), preset.null_option
        )
        if tokens > max_tokens:
            raise InputError(
                f"exact grouping of {K} choices in groups of {m} takes about {tokens:,} tokens, "
                f"over the limit of {max_tokens:,}; raise it (--max-tokens), use smaller groups, "
                "or sample them (--grouping balanced)"
            )
        groups, weights = map(list, zip(*exact_groups(K, m), strict=True))
    else:
        groups = make_groups(K, m, trials, seed, key, preset.grouping)
        weights = [1.0] * len(groups)
    null = [NULL_OPTION] if preset.null_option else []
    listed = [[question.choices[i] for i in group] + null for group in groups]
    prompts = write_prompts(lm.tokenizer, preset.template, question.text, listed)
    if not preset.null_in_softmax:
        kept = [ids[: len(group)] for ids, group in zip(prompts.label_ids, groups, strict=True)]
        prompts = replace(prompts, label_ids=kept)
    if preset.last_group_early:
        # The row before a prompt's end is the end of the prompt without its last token.
        *others, last = prompts.branches
        prompts = replace(prompts, branches=[*others, last[: -preset.last_group_early]])
    return Plan(question, groups, weights, prompts, preset.grouping)


def plan_standard(lm: LanguageModel, question: Question, preset: Preset) -> Plan:
    """The one prompt of standard inference."""
    prompts = write_prompts(
        lm.tokenizer, preset.standard_template, question.text, [question.choices]
    )
    return Plan(question, [list(range(len(question.choices)))], [1.0], prompts)


def run(lm: LanguageModel, plan: Plan, engine: str) -> Answer:
    """Steps 2 and 3: the groups' probabilities and their means."""
    columns = label_columns([plan])
    logits = branch_logits(lm, plan.prompts.prefix, plan.prompts.branches, engine, columns)
    return answer(plan, label_logits(plan, columns, logits))


def label_columns(plans: Sequence[Plan]) -> list[int]:
    """The token ids of all labels of some plans, each once: the only logits that are read."""
    return sorted({i for plan in plans for ids in plan.prompts.label_ids for i in ids})


def label_logits(plan: Plan, columns: Sequence[int], logits: Tensor) -> list[Tensor]:
    """Each prompt's label logits, float64, in the order of its choices; from `logits` (G, C), whose
    columns are the token ids `columns`."""
    place = {column: i for i, column in enumerate(columns)}
    rows = logits.cpu().double()
    return [
        row[[place[i] for i in ids]] for ids, row in zip(plan.prompts.label_ids, rows, strict=True)
    ]


def answer(plan: Plan, logits: Sequence[Tensor]) -> Answer:
    """The answer that each prompt's label logits make."""
    groups = []
    for choices, weight, row in zip(plan.groups, plan.weights, logits, strict=True):
        p = torch.softmax(row, dim=-1)
        m = len(choices)
        null = float(p[m]) if len(p) > m else None
        groups.append(Group(tuple(choices), p[:m], null, weight))
    return combine(len(plan.question.choices), groups)


def combine(num_choices: int, groups: Sequence[Group]) -> Answer:
    """Eq. 3: each choice's (weighted) mean probability over the groups in which it appears.

    Over a partition the scores sum to at most ceil(K / m), not to 1; `probabilities` are the scores
    divided by their sum. A choice that no group holds (possible with independent draws) scores 0.
    """
    total = torch.zeros(num_choices, dtype=torch.float64)
    weight = torch.zeros(num_choices, dtype=torch.float64)
    for group in groups:
        total[list(group.choices)] += group.weight * group.probabilities
        weight[list(group.choices)] += group.weight
    scores = total / torch.where(weight > 0, weight, 1.0)
    # max() of a list gives the first of equals; torch.argmax promises no order among ties.
    prediction = max(range(num_choices), key=scores.tolist().__getitem__)
    return Answer(scores / scores.sum(), scores, prediction, tuple(groups))


def precision(plan: Plan, answer: Answer) -> Precision:
    """The sampling error of an answer's scores, from the spread over its trials.

    Known for "random": its trials are independent partitions, each with one probability for every
    choice, so the error of a mean is the standard deviation / sqrt(N). It is nothing for "exact"
    and for a prompt with all choices. It is unknown for a single trial; for "balanced", whose
    trials are chosen to make up for one another; and for "independent", where a trial holds only
    some of the choices.
    """
    K = len(plan.question.choices)
    first, second = sorted(range(K), key=lambda i: (-float(answer.scores[i]), i))[:2]
    lead = float(answer.scores[first] - answer.scores[second])
    if plan.grouping in ("exact", "all"):
        return Precision(torch.zeros(K, dtype=torch.float64), lead, 0.0)
    per_trial = -(-K // max(len(group.choices) for group in answer.groups))
    N = len(answer.groups) // per_trial
    if plan.grouping != "random" or N < 2:
        return Precision(None, lead, None)
    values_NK = torch.empty(N, K, dtype=torch.float64)
    for number, group in enumerate(answer.groups):
        values_NK[number // per_trial, list(group.choices)] = group.probabilities
    errors = values_NK.std(dim=0) / N**0.5
    lead_error = (values_NK[:, first] - values_NK[:, second]).std() / N**0.5
    return Precision(errors, lead, float(lead_error))


@torch.inference_mode()
def branch_logits(
    lm: LanguageModel,
    prefix: Sequence[int],
    branches: Sequence[Sequence[int]],
    engine: str = "tree",
    columns: Sequence[int] | None = None,
) -> Tensor:
    """The logits after each prompt `prefix + branch`: (G, V), or (G, len(columns)) for those token
    ids, in the weights' dtype and on their device. The primitive under every method.

    "separate": every prompt alone, plain causal. "dense": the paper's packed sequence with an
    explicit mask and positions. "tree": all common prefixes merged, and only the work that the mask
    allows. The numbers are equal up to rounding.

    Raises InputError for an unknown engine, a prompt beyond the model's positions, or token ids
    beyond its vocabulary.
    """
    if engine not in ENGINES:
        raise InputError(f'engine "{engine}" is unknown; use one of {", ".join(ENGINES)}')
    check_fit(lm, prefix, branches)
    if engine == "separate":
        last = torch.stack([run_alone(lm, [*prefix, *branch])[-1] for branch in branches])
    elif engine == "tree":
        last = read_ends(lm.decoder, pack(prefix, branches, tree=True))
    else:
        layout = pack(prefix, branches)
        check_dense_fits(lm, len(layout.tokens))
        hidden = hidden_states(lm, layout.tokens, layout.positions, layout.mask)
        last = hidden[layout.ends.to(hidden.device)]
    read = None if columns is None else torch.tensor(list(columns), device=last.device)
    return lm.decoder.logits(last, read)


def run_alone(lm: LanguageModel, prompt: Sequence[int]) -> Tensor:
    """Hidden states (T, D) of one prompt in a plain causal run: what every engine must equal."""
    T = len(prompt)
    return hidden_states(lm, torch.tensor(prompt), torch.arange(T), causal_mask(T))


def hidden_states(lm: LanguageModel, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """Hidden states (T, D) of a sequence with its position ids and mask, on the weights' device."""
    device = lm.decoder.model.embed_tokens.weight.device
    hidden: Tensor = lm.decoder(tokens.to(device), positions.to(device), mask.to(device))
    return hidden


def check_dense_fits(lm: LanguageModel, tokens: int) -> None:
    """Raise InputError if a dense mask of `tokens` squared cells would not fit in memory."""
    weight = lm.decoder.model.embed_tokens.weight
    # One byte a cell for the mask and for each window's copy of it, and while a window's is made
    # eight for the distances; then the attention kernel's own copy, in the weights' dtype.
    windows = len({window for window in lm.config.sliding_windows if window is not None})
    needed = tokens**2 * (1 + windows + max(8 * (windows > 0), weight.element_size()))
    free = free_bytes(weight.device)
    if free is not None and needed > free:
        raise InputError(
            f"{tokens:,} packed tokens need a mask of {tokens**2:,} cells, with its copies "
            f"{needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free; use the engine tree"
        )


def free_bytes(device: torch.device) -> int | None:
    """Memory that can still be had on a device; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable")), None)


def check_fit(lm: LanguageModel, prefix: Sequence[int], branches: Sequence[Sequence[int]]) -> None:
    """Raise InputError for a prompt beyond the model's positions or vocabulary."""
    longest, limit = len(prefix) + max(map(len, branches)), lm.config.max_position_embeddings
    if longest > limit:
        raise InputError(
            f"a prompt has {longest} tokens, but {lm.name} has positions for {limit}; "
            "shorten the question or its choices, or use smaller groups"
        )
    largest = max(max(ids, default=0) for ids in [prefix, *branches])
    if largest >= lm.config.vocab_size:
        raise InputError(
            f"token id {largest} is beyond the vocabulary of {lm.name} ({lm.config.vocab_size}); "
            "its tokenizer.json belongs to another model"
        )
