"""Find the files of a checkpoint: in a folder, among the shipped weights, or on the hub."""

import json
import os
import re
from pathlib import Path
from typing import Any

from tqdm.asyncio import tqdm_asyncio

from minise.errors import InputError, one_line, quote, shorten

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"  # of weights in several files
MOST_JSON = 64 * 2**20  # bytes: the largest index that is published has a quarter
# Fetched before the weights: an unsupported model is refused before gigabytes are downloaded.
SMALL_FILES = [
    "config.json",
    "tokenizer.json",
    INDEX,
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "adapter_config.json",
]
KINDS = (".json", ".jinja", ".safetensors")  # of all files of a checkpoint that are read
# Where "weights/..." may be: beside the package in a checkout, inside it in an installed wheel.
SHIPPED = (Path(__file__).parents[2], Path(__file__).parents[1])
# What a folder may hold in place of a checkpoint, and what to do.
INSTEAD = {
    "*.gguf": "is GGUF: python -m tools.from_gguf FILE.gguf FOLDER makes a checkpoint of it, or "
    "serve it and use --model server:URL",
    "adapter_config.json": "is a LoRA adapter; merge it with peft: m = AutoPeftModelForCausalLM"
    ".from_pretrained(HERE).merge_and_unload(); m.save_pretrained(FOLDER); copy tokenizer.json too",
    "pytorch_model*.bin": "has pickled weights: convert them (transformers: save_pretrained)",
}
NOT_WHOLE = "needs a whole config.json, tokenizer.json and model*.safetensors: fetch them again"


def find_folder(source: str, revision: str | None = None) -> tuple[Path, str | None]:
    """The folder of a checkpoint, and the commit of one from the hub. `source`: a folder, the
    shipped "weights/NAME", or a hub id "owner/name", whose small files are then in the cache.
    Raises InputError for none of these, and as `check_files` does."""
    folders = [Path(os.path.expanduser(source))]
    if source.startswith("weights/"):
        folders += [root / source for root in SHIPPED]
    for folder in folders:
        if os.path.isdir(folder):  # Path.is_dir raises for impossible names
            if revision:
                raise InputError(f"{folder}: is a folder; omit the revision, it is for hub ids")
            check_files(folder)
            return folder, None
    if os.path.exists(source):
        how = "is a file; give the folder that holds config.json"
        if source.endswith(".gguf"):
            how = INSTEAD["*.gguf"]
        raise InputError(f"{source}: {how}")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", source):
        what = "no such folder, and no hub id (owner/name); a running server is server:ADDRESS"
        raise InputError(f"{shorten(source, 200)}: {what} with --tokenizer FOLDER_OR_ID")
    return fetch(source, SMALL_FILES, revision)


def check_files(folder: Path) -> None:
    """Refuse a checkpoint that leads out of its folder by a link, and a pipe or a device in place
    of a file: to read it would take for ever. In the hub's cache the links of a folder
    models--OWNER--NAME/snapshots/COMMIT lead to models--OWNER--NAME/blobs."""
    whole = Path(os.path.realpath(folder))
    allowed = [whole]
    repository = whole.parent.parent
    if repository.name.startswith("models--"):
        allowed.append(Path(os.path.realpath(repository / "blobs")))
    for path in sorted(folder.glob("*")):
        if path.suffix not in KINDS:
            continue
        file = Path(os.path.realpath(path))
        if not any(file.is_relative_to(place) for place in allowed):
            raise InputError(f"{path}: is a link out of the folder; put a copy in its place")
        if os.path.exists(file) and not os.path.isfile(file):
            raise InputError(f"{path}: is no file; move it away")


class _Bar(tqdm_asyncio):  # type: ignore[type-arg]
    """Shown on a terminal, and after a second: often all is in the cache already."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options["disable"] = None
        options["delay"] = 1
        super().__init__(*args, **options)


def fetch(repository: str, files: list[str], revision: str | None = None) -> tuple[Path, str]:
    """A folder in the hub's cache with these files of a repository (those that it has), and the
    commit. A data set's repository is "datasets/OWNER/NAME". The hub's own library has the cache,
    an offline mode (HF_HUB_OFFLINE=1) and the token (HF_TOKEN). Raises InputError if the hub does
    not serve it."""
    from huggingface_hub import constants, errors, snapshot_download  # takes a while

    name = repository.removeprefix("datasets/")
    kind = "model" if name == repository else "dataset"
    try:
        folder = snapshot_download(
            name, repo_type=kind, revision=revision, allow_patterns=files, tqdm_class=_Bar
        )
    except Exception as error:  # the exceptions of the hub's HTTP client vary by version
        what = f"no such folder, and the hub does not serve it ({one_line(error)})"
        remedy = "give a folder, or set HF_TOKEN"
        if isinstance(error, errors.GatedRepoError):
            what = f"gated; accept its licence on https://huggingface.co/{repository}"
        elif constants.HF_HUB_OFFLINE:
            what = f"HF_HUB_OFFLINE is set, and not all is in the cache ({constants.HF_HUB_CACHE})"
            remedy = "give a folder, or unset it"
        elif not any(isinstance(one, errors.HfHubHTTPError) for one in (error, error.__cause__)):
            remedy = "give a folder, or try again when the hub answers"
        at = f"{name} at {shorten(revision, 80)}" if revision else name
        raise InputError(f"{at}: {what}; {remedy}") from None
    return Path(folder), Path(folder).name


def weight_files(folder: Path, source: str, commit: str | None) -> list[Path]:
    """The files that hold the weights: the shards of the index if there is one. With a commit they
    are fetched. Raises InputError for one that is missing, or does not lie beside the index."""
    names = [SINGLE]
    if os.path.exists(folder / INDEX):
        try:
            names = sorted(set(read_json(folder / INDEX)["weight_map"].values()))
            elsewhere = [name for name in names if os.path.basename(name) != name]
        except (LookupError, TypeError, AttributeError):
            raise InputError(f"{folder / INDEX}: not an index of shards; fetch it again") from None
        if elsewhere:
            what = f"leads to {quote(elsewhere[0])}, and shards lie beside it"
            raise InputError(f"{folder / INDEX}: {what}; fetch it again")
    if commit:
        fetch(source, names, commit)
    missing = [shorten(name, 80) for name in names if not os.path.isfile(folder / name)]
    if missing:
        count = f"{', '.join(missing[:3])} missing ({len(missing)} of {len(names)} weight files)"
        raise InputError(f"{folder}: {count}; {instead(folder)}")
    return [folder / name for name in names]


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises InputError for a missing, damaged or huge one."""
    try:
        if os.path.getsize(path) > MOST_JSON:
            raise ValueError(f"has more than {MOST_JSON // 2**20} MiB")
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: {one_line(error)}; {instead(path.parent)}") from None


def instead(folder: Path) -> str:
    """What to do about a folder that holds no whole checkpoint."""
    for pattern, what in INSTEAD.items():
        if any(folder.glob(pattern)):
            return f"the folder {what}"
    return f"the folder {NOT_WHOLE}"
