"""`minise.generate`: each prompt's text is independent of the others, greedy or sampled."""

from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from tokenizers import decoders

from minise import Decoder, Generation, InputError, LanguageModel, generate
from minise.engines import run_alone
from minise.tokenizer import Tokenizer
from minise.writing.generation import _Branches, choose
from tests.support.tiny import make_tokenizer

# One in another, two that begin alike, one far longer, and one alone.
PROMPTS = ["abc", "abcdef", "abcxyz", "q" + "lmno pqrs tuv " * 12, "Z"]


def recomputed(lm: LanguageModel, prompt: str, count: int) -> list[int]:
    """Greedy tokens, with a run of the whole text for every token."""
    ids = lm.tokenizer.encode([prompt])[0]
    with torch.inference_mode():
        for _ in range(count):
            ids = [*ids, int(lm.decoder.logits(run_alone(lm, ids)[-1:]).argmax())]
    return ids[-count:]


def test_greedy_text_equals_that_of_runs_without_a_cache(lm: LanguageModel) -> None:
    """The texts are longer than a block of 64 keys, and than the windows."""
    for prompt, text in zip(PROMPTS, generate(lm, PROMPTS, 40, stop=[]), strict=True):
        assert text.tokens == recomputed(lm, prompt, 40)
        assert (text.ended, text.finished) == ("budget", False)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_text_does_not_depend_on_the_other_prompts(lm: LanguageModel, temperature: float) -> None:
    """Also if the others stop earlier or later, or are given in another order."""
    stop = [65, 66, 67, 68, 69, 70, 71, 72]
    together = generate(lm, PROMPTS, 60, temperature, seed=3, stop=stop)
    assert len({len(text.tokens) for text in together}) > 1
    for prompt, text in zip(PROMPTS, together, strict=True):
        assert generate(lm, [prompt], 60, temperature, seed=3, stop=stop) == [text]
    assert generate(lm, PROMPTS[::-1], 60, temperature, seed=3, stop=stop) == together[::-1]


def test_a_longer_budget_continues_the_same_text(lm: LanguageModel) -> None:
    short, long = (generate(lm, ["abc"], n, 0.8, 0.9, seed=5, stop=[])[0] for n in (10, 30))
    assert long.tokens[:10] == short.tokens
    assert len(generate(lm, ["abc"], stop=[])[0].tokens) == 256


def test_another_seed_and_an_equal_prompt_have_other_draws(lm: LanguageModel) -> None:
    first, second = generate(lm, ["abc", "abc"], 30, 1.0, seed=0, stop=[])
    assert first.tokens != second.tokens
    assert generate(lm, ["abc"], 30, 1.0, seed=1, stop=[])[0].tokens != first.tokens
    assert generate(lm, ["abc"], 30, 1.0, seed=0, stop=[]) == [first]
    assert generate(lm, ["abc"], 30, 1.0, stop=[]) == [first]  # the seed is 0 by default


