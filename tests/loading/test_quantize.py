"""4-bit weights: what is kept of a matrix, and that a packed model is an ordinary one otherwise."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
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
from minise.names import FOUR_BIT
from tests.loading.test_checkpoint import WEIGHTS, configure, edit, refusal, shard
from tests.support.commands import Q, assert_one_line, run
from tests.support.tiny import FAMILIES, write_checkpoint

FORMATS = [("nf4", False), ("fp4", False), ("nf4", True), ("fp4", True)]
SHAPES = [(64, 64), (48, 32), (3, 5), (1, 1), (7, 130), (512, 192)]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def packed_decoder(decoder: Decoder, kind: str, double: bool) -> Decoder:
    """A copy whose linear layers are packed."""
    decoder = copy.deepcopy(decoder)
    for name, tensor in decoder.state_dict().items():
        if matrix_of(name)[0]:
            put(decoder, name, pack(tensor, kind, double), decoder.dtype, Path())
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
    def test_by_hand(self) -> None:
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
        once, twice = pack(weight, kind), pack(weight, kind, double=True)
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

    @pytest.mark.parametrize(("kind", "double"), FORMATS)
    def test_other_dtypes_round_the_float32_values(self, kind: str, double: bool) -> None:
        packed = pack(draw(7, 130), kind, double)
        values = packed.unpack(torch.float32)
        for dtype in (torch.float64, torch.bfloat16, torch.float16):
            assert torch.equal(packed.unpack(dtype), values.to(dtype))

    @pytest.mark.parametrize(("kind", "double"), FORMATS)
    def test_in_pieces_or_at_once(
        self, kind: str, double: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = pack(draw(33, 129), kind, double)
        monkeypatch.setattr(quantize, "PIECE", 256)
        parts = pack(draw(33, 129), kind, double)
        assert torch.equal(parts.unpack(torch.float32), whole.unpack(torch.float32))

    @pytest.mark.parametrize("double", [False, True])
    def test_size(self, double: bool) -> None:
        size = sum(x.nbytes for x in pack(draw(512, 512), "nf4", double).tensors.values())
        blocks, tables = 512 * 512 // 64, 4 * (16 + 256 + 1) if double else 4 * 16
        scales = blocks + 4 * blocks // 256 if double else 4 * blocks
        assert size == 512 * 512 // 2 + scales + tables

    def test_zeros_stay_zeros(self) -> None:
        for kind, double in FORMATS:
            assert not pack(torch.zeros(3, 33), kind, double).unpack(torch.float32).any()


class TestLayer:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
    def test_computes_as_an_ordinary_layer_with_the_unpacked_weight(
        self, dtype: torch.dtype
    ) -> None:
        packed, bias = pack(draw(48, 32), "nf4", double=True), nn.Parameter(draw(48).to(dtype))
        x = draw(64, 32, seed=1).to(dtype)
        expected = F.linear(x, packed.unpack(dtype), bias)
        assert torch.equal(Linear4bit(packed, bias, dtype)(x), expected)

    def test_another_dtype_of_the_model_changes_no_table_and_no_scale(self) -> None:
        """As for an ordinary layer, .to(wider) keeps the weights' values."""
        packed = pack(draw(48, 32), "nf4", double=True)
        layer, x = Linear4bit(packed, None, torch.bfloat16), draw(64, 32, seed=1).double()
        narrow = copy.deepcopy(layer).to(torch.bfloat16).to(torch.float64)
        for same in (layer, narrow):
            assert torch.equal(same(x), F.linear(x, packed.unpack(torch.bfloat16).double()))


@pytest.mark.parametrize(("kind", "double"), FORMATS)
def test_a_packed_model_is_an_ordinary_one_with_the_unpacked_weights(
    lm: LanguageModel, question: Question, kind: str, double: bool
) -> None:
    packed = replace(lm, decoder=packed_decoder(lm.decoder, kind, double))
    plain = replace(lm, decoder=plain_decoder(packed.decoder))
    assert format_of(packed.decoder) == kind + ("-double" if double else "")
    assert format_of(plain.decoder) is None
    layers = [m for m in packed.decoder.modules() if isinstance(m, Linear4bit)]
    assert len(layers) == 7 * lm.config.num_hidden_layers
    plan = SelfEnsemble(group_size=3, trials=1).plan(lm, question)
    found, again = (verify(x, plan, gradients=True) for x in (packed, plain))
    assert found.passed
    assert found.bitwise
    assert found == again


