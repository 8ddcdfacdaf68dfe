"""Servers on the loopback address: llama.cpp's own with a tiny model, and one that pretends."""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minise import load
from minise.config import Config
from minise.lab.serving import http
from minise.model import Decoder
from minise.rope import inverse_frequencies
from tests.reference.support.tiny import FAMILIES, make_tokenizer, write_checkpoint

# Whose rotary pairs lie in the file as in a checkpoint, and whose q, k and v have biases.
QWEN = {**FAMILIES["qwen2"], "use_sliding_window": False, "tie_word_embeddings": False}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint."""
    return write_checkpoint(tmp_path_factory.mktemp("served"), QWEN)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def skip_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits between requests take no time, and are counted as on the clock."""
    slept = [0.0]

    def sleep(seconds: float) -> None:
        slept[0] += seconds

    waits = SimpleNamespace(monotonic=lambda: time.monotonic() + slept[0], sleep=sleep)
    monkeypatch.setattr(http, "time", waits)


def begin_gguf(path: Path, family: str, config: Config) -> Any:
    """A writer of a file for llama.cpp that has the sizes of a model."""
    writer = pytest.importorskip("gguf").GGUFWriter(path, family)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    return writer


def end_gguf(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gguf(path: Path, decoder: Decoder, config: Config) -> None:
    """The weights as llama.cpp reads them, in float32. Prompts are token ids, so that of the
    vocabulary only the size matters."""
    gguf = pytest.importorskip("gguf")
    writer = begin_gguf(path, "qwen2", config)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * config.vocab_size)
    writer.add_token_merges(["t 0"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config.num_hidden_layers)
    for name, x in decoder.state_dict().items():
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), x.float().numpy())
    end_gguf(writer)


def write_shipped(path: Path, folder: Path) -> None:
    """A shipped llama with its tokens, as llama.cpp reads it, in float32."""
    gguf = pytest.importorskip("gguf")
    lm = load(folder, dtype="float32")
    config = lm.decoder.config
    tokens = json.loads((folder / "tokenizer.json").read_text())
    writer = begin_gguf(path, "llama", config)
    writer.add_vocab_size(config.vocab_size)
    ids = tokens["model"]["vocab"] | {one["content"]: one["id"] for one in tokens["added_tokens"]}
    special = {one["content"] for one in tokens["added_tokens"]}
    names = sorted(ids, key=ids.__getitem__)
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types([kinds.CONTROL if one in special else kinds.NORMAL for one in names])
    merges = tokens["model"]["merges"]
    writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{% for one in messages %}{{ one.content }}{% endfor %}")
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    half = config.head_dim // 2
    for name, x in lm.decoder.state_dict().items():
        x = x.float()
        if name.endswith(("q_proj.weight", "k_proj.weight")):  # pairs lie side by side there
            x = x.view(-1, 2, half, config.hidden_size).transpose(1, 2).reshape(x.shape)
        writer.add_tensor(table.get_name(name, (".weight", ".bias")), x.numpy())
    plain = config.rope_theta ** -(torch.arange(half).double() / half)
    scaled = inverse_frequencies(config, torch.float64, torch.device("cpu"))
    writer.add_tensor("rope_freqs.weight", (plain / scaled).float().numpy())
    end_gguf(writer)


def start_llamacpp(path: Path, slots: int = 1) -> Any:
    """A llama.cpp server, which ends with the object. It keeps keys and values in float32."""
    library = pytest.importorskip("xllamacpp")
    params = library.CommonParams()
    params.model.path, params.n_parallel, params.n_ctx = str(path), slots, 1024 * slots
    params.hostnames, params.port, params.cpuparams.n_threads = ["127.0.0.1"], 0, 1
    params.cache_type_k = params.cache_type_v = library.ggml_type.GGML_TYPE_F32
    off = library.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.flash_attn_type, params.verbosity, params.warmup = off, 0, False
    return library.Server(params)


