"""Deployment of a topology: sent to its tasks once in each run."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from statefx.plan.levels import Plan
from statefx.protocol.identity import TaskId
from statefx.protocol.order import RunOrder, TaskResolution
from statefx.state.contract.caches import cache_folder
from statefx.state.contract.store import FILES_MAX, Namespace, StateContext, StateProvider, Version
from statefx.state.encoding.codec import Codec
from statefx.state.encoding.options import Encoding
from statefx.state.registry import load_provider
from statefx.storage import Storage

_STANDARD = Encoding()


@dataclass(frozen=True)
class Deployment:
    """A compiled topology with all that its tasks need; the same for every transaction of a generation."""

    name: str
    plan: Plan
    config: Mapping[str, Any]  # what bolts see as ``context.config``
    provider: str  # dotted reference of the state provider, ``module:Class``
    options: Mapping[str, Any]
    lineage: str
    generation: int
    storage: Storage
    staged: Storage  # where rows of DataFrames wait: the checkpoint's, or a folder of the driver's that all tasks see
    # Folder for caches of state; empty: the machine's own (`cache_folder`), which differs between machines.
    cache: str = ""
    origin: str = ""
    kept_as: Mapping[str, str] = field(default_factory=dict)  # as in the log (`LogState`)
    tracked: Mapping[str, str] = field(default_factory=dict)  # as in the log (`TopologyIdentity`)
    # Of the keys and values of each stateful component; those it has none for have the standard one.
    encodings: Mapping[str, Encoding] = field(default_factory=dict)
    files_max: int = FILES_MAX  # as of `StateContext`
    # Random, of this start. A worker keeps things by it, and not by lineage and generation: these come again when a
    # checkpoint is replaced by a backup, or copied.
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    def build_provider(self) -> StateProvider:
        return load_provider(self.provider, self.options)

    def codec(self, component: str) -> Codec:
        return self.encodings.get(component, _STANDARD).build()

    def namespace(self, component: str, task: int) -> Namespace:
        return Namespace(self.lineage, self.kept_as.get(component, component), task)

    def state_context(
        self, order: RunOrder | TaskResolution, task: TaskId, version: Version | None = None
    ) -> StateContext:
        """Return where the state of a task opens: at `version`, or at the one that `order` names."""
        state = order.state(task)
        return StateContext(
            generation=order.generation,
            version=state.version if version is None else version,
            storage=self.storage,
            cache=self.cache or cache_folder(),
            snapshot=state.snapshot,
            files_max=self.files_max,
        )
