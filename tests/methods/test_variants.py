"""Each method asks what it says it asks, and a variant states all settings that it uses."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minise import InputError, LanguageModel, Question, self_ensemble, standard
from minise import ask as ask_method
from minise.checking.verify import verify
from minise.engines import branch_logits, token_counts
from minise.layout import pack
from minise.method import Answer, Plan, label_logits
from minise.methods.build import build, complete, make_variants
from minise.methods.first_trials import FirstTrials, group_records
from minise.methods.registry import METHODS, OFFERED, Variant, split_methods
from minise.methods.rotations import rotations, tokens_so_far
from minise.methods.sample import Sample
from minise.names import ENGINES
from tests.support.tiny import FAMILIES, load_tiny

QUESTION = Question(
    "Which is a metal?", ["oak", "wren", "zinc", "silk", "rain", "salt", "wool", "clay"], answer=2
)
OTHER = Question("Which one flies?", ["eel", "cat", "owl", "ant", "yak"], answer=2)
SIZES = {"group_size": 3, "trials": 4}


@pytest.fixture(scope="module", params=FAMILIES)
def lm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return load_tiny(tmp_path_factory.mktemp(request.param), FAMILIES[request.param])


def ask(
    lm: LanguageModel, method: str, question: Question, engine: str = "tree", **settings: Any
) -> torch.Tensor:
    variant = Variant("x", method, settings, engine)
    return ask_method(lm, build(variant), question, 3, variant.engine).probabilities


def plan(
    lm: LanguageModel, method: str, question: Question, seed: int = 3, **settings: Any
) -> Plan:
    made: Plan = build(Variant("x", method, settings)).plan(lm, question, seed)
    return made


def test_standard_and_self_ensemble_are_the_public_functions(lm: LanguageModel) -> None:
    assert torch.equal(ask(lm, "standard", QUESTION), standard(lm, QUESTION).probabilities)
    p = ask(lm, "self-ensemble", QUESTION, **SIZES)
    assert torch.equal(p, self_ensemble(lm, QUESTION, 3, 4, seed=3).probabilities)
    p = ask(lm, "self-ensemble", QUESTION, "separate", **SIZES, null_option=False)
    expected = self_ensemble(lm, QUESTION, 3, 4, 3, "separate", null_option=False)
    assert torch.equal(p, expected.probabilities)


class TestTheAblations:
    @pytest.mark.parametrize("method", ["without-mask", "without-positions"])
    def test_they_are_the_packed_run_that_verify_finds_different(
        self, lm: LanguageModel, method: str
    ) -> None:
        """By how much, as `minise verify` says it: the largest change of a label probability."""
        sizes = {"group_size": 3, "trials": 2}
        whole = plan(lm, "self-ensemble", QUESTION, **sizes)
        report = verify(lm, whole)
        packed = [row.softmax(0) for row in label_logits(lm, whole, "dense")]
        rows = label_logits(lm, plan(lm, method, QUESTION, **sizes))
        largest = max(
            float((row.softmax(0) - p).abs().max()) for row, p in zip(rows, packed, strict=True)
        )
        expected = report.ablations[method.replace("-", "_")].probabilities
        assert largest == pytest.approx(expected, abs=1e-9)
        assert largest > 1e-3

    def test_they_are_packed_whatever_the_engine(self, lm: LanguageModel) -> None:
        for method in ("without-mask", "without-positions"):
            each = [ask(lm, method, QUESTION, engine, **SIZES) for engine in ENGINES]
            assert all(torch.equal(each[0], p) for p in each)

    def test_they_work_on_a_checkpoint_folder(self, tmp_path: Path) -> None:
        """In float32 too, the dtype of evaluations."""
        lm = load_tiny(tmp_path, FAMILIES["llama"], dtype=torch.float32)
        for method in ("without-mask", "without-positions"):
            p = ask(lm, method, QUESTION, **SIZES)
            assert float(p.sum()) == pytest.approx(1)

    def test_a_mask_beyond_the_memory_is_refused_before_it_is_built(
        self, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("minise.engines.free_bytes", lambda device: 1000)
        for method in ("without-mask", "without-positions"):
            with pytest.raises(InputError, match="packed tokens need a mask"):
                plan(lm, method, QUESTION, **SIZES)


class TestRotations:
    def test_cyclic_is_the_mean_over_all_rotations_of_the_question(self, lm: LanguageModel) -> None:
        p = ask(lm, "cyclic", OTHER)
        K = len(OTHER.choices)
        expected = torch.zeros(K, dtype=torch.float64)
        for start in range(K):
            order = [(start + i) % K for i in range(K)]
            turned = Question(OTHER.text, [OTHER.choices[i] for i in order])
            expected[order] += standard(lm, turned, engine="separate").probabilities / K
        torch.testing.assert_close(p, expected, rtol=0, atol=1e-10)

    def test_over_each_k_of_them_every_choice_stands_once_under_every_label(self) -> None:
        groups = rotations(OTHER, 15, 0)
        for block in (groups[:5], groups[5:10], groups[10:]):
            assert all(sorted(column) == [0, 1, 2, 3, 4] for column in zip(*block, strict=True))
        assert groups[0] == (0, 1, 2, 3, 4)
        assert groups[5:10] != groups[10:]

    @pytest.mark.parametrize(("m", "trials"), [(4, 20), (2, 3), (8, 1)])
    def test_matched_ones_take_the_ensembles_tokens(
        self, lm: LanguageModel, m: int, trials: int
    ) -> None:
        sizes = {"group_size": m, "trials": trials}
        tokens = {
            method: plan(lm, method, QUESTION, 0, **sizes).tokens("tree")
            for method in ("standard", "self-ensemble", "cyclic-matched")
        }
        distance = abs(tokens["cyclic-matched"] - tokens["self-ensemble"])
        assert distance <= tokens["standard"]

    def test_one_more_or_one_fewer_is_no_nearer(self, lm: LanguageModel) -> None:
        budget = plan(lm, "self-ensemble", QUESTION, **SIZES).tokens("tree")
        matched = plan(lm, "cyclic-matched", QUESTION, **SIZES)
        count = len(matched.prompts)
        many = rotations(QUESTION, count + 1, 3)
        assert matched.groups.flat == many[:count]
        own = abs(matched.tokens("tree") - budget)
        fewer = replace(matched, prompts=matched.prompts[:-1])
        assert own <= abs(fewer.tokens("tree") - budget)


class TrunkOnly(LanguageModel):
    """A model that merges what all prompts share and no more, as one that the library runs."""

    def counted_as(self, engine: str) -> str:
        return "dense" if engine == "tree" else engine


class TestTokens:
    @pytest.mark.parametrize("method", ["cyclic-matched", "permutations", "league", "knockout"])
    def test_those_that_are_matched_are_those_that_the_model_runs(
        self, lm: LanguageModel, method: str
    ) -> None:
        model = TrunkOnly(lm.name, lm.config, lm.decoder, lm.tokenizer)
        sizes: dict[str, Any] = {"group_size": 4, "trials": 20}
        if method == "league":  # it has 14 rounds only
            sizes |= {"trials": 9, "matched": True}
        budget = plan(
            model, "self-ensemble", QUESTION, group_size=4, trials=sizes["trials"]
        ).tokens("dense")
        if method == "knockout":  # of the 7 matches of a bracket, 4 are in its first round
            budget = round(budget * 4 / 7)
        matched, merged = (plan(one, method, QUESTION, **sizes) for one in (model, lm))
        trial = sum(map(len, matched.branches[: len(matched.groups.trials[0])]))
        assert abs(matched.tokens("dense") - budget) <= trial
        assert abs(merged.tokens("dense") - budget) > trial

    def test_they_are_those_that_the_engine_runs(self, lm: LanguageModel) -> None:
        whole = plan(lm, "self-ensemble", QUESTION, **SIZES)
        counts = token_counts(whole.prefix, whole.branches)
        assert {engine: whole.tokens(engine) for engine in ENGINES} == counts
        for method in ("without-mask", "without-positions"):
            ablated = plan(lm, method, QUESTION, **SIZES)
            assert {ablated.tokens(engine) for engine in ENGINES} == {counts["dense"]}

    @pytest.mark.parametrize("engine", ENGINES)
    def test_so_far_they_are_those_of_the_prompts_so_far(
        self, lm: LanguageModel, engine: str
    ) -> None:
        whole = plan(lm, "self-ensemble", QUESTION, group_size=2, trials=5)
        expected = [
            token_counts(whole.prefix, whole.branches[:count])[engine]
            for count in range(1, len(whole.prompts) + 1)
        ]
        assert tokens_so_far(whole, engine) == expected

    def test_so_far_they_are_those_of_a_layout_of_its_own(self, lm: LanguageModel) -> None:
        ablated = plan(lm, "without-mask", QUESTION, **SIZES)
        packed = pack(ablated.prefix, ablated.branches)
        assert tokens_so_far(ablated, "separate") == [int(end) + 1 for end in packed.ends]


class TestFirstTrials:
    def sample(self, lm: LanguageModel, engine: str, trials: int, **settings: Any) -> Sample:
        """A run with this many trials, as `evaluate` keeps it."""
        asked = plan(lm, "self-ensemble", QUESTION, group_size=3, trials=trials, **settings)
        method = build(Variant("x", "self-ensemble"))
        answer: Answer = method.answer(asked, label_logits(lm, asked, engine))
        return Sample(
            id="q",
            seed=3,
            question_hash=QUESTION.content_hash,
            answer=2,
            prediction=answer.prediction,
            probabilities=answer.probabilities.tolist(),
            scores=answer.scores.tolist(),
            tokens=asked.tokens(engine),
            seconds=1.0,
            groups=json.loads(json.dumps(group_records(asked, answer, engine))),
        )

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("settings", [{}, {"null_option": False}, {"grouping": "independent"}])
    def test_they_are_a_run_of_that_many(
        self, lm: LanguageModel, engine: str, settings: dict[str, Any]
    ) -> None:
        most = self.sample(lm, engine, 12, **settings)
        for trials in (1, 2, 5, 11, 12):
            method = FirstTrials("most", group_size=3, trials=trials)
            assert method.needs == ("most",)
            (short,) = method.fit({"most": [most]})
            alone = self.sample(lm, engine, trials, **settings)
            assert short.tokens == alone.tokens
            assert short.prediction == alone.prediction
            assert short.scores == pytest.approx(alone.scores, abs=1e-12, nan_ok=True)
            assert short.probabilities == pytest.approx(alone.probabilities, abs=1e-12, nan_ok=True)
            assert (short.id, short.seed, short.answer) == ("q", 3, 2)
            assert short.seconds is short.groups is short.logits is None
        assert short.probabilities == most.probabilities  # all of them: to the last bit

    def test_more_than_there_are_is_one_line(self, lm: LanguageModel) -> None:
        most = self.sample(lm, "tree", 2)
        for samples in ([most], [replace(most, groups=None)]):
            with pytest.raises(InputError, match="most has fewer than 3 trials"):
                FirstTrials("most", trials=3).fit({"most": samples})


class TestVariants:
    def test_an_unknown_method_or_engine_is_named(self) -> None:
        with pytest.raises(InputError, match='"ensemble" is unknown; use some of standard'):
            Variant("x", "ensemble")
        with pytest.raises(InputError, match='"fast" is unknown'):
            Variant("x", "standard", engine="fast")
        with pytest.raises(InputError, match='"a/b" is no name'):
            Variant("a/b", "standard")

    def test_every_method_says_what_it_is_and_has_its_name(self) -> None:
        for name, (_, about) in METHODS.items():
            assert about
            settings = {"of": "another"} if name == "first-trials" else {}
            assert build(Variant("x", name, settings)).name == name

    def test_it_is_json(self) -> None:
        for name in OFFERED:
            variant = complete(Variant(name, name), {})
            assert Variant(**json.loads(json.dumps(asdict(variant)))) == variant

    def test_it_states_every_setting_that_its_method_uses_and_no_other(self) -> None:
        options = {"group_size": 3, "trials": 7, "preset": "paper", "grouping": None, "folds": 4}
        made = make_variants(["standard", "self-ensemble", "cyclic", "dirichlet"], options, "dense")
        assert {variant.name: variant.settings for variant in made} == {
            "standard": {"preset": "paper"},
            "self-ensemble": {
                "group_size": 3,
                "trials": 7,
                "grouping": None,
                "null_option": None,
                "preset": "paper",
            },
            "cyclic": {"preset": "paper"},
            "dirichlet": {"folds": 4},
        }
        assert {variant.engine for variant in made} == {"dense"}

    def test_its_own_settings_come_before_options(self) -> None:
        own = Variant("m2", "self-ensemble", {"group_size": 2, "grouping": "exact"})
        found = complete(own, {"group_size": 5, "trials": 3, "grouping": "balanced", "folds": 2})
        assert found.settings == {
            "group_size": 2,
            "trials": 3,
            "grouping": "exact",
            "null_option": None,
            "preset": "paper",
        }
        assert build(found).trials == 3

    def test_what_fitted_methods_need_comes_in_front(self) -> None:
        names = [variant.name for variant in make_variants(["cyclic", "dirichlet"], {}, "tree")]
        assert names == ["standard", "cyclic", "dirichlet"]
        names = [variant.name for variant in make_variants(["dirichlet", "standard"], {}, "tree")]
        assert names == ["dirichlet", "standard"]

    def test_names_that_cannot_run_are_refused(self) -> None:
        for name in ("magic", "first-trials", "grouping-study", ""):
            with pytest.raises(InputError, match=f'method "{name}" is unknown; use some of'):
                make_variants(["standard", name], {}, "tree")
        for named in (["standard", "cyclic", "standard"], ["cyclic()", "cyclic"]):
            with pytest.raises(InputError, match="names a method twice"):
                make_variants(named, {}, "tree")

    def test_settings_stand_in_parentheses(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("g.py").write_text("def mine(*given): ...")
        text = "cyclic,self-ensemble(group-size=2, grouping=./g.py:mine),dirichlet(folds=3)"
        named = split_methods(text)
        assert named == text.replace("),", ")|").replace("cyclic,", "cyclic|").split("|")
        options = {"group_size": 5, "trials": 9}
        standard, cyclic, ours, dirichlet = make_variants(named, options, "tree")
        assert (standard.name, cyclic.name) == ("standard", "cyclic")
        assert ours.name == "self-ensemble(group_size=2,grouping=._g.py_mine)"
        assert ours.settings["grouping"] == "./g.py:mine"
        assert (ours.settings["group_size"], ours.settings["trials"]) == (2, 9)
        assert (dirichlet.name, dirichlet.settings) == ("dirichlet(folds=3)", {"folds": 3})
        for word, value in {"true": True, "false": False}.items():
            (one,) = make_variants([f"self-ensemble(null_option={word})"], {}, "tree")
            assert one.settings["null_option"] is value

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("self-ensemble(n=3)", 'has no setting "n"; it has group_size, trials, grouping'),
            ("standard(trials=3)", 'standard has no setting "trials"; it has preset'),
            ("until-decided(alpha=x)", 'alpha="x" is wrong; give a number'),
            ("self-ensemble(trials=many)", 'trials="many" is wrong; give a whole number'),
            ("self-ensemble(trials=2.5)", "trials=2.5 is wrong; give a whole number"),
            ("self-ensemble(trials=true)", "trials=true is wrong; give a whole number"),
            ("self-ensemble(trials=NaN)", 'trials="NaN" is wrong; give a whole number'),
            ("self-ensemble(null_option=no)", 'null_option="no" is wrong; give true or false'),
            ("self-ensemble(preset=7)", "preset=7 is wrong; give text"),
            ("self-ensemble(trials)", "sets nothing, or what is set already"),
            ("self-ensemble(trials=)", "sets nothing, or what is set already"),
            ("self-ensemble(trials=1,trials=2)", "sets nothing, or what is set already"),
            ("self-ensemble(grouping=[1])", '"[1]" must be text, a number, true or false'),
            ("self-ensemble(grouping=null)", '"null" must be text, a number, true or false'),
            ("self-ensemble(trials=3", 'method "self-ensemble(trials=3" is unknown'),
            ("self-ensemble(trials=" + "1" * 200 + ")", "is no name for a method"),
            ("self-ensemble(grouping=worst)", 'grouping "worst" is unknown; use one of random'),
            ("standard(preset=x)", 'preset "x" is unknown; use one of paper, authors-code'),
        ],
    )
    def test_settings_of_no_use_are_one_line(self, text: str, said: str) -> None:
        with pytest.raises(InputError) as error:
            make_variants(split_methods(text), {}, "tree")
        assert said in str(error.value)
        assert len(str(error.value)) < 350


def test_a_prompt_of_all_choices_is_the_oracle_of_standard_inference(lm: LanguageModel) -> None:
    asked = plan(lm, "standard", OTHER)
    (prompt,) = asked.prompts
    rows = branch_logits(lm, [*asked.prefix, *prompt.ids], [[]], "separate", prompt.label_ids)
    expected = rows[0].double().softmax(0)
    torch.testing.assert_close(ask(lm, "standard", OTHER), expected, rtol=0, atol=1e-12)
