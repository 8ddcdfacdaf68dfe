"""Any causal language model of the transformers library, behind the decoder's three arguments.

So the engines pack it too, if it reads a mask and position ids; its recurrent layers read along the
paths of the mask (minise/lab/recurrent/in_transformers.py). Not all do: packable.py has the
table of those that are known to. That is the first net. The second are the numbers: the prompts of
a pass are compared with each of them alone, and a model that was wrong once is packed no more. A
window is applied if the class goes by one, which is tried.

Dimension legend: T tokens, R rows that are read, G prompts, V vocabulary.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from minise.attention import within
from minise.engines import ENGINES, Ids, engine_named, separate
from minise.errors import InputError, Unsuited, one_line, quote
from minise.lab.recurrent.in_transformers import along, prepare
from minise.lab.serving import say
from minise.lab.serving.packable import (
    STATES,
    WINDOW_IN_FULL,
    WITHOUT_ATTENTION,
    is_recurrent,
    unknown_part,
)
from minise.layout import Layout, causal_mask, pack
from minise.lm import LocalModel, wide
from minise.loading.checkpoint import Elsewhere
from minise.loading.config_json import FULL, SLIDING
from minise.loading.plugin import find_engine, load_extra
from minise.loading.source import find_folder, instead, read_json, weight_files
from minise.memory import is_out_of_memory
from minise.tokenizer import Tokenizer

PACKED = ("tree", "packed")  # engines that promise the numbers of separate prompts
NO_LIMIT = 1_000_000  # positions of a model that names no last one
# How far a logit of a packed prompt may be from that of the prompt alone, in standard deviations of
# the prompt's logits: docs/serving.md says what models have that pack right.
MOST_ERROR = {
    torch.float64: 1e-3,  # the library computes parts in float32
    torch.float32: 1e-3,
    torch.float16: 0.015,
    torch.bfloat16: 0.1,
}
# How attention and experts may run, as config.json says it.
OF_THE_LIBRARY = (None, "", "eager", "sdpa", "grouped_mm", "batched_mm")
FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
# A pass is compared if it, or its longest prompt, is so many times as long as any that was right.
LONGER = 1.25


def load(asked: Elsewhere) -> TransformersModel:
    """A model with its tokenizer.json, from a folder or the hub. dtype: by default float32 on a CPU
    and elsewhere as stored. device: by default CUDA if there is one. Raises InputError for what the
    library cannot load, for missing tensors, and for pickled weights or code in a checkpoint."""
    if asked.tokenizer is not None or asked.quantize is not None or asked.equal_bits:
        options = "--tokenizer, no --quantize and no --equal-bits"
        raise InputError(f"transformers: takes no {options}; leave them out")
    named_engine = find_engine(asked.engine)
    library = load_extra("transformers", "parity")
    folder, commit = find_folder(asked.source, asked.revision)
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    model = load_weights(library, asked, folder, commit)
    config = model.config.get_text_config()
    name = f"transformers:{asked.source}"
    decoder = TransformersDecoder(model)
    packing = PackedSoFar(name, window=decoder.stated_window)
    why = unknown_part(model)
    if why is not None:
        is_packed = named_engine.name in PACKED
        packing.give_up(why, is_packed)
        if is_packed:
            named_engine = engine_named("separate")
    return TransformersModel(
        name=name,
        config=ConfigFacts(
            config.model_type,
            config.vocab_size,
            getattr(config, "max_position_embeddings", None) or NO_LIMIT,
        ),
        decoder=decoder,
        tokenizer=tokenizer,
        named_engine=named_engine,
        revision=commit,
        packing=packing,
    )


def check_config(path: Path) -> None:
    """Refuse a config.json by which the library would read other files than the checkpoint's, or
    fetch code: it may name a file of weights, and kernels of the hub."""
    parts = [read_json(path)]
    for part in parts:  # which grows by what is inside
        if isinstance(part, list):
            parts.extend(part)
        if not isinstance(part, dict):
            continue
        parts.extend(part.values())
        for key, value in part.items():
            is_weights = key == "transformers_weights" and value is not None
            is_kernel = key.endswith("_implementation") and value not in OF_THE_LIBRARY
            if is_weights or is_kernel:
                why = "could lead to other files, or to code; take it out"
                raise InputError(f"{path}: {key} is {quote(value)}, which {why}")


def check_dtypes(files: Sequence[Path]) -> None:
    """Raise ValueError for a weight of whole numbers, which only a quantized checkpoint has: the
    library would take what a damaged header names so for numbers, without a word."""
    for path in files:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (it is no dict)
                dtype = file.get_slice(name).get_dtype()
                if name.endswith(".weight") and dtype not in FLOATS:
                    raise ValueError(f"the tensor {name} is {dtype}")


def load_weights(library: Any, asked: Elsewhere, folder: Path, commit: str | None) -> Any:
    """The library's model. It may run no code of the checkpoint, read no pickle, and open no file
    but the checkpoint's."""
    adapter = folder / "adapter_config.json"
    if os.path.exists(adapter):  # it may name any model that it belongs to
        raise InputError(f"{adapter}: {instead(folder)}")
    config = folder / "config.json"
    check_config(config)
    source = asked.source
    files = weight_files(folder, source, commit)
    device = asked.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = asked.dtype or ("float32" if device == "cpu" else "auto")
    try:
        if '"quantization_config"' not in config.read_text("utf-8"):
            check_dtypes(files)
        model, loaded = library.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
        model.to(device).eval().requires_grad_(False)
        if model.dtype == torch.float64:  # for which torch has no grouped product
            model.set_experts_implementation("eager")
    except Exception as error:  # of many kinds
        remedy = "install that package" if isinstance(error, ImportError) else "take another model"
        raise InputError(f"{source}: not for transformers ({one_line(error)}); {remedy}") from None
    for name in [*loaded["missing_keys"], *map(str, loaded["mismatched_keys"])]:
        raise InputError(f"{source}: transformers made up the tensor {name}; fetch it again")
    return model


