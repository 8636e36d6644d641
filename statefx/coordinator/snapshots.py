"""When tasks write snapshots: by what has to be read to build their state, and few of them in one transaction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from statefx.protocol.identity import SnapshotRef


@dataclass(frozen=True)
class SnapshotPolicy:
    """Which tasks shall write a snapshot in a transaction.

    A snapshot costs what the state holds, and the transaction waits for it. So one is due when the changelogs come to
    as much, which pays for it; many small files are no reason, for these are merged
    (`statefx.state.changelog.merging`). And since the tasks of a bolt grow alike, all would be due at once: only a
    part of them is told in one transaction.

    Attributes
    ----------
    min_bytes : int
        What the changelogs of a task have to come to, whatever its last snapshot has.
    ratio : float
        And what times the size of its last snapshot.
    share : float
        The part of all tasks that may be told in one transaction; at least one task is.
    """

    min_bytes: int = 32 << 20
    ratio: float = 1.0
    share: float = 0.125

    def due(self, growth: Mapping[str, int], newest: Mapping[str, SnapshotRef]) -> frozenset[str]:
        """Return the tasks that are most overdue.

        Parameters
        ----------
        growth : Mapping[str, int]
            Bytes of each task's changelogs since its newest snapshot.
        newest : Mapping[str, SnapshotRef]
            These snapshots.
        """
        overdue = {name: size / self._limit(newest.get(name)) for name, size in growth.items()}
        # By name where they are equally due: which tasks are told does not depend on the order of the log's dicts.
        told = sorted((name for name, times in overdue.items() if times > 1), key=lambda name: (-overdue[name], name))
        return frozenset(told[: max(1, math.ceil(len(growth) * self.share))])

    def _limit(self, snapshot: SnapshotRef | None) -> float:
        return max(self.min_bytes, self.ratio * (0 if snapshot is None else snapshot.size_bytes))
