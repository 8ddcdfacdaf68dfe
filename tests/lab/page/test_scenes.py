"""The live page in a real browser: its frame, and the scenes Ask, Split and Pack."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("hypothesis", reason="it draws addresses; the extra [test] has it")

from hypothesis import given
from hypothesis import strategies as st

import minise
from minise import LocalModel, Question
from minise.engines import token_counts
from minise.grouping import random_partitions
from minise.lab.data.miniature import load_facts
from minise.lab.page.page import world
from minise.lab.page.recorded import FILLER, MINIATURES
from minise.lm import branch_logits
from minise.template import DEFAULT_TEMPLATE, NULL_OPTION, write_prompts
from tests.lab.support.browser import MARKS, WIDE, View, open_page
from tests.reference.support.cases import cases
from tests.reference.support.tiny import FAMILIES, write_checkpoint
from tools.train_miniature import CHOICES

pytestmark = MARKS

SCENES = ("ask", "why", "split", "pack", "leak", "read", "mean", "own")
WORLD = world(40)[:20]
HOSTILE = "<img src=x onerror=alert(1)>"
PARAMETERS = ("q", "K", "m", "N", "n", "seed", "trial", "stage", "cells", "positions", "word")
PARAMETERS += ("group", "hide", "head", "way", "question", "choice", "choice", "answer")
PARAMETERS += ("own", "scene", "choices", "most", "id", "__proto__")  # none of these is one
VALUES = ("", "0", "1", "-4", "26", "99", "1e9", "nan", "x", "%00", "%E0%A4%A", "own", "tree", "é")
Open = Callable[..., View]


@pytest.fixture(scope="module")
def lm(tiny_llama: LocalModel) -> LocalModel:
    return tiny_llama


def of_size(item: dict[str, Any], K: int) -> Question:
    """The question of the world with K choices."""
    kept = [i for i, rank in enumerate(item["rank"]) if rank < K]
    return Question(
        item["question"], [item["choices"][i] for i in kept], answer=kept.index(item["answer"])
    )


def bars(view: View) -> dict[str, float]:
    """The choices and their probabilities as Ask shows them."""
    read = "all => all.map(bar => [bar.querySelector('.name > span').textContent, "
    read += "Number(bar.dataset.probability), bar.querySelector('.value').textContent])"
    rows = view.page.eval_on_selector_all("#ask-bars .bar:not(.axis)", read)
    assert [shown for _, _, shown in rows] == [f"{100 * p:.1f}%" for _, p, _ in rows]
    return {choice: p for choice, p, _ in rows}


def trials(view: View) -> list[list[list[int]]]:
    """The groups of each trial as Split shows them."""
    labels = view.page.eval_on_selector_all(
        "#split-trials button", "all => all.map(one => one.textContent)"
    )
    numbers = [re.findall(r"group \d+: ([\d ]+)", label) for label in labels]
    return [[[int(i) - 1 for i in group.split()] for group in groups] for groups in numbers]


def opens_and_fits(view: View) -> None:
    for name in SCENES:
        view.go(name)
        assert view.page.is_visible(f"#scene-{name} h2")
        assert view.page.locator("main section:visible").count() == 1
        tab = view.page.locator("[role=tab][aria-selected=true]")
        assert tab.get_attribute("id") == f"tab-{name}"
        assert view.page.title() == f"{tab.inner_text()[2:]} - Self-Ensemble"
        width = view.page.evaluate("document.documentElement.clientWidth")
        assert view.page.evaluate("document.documentElement.scrollWidth") <= width, name
        below = "document.documentElement.scrollHeight - Math.max(innerHeight, "
        below += "document.body.getBoundingClientRect().bottom + scrollY)"
        assert view.page.evaluate(below) <= 1, name  # nothing unseen makes the page longer


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_scene_opens_by_its_address_and_fits_the_sides(
    scene: View, width: int, scheme: str
) -> None:
    """No console message and no request either: the fixture holds that."""
    scene.page.set_viewport_size({"width": width, "height": 844})
    scene.page.emulate_media(color_scheme=scheme)
    opens_and_fits(scene)


def test_each_scene_opens_on_a_phone(phone: View) -> None:
    opens_and_fits(phone)


def test_each_scene_fits_one_screen(scene: View) -> None:
    for name in SCENES:
        scene.go(f"{name}?K=8")
        assert scene.page.evaluate("document.documentElement.scrollHeight") <= 900, name


def test_ask_shows_what_python_computes(scene: View, lm: LocalModel) -> None:
    scene.go("ask?q=0&K=2")
    for q, K in ((0, 2), (2, 5), (2, 8), (4, 8)):
        scene.page.select_option("#ask-question", str(q))
        scene.drag("K, the number of choices:", K)
        question = of_size(WORLD[q], K)
        answer = minise.standard(lm, question)
        shown = bars(scene)
        assert list(shown) == list(question.choices)
        assert list(shown.values()) == pytest.approx(answer.normalized.tolist(), abs=1e-4)
        top = scene.page.inner_text("#ask-bars .bar.top .name")
        assert question.choices[answer.prediction] in top
        assert question.answer is not None
        right = question.choices[question.answer]
        assert right in scene.page.inner_text("#ask-bars .bar.right .name")
        said = f"The model answers {question.choices[answer.prediction]}: "
        said += "right." if answer.prediction == question.answer else f"wrong. It is {right}."
        assert scene.page.inner_text("#scene-ask .verdict") == said


def test_a_typed_question_is_asked_and_stands_in_the_address(
    scene: View, open_scene: Open, lm: LocalModel
) -> None:
    scene.go("ask")
    scene.page.click("#scene-ask summary")
    for text, fault in (("only one", "Write 2 to 26"), ("a\na", "the same")):
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
        assert list(bars(scene).values()) == pytest.approx(answer.normalized.tolist(), abs=1e-4)
        assert scene.text(".prompt") == DEFAULT_TEMPLATE.render(HOSTILE, question.choices)
        assert "trout" in scene.page.inner_text("#ask-bars .bar.right .name")
        assert scene.page.locator("main img").count() == 0
    scene.drag("K, the number of choices:", 2)
    assert "trout" in bars(scene)  # the right answer stays


# Of each scene with a guess: what stands there at once, and what the model says.
AT_ONCE = {
    "ask": (".prompt", "#ask-bars .name", "#ask-bars .axis b", "#ask-strip .title"),
    "why": (".prompt", "#why-bars .name", "#why-bars .axis b", "#why-answer .name"),
    "split": ("#split-groups li", "#split-trials button", "#split-told"),
    "pack": ("#pack-words .token", "#pack-all", "#pack-separate b"),
    "leak": (".mask canvas", ".leak-bars .name", ".leak-case", "#leak-layers .title"),
    "read": ("#read-tokens", "#read-bars .name", "#read-logits .tick", "#read-lens .tick"),
}
SAID = {
    "ask": ("#ask-bars .value", ".verdict", "#ask-strip rect", "#ask-told"),
    "why": ("#why-bars .value", "#why-answer .value"),
    "split": ("i.right", "li.right"),
    "pack": ("#pack-packed b", "#pack-tree b"),
    "leak": (".leak-bars .value", ".verdict", ".leak-meter", ".mini i", "#leak-layers path"),
    "read": ("#read-bars .value", "#read-share", "#read-logits path", ".heads rect", "[data-lens]"),
}


def seen(view: View, selector: str) -> list[bool]:
    """Of each element whether it is drawn. (A bar of no width is.)"""
    read = "at => [...document.querySelectorAll(at)].map(one => "
    read += "one.checkVisibility({ visibilityProperty: true }))"
    found: list[bool] = view.page.evaluate(read, selector)
    return found


def test_before_a_guess_all_stands_there_but_what_the_model_says(
    browser: Any, live_file: Path
) -> None:
    view = open_page(browser, live_file, guess=False, **WIDE)
    for name in SAID:
        view.go(name)
        for selector in ("h2", *AT_ONCE[name]):
            assert set(seen(view, f"#scene-{name} {selector}")) == {True}, (name, selector)
        for selector in SAID[name]:
            assert not any(seen(view, f"#scene-{name} {selector}")), (name, selector)
        view.page.click("#guess .skip")
        view.settle()
        for selector in SAID[name]:
            assert set(seen(view, f"#scene-{name} {selector}")) == {True}, (name, selector)
    view.check(live_file)
    view.page.context.close()


def test_pack_shows_no_row_before_its_guess_whatever_the_address_says(
    browser: Any, live_file: Path
) -> None:
    view = open_page(browser, live_file, "pack?stage=tree", guess=False, **WIDE)
    assert view.page.get_attribute("#pack-separate", "aria-pressed") == "true"
    assert view.page.is_disabled("#pack-packed")
    view.page.click("#guess button:text-is('Once')")
    view.settle()
    assert view.page.get_attribute("#pack-tree", "aria-pressed") == "true"
    assert view.text("#guess").startswith("Right: Once.")
    view.check(live_file)
    view.page.context.close()


def test_the_first_scene_starts_with_eight_choices_where_the_answer_is_wrong(
    browser: Any, live_file: Path
) -> None:
    view = open_page(browser, live_file, **WIDE)
    assert len(bars(view)) == 8
    assert ": wrong. It is Ottawa." in view.text("#scene-ask .verdict")
    view.check(live_file)
    view.page.context.close()


def asked_in(address: str, question: Question) -> str:
    """The address of a scene with a question of the reader's own."""
    pairs = [("question", question.text), *(("choice", choice) for choice in question.choices)]
    return f"{address}{'&' if '?' in address else '?'}{urlencode(pairs)}"


