"""The scenes with recorded answers: of a checkpoint that does not run in a page, in a browser; and
of one that does, against what the page's own model says."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import minise
from minise import InputError, LocalModel, Prompts, Question
from minise.grouping import random_partitions
from minise.lab.equal_bits.decoder import EqualBits
from minise.lab.page.recorded import (
    PackedRow,
    ShownQuestion,
    all_said,
    embedded_answers,
    leak_groups,
    leak_said,
    recorded_page,
    row_key,
    row_of,
)
from minise.layout import Layout, causal_mask, pack
from minise.loading.checkpoint import load
from minise.template import DEFAULT_TEMPLATE, NULL_OPTION, write_prompts
from minise.verify.recording import own_decoder, record
from tests.lab.support.browser import MARKS, WIDE, Run, View, needs_node, open_page
from tests.reference.support.tiny import QWEN3, load_tiny, make_tokenizer

QUESTION = Question(
    "Which is a bird?",
    ["a trout", "wren", "oak", "<b>مدينة</b>", "the red ant", "quartz"],
    answer=1,
)
M, N, SEED = 2, 5, 7
SCENES = ("ask", "why", "split", "pack", "leak", "read", "mean", "own")
in_a_browser = [*MARKS]


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    """A Qwen3: a family that the page does not run."""
    return load_tiny(tmp_path_factory.mktemp("qwen3"), QWEN3, dtype=torch.float32)


@pytest.fixture(scope="module")
def file(lm: LocalModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("recorded") / "page.html"
    page = recorded_page(ShownQuestion(lm, QUESTION, M, N, SEED), "the live page has no qwen3", str)
    path.write_text(page, encoding="utf-8")
    return path


# As most questions of `minise explain --question`: nobody says which choice is right.
UNANSWERED = Question("Which is a bird?", [f"kind {number}" for number in range(26)])


@pytest.fixture(scope="module")
def unanswered(browser: Any, lm: LocalModel, tmp_path_factory: pytest.TempPathFactory) -> View:
    path: Path = tmp_path_factory.mktemp("unanswered") / "page.html"
    page = recorded_page(ShownQuestion(lm, UNANSWERED, 4, 2, SEED), "no qwen3", str)
    path.write_text(page, encoding="utf-8")
    return open_page(browser, path, reduced_motion="reduce", **WIDE)


@pytest.fixture(scope="module")
def opened(browser: Any, file: Path) -> View:
    return open_page(browser, file, reduced_motion="reduce", **WIDE)


@pytest.fixture
def view(opened: View, file: Path) -> Iterator[View]:
    """No console message and no request: `check` holds that."""
    yield opened
    opened.page.set_viewport_size(WIDE["viewport"])
    opened.check(file)


def numbers(view: View, selector: str, name: str = "probability") -> list[float]:
    read = f"all => all.map(one => Number(one.dataset.{name}))"
    found: list[float] = view.page.eval_on_selector_all(f"{selector} [data-{name}]", read)
    return found


def first_trial() -> tuple[tuple[int, ...], ...]:
    return random_partitions(len(QUESTION.choices), M, N, SEED, QUESTION.id).trials[0]


def row(lm: LocalModel, word: str | None = None) -> Prompts:
    """The prompts in the row of Leak, with a word in place of group 1's first choice."""
    lists = []
    for group in leak_groups(first_trial()):
        lists.append([*(QUESTION.choices[i] for i in group), NULL_OPTION])
    lists[0][0] = word or lists[0][0]
    return write_prompts(lm.tokenizer, DEFAULT_TEMPLATE, QUESTION.text, lists)


@torch.inference_mode()
def said(lm: LocalModel, label_ids: list[list[int]], row: PackedRow) -> list[Tensor]:
    """The probabilities of the labels at each end when a row is run as it is."""
    hidden = lm.decoder(row.tokens, row.positions, row.mask)[row.ends]
    probabilities = []
    for one, ids in zip(hidden, label_ids, strict=True):
        logits = lm.decoder.logits(one)[ids]
        probabilities.append(logits.double().softmax(dim=0))
    return probabilities


