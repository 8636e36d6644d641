"""A bolt that refuses rows, with a file of them, as a process of its own: ``python -m tests.spark.refusing SETTINGS``.

SETTINGS is JSON. Tasks wait, or are killed, at the places of `tests.spark.spouting`.
"""

import json
import os
import sys
from pathlib import Path

from statefx import FileSink, ReplayDeadLetters, StatefulBolt, TopologyBuilder, committedFiles, submit
from statefx.connectors import MemoryTransactionalSpout
from tests.spark.counting import ONCE, session, tell
from tests.spark.running import feed, state
from tests.spark.spouting import Places

FIELDS = "user string, cents long, number long"
USERS = "abcde"
ROWS_EACH, TRANSACTIONS = 30, 8
ROWS = [(USERS[number * 7 % 5], number % 11 - 2, number) for number in range(ROWS_EACH * TRANSACTIONS)]
BAD = [row for row in ROWS if row[1] < 0]


class Balances(StatefulBolt):
    """Adds up, and refuses what is below 0 when it has put and emitted already."""

    outputFields = {"default": "user string, balance long, number long", "log": "number long"}

    def __init__(self, work):
        self.places = Places(work)

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.balances, self.numbers, self.last = state, state.list("numbers"), state.map("last")

    def execute(self, tup, collector):
        self.pass_by("execute")
        balance = self.balances.get(tup.user, 0) + tup.cents
        self.balances.put(tup.user, balance)
        self.numbers.append(tup.number)
        self.last.put(tup.user, [tup.number])
        collector.emit((tup.user, balance, tup.number))
        collector.emit((tup.number,), stream="log")
        if tup.cents < 0:
            self.pass_by("emit")
            raise ValueError(f"{tup.cents} cents")

    def preCommit(self, txid):
        self.pass_by("commit")

    def pass_by(self, phase):
        self.places.pass_by(phase, self.context, self.context.txid)


def refusing(spark, work, inputs, mode):
    builder = TopologyBuilder("refusing")
    if inputs == "frames":
        folder = Path(work, "in")
        if not folder.exists():
            names = [field.split()[0] for field in FIELDS.split(", ")]
            lines = [json.dumps(dict(zip(names, row, strict=True))) for row in ROWS]
            parts = range(TRANSACTIONS)
            feed(folder, **{f"{part:03}": lines[part * ROWS_EACH : (part + 1) * ROWS_EACH] for part in parts})
        builder.setStream("rows", spark.readStream.schema(FIELDS).option("maxFilesPerTrigger", 1).json(str(folder)))
    else:
        builder.setSpout("rows", MemoryTransactionalSpout([ROWS], FIELDS, takePerBatch=ROWS_EACH))
    builder.setBolt("balances", Balances(work), 2, onError=mode).fieldsGrouping("rows", "user")
    for name, stream in (("out", "default"), ("log", "log"), ("letters", "deadLetter")):
        builder.setSink(name, FileSink(f"{work}/{name}", format="json")).globalGrouping("balances", stream=stream)
    builder.setBolt("again", ReplayDeadLetters(FIELDS)).globalGrouping("balances", stream="deadLetter")
    builder.setSink("rows-again", FileSink(f"{work}/again", format="json")).globalGrouping("again")
    return builder.createTopology()


def left(work):
    """All that a run has left: state by task, and the rows of the sinks."""
    found = {name: [] for name in ("out", "log", "letters", "again")}
    for name, rows in found.items():
        for file in committedFiles(Path(work, name)):
            rows += map(json.loads, Path(file).read_text(encoding="utf-8").splitlines())
        rows.sort(key=lambda row: sorted(row.items()))
    place = Path(work, "ck")
    found["state"] = [state(place, "balances", task) for task in range(2)]
    found["last"] = [state(place, "balances", task, map="last") for task in range(2)]
    return found


def begun(spark, work, inputs, mode, trigger=ONCE):
    """Return what `submit` is given."""
    settings = {"topology.state.provider": "rocksdb", "topology.transaction.retry.delay.ms": 10}
    return refusing(spark, work, inputs, mode), spark, f"{work}/ck", settings, trigger


def play(spark, work, provider, options, trigger, inputs, mode="deadLetter"):
    query = submit(*begun(spark, work, inputs, mode, trigger))
    tell(recoveries=query.recoveries)
    query.awaitTermination()
    aside = [each["rowsSetAside"].get("balances", 0) for each in query.recentProgress]
    tell(**query.status, aside=sum(aside), transactions=len(aside))


def main(inputs, **given):
    spark = session("local[12]", **{"spark.executorEnv.PYTHONPATH": os.getcwd()})
    play(spark, inputs=inputs, **given)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
