"""Text to token ids and back, by a checkpoint's own tokenizer.json. In definition.py: `Model.ids`.
Next to read: prompts.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from minise.errors import InputError, refusing


class Tokenizer:
    """The tokenizer that a tokenizer.json describes. It adds a beginning-of-sequence token only if
    the file's post-processor does: LLaMA-3 and Mistral add one, Qwen2 adds none. Raises InputError
    for one that draws: its ids of a text differ from call to call."""

    def __init__(self, backend: tokenizers.Tokenizer, name: str) -> None:
        self.backend, self.name = backend, name
        # The file may hold settings of the batch it was last used for. Prompts must stay whole.
        backend.no_truncation()
        backend.no_padding()
        dropout = getattr(backend.model, "dropout", None)
        if dropout:
            what = f"its BPE drops merges at random (dropout {dropout:.3g})"
            raise InputError(f"{name}: {what}; set model.dropout to null in tokenizer.json")

    @classmethod
    def from_file(cls, path: Path) -> Tokenizer:
        """Raises InputError if the file is missing, is not a tokenizer or cannot encode."""
        with refusing(f"{path}: not a tokenizer"):
            backend = tokenizers.Tokenizer.from_file(str(path))
        tokenizer = cls(backend, str(path))
        tokenizer.encode(["Why?\n(A) x\nAnswer: A"])  # many damaged files fail only here
        return tokenizer

    def encode(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """The ids of each text on its own. Raises InputError for a damaged tokenizer."""
        with refusing(f"{self.name}: cannot encode a prompt"):
            encodings = self.backend.encode_batch_fast(
                list(texts), add_special_tokens=add_special_tokens
            )
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens shown. For people: encoded again it may give others."""
        return self.backend.decode(list(ids), skip_special_tokens=False)

    @property
    def unknown_id(self) -> int | None:
        """The id of the token for text outside the vocabulary; None if there is none."""
        token = getattr(self.backend.model, "unk_token", None)
        return None if token is None else self.backend.token_to_id(token)
