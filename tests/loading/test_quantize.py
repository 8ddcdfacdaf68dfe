"""4-bit weights: the values of a packed matrix. In all else a packed model is an ordinary one."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

import minise
from minise import (
    Decoder,
    InputError,
    LanguageModel,
    Question,
    SelfEnsemble,
    self_ensemble,
)
from minise.checking.verify import verify
from minise.exact.layers import FixedLinear
from minise.loading import quantize
from minise.loading.names import FOUR_BIT
from minise.loading.quantize import (
    STATE,
    TABLES,
    Linear4bit,
    Packed,
    format_of,
    matrix_of,
    pack,
    put,
    read_stored,
)
from tests.loading.test_checkpoint import WEIGHTS, configure, edit, refusal, shard
from tests.support.commands import Q, run
from tests.support.tiny import ALL_FAMILIES, write_checkpoint

FORMATS = ("nf4", "fp4", "nf4-double", "fp4-double")
SHAPES = [(64, 64), (48, 32), (3, 5), (1, 1), (7, 130), (512, 192)]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def packed_decoder(decoder: Decoder, format: str) -> Decoder:
    """A copy whose linear layers are packed."""
    decoder = copy.deepcopy(decoder)
    for name, tensor in decoder.state_dict().items():
        if matrix_of(name)[0]:
            put(decoder, name, pack(tensor, format), decoder.dtype, Path())
    return decoder


def plain_decoder(packed: Decoder) -> Decoder:
    """An ordinary decoder with the unpacked weights."""
    decoder = copy.deepcopy(packed)
    for name, layer in packed.named_modules():
        if isinstance(layer, Linear4bit):
            plain = nn.Linear(*reversed(layer.packed.shape), bias=False)
            plain.weight = nn.Parameter(layer.packed.unpack(layer.dtype), requires_grad=False)
            plain.bias = layer.bias
            parent, _, last = name.rpartition(".")
            setattr(decoder.get_submodule(parent), last, FixedLinear(plain))
    return decoder


class TestMatrix:
    def test_fp4_by_hand(self) -> None:
        """fp4, two rows of 48: the first block of 64 ends in the second row."""
        weight = torch.zeros(2, 48)
        weight[0, :4] = torch.tensor([12.0, -8.0, 5.1, 0.04])
        weight[1, 15], weight[1, 16], weight[1, 17] = 2.0, 3.0, -1.4
        packed = pack(weight, "fp4")
        assert packed.scales().tolist() == [12.0, 3.0]
        # 12 is entry 3, -8 entry 10; 5.1 is nearest to 4 (entry 4) or 6 (entry 5): to 6.
        assert packed.tensors[""][0].item() == 3 << 4 | 10
        assert packed.tensors[""][1].item() >> 4 == 5
        unpacked = packed.unpack(torch.float64)
        assert torch.allclose(unpacked[0, :4], torch.tensor([12.0, -8.0, 6.0, 0.0625]).double())
        expected = torch.tensor([2.0, 3.0, -1.5]).double()  # -1.4 of 3: -6/12 is nearest
        assert torch.allclose(unpacked[1, 15:18], expected)

    @pytest.mark.parametrize("kind", TABLES)
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_each_value_becomes_the_nearest(self, kind: str, shape: tuple[int, int]) -> None:
        weight = draw(*shape)
        packed = pack(weight, kind)
        flat = F.pad(weight.view(-1), (0, -weight.numel() % 64)).view(-1, 64)
        absmax = flat.abs().amax(dim=1)
        assert torch.equal(packed.scales(), absmax)
        levels = TABLES[kind].double() * absmax.double()[:, None]
        least = (flat.double()[:, :, None] - levels[:, None]).abs().amin(dim=2)
        least = least.view(-1)[: weight.numel()].view(shape)
        distance = (weight.double() - packed.unpack(torch.float64)).abs()
        assert (distance - least).abs().max() < 1e-6

    @pytest.mark.parametrize("kind", TABLES)
    def test_double_quantization_takes_the_nearest_8_bits(self, kind: str) -> None:
        weight = draw(512, 192)
        once, twice = pack(weight, kind), pack(weight, f"{kind}-double")
        assert torch.equal(once.tensors[""], twice.tensors[""])
        offset = once.scales().mean()
        assert (twice.tensors["absmax"].dtype, twice.tensors["nested_offset"]) == (
            torch.uint8,
            offset,
        )
        blocks = (once.scales() - offset).view(-1, 256).double()
        table = twice.tensors["nested_quant_map"].double()
        assert len(table) == 256
        levels = table * blocks.abs().amax(dim=1, keepdim=True)
        least = (blocks[:, :, None] - levels[:, None]).abs().amin(dim=2)
        distance = (once.scales().double() - twice.scales()).abs().view(-1, 256)
        assert (distance - least).abs().max() < 1e-6

    @pytest.mark.parametrize("format", FORMATS)
    def test_other_dtypes_round_the_float32_values(self, format: str) -> None:
        packed = pack(draw(7, 130), format)
        values = packed.unpack(torch.float32)
        for dtype in (torch.float64, torch.bfloat16, torch.float16):
            assert torch.equal(packed.unpack(dtype), values.to(dtype))

    @pytest.mark.parametrize("format", FORMATS)
    def test_packing_in_pieces_gives_the_same_values(
        self, format: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = pack(draw(33, 129), format)
        monkeypatch.setattr(quantize, "PIECE", 256)
        parts = pack(draw(33, 129), format)
        assert torch.equal(parts.unpack(torch.float32), whole.unpack(torch.float32))

    @pytest.mark.parametrize("format", ["nf4", "nf4-double"])
    def test_the_bytes_of_a_packed_matrix(self, format: str) -> None:
        size = sum(x.nbytes for x in pack(draw(512, 512), format).tensors.values())
        blocks = 512 * 512 // 64
        tables, scales = 4 * 16, 4 * blocks
        if format == "nf4-double":
            tables, scales = 4 * (16 + 256 + 1), blocks + 4 * blocks // 256
        assert size == 512 * 512 // 2 + scales + tables

    def test_zeros_stay_zeros(self) -> None:
        for format in FORMATS:
            assert not pack(torch.zeros(3, 33), format).unpack(torch.float32).any()


class TestLayer:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
    def test_a_packed_layer_computes_as_an_ordinary_one_with_the_unpacked_weight(
        self, dtype: torch.dtype
    ) -> None:
        packed, bias = pack(draw(48, 32), "nf4-double"), nn.Parameter(draw(48).to(dtype))
        x = draw(64, 32, seed=1).to(dtype)
        expected = F.linear(x, packed.unpack(dtype), bias)
        assert torch.equal(Linear4bit(packed, bias, dtype)(x), expected)

    def test_layers_that_unpack_into_the_same_memory_do_not_change_each_others_numbers(
        self,
    ) -> None:
        """Small and large, in two dtypes, in two threads, with and without inference mode."""
        layers = [
            Linear4bit(pack(draw(rows, 32, seed=rows), "nf4"), None, dtype)
            for rows, dtype in ((48, torch.bfloat16), (640, torch.float32), (16, torch.float64))
        ]
        inputs = [draw(64, 32, seed=1).to(layer.dtype) for layer in layers]
        expected = [
            F.linear(x, layer.packed.unpack(layer.dtype))
            for x, layer in zip(inputs, layers, strict=True)
        ]

        def run(order: list[int], mode: Any) -> list[tuple[int, Tensor]]:
            with mode():
                return [(i, layers[i](inputs[i])) for i in order for _ in range(20)]

        orders = [[0, 1, 2], [2, 1, 0, 1]]
        with ThreadPoolExecutor(2) as threads:
            for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
                for results in threads.map(partial(run, mode=mode), orders):
                    assert all(torch.equal(result, expected[i]) for i, result in results)

    def test_a_gradient_through_a_packed_layer_is_not_lost_to_the_next_layer(self) -> None:
        first, second = (
            Linear4bit(pack(draw(32, 32, seed=seed), "nf4"), None, torch.float64) for seed in (1, 2)
        )
        x = draw(8, 32, seed=3).double().requires_grad_()
        with torch.no_grad():
            second(x)  # the memory is there
        second(first(x)).sum().backward()
        weights = [layer.packed.unpack(torch.float64) for layer in (first, second)]
        assert x.grad is not None
        expected = torch.ones(8, 32, dtype=torch.float64) @ weights[1] @ weights[0]
        assert torch.allclose(x.grad, expected, rtol=1e-12, atol=1e-12)

    def test_changing_the_models_dtype_changes_no_table_and_no_scale(self) -> None:
        """As for an ordinary layer, .to(wider) keeps the weights' values."""
        packed = pack(draw(48, 32), "nf4-double")
        layer, x = Linear4bit(packed, None, torch.bfloat16), draw(64, 32, seed=1).double()
        narrow = copy.deepcopy(layer).to(torch.bfloat16).to(torch.float64)
        for same in (layer, narrow):
            assert torch.equal(same(x), F.linear(x, packed.unpack(torch.bfloat16).double()))

    def test_every_packed_tensor_moves_with_the_layer_to_another_device(self) -> None:
        packed = pack(draw(48, 32), "nf4-double")
        assert {x.device.type for x in packed.tensors.values()} == {"cpu"}
        moved = Linear4bit(packed, nn.Parameter(draw(48)), torch.float32).to("meta")
        assert moved.bias is not None
        tensors = [*moved.packed.tensors.values(), moved.bias]
        assert {x.device.type for x in tensors} == {"meta"}
        assert len(tensors) == len(packed.tensors) + 1


