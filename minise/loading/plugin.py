"""Load code by its name while the program runs: optional packages, and files of the user's own,
which may make an engine or a model."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from minise.errors import InputError, quote

if TYPE_CHECKING:
    import torch

    from minise.engines import NamedEngine
    from minise.lm import LocalModel
    from minise.prompts import LanguageModel

CLONE = Path(__file__).parents[2]  # or, where a wheel is installed, the folder of all packages


def load_extra(module: str, extra: str = "eval") -> Any:
    """A module that an optional extra installs. Raises InputError that names the extra."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        how = ""
        if extra:
            how = f"; pip install 'minise[{extra}]'"
        if extra and CLONE.joinpath("install.py").is_file():
            how = f"; in the clone: python3 install.py {extra}, or pip install -e '.[{extra}]'"
        raise InputError(f"this needs {error.name}, which is not installed{how}") from None


def find_object(where: str) -> Any:
    """The object "package.module:Name", or "./file.py:Name" from a file of the user's own, which is
    run like any Python program. Raises InputError for a file, module or name that does not exist.
    """
    source, _, name = where.rpartition(":")
    if not source or not name:
        raise InputError(f"{quote(where)} names no object; write FILE.py:NAME")
    if not source.endswith(".py"):
        if not all(part.isidentifier() for part in source.split(".")):
            raise InputError(f"{quote(where)} names no module; write FILE.py:NAME")
        module = load_extra(source, extra="")
    elif os.path.isfile(source):
        module = ModuleType(f"minise_plugin_{os.path.basename(source)[:-3]}")
        module.__file__ = source
        sys.modules[module.__name__] = module  # dataclasses look their own module up
        with open(source, "rb") as file:
            # Not an import, which may take the bytecode of a file that was edited a moment ago.
            exec(compile(file.read(), source, "exec", dont_inherit=True), vars(module))
    else:
        raise InputError(f"{source}: no such file; give the path of a Python file")
    if not hasattr(module, name):
        raise InputError(f"{source}: defines no {name}; give one of the names it defines")
    return getattr(module, name)


def find_function(where: str) -> Any:
    """As `find_object`. Raises InputError also for what cannot be called."""
    found = find_object(where)
    if not callable(found):
        raise InputError(f"{quote(where)} is no function; name one")
    return found


def find_engine(engine: str) -> NamedEngine:
    """The engine of this name: one of minise/engines.py, or the function that "FILE.py:NAME" names.
    Raises InputError for what is neither."""
    from minise.engines import NamedEngine, engine_named  # which imports torch

    if ":" in engine:
        return NamedEngine(engine, find_function(engine))
    return engine_named(engine)


def is_own(source: str | Path) -> bool:
    """Whether it is "FILE.py:NAME"."""
    return str(source).rpartition(":")[0].endswith(".py")


def load_own(source: str, dtype: str | None, device: torch.device | str) -> LanguageModel:
    """The model that the function "FILE.py:NAME" returns: a `LanguageModel`, or a decoder and its
    `Tokenizer`. Beside what engines.AnyDecoder names, such a decoder has a `config` with the facts
    of lm.ModelFacts. One that is a torch module is moved to `dtype` and `device`, where they are
    named; then it is called once. Raises InputError for what has not all this, and for values of
    another kind or shape."""
    import torch  # here, since commands whose help is shown must start without it

    from minise.lm import LocalModel
    from minise.loading.machine import usable_device

    made = find_function(source)()
    if isinstance(made, tuple) and len(made) == 2:
        decoder, tokenizer = made
        check_has(source, "its decoder", decoder, ("device", "dtype", "logits", "config"))
        facts = ("model_type", "vocab_size", "max_position_embeddings")
        check_has(source, "its decoder's config", decoder.config, facts)
        made = LocalModel(source, decoder.config, decoder, tokenizer)
    check_has(source, "what it returns", made, ("name", "tokenizer", "limits", "engine", "logits"))
    if isinstance(made, LocalModel):
        if isinstance(made.decoder, torch.nn.Module):
            if dtype is not None:
                made.decoder.to(getattr(torch, dtype))
            if device != "auto":
                made.decoder.to(usable_device(device, is_large=False))
        made = replace(made, name=source)
        check_decoder(made)
    lm: LanguageModel = made
    return lm


def check_has(source: str, what: str, value: Any, names: tuple[str, ...]) -> None:
    """Refuse what is neither kind of model."""
    missing = [name for name in names if not hasattr(value, name)]
    if missing:
        wanted = "return a LanguageModel, or a decoder and its Tokenizer (docs/extending.md)"
        raise InputError(f"{source}: {what} has no {missing[0]}; {wanted}")


def check_decoder(lm: LocalModel) -> None:
    """Refuse a decoder of the user's own that does not keep to engines.AnyDecoder: it is called
    once, with two rows of three tokens. What it gives there is of the right kind and shape."""
    import torch

    from minise.layout import causal_mask
    from minise.lm import check_rows

    decoder = lm.decoder
    V = lm.config.vocab_size
    tokens = torch.arange(3) % V
    rows = torch.tensor([1, 2])
    with torch.inference_mode():
        hidden_RD = decoder(tokens, torch.arange(3), causal_mask(3), rows)
        of_call = "hidden states of the rows: floats (2, D)"
        check_rows(f"{lm.name}: its decoder", hidden_RD, 2, of_call)
        logits_RV = decoder.logits(hidden_RD)
    wanted = f"logits of the rows: floats (2, {V}), as its vocab_size says"
    check_rows(f"{lm.name}: `logits` of its decoder", logits_RV, 2, wanted, V)