@dataclass(frozen=True)
class ConfigFacts:
    """What a `LocalModel` needs to know of a config."""

    model_type: str
    vocab_size: int
    max_position_embeddings: int


class TransformersDecoder:
    """A model of the library, called as model.Decoder is.

    What a call gives are logits, by the library's own output layer, because some families scale or
    cap them there. So `logits` has nothing to do.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.config = model.config.get_text_config()
        kinds = getattr(self.config, "layer_types", None) or []
        # What config.json says, and what the class goes by.
        self.stated_window: int | None = getattr(self.config, "sliding_window", None)
        self.window: int | None = self.stated_window if reads_window(model) else None
        self.mask_by_kind = bool(kinds) and self.window is not None
        self.recurrent = is_recurrent(model)
        if self.recurrent:
            prepare(model)
        # Most classes can leave out the logits that nobody reads.
        self.keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def parameters(self) -> Iterator[Tensor]:
        return self.model.parameters()

    def state_dict(self) -> dict[str, Tensor]:
        return self.model.state_dict()

    def __call__(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        """Logits (T, V), or (R, V) of `rows`, in the model's dtype. Arguments as for
        `model.Decoder.forward`, of one sequence.

        One prompt alone runs as the library runs it, without a mask of ours: some models take none.
        Raises Unsuited where the library refuses the mask.
        """
        arguments: dict[str, Any] = {"input_ids": tokens[None].to(self.device)}
        alone = is_one_prompt(positions, mask)
        if not alone:
            arguments["position_ids"] = positions[None].to(self.device)
            arguments["attention_mask"] = self.library_mask(positions, mask)
        if rows is not None and self.keeps:
            arguments["logits_to_keep"] = rows.to(self.device)
        if alone:
            logits = run_alone(self.model, arguments)
        else:
            logits = self.run_packed(arguments, mask)
        if rows is not None and not self.keeps:
            logits = logits[rows.to(self.device)]
        return logits

    def run_packed(self, arguments: Mapping[str, Any], mask: Tensor) -> Tensor:
        """Logits of a sequence with our mask. Raises Unsuited where the library refuses it."""
        paths = along(self.model, mask) if self.recurrent else nullcontext()
        try:
            with paths:
                logits: Tensor = self.model(**arguments, use_cache=False).logits[0]
        except Exception as error:  # of many kinds
            if is_out_of_memory(error):
                raise
            what = f"{self.config.model_type} refuses this mask in transformers"
            raise Unsuited(f"{what} ({one_line(error)}); use the engine separate") from None
        return logits

    def library_mask(self, positions: Tensor, mask: Tensor) -> Any:
        """The mask in the library's form. By the type of layer where only some have a window, or a
        state."""
        if self.recurrent:
            return self.masks_by_kind(positions, mask)
        if self.window is None:
            return self.added_to_scores(mask)
        windowed = self.added_to_scores(within(mask, positions, positions, self.window))
        if not self.mask_by_kind:
            return windowed
        return {FULL: self.added_to_scores(mask), SLIDING: windowed}

    def masks_by_kind(self, positions: Tensor, mask: Tensor) -> dict[str, Tensor | None] | None:
        """A mask for each type of layer: of scores for attention, None for layers with a state."""
        if self.config.model_type in WITHOUT_ATTENTION:
            return None
        full = windowed = self.added_to_scores(mask)
        if self.window is not None:
            windowed = self.added_to_scores(within(mask, positions, positions, self.window))
        if self.config.model_type in WINDOW_IN_FULL:
            full = windowed
        masks: dict[str, Tensor | None] = {FULL: full, "hybrid": full}
        masks |= {SLIDING: windowed, "hybrid_sliding": windowed}
        return masks | dict.fromkeys(STATES)

    def added_to_scores(self, mask_TT: Tensor) -> Tensor:
        """(1, 1, T, T): 0, or the lowest number. All kernels of the library add it to the scores.
        (One of them would add a bool mask too, without a word.)"""
        added = torch.zeros(1, 1, *mask_TT.shape, dtype=self.dtype)
        added.masked_fill_(~mask_TT, torch.finfo(self.dtype).min)
        return added.to(self.device)

    def logits(self, hidden: Tensor) -> Tensor:
        """What a call gave: (R, V)."""
        return hidden


@torch.inference_mode()
def reads_window(model: Any) -> bool:
    """Whether the logits of a model depend on the `sliding_window` of its config. Many classes
    carry one in config.json and do not read it (LlamaForCausalLM): there a window in the mask would
    be ours alone. So it is tried: with a window of one token a token sees only itself."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if window is None:
        return False
    tokens = torch.arange(min(4, config.vocab_size), device=model.device)[None]
    wide = run_alone(model, {"input_ids": tokens})
    config.sliding_window = 1
    try:
        narrow = run_alone(model, {"input_ids": tokens})
    finally:
        config.sliding_window = window
    return not torch.equal(wide, narrow)


