"""Deletes state files that no retained version needs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from statefx.coordinator.checkpoint import Folders, check_newest
from statefx.errors import StateError
from statefx.protocol.order import Task, task_key
from statefx.state.store import Namespace, Retention, Snapshot, StateProvider

logger = logging.getLogger("statefx")

MIN_AGE_SECS = 60.0
EVERY_TRANSACTIONS = 50


@dataclass
class Janitor:
    """Sweeps the namespaces of one generation now and then.

    Parameters
    ----------
    folders : Folders
    provider : StateProvider
    tasks : iterable of (component, task)
        The stateful ones.
    lineage, generation : str, int
    """

    folders: Folders
    provider: StateProvider
    tasks: Iterable[Task]
    lineage: str
    generation: int
    min_age_secs: float = MIN_AGE_SECS
    every: int = EVERY_TRANSACTIONS

    def committed(self, txid: int) -> None:
        """Sweep after every `every`-th transaction, whichever run it falls in.

        Raises
        ------
        FencedError
            A newer generation has taken over; nothing was deleted.
        """
        if txid % self.every == 0:
            self.sweep()

    def sweep(self) -> int:
        """Sweep every namespace; return how many files went."""
        gone = 0
        for component, task in self.tasks:
            folder = os.path.join(self.folders.state, component, str(task))
            name = task_key(component, task)
            try:
                gone += self.provider.sweep(
                    Namespace(self.lineage, component, task), folder, partial(self._retention, name)
                )
            except (StateError, OSError) as error:
                logger.warning("state of %s was not swept: %s", name, error)
        return gone

    def _retention(self, name: str) -> Retention:
        state = check_newest(self.folders, self.generation)
        kept = tuple(Snapshot(s.version, s.checksum, s.size_bytes) for s in state.snapshots.get(name, ()))
        return Retention(self.generation, state.head(name), kept, self.min_age_secs)
