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
from statefx.state.view.keyvalue import KeyValueState, Phase

__all__ = [
    "EMPTY",
    "Capabilities",
    "Codec",
    "KeyValueState",
    "Namespace",
    "Phase",
    "Prepared",
    "Retention",
    "SnapshotRef",
    "StandardCodec",
    "StateContext",
    "StateProvider",
    "StateStore",
    "Version",
    "Write",
    "load_provider",
    "register_namedtuples",
    "resolve",
]
