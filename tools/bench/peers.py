"""Other libraries' own ways to the logits that ways.py times. Each that is there is tried.

transformers keeps the question's keys and values, for 1, 8 or 40 prompts at once, as its manual
says, or for all other tokens of the token tree that is made here, under one 4-D mask; its
FlexAttention, which torch compiles, is given the whole tree. llama.cpp
(package llama-cpp-python) runs all prompts as sequences over one question. vLLM has a prefix cache,
which is emptied before each round.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minise import pack
from minise.model import Decoder
from minise.prompts import Prompts

Way = Callable[[], Tensor]  # the logits of some labels after each prompt, (G, L)

KEPT_TOKENS = 1 << 16  # whose keys a batch may hold


def peers(folder: str, gguf: str | None, decoder: Decoder, prompts: Prompts) -> dict[str, Way]:
    """The ways of the libraries that are installed. gguf: the same weights for llama.cpp."""
    ways: dict[str, Way] = {}
    if find_spec("transformers"):
        model = transformers_model(folder, decoder)
        ways |= kept_question(model, prompts)
        ways |= kept_and_tree(model, prompts)
        ways |= flex_attention(model, prompts)
    if gguf and find_spec("llama_cpp"):
        ways |= llama_cpp(gguf, decoder.dtype, prompts)
    # A GPU's memory vLLM takes for itself: tools/bench/card.py.
    if decoder.device.type == "cpu" and find_spec("vllm"):
        name = str(decoder.dtype).removeprefix("torch.")
        ways["vLLM, prefix cache"] = vllm_way(vllm_model(folder, name, prompts.longest), prompts)
    return ways


@cache  # one for all kinds of work
def transformers_model(folder: str, decoder: Decoder) -> Any:
    """transformers' model with the decoder's own weights, so that memory holds them once."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=decoder.dtype)
    model.load_state_dict(decoder.state_dict(), strict=False, assign=True)
    model.tie_weights()
    return model.eval().to(decoder.device)


def kept_question(model: Any, prompts: Prompts) -> dict[str, Way]:
    """transformers with a cache of the question, which a batch of prompts repeats."""
    from transformers import DynamicCache

    device = model.device
    labels = prompts.label_ids[0]
    prefix = torch.tensor([prompts.prefix], device=device)
    P = len(prompts.prefix)
    branches = [torch.tensor(ids, device=device) for ids in prompts.branches]
    has_new_name = "cache" in signature(model.forward).parameters
    cache_name = "cache" if has_new_name else "past_key_values"

    def run(size: int) -> Tensor:
        model.set_attn_implementation("sdpa")
        cache = DynamicCache(config=model.config)
        model(prefix, logits_to_keep=1, **{cache_name: cache})
        outputs = []
        for start in range(0, len(branches), size):
            some = branches[start : start + size]
            again = copy.deepcopy(cache)
            again.batch_repeat_interleave(len(some))
            ids = pad_sequence(some, batch_first=True)
            ends = torch.tensor([len(branch) - 1 for branch in some], device=device)
            mask = None
            if size > 1:
                columns = torch.arange(P + ids.shape[1], device=device)
                mask = (columns <= P + ends[:, None]).long()
            out = model.model(ids, attention_mask=mask, **{cache_name: again})
            hidden = out.last_hidden_state[torch.arange(len(some), device=device), ends]
            outputs.append(model.lm_head(hidden))
        return torch.cat(outputs)[:, labels]

    ways: dict[str, Way] = {}
    for size in (1, 8, 40):
        if size * P < KEPT_TOKENS:
            ways[f"transformers, kept question, {size} at once"] = partial(run, size)
    return ways


def kept_and_tree(model: Any, prompts: Prompts) -> dict[str, Way]:
    """transformers with a cache of the question, and then all other tokens of the token tree in one
    call under a 4-D mask, which is made once and not timed."""
    from transformers import DynamicCache

    device = model.device
    tree = pack(prompts.prefix, prompts.branches, tree=True)
    P = len(prompts.prefix)
    prefix = tree.tokens[None, :P].to(device)
    tokens = tree.tokens[None, P:].to(device)
    positions = tree.positions[None, P:].to(device)
    ends = tree.ends.to(device) - P
    hidden_pairs = ~tree.mask[P:].to(device)
    mask = torch.zeros(hidden_pairs.shape, dtype=model.dtype, device=device)
    mask = mask.masked_fill(hidden_pairs, torch.finfo(model.dtype).min)[None, None]
    labels = prompts.label_ids[0]
    has_new_name = "cache" in signature(model.forward).parameters
    cache_name = "cache" if has_new_name else "past_key_values"

    def run() -> Tensor:
        model.set_attn_implementation("sdpa")
        cache = DynamicCache(config=model.config)
        model(prefix, logits_to_keep=1, **{cache_name: cache})
        out = model.model(
            tokens, position_ids=positions, attention_mask=mask, **{cache_name: cache}
        )
        return model.lm_head(out.last_hidden_state[0, ends])[:, labels]

    return {"transformers, the rest of the token tree": run}


