"""Every server's forms, and every way in which one fails: no label is lost, and none made up."""

import csv
import json
import math
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minise import LanguageModel, Prompts, Question, branch_logits, generate, load
from minise.commands.cli import main
from minise.commands.result import few_on_labels
from minise.errors import InputError, Unsuited
from minise.lab.methods.cloze import Cloze
from minise.lab.methods.templates import template_named
from minise.lab.serving import http as serving
from minise.lab.serving.server import DRAWS
from minise.method import SelfEnsemble, Standard, ask
from tests.lab.serving.conftest import ANSWERS, Handler, Pretender, chat_completion
from tests.lab.support.answers import read_answers

QUESTION = Question("Which is a bird?", ["wren", "trout", "oak", "ant", "quartz"])
KEY = "sk-of-a-test"
SMALL = SelfEnsemble(group_size=2, trials=2)
Start = Callable[..., Pretender]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of milliseconds, whose sum is counted as on the clock."""
    monkeypatch.setattr(serving, "TIMEOUT", 0.5)
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        time.sleep(seconds / 5000)

    waits = SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep)
    monkeypatch.setattr(serving, "time", waits)
    monkeypatch.setenv(serving.KEY, KEY)


def connect(server: Pretender, folder: Path) -> LanguageModel:
    return load(f"server:{server.url}", tokenizer=folder)


@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
def test_label_logits_are_the_servers_log_probabilities(
    pretend: Start, folder: Path, kind: str
) -> None:
    server = pretend(kind)
    lm = connect(server, folder)
    _, prompts = SelfEnsemble(trials=4).prompts(lm, QUESTION)
    for branch, ids, read in zip(
        prompts.branches, prompts.label_ids, lm.logits(prompts), strict=True
    ):
        expected = server.log_p([*prompts.prefix, *branch])[ids]
        torch.testing.assert_close(read.log_probabilities, expected, rtol=0, atol=1e-12)
    asked = [str(body["prompt"]) for body in server.asked]
    if kind == "llamacpp":  # a label beyond the first 100 is asked for again, with more
        assert {body["n_probs"] for body in server.asked} == {100, 5000}
    else:
        assert len(asked) == len(set(asked)) == len(set(map(tuple, prompts.branches)))
    assert 1 < server.most_at_once <= {"llamacpp": 2}.get(kind, 32)
    assert server.keys == {f"Bearer {KEY}"}


def test_a_server_of_texts_gives_labels_by_their_texts(pretend: Start, folder: Path) -> None:
    server = pretend("openai")
    lm = connect(server, folder)
    answer = ask(lm, SMALL, QUESTION)
    assert len(answer.groups) == 6
    text = server.asked[0]["prompt"]
    assert text.startswith("Which is a bird?\n(A) ")
    assert text.endswith("Answer:")


def test_a_prompt_asks_for_its_own_labels_and_equal_prompts_are_asked_once(
    pretend: Start, folder: Path
) -> None:
    server = pretend("vllm")
    lm = connect(server, folder)
    prompts = Prompts([5], [[7], [8], [7]], [[1, 2], [3], [4, 1]])
    first, _, third = lm.logits(prompts)
    log_p = server.log_p([5, 7])
    assert first.labels.tolist() == log_p[[1, 2]].tolist()
    assert third.labels.tolist() == log_p[[4, 1]].tolist()
    assert [float(one.total) for one in (first, third)] == [0, 0]
    asked = [(body["prompt"], body["logprob_token_ids"]) for body in server.asked]
    assert sorted(asked) == [([[5, 7]], [1, 2, 4]), ([[5, 8]], [3])]


def test_cloze_asks_a_server_for_the_tokens_of_the_texts(pretend: Start, folder: Path) -> None:
    """It does not need the logits of the whole vocabulary."""
    server = pretend("vllm")
    lm = connect(server, folder)
    answer = ask(lm, Cloze(end=False), Question("Which?", ["a", "b"]))
    space_a, space_b = lm.tokenizer.encode(["Which?\nAnswer: a", "Which?\nAnswer: b"])
    assert space_a[:-1] == space_b[:-1]
    log_p = server.log_p(space_a[:-1])[[space_a[-1], space_b[-1]]]
    torch.testing.assert_close(answer.normalized, log_p.softmax(dim=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", list(ANSWERS))
def test_a_label_that_a_server_does_not_give_is_refused_by_name(
    pretend: Start, folder: Path, kind: str
) -> None:
    lm = connect(pretend(kind, gives=1), folder)
    words = r'the label " [A-C]" is not among the \d+ tokens that it gives; .*; read were (" |none)'
    with pytest.raises(InputError, match=words):
        ask(lm, SMALL, QUESTION)


def test_a_question_whose_label_is_not_given_is_left_out_counted_and_named(
    pretend: Start, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = pretend("openai", gives=4)
    table = tmp_path / "my.csv"
    table.write_text("id,question,choice1,choice2,choice3,choice4,choice5\n")
    with table.open("a") as file:
        for number in range(4):
            last = "e" if number in (1, 3) else ""
            file.write(f"q{number},Which {number}?,a,b,c,d,{last}\n")
    output = tmp_path / "run"
    words = ["eval", "--task", str(table), "--method", "standard,cyclic", "-o", str(output)]
    words += ["--model", f"server:{server.url}", "--tokenizer", str(folder)]
    for _ in range(2):  # the second time nothing is asked
        assert main(words) == 0
        said = capsys.readouterr()
        assert '2 of 4 questions are left out ("q1", "q3"): ' in said.err
        assert 'the label " E" is not among' in said.err
        assert '2 of 4 questions are left out ("q1", "q3")' in (output / "report.md").read_text()
        asked, _ = len(server.asked), server.asked.clear()
    assert asked == 0
    with (output / "predictions.csv").open(newline="", encoding="utf-8") as predictions:
        rows = list(csv.DictReader(predictions))
    assert [row["id"] for row in rows] == ["q0", "q1", "q2", "q3"] * 2  # as in the table
    for row in rows:
        if row["id"] in ("q1", "q3"):
            assert 'the label " E" is not among' in row["left_out"]
            assert "ask fewer choices at once (self-ensemble, --group-size 2)" in row["left_out"]
            assert row["prediction"] == row["normalized"] == row["tokens"] == ""
        else:
            assert (row["prediction"] != "", row["left_out"]) == (True, "")


def test_one_of_several_models_is_chosen_by_its_name(
    pretend: Start, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = pretend("vllm")
    server.models = [server.model, {**server.model, "id": "my/lora"}]
    lm = load(f"server:{server.url}#my/lora", tokenizer=folder)
    assert lm.name == "server:my/lora"
    ask(lm, Standard(), QUESTION)
    assert server.asked[-1]["model"] == "my/lora"
    assert connect(server, folder).name == "server:tiny.gguf"
    assert "has /srv/tiny.gguf, my/lora: the first is asked; name another as" in (
        capsys.readouterr().err
    )
    with pytest.raises(InputError, match=r'has no model "other"; it has /srv/tiny\.gguf, my/lora'):
        load(f"server:{server.url}#other", tokenizer=folder)


def test_a_chat_in_a_chat_is_refused_and_the_advice_for_improbable_labels_can_be_followed(
    pretend: Start, folder: Path
) -> None:
    """Where the server makes a chat of each message, --template chat would make two. The templates
    that are named where labels are improbable can all be asked."""
    server = pretend("openai")
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    lm = load(f"server:{server.url}/v1/chat/completions", tokenizer=folder)
    refused = "the server itself makes a chat of each prompt; leave --template chat out"
    with pytest.raises(Unsuited, match=refused):
        ask(lm, Standard(template=template_named("chat")), QUESTION)
    advice = few_on_labels(0.1)
    plain = re.search(r"try --template (\w+) or (\w+), or chat if the weights have", advice)
    assert plain is not None
    for name in plain.groups():
        Standard(template=template_named(name)).prompts(lm, QUESTION)


def test_a_chat_is_asked_where_the_address_says_so(pretend: Start, folder: Path) -> None:
    """The prompt is the user's message, and an answer may begin with a blank or not."""
    server = pretend("openai")
    lm = load(f"server:{server.url}/v1/chat/completions", tokenizer=folder)
    both = {"A": -1.0, " A": -2.0, " B": -3.0, "C": -9999.0, " C": -1.5, "Ax": -0.9}

    def answer(handler: Handler) -> bytes:
        return json.dumps(chat_completion(both)).encode()

    server.faults = [answer]
    _, prompts = Standard().prompts(lm, Question("Which is a bird?", ["wren", "trout", "oak"]))
    (read,) = lm.logits(prompts)
    a, b, c = read.labels.exp().tolist()
    assert a == pytest.approx(math.exp(-1) + math.exp(-2))
    assert (b, c) == pytest.approx((math.exp(-3), math.exp(-1.5)))
    (message,) = server.asked[0]["messages"]
    assert message["role"] == "user"
    assert message["content"].startswith("Which is a bird?\n(A) wren")
    assert message["content"].endswith("Answer:")

    def silent(handler: Handler) -> bytes:
        said = chat_completion(both)
        said["choices"][0]["logprobs"] = None
        return json.dumps(said).encode()

    server.faults = [silent, answer]  # a token without log-probabilities: another is drawn
    (again,) = lm.logits(prompts)
    assert again.labels.equal(read.labels)
    assert [body["seed"] for body in server.asked] == [0, 0, 1]
    server.faults = [silent] * DRAWS
    way = f"of chats; if it has completions too, give server:{server.url}/v1/completions"
    with pytest.raises(InputError, match=re.escape(way)):
        lm.logits(prompts)


