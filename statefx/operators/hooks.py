"""The names that statefx calls on bolts, on spouts and on sinks, and the refusal of names that only look like those."""

from __future__ import annotations

import inspect
from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic

# ---- the names


@dataclass(frozen=True, slots=True)
class HookNames:
    """The hooks of bolts, those of spouts, or those of sinks."""

    called: Mapping[str, tuple[str, ...]]  # methods, with the arguments they are called with
    read: tuple[str, ...]  # attributes
    owners: Mapping[str, str] = field(default_factory=dict)  # of hooks that only some kinds have
    storm: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # Storm's names in lower case, and ours
    generators: frozenset[str] = frozenset()  # hooks that may be generators
    coroutines: frozenset[str] = frozenset()  # hooks that may be async def
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

_BATCHES = ("maxBatch", "maxWaitMs", "ratePerSecond")
_RETRIES = ("retries", "retryDelay", "retryOn", "breakerFailures", "breakerDelay")

ASYNC_BOLTS = replace(
    BOLTS,
    read=(*BOLTS.read, "capacity", "timeout", "ordered", "threads", *_BATCHES, *_RETRIES),
    storm={**BOLTS.storm, "asyncinvoke": ("execute",)},  # Flink's
    coroutines=frozenset({"open", "execute", "executeBatch", "close"}),
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
        "backlog": ("metadata",),
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
        ("initPartitions", "committed", "backlog", "isFinished", "numPartitions", "emitPartitionBatch"),
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
        "backlog": (),
    },
    read=("outputFields",),
    storm={"declareoutputfields": ("outputFields",)},
)

SINKS = HookNames(
    called={"conflict": ("other",), "check_schema": ("schema",), "release": ()}, read=("identity", "exclusive")
)
"""Those that a sink may leave out; of the others, Python says itself that they are missing."""


# ---- the refusal

_OWN_MODULES = tuple(
    f"{__package__}.{name}" for name in ("bolts", "async_bolts", "windows", "spouts", "tracked_spouts", "sinks")
)

# Shorter hooks have neighbours that are words of their own: with a letter more ("executed"), and the shortest also with
# another letter ("oven").
_TYPO_LENGTH_MIN = 9
_CHANGE_LENGTH_MIN = 7


def overrides(cls: type, hook: str) -> bool:
    """Return whether `cls` has a `hook` of the user's own, and not only the one of statefx."""
    return any(hook in vars(owner) for owner in _foreign(cls))


def check_hooks(cls: type, names: HookNames) -> None:
    """Refuse the class of a bolt, a spout or a sink whose hooks would never be called, or not as it expects.

    Called when the class is created. TypeError: a name that is nearly a hook's, or Storm's for it, a hook of another
    kind of bolt or spout, other arguments than the hook is called with or the same in another order, or a generator or
    coroutine, whose body would never run.
    """
    for owner in _foreign(cls):
        for name, value in vars(owner).items():
            if name.startswith("_"):
                continue
            function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            if name not in names.hooks:
                _check_near_miss(cls, name, names)
                continue
            if not _has(cls, name):
                raise TypeError(
                    f"{cls.__name__}.{name} would never be called: {name} is a hook of {names.owners[name]}. "
                    f"Derive {cls.__name__} from {names.owners[name]}, or give the method another name."
                )
            if inspect.isfunction(function) and name in names.called:
                _check_signature(cls, name, function, names, bound=not isinstance(value, staticmethod))


def _own(cls: type) -> Iterator[type]:
    return (owner for owner in cls.__mro__ if owner.__module__ in _OWN_MODULES)


def _has(cls: type, hook: str) -> bool:
    return any(hook in vars(own) for own in _own(cls))


def _foreign(cls: type) -> Iterator[type]:
    """Yield the classes of `cls` that users wrote."""
    plain = {object, ABC, Generic, *_own(cls)}
    return (owner for owner in cls.__mro__ if owner not in plain)


def _check_near_miss(cls: type, name: str, names: HookNames) -> None:
    plain = name.replace("_", "").lower()
    meant = names.storm.get(plain) or [known for known in names.hooks if _alike(plain, known.replace("_", "").lower())]
    hook = next((known for known in meant if _has(cls, known)), next(iter(meant), None))
    if hook is not None:
        raise TypeError(
            f"{cls.__name__}.{name} would never be called: the hook is {hook}. "
            f"Rename {name} to {hook}, or give it a name that is not mistaken for it."
        )


def _alike(plain: str, hook: str) -> bool:
    swapped = sorted(plain) == sorted(hook)
    may_be_longer = len(hook) >= _TYPO_LENGTH_MIN
    typo = len(hook) >= _CHANGE_LENGTH_MIN and (may_be_longer or len(plain) <= len(hook))
    return (swapped or typo) and _one_edit_apart(plain, hook)


def _one_edit_apart(left: str, right: str) -> bool:
    """Return whether one inserted, lost, changed or swapped letter makes `left` into `right`."""
    if abs(len(left) - len(right)) > 1:
        return False
    start = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    left, right = left[start:], right[start:]
    swapped = left[:2] == right[:2][::-1] and left[2:] == right[2:]
    return left[1:] == right or left == right[1:] or left[1:] == right[1:] or swapped


def _check_signature(cls: type, name: str, function: Callable[..., object], names: HookNames, *, bound: bool) -> None:
    arguments = names.called[name]
    expected = f"def {name}({', '.join(('self', *arguments))})"
    allowed = {inspect.isgeneratorfunction: names.generators, inspect.iscoroutinefunction: names.coroutines}
    never = [kind for kind in _NEVER_RUN if name not in allowed.get(kind, ())]
    if any(never_runs(function) for never_runs in never):  # one that a decorator runs to its end is fine
        remedy = f"Write {expected}."
        if inspect.iscoroutinefunction(function) and name in ASYNC_BOLTS.coroutines and "execute" in names.called:
            remedy = f"Derive {cls.__name__} from AsyncBolt or StatefulAsyncBolt, or write {expected}."
        raise TypeError(f"{cls.__name__}.{name} would never run: it is a generator or a coroutine. {remedy}")
    try:
        inspect.signature(function).bind(*([None] if bound else []), *arguments)
    except TypeError as error:
        raise TypeError(f"{cls.__name__}.{name} can't be called as the hook is ({error}). Write {expected}.") from None
    # Of the function that is called: a decorator may well hand them on by name, in any order.
    parameters = list(inspect.signature(function, follow_wrapped=False).parameters)[1 if bound else 0 :]
    places = {_plain(argument): place for place, argument in enumerate(arguments)}
    found = [places[plain] for plain in map(_plain, parameters[: len(arguments)]) if plain in places]
    if found != sorted(found):
        raise TypeError(f"{cls.__name__}.{name} has the hook's arguments in another order. Write {expected}.")


def _plain(argument: str) -> str:
    """Return an argument's name as it is compared: ``last_metadata`` is ``metadata`` in some of the hooks."""
    return argument.replace("_", "").lower().removeprefix("last")


_NEVER_RUN = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
