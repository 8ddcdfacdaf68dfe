"""docs/packed.md, the list of MUSTs that the plugin reads, and the vectors: one and the same."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
VECTORS = ROOT / "vectors"
sys.path.insert(0, str(VECTORS))

from packed_vectors.check import read, rows_in  # noqa: E402

PAGE = (ROOT / "docs/packed.md").read_text(encoding="utf-8")
MUSTS = json.loads((VECTORS / "packed_vectors/musts.json").read_text(encoding="utf-8"))


def facts() -> list[dict]:
    return [json.loads(read(path)[1]["facts"]) for path in rows_in(VECTORS)]


def test_the_page_and_the_list_name_the_same_musts_mistakes_and_entries_of_the_zoo() -> None:
    parts = re.split(r"\*\*MUST (\d+)\.\*\* ", PAGE)[1:]
    on_page = {}
    for number, text in zip(parts[::2], parts[1::2], strict=True):
        last = re.search(r"^Mistakes: (.*)$", text, flags=re.MULTILINE)
        assert last, number
        names = set(re.findall(r"`(\w+)`", last[1].split("Zoo:")[0]))
        on_page[int(number)] = (names, set(re.findall(r"zoo\.md#([\w-]+)", last[1])))
    listed = {one["number"]: (set(one["mistakes"]), set(one["zoo"])) for one in MUSTS}
    assert on_page == listed
    assert list(listed) == list(range(1, len(MUSTS) + 1))


def test_every_mistake_of_the_vectors_breaks_one_must_and_every_must_has_vectors() -> None:
    listed = [name for must in MUSTS for name in must["mistakes"]]
    assert len(listed) == len(set(listed))
    made = {name for one in facts() for name in one["words"]}
    assert made == set(listed)
    for must in MUSTS:
        assert set(must["mistakes"]) & made, must["number"]


def test_each_must_names_the_vectors_that_test_it() -> None:
    made: dict[str, set[str]] = {}
    for path in rows_in(VECTORS):
        folder = path.parent.relative_to(VECTORS).as_posix()
        folder = "v1" if folder.startswith("v1/") else folder
        made.setdefault(folder, set()).update(json.loads(read(path)[1]["facts"])["words"])
    named = [
        re.findall(r"`([\w/]+)`", x) for x in re.findall(r"^Vectors: (.*)$", PAGE, re.MULTILINE)
    ]
    assert len(named) == len(MUSTS)
    for must, folders in zip(MUSTS, named, strict=True):
        testing = [one for one in sorted(made) if made[one] & set(must["mistakes"])]
        assert folders == testing, must["number"]


def test_entries_of_the_zoo_exist() -> None:
    zoo = (ROOT / "docs/zoo.md").read_text(encoding="utf-8")
    heads = re.findall(r"^#+ (.*)$", zoo, flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
    for must in MUSTS:
        assert set(must["zoo"]) <= anchors, must["number"]


def test_the_page_has_at_most_900_words() -> None:
    """Names of mistakes and addresses are none."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|[|*#-]", " ", PAGE)
    assert len(text.split()) <= 900


def test_the_page_names_the_tolerances_of_the_program() -> None:
    from packed_vectors.comparing import OF_OPERATORS, TOLERANCE

    for name, limits in (("logits", TOLERANCE), ("operators", OF_OPERATORS)):
        cells = re.search(rf"^\| {name} \| (.*) \|$", PAGE, flags=re.MULTILINE)
        assert cells
        said = [float(cell) for cell in cells[1].split("|")]
        assert said == [limits[n] for n in ("float32", "float16", "bfloat16")]
        assert limits["float64"] == limits["float32"]
