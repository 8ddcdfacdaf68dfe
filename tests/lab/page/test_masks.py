"""The functions behind the scenes Leak and Your own mask, in node: the words of `minise check`,
painted masks, and what leaks under them."""

import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import minise
from minise import check
from minise.errors import InputError
from minise.lab.packing.judging import known_masks, known_positions
from minise.lab.packing.packing import Packing
from minise.loading.checkpoint import load
from tests.lab.support.browser import Run, needs_node

pytestmark = needs_node

WEIGHTS = Path(minise.__file__).parents[1] / "weights"
WORDS = """
import { readFields, readPacking, judgePacking, RowError } from "./check.js";
const said = (text) => {
  try {
    return judgePacking(readPacking(readFields(text)));
  } catch (error) {
    if (!(error instanceof RowError)) throw error;
    return error.message;
  }
};
"""
# Rows of the zoo that the page reads: no formats of other libraries, no labels.
BUGS = (Path(__file__).parents[1] / "packing" / "bugs.jsonl").read_text("utf-8").splitlines()
READ = {
    f"{bug['name']}, {kind}": bug[kind]
    for bug in map(json.loads, BUGS)
    for kind in ("wrong", "fixed")
    if "labels" not in bug[kind]
}


def findings(row: dict[str, Any]) -> list[dict[str, Any]] | str:
    try:
        return [asdict(one) for one in check(**row).findings]
    except InputError as error:
        return str(error)


def random_row(draw: random.Random) -> dict[str, Any]:
    """Documents, branches or a tree, with a mask and positions that are right, known mistakes, or
    damaged at one place; sometimes malformed."""
    lengths = [draw.randint(1, 4) for _ in range(draw.randint(1, 4))]
    kind = draw.choice(["documents", "branches", "tree"])
    trunk = draw.randint(0, 3) if kind == "branches" else 0
    padding = draw.choice([0, 0, 2])
    T = trunk + sum(lengths) + padding
    row: dict[str, Any] = {kind: lengths}
    if kind == "branches":
        row["trunk"] = trunk
    if kind == "tree":
        T = sum(lengths)
        row["tree"] = [draw.randint(-1, t - 1) for t in range(T)]
    elif draw.random() < 0.5:
        row["padding"] = draw.choice(["left", "right"])
    if draw.random() < 0.8:
        starts = draw.choice([0, 0, 1])
        row["position_ids"] = [starts + draw.choice([t, t, t % 3]) for t in range(T)]
        if draw.random() < 0.5:
            row["position_ids"] = list(range(T))
    of = [i for i, length in enumerate([trunk, *lengths, padding]) for _ in range(length)][:T]
    source = draw.choice(["", "segment_ids", "cu_seqlens", "parents", "restarts", "mask", "row"])
    if source == "segment_ids":
        row["segment_ids"] = of
    elif source == "cu_seqlens":
        row["cu_seqlens"] = [0, *(sum(lengths[: i + 1]) for i in range(len(lengths)))]
    elif source == "parents":
        row["parents"] = [draw.choice([t - 1, t - 1, -1]) for t in range(T)]
    elif source == "restarts":
        row["restarts"] = True
    elif source == "mask":
        shown = draw.choice([1, 0])
        mask = [[int(k <= q) if shown else int(k >= q) for k in range(T)] for q in range(T)]
        if draw.random() < 0.7:
            mask = [[int(k <= q and of[k] in (of[q], 0)) for k in range(T)] for q in range(T)]
        q, k = draw.randrange(T), draw.randrange(T)
        mask[q][k] ^= draw.choice([0, 1])
        row["attention_mask"] = [[mask]] if draw.random() < 0.5 else mask
    elif source == "row":
        row["attention_mask"] = [int(draw.random() < 0.9) for _ in range(T)]
    if draw.random() < 0.2:
        row["window"] = draw.choice([2, 3, 0])
    return row


MEANT: list[dict[str, Any]] = [
    {"documents": [3, 2, 4]},
    {"documents": [3, 2], "position_ids": [0, 1, 2, 0, 1, 9, 9]},  # two are padding
    {"trunk": 2, "branches": [3, 2, 1]},
    {"tree": [-1, 0, 1, 2, 3, 2, 5, 0, 7, -2]},
    {"trunk": 2, "branches": [4, 2], "window": 3},
    {"documents": [5, 4], "window": 2},
]


def known_mistakes() -> list[dict[str, Any]]:
    rows = []
    for meant in MEANT:
        p = Packing(meant)
        for _, mask in known_masks(p):
            rows.append({**meant, "attention_mask": mask.int().tolist()})
        for _, positions in known_positions(p):
            rows.append({**meant, "position_ids": positions.tolist()})
    return rows


def test_the_page_finds_what_minise_check_finds_word_for_word(node: Run) -> None:
    """In the zoo, in rows with each known mistake, and in 300 random rows, right ones and malformed
    ones among them."""
    rows = {**READ, **{str(seed): random_row(random.Random(seed)) for seed in range(300)}}
    rows |= {f"mistake {i}": row for i, row in enumerate(known_mistakes())}
    texts = [json.dumps(row) for row in rows.values()]
    got = node(WORDS + "tell(data.map(said));", texts)
    for (name, row), words in zip(rows.items(), got, strict=True):
        assert words == findings(row), (name, row)
    kinds = [type(words) if isinstance(words, str) or words else None for words in got]
    assert min(kinds.count(kind) for kind in (str, list, None)) > 10


