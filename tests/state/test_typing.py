"""What a type checker makes of state and rows whose types are named."""

import re
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parent.parent.parent

BOLT = """
from dataclasses import dataclass
from typing import NamedTuple, assert_type

from statefx import Collector, StatefulBolt
from statefx import KeyValueState


class Word(NamedTuple):
    word: str


@dataclass
class Counted:
    word: str
    count: int


class Count(StatefulBolt):
    outputFields = Counted

    def initState(self, state: KeyValueState[str, int]) -> None:
        self.counts = state

    def execute(self, tup: Word, collector: Collector) -> None:
        assert_type(tup.word, str)
        tup.letters  # wrong
        collector.emit(Counted(tup.word, 1))
        collector.emit(Counted(tup.word, "1"))  # wrong
        collector.emit(("a", 1))
        collector.emit(1)  # wrong
        self.counts["a"] = self.counts.get("a", 0) + 1
        self.counts["a"] += 1
        assert_type(self.counts["a"], int)
        assert_type(self.counts.get("a"), int | None)
        assert_type(self.counts.get("a", 0), int)
        assert_type(self.counts.get("a", ""), int | str)
        assert_type(self.counts.delete("a"), int | None)
        assert_type(next(self.counts.items()), tuple[str, int])
        assert_type(list(self.counts), list[str])
        assert_type(self.counts.getAll(["a"])["a"], int)
        assert_type(len(self.counts), int)
        assert_type(self.counts["a"], str)  # wrong
        self.counts[1] = 1  # wrong
        self.counts["a"] = "1"  # wrong
        self.counts.put("a", None)  # wrong
        self.counts.putAll({1: 1})  # wrong
        del self.counts[1]  # wrong
"""


@pytest.mark.slow
def test_mypy_knows_what_state_and_rows_hold(tmp_path, monkeypatch):
    bolt = tmp_path / "bolt.py"
    bolt.write_text(BOLT)
    monkeypatch.chdir(ROOT)  # where mypy's settings are
    out, err, _ = api.run(["--config-file=pyproject.toml", str(bolt)])  # with what `make lint` has left in its cache
    wrong = [number for number, line in enumerate(BOLT.splitlines(), 1) if line.endswith("# wrong")]
    assert [int(number) for number in re.findall(r"bolt\.py:(\d+): error: ", out)] == wrong, out + err
