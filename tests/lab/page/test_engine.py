"""The JavaScript of the live page against the Python package: token ids, hidden states and logits,
layouts, prompts and the method's numbers."""

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minise
from minise import LocalModel
from minise.grouping import random_partitions
from minise.lab.data.miniature import evaluation_questions
from minise.layout import Layout, pack
from minise.loading.checkpoint import load
from minise.method import SelfEnsemble
from minise.verify.recording import record
from tests.lab.support.browser import Run, needs_node
from tests.reference.support.tiny import FAMILIES, load_tiny

pytestmark = needs_node

WEIGHTS = Path(minise.__file__).parents[1] / "weights"
# llama3 scaling of the positions; a window of 40; biases and no begin token
NAMES = ("tiny-llama", "tiny-mistral", "tiny-qwen2")
# Whole prompts, and what is cut or merged in another way elsewhere: spaces, digits, apostrophes,
# other scripts, marks that join, and the names of special tokens.
TEXTS = [
    *("", " ", "\n\n", "a"),
    "What is the capital of Canada?\n(A) Ottawa\n(B) New Delhi\nAnswer:",
    " leading, and  two   three    spaces \n\t tab \r\n and the end  ",
    "it's we're they'll I'd you've I'm don't 'sit IT'S",
    "3.14159 and 1,234,567 x2 ½ ² Ⅷ ٣",
    "naïve café Ångström straße ŒUVRE",
    "Пушкин Ἀθῆναι עברית العربية हिन्दी ไทย 日本語 한국어",
    "👩‍👩‍👧 🇨🇦 e\u0301 \u200b\u2028\u00a0\u3000\ufeff \u0085x",
    "<|begin_of_text|>x<|end_of_text|> <s>y</s> <|spare|><|endoftext|>",
    "((A)) --> {x: [1, 2]} && a_b != c$d 100%",
    *("\x00\x07 zero", "<|begin_of_text <s"),
]
QUESTIONS = int(os.environ.get("MINISE_LIVE_QUESTIONS", 15))  # of each checkpoint
START = """
import { Model } from "./model.js";
import * as layouts from "./layout.js";
const file = readFileSync(`${data.folder}/model.safetensors`);
const bytes = file.buffer.slice(file.byteOffset, file.byteOffset + file.length);
const fast = Model.fromSafetensors(data.config, bytes);
const plain = new Model(fast.config, fast.tensors);
const model = data.kernel === false ? plain : fast;
"""
# Who multiplies: kernel.js by WebAssembly, or model.js.
both_ways = pytest.mark.parametrize("kernel", [True, False], ids=["WebAssembly", "JavaScript"])


@pytest.fixture(scope="module", params=[*NAMES, "random-qwen2"])
def lm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    """The shipped checkpoints, and a random one with a window in some of its layers."""
    if request.param == "random-qwen2":
        return load_tiny(tmp_path_factory.mktemp("qwen2"), FAMILIES["qwen2"], dtype=torch.float32)
    return load(WEIGHTS / request.param)


def of(lm: LocalModel, **more: Any) -> dict[str, Any]:
    """What a script needs of a checkpoint."""
    return {"folder": lm.name, "config": asdict(lm.config), **more}


def plans(lm: LocalModel, count: int) -> list[dict[str, Any]]:
    """One trial of each question, as JSON: prompts longer than a window of 40, and packed ones."""
    sizes = [(8, 8), (8, 4), (4, 2), (2, 1), (3, 3)]
    asked = []
    for number in range(count):
        K, m = sizes[number % len(sizes)]
        question = evaluation_questions(number + 1, K, 0)[number]
        _, prompts = SelfEnsemble(m, 1).prompts(lm, question)
        asked.append(
            {
                "prefix": prompts.prefix,
                "branches": prompts.branches,
                "labels": prompts.label_ids,
            }
        )
    return asked


def test_the_tokenizer_gives_pythons_ids(node: Run, lm: LocalModel) -> None:
    questions = evaluation_questions(40, 8, 1)
    texts = [*TEXTS, *(f"{q.text}\n" + "\n".join(q.choices) for q in questions)]
    raw = json.loads((Path(lm.name) / "tokenizer.json").read_text(encoding="utf-8"))
    got = node(
        """
        import { Tokenizer } from "./tokenizer.js";
        const tokenizer = new Tokenizer(data.raw);
        tell(data.texts.map((text) => tokenizer.encode(text)));
        """,
        {"raw": raw, "texts": texts},
    )
    assert got == lm.tokenizer.encode(texts)


