"""The names that statefx calls on bolts and on spouts, and names of other systems that are mistaken for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HookNames:
    """The hooks of bolts, or those of spouts.

    Attributes
    ----------
    called : Mapping[str, tuple of str]
        Hooks that are methods, with the arguments they are called with.
    read : tuple of str
        Hooks that are attributes.
    owners : Mapping[str, str]
        Hooks that only some kinds have.
    storm : Mapping[str, tuple of str]
        Storm's names, lower case, with ours; of several, that which a class's kind has.
    foreign : Mapping[str, str]
        Names of other systems, lower case, with ours or with what to do in their place. They are words that a helper
        may bear too, so a method that the class's own code calls is left alone.
    generators : frozenset of str
        Hooks that may be generators.
    """

    called: Mapping[str, tuple[str, ...]]
    read: tuple[str, ...]
    owners: Mapping[str, str]
    storm: Mapping[str, tuple[str, ...]]
    foreign: Mapping[str, str]
    generators: frozenset[str] = frozenset()
    hooks: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hooks", (*self.called, *self.read))


_TIMERS = "statefx has no timers: keep due times as keys of the state, and look for them in execute or finishBatch"

BOLTS = HookNames(
    called={
        "open": ("context",),
        "execute": ("tup", "collector"),
        "executeBatch": ("batch", "collector"),
        "finishBatch": ("collector",),
        "close": (),
        "initState": ("state",),
        "prePrepare": ("txid",),
        "preCommit": ("txid",),
        "preRollback": (),
        "migrateState": ("version", "key", "value"),
        "initCombine": ("tup",),
        "combine": ("a", "b"),
        "combineBatch": ("batch",),
    },
    read=("outputFields", "stateVersion", "combinedFields"),
    owners={"finishBatch": "BatchBolt"}
    | dict.fromkeys(
        ("initState", "prePrepare", "preCommit", "preRollback", "stateVersion", "migrateState"), "Stateful"
    ),
    storm={"declareoutputfields": ("outputFields",), "prepare": ("open",), "cleanup": ("close",)},
    # Flink, Beam, Kafka Streams, PySpark's StatefulProcessor.
    foreign=dict.fromkeys(("process", "processelement", "processelement1", "processelement2"), "execute")
    | dict.fromkeys(("handleinputrows", "transform", "flatmap", "executetuple", "processtuple"), "execute")
    | dict.fromkeys(("onmessage", "onnext"), "execute")
    | dict.fromkeys(("processbatch", "foreachbatch", "onbatch"), "executeBatch")
    | dict.fromkeys(("init", "setup", "initialize", "startbundle"), "open")
    | dict.fromkeys(("createcombiner", "createaccumulator"), "initCombine")
    | dict.fromkeys(("mergevalue", "mergecombiners", "mergeaccumulators", "addinput"), "combine")
    | dict.fromkeys(("initializestate", "handleinitialstate", "restorestate"), "initState")
    | dict.fromkeys(("finish", "flush", "finishbundle", "endbatch", "onbatchend"), "finishBatch")
    | dict.fromkeys(("snapshotstate", "preparesnapshotprebarrier"), "prePrepare")
    | dict.fromkeys(("notifycheckpointcomplete", "aftercommit", "postcommit", "oncommit"), "preCommit")
    | dict.fromkeys(("notifycheckpointaborted", "afterrollback", "onrollback"), "preRollback")
    | dict.fromkeys(("teardown", "dispose", "shutdown"), "close")
    | dict.fromkeys(("ontimer", "onprocessingtime", "oneventtime", "handleexpiredtimer", "punctuate"), _TIMERS),
)

_BATCHES = "a spout emits whole batches: define emitBatch, or for partitions emitPartitionBatch"
_ONE_CLASS = "a spout is one class, whose methods for the driver and for the tasks stand side by side"
_ACKED_AS_WHOLE = "a transaction is acknowledged as a whole, and cleanupBefore tells which are committed"
_PARTITIONED = "PartitionedTransactionalSpout"
_OPAQUE = "OpaquePartitionedTransactionalSpout"

SPOUTS = HookNames(
    called={
        "open": ("context",),
        "close": (),
        "prepareForAvailableNow": (),
        "isReady": (),
        "cleanupBefore": ("txid",),
        "reads": ("target",),
        "initializeTransaction": ("txid", "previous"),
        "emitBatch": ("attempt", "metadata", "collector"),
        "initPartitions": ("metadata",),
        "committed": ("metadata",),
        "numPartitions": (),
        "planPartitionBatch": ("partition", "lastMetadata"),
        "emitPartitionBatchNew": ("attempt", "collector", "partition", "lastMetadata"),
        "emitPartitionBatch": ("attempt", "collector", "partition", "metadata"),
    },
    read=("outputFields",),
    owners=dict.fromkeys(("initializeTransaction", "emitBatch"), "TransactionalSpout")
    | dict.fromkeys(("planPartitionBatch", "emitPartitionBatchNew"), _PARTITIONED)
    | dict.fromkeys(
        ("initPartitions", "committed", "numPartitions", "emitPartitionBatch"), f"{_PARTITIONED} or {_OPAQUE}"
    ),
    storm={
        "declareoutputfields": ("outputFields",),
        "emitbatchnew": ("emitPartitionBatchNew", "emitPartitionBatch", "emitBatch"),
        "getpartitionsforbatch": ("numPartitions", "initializeTransaction"),
        "refreshpartitions": ("initPartitions", "open"),
    },
    foreign={"nexttuple": _BATCHES, "getcoordinator": _ONE_CLASS, "getemitter": _ONE_CLASS}
    | dict.fromkeys(("ack", "fail", "success"), _ACKED_AS_WHOLE)
    | dict.fromkeys(("activate", "init", "setup", "initialize"), "open")
    | dict.fromkeys(("deactivate", "teardown", "dispose", "shutdown"), "close")
    | dict.fromkeys(("latestoffset", "planinputpartitions"), "planPartitionBatch"),  # PySpark's readers of streams
    generators=frozenset({"emitBatch", "emitPartitionBatch", "emitPartitionBatchNew"}),
)
