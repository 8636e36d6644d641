"""KafkaSpout: the topics of a cluster, read exactly once."""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal

from statefx.connectors.kafka.arguments import (
    check_bound,
    check_choice,
    columns_of,
    format_of,
    group_of,
    is_target,
    patience_of,
    start_of,
    topics_of,
)
from statefx.connectors.kafka.clients import Clients
from statefx.connectors.kafka.losses import Losses
from statefx.connectors.kafka.planning import Cluster, Limits, Start, distances
from statefx.connectors.kafka.ranges import Ranges, ends_of
from statefx.connectors.kafka.reading import NO_EPOCH, Readers, Span
from statefx.connectors.kafka.rows import Place, Refused, Rows
from statefx.connectors.kafka.spout_settings import rules
from statefx.errors import InputError
from statefx.operators import Collector, Context, PartitionedTransactionalSpout, to_ddl
from statefx.operators.context import DRIVER
from statefx.protocol.barrier import LeftOut
from statefx.protocol.identity import TransactionAttempt

logger = logging.getLogger("statefx")

DEFAULT_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")
GROUP = "statefx.{application}.{spout}"

Policy = Literal["fail", "skip"]


class KafkaSpout(PartitionedTransactionalSpout):
    """Emits the records of Kafka's topics, each of them once.

    The driver plans for each partition of a topic which offsets a transaction reads, and that stands in the checkpoint
    before a task reads them. No consumer group decides anything. Partitions and topics that come later are read from
    their beginning.

    Parameters
    ----------
    servers : str
        Kafka's ``bootstrap.servers``: ``host:port,host:port``.
    topics : str, sequence of str or re.Pattern
        Their names; or a pattern that names must match as a whole, those that come later too.
    value : str
        What values are: ``bytes``, ``string``, ``json`` or ``avro``. Of the last two, the fields of `schema` are
        columns.
    schema : str, StructType, pyarrow.Schema or Mapping, optional
        For JSON the fields, as in ``"account string, amount long"``; for Avro its schema, as JSON has it.
    key : str
        What keys are: ``bytes`` or ``string``.
    columns : sequence of str
        Of ``key``, ``value``, ``topic``, ``partition``, ``offset``, ``timestamp`` and ``headers``: those that are
        emitted, in this order. ``value`` stands for all fields that are made of it.
    start : str, datetime or Mapping
        Where a first run begins: ``"earliest"``, ``"latest"``, a time with a time zone, or
        ``{topic: {partition: offset}}``, in which partitions that are not named begin with the earliest. Later runs go
        on where the last one has ended.
    maxRows, maxPartitions : int, optional
        What a transaction reads at most, of all partitions together. Rows are counted as offsets.
    maxRecordBytes : int, optional
        Of key and value of a record; a larger one is refused (`bad`).
    isolation : str
        ``"read_committed"``, or ``"read_uncommitted"``, which also reads what producers may take back.
    unavailable : str
        What to do while the leader of a partition does not answer: ``"wait"`` plans no transaction until all leaders
        answer, ``"skip"`` plans those of the other partitions. Nothing is lost: the partition goes on where it was.
    lost : str
        What to do when records were deleted before they were read, or their topic was deleted or made again: ``"fail"``
        ends the query with an error that names partition and offsets, ``"skip"`` goes on behind them, and logs how many
        offsets these were.
    bad : str
        What to do with a record that is too large, or not what `key` and `value` say: ``"fail"`` or ``"skip"``.
    group : str, optional
        A consumer group that is told what is committed, for tools that watch its lag; nothing depends on it. None:
        none.
    patience : float
        Seconds that a task waits for records without any progress, before the transaction is tried again.
    config : Mapping, optional
        Settings of librdkafka, such as ``{"security.protocol": "SASL_SSL"}``. What would break the promise is refused.

    Raises
    ------
    ConfigError
        confluent-kafka is not installed, or `servers` or `config` can't be used.
    TopologyError
        Another argument can't be used.
    """

    def __init__(
        self,
        servers: str,
        topics: str | Sequence[str] | re.Pattern[str],
        value: str = "bytes",
        schema: Any = None,
        *,
        key: str = "bytes",
        columns: Sequence[str] = DEFAULT_COLUMNS,
        start: Start = "earliest",
        maxRows: int | None = 1_000_000,
        maxPartitions: int | None = None,
        maxRecordBytes: int | None = None,
        isolation: str = "read_committed",
        unavailable: Literal["wait", "skip"] = "wait",
        lost: Policy = "fail",
        bad: Policy = "fail",
        group: str | None = GROUP,
        patience: float = 30.0,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.topics = topics_of(topics)
        self.start = start_of(start, self.topics)
        check_bound("maxRows", maxRows)
        check_bound("maxPartitions", maxPartitions)
        check_bound("maxRecordBytes", maxRecordBytes)
        check_choice("isolation", isolation, ("read_committed", "read_uncommitted"))
        check_choice("unavailable", unavailable, ("wait", "skip"))
        check_choice("lost", lost, ("fail", "skip"))
        check_choice("bad", bad, ("fail", "skip"))
        self.limits = Limits(maxRows, maxPartitions)
        self.isolation, self.unavailable, self.lost, self.bad = isolation, unavailable, lost, bad
        self._losses = Losses(lost == "skip")
        self.group, self.patience_secs = group_of(group), patience_of(patience)
        values = format_of(value, schema)
        self.rows = Rows(values, key, columns_of(columns, values), maxRecordBytes)
        self.outputFields = to_ddl(self.rows.schema)
        self.clients = Clients(rules(isolation), servers, config)
        self._ranges: Ranges | None = None
        self._readers: Readers | None = None
        self._gone = 0
        """How many offsets of the range that is emitted were deleted."""

    # ---- both

    def reads(self, target: str) -> bool:
        """Tell whether it is one of the topics."""
        return is_target(target, self.clients.servers, self.topics)

    def open(self, context: Context) -> None:
        """Make the clients; they connect when they are asked something."""
        named = {"application": context.config["topology.transactional.id"], "spout": context.component}
        self._group = None if self.group is None else self.group.format(**named)
        reading = self._group or GROUP.format(**named)  # each client must have the name of a group
        if context.task != DRIVER:
            self._readers = Readers(self.clients, reading, self.patience_secs, self._pass_over)
            return
        cluster = Cluster(self.clients, reading, self.topics, skips=self.unavailable == "skip")
        self._ranges = Ranges(cluster, self.start, self.limits, self._losses)

    def close(self) -> None:
        """End the clients."""
        if self._readers is not None:
            self._readers.close()
        if self._ranges is not None:
            self._ranges.close()

    # ---- on the driver

    @property
    def _planning(self) -> Ranges:
        assert self._ranges is not None
        return self._ranges

    def prepareForAvailableNow(self) -> None:
        """End where the partitions end at the first look; what comes later is for the next run."""
        self._planning.bounded = True

    def initPartitions(self, metadata: Mapping[int, Any]) -> None:
        """Go on behind what was read; InputError if a topic is not there, or access is denied.

        Also if no broker answers and nothing was ever read: the servers or the settings may be wrong. Later that is a
        fault: the query waits, and its status says so.
        """
        if not metadata and (why := self.clients.connect(self._planning.cluster.consumer)) is not None:
            raise InputError(why)
        self._planning.begin(metadata)

    def numPartitions(self) -> int:
        """Look what there is, and return how many partitions there have been; new ones come last."""
        return self._planning.count()

    def planPartitionBatch(self, partition: int, lastMetadata: Any) -> Any:
        """Return the next range of offsets."""
        return self._planning.plan(partition, lastMetadata)

    def committed(self, metadata: Mapping[int, Any]) -> Any:
        """Tell the group what was read, and the progress how far that is behind what there was at the last look."""
        read = ends_of(metadata.values())
        if self._group is not None:
            self._planning.cluster.tell_group(read)
        return distances(read, self._planning.known_ends, self._planning.cluster.away)

    # ---- in the tasks

    def emitPartitionBatch(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, metadata: Any
    ) -> Generator[None, None, Any]:
        """Emit a range of offsets, batch by batch; return what of it, and of the gap before it, was left out."""
        place, start, end = Place(metadata["topic"], metadata["partition"]), metadata["start"], metadata["end"]
        epochs = (metadata.get(name, NO_EPOCH) for name in ("start_epoch", "end_epoch"))
        span = Span(place, metadata["id"], start, end, *epochs)
        assert self._readers is not None
        gap = LeftOut(metadata.get("gap", 0))
        if start == end:
            return gap
        if attempt.attempt and self._readers.is_gone(span):
            self._losses.made_again(place, start)
            self._losses.pass_over(place, start, end)
            return gap + LeftOut(end - start)
        self._gone = 0
        refused: list[Refused] = []
        for batch, without in self.rows.batches(place, self._readers.read(span, self.rows.wanted)):
            if without and self.bad == "fail":
                raise InputError(
                    f"the record at offset {without[0].offset} of {place} can't be read: {without[0].reason}. Mend "
                    "what KafkaSpout is told of key, value and sizes, or set bad='skip' to leave such records out",
                    topic=place.topic, partition=place.partition, offset=without[0].offset,
                )  # fmt: skip
            refused += without
            collector.emitBatch(batch)
            yield
        # Only now it is sure that these were the records that were planned: a client goes on in a topic of the same
        # name without a word.
        self._readers.check(span)
        why = f"{place}, offset {refused[0].offset}: {refused[0].reason}" if refused else ""
        return gap + LeftOut(self._gone, len(refused), why)

    def _pass_over(self, place: Place, start: int, first: int) -> None:
        """Pass over offsets of a batch that was planned; InputError if that is not allowed."""
        self._losses.pass_over(place, start, first)
        self._gone += first - start
