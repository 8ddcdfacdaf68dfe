"""Many typed questions on one text: `decide`, `minise decide` and `minise verify --decisions`."""

import io
import json
import re
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

from minise import InputError, LocalModel, ask, load
from minise.lab.data.typed import read_questions
from minise.lab.decisions import Decision, decide, method_named
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
    together = decide(lm, STATE, QUESTIONS, method)
    assert list(together) == list(QUESTIONS)
    for id, typed in read_questions(STATE, QUESTIONS).items():
        alone = ask(lm.with_engine("separate"), method_named(method, {}), typed.question)
        expected = alone.probabilities.tolist()
        assert list(together[id].probabilities.values()) == pytest.approx(expected, abs=1e-12)


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
    errors = decide(qwen, STATE, QUESTIONS, "cyclic")["team"].standard_errors
    assert errors is not None
    for place, id in enumerate(TEAMS):
        of_rotations = [float(one.probabilities[one.choices.index(place)]) for one in groups]
        assert errors[id] == pytest.approx(stdev(of_rotations) / len(TEAMS) ** 0.5)
    for method in ("standard", "presence", "cyclic(mean=geometric)"):
        assert decide(qwen, STATE, QUESTIONS, method)["team"].standard_errors is None


def test_a_state_may_be_json_and_an_option_without_a_description_is_its_id() -> None:
    [typed] = read_questions({"due": "Monday"}, of_team({"Post": "", "Money": "Refunds"})).values()
    assert typed.question.text == '{"due": "Monday"}\n\nWhose is it?'
    assert typed.question.choices == ("Post", "Refunds")


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


def test_verify_compares_all_questions_of_a_file_and_the_proof_needs_no_weights(
    capsys: Capture, llama_folder: Path, request_file: Path
) -> None:
    asked = ("verify", "--model", llama_folder, "--decisions", request_file, "--trials", 2)
    status, out, _ = run(capsys, *asked)
    assert status == 0
    assert " of 8 group prompts," in out  # of four questions two trials, of one group each
    assert out.endswith("no group sees another\n")
    status, out, _ = run(capsys, *asked, "--proof")
    assert status == 0
    assert "proved for all weights" in out


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
    asked = ("--model", llama_folder, "--decisions", request_file, "--trials", 1)
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
    return re.sub(rb'"seconds": [^,}]+', b"", path.read_bytes())


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


def test_a_file_of_other_answers_is_refused_and_kept(
    capsys: Capture, llama_folder: Path, tmp_path: Path
) -> None:
    file = written(tmp_path / "requests.jsonl", 2)
    output = tmp_path / "answers.jsonl"
    asked = ("decide", file, "--model", llama_folder, "-o", output)
    run(capsys, *asked)
    before = output.read_bytes()
    assert_one_line(*run(capsys, *asked, "--seed", 1), ["answers.jsonl", "name another"])
    assert output.read_bytes() == before
    output.write_text('{"a": 1}\n')
    assert_one_line(*run(capsys, *asked), ["answers.jsonl, line 1", "has no key"])


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
    asking(type="choice", criteria={"b": "c"}): ["1 choice", "at least two"],
    asking(type="choice", criteria={"b": "c", "d": 1}): ['description of "d"'],
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
    assert_one_line(*run(capsys, "decide", request_file, "--method", "best"), ['"best"'])
    verify = ("verify", "--decisions", request_file)
    assert_one_line(*run(capsys, *verify, "--question", "q", "--choice", "a", "--choice", "b"), [])
    served = ("--model", "server:http://127.0.0.1:9", "--tokenizer", tmp_path)
    assert_one_line(*run(capsys, *verify, *served), ["runs here"])
    two = written(tmp_path / "two.jsonl", 2)
    assert_one_line(*run(capsys, "verify", "--decisions", two), ["two.jsonl", "a file of one"])


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