@pytest.mark.parametrize("format", FORMATS)
def test_a_packed_model_is_an_ordinary_one_with_the_unpacked_weights(
    lm: LanguageModel, question: Question, format: str
) -> None:
    packed = replace(lm, decoder=packed_decoder(lm.decoder, format))
    plain = replace(lm, decoder=plain_decoder(packed.decoder))
    assert format_of(packed.decoder) == format
    assert format_of(plain.decoder) is None
    layers = [m for m in packed.decoder.modules() if isinstance(m, Linear4bit)]
    assert len(layers) == 7 * lm.config.num_hidden_layers
    plan = SelfEnsemble(group_size=3, trials=1).plan(lm, question)
    report, expected = (verify(x, plan, gradients=True) for x in (packed, plain))
    assert report.passed
    assert report.bitwise
    assert report == expected


@pytest.mark.parametrize("kind", TABLES)
def test_verify_passes_in_bfloat16_with_the_bounds_of_the_ordinary_model(
    lm: LanguageModel, question: Question, kind: str
) -> None:
    """The allowed difference is measured in a wider dtype on the same weights."""
    decoder = copy.deepcopy(lm.decoder).to(torch.bfloat16)
    packed = replace(lm, decoder=packed_decoder(decoder, kind))
    plain = replace(lm, decoder=plain_decoder(packed.decoder))
    plan = SelfEnsemble(group_size=3, trials=1).plan(lm, question)
    report, expected = verify(packed, plan), verify(plain, plan)
    assert report.passed
    assert report.bounds == expected.bounds


