"""Many typed questions on one text: `decide`, `minise decide` and `minise verify --decisions`."""

import io
import json
import re
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from statistics import mean, pvariance, stdev
from typing import Any

import pytest
import torch

from minise import Answer, InputError, LocalModel, SelfEnsemble, Standard, ask, load, pack
from minise.lab.data.typed import read_questions
from minise.lab.decisions import Decision, Together, decide, method_named
from minise.method import GroupPlan, Logits, answer_of
from tests.lab.serving.conftest import Pretender
from tests.reference.support.commands import assert_one_line, run
from tests.reference.verify.planted import PLANTED

Capture = pytest.CaptureFixture[str]
Models = Callable[..., LocalModel]
STATE = "The parcel was due on Monday. It is Thursday, and I want my money back."
TEAMS = {"post": "Parcels and letters", "it": "Computers", "money": "Refunds", "law": "Contracts"}
QUESTIONS: dict[str, Any] = {
    "late": {"type": "noul", "instructions": "Is the parcel late?"},
    "team": {"type": "choice", "instructions": "Whose is it?", "criteria": TEAMS},
    "mood": {"type": "score", "instructions": "How angry?", "criteria": ["Calm", "Cross", "Angry"]},
    "due": {"type": "noul", "instructions": "Was it due on Monday?"},
}
FAULTS = (
    "a cell of the mask leaks to a group",
    "the last token's position in the tree is off by one",
)
METHODS = ("presence", "standard", "self-ensemble(group_size=2)", "cyclic")


def probabilities(decisions: dict[str, Decision]) -> dict[str, dict[str, float]]:
    return {id: one.probabilities for id, one in decisions.items()}


def reordered(criteria: dict[str, str]) -> dict[str, str]:
    return dict(reversed(criteria.items()))


def of_team(criteria: dict[str, str]) -> dict[str, Any]:
    """A request with the one question whose it is, with these options."""
    return {"team": {**QUESTIONS["team"], "criteria": criteria}}


# What an answer is


@pytest.mark.parametrize("method", METHODS)
def test_every_question_has_the_answer_of_its_method_to_it_alone(
    lm: LocalModel, method: str
) -> None:
    """In one pass with the others, as with a pass for each of its prompts."""
    together = decide(lm, STATE, QUESTIONS, method, seed=3)
    assert list(together) == list(QUESTIONS)
    for id, typed in read_questions(STATE, QUESTIONS).items():
        alone = ask(lm.with_engine("separate"), method_named(method, {}), typed.question, 3)
        expected = alone.normalized.tolist()
        assert list(together[id].probabilities.values()) == pytest.approx(expected, abs=1e-12)
        assert together[id].null == (pytest.approx(alone.null) if alone.null else None)


def test_self_ensemble_has_five_trials_unless_it_is_told_and_takes_settings_for_all() -> None:
    assert method_named("self-ensemble", {}) == SelfEnsemble(trials=5)
    assert method_named("self-ensemble(trials=7)", {}) == SelfEnsemble(trials=7)
    without = method_named("self-ensemble", {"null_option": False})
    assert without == SelfEnsemble(trials=5, null_option=False)


def test_each_type_has_its_options_and_the_wire_format_of_its_answer(qwen: LocalModel) -> None:
    found = decide(qwen, STATE, QUESTIONS)
    late = found["late"].as_json()
    assert late.pop("noul") == found["late"].probabilities["true"]
    assert set(found["late"].probabilities) == {"true", "false"}
    team = found["team"].as_json()
    assert set(team["probabilities"]) == set(TEAMS)
    assert team["probabilities"][team["choice"]] == max(team["probabilities"].values())
    mood = found["mood"].as_json()
    p = mood["probabilities"]
    assert set(p) == {"0", "1", "2"}
    assert mood["score"] == pytest.approx(p["1"] + 2 * p["2"])
    assert [one["type"] for one in (late, team, mood)] == ["noul", "choice", "score"]
    for one in found.values():
        assert sum(one.probabilities.values()) == pytest.approx(1)
        assert 0 < (one.on_labels or 0) < 1


def test_the_null_option_is_in_the_answer_where_it_was_offered(qwen: LocalModel) -> None:
    for method, is_offered in (("presence", True), ("self-ensemble", True), ("standard", False)):
        null = decide(qwen, STATE, QUESTIONS, method)["team"].null
        assert (null is not None) == is_offered
        assert null is None or 0 < null < 1


