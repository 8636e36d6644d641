"""Spouts of three kinds in one topology, four transactions in flight, whose tasks wait or die where a test says so.

As a process of its own, to be killed: ``python -m tests.spark.spouting SETTINGS`` (JSON).
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from statefx import TopologyBuilder, submit
from statefx.connectors.files import FileSink, committedFiles
from statefx.errors import FailedException
from statefx.spark import control
from tests.spark.bolts import Once
from tests.spark.counting import BOUND_SECS, ONCE, session, tell
from tests.spark.running import executor, state
from tests.spouts.numbers import PARTITIONS, Count, Emitted, Opaque, Planned

KINDS = {"planned": Planned, "emitted": Emitted, "opaque": Opaque}
PENDING = 4
PHASES = ("emit", "execute", "prepare", "commit", "rollback")
"""What a task may be at: emitting (before the cut); executing or ending a transaction (behind it); its hooks."""


class Places:
    """What tasks do in each phase is said by files in the work folder.

    ``hold-<phase>`` has the generation and the txid from which on tasks wait while it is there; ``kill-<phase>``,
    ``stop-<phase>`` and ``fail-<phase>`` have the txid in which a worker or an executor is killed, a worker is stopped
    by SIGSTOP, or an attempt fails, once.
    """

    def __init__(self, work):
        self.work = str(work)

    def hold(self, phase, generation, txid=1):
        Path(self.work, f"hold-{phase}").write_text(f"{generation} {txid}", encoding="ascii")

    def kill(self, phase, txid, whom="worker"):
        Path(self.work, f"kill-{phase}").write_text(f"{txid} {whom}", encoding="ascii")

    def stop(self, phase, txid):
        Path(self.work, f"stop-{phase}").write_text(str(txid), encoding="ascii")

    def fail(self, phase, txid):
        Path(self.work, f"fail-{phase}").write_text(str(txid), encoding="ascii")

    def release(self, phase="*"):
        for file in Path(self.work).glob(f"hold-{phase}"):
            file.unlink()

    def held(self, phase, generation):
        return Path(self.work, f"held-{phase}-{generation}").exists()

    def pass_by(self, phase, context, txid):
        end = time.monotonic() + BOUND_SECS
        while self._holds(phase, context.generation, txid) and time.monotonic() < end:
            Path(self.work, f"held-{phase}-{context.generation}").touch()
            time.sleep(0.01)  # noqa: TID251 - a wait with a bound
        for what, do in (("kill", die), ("stop", stop), ("fail", fail)):
            found = self._text(f"{what}-{phase}").split()
            if found and int(found[0]) == txid and Once(self.work, f"{what}ed-{phase}"):
                do(*found[1:])

    def _holds(self, phase, generation, txid):
        found = self._text(f"hold-{phase}").split()
        return bool(found) and generation == int(found[0]) and txid >= int(found[1])

    def _text(self, name):
        try:
            return Path(self.work, name).read_text(encoding="ascii")
        except FileNotFoundError:
            return ""


def die(whom):
    os.kill(executor() if whom == "executor" else os.getpid(), signal.SIGKILL)


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def fail():
    raise FailedException("as the test says")


class HeldPlanned(Planned):
    def open(self, context):
        self.context = context

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        if partition == 0:
            Places(Path(self.path).parent).pass_by("emit", self.context, attempt.txid)
        super().emitPartitionBatch(attempt, collector, partition, metadata)


class HeldCount(Count):
    def __init__(self, work):
        self.places = Places(work)

    def execute(self, tup, collector):
        self.pass_by("execute")
        super().execute(tup, collector)

    def prePrepare(self, txid):
        self.pass_by("prepare")

    def preCommit(self, txid):
        self.pass_by("commit")

    def preRollback(self):
        self.pass_by("rollback")

    def pass_by(self, phase):
        self.places.pass_by(phase, self.context, self.context.txid)


def spouts(work, each, count=None):
    """Rows of spout n are from n * 10,000 on."""
    builder = TopologyBuilder("spouts")
    counting = builder.setBolt("count", count or HeldCount(work))
    sink = builder.setSink("out", FileSink(str(Path(work, "out"))))
    for number, (name, kind) in enumerate({**KINDS, "planned": HeldPlanned}.items()):
        builder.setSpout(name, kind(work, each, first=number * 10_000))
        counting.fieldsGrouping(name, "number")
        sink.shuffleGrouping(name)
    return builder.createTopology()


def expected(each):
    rows = [(spout, part, row) for spout in range(len(KINDS)) for part in range(PARTITIONS) for row in range(each)]
    return {spout * 10_000 + part * 1000 + row: 1 for spout, part, row in rows}


def outcome(work, location=None):
    files = committedFiles(str(Path(work, "out")))
    rows = Counter(number for file in files for number in pq.ParquetFile(file).read()["number"].to_pylist())
    return state(location or Path(work, "ck"), "count"), dict(rows)


def config(provider="rocksdb"):
    return {
        "topology.max.spout.pending": PENDING,
        "topology.state.provider": provider,
        "topology.transaction.retry.delay.ms": 10,
    }


def begun(spark, work, options, provider="rocksdb", trigger=ONCE, location=None):
    return spouts(work, **options), spark, location or f"{work}/ck", config(provider), trigger


def play(spark, work, provider, options, trigger, silence_secs=None, location=None):
    before = control.SILENCE_SECS
    control.SILENCE_SECS = silence_secs or before
    try:
        query = submit(*begun(spark, work, options, provider, trigger, location))
        tell(recoveries=query.recoveries)
        query.awaitTermination()
        tell(**query.status)
    finally:
        control.SILENCE_SECS = before


def main(master="local[8]", **given):
    spark = session(master, **{"spark.executorEnv.PYTHONPATH": os.getcwd()})
    play(spark, **given)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
