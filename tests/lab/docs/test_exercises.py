"""The exercises can be solved, fail as they are given, and their tests notice typical mistakes."""

import ast
import re
import shutil
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "exercises"
NAMES = [path.stem for path in sorted(FOLDER.glob("ex*.py"))]

SPLIT_HALVES = """\
chunk(2, dim=-1)
    rotated = torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
"""
INTERLEAVED = """\
unflatten(-1, (-1, 2)).unbind(-1)
    rotated = torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)
"""
LAST_CHILD = """\
rows = {key: rows[key] for key in rows if key[0] != row}
                rows[row, token] = len"""
BY_INDEX = "positions_T = positions_T.argsort(stable=True).sort().values\n    return"
IN_CONTEXT = "encode(prompt + label)\n        if longer[:-1] != ids"
ALONE = "encode(label)\n        if not longer"
AS_INTEGERS = "a.contiguous().view(as_int), b.contiguous().view(as_int)"

# Mistakes by exercise: what the solution says, what is written instead, the test that notices it.
MISTAKES = {
    "01_causal_mask": [
        (".tril()", ".triu()", "in_one_prompt"),  # transposed
        (".tril()", ".tril(-1)", "every_token_sees_itself"),
        ("mask[end:, start:end]", "mask[:0]", "no_other_branch"),
        ("mask[end:, start:end]", "mask[end:, :end]", "sees_the_prefix"),
    ],
    "02_positions": [
        ("torch.cat(parts)", "torch.arange(prefix + sum(branches))", "begins_right_after"),
        ("torch.arange(prefix, prefix + length)", "torch.arange(length)", "each_prompt_alone"),
        ("dim=1", "dim=0", "a_mask_says"),
        (") - 1", ")", "a_mask_says"),
    ],
    "03_rope": [
        (SPLIT_HALVES, INTERLEAVED, "split_halves"),
        ("positions_T[:", "torch.arange(len(x_THh))[:", "by_their_position_ids"),
        ("torch.promote_types(x_THh.dtype, torch.float32)", "x_THh.dtype", "bfloat16"),
        ("torch.promote_types(x_THh.dtype, torch.float32)", "torch.float32", "float64_stays"),
        ("-2 * pair", "-pair", "frequencies_fall"),
        ("[:, None, None] *", "[:, None, None] + 1 +", "position_0"),
    ],
    "04_windows": [
        ("return", BY_INDEX, "the_last_branch"),
        ("< window", "<= window", "counts_the_token_itself"),
        ("mask_TT & ", "", "opens_nothing"),
    ],
    "05_tree": [
        ("row, token", "0, token", "leads_back"),  # merged by the token alone
        ("row, token", "prompt.index(token), token", "leads_back"),  # by token and depth
        ("row, token", "len(ends), row, token", "laid_out_once"),  # not merged
        ("rows[row, token] = len", LAST_CHILD, "laid_out_once"),  # merged with the prompt before it
        ("mask[row] |= mask[parent]", "mask[row, parent] = True", "its_ancestors"),
    ],
    "06_packed_logits": [
        (".cumsum(0) - 1", ".cumsum(0) - 2", "one_pass"),
        ("layout.mask)", "(layout.mask | True).tril())", "in_one_branch"),
        ("layout.mask)", "layout.mask.T)", "one_call"),
        ("layout.positions", "torch.arange(len(layout.tokens))", "one_call"),  # run on
        ("decoder.logits(hidden[ends])", "decoder.logits(hidden)[ends]", "one_call"),
    ],
    "07_cache": [
        ("torch.arange(S, S + T)", "torch.arange(T)", "continue_the_positions"),
        ("diagonal=S", "diagonal=0", "in_pieces"),
        ("append((k_BUKh, v_BUKh))", "append((k_BTKh, v_BTKh))", "of_all_tokens"),
        ("return hidden,", "cache[:] = longer; return hidden,", "continued_twice"),
        ("torch.tensor([branch]), shared", "torch.tensor([[*prefix, *branch]]), []", "runs_twice"),
    ],
    "08_readout": [
        (IN_CONTEXT, ALONE, "follows_the_prompt"),
        ("if longer[:-1] != ids", "if not longer", "merges_with_the_prompt"),
        ("[list(ids)].double(), dim=0)", ".double(), dim=0)[ids]", "of_the_labels_alone"),
        ("torch.softmax(", "torch.nn.functional.normalize(", "of_the_labels_alone"),
    ],
    "09_mean": [
        (" / len(values_NK) ** 0.5", "", "means_really_vary"),  # the standard deviation
        ("std(dim=0)", "std(dim=0, correction=0)", "means_really_vary"),
        ("count.clamp(min=1)", "len(groups)", "that_hold_the_choice"),
        ("count.clamp(min=1)", "count", "in_none"),
    ],
    "10_bits": [
        (AS_INTEGERS, "a, b", "minus_zero"),
        ("torch.equal(" + AS_INTEGERS, "torch.allclose(a, b", "last_bit"),
        ("(filled_RI)[: len(piece_RI)]", "(piece_RI)", "same_number_of_rows"),
        ("(filled_RI)[: len(piece_RI)]", "(filled_RI)", "alone_and_beside"),
    ],
    "11_state": [
        ("states[before[-1]] if before", "states[-1] if states", "comes_from_the_parent"),
        ("before[-1]", "before[0]", "comes_from_the_parent"),
        ("g_T[t].exp() * state +", "state +", "comes_from_the_parent"),
        (".masked_fill(~mask_TT, -torch.inf)", "", "the_mask_alone"),
        (".masked_fill(~mask_TT, -torch.inf)", ".tril()", "does_not_overflow"),
        ("mask_TT.to(g_T.dtype) @ g_T", "g_T.cumsum(0)", "the_mask_alone"),  # over the row
    ],
}