def test_every_scene_takes_26_choices(scene: View, lm: LocalModel) -> None:
    question = Question("Which is the bird?", [f"choice {n}" for n in range(26)])
    scene.go(asked_in("ask", question))
    wanted = minise.standard(lm, question).normalized.tolist()
    assert list(bars(scene).values()) == pytest.approx(wanted, abs=1e-4)
    assert scene.text("#ask-question option:checked") == question.text
    for address in (*SCENES, "split?m=1&N=40", "pack?m=1&N=40", "read?m=25", "mean?m=25&n=2"):
        scene.go(asked_in(address, question))
        assert not scene.page.is_visible("#fault"), scene.text("#fault")
        whole, width = scene.page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert whole <= width, address
    scene.go(asked_in("split?m=26", question))
    assert [len(group) for group in trials(scene)[0]] == [25, 1]


def test_a_question_longer_than_the_model_reads_is_refused_in_one_line(scene: View) -> None:
    question = Question("Why? " * 60, [f"{n}{' xylophone' * 7}" for n in range(26)])
    for name in ("ask", "leak", "read", "mean"):
        scene.go(asked_in(name, question))
        told = scene.text("#fault")
        assert "tokens, but the model has positions for 512; shorten the question" in told
    scene.go("ask?q=1")
    assert not scene.page.is_visible("#fault")
    scene.errors.clear()  # the console had them too


