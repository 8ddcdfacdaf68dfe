"""`minise check` says equal only if a brute-force comparison of symbolic runs says so.

This test is the definition of the command. A row is drawn, and written in one of the forms that
libraries hold; then something is added to it or changed. Its symbolic run gives every token a hash
of all that it reads, and of what is added to it. Each prompt is run alone in the same way.
"""

import random
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from minise import InputError
from minise.lab.packing.judging import check
from minise.lab.proof.symbols import Symbols, symbolic
from minise.layout import causal_mask
from tests.reference.verify.cases import Models

CASES = 10_000


class Row(NamedTuple):
    """fields: as `check` takes them. What is meant: parents, -2 for a token of no prompt, which is
    padding where `padding` says so. What a model is given: ids, positions, who sees whom, and how
    much less than the most is added to a score."""

    fields: dict[str, Any]
    parents: list[int]
    padding: list[bool]
    ids: list[int]
    positions: list[int]
    sees: list[list[bool]]
    bias: list[list[float]]
    labels: list[int]
    change: str


def paths(parents: list[int]) -> list[list[int]]:
    """The prompts: from each token that nothing follows, back to its first."""
    found = []
    for row in range(len(parents)):
        path = [row] if parents[row] > -2 and row not in parents else []
        while path and parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        found += [path] if path else []
    return found


def hashes(ids: Any, positions: Any, sees: Any, bias: Any = None) -> list[int]:
    """Two layers of attention on symbols: what a token is, and the bag of what it sees, with what
    is added."""
    states = [hash(pair) for pair in zip(ids, positions, strict=True)]
    for _ in range(2):
        bags = []
        for q, row in enumerate(sees):
            seen = [k for k, shown in enumerate(row) if shown]
            bags.append(tuple(sorted((states[k], bias[q][k] if bias else 0) for k in seen)))
        states = [hash(pair) for pair in zip(states, bags, strict=True)]
    return states


def equal_states(row: Row, bias: Any = None) -> bool:
    """Whether every token of every prompt has the state that it has when the prompt is alone."""
    packed = hashes(row.ids, row.positions, row.sees, bias)
    for path in paths(row.parents):
        n = len(path)
        window = row.fields.get("window", n)
        alone = [[q - window < k <= q for k in range(n)] for q in range(n)]
        states = hashes([row.ids[t] for t in path], range(n), alone)
        if [packed[t] for t in path] != states:
            return False
    return True


def right_labels(row: Row) -> bool:
    """Whether each target is a token that follows its source in a prompt."""
    back = 0 if row.fields.get("labels_are") == "shifted" else 1
    for t, label in enumerate(row.labels):
        source = t - back
        follow = []
        for path in paths(row.parents):
            if source in path[:-1]:
                next_token = path[path.index(source) + 1]
                follow.append(row.ids[next_token])
        if label != -100 and source >= 0 and label not in follow:
            return False
    return all(map(whole_loss, *forks_of(row)))


def forks_of(row: Row) -> tuple[list[Row], list[list[int]]]:
    """The row, and the first tokens of the branches of a fork, for each fork."""
    forks = []
    for parent in range(len(row.ids)):
        branches = [t for t, one in enumerate(row.parents) if one == parent]
        forks += [branches] if len(branches) > 1 else []
    return [row] * len(forks), forks


def whole_loss(row: Row, branches: list[int]) -> bool:
    """Whether the loss behind a fork is that of the branches alone: each has its first target, or
    there is no target. A first token that is the same in all, and no target, may be the trunk's."""
    back = 1 if row.fields.get("labels_are") == "shifted" else 0

    def is_target(t: int) -> bool:
        return t >= back and row.labels[t - back] != -100

    behind = {t for path in paths(row.parents) for t in path if {*branches} & {*path}}
    behind = {t for t in behind if t >= branches[0]}
    if not any(map(is_target, behind)):
        return True
    firsts = [is_target(t) for t in branches]
    return all(firsts) or (not any(firsts) and len({row.ids[t] for t in branches}) == 1)


def unjudged(row: Row) -> int:
    """How many tokens are of no prompt, and not said to be padding, or are read with a bias."""
    count = 0
    for parent, said, bias in zip(row.parents, row.padding, row.bias, strict=True):
        count += any(bias) if parent > -2 else not said
    return count


# ---- drawing