def test_the_draws_never_change(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Golden values: draws follow from the seed, the prompt and the number of equal prompts before
    it."""

    def drawn(logits: torch.Tensor, temperature: float, top_p: float, draw: random.Random) -> int:
        return int(250 * draw.random())

    monkeypatch.setattr("minise.writing.generation.choose", drawn)
    texts = generate(lm, [[5, 6], [7], [5, 6]], 3, 1.0, seed=4, stop=[])
    assert [text.tokens for text in texts] == [[201, 139, 84], [169, 107, 11], [127, 29, 130]]


def test_the_shared_beginning_runs_once_and_then_one_token_of_each_prompt(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, run = [], Decoder.run

    def watch(decoder: Decoder, tokens: torch.Tensor, *more: object) -> torch.Tensor:
        ran.append(tokens.shape[-1])
        return run(decoder, tokens, *more)

    monkeypatch.setattr(Decoder, "run", watch)
    generate(lm, [[5, 6, 7], [5, 6, 8, 9], [5, 6]], 4, stop=[])
    assert ran == [5, 3, 3, 3]


def test_the_tree_of_prompts_is_on_the_models_device(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "minise.writing.generation.tree_reader", Mock()
    )  # a real one looks at the device of its tensors
    monkeypatch.setattr(_Branches, "_run", lambda tree, *inputs: inputs)
    tree = _Branches(Decoder(lm.config).to("meta"))
    inputs = tree.start([[5, 6, 7], [5, 6, 8, 9]])
    tensors = [x for x in (tree.paths, tree.lengths, *inputs) if isinstance(x, torch.Tensor)]
    assert [x.device.type for x in tensors] == ["meta"] * 5


def test_a_stop_token_ends_a_text_and_is_not_part_of_it(lm: LanguageModel) -> None:
    free = generate(lm, ["abc"], 20, stop=[])[0].tokens
    stop = free[7]
    text = generate(lm, ["abc"], 20, stop=[stop])[0]
    assert text.tokens == free[: free.index(stop)]
    assert text.finished


def test_the_first_stop_text_ends_a_text_and_is_left_out_of_it(lm: LanguageModel) -> None:
    free = generate(lm, ["abc"], 20, stop=[])[0]
    early, late = free.text[4:6], free.text[9:11]
    text = generate(lm, ["abc"], 20, stop=[], stop_texts=[late, "never", early])[0]
    assert text.text == free.text[: free.text.index(early)]
    assert (text.ended, text.finished) == ("stop", True)
    assert 0 < len(text.tokens) < len(free.tokens)
    assert generate(lm, ["abc"], 20, stop=[], stop_texts=["never"])[0] == free


def test_the_tokens_of_a_text_need_not_be_more_than_one(lm: LanguageModel) -> None:
    (text,) = generate(lm, ["abc"], 1, stop=[])
    assert (len(text.tokens), text.ended) == (1, "budget")


def test_a_text_ends_where_the_positions_end(lm: LanguageModel) -> None:
    short = replace(lm, config=replace(lm.config, max_position_embeddings=12))
    texts = generate(short, ["abc", "abcdefg"], 50, stop=[])
    used = [len(ids) for ids in lm.tokenizer.encode(["abc", "abcdefg"])]
    assert [text.ended for text in texts] == ["positions", "positions"]
    # No token reads the last token of a text, so it needs no position.
    assert [n + len(text.tokens) for n, text in zip(used, texts, strict=True)] == [13, 13]


def test_prompts_may_be_token_ids(lm: LanguageModel) -> None:
    ids = lm.tokenizer.encode(PROMPTS[:2])
    assert generate(lm, ids, 8, stop=[]) == generate(lm, PROMPTS[:2], 8, stop=[])
    assert generate(lm, [], 8, stop=[]) == []


def test_pieces_of_text_are_reported_as_they_are_written(lm: LanguageModel) -> None:
    heard: dict[int, str] = {0: "", 1: ""}

    def hear(number: int, piece: str) -> None:
        heard[number] += piece

    texts = generate(lm, ["abc", "xyz"], 40, stop=[], on_text=hear)
    for number, text in enumerate(texts):
        assert heard[number]
        assert text.text.startswith(heard[number].rstrip("\ufffd"))


def test_special_tokens_are_in_no_text_and_in_no_piece(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, pieces = make_tokenizer(), list[str]()
    backend.add_special_tokens(["<s>"])
    first, *ids = backend.encode("one two", add_special_tokens=False).ids
    written = [first, backend.token_to_id("<s>"), *ids]
    monkeypatch.setattr("minise.writing.generation.choose", Mock(side_effect=written))
    hear = lambda number, piece: pieces.append(piece)  # noqa: E731
    other = replace(lm, tokenizer=Tokenizer(backend, "special"))
    (text,) = generate(other, ["abc"], len(written), stop=[], on_text=hear)
    assert (text.tokens, text.text, "".join(pieces)) == (written, "one two", "one two")


def test_a_text_keeps_the_space_at_its_beginning(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a tokenizer as SentencePiece's, whose decoder drops the first space of a text."""
    backend = make_tokenizer()
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    written = backend.encode(" two", add_special_tokens=False).ids
    monkeypatch.setattr("minise.writing.generation.choose", Mock(side_effect=written))
    other = replace(lm, tokenizer=Tokenizer(backend, "spaces"))
    (text,) = generate(other, ["one"], len(written), stop=[])
    assert text.text == " two"


class TestChoose:
    LOGITS = torch.tensor([0.0, 2.0, 1.0, 2.0, -1.0], dtype=torch.float64)
    EQUAL = torch.zeros(64, dtype=torch.float64)  # each has a share of 1/64, exactly

    def test_greedy_takes_the_first_of_equals(self) -> None:
        assert choose(self.LOGITS, 0.0, 1.0, random.Random(0)) == 1

    @pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
    def test_draws_have_the_frequencies_of_the_softmax(self, temperature: float) -> None:
        """Chi-square, 4 degrees of freedom: by chance, 18.5 is exceeded once in 1,000 cases."""
        draw, n = random.Random(7), 4000
        counts = Counter(choose(self.LOGITS, temperature, 1.0, draw) for _ in range(n))
        shares = torch.softmax(self.LOGITS / temperature, dim=0).tolist()
        assert sum((counts[i] - n * p) ** 2 / (n * p) for i, p in enumerate(shares)) < 18.5

    @pytest.mark.parametrize(
        ("top_p", "nucleus"),
        [
            (1e-9, {1}),
            (0.3, {1}),
            (0.45, {1, 3}),
            (0.78, {1, 3}),
            (0.9, {1, 3, 2}),
            (1.0, set(range(5))),
        ],
    )
    def test_top_p_keeps_exactly_the_nucleus(self, top_p: float, nucleus: set[int]) -> None:
        """The shares of the tokens 1, 3, 2, 0 and 4 are 39.2, 39.2, 14.4, 5.3 and 2.0%."""
        draw = random.Random(0)
        assert {choose(self.LOGITS, 1.0, top_p, draw) for _ in range(1500)} == nucleus

    def test_equal_tokens_divide_the_draws_equally_in_the_order_of_their_ids(self) -> None:
        for token in range(64):
            for number in (token / 64, (token + 1) / 64 - 2**-53):
                assert choose(self.EQUAL, 1.0, 1.0, Mock(random=lambda x=number: x)) == token

    def test_the_nucleus_ends_with_the_token_that_reaches_top_p(self) -> None:
        last = Mock(random=lambda: 1 - 2**-53)  # the largest draw
        assert choose(self.EQUAL, 1.0, 2 / 64, last) == 1
        assert choose(self.EQUAL, 1.0, 2 / 64 + 1e-9, last) == 2

    def test_draws_within_the_nucleus_keep_their_ratios(self) -> None:
        draw, n = random.Random(1), 3000
        counts = Counter(choose(self.LOGITS, 1.0, 0.9, draw) for _ in range(n))
        shares = torch.softmax(self.LOGITS[[1, 3, 2]], dim=0).tolist()
        expected = dict(zip((1, 3, 2), shares, strict=True))
        assert sum((counts[i] - n * p) ** 2 / (n * p) for i, p in expected.items()) < 13.8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens 0 is below 1"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
    ],
)
def test_settings_out_of_range_are_refused(
    lm: LanguageModel, settings: dict[str, float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        generate(lm, ["abc"], **{"stop": [], **settings})


def test_prompts_that_cannot_run_are_refused(lm: LanguageModel) -> None:
    with pytest.raises(InputError, match="empty prompt"):
        generate(lm, [[]], stop=[])
    with pytest.raises(InputError, match="empty prompt"):
        generate(lm, [[5], [], "abc"], stop=[])
    with pytest.raises(InputError, match="positions for 1024"):
        generate(lm, [[5] * 1025], stop=[])
    with pytest.raises(InputError, match="beyond the vocabulary"):
        generate(lm, [[5000]], stop=[])
    with pytest.raises(InputError, match="names no stop token"):
        generate(lm, ["abc"])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_numbers_that_overflow_are_refused(lm: LanguageModel, temperature: float) -> None:
    decoder = copy.deepcopy(lm.decoder)
    decoder.model.norm.weight.data[0] = torch.inf
    with pytest.raises(InputError, match=r"its numbers overflow torch\.float64"):
        generate(replace(lm, decoder=decoder), ["abc"], 4, temperature, stop=[])


def test_a_text_is_finished_only_if_it_was_not_cut_off() -> None:
    assert Generation([1], "a", "stop").finished
    assert not Generation([1], "a", "positions").finished