def test_a_chat_has_the_same_text_whosever_tokenizer_is_given(pretend: Start, folder: Path) -> None:
    """So a shipped one does for a hosted model whose own is not published."""
    server = pretend("openai")
    question = Question("Which is a bïrd — 水?", ["wren", "two  blanks", "oak, 12,345"])
    messages = []
    for tokenizer in (folder, Path("weights/tiny-llama").resolve()):
        lm = load(f"server:{server.url}/v1/chat/completions", tokenizer=tokenizer)
        ask(lm, Standard(), question)
        messages.append(server.asked[-1]["messages"])
    assert messages[0] == messages[1]
    assert question.text in messages[0][0]["content"]


def by_chance(handler: Handler) -> bytes:
    """An answer that also holds the token drawn, however little probable: so does vLLM."""
    drawn = random.Random(handler.server.asked[-1].get("seed")).choice("ABCDEFGH")
    top = {drawn: -5.0, " A": -1.0, " B": -2.0, " C": -3.0}
    return json.dumps(chat_completion(top)).encode()


def test_what_a_chat_gives_does_not_depend_on_chance(pretend: Start, folder: Path) -> None:
    server = pretend("openai")
    lm = load(f"server:{server.url}/v1/chat/completions", tokenizer=folder)
    server.faults = [by_chance] * 9
    _, prompts = Standard().prompts(lm, Question("Which is a bird?", ["wren", "trout", "oak"]))
    assert len({tuple(lm.logits(prompts)[0].labels.tolist()) for _ in range(9)}) == 1