class Pretender(ThreadingHTTPServer):
    """A server whose model is a function of the prompt. `kind`: whose forms it has. `model` and
    `props`: what it says of itself. `tokenizer`: that of /tokenize; None: it has no such path.
    `sent`: the last answer of each path. `instead`: what it sends there, whatever it is asked.
    `faults`: what it does to the next requests for tokens, one function each; it may return bytes
    to send."""

    daemon_threads = True

    def __init__(self, kind: str, port: int = 0, gives: int = 1000) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.kind, self.gives, self.url = kind, gives, f"http://127.0.0.1:{self.server_port}"
        owner = "someone" if kind == "openai" else kind
        self.model: Any = {"id": "/srv/tiny.gguf", "owned_by": owner, "max_model_len": 1024}
        self.models: Any = [self.model]
        self.props: Any = {"total_slots": 2, "default_generation_settings": {"n_ctx": 1024}}
        self.tokenizer: Any = make_tokenizer(bos=False)
        self.sent: dict[str, Any] = {}
        self.instead: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.faults: list[Callable[[Handler], bytes | None]] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.encodings: set[str | None] = set()
        self.at_once = self.most_at_once = 0
        self.killed = False
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news."""

    def kill(self) -> None:
        """Answer nothing more, on no connection."""
        self.killed = True
        self.shutdown()
        self.server_close()

    def log_p(self, prompt: Any) -> torch.Tensor:
        """The log-probabilities of 288 tokens after a prompt."""
        seed = int.from_bytes(hashlib.sha256(repr(prompt).encode()).digest()[:6], "big")
        logits = torch.randn(288, generator=torch.Generator().manual_seed(seed))
        return logits.double().log_softmax(dim=-1)


class Handler(BaseHTTPRequestHandler):
    server: Pretender
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.keys.add(self.headers["Authorization"])
        says = self.server.props if self.path == "/props" else {"data": self.server.models}
        self.send(says)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.encodings.add(self.headers["Accept-Encoding"])
        server = self.server
        if self.path == "/tokenize":
            return self.tokenize(body)
        with server.lock:
            fault = server.faults.pop(0) if server.faults else None
            server.asked.append(body)
            server.at_once += 1
            server.most_at_once = max(server.at_once, server.most_at_once)
        time.sleep(0.01)  # others arrive
        with server.lock:
            server.at_once -= 1  # before the client has its answer, and may ask again
        self.close_connection = server.killed
        content = fault(self) if fault else None
        if not self.close_connection or content:
            self.send(ANSWERS[server.kind](server, body), content)

    def tokenize(self, body: dict[str, Any]) -> None:
        if self.server.tokenizer is None:
            return self.send({"error": "no such path"}, status=404)
        text = body["content" if self.server.kind == "llamacpp" else "prompt"]
        self.send({"tokens": self.server.tokenizer.encode(text, add_special_tokens=False).ids})

    def send(self, answer: Any, content: bytes | None = None, status: int = 200) -> None:
        """What the server was told to send on this path counts first."""
        self.server.sent[self.path] = answer
        content = json.dumps(answer).encode() if content is None else content
        status, headers, content = self.server.instead.get(self.path, (status, {}, content))
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


# The forms of answers to one prompt, written down from each server's documentation and source
# (their addresses are in minise/lab/serving/server.py), not recorded from a running server.


def vllm(server: Pretender, body: dict[str, Any]) -> Any:
    (ids,) = body["prompt"]
    log_p = server.log_p(ids)
    wanted = set(body["logprob_token_ids"][: server.gives]) | {int(log_p.argmax())}
    top = {f"token_id:{i}": float(log_p[i]) for i in wanted}
    logprobs = {"text_offset": [0], "token_logprobs": [-1.0], "tokens": ["token_id:5"]}
    choice = {"index": 0, "text": "x", "logprobs": {**logprobs, "top_logprobs": [top]}}
    usage = {"prompt_tokens": len(ids), "completion_tokens": 1}
    return {"object": "text_completion", "choices": [choice], "usage": usage}


def llamacpp(server: Pretender, body: dict[str, Any]) -> Any:
    log_p, ids = server.log_p(body["prompt"]), body["prompt"]
    top = log_p.topk(min(288, body["n_probs"], server.gives))
    read = [{"id": int(i), "logprob": float(p)} for p, i in zip(*top, strict=True)]
    return {"completion_probabilities": [{"top_logprobs": read}], "tokens_evaluated": len(ids)}


def openai(server: Pretender, body: dict[str, Any]) -> Any:
    log_p = server.log_p(body.get("prompt", body.get("messages")))
    top = {f" {letter}": float(log_p[i]) for i, letter in enumerate("ABCDEFGH"[: server.gives])}
    if "messages" in body:
        return chat_completion(top)
    return {"choices": [{"text": "x", "logprobs": {"top_logprobs": [top]}}]}


def chat_completion(top: dict[str, float]) -> Any:
    likely = [{"token": name, "logprob": value, "bytes": None} for name, value in top.items()]
    content = [{**likely[0], "top_logprobs": likely}]
    message = {"role": "assistant", "content": "x"}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    choice["logprobs"] = {"content": content, "refusal": None}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    facts = {"id": "x", "object": "chat.completion", "created": 1, "model": "tiny"}
    return {**facts, "choices": [choice], "usage": usage}


ANSWERS = {"vllm": vllm, "llamacpp": llamacpp, "openai": openai}


@pytest.fixture
def pretend() -> Iterator[Callable[..., Pretender]]:
    servers: list[Pretender] = []

    def start(kind: str, **facts: Any) -> Pretender:
        servers.append(Pretender(kind, **facts))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()
