"""Find out which families of the installed transformers library keep their promises (promises.py).

    python -m tools.bridge_table                 every family: the table of docs/bridges.md
    python -m tools.bridge_table qwen3 gpt2      some of them, with every reason

Each is a tiny random model with the family's own code, under eager attention and sdpa, in float32
and bfloat16. A family runs in a process of its own, so if one hangs or dies, the
others go on.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import multiprocessing
import sys
import warnings
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as FAMILIES,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MASKED_LM_MAPPING_NAMES as ENCODERS,
)

from minise.bridges import promises
from minise.bridges.library import Library
from minise.errors import InputError, one_line

SECONDS = 120  # for one family
MOST = 10_000_000  # parameters of a model that counts as tiny
SIZES: dict[str, Any] = {
    **{"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "n_inner": 48},
    **{"max_position_embeddings": 256, "sliding_window": 13, "pad_token_id": 0},
    **{"bos_token_id": 1, "eos_token_id": 2},
    # Mixtures of experts
    **{"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "n_shared_experts": 1},
    **{
        "num_experts_per_tok": 2,
        "moe_topk": 2,
        "moe_intermediate_size": 16,
        "expert_ffn_hidden_size": 16,
    },
    **{"shared_expert_intermediate_size": 16, "n_group": 1, "topk_group": 1, "moe_num_experts": 4},
    **{"first_k_dense_replace": 1, "ffn_hidden_size": 48, "ffn_dim": 48, "ffn_config": {}},
    # Latent attention
    **{"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8},
    **{"v_head_dim": 8},
    # State spaces and linear attention
    **{"state_size": 8, "mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 16},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2},
    **{"linear_num_value_heads": 4, "attn_layer_period": 4, "attn_layer_offset": 2},
    # Else
    **{"window_size": 13, "attention_chunk_size": 13, "rotary_dim": 8, "num_kv_shared_layers": 0},
    **{"vocab_size_per_layer_input": 128},
}
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
PROMISES = ("mask", "positions", "window", "cache", "batch")
ENCODER = "is an encoder, or has one"
MARKS = {True: "yes", False: "**no**", None: "?"}


def tiny(family: str, attention: str) -> Any:
    """A random model of a family. Raises whatever the library raises for sizes that do not fit."""
    kind = type(transformers.AutoConfig.for_model(family))
    if kind().is_encoder_decoder or family in ENCODERS:
        raise InputError(ENCODER)
    names = inspect.signature(kind).parameters.keys() | kind.attribute_map.keys()
    sizes = {name: value for name, value in SIZES.items() if name in names}
    if "kv_lora_rank" in names:  # every head has its own keys
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    if family == "gpt_neo":
        sizes["attention_types"] = [[["global", "local"], 1]]
    config = kind(**sizes)
    if not ATTENTION.issuperset(getattr(config, "layer_types", None) or ()):
        config = kind(**sizes | {"num_hidden_layers": 4})  # so that one layer has attention
    with torch.device("meta"):
        empty = transformers.AutoModelForCausalLM.from_config(config)
    if (size := sum(parameter.numel() for parameter in empty.parameters())) > MOST:
        raise InputError(f"it ignores the small sizes: {size:,} parameters")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    draw = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            noise = torch.randn(parameter.shape, generator=draw)
            parameter.data = 0.2 * noise if parameter.dim() > 1 else 1 + 0.3 * noise
    return model.eval()


def report(family: str) -> dict[str, Any]:
    """Which promises a family keeps: for each attention and dtype, each promise with its reason."""
    runs: dict[str, Any] = {}
    draw = torch.Generator().manual_seed(0)
    # The longest prompt, 25 tokens, is longer than the window.
    prefix, *branches = (
        torch.randint(3, 128, (n,), generator=draw).tolist() for n in (17, 8, 5, 1, 7)
    )
    for attention in ("eager", "sdpa"):
        try:
            model = tiny(family, attention)
            for dtype in (torch.float32, torch.bfloat16):
                library = Library(model.to(dtype), model, family)
                exact = dtype == torch.float32
                result = promises.verify_prompts(library, prefix, branches, gradients=exact)
                outcomes: dict[str, list[Any]] = {}
                for name, promise in result.promises.items():
                    outcomes[name] = [promise.holds, promise.why]
                for name, engine in result.engines.items():
                    if isinstance(engine, str):
                        outcomes[name] = [False, engine]
                    else:
                        outcomes[name] = [engine["exact"], ""]
                runs[f"{attention} {str(dtype).removeprefix('torch.')}"] = outcomes
        except Exception as error:  # any error of a family that needs more than a tiny model has
            runs.setdefault("not built", f"{attention}: {one_line(error)}")
    return runs


def in_process(family: str) -> dict[str, Any]:
    """`report`, in a process that may die or hang."""
    reader, writer = multiprocessing.Pipe(duplex=False)

    def work(answer: Connection) -> None:
        with open("/dev/null", "w") as nowhere, contextlib.redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            answer.send(report(family))

    child = multiprocessing.get_context("fork").Process(target=work, args=(writer,))
    child.start()
    writer.close()
    try:
        runs: dict[str, Any] = {"not built": "too slow"}
        if reader.poll(SECONDS):
            runs = reader.recv()
    except EOFError:
        runs = {"not built": "its process died"}
    child.kill()
    child.join()
    return runs


def cell(runs: dict[str, Any], name: str) -> str:
    """Whether the runs of a family keep a promise: one word if all agree, or each run's."""
    by_run = {run: outcomes[name][0] for run, outcomes in runs.items() if run != "not built"}
    if len(set(by_run.values())) == 1:
        return MARKS[next(iter(by_run.values()))]
    names: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    for run, holds in by_run.items():
        names[holds].append(run.replace("float32", "f32").replace("bfloat16", "bf16"))
    parts = [f"{MARKS[holds]}: {', '.join(short)}" for holds, short in names.items() if short]
    return "; ".join(parts)


