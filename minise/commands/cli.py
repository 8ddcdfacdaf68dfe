"""The command line: `minise NAME ...` imports commands/NAME.py, and its `Options` become a parser.

Exit status: 0 done; 1 a check failed; 2 unusable input, with one line on stderr and no traceback;
130 interrupted; 141 the reader of the output is gone.
"""

import atexit
import errno
import gc
import io
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from minise import __version__
from minise.commands.options import GroupOptions, ModelOptions, Option
from minise.commands.terminal import say
from minise.errors import InputError, check_name, one_line

# A command is a file of this name, imported when it is called, and what the overview says of it.
COMMANDS = {
    "ask": "answer a question by Self-Ensemble and by standard inference",
    "eval": "measure methods on a data set",
    "report": "tables and pictures of finished runs",
    "verify": "check on this machine that packed equals separate",
    "check": "check a packed row of another program",
    "explain": "write a page that shows the mask token by token",
}
HELP = ("-h", "--help")
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NO_MEMORY = re.compile("out of memory|not enough memory|allocate memory", re.IGNORECASE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status. An exception that is none of these is a mistake in
    minise or in a method of the user's own: it has its traceback."""
    if sys.stdout is None:
        return _refuse("standard output is closed; redirect it to a file")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # any question on any terminal
    try:
        try:
            return run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            sys.stdout.flush()
    except InputError as error:
        return _refuse(str(error))
    except BrokenPipeError:  # as in `minise ask | head -1`
        _leave_output()
        return 141
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        _leave_output()
        return _refuse(f"{error.filename or 'output'}: {error.strerror}; free some space")
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or NO_MEMORY.search(str(error))):
            raise
        return _refuse(f"out of memory ({one_line(error)}); use a smaller dtype or fewer trials")


def run(words: list[str]) -> int:
    """Run the command that the first word names, with the options that the others are."""
    name = words[0] if words else "--help"
    if name in (*HELP, "--version"):
        print(f"minise {__version__}" if name == "--version" else overview())
        return 0
    check_name("command", name, COMMANDS)
    # Importing torch makes many objects that stay. To search them for garbage, at the end above
    # all, would take a third of the time of `minise ask`.
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    command = import_module(f"minise.commands.{name}")
    try:
        options = parse(name, command.__doc__ or "", command.Options, words[1:])
    except click.exceptions.Exit:  # the help is printed
        return 0
    except click.ClickException as error:
        message = error.format_message().rstrip(".")
        raise InputError(f"{message}; see minise {name} --help") from None
    status: int = command.run(options)
    return status


def overview() -> str:
    """What `minise --help` prints."""
    head = (
        "usage: minise COMMAND [OPTIONS]\n\nSelf-Ensemble for many-choice questions.\n\ncommands:"
    )
    lines = [f"  {name:<9}{about}" for name, about in COMMANDS.items()]
    more = "minise COMMAND --help has the options and an example; minise --version the version."
    return "\n".join([head, *lines, "", more])


def parse(name: str, about: str, options: type[Any], words: list[str]) -> Any:
    """An object of the class `options` from a command's words. `about`: the text of its help, whose
    last paragraph is an example. Raises click's exceptions."""
    text, _, example = about.strip().rpartition("\n\n")
    hints = get_type_hints(options, include_extras=True)
    # A command's own options first, those of the model last.
    of_groups = {field.name for field in fields(GroupOptions)}
    of_model = {field.name for field in fields(ModelOptions)}
    in_order = sorted(
        fields(options), key=lambda field: (field.name in of_model, field.name in of_groups)
    )
    command = click.Command(
        name,
        params=[parameter(field, hints[field.name]) for field in in_order],
        help=text,
        epilog=f"\b\n{example}",  # \b: leave its lines as they are
        context_settings={
            "help_option_names": HELP,
            "show_default": True,
            "max_content_width": 100,
        },
    )
    context = command.make_context(f"minise {name}", words)
    return options(**context.params)


def parameter(field: Field[Any], hint: Any) -> click.Parameter:
    """The option that a field is. hint: Annotated[type, Option(...)]."""
    kind, about = get_args(hint)
    assert isinstance(about, Option)
    if get_origin(kind) in (Union, UnionType):
        [kind] = [one for one in get_args(kind) if one is not NoneType]
    several = get_origin(kind) is tuple
    if several:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        kind = click.Choice(get_args(kind))
    elif kind is int:
        kind = click.IntRange(about.min) if about.min is not None else click.INT
    shared: dict[str, Any] = {"type": kind, "metavar": about.metavar, "required": True}
    if field.default is not MISSING:
        shared["required"] = False
        shared["default"] = field.default
    if about.positional:
        return click.Argument([field.name], nargs=-1 if several else 1, **shared)
    names = [field.name, "--" + field.name.replace("_", "-")]
    if about.short is not None:
        names.append(about.short)
    is_flag = kind is bool
    return click.Option(names, help=about.help, multiple=several, is_flag=is_flag, **shared)


def _refuse(message: str) -> int:
    say(message)
    return 2


def _leave_output() -> None:
    """Send what stdout still holds to nowhere, or Python would fail on it again at its end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
