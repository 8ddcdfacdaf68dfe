"""The paper's other figures, from results made by hand: size, radar, one question."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from minise import load
from minise.evaluation.extras import single_questions
from minise.methods.sample import Sample
from minise.report.drawing import style
from minise.report.figures import lost_among_many, make_figures
from minise.report.results import Results
from tests.support.figures import assert_readable, caption, grids, keys
from tests.support.results import cell, make, ours


def drawn(*runs: dict[str, Any]) -> dict[str, Any]:
    with style():
        return make_figures([Results.from_json(run) for run in runs])


class TestScaling:
    @pytest.mark.parametrize("model", ["tiny-llama", "tiny-mistral", "tiny-qwen2"])
    def test_the_size_of_a_model_is_that_of_its_weights(self, model: str) -> None:
        lm = load(f"weights/{model}")
        run = make("scale", {"qasc": {"standard": cell()}}, config=asdict(lm.config))
        (read,) = Results.from_json(run).cells
        assert read.parameters == sum(p.numel() for p in lm.decoder.parameters())

    def test_each_method_has_a_line_over_the_models(self) -> None:
        runs = [
            make(
                "scale",
                {"qasc": {"standard": cell(accuracy=0.1 * i), "ours": ours(accuracy=0.9)}},
                config=asdict(load(f"weights/{name}").config),
                model=name,
            )
            for i, name in enumerate(("tiny-llama", "tiny-mistral"), 5)
        ]
        figure = drawn(*runs)["scaling"]
        (ax,) = figure.axes
        assert keys(figure) == ["standard", "ours"]
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("parameters (billions)", "accuracy (%)")
        assert ax.get_xscale() == "log"
        figure.draw_without_rendering()  # no formula, which is not drawn as one
        ticks = [tick.label1.get_text() for tick in ax.xaxis.get_minor_ticks()]
        assert any(ticks)
        assert not any("$" in tick for tick in ticks)
        sizes = [Results.from_json(run).cells[0].parameters / 1e9 for run in runs]
        assert list(ax.containers[0].lines[0].get_xdata()) == sizes
        assert list(ax.containers[0].lines[0].get_ydata()) == pytest.approx([50, 60])
        assert_readable(figure)
        assert "scaling" not in drawn(runs[0])
        same = drawn(*runs, runs[0] | {"model": "another of this size"})["scaling"]
        assert list(same.axes[0].containers[0].lines[0].get_xdata()) == [sizes[0], *sizes]


class TestRadar:
    def test_a_method_is_a_polygon_over_models_and_tasks(self) -> None:
        runs = [
            make(
                "main",
                {
                    "qasc": {"standard": cell(accuracy=0.5), "ours": ours(accuracy=0.75)},
                    "biology": {"standard": cell(accuracy=0.25)},
                },
                model=f"x/{name}",
            )
            for name in "ab"
        ]
        figure = drawn(*runs)["radar"]
        (ax,) = figure.axes
        assert not ax.axison
        assert ax.get_aspect() == 1  # rings are round
        assert keys(figure) == ["standard"]  # the other is not on every spoke
        (line,) = [line for line in ax.lines if line.get_label() == "standard"]
        lengths = [(x**2 + y**2) ** 0.5 for x, y in line.get_xydata()]
        assert lengths == pytest.approx([50, 25, 50, 25, 50])
        for ring, share in zip(ax.lines, (25, 50, 75, 100), strict=False):
            assert np.hypot(*ring.get_data()) == pytest.approx(share)
        named = [" ".join(text.get_text().split()) for text in ax.texts]
        assert named[-4:] == ["x/a qasc", "x/a biology", "x/b qasc", "x/b biology"]
        assert_readable(figure)
        assert "radar" not in drawn(runs[0])  # two spokes make no polygon


def sample(id: str, p: list[float], answer: int, texts: bool = True) -> Sample:
    text = {
        "question": f"Which is {id}?",
        "choices": [f"c{i}" for i in range(len(p))],
        "answer": "",
    }
    best = p.index(max(p))
    return Sample(id, 0, "", answer, best, p, p, 9, text=text if texts else None)


class TestOneQuestion:
    FEW = (sample("a", [0.2, 0.8], 0), sample("b", [0.9, 0.1], 0))
    MANY = (sample("a", [0.8, 0.1, 0.1], 0), sample("b", [0.3, 0.1, 0.6], 0))

    def questions(self) -> dict[int, Any]:
        by_k = {2: self.FEW, 3: self.MANY}
        return {
            K: single_questions({"standard": list(each), "ours": list(each)})
            for K, each in by_k.items()
        }

    def test_the_question_is_right_among_few_choices_and_wrong_among_many(self) -> None:
        pair = lost_among_many(self.questions(), "standard")
        assert [(K, one["question"]) for K, one in pair] == [(2, "Which is b?"), (3, "Which is b?")]
        assert pair[1][1]["methods"]["ours"] == [0.3, 0.1, 0.6]
        assert lost_among_many(self.questions(), "another") == []
        assert lost_among_many({3: self.questions()[3]}, "standard") == []

    def test_few_choices_means_four_if_there_is_a_task_of_four(self) -> None:
        right, wrong = ({"q": {"answer": 0, "methods": {"m": p}}} for p in ([1, 0], [0, 1]))
        for few, smaller in ((4, 3), (4, 2), (2, None)):
            questions = {smaller: wrong, few: right, 5: right, 8: wrong}
            questions.pop(None, None)
            assert [K for K, _ in lost_among_many(questions, "m")] == [few, 8]

    def drawn(self, questions: dict[int, Any]) -> dict[str, Any]:
        tasks = {f"t{K}": {"standard": cell(), "ours": ours()} for K in questions}
        facts = {f"t{K}": ("qasc", K) for K in questions}
        extra = {"asked": {f"t{K}": one for K, one in questions.items()}}
        return drawn(make("choices", tasks, facts, None, extra))

    def test_one_question_is_drawn_with_every_methods_probabilities(self) -> None:
        figure = self.drawn(self.questions())["one-question"]
        assert [len(ax.patches) for ax in figure.axes] == [4, 6]
        assert [bar.get_width() for bar in figure.axes[1].patches[:3]] == [30, 10, 60]
        places = [bar.get_y() + bar.get_height() / 2 for bar in figure.axes[1].patches[:3]]
        assert [round(place) for place in places] == [2, 1, 0]
        reach = [(bar.get_y(), bar.get_y() + bar.get_height()) for bar in figure.axes[1].patches]
        for tick, first, second in zip((2, 1, 0), reach[:3], reach[3:], strict=True):
            assert tick - 0.5 < second[0] < second[1] <= first[0] + 1e-9 < first[1] < tick + 0.5
        assert grids(figure.axes[1]) == (True, False)
        assert [ax.get_xlim() for ax in figure.axes] == [(0, 100)] * 2
        named = [label.get_text() for label in figure.axes[1].get_yticklabels()]
        assert named == ["c2", "c1", "c0 ✓"]
        assert "✓: the right choice. Which is b?" in caption(figure)
        assert_readable(figure)
        none = make("choices", {"t2": {"standard": cell()}}, {"t2": ("qasc", 2)})
        assert "one-question" not in drawn(none)

    def test_figures_of_a_model_fit_on_half_a_page(self) -> None:
        wrong = sample("b", [0.3, *[0.1] * 7], 3)
        smaller = {2: single_questions({"standard": [self.FEW[1]]})}
        figures = self.drawn(smaller | {8: single_questions({"standard": [wrong]})})
        assert {"one-question", "accuracy-choices", "confidence-choices"} < figures.keys()
        heights = {name: figure.get_figheight() for name, figure in figures.items()}
        assert max(heights.values()) < 6.5, heights
