import os
import signal
from contextlib import suppress

import pyarrow as pa
import pytest

from statefx.spark.executors import with_open_workers
from statefx.spark.internals import got_closed_worker
from tests.spark.idle_workers import drop_closed, factories, idle


def pids(session):
    """The workers of two tasks."""

    def own(batches):
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_pydict({"pid": [os.getpid()], "rows": [rows]})

    found = session.range(0, 4, 1, 2).mapInArrow(own, "pid long, rows long").collect()
    assert sum(each.rows for each in found) == 4
    return {each.pid for each in found}


@pytest.fixture
def closed(spark):
    """Idle workers whose connection is closed, and which have not noticed."""
    for pid in (stopped := pids(spark)):
        os.kill(pid, signal.SIGSTOP)  # one that sees it ends, and Spark skips it
    for factory in factories(spark):
        for worker in idle(factory):
            worker.channel().close()
    yield stopped
    for pid in stopped:
        with suppress(ProcessLookupError):  # Spark has ended those that a failed task had got
            os.kill(pid, signal.SIGKILL)


def test_spark_gives_them_to_a_task(spark, closed):
    """Else nothing of this would be needed any more."""
    with pytest.raises(Exception, match="ClosedChannelException") as caught:
        pids(spark)
    assert got_closed_worker(caught.value)
    drop_closed(spark)


def test_a_test_gets_none(spark, closed):
    drop_closed(spark)
    assert not pids(spark) & closed


def test_a_tool_passes_over_them(spark, closed):
    assert not with_open_workers(lambda: pids(spark)) & closed
