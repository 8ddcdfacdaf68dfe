"""The live page as a file: what is in it, what is refused, and what it shows in a browser."""

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import minise
from minise import InputError, load
from minise.lab.data.miniature import evaluation_questions
from minise.lab.page import page
from minise.lab.page.page import live_page, tokenizer_problem, world
from tests.reference.support.tiny import FAMILIES, QWEN3, make_tokenizer, write_checkpoint

SHIPPED = Path(minise.__file__).parents[1] / "weights"


@pytest.fixture
def text(live_file: Path) -> str:
    return live_file.read_text(encoding="utf-8")


def embedded(text: str) -> dict[str, Any]:
    return json.loads(text.partition('id="checkpoint">')[2].partition("</script>")[0])


def test_the_page_holds_the_checkpoint_unchanged(text: str) -> None:
    held = embedded(text)
    assert held["name"] == "tiny-llama"
    weights = safetensors.torch.load(base64.b64decode(held["weights"]))
    wanted = safetensors.torch.load_file(SHIPPED / "tiny-llama" / "model.safetensors")
    assert weights.keys() == wanted.keys()
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)
    raw = json.loads((SHIPPED / "tiny-llama" / "tokenizer.json").read_text(encoding="utf-8"))
    assert held["tokenizer"]["model"]["vocab"] == raw["model"]["vocab"]
    assert held["config"]["sliding_windows"] == [None] * 4
    assert held["config"]["rope_scaling"]["rope_type"] == "llama3"


def test_the_page_needs_no_other_file_and_its_policy_forbids_requests(text: str) -> None:
    names = r"http://www\.w3\.org/(?:2000/svg|1999/xhtml)"
    names += "|https://arxiv.org/abs/2506.01951"  # a link, which the page itself never follows
    for word in ("http://", "https://", "@import", "fetch(", "XMLHttpRequest", "url(", "eval("):
        assert word not in re.sub(names, "", text), word
    policy = html.unescape(re.search(r'Security-Policy" content="([^"]*)"', text)[1])
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy.replace("'wasm-unsafe-eval'", "")
    for tag in ("style", "script"):
        (inline,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "{{" not in text.partition("<script")[0]


def test_a_name_cannot_end_the_script_or_become_markup(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "<img src=x> {{script}} <", FAMILIES["llama"])
    hostile = live_page(load(folder), {})
    assert "<img" not in hostile
    assert embedded(hostile)["name"] == folder.name
    assert hostile.count('"use strict";\n{\n') == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_of_float32_stay_float32(tmp_path: Path, family: str) -> None:
    folder = write_checkpoint(tmp_path / "tiny", FAMILIES[family])
    held = embedded(live_page(load(folder), {}))
    weights = safetensors.torch.load(base64.b64decode(held["weights"]))
    wanted = safetensors.torch.load_file(folder / "model.safetensors")
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)


def test_the_world_has_the_evaluation_questions_of_each_number_of_choices() -> None:
    held = world(12)
    assert len(held) == 11  # two of the 12 have one text
    for K in (2, 5, 8):
        asked = {question.text: question for question in evaluation_questions(12, K, 0)[::-1]}
        for one, question in zip(held, reversed(asked.values()), strict=True):
            chosen = [
                choice for choice, rank in zip(one["choices"], one["rank"], strict=True) if rank < K
            ]
            assert (one["id"], one["question"]) == (question.id, question.text)
            assert chosen == list(question.choices)
            assert one["choices"][one["answer"]] == question.choices[question.answer]


def tokenizer(**changes: Any) -> dict[str, Any]:
    raw = json.loads(make_tokenizer().to_str())
    model = raw["model"] | changes.pop("model", {})
    return raw | {"model": model} | changes


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SPECIAL = {"id": 0, "content": "<s>", "single_word": False, "rstrip": False, "special": True}


CUT = "its tokenizer cuts words in another way"
SPACES = "its tokenizer has a special token that takes the space beside it"
PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"post_processor": None}, ""),
    ({"post_processor": BYTES, "added_tokens": [SPECIAL]}, ""),
    ({"model": {"type": "Unigram"}}, "its tokenizer is not BPE"),
    ({"model": {"byte_fallback": True}}, "its tokenizer uses byte_fallback"),
    ({"model": {"ignore_merges": True}}, "its tokenizer uses ignore_merges"),
    ({"model": {"unk_token": "<unk>"}}, "its tokenizer uses unk_token"),
    ({"normalizer": {"type": "NFC"}}, "its tokenizer changes the text"),
    ({"pre_tokenizer": None}, CUT),
    ({"pre_tokenizer": {"type": "Metaspace"}}, CUT),
    ({"pre_tokenizer": BYTES | {"add_prefix_space": True}}, CUT),
    ({"pre_tokenizer": BYTES | {"use_regex": False}}, CUT),
    ({"post_processor": {"type": "Sequence"}}, "its tokenizer adds tokens in another way"),
    (
        {"added_tokens": [SPECIAL | {"lstrip": True}]},
        "its tokenizer has a special token that takes the space beside it",
    ),
]


@pytest.mark.parametrize(("changes", "problem"), PROBLEMS)
def test_a_tokenizer_that_the_page_would_run_otherwise_is_named(changes, problem: str) -> None:
    assert tokenizer_problem(tokenizer(**changes)) == problem


def test_a_checkpoint_that_does_not_run_in_a_page_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = load(SHIPPED / "tiny-llama", quantize="nf4")
    with pytest.raises(InputError, match="its weights are in 4 bits"):
        live_page(packed, {})
    qwen3 = write_checkpoint(tmp_path / "qwen3", QWEN3)
    with pytest.raises(InputError, match="the live page has no qwen3"):
        live_page(load(qwen3), {})
    llama = write_checkpoint(tmp_path / "llama", FAMILIES["llama"])
    (llama / "tokenizer.json").write_text(json.dumps(tokenizer(normalizer={"type": "NFC"})))
    with pytest.raises(InputError, match=r"changes the text; .* byte-level BPE only"):
        live_page(load(llama), {})
    monkeypatch.setattr(page, "MOST_NUMBERS", 30_000)
    with pytest.raises(InputError, match="numbers, a live page at most 30,000"):
        live_page(load(llama), {})
