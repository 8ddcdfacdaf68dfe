"""The functions behind the scenes Leak and Your own mask, in node: where the page finds a row
wrong, painted masks, and what leaks under them."""

import json
import random
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import minise
from minise import check
from minise.errors import InputError
from minise.lab.packing.packing import Packing
from minise.loading.checkpoint import load
from tests.lab.support.browser import Run, needs_node, run_node

pytestmark = needs_node

WEIGHTS = Path(minise.__file__).parents[1] / "weights"
PAGE = Path(minise.__file__).parent / "lab" / "page"
JUDGE = """
import { judgeRow, readRow, RowError } from "./check.js";
const said = (text) => {
  try {
    const row = readRow(text);
    const findings = judgeRow(row);
    return { findings, unjudged: row.unjudged, prompts: row.ends.length };
  } catch (error) {
    if (!(error instanceof RowError)) throw error;
    return error.message;
  }
};
tell(data.map(said));
"""
# Published bugs as rows, and their fixes.
BUGS = (Path(__file__).parents[1] / "packing" / "bugs.jsonl").read_text("utf-8").splitlines()
ZOO = [bug[kind] for bug in map(json.loads, BUGS) for kind in ("wrong", "fixed")]
# What the page leaves to `minise check`.
NOT_READ = {"tree", "parents", "restarts", "labels"}


def python_says(row: dict[str, Any]) -> dict[str, Any] | str:
    """What `minise check` says of a row, in the page's words: without the mistake's name."""
    if row.keys() & NOT_READ:
        return "not read here"
    try:
        report = check(**row)
    except InputError as error:
        return str(error)
    findings = []
    for one in report.findings:
        if one.what == "cu_seqlens":
            return "cu_seqlens is wrong"
        words = re.sub(", the (first|last) of", " of", one.words.partition(": ")[0])
        words = re.sub(", (may|has) ", r" \1 ", words)
        findings.append({"what": one.what, "words": words, "wrong": one.wrong, "of": one.of})
    return {"findings": findings, "unjudged": report.unjudged, "prompts": report.prompts}


def random_row(draw: random.Random) -> dict[str, Any]:
    """Documents or branches with the mask and positions that they should have, or damaged ones;
    sometimes malformed."""
    lengths = [draw.randint(1, 4) for _ in range(draw.randint(2, 4))]
    row: dict[str, Any] = {"documents": lengths}
    if draw.random() < 0.5:
        row = {"trunk": draw.randint(1, 3), "branches": lengths}
    T = row.get("trunk", 0) + sum(lengths) + draw.choice([0, 0, 2])
    row |= draw.choice([{}, {"padding": "left"}, {"padding": "right"}])
    row |= draw.choice([{}, {}, {"window": 2}, {"window": 3}])
    right = Packing({**row, "input_ids": [0] * T})

    positions = right.places[0].tolist()
    if draw.random() < 0.3:
        positions[draw.randrange(T)] += 1
    row |= draw.choice([{"position_ids": positions}] * 3 + [{"input_ids": [7] * T}, {}])

    source = draw.choice(["segment_ids", "cu_seqlens", "square", "additive", "row", ""])
    parts = right.parts.tolist()
    mask = right.right.int().tolist()
    q, k = draw.randrange(T), draw.randrange(T)
    if source == "segment_ids":
        row["segment_ids"] = parts
    elif source == "cu_seqlens":
        row["cu_seqlens"] = [0, *(t for t in range(1, T) if parts[t] != parts[t - 1]), T]
        if draw.random() < 0.2:
            row["cu_seqlens"].insert(draw.choice([0, -1]), draw.choice([0, T]))
    elif source == "square":
        mask[q][k] ^= draw.choice([0, 1])
        row["attention_mask"] = [[mask]] if draw.random() < 0.5 else mask
    elif source == "additive":
        hidden = draw.choice([-1e9, float("-inf"), -999.0])
        row["attention_mask"] = [[0.0 if one else hidden for one in line] for line in mask]
        row["attention_mask"][q][k] -= draw.choice([0.0, 0.5])
    elif source == "row":
        shown = right.real.int().tolist()
        shown[q] = draw.choice([shown[q], 0, 1])
        row["attention_mask"] = shown
    if draw.random() < 0.1:
        row |= draw.choice([{"window": 0}, {"mask_is": "additive"}, {"segment_ids": parts[1:]}])
    return row


