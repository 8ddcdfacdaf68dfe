"""Chat templates rendered as the reference library renders them, construct by construct."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the reference library, extra [parity], is missing")

import transformers

from minise.lab.writing.chat import chat_text
from minise.loading.checkpoint import load

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
