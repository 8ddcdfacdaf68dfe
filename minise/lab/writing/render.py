"""Render a chat template, which is a program in a file that anybody can write.

jinja2's sandbox keeps it away from files and Python's own objects, but bounds neither time nor
memory (`10 ** 10 ** 10`). So chat.py runs this file in a process of its own, which imports nothing
of minise. On Windows only the clock ends it; macOS does not limit memory.
"""

import datetime
import json
import re
import sys
from typing import Any, NoReturn

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS = 2  # of the processor; templates need some 0.1
MEMORY = 512 << 20  # bytes; templates need some 40 MB
# {% generation %} marks for training what an assistant wrote. Here it is a block as {% with %} is.
GENERATION = re.compile(r"(\{%[-+]?\s*(?:end)?)generation(?=\s*[-+]?%\})")


def refuse(message: str) -> NoReturn:
    raise ValueError(f"it refuses these messages: {message}")


def to_json(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **layout)  # jinja2's escapes for HTML


def render(template: str, values: dict[str, Any]) -> str:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment.from_string(GENERATION.sub(r"\1with", template)).render(values)


if __name__ == "__main__":  # read [template, values], write {"text": ...} or {"error": ...}
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        if sys.platform == "linux":
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        print(json.dumps({"text": render(*json.load(sys.stdin))}))
    except Exception as error:  # a template can raise anything
        print(json.dumps({"error": str(error) or type(error).__name__}))
