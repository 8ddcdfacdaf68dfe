"""Methods as the user writes them, and what is refused."""

import json
from pathlib import Path

import pytest

from minise import InputError, LocalModel, SelfEnsemble
from minise.commands.cli import main
from minise.lab.decisions import TRIALS, method_named
from minise.lab.methods.calibration import Dirichlet
from minise.lab.methods.fitted import Fitted
from minise.lab.methods.groupings import all_ordered_groups
from minise.lab.methods.registry import METHODS, make_method, make_methods, split_names
from minise.loading.plugin import find_object
from minise.method import Method
from tests.reference.support.questions import QUESTION

OWN = """
from dataclasses import dataclass
from minise import Groups, Standard
@dataclass(frozen=True)
class Mine(Standard):
    name = "mine"
    x: int = 3
    share: float = 0.5
def halves(k, m, trials, seed, question_id):
    return Groups((((0, 1), tuple(range(2, k))),))
"""

THREE = """
from dataclasses import dataclass
from minise import SelfEnsemble
@dataclass(frozen=True)
class Three(SelfEnsemble):
    name = "three"
    group_size: int = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN)
    return tmp_path


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_a_class_of_that_name(name: str) -> None:
    cls = find_object(METHODS[name])
    assert issubclass(cls, Method) != issubclass(cls, Fitted)
    assert cls.name == name
    column, made = make_method(name, {})
    assert column == name
    assert type(made) is cls


def test_a_class_of_ones_own_keeps_the_default_that_it_states_unless_the_option_is_given(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In ask, where it would be 4, in decide, and in eval, where it would be the data set's."""
    Path("three.py").write_text(THREE)
    asked = ["ask", "--method", "./three.py:Three", "--json"]
    run = ["eval", "--task", "miniature", "--limit", "1", "--method", "./three.py:Three"]
    for given, expected in (([], 3), (["--group-size", "4"], 4)):
        assert main([*asked, *given]) == 0
        group = json.loads(capsys.readouterr().out)["groups"][0]
        assert len(group["choices"]) == expected
        folder = own / f"run-{expected}"
        assert main([*run, *given, "-o", str(folder)]) == 0
        [task] = json.loads((folder / "run.json").read_text())["tasks"].values()
        settings = task["methods"]["three"]["settings"]
        assert (settings["group_size"], settings["trials"]) == (expected, 20)
        capsys.readouterr()
    made = method_named("./three.py:Three", {})
    assert (made.group_size, made.trials) == (3, TRIALS)


def test_settings_are_written_in_parentheses(own: Path) -> None:
    text = "cyclic,self-ensemble(group-size=2, grouping=./mine.py:halves),dirichlet(folds=3)"
    named = split_names(text)
    assert named == text.replace("),", ")|").replace("cyclic,", "cyclic|").split("|")
    methods = make_methods(named, {"group_size": 5, "trials": 9, "folds": 2})
    ours = "self-ensemble(group_size=2,grouping=./mine.py:halves)"
    assert list(methods) == ["standard", "cyclic", ours, "dirichlet(folds=3)"]
    ensemble = methods[ours]
    assert isinstance(ensemble, SelfEnsemble)
    assert (ensemble.group_size, ensemble.trials) == (2, 9)  # its own come before options
    assert ensemble.grouping(5, 2, 1, 0, "").flat == [(0, 1), (2, 3, 4)]
    assert methods["dirichlet(folds=3)"] == Dirichlet(folds=3)
    (one,) = make_methods(["self-ensemble(null_option=false,grouping=exact)"]).values()
    assert isinstance(one, SelfEnsemble)
    assert (one.null_option, one.grouping) == (False, all_ordered_groups)


def test_a_users_own_class_is_a_method(own: Path, qwen: LocalModel) -> None:
    name, mine = make_method("./mine.py:Mine(x=4,share=1)", {"x": 9, "trials": 3})
    assert name == "mine(x=4,share=1)"
    assert isinstance(mine, Method)
    assert vars(mine)["x"] == 4
    _, asked = mine.prompts(qwen, QUESTION)
    assert len(asked.branches) == 1


def test_methods_that_a_fitted_method_needs_are_added_in_front() -> None:
    assert list(make_methods(["cyclic", "dirichlet"])) == ["standard", "cyclic", "dirichlet"]
    assert list(make_methods(["dirichlet", "standard"])) == ["dirichlet", "standard"]
    long = "first-trials(trials=2)"
    assert list(make_methods([long], {"trials": 9})) == ["self-ensemble", long]


@pytest.mark.parametrize(
    ("texts", "offending"),
    [
        (["standrad"], "standrad"),
        (["standrad"], "use one of standard, self-ensemble"),
        (["without-mask"], "--engine without-mask"),
        (["without-positions"], "--engine without-positions"),
        ([""], '""'),
        (["standard", "cyclic", "standard"], "standard"),
        (["cyclic()", "cyclic"], "cyclic"),
        (["self-ensemble(n=3)"], '"n"'),
        (["standard(trials=3)"], "trials"),
        (["presence(trials=3)"], "trials"),
        (["self-ensemble(trials=many)"], "trials"),
        (["self-ensemble(trials=2.5)"], "trials"),
        (["self-ensemble(null_option=1)"], "null_option"),
        (["self-ensemble(trials=nan)"], "trials"),
        (["self-ensemble(trials)"], "trials"),
        (["self-ensemble(trials=1,trials=2)"], "trials"),
        (["self-ensemble(trials=)"], "trials"),
        (["self-ensemble(grouping=best)"], "best"),
        (["self-ensemble(grouping=./absent.py:mine)"], "absent.py"),
        (["self-ensemble(trials=(1))"], "trials"),
        (["./absent.py:Mine"], "absent.py"),
        (["./mine.py:Absent"], "Absent"),
        (["./mine.py:Mine(y=1)"], '"y"'),
        (["./mine.py:halves"], "is no method"),
        (["json:JSONDecoder"], "is no method"),
        (["self-ensemble(template=5)"], "self-ensemble: template=5"),
        (["self-ensemble(template=null)"], "self-ensemble: template=null"),
        (["self-ensemble(grouping=7)"], "self-ensemble: grouping=7"),
        (["self-ensemble(group_size=0)"], "self-ensemble: group size 0"),
        (["authors-code(trials=0)"], "authors-code: number of trials 0"),
        (["authors-code(dtype=foo)"], 'authors-code: dtype "foo"'),
        (["authors-code(dtype=int64)"], 'authors-code: dtype "int64"'),
        (["authors-code(null_option=no)"], 'authors-code: null_option is "no"'),
        (["authors-code(last_group_early=x)"], 'authors-code: last_group_early is "x"'),
        (["authors-code(last_group_early=-1)"], "authors-code: last_group_early is -1"),
        (["full-list(orders=0)"], "full-list: number of orders 0"),
        (["cyclic(mean=odd)"], 'cyclic: mean "odd"'),
        (["cloze(score=odd)"], 'cloze: score "odd"'),
        (["cot(max_new_tokens=0)"], "cot: max_new_tokens is 0"),
        (["dirichlet(folds=1)"], "dirichlet: folds is 1"),
        (["first-trials(trials=0)"], "first-trials: trials is 0"),
    ],
    ids=str,
)
def test_it_is_refused_in_one_line_that_names_it(
    own: Path, texts: list[str], offending: str
) -> None:
    with pytest.raises(InputError) as caught:
        make_methods(texts)
    assert offending in str(caught.value)
    assert "\n" not in str(caught.value)
