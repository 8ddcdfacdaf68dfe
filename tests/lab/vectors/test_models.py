"""The test vectors: their bytes, what the check says of right and of wrong results, and minise's
decoder against them in every dtype."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.lab.support.browser import needs_node

ROOT = Path(__file__).parents[3]
VECTORS = ROOT / "vectors"
V1, V2, ADAPTERS = VECTORS / "v1", VECTORS / "v2", VECTORS / "adapters"
sys.path[:0] = [str(VECTORS), str(ADAPTERS)]

import make_vectors  # noqa: E402
import planted  # noqa: E402
from packed_vectors.adapters import OF_MODELS  # noqa: E402
from packed_vectors.check import check, read  # noqa: E402
from packed_vectors.comparing import TOLERANCE  # noqa: E402

COMMAND = (sys.executable, "-m", "packed_vectors")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(VECTORS), str(ADAPTERS)])}
ROWS = len(list(V1.glob("*/*.safetensors"))) - len(make_vectors.MODELS)


def results(adapter: Path | str, dtype: str) -> dict[str, tuple[float, str]]:
    """By row and kind: how far off, and what is said."""
    found = {}
    for one in check(ADAPTERS / adapter, dtype, V1):
        if one.far is not None:  # it was run, and answered
            found[f"{one.row} {one.kind}"] = (one.far, one.said)
    return found


def said(adapter: Path | str, dtype: str) -> dict[str, str]:
    return {row: text for row, (_, text) in results(adapter, dtype).items() if text}


# ---- the files ----------------------------------------------------------------------------------
def test_every_file_has_its_checksum_and_together_they_are_below_5_mb() -> None:
    lines = (V1 / "SHA256SUMS").read_text().splitlines()
    sums = dict(reversed(line.split("  ")) for line in lines)
    files = [path for path in V1.glob("*/*") if path.name != "config.json"]
    assert set(sums) == {path.relative_to(V1).as_posix() for path in files}
    for path in files:
        got = hashlib.sha256(path.read_bytes()).hexdigest()
        assert sums[path.relative_to(V1).as_posix()] == got
    assert sum(path.stat().st_size for path in files) < 5_000_000


def test_the_program_writes_these_bytes_each_time(tmp_path: Path) -> None:
    """On a CPU of another kind the last bits of a sum may differ: there, the same numbers."""
    for name in ("one", "two"):
        command = (sys.executable, VECTORS / "make_vectors.py", tmp_path / name, "qwen3")
        subprocess.run([str(part) for part in command], check=True)
    for path in (tmp_path / "one" / "qwen3").iterdir():
        again = tmp_path / "two" / "qwen3" / path.name
        assert path.read_bytes() == again.read_bytes(), path.name
        published = V1 / "qwen3" / path.name
        if path.suffix == ".json":
            assert json.loads(path.read_text()) == json.loads(published.read_text())
            continue
        (tensors, about), (known, known_about) = read(path), read(published)
        assert about == known_about
        assert tensors.keys() == known.keys()
        for name, x in tensors.items():
            assert (x.dtype, x.shape) == (known[name].dtype, known[name].shape)
            assert (abs(x.astype(float) - known[name]) <= 1e-6 * (1 + abs(known[name]))).all(), name


def test_the_makers_know_neither_minise_nor_transformers() -> None:
    checkers = [path.relative_to(VECTORS) for path in VECTORS.glob("packed_vectors/*.py")]
    for name in ("make_vectors.py", "mistakes.py", "layouts.py", *checkers):
        text = (VECTORS / name).read_text(encoding="utf-8")
        imported = [line for line in text.splitlines() if line.startswith(("import", "from"))]
        assert not [line for line in imported if "minise" in line or "transformers" in line]


# ---- right results pass -------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_minise_stays_within_the_tolerance(dtype: str) -> None:
    """Logits, losses and gradients of the decoder. It keeps a distance from the tolerance: if the
    decoder drifts, this fails before `verify` does."""
    found = results("minise_row.py", dtype)
    assert [text for _, text in found.values() if text] == []
    logits = [far for row, (far, _) in found.items() if row.endswith("logits")]
    assert len(logits) == ROWS
    assert max(logits) < TOLERANCE[dtype] / 2
    assert len(found) == 2 * ROWS + 2 * len(make_vectors.MODELS)  # losses; gradients of two rows


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("adapter", ["minise_cached.py", "minise_bits.py"])
def test_cached_runs_and_equal_bits_pass(adapter: str, dtype: str) -> None:
    found = results(adapter, dtype)
    assert len(found) == ROWS
    assert [text for _, text in found.values() if text] == []


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("engine", ["tree", "packed", "separate"])
def test_every_engine_passes(engine: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE", engine)
    found = results("minise_engines.py", dtype)
    assert len(found) == ROWS
    assert [text for _, text in found.values() if text] == []


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_numpy_passes(dtype: str) -> None:
    found = results("numpy_packed.py", dtype)
    assert len(found) == ROWS
    assert [text for _, text in found.values() if text] == []


@needs_node
def test_the_javascript_of_the_page_passes() -> None:
    found = results("javascript.py", "float32")
    assert len(found) == ROWS * 5 // 6  # it has no qwen3
    assert [text for _, text in found.values() if text] == []


# ---- wrong results are named --------------------------------------------------------------------
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_mistake_of_every_row_is_found_and_named(dtype: str) -> None:
    found = []
    for model in ("llama3", "qwen2_windows"):
        found += [one for one in planted.of_models(dtype, model) if one.name]
    assert len(found) > 350
    assert [one for one in found if one.far["logits"] < 2 * TOLERANCE[dtype]] == []
    assert [one for one in found if not one.named] == []


def test_a_known_mistake_is_named_by_its_loss_and_gradients(tmp_path: Path) -> None:
    """Labels that cross a border, given to minise's right logits."""
    path = tmp_path / "crossing.py"
    edges = "np.array([(t, t + 1) for t in range(len(tokens) - 1)])"
    path.write_text(
        "import numpy as np, minise_row\n"
        "def loss(folder, dtype, tokens, positions, mask, edges):\n"
        f"    return minise_row.loss(folder, dtype, tokens, positions, mask, {edges})\n"
        "def gradients(folder, dtype, tokens, positions, mask, edges):\n"
        f"    return minise_row.gradients(folder, dtype, tokens, positions, mask, {edges})\n"
    )
    texts = said(path, "float32")
    for row in ("llama/documents loss", "qwen3/forest loss", "mistral/documents gradients"):
        assert "labels are shifted by index: one crosses a border" in texts[row]