def test_the_table_of_nf4_is_the_publications() -> None:
    """Dettmers et al. 2023 (QLoRA), Section 3: quantiles of a normal distribution, of 8 negative
    and 7 positive levels, beside 0, divided by the largest."""
    tail = 0.9677083  # the publication's code: the mean of the outermost quantiles
    quantile = NormalDist().inv_cdf
    positive = [quantile(p) for p in torch.linspace(tail, 0.5, 9)[:-1].tolist()]
    negative = [-quantile(p) for p in torch.linspace(tail, 0.5, 8)[:-1].tolist()]
    levels = torch.tensor(sorted([*positive, 0.0, *negative]))
    assert torch.allclose(TABLES["nf4"], levels / levels.max(), rtol=0, atol=1e-6)


def test_the_table_of_fp4_is_its_format() -> None:
    """A sign, then the code of the size: 0, the one number below the normal ones, 8, 12, 4, ..."""
    sizes = [0, 1 / 16, 8, 12, 4, 6, 2, 3]
    expected = torch.tensor([*sizes, *(-size for size in sizes)]) / 12
    assert torch.equal(TABLES["fp4"], expected)


def test_the_table_of_8_bits_is_the_publications() -> None:
    """Dettmers et al. 2022 (8-bit optimizers), Section 1.3: 0, 1, and below each power of ten, from
    10^-6 to 1, twice as many values of each sign as below the one before: the middles of equal
    parts."""
    table = pack(draw(64, 64), "nf4-double").tensors["nested_quant_map"].double()
    negative, zero, positive, one = table.split([127, 1, 127, 1])
    assert (zero.item(), one.item()) == (0.0, 1.0)
    assert torch.equal(negative, -positive.flip(0))
    start = 0
    for i in range(7):
        parts = (torch.arange(2**i) + 0.5) / 2**i
        expected = 10.0 ** (i - 6) * (0.1 + 0.9 * parts.double())
        values = positive[start : start + 2**i]
        assert torch.allclose(values, expected, rtol=1e-6, atol=0)
        start += 2**i


