"""The kinds of bad input: each damages something and says which command meets it."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from minise.commands import cli
from minise.loading.names import DTYPES
from minise.loading.plugin import find_object
from minise.loading.quantize import TABLES
from minise.methods import registry
from minise.methods.registry import OFFERED, PRESET_NAMES
from minise.names import ENGINES
from tests.support.damage import (
    TEXTS,
    damage_bytes,
    damage_json,
    damage_line,
    damage_safetensors,
    replace_path,
)
from tests.support.packed import in_4_bits
from tests.support.rows import MMLU, OWN, QASC, TRUTHFUL_CSV, TRUTHFUL_HUB, write
from tests.support.tiny import FAMILIES, write_checkpoint

QUESTION = ("--question", "Which flies?", "--choice", "wren", "--choice", "oak", "--choice", "zinc")
SMALL = ("--group-size", "2", "--trials", "2")
METHODS = (
    *("standard", "self-ensemble", "cyclic"),
    *("standard,vector-scaling(folds=2)", "standard,dirichlet(folds=2)"),
)
NUMERIC = (
    *("--group-size", "--trials", "--seed", "--limit", "--questions", "--cut-to"),
    *("--only-choices", "--tolerance", "--tokens-per-pass"),
)
FITTED = "standard,self-ensemble,vector-scaling(folds=2)"
RUN_FILES = (
    *("run.json", "results.json", "results.json.partial", "report.md", "confidence-data.png"),
    *("samples-data-standard.jsonl", ".lock"),
)
NOT_FINITE = ("nan", "NaN", "inf", "-inf", "Infinity", "-Infinity", "1e999", "-1e999", "1e308")
HTML = (
    "<b>x",
    "<img src=//x onerror=y>",
    "</td><script>x</script>",
    "<!-- x",
    "a|b\\|<i>c",
    "&lt;i>",
)
TEMPLATES = (
    *([{"template": "x"}], [{"name": "default"}], [{"name": []}], [{"name": "default"}, 1], [[]]),
    *(7, 1.5, True, {}, [None], {"default": "x"}, [{"name": "default", "template": {}}]),
    *("{{ bos_token }}{{ eos_token }}{{ tools }}", "{% generation %}x{% endgeneration %}"),
    *("{% for i in range(10 ** 10) %}x{% endfor %}", "{{ 1 / 0 }}", "{{ messages[9].content }}"),
    *(
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception('\\x1b[31m' * 999) }}",
        "{{ 'x' * 99999 }}",
    ),
    *("{{ messages | tojson(indent=-1) }}", "{{ strftime_now('\\ud800') }}", "{% if", "\ud800", ""),
)
LAYOUTS = {
    "qasc": ("parquet", QASC, "id"),
    "truthfulqa": ("csv", TRUTHFUL_CSV, "Question"),
    "truthful-hub": ("parquet", TRUTHFUL_HUB, "question"),
    "mmlu_pro_biology": ("parquet", MMLU, "question_id"),
}


# A file of the user's own.
OWN_IMPORTS = """
from dataclasses import dataclass, replace
from minise import Groups
from minise.method import SelfEnsemble, Answer
"""
OWN_METHOD = f"""{OWN_IMPORTS}
@dataclass(frozen=True)
class Mine(SelfEnsemble):
    name = "mine"
