"""Whatever a server says: a command is done, or refuses it in one line, soon and in little memory.

Hypothesis takes sound answers, puts other values into them, and damages their bytes.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="it draws the damage; the extra [test] has it")
pytest.importorskip("resource", reason="limits of POSIX")

from hypothesis import given
from hypothesis import strategies as st

from minise import Prompts, Question, load
from minise.errors import InputError
from minise.method import Standard, ask
from tests.lab.claims.test_readers import bounded, broken, several
from tests.lab.serving.conftest import ANSWERS, Handler, Pretender, skip_waits
from tests.reference.support.cases import cases
from tests.reference.support.commands import Q, assert_one_line, run
from tests.reference.support.tiny import make_tokenizer

QUESTION = Question("Which is a bird?", ["wren", "trout", "oak", "ant", "quartz"])
Start = Callable[..., Pretender]
KINDS = list(ANSWERS)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_waits(monkeypatch)


def connect(server: Pretender, folder: Path) -> Any:
    return load(f"server:{server.url}", tokenizer=folder)


def refusal(server: Pretender, folder: Path) -> str:
    with pytest.raises(InputError) as refused:
        ask(connect(server, folder), Standard(), QUESTION)
    line = str(refused.value)
    assert server.url in line
    assert "\n" not in line
    return line


# What a server says of its model.


OF_MODEL = {
    "max_model_len": ["1024", 0, -1, 1, 1.5, True, [1024], 10**30, float("nan")],
    "id": [None, "", 7, "a\nb", "\x1b[2J", "\ud800", "x" * 501, ["a"]],
    "owned_by": [7, ["vllm"], {}],
    "meta": ["text", 7, ["n_vocab"], False],
}
OF_META = {
    "n_vocab": ["288", 0, -1, 288.0, True, [288], float("inf")],
    "ftype": [7, "", ["F32"], "\x1b[2J"],
}
OF_PROPS = {"total_slots": ["2", 0, -1, 1.5, None, float("nan"), [2], 10**9]}
OF_SETTINGS = {"n_ctx": ["1024", 0, -1, None, float("nan"), float("inf"), 10**30]}


@pytest.mark.parametrize("name", OF_MODEL)
def test_a_wrong_fact_of_a_model_is_named(pretend: Start, folder: Path, name: str) -> None:
    for value in OF_MODEL[name]:
        server = pretend("vllm")
        server.model[name] = value
        assert f"does not say what it runs ({name} is " in refusal(server, folder)


@pytest.mark.parametrize("name", OF_META)
def test_a_wrong_fact_of_its_file_is_named(pretend: Start, folder: Path, name: str) -> None:
    for value in OF_META[name]:
        server = pretend("llamacpp")
        server.model["meta"] = {name: value}
        assert f"does not say what it runs ({name} is " in refusal(server, folder)


@pytest.mark.parametrize("name", [*OF_PROPS, *OF_SETTINGS])
def test_a_wrong_fact_of_llamacpps_slots_is_named(pretend: Start, folder: Path, name: str) -> None:
    for value in (OF_PROPS | OF_SETTINGS)[name]:
        server = pretend("llamacpp")
        holder = server.props
        if name in OF_SETTINGS:
            holder = server.props["default_generation_settings"]
        holder[name] = value
        assert f"does not say what it runs ({name} is " in refusal(server, folder)


@pytest.mark.parametrize("models", [None, [], {}, [[]], ["tiny"], "tiny", [None]])
def test_a_list_of_no_models_is_refused(pretend: Start, folder: Path, models: Any) -> None:
    server = pretend("vllm")
    server.models = models
    assert "does not say what it runs (data is " in refusal(server, folder)


# What it says after a prompt.


def change(server: Pretender, edit: Callable[[Any], Any]) -> None:
    """Let the server change its answers, or what it sends."""

    def fault(handler: Handler) -> bytes:
        answer = ANSWERS[server.kind](server, server.asked[-1])
        edited = edit(answer)
        return edited if isinstance(edited, bytes) else json.dumps(edited).encode()

    server.faults += [fault] * 99


def logprobs_of(answer: Any) -> Any:
    """The place of the values: of each token, by its name, or a list of entries."""
    if "choices" in answer:
        return answer["choices"][0]["logprobs"]["top_logprobs"][0]
    return answer["completion_probabilities"][0]["top_logprobs"]


VALUES = {
    "a long number": 10**400,
    "the same with its sign": -(10**400),
    "a number as text": "-1.5",
    "nothing": None,
    "true": False,
    "a list": [-1.5],
    "NaN": float("nan"),
    "infinity": float("-inf"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_is_no_log_probability_is_refused(
    pretend: Start, folder: Path, kind: str, name: str
) -> None:
    def edit(answer: Any) -> Any:
        values = logprobs_of(answer)
        for place in values if isinstance(values, dict) else range(len(values)):
            if kind == "llamacpp":
                values[place]["logprob"] = VALUES[name]
            else:
                values[place] = VALUES[name]
        return answer

    server = pretend(kind)
    change(server, edit)
    assert " is no log-probability, a number from -87" in refusal(server, folder)


def twice(answer: Any) -> Any:
    """The last label, with another value."""
    values = logprobs_of(answer)
    if isinstance(values, list):
        values.append({**values[-1], "logprob": -9.0})
        return answer
    sent = json.dumps(answer)
    for name in values:
        sent = sent.replace(
            f"{json.dumps(name)}:", f"{json.dumps(name)}: -9.0, {json.dumps(name)}:"
        )
    return sent.encode()


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_with_two_values_is_refused(pretend: Start, folder: Path, kind: str) -> None:
    server = pretend(kind)
    change(server, twice)
    line = refusal(server, folder)
    assert "twice, with two values" in line or "a list is no log-probability" in line


@pytest.mark.parametrize("kind", ["vllm", "openai"])
@pytest.mark.parametrize("choices", [0, 2])
def test_answers_to_another_number_of_prompts_are_refused(
    pretend: Start, folder: Path, kind: str, choices: int
) -> None:
    server = pretend(kind)
    change(server, lambda answer: {**answer, "choices": answer["choices"] * choices})
    assert "choices is a list, and must be a list of one" in refusal(server, folder)


@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
@pytest.mark.parametrize("count", ["9", None, 1.5, True, -1, 10**30])
def test_a_count_of_tokens_that_is_none_is_refused(
    pretend: Start, folder: Path, kind: str, count: Any
) -> None:
    def edit(answer: Any) -> Any:
        if kind == "vllm":
            answer["usage"]["prompt_tokens"] = count
        else:
            answer["tokens_evaluated"] = count
        return answer

    server = pretend(kind)
    change(server, edit)
    line = refusal(server, folder)
    assert f"counts {count} tokens" in line or "and must be a whole number" in line


@pytest.mark.parametrize("token", ["5", 5.7, True, None, [5]])
def test_an_id_that_is_no_whole_number_is_refused(pretend: Start, folder: Path, token: Any) -> None:
    def edit(answer: Any) -> Any:
        logprobs_of(answer).append({"id": token, "logprob": -9.0})
        return answer

    server = pretend("llamacpp")
    change(server, edit)
    assert "must be a whole number" in refusal(server, folder)


# Whose tokens they are.


def test_the_tokenizer_of_another_model_is_refused(
    pretend: Start, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has as many tokens, so that nothing else shows it."""
    for kind in ("vllm", "llamacpp"):
        server = pretend(kind)
        other = json.loads(make_tokenizer(bos=False).to_str())
        names = list(other["model"]["vocab"])
        other["model"]["vocab"] = {name: i for i, name in enumerate(reversed(names))}
        server.tokenizer = server.tokenizer.from_str(json.dumps(other))
        words = ["ask", *Q, "--model", f"server:{server.url}", "--tokenizer", folder]
        parts = ["tokenizer.json makes [", "the server [", "give --tokenizer"]
        assert_one_line(*run(capsys, *words), parts)
        assert not server.asked


