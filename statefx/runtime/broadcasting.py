"""Rows of a task that wait until all rows of its broadcast inputs have come.

A task of a bolt may run rows in the order in which they come, and two tasks need not see the same order. What is
broadcast must change nothing by the moment at which it comes: so it is all executed first, in one order in all tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa

from statefx.protocol.alignment import Alignment, Channel
from statefx.runtime.outbox import HELD_BYTES_MAX, BatchQueue
from statefx.topology.graph import Edge


class HeldRows:
    """What has come for one task in one attempt, from its first row until its broadcast inputs are whole.

    An input is whole when it has its barrier and all rows that the barrier counts. One that never is, because a task
    before it has failed or rows are missing, is found out at the end of the input (rule 5.3): then nothing of what is
    held is ever executed (rule 5.7).

    Parameters
    ----------
    alignment : Alignment
        Of the task's input; it has been told of all that is put here.
    channels : collection of Channel
        The broadcast inputs, one or more.
    """

    def __init__(self, alignment: Alignment, channels: Collection[Channel]) -> None:
        self._alignment = alignment
        self._open = sorted(channels)
        share = HELD_BYTES_MAX // len(channels)
        # By edge, source and number of the source's task: rows of one task come in its order, and all others in none.
        self._first: dict[Channel, BatchQueue[Edge]] = {channel: BatchQueue(share) for channel in self._open}
        self._others: BatchQueue[Edge] = BatchQueue()

    def put(self, edge: Edge, task: int, batch: pa.RecordBatch) -> None:
        """Hold rows that a task of the edge's source has sent; OSError if a file can't be written."""
        self._first.get((edge.id, edge.source, task), self._others).append(edge, batch)

    def is_whole(self) -> bool:
        """Tell whether all rows of the broadcast inputs are here."""
        while self._open and self._alignment.is_whole(self._open[-1]):
            self._open.pop()
        return not self._open

    def take(self) -> Iterator[tuple[Edge, pa.RecordBatch]]:
        """Yield the rows of the broadcast inputs, in the same order in all tasks, and the others as they came."""
        for queue in (*self._first.values(), self._others):
            while queue:
                yield queue.popleft()

    def close(self) -> None:
        """Forget what nobody has taken."""
        for queue in (*self._first.values(), self._others):
            queue.close()