"""
RESULTS = (
    *("return 3", "return None", "return [given[0]]", "return {1: float('nan')}", "return 'x'"),
    *("raise KeyError(given)", "raise SystemExit(3)", "raise MemoryError", "1 / 0", "yield 3"),
    *("return given[1]", "return replace(given[1], prompts=[])", "return float('nan')"),
    *("return Groups(((range(K),),))", "return Groups((((0, 1),), ((2,),)))", "return Groups(())"),
    *("return Groups((((0, 1, 2),),), weights=(10 ** 400,))", "return Groups(3)"),
    *("return Groups((((0, 1, 2),),), weights=(float('nan'),))", "return Groups((((0.0, 1),),))"),
    *("return {'x': float('inf')}", "return {1: {2}}", "raise ValueError('\\x1b[31m' * 999)"),
    "raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})",
)


@dataclass
class Case:
    """What a case works with. Whatever it writes lies in `folder`, the current one when it runs."""

    draw: random.Random
    originals: Path
    folder: Path
    stdout: str | None = None  # a device in place of a file
    encoding: str = "utf-8"  # of the terminal
    environment: dict[str, str] = field(default_factory=dict)  # what is added to it

    def copy(self, name: str) -> Path:
        """A file or folder of the originals, to be damaged."""
        original, copied = self.originals / name, self.folder / name
        if original.is_dir():
            shutil.copytree(original, copied)
        else:
            shutil.copyfile(original, copied)
        return copied

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def damage(self, path: Path, how: Callable[[bytes, random.Random], bytes]) -> None:
        """Damage a file, or sometimes replace it by something else."""
        if self.chance(0.06):
            replace_path(path, self.draw)
        else:
            path.write_bytes(how(path.read_bytes(), self.draw))

    def ask(self, model: Path) -> list[str]:
        """A small question to a model, in any of the ways of asking one."""
        command = "verify" if self.chance(0.05) else "ask"
        more = ["--dtype", self.draw.choice(DTYPES), "--preset", self.draw.choice(PRESET_NAMES)]
        if command == "ask":
            more += [*QUESTION, "--engine", self.draw.choice(ENGINES)]
            more += ["--method", self.draw.choice(("self-ensemble", "standard"))]
        return [command, "--model", str(model), *SMALL, *more, *self.json()]

    def json(self) -> list[str]:
        return ["--json"] if self.chance(0.8) else []


def make_originals(folder: Path) -> Path:
    """What cases damage: models, questions and two finished runs. Loads all that a case needs."""
    for name, raw in FAMILIES.items():
        write_checkpoint(folder / name, {**raw, "num_hidden_layers": 1})
    sharded = shutil.copytree(folder / "llama", folder / "sharded")
    tensors = load_file(sharded / "model.safetensors")
    (sharded / "model.safetensors").unlink()
    names = sorted(tensors)
    places = {name: f"model-{1 + i % 2}.safetensors" for i, name in enumerate(names)}
    for shard in set(places.values()):
        save_file({n: tensors[n] for n in names if places[n] == shard}, sharded / shard)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    stored = shutil.copytree(folder / "llama", folder / "packed")
    save_file(in_4_bits(load_file(stored / "model.safetensors")), stored / "model.safetensors")
    facts = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    raw = json.loads((stored / "config.json").read_text()) | {"quantization_config": facts}
    (stored / "config.json").write_text(json.dumps(raw))
    write(folder / "question.json", [{k: v for k, v in OWN[0].items() if k != "id"}])
    rows = [{**OWN[0], "id": f"q{i}", "answer": i % 3} for i in range(6)]
    for kind in ("jsonl", "json", "csv", "parquet"):
        write(folder / f"data.{kind}", rows)
    for name, (kind, row, key) in LAYOUTS.items():
        values = [row[key] + i if isinstance(row[key], int) else f"{row[key]}{i}" for i in range(5)]
        write(folder / f"{name}.{kind}", [{**row, key: value} for value in values])
    for name, method in (("run", FITTED), ("other", "cyclic")):
        arguments = evaluation(folder, folder / name, "--method", method)
        with redirect_stdout(io.StringIO()):
            assert cli.main(arguments) == 0
    return folder


def evaluation(originals: Path, output: Path | str, *more: str) -> list[str]:
    model, data = str(originals / "llama"), str(originals / "data.jsonl")
    run = ["eval", "--model", model, "--task", data, "--output-path", str(output)]
    return [*run, *SMALL, *more]


def damaged_model(case: Case, name: str, how: Callable[[bytes, random.Random], bytes]) -> list[str]:
    """A question to a checkpoint of any family, one of whose files is damaged."""
    model = case.copy(case.draw.choice(tuple(FAMILIES)))
    case.damage(model / name, how)
    return case.ask(model)


def config(case: Case) -> list[str]:
    return damaged_model(case, "config.json", damage_json)


def weights(case: Case) -> list[str]:
    return damaged_model(case, "model.safetensors", damage_safetensors)


def packed(case: Case) -> list[str]:
    """A checkpoint in 4 bits: one tensor, or what it says of itself, is changed."""
    draw, model = case.draw, case.copy("packed")
    path = model / "model.safetensors"
    tensors = load_file(path)
    name = draw.choice([name for name in sorted(tensors) if "_proj.weight" in name])
    tensor = tensors[name]
    if "quant_state" in name and case.chance(0.8):
        changed = damage_json(bytes(tensor.tolist()), draw)[: 1 << 16]
        tensors[name] = torch.tensor(list(changed), dtype=torch.uint8)
    else:
        other = tensors[draw.choice(sorted(tensors))]
        changes = (tensor * 0, tensor.flip(0), tensor[1:], tensor.double(), other.clone())
        changes += (tensor[None], torch.full_like(tensor, 255), TABLES["fp4"].clone())
        tensors[name] = draw.choice(changes).contiguous()
    save_file(tensors, path)
    return case.ask(model)


def index(case: Case) -> list[str]:
    model = case.copy("sharded")
    if case.chance(0.8):
        case.damage(model / "model.safetensors.index.json", damage_json)
    else:
        replace_path(model / f"model-{case.draw.choice('12')}.safetensors", case.draw)
    return case.ask(model)


def tokenizer(case: Case) -> list[str]:
    return damaged_model(case, "tokenizer.json", damage_json)


def questions(case: Case) -> list[str]:
    """A question to `ask`: its file, or its text on the command line."""
    model = str(case.originals / "llama")
    more = [*SMALL, *case.json(), "--engine", case.draw.choice(ENGINES)]
    if case.chance(0.7):
        path = case.copy("question.json")
        case.damage(path, damage_bytes if case.chance(0.2) else damage_json)
        return ["ask", "--model", model, "--file", _renamed(case, path), *more]
    case.encoding = case.draw.choice(("utf-8", "ascii", "cp1252"))
    texts = ["Which?", *(f"choice {i}" for i in range(case.draw.choice((1, 2, 5, 26, 27, 200))))]
    for _ in range(case.draw.choice((0, 1, 3))):
        texts[case.draw.randrange(len(texts))] = _text(case)
    choices = [part for text in texts[1:] for part in ("--choice", text)]
    names = ("random", "independent", "exact")
    # Every group of 26 choices would be sound, and a lot of work.
    grouping = ("--grouping", case.draw.choice(names if len(texts) < 9 else names[:3]))
    return ["ask", "--model", model, "--question", texts[0], *choices, *grouping, *more]


def data(case: Case) -> list[str]:
    """A file of questions to `eval`: ours in four formats, or one of a published data set."""
    name, task = f"data.{case.draw.choice(('jsonl', 'json', 'csv', 'parquet'))}", ""
    if case.chance(0.3):
        task = case.draw.choice(tuple(LAYOUTS))
        name = f"{task}.{LAYOUTS[task][0]}"
    path = case.copy(name)
    how = {".json": damage_json, ".jsonl": damage_line}.get(path.suffix, damage_bytes)
    if path.suffix == ".parquet" and case.chance(0.5):
        _damage_rows(path, LAYOUTS[task][1] if task else OWN[0], case.draw)
    else:
        case.damage(path, how)
    where = _renamed(case, path)
    source = ["--task", where]
    if task in ("qasc", "truthfulqa", "mmlu_pro_biology") and case.chance(0.5):
        source = ["--task", f"{task}@{where}"]
    more = ["--method", case.draw.choice(METHODS), *case.json()]
    more += ["--skip-bad-rows"] if case.chance(0.5) else []
    more += ["--cut-to", case.draw.choice(("2", "3", "2,3"))] if case.chance(0.2) else []
    return [*evaluation(case.originals, "out"), *source, *more]


def run(case: Case) -> list[str]:
    """A run's folder: `eval --resume` goes on with it, or `report` reads it."""
    folder = case.copy("run")
    names = ("run.json", "results.json", "results.json", "samples", ".lock", "report.md")
    name = case.draw.choice(names)
    if name == "samples":
        path = case.draw.choice(sorted(folder.glob("samples-*")))
        case.damage(path, damage_bytes if case.chance(0.4) else damage_line)
    elif name in (".lock", "report.md"):
        replace_path(folder / name, case.draw)
    else:
        case.damage(folder / name, damage_json)
    if case.chance(0.4) or name == "results.json":
        others = [str(case.originals / "other")] if case.chance(0.3) else []
        folders = case.draw.sample([str(folder), *others], len(others) + 1)
        return ["report", *folders, "--output-path", "out", *case.json()]
    if case.chance(0.3):
        (folder / "results.json").unlink(missing_ok=True)
    method = ("--method", FITTED)
    return [*evaluation(case.originals, folder, *method, "--resume"), *case.json()]


