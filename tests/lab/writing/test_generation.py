"""`minise.generate`: each prompt's text is independent of the others, greedy or sampled."""

import copy
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tokenizers import decoders

from minise import Decoder, InputError, LocalModel, generate, load
from minise.errors import Unsuited
from minise.lab.equal_bits.decoder import EqualBits
from minise.lab.writing.generation import choose
from minise.layout import causal_mask
from minise.tokenizer import Tokenizer
from tests.reference.support.questions import Served
from tests.reference.support.tiny import FAMILIES, make_tokenizer, write_checkpoint

# One in another, two that begin alike, one far longer, and one alone.
PROMPTS = ["abc", "abcdef", "abcxyz", "q" + "lmno pqrs tuv " * 12, "Z"]


@pytest.fixture(autouse=True)
def stop(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The stop tokens of all models; none at first."""
    ids: list[int] = []
    monkeypatch.setattr("minise.lab.writing.generation.stop_tokens", lambda lm: ids)
    return ids


def recomputed(lm: LocalModel, prompt: str, count: int) -> list[int]:
    """Greedy tokens, with a run of the whole text for every token."""
    ids = lm.tokenizer.encode([prompt])[0]
    with torch.inference_mode():
        for _ in range(count):
            T = len(ids)
            hidden = lm.decoder(torch.tensor(ids), torch.arange(T), causal_mask(T))
            ids = [*ids, int(lm.decoder.logits(hidden[-1]).argmax())]
    return ids[-count:]


def test_greedy_text_equals_that_of_runs_without_a_cache(lm: LocalModel) -> None:
    """The texts are longer than a block of 64 keys, and than the windows."""
    for prompt, text in zip(PROMPTS, generate(lm, PROMPTS, 40), strict=True):
        assert text.tokens == recomputed(lm, prompt, 40)
        assert not text.finished


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
def test_a_text_does_not_depend_on_the_other_prompts(
    lm: LocalModel, temperature: float, stop: list[int]
) -> None:
    """Also if the others stop earlier or later, or are given in another order, or as ids."""
    stop.extend(range(65, 73))
    together = generate(lm, PROMPTS, 60, temperature, seed=3)
    assert len({len(text.tokens) for text in together}) > 1
    for prompt, text in zip(PROMPTS, together, strict=True):
        assert generate(lm, [prompt], 60, temperature, seed=3) == [text]
    ids = lm.tokenizer.encode(PROMPTS[::-1])
    assert generate(lm, ids, 60, temperature, seed=3) == together[::-1]


class Read:
    """Chooses as `choose` does, and keeps the logits that each text was chosen from."""

    def __init__(self) -> None:
        self.logits: dict[random.Random, list[torch.Tensor]] = {}

    def choose(
        self, logits: torch.Tensor, temperature: float, top_p: float, draw: random.Random
    ) -> int:
        self.logits.setdefault(draw, []).append(logits)
        return choose(logits, temperature, top_p, draw)

    @property
    def of_texts(self) -> list[torch.Tensor]:
        """(new tokens, V) of each text, in the order of the prompts."""
        return [torch.stack(rows) for rows in self.logits.values()]


@pytest.mark.parametrize(
    ("family", "dtype", "equal_bits"),
    [
        ("mistral", torch.float32, True),
        ("qwen2", torch.bfloat16, True),
        ("llama", torch.float32, False),
    ],
)
def test_the_logits_of_a_text_do_not_depend_on_the_others_under_equal_bits_in_any_bit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    dtype: torch.dtype,
    equal_bits: bool,
) -> None:
    """Also while others end: the budgets differ. Without equal bits they agree within rounding."""
    folder = write_checkpoint(tmp_path / "model", FAMILIES[family])
    lm = load(folder, dtype=dtype, equal_bits=equal_bits)
    assert isinstance(lm.decoder, EqualBits) == equal_bits
    budgets = [70, 3, 40, 90, 8]

    def read(prompts: list[str], budgets: list[int]) -> list[torch.Tensor]:
        chooses = Read()
        monkeypatch.setattr("minise.lab.writing.generation.choose", chooses.choose)
        generate(lm, prompts, budgets)
        return chooses.of_texts

    together = read(PROMPTS, budgets)
    assert [len(rows) for rows in together] == budgets
    alone = [read([prompt], [budget])[0] for prompt, budget in zip(PROMPTS, budgets, strict=True)]
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0 if equal_bits else 1e-4)


def test_each_prompt_may_have_its_own_budget_and_seed(lm: LocalModel) -> None:
    prompts, budgets, seeds = ["abc", "Z", "abc", "abc"], [5, 9, 7, 7], [0, 1, 1, 0]
    together = generate(lm, prompts, budgets, 1.0, seed=seeds)
    assert [len(text.tokens) for text in together] == budgets
    for number in range(3):
        prompt, budget, seed = prompts[number], budgets[number], seeds[number]
        assert generate(lm, [prompt], budget, 1.0, seed=seed) == [together[number]]
    assert together[3].tokens[:5] != together[0].tokens  # an equal prompt, with an equal seed


def test_draws_follow_from_seed_prompt_and_the_equal_prompts_before(lm: LocalModel) -> None:
    first, second = generate(lm, ["abc", "abc"], 30, 1.0)
    assert first.tokens != second.tokens
    assert generate(lm, ["abc"], 30, 1.0, seed=0) == [first]
    assert generate(lm, ["abc"], 30, 1.0, seed=1) != [first]
    assert generate(lm, ["abc"], 40, 1.0)[0].tokens[:30] == first.tokens


def test_the_draws_never_change(lm: LocalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(logits: torch.Tensor, temperature: float, top_p: float, draw: random.Random) -> int:
        return int(250 * draw.random())

    monkeypatch.setattr("minise.lab.writing.generation.choose", drawn)
    texts = generate(lm, [[5, 6], [7], [5, 6]], 3, 1.0, seed=4)
    assert [text.tokens for text in texts] == [[201, 139, 84], [169, 107, 11], [127, 29, 130]]


def test_the_shared_beginning_runs_once_and_then_one_token_of_each_prompt(
    lm: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, run = [], Decoder.run

    def watch(decoder: Decoder, tokens: torch.Tensor, *more: Any) -> torch.Tensor:
        ran.append(tokens.shape[-1])
        return run(decoder, tokens, *more)

    monkeypatch.setattr(Decoder, "run", watch)
    generate(lm, [[5, 6, 7], [5, 6, 8, 9], [5, 6]], 4)
    assert ran == [5, 3, 3, 3]
    assert generate(lm, []) == []


def test_a_stop_token_ends_a_text_and_is_not_part_of_it(lm: LocalModel, stop: list[int]) -> None:
    free = generate(lm, ["abc"], 20)[0].tokens
    stop.append(free[7])
    text = generate(lm, ["abc"], 20)[0]
    assert text.tokens == free[: free.index(free[7])]
    assert text.finished


def test_the_first_stop_text_ends_a_text_and_is_left_out_of_it(lm: LocalModel) -> None:
    free = generate(lm, ["abc"], 20)[0]
    early, late = free.text[4:6], free.text[9:11]
    text = generate(lm, ["abc"], 20, stop_texts=[late, "never", early])[0]
    assert text.text == free.text[: free.text.index(early)]
    assert text.finished
    assert 0 < len(text.tokens) < len(free.tokens)
    assert generate(lm, ["abc"], 20, stop_texts=["never"])[0] == free


def test_a_text_ends_with_the_budget_or_where_the_positions_end(lm: LocalModel) -> None:
    assert len(generate(lm, ["abc"], 1)[0].tokens) == 1
    short = replace(lm, config=replace(lm.config, max_position_embeddings=12))
    texts = generate(short, ["abc", "abcdefg"], 50)
    used = [len(ids) for ids in lm.tokenizer.encode(["abc", "abcdefg"])]
    # No token reads the last token of a text, so it needs no position.
    assert [n + len(text.tokens) for n, text in zip(used, texts, strict=True)] == [13, 13]
    assert not any(text.finished for text in texts)


def test_a_text_keeps_the_space_at_its_beginning_and_has_no_special_tokens(
    lm: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a tokenizer as SentencePiece's, whose decoder drops the first space of a text."""
    backend = make_tokenizer()
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens(["<s>"])
    written = [*backend.encode(" two", add_special_tokens=False).ids, 0]
    monkeypatch.setattr("minise.lab.writing.generation.choose", Mock(side_effect=written))
    other = replace(lm, tokenizer=Tokenizer(backend, "spaces"))
    (text,) = generate(other, ["one"], len(written))
    assert (text.tokens, text.text) == (written, " two")


class TestChoose:
    LOGITS = torch.tensor([0.0, 2.0, 1.0, 2.0, -1.0], dtype=torch.float64)
    EQUAL = torch.zeros(64, dtype=torch.float64)  # each has a share of 1/64, exactly

    def test_greedy_takes_the_first_of_equals(self) -> None:
        assert choose(self.LOGITS, 0.0, 1.0, random.Random(0)) == 1

    @pytest.mark.parametrize(
        ("temperature", "top_p", "kept", "most"),
        [(0.5, 1.0, 5, 18.5), (2.0, 1.0, 5, 18.5), (1.0, 0.9, 3, 13.8)],
    )
    def test_draws_have_the_frequencies_of_the_softmax_in_the_nucleus(
        self, temperature: float, top_p: float, kept: int, most: float
    ) -> None:
        """Chi-square: by chance, `most` is exceeded once in 1,000 cases."""
        draw, n = random.Random(7), 3000
        counts = Counter(choose(self.LOGITS, temperature, top_p, draw) for _ in range(n))
        order = [1, 3, 2, 0, 4][:kept]
        assert set(counts) <= set(order)
        shares = torch.softmax(self.LOGITS[order] / temperature, dim=0).tolist()
        terms = [(counts[i] - n * p) ** 2 / (n * p) for i, p in zip(order, shares, strict=True)]
        assert sum(terms) < most

    def test_the_nucleus_ends_with_the_token_that_reaches_top_p(self) -> None:
        """The shares of the tokens 1, 3, 2, 0 and 4 are 39.2, 39.2, 14.4, 5.3 and 2.0%."""
        last = Mock(random=lambda: 1 - 2**-53)  # the largest draw
        for top_p, token in [(1e-9, 1), (0.39, 1), (0.4, 3), (0.78, 3), (0.79, 2), (1.0, 4)]:
            assert choose(self.LOGITS, 1.0, top_p, last) == token
        assert choose(self.EQUAL, 1.0, 2 / 64, last) == 1
        assert choose(self.EQUAL, 1.0, 2 / 64 + 1e-9, last) == 2

    def test_equal_tokens_divide_the_draws_equally_in_the_order_of_their_ids(self) -> None:
        for token in range(64):
            for number in (token / 64, (token + 1) / 64 - 2**-53):
                assert choose(self.EQUAL, 1.0, 1.0, Mock(random=lambda x=number: x)) == token


@pytest.mark.parametrize(
    ("prompts", "settings", "named"),
    [
        (["abc"], {"max_new_tokens": 0}, "max_new_tokens 0"),
        (["abc", "Z"], {"max_new_tokens": [4, 0]}, "max_new_tokens 0"),
        (["abc", "Z"], {"max_new_tokens": [4]}, "1 numbers as max_new_tokens for 2 prompts"),
        (["abc", "Z"], {"seed": [4, 5, 6]}, "3 numbers as seed for 2 prompts"),
        (["abc"], {"temperature": -1.0}, "temperature -1.0"),
        (["abc"], {"temperature": float("nan")}, "temperature nan"),
        (["abc"], {"top_p": 0.0}, "top_p 0.0"),
        (["abc"], {"top_p": 1.5}, "top_p 1.5"),
        ([[5], [], "abc"], {}, "no token"),
        ([[5] * 1025], {}, "1025"),
        ([[5000]], {}, "5000"),
    ],
)
def test_what_cannot_run_is_refused(
    lm: LocalModel, prompts: list[Any], settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        generate(lm, prompts, **settings)


def test_a_model_that_runs_elsewhere_does_not_write(lm: LocalModel) -> None:
    """In a server, or in a library: neither goes on from a cache of ours."""
    for model in (Served(lm), replace(lm, decoder=object())):
        with pytest.raises(Unsuited, match="runs elsewhere; give the folder of a llama"):
            generate(model, ["abc"])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_numbers_that_overflow_are_refused(lm: LocalModel, temperature: float) -> None:
    decoder = copy.deepcopy(lm.decoder)
    decoder.model.norm.weight.data[0] = torch.inf
    with pytest.raises(InputError, match=r"overflow torch\.float64"):
        generate(replace(lm, decoder=decoder), ["abc"], 4, temperature)
