"""What a checkpoint's files say about writing text: its stop tokens and its chat template."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from minise.errors import InputError, Unsuited, one_line
from minise.prompts import LanguageModel

MOST_TEMPLATE_BYTES = 20 << 20  # of a file; a rendered prompt has at most so many characters


def stop_tokens(lm: LanguageModel) -> list[int]:
    """The ids that end a text: `eos_token_id` of generation_config.json, else of config.json, else
    the `eos_token` of tokenizer_config.json. Raises Unsuited where none of them names one."""
    found = _settings(lm, "generation_config.json").get("eos_token_id")
    if found is None:
        found = _settings(lm, "config.json").get("eos_token_id")
    if found is None:
        token = _text(_settings(lm, "tokenizer_config.json").get("eos_token"))
        found = lm.tokenizer.backend.token_to_id(token or "")
    ids: list[Any] = found if isinstance(found, list) else [found]
    for stop_id in ids:
        if type(stop_id) is not int or not 0 <= stop_id < lm.limits.vocabulary:
            remedy = "give eos_token_id in its generation_config.json"
            raise Unsuited(f"{lm.name}: no stop token; {remedy}")
    return ids


def chat_template(lm: LanguageModel) -> str | None:
    """The checkpoint's chat template, None where it has none. Of several templates with names, the
    one named "default"."""
    template = _read(lm, "chat_template.jinja", str)
    if template is None:
        template = _settings(lm, "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        several = template
        template = None
        for one in several:
            if isinstance(one, dict) and one.get("name") == "default":
                template = one.get("template")
    return template if isinstance(template, str) else None


def chat_text(lm: LanguageModel, messages: Sequence[dict[str, str]]) -> str:
    """The messages, {"role": "user", "content": "..."}, as the checkpoint's chat template writes
    them, up to where the model answers. Raises InputError for a checkpoint without a template, and
    for one that fails, refuses these messages, or takes too much time or memory."""
    if getattr(lm, "writes_chat", False):
        about = "the server itself makes a chat of each prompt; leave --template chat out"
        raise Unsuited(f"{lm.name}: {about}")
    template = chat_template(lm)
    if template is None:
        raise Unsuited(f"{lm.name}: has no chat template, so it is no chat model; ask it plainly")
    values: dict[str, Any] = {"add_generation_prompt": True, "tools": None, "documents": None}
    for name, value in _settings(lm, "tokenizer_config.json").items():
        token = _text(value)
        # A token that is null in the file is not defined: else its name would be printed.
        if name.endswith("_token") and token is not None:
            values[name] = token
    values["messages"] = list(messages)
    reply = _render(json.dumps([template, values]))
    if "text" not in reply:
        reason = one_line(ValueError(reply["error"]))
        raise InputError(f"{lm.name}: its chat template failed ({reason}); ask it plainly")
    return reply["text"]


def user_turn(lm: LanguageModel, content: str) -> str:
    """A user's message as `chat_text` writes it, without the beginning token, which the tokenizer
    adds."""
    text = chat_text(lm, [{"role": "user", "content": content}])
    beginning = lm.tokenizer.encode([""])[0]
    return text.removeprefix(lm.tokenizer.decode(beginning))


@lru_cache(1024)
def _render(request: str) -> dict[str, str]:  # what render.py replies
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(Path(__file__).with_name("render.py"))]
    try:  # 60 seconds of the clock, however busy the machine is
        done = subprocess.run(
            command, input=request.encode(), env=env, timeout=60, capture_output=True
        )
        reply: dict[str, str] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return {"error": "it takes too much time or memory"}
    if len(reply.get("text", "")) > MOST_TEMPLATE_BYTES:
        return {"error": "it writes too much"}
    return reply


def _settings(lm: LanguageModel, name: str) -> dict[str, Any]:
    content = _read(lm, name, json.loads)
    return content if isinstance(content, dict) else {}


def _read(lm: LanguageModel, name: str, parse: Callable[[str], Any]) -> Any:
    """The content of a file of the checkpoint; None where there is none."""
    path = Path(lm.tokenizer.name).with_name(name)  # a served model's tokenizer has them beside it
    if not path.is_file():  # to open a pipe would wait for ever
        return None
    try:
        if path.stat().st_size > MOST_TEMPLATE_BYTES:
            raise ValueError(f"it holds more than {MOST_TEMPLATE_BYTES >> 20} MiB")
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not readable ({one_line(error)}); fetch it again") from None


def _text(token: Any) -> str | None:
    """A special token's text: a file has it as text, or as an object with more facts about it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
