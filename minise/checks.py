"""What is refused where input enters: questions, sizes, prompts that do not fit, numbers that
overflow. Each raises InputError. A first reading can leave out this file and errors.py.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minise.errors import InputError, Unsuited, quote

if TYPE_CHECKING:
    from torch import Tensor

Model = Any  # an engines.LanguageModel: that file imports this one
MOST_CHOICES, MOST_GROUPS = 1000, 50_000  # of one question


def check_question(text: object, choices: object, id: object, answer: object) -> None:
    """Refuse fewer than two choices or more than MOST_CHOICES, text that is empty or that UTF-8
    cannot hold, and an answer that is no index of a choice."""
    if isinstance(choices, str) or not isinstance(choices, Sequence):
        raise InputError(f"the choices are {quote(choices)}; give a list, or columns A, B, ...")
    named = {"question": text, **{f"choice {i}": one for i, one in enumerate(choices, 1)}}
    for name, value in {**named, "question's id": id or "none"}.items():
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"the {name} is {quote(value)}; write its text")
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, from JSON or undecoded bytes
            if (code := sys.getfilesystemencoding()) != "utf-8":
                raise InputError(f"the locale reads {name} as {code}; set LC_ALL=C.UTF-8") from None
            raise InputError(f"the {name} is not UTF-8; save or type it as UTF-8") from None
    if not 2 <= (K := len(choices)) <= MOST_CHOICES:
        what = f"the question {quote(text)} has {K} choice{'s' * (K != 1)}"
        raise InputError(f"{what}; give at least two, at most {MOST_CHOICES:,}")
    if answer is not None and (type(answer) is not int or not 0 <= answer < K):
        raise InputError(f"answer {quote(answer)} is no choice; give an index from 0 to {K - 1}")


def check_sizes(num_choices: int, group_size: int, trials: int) -> None:
    """Refuse a size or number below 1, and more than MOST_GROUPS groups."""
    for name, number in {"group size": group_size, "number of trials": trials}.items():
        if number < 1:
            raise InputError(f"{name} {number} is below 1; give at least 1")
    if trials * -(-num_choices // group_size) > MOST_GROUPS:
        what = f"{quote(trials)} trials of {num_choices} choices in groups of {quote(group_size)}"
        raise InputError(f"{what} are over the limit of {MOST_GROUPS:,} groups; use fewer trials")


def check_labels(count: int, labels: str) -> None:
    """Refuse more choices in one prompt than there are labels."""
    if count > len(labels):
        have = f"only {len(labels)} labels ({labels[0]}-{labels[-1]})"
        raise Unsuited(f"{count} choices in one prompt, but {have}; use smaller groups")


def check_label_ids(
    tokenizer: Any, text: str, ids: list[int], labels: list[str], extended: list[list[int]]
) -> None:
    """Refuse labels that are not one token each after the prompt `text`, or not distinct.
    extended: the ids of the prompt with each label."""
    for label, longer in zip(labels, extended, strict=True):
        if longer[:-1] != ids or longer[-1:] in ([], [tokenizer.unknown_id]):
            problem = f"label {label!r} after {text[-20:]!r} is not one token"
            raise InputError(f"{tokenizer.name}: {problem}; use another tokenizer or template")
    last = [longer[-1] for longer in extended]
    if len(set(last)) < len(last):
        problem = f"labels {quote(labels)} are not distinct tokens (ids {quote(last)})"
        raise InputError(f"{tokenizer.name}: {problem}; use another tokenizer or template")


def check_name(what: str, name: str, names: Collection[str]) -> None:
    """Refuse a name that is not among `names`."""
    if name not in names:
        raise InputError(f"{what} {quote(name)} is unknown; use one of {', '.join(names)}")


def check_prompts(
    lm: Model,
    prefix: Sequence[int],
    branches: Sequence[Sequence[int]],
    columns: Sequence[int] = (),
) -> None:
    """Refuse an empty prompt, a token id or a column of the logits beyond the model's vocabulary,
    and a prompt beyond its positions."""
    if not branches or (not prefix and not all(branches)):
        raise InputError(f"the tokenizer of {lm.name} makes no token of a prompt; use another")
    longest, limit = len(prefix) + max(map(len, branches)), lm.config.max_position_embeddings
    if longest > limit:
        raise Unsuited(
            f"a prompt has {longest} tokens, but {lm.name} has positions for {limit}; "
            "shorten the question or its choices, or use smaller groups"
        )
    largest = max(max(ids, default=0) for ids in [prefix, *branches, columns])
    if largest >= lm.config.vocab_size:
        what = f"token id {largest} is beyond the vocabulary of {lm.name} ({lm.config.vocab_size})"
        raise InputError(f"{what}; its tokenizer.json belongs to another model")


def check_length(lm: Model, text: str, choices: Sequence[str]) -> None:
    """Refuse a question far beyond the model's positions before prompts repeat its text."""
    whole = f"{text}\n{max(choices, key=len)}"
    if len(whole) > 4 * lm.config.max_position_embeddings:
        check_prompts(lm, lm.tokenizer.encode([whole])[0], [[]])


def check_finite(lm: Model, logits: Tensor, hidden: Tensor) -> None:
    """Refuse numbers that overflowed. Where the squares in the norm did, a hidden state is 0."""
    if not (logits.isfinite().all() and hidden.any(dim=-1).all()):
        narrow = str(logits.dtype) == "torch.float16"
        remedy = "use bfloat16 or float32" if narrow else "fetch its weights again"
        raise InputError(f"{lm.name}: its numbers overflow {logits.dtype}; {remedy}")


def check_scores(scores: Tensor, question: str, model: str) -> None:
    """Refuse scores that are all 0: they have no largest, and no sum to divide by."""
    if not scores.any():
        about = f"{model or 'the model'} gives None of the above all probability in every prompt"
        raise InputError(f"{about} of the question {quote(question)}; leave the null option out")


def check_mask_fits(tokens: int, score_bytes: int = 0) -> None:
    """Refuse a mask of tokens x tokens cells, one byte each, that does not fit in memory, with
    `score_bytes` for each cell, twice: before and after the softmax."""
    size, free = tokens**2 * (1 + 2 * score_bytes), free_bytes()
    if free is not None and size > free:
        raise InputError(
            f"{tokens:,} packed tokens need a mask of {tokens**2:,} cells, with its scores "
            f"{size / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free; use the engine tree"
        )


def free_bytes() -> int | None:
    """Bytes of memory that are free; None where the system does not tell."""
    path = Path("/proc/meminfo")
    found = re.search(r"MemAvailable: +(\d+)", path.read_text()) if path.exists() else None
    return int(found[1]) * 1024 if found else None
