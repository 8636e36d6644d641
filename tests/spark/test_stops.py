"""What ends a query as stopped, and what only looks like it."""

import pytest
from pyspark.errors import PythonException

from statefx.coordinator.retrying import JobFailedError
from statefx.coordinator.runs import NoSlotsError
from statefx.errors import AttemptsExhaustedError
from statefx.spark.failures import job_error
from tests.spark.bolts import word_count
from tests.spark.running import feed, kinds, lines_of, run

pytestmark = pytest.mark.slow

READ = "if(value = 'b', raise_error('java.lang.InterruptedException: a read was interrupted'), value) as value"


def test_no_text_of_a_failure_is_a_stop():
    trace = (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most "
        "recent failure: Lost task 0.0: java.lang.InterruptedException\n\tat org.apache.hadoop.hdfs.DFSInputStream.read"
    )
    assert type(job_error(Exception(trace), local=True)) is JobFailedError


def test_slots_that_others_hold_are_named():
    text = (
        "Job aborted due to stage failure: [CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT] The stage group needs 6 concurrent "
        "task slots, but only 4 are currently free."
    )
    found = job_error(Exception(text), local=True)
    assert type(found) is NoSlotsError
    assert found.message.startswith("the tasks of the topology live at the same time")
    assert "needs 6 concurrent task slots, but only 4 are" in found.message


@pytest.mark.parametrize(
    ("last", "is_lost"),
    [
        ("pyarrow.lib.ArrowInvalid: Expected to read 240 metadata bytes, but only read 96", True),
        ("BrokenPipeError: [Errno 32] Broken pipe", True),
        ("TimeoutError: the rows of the level before have not ended after 5 s", True),
        ("AttributeError: Can't get attribute 'Count' on <module 'bolts'>", False),
    ],
)
def test_input_that_is_cut_off_is_no_mistake_of_the_user(last, is_lost):
    """Spark stops giving rows when the job fails elsewhere, and may tell of that first."""
    trace = f'Traceback (most recent call last):\n  File "worker.py", line 60, in __call__\n    yield\n{last}\n'
    found = job_error(PythonException(trace), local=True)
    assert (type(found) is JobFailedError) == is_lost
    assert last[:60] in found.message


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_read_that_is_interrupted_in_a_task_is_a_failure(spark, place, kind):
    """The driver says so: whoever runs a batch would think it applied."""
    feed(place / "in", a=["a"], b=["b"])
    lines = lines_of(spark, place / "in") if kind == "stream" else spark.read.text(str(place / "in"))
    arguments = {"trigger": {"availableNow": True}} if kind == "stream" else {"batchId": 7}
    config = {"topology.transaction.attempts.max": 2}
    with pytest.raises(AttemptsExhaustedError, match=r"failed 2 times.*a read was interrupted"):
        run(word_count(lines.selectExpr(READ)), spark, place / "ck", config, **arguments)
    assert kinds(place / "ck") == ([("PREPARING", 1, 0), ("COMMITTING", 1, 0)] if kind == "stream" else [])
