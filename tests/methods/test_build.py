"""A variant, or a method as the user writes it, becomes a method with all its settings."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path

import pytest

from minise import InputError, Question, load
from minise.method import Method
from minise.methods.build import build, build_asking, complete, make_variants
from minise.methods.registry import METHODS, OFFERED, Variant, split_names
from tests.support.verified import SHIPPED

METALS = Question(
    "Which is a metal?", ["oak", "wren", "zinc", "silk", "rain", "salt", "wool"], id="a"
)
DRAWN = {
    "self-ensemble": "4d07ac9810be4b75",
    "permutations": "b2c1280f7886fa10",
}


class TestVariants:
    def test_an_unknown_method_or_engine_is_named(self) -> None:
        with pytest.raises(InputError, match='"ensemble" is unknown; use some of standard'):
            Variant("x", "ensemble")
        with pytest.raises(InputError, match='"fast" is unknown'):
            Variant("x", "standard", engine="fast")
        with pytest.raises(InputError, match='"a/b" is no name'):
            Variant("a/b", "standard")

    def test_every_method_has_a_description_and_its_name(self) -> None:
        for name, (_, about) in METHODS.items():
            assert about
            settings = {"of": "another"} if name == "first-trials" else {}
            assert build(Variant("x", name, settings)).name == name

    def test_the_settings_of_a_variant_are_json(self) -> None:
        for name in OFFERED:
            variant = complete(Variant(name, name), {})
            assert Variant(**json.loads(json.dumps(asdict(variant)))) == variant

    def test_a_variant_states_exactly_the_settings_that_its_method_uses(self) -> None:
        options = {"group_size": 3, "trials": 7, "preset": "paper", "grouping": None, "folds": 4}
        variants = make_variants(
            ["standard", "self-ensemble", "cyclic", "dirichlet"], options, "dense"
        )
        assert {variant.name: variant.settings for variant in variants} == {
            "standard": {"preset": "paper"},
            "self-ensemble": {
                "group_size": 3,
                "trials": 7,
                "grouping": None,
                "null_option": None,
                "preset": "paper",
            },
            "cyclic": {"preset": "paper"},
            "dirichlet": {"folds": 4, "of": "standard"},
        }
        assert {variant.engine for variant in variants} == {"dense"}

    def test_without_a_seed_a_method_draws_as_with_seed_0(self) -> None:
        lm = load(SHIPPED)
        for name in OFFERED:
            method = build(Variant(name, name, {"chat": False} if name == "reasoning" else {}))
            if isinstance(method, Method):
                plans = [method.plan(lm, METALS), method.plan(lm, METALS, 0)]
                texts = [[prompt.text for prompt in plan.prompts] for plan in plans]
                assert texts[0] == texts[1]

    def test_a_seed_draws_the_same_prompts_in_every_version(self) -> None:
        """So that a run can be repeated. These hashes of the prompts change with a draw."""
        lm, hashes = load(SHIPPED), {}
        for name in DRAWN:
            plan = build(Variant(name, name)).plan(lm, METALS, 1)
            texts = json.dumps([prompt.text for prompt in plan.prompts])
            hashes[name] = hashlib.sha256(texts.encode()).hexdigest()[:16]
        assert hashes == DRAWN

    def test_a_variants_settings_come_before_options(self) -> None:
        variant = Variant("m2", "self-ensemble", {"group_size": 2, "grouping": "exact"})
        completed = complete(
            variant, {"group_size": 5, "trials": 3, "grouping": "independent", "folds": 2}
        )
        assert completed.settings == {
            "group_size": 2,
            "trials": 3,
            "grouping": "exact",
            "null_option": None,
            "preset": "paper",
        }
        assert build(completed).trials == 3

    @pytest.mark.parametrize(
        "default",
        # In Python 3.10 a dataclass itself refuses a default that it cannot print.
        [
            "float('inf')",
            "-float('nan')",
            "10 ** 5000" if sys.version_info > (3, 11) else "1e309",
            "None",
        ],
    )
    def test_a_variant_holds_only_what_json_can_hold(
        self, default: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("own.py").write_text(
            "from dataclasses import dataclass\n"
            "@dataclass\n"
            f"class Mine:\n    name = 'mine'\n    x: object = {default}\n    y: int = 3\n"
            "    def plan(self, *given): ...\n"
        )
        (variant,) = make_variants(["./own.py:Mine"], {}, "tree")
        held = {"x": None} if default == "None" else {}  # it takes its default there
        assert variant.settings == {**held, "y": 3}
        for value in ("1e999", "-1e999"):
            with pytest.raises(InputError, match="is too large; give a finite number"):
                make_variants([f"./own.py:Mine(x={value})"], {}, "tree")

    def test_no_method_takes_a_number_that_is_not_finite(self) -> None:
        for name in OFFERED:
            method = build(Variant("x", name))
            for setting in fields(method) if is_dataclass(method) else ():
                for value in ("1e999", "-1e999", "nan", "inf", "-Infinity", "1" + "0" * 400):
                    if setting.type != "str":  # a word
                        with pytest.raises(InputError) as caught:
                            make_variants([f"{name}({setting.name}={value})"], {}, "tree")
                        assert len(str(caught.value)) < 400

    def test_methods_that_a_fitted_method_needs_are_added_in_front(self) -> None:
        names = [variant.name for variant in make_variants(["cyclic", "dirichlet"], {}, "tree")]
        assert names == ["standard", "cyclic", "dirichlet"]
        names = [variant.name for variant in make_variants(["dirichlet", "standard"], {}, "tree")]
        assert names == ["dirichlet", "standard"]

    def test_names_that_cannot_run_are_refused(self) -> None:
        for name in ("magic", "first-trials", ""):
            with pytest.raises(InputError, match=f'method "{name}" is unknown; use some of'):
                make_variants(["standard", name], {}, "tree")
        for named in (["standard", "cyclic", "standard"], ["cyclic()", "cyclic"]):
            with pytest.raises(InputError, match="names a method twice"):
                make_variants(named, {}, "tree")

    def test_a_fitted_method_is_no_method_that_asks(self) -> None:
        with pytest.raises(InputError, match="dirichlet is fitted on other methods"):
            build_asking(Variant("d", "dirichlet", {}))

    def test_settings_are_written_in_parentheses(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("g.py").write_text("def mine(*given): ...")
        text = "cyclic,self-ensemble(group-size=2, grouping=./g.py:mine),dirichlet(folds=3)"
        named = split_names(text)
        assert named == text.replace("),", ")|").replace("cyclic,", "cyclic|").split("|")
        options = {"group_size": 5, "trials": 9}
        standard, cyclic, ours, dirichlet = make_variants(named, options, "tree")
        assert (standard.name, cyclic.name) == ("standard", "cyclic")
        assert ours.name == "self-ensemble(group_size=2,grouping=._g.py_mine)"
        assert ours.settings["grouping"] == "./g.py:mine"
        assert (ours.settings["group_size"], ours.settings["trials"]) == (2, 9)
        assert dirichlet.name == "dirichlet(folds=3)"
        assert dirichlet.settings == {"folds": 3, "of": "standard"}
        for word, value in {"true": True, "false": False}.items():
            (one,) = make_variants([f"self-ensemble(null_option={word})"], {}, "tree")
            assert one.settings["null_option"] is value

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("self-ensemble(n=3)", 'has no setting "n"; it has group_size, trials, grouping'),
            ("standard(trials=3)", 'standard has no setting "trials"; it has preset'),
            ("self-ensemble(trials=many)", 'trials="many" is wrong; give a whole number'),
            ("self-ensemble(trials=2.5)", "trials=2.5 is wrong; give a whole number"),
            ("self-ensemble(trials=true)", "trials=true is wrong; give a whole number"),
            ("self-ensemble(trials=NaN)", 'trials="NaN" is wrong; give a whole number'),
            ("self-ensemble(null_option=no)", 'null_option="no" is wrong; give true or false'),
            ("vector-scaling(folds=1e999)", "is too large; give a finite number"),
            ("vector-scaling(folds=-1e999)", "is too large; give a finite number"),
            ("self-ensemble(preset=7)", "preset=7 is wrong; give text"),
            ("self-ensemble(trials)", "is not a setting, or it is there twice"),
            ("self-ensemble(trials=)", "is not a setting, or it is there twice"),
            ("self-ensemble(trials=1,trials=2)", "is not a setting, or it is there twice"),
            ("self-ensemble(grouping=[1])", '"[1]" must be text, a number, true or false'),
            ("self-ensemble(grouping=null)", '"null" must be text, a number, true or false'),
            ("self-ensemble(trials=3", 'method "self-ensemble(trials=3" is unknown'),
            ("self-ensemble(trials=" + "1" * 200 + ")", "is no name for a method"),
            ("self-ensemble(grouping=worst)", 'grouping "worst" is unknown; use one of random'),
            ("standard(preset=x)", 'preset "x" is unknown; use one of paper, authors-code'),
        ],
    )
    def test_unusable_settings_are_refused_in_one_line(self, text: str, message: str) -> None:
        with pytest.raises(InputError) as error:
            make_variants(split_names(text), {}, "tree")
        assert message in str(error.value)
        assert len(str(error.value)) < 350