def test_four_typed_choices_are_split_into_groups_of_two(scene: View) -> None:
    scene.go("split?question=Why&choice=a&choice=b&choice=c&choice=d")
    assert [len(group) for group in trials(scene)[0]] == [2, 2]


def test_why_asks_a_typed_question(scene: View) -> None:
    scene.go("why?question=The+opposite+of+hot&choice=cold&choice=warm&choice=red&choice=tall")
    assert scene.text("#scene-why .prompt").startswith("The opposite of hot\n(A) ")


def test_why_asks_each_way_what_python_asks(scene: View, lm: LocalModel) -> None:
    scene.go("why?q=2")
    question = of_size(WORLD[2], 4)
    for way, labels, filler in (
        ("4 choices, A to D", "ABCD", ""),
        ("4 choices, E to H", "EFGH", ""),
        ("4 choices, after a text", "ABCD", "".join(FILLER)),
    ):
        scene.page.click(f"#scene-why button:text-is('{way}')")
        scene.settle()
        lines = [
            f"({label}) {name}\n" for label, name in zip(labels, question.choices, strict=True)
        ]
        text = f"{question.text}\n{filler}{''.join(lines)}Answer:"
        assert scene.text("#scene-why .prompt") == text
        ids, *longer = lm.tokenizer.encode([text, *(f"{text} {label}" for label in labels)])
        logits = branch_logits(lm, ids[:-1], [ids[-1:]])[:, [one[-1] for one in longer]]
        read = "all => all.map(bar => Number(bar.dataset.probability))"
        shown = scene.page.eval_on_selector_all("#why-answer .bar:not(.axis)", read)
        assert shown == pytest.approx(logits[0].double().softmax(dim=0).tolist(), abs=1e-4)