def writing(case: Case) -> list[str]:
    """A question to a checkpoint that writes text first, one of whose files on that is damaged."""
    model = case.copy("llama")
    template = "{{ bos_token }}{% for m in messages %}{{ m.role + m.content }}{% endfor %}</think>"
    files = {
        "generation_config.json": {"eos_token_id": [3, 4]},
        "tokenizer_config.json": {"chat_template": template, "bos_token": "<s>"},
    }
    for name, held in files.items():
        (model / name).write_text(json.dumps(held))
    (model / "chat_template.jinja").write_text(template)
    name = case.draw.choice((*files, "chat_template.jinja"))
    if case.chance(0.3):
        name = "tokenizer_config.json"
        (model / "chat_template.jinja").unlink()
        held = {**files[name], "chat_template": case.draw.choice(TEMPLATES)}
        (model / name).write_text(json.dumps(held))
    if case.chance(0.8):
        case.damage(model / name, damage_json if name.endswith(".json") else damage_bytes)
    method = case.draw.choice(("cot", "reasoning"))
    more = ["--method", f"{method}(max_new_tokens=3)", *QUESTION, *SMALL, *case.json()]
    return ["ask", "--model", str(model), *more]


def arguments(case: Case) -> list[str]:
    """A command line whose options are dropped, repeated, or given other values."""
    draw, model = case.draw, str(case.originals / "llama")
    task = str(case.originals / "data.jsonl")
    lines = (
        ["ask", "--model", model, *QUESTION, *SMALL, "--json"],
        ["verify", "--model", model, *SMALL, "--json"],
        ["explain", "--model", model, *QUESTION, *SMALL, "--json"],
        [*evaluation(case.originals, "out", "--method", "standard,self-ensemble"), "--json"],
        [*evaluation(case.originals, "out", "--experiment", "main"), "--json"],
        ["report", str(case.copy("run")), "--output-path", "out"],
    )
    line = list(draw.choice(lines))
    numbers = ("0", "-1", "1", "2", "3", "5", "nan", "1e3", "1.5", "")
    huge = ("1000000000", "9223372036854775808", "9" * 5_000)
    pools: dict[str, tuple[str, ...]] = {
        **dict.fromkeys(NUMERIC, (*numbers, *huge)),
        "--method": (
            *(*METHODS, "without-mask", "without-positions", "permutations", "x.py:Y"),
            *("cot", "reasoning", "reasoning(chat=false,max_new_tokens=3)"),
            *("pride", "contextual-calibration"),
            *(f"self-ensemble({_setting(draw)})", f"cyclic,standard({_setting(draw)})"),
        ),
        "--experiment": (*("choices", "sensitivity", "efficiency", "groupings", "calibration"),),
        "--detail": ("low", "full", "high"),
        "--figure": ("mask.svg", "no/such/mask.svg", "."),
        "--output": ("page.html", "no/such/page.html", ".", "x" * 999),
        "--label": ("x", "a,b", "\x1b[31m", "x" * 999),
        "--task": (
            *("miniature", "qasc", task, f"{task},{task}", "miniature,x.jsonl", "qasc@v1"),
            *(f"qasc@{task}", f"qasc@{case.originals / 'qasc.parquet'}", "qasc@"),
        ),
        "--grouping": ("random", "independent", "exact", "x.py:Y", ":", "json:loads"),
        "--engine": ENGINES,
        "--preset": PRESET_NAMES,
        "--dtype": (*DTYPES, "int8"),
        "--device": ("cpu", "cpu:1", "meta", "cuda", "mps", "cpu:99999999999999999999"),
        "--model": (model, "owner/name", "weights/none", "..", str(case.originals), task),
        "--revision": ("main", "../x"),
        "--file": (str(case.originals / "question.json"), task, str(case.originals)),
        "--question": ("Why?",),
        "--choice": ("a", "b"),
    }
    flags = ("--json", "--resume", "--help", "--gradients", "--show-groups", "--no-null-option")
    for _ in range(draw.choice((1, 1, 2, 3, 5))):
        option = draw.choice(tuple(pools))
        change = draw.randrange(5)
        if change == 0:
            line.pop(draw.randrange(len(line)))
        elif change == 1:
            line.append(draw.choice((*flags, "--keep-groups", "--skip-bad-rows", "extra")))
        else:
            value = _text(case) if change == 2 else draw.choice(pools[option])
            line += [option, value]
    if "miniature" in " ".join(line) and "--questions" not in line:
        line += ["--questions", "4"]
    return line


