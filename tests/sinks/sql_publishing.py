"""A driver of a whole topology with two SqlSinks that stops itself: ``python -m tests.sinks.sql_publishing ...``.

It commits one transaction. In the next one it stops, by SIGSTOP, while it publishes to the sink of that number, counted
from 1: before the statement that moves the marker, or before the COMMIT of the database. Prints what ended it.
"""

import os
import signal
import sys

from sqlalchemy import event
from sqlalchemy.engine import Engine

from statefx import TopologyBuilder
from statefx.connectors.sql import SqlSink
from statefx.errors import StatefxError
from statefx.testing import TopologyTester, rows
from tests.testing.topologies import Count, Split, lines

WORK = [lines("to be or", "not to be"), lines("that is to be"), lines("to or to"), lines("be it"), lines("to it")]


def topology(url):
    builder = TopologyBuilder("word-count")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("split", "word")
    builder.setSink("history", SqlSink(url, "history")).shuffleGrouping("count")
    builder.setSink("totals", SqlSink(url, "totals", key="word"), parallelism=2).fieldsGrouping("count", "word")
    return builder.createTopology()


def stop_at(moment, sink):
    """Stop this process when it publishes to a sink the next time."""
    moved = []

    def stop(due):
        if due and len(moved) == sink:
            moved.append("stopped")  # the second time it goes on
            os.kill(os.getpid(), signal.SIGSTOP)

    def execute(connection, cursor, statement, *others):
        if statement.startswith("UPDATE") and "statefx_markers" in statement:
            moved.append(statement)
            stop(moment == "UPDATE")

    event.listen(Engine, "before_cursor_execute", execute)
    event.listen(Engine, "commit", lambda connection: stop(moment == "COMMIT"))


def main(url, checkpoint, moment, sink):
    try:
        with TopologyTester(topology(url), checkpoint) as tester:
            tester.run(WORK[:1])
            stop_at(moment, int(sink))
            tester.run(WORK)
    except StatefxError as error:
        sys.stdout.write(type(error).__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])
