"""The names that statefx calls on bolts, on spouts and on sinks, and Storm's names for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HookNames:
    """The hooks of bolts, those of spouts, or those of sinks.

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
    generators : frozenset of str
        Hooks that may be generators.
    """

    called: Mapping[str, tuple[str, ...]]
    read: tuple[str, ...]
    owners: Mapping[str, str] = field(default_factory=dict)
    storm: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    generators: frozenset[str] = frozenset()
    hooks: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hooks", (*self.called, *self.read))


BOLTS = HookNames(
    called={
        "open": ("context",),
        "execute": ("tup", "collector"),
        "executeBatch": ("batch", "collector"),
        "executeBroadcast": ("tup", "collector"),
        "finishBatch": ("collector",),
        "close": (),
        "initState": ("state",),
        "onTimer": ("key", "at", "value", "collector"),
        "prePrepare": ("txid",),
        "preCommit": ("txid",),
        "preRollback": (),
        "migrateState": ("version", "key", "value"),
        "migrateKey": ("version", "key"),
        "downgradeState": ("version", "key", "value"),
        "downgradeKey": ("version", "key"),
        "groupingKey": ("key",),
        "initCombine": ("tup",),
        "combine": ("a", "b"),
        "combineBatch": ("batch",),
    },
    read=("outputFields", "stateVersion", "stateSchema", "combinedFields"),
    owners={"finishBatch": "BatchBolt"}
    | dict.fromkeys(
        (
            "initState",
            "executeBroadcast",
            "onTimer",
            "prePrepare",
            "preCommit",
            "preRollback",
            "stateVersion",
            "stateSchema",
            "migrateState",
            "migrateKey",
            "downgradeState",
            "downgradeKey",
            "groupingKey",
        ),
        "Stateful",
    ),
    storm={
        "declareoutputfields": ("outputFields",),
        "prepare": ("open",),
        "cleanup": ("close",),
        "processbroadcastelement": ("executeBroadcast",),  # Flink's
    },
)

WINDOWED = HookNames(
    called={
        **{
            name: BOLTS.called[name]
            for name in ("open", "close", "initState", "prePrepare", "preCommit", "preRollback")
        },
        "migrateState": BOLTS.called["migrateState"],
        "execute": ("window", "collector"),
        "initWindow": (),
        "addToWindow": ("value", "tup"),
        "mergeWindows": ("a", "b"),
        "emitWindow": ("window", "value", "collector"),
        "executeBatch": ("batch",),
    },
    read=("outputFields", "stateVersion"),
    storm=BOLTS.storm,
)

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
        "isFinished": ("partition", "metadata"),
        "numPartitions": (),
        "partitionsToPlan": (),
        "partitionsToForget": (),
        "planPartitionBatch": ("partition", "lastMetadata"),
        "emitPartitionBatchNew": ("attempt", "collector", "partition", "lastMetadata"),
        "emitPartitionBatch": ("attempt", "collector", "partition", "metadata"),
    },
    read=("outputFields",),
    owners=dict.fromkeys(("initializeTransaction", "emitBatch"), "TransactionalSpout")
    | dict.fromkeys(
        ("partitionsToPlan", "partitionsToForget", "planPartitionBatch", "emitPartitionBatchNew"), _PARTITIONED
    )
    | dict.fromkeys(
        ("initPartitions", "committed", "isFinished", "numPartitions", "emitPartitionBatch"),
        f"{_PARTITIONED} or {_OPAQUE}",
    ),
    storm={
        "declareoutputfields": ("outputFields",),
        "emitbatchnew": ("emitPartitionBatchNew", "emitPartitionBatch", "emitBatch"),
        "getpartitionsforbatch": ("numPartitions", "initializeTransaction"),
        "refreshpartitions": ("initPartitions", "open"),
        "nexttuple": ("emitPartitionBatch", "emitBatch"),
    },
    generators=frozenset({"emitBatch", "emitPartitionBatch", "emitPartitionBatchNew"}),
)

TRACKED_SPOUTS = HookNames(
    called={
        "open": ("context",),
        "activate": (),
        "nextTuple": ("collector",),
        "ack": ("id",),
        "fail": ("id",),
        "deactivate": (),
        "close": (),
        "reads": ("target",),
        "acknowledging": (),
    },
    read=("outputFields",),
    storm={"declareoutputfields": ("outputFields",)},
)

SINKS = HookNames(
    called={"conflict": ("other",), "check_schema": ("schema",), "release": ()}, read=("identity", "exclusive")
)
"""Those that a sink may leave out; of the others, Python says itself that they are missing."""
