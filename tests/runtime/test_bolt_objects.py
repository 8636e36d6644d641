"""How long a bolt object lives, and what its attributes lose with it."""

from pathlib import Path
from typing import Any

import pytest

from statefx import BasicBolt, BatchBolt, FailedException, Stateful, Topology, TopologyBuilder
from statefx.testing import rows
from tests.testing.topologies import Driver


class StormsCount(BatchBolt):
    """Storm's own example of a batch bolt."""

    outputFields = "count long"

    def open(self, context):
        self._count = 0
        self.context = context
        self.context.config["journal"].append("open")

    def execute(self, tup, collector):
        self._count += 1
        if tup.value == "bad" and self.context.attempt == 0:
            raise FailedException("not at the first attempt")

    def finishBatch(self, collector):
        collector.emit((self._count,))

    def close(self):
        self.context.config["journal"].append("close")


class FromInit(BatchBolt):
    outputFields = "count long"

    def __init__(self) -> None:
        self._count = {"lines": 0}

    def execute(self, tup, collector):
        self._count["lines"] += 1

    def finishBatch(self, collector):
        collector.emit((self._count["lines"],))


class Remembers(BasicBolt):
    """Counts over transactions, but not in its state."""

    outputFields = "count long"
    count = 0

    def execute(self, tup, collector):
        self.count += 1
        collector.emit((self.count,))


class Totals(Stateful, BatchBolt):
    outputFields = "opened long"

    def open(self, context):
        context.config["journal"].append("open")

    def initState(self, state):
        pass

    def execute(self, tup, collector):
        pass


def one(bolt: Any) -> Topology:
    builder = TopologyBuilder("one")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("one", bolt).globalGrouping("lines")
    return builder.createTopology()


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("bolt", [StormsCount, FromInit])
def test_a_batch_bolt_without_state_begins_every_batch_as_open_left_it(place: Path, bolt: Any, fresh: bool) -> None:
    with Driver(place) as driver:
        tester = driver.start(one(bolt()), freshObjects=fresh)
        tester.send({"lines": [("a",), ("b",)]})
        tester.send({"lines": [("c",), ("d",), ("e",)]})
        assert tester.emitted("one") == [(2,), (3,)]


def test_a_batch_bolt_without_state_begins_anew_in_an_attempt_that_is_tried_again(place: Path) -> None:
    with Driver(place) as driver:
        tester = driver.start(one(StormsCount()), freshObjects=False)
        tester.send({"lines": [("a",)]})
        assert tester.send({"lines": [("b",), ("bad",), ("c",)]}).emitted("one") == [(3,)]
        tester.wake()  # it is closed behind its ack
        assert driver.journal == ["open", "close"] * 3


def test_a_batch_bolt_with_state_is_kept(place: Path) -> None:
    with Driver(place) as driver:
        tester = driver.start(one(Totals()), freshObjects=False)
        tester.send({"lines": [("a",)]})
        tester.send({"lines": [("b",)]})
        assert driver.journal == ["open"]


def test_the_tester_shows_what_an_attribute_loses(place: Path) -> None:
    with Driver(place) as driver:
        tester = driver.start(one(Remembers()))
        tester.send({"lines": [("a",), ("b",)]})
        assert tester.send({"lines": [("c",)]}).emitted("one") == [(1,)]
        assert tester.restart().send({"lines": [("d",)]}).emitted("one") == [(1,)]


def test_the_tester_keeps_objects_if_it_is_told_to(place: Path) -> None:
    with Driver(place) as driver:
        tester = driver.start(one(Remembers()), freshObjects=False)
        tester.send({"lines": [("a",), ("b",)]})
        assert tester.send({"lines": [("c",)]}).emitted("one") == [(3,)]
        again = tester.restart()
        again.send({"lines": [("d",)]})
        assert again.send({"lines": [("e",)]}).emitted("one") == [(2,)], "a restart hands the choice on"
