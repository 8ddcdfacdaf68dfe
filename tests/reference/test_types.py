"""What a type checker sees of `import minise`: public names with types, and the code of pages."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import minise
from minise.by_name import PUBLIC

ROOT = Path(__file__).parents[2]
STUB = ROOT / "minise" / "__init__.pyi"


def test_the_stub_has_the_public_names() -> None:
    found = re.findall(r"^from (\S+) import (\w+) as \2$", STUB.read_text("utf-8"), re.MULTILINE)
    listed = [(module, name) for module, names in PUBLIC.items() for name in names.split()]
    assert sorted(found) == sorted(listed)
    assert {name for _, name in found} >= set(minise.__all__)


def checked(folder: Path, *options: str) -> str:
    """What mypy prints of the files in a folder."""
    pytest.importorskip("mypy", reason="the extra [lint] has it")
    command = [sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=silent"]
    cache = f"--cache-dir={folder / 'cache'}"
    files = [str(path) for path in sorted(folder.glob("*.py"))]
    words = [*command, cache, "--ignore-missing-imports", *options, *files]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_a_wrong_call_is_an_error_and_a_loaded_model_has_a_type(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "import minise\n"
        "minise.Question(3, choices=7, nonsense=1)\n"
        "reveal_type(minise.load('weights/tiny-llama'))\n"
        "reveal_type(minise.load('server:x', tokenizer='y'))\n"
    )
    said = checked(tmp_path, "--strict")
    assert 'wrong.py:2: error: Unexpected keyword argument "nonsense"' in said
    assert 'wrong.py:3: note: Revealed type is "minise.lm.LocalModel"' in said
    assert 'wrong.py:4: note: Revealed type is "minise.prompts.LanguageModel"' in said


@pytest.mark.parametrize("page", ["README.md", "docs/extending.md"])
def test_the_code_of_a_page_imports_public_names_alone(page: str) -> None:
    """And the definition, a module that a definition of one's own starts from."""
    if not (ROOT / page).exists():
        pytest.skip("a copy of the reference alone has no such page")
    text = (ROOT / page).read_text("utf-8")
    imported = set()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    public = {"minise", "minise.definition.Decoder"}
    public |= {f"minise.{name}" for name in minise.__all__}
    assert {name for name in imported if name.partition(".")[0] == "minise"} <= public


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/extending.md"])
def test_the_code_of_a_page_has_no_type_error(tmp_path: Path, page: str) -> None:
    if not (ROOT / page).exists():
        pytest.skip("a copy of the reference alone has no such page")
    text = (ROOT / page).read_text("utf-8")
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
        (tmp_path / f"block_{number}.py").write_text(block)
    assert "Success" in checked(tmp_path)
