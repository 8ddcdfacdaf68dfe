"""Models that run elsewhere: in a server (vLLM, llama.cpp, any that speaks OpenAI's completions),
or in transformers; Self-Ensemble in other evaluation programs."""

import sys
from contextlib import suppress

from minise.errors import printable


def say(text: str) -> None:
    """Print one line on stderr."""
    with suppress(OSError):  # nobody can be told
        print(f"minise: {printable(text)}", file=sys.stderr)
