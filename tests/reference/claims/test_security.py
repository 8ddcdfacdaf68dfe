"""What SECURITY.md says of the code itself. Its table names the tests of what comes in."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
RUNS = ("exec", "eval", "compile", "__import__", "os.system", "os.popen", "subprocess.Popen")
LOADS = ("torch.load", "pickle.load", "pickle.loads", "marshal.loads", "yaml.load", "joblib.load")
WAITS = ("subprocess.run", ".acquire", ".communicate", ".wait", "Client", "urlopen")


def faults(text: str) -> list[str]:
    """The calls that run text, unpickle, run a shell, or wait without a bound."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    found = []
    for name, call in [(ast.unparse(call.func), call) for call in calls]:
        given = [keyword.arg for keyword in call.keywords]
        waits = name.endswith(WAITS) and "timeout" not in given
        if waits or name in RUNS + LOADS or "shell" in given:
            found.append(name)
    return found


def test_only_a_users_own_file_is_run_and_every_wait_has_a_bound() -> None:
    found = {}
    for path in (ROOT / "minise").rglob("*.py"):
        if names := faults(path.read_text("utf-8")):
            found[path.name] = names
    assert found == {"plugin.py": ["exec", "compile"]}


def test_such_calls_are_found() -> None:
    text = "subprocess.run(x)\nlock.acquire(timeout=0)\ntorch.load(f)"
    assert faults(text) == ["subprocess.run", "torch.load"]
