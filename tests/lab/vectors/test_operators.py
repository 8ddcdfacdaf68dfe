"""The vectors of operators: their bytes and facts, the derivations behind them, what is said of
right and of wrong results, and the rules of minise/lab/recurrent against them."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minise.lab.recurrent.chunks import by_chunks
from minise.lab.recurrent.convolution import convolve
from minise.lab.recurrent.paths import paths_of

ROOT = Path(__file__).parents[3]
VECTORS = ROOT / "vectors"
OPERATORS, ADAPTERS = VECTORS / "v2" / "operators", VECTORS / "adapters"
sys.path[:0] = [str(VECTORS), str(ADAPTERS)]

import make_operators  # noqa: E402
import planted  # noqa: E402
from operator_mistakes import run  # noqa: E402
from packed_vectors.check import check, read, rows_in  # noqa: E402
from packed_vectors.comparing import OF_OPERATORS, compare_operator  # noqa: E402

FILES = list(planted.operator_files())
NAMES = [one[0] for one in FILES]


def said(adapter: str, dtype: str) -> list[str]:
    results = list(check(ADAPTERS / adapter, dtype, OPERATORS))
    assert [one for one in results if one.far is not None]
    return [f"{one.row} {one.kind}: {one.said}" for one in results if one.said]


# ---- the files ----------------------------------------------------------------------------------
def test_every_file_has_its_checksum_and_all_vectors_are_below_6_mb() -> None:
    lines = (OPERATORS / "SHA256SUMS").read_text().splitlines()
    sums = dict(reversed(line.split("  ")) for line in lines)
    files = list(OPERATORS.glob("*/*.safetensors"))
    assert set(sums) == {path.relative_to(OPERATORS).as_posix() for path in files}
    for path in files:
        got = hashlib.sha256(path.read_bytes()).hexdigest()
        assert sums[path.relative_to(OPERATORS).as_posix()] == got
    every = [path for part in ("v1", "v2") for path in (VECTORS / part).rglob("*")]
    assert sum(path.stat().st_size for path in every if path.is_file()) < 6_000_000


def test_the_program_writes_these_numbers_again(tmp_path: Path) -> None:
    """On a CPU of another kind the last bits of a sum may differ."""
    make_operators.main(tmp_path)
    for path in sorted(tmp_path.glob("*/*.safetensors")):
        (tensors, about), (known, facts) = (
            read(p) for p in (path, OPERATORS / path.relative_to(tmp_path))
        )
        assert about == facts
        assert tensors.keys() == known.keys()
        for name, x in tensors.items():
            assert (x.dtype, x.shape) == (known[name].dtype, known[name].shape)
            size = 1e-6 * (1 + np.abs(known[name].astype(float)))
            assert (np.abs(x.astype(float) - known[name]) <= size).all(), (path, name)


def test_facts_follow_the_schema() -> None:
    schema = json.loads((VECTORS / "facts.schema.json").read_text())
    for path in rows_in(VECTORS):
        facts = json.loads(read(path)[1]["facts"])
        kind = "operator" if "operator" in facts else "row"
        problem = problem_of(facts, schema["$defs"][kind], schema)
        assert not problem, (path, problem)
    assert problem_of({"row": 3}, schema["$defs"]["row"], schema)


TYPES: dict[str, Any] = {"object": dict, "array": list, "string": str, "null": type(None)}
TYPES |= {"integer": int, "number": (int, float)}


def problem_of(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> str:
    """What of the words of JSON Schema that the file uses a value breaks; nothing: none."""
    known = {"type", "enum", "required", "properties", "additionalProperties", "items", "$ref"}
    assert set(schema) <= {*known, "description"}, "a word that this reader does not know"
    if "$ref" in schema:
        return problem_of(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "enum" in schema and value not in schema["enum"]:
        return f"{value} is none of {schema['enum']}"
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(isinstance(value, TYPES[name]) for name in types):
        return f"{value} is no {types}"
    for name in schema.get("required", []):
        if name not in value:
            return f"no {name}"
    if isinstance(value, dict):
        for name, one in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if inner is False:
                return f"{name} is not known"
            problem = problem_of(one, inner, root) if inner else ""
            if problem:
                return f"{name}: {problem}"
    if isinstance(value, list):
        for one in value:
            problem = problem_of(one, schema.get("items", {}), root)
            if problem:
                return problem
    return ""


def test_inputs_are_exact_in_every_dtype() -> None:
    for path in OPERATORS.glob("*/inputs.safetensors"):
        for name, x in read(path)[0].items():
            wide = torch.tensor(x.astype(float))
            for dtype in (torch.float16, torch.bfloat16):
                assert torch.equal(wide.to(dtype).double(), wide), (path, name)


# ---- the scan is what it says -------------------------------------------------------------------
@pytest.mark.parametrize("which", range(len(FILES)), ids=NAMES)
def test_a_gradient_is_the_difference_of_the_result(which: int) -> None:
    """Along a random direction, for each input alone; nothing but the result is asked."""
    where, _, _, given, d = FILES[which]
    operator = where.split("/")[0]
    rng = np.random.default_rng(0)
    results = run(operator, given, d)
    for name in [n[5:] for n in results if n.startswith("grad_")]:
        step = rng.standard_normal(given[name].shape)
        sums = []
        for side in (1e-5, -1e-5):
            moved = run(operator, given | {name: given[name] + side * step}, d)["out"]
            sums.append((moved * given["grad_out"]).sum())
        expected = (results[f"grad_{name}"] * step).sum()
        assert (sums[0] - sums[1]) / 2e-5 == pytest.approx(expected, rel=2e-6, abs=1e-5), name


@pytest.mark.parametrize("which", range(len(FILES)), ids=NAMES)
def test_minise_computes_the_same_by_the_mask_alone(which: int) -> None:
    """In float64, by the closed forms of minise/lab/recurrent: they share no code with the scan."""
    where, file, facts, given, d = FILES[which]
    operator = where.split("/")[0]
    if operator == "attention" or "begins" in d:
        pytest.skip("minise's attention has tests of its own, and its states begin with nothing")
    paths = paths_of(torch.tensor(d["mask"]))
    x = {n: torch.tensor(one) for n, one in given.items() if n != "scale"}
    if operator == "short_convolution":
        out = convolve(x["x"], x["weight"], x["bias"], paths)
    elif operator == "mamba2":
        heads = x["x"].shape[1] // x["B"].shape[1]
        B, C = (x[n].repeat_interleave(heads, dim=1) for n in ("B", "C"))
        dt = x["dt"][..., None]
        out = by_chunks(C, B, dt * x["x"], dt * x["A"][:, None], None, paths)
    else:
        g = x["g"] if operator == "kda" else x["g"][..., None]
        out = by_chunks(given["scale"] * x["q"], x["k"], x["v"], g, x["beta"], paths)
    assert compare_operator("out", out.numpy(), file, facts).far.max() < 1e-6  # float32 in the file


# ---- right results pass, wrong ones are named ---------------------------------------------------
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_numpy_passes(dtype: str) -> None:
    assert said("numpy_operators.py", dtype) == []


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("dtype", OF_OPERATORS)
def test_flex_attention_passes(dtype: str) -> None:
    assert said("flex_operators.py", dtype) == []


@pytest.mark.slow
@pytest.mark.parametrize("dtype", OF_OPERATORS)
def test_the_functions_of_transformers_pass(dtype: str) -> None:
    """Results, final states and gradients of their own chunked code, each prompt alone."""
    pytest.importorskip("transformers")
    assert said("transformers_operators.py", dtype) == []


def all_named(dtype: str, operators: tuple[str, ...]) -> None:
    found = list(planted.of_operators(dtype, operators))
    assert [one for one in found if not one.name and one.said] == []
    wrong = [one for one in found if one.name]
    if dtype == "bfloat16":
        wrong = [one for one in wrong if one.name != "corrects_first"]  # has a test of its own
    limit = 1.5 * OF_OPERATORS[dtype]
    assert [(x.where, x.name) for x in wrong if max(x.far.values()) < limit] == []
    assert [(x.where, x.name, x.said) for x in wrong if not x.named] == []


@pytest.mark.slow
def test_gradients_alone_show_in_bfloat16_that_a_state_is_corrected_before_it_fades() -> None:
    found = planted.of_operators("bfloat16", ("gated_delta_rule", "kda"))
    early = [one for one in found if one.name == "corrects_first"]
    assert len(early) == 12
    for one in early:
        assert max(one.far["out"], one.far["final_states"]) < OF_OPERATORS["bfloat16"], one.where
        assert ": wrong (" in one.said, one.where


def test_every_mistake_of_a_convolution_and_of_attention_is_named() -> None:
    all_named("bfloat16", ("short_convolution", "attention"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", OF_OPERATORS)
def test_every_mistake_of_every_operator_is_named(dtype: str) -> None:
    all_named(dtype, ())