def test_the_command_says_what_is_wrong_and_its_status_is_1(tmp_path: Path) -> None:
    """One line is a fork's test; the mistake here: a whole row is read as one text."""
    path = tmp_path / "adapter.py"
    path.write_text(
        "import numpy as np, numpy_packed\n"
        "def logits(weights, config, tokens, dtype):\n"
        "    T = len(tokens)\n"
        "    causal = np.tri(T, dtype=bool)[None].repeat(config['num_hidden_layers'], 0)\n"
        "    return numpy_packed.logits(weights, config, tokens, np.arange(T), causal, dtype)\n"
    )
    done = subprocess.run(
        [*COMMAND, path, "float32", V1],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert "FAIL llama/tree " in done.stdout
    assert "read as one text (12 of 27, first 15)" in done.stdout
    assert done.stdout.endswith("0 pass, 54 FAIL, 0 not run\n")
    right = [*COMMAND, ADAPTERS / "numpy_packed.py", "float32", V1]
    assert subprocess.run(right, env=ENVIRONMENT, capture_output=True).returncode == 0


def run_program(adapter: Path, content: str) -> tuple[int, list[str], str]:
    """Its status, its last lines, and what it says on stderr, for one model in float32."""
    adapter.write_text(content)
    done = subprocess.run(
        [*COMMAND, adapter, "float32", V1 / "llama"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


RIGHT = (
    "import numpy_packed\n"
    "def logits(weights, config, tokens, positions, mask_in_window, dtype{more}):\n"
    "    {first}\n"
    "    return numpy_packed.logits(weights, config, tokens, positions, mask_in_window, dtype)\n"
)


def test_an_adapter_cannot_change_by_what_it_is_judged(tmp_path: Path) -> None:
    """It gets copies: reading the row before each end is found, though `ends` says so, too."""
    content = RIGHT.format(more=", ends", first="ends -= 1").rstrip() + "[ends]\n"
    content = content.replace("def logits", "def ends")
    status, lines, _ = run_program(tmp_path / "one_before.py", content)
    assert (status, lines[-1]) == (1, "0 pass, 9 FAIL, 0 not run")
    content = RIGHT.format(more=", ends, real", first="ends -= 1; real[:] = False")
    status, lines, _ = run_program(tmp_path / "right.py", content)
    assert (status, lines[-1]) == (0, "9 pass, 0 FAIL, 0 not run")


@pytest.mark.parametrize("parameter", ["postions", "cu_seqlen=None", "mask_=3", "*row", "**row"])
def test_a_parameter_that_is_not_known_is_named(tmp_path: Path, parameter: str) -> None:
    """Misspelt, it would leave its function out of every row."""
    content = RIGHT.format(more=f", {parameter}", first="")
    content += "def ends(tokens):\n    return None\n"
    status, lines, said = run_program(tmp_path / "adapter.py", content)
    assert (status, lines) == (1, [])
    assert said.startswith(f"logits: {parameter} is not known; a parameter is one of tokens, ")


def test_a_parameter_with_a_default_is_given_where_the_row_has_it(tmp_path: Path) -> None:
    first = "assert (cu_seqlens is not None) == (tokens.tolist() in WITH)"
    content = RIGHT.format(more=", cu_seqlens=None", first=first)
    rows = [read(path)[0] for path in sorted((V1 / "llama").glob("*.safetensors"))]
    tokens = [row["row.tokens"].tolist() for row in rows if "row.cu_seqlens" in row]
    content = f"WITH = {tokens}\n" + content
    assert len(tokens) == 7
    status, lines, said = run_program(tmp_path / "adapter.py", content)
    assert (status, lines[-1]) == (0, "9 pass, 0 FAIL, 0 not run"), said


def test_what_was_not_run_is_counted_with_its_reason(tmp_path: Path) -> None:
    content = RIGHT.format(more=", cu_seqlens", first="if len(tokens) > 30: return None")
    status, lines, _ = run_program(tmp_path / "adapter.py", content)
    assert status == 0
    assert "not run: logits of 2 rows, the row has no cu_seqlens" in lines
    none = [line for line in lines if line.endswith("rows, the adapter answers None")]
    assert len(none) == 1
    count = int(none[0].split()[4])
    assert 0 < count < 7
    assert lines[-1] == f"{7 - count} pass, 0 FAIL, {2 + count} not run"


def test_a_function_that_answers_nothing_is_no_pass(tmp_path: Path) -> None:
    """Not even beside one that is right."""
    for content in ("", RIGHT.format(more="", first="")):
        content += "def ends(tokens):\n    return None\n"
        status, lines, said = run_program(tmp_path / "adapter.py", content)
        assert status == 1
        assert "not run: ends of 9 rows, the adapter answers None" in lines
        assert said == "nothing is known of ends: no row was answered\n"
    status, _, said = run_program(tmp_path / "adapter.py", "def logit(tokens):\n    return 0\n")
    assert status == 1
    assert "the adapter has no function of a known name" in said


def test_every_name_that_a_function_may_ask_for_is_in_a_row_or_of_the_model() -> None:
    found = {"weights", "config", "folder", "dtype"}
    for path in (*V1.glob("*/*.safetensors"), *V2.glob("*/*.safetensors")):
        found |= {name[4:] for name in read(path)[0] if name.startswith("row.")}
    assert set(OF_MODELS) == found
    page = (ROOT / "docs/vectors.md").read_text("utf-8")
    assert [name for name in OF_MODELS if f"`{name}`" not in page] == []


# ---- other libraries, each where it is installed ------------------------------------------------
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_flex_attention_passes(dtype: str) -> None:
    assert said("flex_attention.py", dtype) == {}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_jax_and_mlx_pass(dtype: str) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("mlx.core")
    assert said("jax_packed.py", dtype) == {}
    assert said("mlx_packed.py", dtype) == {}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_transformers_passes_with_a_mask(dtype: str) -> None:
    pytest.importorskip("transformers")
    assert said("transformers_mask.py", dtype) == {}


@pytest.mark.slow
def test_transformers_without_the_right_mask_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    alone = said("transformers_positions.py", "float32")
    rows = ["branches", "breadth_first", "far", "forest", "paper_even", "paper_uneven", "tree"]
    assert set(alone) == {f"{model}/{row} logits" for model in make_vectors.MODELS for row in rows}
    assert all("cut where positions jump" in text for text in alone.values())
    monkeypatch.setenv("WINDOW", "no")
    without = said("transformers_mask.py", "float32")
    assert {row.split("/")[0] for row in without} == {"mistral", "qwen2_windows"}
    assert len(without) == 2 * ROWS / 6
    assert all("there is no window" in text for text in without.values())


@pytest.mark.slow
def test_position_ids_do_not_keep_documents_apart_in_linear_layers() -> None:
    """A random Qwen3.5 of transformers: docs/zoo.md has the numbers."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "head_dim": 16}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4}
    sizes |= {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "pad_token_id": 0}
    sizes |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    config = transformers.AutoConfig.for_model("qwen3_5_text", **sizes)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale, mean = (0.3, 0) if weight.dim() > 1 else (0.2, "norm" in name)
            weight.copy_(scale * torch.randn_like(weight) + mean)
        first, second = torch.randint(1, 64, (9,)), torch.randint(1, 64, (12,))
        both, where = torch.cat([first, second]), torch.cat([torch.arange(9), torch.arange(12)])
        right = model(second[None], use_cache=False).logits
        packed = model(both[None], position_ids=where[None], use_cache=False).logits[:, 9:]
        as_one = model(both[None], use_cache=False).logits[:, 9:]
    size = right.pow(2).mean().sqrt()
    off = [((x - right).abs().max() / size).item() for x in (packed, as_one)]
    print("off by", off)
    assert min(off) > 1