def apart(some: list[Tensor], others: list[Tensor]) -> float:
    pairs = zip(some, others, strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def in_words(change: float) -> str:
    """As changeWords of leak.js."""
    if change >= 0.001:
        return f"{change:.3f}"
    digits, _, exponent = f"{change:.1e}".partition("e")
    return f"{digits}e{int(exponent)}"


class TestInTheBrowser:
    pytestmark = in_a_browser

    @pytest.mark.parametrize("width", [1400, 390])
    def test_every_scene_opens_and_fits_the_sides(self, view: View, width: int) -> None:
        view.page.set_viewport_size({"width": width, "height": 844})
        for name in SCENES:
            view.go(name)
            assert view.page.is_visible(f"#scene-{name} h2")
            assert not view.page.is_visible("#fault"), view.text("#fault")
            across = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
            whole, seen = view.page.evaluate(across)
            assert whole <= seen, name
            assert "the live page has no qwen3" in view.text("#where")
            assert view.page.locator("main b > b, main script, main img").count() == 0

    def test_ask_shows_the_probabilities_of_each_number_of_choices(
        self, view: View, lm: LocalModel
    ) -> None:
        view.go("ask")
        tops = []
        for K in range(2, 7):
            view.drag("K, the number of choices:", K)
            kept = [1, *(i for i in range(6) if i != 1)][:K]
            question = Question(QUESTION.text, [QUESTION.choices[i] for i in sorted(kept)])
            answer = minise.standard(lm, question)
            wanted = answer.normalized.tolist()
            assert numbers(view, "#ask-bars") == pytest.approx(wanted, abs=1e-6)
            assert view.text("pre.prompt") == DEFAULT_TEMPLATE.render(
                question.text, question.choices
            )
            tops.append(wanted[question.choices.index("wren")])
        assert numbers(view, "#ask-strip") == pytest.approx(tops, abs=1e-6)

    def test_the_first_scene_says_who_answered(self, view: View) -> None:
        view.go("ask")
        assert view.text("#ask-model").startswith("The model, qwen3")
        assert view.text("#ask-model").endswith("It answered when this page was made.")
        view.go("why")
        assert "toy" not in view.text("body")
        assert "Each way asks this question once." in view.text("#why-told")

    def test_leak_shows_the_change_and_the_distance_of_all_four_combinations(
        self, view: View, lm: LocalModel
    ) -> None:
        view.go("leak")
        word = view.text(".leak-prompt mark")
        assert word != QUESTION.choices[leak_groups(first_trial())[0][0]]
        lm = replace(lm, decoder=EqualBits(lm.decoder))
        usual, other = row(lm), row(lm, word)
        packed_usual = pack(usual.prefix, usual.branches)
        packed_other = pack(other.prefix, other.branches)
        alone = said(lm, usual.label_ids, row_of(packed_usual))
        cards = ["without_both", "without_positions", "without_mask", "with_all"]
        changes, distances = [], []
        for number, name in enumerate(cards):
            view.page.click(f"button.leak-case >> nth={number}")
            view.settle()
            before = said(lm, usual.label_ids, ways(packed_usual)[name])
            after = said(lm, other.label_ids, ways(packed_other)[name])
            changes.append(apart(before[1:], after[1:]))
            distances.append(apart(alone[1:2], after[1:2]))
            meter = float(view.page.get_attribute("#scene-leak .leak-meter", "aria-valuenow") or -1)
            assert meter == pytest.approx(changes[-1], abs=1e-6)
            shown = view.page.locator("button.leak-case").nth(number).inner_text().split("\n")[-1]
            assert shown == ("0, equal" if name == "with_all" else in_words(distances[-1]))
            wide = view.page.eval_on_selector_all(
                ".leak-bars .value", "all => all.map(one => one.textContent)"
            )
            assert wide == [f"{100 * p:.1f}%" for p in after[1].tolist()]
            far = view.page.locator("#leak-layers [data-layers]").last.get_attribute("data-layers")
            assert [float(d) for d in far.split()] == pytest.approx(
                layer_distances(lm, other, name), abs=1e-5
            )
        assert changes[-1] == 0 == distances[-1]
        assert min(changes[0], changes[2], *distances[:3]) > 1e-3
        assert "Recorded when this page was made" in view.text("#scene-leak")

    def test_read_shows_each_group_with_each_line_hidden(self, view: View, lm: LocalModel) -> None:
        prompts = row(lm)
        heads = set()
        for number, group in enumerate(leak_groups(first_trial())):
            layout = pack(prompts.prefix, [prompts.branches[number]])
            names = [*(QUESTION.choices[i] for i in group), NULL_OPTION]
            for hide in range(len(names) + 1):
                view.go(f"read?group={number + 1}&hide={hide}")
                mask = layout.mask.clone()
                if hide:
                    mask[-1, line_rows(lm, layout, names, hide - 1)] = False
                [wanted] = said(lm, [prompts.label_ids[number]], row_of(layout, mask))
                assert numbers(view, "#read-bars") == pytest.approx(wanted.tolist(), abs=1e-5)
                heads.add(view.page.get_attribute("#read-heads button", "aria-label"))
        assert len(heads) == 3 * (M + 2)

    def test_mean_shows_the_scores_of_self_ensemble(self, view: View, lm: LocalModel) -> None:
        for n in (1, 3, N):
            view.go(f"mean?n={n}")
            wanted = minise.self_ensemble(lm, QUESTION, group_size=M, trials=n, seed=SEED)
            means = numbers(view, "#mean-strip", "mean")
            assert means == pytest.approx(wanted.scores.tolist(), abs=1e-6)
            said = f"After {n} trial{'s' if n > 1 else ''} the answer is "
            said += QUESTION.choices[wanted.prediction]
            assert view.text("#mean-verdict").startswith(said)
        assert view.page.get_attribute("#scene-mean input", "max") == str(N)

    def test_what_is_not_recorded_is_off_and_an_address_cannot_ask_for_it(self, view: View) -> None:
        off = {
            "ask?question=why?&choice=a&choice=b": ["#ask-question"],
            "leak?trial=3&cells=b101&word=other&K=3&m=4&seed=3": ["#scene-leak input[type=text]"],
            "read?trial=4&m=1&seed=9&N=2": ["#scene-read input[type=range]"],
            "mean?m=4&N=40&n=9&K=2&seed=1": ["#scene-mean input[type=range] >> nth=1"],
            "own": [],
        }
        for address, controls in off.items():
            view.go(address)
            assert not view.page.is_visible("#fault"), view.text("#fault")
            for control in controls:
                assert view.page.is_disabled(control)
        assert view.page.locator("text=Type a question of your own").count() == 0
        assert "no model runs in this page" in view.text("#scene-own")


class TestWithoutAKnownAnswer:
    pytestmark = in_a_browser

    def test_every_scene_opens_with_26_choices(self, unanswered: View) -> None:
        for name in SCENES:
            unanswered.go(name)
            assert unanswered.page.is_visible(f"#scene-{name} h2")
            assert not unanswered.page.is_visible("#fault"), unanswered.text("#fault")
        assert unanswered.errors == []

    def test_ask_and_why_speak_of_the_models_answer(self, unanswered: View, lm: LocalModel) -> None:
        unanswered.go("ask")
        wanted = minise.standard(lm, UNANSWERED)
        said = numbers(unanswered, "#ask-bars")
        assert said == pytest.approx(wanted.normalized.tolist(), abs=1e-6)
        answer = UNANSWERED.choices[wanted.prediction]
        assert unanswered.text("#scene-ask .verdict") == f"The model answers {answer}."
        assert f"26 choices: {answer}" in unanswered.text("#ask-strip")
        unanswered.go("why")
        assert "Probability of the model's answer" in unanswered.text("#scene-why")
        for name in SCENES:
            unanswered.go(name)
            assert "right choice" not in unanswered.text(f"#scene-{name}")

    @pytest.mark.parametrize("width", [1280, 390])
    def test_mean_shows_both_answers_in_a_line_each(
        self, unanswered: View, lm: LocalModel, width: int
    ) -> None:
        unanswered.page.set_viewport_size({"width": width, "height": 844})
        unanswered.go("mean?n=2")
        ensemble = minise.self_ensemble(lm, UNANSWERED, group_size=4, trials=2, seed=SEED)
        lines = [
            *("Standard inference", UNANSWERED.choices[minise.standard(lm, UNANSWERED).prediction]),
            *("Self-Ensemble", UNANSWERED.choices[ensemble.prediction]),
        ]
        assert unanswered.page.locator("#mean-squares > *").all_inner_texts() == lines
        read = "all => all.map(one => one.getBoundingClientRect().height)"
        heights = unanswered.page.eval_on_selector_all("#mean-squares > *", read)
        assert max(heights) < 40  # one line
        unanswered.page.set_viewport_size(WIDE["viewport"])

    def test_split_does_not_speak_of_a_right_answer(self, unanswered: View) -> None:
        unanswered.go("split")
        assert "Filled" not in unanswered.text("#scene-split .stage")


def ways(flat: Layout) -> dict[str, PackedRow]:
    """The packed sequence, and with a causal mask, with positions 0, 1, ..., and with both."""
    mask, positions = causal_mask(len(flat.tokens)), torch.arange(len(flat.tokens))
    return {
        "with_all": row_of(flat),
        "without_mask": row_of(flat, mask),
        "without_positions": PackedRow(flat.tokens, positions, flat.mask, flat.ends),
        "without_both": PackedRow(flat.tokens, positions, mask, flat.ends),
    }


def layer_distances(lm: LocalModel, prompts: Prompts, name: str) -> list[float]:
    """After each layer, how far group 2's end is from a run of its own, in the row of `name`."""
    alone = pack(prompts.prefix, prompts.branches[1:2])
    packed = ways(pack(prompts.prefix, prompts.branches))[name]
    before = streams(lm, row_of(alone), int(alone.ends[0]))
    after = streams(lm, packed, int(packed.ends[1]))
    return [float((a - b).norm() / a.norm()) for a, b in zip(before, after, strict=True)]


@torch.inference_mode()
def streams(lm: LocalModel, row: PackedRow, token: int) -> list[Tensor]:
    with record(own_decoder(lm)) as seen:
        lm.decoder(row.tokens, row.positions, row.mask)
    return [seen.residual[layer][0, token] for layer in sorted(seen.residual)]


def line_rows(lm: LocalModel, layout: Layout, names: list[str], line: int) -> list[int]:
    """The rows of a choice's line in a prompt of its own."""
    ends = []
    for count in (line, line + 1):
        text = DEFAULT_TEMPLATE.render(QUESTION.text, names[:count]).removesuffix("Answer:")
        ends.append(len(lm.tokenizer.encode([text])[0]))
    return list(range(*ends))


@needs_node
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-mistral"])  # without and with a window
def test_recorded_answers_are_those_of_the_live_model(node: Run, name: str) -> None:
    """Of all rows that the page asks: the same keys, and label logits within 1e-4 relative."""
    lm = load(Path(minise.__file__).parents[1] / "weights" / name)
    asked = ShownQuestion(lm, replace(QUESTION, id=""), 4, 2, 0)
    said = all_said(asked, str)
    answers, layouts = embedded_answers(said), {row_key(one.row): one.row for one in said}
    rows = [
        {
            "ids": layout.tokens.tolist(),
            "positions": layout.positions.tolist(),
            "mask": layout.mask.int().flatten().tolist(),
        }
        for layout in layouts.values()
    ]
    got = node(
        """
        import { Model } from "./model.js";
        import { layoutKey, recordedForward } from "./recording.js";
        const file = readFileSync(`${data.folder}/model.safetensors`);
        const bytes = file.buffer.slice(file.byteOffset, file.byteOffset + file.length);
        const model = Model.fromSafetensors(data.config, bytes);
        const recorded = recordedForward(data.answers);
        const told = [];
        for (const { ids, positions, mask } of data.rows) {
          const key = layoutKey(ids, positions, mask);
          const ends = Object.keys(data.answers[key].logits).map(Number);
          for (const end of ends) {
            const read = end in data.answers[key].read;
            const options = { rows: [end], attention: read, lens: read };
            const live = model.forward(ids, positions, Uint8Array.from(mask), options);
            const one = await recorded(ids, positions, mask, options);
            const labels = Object.keys(one.logits[0]);
            const lens = (one.lens ?? []).map((logits, l) => [labels.map((id) => logits[id]),
              labels.map((id) => live.lens[l][id])]);
            const looks = one.attention.flatMap((heads, l) => heads.map((row, h) =>
              Math.max(...row.map((w, u) =>
                Math.abs(w - live.attention[l][h][end * ids.length + u])))));
            told.push({ key, live: labels.map((id) => live.logits[0][id]),
              recorded: labels.map((id) => one.logits[0][id]), looks, lens });
          }
        }
        tell(told);
        """,
        {"folder": lm.name, "config": asdict(lm.config), "answers": answers, "rows": rows},
    )
    assert {one["key"] for one in got} == answers.keys()
    assert sum(bool(one["looks"]) for one in got) == 2 + 5 + 3  # ends, lines of both groups
    for one in got:
        live, recorded = torch.tensor(one["live"]), torch.tensor(one["recorded"])
        assert (live - recorded).abs().max() < 1e-4 * live.abs().max()
        assert max(one["looks"], default=0) < 1e-4
        assert bool(one["lens"]) is bool(one["looks"])
        for some, others in torch.tensor(one["lens"]):
            assert (some - others).abs().max() < 1e-4 * others.abs().max()


def test_a_tokenizer_that_joins_two_lines_is_refused(lm: LocalModel) -> None:
    backend = make_tokenizer(bos=False)
    raw = json.loads(backend.to_str())
    raw["pre_tokenizer"]["use_regex"] = False  # so a token may hold the end of a line
    raw["model"]["vocab"]["Ċ("] = 287
    raw["model"]["merges"].append(["Ċ", "("])
    joined = minise.tokenizer.Tokenizer(type(backend).from_str(json.dumps(raw)), "joined")
    asked = ShownQuestion(replace(lm, tokenizer=joined), QUESTION, M, N, SEED)
    with pytest.raises(InputError, match="joins lines of a prompt"):
        asked.lines  # noqa: B018


def test_leak_is_recorded_with_equal_bits(lm: LocalModel) -> None:
    """With mask and positions, group 2's logits and streams are those of a run of its own in every
    bit. Without one of them they are not."""
    said = leak_said(ShownQuestion(lm, QUESTION, M, N, SEED))
    alone, rows = said[0], said[1:]
    assert len(rows) == 3 * 4  # words; masks and positions
    [logits_alone] = alone.logits.values()
    for number, one in enumerate(rows):
        end = int(one.row.ends[1])
        is_right = number % 4 == 0
        assert (one.logits[end] == logits_alone) is is_right
        assert (max(one.apart) == 0) is is_right
        assert min(one.apart) > 1e-3 or is_right


def test_a_prompt_beyond_the_models_positions_is_refused(lm: LocalModel) -> None:
    long = replace(QUESTION, text="Which is a bird? " * 70, id="")
    with pytest.raises(InputError, match=r"a prompt has 1,?\d+ tokens"):
        ShownQuestion(lm, long, M, N, SEED)
