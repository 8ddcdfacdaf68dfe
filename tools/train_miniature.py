"""Train a checkpoint of the miniature world from scratch, on a CPU.

    python -m tools.train_miniature weights/tiny-llama --family llama --steps 1000 --seed 0

Writes config.json, tokenizer.json, tokenizer_config.json and model.safetensors (bfloat16) in the
format of real checkpoints. A step shows the model three kinds of text: plain statements of facts
("The capital of Peru is Lima."), open questions ("What is the capital of Peru?\nAnswer: Lima"), and
multiple-choice prompts in the default template, where the loss is on the label alone. Well-known
facts come more often. Most prompts have few choices, and a few have many. Half of the prompts end
in "None of the above", and in half of those it is right.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import tokenizers
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from tqdm import tqdm

from minise import Decoder
from minise.lab.data.miniature import Fact, draw_wrong, held_out, load_facts
from minise.layout import causal_mask
from minise.loading.checkpoint import architecture_of
from minise.template import DEFAULT_TEMPLATE, LABELS, NULL_OPTION
from minise.tokenizer import Tokenizer

VOCABULARY = 1024
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True)
class Family:
    """What one family's checkpoint has of its own. `bos`: None for a tokenizer that adds none."""

    bos: str | None
    eos: str
    config: dict[str, Any]


TRAINED_FAMILIES = {
    # Few positions before scaling, so that llama3 rotary scaling turns within a prompt's length.
    "llama": Family(
        "<|begin_of_text|>",
        "<|end_of_text|>",
        {
            "architectures": ["LlamaForCausalLM"],
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            },
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    # A window shorter than prompts of eight choices (56 tokens and more) and than most groups'.
    "mistral": Family(
        "<s>",
        "</s>",
        {
            "architectures": ["MistralForCausalLM"],
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "sliding_window": 40,
            "tie_word_embeddings": False,
        },
    ),
    "qwen2": Family(
        None,
        "<|endoftext|>",
        {
            "architectures": ["Qwen2ForCausalLM"],
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "use_sliding_window": False,
            "tie_word_embeddings": True,
        },
    ),
    # Three of four layers have a state. Two value heads share a key head, as in the larger ones.
    "qwen3_5_text": Family(
        None,
        "<|endoftext|>",
        {
            "architectures": ["Qwen3_5ForCausalLM"],
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000000.0,
                "partial_rotary_factor": 0.25,
            },
            "full_attention_interval": 4,
            "linear_conv_kernel_dim": 4,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 6,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "tie_word_embeddings": True,
        },
    ),
}
# How many choices a training question has: fixed before any result was looked at.
CHOICES = {2: 0.30, 3: 0.27, 4: 0.27, 5: 0.07, 6: 0.04, 7: 0.03, 8: 0.02}
QUESTIONS = 128  # in a step
STATEMENTS = 48
OPEN_QUESTIONS = 48
PARTS = 8  # a step's texts are sorted by length and padded in this many parts
IGNORED = -100
ADDING = ("o_proj.weight", "out_proj.weight", "down_proj.weight")  # they add to the stream


class Kind(Enum):
    """What a piece of a text is. The model learns to write WRITTEN and LABEL pieces, and to end
    where an END piece stands."""

    GIVEN = 0
    WRITTEN = 1
    LABEL = 2
    END = 3


@dataclass(frozen=True)
class Piece:
    kind: Kind
    text: str


Text = list[Piece]


@dataclass(frozen=True)
class Part:
    """Texts of about one length, padded. tokens, targets: (B, T) int64; a target is IGNORED where
    there is no loss. is_label: (B, T) bool, of the targets."""

    tokens: Tensor
    targets: Tensor
    is_label: Tensor


def train_tokenizer(facts: list[Fact], family: Family) -> tokenizers.Tokenizer:
    """Byte-level BPE on the statements and one prompt per fact; ids 0 and 1 are the beginning (or
    a spare) and end token."""
    template = DEFAULT_TEMPLATE
    texts = [fact.statement for fact in facts]
    for fact in facts:
        texts.append(template.render(fact.question, [fact.answer, *fact.others[:7]]) + " A")
    texts += [NULL_OPTION + "\n" + " ".join(LABELS)] * 20
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[family.bos or "<|spare|>", family.eos],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if family.bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{family.bos} $A", special_tokens=[(family.bos, 0)]
        )
    return tokenizer


