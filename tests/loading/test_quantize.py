"""4-bit weights: the formats of bitsandbytes, packed and unpacked to the same bits."""

import copy
import hashlib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minise
from minise.loading import FOUR_BIT
from minise.loading.quantize import TABLES, Packed, _nearest, pack
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


def packed_layers(lm: minise.LocalModel) -> dict[str, Packed]:
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


# The library itself. It is given every matrix as one long row: on a CPU its 0.50 unpacks others
# wrongly if their rows are no multiple of a block. Its double quantization rounds some scales to
# another entry than the nearest one, so it is not compared.


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bitsandbytes_packs_and_unpacks_to_the_same_bits(kind: str, dtype: torch.dtype) -> None:
    library = pytest.importorskip("bitsandbytes.functional", reason="the extra [parity]")
    assert torch.equal(TABLES[kind], library.get_4bit_type(kind, device="cpu"))
    weight = draw(48, 32, dtype=dtype)
    packed, state = library.quantize_4bit(weight, quant_type=kind, compress_statistics=False)
    codes, scales, _ = pack(weight, kind)
    assert torch.equal(codes, packed.view(-1))
    assert torch.equal(scales, state.absmax)
    state.dtype, state.shape = torch.float32, torch.Size((1, 48 * 32))
    unpacked = library.dequantize_4bit(packed, state)
    assert torch.equal(layer(weight, kind).weight.view(1, -1), unpacked)
