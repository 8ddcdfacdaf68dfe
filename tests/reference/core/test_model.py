"""The decoder follows the mask and the positions exactly, in any dtype."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from minise import Decoder, LocalModel
from minise.attention import by_mask
from minise.model import Attention, RMSNorm
from tests.reference.support.tiny import ALL_FAMILIES, SIZES, make_decoder, read_config

T = 24
TOKENS = torch.arange(30, 30 + T)
POSITIONS = torch.arange(T)
CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()


def decoder(family: str, dtype: torch.dtype = torch.float64, **changes) -> Decoder:
    return make_decoder({**ALL_FAMILIES[family], **changes}, dtype)


def test_rms_norm_is_its_formula() -> None:
    norm = RMSNorm(4, eps=0.5).to(torch.float64)
    norm.weight.data = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    x = torch.tensor([1.0, -2.0, 3.0, 4.0], dtype=torch.float64)
    expected = x / (x.square().sum() / 4 + 0.5).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), expected, rtol=1e-15, atol=0)


def test_an_mlp_is_its_formula() -> None:
    mlp = decoder("llama").model.layers[0].mlp
    x = torch.randn(2, 300, 32, dtype=torch.float64)
    inside = F.silu(x @ mlp.gate_proj.weight.T) * (x @ mlp.up_proj.weight.T)
    torch.testing.assert_close(mlp(x), inside @ mlp.down_proj.weight.T)


def test_query_heads_share_key_value_heads_in_blocks() -> None:
    """Query heads 0, 1 read key/value head 0; 2, 3 read head 1."""
    config = read_config({**SIZES, "model_type": "llama"})
    attention = Attention(config).to(torch.float64)
    h = config.head_dim
    # Values are the head's number, the output is passed through: what each query head has read.
    torch.nn.init.zeros_(attention.v_proj.weight)
    attention.v_proj.bias = torch.nn.Parameter(torch.arange(2.0).repeat_interleave(h).double())
    attention.o_proj.weight.data = torch.eye(32, dtype=torch.float64)
    x = torch.randn(1, 3, 32, dtype=torch.float64)
    angle = torch.zeros(1, 3, 1, h, dtype=torch.float64)
    mask = torch.ones(1, 3, 3, dtype=torch.bool).tril()
    positions = torch.arange(3)[None]
    attend = by_mask(mask, positions, [None], None, torch.device("cpu"))
    output = attention(x, (angle.cos(), angle.sin()), partial(attend, 0), None)
    assert output[0, 0].view(4, h)[:, 0].tolist() == pytest.approx([0, 0, 1, 1])


def test_positions_matter_only_by_their_differences(lm: LocalModel) -> None:
    states, shifted = (lm.decoder(TOKENS, POSITIONS + shift, CAUSAL) for shift in (0, 500))
    assert (states - shifted).abs().max() <= 1e-9
    stretched = lm.decoder(TOKENS, POSITIONS * 2, CAUSAL)
    assert (states - stretched).abs().max() > 1e-2


@pytest.mark.parametrize("window", [1, 3, 8])
def test_a_window_of_n_shows_n_positions_including_the_tokens_own_position(window: int) -> None:
    """With one layer only: through a second one, a token outside of the window could have an
    effect."""
    model = decoder("mistral", num_hidden_layers=1, sliding_window=window)
    base = model(TOKENS, POSITIONS, CAUSAL)
    for distance in range(window + 3):
        changed = TOKENS.clone()
        changed[T - 1 - distance] = 99
        change = (model(changed, POSITIONS, CAUSAL)[-1] - base[-1]).abs().max()
        assert (change > 1e-6) == (distance < window), (distance, window)


def test_a_window_is_measured_by_position_not_by_index() -> None:
    model = decoder("mistral", num_hidden_layers=1, sliding_window=4)
    # Token 0 at position 0, the last at position 3: in the window, however many rows lie between.
    positions = torch.tensor([0] + [50] * (T - 2) + [3])
    mask = torch.eye(T, dtype=torch.bool)
    mask[-1, 0] = True
    changed = TOKENS.clone()
    changed[0] = 99
    near = (model(TOKENS, positions, mask) - model(changed, positions, mask))[-1].abs().max()
    assert near > 1e-6
    positions[-1] = 4
    far = (model(TOKENS, positions, mask) - model(changed, positions, mask))[-1].abs().max()
    assert far == 0


def test_float64_is_not_narrowed_anywhere(lm: LocalModel) -> None:
    """A change far below float32's resolution passes through every layer."""
    model = lm.decoder
    base = model.logits(model(TOKENS, POSITIONS, CAUSAL))
    saved = model.model.embed_tokens.weight.clone()
    model.model.embed_tokens.weight[TOKENS[0], 0] += 1e-11
    moved = model.logits(model(TOKENS, POSITIONS, CAUSAL)) - base
    model.model.embed_tokens.weight.copy_(saved)
    assert 1e-13 < moved[-1].abs().max() < 1e-7


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_only_qwen2_has_biases_and_only_qwen3_norms_inside_attention(family: str) -> None:
    names = {name: name.split(".")[-2] for name in decoder(family).state_dict()}
    biases = {part for name, part in names.items() if "bias" in name}
    assert biases == ({"q_proj", "k_proj", "v_proj"} if family == "qwen2" else set())
    norms = {part for name, part in names.items() if "attn" in name and "norm" in part}
    assert norms == ({"q_norm", "k_norm"} if family == "qwen3" else set())


