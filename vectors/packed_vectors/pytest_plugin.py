"""pytest --packed-vectors my_adapter.py [--packed-vectors-dtype DTYPE ...]: a test for each result
of each row, and one for each MUST that a row can break (docs/packed.md)."""

import json
from pathlib import Path

import pytest

from packed_vectors import HERE
from packed_vectors.adapters import Adapter
from packed_vectors.check import check_row, name_of, read, rows_in
from packed_vectors.comparing import TOLERANCE

MUSTS = json.loads((HERE / "musts.json").read_text(encoding="utf-8"))


def pytest_addoption(parser):
    group = parser.getgroup("packed vectors")
    group.addoption("--packed-vectors", metavar="ADAPTER", help="an adapter to run on the vectors")
    group.addoption(
        "--packed-vectors-dtype", metavar="DTYPE", action="append", choices=TOLERANCE, default=None
    )


def pytest_collection_modifyitems(session, config, items):
    """The tests stand before those of the files that pytest was given."""
    path = config.getoption("--packed-vectors")
    if not path:
        return
    if not Path(path).is_file():
        raise pytest.UsageError(f"--packed-vectors {path}: no such file; give an adapter")
    try:
        adapter = Adapter(path)
    except SystemExit as error:
        raise pytest.UsageError(str(error)) from None
    found = []
    for dtype in config.getoption("--packed-vectors-dtype") or ["float32"]:
        for row in rows_in():
            found += tests_of(session, adapter, dtype, row)
    items[:0] = found


def tests_of(session, adapter, dtype, path):
    """A test of a row, and one for each MUST that a mistake of it breaks; none where the adapter
    has no function for it."""
    facts = json.loads(read(path)[1]["facts"])
    functions = set(adapter.functions)
    is_asked = (
        facts["operator"] in functions
        if "operator" in facts
        else functions & {*("logits", "ends", "loss", "gradients")}
    )
    if not is_asked:
        return
    row = Row(adapter, dtype, path)
    yield RowTest.from_parent(session, name=f"{row.name}[{dtype}]", row=row, must=None)
    for must in MUSTS:
        if set(must["mistakes"]) & set(facts["words"]):
            name = f"{row.name}[{dtype}] MUST {must['number']}: {must['title']}"
            yield RowTest.from_parent(session, name=name, row=row, must=must)


class Row:
    """A row that is run once, when its first test asks."""

    def __init__(self, adapter, dtype, path):
        self.adapter, self.dtype, self.path = adapter, dtype, path
        self.name = name_of(path)
        self.kept = None

    def results(self):
        if self.kept is None:
            self.kept = list(check_row(self.adapter, self.dtype, self.path))
        return self.kept


class RowTest(pytest.Item):
    def __init__(self, *, row, must, **more):
        super().__init__(**more)
        self.row, self.must = row, must

    def runtest(self):
        ran = [one for one in self.row.results() if one.far is not None]
        if not ran:
            pytest.skip("; ".join(sorted({one.why for one in self.row.results()})))
        wrong = [one for one in ran if one.said]
        if self.must:
            wrong = [one for one in wrong if set(one.mistakes) & set(self.must["mistakes"])]
        if wrong:
            raise Wrong("\n".join(f"{x.kind}: off by {x.far:.1e}, {x.said}" for x in wrong))

    def repr_failure(self, excinfo):
        if excinfo.errisinstance(Wrong):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self):
        return self.row.path, 0, self.name


class Wrong(Exception):
    """A result is not equal to the right one."""
