"""The scenes Read and Mean of the live page: what they show is what Python computes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import minise
from minise import LanguageModel, Question
from minise.checking.recording import record
from minise.engines import layout_logits
from minise.layout import Tree, pack
from minise.live.page import world
from minise.prompt import DEFAULT_TEMPLATE, NULL_OPTION, Prompt, write_prompts
from tests.support.browser import MARKS
from tests.support.browser import browser as browser
from tests.support.live import CHECKPOINT, Scene
from tests.support.live import live_file as live_file
from tests.support.live import open_scene as open_scene
from tests.support.live import scene as scene
from tests.support.live import shared as shared

pytestmark = MARKS

ITEM = world(3)[2]
Open = Callable[..., Scene]


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return minise.load(CHECKPOINT)


def bars(view: Scene) -> dict[str, float]:
    """The lines of the group and their probabilities."""
    read = "all => all.map(bar => [bar.querySelector('.name > span').textContent, "
    read += "Number(bar.dataset.probability)])"
    return dict(view.page.eval_on_selector_all("#read-bars .bar:not(.axis)", read))


def prompt_of(lm: LanguageModel, names: list[str]) -> tuple[Tree, Prompt]:
    prefix, (prompt,) = write_prompts(lm.tokenizer, DEFAULT_TEMPLATE, ITEM["question"], [names])
    return pack(prefix, [prompt.ids]), prompt


def probabilities(lm: LanguageModel, layout: Any, prompt: Prompt) -> list[float]:
    logits = layout_logits(lm, layout, prompt.label_ids)[0]
    return torch.softmax(logits.double(), dim=-1).tolist()


def line_rows(lm: LanguageModel, layout: Tree, names: list[str], line: int) -> list[int]:
    """The rows of a choice's line in a prompt of its own."""
    ends = []
    for count in (line, line + 1):
        text = DEFAULT_TEMPLATE.render(ITEM["question"], names[:count]).removesuffix("Answer:")
        ends.append(len(lm.tokenizer.encode([text])[0]))
    return list(range(*ends))


def test_read_shows_the_softmax_over_the_labels_of_each_group(
    scene: Scene, lm: LanguageModel
) -> None:
    scene.go("read?q=2&K=8&m=4&trial=2")
    seen = []
    for group in ("1", "2"):
        scene.page.get_by_role("radio", name=group, exact=True).check()
        scene.settle()
        shown = bars(scene)
        names = list(shown)
        assert names[-1] == NULL_OPTION
        wanted = probabilities(lm, *prompt_of(lm, names))
        assert list(shown.values()) == pytest.approx(wanted, abs=1e-5)
        told = f"“{NULL_OPTION}” has {100 * wanted[-1]:.1f}% of this group."
        assert told in scene.page.inner_text("#read-share")
        seen += names[:-1]
    assert sorted(seen) == sorted(ITEM["choices"])


def test_read_shows_where_each_head_looks_from_the_end_token(
    scene: Scene, lm: LanguageModel
) -> None:
    scene.go("read?q=2&K=8&m=4&group=2")
    names = list(bars(scene))
    layout, _ = prompt_of(lm, names)
    with torch.inference_mode(), record(lm.decoder, attention=True) as recording:
        lm.decoder(layout.tokens, layout.positions, layout.mask)
    cells = scene.page.eval_on_selector_all(
        "#read-heads button", "all => all.map(one => one.getAttribute('aria-label'))"
    )
    for number, cell in enumerate(cells):
        layer, head = divmod(number, lm.config.num_attention_heads)
        looks: Tensor = recording.attention[layer][0, head, -1]
        shares = [
            f"({label}) {100 * float(looks[line_rows(lm, layout, names, i)].sum()):.0f}%"
            for i, label in enumerate("ABCDE")
        ]
        assert cell == f"layer {layer + 1}, head {head + 1}: {', '.join(shares)}"
    assert len(cells) == 24
    scene.page.locator("#read-heads button").nth(8).click()
    scene.settle()
    assert scene.page.inner_text("#read-told").startswith("Layer 2, head 3: ")
    assert scene.page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"


