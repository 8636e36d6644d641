"""Random lives of topologies of spouts: what a seed stands for is played, and the outcome compared with what there is.

Spouts of all kinds, one or several, whose partitions and rows become more; up to four transactions in flight; chains
that are lost, cut off or frozen; drivers that crash, are abandoned, or are replaced at any moment of theirs.
"""

import json
import random
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from statefx import (
    BasicBolt,
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    TopologyBuilder,
    TransactionalSpout,
)
from statefx.connectors.files import FileSink, committedFiles
from statefx.coordinator.retrying import StoppedError
from statefx.errors import AttemptsExhaustedError, FailedException, FencedError
from statefx.testing import Crash, Limits
from tests.spouts.numbers import Count
from tests.testing.eager import REFERENCE
from tests.testing.living import LivingTester
from tests.testing.topologies import REFERENCES, SMALL

PARTITIONS_MAX, EACH_MAX, TAKEN_MAX, SPOUT = 4, 9, 4, 1_000_000
STARTS = 2
"""Drivers that may crash: what is looked for are orders of arrival in a run; more lives have more of them."""


class Growing:
    """Each call takes as many rows as it likes: only what is durable makes two attempts alike."""

    outputFields = "number long"

    def __init__(self, folder, number):
        self.folder, self.first = str(folder), number * SPOUT

    def there(self):
        return json.loads(Path(self.folder, "there").read_text())

    def upcoming(self, last):
        start = 0 if last is None else last["stop"]
        stop = min(self.there()["each"], start + random.randint(1, TAKEN_MAX))
        return {"start": start, "stop": stop} if start < stop else None

    def emit(self, collector, partition, batch):
        for number in range(batch["start"], batch["stop"]):
            collector.emit((self.first + partition * 1000 + number,))


class Partitions(Growing):
    def numPartitions(self):
        return self.there()["partitions"]


class Whole(Growing, TransactionalSpout):
    def open(self, context):
        self.context = context

    def initializeTransaction(self, txid, previous):
        return self.upcoming(previous)

    def emitBatch(self, attempt, metadata, collector):
        if not self.context.task:
            self.emit(collector, 0, metadata)


class Planned(Partitions, PartitionedTransactionalSpout):
    def planPartitionBatch(self, partition, lastMetadata):
        return self.upcoming(lastMetadata) if random.random() < 0.8 else None

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        self.emit(collector, partition, metadata)


class Emitted(Partitions, PartitionedTransactionalSpout):
    def emitPartitionBatchNew(self, attempt, collector, partition, lastMetadata):
        batch = self.upcoming(lastMetadata)
        if batch is not None:
            self.emit(collector, partition, batch)
        return batch

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        self.emit(collector, partition, metadata)


class Opaque(Partitions, OpaquePartitionedTransactionalSpout):
    def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
        batch = self.upcoming(lastMetadata)
        if batch is not None:
            for number in range(batch["start"], batch["stop"]):
                collector.emit((self.first + partition * 1000 + number,))
                yield
        return batch


class Pass(BasicBolt):
    outputFields = "number long"

    def __init__(self, failing):
        self.failing = failing

    def execute(self, tup, collector):
        if random.random() < self.failing:
            raise FailedException("by chance")
        collector.emit((tup.number,))


class Told(Count):
    """Has hooks, so that a commit and a rollback are jobs, which may fail."""

    def preCommit(self, txid):
        if random.random() < 0.05:
            raise OSError("the mail server is down")

    def preRollback(self):
        pass


