"""The public surface is closed: what the packages export, and which names are camelCase."""

import inspect
import re
from collections import Counter
from dataclasses import fields

import pytest

import statefx
import statefx.client
import statefx.connectors
import statefx.connectors.files
import statefx.connectors.kafka
import statefx.connectors.sql
import statefx.state
import statefx.testing
import statefx.topology
import statefx.values
from statefx import (
    BasicBolt,
    BatchBolt,
    Bolt,
    Collector,
    Committer,
    Context,
    KeyValueState,
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    Spout,
    SpoutCollector,
    Stateful,
    StatefulBolt,
    StatefulWindowedBolt,
    TopologyBuilder,
    TransactionalClient,
    TransactionalSpout,
    TransactionAttempt,
    Window,
    WindowedBolt,
)
from statefx.admin.reading import StateView
from statefx.client import OpenTransaction
from statefx.connectors.sql import SqlBackend
from statefx.spark.query import Query
from statefx.state import StateProvider, StateStore
from statefx.testing import rows
from statefx.topology import BoltDeclarer
from statefx.values import OpaqueMap, TransactionalMap

EXPORTS = {
    statefx: {
        "BasicBolt", "BatchBolt", "Bolt", "Collector", "Committer", "Context",
        "Count", "Duration", "IntervalJoin", "JoinBolt", "KeyValueState",
        "OpaquePartitionedTransactionalSpout", "PartitionedTransactionalSpout", "Query", "ReplayDeadLetters",
        "Sink", "Spout",
        "SpoutCollector", "Stateful", "StatefulBolt", "StatefulWindowedBolt",
        "Topology", "TopologyBuilder", "TransactionAttempt", "TransactionalClient", "TransactionalSpout", "Window",
        "WindowedBolt", "abort",
        "deleteSavepoint", "downgrade", "explain", "export", "isTick", "migrate", "openState",
        "quarantined", "readState", "rename", "repair", "rescale", "resolve",
        "restore", "savepoint", "savepoints", "session",
        "submit", "transactions", "verify", "writeState",
    },
    statefx.state: {
        "EMPTY", "BroadcastMap", "Codec", "ExpiringMap", "ListState", "MapState", "Namespace", "Prepared", "Retention",
        "SnapshotRef", "StateContext", "StateLocation", "StateProvider", "StateStore", "Timers", "ValueState",
        "Version", "Write",
    },
    statefx.connectors: {
        "CollectSink", "CommitterContext", "ConsoleSink", "ForeachTransactionSink", "Marker",
        "MemoryTransactionalSpout", "Message", "Owner", "CheckpointPosition", "PendingAcks", "QueueSpout",
        "SinkCommitter", "SinkWriter", "StagedRows", "StagedSink", "Target", "WriterContext", "is_published",
        "refuse_twin", "starting_point",
    },
    statefx.connectors.files: {
        "FilePartitionedSpout", "FileSink", "committedFiles", "readCommitted", "readUncommitted",
    },
    statefx.connectors.kafka: {"KafkaSink", "KafkaSpout", "OpaqueKafkaSpout"},
    statefx.connectors.sql: {"SqlBackend", "SqlPartitionedSpout", "SqlQueueSpout", "SqlSink"},
    statefx.values: {
        "KeyValueBackend", "MemoryBackend", "OpaqueMap", "OpaqueValue", "Row", "TransactionalMap",
        "TransactionalValue",
    },
    statefx.client: {"OpenTransaction"},
    statefx.testing: {"Crash", "Limits", "Sent", "TopologyTester", "rows"},
    statefx.topology: {"BoltDeclarer"},
}  # fmt: skip

BUILDER = {"setStream", "setSpout", "setBolt", "setSink", "createTopology"}
GROUPINGS = {
    "shuffleGrouping", "fieldsGrouping", "globalGrouping", "allGrouping", "broadcastGrouping", "noneGrouping",
    "localOrShuffleGrouping", "directGrouping", "partialKeyGrouping",
}  # fmt: skip
BOLT = {"outputFields", "executeBatch", "combinedFields", "initCombine", "combineBatch"}
STATEFUL = {
    "initState", "executeBroadcast", "onTimer", "prePrepare", "preCommit", "preRollback", "stateVersion", "stateSchema",
    "migrateState", "migrateKey", "downgradeState", "downgradeKey", "groupingKey",
}  # fmt: skip
WINDOWED = {
    "withTumblingWindow", "withWindow", "withSessionWindow", "withTimestampField", "withLag", "withLateTupleStream",
    "initWindow", "addToWindow", "mergeWindows", "emitWindow",
}  # fmt: skip
COLLECTOR = {"emitBatch", "resetTimeout"}

SPOUT = {"outputFields", "isReady", "prepareForAvailableNow", "cleanupBefore"}
PARTITIONED = {"isFinished", "numPartitions", "initPartitions", "emitPartitionBatch"}
PLANNED = {"partitionsToPlan", "partitionsToForget", "planPartitionBatch", "emitPartitionBatchNew"}

CAMEL = re.compile(r"[a-z]+[A-Z]\w*")


@pytest.mark.parametrize("package", EXPORTS, ids=lambda package: package.__name__)
def test_exports(package):
    assert set(package.__all__) == EXPORTS[package]
    assert all(hasattr(package, name) for name in package.__all__)
    assert set(package.__all__) <= set(dir(package)), "also what is loaded when it is first used"


