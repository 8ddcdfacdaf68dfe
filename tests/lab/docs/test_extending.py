"""Every block of docs/extending.md, run as it is printed."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from minise.commands.cli import main
from tests.lab.support.extending import (
    ROOT,
    SECTIONS,
    patched_package,
    run_patched,
    write_gemma3,
    write_olmo2,
)

EXAMPLES = [title for title, blocks in SECTIONS.items() if blocks and title != "A model family"]


@pytest.mark.parametrize("title", EXAMPLES)
def test_a_section_runs_as_it_is_printed(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if any("minise eval" in text for _, text in SECTIONS[title]):
        for module in ("pandas", "scipy", "sklearn", "matplotlib"):
            pytest.importorskip(module, reason="the extra [eval] is missing")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_gemma3(tmp_path / "gemma-3-270m")
    write_olmo2(tmp_path / "olmo2")
    for language, text in SECTIONS[title]:
        named = re.match(r"# (\w+\.py)\n", text)
        if named:
            Path(named[1]).write_text(text, encoding="utf-8")
        elif language == "python":
            exec(compile(text, title, "exec"), {"__name__": "__main__"})
        else:
            for command in text.strip().splitlines():
                program, *arguments = shlex.split(command)
                assert program == "minise"
                assert main(arguments) == 0, capsys.readouterr().err
    runs = {}
    for path in tmp_path.glob("runs/*/results.json"):
        runs[path.parent.name] = json.loads(path.read_text(encoding="utf-8"))
    check_results(title, runs)
    assert capsys.readouterr().out


# Section title -> for each run a method that the page names, and what it says of its settings.
NAMED: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "A grouping": {"mirrored": ("self-ensemble(grouping=./mirrored.py:mirrored)", {"trials": 10})},
    "A method": {"mine": ("content-free", {"empty": "N/A"})},
    "A model": {"gemma3": ("self-ensemble", {"trials": 20})},
    "A method that is fitted": {"prior": ("label-prior", {"first": 20})},
    "An engine of your own": {
        "seeing": ("self-ensemble", {"trials": 5}),
        "blind": ("self-ensemble", {"trials": 5}),
        "capped": ("self-ensemble", {"trials": 5}),
    },
}
ENGINES = {
    "seeing": "tree",
    "blind": "./blind.py:blind",
    "capped": "./capped.py:capped",
}


def check_results(title: str, runs: dict[str, dict[str, Any]]) -> None:
    """The runs, methods, settings and engines that the page names, and sound numbers."""
    named = NAMED.get(title, {})
    assert runs.keys() == named.keys()
    for run, (name, settings) in named.items():
        method = runs[run]["config"]["tasks"]["miniature"]["methods"][name]
        assert settings.items() <= method["settings"].items()
        assert method["engine"] == ENGINES.get(run, "tree")
        for cell in runs[run]["results"]["miniature"].values():
            assert cell["n"] in (3, 20, 40)
            assert cell["nll"] > 0
            low, high = cell["accuracy_interval"]
            assert low <= cell["accuracy"] <= high
    cells = {run: report["results"]["miniature"] for run, report in runs.items()}
    if title == "A method that is fitted":
        assert set(cells["prior"]) == {"standard", "cyclic", "label-prior"}
        fitted, standard = cells["prior"]["label-prior"], cells["prior"]["standard"]
        assert fitted["tokens"] == standard["tokens"]
        assert fitted["accuracy"] != standard["accuracy"]
    if title == "An engine of your own":  # the choices alone say little
        right = {run: cell["self-ensemble"]["accuracy"] for run, cell in cells.items()}
        assert right["blind"] < right["seeing"]
        assert 20 * right["seeing"] == pytest.approx(15)
        assert 20 * right["blind"] == pytest.approx(4)


@pytest.mark.parametrize("engine", ["./blind.py:blind", "./capped.py:capped"])
def test_a_run_with_an_engine_of_ones_own_goes_on_after_a_cut(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same command asks only what has no answer yet. After a change of the file it refuses."""
    pytest.importorskip("pandas", reason="the extra [eval] is missing")
    monkeypatch.chdir(tmp_path)
    for _, text in SECTIONS["An engine of your own"]:
        named = re.match(r"# (\w+\.py)\n", text)
        if named:
            Path(named[1]).write_text(text, encoding="utf-8")
    words = ["eval", "--task", "miniature", "--limit", "3", "--method", "standard"]
    command = [*words, "--engine", engine, "-o", "run"]
    assert main(command) == 0
    samples = tmp_path / "run" / "samples-miniature-standard.jsonl"
    whole = samples.read_text(encoding="utf-8").splitlines(keepends=True)
    samples.write_text("".join(whole[:-1]), encoding="utf-8")
    assert main(command) == 0
    again = samples.read_text(encoding="utf-8").splitlines(keepends=True)
    assert len(whole) == len(again) == 3
    assert again[:2] == whole[:2]
    for name in ("prediction", "normalized"):
        assert json.loads(again[2])[name] == json.loads(whole[2])[name]

    file = Path(engine.partition(":")[0])
    file.write_text(file.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    capsys.readouterr()
    assert main(command) == 2
    assert "run" in capsys.readouterr().err


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return patched_package(tmp_path_factory.mktemp("patched"))


class TestTheFamily:
    def test_the_diff_that_adds_a_family_is_short(self) -> None:
        [diff] = [text for language, text in SECTIONS["A model family"] if language == "diff"]
        changed = re.findall(r"^[+-](?![+-]{2} ).*$", diff, flags=re.MULTILINE)
        assert len(changed) <= 25

    @pytest.mark.slow
    def test_the_other_families_keep_their_numbers(self, patched: Path) -> None:
        """The frozen logits of the reference library, on the patched copy."""
        for name in ("support/goldens", "support/tiny.py", "claims/test_goldens.py"):
            tests = Path("tests") / "reference"
            source, copy = ROOT / tests / name, patched / tests / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, copy)
            else:
                shutil.copy2(source, copy)
        options = [
            "-m",
            "pytest",
            "-q",
            "-k",
            "logits_equal",
            "tests/reference/claims/test_goldens.py",
        ]
        assert " passed" in run_patched(patched, *options)

    def test_the_new_family_runs_on_every_engine_and_its_unrotated_layers_matter(
        self, patched: Path
    ) -> None:
        shown = run_patched(patched, "-c", CHECK)
        assert shown.split() == [str(patched / "minise" / "__init__.py"), "sound"]


