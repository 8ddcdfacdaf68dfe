"""Groups are partitions, the same on every machine, and depend on nothing but what they should."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import permutations
from math import exp, factorial, sqrt
from pathlib import Path
from statistics import mean, stdev, variance

import pytest

from minise import InputError
from minise.grouping import MOST_GROUPS, Group, Grouping, Groups
from minise.grouping import make_groups as make
from minise.groupings.registry import GROUPINGS, grouping_named


def make_groups(
    K: int, m: int, trials: int, seed: int, key: str, grouping: str | Grouping = "random"
) -> Groups:
    return make(K, m, trials, seed, key, grouping_named(grouping))


def flat(*arguments: object, **options: object) -> list[list[int]]:
    """The groups of all trials, one after the other."""
    return [list(group) for group in make_groups(*arguments, **options).flat]


def exact_groups(k: int, m: int) -> list[tuple[Group, float]]:
    found = make_groups(k, m, 0, 0, "", "exact")
    assert found.weights is not None
    return list(zip(found.flat, found.weights, strict=True))


def test_the_first_groups_never_change() -> None:
    """A golden: other groups than these, on any platform or version, would change every result."""
    assert flat(8, 4, 2, seed=0, key="built-in") == BUILT_IN
    assert flat(10, 4, 1, seed=7, key="q-3") == Q_3
    assert flat(8, 4, 2, seed=0, key="built-in", grouping="balanced") == BALANCED


BUILT_IN = [[5, 4, 0, 2], [1, 3, 7, 6], [6, 5, 1, 0], [3, 7, 4, 2]]
BALANCED = [[7, 0, 6, 2], [5, 4, 3, 1], [6, 7, 4, 5], [2, 3, 1, 0]]
Q_3 = [[7, 0, 6, 5], [2, 9, 4, 3], [8, 1]]


@pytest.mark.parametrize("grouping", ["random", "balanced"])
@pytest.mark.parametrize(
    ("k", "m"), [(8, 4), (10, 4), (5, 2), (1, 4), (6, 1), (6, 6), (3, 4), (2, 1)]
)
def test_every_trial_is_a_partition_into_consecutive_groups_of_m(
    k: int, m: int, grouping: str
) -> None:
    trials = 7
    groups = make_groups(k, m, trials, seed=3, key="x", grouping=grouping)
    per_trial = -(-k // m)
    assert len(groups.trials) == trials
    assert len(groups.flat) == trials * per_trial
    for trial in groups.trials:
        assert sorted(choice for group in trial for choice in group) == list(range(k))
        assert [len(group) for group in trial[:-1]] == [m] * (per_trial - 1)
        assert len(trial[-1]) == (k - 1) % m + 1


def test_a_trial_depends_on_seed_question_and_number_alone() -> None:
    few = flat(8, 4, 3, seed=0, key="x")
    assert flat(8, 4, 9, seed=0, key="x")[: len(few)] == few
    assert flat(8, 4, 3, seed=1, key="x") != few
    assert flat(8, 4, 3, seed=0, key="y") != few
    # One permutation whatever the group size: m only says where it is cut.
    pairs = [choice for group in flat(8, 2, 3, seed=0, key="x") for choice in group]
    assert pairs == [choice for group in few for choice in group]


def test_every_ordered_group_is_equally_likely() -> None:
    n = 12_000
    counts = Counter(tuple(flat(4, 2, 1, seed=seed, key="u")[0]) for seed in range(n))
    pairs = list(permutations(range(4), 2))
    assert set(counts) == set(pairs)
    expected = n / len(pairs)
    chi_square = sum((counts[pair] - expected) ** 2 / expected for pair in pairs)
    assert chi_square < 31.3  # 99.9% of the chi-square distribution with 11 degrees of freedom


def balanced(k: int, m: int, trials: int, seed: int) -> list[list[int]]:
    return flat(k, m, trials, seed, "u", "balanced")


@pytest.mark.parametrize(
    ("k", "m", "listed", "critical"),
    # 99.999% of the chi-square distribution with 11, 19, 4 and 55 degrees of freedom: of some
    # twenty groups, none is beyond it by chance.
    [(4, 2, 2, 43.2), (5, 2, 2, 57.4), (5, 2, 1, 28.5), (8, 4, 2, 111.6)],
)
def test_every_ordered_group_of_a_balanced_trial_is_equally_likely(
    k: int, m: int, listed: int, critical: float
) -> None:
    """All groups of m, and the smaller one, at every place in three trials, over seeds and over
    questions; of 8 choices in groups of 4, the first two labels."""
    n = 4000
    draws = [balanced(k, m, 3, seed) for seed in range(n // 2)]
    draws += [flat(k, m, 3, 0, f"q{i}", "balanced") for i in range(n // 2)]
    cells = list(permutations(range(k), listed))
    places = [i for i, g in enumerate(draws[0]) if len(g) == (listed if listed < 2 else m)]
    assert places
    for place in places:
        counts = Counter(tuple(groups[place][:listed]) for groups in draws)
        expected = n / len(cells)
        assert sum((counts[c] - expected) ** 2 / expected for c in cells) < critical


def test_balanced_groups_are_one_design_renamed_by_seed_and_question() -> None:
    groups = balanced(8, 4, 7, seed=0)
    for other in (balanced(8, 4, 7, seed=1), flat(8, 4, 7, 0, "v", "balanced")):
        assert other != groups
        pairs = [
            pair
            for group, renamed in zip(groups, other, strict=True)
            for pair in zip(group, renamed, strict=True)
        ]
        new_name = dict(pairs)
        assert [[new_name[i] for i in group] for group in groups] == other


def test_what_is_known_of_the_groups_is_a_field() -> None:
    """Nobody has to ask a name what it means."""
    known = {
        name: (g.independent, g.complete, g.balance is not None, g.weights is not None)
        for name in GROUPINGS
        for g in [make_groups(6, 3, 5, 0, "x", name)]
    }
    assert known == {
        "random": (True, False, False, False),
        "balanced": (False, False, True, False),
        "independent": (True, False, False, False),
        "exact": (False, True, False, True),
    }


def test_a_function_of_ones_own_is_a_grouping() -> None:
    def halves(k: int, m: int, trials: int, seed: int, question_id: str) -> Groups:
        return Groups((tuple(tuple(range(i, min(i + m, k))) for i in range(0, k, m)),) * trials)

    assert make_groups(5, 3, 2, 0, "x", halves).flat == [(0, 1, 2), (3, 4)] * 2
    with pytest.raises(InputError, match="group size 0"):
        make_groups(5, 0, 2, 0, "x", halves)
    with pytest.raises(InputError, match="no group holds choice 2"):
        make_groups(4, 2, 1, 0, "x", lambda *_: Groups((((0, 1), (3,)),)))


def test_as_many_groups_as_the_limit_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(make_groups(1, 1, MOST_GROUPS, 0, "x").flat) == MOST_GROUPS
    monkeypatch.setattr("minise.groupings.exact.MOST_GROUPS", 25)
    assert len(make_groups(5, 2, 0, 0, "", "exact").flat) == 25
    with pytest.raises(InputError, match="has 30 ordered groups"):
        make_groups(6, 2, 0, 0, "", "exact")


def test_too_many_exact_groups_are_counted_and_refused_at_once() -> None:
    with pytest.raises(InputError, match=r"has 670,442,572,800 ordered groups, over the limit"):
        make_groups(20, 10, 0, 0, "", "exact")
    assert len(make_groups(10, 5, 0, 0, "", "exact").flat) == 30_240 <= MOST_GROUPS


def test_the_renaming_tells_nothing_about_the_random_trials() -> None:
    n = 2400
    same = sum(balanced(4, 4, 1, seed) == flat(4, 4, 1, seed, "u") for seed in range(n))
    assert abs(same - n / 24) < 4 * sqrt(n / 24)


def drawn(*key: object) -> float:
    """Evenly from -1 to 1, the same for the same key."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**31 - 1


