"""Stop tokens and chat templates, read from the files of a checkpoint."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from minise import InputError, LanguageModel, generate, load
from minise.lab.writing import chat
from minise.lab.writing.chat import chat_template, chat_text, stop_tokens

MESSAGES = [{"role": "user", "content": "Is a wren a bird?"}]
# The constructs of published templates, in one.
TEMPLATE = """{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {{- '<|' + message.role + '|>' + (system if loop.first else '') + message.content }}
    {%- if not loop.last %}{{ '\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""


def grown(step: str) -> str:
    """A template that takes this step 99 times."""
    loop = f"{{% for i in range(99) %}}{{% set v.x = {step} %}}{{% endfor %}}"
    return f"{{% set v = namespace(x='ab') %}}{loop}{{{{ v.x }}}}"


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama_folder, tmp_path / "model"))


def with_files(folder: Path, **files: Any) -> LanguageModel:
    """The checkpoint with these JSON files: tokenizer_config={...}."""
    for name, held in files.items():
        (folder / f"{name}.json").write_text(json.dumps(held))
    return load(folder)


def test_stop_tokens_come_from_the_generation_config_first_and_the_tokenizer_last(
    folder: Path,
) -> None:
    lm = with_files(folder, tokenizer_config={"eos_token": {"content": "<s>"}})
    assert stop_tokens(lm) == [0]
    assert generate(lm, ["abc"], 3)
    config = json.loads((folder / "config.json").read_text()) | {"eos_token_id": 7}
    assert stop_tokens(with_files(folder, config=config)) == [7]
    assert stop_tokens(with_files(folder, generation_config={"eos_token_id": [3, 4]})) == [3, 4]


@pytest.mark.parametrize("place", ["in the settings", "by name", "in a file"])
def test_a_template_is_found_where_checkpoints_keep_it(folder: Path, place: str) -> None:
    held: dict[str, Any] = {"bos_token": "<s>", "chat_template": TEMPLATE}
    if place == "by name":
        others = [{"name": "default", "template": "the last"}, {"name": "tool", "template": "no"}]
        held["chat_template"] = [*others, {"name": "default", "template": TEMPLATE}, {"name": []}]
    if place == "in a file":
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        held["chat_template"] = "not this one"
    lm = with_files(folder, tokenizer_config=held)
    assert chat_text(lm, MESSAGES) == "<s><|user|>Is a wren a bird?<|assistant|>"
    system = [{"role": "system", "content": " Be brief. "}, *MESSAGES]
    assert chat_text(lm, system) == "<s><|user|>Be brief.Is a wren a bird?<|assistant|>"


@pytest.mark.parametrize("templates", [[{"template": "x"}], [{"name": "default"}], [3], [], None])
def test_without_a_default_template_there_is_none(folder: Path, templates: Any) -> None:
    assert chat_template(with_files(folder, tokenizer_config={"chat_template": templates})) is None


@pytest.mark.parametrize(
    ("template", "text"),
    [
        # Published templates ask whether documents are none: an undefined name is not.
        ("{% if tools is not none or documents is not none %}given{% else %}x{% endif %}", "x"),
        ("{% if eos_token is defined %}{{ eos_token }}{% endif %}", ""),
        ("a\n{%- generation -%}\n b{% set x = 1 %}\n{%- endgeneration %}{{ x }} c", "ab c"),
        ("{% for a in range(9) %}{% if a > 1 %}{% break %}{% endif %}{{ a }}{% endfor %}", "01"),
        ("{{ {'b': '<é>', 'a': [1]} | tojson }}", '{"b": "<é>", "a": [1]}'),
        ("{{ {'a': [1]} | tojson(indent=1) }}", '{\n "a": [\n  1\n ]\n}'),
        ("{% if true %}\n  x\n  {% endif %}y\u2028\t\\n", "  x\ny\u2028\t\\n"),
        ("{{ strftime_now('%%') }}", "%"),
    ],
)
def test_templates_have_what_the_reference_library_gives_them(
    folder: Path, template: str, text: str
) -> None:
    lm = with_files(folder, tokenizer_config={"chat_template": template, "eos_token": None})
    assert chat_text(lm, MESSAGES) == text


HOSTILE = {
    "python's own": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a changed message": "{{ messages.append(1) }}",
    "globals": "{{ raise_exception.__globals__['os'] }}",
    "a file": "{% include '/etc/passwd' %}",
    "a range": "{% for i in range(10 ** 9) %}x{% endfor %}",
    "an undefined name": "{{ undefined.attribute.of.nothing }}",
    "no template": "{% if %}",
    "refusal": "{{ raise_exception('roles\n must alternate' * 99) }}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a power": "{{ 10 ** (10 ** 10) }}",
    "a product": "{{ 'a' * 10 ** 9 }}",
    "doubling": grown("v.x ~ v.x"),
    "a macro without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "a long text": "{{ 'a' * 22000000 }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_or_broken_template_is_refused_in_one_line(folder: Path, name: str) -> None:
    lm = with_files(folder, tokenizer_config={"chat_template": HOSTILE[name]})
    with pytest.raises(InputError, match="its chat template failed") as caught:
        chat_text(lm, MESSAGES)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300 + len(lm.name)


@pytest.mark.parametrize(
    ("name", "content", "ask"),
    [
        ("generation_config.json", b"{", stop_tokens),
        ("generation_config.json", b'{"eos_token_id": "2"}', stop_tokens),
        ("generation_config.json", b'{"eos_token_id": [1, 288]}', stop_tokens),
        ("tokenizer_config.json", b'{"eos_token": "none such"}', stop_tokens),
        ("chat_template.jinja", b"{{ bos_token }}\xac", chat_template),
        ("chat_template.jinja", b" " * (chat.MOST_TEMPLATE_BYTES + 1), chat_template),
    ],
)
def test_a_damaged_file_or_an_absent_fact_is_refused(
    folder: Path, name: str, content: bytes, ask: Any
) -> None:
    (folder / name).write_bytes(content)
    lm = load(folder)
    with pytest.raises(InputError, match=str(folder)) as caught:
        ask(lm)
    assert "\n" not in str(caught.value)