CHECK = """
import torch
import minise
from minise.loading.config_json import read_config

torch.set_num_threads(1)
facts = {
    "model_type": "smollm3", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}

def model(rotated):
    config = read_config({**facts, "no_rope_layers": rotated})
    torch.manual_seed(0)
    decoder = minise.Decoder(config).double().requires_grad_(False)
    for parameter in decoder.parameters():
        parameter.copy_(0.4 * torch.randn(parameter.shape) + (parameter.dim() == 1))
    return minise.LocalModel("smollm3", config, decoder, None)

prefix, branches = [3, 1, 4], [[1, 5, 9, 2], [1, 5, 6], [5, 3, 5, 8]]
seen = []
for rotated in ([1, 0, 1], [1, 1, 0], [1, 1, 1]):
    lm = model(rotated)
    assert lm.decoder.lm_head is None
    alone, packed, tree = (minise.branch_logits(lm, prefix, branches, engine)
                           for engine in ("separate", "packed", "tree"))
    assert torch.allclose(packed, alone, atol=1e-10) and torch.allclose(tree, alone, atol=1e-10)
    assert all((tree - other).abs().max() > 1e-3 for other in seen)
    seen.append(tree)
for wrong in (None, 3, [1, 0]):
    try:
        model(wrong)
    except minise.InputError as error:
        assert "no_rope_layers" in str(error)
    else:
        raise AssertionError(wrong)
print(minise.__file__, "sound")
"""