@both_ways
def test_hidden_states_and_logits_are_within_1e_4_of_torch(
    node: Run, lm: LocalModel, kernel: bool
) -> None:
    asked = plans(lm, QUESTIONS if kernel else 5)
    sizes = node(
        START
        + """
        const states = data.plans.map(({ prefix, branches, labels }) => {
          const { ids, positions, mask, ends } = layouts.packed(prefix, branches);
          const options = { rows: ends, hidden: true };
          const { hidden, logits } = model.forward(ids, positions, mask, options);
          const read = logits.map((row, g) => Float32Array.from(labels[g], (id) => row[id]));
          return [...hidden.slice(1), ...read];
        });
        writeFileSync("states.bin", Buffer.concat(states.flat().map((s) => Buffer.from(s.buffer))));
        tell({ folder: process.cwd(), sizes: states.map((s) => s.map((one) => one.length)) });
        """,
        of(lm, plans=asked, kernel=kernel),
    )
    got = np.fromfile(Path(sizes["folder"]) / "states.bin", np.float32)
    place = 0
    for plan, lengths in zip(asked, sizes["sizes"], strict=True):
        layout = pack(plan["prefix"], plan["branches"])
        wanted = torch_states(lm, layout, plan["labels"])
        assert lengths == [len(one) for one in wanted]
        for one in wanted:
            part = got[place : place + len(one)]
            place += len(one)
            assert np.abs(part - one).max() < 1e-4 * np.abs(one).max()


@torch.inference_mode()
def torch_states(lm: LocalModel, layout: Layout, labels: list[list[int]]) -> list[np.ndarray]:
    """The stream after each layer, then the label logits of each group, flat."""
    with record(lm.decoder) as recording:
        hidden = lm.decoder(layout.tokens, layout.positions, layout.mask)
    logits = lm.decoder.logits(hidden[layout.ends])
    streams = [recording.residual[layer].flatten().numpy() for layer in sorted(recording.residual)]
    return [*streams, *(row[ids].numpy() for row, ids in zip(logits, labels, strict=True))]


def test_attention_is_that_of_torch(node: Run, lm: LocalModel) -> None:
    plan = plans(lm, 2)[1]
    got = node(
        START
        + """
        const { ids, positions, mask } = layouts.packed(data.prefix, data.branches);
        const { attention } = model.forward(ids, positions, mask, { rows: [], attention: true });
        tell(attention.map((heads) => heads.map((weights) => [...weights])));
        """,
        of(lm, **plan),
    )
    layout = pack(plan["prefix"], plan["branches"])
    with torch.inference_mode(), record(lm.decoder, attention=True) as recording:
        lm.decoder(layout.tokens, layout.positions, layout.mask)
    wanted = torch.stack([recording.attention[layer][0] for layer in range(len(got))]).flatten(-2)
    assert torch.allclose(torch.tensor(got), wanted, atol=1e-4)


@both_ways
def test_packed_runs_equal_separate_runs_bit_for_bit(
    node: Run, lm: LocalModel, kernel: bool
) -> None:
    equal = node(
        START
        + """
        const run = ({ ids, positions, mask, ends }) => {
          const options = { rows: ends, hidden: true };
          const { hidden, logits } = model.forward(ids, positions, mask, options);
          const D = model.config.hidden_size;
          const at = (end) => hidden.map((x) => x.slice(end * D, (end + 1) * D));
          return ends.map((end, g) => [...at(end), logits[g]].map((x) => Buffer.from(x.buffer)));
        };
        const same = (a, b) => a.every((bytes, i) => bytes.equals(b[i]));
        tell(data.plans.map(({ prefix, branches }) => {
          const alone = layouts.separate(prefix, branches).flatMap(run);
          const packed = [layouts.packed(prefix, branches), layouts.tree(prefix, branches)];
          const broken = layouts.noMask(packed[0]);
          const moved = layouts.runOn(packed[0]);
          return [...packed, broken, moved].map((layout) =>
            run(layout).map((group, g) => same(group, alone[g])));
        }));
        """,
        of(lm, plans=plans(lm, 3 if kernel else 2)[1:], kernel=kernel),
    )
    for packed, tree, no_mask, run_on in equal:
        assert all(packed)
        assert all(tree)
        # Without the mask, or with positions that run on, the second group is another.
        assert no_mask == [True, False] == run_on


