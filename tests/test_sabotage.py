"""A test of the tests: each named fault, planted in a copy of the package, makes a named test fail.

The faults are the ones that such code really has. Each is a replacement of exact text, so that a
changed line of the core says here that its fault must be planted anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GOLDENS = "tests/test_goldens.py"
EQUIVALENCE = "tests/test_equivalence.py"


@dataclass(frozen=True)
class Fault:
    file: str
    right: str
    wrong: str
    caught_by: tuple[str, ...]


FAULTS = {
    "swapped norms": Fault(
        "model.py",
        "self.mlp(self.post_attention_layernorm(x_BTD))",
        "self.mlp(self.input_layernorm(x_BTD))",
        (GOLDENS,),
    ),
    "dropped bias": Fault(
        "model.py",
        "self._heads(self.k_proj(x_BTD))",
        "self._heads(F.linear(x_BTD, self.k_proj.weight))",
        (GOLDENS,),
    ),
    "dropped value bias": Fault(
        "model.py",
        "self._heads(self.v_proj(x_BTD))",
        "self._heads(F.linear(x_BTD, self.v_proj.weight))",
        (GOLDENS,),
    ),
    "KV heads tiled instead of repeated": Fault(
        "model.py",
        "k_BTKh.repeat_interleave(repeats, dim=2)",
        "k_BTKh.repeat(1, 1, repeats, 1)",
        (GOLDENS,),
    ),
    "value heads tiled instead of repeated": Fault(
        "model.py",
        "v_BTKh.repeat_interleave(repeats, dim=2)",
        "v_BTKh.repeat(1, 1, repeats, 1)",
        (GOLDENS, "tests/test_model.py::test_query_heads_share_key_value_heads_in_blocks"),
    ),
    "inverted mask": Fault(
        "model.py",
        "attn_mask=mask_BQT[:, None]",
        "attn_mask=~mask_BQT[:, None] | torch.eye(mask_BQT.shape[-1], dtype=torch.bool)",
        (GOLDENS,),
    ),
    "wrong epsilon": Fault(
        "model.py",
        "keepdim=True) + self.eps)",
        "keepdim=True) + 1e-5)",
        ("tests/test_model.py::test_rms_norm_is_its_formula", GOLDENS),
    ),
    "windows by index": Fault(
        "model.py",
        "distance_BTT = positions_BT[:, :, None] - positions_BT[:, None, :]",
        "distance_BTT = (index := torch.arange(positions_BT.shape[1]))[:, None] - index[None]",
        ("tests/test_model.py::test_a_window_is_measured_by_position_not_by_index", EQUIVALENCE),
    ),
    "a window of one more": Fault(
        "model.py",
        "(distance_BTT < window)",
        "(distance_BTT <= window)",
        ("tests/test_model.py::test_a_window_of_n_shows_n_positions_the_own_included", GOLDENS),
    ),
    "interleaved rotary pairs": Fault(
        "rope.py",
        "angle = torch.cat([angle, angle], dim=-1)",
        "angle = angle.repeat_interleave(2, dim=-1)",
        (GOLDENS, "tests/test_rope.py"),
    ),
    "rotation the other way": Fault(
        "rope.py",
        "torch.cat([-second, first], dim=-1)",
        "torch.cat([second, -first], dim=-1)",
        ("tests/test_rope.py",),
    ),
    "angles in the model's dtype": Fault(
        "rope.py",
        "    dtype = torch.promote_types(dtype, torch.float32)\n",
        "",
        ("tests/test_rope.py",),
    ),
    "softmax or norms narrowed to float32": Fault(
        "model.py",
        "wide = x.to(torch.promote_types(x.dtype, torch.float32))",
        "wide = x.float()",
        (GOLDENS, "tests/test_model.py::test_float64_is_not_narrowed_anywhere"),
    ),
    "positions not re-encoded": Fault(
        "layout.py",
        "positions.append(positions[row] + 1 if row >= 0 else 0)",
        "positions.append(len(positions))",
        ("tests/test_layout.py", EQUIVALENCE),
    ),
    "no block mask": Fault(
        "layout.py",
        "mask[row] = mask[parent]",
        "mask[row, :row] = True",
        ("tests/test_layout.py", EQUIVALENCE),
    ),
    "the paper's misprinted index_j": Fault(
        "layout.py",
        "ends = [grow(trunk, branch, merge=tree) for branch in branches]",
        "ends = [trunk, *(grow(trunk, branch, merge=tree) for branch in branches)][:-1]",
        ("tests/test_layout.py", EQUIVALENCE),
    ),
    "a flat layout that merges": Fault(
        "layout.py",
        "if merge and (row, token) in children:",
        "if (row, token) in children:",
        ("tests/test_layout.py",),
    ),
    "a tree that forgets windows": Fault(
        "tree.py",
        "if window is None:",
        "if True:",
        ("tests/test_tree.py",),
    ),
    "a tree that reads padding": Fault(
        "tree.py",
        "mask_GS = self.visible(window)[self.ends_G]",
        "mask_GS = self.visible(window)[-1:].expand(len(self.ends_G), -1)",
        ("tests/test_tree.py",),
    ),
    "a tree that mixes query heads": Fault(
        "tree.py",
        "unflatten(2, (K, r)).transpose(2, 3)",
        "unflatten(2, (r, K))",
        ("tests/test_tree.py",),
    ),
    "null option outside the softmax": Fault(
        "ensemble.py",
        "torch.softmax(row, dim=-1)",
        "torch.softmax(row[: len(choices)], dim=-1)",
        ("tests/test_ensemble.py",),
    ),
    "Eq. 3 read literally": Fault(
        "ensemble.py",
        "scores = total / torch.where(weight > 0, weight, 1.0)",
        "scores = total / len(groups)",
        ("tests/test_ensemble.py",),
    ),
    "labels of another order": Fault(
        "ensemble.py",
        "[place[i] for i in ids]",
        "list(range(len(ids)))",
        (
            "tests/test_ensemble.py::test_standard_inference_is_one_prompt_with_all_choices"
            "_and_no_null_option",
            "tests/test_ensemble.py",
        ),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    for part in ("minise", "tests"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "minise" / fault.file
    text = path.read_text()
    assert text.count(fault.right) == 1, f"{fault.file} no longer holds: {fault.right}"
    path.write_text(text.replace(fault.right, fault.wrong))
    for test in fault.caught_by:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                "--import-mode=importlib",
                test,
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1, f"{test} did not fail:\n{done.stdout[-2000:]}"
        # It must be the promise that broke, not the import or a fixture.
        assert "\nE  " in done.stdout
        assert "ImportError" not in done.stdout
        assert "ERROR" not in done.stdout