@pytest.mark.parametrize(("size", "fits"), [(288, True), (283, True), (32_000, False), (9, False)])
def test_a_vocabulary_of_another_size_is_refused(
    pretend: Start, folder: Path, size: int, fits: bool
) -> None:
    """Models have some ids more than their tokenizers."""
    server = pretend("llamacpp")
    server.model["meta"] = {"n_vocab": size}
    if fits:
        assert connect(server, folder).limits.vocabulary == size
    else:
        assert f"has 283 tokens, and the served model {size:,};" in refusal(server, folder)


@pytest.mark.parametrize("kind", KINDS)
def test_one_line_says_that_no_tokens_were_compared(
    pretend: Start, folder: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    server = pretend(kind)
    connect(server, folder)
    expected = "were not compared" if kind == "openai" else ""
    assert expected in capsys.readouterr().err
    server.tokenizer = None  # an older version
    lm = connect(server, folder)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "its tokens were not compared with --tokenizer" in lines[0]
    assert f"minise verify --model server:{server.url} --tokenizer" in lines[0]
    assert lm.logits(Prompts([5], [[7]], [[1]])) if kind != "openai" else True


def test_ask_names_what_ran(
    pretend: Start, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = pretend("vllm")
    words = ["ask", *Q, "--group-size", 2, "--trials", 1]
    words += ["--model", f"server:{server.url}", "--tokenizer", folder]
    status, out, _ = run(capsys, *words)
    assert status == 0
    out = " ".join(out.split())
    assert "this run: separate" in out
    assert "this run: tree" not in out


# Anything at all.


HEADERS = st.sampled_from(["application/json", "text/html; charset=hex", "a; charset=utf-16", ""])
STATUSES = st.sampled_from([200] * 12 + [204, 301, 308, 400, 401, 404, 503])


@pytest.mark.parametrize("kind", KINDS)
@cases(6)
@given(data=st.data())
def test_any_answer_is_read_or_refused_in_one_line(
    pretend: Start,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    data: st.DataObject,
) -> None:
    server = pretend(kind)
    url = ["--model", f"server:{server.url}", "--tokenizer", str(folder)]
    words = ["ask", *Q, "--method", "standard", "--json", *url]
    assert run(capsys, *words)[0] == 0
    for path, answer in dict(server.sent).items():
        content = json.dumps(several(data.draw, answer)).encode()
        headers = {"Content-Type": data.draw(HEADERS), "Location": server.url}
        server.instead[path] = (data.draw(STATUSES), headers, broken(data.draw, content))
    with bounded():
        status, out, err = run(capsys, *words)
    assert status in (0, 2)
    lines = err.splitlines(keepends=True)
    err = "".join(line for line in lines if "its tokens were not compared" not in line)
    assert len(lines) <= 2
    if status == 2:
        assert_one_line(status, out, err, [server.url])
        assert "memory" not in err.lower()
    else:
        found = json.loads(out)
        probabilities = [choice["normalized"] for choice in found["choices"]]
        assert sum(probabilities) == pytest.approx(1)
        assert err == ""
    server.kill()
