"""Checkpoints that a release leaves: one of each kind of thing that statefx keeps, and how a later version goes on.

A kind runs in the current folder, where ``ck`` is the checkpoint; what the topology reads and writes is beside it.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from statefx import (
    BasicBolt,
    Bolt,
    Checkpoint,
    Count,
    IntervalJoin,
    JoinBolt,
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    ReplayDeadLetters,
    Spout,
    Stateful,
    StatefulBolt,
    StatefulWindowedBolt,
    Topology,
    TopologyBuilder,
    TransactionalClient,
    TransactionalSpout,
    WindowedBolt,
)
from statefx.connectors.files import FilePartitionedSpout, FileSink
from statefx.connectors.files.manifest import Manifest
from statefx.connectors.sql import SqlSink
from statefx.coordinator.participants import SnapshotPolicy
from statefx.testing import Crash, Limits, TopologyTester, rows
from statefx.testing.steps import DurableSteps
from tests.admin.checkpoints import KEYS

HERE = "/proc/self/cwd"
"""The current folder, in paths that a checkpoint keeps: the text is the same wherever the folder is."""

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
LIMITS = Limits(SnapshotPolicy(min_bytes=1, ratio=3), fold_after=10, sweep_every=3, min_age_secs=0.0, files_max=2)
"""So small that the log is folded, files of state are merged, and snapshots are written."""


def plain(value: Any) -> Any:
    """Return a value in which times don't depend on how their zone is called."""
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat()
        case Mapping():
            return {key: plain(each) for key, each in value.items()}
        case list() | tuple():
            return type(value)(map(plain, value)) if type(value) in (list, tuple) else tuple(map(plain, value))
    return value


def texts(values: Iterable[Any]) -> list[str]:
    return sorted(repr(plain(value)) for value in values)


def at(secs: float) -> datetime:
    return NOON + timedelta(seconds=secs)


# ---- state of each form


class Forms(StatefulBolt):
    """Keeps one of everything that a bolt may keep."""

    outputFields = "key string, total long, words array<string>, recent array<string>, last timestamp"
    stateVersion = 3

    def initState(self, state):
        self.totals = state
        self.plain = state.map("plain")
        self.recent = state.map("recent", ttl="3 hours")
        self.words = state.list("words")
        self.last = state.value("last")
        self.rules = state.broadcast("rules")

    def execute(self, tup, collector):
        if tup.value is None:
            self.totals.delete(tup.key)
            return
        total = self.totals.get(tup.key, 0) + tup.value * self.rules.get("factor", 1)
        self.totals.put(tup.key, total)
        for key in KEYS if tup.key == "types" else ():
            self.plain.put(key, [key, {"a": (1, None)}])
        self.recent.put(tup.key, tup.value)
        self.words.append(tup.key)
        self.timers.set(tup.key, tup.at + timedelta(seconds=30), value=total)
        self.timers.set(tup.key, self.context.processingTime + timedelta(hours=2), processing=True)
        collector.emit((tup.key, total, list(self.words), sorted(self.recent), self.last.get()))
        self.last.put(tup.at)

    def open(self, context):
        self.context = context

    def executeBroadcast(self, tup, collector):
        self.rules.put(tup.name, tup.value)

    def onTimer(self, key, time, value, collector):
        collector.emit((f"{key} at {time.time()}", value or -1, list(self.words), sorted(self.recent), self.last.get()))


def forms(parallelism: int = 2) -> Topology:
    builder = TopologyBuilder("forms")
    builder.setStream("rows", rows("key string, value long, at timestamp"), timestamp="at")
    builder.setStream("rules", rows("name string, value long"))
    declared = builder.setBolt("forms", Forms(), parallelism).fieldsGrouping("rows", "key")
    declared.broadcastGrouping("rules")
    return builder.createTopology()


FORMS = [
    {"rows": [("types", 1, at(0)), ("ann", 5, at(1)), ("bob", 7, at(2))]},
    {"rows": [("ann", 2, at(10)), ("cid", 1, at(11))], "rules": [("factor", 10)]},
    {"rows": [("bob", None, at(12)), ("dan", 4, at(20))]},
    "kept",
    *({"rows": [("ann", 1, at(20 + number)), (f"key-{number}", number, at(20))]} for number in range(6)),
]
FORMS_LATER = [{"rows": [("ann", 1, at(40)), ("bob", 1, at(45))]}, 3 * 3600, {"rows": [("eve", 2, at(99))]}]


# ---- state of bolts of statefx, by event time


class Numbers(WindowedBolt):
    outputFields = "key string, numbers array<long>"

    def initWindow(self):
        return []

    def addToWindow(self, value, tup):
        return sorted([*value, tup.number])

    def mergeWindows(self, a, b):
        return sorted([*a, *b])

    def emitWindow(self, window, value, collector):
        collector.emit((window.key, value))


