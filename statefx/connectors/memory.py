"""Rows that the program has: for a first look, and for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from statefx.errors import TopologyError
from statefx.operators import Collector, PartitionedTransactionalSpout
from statefx.protocol.identity import TransactionAttempt


class MemoryTransactionalSpout(PartitionedTransactionalSpout):
    """Emits rows that it was given, a few in each transaction.

    Parameters
    ----------
    data : sequence or mapping of sequences of rows
        For each partition its rows; a row is a tuple in the order of the fields. Keys of a mapping are 0, 1 and so on.
    fields : str, StructType or Mapping
        What it emits, as `outputFields`.
    takePerBatch : int
        Rows of each partition in a transaction, at most.

    Examples
    --------
    ::

        MemoryTransactionalSpout([[("to",), ("be",)], [("or",)]], "word string", takePerBatch=1)
    """

    def __init__(
        self,
        data: Sequence[Sequence[tuple[Any, ...]]] | Mapping[int, Sequence[tuple[Any, ...]]],
        fields: Any,
        takePerBatch: int = 100,
    ) -> None:
        if isinstance(takePerBatch, bool) or not isinstance(takePerBatch, int) or takePerBatch < 1:
            raise TopologyError(f"takePerBatch is a whole number from 1, not {takePerBatch!r}")
        if isinstance(data, Mapping):
            if set(data) != set(range(len(data))):
                raise TopologyError(
                    f"the keys of data are the partitions 0, 1 and so on, not {', '.join(map(repr, data))}"
                )
            data = [data[number] for number in range(len(data))]
        if not (
            isinstance(data, Sequence)
            and all(isinstance(partition, Sequence) for partition in data)
            and all(isinstance(row, tuple) for partition in data for row in partition)
        ):
            raise TopologyError(
                "data is a list of partitions, each of which is a list of tuples: [[('to',), ('be',)]]; or a mapping: "
                "{0: [('to',), ('be',)]}"
            )
        self.data = [list(partition) for partition in data]
        self.outputFields = fields
        self.take = takePerBatch

    def numPartitions(self) -> int:
        """Return how many lists of rows there are."""
        return len(self.data)

    def planPartitionBatch(self, partition: int, lastMetadata: Any) -> Any:
        """Return from where to where the next rows are."""
        start = 0 if lastMetadata is None else lastMetadata["stop"]
        stop = min(len(self.data[partition]), start + self.take)
        # A batch without rows says of an empty list that it is finished.
        return {"start": start, "stop": stop} if start < stop or lastMetadata is None else None

    def isFinished(self, partition: int, metadata: Any) -> bool:
        """Tell whether these rows are the last."""
        return bool(metadata["stop"] >= len(self.data[partition]))

    def emitPartitionBatch(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, metadata: Any
    ) -> None:
        """Emit them."""
        for row in self.data[partition][metadata["start"] : metadata["stop"]]:
            collector.emit(row)
