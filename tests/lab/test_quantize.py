"""4-bit weights: the format nf4 of bitsandbytes, packed and unpacked to the same bits."""

import copy
import hashlib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minise
from minise.lab.quantize import LEVELS, Packed, count_weights, pack_weight
from tests.reference.support.tiny import ALL_FAMILIES, write_checkpoint

FAMILY = ALL_FAMILIES["qwen2"]  # with biases and a tied output
SHAPES = [(64, 64), (48, 32), (36, 24), (7, 130), (3, 5), (1, 1), (96, 1024)]


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (0.05 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(dtype)


def layer(weight: Tensor, dtype: torch.dtype = torch.float32) -> Packed:
    rows, columns = weight.shape
    return Packed(pack_weight(weight), nn.Linear(columns, rows, device="meta"), dtype)


def each(codes: Tensor) -> Tensor:
    return torch.stack([codes >> 4, codes & 15], dim=1).view(-1).int()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_value_becomes_the_nearest_of_its_blocks_sixteen(shape: tuple[int, int]) -> None:
    weight = draw(*shape)
    blocks = F.pad(weight.view(-1), (0, -weight.numel() % 64)).view(-1, 64).double()
    largest = blocks.abs().amax(dim=1, keepdim=True)
    entries = largest[:, :, None] * LEVELS.double()
    error = (blocks[:, :, None] - entries).abs().amin(dim=2).view(-1)[: weight.numel()]
    found = (layer(weight).weight.double() - weight).abs().view(-1)
    assert torch.allclose(found, error, rtol=0, atol=1e-8)


def test_a_tie_takes_the_lower_entry_and_zeros_stay_zeros() -> None:
    edges = (LEVELS[1:] + LEVELS[:-1]) / 2
    codes = each(pack_weight(torch.cat([edges, torch.ones(49)])[None]).codes)
    assert codes[:15].tolist() == list(range(15))
    assert not layer(torch.zeros(64, 64)).weight.any()


def test_the_packed_bytes_never_change() -> None:
    weight = (torch.arange(4096) / 2048 - 1).view(64, 64)  # exact in float32 on any machine
    blocks = pack_weight(weight)
    digest = hashlib.sha256(blocks.codes.numpy().tobytes() + blocks.scales.numpy().tobytes())
    assert digest.hexdigest()[:16] == "e153212cca7fa37f"


def test_a_packed_layer_keeps_its_values_in_every_dtype_it_is_moved_to() -> None:
    weight = draw(96, 1024)
    blocks = pack_weight(weight)
    exact = (LEVELS[each(blocks.codes)].view(-1, 64) * blocks.scales[:, None]).view(96, 1024)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        packed = layer(weight, dtype)
        assert torch.equal(packed.weight, exact.to(dtype))
        # A wider copy has the same numbers, not those of another rounding.
        wide = copy.deepcopy(packed).to(torch.float64).weight
        assert torch.equal(wide, exact.to(dtype).double())
        assert sum(x.nbytes for x in packed.buffers()) == weight.numel() * 36 / 64 + 64


def test_a_packed_layer_computes_as_an_ordinary_one() -> None:
    plain = nn.Linear(64, 48)
    packed = Packed(pack_weight(plain.weight.detach()), plain, torch.float32)
    x = draw(5, 64)
    assert torch.equal(packed(x), F.linear(x, packed.weight, plain.bias))
    packed(x.requires_grad_()).sum().backward()
    assert torch.allclose(x.grad, packed.weight.sum(dim=0).expand(5, 64), atol=1e-5)


# Whole models.


def packed_layers(lm: minise.LocalModel) -> dict[str, Packed]:
    return {name: x for name, x in lm.decoder.named_modules() if isinstance(x, Packed)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_loading_packs_the_stored_values_of_the_linear_layers_alone(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    plain = minise.load(write_checkpoint(tmp_path, FAMILY)).decoder.state_dict()
    lm = minise.load(tmp_path, dtype=dtype, quantize="nf4")
    packed = packed_layers(lm)
    assert len(packed) == 7 * 3
    for name, one in packed.items():
        stored = plain.pop(f"{name}.weight")
        assert torch.equal(one.weight, layer(stored, dtype).weight)
    assert {name: x.dtype for name, x in lm.decoder.named_parameters()} == dict.fromkeys(
        plain, dtype
    )


@pytest.mark.parametrize("equal_bits", [False, True])
def test_all_weights_are_counted_and_in_the_state_also_those_in_4_bits(
    tmp_path: Path, equal_bits: bool
) -> None:
    plain = minise.load(write_checkpoint(tmp_path, FAMILY), equal_bits=equal_bits)
    lm = minise.load(tmp_path, quantize="nf4", equal_bits=equal_bits)
    numbers = sum(x.numel() for x in plain.decoder.parameters())
    assert count_weights(lm.decoder) == count_weights(plain.decoder) == numbers
    for state in packed_layers(lm).values():
        assert {"codes", "scales"} <= state.state_dict().keys()


# The library itself. It is given every matrix as one long row: on a CPU its 0.50 unpacks others
# wrongly if their rows are no multiple of a block.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bitsandbytes_packs_and_unpacks_to_the_same_bits(dtype: torch.dtype) -> None:
    library = pytest.importorskip("bitsandbytes.functional", reason="the extra [parity]")
    assert torch.equal(LEVELS, library.get_4bit_type("nf4", device="cpu"))
    weight = draw(48, 32, dtype=dtype)
    packed, state = library.quantize_4bit(weight, quant_type="nf4", compress_statistics=False)
    blocks = pack_weight(weight)
    assert torch.equal(blocks.codes, packed.view(-1))
    assert torch.equal(blocks.scales, state.absmax)
    state.dtype, state.shape = torch.float32, torch.Size((1, 48 * 32))
    unpacked = library.dequantize_4bit(packed, state)
    assert torch.equal(layer(weight).weight.view(1, -1), unpacked)
