"""OpaqueKafkaSpout: topics, read exactly once by batches of which none waits for a partition without a leader."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from statefx.connectors.kafka.planning import DOUBT_SECS, Cluster, Limits, Start, distances
from statefx.connectors.kafka.ranges import Ranges, ends_of
from statefx.connectors.kafka.reading import NO_EPOCH, Readers, Span
from statefx.connectors.kafka.rows import TopicPartition
from statefx.connectors.kafka.spout import DEFAULT_COLUMNS, GROUP, KafkaSource, Policy
from statefx.errors import FailedException, InputError, TopologyError
from statefx.operators import Collector, Context, OpaquePartitionedTransactionalSpout
from statefx.operators.context import DRIVER
from statefx.protocol.identity import TransactionAttempt

logger = logging.getLogger("statefx")

_AGAIN_SECS = 0.1


class OpaqueKafkaSpout(KafkaSource, OpaquePartitionedTransactionalSpout):
    """Emits the records of Kafka's topics, each of them once, and goes on without partitions whose leader is away.

    The tasks look how far they can read, with each attempt again. So a batch whose broker is lost is tried again
    without its partitions, which go on where they were when their leader is back. State and sinks are exact; what
    writes by itself needs `statefx.values`, since a batch that is tried again may have other rows.

    Arguments are those of `KafkaSpout`, but for these:

    Parameters
    ----------
    topics : str or sequence of str
        Their names. A checkpoint goes on with these topics, in this order: a partition's number follows
        from them.
    start : str, datetime or Mapping
        Not ``"latest"``: a task that looks later would begin at another offset.
    maxRows : int, optional
        What a transaction reads at most; each partition may have an equal part of it.

    Raises
    ------
    ConfigError, TopologyError
        As of `KafkaSpout`.
    """

    def __init__(
        self,
        servers: str,
        topics: str | Sequence[str],
        value: str = "bytes",
        schema: Any = None,
        *,
        key: str = "bytes",
        columns: Sequence[str] = DEFAULT_COLUMNS,
        start: Start = "earliest",
        maxRows: int | None = 1_000_000,
        maxRecordBytes: int | None = None,
        isolation: str = "read_committed",
        lost: Policy = "fail",
        bad: Policy = "fail",
        group: str | None = GROUP,
        patience: float = 30.0,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            servers,
            topics,
            value,
            schema,
            key=key,
            columns=columns,
            start=start,
            limits=Limits(maxRows, None),
            maxRecordBytes=maxRecordBytes,
            isolation=isolation,
            unavailable="skip",
            lost=lost,
            bad=bad,
            group=group,
            patience=patience,
            config=config,
        )
        if not isinstance(self.topics, list):
            raise TopologyError(f"OpaqueKafkaSpout: topics are names, ['a', 'b'], and no pattern: {topics!r}")
        if self.start == "latest":
            raise TopologyError(
                "OpaqueKafkaSpout: start='latest' would be another offset for each task that looks: give the time, "
                "start=datetime.now(timezone.utc)"
            )
        self._names: list[str] = self.topics
        self._cluster: Cluster | None = None

    def open(self, context: Context) -> None:
        """Make the clients; they connect when they are asked something."""
        group = self._name_group(context)
        self._cluster = Cluster(self.clients, group, self.topics, skips=True)
        if context.task != DRIVER:
            self._readers = Readers(self.clients, group, self.patience_secs, self._pass_over)
        self._ends: dict[TopicPartition, int] = {}
        self._count = 0
        self._read: set[str] = set()
        """Topics of which something was read."""
        self._attempt: TransactionAttempt | None = None

    def close(self) -> None:
        """End the clients."""
        for client in (self._readers, self._cluster):
            if client is not None:
                client.close()

    def _partition(self, number: int) -> TopicPartition:
        """Return which partition a number stands for: the same one in all tasks, however many partitions come later."""
        number, index = divmod(number, len(self._names))
        return TopicPartition(self._names[index], number)

    @property
    def _topics_view(self) -> Cluster:
        assert self._cluster is not None
        return self._cluster

    # ---- on the driver

    def initPartitions(self, metadata: Mapping[int, Any]) -> None:
        """Refuse other topics than before; InputError too if a topic is not there, or no broker ever answered."""
        for number, said in metadata.items():
            now = self._partition(number)
            if now != (said["topic"], said["partition"]):
                raise InputError(
                    f"partition {number} was {said['topic']}-{said['partition']}, and is {now} with "
                    f"topics={self._names!r}: go back to the former topics, in their order, or start with a new "
                    "checkpointLocation",
                    topic=said["topic"],
                )
        self._count = max(metadata, default=-1) + 1
        self._read = {said["topic"] for said in metadata.values()}
        if not metadata and (why := self.clients.connect(self._topics_view.consumer)) is not None:
            raise InputError(why)
        limit = time.monotonic() + 2 * DOUBT_SECS
        while time.monotonic() < limit:
            try:
                self._topics_view.discover(self._read)
                return
            except FailedException:
                if not self._topics_view.doubts:
                    return
                time.sleep(_AGAIN_SECS)

    def isReady(self) -> bool:
        """Look how far partitions can be read; FailedException if no leader answers."""
        cluster = self._topics_view
        cluster.discover(self._read)
        self._ends |= cluster.ends(cluster.partitions)
        return True

    def numPartitions(self) -> int:
        """Return how many numbers there are; those of partitions that a topic has not are of no partition yet."""
        found = [
            tp.partition * len(self._names) + self._names.index(tp.topic) + 1 for tp in self._topics_view.partitions
        ]
        self._count = max([self._count, *found])
        return self._count

    def committed(self, metadata: Mapping[int, Any]) -> Any:
        """Tell the group what was read, and the progress how far that is behind what there was at the last look."""
        read = ends_of(metadata.values())
        self._read |= {tp.topic for tp in read}
        if self._group is not None:
            self._topics_view.tell_group(read)
        return distances(read, self._ends, self._topics_view.away)

    # ---- in the tasks

    def emitPartitionBatch(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, lastMetadata: Any
    ) -> Generator[None, None, Any]:
        """Emit what there is now, batch by batch; nothing if the leader does not answer."""
        tp = self._partition(partition)
        emitted = False
        try:
            planned = self._plan(attempt, tp, lastMetadata)
            if planned is None:
                return None
            epochs = (planned.get(name, NO_EPOCH) for name in ("start_epoch", "end_epoch"))
            if planned["start"] < planned["end"]:
                for _ in self._emit(collector, Span(tp, planned["id"], planned["start"], planned["end"], *epochs)):
                    emitted = True
                    yield
        except FailedException as why:
            if emitted:  # the next attempt is without this partition, if its leader is still away then
                raise
            logger.warning("%s is left out of transaction %d: %s", tp, attempt.txid, why.message)
            return None
        return planned

    def _plan(self, attempt: TransactionAttempt, tp: TopicPartition, last: Any) -> Any:
        """Return the next range of a partition."""
        cluster = self._topics_view
        if attempt != self._attempt:
            self._attempt = attempt
            if attempt.attempt:  # a topic may have been made again since the last look
                cluster.look_again()
        self._read |= {tp.topic} if last is not None else set()
        cluster.discover(self._read)
        rows = self.limits.rows
        share = None if rows is None else max(1, rows // max(1, len(cluster.partitions)))
        return Ranges(cluster, self._start_of(tp), Limits(share, None), self._losses).of(tp, last)

    def _start_of(self, tp: TopicPartition) -> Start:
        """Return where the partition begins; of other partitions nothing is asked."""
        if not isinstance(self.start, Mapping):
            return self.start
        first = self.start.get(tp.topic, {}).get(tp.partition)
        return "earliest" if first is None else {tp.topic: {tp.partition: first}}