@pytest.mark.parametrize("block", [32, 64, 128, 256, 512, 1024, 2048, 4096])
@pytest.mark.parametrize("format", ["fp4", "nf4-double"])
def test_blocks_of_every_size_that_bitsandbytes_knows_are_read(
    block: int, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantize, "BLOCK", block)
    packed = pack(draw(80, 96), format)
    assert len(packed.scales()) == math.ceil(80 * 96 / block)
    again = read_stored(stored(packed, blocksize=block), (80, 96), "here")
    assert torch.equal(again.unpack(torch.float32), packed.unpack(torch.float32))


@pytest.mark.parametrize(
    ("kind", "expected"), [("nf4", "e153212cca7fa37f"), ("fp4", "406d9b1502cf46a6")]
)
def test_the_packed_bytes_never_change(kind: str, expected: str) -> None:
    weight = (torch.arange(4096) / 2048 - 1).view(64, 64)  # exact in float32 on any machine
    tensors = pack(weight, kind).tensors
    digest = hashlib.sha256(tensors[""].numpy().tobytes() + tensors["absmax"].numpy().tobytes())
    assert digest.hexdigest()[:16] == expected


def stored(packed: Packed, **facts: Any) -> dict[str, Tensor]:
    """The tensors of a layer as bitsandbytes stores them, by what follows "weight."."""
    tensors = {**packed.tensors, "": packed.tensors[""][:, None]}
    state = {"quant_type": packed.kind, "blocksize": 64, "shape": packed.shape}
    if "nested_offset" in tensors:
        offset = tensors.pop("nested_offset").item()
        state |= {"nested_blocksize": 256, "nested_offset": offset}
    return tensors | {STATE + packed.kind: encode(state | facts)}


def encode(state: Any) -> Tensor:
    return torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)


@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("format", FORMATS)
def test_stored_tensors_are_read_back(format: str, storage: torch.dtype) -> None:
    packed = pack(draw(48, 32), format)
    tensors = stored(packed)
    tensors[""] = tensors[""].view(-1).view(storage)[:, None]
    again = read_stored(tensors, (48, 32), "here")
    assert torch.equal(again.unpack(torch.float32), packed.unpack(torch.float32))


DAMAGED: list[tuple[Callable[[dict[str, Tensor]], Any], str]] = [
    (lambda t: t.pop(STATE + "nf4"), STATE + "nf4"),
    (lambda t: t.update({STATE + "fp4": t[STATE + "nf4"]}), STATE + "fp4"),
    (lambda t: t.update({STATE + "nf4": encode([1])}), STATE + "nf4"),
    (lambda t: t.update({STATE + "nf4": torch.zeros(9, dtype=torch.uint8)}), STATE + "nf4"),
    (lambda t: t.update({STATE + "nf4": torch.ones(9)}), STATE + "nf4"),
    (lambda t: t.pop(""), ""),
    (lambda t: t.pop("absmax"), "absmax"),
    (lambda t: t.pop("nested_quant_map"), "nested_quant_map"),
    (lambda t: t.update({"more": torch.ones(1)}), "more"),
    (lambda t: t.update({"": t[""][1:]}), ""),
    (lambda t: t.update({"absmax": t["absmax"][1:]}), "absmax"),
    (lambda t: t.update({"absmax": t["absmax"].float()}), "absmax"),
    (lambda t: t.update({"quant_map": t["quant_map"].double()}), "quant_map"),
    (lambda t: t.update({"quant_map": torch.zeros(16)}), "quant_map"),
    (lambda t: t.update({"quant_map": TABLES["fp4"]}), "quant_map"),
    (lambda t: t.update({"quant_map": t["quant_map"].flip(0)}), "quant_map"),
    (lambda t: t.update({"quant_map": t["quant_map"] * math.nan}), "quant_map"),
    (lambda t: t.update({"quant_map": t["quant_map"].view(torch.int32)}), "quant_map"),
    (lambda t: t.update({"quant_map": t["quant_map"][:15]}), "quant_map"),
]


