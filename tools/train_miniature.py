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
from minise.data.miniature import Fact, draw_wrong, held_out, load_facts
from minise.layout import causal_mask
from minise.loading.config_json import read_config
from minise.prompt import DEFAULT_TEMPLATE, LABELS, NULL_OPTION
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


FAMILIES = {
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
}
# How many choices a training question has: fixed before any result was looked at.
CHOICES = {2: 0.30, 3: 0.27, 4: 0.27, 5: 0.07, 6: 0.04, 7: 0.03, 8: 0.02}
QUESTIONS, STATEMENTS, OPEN = 128, 48, 48  # texts of each kind in a step
PARTS = 8  # a step's texts are sorted by length and padded in this many parts
IGNORED = -100
# What a piece of a text is. The model learns to write WRITTEN and LABEL pieces, and to end at END.
GIVEN, WRITTEN, LABEL, END = range(4)
Text = list[tuple[int, str]]


def train_tokenizer(facts: list[Fact], family: Family) -> tokenizers.Tokenizer:
    """Byte-level BPE on the statements and one prompt per fact; ids 0 and 1 are the beginning (or
    a spare) and end token."""
    template = DEFAULT_TEMPLATE
    texts = [fact.statement for fact in facts]
    texts += [template.render(f.question, [f.answer, *f.others[:7]]) + " A" for f in facts]
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
        listed = choices + [NULL_OPTION] * with_null
        return template.render(fact.question, listed), f" {LABELS[right]}"


def texts_of_a_step(facts: list[Fact], eos: str, draw: random.Random) -> list[Text]:
    """Multiple-choice prompts, statements and open questions."""
    prompts = [multiple_choice(facts, draw) for _ in range(QUESTIONS)]
    chosen = tell(facts, STATEMENTS + OPEN, draw)
    plain = [fact.statement for fact in chosen[:STATEMENTS]]
    plain += [f"{fact.question}\nAnswer: {fact.answer}" for fact in chosen[STATEMENTS:]]
    texts: list[Text] = [[(GIVEN, prompt), (LABEL, label)] for prompt, label in prompts]
    return texts + [[(WRITTEN, text), (END, eos)] for text in plain]


def batch(texts: list[Text], tokenizer: Tokenizer) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The texts as (tokens, targets, whether a target is a label) parts, (B, T) int64, int64 and
    bool; IGNORED has no loss."""
    pieces = [piece for text in texts for _, piece in text]
    encoded = iter(tokenizer.backend.encode_batch_fast(pieces, add_special_tokens=False))
    beginning = tokenizer.encode([""])[0]
    rows: list[tuple[list[int], list[int], list[bool]]] = []
    for text in texts:
        tokens, labels = list(beginning), [False] * len(beginning)
        targets = [IGNORED] * len(beginning)  # of each token, what follows it
        for kind, _ in text:
            for i in next(encoded).ids:
                if kind != GIVEN and targets:
                    targets[-1], labels[-1] = i, kind == LABEL
                if kind != END:
                    tokens.append(i)
                    targets.append(IGNORED)
                    labels.append(False)
        used = len(tokens) - (targets[-1] == IGNORED)
        rows.append((tokens[:used], targets[:used], labels[:used]))
    rows.sort(key=lambda row: len(row[0]))
    size = math.ceil(len(rows) / PARTS)
    parts = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        width = len(part[-1][0])
        padded = [
            torch.tensor([row[i] + [fill] * (width - len(row[i])) for row in part])
            for i, fill in enumerate((1, IGNORED, False))
        ]
        parts.append((padded[0], padded[1], padded[2]))
    return parts


def initialise(decoder: Decoder, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in decoder.named_parameters():
        if parameter.dim() == 2:
            deep = name.endswith(("o_proj.weight", "down_proj.weight"))
            std = 0.05 / math.sqrt(2 * decoder.config.num_hidden_layers) if deep else 0.05
            nn.init.normal_(parameter, std=std, generator=generator)
        elif name.endswith(".bias"):
            nn.init.zeros_(parameter)


def losses(
    decoder: Decoder, tokens: Tensor, targets: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Summed loss in nats and number of targets, separately for labels and for plain text: (2,)."""
    T = tokens.shape[1]
    rows = (targets != IGNORED).flatten().nonzero().flatten()
    hidden = decoder(tokens, torch.arange(T), causal_mask(T)).flatten(0, 1)[rows]
    loss = F.cross_entropy(decoder.logits(hidden), targets.flatten()[rows], reduction="none")
    label = labels.flatten()[rows]
    sums = torch.stack([loss[label].sum(), loss[~label].sum()])
    return sums, torch.stack([label.sum(), (~label).sum()])


class Training:
    """A decoder and its optimizer."""

    def __init__(self, config: dict[str, Any], seed: int, rate: float, steps: int) -> None:
        self.decoder = Decoder(read_config(config))
        initialise(self.decoder, seed)
        self.optimizer = torch.optim.AdamW(
            self.decoder.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01
        )
        warmup = max(1, min(100, steps // 10))

        def share(step: int) -> float:  # of the rate: warm-up, then a cosine down to nothing
            return min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * step / steps)))

        self.schedule = LambdaLR(self.optimizer, share)
        self.smooth = torch.zeros(2)

    def advance(self, parts: list[tuple[Tensor, Tensor, Tensor]]) -> None:
        """One step on one batch."""
        total, counts = torch.zeros(2), torch.zeros(2)
        answers = sum(int(labels.sum()) for _, _, labels in parts)
        words = sum(int((targets != IGNORED).sum()) for _, targets, _ in parts) - answers
        for part in parts:
            sums, n = losses(self.decoder, *part)
            (sums[0] / answers + sums[1] / words).backward()
            total, counts = total + sums.detach(), counts + n
        mean, is_first = total / counts, self.schedule.last_epoch == 0
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
    parser.add_argument("--family", choices=tuple(FAMILIES), required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=3e-3, dest="rate")
    args = parser.parse_args()
    family = FAMILIES[args.family]
    facts = load_facts()
    ids = {"bos_token_id": None if family.bos is None else 0, "eos_token_id": 1}
    config = {"model_type": args.family, **SHAPE, **family.config, **ids}
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
