"""The decoder follows the mask and the positions exactly, in any dtype."""

from __future__ import annotations

import pytest
import torch

from minise import Decoder, LanguageModel, record
from minise.attention import masked_attention
from minise.loading.config_json import config_from_dict
from minise.model import Attention, RMSNorm
from tests.support.tiny import ALL_FAMILIES, SIZES, randomise

T = 24
TOKENS = torch.arange(30, 30 + T)
POSITIONS = torch.arange(T)
CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()


def decoder(family: str, dtype: torch.dtype = torch.float64, **changes) -> Decoder:
    model = Decoder(config_from_dict({**ALL_FAMILIES[family], **changes})).to(dtype)
    randomise(model, seed=1)
    return model.requires_grad_(False)


def test_rms_norm_is_its_formula() -> None:
    norm = RMSNorm(4, eps=0.5).to(torch.float64)
    norm.weight.data = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    x = torch.tensor([1.0, -2.0, 3.0, 4.0], dtype=torch.float64)
    expected = x / (x.square().sum() / 4 + 0.5).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), expected, rtol=1e-15, atol=0)


def test_query_heads_share_key_value_heads_in_blocks() -> None:
    """Query heads 0, 1 read key/value head 0; 2, 3 read head 1."""
    config = config_from_dict({**SIZES, "model_type": "llama"})
    attention = Attention(config).to(torch.float64)
    h = config.head_dim
    # Values are the head's number, the output is passed through: what each query head has read.
    torch.nn.init.zeros_(attention.v_proj.weight)
    attention.v_proj.bias = torch.nn.Parameter(torch.arange(2.0).repeat_interleave(h).double())
    attention.o_proj.weight.data = torch.eye(32, dtype=torch.float64)
    x = torch.randn(1, 3, 32, dtype=torch.float64)
    angle = torch.zeros(1, 3, 1, h, dtype=torch.float64)
    mask = torch.ones(1, 3, 3, dtype=torch.bool).tril()
    output = attention(
        x,
        (angle.cos(), angle.sin()),
        lambda q, k, v: masked_attention(q, k, v, mask),
        None,
    )
    assert output[0, 0].view(4, h)[:, 0].tolist() == pytest.approx([0, 0, 1, 1])


def test_one_masked_out_token_changes_nothing_it_is_hidden_from(lm: LanguageModel) -> None:
    mask = CAUSAL.clone()
    mask[6:, 5] = False  # only token 5 itself sees it
    changed = TOKENS.clone()
    changed[5] = 99
    before, after = (lm.decoder(tokens, POSITIONS, mask) for tokens in (TOKENS, changed))
    change = (before - after).abs().amax(dim=-1)
    assert change[5] > 1e-3
    change[5] = 0
    assert change.max() <= 1e-12


def test_positions_matter_only_by_their_differences(lm: LanguageModel) -> None:
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


def test_only_qwens_upper_layers_have_its_window() -> None:
    windowed = decoder("qwen2", sliding_window=2, max_window_layers=2)
    full = decoder("qwen2", use_sliding_window=False)
    states = []
    for model in (windowed, full):
        with record(model) as recording:
            model(TOKENS, POSITIONS, CAUSAL)
        states.append(recording.residual)
    changes = [(states[0][layer] - states[1][layer]).abs().max() for layer in range(3)]
    assert changes[0] == changes[1] == 0
    assert changes[2] > 1e-3


def test_a_batch_gives_the_numbers_of_its_rows_run_alone(lm: LanguageModel) -> None:
    tokens = torch.stack([TOKENS, TOKENS.flip(0), TOKENS + 1])
    masks = torch.stack([CAUSAL, torch.eye(T, dtype=torch.bool), CAUSAL])
    positions = torch.stack([POSITIONS, POSITIONS, POSITIONS * 2])
    together = lm.decoder(tokens, positions, masks)
    assert together.shape == (3, T, lm.config.hidden_size)
    for row in range(3):
        alone = lm.decoder(tokens[row], positions[row], masks[row])
        assert (together[row] - alone).abs().max() <= 1e-12
    # A batch of one argument alone is enough; the others are shared by its rows.
    for inputs in (
        (tokens, POSITIONS, CAUSAL),
        (TOKENS, positions, CAUSAL),
        (TOKENS, POSITIONS, masks),
    ):
        shared = lm.decoder(*inputs)
        assert shared.shape == together.shape
        for row in range(3):
            mine = [x if x.shape in ((T,), (T, T)) else x[row] for x in inputs]
            assert (shared[row] - lm.decoder(*mine)).abs().max() <= 1e-12
    assert lm.decoder(tokens[None], POSITIONS, masks).shape == (1, 3, T, lm.config.hidden_size)


