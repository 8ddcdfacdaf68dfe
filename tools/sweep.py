"""Who leaks, by version: each causal class of the installed transformers, tiny and random, asked in
seven ways what becomes of a packed row.

    python -m tools.sweep                    all classes; writes docs/sweep.md and docs/sweep.json
    python -m tools.sweep --only lfm2 qwen3  these, printed

A class that cannot be built so tiny is named with the reason. Needs the extras [test,parity].
"""

from __future__ import annotations

import argparse
import inspect
import json
import platform
import time
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from minise.layout import causal_mask
from tests.lab.packing import ways
from tests.lab.serving import zoo

DOCS = Path(__file__).parents[1] / "docs"
LENGTHS = [7, 5, 9]  # of documents; as a trunk and two branches too
MOST = 1e-3  # of a token's logits: rounding of float32 is below, a leak above
SLOW = -3.0  # log of a decay: as libraries draw it, a state is gone before it could leak
COLUMNS = {
    "positions": "positions alone",
    "flattening": "flattening batch",
    "mask": "4-D mask",
    "branches": "branches, 4-D mask",
    "left": "padded left",
    "right": "padded right",
    "rollback": "cache rolled back",
}
Run = Callable[..., Tensor]


def model_of(name: str) -> Any:
    """A tiny model in float32 whose states fade slowly. Raises what the library raises."""
    model = ways.tiny(name)
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("A_log"):
            parameter.data = SLOW + 0.3 * torch.randn_like(parameter)
    ways.set_attention(model, "sdpa" if model._supports_sdpa else "eager")
    return model


def ids_of(*lengths: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randint(5, 280, (1, length), generator=draw) for length in lengths]


def off(got: Tensor, right: Tensor) -> float:
    """The largest difference of a token's logits, by their size. Infinite for no number."""
    apart = (got.double() - right).norm(dim=-1) / right.norm(dim=-1)
    return float(apart.nan_to_num(nan=float("inf")).max())


def answer(far: float, one_text: float | None = None) -> str:
    if far < MOST:
        return "right"
    if one_text is not None and one_text < MOST:
        return f"{far:.1f}, as one text"
    return f"{far:.2g}"


# ---- the questions. Each: the answer, or what the library raises --------------------------------
def documents(run: Run, form: str) -> str:
    parts = ids_of(*LENGTHS)
    ids = torch.cat(parts, dim=1)
    right = torch.cat([run(input_ids=part) for part in parts], dim=1)
    if form == "flattening":
        collator = transformers.DataCollatorWithFlattening(
            return_flash_attn_kwargs=True, return_seq_idx=True
        )
        batch = dict(collator([{"input_ids": part[0].tolist()} for part in parts]))
        batch.pop("labels")
        got = run(**batch)
    else:
        call = ways.call_of("additive" if form == "mask" else "restarts", ids)
        call.pop("use_cache")
        got = run(**call)
    return answer(off(got, right), off(got, run(input_ids=ids)))


def branches(run: Run) -> str:
    trunk, one, other = ids_of(*LENGTHS)
    P, A, B = LENGTHS
    mask = causal_mask(P + A + B)
    mask[P + A :, P : P + A] = False
    additive = torch.where(mask, 0.0, torch.finfo(torch.float32).min)[None, None]
    where = torch.cat([torch.arange(P + A), torch.arange(P, P + B)])[None]
    ids = torch.cat([trunk, one, other], dim=1)
    got = run(input_ids=ids, position_ids=where, attention_mask=additive)[:, P + A :]
    right = run(input_ids=torch.cat([trunk, other], dim=1))[:, P:]
    one_text = run(input_ids=ids)[:, P + A :]
    return answer(off(got, right), off(got, one_text))


