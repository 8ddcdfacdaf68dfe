"""Any causal language model of the transformers library, behind the decoder's three arguments.

So the engines pack it too, if it reads a mask and position ids. Some models do not: they count
positions by index, or have a window or layers of their own. So a packed pass is compared with one
of its prompts alone, and a model that packs wrongly is asked by separate prompts.

Dimension legend: T tokens, R rows that are read, G prompts, V vocabulary.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minise.attention import within
from minise.engines import AnyDecoder, Ids, separate
from minise.errors import InputError, Unsuited, one_line
from minise.lab.serving import say
from minise.layout import Layout, causal_mask, pack
from minise.lm import LocalModel
from minise.loading.checkpoint import Elsewhere
from minise.loading.config_json import FULL, SLIDING
from minise.loading.plugin import find_engine, load_extra
from minise.loading.source import find_folder
from minise.tokenizer import Tokenizer

PACKED = ("tree", "packed")  # engines that promise the numbers of separate prompts
# With these, the angles of all tokens depend on the longest prompt of a pass.
BY_LENGTH = ("dynamic", "longrope")
NO_LIMIT = 1_000_000  # positions of a model that names no last one
# Of the error without the mask. Models that pack right have some 1e-5 in float32, 1e-2 in bfloat16.
MOST_ERROR = 0.1


def load(asked: Elsewhere) -> TransformersModel:
    """A model with its tokenizer.json, from a folder or the hub. dtype: by default float32 on a CPU
    and elsewhere as stored. device: by default CUDA if there is one. Raises InputError for what the
    library cannot load, for missing tensors, and for pickled weights or code in a checkpoint."""
    if asked.tokenizer is not None or asked.quantize is not None or asked.equal_bits:
        options = "--tokenizer, no --quantize and no --equal-bits"
        raise InputError(f"transformers: takes no {options}; leave them out")
    own_engine = find_engine(asked.engine)
    library = load_extra("transformers", "parity")
    folder, commit = find_folder(asked.source, asked.revision)
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    model = load_weights(library, asked, folder, commit)
    config = model.config.get_text_config()
    name = f"transformers:{asked.source}"
    packing = Packing(name)
    engine = asked.engine
    if rope_type(config) in BY_LENGTH:
        packing.give_up(0, f"its rope_type is {rope_type(config)}", engine in PACKED)
        engine = "separate" if engine in PACKED else engine
    return TransformersModel(
        name=name,
        config=Facts(
            config.model_type,
            config.vocab_size,
            getattr(config, "max_position_embeddings", None) or NO_LIMIT,
        ),
        decoder=TransformersDecoder(model),
        tokenizer=tokenizer,
        engine=engine,
        own_engine=own_engine,
        revision=commit,
        packing=packing,
    )


def load_weights(library: Any, asked: Elsewhere, folder: Path, commit: str | None) -> Any:
    """The library's model. It may run no code of the checkpoint, and read no pickle."""
    device = asked.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = asked.dtype or ("float32" if device == "cpu" else "auto")
    source = asked.source
    try:
        model, loaded = library.AutoModelForCausalLM.from_pretrained(
            source if commit else folder,
            revision=commit or "main",
            dtype=dtype,
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
        model.to(device).eval().requires_grad_(False)
    except Exception as error:  # of many kinds
        remedy = "install that package" if isinstance(error, ImportError) else "take another model"
        raise InputError(f"{source}: not for transformers ({one_line(error)}); {remedy}") from None
    for name in [*loaded["missing_keys"], *map(str, loaded["mismatched_keys"])]:
        raise InputError(f"{source}: transformers made up the tensor {name}; fetch it again")
    return model


def rope_type(config: Any) -> str:
    """How the rotary angles are scaled, of a text config: the first of BY_LENGTH that occurs, or
    "default"."""
    parameters = getattr(config, "rope_parameters", None) or {}
    for some in [parameters, *parameters.values()]:  # of all layers, or by the type of layer
        if isinstance(some, dict) and some.get("rope_type") in BY_LENGTH:
            return str(some["rope_type"])
    return "default"


@dataclass(frozen=True)
class Facts:
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
        window = getattr(self.config, "sliding_window", None)
        if kinds and SLIDING not in kinds:
            window = None
        self.window: int | None = window
        self.mask_by_kind = bool(kinds) and window is not None
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
        try:
            logits: Tensor = self.model(**arguments, use_cache=False).logits[0]
        except Exception as error:  # of many kinds
            if alone:
                raise
            what = f"{self.config.model_type} refuses this mask in transformers"
            raise Unsuited(f"{what} ({one_line(error)}); use the engine separate") from None
        if rows is not None and not self.keeps:
            logits = logits[rows.to(self.device)]
        return logits

    def library_mask(self, positions: Tensor, mask: Tensor) -> Tensor | dict[str, Tensor]:
        """The mask in the library's form. By the type of layer where only some have a window."""
        if self.window is None:
            return self.added_to_scores(mask)
        windowed = self.added_to_scores(within(mask, positions, positions, self.window))
        if not self.mask_by_kind:
            return windowed
        return {FULL: self.added_to_scores(mask), SLIDING: windowed}

    def added_to_scores(self, mask_TT: Tensor) -> Tensor:
        """(1, 1, T, T): 0, or the lowest number. All kernels of the library add it to the scores.
        (One of them would add a bool mask too, without a word.)"""
        added = torch.zeros(1, 1, *mask_TT.shape, dtype=self.dtype)
        added.masked_fill_(~mask_TT, torch.finfo(self.dtype).min)
        return added.to(self.device)

    def logits(self, hidden: Tensor) -> Tensor:
        """What a call gave: (R, V)."""
        return hidden


def is_one_prompt(positions: Tensor, mask: Tensor) -> bool:
    """Whether these are the positions and the mask of one prompt alone."""
    T = len(positions)
    return positions.equal(torch.arange(T)) and mask.equal(causal_mask(T))


@dataclass
class Packing:
    """At which lengths of a pass, in tokens, a model was found to pack right. A model with windows
    or chunks by index is right up to some length only. right_to: the longest pass that was right.
    wrong_from: the shortest that was not."""

    name: str
    right_to: int = 0
    wrong_from: int = sys.maxsize
    said: bool = False

    def give_up(self, length: int, why: str, say_so: bool = True) -> None:
        """Pack no sequences of `length` tokens and more. Said once, on stderr."""
        self.wrong_from = min(length, self.wrong_from)
        if say_so and not self.said:
            self.said = True
            which = f"from {length:,} tokens on " if length else ""
            say(f"{self.name} {which}is asked by separate prompts, because {why}")


@dataclass(frozen=True, eq=False)
class TransformersModel(LocalModel):
    """A model of the library. Where the engine is one of PACKED, a pass that is longer than any
    before is compared with one of its prompts alone. Other engines run as they are asked."""

    packing: Packing = field(kw_only=True, repr=False)

    @torch.inference_mode()
    def ends(self, prefix: Ids, branches: Sequence[Ids]) -> Tensor:
        if self.own_engine is not None or self.engine not in PACKED:
            return super().ends(prefix, branches)
        layout = pack(prefix, branches, tree=self.engine == "tree")
        logits_GV = None
        if not is_one_prompt(layout.positions, layout.mask):
            logits_GV = self.packed_logits(layout)
        return separate(self.decoder, prefix, branches) if logits_GV is None else logits_GV

    def packed_logits(self, layout: Layout) -> Tensor | None:
        """The logits (G, V) at the ends of a packed pass; None where the model packs wrongly."""
        T = len(layout.tokens)
        if self.packing.wrong_from <= T:
            return None
        try:
            logits_GV = self.decoder(layout.tokens, layout.positions, layout.mask, layout.ends)
            if self.packing.right_to >= T:
                return logits_GV
            error = error_of_packing(self.decoder, layout, logits_GV)
        except Unsuited as refused:
            self.packing.give_up(T, str(refused))
            return None
        if not error <= MOST_ERROR:  # NaN is not
            self.packing.give_up(T, f"packed, its error is {error:.2g} of that without the mask")
            return None
        self.packing.right_to = T
        return logits_GV


def error_of_packing(decoder: AnyDecoder, layout: Layout, logits_GV: Tensor) -> float:
    """How wrong the logits at the last row of a packed pass are, as a share of how wrong they are
    without the mask. 1 is a model that does not read the mask at all."""
    last = int(layout.ends.argmax())  # the farthest by index from what all prompts begin with
    prompt = layout.tokens[layout.paths()[last]].tolist()
    right_V = separate(decoder, prompt, [[]])[0].double()
    row = layout.ends[last : last + 1]
    mask = causal_mask(len(layout.tokens))
    unmasked_V = decoder(layout.tokens, layout.positions, mask, row)[0].double()
    error = (logits_GV[last].double() - right_V).abs().max()
    if error == 0:
        return 0.0
    return float(error / (unmasked_V - right_V).abs().max())
