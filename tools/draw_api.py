"""Write docs/api.md: each public name of minise with its signature and docstring.

python -m tools.draw_api
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import cached_property
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

from minise.files import write_file

PACKAGE: Any = import_module("minise")  # its names are not known before it runs
PAGE = Path(__file__).parents[1] / "docs" / "api.md"
# In the order of reading. A name that is in none of them comes at the end.
PARTS = {
    "Ask a question": (
        *("load", "Question", "self_ensemble", "standard", "ask", "Answer", "Group"),
        *("Generation", "generate", "InputError"),
    ),
    "Models": ("LanguageModel", "Decoder", "Config"),
    "Layouts": ("pack", "Layout", "Tree", "branch_logits"),
    "Methods": ("Method", "Plan", "Groups", "SelfEnsemble", "Standard", "Template"),
    "Look inside": ("explain", "Page", "record", "check", "packed_loss"),
}
HEAD = """# The public names

`import minise` has these names, and `from minise import NAME` works for each. Whatever is not here
may change at any time. `python -m tools.draw_api` writes this page from the code; a test holds that
it is not older.
"""
WIDTH = 100


def page() -> str:
    names: list[str] = list(PACKAGE.__all__)
    listed = [name for part in PARTS.values() for name in part]
    parts = {**PARTS, "More": tuple(name for name in names if name not in listed)}
    text = HEAD
    for title, of_part in parts.items():
        if known := [name for name in of_part if name in names]:
            text += f"\n## {title}\n\n" + "\n".join(_entry(name) for name in known)
    return text


def _entry(name: str) -> str:
    """A name with its signature and docstring; a class with its own methods and properties."""
    value = getattr(PACKAGE, name)
    text = f"### `{name}`\n\n{_code(name, value)}\n{_doc(value)}"
    for method, function in _own(value) if isinstance(value, type) else ():
        text += f"\n**`{name}.{method}`**\n"
        if inspect.isfunction(function):
            text += f"\n{_code(method, function)}"
        text += f"\n{_doc(function)}"
    return text


def _own(value: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of a class that have a docstring, in their order. Not those
    of classes above, and no function that is the default of a field."""
    for name, member in vars(value).items():
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if inspect.isfunction(function):
            is_own = function.__qualname__ == f"{value.__qualname__}.{name}"
        else:
            is_own = isinstance(function, property | cached_property)
        if is_own and not name.startswith("_") and function.__doc__:
            yield name, function


class _Shown(str):
    """A default, as it is shown."""

    def __repr__(self) -> str:
        return str(self)


def _default(value: Any) -> Any:
    """A default without addresses and long values: a public name, a function's name, or a class."""
    for name in PACKAGE.__all__:
        if value is getattr(PACKAGE, name):
            return _Shown(name)
    if inspect.isfunction(value):
        return _Shown(value.__name__)
    return _Shown(f"{type(value).__name__}()") if is_dataclass(value) else value


def _code(name: str, value: Callable[..., Any]) -> str:
    """The signature as code, with a line for each parameter where one is too long."""
    if isinstance(value, type) and issubclass(value, Exception):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        return f"```python\nclass {name}({bases})\n```\n"
    signature = inspect.signature(value)
    parameters = [
        one.replace(default=_default(one.default))
        for one in signature.parameters.values()
        if one.name != "self"
    ]
    returns = signature.empty if isinstance(value, type) else signature.return_annotation
    end = "" if returns is signature.empty else f" -> {returns}"
    whole = f"{name}{_plain(str(Signature(parameters)))}{end}"
    if len(whole) > WIDTH:
        lines = [f"    {_plain(str(one))}," for one in parameters]
        kinds = [one.kind for one in parameters]
        if Parameter.KEYWORD_ONLY in kinds and Parameter.VAR_POSITIONAL not in kinds:
            lines.insert(kinds.index(Parameter.KEYWORD_ONLY), "    *,")
        whole = "\n".join([f"{name}(", *lines, f"){end}"])
    return f"```python\n{whole}\n```\n"


def _plain(signature: str) -> str:
    """A signature without the quotes of annotations."""
    return re.sub(r": '([^']*)'", r": \1", signature)


def _doc(value: Any) -> str:
    return with_code(inspect.cleandoc(value.__doc__ or "")) + "\n"


def with_code(docstring: str) -> str:
    """A docstring with its examples as code."""
    return re.sub(r"^>>> .*(?:\n.+)*", r"```python\n\g<0>\n```", docstring, flags=re.MULTILINE)


if __name__ == "__main__":
    write_file(PAGE, page())