def test_layouts_are_those_of_python(node: Run) -> None:
    cases = [
        ([7, 8], [[1, 2], [1, 3]]),
        ([], [[1], [1, 2], [2], [1, 2]]),
        ([5], [[], [4, 4, 4], [4, 4, 5, 6]]),
        ([3, 3], [[3, 3], [3], [3, 3, 3]]),
    ]
    got = node(
        """
        import { packed, tree } from "./layout.js";
        const plain = (layout) => ({ ...layout, mask: [...layout.mask] });
        tell(data.map((row) => [packed, tree].map((lay) => plain(lay(...row)))));
        """,
        cases,
    )
    for (prefix, branches), layouts in zip(cases, got, strict=True):
        for merge, layout in zip((False, True), layouts, strict=True):
            wanted = pack(prefix, branches, tree=merge)
            assert layout["ids"] == wanted.tokens.tolist()
            assert layout["ends"] == wanted.ends.tolist()
            for name in ("positions", "parents"):
                assert layout[name] == getattr(wanted, name).tolist()
            assert layout["mask"] == wanted.mask.flatten().int().tolist()
    # A merged token has the first group that uses it.
    assert [layout["segments"] for layout in got[0]] == [[-1, -1, 0, 0, 1, 1], [-1, -1, 0, 0, 1]]


def test_an_answer_is_that_of_python_for_the_same_groups(node: Run, lm: LocalModel) -> None:
    question = evaluation_questions(4, 8, 0)[3]
    method = SelfEnsemble(3, 2)
    plan, prompts = method.prompts(lm, question)
    wanted = minise.self_ensemble(lm, question, group_size=3, trials=2)
    raw = json.loads((Path(lm.name) / "tokenizer.json").read_text(encoding="utf-8"))
    got = node(
        START
        + """
        import { Tokenizer } from "./tokenizer.js";
        import { prompts, scores, softmax, trialValues } from "./method.js";
        const asked = prompts(new Tokenizer(data.raw), data.text, data.choices, data.trials.flat());
        const { ids, positions, mask, ends } = layouts.tree(asked.prefix, asked.branches);
        const { logits } = model.forward(ids, positions, mask, { rows: ends });
        const results = asked.labels.map((labels, g) => softmax(logits[g], labels));
        tell({ ...asked, results, scores: scores(trialValues(data.trials, results, 8)) });
        """,
        of(lm, raw=raw, text=question.text, choices=question.choices, trials=plan.groups.trials),
    )
    assert got["prefix"] == prompts.prefix
    assert got["branches"] == prompts.branches
    assert got["labels"] == prompts.label_ids
    for p, group in zip(got["results"], wanted.groups, strict=True):
        assert p == pytest.approx([*group.probabilities.tolist(), group.null], abs=1e-5)
    assert got["scores"] == pytest.approx(wanted.scores.tolist(), abs=1e-5)


def test_the_groups_and_the_hash_of_a_question_are_those_of_python(node: Run) -> None:
    questions = [
        minise.Question("Why?", ["a", "b"]),
        minise.Question('"Quoted" \\ back', ["x\ty\x7f\x1f", "na\u00efve", "\U0001f469 \u2028"]),
        minise.Question("long " * 40, [f"choice {i}" for i in range(8)], id="m-0-3 \u00e9"),
    ]
    texts = ["".join(map(chr, range(n))) for n in (0, 3, 55, 56, 63, 64, 65, 300)]
    got = node(
        """
        import { questionId, trials } from "./method.js";
        import { sha256 } from "./sha256.js";
        tell(data.questions.map(({ text, choices, id }) => ({
          hash: questionId(text, choices),
          trials: [1, 4, 8].map((m) => trials(choices.length, m, 5, 7, id)),
          few: trials(choices.length, 3, 2, 7, id),
        })).concat(data.texts.map(sha256)));
        """,
        {
            "questions": [{"text": q.text, "choices": q.choices, "id": q.id} for q in questions],
            "texts": texts,
        },
    )
    for question, one in zip(questions, got, strict=False):
        assert one["hash"] == question.content_hash
        for m, trials in zip((1, 4, 8), one["trials"], strict=True):
            wanted = random_partitions(len(question.choices), m, 5, 7, question.id)
            assert trials == json.loads(json.dumps(wanted.trials))
        assert len(one["few"]) == 2
    hashes = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    assert got[len(questions) :] == hashes


