"""Any causal language model of the transformers library, by whole prompts in batches.

The library has the masks, the positions and the weights. Prompts of a batch are padded on the
right, where no token of a causal model looks. Only documented arguments are used.
"""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minise.engines import Ids, LanguageModel
from minise.errors import InputError, one_line
from minise.loading.plugin import load_extra
from minise.serving.elsewhere import Elsewhere, language_model, read_tokenizer

MOST_TOKENS, MOST_VALUES = 8192, 2**28  # of a batch: with its padding; logits


def load(
    source: str, tokenizer: str | Path | None, revision: str | None, **given: str | None
) -> LanguageModel:
    """A model with its tokenizer.json, from a folder or the hub. given: dtype, None for float32 on
    a CPU and elsewhere as stored; device, None for CUDA if there is one."""
    if tokenizer is not None or given["quantize"] is not None:
        raise InputError("transformers: takes no --tokenizer and no --quantize; leave them out")
    library = load_extra("transformers", "parity")
    folder, commit, words = read_tokenizer(source, revision)
    place = given["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = given["dtype"] or ("float32" if place == "cpu" else "auto")
    options = {"revision": commit or "main", "dtype": dtype, "output_loading_info": True}
    options |= {"trust_remote_code": False, "use_safetensors": True}  # no code, no pickle
    try:
        read = library.AutoModelForCausalLM.from_pretrained
        model, loaded = read(source if commit else folder, **options)
        model.to(place).eval().requires_grad_(False)
    except Exception as error:  # of many kinds
        remedy = "install that package" if isinstance(error, ImportError) else "take another model"
        raise InputError(f"{source}: not for transformers ({one_line(error)}); {remedy}") from None
    for name in [*loaded["missing_keys"], *map(str, loaded["mismatched_keys"])]:
        raise InputError(f"{source}: transformers made up the tensor {name}; fetch it again")
    answer = Separate(f"transformers:{source}", model)
    sizes = {"vocab_size": answer.vocab, "max_position_embeddings": answer.longest}
    decoder = Elsewhere(model.dtype, model.device, model.parameters())
    return replace(language_model(answer.name, answer, decoder, words, **sizes), revision=commit)


class Separate:
    """A model, called as `LanguageModel.elsewhere`."""

    def __init__(self, name: str, model: Any) -> None:
        self.name, self.model = name, model
        facts = model.config.get_text_config()
        self.vocab = facts.vocab_size
        self.longest = getattr(facts, "max_position_embeddings", None) or 1_000_000
        # Most classes can leave out the logits that nobody reads.
        self.keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def __call__(
        self, prefix: Ids, branches: Sequence[Ids], columns: Ids | None, total: bool = False
    ) -> Tensor:
        """The logits after each prompt, (G, V) or (G, len(columns)), in float32 or the model's
        float64. total: one column more, the log of the sum of exp over the vocabulary."""
        prompts = [torch.tensor([*prefix, *branch]) for branch in branches]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        longest = len(prompts[order[-1]])
        places = len({len(prompt) for prompt in prompts}) if self.keeps else longest
        size = max(1, min(MOST_TOKENS // longest, MOST_VALUES // (self.vocab * places)))
        rows: dict[int, Tensor] = {}
        for at in range(0, len(order), size):  # prompts of similar lengths run together
            batch = order[at : at + size]
            rows |= zip(batch, self.run([prompts[i] for i in batch]), strict=True)
        logits = torch.stack([rows[i] for i in range(len(prompts))])
        read = logits if columns is None else logits[:, list(columns)]
        if not read.isfinite().all():
            raise InputError(f"{self.name}: its numbers overflow; use bfloat16 or float32")
        return torch.cat([read, logits.logsumexp(-1, keepdim=True)], dim=1) if total else read

    def run(self, prompts: list[Tensor]) -> Tensor:
        """The logits (B, V) at the ends of prompts, each (T,) int64."""
        ends = torch.tensor([len(prompt) - 1 for prompt in prompts])
        asked = {"input_ids": torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True)}
        places = torch.arange(int(ends.max()) + 1)
        asked["attention_mask"] = (places <= ends[:, None]).long()
        if self.keeps:
            asked["logits_to_keep"] = places = ends.unique()
        asked = {name: x.to(self.model.device) for name, x in asked.items()}
        logits = self.model(**asked, use_cache=False).logits
        read = logits[torch.arange(len(prompts)), torch.searchsorted(places, ends)]
        return read.to(torch.promote_types(read.dtype, torch.float32))
