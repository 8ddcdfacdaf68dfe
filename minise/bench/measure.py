"""Time the engines and the peers on the same prompts and weights, in turn, in one process."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

import tokenizers
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from minise.bench.peers import library_model, peers
from minise.bench.workloads import Workload
from minise.config import Config
from minise.engines import LanguageModel, branch_logits, check_scores_fit, token_counts
from minise.errors import InputError
from minise.evaluation.meter import peak_bytes, timed
from minise.exact import machine
from minise.exact.layers import probe, refine
from minise.loading.config_json import config_from_dict
from minise.loading.quantize import Linear4bit, format_of
from minise.model import Decoder
from minise.names import ENGINES
from minise.tokenizer import Tokenizer

T = TypeVar("T")

FREE_ROWS = "tree, rows in one call"
PRODUCT_ROWS = (256, 512, 1024)  # of the fastest product
Prompts = tuple[list[int], list[list[int]], list[int]]  # prefix, branches, label ids


@dataclass(frozen=True)
class Way:
    """One way to the label logits (G, C) of a question. tokens: how many it runs per question,
    padding included. questions: how many run in one pass."""

    run: Callable[[], Tensor]
    tokens: int
    questions: int = 1


@dataclass(frozen=True)
class Row:
    """One way of running the prompts.

    seconds: the median of the rounds. tokens: how many it runs, padding included. If questions
    share a pass, both are per question. peak_bytes: the peak of memory above what was in use
    before; None if the system does not say. max_difference: the largest absolute difference of a
    label logit from the separate runs.
    """

    name: str
    seconds: float
    tokens: int
    peak_bytes: int | None
    max_difference: float


@dataclass(frozen=True)
class Timings:
    """One row for each engine and peer.

    floor_seconds: the time of the linear layers of all blocks, on the tokens of the tree engine,
    measured in the same rounds with the model's own weights, one layer after the other as in a
    pass. left_out: the reason for each engine that did not run, by name. floor_gflops: what the
    floor computes in a second, in 1e9 multiplications and additions; fastest_gflops: the same of
    the fastest single product of its largest weight, again and again in one call. 0 where it was
    not measured.
    """

    floor_seconds: float
    rows: list[Row]
    left_out: dict[str, str] = field(default_factory=dict)
    floor_gflops: float = 0.0
    fastest_gflops: float = 0.0

    def as_text(self) -> str:
        """A table; times also as multiples of the tree engine's."""
        tree = next(row for row in self.rows if row.name == "tree")
        lines = [
            machine.in_words(),
            "",
            f"{'':38}{'seconds':>9}{'/ tree':>8}{'tokens':>9}{'peak MiB':>10}{'max diff':>10}",
        ]
        for row in self.rows:
            peak = "?" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.0f}"
            lines.append(
                f"{row.name:38}{row.seconds:9.3f}{row.seconds / tree.seconds:8.2f}{row.tokens:9,}"
                f"{peak:>10}{row.max_difference:10.1e}"
            )
        rate = self.floor_seconds / tree.seconds
        trees = [row for row in self.rows if row.name.startswith("tree")]
        rates = [f"{row.name} {1 / row.seconds:.2f}" for row in trees]
        lines += [
            f"{'floor: linear layers on the tree':38}{self.floor_seconds:9.3f}{rate:8.2f}"
            f"{tree.tokens:9,}",
            "",
            f"questions a second: {', '.join(rates)}.",
            f"the floor computes {self.floor_gflops:,.0f} GFLOP/s, the fastest product of its "
            f"largest weight {self.fastest_gflops:,.0f}.",
            "seconds and tokens: of one question. / tree: the time divided by the tree engine's.",
            "peak: memory above the weights. max diff: of a label logit, from the separate runs.",
        ]
        if any(row.name == FREE_ROWS for row in self.rows):
            lines.append(
                f"{FREE_ROWS}: as if equal bits were not wanted; the difference is what they cost."
            )
        lines += [f"{name} is left out: {reason}." for name, reason in self.left_out.items()]
        if not any(row.name.startswith("library") for row in self.rows):
            lines.append(
                "No peers: no library, or left out, or 4-bit weights, which it could not share."
            )
        return "\n".join(lines)