def test_the_interval_of_a_mean_is_students(node: Run) -> None:
    """The quantiles of Student's t for 4 and 39 degrees of freedom are those of its tables."""
    draw = np.random.default_rng(0)
    samples = [draw.normal(0.5, 0.1, count) for count in (5, 40)]
    script = 'import { estimate } from "./method.js";\ntell(data.map(estimate));'
    *got, one = node(script, [*(x.tolist() for x in samples), [0.5]])
    for x, quantile, shown in zip(samples, (2.7764, 2.0227), got, strict=True):
        error = x.std(ddof=1) / len(x) ** 0.5
        assert (shown["mean"], shown["error"]) == pytest.approx((x.mean(), error))
        assert shown["high"] - shown["mean"] == pytest.approx(quantile * error, rel=2e-3)
        assert shown["mean"] - shown["low"] == pytest.approx(quantile * error, rel=2e-3)
    assert one == {"mean": 0.5, "error": None, "low": None, "high": None}


@both_ways
def test_a_linear_layer_of_any_shape_is_that_of_torch(node: Run, kernel: bool) -> None:
    """Rows that are no multiple of 4 or more than 64, and widths that the kernel leaves to
    JavaScript."""
    shapes = [(1, 4, 2), (3, 8, 6), (65, 12, 4), (130, 4, 10), (5, 7, 3), (4, 8, 5)]
    draw = torch.Generator().manual_seed(0)
    cases = []
    for rows, inputs, outputs in shapes:
        x, weight = (
            torch.randn(rows, inputs, generator=draw),
            torch.randn(outputs, inputs, generator=draw),
        )
        bias = torch.randn(outputs, generator=draw)
        cases.append((x, weight, bias))
    got = node(
        """
        import { Model } from "./model.js";
        import { startKernel } from "./kernel.js";
        const model = new Model({ head_dim: 2, rope_theta: 1, rope_scaling: {} }, {});
        const floats = (rows) => Float32Array.from(rows.flat());
        const tensors = Object.fromEntries(data.cases.map(([, weight], i) => [i, floats(weight)]));
        const fast = data.kernel && startKernel(tensors, 130, model.linear);
        const { linear, tensors: weights } = fast || { linear: model.linear, tensors };
        tell(data.cases.map(([x, weight, bias], i) =>
          [...linear(floats(x), x.length, weights[i], x[0].length, floats([bias]))]));
        """,
        {"kernel": kernel, "cases": [[one.tolist() for one in case] for case in cases]},
    )
    for (x, weight, bias), y in zip(cases, got, strict=True):
        wanted = torch.nn.functional.linear(x, weight, bias)
        assert torch.allclose(torch.tensor(y).view_as(wanted), wanted, atol=1e-5)


def test_the_text_for_the_worker_is_whole(node: Run) -> None:
    """It runs without the module that it was taken from."""
    lm = load(WEIGHTS / "tiny-qwen2")
    here, alone = node(
        START
        + """
        import { modelSource } from "./model.js";
        const Alone = new Function(`"use strict"; ${modelSource()}; return Model;`)();
        const { ids, positions, mask, ends } = layouts.packed(data.prefix, data.branches);
        const runs = [model, Alone.fromSafetensors(data.config, bytes)].map((one) =>
          one.forward(ids, positions, mask, { rows: ends, hidden: true, attention: true }));
        tell(runs.map(({ logits, hidden }) => [[...logits[0]], [...hidden[4]]]));
        """,
        of(lm, **plans(lm, 4)[3]),
    )
    assert here == alone