@pytest.mark.parametrize("owner", ["vllm", "llamacpp"])
def test_a_missing_label_leads_to_the_form_that_asks_by_ids(
    pretend: Start, folder: Path, owner: str
) -> None:
    """Where the server says that it has one."""
    server = pretend("openai", gives=1)
    server.model["owned_by"] = owner
    lm = load(f"server:{server.url}/v1/completions", tokenizer=folder)
    way = f"; give server:{server.url}, which is asked for each label by its id"
    with pytest.raises(InputError, match=re.escape(way)):
        ask(lm, Standard(), QUESTION)


def status(code: int, text: str = "", **headers: str) -> Callable[[Handler], None]:
    def fault(handler: Handler) -> None:
        handler.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(text))}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(text.encode())
        handler.close_connection = True

    return fault


def cut(handler: Handler) -> None:
    """Half an answer."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{")
    handler.close_connection = True


def slow(handler: Handler) -> None:
    time.sleep(0.001)  # frees the lock
    handler.connection.settimeout(2)
    handler.close_connection = True
    handler.rfile.read(1)  # until the client hangs up


def never_drawn(handler: Handler) -> bytes:
    return b'{"tokens_evaluated": 9}'  # of llama.cpp, for a part of a character


@pytest.mark.parametrize(
    "faults",
    [
        [cut] * 3,
        [slow],
        [status(503, "Loading model")] * 4,
        [status(429)] * 6,  # for a minute
        [status(429, Retry_After="60"), status(500)],
        [never_drawn] * 5,
    ],
    ids=["cut", "slow", "loading", "busy", "told-when", "part-of-a-character"],
)
def test_what_passes_is_asked_again(pretend: Start, folder: Path, faults: list[Any]) -> None:
    server = pretend("llamacpp")
    lm = connect(server, folder)
    expected = ask(lm, SMALL, QUESTION)
    server.faults += faults
    assert ask(lm, SMALL, QUESTION).normalized.equal(expected.normalized)
    assert not server.faults


def says(value: str) -> Callable[[Handler], bytes]:
    """An answer of llama.cpp's form with this value for each label."""

    def answer(handler: Handler) -> bytes:
        read = ",".join(f'{{"id": {i}, "logprob": {value}}}' for i in range(288))
        drawn = f'[{{"top_logprobs": [{read}]}}]'
        count = len(handler.server.asked[-1]["prompt"])
        return f'{{"completion_probabilities": {drawn}, "tokens_evaluated": {count}}}'.encode()

    return answer


