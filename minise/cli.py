"""The command line.

Exit status: 0 done; 1 a check failed; 2 unusable input, with one line on stderr and no traceback;
130 interrupted; 141 the reader of the output is gone.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from minise import __version__
from minise.errors import InputError

# Each is a file of minise/commands/.
COMMANDS = ("ask", "verify", "bench", "eval", "report")


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # any question on any terminal
    given = sys.argv[1:] if arguments is None else arguments
    try:
        args = parser(given[:1] if given and given[0] in COMMANDS else COMMANDS).parse_args(given)
        args.arguments = given
        status: int = args.command(args)
        sys.stdout.flush()
        return status
    except InputError as error:
        return _refuse(str(error))
    except RuntimeError as error:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(error, torch.OutOfMemoryError):
            raise
        first = str(error).splitlines()[0]
        return _refuse(f"out of memory ({first}); use a smaller dtype or fewer trials")
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader is gone, as in `minise ask | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """The parser of these commands. No other command's file is imported."""
    top = _Parser(
        prog="minise", description="Self-Ensemble for many-choice questions.", allow_abbrev=False
    )
    top.add_argument("--version", action="version", version=f"minise {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name in names:
        command = import_module(f"minise.commands.{name}")
        text = command.__doc__ or ""
        options = commands.add_parser(
            name,
            help=text.partition("\n")[0],
            description=text,
            epilog=f"example: {command.EXAMPLE}",
            allow_abbrev=False,
        )
        command.add_options(options)
        options.set_defaults(command=command.run)
    return top


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def _refuse(message: str) -> int:
    print(f"minise: {' '.join(message.split())}", file=sys.stderr)
    return 2
