"""The live page in a real browser: its frame, and the scenes Ask, Split and Pack."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import minise
from minise import LanguageModel, Question
from minise.engines import token_counts
from minise.grouping import random_partitions
from minise.live.page import world
from minise.prompt import DEFAULT_TEMPLATE, NULL_OPTION, write_prompts
from tests.support.browser import MARKS
from tests.support.browser import browser as browser
from tests.support.contrast import contrast, from_hex
from tests.support.live import CHECKPOINT, Scene
from tests.support.live import live_file as live_file
from tests.support.live import open_scene as open_scene
from tests.support.live import phone as phone
from tests.support.live import scene as scene
from tests.support.live import shared as shared

pytestmark = MARKS

SCENES = ("ask", "split", "pack", "leak", "read", "mean", "own")
WORLD = world(40)[:20]
HOSTILE = "<img src=x onerror=alert(1)>"
Open = Callable[..., Scene]


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return minise.load(CHECKPOINT)


def of_size(item: dict[str, Any], K: int) -> Question:
    """The question of the world with K choices."""
    kept = [i for i, rank in enumerate(item["rank"]) if rank < K]
    return Question(
        item["question"], [item["choices"][i] for i in kept], answer=kept.index(item["answer"])
    )


def bars(view: Scene) -> dict[str, float]:
    """The choices and their probabilities as Ask shows them."""
    read = "all => all.map(bar => [bar.querySelector('.name > span').textContent, "
    read += "Number(bar.dataset.probability), bar.querySelector('.value').textContent])"
    rows = view.page.eval_on_selector_all("#ask-bars .bar:not(.axis)", read)
    assert [shown for _, _, shown in rows] == [f"{100 * p:.1f}%" for _, p, _ in rows]
    return {choice: p for choice, p, _ in rows}


def trials(view: Scene) -> list[list[list[int]]]:
    """The groups of each trial as Split shows them."""
    labels = view.page.eval_on_selector_all(
        "#split-trials button", "all => all.map(one => one.textContent)"
    )
    numbers = [re.findall(r"group \d+: ([\d ]+)", label) for label in labels]
    return [[[int(i) - 1 for i in group.split()] for group in groups] for groups in numbers]


def opens_and_fits(view: Scene) -> None:
    for name in SCENES:
        view.go(name)
        assert view.page.is_visible(f"#scene-{name} h2")
        assert view.page.locator("main section:visible").count() == 1
        tab = view.page.locator("[role=tab][aria-selected=true]")
        assert tab.get_attribute("id") == f"tab-{name}"
        assert view.page.title() == f"{tab.inner_text()[2:]} - Many prompts, one pass"
        width = view.page.evaluate("document.documentElement.clientWidth")
        assert view.page.evaluate("document.documentElement.scrollWidth") <= width, name
        below = "document.documentElement.scrollHeight - Math.max(innerHeight, "
        below += "document.body.getBoundingClientRect().bottom + scrollY)"
        assert view.page.evaluate(below) <= 1, name  # nothing unseen makes the page longer


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_scene_opens_by_its_address_and_fits_the_sides(
    scene: Scene, width: int, scheme: str
) -> None:
    """No console message and no request either: the fixture holds that."""
    scene.page.set_viewport_size({"width": width, "height": 844})
    scene.page.emulate_media(color_scheme=scheme)
    opens_and_fits(scene)


def test_each_scene_opens_on_a_phone(phone: Scene) -> None:
    opens_and_fits(phone)


def test_each_scene_fits_one_screen(scene: Scene) -> None:
    for name in SCENES:
        scene.go(f"{name}?K=8")
        assert scene.page.evaluate("document.documentElement.scrollHeight") <= 900, name


def test_ask_shows_what_python_computes(scene: Scene, lm: LanguageModel) -> None:
    scene.go("ask?q=0&K=2")
    for q, K in ((0, 2), (2, 5), (2, 8), (4, 8)):
        scene.page.select_option("#ask-question", str(q))
        scene.drag("K, the number of choices:", K)
        question = of_size(WORLD[q], K)
        answer = minise.standard(lm, question)
        shown = bars(scene)
        assert list(shown) == list(question.choices)
        assert list(shown.values()) == pytest.approx(answer.probabilities.tolist(), abs=1e-4)
        top = scene.page.inner_text("#ask-bars .bar.top .name")
        assert question.choices[answer.prediction] in top
        assert question.answer is not None
        right = question.choices[question.answer]
        assert right in scene.page.inner_text("#ask-bars .bar.right .name")
        said = f"The model answers {question.choices[answer.prediction]}: "
        said += "right." if answer.prediction == question.answer else f"wrong. It is {right}."
        assert scene.page.inner_text("#scene-ask .verdict") == said


def test_the_strip_counts_the_right_answers_that_python_counts(
    scene: Scene, lm: LanguageModel
) -> None:
    scene.go("ask")
    scene.until("document.querySelectorAll('#ask-strip rect').length >= 14")
    read = """svg => [...svg.querySelectorAll("text:not(.tick):not(.title)")].map((text) => [
      Number(text.textContent),
      [...svg.querySelectorAll("rect")].filter((rect) => Math.abs(
        Number(rect.getAttribute("x")) + Number(rect.getAttribute("width")) / 2
        - Number(text.getAttribute("x"))) < 1).map((rect) => rect.getAttribute("class")),
    ])"""
    columns = scene.page.eval_on_selector("#ask-strip svg", read)
    assert len(columns) == 7
    for K, (count, squares) in ((2, columns[0]), (8, columns[6])):
        asked = [of_size(item, K) for item in WORLD[: len(squares)]]
        right = [minise.standard(lm, one).prediction == one.answer for one in asked]
        assert count == sum(right) == squares.count("right")


def test_a_typed_question_is_asked_and_stands_in_the_address(
    scene: Scene, open_scene: Open, lm: LanguageModel
) -> None:
    scene.go("ask")
    scene.page.click("#scene-ask summary")
    for text, fault in (("only one", "Write 2 to 8"), ("a\na", "the same")):
        scene.page.fill("#scene-ask input[type=text]", HOSTILE)
        scene.page.fill("#scene-ask textarea", text)
        scene.page.click("text=Ask it")
        assert fault in scene.text("#scene-ask details [role=status]")
    scene.page.fill("#scene-ask textarea", f"trout\n{HOSTILE}\noak")
    scene.page.click("text=Ask it")
    scene.settle()
    question = Question(HOSTILE, [HOSTILE, "oak", "trout"], answer=2)
    for again in (False, True):
        if again:
            scene = open_scene(scene.address())
        answer = minise.standard(lm, question)
        assert list(bars(scene)) == list(question.choices)
        assert list(bars(scene).values()) == pytest.approx(answer.probabilities.tolist(), abs=1e-4)
        assert scene.text(".prompt") == DEFAULT_TEMPLATE.render(HOSTILE, question.choices)
        assert "trout" in scene.page.inner_text("#ask-bars .bar.right .name")
        assert scene.page.locator("main img").count() == 0
    scene.drag("K, the number of choices:", 2)
    assert "trout" in bars(scene)  # the right answer stays


@pytest.mark.parametrize(("K", "m", "N"), [(8, 4, 20), (8, 3, 5), (5, 1, 40)])
def test_split_shows_the_groups_that_python_draws(scene: Scene, K: int, m: int, N: int) -> None:
    scene.go(f"split?K={K}&m={m}&N={N}")
    shown = trials(scene)
    drawn = random_partitions(K, m, N, 0, WORLD[2]["id"]).trials
    assert shown == [[list(group) for group in trial] for trial in drawn]
    assert f"= {N * len(shown[0])} prompts" in scene.text("#split-told")
    scene.page.locator("#split-trials button").nth(N - 1).click()
    scene.settle()
    choices = of_size(WORLD[2], K).choices
    cards = scene.page.locator("#split-groups .card").all_inner_texts()
    assert len(cards) == len(shown[N - 1])
    for card, group in zip(cards, shown[N - 1], strict=True):
        lines = [line.partition(") ")[2] for line in card.split("\n")[1:]]
        assert lines == [*(choices[i] for i in group), NULL_OPTION]


def test_a_seed_names_its_trials_and_more_of_them_keep_the_first(scene: Scene) -> None:
    scene.go("split")
    first = trials(scene)
    scene.page.click("#split-seed")
    scene.settle()
    second = trials(scene)
    assert second != first
    scene.drag("N, trials:", 7)
    assert trials(scene) == second[:7]
    assert scene.address() == "split?seed=1&trial=1&N=7"
    scene.go("split")
    assert trials(scene) == first


@pytest.mark.parametrize("settings", ["", "m=2&N=3&seed=5", "K=5&m=3&q=0"])
def test_pack_counts_the_tokens_that_python_counts(
    scene: Scene, lm: LanguageModel, settings: str
) -> None:
    scene.go(f"split?{settings}")
    chosen = dict(pair.split("=") for pair in settings.split("&") if pair)
    question = of_size(WORLD[int(chosen.get("q", 2))], int(chosen.get("K", 8)))
    listed = [
        [*(question.choices[i] for i in group), NULL_OPTION]
        for trial in trials(scene)
        for group in trial
    ]
    prefix, prompts = write_prompts(lm.tokenizer, DEFAULT_TEMPLATE, question.text, listed)
    counts = token_counts(prefix, [prompt.ids for prompt in prompts])
    for stage in ("separate", "dense", "tree"):
        scene.go(f"pack?{settings}&stage={stage}")
        assert scene.text("#pack-counter") == f"{counts[stage]:,}"
        assert scene.text(f"#pack-{stage} b") == f"{counts[stage]:,}"
        assert scene.page.get_attribute(f"#pack-{stage}", "aria-pressed") == "true"
        two = [prompt.ids for prompt in prompts[:2]]
        assert scene.page.locator("#pack-words .token").count() == token_counts(prefix, two)[stage]


def test_pack_draws_a_square_for_each_token(scene: Scene) -> None:
    """And none for a token that was merged into another."""
    scene.go("pack?N=3")
    painted = """() => {
      const canvas = document.getElementById("pack-all"), pen = canvas.getContext("2d");
      const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
      let covered = 0;
      for (let i = 3; i < data.length; i += 4) covered += data[i] / 255;
      return covered;
    }"""
    sizes, areas = [], []
    for stage in ("separate", "dense", "tree"):
        scene.page.click(f"#pack-{stage}")
        scene.settle()
        sizes.append(int(scene.text("#pack-counter").replace(",", "")))
        areas.append(scene.page.evaluate(painted))
    assert sizes[0] > sizes[1] > sizes[2]
    for size, area in zip(sizes, areas, strict=True):
        assert area / areas[0] == pytest.approx(size / sizes[0], rel=1e-3)


@pytest.mark.parametrize("moves", [True, False])
def test_prompts_move_into_one_row_unless_the_reader_wants_no_motion(
    scene: Scene, moves: bool
) -> None:
    scene.page.emulate_media(reduced_motion="no-preference" if moves else "reduce")
    scene.go("pack?stage=separate")
    moving = "document.getAnimations().some((one) => one.playState === 'running')"
    scene.until(f"!{moving}")
    scene.page.click("#pack-dense")
    assert scene.page.evaluate(moving) == moves
    scene.until(
        "document.querySelector('#pack-counter').textContent === "
        "document.querySelector('#pack-dense b').textContent"
    )
    scene.until(f"!{moving}")
    assert scene.page.locator("#pack-words .ghost").count() == 0
    scene.go("split")
    scene.until(f"!{moving}")
    scene.page.click("#split-seed")
    assert scene.page.evaluate(moving) == moves


def test_the_state_stands_in_the_address_and_back_returns(scene: Scene) -> None:
    scene.go("ask")
    scene.drag("K, the number of choices:", 6)
    scene.page.select_option("#ask-question", "1")
    assert scene.address() == "ask?K=6&q=1"
    scene.page.click("#after")
    scene.settle()
    assert scene.address() == "split?K=6&q=1"
    assert len(trials(scene)[0][0] + trials(scene)[0][1]) == 6
    scene.page.go_back()
    scene.page.wait_for_selector("#tab-ask[aria-selected=true]")
    scene.settle()
    assert len(bars(scene)) == 6


@pytest.mark.parametrize(
    "address",
    ["", "nothing", "ask?K=99&q=-4", "split?m=x&N=1e9&seed=&trial=7", "pack?stage=none&__proto__=1",
     "ask?own=1&choices=2&scene=leak", "ask?question=q&choice=a", "split?%E0%A4%A"],
)  # fmt: skip
def test_a_strange_address_shows_a_scene(scene: Scene, address: str) -> None:
    scene.go(address)
    assert scene.page.locator("main section:visible h2").count() == 1
    assert not scene.page.is_visible("#fault")


def test_a_guess_is_answered(phone: Scene) -> None:
    wrong = "Not quite. The answer is: 20."
    for name, option, said in (("ask", "It falls", "Right: It falls."), ("split", "40", wrong)):
        phone.go(name)
        assert phone.text("#guess").startswith("Guess first: ")
        phone.page.tap(f"#guess button:text-is('{option}')")
        assert phone.text("#guess").startswith(said)
    phone.go("ask")
    assert phone.text("#guess").startswith("Right: ")


def test_the_answer_to_a_guess_moves_nothing(open_scene: Open) -> None:
    view = open_scene("ask")
    for number, name in enumerate(SCENES[:-1]):
        view.page.set_viewport_size({"width": (1400, 390)[number % 2], "height": 900})
        view.go(name)
        top = f"document.getElementById('scene-{name}').getBoundingClientRect().top + scrollY"
        before = view.page.evaluate(top)
        view.page.click("#guess button >> nth=0")
        assert view.page.is_visible("#guess .answered")
        assert view.page.evaluate(top) == pytest.approx(before, abs=0.02), name


def test_each_question_of_the_list_is_there_once(scene: Scene) -> None:
    scene.go("ask")
    texts = [one.inner_text() for one in scene.page.locator("#ask-question option").all()]
    questions = [text.partition(". ")[2] for text in texts]
    assert questions == [item["question"] for item in WORLD]
    assert len(set(questions)) == 20


def test_names_do_not_overlap_while_the_groups_are_dealt(scene: Scene) -> None:
    scene.page.emulate_media(reduced_motion="no-preference")
    scene.go("split?seed=0")
    names = """() => {
      const lines = [...document.querySelectorAll("#scene-split .apart li")]
        .filter((one) => getComputedStyle(one).opacity > 0)
        .map((one) => one.getBoundingClientRect());
      const over = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
        && a.top < b.bottom - 1 && b.top < a.bottom - 1;
      return lines.some((a, i) => lines.some((b, j) => i < j && over(a, b)));
    }"""
    moving = "document.getAnimations().some((one) => one.playState === 'running')"
    scene.page.click("#split-seed")
    seen = 0
    while scene.page.evaluate(moving):
        assert not scene.page.evaluate(names)
        seen += 1
    assert seen > 3


def test_the_tree_is_drawn_as_a_trunk_with_a_branch_for_each_prompt(
    scene: Scene, lm: LanguageModel
) -> None:
    scene.go("pack?stage=tree")
    count = "one => one.querySelectorAll('.token').length"
    trunk = scene.page.eval_on_selector("#pack-words .trunk", count)
    branches = [one.evaluate(count) for one in scene.page.locator("#pack-words .branch").all()]
    question = of_size(WORLD[2], 8)
    groups = random_partitions(8, 4, 1, 0, WORLD[2]["id"]).trials[0]
    listed = [[*(question.choices[i] for i in group), NULL_OPTION] for group in groups]
    prefix, prompts = write_prompts(lm.tokenizer, DEFAULT_TEMPLATE, question.text, listed)
    first, second = ([*prefix, *prompt.ids] for prompt in prompts)
    same = next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    assert (trunk, branches) == (same, [len(first) - same, len(second) - same])
    assert "a tree" in scene.text(".stage-text")


def test_arrow_keys_move_through_scenes_trials_and_sliders(scene: Scene) -> None:
    scene.go("ask")
    scene.page.focus("#tab-ask")
    for key, name in (("ArrowRight", "split"), ("End", "own"), ("ArrowLeft", "mean"),
                       ("Home", "ask"), ("ArrowLeft", "ask"), ("ArrowRight", "split")):  # fmt: skip
        scene.page.keyboard.press(key)
        scene.settle()
        assert scene.page.evaluate("document.activeElement.id") == f"tab-{name}"
    scene.page.focus("#split-trials button[aria-pressed=true]")
    scene.page.keyboard.press("ArrowDown")
    scene.settle()
    focused = scene.page.evaluate("document.activeElement.textContent")
    assert focused.startswith("Trial 2,")
    scene.page.get_by_role("slider", name="m, choices in a group:").focus()
    scene.page.keyboard.press("ArrowLeft")
    scene.settle()
    assert len(trials(scene)[0][0]) == 3


SIZES = """[...document.querySelectorAll("button, select, input, textarea, summary")]
  .map((one) => one.type === "radio" ? one.parentElement : one)
  .filter((one) => one.checkVisibility() && getComputedStyle(one).visibility === "visible")
  .map((one) => [one.outerHTML.slice(0, 90), one.getBoundingClientRect()])
  .map(([name, { width, height }]) => [name, Math.min(width, height)])"""


@pytest.mark.parametrize(("where", "least"), [("scene", 24), ("phone", 44)])
def test_all_that_is_pressed_is_large_enough(
    request: pytest.FixtureRequest, where: str, least: int
) -> None:
    """WCAG 2.5.8, and 2.5.5 where a finger presses. The mask's cells are reached by keys, too."""
    view: Scene = request.getfixturevalue(where)
    for name in SCENES:
        view.go(name)
        for pressed, size in view.page.evaluate(SIZES):
            assert size >= least - 0.01, (name, pressed)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(scene: Scene, scheme: str) -> None:
    """At least 4.5 to 1 (WCAG AA) for each colour that a text has, on each ground."""
    scene.page.emulate_media(color_scheme=scheme)
    names = ["--ink", "--soft", "--shared", *(f"--g{i}" for i in range(6))]
    read = "names => names.map(name => getComputedStyle(document.documentElement)"
    read += ".getPropertyValue(name).trim())"
    paper, wash, *colours = scene.page.evaluate(read, ["--paper", "--wash", *names])
    for ground in (paper, wash):
        for name, colour in zip(names, colours, strict=True):
            assert contrast(from_hex(colour), from_hex(ground)) >= 4.5, (name, ground)
