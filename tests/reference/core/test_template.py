"""Prompts are exactly the text that is stated, and ids and labels are those of the whole text."""

import json
from dataclasses import replace

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from minise import InputError
from minise.errors import Unsuited
from minise.template import DEFAULT_TEMPLATE, NULL_OPTION, Template, write_prompts
from minise.tokenizer import Tokenizer
from tests.reference.support.tiny import make_tokenizer


def byte_tokenizer(bos: bool = True) -> Tokenizer:
    return Tokenizer(make_tokenizer(bos), "tiny")


def sentencepiece_tokenizer() -> Tokenizer:
    """As Mistral's: a space is prepended to the text, words begin with U+2581, unknown characters
    fall back to bytes. So "A" alone is the piece "_A", and "A" after a newline is another."""
    pieces = [chr(c) for c in range(33, 127)] + ["▁"]
    words = [f"▁{letter}" for letter in "ABCDE"]
    names = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *words]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={name: i for i, name in enumerate(names)},
            merges=[("▁", letter) for letter in "ABCDE"],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return Tokenizer(backend, "sentencepiece")


def test_the_default_prompt_is_the_papers_layout() -> None:
    text = DEFAULT_TEMPLATE.render("How many?", ["one", "two", NULL_OPTION])
    assert text == "How many?\n(A) one\n(B) two\n(C) None of the above\nAnswer:"


def test_braces_in_a_question_are_plain_text() -> None:
    assert DEFAULT_TEMPLATE.render("{label}?", ["{x}", "{"]).startswith("{label}?\n(A) {x}\n(B) {")


def test_ids_are_those_of_the_whole_prompt_and_the_beginning_token_comes_once() -> None:
    tokenizer = byte_tokenizer()
    lists = [["one", "two"], ["three"], ["four", "five", NULL_OPTION]]
    prompts = write_prompts(tokenizer, DEFAULT_TEMPLATE, "How many?", lists)
    for choices, branch in zip(lists, prompts.branches, strict=True):
        whole = tokenizer.encode([DEFAULT_TEMPLATE.render("How many?", choices)])[0]
        assert prompts.prefix + branch == whole
        assert whole.count(0) == 1
    assert tokenizer.decode(prompts.prefix) == "<s>How many?\n"


def test_a_merge_across_the_questions_end_shortens_the_prefix_and_changes_nothing_else() -> None:
    backend = make_tokenizer()
    model = json.loads(backend.to_str())
    newline, bracket = "Ċ", "("
    model["model"]["vocab"][newline + bracket] = 287
    model["model"]["merges"].append([newline, bracket])
    model["pre_tokenizer"] = json.loads(
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).__getstate__()
    )
    merging = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(model)), "merging")
    prompts = write_prompts(merging, DEFAULT_TEMPLATE, "Q?", [["a", "b"], ["c", "d"]])
    assert merging.decode(prompts.prefix) == "<s>Q?"
    assert prompts.branches[0][0] == 287
    whole = merging.encode([DEFAULT_TEMPLATE.render("Q?", ["c", "d"])])[0]
    assert prompts.prefix + prompts.branches[1] == whole


def test_a_labels_id_is_the_one_that_continues_the_prompt() -> None:
    tokenizer = sentencepiece_tokenizer()
    piece = tokenizer.backend.token_to_id

    def label_ids(template: Template) -> list[int]:
        prompts = write_prompts(tokenizer, template, "Q", [["x", "y"]])
        return prompts.label_ids[0]

    assert label_ids(DEFAULT_TEMPLATE) == [piece("▁A"), piece("▁B")]
    # Alone, " A" is two pieces, since a space is prepended: the last is not the label's.
    assert tokenizer.encode([" A"])[0][1:] == [piece("▁"), piece("▁A")]
    after_newline = replace(DEFAULT_TEMPLATE, cue="Answer: \n", label="{label}")
    assert label_ids(after_newline) == [piece("A"), piece("B")]


