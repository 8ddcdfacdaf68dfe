"""Find the files of a checkpoint (in a folder, the shipped weights or the hub) and of a data set
on the hub. The hub's library is imported where the hub is asked: it takes a while."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from minise.errors import InputError, one_line, shorten

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
BINS = "pytorch_model*.bin"  # torch's old format, a pickle, in one file or in shards
_SHARD = r"[\w.-]{1,200}\.safetensors"


class _Absent(InputError):
    """The source exists, but it has no such file, or the hub did not serve it."""


class _NotServed(_Absent):
    """The hub did not serve the file, and it is not in the cache."""


@dataclass(frozen=True)
class _Kind:
    """A kind of repository, and the words for it in error messages."""

    repo_type: str
    page: str  # the part of a hub address before the id
    not_here: str  # what was looked for on this machine first, without success
    instead: str  # what to do without the hub
    files: str  # which files are needed


_MODEL = _Kind(
    "model",
    "",
    "no such folder here, ",
    "give a folder",
    "minise reads config.json, tokenizer.json and safetensors weights",
)
_DATASET = _Kind(
    "dataset",
    "datasets/",
    "",
    "give a local file: --task NAME@FILE",
    "give another revision, or a local file: --task NAME@FILE",
)


def finder(source: str, revision: str | None) -> Callable[[str], Path]:
    """A function that finds a file of the checkpoint `source` by its name and returns its path.

    Raises InputError if `source` is neither a folder nor a hub id, or if a folder has a revision.
    The function raises it for a file that does not exist or cannot be fetched.
    """
    shipped = [root / source for root in _SHIPPED if source.startswith("weights/")]
    label = shorten(source, 200)
    # os.path, because Path.is_dir and Path.expanduser raise for impossible names.
    for folder in [Path(os.path.expanduser(source)), *shipped]:
        if os.path.isdir(folder):
            if revision:
                raise InputError(f"{folder}: is a folder; omit the revision, it is for hub ids")
            return lambda name: _readable(folder / name)
    try:
        os.stat(source)
    except PermissionError:
        raise InputError(f"{label}: cannot be read (Permission denied)") from None
    except (OSError, ValueError):
        pass  # there is nothing, or nothing can have this name
    else:
        raise InputError(f"{label}: is a file; give the folder that holds config.json")
    full = source if "/" in source else f"weights/{source}"
    if near := get_close_matches(full, shipped_models(), 1, 0.85):
        raise InputError(f"{label}: no such folder; did you mean {near[0]}, which ships?")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", source):
        raise InputError(f"{label}: no such folder, and not a hub id (owner/name)")
    commit = revision

    def from_hub(name: str) -> Path:
        nonlocal commit
        path = _readable(_download(source, name, commit, _MODEL))
        # The first file fixes the commit, so that all files come from the same one.
        commit = path.parent.name
        return path

    return from_hub


def optional_file(find: Callable[[str], Path], name: str) -> Path | None:
    """A file that a checkpoint need not have: None if it is not there."""
    try:
        return find(name)
    except _Absent:
        return None


def dataset_file(repository: str, name: str, revision: str | None) -> tuple[Path, str]:
    """A file of a data set on the hub, and the hash of its commit."""
    path = _download(repository, name, revision, _DATASET)
    return path, path.parents[name.count("/")].name


# Where "weights/..." may be: beside the package in a checkout, inside it in an installed wheel.
_SHIPPED = (Path(__file__).parents[2], Path(__file__).parents[1])


def shipped_models() -> list[str]:
    """The checkpoints that ship with the package, as `weights/NAME`."""
    names = set()
    for root in _SHIPPED:
        for path in root.glob("weights/*/config.json"):
            names.add(f"weights/{path.parent.name}")
    return sorted(names)


def _readable(path: Path) -> Path:
    """The path, if it is a file that can be opened."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path}: is not a file; {_MODEL.files}")
        path.open("rb").close()
        return path
    except FileNotFoundError:
        if path.is_symlink():
            raise InputError(f"{path}: links to a file that is not there; fetch it") from None
        raise _Absent(f"{path}: no such file; {_MODEL.files}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None


def _download(
    repository: str, name: str, revision: str | None, kind: _Kind, fetch: bool = True
) -> Path:
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub import errors as hub

    at = shorten(repository + (f" at {revision}" if revision else ""), 200)
    try:
        with quiet_hub():
            return Path(
                huggingface_hub.hf_hub_download(
                    repository,
                    name,
                    repo_type=kind.repo_type,
                    revision=revision,
                    local_files_only=not fetch,
                )
            )
    except hub.GatedRepoError:
        raise InputError(
            f"{repository}: gated; accept its licence on https://huggingface.co/{kind.page}"
            f"{repository}, then set HF_TOKEN or run `hf auth login`"
        ) from None
    except hub.RepositoryNotFoundError:
        raise InputError(
            f"{repository}: {kind.not_here}no such repository on the hub (or it is "
            f"private: set HF_TOKEN or run `hf auth login`); {kind.instead}"
        ) from None
    except hub.RevisionNotFoundError:
        raise InputError(
            f"{repository}: has no revision {shorten(revision or '', 80)}; "
            "give one of its branches, tags or commits"
        ) from None
    except hub.LocalEntryNotFoundError as error:
        why, remedy = _why_not_served(error, repository, kind)
        raise _NotServed(
            f"{at}: {kind.not_here}{why}, and {name} is not in the cache "
            f"({constants.HF_HUB_CACHE}); {remedy}"
        ) from None
    except hub.EntryNotFoundError:
        convert = (
            f"; if it has {BINS}: hf download {repository} --local-dir FOLDER, then "
            "--model FOLDER says how to convert it"
        )
        more = convert if name == SINGLE else ""
        raise _Absent(f"{at}: has no {name}; {kind.files}{more}") from None
    except Exception as error:  # the exceptions of the hub's HTTP client vary by version
        raise InputError(
            f"{at}: {name} could not be fetched ({one_line(error)}); "
            "check the connection and HF_TOKEN, then try again"
        ) from None


def _why_not_served(error: Exception, repository: str, kind: _Kind) -> tuple[str, str]:
    """Why the hub gave no file that is not in the cache, and what to do."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError

    if constants.HF_HUB_OFFLINE:
        remedy = f"unset it to download the file, or {kind.instead}"
        return "HF_HUB_OFFLINE is set", remedy
    cause = error.__cause__ or error
    text = shorten(one_line(cause), 150)
    if isinstance(cause, HfHubHTTPError):
        return f"the hub did not serve it ({text})", f"try again later, or {kind.instead}"
    dataset = "--repo-type dataset " if kind is _DATASET else ""
    return (
        f"the hub cannot be reached ({text})",
        f"{kind.instead} (elsewhere: hf download {dataset}{repository} --local-dir FOLDER); with "
        "HF_HUB_OFFLINE=1, what is in the cache runs at once",
    )


def check_reachable(source: str, revision: str | None) -> None:
    """Raise InputError for a hub id whose config.json is neither in the cache nor to be had."""
    try:
        finder(source, revision)("config.json")
    except _NotServed:
        raise
    except InputError:
        pass  # something else is wrong, which the caller's library names


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Silence the hub library's warning for each retry. Our own message reports the outcome."""
    from huggingface_hub.utils import logging as hub_log

    level = hub_log.get_verbosity()
    hub_log.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        hub_log.set_verbosity(level)


def weight_files(find: Callable[[str], Path], folder: Path) -> list[Path]:
    """The files that hold the weights: the shards of the index if there is one."""
    if os.path.lexists(folder / SINGLE) and not os.path.lexists(folder / INDEX):
        return [_readable(folder / SINGLE)]  # do not ask the hub for an index: it may be offline
    try:
        index_path = find(INDEX)
    except _Absent:
        check_converted(folder)
        return [find(SINGLE)]
    try:
        shards = set(json.loads(index_path.read_text(encoding="utf-8"))["weight_map"].values())
        # Shards lie beside the index. A path to another place is refused.
        if not shards or not all(re.fullmatch(_SHARD, name) for name in shards):
            raise ValueError("weight_map names no shards beside it")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{index_path}: not an index of shards ({one_line(error)}); fetch it again"
        ) from None
    try:
        return [find(name) for name in sorted(shards)]
    except _Absent as error:
        absent = [name for name in sorted(shards) if not (index_path.parent / name).exists()]
        names = ", ".join(absent[:3]) + f" and {len(absent) - 3} more" * (len(absent) > 3)
        count = f"{len(absent)} of {len(shards)} shards are missing: {names}"
        if isinstance(error, _NotServed):
            raise _NotServed(f"{error} ({count})") from None
        raise _Absent(
            f"{folder}: {count}; copy them there (hf download OWNER/NAME --local-dir FOLDER)"
        ) from None


def check_converted(folder: Path) -> None:
    """Raise InputError for a folder with weights in torch's old format only."""
    has_safetensors = any(os.path.lexists(folder / name) for name in (SINGLE, INDEX))
    if list(folder.glob(BINS)) and not has_safetensors:
        raise _Absent(_conversion(folder)) from None


def _conversion(folder: Path) -> str:
    """What to say of a folder with weights in torch's old format only. It stays on one line."""
    code = (
        "import glob,torch,safetensors.torch as s;s.save_file({k:v.contiguous().clone()for f in "
        "glob.glob('py*.bin')for k,v in torch.load(f,weights_only=True).items()},"
        f"'{SINGLE}')"
    )
    what = f"{folder}: {BINS}, no safetensors; convert it there, if you trust it"
    return f'{what}: {shlex.quote(sys.executable)} -c "{code}"'