def padded(run: Run, side: str, takes_positions: bool) -> str:
    """The shortest of a batch of three, beside the same prompt alone."""
    rows, most = ids_of(*LENGTHS), max(LENGTHS)
    ids, mask = torch.zeros(3, most).long(), torch.zeros(3, most).long()
    for number, row in enumerate(rows):
        place = slice(most - row.shape[1], most) if side == "left" else slice(0, row.shape[1])
        ids[number, place], mask[number, place] = row[0], 1
    call = {"input_ids": ids, "attention_mask": mask}
    if takes_positions:
        call["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    got = run(**call)
    worst = 0.0
    for number, row in enumerate(rows):
        worst = max(worst, off(got[number][mask[number] == 1], run(input_ids=row)[0]))
    return answer(worst)


def rollback(model: Any) -> str:
    """A prompt, and a first continuation in its cache; cut back to the prompt, and a second one."""
    prompt, first, second = ids_of(*LENGTHS)
    right = model(input_ids=torch.cat([prompt, second], dim=1), use_cache=False).logits
    out = model(input_ids=prompt, use_cache=True)
    name = next((n for n in ("past_key_values", "cache_params") if getattr(out, n, None)), None)
    if name is None:
        return "gives no cache"
    cache = getattr(out, name)
    cache.activate_past_recording()
    model(input_ids=first, use_cache=True, **{name: cache})
    cache.crop(-first.shape[1])
    got = model(input_ids=second, use_cache=True, **{name: cache}).logits
    return answer(off(got, right[:, prompt.shape[1] :].double()))


@torch.no_grad()
def asked(model: Any) -> dict[str, str]:
    """The answer to each question, by column."""
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    def run(**call: Any) -> Tensor:
        return model(**call, use_cache=False).logits.double()

    questions: dict[str, Callable[[], str]] = {
        "positions": lambda: documents(run, "positions"),
        "flattening": lambda: documents(run, "flattening"),
        "mask": lambda: documents(run, "mask"),
        "branches": lambda: branches(run),
        "left": lambda: padded(run, "left", takes_positions),
        "right": lambda: padded(run, "right", takes_positions),
        "rollback": lambda: rollback(model),
    }
    answers = {}
    for column, ask in questions.items():
        try:
            answers[column] = ask()
        except Exception as error:  # whatever the library raises is its answer
            answers[column] = f"refuses ({type(error).__name__})"
    return answers


def swept(names: list[str]) -> dict[str, Any]:
    """The answers of each class, and why one was not built."""
    classes: dict[str, dict[str, str]] = {}
    failures: dict[str, str] = {}
    start = time.process_time()
    for name in names:
        try:
            model = model_of(name)
        except Exception as error:  # of many kinds, of the library and of what it calls
            failures[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:90]}"
            continue
        title = type(model).__name__ + ("" if ", " not in name else f" ({name.split(', ')[1]})")
        classes[title] = asked(model)
        print(title, *classes[title].values(), sep=" | ", flush=True)
    made = {"transformers": transformers.__version__, "torch": torch.__version__}
    made |= {"python": platform.python_version(), "date": str(date.today())}
    seconds = round(time.process_time() - start)
    return made | {"cpu_seconds": seconds, "classes": classes, "failures": failures}


# ---- the page -----------------------------------------------------------------------------------
def page_of(found: dict[str, Any]) -> str:
    classes = found["classes"]
    lines = [
        "# Who leaks, by version",
        "",
        f"Made by `python -m tools.sweep` on {found['date']}: transformers "
        f"{found['transformers']}, torch {found['torch']}, {len(classes)} causal classes, "
        f"{found['cpu_seconds']} CPU seconds. Every model is tiny, random, in float32 and on a "
        "CPU, with slow decay where it has a state. **Random tiny models on a CPU say nothing of "
        "GPU kernels**: those of flash attention, mamba_ssm, causal_conv1d and "
        "flash-linear-attention are other code.",
        "",
        "**right**: every token's logits are those of its prompt alone, within 0.001 of their "
        "size. A number: how far the worst is off, as a part of that size. **as one text**: "
        "exactly what the row gives without any borders. **refuses**: an error, which leaks "
        "nothing. What each question is, is in `tools/sweep.py`; what should come out, in "
        "[the MUSTs](packed.md).",
        "",
        "| | right | off | refuses |",
        "|---|---|---|---|",
    ]
    for column, words in COLUMNS.items():
        given = [one[column] for one in classes.values()]
        right = given.count("right")
        refuses = sum(one.startswith(("refuses", "gives no cache")) for one in given)
        lines.append(f"| {words} | {right} | {len(given) - right - refuses} | {refuses} |")
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, by_column in classes.items():
        groups.setdefault(tuple(by_column[column] for column in COLUMNS), []).append(name)
    lines += ["", "| class | " + " | ".join(COLUMNS.values()) + " |", "|---" * 8 + "|"]
    for answers, names in sorted(groups.items(), key=lambda group: (-len(group[1]), group[1])):
        lines.append(f"| {', '.join(names)} | {' | '.join(answers)} |")
    lines += ["", "## Reports", "", "What was looked into, one page each; sent to nobody.", ""]
    for path in sorted((DOCS / "reports").glob("*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}](reports/{path.name})")
    lines += ["", "## Not built", ""]
    lines += [f"- {name}: {why}".replace("<", "&lt;") for name, why in found["failures"].items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", metavar="MODEL_TYPE")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    found = swept(options.only or zoo.names())
    if not options.only:
        (DOCS / "sweep.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        (DOCS / "sweep.md").write_text(page_of(found), encoding="utf-8")


if __name__ == "__main__":
    main()