@pytest.mark.parametrize("kind", TABLES)
def test_verify_in_bfloat16(lm: LanguageModel, question: Question, kind: str) -> None:
    """What is allowed is measured in a wider dtype on the same weights."""
    decoder = copy.deepcopy(lm.decoder).to(torch.bfloat16)
    packed = replace(lm, decoder=packed_decoder(decoder, kind, False))
    plain = replace(lm, decoder=plain_decoder(packed.decoder))
    plan = SelfEnsemble(group_size=3, trials=1).plan(lm, question)
    found, again = verify(packed, plan), verify(plain, plan)
    assert found.passed
    assert found.bounds == again.bounds


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
@pytest.mark.parametrize(("kind", "double"), FORMATS)
def test_stored_tensors_are_read_back(kind: str, double: bool, storage: torch.dtype) -> None:
    packed = pack(draw(48, 32), kind, double)
    tensors = stored(packed)
    tensors[""] = tensors[""].view(-1).view(storage)[:, None]
    found = read_stored(tensors, (48, 32), "here")
    assert torch.equal(found.unpack(torch.float32), packed.unpack(torch.float32))


SPOILED: list[tuple[Callable[[dict[str, Tensor]], Any], str]] = [
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
]


@pytest.mark.parametrize(("spoil", "named"), SPOILED)
def test_stored_tensors_that_do_not_fit_are_refused(
    spoil: Callable[[dict[str, Tensor]], Any], named: str
) -> None:
    tensors = stored(pack(draw(48, 32), "nf4", double=True))
    spoil(tensors)
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
        {"shape": [32, 48]},
        {"shape": None},
        {"nested_blocksize": 0},
        {"nested_offset": None},
    ],
    ids=str,
)
def test_stored_facts_that_do_not_fit_are_refused(facts: dict[str, Any]) -> None:
    tensors = stored(pack(draw(48, 32), "nf4", double=True), **facts)
    with pytest.raises(InputError, match=r"^here\.quant_state"):
        read_stored(tensors, (48, 32), "here")


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    """A checkpoint to change."""
    return shutil.copytree(llama_folder, tmp_path / "llama")


