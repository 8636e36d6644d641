"""State of one task: keys, values and their transaction, over a provider's store."""

from statefx.state.contract.store import (
    EMPTY,
    Capabilities,
    Namespace,
    Prepared,
    Retention,
    SnapshotRef,
    StateContext,
    StateProvider,
    StateStore,
    Version,
    Write,
)
from statefx.state.encoding.codec import Codec, StandardCodec
from statefx.state.encoding.values import register_namedtuples
from statefx.state.registry import load_provider, resolve
from statefx.state.view.keyvalue import (
    BroadcastMap,
    ExpiringMap,
    KeyValueState,
    ListState,
    MapState,
    Phase,
    ValueState,
)
from statefx.state.view.time_index import Timers

__all__ = [
    "EMPTY",
    "BroadcastMap",
    "Capabilities",
    "Codec",
    "ExpiringMap",
    "KeyValueState",
    "ListState",
    "MapState",
    "Namespace",
    "Phase",
    "Prepared",
    "Retention",
    "SnapshotRef",
    "StandardCodec",
    "StateContext",
    "StateProvider",
    "StateStore",
    "Timers",
    "ValueState",
    "Version",
    "Write",
    "load_provider",
    "register_namedtuples",
    "resolve",
]