@pytest.mark.parametrize(("damage", "named"), DAMAGED)
def test_stored_tensors_that_do_not_fit_are_refused(
    damage: Callable[[dict[str, Tensor]], Any], named: str
) -> None:
    tensors = stored(pack(draw(48, 32), "nf4-double"))
    damage(tensors)
    with pytest.raises(InputError, match=rf"^here\.?{named} "):
        read_stored(tensors, (48, 32), "here")


@pytest.mark.parametrize(
    "facts",
    [
        {"quant_type": "fp4"},
        {"quant_type": "int4"},
        {"quant_type": None},
        {"blocksize": 63},
        {"blocksize": "many"},
        {"blocksize": float("inf")},
        {"blocksize": float("nan")},
        {"blocksize": -1},
        {"blocksize": 0},
        {"blocksize": 1e30},
        {"blocksize": 64.0},
        {"blocksize": 64.7},
        {"blocksize": "64"},
        {"blocksize": [64]},
        {"nested_offset": float("nan")},
        {"nested_offset": float("inf")},
        {"nested_offset": True},
        {"nested_offset": 10**400},
        {"nested_offset": "x"},
        {"shape": [32, 48]},
        {"shape": None},
        {"nested_blocksize": 0},
        {"nested_offset": None},
    ],
    ids=str,
)
def test_stored_facts_that_do_not_fit_are_refused(facts: dict[str, Any]) -> None:
    tensors = stored(pack(draw(48, 32), "nf4-double"), **facts)
    with pytest.raises(InputError, match=r"^here\.quant_state"):
        read_stored(tensors, (48, 32), "here")


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    """A checkpoint to change."""
    return shutil.copytree(llama_folder, tmp_path / "llama")