def test_each_public_name_has_one_place():
    places = Counter(name for package in EXPORTS for name in package.__all__)
    assert [name for name, count in places.items() if count > 1] == []


def test_dir_of_statefx_is_what_is_public():
    assert [name for name in dir(statefx) if not name.startswith("__")] == sorted(statefx.__all__)


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (TopologyBuilder, BUILDER),
        (BoltDeclarer, GROUPINGS | {"setTicks"}),
        (Bolt, BOLT),
        (BasicBolt, BOLT),
        (BatchBolt, BOLT | {"finishBatch"}),
        (Stateful, STATEFUL),
        (StatefulBolt, BOLT | STATEFUL),
        (WindowedBolt, BOLT | STATEFUL | WINDOWED),
        (StatefulWindowedBolt, BOLT | STATEFUL | WINDOWED),
        (Window, {"getNew", "getExpired", "maxTimestamp"}),
        (Committer, set()),
        (Collector, COLLECTOR),
        (TransactionalSpout, SPOUT | {"initializeTransaction", "emitBatch"}),
        (PartitionedTransactionalSpout, SPOUT | PARTITIONED | PLANNED),
        (OpaquePartitionedTransactionalSpout, SPOUT | PARTITIONED),
        (Spout, {"outputFields", "nextTuple"}),
        (SpoutCollector, {"emitDirect"}),
        (KeyValueState, {"getAll", "putAll", "deleteRange", "prepareCommit"}),
        (StateStore, set()),
        (StateProvider, {"newState"}),
        (StateView, set()),
        (OpaqueMap, {"multiGet", "multiPut", "multiUpdate"}),
        (TransactionalMap, {"multiGet", "multiPut", "multiUpdate"}),
        (SqlBackend, {"multiGet", "multiPut"}),
        (
            Query,
            {
                "awaitTermination",
                "deleteSavepoint",
                "isActive",
                "lastProgress",
                "recentProgress",
                "processAllAvailable",
            },
        ),
    ],
)
def test_camel_case_names_are_storms_and_no_others(cls, names):
    assert {name for name in dir(cls) if CAMEL.fullmatch(name)} == names


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (Bolt, {"open", "execute", "close", "vectorised", "combine", "combines"} | BOLT),
        (Collector, {"emit", "ack", "fail"} | COLLECTOR),
        (TopologyBuilder, BUILDER),
        (
            OpenTransaction,
            {"send", "get", "put", "delete", "state", "txid", "number", "commit", "abort", "receive", "ack", "nack"},
        ),
        (
            TransactionalClient,
            {"transaction", "begin", "committed", "generation", "recoveries", "status", "close"},
        ),
    ],
)
def test_nothing_else_is_public(cls, names):
    assert {name for name in dir(cls) if not name.startswith("_")} == names


def test_who_is_told_of_the_attempt():
    assert [field.name for field in fields(TransactionAttempt)] == ["txid", "attempt"]
    assert inspect.get_annotations(Collector) == {"attempt": "TransactionAttempt"}
    told = {name for name in inspect.get_annotations(Context) if name in ("txid", "attempt")}
    assert told == {"txid", "attempt"}


@pytest.mark.parametrize("package", EXPORTS, ids=lambda package: package.__name__)
def test_everything_public_is_documented(package):
    for name in package.__all__:
        thing = getattr(package, name)
        if not inspect.isclass(thing):
            assert not callable(thing) or inspect.getdoc(thing)
            continue
        assert thing.__doc__
        for member, value in vars(thing).items():
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{member}"


def test_reprs_say_what_it_is_on_one_short_line(tmp_path):
    builder = TopologyBuilder("words")
    builder.setStream("lines", rows("word string"))
    for number in range(20):
        builder.setBolt(f"bolt-{number}", Count()).fieldsGrouping("lines", "word")
    topology = builder.createTopology()
    query = Query("words", feed=None, coordinator=None)
    assert repr(builder) == "<TopologyBuilder 'words' of 21 components>"
    assert repr(topology) == "<Topology 'words' of 21 components>"
    assert repr(query) == "<Query 'words', running>"
    query._error = ValueError()
    query._ended.set()
    assert repr(query) == "<Query 'words', ended by ValueError>"


class Count(StatefulBolt):
    def initState(self, state):
        self.counts = state

    def execute(self, tup, collector):
        self.counts[tup.word] = self.counts.get(tup.word, 0) + 1


HOOKS = [
    getattr(cls, name)
    for cls, names in [
        (Bolt, ("open", "execute", "executeBatch", "initCombine", "combine", "combineBatch", "close")),
        (BatchBolt, ("finishBatch",)),
        (Stateful, ("initState", "executeBroadcast", "onTimer", "prePrepare")),
        (Stateful, ("preCommit", "preRollback", "migrateState", "migrateKey", "downgradeState", "downgradeKey")),
        (Stateful, ("groupingKey",)),
    ]
    for name in names
]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.__name__)
def test_every_hook_says_when_what_is_guaranteed_and_what_raising_does(hook):
    headings = ["When it is called", "Guaranteed", "Not guaranteed", "Raising"]
    assert [line for line in inspect.getdoc(hook).splitlines() if line in headings] == headings
