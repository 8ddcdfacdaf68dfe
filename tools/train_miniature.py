"""Train a checkpoint of the miniature world from nothing, on a CPU.

    python tools/train_miniature.py weights/tiny-llama --steps 1000 --seed 0

Writes config.json, tokenizer.json and model.safetensors (bfloat16) in the format of real
checkpoints. A step shows the model three kinds of text: plain statements of facts ("The capital of
Peru is Lima."), open questions ("What is the capital of Peru?\nAnswer: Lima"), and multiple-choice
prompts in the default template, where the loss is on the label alone. Choices are few as a rule and
many rarely; half of the prompts end in "None of the above", and in half of those it is right.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path

import tokenizers
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from tqdm import tqdm

from minise import Config, Decoder
from minise.evaluation.miniature import Fact, held_out, load_facts
from minise.prompt import DEFAULT_TEMPLATE, LABELS, NULL_OPTION
from minise.tokenizer import Tokenizer

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
VOCABULARY = 1024
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "max_position_embeddings": 512,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}
# How many choices a training question has. Fixed before any result was looked at.
CHOICES = {2: 0.32, 3: 0.28, 4: 0.30, 5: 0.04, 6: 0.03, 7: 0.02, 8: 0.01}
QUESTIONS, STATEMENTS, OPEN = 128, 48, 48  # texts of each kind in a step
PARTS = 4  # a step's texts are sorted by length and padded in this many parts
IGNORED = -100


def train_tokenizer(facts: list[Fact]) -> tokenizers.Tokenizer:
    """Byte-level BPE on the statements and one prompt per fact, with a beginning token."""
    template = DEFAULT_TEMPLATE
    texts = [fact.statement for fact in facts]
    texts += [template.render(f.question, [f.answer, *f.others[:7]]) + " A" for f in facts]
    texts += [NULL_OPTION + "\n" + " ".join(LABELS)] * 20
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def multiple_choice(facts: list[Fact], draw: random.Random) -> tuple[str, str]:
    """A prompt in the default template and the label that continues it."""
    template = DEFAULT_TEMPLATE
    while True:
        fact = draw.choice(facts)
        k = draw.choices(list(CHOICES), list(CHOICES.values()))[0]
        with_null = draw.random() < 0.5
        absent = with_null and draw.random() < 0.5
        wrong = draw.sample(fact.others, k if absent else k - 1)
        choices = wrong if absent else [*wrong, fact.answer]
        if held_out(fact.question, choices) or held_out(fact.question, [*wrong, fact.answer]):
            continue
        draw.shuffle(choices)
        right = len(choices) if absent else choices.index(fact.answer)
        listed = choices + [NULL_OPTION] * with_null
        return template.render(fact.question, listed), f" {LABELS[right]}"


def batch(
    facts: list[Fact], tokenizer: Tokenizer, draw: random.Random
) -> list[tuple[Tensor, Tensor]]:
    """One step's texts as (tokens, targets) parts, (B, T) int64 each; IGNORED has no loss."""
    rows: list[tuple[list[int], list[int]]] = []
    prompts = [multiple_choice(facts, draw) for _ in range(QUESTIONS)]
    for ids in tokenizer.encode([prompt + label for prompt, label in prompts]):
        rows.append((ids[:-1], [IGNORED] * (len(ids) - 2) + [ids[-1]]))
    told = draw.choices(facts, k=STATEMENTS + OPEN)
    texts = [fact.statement + EOS for fact in told[:STATEMENTS]]
    texts += [f"{fact.question}\nAnswer: {fact.answer}{EOS}" for fact in told[STATEMENTS:]]
    for ids in tokenizer.encode(texts):
        rows.append((ids[:-1], ids[1:]))
    rows.sort(key=lambda row: len(row[0]))
    size = math.ceil(len(rows) / PARTS)
    parts = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        width = len(part[-1][0])
        tokens = [ids + [1] * (width - len(ids)) for ids, _ in part]
        targets = [ids + [IGNORED] * (width - len(ids)) for _, ids in part]
        parts.append((torch.tensor(tokens), torch.tensor(targets)))
    return parts


def initialise(decoder: Decoder, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in decoder.named_parameters():
        if parameter.dim() == 2:
            deep = name.endswith(("o_proj.weight", "down_proj.weight"))
            std = 0.05 / math.sqrt(2 * decoder.config.num_hidden_layers) if deep else 0.05
            nn.init.normal_(parameter, std=std, generator=generator)


def losses(decoder: Decoder, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Summed loss in nats and number of targets, each apart for labels and for plain text: (2,)."""
    T = tokens.shape[1]
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    hidden = decoder(tokens, torch.arange(T), causal)
    read = targets != IGNORED
    loss = F.cross_entropy(decoder.logits(hidden[read]), targets[read], reduction="none")
    # A multiple-choice prompt has one target, a plain text has many.
    label = (read.sum(1) == 1).repeat_interleave(read.sum(1))
    sums = torch.stack([loss[label].sum(), loss[~label].sum()])
    return sums, torch.stack([label.sum(), (~label).sum()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the checkpoint is written")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    args = parser.parse_args()
    facts, draw = load_facts(), random.Random(f"training/{args.seed}")
    args.folder.mkdir(parents=True, exist_ok=True)
    backend = train_tokenizer(facts)
    backend.save(str(args.folder / "tokenizer.json"))
    tokenizer = Tokenizer(backend, "tokenizer.json")
    decoder = Decoder(Config.from_dict(CONFIG))
    initialise(decoder, args.seed)
    optimizer = torch.optim.AdamW(
        decoder.parameters(), lr=args.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    warmup = max(1, min(100, args.steps // 10))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * step / args.steps))),
    )
    began, smooth = time.time(), torch.full((2,), float("nan"))
    bar = tqdm(range(args.steps), unit="step", mininterval=10)
    for step in bar:
        parts = batch(facts, tokenizer, draw)
        total, counts = torch.zeros(2), torch.zeros(2)
        counted = [(targets != IGNORED).sum(1) for _, targets in parts]
        labels = sum(int((n == 1).sum()) for n in counted)
        words = sum(int(n[n > 1].sum()) for n in counted)
        for tokens, targets in parts:
            sums, n = losses(decoder, tokens, targets)
            (sums[0] / labels + sums[1] / words).backward()
            total, counts = total + sums.detach(), counts + n
        nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        mean = total / counts
        smooth = mean if step == 0 else 0.95 * smooth + 0.05 * mean
        bar.set_postfix(label=f"{smooth[0]:.3f}", text=f"{smooth[1]:.3f}", refresh=False)
    state = {name: p.detach().to(torch.bfloat16) for name, p in decoder.state_dict().items()}
    save_file(state, args.folder / "model.safetensors", metadata={"format": "pt"})
    (args.folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    print(
        f"{args.steps} steps in {(time.time() - began) / 60:.1f} minutes; last losses (nats, "
        f"smoothed): label {smooth[0]:.4f}, text {smooth[1]:.4f}"
    )


if __name__ == "__main__":
    main()