def tell(facts: list[Fact], count: int, draw: random.Random) -> list[Fact]:
    """Facts as texts would tell them: each as often as its fame says."""
    return draw.choices(facts, [fact.frequency for fact in facts], k=count)


def multiple_choice(facts: list[Fact], draw: random.Random) -> tuple[str, str]:
    """A prompt in the default template and the label that continues it."""
    template = DEFAULT_TEMPLATE
    while True:
        fact = tell(facts, 1, draw)[0]
        k = draw.choices(list(CHOICES), list(CHOICES.values()))[0]
        with_null = draw.random() < 0.5
        absent = with_null and draw.random() < 0.5
        wrong = draw_wrong(fact, k if absent else k - 1, draw)
        choices = wrong if absent else [*wrong, fact.answer]
        if held_out(fact.question, choices) or held_out(fact.question, [*wrong, fact.answer]):
            continue
        draw.shuffle(choices)
        right = len(choices) if absent else choices.index(fact.answer)
        if with_null:
            choices = [*choices, NULL_OPTION]
        return template.render(fact.question, choices), f" {LABELS[right]}"


def texts_of_a_step(facts: list[Fact], eos: str, draw: random.Random) -> list[Text]:
    """Multiple-choice prompts, statements and open questions."""
    texts: list[Text] = []
    for _ in range(QUESTIONS):
        prompt, label = multiple_choice(facts, draw)
        texts.append([Piece(Kind.GIVEN, prompt), Piece(Kind.LABEL, label)])
    chosen = tell(facts, STATEMENTS + OPEN_QUESTIONS, draw)
    plain = [fact.statement for fact in chosen[:STATEMENTS]]
    plain += [f"{fact.question}\nAnswer: {fact.answer}" for fact in chosen[STATEMENTS:]]
    for text in plain:
        texts.append([Piece(Kind.WRITTEN, text), Piece(Kind.END, eos)])
    return texts


def batch(texts: list[Text], tokenizer: Tokenizer) -> list[Part]:
    """The texts, sorted by length, in PARTS parts."""
    rows = [row_of(text, tokenizer) for text in texts]
    rows.sort(key=lambda row: len(row.tokens))
    size = math.ceil(len(rows) / PARTS)
    parts = []
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        width = len(some[-1].tokens)
        tokens = torch.tensor([padded(row.tokens, width, 1) for row in some])
        targets = torch.tensor([padded(row.targets, width, IGNORED) for row in some])
        is_label = torch.tensor([padded(row.is_label, width, False) for row in some])
        parts.append(Part(tokens, targets, is_label))
    return parts


@dataclass
class Row:
    """A text. targets: of each token, what follows it."""

    tokens: list[int]
    targets: list[int]
    is_label: list[bool]

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.targets.append(IGNORED)
        self.is_label.append(False)

    def pop(self) -> None:
        self.tokens.pop()
        self.targets.pop()
        self.is_label.pop()


def row_of(text: Text, tokenizer: Tokenizer) -> Row:
    row = Row([], [], [])
    for token in tokenizer.encode([""])[0]:
        row.append(token)
    for piece in text:
        for token in tokenizer.encode([piece.text], add_special_tokens=False)[0]:
            if piece.kind is not Kind.GIVEN and row.tokens:
                row.targets[-1] = token
                row.is_label[-1] = piece.kind is Kind.LABEL
            if piece.kind is not Kind.END:
                row.append(token)
    if row.targets[-1] == IGNORED:  # nothing follows the last token
        row.pop()
    return row


def padded(row: list[Any], width: int, fill: int) -> list[Any]:
    return row + [fill] * (width - len(row))