def layout(draw: random.Random) -> tuple[dict[str, Any], list[int]]:
    """What is meant, and the row of the token before each."""
    kind = draw.choice(["documents", "branches", "tree"])
    lengths = [draw.randint(1, 4) for _ in range(draw.randint(1, 4))]
    is_one_token = draw.random() < 0.1
    if is_one_token:
        lengths = [1]
    if kind == "tree":
        parents = [-1]
        for t in range(1, 1 if is_one_token else draw.randint(2, 10)):
            parents.append(draw.choice([t - 1, t - 1, draw.randint(-1, t - 1)]))
        return {"tree": list(parents)}, parents
    trunk = draw.randint(0, 3) if kind == "branches" and not is_one_token else 0
    parents = list(range(-1, trunk - 1))
    for length in lengths:
        start = len(parents)
        parents += [trunk - 1, *range(start, start + length - 1)]
    return {kind: lengths} | ({"trunk": trunk} if kind == "branches" else {}), parents


def family(parents: list[int]) -> list[list[bool]]:
    rows: list[list[bool]] = []
    for t, parent in enumerate(parents):
        rows.append([*(rows[parent] if parent >= 0 else [False] * len(parents))])
        rows[-1][t] = True
    return rows


def depths(parents: list[int]) -> list[int]:
    found: list[int] = []
    for parent in parents:
        found.append(found[parent] + 1 if parent >= 0 else 0)
    return found


def added(draw: random.Random, sees: list[list[bool]], bias: list[list[float]]) -> torch.Tensor:
    """An additive mask of 2 or 4 dimensions: a number for each row, less what is hidden and the
    bias. A row that sees nothing has minus infinity alone."""
    mask = torch.zeros(len(sees), len(sees), dtype=torch.float64)
    for q, row in enumerate(sees):
        hidden = draw.choice([-1e4, -3e38, float("-inf")]) if any(row) else float("-inf")
        number = draw.choice([0, 0, 7, -4096])
        for k, shown in enumerate(row):
            mask[q, k] = number + bias[q][k] if shown else number + hidden
    return draw.choice([mask, mask[None, None]])


ALIASES = {
    "input_ids": "tokens",
    "position_ids": "positions",
    "attention_mask": "mask",
    "cu_seqlens": "cu_seqlens_q",
}


def by_other_names(draw: random.Random, fields: dict[str, Any], twice: bool) -> dict[str, Any]:
    """The fields, some under their other names; if `twice`, one under both, as it is or changed."""
    named: dict[str, Any] = {}
    for name, value in fields.items():
        alias = ALIASES.get(name, name)
        named[draw.choice([name, alias])] = value
    if twice:
        name = draw.choice([name for name in ALIASES if name in fields])
        both = {name: fields[name], ALIASES[name]: draw.choice([fields[name], [0, 1]])}
        named |= both
    return named


def forms(parents: list[int], sees: list[list[bool]], whole: bool) -> dict[str, dict[str, Any]]:
    """The forms that can say `sees`; not whole: those by which the model applies a window itself,
    to the family of `parents`."""
    T, mask = len(parents), torch.tensor(sees)
    if not whole:
        found: dict[str, dict[str, Any]] = {"parents": {"parents": [max(p, -1) for p in parents]}}
        if all(p in (t - 1, -1, -2) for t, p in enumerate(parents)):
            starts = [t for t, p in enumerate(parents) if p < 0]
            of = [sum(s <= t for s in starts) for t in range(T)]
            found["cu_seqlens"] = {"cu_seqlens": [*starts, T]}
            found["restarts"] = {"restarts": True}
            found["segment_ids"] = {"segment_ids": [7 - number for number in of]}
            found["neat"] = {"attention_mask": of, "mask_is": "segments"}
        return found
    function = lambda b, h, q, k: mask[q, k]  # noqa: E731
    found = {
        "bool": {"attention_mask": mask[None, None]},
        "0 and 1": {"attention_mask": [[int(one) for one in row] for row in sees]},
        "additive": {},  # see `added`
        "mask_mod": {"mask_mod": function},
    }
    if all(any(row) for row in sees):
        block = create_block_mask(function, None, None, T, T, device="cpu", BLOCK_SIZE=2)
        found["BlockMask"] = {"attention_mask": block}
    return found


