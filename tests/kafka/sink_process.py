"""A driver with a KafkaSink that kills or stops itself in the middle of publishing.

    python -m tests.kafka.sink_process ADDRESS TOPIC PLACE "before _mark" NUMBER SIGKILL|SIGSTOP

It runs the transactions of `WORK`. After NUMBER transactions of Kafka, of which the first is that of its start, it
sends itself the signal at that step. Prints what ended it.
"""

import os
import signal
import sys
from pathlib import Path

from statefx import TopologyBuilder
from statefx.connectors.kafka import KafkaSink
from statefx.errors import StatefxError
from statefx.testing import TopologyTester, rows
from tests.kafka.topics import steps

WORK = [{"rows": [(f"w{txid}-{number}",) for number in range(txid % 3)]} for txid in range(1, 8)]
ROWS = sorted(word for each in WORK for (word,) in each["rows"])


def topology(address, topic):
    builder = TopologyBuilder("writes")
    builder.setStream("rows", rows("word string"))
    sink = KafkaSink(address, topic, value="word")
    builder.setSink("out", sink, parallelism=2).shuffleGrouping("rows")
    return builder.createTopology()


def main(address, topic, place, moment, number, name):
    published = []

    def step(now):
        if now == moment and len(published) == int(number):
            published.append("the signal")
            os.kill(os.getpid(), getattr(signal, name))
        if now == "after _commit":
            published.append(now)

    with steps(step), TopologyTester(topology(address, topic), Path(place)) as tester:
        tester.run(WORK)


if __name__ == "__main__":
    # A shell has what it starts in the background ignore SIGINT, and so do all that is started from there.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main(*sys.argv[1:])
    except StatefxError as error:
        sys.stdout.write(type(error).__name__)
