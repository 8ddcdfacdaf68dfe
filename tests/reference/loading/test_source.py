"""The files of a checkpoint are found: in a folder, among those that ship, or on a local stand-in
for the hub."""

import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

import minise
from minise import InputError
from minise.loading import DEFAULT_MODEL
from minise.loading.source import INDEX, SINGLE, find_folder
from tests.reference.support.hub import COMMIT, OLDER, TOKEN, Hub, client
from tests.reference.support.tiny import FAMILIES, write_checkpoint

# Without torch, whose import takes longer than all the rest.
FETCH = """
from minise.errors import InputError
from minise.loading.source import find_folder, weight_files
for source, revision in {sources}:
    try:
        folder, commit = find_folder(source, revision)
        print(commit, *(path.name for path in weight_files(folder, source, commit)))
    except InputError as error:
        print(error)
"""


@pytest.fixture
def hub(llama_folder: Path) -> Iterator[Hub]:
    with Hub() as server:
        server.add("owner/name", llama_folder)
        yield server
        server.shutdown()


def fetch(url: str, home: Path, *sources: str, **environment: str) -> list[str]:
    """A line for each source, "owner/name" or "owner/name@revision" (without one "owner/name"): its
    commit and its weight files, or why it is refused."""
    pairs = []
    for source in sources or ("owner/name",):
        name, _, revision = source.partition("@")
        pairs.append((name, revision or None))
    return client(url, home, FETCH.format(sources=pairs), **environment)