def test_queries_and_keys_of_qwen3_are_normed_head_by_head_before_the_rotation() -> None:
    """Of the same size in every head, and so are the scores' bounds: however large the weights of
    the projections, nothing changes. The rotation keeps the size that the norm gave."""
    model = decoder("qwen3", num_hidden_layers=1, rms_norm_eps=1e-15)
    attention = model.model.layers[0].self_attn
    for norm in (attention.q_norm, attention.k_norm):
        assert norm.weight.shape == (12,)
        norm.weight.fill_(2.0)
    seen = []
    read = model.reader(CAUSAL[None], POSITIONS[None], None)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen.append((q, k))
        return read(layer, q, k, v)

    before = model.run(TOKENS[None], POSITIONS[None], attend)
    for x, heads in zip(seen[0], (4, 2), strict=True):
        size = x.square().mean(dim=-1).sqrt()
        torch.testing.assert_close(size, torch.full((1, T, heads), 2.0, dtype=torch.float64))
    attention.q_proj.weight *= 10
    attention.k_proj.weight[:12] *= 7  # of one head alone
    assert (model.run(TOKENS[None], POSITIONS[None], attend) - before).abs().max() <= 1e-9
    attention.q_norm.weight[3] = 1.0
    assert (model.run(TOKENS[None], POSITIONS[None], attend) - before).abs().max() > 1e-3


def test_the_driver_computes_only_the_wanted_rows_in_the_top_layer(lm: LocalModel) -> None:
    rows = torch.tensor([3, 23, 7])
    top = lm.config.num_hidden_layers - 1
    calls = []
    read = lm.decoder.reader(CAUSAL[None], POSITIONS[None], rows)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        calls.append((layer, q.shape[1], k.shape[1]))
        return read(layer, q, k, v)

    some = lm.decoder.run(TOKENS[None], POSITIONS[None], attend, rows=rows)[0]
    assert calls == [(layer, T if layer < top else 3, T) for layer in range(top + 1)]
    assert (some - lm.decoder(TOKENS, POSITIONS, CAUSAL)[rows]).abs().max() <= 1e-10


def test_a_batch_gives_the_numbers_of_its_rows_run_alone(qwen: LocalModel) -> None:
    """Whichever of tokens, positions and mask has the batch dimension."""
    many = (
        torch.stack([TOKENS, TOKENS.flip(0), TOKENS + 1]),
        torch.stack([POSITIONS, POSITIONS + 7, POSITIONS * 2]),
        torch.stack([CAUSAL, torch.eye(T).bool(), CAUSAL.T]),
    )
    one = (TOKENS, POSITIONS, CAUSAL)
    for batched in (0, 1, 2):
        inputs = [many[i] if i == batched else one[i] for i in range(3)]
        together = qwen.decoder(*inputs)
        assert together.shape == (3, T, qwen.config.hidden_size)
        for row in range(3):
            mine = [x[row] if i == batched else x for i, x in enumerate(inputs)]
            assert (together[row] - qwen.decoder(*mine)).abs().max() <= 1e-12


def test_logits_read_the_output_matrix_or_the_embedding_that_it_is_tied_to() -> None:
    for family in ("llama", "qwen2"):
        model, hidden = decoder(family), torch.randn(2, 32, dtype=torch.float64)
        tied = not any("lm_head" in name for name in model.state_dict())
        assert tied == (family == "qwen2")
        matrix = (model.model.embed_tokens if model.lm_head is None else model.lm_head).weight
        expected = hidden @ matrix.T
        assert (model.logits(hidden) - expected).abs().max() <= 1e-13
        assert (model.device, model.dtype) == (torch.device("cpu"), torch.float64)
        assert not list(model.buffers())  # it keeps no state, and nothing that a cast could change


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ((TOKENS, POSITIONS, CAUSAL.double()), TypeError, "torch.float64"),
        ((TOKENS, POSITIONS, CAUSAL & (POSITIONS[:, None] != 3)), ValueError, "its own token"),
        ((TOKENS, POSITIONS[:-1], CAUSAL), ValueError, r"expected 24 and \(24, 24\)"),
        ((TOKENS, POSITIONS, CAUSAL[:-1]), ValueError, r"mask in \(23, 24\)"),
        ((TOKENS, POSITIONS), TypeError, "mask"),
    ],
)
def test_what_does_not_fit_is_refused(
    qwen: LocalModel, inputs: tuple, error: type[Exception], message: str
) -> None:
    """An additive mask, a row that sees nothing, other shapes; and nothing has a default."""
    with pytest.raises(error, match=message):
        qwen.decoder(*inputs)