def test_why_says_what_was_run_for_the_question_shown(scene: View) -> None:
    # Four choices have no longer list; the run for them has not ended when the question changes.
    scene.go("why?question=The+opposite+of+hot&choice=cold&choice=warm&choice=red&choice=tall")
    scene.go("why?q=2")
    told = "document.querySelector('#why-told').textContent"
    scene.until(f"{told}.includes('no list that begins at E, and no text before a list')")
    assert scene.text("#why-told").startswith("Each way asks the same 20 built-in questions once.")
    assert f"{len(FILLER)} neutral sentences" in scene.text("#scene-why .side")


@pytest.mark.parametrize("name", MINIATURES)
def test_the_text_of_why_is_about_as_long_as_four_choices(name: str) -> None:
    lm = minise.load(Path(minise.__file__).parents[1] / "weights" / name)
    lengths = []
    for item in WORLD:
        choices = of_size(item, 4).choices
        start = DEFAULT_TEMPLATE.prefix(item["question"])
        lines = DEFAULT_TEMPLATE.render(item["question"], choices).removesuffix("Answer:")
        before, after = lm.tokenizer.encode([start, lines])
        lengths.append(len(after) - len(before))
    before, after = lm.tokenizer.encode(["Why?\n", "Why?\n" + "".join(FILLER)])
    assert len(after) - len(before) == pytest.approx(sum(lengths) / len(lengths), rel=0.15)


def test_guesses_speak_of_the_question_shown(browser: Any, live_file: Path) -> None:
    view = open_page(browser, live_file, guess=False, **WIDE)
    for K, why, split in (
        (3, "3 choices with the labels E to G", "20 trials cut 3 choices into groups of 2"),
        (5, "4 choices with the labels E to H", "20 trials cut 5 choices into groups of 4"),
        (20, "4 choices with the labels E to H", "20 trials cut 20 choices into groups of 4"),
    ):
        question = Question("Which is a bird?", [f"kind {number}" for number in range(K)])
        view.go(asked_in("why", question))
        assert why in view.text("#guess")
        view.go(asked_in("split", question))
        assert split in view.text("#guess")
        groups = 20 * len(trials(view)[0])
        assert f"How many of the {groups} groups" in view.text("#guess")
    view.go("split?K=4&m=4")
    assert not view.page.is_visible("#guess")  # one group holds all
    view.check(live_file)
    view.page.context.close()


def test_the_first_scene_says_that_the_model_is_a_toy(scene: View, lm: LocalModel) -> None:
    scene.go("ask")
    told = scene.text("#ask-model")
    millions = sum(one.numel() for one in lm.decoder.parameters()) / 1e6
    assert f"tiny-llama, is a toy: {millions:.1f} million parameters" in told
    assert f"trained on {len(load_facts())} facts" in told
    few = sum(share for count, share in CHOICES.items() if count <= 4)
    assert f"{100 * few:.0f}% of its training questions had at most four choices" in told


