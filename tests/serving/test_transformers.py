"""Models of the library transformers by whole prompts, of families that minise does not know."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from minise import LanguageModel, Question, load
from minise.errors import InputError, Unsuited
from minise.method import SelfEnsemble, ask, label_logits
from minise.methods.cloze import Cloze
from tests.support.tiny import FAMILIES, make_tokenizer, write_checkpoint

library = pytest.importorskip("transformers")
SIZES = {"vocab_size": 288, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
SIZES |= {"pad_token_id": 0}
KINDS: dict[str, dict[str, Any]] = {
    "gemma3_text": {"head_dim": 8, "sliding_window": 16},
    "phi3": {},
    "gpt_neox": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},  # positions are learned
}


@pytest.fixture(params=KINDS)
def lm(request: pytest.FixtureRequest, tmp_path: Path) -> LanguageModel:
    config = library.AutoConfig.for_model(request.param, **SIZES, **KINDS[request.param])
    torch.manual_seed(0)
    model = library.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path)
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return load(f"transformers:{tmp_path}", dtype="float64")


def test_a_padded_batch_is_each_prompt_alone(
    lm: LanguageModel, question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SelfEnsemble(group_size=2, trials=3).plan(lm, question)
    assert len({len(branch) for branch in plan.branches}) > 3
    batched = label_logits(lm, plan)
    monkeypatch.setattr("minise.serving.transformers.MOST_TOKENS", 1)
    together, alone = torch.cat(batched), torch.cat(label_logits(lm, plan))
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)  # float32 inside its norms
    assert float(together.std()) > 0.05
    ids = torch.tensor([[*plan.prefix, *plan.branches[0]]])
    whole = lm.elsewhere.model(input_ids=ids).logits[0, -1].double()
    torch.testing.assert_close(whole[plan.prompts[0].label_ids], batched[0], rtol=0, atol=1e-6)
    total = lm.elsewhere(plan.prefix, plan.branches[:1], [5], total=True)
    assert float(total[0, 1]) == pytest.approx(float(whole.logsumexp(-1)), abs=1e-6)


def test_the_whole_vocabulary_is_read_and_what_needs_weights_is_unsuited(
    lm: LanguageModel, question: Question
) -> None:
    assert float(ask(lm, Cloze(), question).probabilities.sum()) == pytest.approx(1)
    with pytest.raises(Unsuited, match="needs weights that minise runs itself"):
        _ = lm.refined


def test_a_known_family_has_the_numbers_of_minise(tmp_path: Path, question: Question) -> None:
    folder = write_checkpoint(tmp_path, FAMILIES["mistral"])
    ours, theirs = (load(f"{kind}{folder}", dtype="float64") for kind in ("", "transformers:"))
    plan = SelfEnsemble().plan(ours, question)
    a, b = (torch.cat(label_logits(lm, plan)) for lm in (ours, theirs))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-4)  # float32 inside


def test_a_package_that_is_missing_is_not_called_a_damaged_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path, FAMILIES["llama"])

    def read(*_: object, **facts: object) -> None:
        raise ImportError("This needs the package guess: `pip install guess`")

    monkeypatch.setattr(library.AutoModelForCausalLM, "from_pretrained", read)
    with pytest.raises(InputError, match=r"pip install guess.*; install that package$"):
        load(f"transformers:{folder}")


@pytest.mark.parametrize("kind", ["code", "pickle"])
def test_neither_code_nor_pickles_of_a_checkpoint_are_loaded(tmp_path: Path, kind: str) -> None:
    folder = write_checkpoint(tmp_path, FAMILIES["llama"])
    if kind == "code":
        facts = {"model_type": "own", "auto_map": {"AutoConfig": "own.C"}}
        (folder / "config.json").write_text(json.dumps(facts))
        (folder / "own.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    else:
        torch.save({}, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=f"{folder}: not for transformers"):
        load(f"transformers:{folder}")
    assert not (tmp_path / "run").exists()


def test_tensors_that_are_missing_are_not_made_up(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, {**FAMILIES["llama"], "num_hidden_layers": 2})
    text = (
        (folder / "config.json")
        .read_text()
        .replace('"num_hidden_layers": 2', '"num_hidden_layers": 3')
    )
    (folder / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"made up the tensor model\.layers\.2"):
        load(f"transformers:{folder}")
