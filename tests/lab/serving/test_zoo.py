"""Every causal class of the installed library transformers: packed only if that is right."""

import re
from pathlib import Path

import pytest
import torch

from minise.lab.serving.packable import MODELS, RECURRENT, TABLE_OF
from minise.lab.serving.transformers import MOST_ERROR
from tests.lab.serving.zoo import Row, judge, library, names

PAGE = Path(__file__).parents[3] / "docs/serving.md"
# Of which many checkpoints are used.
STAY = "gemma3_text gemma3 qwen3 olmo2 phi3 smollm3 gpt_oss llama mistral mixtral qwen2 qwen3_moe"
# Its own runs differ from one another: its hashes are drawn anew.
DRAWS = "reformer"


def test_the_table_names_no_model_that_the_library_has_not() -> None:
    known = library.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if f"transformers {library.__version__}" == TABLE_OF:
        assert {*MODELS.split(), *RECURRENT.split()} <= set(known)
    assert set(STAY.split()) <= set(MODELS.split())


@pytest.mark.slow
def test_what_is_packed_is_equal_to_prompts_alone(tmp_path: Path) -> None:
    """If the table in docs/serving.md is another, the one that was found is shown: put it there."""
    rows = [judge(tmp_path / name, name) for name in names()]
    limit = MOST_ERROR[torch.float32]
    assert [row for row in rows if row.error > limit and row.name != DRAWS] == []
    packed = {row.name for row in rows if row.how == "packed"}
    assert set(STAY.split()) <= packed
    assert len(packed) >= 120
    built = {row.name for row in rows if row.how != "not built"}
    assert built & {*MODELS.split(), *RECURRENT.split()} <= packed | {"minimax_m3_vl_text"}
    largest = sorted(rows, key=lambda row: row.error if row.name != DRAWS else 0)[-3:]
    print([f"{row.name} {row.error:.1e}" for row in largest])
    if f"transformers {library.__version__}" != TABLE_OF:
        return
    page = PAGE.read_text("utf-8")
    written = page.partition("<!-- zoo -->\n")[2].partition("<!-- end of zoo -->")[0]
    assert written == table(rows), table(rows)


def table(rows: list[Row]) -> str:
    """The table of docs/serving.md: what became of the models, and why."""
    of_reason: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        name, why = row.name, row.why
        part = re.fullmatch(r"its part (\w+) is not known", why)
        if part:
            name, why = f"{name} ({part[1]})", "a part that is not known"
        elif "not in the table" in why:
            why = "not in the table"
        elif row.how == "not built":
            name, why = f"{name} ({reason_of(why)})", ""
        of_reason.setdefault((row.how, why), []).append(name)
    lines = ["| their prompts run | why | models |", "|---|---|---|"]
    for how, why in sorted(of_reason):
        named = of_reason[how, why]
        lines.append(f"| {how} | {why} | {len(named)}: {'; '.join(named)} |")
    return "\n".join(lines) + "\n"


def reason_of(why: str) -> str:
    """The first words of an error of the library, without the names of its classes."""
    words = why.replace("|", "/").partition("(")[0].split()
    words = [word for word in words if not word.endswith("Error:")]
    return " ".join(words[:8])