class Tuples(StatefulWindowedBolt):
    outputFields = "key string, numbers array<long>, windows long"

    def initState(self, state):
        self.windows = state

    def execute(self, window, collector):
        self.windows.put(window.key, self.windows.get(window.key, 0) + 1)
        collector.emit((window.key, sorted(tup.number for tup in window), self.windows.get(window.key)))


def timed() -> Topology:
    builder = TopologyBuilder("timed")
    for stream, number in {"left": "number", "right": "other"}.items():
        fields = f"key string, at timestamp, {number} long"
        builder.setStream(stream, rows(fields), timestamp="at", lateness="5 seconds")
    pair = IntervalJoin("left", "right", on="key", between=("0 seconds", "60 seconds"), select="key, number, other")
    join = JoinBolt("left", "key").leftJoin("right", "key", "left").select("number, other")
    bolts = {
        "tumbling": Numbers().withTumblingWindow("30 seconds"),
        "sliding": Tuples().withWindow("40 seconds", "20 seconds"),
        "session": Numbers().withSessionWindow("15 seconds"),
        "counted": Numbers().withTumblingWindow(Count(3)),
        "counted-tuples": Tuples().withWindow(Count(4), Count(2)),
    }
    for id, bolt in bolts.items():
        builder.setBolt(id, bolt, 2).fieldsGrouping("left", "key")
    for id, bolt in {"pairs": pair, "joined": join.withWindow("40 seconds", "20 seconds")}.items():
        builder.setBolt(id, bolt, 2).fieldsGrouping("left", "key").fieldsGrouping("right", "key")
    return builder.createTopology()


TIMED = [
    {"left": [("a", at(0), 1), ("b", at(3), 2)], "right": [("a", at(5), 10)]},
    {"left": [("a", at(12), 3), ("b", at(25), 4)], "right": [("b", at(20), 11)]},
    {"left": [("a", at(31), 5)], "right": [("c", at(33), 12)]},
]
TIMED_LATER = [
    {"left": [("a", at(50), 6), ("b", at(2), 7)], "right": [("a", at(70), 13)]},
    {"left": [("c", at(200), 8)], "right": [("c", at(210), 14)]},
]


# ---- positions of spouts; sinks


class Whole(TransactionalSpout):
    outputFields = "number long"

    def initializeTransaction(self, txid, previous):
        return {"start": previous["stop"] if previous else 0, "stop": 2 * txid}

    def emitBatch(self, attempt, metadata, collector):
        for number in range(metadata["start"], metadata["stop"]):
            collector.emit((number,))


class Planned(PartitionedTransactionalSpout):
    outputFields = "number long"

    def numPartitions(self):
        return 2

    def planPartitionBatch(self, partition, lastMetadata):
        return [partition, lastMetadata[1] + 1 if lastMetadata else 100]

    def emitPartitionBatch(self, attempt, collector, partition, metadata):
        collector.emit((metadata[1] * 10 + partition,))


class Opaque(OpaquePartitionedTransactionalSpout):
    outputFields = "number long"

    def numPartitions(self):
        return 2

    def emitPartitionBatch(self, attempt, collector, partition, lastMetadata):
        number = (lastMetadata or 5000) + 1
        collector.emit((number * 10 + partition,))
        return number


class Sums(StatefulBolt):
    outputFields = "source string, sum long"

    def __init__(self, source):
        self.source = source

    def initState(self, state):
        self.sums = state

    def execute(self, tup, collector):
        self.sums[self.source] = self.sums.get(self.source, 0) + tup.number
        collector.emit((self.source, self.sums[self.source]))


def sinks() -> dict[str, Any]:
    files = FileSink("files", "json")
    files.path = f"{HERE}/files"  # it takes the real path
    return {"files": files, "table": SqlSink("sqlite:///db", "sums")}


def published() -> dict[str, list[str]]:
    """Return the rows in the targets of `sinks`, as texts."""
    found = {}
    if Path("files").exists():
        manifest = Manifest(f"{HERE}/files")
        files = [Path(manifest.storage.path(file.name)) for file in manifest.files()]
        found["files"] = sorted(line for file in files for line in file.read_text().splitlines())
    if Path("db").exists():
        with closing(sqlite3.connect("db")) as connection:
            found["table"] = sorted(map(repr, connection.execute("select * from sums")))
    return found


def reading() -> Topology:
    builder = TopologyBuilder("reading")
    files = FilePartitionedSpout(f"{HERE}/in", "json", "number long", maxFiles=1)
    spouts = {"whole": Whole(), "planned": Planned(), "opaque": Opaque(), "lines": files}
    for id, spout in spouts.items():
        builder.setSpout(id, spout)
        builder.setBolt(f"{id}-sums", Sums(id)).globalGrouping(id)
    for id, sink in sinks().items():
        declared = builder.setSink(id, sink)
        for spout in spouts:
            declared.shuffleGrouping(f"{spout}-sums")
    return builder.createTopology()