def random_model(raw: dict[str, object], dtype: torch.dtype, device: torch.device) -> LanguageModel:
    """A model of random weights, created on the device where it will run, without any file.

    `raw` is the content of a config.json. The weights are the same in every call. The tokenizer is
    empty, because the workloads are token ids.
    """
    config = config_from_dict(raw)
    decoder = empty_decoder(config, dtype)
    probe(decoder, dtype, device)
    decoder.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(0)
    for parameter in decoder.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02, generator=generator)
        else:
            nn.init.ones_(parameter)
    unused = Tokenizer(tokenizers.Tokenizer(tokenizers.models.BPE()), "no tokenizer")
    decoder = refine(decoder.requires_grad_(False).eval())
    return LanguageModel("random weights", config, decoder, unused)


def empty_decoder(config: Config, dtype: torch.dtype) -> Decoder:
    """A decoder on the device "meta": shapes without values."""
    with torch.device("meta"):
        return Decoder(config).to(dtype)


@dataclass(frozen=True)
class Measured(Generic[T]):
    """seconds: the median of the rounds. peak_bytes: the peak of memory above what was in use
    before; None if the system does not say. result: what the first run returned."""

    seconds: float
    peak_bytes: int | None
    result: T


def time_in_turn(
    runs: Mapping[str, Callable[[], T]], rounds: int, device: torch.device
) -> dict[str, Measured[T]]:
    """Run each once, which warms up, then all of them `rounds` times in turn."""
    first = {name: peak_bytes(run, device) for name, run in runs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in tqdm(range(rounds), desc="rounds", disable=None, leave=False):
        for name, run in runs.items():
            seconds[name].append(timed(run, device))
    return {name: Measured(statistics.median(seconds[name]), *first[name]) for name in runs}


@torch.inference_mode()
def time_engines(
    lm: LanguageModel,
    workload: Workload,
    rounds: int,
    seed: int,
    with_peers: bool = True,
    tokens_per_pass: int = 0,
    free_rows: bool = False,
) -> Timings:
    """Run every way `rounds` times in turn, after one run that warms up and checks the numbers.

    With `tokens_per_pass`, one more way: as many questions as fit, in one pass of the tree. With
    `free_rows`, one more: the tree with each linear layer in one call of all rows, as if equal bits
    were not wanted. The engine plain is left out if its scores would not fit in memory. Raises
    InputError for `free_rows` with 4-bit weights.
    """
    device = lm.decoder.device
    prompts = workload.prompts(lm.config.vocab_size, seed)
    counts = token_counts(*prompts[:2])
    ways, left_out = _engine_ways(lm, prompts, counts)
    if free_rows:
        ways[FREE_ROWS] = _free_rows(lm, prompts, counts)
    # The library's model uses the decoder's own tensors, and cannot use packed ones.
    model = library_model(lm.decoder) if with_peers and format_of(lm.decoder) is None else None
    if model is not None:
        prefix, branches, labels = prompts
        columns = torch.tensor(labels, device=device)
        for name, (run, tokens) in peers(model, prefix, branches, columns).items():
            ways[name] = Way(run, tokens)
    questions = tokens_per_pass // counts["tree"]
    if questions > 1:
        name = f"tree, {questions:,} questions a pass"
        ways[name] = _many_questions(lm, workload, seed, questions)
    largest = max(_linears(lm), key=lambda one: one.in_features * one.out_features)
    products = {f"product of {n}": _product(lm, largest, n) for n in PRODUCT_ROWS}
    runs = {"floor": linear_layers(lm, counts["tree"]), **products}
    runs |= {name: way.run for name, way in ways.items()}
    measured = time_in_turn(runs, rounds, device)
    expected = measured["separate"].result.double()
    rows = []
    for name, way in ways.items():
        one = measured[name]
        difference = float((one.result.double() - expected).abs().max())
        seconds = one.seconds / way.questions
        rows.append(Row(name, seconds, way.tokens, one.peak_bytes, difference))
    floor = measured["floor"].seconds
    work = sum(2 * one.in_features * one.out_features for one in _linears(lm)) * counts["tree"]
    size = 2 * largest.in_features * largest.out_features
    fastest = max(size * n / measured[f"product of {n}"].seconds for n in PRODUCT_ROWS)
    return Timings(floor, rows, left_out, work / floor / 1e9, fastest / 1e9)


def _engine_ways(
    lm: LanguageModel, prompts: Prompts, counts: dict[str, int]
) -> tuple[dict[str, Way], dict[str, str]]:
    """Each engine, and the reason for each that is left out."""
    prefix, branches, labels = prompts
    ways, left_out = {}, {}
    for engine in ENGINES:
        run = partial(branch_logits, lm, prefix, branches, engine, labels)
        ways[engine] = Way(run, counts[engine])
    try:
        check_scores_fit(lm, counts["plain"])
    except InputError as error:
        left_out["plain"] = str(error)
        del ways["plain"]
    return ways, left_out


def _free_rows(lm: LanguageModel, prompts: Prompts, counts: dict[str, int]) -> Way:
    """The tree with each linear layer in one call."""
    prefix, branches, labels = prompts
    free = replace(lm, decoder=unrefined(lm.decoder))
    return Way(partial(branch_logits, free, prefix, branches, "tree", labels), counts["tree"])


def _many_questions(lm: LanguageModel, workload: Workload, seed: int, questions: int) -> Way:
    """Several questions in one pass of the tree. It returns the logits of the first one."""
    whole: list[list[int]] = []
    for number in range(questions):
        prefix, branches, _ = workload.prompts(lm.config.vocab_size, seed + number)
        whole += [[*prefix, *branch] for branch in branches]
    _, first, labels = workload.prompts(lm.config.vocab_size, seed)

    def run() -> Tensor:
        return branch_logits(lm, [], whole, "tree", labels)[: len(first)]

    return Way(run, token_counts([], whole)["tree"] // questions, questions)


def unrefined(decoder: Decoder) -> Decoder:
    """The same tensors in plain layers, without the calls of minise/exact/. Raises InputError for
    4-bit weights, whose layers have no such form."""
    if format_of(decoder) is not None:
        raise InputError("--free-rows is for weights that are not packed; leave it out")
    plain = empty_decoder(decoder.config, decoder.dtype)
    plain.load_state_dict(decoder.state_dict(), strict=True, assign=True)
    return plain.requires_grad_(False).eval()


def linear_layers(lm: LanguageModel, tokens: int) -> Callable[[], Tensor]:
    """A function that runs the linear layers of all blocks on `tokens` tokens, and nothing else.
    They run one after the other, so that each weight is as cold as in a pass."""
    linears, inputs = _linears(lm), {}
    for size in {linear.in_features for linear in linears}:
        inputs[size] = torch.randn(tokens, size, dtype=lm.decoder.dtype, device=lm.decoder.device)

    def products() -> Tensor:
        for linear in linears:
            output = linear(inputs[linear.in_features])
        return output

    return products


def _linears(lm: LanguageModel) -> list[nn.Linear | Linear4bit]:
    """The linear layers of all blocks."""
    modules = lm.decoder.model.layers.modules()
    return [module for module in modules if isinstance(module, nn.Linear | Linear4bit)]


def _product(lm: LanguageModel, largest: nn.Linear | Linear4bit, rows: int) -> Callable[[], Tensor]:
    """One call of torch's product with so many rows and a weight of the size of the largest."""
    sizes = (rows, largest.in_features), (largest.out_features, largest.in_features)
    x, weight = (
        torch.randn(size, dtype=lm.decoder.dtype, device=lm.decoder.device) for size in sizes
    )
    return partial(F.linear, x, weight)
