"""Event time of DataFrames: what all their tasks read, exact at the end of each transaction."""

from datetime import timedelta

import pytest

from statefx import TopologyBuilder
from statefx.errors import TopologyError
from statefx.testing.feeding import rows
from tests.spouts import timed
from tests.spouts.timed import Relay, Watch, at, seen

SCHEMA = "partition int, at timestamp"


def topology(*, relay=0, width=1, streams=("rows",), streaming=True, **times):
    """Return stream -> (relay) -> watch, for each stream; only the first has `times`."""
    builder = TopologyBuilder("timed")
    watch = builder.setBolt("watch", Watch(), width)
    for number, name in enumerate(streams):
        own = {"timestamp": "at"} if number else {"timestamp": "at"} | times
        builder.setStream(name, rows(SCHEMA, streaming=streaming), **own)
        if relay:
            builder.setBolt(f"relay-{name}", Relay(), relay).shuffleGrouping(name)
            name = f"relay-{name}"
        watch.fieldsGrouping(name, "partition")
    return builder.createTopology()


def work(*times):
    return [(number, at(secs)) for number, secs in enumerate(times)]


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("relay", [0, 1, 2])
def test_it_is_the_greatest_of_all_tasks_at_the_end_of_the_transaction(relay, width, tmp_path):
    of = topology(relay=relay, width=width, lateness="5 seconds")
    with timed.begun(of, tmp_path) as tester:
        for times in ([10, 30, 20], [15], [], [100], []):
            tester.send({"rows": work(*times)})
        for task in range(width):
            assert [each[:2] for each in seen(tester, task).values()] == [
                (None, 25),
                (25, 25),
                (25, 25),
                (25, 95),
                (95, 95),
            ]


def test_restarts_keep_it(tmp_path):
    tester = timed.begun(topology(relay=2), tmp_path)
    for secs in (10, 20, 30):
        tester.send({"rows": work(secs)})
        tester.close()
        tester = tester.restart()
    assert [each[1] for each in seen(tester).values()] == [10, 20, 30]


def test_the_slower_of_two_streams_holds_it_unless_it_is_idle(tmp_path):
    of = topology(streams=("a", "b"), idleAfter="10 seconds")
    with timed.begun(of, tmp_path) as tester:
        for a, b in ([[1], [5]], [[], [20]], [[], [30]], [[], [40]]):
            tester.send({"a": work(*a), "b": work(*b)})
            tester.advance(6)
        assert [each[1] for each in seen(tester).values()] == [1, 1, 30, 40]


def test_batches_on_one_checkpoint_go_on_where_the_last_one_ended(tmp_path):
    with timed.begun(topology(streaming=False), tmp_path) as tester:
        tester.apply(1, {"rows": work(10)})
        tester.apply(2, {"rows": work(5)})
        tester.apply(3, {"rows": work(20)})
        assert [each[1] for each in seen(tester).values()] == [10, 10, 20]


def test_far_ahead_and_null_move_nothing(tmp_path, caplog):
    with timed.begun(topology(maxAhead="1 hour"), tmp_path) as tester:
        tester.send({"rows": work(10, 3 * 3600, None)})
        tester.send({"rows": work(None)})
        assert [each[1] for each in seen(tester).values()] == [10, 10]
    assert "1 rows of 'rows'" in caplog.text


def test_one_that_is_idle_after_a_week_holds_until_it_has_been_heard(tmp_path):
    tester = timed.begun(topology(streams=("a", "b"), idleAfter="10 seconds"), tmp_path)
    tester.send({"a": work(1), "b": work(5)})
    tester.close()
    tester = tester.restart(now=timed.START + timedelta(days=7))
    tester.send({"b": work(20)})
    tester.send({"b": work(30)})
    assert [each[1] for each in seen(tester).values()] == [1, 1, 1]


def test_a_column_of_another_type_is_refused():
    with pytest.raises(TopologyError, match=r"stream 'rows': the field 'at' has the type bigint"):
        TopologyBuilder("wrong").setStream("rows", rows("at long"), timestamp="at")
