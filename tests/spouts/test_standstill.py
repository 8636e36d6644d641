"""A warning names what holds event time while rows come, once in ten minutes."""

import pytest

from statefx import TopologyBuilder
from statefx.coordinator.standstill import AGAIN_MS, STILL_MS
from statefx.testing import TopologyTester, rows
from tests.spouts import timed
from tests.spouts.timed import START, Planned, PlannedEnds, Watch, Whole, at, begun

ROUNDS = 40


def warnings(caplog):
    return [
        record.message
        for record in caplog.records
        if record.message.partition("event time has ")[2].startswith(("stood still at", "not begun for"))
    ]


def ran(driver, secs=30):
    for _ in range(ROUNDS):
        driver.emit()
        driver.advance(secs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "named"),
    [
        (
            timed.topology(Planned([[[n], [n] if n < 3 else []] for n in range(ROUNDS)]), 2),
            "partition 1 of spout 'spout' holds it, which has had rows up to 2026-01-01T00:00:02+00:00",
        ),
        (
            timed.topology(Whole([[[], [n]] for n in range(ROUNDS)]), 2, idleAfter="1 day"),
            "task 0 of spout 'spout' holds it, which has had no row yet",
        ),
        (
            timed.topology(PlannedEnds([[[n], [], []] for n in range(ROUNDS)], [None, 0, None])),
            "partition 2 of spout 'spout' holds it, which has had no row yet",
        ),
    ],
)
def test_the_slowest_is_named_with_the_remedy(of, named, tmp_path, caplog):
    with begun(of, tmp_path) as driver:
        ran(driver)
    found = warnings(caplog)
    # from a minute on, and then each ten minutes
    assert len(found) == 1 + (ROUNDS * 30_000 - STILL_MS) // AGAIN_MS
    assert named in found[0]
    assert 'setSpout("spout", ..., idleAfter="5 minutes")' in found[0] or "its idleAfter of 86400 s" in found[0]
    assert ("have isFinished of the spout say so" in found[0]) == ("partition" in named)


@pytest.mark.slow
@pytest.mark.parametrize(
    "of",
    [
        timed.topology(Planned([[[n], [n]] for n in range(ROUNDS)]), 2),
        timed.topology(Planned([[[n], []] for n in range(ROUNDS)]), idleAfter="50 seconds"),
        timed.topology(PlannedEnds([[[n], []] for n in range(ROUNDS)], [None, 0])),
        timed.topology(Planned([[[n] if n < 2 else [], []] for n in range(ROUNDS)])),
        timed.topology(Planned([[[n], []] for n in range(ROUNDS)]), timestamp=None),
    ],
    ids=["it gets on", "idle", "finished", "no rows come", "no event time"],
)
def test_where_nothing_waits_nothing_is_warned_of(of, tmp_path, caplog):
    with begun(of, tmp_path) as driver:
        ran(driver)
    assert len(warnings(caplog)) == 0


def test_the_dataframe_without_rows_is_named(tmp_path, caplog):
    builder = TopologyBuilder("streams")
    watch = builder.setBolt("watch", Watch())
    for name in ("fast", "slow"):
        builder.setStream(name, rows("partition int, at timestamp"), timestamp="at")
        watch.fieldsGrouping(name, "partition")
    with TopologyTester(builder.createTopology(), tmp_path, now=START) as tester:
        for number in range(5):
            tester.send({"fast": [(0, at(number))]})
            tester.advance(30)
    [found] = warnings(caplog)
    assert "the DataFrame 'slow' holds it, which has had no row yet" in found
    assert 'setStream("slow", ..., idleAfter="5 minutes")' in found