def test_the_standard_error_is_that_of_a_mean_over_trials(qwen: LocalModel) -> None:
    """Over the rotations, each of which has the sum 1, the jackknife is the usual formula. A mean
    over one trial has none, and a geometric one neither."""
    asked = read_questions(STATE, QUESTIONS)["team"].question
    groups = ask(qwen, method_named("cyclic", {}), asked).groups
    found = decide(qwen, STATE, QUESTIONS, "cyclic")["team"]
    errors = found.standard_errors
    assert errors is not None
    for place, id in enumerate(TEAMS):
        of_rotations = [float(one.probabilities[one.choices.index(place)]) for one in groups]
        assert errors[id] == pytest.approx(stdev(of_rotations) / len(TEAMS) ** 0.5)
    assert found.as_json()["standard_errors"] == errors
    for method in ("standard", "presence", "cyclic(mean=geometric)"):
        assert decide(qwen, STATE, QUESTIONS, method)["team"].standard_errors is None


def test_the_standard_error_of_self_ensemble_is_how_far_its_probabilities_move(
    qwen: LocalModel,
) -> None:
    """By the jackknife, written out: each trial is left out once."""
    asked = read_questions(STATE, QUESTIONS)["team"].question
    groups = ask(qwen, method_named("self-ensemble(group_size=3,trials=4)", {}), asked).groups
    moved = []
    for left_out in range(4):
        scores = []
        for place in range(len(TEAMS)):
            of_choice = []
            for group in groups:
                if group.trial != left_out and place in group.choices:
                    of_choice.append(float(group.probabilities[group.choices.index(place)]))
            scores.append(mean(of_choice))
        moved.append([score / sum(scores) for score in scores])
    found = decide(qwen, STATE, QUESTIONS, "self-ensemble(group_size=3,trials=4)")["team"]
    assert found.standard_errors is not None
    for place, id in enumerate(TEAMS):
        expected = (3 * pvariance([shares[place] for shares in moved])) ** 0.5
        assert found.standard_errors[id] == pytest.approx(expected)


def test_a_method_of_ones_own_may_have_no_groups(qwen: LocalModel) -> None:
    class First(Standard):
        def answer(self, plan: GroupPlan, logits: Logits) -> Answer:
            return answer_of(torch.arange(plan.K, 0, -1).double(), groups=())

    found = decide(qwen, STATE, QUESTIONS, First())["late"]
    assert found.probabilities == pytest.approx({"true": 2 / 3, "false": 1 / 3})
    assert (found.standard_errors, found.null, found.on_labels) == (None, None, None)


def test_a_state_may_be_json_and_an_option_without_a_description_is_its_id() -> None:
    [typed] = read_questions({"due": "Monday"}, of_team({"Post": "", "Money": "Refunds"})).values()
    assert typed.question.text == '{"due": "Monday"}\n\nWhose is it?'
    assert typed.question.choices == ("Post", "Refunds")
    for state, written in (({"für": "ü"}, '{"für": "ü"}'), (0, "0"), (False, "false")):
        [typed] = read_questions(state, of_team(TEAMS)).values()
        assert typed.question.text == f"{written}\n\nWhose is it?"


def test_a_state_or_a_description_that_is_no_text_is_refused() -> None:
    for state in ("", None, {}, []):
        with pytest.raises(InputError, match="the state is"):
            read_questions(state, QUESTIONS)
    with pytest.raises(InputError, match=r"the state is no JSON .*set"):
        read_questions({1}, QUESTIONS)
    for description in (0, False, [], {}):
        with pytest.raises(InputError, match='description of "it"'):
            read_questions(STATE, of_team({**TEAMS, "it": description}))


def test_options_are_in_the_order_in_which_they_are_given() -> None:
    """Yes before no, and the lowest level first."""
    typed = read_questions(STATE, QUESTIONS)
    assert typed["late"].question.choices == ("Yes", "No")
    assert typed["late"].options == {"true": 0, "false": 1}
    assert typed["mood"].question.choices == ("Calm", "Cross", "Angry")
    assert typed["mood"].options == {"0": 0, "1": 1, "2": 2}
    assert typed["team"].question.choices == tuple(TEAMS.values())


# What holds by construction, and what does not


