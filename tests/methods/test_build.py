"""From a variant, or from what the user writes, to a method with all its settings."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from minise import InputError
from minise.methods.build import build, complete, make_variants
from minise.methods.registry import METHODS, OFFERED, Variant, split_names


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
        for name in ("magic", "first-trials", ""):
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
        named = split_names(text)
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
    def test_settings_of_no_use_are_one_line(self, text: str, said: str) -> None:
        with pytest.raises(InputError) as error:
            make_variants(split_names(text), {}, "tree")
        assert said in str(error.value)
        assert len(str(error.value)) < 350
