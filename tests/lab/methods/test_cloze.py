"""Cloze: the texts of the choices, read at every token."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import models, pre_tokenizers

from minise import InputError, LocalModel, Prompts, Question, load
from minise import ask as ask_method
from minise.errors import Unsuited
from minise.lab.data.asked import Asked
from minise.lab.evaluation.pipeline import answers, tokens_of
from minise.lab.methods.cloze import Cloze, Read
from minise.lab.writing.chat import stop_tokens
from minise.layout import causal_mask
from minise.tokenizer import Tokenizer
from tests.reference.support.questions import OTHER, QUESTION, Served
from tests.reference.support.tiny import FAMILIES, load_tiny, make_tokenizer, write_checkpoint

NESTED = Question("Which one bites?", ["ant", "ant bear", "an", "owl"])
METHODS = (Cloze(), Cloze("mean"), Cloze(end=False))


def text_log_p(lm: LocalModel, start: str, choice: str, end: bool) -> tuple[float, int]:
    """By the definition: one causal run of the whole text, a softmax over the vocabulary for each
    of its tokens; and how many are read."""
    context = len(lm.tokenizer.encode([start])[0])
    ids, longer = lm.tokenizer.encode([f"{start} {choice}", f"{start} {choice}\n"])
    T = len(ids)
    hidden = lm.decoder(torch.tensor(ids), torch.arange(T), causal_mask(T))
    log_p = lm.decoder.logits(hidden).double().log_softmax(dim=-1)
    total = sum(float(log_p[row - 1, ids[row]]) for row in range(context, len(ids)))
    if end:
        total += float(log_p[-1, longer[len(ids)]])  # these models name no stop token
    return total, len(ids) - context + end


def tokens_read(prompts: Prompts, read: Read) -> list[int]:
    """The ids of which one is read at a place."""
    return [prompts.label_ids[read.place][token] for token in read.tokens]


class TestTheNumbers:
    @pytest.mark.parametrize("end", [True, False])
    def test_the_answer_equals_the_definition(self, lm: LocalModel, end: bool) -> None:
        question = NESTED
        texts = [text_log_p(lm, f"{question.text}\nAnswer:", one, end) for one in question.choices]
        expected = {
            "sum": [log_p for log_p, _ in texts],
            "mean": [log_p / count for log_p, count in texts],
        }
        for score, numbers in expected.items():
            answer = ask_method(lm, Cloze(score, end), question)
            p = torch.tensor(numbers, dtype=torch.float64).softmax(dim=0)
            torch.testing.assert_close(answer.normalized, p, rtol=0, atol=1e-9)
            assert answer.prediction == int(p.argmax())

    def test_a_stop_token_or_a_line_end_ends_a_text(self) -> None:
        lm = load("weights/tiny-llama")
        plan, prompts = Cloze().prompts(lm, QUESTION)
        end = plan.reads[0][-1]
        line = lm.tokenizer.encode(["Oak\n"])[0][-1]
        assert tokens_read(prompts, end) == sorted({*stop_tokens(lm), line})
        before_end = [tokens_read(prompts, read) for read in plan.reads[0][:-1]]
        assert [[token] for token in prompts.branches[end.place]] == before_end

    @pytest.mark.parametrize("method", METHODS, ids=str)
    def test_all_engines_agree_and_under_equal_bits_in_every_bit(
        self, tmp_path: Path, method: Cloze
    ) -> None:
        folder = write_checkpoint(tmp_path / "model", FAMILIES["mistral"])
        for equal_bits in (False, True):
            lm = load(folder, dtype=torch.float32, equal_bits=equal_bits)
            separate = ask_method(lm.with_engine("separate"), method, QUESTION).normalized
            found = [ask_method(lm.with_engine("packed"), method, QUESTION).normalized]
            in_one_pass = list(answers(lm, method, [Asked(OTHER), Asked(QUESTION)]))
            found.append(in_one_pass[1].answer.normalized)
            for p in found:
                torch.testing.assert_close(p, separate, rtol=0, atol=0 if equal_bits else 1e-5)

    def test_a_text_that_begins_like_another_is_read_once_and_needs_its_end(
        self, lm: LocalModel
    ) -> None:
        """ "ant" is the beginning of "ant bear": without the end it can only be more probable."""
        _, with_end = Cloze().prompts(lm, NESTED)
        _, without = Cloze(end=False).prompts(lm, NESTED)
        start = len(lm.tokenizer.encode([f"{NESTED.text}\nAnswer:"])[0])
        assert tokens_of(lm, with_end) == start + len(" ant bear owl") - 1  # the space runs once
        assert tokens_of(lm, without) == start + len(" ant bea ow") - 1  # the last is not run
        p = ask_method(lm, Cloze(end=False), NESTED).normalized.tolist()
        assert p[2] > p[0] > p[1]

    def test_each_prompt_asks_for_the_tokens_that_are_read_there_and_no_others(
        self, lm: LocalModel
    ) -> None:
        _, prompts = Cloze(end=False).prompts(lm, NESTED)
        read = {}
        for branch, tokens in zip(prompts.branches, prompts.label_ids, strict=True):
            read[lm.tokenizer.decode(branch)] = sorted(lm.tokenizer.decode(tokens))
        assert read[""] == [" "]
        assert read[" "] == ["a", "o"]
        assert read[" an"] == ["t"]
        assert read[" ant"] == [" "]
        assert sum(len(tokens) for tokens in prompts.label_ids) == len(" ant bear") + len("owl")

    def test_no_labels_are_read(self, lm: LocalModel) -> None:
        answer = ask_method(lm, Cloze(), QUESTION)
        assert answer.on_labels is None
        assert [group.choices for group in answer.groups] == [tuple(range(8))]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_served_model_is_asked_as_one_that_runs_here(method: Cloze) -> None:
    """Its stop tokens stand in the folder of its tokenizer."""
    lm = load("weights/tiny-llama")
    here, there = ask_method(lm, method, QUESTION), ask_method(Served(lm), method, QUESTION)
    torch.testing.assert_close(here.normalized, there.normalized, rtol=0, atol=1e-12)
    assert method.prompts(lm, QUESTION) == method.prompts(Served(lm), QUESTION)


class TestRefusals:
    def test_a_text_that_nothing_ends_is_refused(
        self, lm: LocalModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A model without a stop token, whose tokenizer makes no token of a line end."""

        def refuse(lm: LocalModel) -> list[int]:
            raise Unsuited("no stop token")

        monkeypatch.setattr("minise.lab.methods.cloze.stop_tokens", refuse)
        assert Cloze().prompts(lm, QUESTION)
        encode = lm.tokenizer.encode
        monkeypatch.setattr(
            Tokenizer, "encode", lambda self, texts: encode([text.rstrip("\n") for text in texts])
        )
        with pytest.raises(Unsuited, match="nothing ends a text"):
            Cloze().prompts(lm, QUESTION)

    def test_another_score_is_refused(self, lm: LocalModel) -> None:
        with pytest.raises(InputError, match='"product"'):
            Cloze("product").prompts(lm, QUESTION)


def test_a_tokenizer_that_merges_the_cue_and_a_text_is_read_from_the_token_before(
    tmp_path: Path,
) -> None:
    lm = load_tiny(tmp_path, FAMILIES["llama"])
    backend = make_tokenizer()
    vocabulary = backend.get_vocab()
    vocabulary[":Ġ"] = len(vocabulary) - 1  # in place of a token that no text here has
    taken = next(name for name, i in vocabulary.items() if i == vocabulary[":Ġ"] and name != ":Ġ")
    del vocabulary[taken]
    backend.model = models.BPE(vocab=vocabulary, merges=[(":", "Ġ")])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    merging = replace(lm, tokenizer=Tokenizer(backend, "merging"))
    plan, prompts = Cloze().prompts(merging, OTHER)
    start = merging.tokenizer.encode([f"{OTHER.text}\nAnswer:"])[0]
    assert prompts.prefix == start[:-1]
    assert tokens_read(prompts, plan.reads[0][0]) == [vocabulary[":Ġ"]]
    answer = ask_method(merging, Cloze(), OTHER)
    assert float(answer.normalized.sum()) == pytest.approx(1)