def output(case: Case) -> list[str]:
    """Where a command writes: to a folder that cannot be one, or to a full disk."""
    draw = case.draw
    name = draw.choice(("out", "a/b/c", "out/../out", *filter(_is_inside, TEXTS)))
    if case.chance(0.4):
        name = draw.choice(("out", "a"))
        replace_path(case.folder / name, draw)
    elif case.chance(0.5):
        (case.folder / "out").mkdir()
        replace_path(case.folder / "out" / draw.choice(RUN_FILES), draw)
        name = "out"
    case.stdout = "/dev/full" if case.chance(0.1) else None
    case.encoding = draw.choice(("utf-8", "ascii", "cp1252"))
    if case.chance(0.3):
        return ["report", str(case.originals / "run"), "--output-path", name, *case.json()]
    more = ["--method", "standard", *case.json(), *(["--resume"] if case.chance(0.3) else [])]
    return evaluation(case.originals, name, *more)


def settings(case: Case) -> list[str]:
    """A method whose settings, the user's own too, are not finite, of another type, or huge."""
    draw, name = case.draw, case.draw.choice(OFFERED)
    cls = find_object(registry.METHODS[name][0])
    names = [one.name for one in fields(cls)] if is_dataclass(cls) else []
    if case.chance(0.3):
        name, names = "./own.py:Mine", ["x", "y", "group_size"]
        kind, default = draw.choice(("float", "int", "object", "str")), draw.choice(NOT_FINITE)
        body = (
            f"    x: {kind} = float('{default}')\n    y: float = 10 ** {draw.choice((3, 5000))}\n"
        )
        (case.folder / "own.py").write_text(OWN_METHOD + body)
    some = draw.sample(names, min(len(names), draw.choice((0, 1, 1, 2))))
    values = (*NOT_FINITE, "0", "-1", "true", "1" + "0" * 400, "9" * 5000, "''", "é", "1e-320")
    method = f"{name}({','.join(f'{one}={draw.choice(values)}' for one in some)})"
    return _either(case, "--method", method)