class Reports:
    """What the tests of an inner pytest say, by file. `only`: by folder, the part of a test's name
    that lets it run; without it, all run."""

    def __init__(self, only: dict[str, str] | None) -> None:
        self.only = only
        self.by_file: dict[Path, list[pytest.TestReport]] = defaultdict(list)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.only is not None:
            items[:] = [x for x in items if self.only[x.path.parent.name] in x.name.split("[")[0]]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.failed:
            self.by_file[ROOT / report.nodeid.partition("::")[0]].append(report)


def run(
    folder: Path, *options: str, only: dict[str, str] | None = None
) -> dict[Path, list[pytest.TestReport]]:
    """Run the tests of a folder in this process."""
    reports = Reports(only)
    without = ("xdist", "cacheprovider", "hypothesispytest", "faulthandler")
    names = [word for name in without for word in ("-p", f"no:{name}")]
    settings = ("-c", str(ROOT / "pyproject.toml"), "--no-summary", *names)
    pytest.main([*settings, str(folder), *options], [reports])
    return reports.by_file


def test_there_are_eleven_exercises_each_with_a_test_a_solution_a_hint_and_its_minutes() -> None:
    assert [name[2:4] for name in NAMES] == [f"{i:02}" for i in range(1, 12)]
    assert [path.stem for path in sorted(FOLDER.glob("solutions/ex*.py"))] == NAMES
    assert [f"ex{path.stem[5:]}" for path in sorted(FOLDER.glob("test_*.py"))] == NAMES
    assert [f"ex{name}" for name in MISTAKES] == NAMES
    hints = re.findall(r"^## (\d+) ", (FOLDER / "hints.md").read_text("utf-8"), re.MULTILINE)
    assert [int(number) for number in hints] == list(range(1, 12))
    page = (FOLDER / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)\.py` \| .+ \| (\d+) \| (.+) \|$", page, re.MULTILINE)
    assert [name for name, _, _ in rows] == NAMES
    assert sum(int(minutes) for _, minutes, _ in rows) <= 200
    for _, _, files in rows:
        assert all((ROOT / "minise" / file).is_file() for file in re.findall("`(.+?)`", files))
    assert all((FOLDER / link).is_file() for link in re.findall(r"\]\((.+?)\)", page))


@pytest.mark.parametrize("name", NAMES)
def test_an_exercise_is_its_solution_with_other_bodies_of_its_functions(name: str) -> None:
    given, solved = (
        ast.parse((folder / f"{name}.py").read_text("utf-8"))
        for folder in (FOLDER, FOLDER / "solutions")
    )
    functions = [node for node in given.body if isinstance(node, ast.FunctionDef)]
    assert len(functions) in (1, 2)
    for function in functions:
        assert [ast.unparse(line) for line in function.body[1:]] == ["raise NotImplementedError"]
    for tree in (given, solved):
        del tree.body[0]  # its docstring
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                node.body = []
    assert ast.dump(given) == ast.dump(solved)


def test_every_solution_passes() -> None:
    found = run(FOLDER, "--solutions")
    assert [f"ex{path.stem[5:]}" for path in found] == NAMES
    reports = [report for of_file in found.values() for report in of_file]
    assert [report.longreprtext for report in reports if not report.passed] == []
    for of_file in found.values():  # with -x a test that says more must fail first
        assert not any(report.nodeid.endswith("the_examples_are_true") for report in of_file[:-1])


def test_an_exercise_as_given_fails_and_says_what_is_not_written() -> None:
    found = run(FOLDER)
    assert [f"ex{path.stem[5:]}" for path in found] == NAMES
    for path, reports in found.items():
        said = rf"\w+ is not written yet \(ex{path.stem[5:]}\.py, line \d+\)"
        for report in reports:
            assert re.fullmatch(said, report.longreprtext), report.nodeid


def told_first(tmp_path: Path, name: str, pattern: str, written: str) -> str:
    """What the first test says of a solution in which `written` stands for the pattern."""
    solution = (FOLDER / "solutions" / f"{name}.py").read_text("utf-8")
    changed = re.sub(pattern, written, solution, flags=re.MULTILINE)
    (tmp_path / f"{name}.py").write_text(changed, "utf-8")
    shutil.copy(FOLDER / f"test_{name[2:]}.py", tmp_path)
    settings = (FOLDER / "conftest.py").read_text("utf-8")
    (tmp_path / "conftest.py").write_text(settings.replace("SECONDS = 60", "SECONDS = 1"), "utf-8")
    [[first]] = run(tmp_path, "-x").values()
    return first.longreprtext


@pytest.mark.parametrize("name", NAMES)
def test_a_forgotten_return_names_the_function_that_needs_one(tmp_path: Path, name: str) -> None:
    said = told_first(tmp_path, name, "^    return ", "    ")
    words = rf"\w+ returns nothing: is a return missing\? \({name}\.py, line \d+\)"
    assert re.fullmatch(words, said)


@pytest.mark.parametrize("at_first", [signal.default_int_handler, signal.SIG_IGN])
def test_a_loop_without_an_end_is_stopped_and_named(tmp_path: Path, at_first: Any) -> None:
    """Also where Ctrl-C is ignored, as in the background of a shell."""
    before = signal.signal(signal.SIGINT, at_first)
    loop = "    while True:\n        prompt = prompts[0]"
    try:
        said = told_first(tmp_path, "ex05_tree", "^    for prompt in prompts:$", loop)
        assert signal.getsignal(signal.SIGINT) == at_first
    finally:
        signal.signal(signal.SIGINT, before)
    assert re.fullmatch(r"merge does not end: stopped after 1 s \(ex05_tree\.py, line \d+\)", said)


def test_typical_mistakes_are_noticed_and_told_in_words(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "conftest.py", tmp_path)
    only, made = {}, {}
    for name, mistakes in MISTAKES.items():
        solution = (FOLDER / "solutions" / f"ex{name}.py").read_text("utf-8")
        for number, (right, wrong, test) in enumerate(mistakes):
            assert right in solution, (name, right)
            folder = tmp_path / f"{name}-{number}"
            folder.mkdir()
            (folder / f"ex{name}.py").write_text(solution.replace(right, wrong), encoding="utf-8")
            shutil.copy(FOLDER / f"test_{name}.py", folder)
            only[folder.name], made[folder.name] = test, (right, wrong)
    found = {path.parent.name: reports for path, reports in run(tmp_path, only=only).items()}
    for folder_name, mistake in made.items():
        said = [report.longreprtext for report in found[folder_name] if report.failed]
        assert said, (folder_name, mistake)
        # A traceback would show the lines of the test.
        assert not any("exercise" in text or "\nE  " in text for text in said), said