def store(folder: Path, kind: str, double: bool) -> Path:
    """Rewrite a checkpoint as bitsandbytes would store it."""

    def change(state: dict[str, Tensor]) -> None:
        for name in filter(lambda name: matrix_of(name)[0], list(state)):
            for part, tensor in stored(pack(state.pop(name), kind, double)).items():
                state[f"{name}.{part}".rstrip(".")] = tensor

    edit(folder, change)
    configure(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    return folder


def put_back(state: dict[str, Tensor], plain: dict[str, Tensor], name: str) -> None:
    for part in [other for other in state if matrix_of(other)[0] == name]:
        del state[part]
    state[name] = plain[name]


class TestLoad:
    @pytest.mark.parametrize(("kind", "double"), FORMATS)
    def test_packs_the_stored_values_whatever_the_dtype(
        self, llama_folder: Path, kind: str, double: bool
    ) -> None:
        written = load_file(llama_folder / WEIGHTS)
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            lm = minise.load(llama_folder, dtype=dtype, quantize=kind, double_quant=double)
            layers = dict(lm.decoder.named_modules())
            state = lm.decoder.state_dict()
            for name, tensor in written.items():
                if matrix_of(name)[0]:
                    layer = layers[name.removesuffix(".weight")]
                    assert isinstance(layer, Linear4bit)
                    expected = pack(tensor, kind, double).unpack(dtype)
                    assert torch.equal(layer.packed.unpack(dtype), expected)
                else:
                    assert torch.equal(state[name], tensor.to(dtype))

    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize(("kind", "double"), FORMATS)
    def test_a_stored_checkpoint_is_as_one_that_is_packed_while_it_is_read(
        self, tmp_path: Path, question: Question, family: str, kind: str, double: bool
    ) -> None:
        folder = write_checkpoint(tmp_path / "plain", FAMILIES[family])
        packed = minise.load(folder, quantize=kind, double_quant=double)
        again = minise.load(store(folder, kind, double))
        assert format_of(again.decoder) == format_of(packed.decoder)
        found, expected = (self_ensemble(lm, question, 3, 4) for lm in (again, packed))
        assert torch.equal(found.scores, expected.scores)

    def test_a_layer_may_be_stored_as_it_was(self, llama_folder: Path, tmp_path: Path) -> None:
        """Some checkpoints leave out layers that suffer. The parts lie in several files."""
        plain = load_file(llama_folder / WEIGHTS)
        folder = store(shutil.copytree(llama_folder, tmp_path / "mixed"), "nf4", True)
        edit(folder, lambda state: put_back(state, plain, UP))
        shard(folder)
        layers = dict(minise.load(folder).decoder.named_modules())
        assert torch.equal(layers[UP.removesuffix(".weight")].weight, plain[UP])
        assert sum(isinstance(layer, Linear4bit) for layer in layers.values()) == 20

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"quantize": "int4"}, "not one of nf4, fp4"),
            ({"double_quant": True}, "of no format"),
        ],
        ids=str,
    )
    def test_unknown_formats_are_refused(
        self, llama_folder: Path, options: dict[str, Any], named: str
    ) -> None:
        assert named in refusal(llama_folder, **options)

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
    def test_what_is_not_4_bit_bitsandbytes_is_refused(self, folder: Path, config: Any) -> None:
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
    def test_damage_is_refused(
        self, folder: Path, change: Callable[[dict[str, Tensor]], Any], parts: tuple[str, ...]
    ) -> None:
        store(folder, "nf4", False)
        edit(folder, change)
        message = refusal(folder)
        assert all(part in message for part in parts), message

    def test_packing_twice_is_refused(self, folder: Path) -> None:
        assert "is stored in 4 bits" in refusal(store(folder, "nf4", False), quantize="nf4")

    def test_values_beyond_float16_are_refused(self, folder: Path) -> None:
        edit(folder, lambda state: state[UP].fill_(70000.0))
        for kind in TABLES:
            message = refusal(folder, dtype=torch.float16, quantize=kind)
            assert f"{UP} has scales that are not finite in torch.float16" in message
            minise.load(folder, dtype=torch.bfloat16, quantize=kind)


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A shipped model in 4 bits is another one, and passes verify."""
    assert tuple(TABLES) == FOUR_BIT
    found = []
    for packed in ([], ["--quantize", "fp4"], ["--quantize", "nf4", "--double-quant"]):
        status, out, _ = run(capsys, "ask", *Q, "--trials", 2, "--json", *packed)
        assert status == 0
        found.append([choice["score"] for choice in json.loads(out)["choices"]])
    assert found[0] != found[1] != found[2] != found[0]
    status, out, _ = run(capsys, "verify", "--trials", 2, "--json", "--quantize", "nf4")
    told = json.loads(out)
    assert (status, told["passed"], told["bitwise"]) == (0, True, {"dense": True, "tree": True})
    assert_one_line(*run(capsys, "ask", *Q, "--double-quant"), ["double quantization of no format"])


def test_bench_times_a_packed_model_without_the_library(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """It has no place for packed tensors. The floor is of the packed layers."""
    store(folder, "nf4", True)
    status, out, _ = run(capsys, "bench", "--model", folder, "--rounds", 1, "--json")
    told = json.loads(out)
    assert status == 0
    assert [row["name"] for row in told["rows"]] == ["separate", "dense", "tree", "plain"]
    assert all(row["max_difference"] == 0 for row in told["rows"][:3])
    assert told["rows"][3]["max_difference"] <= 1e-4
    assert told["floor_seconds"] > 0