def deliver(number: int) -> Callable[[TopologyTester], object]:
    """Return a step: another file comes, and a transaction reads it."""

    def step(tester: TopologyTester) -> None:
        Path("in").mkdir(exist_ok=True)
        file = Path(f"in/{number}.json")
        file.write_text(json.dumps({"number": number}) + "\n")
        os.utime(file, times=(at(number).timestamp(),) * 2)  # a whole second, as archives keep it
        tester.emit()

    return step


# ---- messages that are held, and messages that come again


class Words(Spout):
    """Hands out `fed`, and writes down what is reported of it."""

    outputFields = "word string"
    fed: ClassVar[list[str]] = []
    reported: ClassVar[list[str]] = []

    def nextTuple(self, collector):
        if self.fed:
            word = self.fed.pop(0)
            collector.emit((word,), id=word)

    def ack(self, id):
        self.reported.append(f"ack {id}")

    def fail(self, id):
        self.reported.append(f"fail {id}")


class Pairs(Stateful, Bolt):
    """Holds a tuple until the next one comes."""

    outputFields = "words string"

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        held = self.state.delete("held")
        if held is None:
            self.state.put("held", tup)
            return
        collector.emit((f"{held.word} {tup.word}",), anchors=[held, tup])
        collector.ack(held)
        collector.ack(tup)


def tracked(dedup: str | None = None) -> Topology:
    builder = TopologyBuilder("tracked")
    builder.setSpout("words", Words(), dedup=dedup)
    builder.setBolt("pairs", Pairs()).globalGrouping("words")
    builder.setBolt("seen", Seen()).globalGrouping("pairs")
    return builder.createTopology()


# ---- rows that a bolt can't take


class Orders(StatefulBolt):
    outputFields = "key string, n long"

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        if tup.n < 0:
            raise ValueError(f"no order {tup.n}")
        self.state.put(tup.key, self.state.get(tup.key, 0) + tup.n)
        collector.emit((tup.key, tup.n))


# An error names the place where it was raised, and stays in the checkpoint.
Orders.execute.__code__ = Orders.execute.__code__.replace(co_filename="orders.py", co_firstlineno=1)


def refusing() -> Topology:
    builder = TopologyBuilder("refusing")
    builder.setStream("orders", rows("key string, n long"))
    builder.setStream("letters", rows("row string, number long"))
    builder.setBolt("again", ReplayDeadLetters("key string, n long", quarantined=True)).globalGrouping("letters")
    taken = builder.setBolt("taken", Orders(), 2, onError="quarantineKey")
    taken.fieldsGrouping("orders", "key").fieldsGrouping("again", "key")
    builder.setBolt("refused", Seen()).globalGrouping("taken", stream="deadLetter")
    return builder.createTopology()


class Seen(BasicBolt):
    """Reads what has to be read by somebody."""

    outputFields = "row string"

    def execute(self, tup, collector):
        collector.emit((repr(tuple(tup)),))


# ---- how a kind is made, shown and gone on from

Step = Any
"""Rows of a transaction by stream, seconds that pass, the name of something done to the checkpoint, or a call."""