def own(case: Case) -> list[str]:
    """A method or a grouping of the user's own that does what it may not."""
    result = case.draw.choice(RESULTS)
    if case.chance(0.3):
        (case.folder / "own.py").write_text(f"{OWN_IMPORTS}def mine(K, m, *_):\n    {result}\n")
        return _either(case, "--grouping", "./own.py:mine")
    function = case.draw.choice(("plan", "more", "answer", "notes", "write", "check", "__init__"))
    body = f"    def {function}(self, *given, **named):\n        {result}\n"
    (case.folder / "own.py").write_text(OWN_METHOD + body)
    return _either(case, "--method", "./own.py:Mine")


def labels(case: Case) -> list[str]:
    """Texts that a report shows, some of which a browser would take for a part of the page."""
    draw = case.draw
    texts = (*HTML, *(text for text in map(_clean, TEXTS) if text))
    if case.chance(0.5):
        folder = str(case.originals / "run")
        return ["report", folder, "--label", draw.choice(texts), "--output-path", "out"]
    path = case.folder / f"{draw.choice(('x', 'a_b', 'x y', '<b>x'))}.jsonl"
    rows = [{**OWN[0], "id": f"q{i}", "question": f"{draw.choice(texts)} {i}"} for i in range(3)]
    write(path, rows)
    return [*evaluation(case.originals, "out", "--label", draw.choice(texts)), "--task", path.name]


KINDS: dict[str, Callable[[Case], list[str]]] = {
    kind.__name__: kind
    for kind in (
        *(config, weights, index, tokenizer, writing),
        *(questions, data, run, arguments, output),
        *(packed, settings, own, labels),
    )
}


def _setting(draw: random.Random) -> str:
    name = draw.choice(("trials", "group_size", "grouping", "null_option", "preset", "", "x"))
    values = ("1", "3", "0", "-1", "nan", "true", "null", "[1]", "1e3", "exact", "x.py:Y", "")
    return f"{name}={draw.choice(values)}" if draw.random() < 0.9 else name


def _either(case: Case, option: str, value: str) -> list[str]:
    """A question, or an evaluation, with this option."""
    if case.chance(0.5):
        return [*evaluation(case.originals, "out", option, value), *case.json()]
    model = str(case.originals / "llama")
    return ["ask", "--model", model, *QUESTION, *SMALL, *case.json(), option, value]


def _is_inside(name: str) -> bool:
    """Of a path: it names something in the current folder, and a command line can hold it."""
    return not name.startswith(("/", "..", "-")) and "\0" not in name and "\ud800" not in name


def _text(case: Case) -> str:
    """Any text that a command line can hold: without NUL, and halves of pairs only as bytes."""
    return _clean(case.draw.choice(TEXTS))


def _clean(text: str) -> str:
    return text.replace("\0", "").replace("\ud800", "\udcfe")


def _renamed(case: Case, path: Path) -> str:
    """Its path, sometimes under a name that needs care, or one that no file can have."""
    if case.chance(0.8):
        return path.name
    name = case.draw.choice(("x$_{$", "名", "a b", "\x1b[31m", "x\ny", "\udcff", "%s", "x" * 300))
    if len(name) < 300 and os.path.lexists(path):
        path.rename(path.with_name(name + path.suffix))
    return name + path.suffix


def _damage_rows(path: Path, row: dict[str, Any], draw: random.Random) -> None:
    """A sound Parquet file of damaged rows, if Parquet can hold them."""
    with suppress(Exception):
        write(path, json.loads(damage_json(json.dumps([row, row]).encode(), draw)))
