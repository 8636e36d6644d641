"""The public surface is closed: what the packages export, and which names are camelCase."""

import inspect
import re
import runpy
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from types import SimpleNamespace

import pytest

import statefx
import statefx.checkpoint
import statefx.client
import statefx.connectors
import statefx.connectors.files
import statefx.connectors.kafka
import statefx.connectors.sql
import statefx.errors
import statefx.listeners
import statefx.logs
import statefx.metrics
import statefx.state
import statefx.testing
import statefx.topology
import statefx.values
from statefx import (
    BasicBolt,
    BatchBolt,
    Bolt,
    Checkpoint,
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
    Topology,
    TopologyBuilder,
    TransactionalClient,
    TransactionalSpout,
    TransactionAttempt,
    Window,
    WindowedBolt,
)
from statefx.checkpoint import StateView
from statefx.client import OpenTransaction
from statefx.connectors.sql import SqlBackend
from statefx.coordinator.progress import Progress
from statefx.elsewhere import PUBLIC
from statefx.listeners import TopologyListener
from statefx.spark.query import Query
from statefx.state import StateProvider, StateStore
from statefx.testing import Limits, Sent, TopologyTester, rows
from statefx.topology import BoltDeclarer
from statefx.values import OpaqueMap, TransactionalMap

EXPORTS = {
    statefx: {
        "AsyncBolt", "BasicBolt", "BatchBolt", "Bolt", "Checkpoint", "Collector", "Committer", "Context",
        "Count", "Duration", "IntervalJoin", "JoinBolt", "KeyValueState",
        "OpaquePartitionedTransactionalSpout", "PartitionedTransactionalSpout", "Query", "ReplayDeadLetters",
        "Sink", "Spout",
        "SpoutCollector", "Stateful", "StatefulAsyncBolt", "StatefulBolt", "StatefulWindowedBolt",
        "Topology", "TopologyBuilder", "TransactionAttempt", "TransactionalClient", "TransactionalSpout", "Window",
        "WindowedBolt", "isTick", "session", "submit",
    },
    statefx.state: {
        "EMPTY", "BroadcastMap", "Codec", "ExpiringMap", "ListState", "MapState", "Namespace", "Prepared", "Retention",
        "SnapshotRef", "StateContext", "StateLocation", "StateProvider", "StateStore", "Timers", "ValueState",
        "Version", "Write",
    },
    statefx.connectors: {
        "CollectSink", "CommitterContext", "ConsoleSink", "ForeachTransactionSink", "Marker",
        "Backlog", "MemoryTransactionalSpout", "Message", "Owner", "CheckpointPosition", "PendingAcks", "QueueSpout",
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
    statefx.metrics: {"Counter", "Gauge", "Histogram", "Metrics"},
    statefx.checkpoint: {
        "Aborted", "Answered", "Damage", "Diagnosis", "Downgrade", "Explained", "KeyFile", "KeyTask", "Migration",
        "Quarantined", "Renamed", "Repair", "Rescaling", "Restoration", "RunningDriver", "Savepoint",
        "SealedMessages", "StateView", "Transaction", "Verified", "Why", "Written",
    },
    statefx.client: {"OpenTransaction", "Received"},
    statefx.listeners: {
        "QueryEvent", "QueryIdleEvent", "QueryProgressEvent", "QueryRolledBackEvent", "QueryStartedEvent",
        "QueryStuckEvent", "QueryTerminatedEvent", "TopologyListener",
    },
    statefx.logs: {"JsonFormatter"},
    statefx.testing: {
        "Crash", "Limits", "Sent", "SnapshotPolicy", "TopologyTester", "TransactionProgress", "rows",
    },
    statefx.topology: {"BoltDeclarer", "Component", "Edge"},
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


def handed_out(cls):
    """What the methods, properties and fields of a class give a user, of statefx's own classes."""
    own = {name: value for name, value in vars(cls).items() if not name.startswith("_")}
    functions = [value.fget if isinstance(value, property) else value for value in own.values()]
    told = [getattr(function, "__annotations__", {}).get("return", "") for function in functions]
    told += [text for name, text in inspect.get_annotations(cls).items() if not name.startswith("_")]
    around = vars(sys.modules[cls.__module__])
    for name in {name for text in told for name in re.findall(r"[A-Za-z_]\w*", str(text))}:
        if inspect.isclass(found := around.get(name)) and found.__module__.startswith("statefx"):
            yield found


def test_what_users_are_handed_has_a_public_place():
    """To annotate a function of theirs they need no internal module."""
    public = {getattr(package, name) for package in EXPORTS for name in package.__all__}
    handing = {Checkpoint, Query, TransactionalClient, OpenTransaction, Topology, TopologyTester, Sent, Limits}
    handing |= {getattr(statefx.checkpoint, name) for name in statefx.checkpoint.__all__}
    lacking = {f"{each.__name__}: {found.__qualname__}" for each in handing for found in handed_out(each)} - {
        f"{each.__name__}: {found.__qualname__}" for each in handing for found in public if inspect.isclass(found)
    }
    assert lacking == set()
    assert {StateView, statefx.checkpoint.Written, statefx.checkpoint.Savepoint} <= {*handed_out(Checkpoint)}


ELSEWHERE = [(name, home) for home in EXPORTS for name in home.__all__] + [("FailedException", statefx.errors)]


@pytest.mark.slow
@pytest.mark.parametrize("package", [each for each in EXPORTS if hasattr(each, "__path__")], ids=lambda p: p.__name__)
def test_a_name_of_another_package_is_told_from_where_to_import_it(package):
    for name, home in ELSEWHERE:
        if home is package or hasattr(package, name):
            continue
        says = f"{name} is in {home.__name__}: from {home.__name__} import {name}"
        with pytest.raises(ImportError) as told:
            exec(f"from {package.__name__} import {name}", {})
        assert str(told.value) == f"cannot import name {name!r} from {package.__name__!r}: {says}"
        with pytest.raises(AttributeError, match=re.escape(says)):
            getattr(package, name)


def test_a_name_that_nobody_has_is_none_of_ours():
    assert not hasattr(statefx, "Fields")
    with pytest.raises(ImportError, match="cannot import name 'Fields' from 'statefx'"):
        exec("from statefx import Fields", {})
    with pytest.raises(AttributeError, match=r"module 'statefx\.connectors' has no attribute '_FileSink'$"):
        statefx.connectors.__getattr__("_FileSink")


def test_windows_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ImportError, match="statefx runs on Linux and macOS; on Windows, run it in WSL"):
        runpy.run_path(statefx.__file__)


def test_where_to_import_from_is_the_list_of_public_packages():
    assert set(PUBLIC) == {*(package.__name__ for package in EXPORTS), "statefx.errors", "statefx_redis"}


@pytest.mark.slow
def test_modules_of_a_package_are_imported_without_a_look_elsewhere():
    """Nor is pandas, which takes as long as all else: Arrow imports it for the first column of Python objects."""
    not_yet = {"statefx.connectors.sql", "pandas"}
    program = f"import sys; from statefx import command; assert not {not_yet} & {{*sys.modules}}"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr


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
        (Checkpoint, {"toDataFrame", "deleteSavepoint"}),
        (OpaqueMap, {"multiGet", "multiPut", "multiUpdate"}),
        (TransactionalMap, {"multiGet", "multiPut", "multiUpdate"}),
        (
            TopologyListener,
            {
                "onQueryStarted",
                "onQueryProgress",
                "onQueryRolledBack",
                "onQueryStuck",
                "onQueryIdle",
                "onQueryTerminated",
            },
        ),
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
                "addListener",
                "removeListener",
                "uiUrl",
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
            Checkpoint,
            {
                "location",
                "state",
                "table",
                "toDataFrame",
                "write",
                "explain",
                "quarantined",
                "observation",
                "why",
                "transactions",
                "abort",
                "resolve",
                "savepoint",
                "savepoints",
                "deleteSavepoint",
                "restore",
                "rescale",
                "migrate",
                "downgrade",
                "rename",
                "verify",
                "repair",
                "status",
                "stop",
                "pause",
                "resume",
                "loglevel",
            },
        ),
        (
            TransactionalClient,
            {
                "transaction",
                "begin",
                "committed",
                "generation",
                "recoveries",
                "status",
                "metrics",
                "metricsUrl",
                "close",
            },
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
    query = Query("words", feed=None, coordinator=SimpleNamespace(progress=Progress()))
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
