"""Rows in every form that collators and trainers make, right and wrong: those of the oracle of
`check` and `guard`, test_packed_models.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from minise.layout import causal_mask
from tests.lab.packing import ways

LENGTHS = [7, 5, 9]
LONG = [4, 22, 3]  # one is longer than mistral's window of 16
TRUNK, BRANCHES = 6, [5, 3, 4]
FLASH_NAMES = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


@dataclass
class Case:
    """A row or a batch. call: as the model is called. meant: as `check` takes it. prompts: for each
    row of the batch the places of the tokens of each prompt. guarded: `documents` of guard.
    labels: there are some, and what their loss should be is that of the prompts alone."""

    call: dict[str, Any]
    meant: dict[str, Any]
    prompts: list[list[list[int]]]
    guarded: Any = None


def some_ids(count: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(5, 280, (1, count), generator=draw)


def places_of(lengths: list[int]) -> list[list[int]]:
    """The rows of the tokens of documents that stand one after the other."""
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    return [
        list(range(start, start + length)) for start, length in zip(starts, lengths, strict=True)
    ]


def documents(lengths: list[int], **call: Any) -> Case:
    """One row of documents, with positions that start over."""
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    given = {"input_ids": some_ids(sum(lengths)), "position_ids": positions, "use_cache": False}
    meant = {"documents": lengths}
    return Case({**given, **call}, meant, [places_of(lengths)], guarded=lengths)


def blocks(lengths: list[int]) -> Tensor:
    of = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    return (causal_mask(len(of)) & (of[:, None] == of))[None, None]


def added(mask: Tensor) -> Tensor:
    return torch.where(mask, 0.0, torch.finfo(torch.float32).min)


def borders(lengths: list[int]) -> dict[str, Any]:
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    longest = max(lengths)
    return dict(zip(FLASH_NAMES, (ends, ends, longest, longest), strict=True))


def of_collator(flash: bool) -> Case:
    """As the library's own collator flattens texts: with labels, and flash arguments."""
    collate = ways.library.DataCollatorWithFlattening(return_flash_attn_kwargs=flash)
    texts = [some_ids(length, seed)[0].tolist() for seed, length in enumerate(LENGTHS)]
    batch = collate([{"input_ids": text} for text in texts])
    case = documents(LENGTHS)
    case.call |= batch
    return case


def padded() -> Case:
    """Two texts, the shorter one padded at the right."""
    ids = torch.cat([some_ids(9, 1), some_ids(9, 2)])
    shown = torch.ones_like(ids)
    shown[0, 6:] = 0
    call = {"input_ids": ids, "attention_mask": shown, "use_cache": False}
    meant = {"documents": [[6], [9]], "padding": "right"}
    return Case(call, meant, [[[*range(6)]], [[*range(9)]]])


def of_trl(**options: Any) -> Case:
    """As trl's SFTTrainer flattens texts (padding_free), packs them, or pads them."""
    trl = pytest.importorskip("trl.trainer.sft_trainer", reason="the extra [trainers]")
    texts = [some_ids(length, seed)[0].tolist() for seed, length in enumerate(LENGTHS)]
    examples: list[dict[str, Any]] = [{"input_ids": text} for text in texts]
    if options.pop("packed", False):
        row = [token for text in texts for token in text]
        examples = [{"input_ids": row, "seq_lengths": LENGTHS}]
    if options.pop("wrapped", False):  # documents whose borders nobody gives
        examples = [{"input_ids": [token for text in texts for token in text]}]
    batch = trl.DataCollatorForLanguageModeling(pad_token_id=0, **options)(examples)
    call = {**batch, "use_cache": False}
    if options.get("padding_free"):
        meant = {"documents": LENGTHS, "padding": "right"}
        return Case(call, meant, [places_of(LENGTHS)])
    meant = {"documents": [[length] for length in LENGTHS], "padding": "right"}
    return Case(call, meant, [[[*range(length)]] for length in LENGTHS])


def of_preference(trainer: str) -> Case:
    """As trl pads the two answers to a prompt: for its DPOTrainer or its RewardTrainer."""
    place = f"trl.trainer.{trainer}_trainer"
    trl = pytest.importorskip(place, reason="the extra [trainers]")
    prompt, chosen, rejected = (some_ids(n, n)[0].tolist() for n in (4, 6, 3))
    example = {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}
    if trainer == "dpo":
        example |= {"ref_chosen_logps": -9.0, "ref_rejected_logps": -5.0}
        lengths = [10, 7]
    else:
        example |= {"margin": 0.5}
        lengths = [6, 3]
    batch = trl.DataCollatorForPreference(pad_token_id=0)([example])
    meant = {"documents": [[length] for length in lengths], "padding": "right"}
    prompts = [[[*range(length)]] for length in lengths]
    return Case({**batch, "use_cache": False}, meant, prompts)


def axes(count: int, **call: Any) -> Case:
    """Documents whose positions have three axes (M-RoPE), or those of texts before them."""
    case = documents(LENGTHS, **call)
    case.call["position_ids"] = case.call["position_ids"].expand(count, 1, -1)
    case.meant = {"documents": [LENGTHS]}
    return case