def test_with_equal_bits_no_bit_depends_on_the_other_questions_or_their_order(
    model: Models,
) -> None:
    lm = model("llama", equal_bits=True)
    for method in METHODS:
        whole = probabilities(decide(lm, STATE, QUESTIONS, method))
        backwards = probabilities(decide(lm, STATE, dict(reversed(QUESTIONS.items())), method))
        separate = probabilities(decide(lm.with_engine("separate"), STATE, QUESTIONS, method))
        assert backwards == whole == separate
        for id, asked in QUESTIONS.items():
            renamed = probabilities(decide(lm, STATE, {"other": asked}, method))
            assert renamed["other"] == whole[id]


def test_by_presence_no_bit_depends_on_the_order_of_options_and_by_standard_some_do(
    model: Models,
) -> None:
    lm = model("llama", equal_bits=True)
    mirrored = of_team(reordered(TEAMS))
    for method, is_same in (("presence", True), ("standard", False)):
        first = decide(lm, STATE, QUESTIONS, method)["team"].probabilities
        second = decide(lm, STATE, mirrored, method)["team"].probabilities
        assert (first == second) == is_same


def test_by_presence_an_option_more_leaves_the_ratios_of_the_others_and_by_standard_not(
    qwen: LocalModel,
) -> None:
    more = of_team({"whales": "Humpback whales", **TEAMS})
    for method, is_same in (("presence", True), ("standard", False)):
        few = decide(qwen, STATE, QUESTIONS, method)["team"].probabilities
        many = decide(qwen, STATE, more, method)["team"].probabilities
        before = few["post"] / few["law"]
        assert (many["post"] / many["law"] == pytest.approx(before, rel=1e-9)) == is_same


@pytest.mark.parametrize("method", METHODS)
def test_options_of_one_description_share_the_probability_of_one(
    qwen: LocalModel, method: str
) -> None:
    one = decide(qwen, STATE, QUESTIONS, method)["team"].probabilities
    two = decide(qwen, STATE, of_team({**TEAMS, "refunds": "Refunds "}), method)["team"]
    errors = decide(qwen, STATE, QUESTIONS, method)["team"].standard_errors
    if errors is not None and two.standard_errors is not None:
        assert 2 * two.standard_errors["refunds"] == pytest.approx(errors["money"], abs=1e-9)
    assert two.probabilities["money"] == two.probabilities["refunds"]
    assert 2 * two.probabilities["money"] == pytest.approx(one["money"], abs=1e-12)
    assert two.probabilities["post"] == pytest.approx(one["post"], abs=1e-12)


def test_77_options_are_asked_by_presence_and_in_groups_and_not_in_one_list(
    qwen: LocalModel,
) -> None:
    many = of_team({f"t{i}": f"Team number {i}" for i in range(77)})
    for method in ("presence", "self-ensemble(trials=2)"):
        assert len(decide(qwen, STATE, many, method)["team"].probabilities) == 77
    with pytest.raises(InputError, match=r"only 26 labels .*ask by self-ensemble"):
        decide(qwen, STATE, many, "standard")


# Proved for a file


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    path = tmp_path / "request.json"
    path.write_text(json.dumps({"state": STATE, "questions": QUESTIONS}, indent=1))
    return path


@pytest.mark.parametrize("method", METHODS)
def test_verify_runs_the_prompts_of_decide_and_the_proof_needs_no_weights(
    capsys: Capture, llama_folder: Path, request_file: Path, method: str
) -> None:
    questions = read_questions(STATE, QUESTIONS)
    lm = load(llama_folder)
    _, prompts = Together(method_named(method, {})).prompts(lm, questions)
    asked = ("verify", "--model", llama_folder, "--decisions", request_file, "--method", method)
    status, out, _ = run(capsys, *asked)
    assert status == 0
    assert f" of {len(prompts.branches)} group prompts\n" in out
    assert out.endswith("no group sees another\n")
    status, out, _ = run(capsys, *asked, "--proof")
    assert status == 0
    assert "proved for all weights" in out


def test_verify_asks_by_presence_as_decide_does(
    capsys: Capture, llama_folder: Path, request_file: Path
) -> None:
    _, out, _ = run(capsys, "verify", "--model", llama_folder, "--decisions", request_file)
    assert " of 11 group prompts\n" in out  # one for each option