@torch.no_grad()
def initialise(decoder: Decoder, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in decoder.named_parameters():
        if parameter.dim() == 2:
            std = 0.05
            if name.endswith(ADDING):
                std = 0.05 / math.sqrt(2 * decoder.config.num_hidden_layers)
            nn.init.normal_(parameter, std=std, generator=generator)
        elif name.endswith(".bias"):
            nn.init.zeros_(parameter)
        elif name.endswith("conv1d.weight"):
            nn.init.normal_(parameter, std=0.5, generator=generator)
        elif name.endswith("A_log"):
            parameter.uniform_(1, 16, generator=generator).log_()
        elif name.endswith("dt_bias"):  # a step of 0.001 to 0.1: states that fade slowly
            low, high = math.log(0.001), math.log(0.1)
            step = torch.empty_like(parameter).uniform_(low, high, generator=generator).exp()
            parameter.copy_(step.expm1().log())  # softplus makes it the step again


def losses(decoder: Decoder, part: Part) -> tuple[Tensor, Tensor]:
    """Summed loss in nats and number of targets, separately for labels and for plain text: (2,)."""
    T = part.tokens.shape[1]
    rows = (part.targets != IGNORED).flatten().nonzero().flatten()
    targets = part.targets.flatten()[rows]
    is_label = part.is_label.flatten()[rows]
    hidden = decoder(part.tokens, torch.arange(T), causal_mask(T)).flatten(0, 1)[rows]
    loss = F.cross_entropy(decoder.logits(hidden), targets, reduction="none")
    sums = torch.stack([loss[is_label].sum(), loss[~is_label].sum()])
    counts = torch.stack([is_label.sum(), (~is_label).sum()])
    return sums, counts


class Training:
    """A decoder and its optimizer."""

    def __init__(self, config: dict[str, Any], seed: int, rate: float, steps: int) -> None:
        architecture = architecture_of(config)
        self.decoder = architecture.decoder(architecture.read_config(config, "config.json"))
        initialise(self.decoder, seed)
        self.optimizer = torch.optim.AdamW(
            self.decoder.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01
        )
        warmup = max(1, min(100, steps // 10))

        def share(step: int) -> float:  # of the rate: warm-up, then a cosine down to nothing
            return min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * step / steps)))

        self.schedule = LambdaLR(self.optimizer, share)
        self.smooth = torch.zeros(2)

    def advance(self, parts: list[Part]) -> None:
        """One step on one batch."""
        all_labels = sum(int(part.is_label.sum()) for part in parts)
        all_targets = sum(int((part.targets != IGNORED).sum()) for part in parts)
        total = torch.zeros(2)
        count = torch.zeros(2)
        for part in parts:
            sums, counts = losses(self.decoder, part)
            loss = sums[0] / all_labels + sums[1] / (all_targets - all_labels)
            loss.backward()
            total += sums.detach()
            count += counts
        mean = total / count
        is_first = self.schedule.last_epoch == 0
        self.smooth = mean if is_first else 0.95 * self.smooth + 0.05 * mean
        nn.utils.clip_grad_norm_(self.decoder.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the checkpoint is written")
    parser.add_argument("--family", choices=tuple(TRAINED_FAMILIES), required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=3e-3, dest="rate")
    args = parser.parse_args()
    family = TRAINED_FAMILIES[args.family]
    facts = load_facts()
    config = {
        "model_type": args.family,
        **SHAPE,
        **family.config,
        "bos_token_id": None if family.bos is None else 0,
        "eos_token_id": 1,
    }
    args.folder.mkdir(parents=True, exist_ok=True)
    backend = train_tokenizer(facts, family)
    backend.save(str(args.folder / "tokenizer.json"))
    special = {"bos_token": family.bos, "eos_token": family.eos}
    write_json(args.folder / "tokenizer_config.json", special)
    tokenizer = Tokenizer(backend, "tokenizer.json")
    training = Training(config, args.seed, args.rate, args.steps)
    bar = tqdm(range(args.steps), unit="step", mininterval=10)
    for step in bar:
        draw = random.Random(f"training/{args.seed}/{step}")
        training.advance(batch(texts_of_a_step(facts, family.eos, draw), tokenizer))
        label, text = training.smooth.tolist()
        bar.set_postfix(label=f"{label:.3f}", text=f"{text:.3f}", refresh=False)
    state = {name: p.to(torch.bfloat16) for name, p in training.decoder.state_dict().items()}
    save_file(state, args.folder / "model.safetensors", metadata={"format": "pt"})
    write_json(args.folder / "config.json", config)
    print(f"last losses (nats, smoothed): label {label:.4f}, text {text:.4f}")


if __name__ == "__main__":
    main()