def run_alone(model: Any, arguments: Mapping[str, Any]) -> Tensor:
    """Logits (T, V), or of the rows that are kept, of one prompt as the library runs it. Raises
    InputError where it does not run in this dtype, or at all."""
    try:
        logits: Tensor = model(**arguments, use_cache=False).logits[0]
    except Exception as error:  # of many kinds
        if is_out_of_memory(error):
            raise
        what = f"{model.config.model_type} does not run in {model.dtype} on {model.device.type}"
        why = f"{what} in transformers ({one_line(error)})"
        raise InputError(f"{why}; name another --dtype, or take another model") from None
    return logits


def is_one_prompt(positions: Tensor, mask: Tensor) -> bool:
    """Whether these are the positions and the mask of one prompt alone."""
    T = len(positions)
    return positions.equal(torch.arange(T)) and mask.equal(causal_mask(T))


@dataclass
class PackedSoFar:
    """Which passes of a model were found right. tokens: of the longest. longest_prompt: tokens of
    the longest prompt in any. window: what config.json says, whether the class reads it or not.
    given_up: it was wrong once, or has a part that is not known."""

    name: str
    tokens: int = 0
    longest_prompt: int = 0
    window: int | None = None
    given_up: bool = False
    said: bool = False

    def give_up(self, why: str, say_so: bool = True) -> None:
        """Pack no more. Said once, on stderr."""
        self.given_up = True
        if say_so and not self.said:
            self.said = True
            say(f"{self.name} is asked by separate prompts, because {why}")

    def is_longer(self, layout: Layout) -> bool:
        """Whether a pass, its longest prompt, or what of that is beyond the window, is much longer
        than any that was right: prompts within a window do not vouch for the first beyond it."""
        longest = longest_prompt(layout)
        return (
            len(layout.tokens) > LONGER * self.tokens
            or longest > LONGER * self.longest_prompt
            or self.beyond_window(longest) > LONGER * self.beyond_window(self.longest_prompt)
        )

    def beyond_window(self, tokens: int) -> int:
        """How many tokens the last one of a prompt cannot see."""
        return 0 if self.window is None else max(0, tokens - self.window)

    def was_right(self, layout: Layout) -> None:
        self.tokens = max(self.tokens, len(layout.tokens))
        self.longest_prompt = max(self.longest_prompt, longest_prompt(layout))


def longest_prompt(layout: Layout) -> int:
    """Tokens of the longest prompt of a pass."""
    return int(layout.positions[layout.ends].max()) + 1


@dataclass(frozen=True, eq=False)
class TransformersModel(LocalModel):
    """A model of the library. Where the engine is one of PACKED, its passes are compared with its
    prompts alone: the first one, and those that are much longer than any before. Other engines run
    as they are asked."""

    packing: PackedSoFar = field(kw_only=True, repr=False)

    @torch.inference_mode()
    def hidden_at_ends(self, prefix: Ids, branches: Sequence[Ids]) -> Tensor:
        if self.engine not in PACKED or self.named_engine.run is not ENGINES[self.engine]:
            return super().hidden_at_ends(prefix, branches)
        layout = pack(prefix, branches, tree=self.engine == "tree")
        if self.packing.given_up or is_one_prompt(layout.positions, layout.mask):
            return separate(self.decoder, prefix, branches)
        try:
            packed_GV = self.decoder(layout.tokens, layout.positions, layout.mask, layout.ends)
        except Unsuited as refused:
            self.packing.give_up(str(refused))
            return separate(self.decoder, prefix, branches)
        if not self.packing.is_longer(layout):
            return packed_GV
        alone_GV = separate(self.decoder, prefix, branches)
        error = error_of_packing(packed_GV, alone_GV)
        if not error <= MOST_ERROR[self.decoder.dtype]:  # NaN is not
            what = "standard deviations from those of prompts alone"
            self.packing.give_up(f"packed logits are {error:.2g} {what}")
            return alone_GV
        self.packing.was_right(layout)
        return packed_GV


def error_of_packing(packed_GV: Tensor, alone_GV: Tensor) -> float:
    """How far the logits of packed prompts are from those of each prompt alone: the largest
    distance, in standard deviations of the logits of that prompt."""
    alone_GV = wide(alone_GV)
    distance_G = (wide(packed_GV) - alone_GV).abs().amax(dim=-1)
    return float((distance_G / alone_GV.std(dim=-1)).max())