def test_labels_are_looked_up_at_the_end_of_every_kind_of_prompt() -> None:
    """Here "x" and the label after it merge into one token. So in the prompts that end in "x" a
    label is no token, although it is one in the others."""
    backend = make_tokenizer()
    model = json.loads(backend.to_str())
    model["model"]["vocab"]["xA"] = 287
    model["model"]["merges"].append(["x", "A"])
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(model)), "merging")
    bare_ends = Template(choice="({label}) {choice}", cue="", label="{label}")
    lists = [["a", "by"], ["a", "b", "by"], ["b", "a"]]
    first, second, third = write_prompts(tokenizer, bare_ends, "Q", lists).label_ids
    assert (len(first), len(second), len(third)) == (2, 3, 2)
    assert second[:2] == first
    with pytest.raises(InputError, match=r"label 'A' after .*x' is not one token"):
        write_prompts(tokenizer, bare_ends, "Q", [["a", "b"], ["a", "x"]])


def test_labels_are_looked_up_for_each_different_end_of_four_tokens() -> None:
    """Here "stuv" is four tokens, but "stuvA" is one word."""
    pieces = ["[UNK]", "Q", "r", "s", "##t", "##u", "##v", "##A", "stuvA"]
    words = models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    backend = tokenizers.Tokenizer(words)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    template = Template("{question} ", "{choice}", cue="", label="{label}")
    with pytest.raises(InputError, match="Q stuv"):
        write_prompts(Tokenizer(backend, "t"), template, "Q", [["rtuv"], ["stuv"]])


def word_tokenizer(unknown: str = "[UNK]", *words: str) -> Tokenizer:
    vocabulary = {word: i for i, word in enumerate(["w", "[UNK]", "Answer:", *words])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend, "words")


def ending_tokenizer() -> Tokenizer:
    backend = make_tokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="$A <s>", special_tokens=[("<s>", 0)]
    )
    return Tokenizer(backend, "ending")


def dropping_tokenizer() -> Tokenizer:
    """It has no token for a label, and none for what it does not know."""
    return Tokenizer(tokenizers.Tokenizer(models.BPE({"w": 0}, merges=[])), "dropping")


@pytest.mark.parametrize(
    ("tokenizer", "template", "parts"),
    [
        # Two tokens: the message names the label, the prompt's end and the tokenizer.
        (Tokenizer(make_tokenizer(split_labels=True), "some/file"), Template(), ("A", "Answer:")),
        (word_tokenizer(), Template(), ("A",)),  # the label becomes the unknown token
        (word_tokenizer("w"), Template(), ("A",)),  # which may also be a word of the prompt
        (word_tokenizer("[UNK]", "A"), Template(), ("B",)),  # the other label is known
        (ending_tokenizer(), Template(), ("A",)),  # an end token would follow every label
        (dropping_tokenizer(), Template(), ("A",)),  # no token at all
        (word_tokenizer(), Template(label=" w"), ("w", "0, 0")),  # all labels are one token
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_labels_that_are_not_one_token_each_are_refused(
    tokenizer: Tokenizer, template: Template, parts: tuple[str, ...]
) -> None:
    with pytest.raises(InputError) as caught:
        write_prompts(tokenizer, template, "w", [["w", "w"]])
    message = str(caught.value)
    for part in (tokenizer.name, *parts):
        assert part in message
    assert "\n" not in message


def test_a_prompt_has_at_most_as_many_choices_as_there_are_letters() -> None:
    tokenizer = byte_tokenizer()
    lists = [["a"], [f"choice {i}" for i in range(26)]]
    prompts = write_prompts(tokenizer, DEFAULT_TEMPLATE, "Q", lists)
    assert [len(ids) for ids in prompts.label_ids] == [1, 26]
    said = r"^27 choices .* 26 labels \(A-Z\); ask by self-ensemble, in groups of at most 25$"
    with pytest.raises(Unsuited, match=said):
        write_prompts(tokenizer, DEFAULT_TEMPLATE, "Q", [*lists, [*lists[1], NULL_OPTION]])