def another_count(handler: Handler) -> bytes:
    handler.server.asked[-1]["prompt"] = [1, 2, 3]
    return says("-9.0")(handler)


REFUSED = {
    "no JSON": ([lambda handler: b"<html>"], "answers no JSON"),
    "another form": (
        [lambda handler: b'{"completion_probabilities": {}}'],
        "gives no log-probabilities",
    ),
    "text for a number": ([says('"-1.5"')], "-1.5 is no log-probability"),
    "NaN": ([says("NaN")], "NaN is no log-probability"),
    "a certain label": ([says("-3.4e38")], "e\\+38 is no log-probability"),
    "logits": ([says("7.5")], "7.5 is no log-probability"),
    "too much": ([says("-0.1")], "of 5 labels add up to 4.524"),
    "another count": ([another_count], "counts 3 tokens, not"),
    "refusal": ([status(400, f"bad key {KEY}\n")], "status 400, a text with the key in it"),
    "no key": ([status(401, "who are you?")], f"who are you\\?; set {serving.KEY}"),
    "for ever": ([status(500, "no GPU")] * 40, r"does not answer \(status 500, no GPU\)"),
    "gone": ([cut] * 40, "is the server up?"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_pass_is_refused_in_one_line(pretend: Start, folder: Path, name: str) -> None:
    faults, message = REFUSED[name]
    server = pretend("llamacpp")
    lm = connect(server, folder)
    server.faults += faults
    with pytest.raises(InputError, match=message) as refusal:
        ask(lm, Standard(), QUESTION)
    assert KEY not in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("127.0.0.1:1", "give server:http://HOST:PORT"),
        (f"http://me:{KEY}@127.0.0.1:1", "without a key"),
        ("http://127.0.0.1:1", "is the server up"),
        ("http://[", "is the server up|Invalid"),
    ],
)
def test_an_address_that_is_none_is_refused(folder: Path, url: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        load(f"server:{url}", tokenizer=folder)
    assert KEY not in str(refusal.value)


def test_settings_of_weights_and_a_missing_tokenizer_are_refused(folder: Path) -> None:
    for message, settings in {
        "add --tokenizer": {},
        "leave --dtype out": {"tokenizer": folder, "dtype": "float32"},
        "leave --quantize out": {"tokenizer": folder, "quantize": "nf4"},
    }.items():
        with pytest.raises(InputError, match=message):
            load("server:http://127.0.0.1:1", **settings)
    with pytest.raises(InputError, match="a checkpoint has its own"):
        load(folder, tokenizer=folder)


def test_a_setting_of_how_prompts_run_is_refused(folder: Path) -> None:
    for message, settings in {
        "leave --engine out": {"engine": "packed"},
        "leave --equal-bits out": {"equal_bits": True},
    }.items():
        with pytest.raises(InputError, match=message):
            load("server:http://127.0.0.1:1", tokenizer=folder, **settings)


def test_what_needs_weights_is_unsuited(pretend: Start, folder: Path) -> None:
    with pytest.raises(Unsuited):
        generate(connect(pretend("vllm"), folder), ["Why?"])


def test_a_prompt_beyond_the_servers_context_is_refused(pretend: Start, folder: Path) -> None:
    lm = connect(pretend("vllm"), folder)
    with pytest.raises(Unsuited, match="positions for 1023"):
        lm.logits(Prompts([1] * 1024, [[3]], [[1]]))


def test_ask_says_which_model_a_server_has(
    pretend: Start, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = pretend("llamacpp")
    words = ["ask", "--model", f"server:{server.url}", "--tokenizer", str(folder)]
    assert main([*words, "--trials", "1"]) == 0
    assert f"\nModel: server:{server.url}, which serves tiny.gguf\n" in capsys.readouterr().out


def test_a_run_says_before_it_asks_how_many_prompts_and_tokens_are_left(
    pretend: Start, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = pretend("vllm")
    words = ["eval", "--task", "miniature", "--limit", "4", "--trials", "2", "-o", str(tmp_path)]
    words += ["--model", f"server:{server.url}", "--tokenizer", str(folder)]
    words += ["--method", "standard,cot,self-ensemble"]  # cot is left out

    def price() -> tuple[int, int]:
        said = re.findall(
            r"will be sent about ([\d,]+) prompts, of ([\d,]+) tokens", capsys.readouterr().err
        )
        ((prompts, tokens),) = said
        return int(prompts.replace(",", "")), int(tokens.replace(",", ""))

    server.faults = [status(401)]
    assert main(words) == 2
    whole = price()
    server.asked.clear()
    assert main(words) == 0
    assert price() == whole
    ids = [body["prompt"][0] for body in server.asked]
    assert whole == (4 + 4 * 2 * 2, sum(map(len, ids)))
    standard = tmp_path / "samples-miniature-standard.jsonl"
    standard.write_text("".join(standard.read_text().splitlines(keepends=True)[:-1]))
    assert main(words) == 0
    assert price() == (1, len(ids[3]))
    assert main(words) == 0
    assert "will be sent" not in capsys.readouterr().err


# A run against a server that is killed, and by a client that is.

EVAL = ["eval", "--task", "miniature", "--limit", "12", "--method", "standard,self-ensemble"]
EVAL += ["--trials", "2"]


def client(server: Pretender, folder: Path, output: Path) -> subprocess.Popen[bytes]:
    words = [*EVAL, "--model", f"server:{server.url}", "--tokenizer", str(folder)]
    script = "import sys; from minise.commands.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", script, *words, "-o", str(output)], stdout=subprocess.DEVNULL
    )


def wait_for(server: Pretender, requests: int) -> None:
    while len(server.asked) < requests:
        time.sleep(0.001)


def answers(folder: Path) -> list[Any]:
    found = []
    for path in sorted(folder.glob("samples-*.jsonl")):
        found += [replace(answer, seconds=0.0) for answer in read_answers(path)]
    return found


@pytest.mark.slow
def test_a_killed_client_and_a_killed_server_lose_nothing(
    pretend: Start, folder: Path, tmp_path: Path
) -> None:
    """And no prompt of a question that has its answer is asked again."""
    server = pretend("vllm")
    assert client(server, folder, tmp_path / "whole").wait(60) == 0
    whole, _ = len(server.asked), server.asked.clear()
    process = client(server, folder, tmp_path / "killed")
    wait_for(server, whole // 3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(answers(tmp_path / "killed"))
    process = client(server, folder, tmp_path / "killed")
    wait_for(server, 2 * whole // 3)
    server.kill()
    time.sleep(0.1)
    second = pretend("vllm", port=server.server_port)
    assert process.wait(60) == 0
    assert answers(tmp_path / "killed") == answers(tmp_path / "whole")
    assert 0 < done < 24
    assert len(second.asked) > 10
    assert whole <= len(server.asked) + len(second.asked) <= whole + 2 * 9  # of two questions
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or KEY not in path.read_text(errors="replace")
    assert '"dtype": "its own dtype"' in (tmp_path / "whole" / "run.json").read_text()


def test_verify_says_how_far_served_and_local_probabilities_are_apart(
    pretend: Start, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    local, server = load(folder, dtype="float32"), pretend("vllm")
    words = [*f"verify --trials 1 --model server:{server.url} --tokenizer".split(), str(folder)]
    assert main(words) == 1
    assert "FAILED: the average is above 0.1" in capsys.readouterr().out
    monkeypatch.setattr(
        Pretender, "log_p", lambda self, ids: branch_logits(local, [], [ids])[0].log_softmax(-1)
    )
    assert main([*words, "--json"]) == 0
    assert re.search(r'"questions": 5, .*"choices": 0, "passed": true', capsys.readouterr().out)
