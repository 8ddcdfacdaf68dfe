"""Cloze: the texts of the choices, read at every token."""

from pathlib import Path

import pytest
import torch
from tokenizers import models, pre_tokenizers

from minise import InputError, LanguageModel, Question, load
from minise import ask as ask_method
from minise.errors import Unsuited
from minise.layout import causal_mask
from minise.methods.cloze import Cloze
from minise.methods.together import pass_logits
from minise.tokenizer import Tokenizer
from minise.writing.chat import stop_tokens
from tests.support.methods import OTHER, QUESTION
from tests.support.tiny import FAMILIES, load_tiny, make_tokenizer

NESTED = Question("Which one bites?", ["ant", "ant bear", "an", "owl"])
METHODS = (Cloze(), Cloze("mean"), Cloze(end=False))


def text_log_p(lm: LanguageModel, start: str, choice: str, end: bool) -> tuple[float, int]:
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


class TestTheNumbers:
    @pytest.mark.parametrize("end", [True, False])
    def test_the_answer_equals_the_definition(self, lm: LanguageModel, end: bool) -> None:
        question = NESTED
        texts = [text_log_p(lm, f"{question.text}\nAnswer:", one, end) for one in question.choices]
        expected = {
            "sum": [log_p for log_p, _ in texts],
            "mean": [log_p / count for log_p, count in texts],
        }
        for score, numbers in expected.items():
            answer = ask_method(lm, Cloze(score, end), question)
            p = torch.tensor(numbers, dtype=torch.float64).softmax(dim=0)
            torch.testing.assert_close(answer.probabilities, p, rtol=0, atol=1e-9)
            assert answer.prediction == int(p.argmax())

    def test_a_stop_token_or_a_line_end_ends_a_text(self) -> None:
        lm = load("weights/tiny-llama")
        plan = Cloze().plan(lm, QUESTION)
        end = plan.reads[0].end
        line = lm.tokenizer.encode(["Oak\n"])[0][-1]
        assert end is not None
        assert end[1] == sorted({*stop_tokens(lm), line})
        assert plan.prompts[end[0]].ids == list(plan.reads[0].tokens)

    def test_all_engines_that_promise_equal_bits_give_them(self, tmp_path: Path) -> None:
        lm = load_tiny(tmp_path, FAMILIES["mistral"], dtype=torch.float32)
        for method in METHODS:
            by_engine = {
                engine: ask_method(lm, method, QUESTION, engine=engine).probabilities
                for engine in ("separate", "dense", "tree", "plain")
            }
            assert torch.equal(by_engine["separate"], by_engine["tree"])
            assert torch.equal(by_engine["separate"], by_engine["dense"])
            plans = [method.plan(lm, question) for question in (OTHER, QUESTION)]  # in one pass
            answer = method.answer(plans[1], pass_logits(lm, plans, "tree")[1])
            assert torch.equal(by_engine["separate"], answer.probabilities)
            torch.testing.assert_close(by_engine["plain"], by_engine["tree"], rtol=0, atol=1e-4)

    def test_a_text_that_begins_like_another_is_read_once_and_needs_its_end(
        self, lm: LanguageModel
    ) -> None:
        """ "ant" is the beginning of "ant bear": without the end it can only be more probable."""
        with_end, without = Cloze().plan(lm, NESTED), Cloze(end=False).plan(lm, NESTED)
        start = len(lm.tokenizer.encode([f"{NESTED.text}\nAnswer:"])[0])
        assert with_end.tokens("tree") == start + len(" ant bear owl") - 1  # the space runs once
        assert without.tokens("tree") == start + len(" ant bea ow") - 1  # the last is not run
        p = ask_method(lm, Cloze(end=False), NESTED).probabilities.tolist()
        assert p[2] > p[0] > p[1]


class TestRefusals:
    def test_a_text_that_nothing_ends_is_refused(
        self, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A model without a stop token, whose tokenizer makes no token of a line end."""

        def refuse(lm: LanguageModel) -> list[int]:
            raise Unsuited("no stop token")

        monkeypatch.setattr("minise.methods.cloze.stop_tokens", refuse)
        assert Cloze().plan(lm, QUESTION)
        encode = lm.tokenizer.encode
        monkeypatch.setattr(
            Tokenizer, "encode", lambda self, texts: encode([text.rstrip("\n") for text in texts])
        )
        with pytest.raises(Unsuited, match="nothing ends a text"):
            Cloze().plan(lm, QUESTION)

    def test_another_score_is_refused(self, lm: LanguageModel) -> None:
        with pytest.raises(InputError, match='"product"'):
            Cloze("product").plan(lm, QUESTION)


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
    merging = LanguageModel(lm.name, lm.config, lm.decoder, Tokenizer(backend, "merging"))
    plan = Cloze().plan(merging, OTHER)
    start = merging.tokenizer.encode([f"{OTHER.text}\nAnswer:"])[0]
    assert plan.prefix == start[:-1]
    assert plan.reads[0].tokens[0] == vocabulary[":Ġ"]
    answer = ask_method(merging, Cloze(), OTHER)
    assert float(answer.probabilities.sum()) == pytest.approx(1)
