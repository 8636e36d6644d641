"""What a type checker makes of state and rows whose types are named, and of a checkpoint."""

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


CHECKPOINT = """
from typing import assert_type

from statefx import Checkpoint

checkpoint = Checkpoint("ck", {"topology.state.provider": "rocksdb"})
assert_type(checkpoint.location, str)
checkpoint.location = "other"  # wrong
Checkpoint(5)  # wrong
with checkpoint.state("count", 0, byTask=True) as view:
    assert_type(view.txid, int)
checkpoint.state("count", "0")  # wrong
checkpoint.table("count", at=1, diff=(1, "two"))
checkpoint.table("count", diff=1)  # wrong
checkpoint.write("count", checkpoint.table("count"), mode="append")  # wrong
assert_type(checkpoint.transactions()[0].txid, int)
assert_type(checkpoint.explain("count", "a").tasks[0].present, bool)
assert_type(next(checkpoint.quarantined("count")).rows, int)
assert_type(checkpoint.savepoint("one").txid, int)
assert_type([each.name for each in checkpoint.savepoints()], list[str])
assert_type(checkpoint.restore("one", sinks="rewind").next_txid, int)
checkpoint.restore("one", sinks="forget")  # wrong
checkpoint.rescale(8)  # wrong
assert_type(checkpoint.rescale({"count": 8}, progress=print).keys, int)
assert_type(checkpoint.migrate("redis", {"url": "redis://db"}).left, str)
assert_type(checkpoint.rename({"count": "tally"}).location, str)
assert_type(checkpoint.verify().ok, bool)
assert_type(checkpoint.repair(yes=True).done, bool)
assert_type(checkpoint.abort().generation, int)
"""

PUBLIC = """
from datetime import timedelta

from statefx import Checkpoint, Duration, FileSink, IntervalJoin, Topology, TopologyBuilder, WindowedBolt  # wrong
from statefx.checkpoint import Explained, Migration, Repair, Restoration, Savepoint, StateView, Verified, Written
from statefx.connectors import SqlSink  # wrong
from statefx.testing import TopologyTester, rows


def show(view: StateView, written: Written, verified: Verified) -> Savepoint | None:
    return None


def built(builder: TopologyBuilder, bolt: WindowedBolt, topology: Topology) -> TopologyTester:
    builder.setStream("s", rows("at timestamp"), timestamp="at", lateness=timedelta(0), idleAfter=Duration.minutes(1))
    builder.setStream("s", rows("at timestamp"), timestamp="at", maxAhead=5)  # wrong
    bolt.withSessionWindow("5 m").withLag(Duration.seconds(1)).withLag(timedelta(1))
    bolt.withLag(5)  # wrong
    IntervalJoin("a", "b", "k", (timedelta(0), Duration.hours(1)), "k")
    builder.setBolt("w", bolt).shuffleGrouping("s", stream="errors").shuffleGrouping("s", "errors")  # wrong
    return TopologyTester(topology)
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", [BOLT, CHECKPOINT, PUBLIC], ids=["bolt", "checkpoint", "public"])
def test_mypy_finds_what_is_wrong_in_a_program(program, tmp_path, monkeypatch):
    path = tmp_path / "program.py"
    path.write_text(program)
    monkeypatch.chdir(ROOT)  # where mypy's settings are
    out, err, _ = api.run(["--config-file=pyproject.toml", str(path)])  # with what `make lint` has left in its cache
    wrong = [number for number, line in enumerate(program.splitlines(), 1) if line.endswith("# wrong")]
    assert [int(number) for number in re.findall(r"program\.py:(\d+): error: ", out)] == wrong, out + err


@pytest.mark.slow
def test_mypy_finds_nothing_wrong_in_the_program_of_rows_as_classes(tmp_path, monkeypatch):
    page = (ROOT / "docs/stateful-bolts.md").read_text().partition("### Rows as classes\n")[2]
    (tmp_path / "program.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    monkeypatch.chdir(ROOT)
    out, err, found = api.run(["--config-file=pyproject.toml", "--strict", str(tmp_path / "program.py")])
    assert not found, out + err