class Life:
    """What one seed stands for.

    Parameters
    ----------
    seed : int
    folder : Path
        Empty.
    """

    def __init__(self, seed, folder):
        self.rng = random.Random(seed)
        self.seed, self.folder = seed, folder
        self.spouts = self.rng.choices([Whole, Planned, Emitted, Opaque], k=self.rng.choice([1, 1, 2, 3]))
        self.count = self.rng.choice([Count, Told])
        self.failing = self.rng.choice([0, 0, 0.01])
        self.provider = self.rng.choice([REFERENCES["memory"], REFERENCE])
        self.orphans = []
        """Testers whose drivers have crashed, and whose chains may still run."""
        self.told = []
        """What happened, for whoever has to understand a failure."""

    def topology(self):
        builder = TopologyBuilder("numbers")
        passing = builder.setBolt("pass", Pass(self.failing), parallelism=2)
        for number, spout in enumerate(self.spouts):
            builder.setSpout(f"s{number}", spout(self.folder, number), parallelism=self.rng.choice([1, 2, 3]))
            passing.shuffleGrouping(f"s{number}")
        builder.setBolt("count", self.count(), parallelism=2).fieldsGrouping("pass", "number")
        builder.setSink("out", FileSink(str(self.folder / "out"))).shuffleGrouping("pass")
        return builder.createTopology()

    def grow(self, partitions, each):
        self.there = {"partitions": partitions, "each": each}
        (self.folder / "there").write_text(json.dumps(self.there))

    def expected(self):
        found = {}
        for number, spout in enumerate(self.spouts):
            partitions = 1 if spout is Whole else self.there["partitions"]
            rows = [(part, row) for part in range(partitions) for row in range(self.there["each"])]
            found |= {number * SPOUT + part * 1000 + row: 1 for part, row in rows}
        return found

    def start(self, crash_at=None):
        config = {
            "topology.state.provider": self.provider,
            "topology.max.spout.pending": self.rng.choice([1, 2, 3, 4]),
            "topology.transaction.attempts.max": 30,
        }
        tester = LivingTester(
            self.topology(), self.folder / "ck", config, crash_at=crash_at, breaks=crash_at is not None,
            seed=self.rng.choice([None, self.rng.randrange(1000)]), freshObjects=self.rng.random() < 0.5,
            limits=self.rng.choice([SMALL, Limits(fold_after=7), Limits()]),
        )  # fmt: skip
        tester.orphans = self.orphans
        return tester

    def moment(self):
        kind = self.rng.choice(["PREPARING", "PROCESSED", "COMMITTING", "ROLLED_BACK", "commit hooks count/0"])
        txid, attempt = self.rng.randint(1, 5), self.rng.choice([0, 0, 1])
        step = f"{kind} for {txid}" if "hooks" in kind else f"{kind}({txid}, {attempt})"
        return f"{self.rng.choice(['before', 'after'])} {step}"

    def play(self):
        self.grow(1, 3)
        for _ in range(self.rng.randint(1, STARTS)):
            self.drive()
        self.grow(PARTITIONS_MAX, EACH_MAX)
        with self.start() as last:
            for _ in range(20):  # a plan that is empty by chance ends a drain
                last.drain()
                if last.state("count") == self.expected():
                    break
            while self.orphans:
                orphan = self.orphans.pop()
                while orphan.step_orphans():
                    pass
                orphan.close()
            return last.state("count"), self.published()

    def published(self):
        files = committedFiles(str(self.folder / "out"))
        return sorted(row for file in files for row in pq.ParquetFile(file).read()["number"].to_pylist())

    def drive(self):
        crash_at = self.rng.choice([None, self.rng.randrange(1, 150)])
        self.replaced, tester = False, None
        try:
            tester = self.start(crash_at)
            if self.rng.random() < 0.4:
                self.replace(tester)
            if self.rng.random() < 0.6:  # in the middle of what the driver does
                do = self.rng.choice([tester.lose, tester.time_out, partial(self.stop, tester)])
                tester.when(self.moment(), do)
            for _ in range(self.rng.randint(1, 3)):
                now = self.there
                self.grow(
                    min(PARTITIONS_MAX, now["partitions"] + self.rng.randint(0, 1)),
                    min(EACH_MAX, now["each"] + self.rng.randint(0, 3)),
                )
                self.told.append(tester.emit() if self.rng.random() < 0.3 else tester.drain())
            tester.wake()
        except Crash as crash:
            self.told.append(str(crash))
            if tester is not None:
                tester.vanish()
                self.orphans.append(tester)
                return
        except AttemptsExhaustedError as error:
            self.told.append(error.message)
        except FencedError:
            assert self.replaced
        except StoppedError as error:
            self.told.append(error.message)
        if tester is not None:
            tester.close()

    def stop(self, tester):
        """As `query.stop` does; ``now`` is after its timeout."""
        now = self.rng.random() < 0.6
        tester._coordinator.stop(now=now)
        if now and self.rng.random() < 0.6:
            tester._engine.stop()

    def replace(self, tester):
        """Have another driver take over in the middle of what this one does; this one is fenced."""
        moment = self.moment()

        def take_over():
            self.told.append(f"replaced {moment}")
            self.replaced = True
            with suppress(Crash, AttemptsExhaustedError):
                successor = self.start(self.rng.choice([None, self.rng.randrange(1, 60)]))
                self.orphans.append(successor)
                successor.drain()
            if self.orphans:
                self.orphans[-1].vanish()

        tester.when(moment, take_over)