def store(folder: Path, format: str) -> Path:
    """Rewrite a checkpoint as bitsandbytes would store it."""

    def change(state: dict[str, Tensor]) -> None:
        for name in filter(lambda name: matrix_of(name)[0], list(state)):
            for part, tensor in stored(pack(state.pop(name), format)).items():
                state[f"{name}.{part}".rstrip(".")] = tensor

    edit(folder, change)
    configure(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    return folder


def put_back(state: dict[str, Tensor], plain: dict[str, Tensor], name: str) -> None:
    for part in [other for other in state if matrix_of(other)[0] == name]:
        del state[part]
    state[name] = plain[name]


class TestLoad:
    @pytest.mark.parametrize("format", FOUR_BIT)
    def test_loading_packs_the_stored_values_in_every_dtype(
        self, llama_folder: Path, format: str
    ) -> None:
        written = load_file(llama_folder / WEIGHTS)
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            lm = minise.load(llama_folder, dtype=dtype, quantize=format)
            layers = dict(lm.decoder.named_modules())
            state = lm.decoder.state_dict()
            for name, tensor in written.items():
                if matrix_of(name)[0]:
                    layer = layers[name.removesuffix(".weight")]
                    assert isinstance(layer, Linear4bit)
                    expected = pack(tensor, format).unpack(dtype)
                    assert torch.equal(layer.packed.unpack(dtype), expected)
                else:
                    assert torch.equal(state[name], tensor.to(dtype))

    @pytest.mark.parametrize("family", ALL_FAMILIES)
    @pytest.mark.parametrize("format", FOUR_BIT)
    def test_a_packed_checkpoint_equals_one_that_is_packed_while_it_is_loaded(
        self, tmp_path: Path, question: Question, family: str, format: str
    ) -> None:
        folder = write_checkpoint(tmp_path / "plain", ALL_FAMILIES[family])
        packed = minise.load(folder, quantize=format)
        again = minise.load(store(folder, format))
        assert format_of(again.decoder) == format_of(packed.decoder)
        answer, expected = (self_ensemble(lm, question, 3, 4) for lm in (again, packed))
        assert torch.equal(answer.scores, expected.scores)

    def test_some_layers_may_be_stored_unpacked(self, llama_folder: Path, tmp_path: Path) -> None:
        """Some checkpoints leave layers unpacked that would lose accuracy. The parts are in several
        files."""
        plain = load_file(llama_folder / WEIGHTS)
        folder = store(shutil.copytree(llama_folder, tmp_path / "mixed"), "nf4-double")
        edit(folder, lambda state: put_back(state, plain, UP))
        shard(folder)
        layers = dict(minise.load(folder).decoder.named_modules())
        assert torch.equal(layers[UP.removesuffix(".weight")].weight, plain[UP])
        assert sum(isinstance(layer, Linear4bit) for layer in layers.values()) == 20

    @pytest.mark.parametrize("format", ["int4", "fp4-double", ""])
    def test_unknown_formats_are_refused(self, llama_folder: Path, format: str) -> None:
        named = "is not one of nf4, fp4, nf4-double"
        assert named in refusal(llama_folder, quantize=format)

    @pytest.mark.parametrize(
        "config",
        [
            {"quant_method": "gptq", "bits": 4, "group_size": 128},
            {"quant_method": "awq", "bits": 4, "version": "gemm"},
            {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False},
            {"load_in_8bit": True},
            {"quant_method": "fp8"},
            "nf4",
        ],
        ids=str,
    )
    def test_other_quantizations_are_refused(self, folder: Path, config: Any) -> None:
        configure(folder, quantization_config=config)
        assert "quantization_config is" in refusal(folder)

    @pytest.mark.parametrize(
        ("change", "parts"),
        [
            (lambda s: s.pop(UP), (UP, "is missing")),
            (lambda s: s.pop(f"{UP}.absmax"), (f"{UP}.absmax", "needs")),
            (lambda s: s.update({f"{UP}.more": torch.ones(1)}), (f"{UP}.more", "needs None")),
            (lambda s: s.update({"lm_head.weight.absmax": torch.ones(1)}), ("unexpected",)),
            (lambda s: s[f"{UP}.absmax"].fill_(math.nan), (UP, "not finite")),
            (lambda s: s.update({UP: torch.ones(48, 32)}), (UP, "needs")),
        ],
    )
    def test_damaged_4_bit_tensors_are_refused(
        self, folder: Path, change: Callable[[dict[str, Tensor]], Any], parts: tuple[str, ...]
    ) -> None:
        store(folder, "nf4")
        edit(folder, change)
        message = refusal(folder)
        assert all(part in message for part in parts), message

    def test_packing_twice_is_refused(self, folder: Path) -> None:
        assert "is stored in 4 bits" in refusal(store(folder, "nf4"), quantize="nf4")

    def test_values_beyond_float16_are_refused(self, folder: Path) -> None:
        edit(folder, lambda state: state[UP].fill_(70000.0))
        for kind in TABLES:
            message = refusal(folder, dtype=torch.float16, quantize=kind)
            assert f"{UP} has scales that are not finite in torch.float16" in message
            minise.load(folder, dtype=torch.bfloat16, quantize=kind)


def test_ask_and_verify_take_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    """A shipped model in 4 bits has other weights, and passes verify."""
    scores = []
    for packed in ([], ["--quantize", "fp4"], ["--quantize", "nf4-double"]):
        status, out, _ = run(capsys, "ask", *Q, "--trials", 2, "--json", *packed)
        assert status == 0
        scores.append([choice["score"] for choice in json.loads(out)["choices"]])
    assert scores[0] != scores[1] != scores[2] != scores[0]
    status, out, _ = run(capsys, "verify", "--trials", 2, "--json", "--quantize", "nf4")
    report = json.loads(out)
    assert (status, report["passed"], report["bitwise"]) == (0, True, {"dense": True, "tree": True})