@pytest.fixture(scope="module")
def judged() -> list[tuple[str, Any]]:
    """The zoo and 400 random rows, each as text, and what Python says of it."""
    rows = [*ZOO, *(random_row(random.Random(seed)) for seed in range(400))]
    return [(json.dumps(row), python_says(row)) for row in rows]


def differences(said: list[Any], judged: list[tuple[str, Any]]) -> list[Any]:
    """Where the page says something else than Python. The lines of refusals are its own."""
    found = []
    for got, (text, wanted) in zip(said, judged, strict=True):
        both_refuse = isinstance(got, str) and isinstance(wanted, str)
        if got != wanted and not both_refuse:
            found.append((text, wanted, got))
    return found


def test_the_page_finds_what_minise_check_finds(node: Run, judged: list[tuple[str, Any]]) -> None:
    """Equal or not, the first wrong cell and the first wrong position, how many of each are wrong,
    and how many tokens are not judged."""
    said = node(JUDGE, [text for text, _ in judged])
    assert differences(said, judged) == []
    read = [one for one in said if not isinstance(one, str)]
    equal = [one for one in read if not one["findings"] and not one["unjudged"]]
    assert min(len(said) - len(read), len(equal), len(read) - len(equal)) > 30


FAULTS = {
    "u <= t &&": "",
    "t - u < window": "t - u <= window",
    "places[t] - places[u] < window": "t - u < window",
    "family[t * T + u] &&": "u <= t &&",
    "end > t)": "end >= t)",
    "one - most": "one",
    "one < 0 && one >= HIDING": "one < 0",
    ".filter((t) => real[t])": "",
    "!hidden[t] && !given.padding": "!hidden[t]",
    "parents.length - 1 : -1": "parents.length : -1",
    "wrong: moved.length": "wrong: cells.length",
}