def closed_port() -> str:
    """An address at which no server listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_a_repository_is_fetched_once_and_without_files_that_nobody_asked_for(
    hub: Hub, tmp_path: Path
) -> None:
    assert fetch(hub.url, tmp_path) == [f"{COMMIT} {SINGLE}"]
    assert sorted(hub.fetched) == ["config.json", SINGLE, "tokenizer.json"]
    assert hub.fetched[-1] == SINGLE  # the small files first
    hub.fetched.clear()
    # From the cache: offline by the variable, and where nothing answers.
    assert fetch(hub.url, tmp_path, HF_HUB_OFFLINE="1") == [f"{COMMIT} {SINGLE}"]
    assert fetch(closed_port(), tmp_path) == [f"{COMMIT} {SINGLE}"]
    assert hub.fetched == []


def test_a_model_is_that_of_its_revision_and_an_unsupported_one_is_refused_without_its_weights(
    hub: Hub, tmp_path: Path, llama_folder: Path
) -> None:
    older = write_checkpoint(tmp_path / "older", FAMILIES["llama"], seed=1)
    hub.add("owner/name", older, OLDER)
    hub.files["owner/gemma", COMMIT] = {"config.json": b'{"model_type": "gemma"}', SINGLE: b"no"}
    script = (
        "import minise\n"
        f"for revision in (None, 'old', '{OLDER}', '{COMMIT}'):\n"
        "    lm = minise.load('owner/name', revision=revision, device='cpu')\n"
        "    print(lm.revision, lm.name, lm.decoder.model.norm.weight[0].item())\n"
        "try:\n    minise.load('owner/gemma')\nexcept ValueError as error:\n    print(error)"
    )
    new, old = (
        load_file(folder / SINGLE)["model.norm.weight"][0].item()
        for folder in (llama_folder, older)
    )
    expected = [(COMMIT, new), (OLDER, old), (OLDER, old), (COMMIT, new)]
    *lines, refused = client(hub.url, tmp_path / "home", script)
    assert lines == [f"{commit} owner/name {value}" for commit, value in expected]
    assert 'model_type is "gemma"' in refused
    assert hub.fetched.count(SINGLE) == 2


def test_only_the_shards_of_the_index_are_fetched_and_missing_ones_are_named(
    hub: Hub, tmp_path: Path
) -> None:
    files = hub.files["owner/name", COMMIT]
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    files[shards[0]] = files[SINGLE]
    files[INDEX] = json.dumps({"weight_map": {name: name for name in shards}}).encode()
    (message,) = fetch(hub.url, tmp_path)
    assert shards[1] in message
    assert "1 of 2" in message
    assert SINGLE not in hub.fetched
    (message,) = fetch(hub.url, tmp_path, HF_HUB_OFFLINE="1")
    assert shards[1] in message
    files[shards[1]] = b""
    assert fetch(hub.url, tmp_path / "new") == [f"{COMMIT} {' '.join(shards)}"]


def test_refusals_of_the_hub_name_the_repository_and_the_remedy(hub: Hub, tmp_path: Path) -> None:
    parts = {
        "owner/gated": ["accept its licence", "https://huggingface.co/owner/gated", "HF_TOKEN"],
        "owner/private": ["HF_TOKEN"],
        "owner/missing": ["no such folder", "Repository Not Found"],
        "owner/forbidden": ["403", "HF_TOKEN"],
        "owner/broken": ["500"],
    }
    hub.refused = {
        "owner/gated": (403, "GatedRepo"),
        "owner/private": (401, "RepoNotFound"),
        "owner/forbidden": (403, ""),
        "owner/broken": (500, ""),
    }
    *lines, of_revision = fetch(hub.url, tmp_path, *parts, "owner/name@v9")
    for line, (name, words) in zip(lines, parts.items(), strict=True):
        assert line.startswith(f"{name}: ")
        assert all(word in line for word in words), line
    assert of_revision.startswith("owner/name at v9: ")
    assert hub.fetched == []


def test_without_a_network_no_token_is_asked_for(tmp_path: Path) -> None:
    (line,) = fetch(closed_port(), tmp_path)
    assert line.startswith("owner/name: no such folder")
    assert line.endswith("; give a folder, or try again when the hub answers")
    (line,) = fetch(closed_port(), tmp_path, HF_HUB_OFFLINE="1")
    assert line.endswith("; give a folder, or unset it")


def test_the_token_of_the_environment_opens_a_gated_repository(hub: Hub, tmp_path: Path) -> None:
    hub.refused["owner/name"] = (403, "GatedRepo")
    assert fetch(hub.url, tmp_path, HF_TOKEN=TOKEN) == [f"{COMMIT} {SINGLE}"]


def test_a_download_that_breaks_off_is_refused_and_completed_next_time(
    hub: Hub, tmp_path: Path
) -> None:
    hub.broken = SINGLE
    (line,) = fetch(hub.url, tmp_path)
    assert line.startswith(f"owner/name at {COMMIT}: ")
    hub.broken = None
    hub.fetched.clear()
    assert fetch(hub.url, tmp_path) == [f"{COMMIT} {SINGLE}"]
    assert hub.fetched == [SINGLE]


def test_the_shipped_checkpoints_are_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, commit = find_folder(DEFAULT_MODEL)
    assert (folder / "config.json").is_file()
    assert commit is None
    # A wheel carries them inside the package.
    copy = write_checkpoint(tmp_path / "minise" / "weights" / "mine", FAMILIES["llama"])
    monkeypatch.setattr("minise.loading.source.SHIPPED", (tmp_path, tmp_path / "minise"))
    assert find_folder("weights/mine") == (copy, None)


def test_links_lead_to_files_of_the_folder_or_of_its_place_in_the_hubs_cache(
    tmp_path: Path, llama_folder: Path
) -> None:
    expected = load_file(llama_folder / SINGLE)["model.norm.weight"]
    plain = shutil.copytree(llama_folder, tmp_path / "plain")
    (plain / SINGLE).rename(plain / "weights")
    (plain / SINGLE).symlink_to("weights")
    (tmp_path / "link").symlink_to(plain)  # the folder itself may be one
    cached = tmp_path / "models--owner--name" / "snapshots" / COMMIT
    blobs = cached.parents[1] / "blobs"
    shutil.copytree(llama_folder, blobs)
    cached.mkdir(parents=True)
    for path in blobs.iterdir():
        (cached / path.name).symlink_to(f"../../blobs/{path.name}")
    for folder in (plain, tmp_path / "link", cached):
        assert minise.load(folder).decoder.model.norm.weight.equal(expected)
    cached.parents[1].rename(tmp_path / "owner")  # no folder of a cache
    with pytest.raises(InputError, match="is a link out of the folder"):
        minise.load(tmp_path / "owner" / "snapshots" / COMMIT)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes are of POSIX")
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", SINGLE, INDEX])
def test_a_pipe_is_not_waited_for(tmp_path: Path, llama_folder: Path, name: str) -> None:
    folder = shutil.copytree(llama_folder, tmp_path / "piped")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match=f"{name}: is no file"):
        minise.load(folder)


def test_a_home_folder_is_expanded(monkeypatch: pytest.MonkeyPatch, llama_folder: Path) -> None:
    monkeypatch.setenv("HOME", str(llama_folder.parent))
    assert find_folder(f"~/{llama_folder.name}")[0] == llama_folder


@pytest.mark.parametrize(
    ("made", "source", "named"),
    [
        ("model.safetensors", "model.safetensors", "is a file"),
        ("small.gguf", "small.gguf", "small.gguf: is GGUF: python -m tools.from_gguf"),
        ("small.gguf", "", "python -m tools.from_gguf"),
        ("adapter_config.json", "", "merge_and_unload"),
        ("pytorch_model-00001-of-00002.bin", "", "pickled"),
        ("README.md", "", "config.json"),
        ("README.md", "none", "owner/name"),
        ("README.md", "http://127.0.0.1:8000", "server:ADDRESS"),
        ("README.md", "x\0y", "owner/name"),
        ("README.md", "y" * 5000, "owner/name"),
    ],
)
def test_what_people_bring_by_mistake_is_named(
    tmp_path: Path, made: str, source: str, named: str
) -> None:
    (tmp_path / made).write_bytes(b"")
    with pytest.raises(InputError) as refused:
        minise.load(tmp_path / source)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("lost", ["tokenizer.json", SINGLE])
def test_gguf_beside_a_config_is_named_whatever_else_is_missing(
    tmp_path: Path, llama_folder: Path, lost: str
) -> None:
    shutil.copytree(llama_folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / lost).rename(tmp_path / "small.gguf")
    with pytest.raises(InputError, match=rf"{lost}.*python -m tools\.from_gguf"):
        minise.load(tmp_path)


def test_a_huge_config_is_refused_before_it_is_read(tmp_path: Path, llama_folder: Path) -> None:
    folder = shutil.copytree(llama_folder, tmp_path / "huge")
    with (folder / "config.json").open("r+b") as file:
        file.truncate(2**40)  # without blocks on the disk
    with pytest.raises(InputError, match=r"config.json: has more than 64 MiB"):
        minise.load(folder)
