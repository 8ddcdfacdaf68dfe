"""Choose device and dtype, where they are "auto", by the size of the weights and free memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from minise.config import Config
from minise.errors import InputError, one_line, quote
from minise.exact.machine import for_bfloat16
from minise.loading.names import AUTO
from minise.loading.stored import Stored
from minise.memory import free_bytes

ROOM = 0.6  # the part of free memory that weights may take in a wider dtype than the stored one
UNKNOWN = 12 * 2**30  # bytes that count as free where the system does not say
PLANNED = r"cpu|mps|cuda(:\d\d?)?"  # devices to plan for, which need not be here
SMALL = 20_000_000  # values; a smaller model gains nothing by a GPU, and threads slow it down


@dataclass(frozen=True)
class Placement:
    """The choice. bytes: of the weights, once they are loaded. free: bytes on the device before,
    None where the system does not say. why: the reason in words; empty where nothing was chosen,
    and in the plain case, the preferred dtype on a CPU."""

    dtype: torch.dtype
    device: torch.device
    bytes: int
    free: int | None
    why: str
    planned: bool = False  # free is what was given to plan with


def place(
    stored: Stored,
    dtype: torch.dtype | str = AUTO,
    device: str | torch.device = AUTO,
    quantize: str | None = None,
    preferred: torch.dtype = torch.float32,
    memory: int | None = None,
) -> Placement:
    """Choose what is "auto". Raises InputError if the weights do not fit, and says what would.

    `memory`: bytes that count as free, to plan for another machine. The device need not be here.

    Device: CUDA, or MPS, where there is one; the CPU for a model of under 20 million values.

    Dtype on a CPU: `preferred`, float32 or float64, where the weights take at most 0.6 of the free
    memory; else float32 where they do; else the stored one, but bfloat16 for float16 on a CPU that
    has instructions for bfloat16, because CPUs compute float16 slowly. On a GPU: float64 where it
    is preferred and takes at most 0.6 of the free memory; else the stored one, but float16 where
    the card has no bfloat16. 4-bit weights do not count as smaller here, so that a model computes
    in the same dtype whether it is packed or not.
    """
    planned = memory is not None
    if device == AUTO:
        where = _device(stored)
    else:
        where = known_device(device) if planned else usable_device(device)
    free, packed = memory if planned else free_bytes(where), stored.in_4_bits(quantize)
    chosen, why = _dtype(stored, where, free, preferred) if isinstance(dtype, str) else (dtype, "")
    if not why and device == AUTO and where.type != "cpu":
        why = "because there is one"
    size = stored.bytes(chosen, packed)
    if free is not None and size > free:
        raise InputError(
            f"{stored.folder}: its weights take {in_words(size)} in {name_of(chosen)}, and "
            f"{in_words(free)} are free on {where}; {_remedy(stored, chosen, packed, free)}"
        )
    return Placement(chosen, where, size, free, why, planned)


def usable_device(device: str | torch.device) -> torch.device:
    """The device. Raises InputError if a tensor cannot be created on it and read back."""
    try:
        torch.zeros(1, device=device).item()  # item() fails on "meta", whose tensors hold no values
        return torch.device(device)
    except (RuntimeError, AssertionError, ImportError) as error:
        plan = f", or plan for another machine: --dry-run --device {device} --memory 24GB"
        raise InputError(
            f"device {quote(str(device))} cannot be used here ({one_line(error)}); try cpu"
            + plan * bool(re.fullmatch(PLANNED, str(device)))
        ) from None


def known_device(device: str | torch.device) -> torch.device:
    """The device, which need not be in this machine. Raises InputError for no name of a device."""
    if not re.fullmatch(PLANNED, str(device)):
        raise InputError(f"device {quote(str(device))} is unknown; use cpu, cuda, cuda:1 or mps")
    return torch.device(device)


def name_of(dtype: torch.dtype) -> str:
    """The name that --dtype takes: "float32"."""
    return str(dtype).removeprefix("torch.")


def pass_bytes(config: Config, dtype: torch.dtype, tokens: int, engine: str, packed: bool) -> int:
    """An estimate of the bytes that a pass of `tokens` tokens takes beside the weights, at its
    peak: the stream, queries, keys and values, the wide rows of the MLP; in the engines dense and
    plain a mask of the tokens, and in plain the scores of a layer before and after the softmax;
    with `packed` the largest matrix, unpacked. docs/costs.md compares it with measurements."""
    D, wide = config.hidden_size, config.intermediate_size
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    values = tokens * (8 * D + 2 * heads * config.head_dim) + min(tokens, 2048) * 4 * wide
    scores = 2 * config.num_attention_heads * max(4, dtype.itemsize) * (engine == "plain")
    squared = (scores + (engine in ("dense", "plain"))) * tokens**2
    return (values + packed * D * wide) * dtype.itemsize + squared


def in_words(size: float) -> str:
    """Bytes as "1.5 GiB", or "12.0 MiB"."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def _device(stored: Stored) -> torch.device:
    if stored.values >= SMALL:
        for name, backend in (("cuda", torch.cuda), ("mps", torch.backends.mps)):
            if backend.is_available():
                return usable_device(name)
    return torch.device("cpu")


