"""minise/report/results.schema.json against results.json of real runs, and docs/results.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest

from minise.commands.cli import main
from minise.report.results import Results
from tests.support.runs import arguments

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "minise/report/results.schema.json").read_text(encoding="utf-8"))
TYPES: dict[str, Any] = {
    **{"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)},
    **{"integer": int, "number": (int, float)},
}
ABOUT = {"$schema", "title", "description", "$defs"}  # keywords that demand nothing


def faults(value: Any, schema: dict[str, Any], at: str = "") -> Iterator[str]:
    """Where a value breaks a schema. Only for the keywords that ours has."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    rules = {keyword: rule for keyword, rule in schema.items() if keyword not in ABOUT}
    names = rules.pop("type", list(TYPES))
    kinds = [TYPES[name] for name in ([names] if isinstance(names, str) else names)]
    if not isinstance(value, tuple(kinds)) or (isinstance(value, bool) and bool not in kinds):
        yield f"{at}: {value!r:.40} is not of type {names}"
        return
    fields, others = rules.pop("properties", {}), rules.pop("additionalProperties", {})
    required, items = rules.pop("required", []), rules.pop("items", {})
    least, most = rules.pop("minimum", -inf), rules.pop("maximum", inf)
    shortest, longest = rules.pop("minItems", 0), rules.pop("maxItems", inf)
    assert not rules, f"this test does not know {list(rules)}"
    if isinstance(value, dict):
        yield from (f"{at}/{name} is missing" for name in required if name not in value)
        for name, part in value.items():
            rule = fields.get(name, others)
            if rule is False:
                yield f"{at}/{name} is not in the schema"
            else:
                yield from faults(part, rule, f"{at}/{name}")
    elif isinstance(value, list):
        if not shortest <= len(value) <= longest:
            yield f"{at}: has {len(value)} items"
        for number, part in enumerate(value):
            yield from faults(part, items, f"{at}/{number}")
    elif isinstance(value, (int, float)) and not least <= value <= most:
        yield f"{at}: {value} is out of its range"


def read(folder: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return results


def test_a_run_has_the_fields_of_the_schema_and_no_others(whole: Path) -> None:
    assert list(faults(read(whole), SCHEMA)) == []


@pytest.mark.usefixtures("undrawn")
def test_an_experiment_has_its_own_fields(model: Path, data: Path, tmp_path: Path) -> None:
    options = ("--experiment", "choices", "--cut-to", "2,4", "--limit", 4, "--seed", "0,1")
    assert main(arguments(model, data, tmp_path / "run", *options)) == 0
    results = read(tmp_path / "run")
    assert list(faults(results, SCHEMA)) == []
    assert results["asked"]


@pytest.mark.usefixtures("undrawn")
def test_a_task_without_answers_has_no_numbers(model: Path, data: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in data.read_text().splitlines()[:3]]
    bare = [{name: row[name] for name in ("question", "choices")} for row in rows]
    (tmp_path / "bare.jsonl").write_text("".join(json.dumps(row) + "\n" for row in bare))
    command = arguments(model, tmp_path / "bare.jsonl", tmp_path / "run", "--method", "standard")
    assert main(command) == 0
    results = read(tmp_path / "run")
    assert list(faults(results, SCHEMA)) == []
    assert (results["results"], results["config"]["tasks"]["bare"]["answered"]) == ({}, False)


def test_what_a_report_reads_is_required(whole: Path) -> None:
    """Results without a field that the schema does not require can still be read."""
    results = read(whole)
    config, required = results["config"], SCHEMA["properties"]["config"]["required"]
    results["config"] = {name: config[name] for name in required}
    assert Results.from_json(results).cells


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda r: r["config"].pop("seeds"), "/config/seeds is missing"),
        (lambda r: r.update(more=1), "/more is not in the schema"),
        (lambda r: r["config"].update(threads=0), "/config/threads: 0 is out of its range"),
        (lambda r: r["config"].update(threads=True), "/config/threads: True is not of type"),
        (lambda r: r["config"].update(seeds=["0"]), "/config/seeds/0: '0' is not of type integer"),
    ],
)
def test_the_check_finds_a_damage(whole: Path, damage: Any, fault: str) -> None:
    results = read(whole)
    damage(results)
    (found,) = faults(results, SCHEMA)
    assert found.startswith(fault)


def described(schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The fields of a schema and of all parts of it, each with its description."""
    for name, field in schema.get("properties", {}).items():
        if "description" in field:
            yield name, field["description"]
    for part in schema.values():
        for inner in part if isinstance(part, list) else [part]:
            if isinstance(inner, dict):
                yield from described(inner)


def test_every_field_is_described_in_the_docs_in_the_same_words() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    rows = [f"| `{name}` | {text} |" for name, text in described(SCHEMA)]
    assert len(rows) > 100
    assert [row for row in rows if row not in page] == []
