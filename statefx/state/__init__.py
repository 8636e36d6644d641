"""State of one task: keys, values and their transaction, over a provider's store."""

from typing import TYPE_CHECKING

from statefx.elsewhere import lookup
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
from statefx.state.encoding.codec import Codec
from statefx.state.view.state import BroadcastMap, ExpiringMap, ListState, MapState, ValueState
from statefx.state.view.time_index import Timers

__all__ = [
    "EMPTY",
    "BroadcastMap",
    "Codec",
    "ExpiringMap",
    "ListState",
    "MapState",
    "Namespace",
    "Prepared",
    "Retention",
    "SnapshotRef",
    "StateContext",
    "StateLocation",
    "StateProvider",
    "StateStore",
    "Timers",
    "ValueState",
    "Version",
    "Write",
]

if not TYPE_CHECKING:
    __getattr__ = lookup(__name__)