def test_a_line_that_the_end_token_may_not_see_changes_the_answer_as_in_python(
    scene: Scene, lm: LanguageModel
) -> None:
    scene.go("read?q=2&K=8&m=4&group=2")
    before = bars(scene)
    scene.page.get_by_role("radio", name="(C)").check()
    scene.settle()
    names = list(before)
    layout, prompt = prompt_of(lm, names)
    mask = layout.mask.clone()
    mask[-1, line_rows(lm, layout, names, 2)] = False
    wanted = probabilities(lm, layout.replace(mask=mask), prompt)
    assert list(bars(scene).values()) == pytest.approx(wanted, abs=1e-5)
    was = scene.page.eval_on_selector_all(
        "#read-bars small", "all => all.map(one => one.textContent)"
    )
    assert was == [f" was {100 * p:.1f}%" for p in before.values()]
    assert "hide=3" in scene.address()


def test_to_hide_a_line_does_not_choose_another_head(scene: Scene) -> None:
    scene.go("read?q=2&K=8&m=4&group=2")
    pressed = "#read-heads [aria-pressed=true]"
    name = str(scene.page.get_attribute(pressed, "aria-label")).partition(":")[0]
    top = scene.text("#read-bars .bar.top b")
    for line in ("(A)", "(B)", "(C)", "(D)", "(E)"):
        scene.page.get_by_role("radio", name=line).check()
        scene.settle()
        assert str(scene.page.get_attribute(pressed, "aria-label")).startswith(f"{name}:"), line
        if line == top:
            assert scene.text("#read-bars .bar.top b") != top


def test_read_explains_its_words(scene: Scene) -> None:
    scene.go("read")
    terms = scene.page.locator("#scene-read p b").all_inner_texts()
    wanted = ["end token", "logit", "answer cue", "null option", "Softmax", "layer", "head"]
    assert [term for term in wanted if term not in terms] == []
    assert "drops this one" in scene.text("#read-share")


def test_mean_shows_the_scores_of_python(scene: Scene, lm: LanguageModel) -> None:
    scene.go("mean?q=2&K=4&m=2&seed=3&n=2")
    kept = [choice for choice, rank in zip(ITEM["choices"], ITEM["rank"], strict=True) if rank < 4]
    question = Question(ITEM["question"], kept, id=ITEM["id"])
    wanted = minise.self_ensemble(lm, question, group_size=2, trials=2, seed=3)
    means = scene.page.eval_on_selector_all(
        "[data-mean]", "all => all.map(line => Number(line.dataset.mean))"
    )
    assert means == pytest.approx(wanted.scores.tolist(), abs=1e-5)
    assert scene.page.locator("#mean-strip circle").count() == 2 * 4
    said = f"After 2 trials the answer is {kept[wanted.prediction]}: "
    assert scene.page.inner_text("#mean-verdict").startswith(said)


def test_mean_plays_to_the_last_trial_and_stops(scene: Scene) -> None:
    scene.go("mean?q=2&K=2&m=2&N=3")
    scene.page.click("#mean-play")
    scene.page.wait_for_selector("#mean-play:disabled")
    assert scene.page.inner_text("#mean-verdict").startswith("After 3 trials")
    assert scene.page.inner_text("#mean-play") == "Play"
    assert "n=3" in scene.address()
    scene.page.click("#mean-again")
    scene.settle()
    assert scene.page.inner_text("#mean-verdict").startswith("After 1 trial ")


@pytest.mark.parametrize(
    "worker",
    [
        "constructor() { throw new Error('no workers here'); }",
        "postMessage() { setTimeout(() => this.onerror(new Event('error'))); }",
    ],
    ids=["refused", "stopped"],
)
def test_where_a_worker_does_not_run_the_page_computes_itself(
    open_scene: Open, worker: str
) -> None:
    view = open_scene("read?q=2&K=4&m=2&group=2")
    wanted = bars(view)
    view.page.add_init_script(f"window.Worker = class {{ {worker} }};")
    before = len(view.requests)
    view.page.reload()
    view.settle()
    assert bars(view) == wanted
    assert not any(url.startswith("blob:") for url in view.requests[before:])
    del view.requests[before:]  # the page itself, loaded again


def test_the_answer_to_the_guess_of_mean_can_be_tried(scene: Scene) -> None:
    scene.go("mean?q=2")
    scene.page.click("#guess button:text-is('40')")
    assert scene.text("#guess").startswith("Right: 40.")
    widths = []
    for trials in ("10", "40"):
        scene.page.click(f"#guess button:text-is('{trials} trials')")
        scene.settle()
        assert scene.text("#mean-verdict").startswith(f"After {trials} trials")
        (width,) = re.findall(r"Its band is ([\d.]+) points", scene.text("#mean-told"))
        widths.append(float(width))
    assert widths[1] / widths[0] == pytest.approx(0.5, abs=0.1)