@pytest.mark.parametrize("right", FAULTS)
def test_a_fault_planted_in_the_pages_judge_is_seen(
    right: str, judged: list[tuple[str, Any]], tmp_path: Path
) -> None:
    for name in ("check.js", "layout.js"):
        shutil.copy(PAGE / name, tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    path = tmp_path / "check.js"
    text = path.read_text()
    assert text.count(right) == 1
    path.write_text(text.replace(right, FAULTS[right]))
    said = run_node(tmp_path, JUDGE, [text for text, _ in judged])
    assert differences(said, judged)


BAD = {
    "": "there is nothing to read",
    "hello": "the first line has no name",
    "1 2 3\nposition_ids: 0 1 2": "the first line has no name",
    "position_ids: hello": "position_ids: holds what is no number",
    "position_ids: constructor": "position_ids: holds what is no number",
    "position_ids:\ndocuments: 2": "position_ids: is empty",
    "position_ids: 0 1 2": "give what was meant, by documents, or by trunk and branches",
    "documents: 4\nbranches: 4": "give what was meant",
    "documents: 4\ntrunk: 1": "trunk: comes without branches",
    "documents: 2 2\nposition_ids: 0 1 0": "documents: hold 4 tokens, but the row has 3",
    "documents: 3\nposition_ids: 0 1 2\nsegment_ids: 1 1": "segment_ids: has 2 entries, but",
    "documents: 2\nposition_ids: 0 1.5": "position_ids: holds 1.5; give integers",
    "documents: 3\nattention_mask: [[1, 0, 0], [1, 1]]": "attention_mask: is not 3x3, of one head",
    "documents: 3\nattention_mask: 1 2 2": "is neither 3 numbers of 0 and 1 nor 3x3; run minise",
    "attention_mask: [[1, 0 ... 0], [1, 1]]": 'attention_mask: is cut short by "..."',
    "documents: 2\nsegment_ids: 1 1\ncu_seqlens: 0 2": "two fields say who may attend to whom",
    "documents: 4\ncu_seqlens: 0 4 8": "cu_seqlens: is wrong; it begins with 0",
    "documents: 600": "600 tokens: this page reads rows of 2 to 512; for others run minise check",
    "documents: 9e15 9e15": "this page reads rows of 2 to 512",
    "documents: 2\nparents: -1 0": '"parents" is not read here; run minise check FILE',
    "documents: 2\nlabels: 1 2": '"labels" is not read here; run minise check FILE',
    "documents: 2\nposition_ids: [[0, 1], [0, 1]]": "position_ids: has 2 rows; give one, or run",
    "documents: 2\nmask_is: segments": "mask_is: is not bool or additive; run minise check FILE",
    "documents: 2\nwindow: 0": "window: holds 0; give integers from 1",
    "documents: 2\nwindow: 2 3": "window: holds 2 numbers; give one",
    "position_ids: " + "[" * 3000: "position_ids: is empty",
    "position_ids: " + "1 " * 100_000 + "\ndocuments: 1": "100000 tokens: this page reads",
    "__proto__: 1": '"__proto__" is not read here',
}


def test_text_that_is_no_row_gets_one_line(node: Run) -> None:
    got = node(JUDGE, list(BAD))
    for (text, line), words in zip(BAD.items(), got, strict=True):
        assert isinstance(words, str), (text[:60], words)
        assert line in words
        assert "\n" not in words
        assert len(words) < 150


SAME = [
    '{"documents": [2, 2], "position_ids": [0, 1, 0, 1], "segment_ids": [1, 1, 2, 2]}',
    "documents: 2 2\nposition_ids: 0 1 0 1\nsegment_ids: 1 1 2 2",
    "documents = [2, 2]\nposition_ids = tensor([[0, 1, 0, 1]])\nsegment_ids = 1, 1, 2, 2",
    "{'documents': [2, 2], 'position_ids': array([0, 1, 0, 1]), 'cu_seqlens': tensor([0, 2, 4], "
    "dtype=torch.int32, device='cuda:0'), 'segment_ids': None}",
    "documents: 2 2\nposition_ids: 0 1 0 1\nattention_mask:\n1 0 0 0\n1 1 0 0\n0 0 1 0\n0 0 1 1",
    "documents: 2 2\nposition_ids: 0 1 0 1\nattention_mask: [[1 0 0 0]\n [1 1 0 0]\n [0 0 1 0]\n"
    " [0 0 1 1]]",
    "documents: 2 2\nposition_ids: 0 1 0 1\nattention_mask: tensor([[[[ True, False, False, False],"
    "\n [ True,  True, False, False],\n [False, False,  True, False],\n"
    " [False, False,  True,  True]]]])",
    "documents: 2 2\nposition_ids: 0 1 0 1\nattention_mask: [[0., -inf, -inf, -inf], [0., 0., -inf,"
    " -inf], [-inf, -inf, 0., -inf], [-3.4028e+38, -3.4028e+38, 0., 0.]]",
]


def test_a_row_is_read_as_json_as_lines_and_as_python_prints_it(node: Run) -> None:
    script = 'import { readRow } from "./check.js";\n'
    masks = node(script + "tell(data.map((text) => [...readRow(text).mask]));", SAME)
    right = [1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1]
    assert masks == [right] * len(SAME)


PAINT = 'import * as leak from "./leak.js";\nimport * as layouts from "./layout.js";\n'


def test_painted_blocks_survive_the_address_and_a_wrong_address_is_no_mask(node: Run) -> None:
    script = """
      const layout = layouts.packed([7, 8], [[1, 2], [1, 3, 4]]);
      const text = (blocks) => leak.writeBlocks(blocks, layout);
      const own = (lay) => [...leak.blockMask(leak.readBlocks("groups", layout), lay)];
      let blocks = leak.readBlocks("none", layout);
      const told = [text(blocks), String(own(layout)) === String([...layout.mask])];
      blocks = leak.paintBlock(blocks, layout, 5, 2, 0);
      told.push(text(blocks), leak.readersOfFirst(blocks, layout));
      blocks = leak.paintBlock(blocks, layout, 3, 1, 0);
      told.push(text(blocks), String(leak.readBlocks(text(blocks), layout)) === String(blocks));
      const wrong = ["", "x", "b", "b10", "b1011111", "1011", "constructor", 3];
      tell([...told, wrong.map((one) => text(leak.readBlocks(one, layout)))]);
    """
    wanted = ["none", True, "groups", [], "b101001"[:7], True, ["none"] * 8]
    got = node(PAINT + script)
    assert got[:4] + got[5:] == wanted[:4] + wanted[5:]
    assert got[4].startswith("b")


LEAKS = """
import { Model } from "./model.js";
import { Tokenizer } from "./tokenizer.js";
import { prompts, softmax } from "./method.js";
const read = (name) => readFileSync(`${data.folder}/${name}`);
const file = read("model.safetensors");
const model = Model.fromSafetensors(data.config, file.buffer.slice(file.byteOffset,
  file.byteOffset + file.length));
const tokenizer = new Tokenizer(JSON.parse(read("tokenizer.json")));
const row = (word) => {
  const choices = ["Ottawa", "Lima", "Rome", word];
  const asked = "What is the capital of Canada?";
  const { prefix, branches, labels } = prompts(tokenizer, asked, choices, [[3, 1], [0, 2]]);
  return { ...layouts.packed(prefix, branches), labels, alone: layouts.separate(prefix, branches) };
};
const known = {};
const answer = ({ ids, positions, mask, ends, labels }) => known[`${ids} ${positions} ${mask}`] ??=
  softmax(model.forward(ids, positions, mask, { rows: [ends.at(-1)] }).logits[0], labels[1]);
const [first, other, longer] = ["Paris", data.other, "Paris by night and day"].map(row);
const apart = (a, b) => leak.largestChange([answer(a)], [answer(b)]);
const bare = layouts.noMask, on = layouts.runOn;
const alone = { ...first.alone[1], labels: first.labels };
tell({
  lengths: [first, other, longer].map(({ ids }) => ids.length),
  leaks: [[first, other], [bare(first), bare(other)], [on(first), on(other)],
    [first, longer], [on(first), on(longer)]].map(([a, b]) => apart(a, b)),
  four: [on(bare(first)), on(first), bare(first), first].map((one) => apart(one, alone)),
});
"""


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-mistral"])
def test_one_of_the_four_ways_is_equal_to_a_run_of_its_own_and_does_not_leak(
    node: Run, name: str
) -> None:
    """With a word of as many tokens nothing leaks under the mask, whatever the positions. A longer
    word leaks through positions that run on. Only mask and reset together are equal, exactly."""
    lm = load(WEIGHTS / name)
    size = len(lm.tokenizer.encode([" Paris"])[0])
    words = ["Cairo", "Athens", "Berlin", "Tokyo", "Madrid", "London", "Havana", "Dakar"]
    other = next(word for word in words if len(lm.tokenizer.encode([f" {word}"])[0]) == size)
    data = {"folder": str(WEIGHTS / name), "config": asdict(lm.config), "other": other}
    got = node(PAINT + LEAKS, data)
    assert got["lengths"][0] == got["lengths"][1] < got["lengths"][2]
    masked, unmasked, run_on, longer, longer_on = got["leaks"]
    assert (masked, run_on, longer) == (0, 0, 0)
    assert min(unmasked, longer_on) > 1e-6
    assert got["four"][3] == 0
    assert min(got["four"][:3]) > 1e-5
