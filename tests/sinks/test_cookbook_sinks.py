"""The sinks that the cookbook has one write pass what statefx relies on."""

import json
import sqlite3
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from statefx.testing.sink_contract import SinkContract
from tests.docs.test_code_blocks import ROOT, program

MODULE = ModuleType("statefx_cookbook_sinks")
PAGE = vars(MODULE)
CLASSES = program((ROOT / "docs" / "cookbook" / "sinks.md").read_text(encoding="utf-8"))


class Connection(sqlite3.Connection):
    """Calls a step before each statement; those after BEGIN are made under a lock of the database."""

    begins = False

    @staticmethod
    def step():
        """Replaced by the tests."""

    def _pass(self, statement):
        if not Connection.begins or statement.startswith("BEGIN"):
            Connection.step()

    def execute(self, statement, *values):
        self._pass(statement)
        return super().execute(statement, *values)

    def executemany(self, statement, *values):
        self._pass(statement)
        return super().executemany(statement, *values)


@pytest.fixture(scope="module", autouse=True)
def page(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        patch.setitem(sys.modules, MODULE.__name__, MODULE)  # sinks are pickled
        exec(CLASSES, PAGE)
        yield


class InSqlite(SinkContract):
    @pytest.fixture(autouse=True)
    def _stepped(self, monkeypatch):
        connect = sqlite3.connect

        def stepped(path, **options):
            found = connect(path, factory=Connection, **options)
            sqlite3.Connection.execute(found, "pragma synchronous = off")
            return found

        monkeypatch.setattr(sqlite3, "connect", stepped)
        monkeypatch.setattr("os.fsync", lambda descriptor: None)

    @contextmanager
    def steps(self, step, begins=False):
        with super().steps(step), pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "step", step)
            patch.setattr(Connection, "begins", begins)
            yield

    def pauses(self, step):
        return self.steps(step, begins=True)

    def lines(self, path):
        if not Path(path).exists():
            return []
        return [line for (line,) in PAGE["Database"](path).connection.execute("SELECT line FROM lines")]


class TestLines(InSqlite):
    def make(self, place):
        return PAGE["LinesSink"](f"{place}/lines.db")

    def read(self, sink):
        return [json.loads(line)["word"] for line in self.lines(sink.path)]