def by_group(group: Sequence[int]) -> list[float]:
    """A made-up model to which every order of every group is a case of its own."""
    odds = [exp(2 * drawn(tuple(group), choice)) for choice in group]
    return [x / sum(odds) for x in odds]


def by_mates(group: Sequence[int]) -> list[float]:
    """A made-up model in which each choice is the likelier or unlikelier for each beside it, and
    labels differ."""
    odds = [
        exp(drawn(choice) + drawn("label", label) + sum(drawn(choice, other) for other in group))
        for label, choice in enumerate(group)
    ]
    return [x / sum(odds) for x in odds]


def scores(
    model: Callable[[Sequence[int]], list[float]], k: int, groups: Sequence[Sequence[int]]
) -> list[float]:
    """The mean (Eq. 2)."""
    said: list[list[float]] = [[] for _ in range(k)]
    for group in groups:
        for choice, probability in zip(group, model(group), strict=True):
            said[choice].append(probability)
    return [mean(probabilities) for probabilities in said]


@pytest.mark.parametrize("model", [by_group, by_mates])
@pytest.mark.parametrize(("k", "m", "trials"), [(5, 2, 4), (6, 3, 5), (5, 3, 1)])
def test_balanced_scores_have_the_mean_of_all_partitions(
    k: int, m: int, trials: int, model: Callable[[Sequence[int]], list[float]]
) -> None:
    exact = [0.0] * k
    for group, weight in exact_groups(k, m):
        for choice, probability in zip(group, model(group), strict=True):
            exact[choice] += weight * probability
    known = {tuple(group): model(group) for group, _ in exact_groups(k, m)}
    n = 2000
    runs = [
        scores(lambda group: known[tuple(group)], k, balanced(k, m, trials, seed))
        for seed in range(n)
    ]
    for choice in range(k):
        sampled = [run[choice] for run in runs]
        assert abs(mean(sampled) - exact[choice]) < 4 * stdev(sampled) / sqrt(n)


