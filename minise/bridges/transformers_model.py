"""Any decoder-only model of the transformers library as a model of minise:
`minise.from_transformers(model, tokenizer)`. library.py runs it, promises.py checks it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from minise.bridges.library import Library
from minise.bridges.promises import Report, verify_prompts
from minise.config import Config
from minise.engines import LanguageModel, check_fit
from minise.errors import InputError, quote, refusing
from minise.layout import Layout
from minise.loading.source import check_converted, check_reachable, quiet_hub
from minise.method import Plan
from minise.model import Decoder
from minise.tokenizer import Tokenizer


def from_transformers(model: Any, tokenizer: Any, name: str | None = None) -> LibraryModel:
    """A model and a tokenizer of the library as one model of minise.

    model: any decoder-only `AutoModelForCausalLM` on one device, in any dtype, quantized or with
    adapters. tokenizer: a slow or a fast one. Neither is changed or copied. name: for messages and
    results. Raises InputError for a model or a tokenizer that cannot be used.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not (isinstance(model, nn.Module) and hasattr(base, "get_output_embeddings")):
        raise InputError(f"a {type(model).__name__} is no model of the transformers library")
    name = (
        name or f"transformers:{getattr(base.config, '_name_or_path', '') or type(base).__name__}"
    )
    if base.config.is_encoder_decoder:
        raise InputError(f"{name}: has an encoder; give a decoder-only model")
    if base.get_output_embeddings() is None:
        raise InputError(f"{name}: has no output matrix; load it by AutoModelForCausalLM")
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1 or "meta" in devices:
        remedy = "load it on one device, device_map='cpu'"
        raise InputError(f"{name}: is on {', '.join(devices)}; {remedy}")
    if model.training:
        raise InputError(f"{name}: is in training mode, with dropout; call model.eval() first")
    decoder, reader = Library(model, base, name), LibraryTokenizer(tokenizer, name)
    reader.check(base.config)
    # Not the same classes, but they have what the functions that take library models use. Whatever
    # else is looked up raises Unsuited.
    facts = cast(Config, decoder.config)
    return LibraryModel(name, facts, cast(Decoder, decoder), cast(Tokenizer, reader))


class LibraryModel(LanguageModel):
    """A model that the library runs. `lm.verify(plan)` checks how it treats masks and positions."""

    has_files = False

    @property
    def library(self) -> Library:
        return cast(Library, self.decoder)

    def branch_ends(
        self, prefix: Sequence[int], branches: Sequence[Sequence[int]], engine: str
    ) -> Tensor:
        return self.library.branch_ends(prefix, branches, engine)

    def layout_ends(self, layout: Layout) -> Tensor:
        return self.library.layout_ends(layout)

    def logits(self, ends: Tensor, columns: Tensor | None = None) -> Tensor:
        return self.library.logits(ends, columns)

    def counted_as(self, engine: str) -> str:
        """With the engine tree, only what all prompts share runs once. (Padding is not counted.)"""
        return "dense" if engine == "tree" else engine

    def identity(self) -> dict[str, Any]:
        """A hash of a few values of every tensor, by which this model differs from others."""
        digest = hashlib.sha256()
        for name, tensor in self.library.network.named_parameters():
            values = tensor.detach().flatten()
            sample = values[:: max(1, len(values) // 64)].to("cpu", copy=True)
            digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
            digest.update(sample.contiguous().view(torch.uint8).numpy().tobytes())
        return {"weights_sha256": digest.hexdigest()}

    def verify(self, plan: Plan, tolerance: float | None = None, gradients: bool = False) -> Report:
        """Try the promises of promises.py on a plan's prompts: does the library do what a mask,
        position ids and its cache say? tolerance: the largest difference that passes, as a part of
        a row of logits; by default what this model's own rounding explains. gradients: also check
        the mask by derivatives. Raises InputError for prompts that do not fit."""
        check_fit(self.name, self.config, plan.prefix, plan.branches)
        return verify_prompts(self.library, plan.prefix, plan.branches, tolerance, gradients)


def load(
    source: str,
    revision: str | None = None,
    dtype: Any = "auto",
    device: str = "cpu",
    attention: str | None = None,
) -> LibraryModel:
    """A checkpoint of a folder or the hub, by the library's own loaders: what `--model
    transformers:ID_OR_FOLDER` takes. Safetensors only, and no code from the checkpoint.

    attention: the library's implementation, such as "eager"; by default the one that it chooses.
    Raises InputError if the library cannot load it, or would fill in weights that are missing.
    """
    import transformers

    name = f"transformers:{source}"
    settings = {"revision": revision, "trust_remote_code": False}
    try:
        with refusing(f"{name}: the library cannot load it"), _quiet(transformers), quiet_hub():
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, **settings)
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                source,
                dtype=dtype,
                attn_implementation=attention,
                use_safetensors=True,
                output_loading_info=True,
                **settings,
            )
            if model.device != torch.device(device):
                model = model.to(device)
    except InputError:  # "fetch it again" is no help without a network, or for an old format
        check_reachable(source, revision)
        check_converted(Path(source))
        raise
    model.eval()
    for fault in ("missing_keys", "mismatched_keys", "error_msgs"):
        parts = sorted(map(str, report.get(fault) or ()))
        if parts:
            raise InputError(f"{name}: {fault.replace('_', ' ')}: {quote(parts[0])}")
    return from_transformers(model, tokenizer, name)


class LibraryTokenizer:
    """A tokenizer of the library, used like `minise.tokenizer.Tokenizer`. Special tokens that it
    adds before a text stay, as they do with the checkpoint's own tokenizer.json."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        if not (callable(tokenizer) and hasattr(tokenizer, "convert_ids_to_tokens")):
            kind = type(tokenizer).__name__
            raise InputError(f"{name}: a {kind} is no tokenizer of the transformers library")
        self.tokenizer, self.name = tokenizer, name

    @property
    def backend(self) -> LibraryTokenizer:
        """The object on which prompt.py looks a token up."""
        return self

    def id_to_token(self, token: int) -> str:
        return str(self.tokenizer.convert_ids_to_tokens(token))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, special tokens included, each as if it were alone."""
        settings = {"padding": False, "truncation": False, "verbose": False}
        with refusing(f"{self.name}: its tokenizer cannot encode a prompt"):
            return [list(ids) for ids in self.tokenizer(list(texts), **settings)["input_ids"]]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens shown."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    @property
    def unknown_id(self) -> int | None:
        return self.tokenizer.unk_token_id

    def check(self, config: Any) -> None:
        """Raise InputError for a tokenizer that adds an end token to each text, and for one without
        the beginning token in a family that answers nonsense without it."""
        (ids,) = self.encode(["A"])
        if ids and ids[-1] == self.tokenizer.eos_token_id:
            raise InputError(f"{self.name}: its tokenizer ends each text; set add_eos_token=False")
        begin = self.tokenizer.bos_token_id
        if str(config.model_type).startswith("gemma") and (begin is None or ids[:1] != [begin]):
            remedy = "load it with add_bos_token=True"
            raise InputError(f"{self.name}: its tokenizer writes no beginning token; {remedy}")


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Turn off the library's notes and progress bars: what matters is in its exceptions."""
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()