def _dtype(
    stored: Stored, device: torch.device, free: int | None, preferred: torch.dtype
) -> tuple[torch.dtype, str]:
    """The dtype, and why; see `place`."""
    room = UNKNOWN if free is None else free
    large = ""
    for dtype in _wider(device, preferred):
        if stored.bytes(dtype) <= ROOM * room:
            if dtype != preferred:
                return dtype, f"as {large}"
            return dtype, "" if device.type == "cpu" else "because it fits"
        need = in_words(stored.bytes(dtype))
        large = large or f"{name_of(dtype)} would take {need}, and {in_words(room)} are free"
    dtype, why = _near_stored(stored.dtype, device)
    slow = ""
    if device.type == "cpu" and dtype.itemsize == 2 and not for_bfloat16():
        slow = f"this CPU is slow in {name_of(dtype)}"
    return dtype, "; ".join(filter(None, (why, large, slow)))


def _wider(device: torch.device, preferred: torch.dtype) -> list[torch.dtype]:
    """The dtypes to use in place of the stored one where they fit, the first one first."""
    dtypes = []
    if device.type == "cpu" or preferred == torch.float64:
        dtypes.append(preferred)
    if device.type == "cpu":
        dtypes.append(torch.float32)
    return [dtype for dtype in dtypes if not (dtype == torch.float64 and device.type == "mps")]


def _near_stored(dtype: torch.dtype, device: torch.device) -> tuple[torch.dtype, str]:
    """The stored dtype, or the one to use for it on this device; and why."""
    if dtype == torch.bfloat16 and not _has_bfloat16(device):
        return torch.float16, "which has no bfloat16"
    if dtype == torch.float64 and device.type == "mps":
        return torch.float32, "which has no float64"
    if dtype == torch.float16 and device.type == "cpu" and for_bfloat16():
        return torch.bfloat16, "which computes it faster than the stored float16"
    return dtype, "as it is stored"


def _has_bfloat16(device: torch.device) -> bool:
    backend = {"cuda": torch.cuda, "mps": torch.backends.mps}.get(device.type)
    if backend is not None and not backend.is_available():
        return True  # it is planned for, and in another machine
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        return bool(torch.ones(1, dtype=torch.bfloat16, device=device).item())
    except (RuntimeError, TypeError):  # older versions of macOS
        return False


def _remedy(stored: Stored, dtype: torch.dtype, packed: frozenset[str], free: int) -> str:
    """What would fit, the smaller changes first."""
    half = torch.bfloat16 if dtype.itemsize > 2 else dtype
    all_packed = packed or stored.in_4_bits("nf4")
    sizes = {}  # option -> bytes with this change alone
    if half != dtype:
        sizes[f"--dtype {name_of(half)}"] = stored.bytes(half, packed)
    if not packed:
        sizes["--quantize nf4"] = stored.bytes(dtype, all_packed)
    fitting = [f"{option} takes {in_words(size)}" for option, size in sizes.items() if size <= free]
    if fitting:
        return " or ".join(fitting)
    least = stored.bytes(half, all_packed)
    return f"{' '.join(sizes)} takes {in_words(least)}" if least <= free else "use a smaller model"