@pytest.mark.parametrize("family", ALL_FAMILIES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-4), (torch.bfloat16, 1.0), (torch.float16, 0.1)],
)
def test_each_dtype_is_used_throughout_and_agrees_with_float64(
    family: str, dtype: torch.dtype, tolerance: float
) -> None:
    # A gentler scale than `randomise`'s, so that rounding is not amplified layer by layer.
    wide = decoder(family)
    for parameter in wide.parameters():
        parameter.mul_(0.4 if parameter.dim() == 2 else 1.0)
        parameter.copy_(parameter.to(dtype))
    narrow = decoder(family, dtype)
    narrow.load_state_dict(wide.state_dict())
    hidden = narrow(TOKENS, POSITIONS, CAUSAL)
    logits = narrow.logits(hidden)
    assert hidden.dtype == logits.dtype == dtype
    assert (hidden.double() - wide(TOKENS, POSITIONS, CAUSAL)).abs().max() < tolerance


def test_float64_is_not_narrowed_anywhere(lm: LanguageModel) -> None:
    """A change far below float32's resolution passes through every layer."""
    model = lm.decoder
    base = model.logits(model(TOKENS, POSITIONS, CAUSAL))
    saved = model.model.embed_tokens.weight.clone()
    model.model.embed_tokens.weight[TOKENS[0], 0] += 1e-11
    moved = model.logits(model(TOKENS, POSITIONS, CAUSAL)) - base
    model.model.embed_tokens.weight.copy_(saved)
    assert 1e-13 < moved[-1].abs().max() < 1e-7


def test_logits_of_some_columns_are_those_columns_of_all(lm: LanguageModel) -> None:
    hidden = lm.decoder(TOKENS, POSITIONS, CAUSAL)
    columns = torch.tensor([7, 3, 200])
    assert lm.decoder.logits(hidden).shape == (T, lm.config.vocab_size)
    some = lm.decoder.logits(hidden, columns)
    assert (some - lm.decoder.logits(hidden)[:, columns]).abs().max() <= 1e-12
    assert torch.equal(lm.decoder.logits(hidden[None, None], columns)[0, 0], some)


def test_a_tied_output_is_the_embedding() -> None:
    model = decoder("qwen2")
    assert not any("lm_head" in name for name in model.state_dict())
    hidden = torch.randn(2, 32, dtype=torch.float64)
    expected = hidden @ model.model.embed_tokens.weight.T
    assert (model.logits(hidden) - expected).abs().max() <= 1e-13


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_biases_are_on_q_k_and_v_of_qwen2_only(family: str) -> None:
    biases = {name.split(".")[-2] for name in decoder(family).state_dict() if "bias" in name}
    assert biases == ({"q_proj", "k_proj", "v_proj"} if family == "qwen2" else set())


def test_queries_and_keys_of_qwen3_are_normed_head_by_head_before_the_rotation() -> None:
    """Of the same size in every head, and so are the scores' bounds: however large the weights of
    the projections, nothing changes. The rotation keeps the size that the norm gave."""
    model = decoder("qwen3", num_hidden_layers=1, rms_norm_eps=1e-15)
    attention = model.model.layers[0].self_attn
    for norm in (attention.q_norm, attention.k_norm):
        assert norm.weight.shape == (12,)
        norm.weight.fill_(2.0)
    seen = []

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen.append((q, k))
        return masked_attention(q, k, v, CAUSAL[None])

    before = model.run(TOKENS[None], POSITIONS[None], attend)
    for x, heads in zip(seen[0], (4, 2), strict=True):
        size = x.square().mean(dim=-1).sqrt()
        torch.testing.assert_close(size, torch.full((1, T, heads), 2.0, dtype=torch.float64))
    attention.q_proj.weight *= 10
    attention.k_proj.weight[:12] *= 7  # of one head alone
    assert (model.run(TOKENS[None], POSITIONS[None], attend) - before).abs().max() <= 1e-9
    attention.q_norm.weight[3] = 1.0
    assert (model.run(TOKENS[None], POSITIONS[None], attend) - before).abs().max() > 1e-3


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_only_qwen3_has_norms_inside_attention(family: str) -> None:
    norms = {name.split(".")[-2] for name in decoder(family).state_dict() if "attn" in name}
    assert ("q_norm" in norms, "k_norm" in norms) == (family == "qwen3",) * 2