@pytest.mark.parametrize(
    ("k", "m", "trials", "times"), [(8, 4, 7, 3), (8, 4, 20, 3), (10, 4, 20, 2)]
)
def test_balanced_scores_vary_less(k: int, m: int, trials: int, times: float) -> None:
    """Measured: 4.8, 10.7 and 5.7 times less."""

    def spread(grouping: str) -> float:
        runs = [scores(by_mates, k, flat(k, m, trials, seed, "u", grouping)) for seed in range(60)]
        return mean(variance(run[choice] for run in runs) for choice in range(k))

    assert times * spread("balanced") < spread("random")


def test_independent_draws_are_the_released_codes() -> None:
    """PAPER: 20 draws of 4 of 8 with seed 0 cover A...H 11, 6, 8, 10, 14, 10, 8, 13 times."""
    draws = flat(8, 4, 20, seed=0, key="", grouping="independent")
    assert all(len(set(draw)) == 4 for draw in draws)
    coverage = Counter(choice for draw in draws for choice in draw)
    assert [coverage[choice] for choice in range(8)] == [11, 6, 8, 10, 14, 10, 8, 13]
    assert draws != flat(8, 4, 20, seed=0, key="q", grouping="independent")


@pytest.mark.parametrize(("k", "m"), [(8, 4), (5, 2), (4, 1), (3, 3), (3, 7)])
def test_exact_groups_are_what_partitions_hold_on_average(k: int, m: int) -> None:
    """Over all k! orders: how often each ordered group is cut from one, and no other is."""
    if k > 6:
        assert len(exact_groups(k, m)) == 1680
        return
    cut: Counter[tuple[int, ...]] = Counter()
    for order in permutations(range(k)):
        for start in range(0, k, m):
            cut[order[start : start + m]] += 1
    weights = {tuple(group): weight for group, weight in exact_groups(k, m)}
    assert set(weights) == set(cut)
    for group, times in cut.items():
        assert weights[group] == pytest.approx(times / factorial(k), rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((0, 4, 20, 0, "x"), "no choices"),
        ((8, 0, 20, 0, "x"), "group size 0"),
        ((8, -1, 20, 0, "x"), "group size -1"),
        ((8, 4, 0, 0, "x"), "number of trials 0"),
        ((8, 4, 0, 0, "x", "balanced"), "number of trials 0"),
        (
            (8, 4, 20, 0, "x", "sorted"),
            '"sorted" is unknown; use one of random, balanced, independent, exact',
        ),
        ((8, 4, 25_001, 0, "x"), "25001 trials of 8 choices in groups of 4 are over the limit"),
        ((8, 4, 10**9, 0, "x", "balanced"), "over the limit of 50,000 groups; use fewer trials"),
        ((8, 4, 10**5000, 0, "x"), "over the limit of 50,000 groups"),
        ((201, 4, 1, 0, "x", "balanced"), "for 200 choices at most, not 201; use random"),
        ((200, 200, 1, 0, "x", "exact"), "ordered groups, over the limit of 50,000"),
        ((1000, 999, 1, 0, "x", "exact"), "ordered groups, over the limit of 50,000"),
    ],
)
def test_impossible_groupings_are_refused(arguments: tuple, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        make_groups(*arguments)
    assert len(str(caught.value)) < 300


OWN = """
from minise import Groups


def mine(K, m, trials, seed, question_id):
    return {returned}
"""


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], Groups]:
    """The groups of 4 choices by a function in a file, given what it returns."""

    def make(returned: str) -> Groups:
        path = tmp_path / "mine.py"
        path.write_text(OWN.format(returned=returned))
        return make_groups(4, 2, 3, 0, "x", f"{path}:mine")

    return make


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        ("None", "returned NoneType; it must return Groups"),
        ("[[(0, 1), (2, 3)]]", "returned list; it must return Groups"),
        ("Groups(5)", "trials 5 are no tuples of groups"),
        ("Groups(((0, 1), (2, 3)))", "trials .* are no tuples of groups"),
        ("Groups(())", "number of trials 3 is below 1"),
        ("Groups((((0, 1), (2, 4)),))", r"group \[2, 4\] is wrong; .* ints from 0 to 3"),
        ("Groups((((0, 1), (2, -1)),))", r"group \[2, -1\] is wrong"),
        ("Groups((((0, 1), (2, 3.0)),))", r"group \[2, 3.0\] is wrong"),
        ("Groups((((0, 1), (2, 3, 2)),))", r"group \[2, 3, 2\] is wrong"),
        ("Groups((((0, 1), (2, 3), ()),))", r"group \[\] is wrong"),
        ("Groups((((0, 1), (3,)),))", "no group holds choice 2; each choice must be in a group"),
        ("Groups((((0, 1), (2, 3)),), (1,))", "weights .* a number above 0 for each of the 2"),
        ("Groups((((0, 1), (2, 3)),), (1, 2, 3))", "weights"),
        ("Groups((((0, 1), (2, 3)),), (1, float('nan')))", "weights"),
        ("Groups((((0, 1), (2, 3)),), (1, float('inf')))", "weights"),
        ("Groups((((0, 1), (2, 3)),), (1, 0))", "weights"),
        ("Groups((((0, 1), (2, 3)),), (1, 'a'))", "weights"),
        ("Groups((((0, 1), (2, 3)),), 5)", "weights 5 are wrong"),
        ("Groups((((0, 1), (2, 3)),), balance=7)", "balance is 7; it must be text"),
        ("Groups((((0, 1), (2, 3)),) * 30_000)", "60,000 groups, over the limit of 50,000"),
        ("1 / 0", r"ZeroDivisionError: division by zero \(mine.py:6\)"),
        ("exit(0)", r"SystemExit: 0 \(mine.py:6\)"),
        ("mine(K, m, trials, seed, question_id)", r"RecursionError: .* \(mine.py:[56]\)"),
        ("int('x' * 5000)", "ValueError: invalid literal"),
    ],
)
def test_a_grouping_of_ones_own_that_is_wrong_is_named(
    own: Callable[[str], Groups], returned: str, complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        own(returned)
    message = str(caught.value)
    assert "mine.py:" in message or returned == "Groups(())"
    assert len(message) < 500
    assert "\n" not in message


def test_a_grouping_of_ones_own_may_miss_a_choice_by_chance(
    own: Callable[[str], Groups],
) -> None:
    """As the released code's does. Then the trials are independent."""
    assert own("Groups((((0, 1),),), independent=True)").flat == [(0, 1)]
    assert own("Groups([[[0, 1], [2, 3]]], [1, 2.5])").flat == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("source", "name", "complaint"),
    [
        ("def mine(K): ...", "mine", "mine.py:mine: TypeError: mine() takes 1 positional argument"),
        ("mine = 3", "mine", "mine.py:mine: is 3; it must be a function"),
        ("exit(0)", "mine", "mine.py: could not be run (SystemExit: 0); mend the file"),
        ("raise KeyError", "mine", "mine.py: could not be run (KeyError: KeyError); mend the file"),
        ("\0", "mine", "source code string cannot contain null bytes); mend"),
        ("other = 3", "mine", "mine.py: defines no mine"),
    ],
)
def test_a_file_that_holds_no_grouping_is_named(
    tmp_path: Path, source: str, name: str, complaint: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    with pytest.raises(InputError) as caught:
        make_groups(4, 2, 3, 0, "x", f"{path}:{name}")
    assert complaint in str(caught.value)


@pytest.mark.parametrize("where", [":mine", "mine:", "...:x", "a..b:c", "no.such:x", "os:none"])
def test_a_place_where_nothing_is_is_one_line(where: str) -> None:
    with pytest.raises(InputError, match=r"write FILE\.py:NAME"):
        make_groups(4, 2, 3, 0, "x", where)


def test_an_exception_of_a_function_given_in_python_is_left_alone() -> None:
    """There a traceback is what helps."""

    def mine(*_: object) -> Groups:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        make_groups(4, 2, 3, 0, "x", mine)
