"""State of one task: keys, values and their transaction, over a provider's store."""

from statefx.state.contract.store import (
    EMPTY,
    Namespace,
    Prepared,
    Retention,
    SnapshotRef,
    StateContext,
    StateLocation,
    StateProvider,
    StateStore,
    Version,
    Write,
)
from statefx.state.encoding.codec import Codec, StandardCodec
from statefx.state.encoding.values import register_namedtuples
from statefx.state.registry import load_provider, resolve
from statefx.state.view.state import (
    BroadcastMap,
    ExpiringMap,
    ListState,
    MapState,
    ValueState,
    ViewPhase,
)
from statefx.state.view.task_state import KeyValueState
from statefx.state.view.time_index import Timers

__all__ = [
    "EMPTY",
    "BroadcastMap",
    "Codec",
    "ExpiringMap",
    "KeyValueState",
    "ListState",
    "MapState",
    "Namespace",
    "Prepared",
    "Retention",
    "SnapshotRef",
    "StandardCodec",
    "StateContext",
    "StateLocation",
    "StateProvider",
    "StateStore",
    "Timers",
    "ValueState",
    "Version",
    "ViewPhase",
    "Write",
    "load_provider",
    "register_namedtuples",
    "resolve",
]
