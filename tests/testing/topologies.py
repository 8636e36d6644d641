"""Topologies for tests, and what they must come to."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from statefx import BatchBolt, Stateful, Topology, TopologyBuilder, TransactionalSpout, TransactionAttempt
from statefx.connectors.files import FileSink
from statefx.coordinator.participants import SnapshotPolicy
from statefx.testing import Limits, TopologyTester, rows
from tests.bolts import Count, Split

Lines = Mapping[str, Sequence[tuple[str]]]

REFERENCES = {"memory": "statefx_memory:MemoryStateProvider", "rocksdb": "statefx_rocksdb:RocksDbStateProvider"}
"""Looking a provider up by its name takes longer than a transaction, and these tests start thousands of drivers."""


class Total(Stateful, BatchBolt):
    outputFields = "total long"

    def open(self, context):
        self.context = context

    def initState(self, state):
        self.state = state
        self.words = 0

    def execute(self, tup, collector):
        self.words += 1

    def finishBatch(self, collector):
        total = self.state.get("total", 0) + self.words
        self.state.put("total", total)
        collector.emit((total,))

    def prePrepare(self, txid):
        self.state.put("txid", txid)

    def preCommit(self, txid):
        self.note("commit", txid)

    def preRollback(self):
        self.note("rollback", self.context.txid)

    def note(self, what, txid):
        journal = self.context.config.get("journal", [])
        journal.append((what, txid, self.context.attempt, self.state.get("txid", 0)))


SMALL = Limits(SnapshotPolicy(min_bytes=1, ratio=0), fold_after=10, sweep_every=1, min_age_secs=0.0)
"""A snapshot of one task, and a sweep, in each transaction."""


class Works(TransactionalSpout):
    outputFields = "value string"

    def __init__(self, works: Sequence[Lines]) -> None:
        self.works = works

    def initializeTransaction(self, txid: int, previous: Any) -> Any:
        return txid if txid <= len(self.works) else None

    def emitBatch(self, attempt: TransactionAttempt, metadata: Any, collector: Any) -> None:
        for row in self.works[metadata - 1].get("lines", ()):
            collector.emit(row)


def begun(name: str, works: Sequence[Lines] | None) -> TopologyBuilder:
    builder = TopologyBuilder(name)
    if works is None:
        builder.setStream("lines", rows("value string"))
    else:
        builder.setSpout("lines", Works(works))
    return builder


def word_count(parallelism: int = 2, name: str = "word-count", works: Sequence[Lines] | None = None) -> Topology:
    builder = begun(name, works)
    builder.setBolt("split", Split(), parallelism=2).shuffleGrouping("lines")
    builder.setBolt("count", Count(), parallelism=parallelism).fieldsGrouping("split", "word")
    return builder.createTopology()


def archived(out: Path, parallelism: int = 2) -> Topology:
    """As `word_count`, with every count in a file below `out`."""
    builder = TopologyBuilder("word-count")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    builder.setBolt("count", Count(), parallelism=parallelism).fieldsGrouping("split", "word")
    builder.setSink("out", FileSink(out, "json")).shuffleGrouping("count")
    return builder.createTopology()


def totals(total: BatchBolt | None = None, works: Sequence[Lines] | None = None) -> Topology:
    """As `word_count`, with a total behind it that has hooks, unless another one is given."""
    builder = begun("totals", works)
    builder.setBolt("split", Split(), parallelism=2).shuffleGrouping("lines")
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("split", "word")
    builder.setBolt("total", total or Total()).globalGrouping("count")
    return builder.createTopology()


def lines(*texts: str) -> Lines:
    return {"lines": [(text,) for text in texts]}


def words(transactions: Sequence[Lines]) -> dict[str, int]:
    return dict(Counter(word for work in transactions for (text,) in work.get("lines", ()) for word in text.split()))


class Driver:
    """Starts testers on one checkpoint and closes them all.

    Parameters
    ----------
    place : Path
        An empty folder.
    provider : str
    """

    def __init__(self, place: Path, provider: str = "memory", name: str = "checkpoint") -> None:
        self.folder = place / name
        self.cache = place / "cache"
        self.journal: list[tuple[Any, ...]] = []
        self.failed: list[int] = []
        self.config: dict[str, Any] = {
            "topology.state.provider": REFERENCES[provider],
            "journal": self.journal,
            "failed": self.failed,
        }
        self._made: list[TopologyTester] = []

    def start(self, topology: Topology | None = None, **arguments: Any) -> TopologyTester:
        """Start a driver: the next generation."""
        config = {**self.config, **arguments.pop("config", {})}
        given = {"cache": self.cache, **arguments}
        tester = TopologyTester(topology or word_count(), self.folder, config, **given)
        self._made.append(tester)
        return tester

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *error: object) -> None:
        for tester in self._made:
            tester.close()


class Witness(Stateful, BatchBolt):
    """Writes every call into the list ``config["journal"]``; raises what ``config["failing"]`` has for a hook.

    Which task does goes into the list ``config["failed"]``.

    Keeps how many values it has seen, in state and, as users do, in an attribute.
    """

    outputFields = "value string, seen long"

    def open(self, context):
        self.context = context
        self.note("open")

    def initState(self, state):
        self.state = state
        self.seen = state.get("seen", 0)
        self.note("initState", self.seen)

    def execute(self, tup, collector):
        self.seen += 1
        self.state.put("seen", self.seen)
        self.note("execute", tup.value)
        collector.emit((tup.value, self.seen))

    def finishBatch(self, collector):
        self.note("finishBatch")

    def prePrepare(self, txid):
        self.note("prePrepare", txid)

    def preCommit(self, txid):
        self.note("preCommit", txid)

    def preRollback(self):
        self.note("preRollback")

    def close(self):
        self.note("close")

    def note(self, hook, *more):
        config = self.context.config
        config["journal"].append((hook, self.context.txid, self.context.attempt, *more))
        failing = config.get("failing", {}).get(hook)
        if failing:
            config["failed"].append(self.context.task)
            raise failing.pop(0)


def witnessed(parallelism: int = 1, grouping: str = "globalGrouping") -> Topology:
    builder = TopologyBuilder("witnessed")
    builder.setStream("lines", rows("value string"))
    getattr(builder.setBolt("witness", Witness(), parallelism), grouping)("lines")
    return builder.createTopology()


def hooks(journal: Sequence[tuple[Any, ...]], *but: str) -> list[str]:
    return [entry[0] for entry in journal if entry[0] not in but]
