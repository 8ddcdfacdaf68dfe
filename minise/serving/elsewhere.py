"""What a model that runs elsewhere is here: a tokenizer, and a function that gives logits."""

from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor

from minise.config import Config
from minise.engines import LanguageModel
from minise.errors import Unsuited
from minise.loading.source import find_folder
from minise.tokenizer import Tokenizer


class Elsewhere:
    """Stands where a decoder would, with what is known of the one that runs elsewhere. All else
    that is asked of a decoder raises Unsuited, so an evaluation leaves out what needs it."""

    def __init__(self, dtype: Any, device: Any, parameters: Iterable[Tensor] = ()) -> None:
        self.dtype, self.device, self.known = dtype, device, dict(enumerate(parameters))

    def parameters(self) -> list[Tensor]:
        return list(self.known.values())

    def state_dict(self) -> dict[int, Tensor]:
        return self.known

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        what = "this needs weights that minise runs itself, and the model runs elsewhere"
        raise Unsuited(f"{what}; give the folder of a llama, mistral, qwen2 or qwen3")


def read_tokenizer(source: str | Path, revision: str | None) -> tuple[Path, str | None, Tokenizer]:
    """The tokenizer of a folder or hub id, with its folder and the hub's commit."""
    folder, commit = find_folder(str(source).removeprefix("transformers:"), revision)
    return folder, commit, Tokenizer.from_file(folder / "tokenizer.json")


def language_model(
    name: str, answer: Callable[..., Tensor], decoder: Any, tokenizer: Tokenizer, **sizes: Any
) -> LanguageModel:
    """A language model whose `branch_logits` are what `answer` returns. sizes: what is known of its
    config, which are the vocabulary and the longest prompt."""
    facts: dict[str, Any] = dict.fromkeys([field.name for field in fields(Config)], 0)
    config = Config(**{**facts, "model_type": "elsewhere", "sliding_windows": (), **sizes})
    return LanguageModel(name, config, decoder, tokenizer, elsewhere=answer)
