"""llama.cpp: a packed row as tokens of many sequences, one for each prompt. float32.

By the C interface inside the package xllamacpp (2026.10.11549 was tried; another version may have
other offsets), and the package gguf. A token that several prompts share is in the sequences of all
of them, once. The cache is told to be one for all sequences, and float32.
"""

import ctypes
import functools
import json
import tempfile
from pathlib import Path

import gguf
import numpy as np
import xllamacpp
from numpy_packed import frequencies
from packed_vectors.check import read

(LIBRARY,) = Path(xllamacpp.__file__).parent.glob("xllamacpp*.so")
llama = ctypes.CDLL(str(LIBRARY))
KINDS = {"llama": "LLAMA", "mistral": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}
N_SEQ_MAX, FLASH, TYPE_K, TYPE_V, KV_UNIFIED = 12, 52, 104, 108, 141  # bytes into the parameters


class Parameters(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 256)]  # more than any version has

    def put(self, at, number):
        self.bytes[at : at + 4] = number.to_bytes(4, "little")


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


llama.llama_model_default_params.restype = Parameters
llama.llama_context_default_params.restype = Parameters
llama.llama_batch_init.restype = Batch
llama.llama_model_load_from_file.restype = ctypes.c_void_p
llama.llama_model_load_from_file.argtypes = [ctypes.c_char_p, Parameters]
llama.llama_init_from_model.restype = ctypes.c_void_p
llama.llama_init_from_model.argtypes = [ctypes.c_void_p, Parameters]
llama.llama_decode.argtypes = [ctypes.c_void_p, Batch]
llama.llama_get_logits_ith.argtypes = [ctypes.c_void_p, ctypes.c_int32]
llama.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
llama.llama_free.argtypes = [ctypes.c_void_p]


def write(path, weights, config):
    """The weights as a GGUF file. A llama file holds rotary pairs side by side."""
    kind, heads = KINDS[config["model_type"]], config["num_attention_heads"]
    writer = gguf.GGUFWriter(path, kind.lower())
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if config["sliding_window"]:
        writer.add_sliding_window(config["sliding_window"])
    if config["rope_scaling"]:
        plain = frequencies({**config, "rope_scaling": None})
        factors = (plain / frequencies(config)).astype(np.float32)
        writer.add_tensor("rope_freqs.weight", factors)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind], config["num_hidden_layers"])
    for name, x in weights.items():
        if kind == "LLAMA" and ("q_proj" in name or "k_proj" in name):
            x = (
                x.reshape(-1, 2, config["head_dim"] // 2, x.shape[1])
                .swapaxes(1, 2)
                .reshape(x.shape)
            )
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(new, np.ascontiguousarray(x, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@functools.cache
def load(folder):
    config = json.loads((folder / "config.json").read_text())
    with tempfile.TemporaryDirectory() as place:
        path = f"{place}/model.gguf"
        write(path, read(folder / "model.safetensors")[0], config)
        return llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())


def logits(folder, config, tokens, positions, prompts, real):
    if config["model_type"] == "qwen2":
        return None  # does not load: a qwen2 has heads of hidden_size / num_attention_heads there
    parameters = llama.llama_context_default_params()
    parameters.put(N_SEQ_MAX, len(prompts))
    parameters.put(FLASH, 0)
    parameters.put(TYPE_K, 0)
    parameters.put(TYPE_V, 0)
    parameters.bytes[KV_UNIFIED] = 1
    context = llama.llama_init_from_model(load(folder), parameters)
    batch = llama.llama_batch_init(len(tokens), 0, len(prompts))
    rows = np.flatnonzero(real)
    for i, t in enumerate(rows):
        batch.token[i], batch.pos[i], batch.logits[i] = int(tokens[t]), int(positions[t]), 1
        sequences = [s for s, prompt in enumerate(prompts) if t in prompt]
        batch.n_seq_id[i] = len(sequences)
        for n, s in enumerate(sequences):
            batch.seq_id[i][n] = s
    batch.n_tokens = len(rows)
    status = llama.llama_decode(context, batch)
    if status:
        raise RuntimeError(f"llama_decode gives {status}")
    out = np.zeros((len(tokens), config["vocab_size"]))
    for i, t in enumerate(rows):
        out[t] = np.ctypeslib.as_array(llama.llama_get_logits_ith(context, i), out[t].shape)
    llama.llama_free(context)
    return out
