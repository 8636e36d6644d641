"""`transactions` and `abort` beside a topology that runs on Spark: it is fenced, and the same rows come again."""

import pytest

from statefx import StatefulBolt, TopologyBuilder, abort, transactions
from statefx.errors import CheckpointError, FencedError
from tests.spark.running import feed, kinds, lines_of, run, state

pytestmark = pytest.mark.slow


class AbortedFrom(StatefulBolt):
    """Keeps how often it has seen a line; aborts its own transaction when it first sees the line ``abort``."""

    def __init__(self, place):
        self.place = place

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put(tup.value, self.state.get(tup.value, 0) + 1)
        seen = self.place / "seen"
        if tup.value == "abort" and not seen.exists():
            done = abort(self.place / "ck")
            seen.write_text(f"{transactions(self.place / 'ck')}\n{done}")


def test_a_topology_at_work_is_fenced_and_the_next_start_reads_the_same_rows(spark, place):
    feed(place / "in", a=["a", "b"], b=["abort", "c"])
    builder = TopologyBuilder("aborted")
    builder.setStream("lines", lines_of(spark, place / "in"))
    builder.setBolt("keep", AbortedFrom(place)).globalGrouping("lines")
    topology = builder.createTopology()
    with pytest.raises(FencedError):
        run(topology, spark, place / "ck", {}, trigger={"availableNow": True})
    listed, done = (place / "seen").read_text().splitlines()
    assert listed.count("<Transaction") == 2
    assert "ROLLED_BACK" in listed
    assert done == "generation 2 is taken, and older drivers are fenced; attempt 0 of transaction 2 is rolled back"
    assert state(place / "ck", "keep") == {"a": 1, "b": 1}
    feed(place / "in", c=["later"])
    query = run(topology, spark, place / "ck", {}, trigger={"availableNow": True})
    assert query.recoveries == []
    assert state(place / "ck", "keep") == dict.fromkeys(["a", "b", "abort", "c", "later"], 1)
    ends = [(each.txid, each.attempt, each.generation, each.state) for each in transactions(place / "ck")]
    assert ends == [
        (1, 0, 1, "COMMITTED"), (2, 0, 1, "ROLLED_BACK"), (2, 1, 3, "COMMITTED"), (3, 0, 3, "COMMITTED"),
    ]  # fmt: skip
    assert ("ROLLED_BACK", 2, 0) in kinds(place / "ck")
    with pytest.raises(CheckpointError, match="nothing to abort"):
        abort(place / "ck")
