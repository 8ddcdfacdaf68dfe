"""The command line.

Exit status: 0 done; 1 a check failed; 2 unusable input, with one line on stderr and no traceback;
130 interrupted, 143 terminated; 141 the reader of the output is gone.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn, TextIO

from minise import __version__
from minise.commands.options import group
from minise.errors import (
    WHEN,
    InputError,
    is_memory,
    one_line,
    printable,
    say,
    shorten,
    use_colour,
)

# NAME.py has the options and makes the request of them; run_NAME.py does the work.
COMMANDS = ("ask", "explain", "verify", "check", "eval", "report", "tasks")


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # any question on any terminal
    words = sys.argv[1:] if arguments is None else arguments
    use_colour(WHEN[0])
    try:
        try:
            top = parser(words[:1] if words and words[0] in COMMANDS else COMMANDS)
            if "_ARGCOMPLETE" in os.environ:  # the shell asks how the command could go on
                import_module("argcomplete").autocomplete(top)
            if not words:  # nothing was asked, so nothing is wrong: the help, and status 0
                top.print_help()
                return 0
            args = top.parse_args(words, argparse.Namespace(arguments=tuple(words)))
            use_colour(args.color)
            request = import_module(f"minise.commands.{args.command}").request(args)
            status: int = _imported(f"minise.commands.run_{args.command}").run(request)
        finally:
            sys.stdout.flush()
        return status
    except InputError as error:
        return _refuse(str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_memory(error):
            raise
        first = shorten((str(error).splitlines() or ["no memory is left"])[0], 200)
        return _refuse(f"out of memory ({first}); use a smaller dtype or fewer trials")
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader is gone, as in `minise ask | head -1`
        _leave(sys.stdout)
        return 141
    except OSError as error:
        _leave(sys.stdout)
        where = "" if error.filename is None else f"{error.filename}: "
        remedy = "check disk, permissions and where the output goes"
        return _refuse(f"{where}{error.strerror or one_line(error)}; {remedy}")


def _imported(name: str) -> Any:
    """The module, and all that it imports, torch above all. Nearly all of these objects stay to the
    end: to search them for garbage, now and at exit, would take a third of a short command."""
    if name not in sys.modules:
        gc.disable()
        try:
            import_module(name)
        finally:
            gc.freeze()
            gc.enable()
    return sys.modules[name]


def parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """The parser of these commands. No other command's file is imported."""
    top = _Parser(
        prog="minise",
        description="Self-Ensemble for many-choice questions.",
        epilog="Completion in the shell: pip install argcomplete, and once in each shell, or in "
        'its startup file: eval "$(register-python-argcomplete minise)".',
        allow_abbrev=False,
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
        colours = "colours on the screen (auto, the default: on a terminal, unless NO_COLOR is set)"
        group(options, "output").add_argument(
            "--color", choices=WHEN, default=WHEN[0], help=colours
        )
        options.set_defaults(command=name)
    return top


class _Parser(argparse.ArgumentParser):
    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        # Here and not at the top, where it would not be known whose options they are.
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            names = [name for name in self._option_string_actions if name.startswith("--")]
            near = get_close_matches(unknown[0].partition("=")[0], names, 1, 0.75)
            hint = f" (did you mean {near[0]}?)" if near else ""
            if "--choice" in names and not unknown[0].startswith("-"):
                hint = " (write --question or --choice before each text)"
            self.error(f"unrecognized arguments: {' '.join(unknown)}"[:200] + hint)
        return options, unknown

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stderr).write(message)  # argparse would hide that the disk is full

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{shorten(printable(message), 250)}; see {self.prog} --help")


def _refuse(message: str) -> int:
    try:
        say(message, "red")
    except OSError:
        _leave(sys.stderr)
    return 2


def _leave(stream: TextIO) -> None:
    """Send what a stream still holds to nowhere, or Python would try again at its end and fail."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
