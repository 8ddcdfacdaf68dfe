"""What people hold today: the batches and the trainer of trl as they are (extra `trainers`)."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import minise
from minise.lab.packing.mistakes import CAUSAL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("trl") is None, reason="trl: the extra trainers"),
    pytest.mark.filterwarnings("ignore"),  # of the libraries, when they are imported and run
]

WEIGHTS = Path(__file__).parents[3] / "weights" / "tiny-llama"
END = 3  # the token that ends each text
BY_THE_ROW = ", with the borders as the row itself says"
TEXTS = [[*range(10 + i, 12 + i + i % 5), END] for i in range(90)]


def lengths_of(tokens: torch.Tensor) -> list[int]:
    """Of the texts in a row, each of which ends with END."""
    ends = (tokens == END).nonzero().flatten() + 1
    return ends.diff(prepend=torch.tensor([0])).tolist()


def trainer(folder: Path, **settings: Any) -> Any:
    """A real SFTTrainer of 10 steps, on a model with weights drawn from a seed."""
    import transformers
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**shape, **heads, vocab_size=300, initializer_range=0.2)
    usual = {"packing": True, "max_length": 24, "max_steps": 10, "per_device_train_batch_size": 2}
    quiet = {"use_cpu": True, "bf16": False, "report_to": [], "save_strategy": "no"}
    torch.manual_seed(0)
    return SFTTrainer(
        transformers.LlamaForCausalLM(config),
        SFTConfig(str(folder), **usual | quiet | settings),
        train_dataset=Dataset.from_dict({"input_ids": TEXTS}),
        processing_class=transformers.AutoTokenizer.from_pretrained(WEIGHTS),
    )


def test_a_packing_trainer_gets_a_verdict(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    watch = minise.guard(made.model, "raise", every=2)
    made.train()
    assert watch.calls == 10
    assert watch.passes == 6  # the first, and each second
    assert watch.compared == 18  # three documents of each
    equal = "documents, no losses): all equal to separate runs, within rounding" + BY_THE_ROW
    assert watch.report().endswith(equal)


def test_a_leak_in_its_attention_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a kernel to which the borders are not handed on."""
    real = functional.scaled_dot_product_attention

    def lost(*qkv: Any, attn_mask: Any = None, **more: Any) -> Any:
        return real(*qkv, **more | {"is_causal": True})

    made = trainer(tmp_path)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lost)
    watch = minise.guard(made.model)
    made.train()
    assert watch.mismatches
    assert watch.mismatches[0].startswith("call 1: packed is not equal to separate")
    assert "NOT equal to separate runs. call 1:" in watch.report()


def test_borders_that_the_collator_gives_wrong_are_found_by_what_was_meant(tmp_path: Path) -> None:
    """Positions that run on look like one document: only who made the batch knows more."""
    made = trainer(tmp_path)
    right = made.data_collator

    def lost(examples: Any) -> dict[str, Any]:
        batch = right(examples)
        T = batch["input_ids"].shape[1]
        ends = torch.tensor([0, T], dtype=torch.int32)
        return batch | {
            "position_ids": torch.arange(T)[None],
            "cu_seq_lens_q": ends,
            "cu_seq_lens_k": ends,
            "seq_idx": torch.zeros(1, T, dtype=torch.int32),
        }

    made.data_collator = lost
    watch = minise.guard(made.model, documents=lambda call: lengths_of(call["input_ids"][0]))
    made.train()
    assert watch.mismatches
    assert CAUSAL in watch.mismatches[0]
    assert "seq_idx: token" in watch.mismatches[0]


def test_its_batches_are_checked_as_they_are(tmp_path: Path) -> None:
    for strategy, name in (("bfd", ""), ("wrapped", CAUSAL)):
        made = trainer(tmp_path, packing_strategy=strategy)
        batch = next(iter(made.get_train_dataloader()))
        lengths = [lengths_of(row) for row in batch["input_ids"]]
        report = minise.check(documents=lengths, padding="right", **batch)
        names = {one.name for one in report.findings if one.what == "mask"}
        assert names == ({name} if name else set()), report
        assert report.equal == (strategy == "bfd")


def test_the_report_is_printed_when_the_process_ends(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import pathlib, sys, minise\n"
        "from tests.lab.packing.test_trainers import trainer\n"
        "made = trainer(pathlib.Path(sys.argv[1]))\n"
        "minise.guard(made.model)\n"
        "made.train()\n"
    )
    command = [sys.executable, program, tmp_path]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500, check=True)
    last = ended.stderr.splitlines()[-1]
    assert " of 10 calls compared (logits of " in last
    assert last.endswith(
        " documents, no losses): all equal to separate runs, within rounding" + BY_THE_ROW
    )
