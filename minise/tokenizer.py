"""Text to token ids and back, by a checkpoint's own tokenizer.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from minise.errors import InputError


class Tokenizer:
    """A thin reading of tokenizer.json. A beginning-of-sequence token is added exactly where the
    file's post-processor says so: LLaMA-3 and Mistral add one, Qwen2 none."""

    def __init__(self, backend: tokenizers.Tokenizer, name: str) -> None:
        self.backend, self.name = backend, name
        # A file may carry the settings of the batch it was last used for; prompts are taken whole.
        backend.no_truncation()
        backend.no_padding()

    @classmethod
    def from_file(cls, path: Path) -> Tokenizer:
        """Raises InputError if the file is missing or is not a tokenizer."""
        if not path.is_file():
            raise InputError(f"{path}: no such file; a checkpoint folder needs a tokenizer.json")
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)), str(path))
        except Exception as error:  # the library raises no narrower class
            raise InputError(f"{path}: not a tokenizer ({error}); fetch it again") from None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, special tokens included, each as if it were alone."""
        return [encoding.ids for encoding in self.backend.encode_batch(list(texts))]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens shown: for reading, not for round trips."""
        return self.backend.decode(list(ids), skip_special_tokens=False)

    def label_ids(self, prompts: Sequence[str], labels: Sequence[Sequence[str]]) -> list[list[int]]:
        """The id of each label as it continues its prompt.

        The id of " A" after a prompt is the one token by which ids(prompt + " A") extends
        ids(prompt). Encoding the label alone can give another: Mistral's tokenizer makes two tokens
        of " A" alone and one of it after "Answer:". Raises InputError if it is not exactly one
        known token, or if two labels of a prompt are the same one.
        """
        ids = iter(
            self.encode([p + a for p, row in zip(prompts, labels, strict=True) for a in row])
        )
        found = []
        for prompt, start, row in zip(prompts, self.encode(prompts), labels, strict=True):
            extended = [next(ids) for _ in row]
            for label, whole in zip(row, extended, strict=True):
                if whole[:-1] != start or whole[-1] == self._unknown:
                    pieces = [self.backend.id_to_token(i) for i in whole[-3:]]
                    raise InputError(
                        f"{self.name}: label {label!r} after {prompt[-20:]!r} is not one token "
                        f"(the text ends in {pieces}); use a tokenizer or template in which it is"
                    )
            found.append(self._distinct([whole[-1] for whole in extended], row))
        return found

    def bare_label_ids(
        self, prompts: Sequence[str], labels: Sequence[Sequence[str]]
    ) -> list[list[int]]:
        """The last id of each label encoded alone, whatever the prompt: the released code's
        look-up, which may name a token that never follows the prompt."""
        return [
            self._distinct([ids[-1] if ids else -1 for ids in self.encode(row)], row)
            for row in labels
        ]

    def _distinct(self, ids: list[int], labels: Sequence[str]) -> list[int]:
        if len(set(ids)) < len(ids) or -1 in ids:
            raise InputError(
                f"{self.name}: labels {', '.join(map(repr, labels))} are not distinct tokens "
                f"(ids {ids}); use a tokenizer or template in which they are"
            )
        return ids

    @property
    def _unknown(self) -> int | None:
        token = getattr(self.backend.model, "unk_token", None)
        return None if token is None else self.backend.token_to_id(token)
