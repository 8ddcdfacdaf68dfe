"""What the commands do with `--model transformers:FOLDER_OR_ID`."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from minise.commands.options import set_threads, values_of
from minise.errors import InputError, printable
from minise.loading.plugin import load_extra
from minise.names import AUTO

if TYPE_CHECKING:
    from minise.bridges.promises import Report
    from minise.engines import LanguageModel
    from minise.method import Plan

YES = {True: "yes", False: "no", None: "cannot be told"}


def load_model(args: argparse.Namespace, share: Any = None) -> LanguageModel:
    """The checkpoint, loaded by the library. A dtype "auto" is float32 on a CPU, elsewhere that of
    the stored weights; a device "auto" is a GPU if there is one. Both stand in `args` then."""
    import torch

    from minise.loading.placement import name_of, usable_device

    given = {"--quantize": "quantize", "--double-quant": "double_quant", "--dry-run": "dry_run"}
    used = [option for option, name in given.items() if getattr(args, name, None)]
    if share is not None:
        used.append("--tensor-parallel")
    if used:
        raise InputError(f"{used[0]} is for minise's own models; leave it out, or transformers:")
    load_extra("transformers", "transformers")
    from minise.bridges import transformers_model

    if args.device == AUTO:
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    usable_device(args.device)
    plain = "float32" if args.device == "cpu" else AUTO
    wanted = plain if args.dtype == AUTO else args.dtype
    dtype = wanted if wanted == AUTO else getattr(torch, wanted)
    source = args.model.removeprefix("transformers:")
    attention = getattr(args, "attention", None)
    lm = transformers_model.load(source, args.revision, dtype, args.device, attention)
    args.dtype = name_of(lm.decoder.dtype)
    set_threads(args, values_of(lm.decoder))
    return lm


def verify_library(args: argparse.Namespace, lm: LanguageModel, plan: Plan) -> int:
    """Print whether the model keeps its promises (promises.py). The exit status."""
    from minise.checking.verify import verify

    found: Any = verify(lm, plan, args.tolerance, args.gradients)
    told = as_json if args.json else as_text
    print(printable(told(args.model, args.dtype, found)))
    return 0 if found.passed else 1


def as_json(model: str, dtype: str, found: Report) -> str:
    """The report as a JSON object. The differences are parts of a row's size."""
    seen = found.influence
    fields = {
        "model": model,
        "dtype": dtype,
        "library": found.library,
        "attention": found.attention,
        "tokens": found.tokens,
        "groups": found.groups,
        "tolerance": found.tolerance,
        "passed": found.passed,
        "promises": {name: vars(promise) for name, promise in found.promises.items()},
        "documents_by_positions": found.documents,
        "engines": {
            name: {"refused": told} if isinstance(told, str) else told
            for name, told in found.engines.items()
        },
        "influence": {
            "scrambled_equal": seen.scrambled.equal if seen.runs else None,
            "gradient_outside": seen.gradient_outside,
            "gradient_inside": seen.gradient_inside,
        },
    }
    return json.dumps(fields)


def as_text(model: str, dtype: str, found: Report) -> str:
    """The same for a person."""
    seen = found.influence
    lines = [
        f"{model}, {dtype}, {found.library}, attention {found.attention}: {found.tokens:,} tokens "
        f"of {found.groups} group prompts",
        "",
        f"  {'promise':12}{'holds':16}{'difference':>12}   (rounding: {found.tolerance:.1e})",
    ]
    for name, one in found.promises.items():
        apart = "" if one.difference is None else f"{one.difference:.1e}"
        lines.append(f"  {name:12}{YES[one.holds]:16}{apart:>12}   {one.why}")
    parted = "positions that start over part documents, without a mask"
    lines += ["", f"  {parted}: {YES[found.documents]}", ""]
    for name, told in found.engines.items():
        if isinstance(told, str):
            lines.append(f"  engine {name}: {told}")
        else:
            exact = "equal to separate but for rounding" if told["exact"] else "NOT equal"
            lines.append(f"  engine {name}: {exact}, {told['relative']:.1e}")
    if seen.gradient_outside is not None:
        lines += [
            "",
            "Gradients of a group's logits, by each token",
            f"  that the mask hides: at most {seen.gradient_outside:.1e} (must be 0)",
            f"  that it shows: at least {seen.gradient_inside:.1e} (must be above 0)",
        ]
    broken = [name for name, one in found.promises.items() if one.holds is False]
    verdict = f"FAILED: {', '.join(broken)}" if broken else "passed: no promise is broken"
    return "\n".join(line.rstrip() for line in [*lines, "", verdict])
