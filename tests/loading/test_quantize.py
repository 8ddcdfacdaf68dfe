"""4-bit weights: the formats of bitsandbytes, packed, unpacked and read back to the same bits."""

import copy
import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minise
from minise import Question, self_ensemble
from minise.loading import FOUR_BIT
from minise.loading.quantize import STATE, TABLES, Packed, _nearest, pack, take_stored
from tests.loading.test_checkpoint import UP, configure, edit, refusal, shard
from tests.support.packed import in_4_bits, stored
from tests.support.tiny import ALL_FAMILIES, write_checkpoint

FAMILY = ALL_FAMILIES["qwen2"]  # with biases and a tied output
SHAPES = [(64, 64), (48, 32), (36, 24), (7, 130), (3, 5), (1, 1), (96, 1024)]


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (0.05 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(dtype)


def layer(weight: Tensor, format: str, dtype: torch.dtype = torch.float32) -> Packed:
    rows, columns = weight.shape
    return Packed(pack(weight, format), nn.Linear(columns, rows, device="meta"), dtype)


def values(table: Tensor, codes: Tensor) -> Tensor:
    return table[torch.stack([codes >> 4, codes & 15], dim=1).view(-1).int()]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", TABLES)
def test_each_value_becomes_the_nearest_of_its_blocks_sixteen(
    kind: str, shape: tuple[int, int]
) -> None:
    weight = draw(*shape)
    blocks = F.pad(weight.view(-1), (0, -weight.numel() % 64)).view(-1, 64).double()
    largest = blocks.abs().amax(dim=1, keepdim=True)
    entries = largest[:, :, None] * TABLES[kind].double()
    error = (blocks[:, :, None] - entries).abs().amin(dim=2).view(-1)[: weight.numel()]
    found = (layer(weight, kind).weight.double() - weight).abs().view(-1)
    assert torch.allclose(found, error, rtol=0, atol=1e-8)


def test_a_tie_takes_the_lower_entry_and_zeros_stay_zeros() -> None:
    for table in TABLES.values():
        ascending = table.sort().values
        edges = (ascending[1:] + ascending[:-1]) / 2
        nearest, _ = _nearest(torch.cat([edges, torch.ones(1)]), ascending, 16)
        assert nearest[0, :15].tolist() == list(range(15))
    for format in FOUR_BIT:
        assert not layer(torch.zeros(64, 64), format).weight.any()


@pytest.mark.parametrize(
    ("format", "expected"),
    [("nf4", "e153212cca7fa37f"), ("fp4", "406d9b1502cf46a6"), ("nf4-double", "897d8b373572d471")],
)
def test_the_packed_bytes_never_change(format: str, expected: str) -> None:
    weight = (torch.arange(4096) / 2048 - 1).view(64, 64)  # exact in float32 on any machine
    codes, scales, _ = pack(weight, format)
    digest = hashlib.sha256(codes.numpy().tobytes() + scales.numpy().tobytes())
    assert digest.hexdigest()[:16] == expected


def test_double_quantization_rounds_the_scales_to_the_nearest_of_256() -> None:
    weight = draw(1024, 256)
    (codes, exact, _), (same, rounded, _) = pack(weight, "nf4"), pack(weight, "nf4-double")
    assert torch.equal(codes, same)
    assert len(rounded.unique()) < len(exact.unique())
    # The entries are at most 1/64 of the largest apart.
    for scales, near in zip(exact.split(256), rounded.split(256), strict=True):
        assert (scales - near).abs().max() <= (scales - exact.mean()).abs().max() / 64


def test_a_packed_layer_keeps_its_values_in_every_dtype_it_is_moved_to() -> None:
    weight = draw(96, 1024)
    for format in FOUR_BIT:
        codes, scales, table = pack(weight, format)
        exact = (values(table, codes).view(-1, 64) * scales[:, None]).view(96, 1024)
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            packed = layer(weight, format, dtype)
            assert torch.equal(packed.weight, exact.to(dtype))
            # A wider copy has the same numbers, not those of another rounding.
            wide = copy.deepcopy(packed).to(torch.float64).weight
            assert torch.equal(wide, exact.to(dtype).double())
            assert sum(x.nbytes for x in packed.buffers()) == weight.numel() * 36 / 64 + 64


def test_a_packed_layer_computes_as_an_ordinary_one() -> None:
    plain = nn.Linear(64, 48)
    packed = Packed(pack(plain.weight.detach(), "nf4"), plain, torch.float32)
    x = draw(5, 64)
    assert torch.equal(packed(x), F.linear(x, packed.weight, plain.bias))
    packed(x.requires_grad_()).sum().backward()
    assert torch.allclose(x.grad, packed.weight.sum(dim=0).expand(5, 64), atol=1e-5)


# Whole models.


def packed_layers(lm: minise.LanguageModel) -> dict[str, Packed]:
    return {name: x for name, x in lm.decoder.named_modules() if isinstance(x, Packed)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("format", FOUR_BIT)
def test_loading_packs_the_stored_values_of_the_linear_layers_alone(
    tmp_path: Path, format: str, dtype: torch.dtype
) -> None:
    plain = minise.load(write_checkpoint(tmp_path, FAMILY)).decoder.state_dict()
    lm = minise.load(tmp_path, dtype=dtype, quantize=format)
    packed = packed_layers(lm)
    assert len(packed) == 7 * 3
    for name, one in packed.items():
        stored = plain.pop(f"{name}.weight")
        assert torch.equal(one.weight, layer(stored, format, dtype).weight)
    assert {name: x.dtype for name, x in lm.decoder.state_dict().items()} == dict.fromkeys(
        plain, dtype
    )


# What bitsandbytes stored.


def store(folder: Path, format: str) -> Path:
    """Rewrite a checkpoint as bitsandbytes would store it."""

    def change(state: dict[str, Tensor]) -> None:
        parts = in_4_bits(state, format)
        state.clear()
        state.update(parts)

    edit(folder, change)
    configure(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "qwen", FAMILY)


@pytest.mark.parametrize("format", ["nf4", "fp4"])
def test_a_stored_checkpoint_is_the_one_that_is_packed_while_it_is_loaded(
    folder: Path, question: Question, format: str
) -> None:
    packed = minise.load(folder, quantize=format)
    shard(store(folder, format))  # the parts of a matrix are in several files
    again = minise.load(folder)
    assert packed_layers(again).keys() == packed_layers(packed).keys()
    answer, expected = (self_ensemble(lm, question, 3, 4) for lm in (again, packed))
    assert torch.equal(answer.scores, expected.scores)


def test_some_layers_may_be_stored_unpacked(folder: Path) -> None:
    plain = minise.load(folder).decoder.get_parameter(UP).clone()

    def put_back(state: dict[str, Tensor]) -> None:
        for name in [name for name in state if name.startswith(UP)]:
            del state[name]
        state[UP] = plain

    edit(store(folder, "nf4-double"), put_back)
    lm = minise.load(folder)
    assert torch.equal(lm.decoder.get_parameter(UP), plain)
    assert len(packed_layers(lm)) == 20
    assert "stored in 4 bits" in refusal(folder, quantize="nf4")


def fact(**facts: Any) -> Callable[[dict[str, Tensor]], Any]:
    return lambda t: t.update(stored(draw(48, 32), "nf4-double", **facts))


KEY = STATE.removeprefix(".weight") + "nf4"
DAMAGED: list[Callable[[dict[str, Tensor]], Any]] = [
    lambda t: t.update({KEY: torch.tensor(list(b"[1]"), dtype=torch.uint8)}),
    lambda t: t.pop(""),
    lambda t: t.pop(".absmax"),
    lambda t: t.pop(".nested_quant_map"),
    lambda t: t.update({"": t[""][1:]}),
    lambda t: t.update({"": torch.cat([t[""], t[""]])}),
    lambda t: t.update({".absmax": t[".absmax"][1:]}),
    lambda t: t.update({".absmax": t[".absmax"].float()}),
    lambda t: t.update({".nested_absmax": t[".nested_absmax"] * math.nan}),
    lambda t: t.update({".nested_absmax": t[".nested_absmax"].double()}),
    lambda t: t.update({".quant_map": t[".quant_map"].double()}),
    lambda t: t.update({".quant_map": t[".quant_map"][:15]}),
    *[
        fact(blocksize=x)
        for x in (63, 65, 0, -64, 64.5, 1e30, "64", None, [64], True, math.nan, math.inf)
    ],
]


@pytest.mark.parametrize("damage", DAMAGED)
def test_stored_tensors_that_do_not_fit_are_refused(
    damage: Callable[[dict[str, Tensor]], Any], folder: Path
) -> None:
    decoder = minise.load(folder).decoder
    parts = stored(draw(48, 32), "nf4-double")
    damage(parts)
    state = {UP + part: tensor for part, tensor in parts.items()}
    with pytest.raises(minise.InputError, match=f"^here: tensor {UP}") as refused:
        take_stored(decoder, state, torch.float32, "here")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda s: [s.pop(x) for x in list(s) if x.startswith(UP)], UP),
        (lambda s: s.pop(UP + KEY), f"{UP}.absmax"),
        (lambda s: s.update({"lm_head" + STATE + "nf4": torch.ones(1)}), "lm_head"),
        (lambda s: s.update({f"x{STATE}nf4": torch.ones(1)}), f"x{STATE}nf4"),
    ],
)
def test_a_stored_checkpoint_is_as_strict_as_any(
    folder: Path, change: Callable[[dict[str, Tensor]], Any], named: str
) -> None:
    edit(store(folder, "nf4"), change)
    assert named in refusal(folder)


