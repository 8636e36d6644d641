"""A driver with a FileSink that stops itself in the middle of its work: ``python -m tests.sinks.publishing ...``.

It stops, by SIGSTOP, before or after a file gets a name that holds a given text. Prints what ended it.
"""

import os
import signal
import sys
from pathlib import Path

from statefx import TopologyBuilder
from statefx.connectors.files import FileSink
from statefx.errors import StatefxError
from statefx.testing import TopologyTester, rows

WORK = [{"rows": [(f"w{txid}-{number}", number) for number in range(txid % 3)]} for txid in range(1, 14)]


def topology(place):
    builder = TopologyBuilder("writes")
    builder.setStream("rows", rows("word string, n long"))
    builder.setSink("out", FileSink(place / "out"), parallelism=2).shuffleGrouping("rows")
    return builder.createTopology()


def stopping(original, text, when):
    """Return `original`, with a stop the first time that it gives such a name."""
    left = [1]

    def call(source, target):
        due = text in target and left and left.pop()
        if due and when == "before":
            os.kill(os.getpid(), signal.SIGSTOP)
        original(source, target)
        if due and when == "after":
            os.kill(os.getpid(), signal.SIGSTOP)

    return call


def main(place, call, text, when):
    setattr(os, call, stopping(getattr(os, call), text, when))
    try:
        with TopologyTester(topology(Path(place)), Path(place, "ck")) as tester:
            tester.run(WORK)
    except StatefxError as error:
        sys.stdout.write(type(error).__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])