def flex_attention(model: Any, prompts: Prompts) -> dict[str, Way]:
    """The token tree by transformers' FlexAttention. Its mask is made once, which is not timed."""
    from torch.nn.attention.flex_attention import create_block_mask

    device = model.device
    tree = pack(prompts.prefix, prompts.branches, tree=True)
    allowed = tree.mask.to(device)
    T = len(tree.tokens)
    mask = create_block_mask(lambda b, h, q, k: allowed[q, k], None, None, T, T, device)
    tokens = tree.tokens[None].to(device)
    positions = tree.positions[None].to(device)
    labels = prompts.label_ids[0]

    def run() -> Tensor:
        model.set_attn_implementation("flex_attention")
        out = model.model(tokens, position_ids=positions, attention_mask=mask, use_cache=False)
        hidden = out.last_hidden_state[0, tree.ends.to(device)]
        return model.lm_head(hidden)[:, labels]

    return {"transformers, FlexAttention, the token tree": run}


def llama_cpp(gguf: str, dtype: torch.dtype, prompts: Prompts) -> dict[str, Way]:
    """llama.cpp by its library: one batch in which a token of the question is in all sequences, and
    a token of a prompt in its own."""
    import llama_cpp as cpp
    import numpy as np

    tokens = len(prompts.prefix) + sum(len(branch) for branch in prompts.branches)
    G = len(prompts.branches)
    cpp.llama_backend_init()
    model = cpp.llama_model_load_from_file(gguf.encode(), cpp.llama_model_default_params())
    settings = cpp.llama_context_default_params()
    settings.n_ctx = tokens + 256
    settings.n_batch = tokens
    settings.n_ubatch = min(tokens, 512)
    settings.n_seq_max = G
    settings.kv_unified = True
    settings.n_threads = torch.get_num_threads()
    settings.n_threads_batch = torch.get_num_threads()
    if dtype == torch.float32:  # else its own choice for keys and values, float16
        settings.type_k = cpp.GGML_TYPE_F32
        settings.type_v = cpp.GGML_TYPE_F32
    context = cpp.llama_init_from_model(model, settings)
    vocabulary = cpp.llama_vocab_n_tokens(cpp.llama_model_get_vocab(model))
    batch = cpp.llama_batch_init(tokens, 0, G)
    batch.n_tokens = tokens
    ends = []
    place = 0

    def add(token: int, position: int, sequences: list[int]) -> None:
        nonlocal place
        batch.token[place] = token
        batch.pos[place] = position
        batch.n_seq_id[place] = len(sequences)
        for i, sequence in enumerate(sequences):
            batch.seq_id[place][i] = sequence
        batch.logits[place] = 0
        place += 1

    for position, token in enumerate(prompts.prefix):
        add(token, position, list(range(G)))
    for sequence, branch in enumerate(prompts.branches):
        for i, token in enumerate(branch):
            add(token, len(prompts.prefix) + i, [sequence])
        ends.append(place - 1)
        batch.logits[place - 1] = 1
    labels = prompts.label_ids[0]

    def run() -> Tensor:
        cpp.llama_memory_clear(cpp.llama_get_memory(context), True)
        if cpp.llama_decode(context, batch) != 0:
            raise RuntimeError("llama.cpp could not run the batch")
        rows = []
        for end in ends:
            pointer = cpp.llama_get_logits_ith(context, end)
            row = np.ctypeslib.as_array(pointer, shape=(vocabulary,))
            rows.append(torch.tensor(row[labels]))
        return torch.stack(rows)

    return {"llama.cpp, all prompts over one question": run}


def vllm_model(folder: str, dtype: str, longest: int) -> Any:
    """vLLM in this process, with its prefix cache, for prompts of so many tokens."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM

    most = longest + 1  # with the token that it writes
    return LLM(
        folder,
        dtype=dtype,
        max_model_len=most,
        max_num_batched_tokens=max(most, 8192),
        enable_prefix_caching=True,
        skip_tokenizer_init=True,
    )


def vllm_way(model: Any, prompts: Prompts) -> Way:
    from vllm import SamplingParams

    labels = prompts.label_ids[0]
    read = SamplingParams(max_tokens=1, logprob_token_ids=labels, detokenize=False)
    asked = [{"prompt_token_ids": prompts.prefix + branch} for branch in prompts.branches]

    def run() -> Tensor:
        model.reset_prefix_cache()  # else it would find all of the round before
        rows = []
        for answer in model.generate(asked, read, use_tqdm=False):
            found = answer.outputs[0].logprobs[0]
            rows.append([found[label].logprob for label in labels])
        return torch.tensor(rows)

    return run
