"""Stop tokens and chat templates, read from the files of a checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from minise import InputError, LanguageModel, generate
from minise.loading.checkpoint import load
from minise.loading.source import optional_file
from minise.writing.chat import chat_ids, chat_template, chat_text, stop_tokens

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


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama_folder, tmp_path / "model"))


def with_files(folder: Path, **files: Any) -> LanguageModel:
    """The checkpoint with these JSON files: tokenizer_config={...}."""
    for name, held in files.items():
        (folder / f"{name}.json").write_text(json.dumps(held))
    return load(folder)


class TestStopTokens:
    def test_stop_tokens_come_from_the_generation_config_first(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | {"eos_token_id": 7}
        assert stop_tokens(with_files(folder, config=config)) == [7]
        lm = with_files(folder, generation_config={"eos_token_id": [3, 4]})
        assert stop_tokens(lm) == [3, 4]

    def test_stop_tokens_come_from_the_tokenizer_config_last(self, folder: Path) -> None:
        lm = with_files(folder, tokenizer_config={"eos_token": {"content": "<s>"}})
        assert stop_tokens(lm) == [0]
        assert generate(lm, ["abc"], 3)  # it needs no `stop`

    @pytest.mark.parametrize("ids", ["2", [1, "2"], -1, 288, [True], 1.5])
    def test_a_stop_token_that_is_no_id_is_refused(self, folder: Path, ids: Any) -> None:
        with pytest.raises(InputError, match="eos_token_id is not a token id"):
            stop_tokens(with_files(folder, generation_config={"eos_token_id": ids}))

    def test_a_checkpoint_without_a_stop_token_is_refused(self, folder: Path) -> None:
        with pytest.raises(InputError, match="names no stop token"):
            stop_tokens(load(folder))

    def test_a_file_is_looked_up_once_for_a_model(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise the hub would be asked for an absent file every time."""
        looked: list[str] = []

        def look(find: Any, name: str) -> Path | None:
            looked.append(name)
            return optional_file(find, name)

        monkeypatch.setattr("minise.writing.chat.optional_file", look)
        lm = with_files(folder, tokenizer_config={"eos_token": "<s>"})
        assert [stop_tokens(lm), chat_template(lm), stop_tokens(lm)] == [[0], None, [0]]
        assert sorted(looked) == sorted(set(looked))
        assert "generation_config.json" in looked

    def test_a_damaged_file_is_refused(self, folder: Path) -> None:
        (folder / "generation_config.json").write_text("{")
        with pytest.raises(InputError, match=r"generation_config\.json: not readable as JSON"):
            stop_tokens(load(folder))


class TestTemplates:
    def test_a_template_file_that_is_no_text_is_refused(self, folder: Path) -> None:
        (folder / "chat_template.jinja").write_bytes(b"{{ bos_token }}\xac")
        with pytest.raises(InputError, match=r"chat_template\.jinja: not readable as text"):
            chat_text(load(folder), MESSAGES)

    @pytest.mark.parametrize("place", ["in the settings", "by name", "in a file"])
    def test_a_template_is_found_where_checkpoints_keep_it(self, folder: Path, place: str) -> None:
        held: dict[str, Any] = {"bos_token": "<s>", "chat_template": TEMPLATE}
        if place == "by name":
            others = [{"name": "tool_use", "template": "no"}]
            held["chat_template"] = [*others, {"name": "default", "template": TEMPLATE}]
        if place == "in a file":
            (folder / "chat_template.jinja").write_text(TEMPLATE)
            held["chat_template"] = "not this one"
        lm = with_files(folder, tokenizer_config=held)
        assert chat_text(lm, MESSAGES) == "<s><|user|>Is a wren a bird?<|assistant|>"
        system = [{"role": "system", "content": " Be brief. "}, *MESSAGES]
        assert chat_text(lm, system) == "<s><|user|>Be brief.Is a wren a bird?<|assistant|>"

    def test_no_second_beginning_token_is_added(self, folder: Path) -> None:
        lm = with_files(folder, tokenizer_config={"bos_token": "<s>", "chat_template": TEMPLATE})
        lm.tokenizer.backend.add_special_tokens(["<s>"])  # as published tokenizers have it
        assert chat_ids(lm, MESSAGES).count(0) == 1
        assert lm.tokenizer.encode(["x"])[0][0] == 0  # an ordinary text gets one

    def test_a_refusal_by_the_template_is_one_line(self, folder: Path) -> None:
        lm = with_files(folder, tokenizer_config={"bos_token": "<s>", "chat_template": TEMPLATE})
        with pytest.raises(InputError, match="refuses these messages: roles must alternate"):
            chat_text(lm, [*MESSAGES, *MESSAGES])

    @pytest.mark.parametrize(
        "hostile",
        [
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            "{{ messages.append(1) }}",
            "{{ raise_exception.__globals__['os'] }}",
            "{% for i in range(10 ** 9) %}x{% endfor %}",
            "{% include '/etc/passwd' %}",
            "{{ undefined.attribute.of.nothing }}",
            "{% if %}",
        ],
    )
    def test_a_hostile_or_broken_template_is_refused_in_one_line(
        self, folder: Path, hostile: str
    ) -> None:
        lm = with_files(folder, tokenizer_config={"chat_template": hostile})
        with pytest.raises(InputError, match="its chat template failed") as caught:
            chat_text(lm, MESSAGES)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        "templates", [[{"template": "x"}], [{"name": "default"}], [{"name": []}], [3], []]
    )
    def test_a_list_without_a_default_template_is_no_template(
        self, folder: Path, templates: list[Any]
    ) -> None:
        lm = with_files(folder, tokenizer_config={"chat_template": templates})
        assert chat_template(lm) is None

    def test_a_checkpoint_without_a_template_is_refused(self, folder: Path) -> None:
        with pytest.raises(InputError, match="has no chat template"):
            chat_text(load(folder), MESSAGES)


def test_a_template_file_goes_before_the_tokenizers_and_is_read_as_text(folder: Path) -> None:
    lm = with_files(folder, tokenizer_config={"chat_template": "the tokenizer's"})
    assert chat_template(lm) == "the tokenizer's"
    (folder / "chat_template.jinja").write_text("the file's ✓", encoding="utf-8")
    assert chat_template(load(folder)) == "the file's ✓"


def test_of_several_default_templates_the_last_is_used(folder: Path) -> None:
    named = [("default", "one"), ("tool_use", "two"), ("default", "three"), ("rag", "four")]
    templates = [{"name": name, "template": text} for name, text in named]
    assert (
        chat_template(with_files(folder, tokenizer_config={"chat_template": templates})) == "three"
    )


def test_tools_and_documents_are_defined_and_none(folder: Path) -> None:
    """Published templates ask `if documents is not none`, which is true for an undefined name."""
    template = "{% if tools is not none or documents is not none %}given{% else %}none{% endif %}"
    lm = with_files(folder, tokenizer_config={"chat_template": template})
    assert chat_text(lm, MESSAGES) == "none"