def test_of_another_model_no_scene_says_what_holds_for_the_toy(
    browser: Any, tmp_path: Path
) -> None:
    other = minise.load(write_checkpoint(tmp_path / "mine", FAMILIES["llama"]))
    path = tmp_path / "page.html"
    path.write_text(minise.explain(other, Question("Which?", ["a", "b", "c"], answer=0)).html)
    view = open_page(browser, path, guess=False, **WIDE)
    assert "The model, mine, has " in view.text("#ask-model")
    for name in SCENES:
        view.go(name)
        assert "toy" not in view.text("body")
        assert "training had" not in view.text("body")
        assert view.page.is_visible("#guess") == (name in ("split", "pack", "leak"))
    view.page.context.close()


@pytest.mark.parametrize(("K", "m", "N"), [(8, 4, 20), (8, 3, 5), (5, 1, 40)])
def test_split_shows_the_groups_that_python_draws(scene: View, K: int, m: int, N: int) -> None:
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


@pytest.mark.parametrize("settings", ["", "m=2&N=3&seed=5", "K=5&m=3&q=0"])
def test_pack_counts_the_tokens_that_python_counts(
    scene: View, lm: LocalModel, settings: str
) -> None:
    scene.go(f"split?{settings}")
    chosen = dict(pair.split("=") for pair in settings.split("&") if pair)
    question = of_size(WORLD[int(chosen.get("q", 2))], int(chosen.get("K", 8)))
    listed = [
        [*(question.choices[i] for i in group), NULL_OPTION]
        for trial in trials(scene)
        for group in trial
    ]
    prompts = write_prompts(lm.tokenizer, DEFAULT_TEMPLATE, question.text, listed)
    counts = token_counts(prompts.prefix, prompts.branches)
    counts_of_two = token_counts(prompts.prefix, prompts.branches[:2])
    for stage in ("separate", "packed", "tree"):
        scene.go(f"pack?{settings}&stage={stage}")
        assert scene.text("#pack-counter") == f"{counts[stage]:,}"
        assert scene.text(f"#pack-{stage} b") == f"{counts[stage]:,}"
        assert scene.page.get_attribute(f"#pack-{stage}", "aria-pressed") == "true"
        assert scene.page.locator("#pack-words .token").count() == counts_of_two[stage]


def test_the_state_stands_in_the_address_and_back_returns(scene: View) -> None:
    scene.go("ask")
    scene.drag("K, the number of choices:", 6)
    scene.page.select_option("#ask-question", "1")
    assert scene.address() == "ask?K=6&q=1"
    scene.page.click("#after")
    scene.settle()
    assert scene.address() == "why?K=6&q=1"
    scene.page.click("#after")
    scene.settle()
    assert len(trials(scene)[0][0] + trials(scene)[0][1]) == 6
    scene.page.go_back()
    scene.page.wait_for_selector("#tab-why[aria-selected=true]")
    scene.page.go_back()
    scene.page.wait_for_selector("#tab-ask[aria-selected=true]")
    scene.settle()
    assert len(bars(scene)) == 6


KEYS = st.sampled_from(PARAMETERS)
STRANGE = st.sampled_from(VALUES)


@cases(25)
@given(
    name=st.sampled_from([*SCENES, "", "nothing"]),
    pairs=st.lists(st.tuples(KEYS, STRANGE), max_size=6),
)
def test_any_address_shows_a_scene(scene: View, name: str, pairs: list[tuple[str, str]]) -> None:
    scene.go(f"{name}?{'&'.join(f'{key}={value}' for key, value in pairs)}")
    assert scene.page.locator("main section:visible h2").count() == 1
    assert not scene.page.is_visible("#fault"), scene.text("#fault")


def test_arrow_keys_move_through_scenes_trials_and_sliders(scene: View) -> None:
    scene.go("ask")
    scene.page.focus("#tab-ask")
    for key, name in (
        ("ArrowRight", "why"),
        ("End", "own"),
        ("ArrowLeft", "mean"),
        ("Home", "ask"),
        ("ArrowLeft", "ask"),
        ("ArrowRight", "why"),
        ("ArrowRight", "split"),
    ):
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
