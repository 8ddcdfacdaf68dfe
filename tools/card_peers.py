"""Two stages of tools/card.py: what other software does with the same prompts on the same card.

- flex: FlexAttention, whether a token of the packed sequence has the bits that it has in its prompt
  alone, and seconds beside minise's attention calls.
- vllm: questions a second of vLLM with its prefix cache, if it is installed.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from minise import pack
from minise.bench.measure import time_in_turn
from minise.bench.workloads import WORKLOADS
from minise.engines import token_counts
from minise.exact.attention import tree_reader
from minise.loading.config_json import config_from_dict

BLOCK = 128  # FlexAttention's blocks of queries and of keys
ROUNDS = 3
Attention = Callable[[Tensor, Tensor, Tensor, BlockMask], Tensor]


class Rows(NamedTuple):
    """The rows of a packed sequence: by row its part (0 the prefix, g + 1 branch g) and its
    position id, both (T,) int64 and -1 for padding; and where each part begins and ends, with its
    padding."""

    parts: Tensor
    positions: Tensor
    spans: list[tuple[int, int]]

    def alone(self, branch: int) -> Tensor:
        """The rows of one prompt, in the order in which it is laid out alone."""
        return torch.cat([torch.arange(*self.spans[part]) for part in (0, branch + 1)])


def rows_of(prefix: Sequence[int], branches: Sequence[Sequence[int]], size: int) -> Rows:
    """The prefix and every branch, each padded to a multiple of `size` rows."""
    parts: list[int] = []
    positions: list[int] = []
    spans = []
    for part, tokens in enumerate([prefix, *branches]):
        begin, fill = len(prefix) if part else 0, -len(tokens) % size
        parts += [part] * len(tokens) + [-1] * fill
        positions += [*range(begin, begin + len(tokens))] + [-1] * fill
        spans.append((len(parts) - len(tokens) - fill, len(parts)))
    return Rows(torch.tensor(parts), torch.tensor(positions), spans)


def block_mask(parts: Tensor, positions: Tensor, separate: bool) -> BlockMask:
    """The method's attention mask. A row of padding sees itself alone. separate: whether blocks in
    which every query sees every key are computed after all others, as FlexAttention does by
    default."""

    def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        same = (parts[k] == 0) | (parts[k] == parts[q])
        return (same & (parts[k] >= 0) & (positions[k] <= positions[q])) | (q == k)

    T = len(parts)
    return create_block_mask(
        sees, None, None, T, T, parts.device, BLOCK, separate_full_blocks=separate
    )


def flex(device: str, shape: dict[str, Any]) -> dict[str, Any]:
    """FlexAttention on a question of qasc, one layer. layouts: the branches one after the other
    (`tight`), or each at the beginning of a block (`aligned`). equal: of the prompts tried (the
    first, the middle and the last) how many have the same bits alone and packed."""
    config, where = config_from_dict(shape), torch.device(device)
    prefix, branches, _ = WORKLOADS["qasc"].prompts(config.vocab_size, 0)
    H, K, h = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    compiled = torch.compile(flex_attention) if where.type == "cuda" else flex_attention
    attention: Attention = partial(_flex, compiled)
    report: dict[str, Any] = {}
    ways: dict[str, Callable[[], Any]] = {}

    def heads(count: int, rows: int, seed: int) -> Tensor:
        values = torch.randn(rows, count, h, generator=torch.Generator().manual_seed(seed))
        return values.to(where, torch.bfloat16)

    for (layout, size), separate in product({"tight": 1, "aligned": BLOCK}.items(), (True, False)):
        rows = rows_of(prefix, branches, size)
        packed = _padded(rows.parts, rows.positions)
        q, k, v = (heads(n, len(rows.parts), seed) for seed, n in enumerate((H, K, K)))
        run = partial(_run, attention, packed, separate, q, k, v)
        whole, equal = run(), 0
        tried = (0, len(branches) // 2, len(branches) - 1)
        for branch in tried:
            index = rows.alone(branch)
            inputs = _padded(rows.parts[index], rows.positions[index])
            one = _run(attention, inputs, separate, *(x[index.to(where)] for x in (q, k, v)))
            real = rows.parts[index] >= 0
            equal += torch.equal(one[: len(index)][real], whole[index.to(where)][real])
        name = f"{layout}, full blocks {'apart' if separate else 'in order'}"
        report[name] = {"rows": len(rows.parts), "equal": equal, "tried": len(tried)}
        mask = block_mask(packed[0].to(where), packed[1].to(where), separate)
        first = [_heads_first(x, len(packed[0])) for x in (q, k, v)]
        ways[name] = partial(attention, first[0], first[1], first[2], mask)
    tree = pack(prefix, branches, tree=True)
    reader = tree_reader(tree, config.sliding_windows, where)
    q, k, v = (heads(n, len(tree.tokens), seed)[None] for seed, n in enumerate((H, K, K)))
    ways["minise, tree"] = partial(reader.attend, 0, q, k, v)
    with torch.inference_mode():
        times = time_in_turn(ways, ROUNDS, where)
    for name, measured in times.items():
        report.setdefault(name, {"rows": len(tree.tokens)})["seconds"] = measured.seconds
    parts = [f"{name} {x['equal']} of {x['tried']}" for name, x in report.items() if "equal" in x]
    return {"layouts": report, "summary": "equal bits: " + "; ".join(parts)}


def _flex(compiled: Any, q: Tensor, k: Tensor, v: Tensor, mask: BlockMask) -> Tensor:
    result: Tensor = compiled(q, k, v, block_mask=mask, enable_gqa=True)
    return result


def _padded(parts: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Both with padding at the end, to whole blocks."""
    fill = -len(parts) % BLOCK
    more = torch.full((fill,), -1)
    return torch.cat([parts, more]), torch.cat([positions, more])


