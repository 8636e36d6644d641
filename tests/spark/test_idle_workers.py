import os
import signal

import pyarrow as pa
import pytest

from tests.spark.idle_workers import drop_closed, factories, idle


def pids(session):
    """The workers of two tasks."""

    def own(batches):
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_pydict({"pid": [os.getpid()], "rows": [rows]})

    found = session.range(0, 4, 1, 2).mapInArrow(own, "pid long, rows long").collect()
    assert sum(each.rows for each in found) == 4
    return {each.pid for each in found}


def test_a_test_gets_no_worker_whose_connection_is_closed(spark):
    """Without the first half the module under test would not be needed: Spark has learned to skip such a worker."""
    for dropped in (False, True):
        for pid in (stopped := pids(spark)):
            os.kill(pid, signal.SIGSTOP)  # one that sees that its connection is closed ends, and Spark skips it
        try:
            for factory in factories(spark):
                for worker in idle(factory):
                    worker.channel().close()
            if dropped:
                drop_closed(spark)
                assert not pids(spark) & stopped
            else:
                with pytest.raises(Exception, match="ClosedChannelException"):
                    pids(spark)
                drop_closed(spark)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGKILL)
