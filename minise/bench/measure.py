"""Time the engines and the peers on the same prompts and weights, in turn, in one process."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import tokenizers
import torch
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

FREE_ROWS = "tree, rows in one call"


@dataclass(frozen=True)
class Row:
    """One way of running the prompts.

    seconds: the median of the rounds. tokens: how many it runs, padding included. Where questions
    share a pass, both are a question's part. peak_bytes: the peak of memory above what was held
    before; None where the system does not say. max_difference: the largest absolute difference of a
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

    floor_seconds: the time of the linear layers alone, on the tokens of the tree engine. It is
    measured in the same rounds, with the model's own weights. left_out: engines that did not run,
    by name, each with the reason.
    """

    floor_seconds: float
    rows: list[Row]
    left_out: dict[str, str] = field(default_factory=dict)

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

    `raw` is what a config.json holds. The weights are the same in every call. Its tokenizer is
    empty, because the workloads are token ids.
    """
    config = config_from_dict(raw)
    decoder = empty_decoder(config, dtype)
    if device.type == "cpu":
        probe(decoder, dtype)
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
    With `tokens_per_pass`, one way more: as many questions as fit, in one pass of the tree. With
    `free_rows`, one more: the tree with each linear layer in one call of all rows, as if equal bits
    were not wanted. The engine plain is left out where its scores would not fit in memory. Raises
    InputError for `free_rows` with 4-bit weights."""
    prefix, branches, labels = workload.prompts(lm.config.vocab_size, seed)
    device = lm.decoder.device
    counts = token_counts(prefix, branches)
    ways: dict[str, tuple[Callable[[], Tensor], int]] = {
        engine: (partial(branch_logits, lm, prefix, branches, engine, labels), counts[engine])
        for engine in ENGINES
    }
    left_out = {}
    try:
        check_scores_fit(lm, counts["plain"])
    except InputError as error:
        left_out["plain"] = str(error)
        del ways["plain"]
    if free_rows:
        free = replace(lm, decoder=unrefined(lm.decoder))
        run = partial(branch_logits, free, prefix, branches, "tree", labels)
        ways[FREE_ROWS] = run, counts["tree"]
    # The library's model takes the decoder's own tensors, and has no place for packed ones.
    plain = with_peers and format_of(lm.decoder) is None
    model = library_model(lm.decoder) if plain else None
    if model is not None:
        ways |= peers(model, prefix, branches, torch.tensor(labels, device=device))
    together = ""
    if (questions := tokens_per_pass // counts["tree"]) > 1:
        together = f"tree, {questions:,} questions a pass"
        asked = [workload.prompts(lm.config.vocab_size, seed + i) for i in range(questions)]
        whole = [[*start, *branch] for start, each, _ in asked for branch in each]
        tokens = token_counts([], whole)["tree"] // questions

        def first_of_all() -> Tensor:
            return branch_logits(lm, [], whole, "tree", labels)[: len(branches)]

        ways[together] = first_of_all, tokens

    expected = ways["separate"][0]().double()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    peaks: dict[str, int | None] = {}
    differences: dict[str, float] = {}
    for name, (way, _) in ways.items():
        peaks[name], logits = peak_bytes(way, device)
        differences[name] = float((logits.double() - expected).abs().max())
    floors = []
    for _ in tqdm(range(rounds), desc="rounds", disable=None, leave=False):
        floors.append(floor_seconds(lm, counts["tree"]))
        for name, (way, _) in ways.items():
            seconds[name].append(timed(way, device))
    rows = []
    for name, (_, tokens) in ways.items():
        median = statistics.median(seconds[name]) / (questions if name == together else 1)
        rows.append(Row(name, median, tokens, peaks[name], differences[name]))
    return Timings(statistics.median(floors), rows, left_out)


def unrefined(decoder: Decoder) -> Decoder:
    """The same tensors under the layers of the definition. Raises InputError for 4-bit weights,
    whose layers have no such form."""
    if format_of(decoder) is not None:
        raise InputError("--free-rows is for weights that are not packed; leave it out")
    plain = empty_decoder(decoder.config, decoder.dtype)
    plain.load_state_dict(decoder.state_dict(), strict=True, assign=True)
    return plain.requires_grad_(False).eval()


def floor_seconds(lm: LanguageModel, tokens: int) -> float:
    """Seconds that the linear layers of all blocks take on `tokens` tokens, and nothing else."""
    layer = lm.decoder.model.layers[0]
    linears = [module for module in layer.modules() if isinstance(module, nn.Linear | Linear4bit)]
    given = {
        size: torch.randn(tokens, size, dtype=lm.decoder.dtype, device=lm.decoder.device)
        for size in {linear.in_features for linear in linears}
    }

    def products() -> None:
        for linear in linears:
            linear(given[linear.in_features])

    products()  # warm up
    return timed(products, lm.decoder.device) * len(lm.decoder.model.layers)