def test_an_additive_mask_is_refused(lm: LanguageModel) -> None:
    with pytest.raises(TypeError, match=r"mask is torch.float64; pass torch.bool"):
        lm.decoder(TOKENS, POSITIONS, CAUSAL.double())


def test_a_row_that_sees_nothing_is_refused(lm: LanguageModel) -> None:
    mask = CAUSAL.clone()
    mask[3] = False
    with pytest.raises(ValueError, match="does not attend to its own token"):
        lm.decoder(TOKENS, POSITIONS, mask)


def test_shapes_that_do_not_fit_are_refused(lm: LanguageModel) -> None:
    with pytest.raises(ValueError, match="expected T, T and"):
        lm.decoder(TOKENS, POSITIONS[:-1], CAUSAL)
    with pytest.raises(ValueError, match=r"mask in \(23, 24\); expected T, T and"):
        lm.decoder(TOKENS, POSITIONS, CAUSAL[:-1])


def test_the_decoder_has_no_default_arguments_and_no_state(lm: LanguageModel) -> None:
    """Every argument is needed, and the model keeps no state between calls."""
    with pytest.raises(TypeError):
        lm.decoder(TOKENS)
    with pytest.raises(TypeError):
        lm.decoder(TOKENS, POSITIONS)
    first = lm.decoder(TOKENS, POSITIONS, CAUSAL)
    lm.decoder(TOKENS.flip(0), POSITIONS * 3, CAUSAL)
    assert torch.equal(first, lm.decoder(TOKENS, POSITIONS, CAUSAL))
    assert not list(lm.decoder.buffers())


def test_forward_is_the_one_driver_with_a_dense_mask(lm: LanguageModel) -> None:
    """`run` takes any `attend`: here an explicit softmax that applies the windows itself."""

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        repeats = q.shape[2] // k.shape[2]
        k, v = (x.repeat_interleave(repeats, dim=2) for x in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        window = lm.config.sliding_windows[layer]
        near = POSITIONS[:, None] - POSITIONS < (T if window is None else window)
        weights = scores.masked_fill(~(CAUSAL & near), -torch.inf).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v)

    mine = lm.decoder.run(TOKENS[None], POSITIONS[None], attend)[0]
    assert (mine - lm.decoder(TOKENS, POSITIONS, CAUSAL)).abs().max() <= 1e-10


def test_the_driver_computes_only_the_wanted_rows_in_the_top_layer(lm: LanguageModel) -> None:
    rows = torch.tensor([3, 23, 7])
    top = lm.config.num_hidden_layers - 1
    calls = []

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        calls.append((layer, q.shape[1], k.shape[1]))
        window = lm.config.sliding_windows[layer]
        near = POSITIONS[:, None] - POSITIONS < (T if window is None else window)
        mask = (CAUSAL & near)[None]
        return masked_attention(q, k, v, mask if layer < top else mask[:, rows])

    some = lm.decoder.run(TOKENS[None], POSITIONS[None], attend, rows=rows)[0]
    assert calls == [(layer, T if layer < top else 3, T) for layer in range(top + 1)]
    assert (some - lm.decoder(TOKENS, POSITIONS, CAUSAL)[rows]).abs().max() <= 1e-10


def test_the_decoder_states_its_device_and_dtype(lm: LanguageModel) -> None:
    assert (lm.decoder.device, lm.decoder.dtype) == (torch.device("cpu"), torch.float64)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_cuda_agrees_with_the_cpu(family: str) -> None:
    model = decoder(family)
    expected = model(TOKENS, POSITIONS, CAUSAL)
    on_cuda = [tensor.cuda() for tensor in (TOKENS, POSITIONS, CAUSAL)]
    assert (model.cuda()(*on_cuda).cpu() - expected).abs().max() <= 1e-9