@dataclass(frozen=True)
class Kind:
    """A topology, what a release does with it, and what comes later."""

    topology: Callable[[], Topology]
    shows: Mapping[str, Sequence[str]]
    """Names of what each bolt keeps beside its own state, by bolt."""
    first: Sequence[Step]
    later: Sequence[Step]
    provider: str = "memory"

    def make(self, config: Mapping[str, Any]) -> None:
        """Do what comes first; the driver dies when the last commit is decided and not carried out."""
        steps = DurableSteps()
        tester = self.start(config, NOON, steps=steps)
        for step in self.first[:-1]:
            tester = self.do(tester, step)
        moment = f"after COMMITTING({tester.txid + 1}, 0)"

        def die() -> None:
            steps.crashed = moment
            raise Crash(moment)

        steps.when(moment, die)
        try:
            self.do(tester, self.first[-1])
        except Crash:
            return
        raise AssertionError(f"the driver never came to {moment}: {tester.steps}")

    def go_on(self, config: Mapping[str, Any]) -> dict[str, list[str]]:
        """Recover, do what comes later, and return what was emitted."""
        Words.reported.clear()
        with self.start(config, NOON + timedelta(hours=1), adopt="move") as tester:
            for step in self.later:
                self.do(tester, step)
            outputs = {component.id: component.outputs for component in tester.topology.components}
            found = {
                f"{id}/{stream}": texts(tester.emitted(id, stream))
                for id, streams in sorted(outputs.items())
                for stream in streams
            }
            return {**found, "reported": list(Words.reported)}

    def start(self, config: Mapping[str, Any], now: datetime, **options: Any) -> TopologyTester:
        return TopologyTester(self.topology(), "ck", config, limits=LIMITS, now=now, **options)

    def do(self, tester: TopologyTester, step: Step) -> TopologyTester:
        """Do a step; return the driver of now."""
        match step:
            case int():
                tester.advance(step)
            case str():
                Checkpoint("ck").savepoint(step)  # fences the driver
                return tester.restart(steps=tester._steps)
            case Mapping():
                tester.send(step)
            case _:
                step(tester)
        return tester

    def shown(self, config: Mapping[str, Any]) -> dict[str, list[str]]:
        """Return all that the checkpoint is seen to hold, and what was published."""
        checkpoint = Checkpoint("ck", config)
        assert checkpoint.verify().ok
        found = {
            f"{bolt}/{name or ''}": texts(checkpoint.table(bolt, map=name).to_pylist())
            for bolt, names in self.shows.items()
            for name in (None, *names)
        }
        found["transactions"] = [
            f"{each.txid}.{each.attempt} of {each.generation}: {each.state}, {each.input_rows} rows read"
            for each in checkpoint.transactions()
        ]
        for savepoint in checkpoint.savepoints():
            at = f"{savepoint.name}, of {savepoint.txid}"
            found[f"savepoint {at}"] = texts(checkpoint.table("forms", at=savepoint.name).to_pylist())
        if self.topology is refusing:
            found["quarantined"] = [repr(each) for each in checkpoint.quarantined("taken")]
        return {**found, **published()}


class Ledger(Kind):
    """A client, which needs no topology."""

    def make(self, config: Mapping[str, Any]) -> None:
        self.pay(config, ("ann", 5), ("bob", 7), ("ann", 1))

    def go_on(self, config: Mapping[str, Any]) -> dict[str, list[str]]:
        self.pay(config, ("ann", 10), ("cid", 2))
        return {}

    def pay(self, config: Mapping[str, Any], *payments: tuple[str, int]) -> None:
        schema = "source string, sum long"
        client = TransactionalClient(
            "ck",
            id="ledger",
            adopt="move",
            sinks=sinks(),
            schemas=dict.fromkeys(sinks(), schema),
            state=["accounts"],
            config=config,
        )
        with client:
            for account, cents in payments:
                with client.transaction() as transaction:
                    total = transaction.get("accounts", account, 0) + cents
                    transaction.put("accounts", account, total)
                    for sink in sinks():
                        transaction.send(sink, [(account, total)])


def words(*spoken: str) -> Callable[[TopologyTester], object]:
    """Return a step: the spout hands out words."""

    def step(tester: TopologyTester) -> None:
        Words.fed.extend(spoken)
        tester.emit()

    return step


# What is held when the first driver dies goes on with the next; what is held for more than 30 seconds fails.
SPOKEN = [words("to", "be"), words("or"), words(), words(), words("not", "that")]
LATE = [TopologyTester.drain, 100, TopologyTester.drain]
SPOKEN_LATER = [words("to", "be", "question"), words("is"), *LATE, words("the")]
FORMS_KEPT = {"forms": ["plain", "rules"]}
KINDS: dict[str, Kind] = {
    "forms-memory": Kind(forms, FORMS_KEPT, FORMS, FORMS_LATER),
    "forms-rocksdb": Kind(forms, FORMS_KEPT, FORMS, FORMS_LATER, "rocksdb"),
    # A server has the newest version alone, and so no savepoints.
    "forms-redis": Kind(forms, FORMS_KEPT, [step for step in FORMS if step != "kept"], FORMS_LATER, "redis"),
    "timed": Kind(timed, {"sliding": ["windows"], "session": ["windows"], "tumbling": ["windows"]}, TIMED, TIMED_LATER),
    "reading": Kind(
        reading,
        {f"{spout}-sums": [] for spout in ("whole", "planned", "opaque", "lines")},
        [deliver(1), deliver(2), deliver(3)],
        [deliver(4), deliver(5)],
    ),
    "tracked": Kind(tracked, {"pairs": []}, SPOKEN, SPOKEN_LATER),
    "deduplicated": Kind(partial(tracked, "1 day"), {"pairs": []}, SPOKEN, SPOKEN_LATER),
    "refusing": Kind(
        refusing,
        {"taken": []},
        [{"orders": [("ann", 1), ("bob", -1), ("cid", 3)]}, {"orders": [("bob", 2)]}, {"orders": [("ann", 5)]}],
        [{"orders": [("bob", 7), ("cid", 1)]}],
    ),
    "client": Ledger(tracked, {"accounts": []}, [], []),
}
