"""Another driver that starts, or goes on, between a start's look at the log and its look at the sinks' targets."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from statefx import FileSink, SqlSink, Topology, TopologyBuilder
from statefx.errors import FencedError
from statefx.testing import rows
from tests.spark.running import listing
from tests.testing.places import place
from tests.testing.topologies import Count, Driver, lines

__all__ = ["place"]

between: list[Callable[[], object]] = []
"""What happens when the next start has read the log, and has not looked at its target yet."""


class Looked:
    def committer(self, context: Any) -> Any:
        if between:
            between.pop()()
        return super().committer(context)  # type: ignore[misc]


class Files(Looked, FileSink):
    pass


class Table(Looked, SqlSink):
    pass


@pytest.fixture(params=["files", "table"])
def topology(request: pytest.FixtureRequest, place: Path) -> Topology:
    sink = Files(place / "out") if request.param == "files" else Table(f"sqlite:///{place}/db", "words")
    builder = TopologyBuilder("word-count")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("count", Plain()).globalGrouping("lines")
    builder.setSink("out", sink).shuffleGrouping("count")
    return builder.createTopology()


class Plain(Count):
    def execute(self, tup, collector):
        collector.emit((tup.value, 1))


@pytest.fixture
def drivers(place: Path) -> Iterator[tuple[Driver, Driver]]:
    with Driver(place) as one, Driver(place) as other:
        yield one, other
    between.clear()


def test_the_slower_of_two_that_start_a_new_checkpoint_is_told_so(
    drivers: tuple[Driver, Driver], topology: Topology
) -> None:
    """Its target has a marker of a checkpoint that was not there when it looked: its own."""
    slower, faster = drivers
    started: list[Any] = []
    between.append(lambda: started.append((faster.start(topology), listing(faster.folder))))
    with pytest.raises(FencedError, match=r"another driver has started on the checkpoint in .* at the same time"):
        slower.start(topology)
    ((tester, before),) = started
    assert listing(slower.folder) == before
    tester.send(lines("a"))
    again = slower.start(topology)
    assert (again.txid, again.generation) == (1, 2)


def test_a_driver_that_goes_on_meanwhile_is_replaced_as_any_other(
    drivers: tuple[Driver, Driver], topology: Topology
) -> None:
    """Its target is ahead of what the start has read of the log, which no backup has brought about."""
    later, at_work = drivers
    tester = at_work.start(topology)
    tester.send(lines("a"))
    between.append(lambda: [tester.send(lines(word)) for word in "bc"])
    successor = later.start(topology)
    assert (successor.txid, successor.generation) == (3, 2)
    with closing(tester), pytest.raises(FencedError):
        tester.send(lines("d"))