def cases_with_axes(attention: str) -> Iterator[tuple[str, Case]]:
    run_on = torch.arange(sum(LENGTHS))[None]
    for count in (3, 4):
        yield f"{count} axes", axes(count)
        yield f"{count} axes, a cache", axes(count, use_cache=True)
        yield f"{count} axes, flash arguments", axes(count, **borders(LENGTHS))
        if attention == "flash_attention_2":
            continue
        mask = added(blocks(LENGTHS))
        yield f"{count} axes, additive mask", axes(count, attention_mask=mask)
        yield (
            f"{count} axes run on, additive mask",
            axes(count, attention_mask=mask, position_ids=run_on),
        )
    yield "positions without axes", documents(LENGTHS)


def two_rows() -> Case:
    case = documents(LENGTHS)
    case.call["input_ids"] = torch.cat([some_ids(21, 3), some_ids(21, 4)])
    case.call["position_ids"] = case.call["position_ids"].repeat(2, 1)
    case.meant = {"documents": [LENGTHS, LENGTHS]}
    case.prompts *= 2
    case.guarded = [LENGTHS, LENGTHS]
    return case


def rollouts(labels: str = "") -> Case:
    """A prompt and its completions behind it."""
    T = TRUNK + sum(BRANCHES)
    of = torch.arange(4).repeat_interleave(torch.tensor([TRUNK, *BRANCHES]))
    mask = causal_mask(T) & ((of[:, None] == of) | (of == 0))
    positions = [*range(TRUNK)]
    for length in BRANCHES:
        positions += range(TRUNK, TRUNK + length)
    prompts = [[*range(TRUNK), *(TRUNK + t for t in path)] for path in places_of(BRANCHES)]
    ids = some_ids(T)
    call = {"input_ids": ids, "position_ids": torch.tensor([positions]), "use_cache": False}
    call["attention_mask"] = added(mask[None, None])
    if labels:
        call["labels"] = ids.clone()
        call["labels"][0, :TRUNK] = -100
        if labels == "cut":
            starts = [path[TRUNK] for path in prompts[1:]]
            call["labels"][0, starts] = -100
    return Case(call, {"trunk": TRUNK, "branches": BRANCHES}, [prompts])


def shifted_border(lengths: list[int]) -> list[int]:
    return [lengths[0] + 1, lengths[1] - 1, *lengths[2:]]


def moved(case: Case, first: int, by: int) -> Case:
    """With other positions from a token on, to the end of the row."""
    positions = case.call["position_ids"].clone()
    positions[0, first:] += by
    case.call["position_ids"] = positions
    return case


def cases(attention: str) -> Iterator[tuple[str, Case]]:
    """Every form, by its name, that is given to this attention."""
    causal = causal_mask(sum(LENGTHS))[None, None]
    off = shifted_border(LENGTHS)
    one = blocks(LENGTHS)
    one[..., 7:, 6] = True
    yield "collator", of_collator(flash=False)
    yield "collator, flash arguments", of_collator(flash=True)
    yield "trl, flat", of_trl(padding_free=True)
    yield "trl, flat and padded", of_trl(padding_free=True, pad_to_multiple_of=8)
    yield "trl, packed", of_trl(padding_free=True, packed=True)
    yield "trl, wrapped", of_trl(padding_free=True, wrapped=True)
    yield "trl, padded", of_trl()
    yield "trl, padded, with positions", of_trl(return_position_ids=True)
    yield "trl, preference", of_preference("dpo")
    yield "trl, reward", of_preference("reward")
    yield "positions", documents(LENGTHS)
    yield "positions, a cache", documents(LENGTHS, use_cache=True)
    yield (
        "positions, a mask of ones",
        documents(LENGTHS, attention_mask=torch.ones(1, 21, dtype=torch.long)),
    )
    yield "positions run on", documents(LENGTHS, position_ids=torch.arange(21)[None])
    yield "positions, the last at 4", moved(documents(LENGTHS), 12, 4)
    yield "positions, one skipped", moved(documents(LENGTHS), 16, 1)
    off_positions = documents(off).call["position_ids"]
    yield "positions, a border off by one", documents(LENGTHS, position_ids=off_positions)
    yield "two rows", two_rows()
    yield "padded", padded()
    yield "flash arguments", documents(LENGTHS, **borders(LENGTHS))
    yield (
        "flash arguments, positions run on",
        documents(LENGTHS, position_ids=torch.arange(21)[None], **borders(LENGTHS)),
    )
    yield "flash arguments, a border off by one", documents(LENGTHS, **borders(off))
    if attention == "flash_attention_2":
        return
    for name, mask in (
        ("mask", blocks(LENGTHS)),
        ("mask, a border off by one", blocks(off)),
        ("mask, one token seen", one),
        ("mask, causal", causal),
    ):
        yield f"bool {name}", documents(LENGTHS, attention_mask=mask)
        yield f"additive {name}", documents(LENGTHS, attention_mask=added(mask))
    yield (
        "additive mask, positions run on",
        documents(
            LENGTHS, attention_mask=added(blocks(LENGTHS)), position_ids=torch.arange(21)[None]
        ),
    )
    yield (
        "additive mask, one position skipped",
        moved(documents(LENGTHS, attention_mask=added(blocks(LENGTHS))), 16, 1),
    )
    yield "additive mask, long", documents(LONG, attention_mask=added(blocks(LONG)))
    yield "rollouts", rollouts()
    yield "rollouts, all labels", rollouts("all")
    yield "rollouts, labels cut", rollouts("cut")