def reason(runs: dict[str, Any]) -> str:
    """The first reason why a promise is broken."""
    for name in PROMISES:
        for run, outcomes in runs.items():
            if run != "not built" and outcomes[name][0] is False:
                return f"{name}: {outcomes[name][1]}"
    return ""


def table(families: dict[str, dict[str, Any]]) -> Iterable[str]:
    """The Markdown table: families that behave alike share a row."""
    names = (*PROMISES, "dense", "tree")
    rows: dict[tuple[str, ...], list[str]] = {}
    for family, runs in families.items():
        if len(runs) == ("not built" in runs):  # it has no run
            continue
        cells = *(cell(runs, name) for name in names), reason(runs)
        only = " (eager only)" if "eager float32" in runs and "sdpa float32" not in runs else ""
        rows.setdefault(cells, []).append(f"`{family}`{only}")
    yield f"| families | {' | '.join(names)} | the first that is broken |"
    yield f"|{'---|' * (len(names) + 2)}"
    for cells, alike in sorted(rows.items(), key=lambda row: -len(row[1])):
        yield f"| {', '.join(alike)} | {' | '.join(cells)} |"
    absent = {family: runs["not built"] for family, runs in families.items() if len(runs) == 1}
    encoders = [family for family, why in absent.items() if ENCODER in why]
    others = [family for family in absent if family not in encoders]
    yield ""
    yield f"{len(families) - len(absent)} families."
    yield f"Not built as tiny models, so unknown: {', '.join(others) or 'none'}."
    yield f"Encoders, which minise does not ask: {', '.join(encoders) or 'none'}."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("families", nargs="*")
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    families = {}
    for family in args.families or FAMILIES:
        families[family] = in_process(family)
        if args.families:
            print(json.dumps({family: families[family]}, indent=1))
        else:
            print(family, file=sys.stderr, flush=True)
    print("\n".join(table(families)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