@pytest.mark.parametrize("options", [(), ("--proof",)])
@pytest.mark.parametrize("fault", FAULTS)
def test_verify_finds_a_fault_between_questions(
    capsys: Capture,
    llama_folder: Path,
    request_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    options: tuple[str, ...],
) -> None:
    PLANTED[fault](monkeypatch)
    asked = ("--model", llama_folder, "--decisions", request_file)
    status, out, _ = run(capsys, "verify", *asked, *options)
    assert status == 1
    assert "FAILED" in out


# The command


def written(path: Path, count: int) -> Path:
    """A file of so many requests, several in a row on one state."""
    with path.open("w") as file:
        for number in range(count):
            some = dict(list(QUESTIONS.items())[number % 3 :])
            request = {"state": f"{STATE} Case {number // 4}.", "questions": some}
            file.write(json.dumps(request) + "\n")
    return path


def without_seconds(path: Path) -> bytes:
    """All but the times, and the sums, which are of the times, too."""
    return re.sub(rb'"(seconds|sum)": [^,}]+', b"", path.read_bytes())


def test_the_command_prints_what_decide_says_from_a_file_and_from_standard_input(
    capsys: Capture, llama_folder: Path, request_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--model", llama_folder, "--dtype", "float64")
    status, out, _ = run(capsys, "decide", request_file, *asked)
    assert status == 0
    found = json.loads(out)["answers"]
    assert list(found) == list(QUESTIONS)
    given = io.TextIOWrapper(io.BytesIO(request_file.read_bytes()))
    monkeypatch.setattr(sys, "stdin", given)
    _, piped, _ = run(capsys, "decide", "-", *asked)
    assert json.loads(piped)["answers"] == found


def test_a_file_of_many_states_has_the_answers_of_decide_to_each(
    capsys: Capture, llama_folder: Path, tmp_path: Path
) -> None:
    """Some of them share a pass. With a seed, a template and engine of the command's; a blank line
    and the field "model" are no matter."""
    file = written(tmp_path / "requests.jsonl", 7)
    requests = [json.loads(line) for line in file.read_text().splitlines()]
    lines = [json.dumps({**request, "model": "m"}) for request in requests]
    file.write_text("\n\n".join(lines))
    asked = ("--seed", 3, "--method", "self-ensemble(group_size=2)", "--template", "mmlu")
    _, out, _ = run(capsys, "decide", file, "--model", llama_folder, "--dtype", "float64", *asked)
    lm = load(llama_folder, dtype="float64")
    method = method_named("self-ensemble(group_size=2)", {"template": "mmlu"})
    for line, request in zip(out.splitlines(), requests, strict=True):
        found = json.loads(line)
        expected = decide(lm, request["state"], request["questions"], method, 3)
        assert found["answers"].keys() == expected.keys()
        for id, one in expected.items():
            answer = found["answers"][id]
            for name, value in one.as_json().items():
                assert answer[name] == close(value)
        questions = read_questions(request["state"], request["questions"])
        _, prompts = Together(method).prompts(lm, questions, 3)
        assert found["tokens"] == len(pack(prompts.prefix, prompts.branches, tree=True).tokens)
        assert found["seconds"] > 0


def close(value: Any) -> Any:
    """Within the rounding of float64 where it is a number, or has some."""
    return pytest.approx(value, abs=1e-12) if isinstance(value, float | dict) else value


def test_improbable_labels_are_said_once(
    capsys: Capture, llama_folder: Path, tmp_path: Path
) -> None:
    """The tiny model is random: its labels have hardly more than others."""
    file = written(tmp_path / "requests.jsonl", 3)
    _, out, said = run(capsys, "decide", file, "--model", llama_folder)
    assert len(out.splitlines()) == 3
    assert "of the probability is on the labels; try --template mmlu" in said
    assert len(said.splitlines()) == 1


def test_an_error_comes_after_the_answers_before_it_and_names_line_and_question(
    capsys: Capture, llama_folder: Path, tmp_path: Path
) -> None:
    file = written(tmp_path / "requests.jsonl", 2)
    many = {f"t{i}": f"Team number {i}" for i in range(30)}
    with file.open("a") as more:
        more.write(json.dumps({"state": STATE, "questions": {"big": of_team(many)["team"]}}))
    output = tmp_path / "answers.jsonl"
    asked = ("decide", file, "--model", llama_folder, "--method", "standard", "-o", output)
    assert_one_line(*run(capsys, *asked), ["line 3", 'question "big"', "30 choices"])
    assert len(output.read_bytes().splitlines()) == 2


def test_a_run_cut_at_any_place_goes_on_and_ends_with_the_same_bytes(
    capsys: Capture, llama_folder: Path, tmp_path: Path
) -> None:
    file = written(tmp_path / "requests.jsonl", 67)  # more than a block
    output = tmp_path / "answers.jsonl"
    asked = ("decide", file, "--model", llama_folder, "-o", output)
    assert run(capsys, *asked)[0] == 0
    whole = output.read_bytes()
    expected = without_seconds(output)
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 67
    for kept in (0, 63, 64, 65, 67):
        rest = b"" if kept == 67 else lines[kept][:50]
        output.write_bytes(b"".join(lines[:kept]) + rest)
        assert run(capsys, *asked)[0] == 0
        assert without_seconds(output) == expected


def test_answers_to_other_requests_or_asked_otherwise_are_refused_and_kept(
    capsys: Capture, llama_folder: Path, tmp_path: Path
) -> None:
    """Nothing that an answer depends on may change between the lines of a file: not a method, nor
    what stands in the file of a template, an engine or a method of one's own."""
    file = written(tmp_path / "requests.jsonl", 3)
    template = tmp_path / "template.json"
    template.write_text('{"cue": "Answer:"}')
    own = tmp_path / "own.py"
    own.write_text("from minise.engines import packed as engine\nfrom minise import Standard\n")
    output = tmp_path / "answers.jsonl"
    asked = ("decide", file, "--model", llama_folder, "-o", output, "--template", template)
    asked = (*asked, "--engine", f"{own}:engine")
    assert run(capsys, *asked)[0] == 0
    whole = output.read_bytes()

    def assert_refused(*more: object) -> None:
        assert_one_line(*run(capsys, *asked, *more), ["answers.jsonl", "name another"])
        assert output.read_bytes() == whole

    assert_refused("--seed", 1)
    assert_refused("--method", "standard")
    assert_refused("--dtype", "float64")
    for changed in (template, own, file):
        before = changed.read_text()
        changed.write_text(before.replace("Answer:", "So:").replace("Thursday", "Friday") + "\n")
        if changed == own:
            changed.write_text(before + "# changed\n")
        assert_refused()
        changed.write_text(before)
    requests = file.read_text()
    file.write_text("".join(requests.splitlines(keepends=True)[:2]))
    assert_refused()
    moved = tmp_path / "moved.jsonl"
    moved.write_text(requests)
    assert run(capsys, "decide", moved, *asked[2:])[0] == 0
    output.write_text('{"a": 1}\n')
    assert_one_line(*run(capsys, *asked), ["answers.jsonl, line 1", "has no key"])


def test_an_answer_that_was_changed_or_moved_to_another_line_is_noticed(
    capsys: Capture, llama_folder: Path, tmp_path: Path
) -> None:
    file = written(tmp_path / "requests.jsonl", 3)
    output = tmp_path / "answers.jsonl"
    asked = ("decide", file, "--model", llama_folder, "-o", output)
    assert run(capsys, *asked)[0] == 0
    whole = output.read_bytes()
    first, second, third = (json.loads(line) for line in whole.splitlines())

    def assert_noticed(place: int, *lines: Any) -> None:
        changed = "".join(json.dumps(line) + "\n" for line in lines).encode()
        output.write_bytes(changed)
        assert_one_line(
            *run(capsys, *asked), [f"answers.jsonl, line {place}", "its sum is another"]
        )
        assert output.read_bytes() == changed

    for name in ("answers", "tokens", "seconds"):
        exchanged = {**first, name: second[name]}, {**second, name: first[name]}
        if exchanged[0] != first:
            assert_noticed(1, *exchanged, third)
    number = json.loads(whole.splitlines()[2])
    number["answers"]["mood"]["score"] += 1e-9
    assert_noticed(3, first, second, number)
    assert_noticed(2, first, {**second, "sum": first["sum"]})
    output.write_bytes(whole)
    assert run(capsys, *asked)[0] == 0
    assert output.read_bytes() == whole


def asking(**about: Any) -> str:
    """A request with the one question "a", of these fields."""
    return json.dumps({"state": "s", "questions": {"a": {"instructions": "Is it?", **about}}})


REFUSED = {
    "": ["is empty"],
    "{": ["not readable as JSON"],
    "[1]": ["is [1]", "state, questions"],
    '{"questions": {}}': ["has no state"],
    '{"state": " ", "questions": {}}': ["the state"],
    '{"state": "s", "questions": {}}': ["questions is {}"],
    '{"state": "s", "questions": {}, "stream": true}': ['"stream"', "leave it out"],
    '{"state": "s", "questions": {"a": 1, "a": 2}}': ['"a" stands twice'],
    '{"state": "s", "questions": {"a": 1}}': ['question "a": is 1'],
    asking(): ["has no type"],
    asking(type="rank"): ['"rank"', "noul, choice, score"],
    asking(type="noul", after="b"): ['"after"', "leave it out"],
    asking(type="noul", instructions=1): ["the instructions is 1"],
    asking(type="noul", criteria=["b"]): ["no criteria"],
    asking(type="choice"): ["an object"],
    asking(type="choice", criteria={"b": "c"}): ["1 different options", "at least two"],
    asking(type="choice", criteria={"b": "c", "d": 1}): ['description of "d"'],
    asking(type="choice", criteria={"b": "c", "d": "c "}): ["1 different options"],
    asking(type="score", criteria=[]): ["0 different options"],
    asking(type="noul", criteria=0): ["no criteria"],
    asking(type="score", criteria={}): ["a list", "lowest first"],
}


@pytest.mark.parametrize("content", REFUSED)
def test_what_is_no_request_is_refused_in_one_line_that_names_it(
    capsys: Capture, tmp_path: Path, content: str
) -> None:
    path = tmp_path / "request.jsonl"
    path.write_text(content)
    assert_one_line(*run(capsys, "decide", path), ["request.jsonl", *REFUSED[content]])


def test_other_refusals_are_one_line(capsys: Capture, tmp_path: Path, request_file: Path) -> None:
    assert_one_line(*run(capsys, "decide", tmp_path / "none.json"), ["none.json", "no such file"])
    two = written(tmp_path / "two.jsonl", 2)
    two.write_text(two.read_text() + '{"state": 1}\n')
    assert_one_line(*run(capsys, "decide", two), ["two.jsonl, line 3", "has no questions"])
    for method, words in (
        *(("best", '"best"'), ("", '""'), ("standard,presence", "give one")),
        ("./mine:Mine", "write FILE.py:NAME"),
    ):
        assert_one_line(*run(capsys, "decide", request_file, "--method", method), [words])
    verify = ("verify", "--decisions", request_file)
    assert_one_line(*run(capsys, *verify, "--question", "q", "--choice", "a", "--choice", "b"), [])
    served = ("--model", "server:http://127.0.0.1:9", "--tokenizer", tmp_path)
    assert_one_line(*run(capsys, *verify, *served), ["runs here"])
    two = written(tmp_path / "two.jsonl", 2)
    assert_one_line(*run(capsys, "verify", "--decisions", two), ["two.jsonl", "a file of one"])
    assert_one_line(*run(capsys, *verify, "--trials", 2), ["--decisions", "trials=N"])
    assert_one_line(*run(capsys, "verify", "--method", "presence"), ["--method is of --decisions"])


# Models and programs of others


def test_a_served_model_decides_too(llama_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Pretender("vllm")
    try:
        lm = load(f"server:{server.url}", tokenizer=llama_folder)
        together = probabilities(decide(lm, STATE, QUESTIONS, "cyclic"))
        for id, asked in QUESTIONS.items():
            assert together[id] == probabilities(decide(lm, STATE, {id: asked}, "cyclic"))[id]
    finally:
        server.kill()


def test_jevbench_accepts_a_stand_in_that_wraps_decide(
    qwen: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends one request with all types, and reads every answer."""
    jevbench = pytest.importorskip("jevbench", reason="pip install jevbench")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = decide(qwen, request["state"], request["questions"])
            body = json.dumps({"answers": {id: one.as_json() for id, one in found.items()}})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/v1/systemone"
            summary = jevbench.check(jevbench.systemone(url, "minise", timeout=60))
        finally:
            server.shutdown()
            thread.join()
    assert set(summary["questions"]) == {"noul", "choice", "score"}