ADDED: list[dict[str, Any]] = [
    {"documents": [2], "attention_mask": [[0.0, -9e9], [0.0, 0.0]]},
    {"documents": [2], "attention_mask": [[0.0, -9e9], [-0.5, 0.0]]},
    {"documents": [1], "padding": "right", "attention_mask": [[0.0, -9e9], [-0.5, 0.0]]},
    {"documents": [1], "attention_mask": [[0.0]]},
    {"documents": [1], "attention_mask": [[0]]},
    {"documents": [1], "attention_mask": [[0.0]], "restarts": True},
]


def test_the_page_sees_a_bias_and_a_mask_of_one_token_as_minise_check_does(node: Run) -> None:
    script = WORDS + "tell(data.map((text) => readPacking(readFields(text)).hasBias));"
    texts = [json.dumps(row) for row in ADDED]
    assert node(script, texts) == [check(**row).unjudged > 0 for row in ADDED]
    assert node(WORDS + "tell(data.map(said));", texts) == [findings(row) for row in ADDED]


BAD = {
    "": "there is nothing to read",
    "hello": "the first line has no name",
    "position_ids: hello": 'position_ids: "hello" is no number',
    "position_ids: 0 1 2": "nothing says what was meant; give one of documents, branches, tree",
    '{"documents": [3, 3]': "this is no JSON",
    '{"documents": {"a": 1}}': "documents: is one number",
    '{"documents": ["x"]}': "documents: holds what is no number",
    "documents: 2 2\nposition_ids: 0 1 0": "documents: hold 4 tokens, but the row has 3",
    "documents: 4\nbranches: 4": "documents and branches both say what was meant",
    "documents: 3\nposition_ids: 0 1 2\nsegment_ids: 1 1": "segment_ids: has 2 entries, but",
    "position_ids: 0 1.5": "position_ids: holds 1.5",
    "attention_mask: [[1, 0], [1]]": "attention_mask: its rows have different lengths",
    "documents: 3\nattention_mask: [[1, 0, 0], [1, 1, 0]]": "has the shape 2x3; give 3x3",
    "attention_mask: [[1, 0 ... 0], [1, 1]]": 'attention_mask: is cut short by "..."',
    "documents: 2\nsegment_ids: 1 1\ncu_seqlens: 0 2": "both say who may attend to whom",
    "cu_seqlens: 0 -3": "cu_seqlens: makes a row of -3 tokens",
    "documents: 600": "600 tokens are too many for this page",
    "mask: 1 0\n1 1": '"mask" is unknown; the fields are documents, branches,',
    "window: 0\nposition_ids: 0 1": "window: is 0; give a number from 1",
    "1 2 3\nposition_ids: 0 1 2": "the first line has no name",
    "position_ids: " + "[" * 3000: "position_ids: cannot be read",
    "position_ids: " + "[" * 3000 + "]" * 3000: "position_ids: has lists in lists",
    "position_ids: " + "1 " * 100_000: "100000 tokens are too many",
    "__proto__: 1": "nothing says how long the row is",
}


def test_text_that_is_no_row_gets_one_line(node: Run) -> None:
    got = node(WORDS + "tell(data.map(said));", list(BAD))
    for (text, line), words in zip(BAD.items(), got, strict=True):
        assert isinstance(words, str), (text[:60], words)
        assert line in words
        assert "\n" not in words
        assert len(words) < 250


SAME = [
    '{"documents": [2, 2], "position_ids": [0, 1, 0, 1], "segment_ids": [1, 1, 2, 2]}',
    "documents: 2 2\nposition_ids: 0 1 0 1\nsegment_ids: 1 1 2 2",
    "documents = [2, 2]\nposition_ids = tensor([[0, 1, 0, 1]])\nsegment_ids = 1, 1, 2, 2",
    "documents: 2 2\nposition_ids: array([0, 1, 0, 1])\ncu_seqlens: tensor([0, 2, 4], "
    "dtype=torch.int32, device='cuda:0')",
    "documents: 2 2\nposition_ids: 0 1 0 1\nattention_mask:\n1 0 0 0\n1 1 0 0\n0 0 1 0\n0 0 1 1",
    "documents: 2 2\nposition_ids: 0 1 0 1\nattention_mask: tensor([[[[ True, False, False, False],"
    "\n [ True,  True, False, False],\n [False, False,  True, False],\n"
    " [False, False,  True,  True]]]])",
    "documents: 2 2\nposition_ids: 0 1 0 1\nattention_mask: [[0., -inf, -inf, -inf], [0., 0., -inf,"
    " -inf], [-inf, -inf, 0., -inf], [-3.4028e+38, -3.4028e+38, 0., 0.]]",
    '{"documents": [2, 2], "restarts": true, "position_ids": [0, 1, 0, 1], "segment_ids": null}',
]


def test_a_row_is_read_as_json_as_lines_and_as_python_prints_it(node: Run) -> None:
    script = WORDS + "tell(data.map((text) => [...readPacking(readFields(text)).mask]));"
    masks = node(script, SAME)
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
