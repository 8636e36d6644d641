"""A bolt that fails in a worker: what the driver is told, and that the next start goes on exactly."""

import pickle
import sys
from pathlib import Path

import pytest

from statefx import StatefulBolt, TopologyBuilder, submit
from statefx.errors import BoltError
from tests.spark.bolts import Pass
from tests.spark.running import kinds, run, state

pytestmark = pytest.mark.slow


class Faulty(StatefulBolt):
    """Adds up; raises, or ends its worker, as the file `switch` says."""

    def __init__(self, switch):
        self.switch = Path(switch)

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put("total", self.state.get("total", 0) + tup.n)
        if tup.n == 7 and self.switch.exists():
            if self.switch.read_text() == "exit":
                sys.exit(3)
            raise ValueError("no good")


@pytest.mark.parametrize(("how", "says"), [("raise", "ValueError: no good"), ("exit", "SystemExit: 3")])
def test_a_hook_that_fails_ends_the_query_and_the_next_start_goes_on(spark, place, how, says):
    switch = place / "switch"
    builder = TopologyBuilder("faulty")
    builder.setStream("numbers", spark.createDataFrame([(number,) for number in range(10)], "n long"))
    builder.setBolt("first", Pass("n long"), parallelism=2).shuffleGrouping("numbers")
    builder.setBolt("faulty", Faulty(switch)).globalGrouping("first")
    topology = builder.createTopology()
    run(topology, spark, place / "ck")
    switch.write_text(how)
    query = submit(topology, spark, place / "ck")
    with pytest.raises(BoltError, match=f"bolt 'faulty', task 0, hook execute, transaction 2: .*{says}") as caught:
        query.awaitTermination(120)
    error = caught.value
    assert (error.component, error.task, error.hook, error.txid) == ("faulty", 0, "execute", 2)
    assert query.exception() is error
    assert error.traceback.splitlines()[0] == "Traceback (most recent call last):"
    assert error.traceback.splitlines()[-1] == says
    assert f"{__file__}" in error.traceback
    assert "/statefx/" not in error.traceback
    assert query.status["message"] == error.message
    assert pickle.loads(pickle.dumps(error)).txid == 2
    assert state(place / "ck", "faulty") == {"total": 45}
    assert kinds(place / "ck")[-2:] == [("PREPARING", 2, 0), ("ROLLED_BACK", 2, 0)]
    switch.unlink()
    run(topology, spark, place / "ck")
    assert state(place / "ck", "faulty") == {"total": 90}
    assert kinds(place / "ck")[-2:] == [("PREPARING", 2, 1), ("COMMITTING", 2, 1)]