# The library itself. It is given every matrix as one long row: on a CPU its 0.50 unpacks others
# wrongly if their rows are no multiple of a block. Its double quantization rounds some scales to
# another entry than the nearest one, so only what it stored is compared.


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16], ids=str)
def test_bitsandbytes_packs_and_unpacks_to_the_same_bits(
    folder: Path, kind: str, double: bool, storage: torch.dtype
) -> None:
    library = pytest.importorskip("bitsandbytes.functional", reason="the extra [parity]")
    assert torch.equal(TABLES[kind], library.get_4bit_type(kind, device="cpu"))
    for dtype in (torch.float32, torch.bfloat16):
        weight = draw(48, 32, dtype=dtype)
        codes, state = library.quantize_4bit(
            weight, quant_type=kind, compress_statistics=double, quant_storage=storage
        )
        parts = {"": codes, **{f".{x}": t for x, t in state.as_dict(packed=True).items()}}
        decoder = minise.load(folder).decoder
        take_stored(decoder, {UP + x: t for x, t in parts.items()}, torch.float32, "here")
        ours = decoder.get_submodule(UP.removesuffix(".weight")).weight
        state.dtype, state.shape = torch.float32, torch.Size((1, 48 * 32))
        assert torch.equal(ours.view(1, -1), library.dequantize_4bit(codes, state))
        if not double:
            assert torch.equal(ours, layer(weight, kind).weight)