def _heads_first(x: Tensor, rows: int) -> Tensor:
    """(T, heads, h) as (1, heads, rows, h); rows after T are zeros."""
    return torch.nn.functional.pad(x, (0, 0, 0, 0, 0, rows - len(x))).transpose(0, 1)[None]


@torch.inference_mode()
def _run(attention: Attention, rows: tuple[Tensor, Tensor], separate: bool, *qkv: Tensor) -> Tensor:
    """(T, H, h): what each row reads, with padding at the end."""
    parts, positions = (x.to(qkv[0].device) for x in rows)
    q, k, v = (_heads_first(x, len(parts)) for x in qkv)
    return attention(q, k, v, block_mask(parts, positions, separate))[0].transpose(0, 1)


def vllm(
    device: str, shape: dict[str, Any], goals: dict[str, int], per_pass: int
) -> dict[str, Any]:
    """Questions a second of vLLM with its prefix cache: every prompt of a question is a request of
    one token with its log-probability. Weights are vLLM's random ones. A round asks as many
    questions as have `per_pass` tokens in the engine tree. No question comes twice, so that only
    what its own prompts share is found in the cache."""
    if not device.startswith("cuda") or find_spec("vllm") is None:
        return {"summary": "skipped: vllm is not installed, or no CUDA device"}
    library: Any = import_module("vllm")  # not a dependency
    with tempfile.TemporaryDirectory() as folder:
        config = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", **shape}
        Path(folder, "config.json").write_text(json.dumps(config))
        lm = library.LLM(
            folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype="bfloat16",
            enable_prefix_caching=True,
            enforce_eager=True,  # capturing graphs takes longer than the stage has
            max_model_len=min(8192, shape["max_position_embeddings"]),
        )
    one_token = library.SamplingParams(max_tokens=1, temperature=0, logprobs=5, detokenize=False)
    report: dict[str, Any] = {}
    for name, goal in goals.items():
        questions, seconds = partial(WORKLOADS[name].prompts, shape["vocab_size"]), []
        count = max(1, per_pass // token_counts(*questions(0)[:2])["tree"])
        for begin in range(0, (ROUNDS + 1) * count, count):  # the first round warms up
            prompts = [
                {"prompt_token_ids": [*prefix, *branch]}
                for prefix, branches, _ in map(questions, range(begin, begin + count))
                for branch in branches
            ]
            began = time.perf_counter()
            lm.generate(prompts, one_token, use_tqdm=False)
            seconds.append((time.perf_counter() - began) / count)
        rate = 1 / statistics.median(seconds[1:])
        report[name] = {"seconds": seconds[1:], "questions_per_second": rate, "goal": goal}
    rates = [f"{name} {one['questions_per_second']:.2f} a second" for name, one in report.items()]
    return {"workloads": report, "summary": ", ".join(rates)}
