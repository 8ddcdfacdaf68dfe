"""A GGUF file becomes the checkpoint that it was made of, or nothing: tools/from_gguf.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import pre_tokenizers

import minise
from minise.lab.writing.chat import chat_template
from minise.loading.checkpoint import EMBEDDING
from minise.loading.config_json import read_config
from minise.rope import inverse_frequencies
from tests.reference.support.tiny import LLAMA3, SIZES, make_decoder, make_tokenizer
from tools.from_gguf import WORDS, main

gguf = pytest.importorskip("gguf", reason="the extra [gguf] is missing")

UP, Q8 = "model.layers.1.mlp.up_proj.weight", gguf.GGMLQuantizationType.Q8_0
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 8192}},
    "mistral": {"sliding_window": 9, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "qwen2": {"sliding_window": None, "tie_word_embeddings": True},
    "qwen3": {"sliding_window": None, "head_dim": 12},
}
# SentencePiece's: the pair whose token has the highest score is joined first.
BYTES = {f"<0x{i:02X}>": 0.0 for i in range(256)}
PIECES = {"<unk>": 0.0, "<s>": 0.0, **BYTES, "▁": -9.0, "a": -9.0, "b": -9.0}
PIECES |= {"▁a": -2.0, "ab": -1.0}


def write(path: Path, family: str, edit: Callable[[Any, Any], object] | None = None) -> Any:
    """A file with random weights, one of them in 8 bits, as llama.cpp writes it. Returns the config
    and the weights of its checkpoint. `edit` may change its facts and tensors before."""
    raw = {**SIZES, "rope_theta": 500000.0, **CONFIGS[family], "model_type": family}
    kind = "llama" if family == "mistral" else family
    decoder = make_decoder(raw, torch.float32)
    config, state = decoder.config, dict(decoder.state_dict())
    state[UP] = torch.tensor(gguf.dequantize(gguf.quantize(state[UP].numpy(), Q8), Q8))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], 3)
    tensors = {names.get_name(x, (".weight", ".bias")): state[x].numpy() for x in state}
    for name in [x for x in tensors if kind == "llama" and ("_q.w" in x or "_k.w" in x)]:
        halves = tensors[name].reshape(-1, 2, config.head_dim // 2, 32)
        tensors[name] = halves.swapaxes(1, 2).reshape(-1, 32)
    if config.tie_word_embeddings:
        tensors["output.weight"] = tensors["token_embd.weight"]  # some files have it twice
    vocabulary = make_tokenizer().get_vocab()
    tokens = list(PIECES) if family == "mistral" else sorted(vocabulary, key=vocabulary.get)
    tokens += [f"[unused {i}]" for i in range(len(tokens), config.vocab_size)]
    facts: dict[str, Any] = {"block_count": 3, "embedding_length": 32, "context_length": 1024}
    facts |= {"attention.head_count": 4, "attention.head_count_kv": 2, "feed_forward_length": 48}
    facts |= {"attention.key_length": config.head_dim, "rope.freq_base": 500000.0}
    facts |= {"attention.layer_norm_rms_epsilon": 1e-5}
    rest = {"model": "gpt2", "pre": "llama-bpe" if kind == "llama" else "qwen2", "tokens": tokens}
    rest |= {"token_type": [3 if x in ("<s>", "<unk>") else 1 for x in tokens]}
    rest |= {"merges": [f"Ġ {x}" for x in "ZYXWVUTSRQPONMLKJIHGFEDCBA"], "bos_token_id": 0}
    if family == "mistral":
        facts |= {"attention.sliding_window": 9, "rope.scaling.type": "linear"}
        facts |= {"rope.scaling.factor": 2.0}
        scores = [PIECES.get(token, -99.0) for token in tokens]
        rest |= {"model": "llama", "scores": scores, "bos_token_id": 1, "unknown_token_id": 0}
    elif family == "llama":
        plain = read_config({**raw, "rope_scaling": None})
        ways = (inverse_frequencies(x, torch.float32, torch.device("cpu")) for x in (plain, config))
        tensors["rope_freqs.weight"] = torch.div(*ways).numpy()
    facts = {f"{kind}.{name}": value for name, value in facts.items()}
    facts |= {f"tokenizer.ggml.{name}": value for name, value in rest.items()}
    facts |= {"tokenizer.chat_template": "{{ messages }}"}
    if edit:
        edit(facts, tensors)
    file = gguf.GGUFWriter(path, facts.pop("architecture", kind))
    add = {int: file.add_uint32, float: file.add_float32, str: file.add_string}
    for name, value in facts.items():
        add.get(type(value), file.add_array)(name, value)
    for name, x in tensors.items():
        if name == "blk.1.ffn_up.weight":
            file.add_tensor(name, gguf.quantize(x, Q8), raw_dtype=Q8)
        else:
            file.add_tensor(name, x)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return config, state


def convert(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["from_gguf", *map(str, arguments)])
    return main()


@pytest.mark.parametrize("family", CONFIGS)
def test_a_file_becomes_the_checkpoint_it_was_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    config, state = write(tmp_path / "x.gguf", family)
    folder = tmp_path / "new" / "folder"
    assert convert(monkeypatch, tmp_path / "x.gguf", folder, "--dtype", "float32") == 0
    lm = minise.load(folder)
    assert lm.config == config
    made = lm.decoder.state_dict()
    assert made.keys() == state.keys()
    assert all(torch.equal(made[name], state[name]) for name in state)
    assert chat_template(lm) == "{{ messages }}"
    if family == "mistral":  # "é" is no piece; a space comes before the text
        pieces = ["<s>", "▁", "ab", "▁", "ab", "a", "<0xC3>", "<0xA9>", "<s>"]
        assert lm.tokenizer.encode(["ab abaé<s>"]) == [[list(PIECES).index(x) for x in pieces]]
    else:  # Qwen's composes "e" and its accent
        known = make_tokenizer(bos=family == "llama").encode("(A) A é\n").ids
        given = "(A) A é\n" if family == "llama" else "(A) A e\u0301\n"
        assert lm.tokenizer.encode([given]) == [known]
    assert convert(monkeypatch, tmp_path / "x.gguf", tmp_path / "narrow") == 0
    narrow = minise.load(tmp_path / "narrow", dtype="bfloat16").decoder.state_dict()
    assert torch.equal(narrow[EMBEDDING], state[EMBEDDING].bfloat16())


QWEN = "I|'LL|Ġpay|Ġ|1|2|3|4|ĊĊ|Ġ|Ġx"
KNOWN = {"gpt-2": "I|'|LL|Ġpay|Ġ1234|ĊĊĠ|Ġx", "smollm": "I|'|LL|Ġpay|Ġ|1|2|3|4|ĊĊĠ|Ġx"}
KNOWN |= {"qwen2": QWEN, "deepseek-r1-qwen": QWEN, "llama-bpe": QWEN.replace("1|2|3", "123")}


@pytest.mark.parametrize("name", WORDS)
def test_a_text_is_split_as_the_file_says(name: str) -> None:
    made = pre_tokenizers.Sequence(WORDS[name]).pre_tokenize_str("I'LL pay 1234\n\n  x")
    assert [word for word, _ in made] == KNOWN[name].split("|")


NORM = "output_norm.weight"
REFUSED: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "an unknown kind": (lambda facts, _: facts.update(architecture="gemma"), "gemma"),
    "no size": (lambda facts, _: facts.pop("llama.block_count"), "block_count is missing"),
    "unknown words": (lambda facts, _: facts.update({"tokenizer.ggml.pre": "new"}), '"new"'),
    "a token too few": (lambda facts, _: facts["tokenizer.ggml.tokens"].remove("Ċ"), ""),
    "a tensor too few": (lambda _, tensors: tensors.pop(NORM), f"{NORM} is missing"),
    "one too many": (lambda _, tensors: tensors.update(x=tensors[NORM]), 'tensor "x"'),
    "another shape": (lambda _, tensors: tensors.update({NORM: tensors[NORM][1:]}), "model.norm"),
    "NaN": (lambda _, tensors: tensors.update({NORM: tensors[NORM] * float("nan")}), NORM),
    "odd factors": (lambda _, x: x.update({"rope_freqs.weight": x[NORM][:4]}), "rope_freqs"),
}


@pytest.mark.parametrize("case", [*REFUSED, "cut early", "cut late", "empty", "absent", "taken"])
def test_what_cannot_be_converted_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    path, folder = tmp_path / "x.gguf", tmp_path / "folder"
    edit, named = REFUSED.get(case, (None, "is there already" if case == "taken" else str(path)))
    write(path, "llama", edit)
    data = path.read_bytes()
    path.write_bytes(data[: {"cut early": 3000, "cut late": -40, "empty": 0}.get(case, len(data))])
    if case == "absent":
        path.unlink()
    if case == "taken":
        folder.mkdir()
        (folder / "mine").touch()
    before = sorted(tmp_path.rglob("*"))
    assert convert(monkeypatch, path, folder) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
