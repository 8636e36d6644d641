"""What a failure of Spark's is told as."""

import pytest

from statefx.spark.failures import last_line

WAITED = """An error occurred while calling o1.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)
Caused by: org.apache.spark.SparkException: Job aborted
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:1)
Caused by: java.net.SocketException: Broken pipe
\tat java.base/sun.nio.ch.Net.write(Net.java:1)
"""
PYTHON = """Job aborted
Traceback (most recent call last):
  File "x.py", line 1, in f
ValueError: no number
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (WAITED, "java.net.SocketException: Broken pipe"),
        (PYTHON, "ValueError: no number"),
        ("o1.collect.\n: java.io.IOException: no space\n\tat x", "o1.collect. : java.io.IOException: no space at x"),
    ],
    ids=["waited", "python", "java"],
)
def test_a_trace_is_told_by_the_line_that_says_why(text, says):
    assert last_line(text) == says
