"""Chat templates rendered as the reference library renders them, construct by construct."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the reference library, extra [parity], is missing")

import transformers

from minise import InputError
from minise.loading.checkpoint import load
from minise.writing.chat import chat_text

USER = {"role": "user", "content": "  Is a wren a bird?\n"}
SYSTEM = {"role": "system", "content": "Be short."}
REPLY = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}
TALK = [SYSTEM, USER, REPLY, {"role": "user", "content": "And <bat> & 'owl'?"}]
# What published templates are made of: each with the messages that it takes.
TEMPLATES = {
    "headers, and trimmed content": (
        "{{- bos_token }}{% for message in messages %}"
        "{{- '<|start|>' + message['role'] + '<|end|>\\n' }}"
        "{{- message['content'] | trim + eos_token }}"
        "{% endfor %}{% if add_generation_prompt %}{{- '<|start|>assistant<|end|>' }}{% endif %}",
        [[USER], TALK],
    ),
    "a system prompt by default": (
        "{% if messages[0]['role'] != 'system' %}{{ '<|im|>system\\nYou help.\\n' }}{% endif %}"
        "{% for message in messages %}{{ '<|im|>' + message.role + '\\n' + message.content }}"
        "{% if not loop.last or add_generation_prompt %}{{ '\\n' }}{% endif %}{% endfor %}",
        [[USER], TALK],
    ),
    "roles that must alternate": (
        "{{ bos_token }}{% for message in messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
        "{% if message['role'] == 'user' %}{{ '[I] ' + message['content'] + ' [/I]' }}"
        "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}",
        [[USER], [USER, REPLY, USER]],
    ),
    "a namespace, and thoughts that are dropped": (
        "{%- set ns = namespace(system='', first=true) -%}"
        "{%- for message in messages if message['role'] == 'system' -%}"
        "{%- set ns.system = ns.system + message['content'] -%}{%- endfor -%}"
        "{{ bos_token }}{{ ns.system }}{%- for message in messages -%}"
        "{%- if message['role'] == 'assistant' -%}{%- set content = message['content'] -%}"
        "{%- if '</think>' in content -%}"
        "{%- set content = content.split('</think>')[-1] -%}{%- endif -%}"
        "{{ '<|A|>' + content + '<|e|>' }}{%- elif message['role'] == 'user' -%}"
        "{{ '<|U|>' + message['content'] }}{%- endif -%}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ '<|A|><think>\\n' }}{%- endif -%}",
        [[USER], TALK],
    ),
    "whitespace of blocks": (
        "{{ bos_token }}\n{% for message in messages %}\n    {% if message.content is string %}\n"
        "    {{ message.role }}: {{ message.content }}\n    {% endif %}\n{% endfor %}\nend\n",
        [[USER], TALK],
    ),
    "breaks, filters and json": (
        "{% for message in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
        "{{ message | tojson }}{{ message.role | upper }}{{ message.nothing | default('-') }}"
        "{% endfor %}{{ [1, {'a': 'é<'}] | tojson(indent=2) }}",
        [[USER], TALK],
    ),
    "generation blocks": (
        "{% for message in messages %}{% if message.role == 'assistant' %}\n"
        "  {% generation %}\n{{ message.content }}{{ eos_token }}{% endgeneration %}\n{% else %}"
        "<{{ message.content }}>{% endif %}{% endfor %}",
        [[USER], TALK],
    ),
    "what is set in a generation block": (
        "{% set x = 'a' %}{% set ns = namespace(n=0, self=1) %}{% for message in messages %}"
        "{% generation %}{% set x = message.role %}{% set ns.n = ns.n + 1 %}{{ x }}"
        "{% endgeneration %}{% endfor %}{{ x }}{{ ns.n }}{{ ns.self }}",
        [[USER], TALK],
    ),
    "json with settings": (
        "{{ {'b': 'é', 'a': [1, 2]} | tojson(ensure_ascii=True, sort_keys=True) }}"
        "{{ messages[0] | tojson(separators=(',', ':'), indent=1) }}",
        [[USER]],
    ),
    "tools and documents that are none": (
        "{{ tools is none }}{{ tools is defined }}{{ documents is none }}"
        "{% if tools is not none %}T{% endif %}{{ pad_token is defined }}",
        [[USER]],
    ),
    "macros, and what is not defined": (
        "{% macro say(m) %}<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>{% endmacro %}"
        "{% if tools is defined and tools %}T{% endif %}"
        "{% for m in messages[::-1] %}{{ say(m) }}{% endfor %}{% if not documents %}-{% endif %}",
        [[USER], TALK],
    ),
}


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama_folder, tmp_path / "model"))


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_rendered_alike(name: str, folder: Path) -> None:
    template, talks = TEMPLATES[name]
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    settings = {"chat_template": template, **tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    library = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), chat_template=template, **tokens
    )
    lm = load(folder)
    for messages in talks:
        expected = library.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert chat_text(lm, messages) == expected


def test_a_token_that_is_null_is_not_printed(folder: Path) -> None:
    """As in the files of Qwen2."""
    template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    settings = {"chat_template": template, "bos_token": None, "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    library = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), chat_template=template, eos_token="</s>"
    )
    expected = library.apply_chat_template([USER], tokenize=False, add_generation_prompt=True)
    assert chat_text(load(folder), [USER]) == expected
    assert "None" not in expected


def test_what_a_template_refuses_both_refuse(folder: Path) -> None:
    template, _ = TEMPLATES["roles that must alternate"]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(InputError, match="roles must alternate user/assistant"):
        chat_text(load(folder), [USER, USER])
