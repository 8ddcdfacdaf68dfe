"""Templates that take all time and memory, and the process that renders them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minise import InputError
from minise.writing import templates
from minise.writing.templates import render


def grown(step: str, start: str = "'ab'") -> str:
    """A template that takes this step 99 times, beginning with v.x = start."""
    loop = f"{{% for i in range(99) %}}{{% set v.x = {step} %}}{{% endfor %}}"
    return f"{{% set v = namespace(x={start}) %}}{loop}{{{{ v.x }}}}"


ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a power": "{{ 10 ** (10 ** 10) }}",
    "products": grown("v.x * v.x", "7"),
    "macros that call themselves twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}"
    ),
    "lists of one list": grown("[v.x, v.x]"),
    "lists as JSON": grown("[v.x, v.x]").replace("{{ v.x", "{{ v.x | tojson"),
    "lists compared": (
        "{% set v = namespace(x=[1], y=[1]) %}{% for i in range(99) %}"
        "{% set v.x = [v.x, v.x] %}{% set v.y = [v.y, v.y] %}{% endfor %}{{ v.x == v.y }}"
    ),
    "the hash of tuples": grown("(v.x, v.x)").replace("{{ v.x", "{{ {v.x: 1}"),
    "objects of one object": grown("dict(a=v.x, b=v.x)"),
    "namespaces of one namespace": grown("namespace(a=v.x, b=v.x)"),
    "slices": "{{ [1] | slice(10 ** 10) | list }}",
    "random text": "{{ lipsum(n=10 ** 9) }}",
}
LARGE = {
    "a product": "{{ 'a' * 10 ** 9 }}",
    "a product that is no constant": "{% set n = 10 ** 9 %}{{ 'a' * n }}",
    "a width": "{{ '%1000000000d' % 1 }}",
    "a width that is given": "{{ '%*d' % (10 ** 9, 1) }}",
    "a width in a filter": "{{ '%1000000000d' | format(1) }}",
    "a width in format": "{{ '{:1000000000}'.format(1) }}",
    "a width given to format": "{{ '{:{w}}'.format(1, w=10 ** 9) }}",
    "center": "{{ 'a' | center(10 ** 10) }}",
    "a method center": "{{ 'a'.center(10 ** 10) }}",
    "bytes": "{{ (1).to_bytes(10 ** 10, 'big') }}",
    "tabs": "{{ ('\\t' * 10 ** 6).expandtabs(10 ** 6) }}",
    "indent": "{{ ('a\n' * 10 ** 5) | indent('x' * 10 ** 5) }}",
    "join": "{{ range(99999) | join('x' * 10 ** 6) }}",
    "a batch": "{{ [1] | batch(10 ** 9, 'x') | list }}",
    "JSON": "{{ [[1]] | tojson(indent=10 ** 9) }}",
    "doubling": grown("v.x ~ v.x"),
    "doubling by plus": grown("v.x + v.x"),
    "replacing": grown("v.x | replace('a', 'aaa')"),
}
OTHER = {
    "range": ("{% for a in range(10 ** 12) %}{% endfor %}", "Range too big"),
    "a macro without end": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    "parentheses": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "recursion"),
    "blocks": ("{% if 1 %}" * 3000 + "{% endif %}" * 3000, "recursion|nested"),
    "a name of Python's own": (
        "{{ namespace(__class__=1) }}",
        'it sets "__class__" in a namespace',
    ),
    "a name set later": (
        "{% set n = namespace() %}{% set n._x = 1 %}",
        'it sets "_x" in a namespace',
    ),
    "a long text": (
        "{{ 'a' * 10000001 }}",
        "it writes 10,000,001 characters, more than 10,000,000",
    ),
    "a long refusal": ("{{ raise_exception('x' * 10 ** 7) }}", "refuses these messages: xxx"),
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "SECONDS", 0.2)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", [*ENDLESS, *LARGE])
def test_a_template_beyond_the_limits_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(InputError, match=r"^it takes more than [^\n]+$"):
        render((ENDLESS | LARGE)[name], {})


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not limit memory")
def test_memory_is_limited() -> None:
    with pytest.raises(InputError, match="it takes more than 512 MiB of memory"):
        render(LARGE["a product"], {})


@pytest.mark.parametrize("name", OTHER)
def test_what_fails_within_the_limits_says_why_in_one_line(name: str) -> None:
    template, reason = OTHER[name]
    with pytest.raises(InputError, match=reason) as caught:
        render(template, {})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_the_next_template_is_rendered_after_one_that_was_ended(impatient: None) -> None:
    with pytest.raises(InputError, match=r"more than 0\.2 seconds, or more memory than 512 MiB"):
        render(ENDLESS["loops"], {})
    assert render("{{ x }}", {"x": "wren"}) == "wren"


def test_many_short_renderings_together_may_take_longer_than_one(impatient: None) -> None:
    """The limit is for each of them."""
    template = "{% for a in range(20000) %}{{ loop.index }}{% endfor %}"
    assert {len(render(template, {})) for _ in range(40)} == {88894}


@pytest.mark.parametrize(
    "text", ["é 鳥 \u2028 \x85", "\r\n\t\x00", "half of a pair: \ud800", "\\n"]
)
def test_every_text_passes_unchanged(text: str) -> None:
    assert render("<{{ x }}>", {"x": text}) == f"<{text}>"
    assert render(f"<{text.strip()}>", {}) == f"<{text.strip()}>"


def test_a_template_keeps_nothing_for_the_next_rendering() -> None:
    counting = "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}"
    assert [render(counting, {}), render(counting, {})] == ["ab", "ab"]


class TestTheProcess:
    def test_one_renders_everything(self) -> None:
        render("", {})
        process = templates._process(os.getpid())
        with pytest.raises(InputError, match="division by zero"):
            render("{{ 1 / 0 }}", {})
        assert templates._process(os.getpid()) is process

    def test_another_starts_if_it_was_ended(self) -> None:
        render("", {})
        process = templates._process(os.getpid())
        process.kill()
        process.wait()
        assert render("x", {}) == "x"

    @pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
    def test_a_signal_from_the_keyboard_does_not_end_it(self) -> None:
        process = templates._process(os.getpid())
        process.send_signal(signal.SIGINT)
        assert render("x", {}) == "x"
        assert templates._process(os.getpid()) is process

    def test_after_an_interrupted_request_the_next_gets_its_own_reply(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(process: Any, request: str) -> str:
            process.stdin.write(request + "\n")
            process.stdin.flush()
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(templates, "_exchange", interrupted)
            with pytest.raises(KeyboardInterrupt):
                render("first", {})
        assert render("second", {}) == "second"

    def test_the_clock_ends_what_no_other_limit_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(templates, "SECONDS", 9999.0)
        monkeypatch.setattr(templates, "CLOCK_SECONDS", 0.3)
        with pytest.raises(InputError, match="it takes more than"):
            render(ENDLESS["loops"], {})

    @pytest.mark.skipif(sys.platform == "win32", reason="no such program")
    def test_a_python_that_does_not_start_is_one_line(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        templates._end(templates._process(os.getpid()))
        monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
        with pytest.raises(InputError, match=r"no process could be started for it: .*No such file"):
            render("x", {})
        monkeypatch.setattr(sys, "executable", "/bin/true")
        with pytest.raises(InputError, match="the process for it does not start; run /bin/true"):
            render("x", {})

    def test_it_runs_no_code_of_the_current_folder_and_ends_quietly(self, tmp_path: Path) -> None:
        for name in ("jinja2", "json", "signal", "chat"):
            (tmp_path / f"{name}.py").write_text("print('from this folder')\n")
        program = "from minise.writing.templates import render; print(render('{{ 1 + 1 }}', {}))"
        # The program itself is not to look in the current folder either.
        code = f"import sys; sys.path[:] = {sys.path}; {program}"
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "error", "-c", code],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
