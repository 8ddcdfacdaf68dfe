"""The scenes Read and Mean of the live page: what they show is what Python computes."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import minise
from minise import LocalModel, Prompts, Question
from minise.lab.page.page import world
from minise.layout import Layout, pack
from minise.template import DEFAULT_TEMPLATE, NULL_OPTION, write_prompts
from minise.verify.recording import record
from tests.lab.support.browser import MARKS, View

pytestmark = MARKS

ITEM = world(3)[2]
Open = Callable[..., View]


@pytest.fixture(scope="module")
def lm(tiny_llama: LocalModel) -> LocalModel:
    return tiny_llama


def bars(view: View) -> dict[str, float]:
    """The lines of the group and their probabilities."""
    read = "all => all.map(bar => [bar.querySelector('.name > span').textContent, "
    read += "Number(bar.dataset.probability)])"
    return dict(view.page.eval_on_selector_all("#read-bars .bar:not(.axis)", read))


def prompt_of(lm: LocalModel, names: list[str]) -> tuple[Layout, Prompts]:
    prompts = write_prompts(lm.tokenizer, DEFAULT_TEMPLATE, ITEM["question"], [names])
    return pack(prompts.prefix, prompts.branches), prompts


@torch.inference_mode()
def probabilities(
    lm: LocalModel, layout: Layout, prompts: Prompts, mask: torch.Tensor | None = None
) -> list[float]:
    seen = layout.mask if mask is None else mask
    hidden = lm.decoder(layout.tokens, layout.positions, seen, layout.ends)
    logits = lm.decoder.logits(hidden)[0, prompts.label_ids[0]]
    return logits.double().softmax(dim=-1).tolist()


def line_rows(lm: LocalModel, layout: Layout, names: list[str], line: int) -> list[int]:
    """The rows of a choice's line in a prompt of its own."""
    ends = []
    for count in (line, line + 1):
        text = DEFAULT_TEMPLATE.render(ITEM["question"], names[:count]).removesuffix("Answer:")
        ends.append(len(lm.tokenizer.encode([text])[0]))
    return list(range(*ends))


def test_read_shows_the_softmax_over_the_labels_of_each_group(scene: View, lm: LocalModel) -> None:
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


def test_read_shows_where_each_head_looks_from_the_end_token(scene: View, lm: LocalModel) -> None:
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


def test_read_shows_the_answer_after_each_layer(scene: View, lm: LocalModel) -> None:
    scene.go("read?q=2&K=8&m=4&group=2")
    layout, prompts = prompt_of(lm, list(bars(scene)))
    with torch.inference_mode(), record(lm.decoder) as recording:
        lm.decoder(layout.tokens, layout.positions, layout.mask)
        rows = torch.stack([recording.residual[i][0, -1] for i in sorted(recording.residual)])
        logits = lm.decoder.logits(lm.decoder.model.norm(rows))[:, prompts.label_ids[0]]
    read = "all => all.map(line => line.dataset.lens.split(' ').map(Number))"
    shown = torch.tensor(scene.page.eval_on_selector_all("[data-lens]", read))
    assert torch.allclose(shown.T, logits.softmax(dim=-1), atol=1e-4)


def test_a_line_that_the_end_token_may_not_see_changes_the_answer_as_in_python(
    scene: View, lm: LocalModel
) -> None:
    scene.go("read?q=2&K=8&m=4&group=2")
    before = bars(scene)
    scene.page.get_by_role("radio", name="(C)").check()
    scene.settle()
    names = list(before)
    layout, prompts = prompt_of(lm, names)
    mask = layout.mask.clone()
    mask[-1, line_rows(lm, layout, names, 2)] = False
    wanted = probabilities(lm, layout, prompts, mask)
    assert list(bars(scene).values()) == pytest.approx(wanted, abs=1e-5)
    was = scene.page.eval_on_selector_all(
        "#read-bars small", "all => all.map(one => one.textContent)"
    )
    assert was == [f" was {100 * p:.1f}%" for p in before.values()]
    assert "hide=3" in scene.address()


def test_mean_shows_the_scores_of_python(scene: View, lm: LocalModel) -> None:
    scene.go("mean?q=2&K=4&m=2&seed=3&n=2")
    kept = [choice for choice, rank in zip(ITEM["choices"], ITEM["rank"], strict=True) if rank < 4]
    question = Question(ITEM["question"], kept, id=ITEM["id"])
    wanted = minise.self_ensemble(lm, question, group_size=2, trials=2, seed=3)
    means = scene.page.eval_on_selector_all(
        "[data-mean]", "all => all.map(line => Number(line.dataset.mean))"
    )
    assert means == pytest.approx(wanted.scores.tolist(), abs=1e-5)
    shown = scene.page.eval_on_selector_all(
        "[data-score]", "all => all.map(text => text.textContent)"
    )
    for text, score in zip(shown, wanted.scores.tolist(), strict=True):
        assert text.startswith(f"{score:.1%} ± ")
        assert text in str(scene.page.get_attribute("#mean-strip .marks", "aria-label"))
    assert scene.page.locator("#mean-strip circle").count() == 2 * 4
    said = f"After 2 trials the answer is {kept[wanted.prediction]}: "
    assert scene.page.inner_text("#mean-verdict").startswith(said)


def test_mean_ends_with_both_ways_on_twenty_questions(scene: View, lm: LocalModel) -> None:
    scene.go("mean?q=2")
    scene.until("document.querySelector('#mean-cost').textContent.includes('times')")
    questions = [Question(one["question"], one["choices"], id=one["id"]) for one in world(40)[:20]]
    right = [0, 0]
    for one, question in zip(world(40), questions, strict=False):
        for way, ask in enumerate((minise.standard, minise.self_ensemble)):
            right[way] += ask(lm, question).prediction == one["answer"]
    read = "all => all.map(one => Number(one.dataset.right))"
    assert scene.page.eval_on_selector_all("#mean-squares b", read) == right
    assert right[0] < right[1]
    for way, count in enumerate(right):
        row = scene.page.locator("#mean-squares .row-of").nth(way)
        assert row.locator("i.right").count() == count


def test_mean_says_what_it_is_worth_as_the_page_of_real_models_does(scene: View) -> None:
    """Percent right and tokens of the column QASC; what a CPU gave is among all accuracies."""
    docs = Path(minise.__file__).parents[1] / "docs"
    real = (docs / "real.md").read_text(encoding="utf-8")
    table = real.partition("<!-- table tokens -->")[2].partition("<!-- end -->")[0]
    cells = dict(re.findall(r"^\| ([\w =-]+) \| ([^|]+) \|", table, re.MULTILINE))
    scene.go("mean")
    told = scene.text("#mean-worth")
    said = re.findall(r"([\d.]+)% (?:right )?for (\d+)", told)
    for method, pair in zip(["standard", "N = 5", "Self-Ensemble", "presence"], said, strict=True):
        percent, tokens = re.findall(r"[\d.]+", cells[method])
        assert pair == (percent, tokens), method
    table = real.partition("<!-- table main -->")[2].partition("<!-- end -->")[0]
    on_cpu = re.search(r"^\| 1.5B \| QASC \| (\S+) \| \S+ \| \S+ \| (\S+) \|", table, re.MULTILINE)
    assert on_cpu
    assert f"{on_cpu[1]}% by standard inference and {on_cpu[2]}% with 20" in told


def test_mean_plays_to_the_last_trial_and_stops(scene: View) -> None:
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
