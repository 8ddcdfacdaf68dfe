"""What a checkpoint's files say about writing text: its stop tokens and its chat template.

templates.py renders the template.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from minise.engines import LanguageModel
from minise.errors import InputError, Unsuited, one_line
from minise.loading.source import finder, optional_file
from minise.writing.templates import render

_FILES: WeakKeyDictionary[LanguageModel, dict[str, tuple[Path, str] | None]] = WeakKeyDictionary()
Message = dict[str, str]  # {"role": "user", "content": "..."}


def stop_tokens(lm: LanguageModel) -> list[int]:
    """The ids that end a text: `eos_token_id` of generation_config.json, else of config.json, else
    the `eos_token` of tokenizer_config.json. Raises Unsuited where none of them names one."""
    for name in ("generation_config.json", "config.json"):
        value = _read(lm, name).get("eos_token_id")
        if value is not None:
            ids = value if isinstance(value, list) else [value]
            if not all(type(i) is int and 0 <= i < lm.config.vocab_size for i in ids):
                raise InputError(f"{lm.name}: {name}: eos_token_id is not a token id, nor a list")
            return ids
    token = _text(_read(lm, "tokenizer_config.json").get("eos_token"))
    token_id = None if token is None else lm.tokenizer.backend.token_to_id(token)
    if token_id is None:
        raise Unsuited(
            f"{lm.name}: names no stop token; add eos_token_id to its generation_config.json"
        )
    return [token_id]


def chat_template(lm: LanguageModel) -> str | None:
    """The checkpoint's chat template, None where it has none. Of several templates with names, the
    one named "default"."""
    file = _file(lm, "chat_template.jinja")
    if file is not None:
        return file[1]
    template = _read(lm, "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        named = [one for one in template if isinstance(one, dict) and one.get("name") == "default"]
        template = named[-1].get("template") if named else None
    return template if isinstance(template, str) else None


def chat_text(lm: LanguageModel, messages: Sequence[Message]) -> str:
    """The messages as the checkpoint's chat template writes them, up to where the model answers.

    Raises InputError for a checkpoint without a template, and for a template that fails, refuses
    these messages, does what the sandbox forbids, or takes too much time or memory.
    """
    template = chat_template(lm)
    if template is None:
        raise InputError(
            f"{lm.name}: has no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json); it is not a chat model, so use the plain prompt"
        )
    settings = _read(lm, "tokenizer_config.json").items()
    tokens = {key: _text(value) for key, value in settings if key.endswith("_token")}
    values = {
        "messages": list(messages),
        "add_generation_prompt": True,
        "tools": None,
        "documents": None,
        # A token that is null in the file is not defined: else its name would be printed.
        **{key: text for key, text in tokens.items() if text is not None},
    }
    try:
        return render(template, values)
    except InputError as error:
        raise InputError(f"{lm.name}: its chat template failed ({error})") from None


def chat_ids(lm: LanguageModel, messages: Sequence[Message]) -> list[int]:
    """`chat_text` as token ids. Templates write the beginning token themselves."""
    return encode_as_is(lm, chat_text(lm, messages))


def encode_as_is(lm: LanguageModel, text: str) -> list[int]:
    """The ids of a text in which every special token is already written."""
    return lm.tokenizer.encode([text], add_special_tokens=False)[0]


def _read(lm: LanguageModel, name: str) -> dict[str, Any]:
    """A JSON object of the checkpoint; empty where there is no such file."""
    file = _file(lm, name)
    if file is None:
        return {}
    path, text = file
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not readable as JSON ({one_line(error)})") from None
    return content if isinstance(content, dict) else {}


def _file(lm: LanguageModel, name: str) -> tuple[Path, str] | None:
    """The path and the text of a file of the checkpoint, None where there is none. It is looked up
    once for each model: every prompt needs it, and for an absent file each look-up would ask the
    hub."""
    files = _FILES.setdefault(lm, {})
    if name not in files:
        path = optional_file(finder(lm.name, lm.revision), name)
        try:
            files[name] = None if path is None else (path, path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: not readable as text ({one_line(error)})") from None
    return files[name]


def _text(token: Any) -> str | None:
    """A special token's text: a file has it as text, or as an object with more facts about it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