def drawn(seed: int) -> Row:
    """A row in a form, and what was changed in it ("" if nothing was)."""
    draw = random.Random(seed)
    meant, parents = layout(draw)
    given, padding = list(parents), [False] * len(parents)
    changes = ["", "", "edge", "parent", "position", "label", "token", "padding", "ids", "window"]
    changes += ["bias", "alias"]
    change = draw.choice(changes)
    window = draw.choice([1, 2, 3]) if draw.random() < 0.2 or change == "window" else None
    if change in ("token", "padding"):  # behind the row: of no prompt
        given += [draw.randint(-1, len(given) - 1) for _ in range(draw.randint(1, 2))]
        more = [-2] * (len(given) - len(parents))
        parents, padding = parents + more, padding + [change == "padding"] * len(more)
        meant["tree" if "tree" in meant else "padding"] = parents if "tree" in meant else "right"
        if change == "padding":
            meant["padding"] = "right"
        elif "tree" not in meant:
            del meant["padding"]
    if change == "parent":
        t = draw.randrange(len(given))
        given[t] = draw.randint(-1, t - 1)
    T, sees = len(given), family(given)
    if change == "token" and draw.random() < 0.5:  # it sees everything
        sees[-1] = [True] * T
    if change == "edge":
        q, k = draw.randrange(T), draw.randrange(T)
        sees[q][k] = not sees[q][k]
    positions = depths(given)
    if change == "position":
        positions[draw.randrange(T)] += draw.choice([-1, 1, 5])
    whole = change in ("edge", "token", "bias") or sees != family(given) or draw.random() < 0.5
    by: Any = positions
    if not whole:  # kernels count a window by index
        name, fields = draw.choice([*forms(given, sees, whole).items()])
        by = positions if name == "parents" else range(T)
    if window:
        for q in range(T):
            for k in range(T):
                sees[q][k] = sees[q][k] and by[q] - by[k] < window
    bias = [[0.0] * T for _ in range(T)]
    if change == "bias":
        q = draw.randrange(T)
        seen = [k for k in range(T) if sees[q][k]]
        less = draw.sample(seen, draw.randint(0, len(seen) - 1))
        for k in less:
            bias[q][k] = draw.choice([-900, -20, -0.5, -1e-3])
    if whole:
        name, fields = draw.choice([*forms(given, sees, whole).items()])
        if change == "bias" or name == "additive":
            fields = {"attention_mask": added(draw, sees, bias)}
    few = change == "ids"  # tokens that are alike
    ids = [draw.randint(5, 6) for _ in range(T)] if few else draw.sample(range(5, 99), T)
    shifted = draw.random() < 0.5
    labels = [-100] * T
    for t, parent in enumerate(parents):
        if parent == t - 1 and parent >= 0 and draw.random() < 0.8:
            labels[t - 1 if shifted else t] = ids[t]
    if change == "label":
        labels[draw.randrange(T)] = draw.choice([*ids, 99])
    row = {**meant, **fields, "input_ids": ids, "position_ids": positions, "labels": labels}
    row |= {"labels_are": "shifted"} if shifted else {}
    row |= {"window": window} if window else {}
    row = by_other_names(draw, row, twice=change == "alias")
    return Row(row, parents, padding, ids, positions, sees, bias, labels, change)


def judge(seed: int) -> tuple[str, bool]:
    row = drawn(seed)
    if row.change == "alias":
        with pytest.raises(InputError, match="are two names of one field"):
            check(**row.fields)
        return row.change, False
    report = check(**row.fields)
    states, labels, judged = equal_states(row), right_labels(row), unjudged(row) == 0
    assert equal_states(row, row.bias) == (states and not any(map(any, row.bias))), (seed, row)
    assert not report.equal or (states and labels and judged), (seed, row)
    assert report.findings or (states and labels), (seed, row)
    assert report.unjudged == unjudged(row), (seed, row)
    if row.change not in ("ids", "label"):  # with tokens that differ, also the other way
        assert report.equal == (states and labels and judged), (seed, row, str(report))
    return row.change, report.equal


def test_the_hashes_of_this_test_are_equal_where_those_of_a_decoder_are(model: Models) -> None:
    lm = symbolic(model("llama").config, Symbols)

    def run(ids: list[int], positions: Any, mask: torch.Tensor) -> torch.Tensor:
        states = lm.decoder(torch.tensor(ids), torch.tensor([*positions]), mask)
        return states.as_subclass(torch.Tensor)

    found = set()
    for row in map(drawn, range(60)):
        if "window" in row.fields or not all(row.sees[t][t] for t in range(len(row.ids))):
            continue
        packed, same = run(row.ids, row.positions, torch.tensor(row.sees)), True
        for path in paths(row.parents):
            ids = [row.ids[t] for t in path]
            same &= torch.equal(packed[path], run(ids, range(len(path)), causal_mask(len(path))))
        assert same == equal_states(row)
        found.add(same)
    assert found == {True, False}


def test_equal_is_said_only_of_rows_whose_symbolic_runs_are_equal() -> None:
    verdicts = [judge(seed) for seed in range(200)]
    wrong = {change for change, equal in verdicts if not equal}
    assert wrong >= {"edge", "parent", "label", "bias", "alias"}
    assert sum(equal for _, equal in verdicts) > 50


@pytest.mark.slow
def test_the_same_ten_thousand_times() -> None:
    for seed in range(200, CASES):
        judge(seed)
