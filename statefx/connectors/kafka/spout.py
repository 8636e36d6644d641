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
from statefx.connectors.kafka.clients import Clients, Rules
from statefx.connectors.kafka.losses import Losses
from statefx.connectors.kafka.planning import Cluster, Limits, Start, distances
from statefx.connectors.kafka.ranges import Ranges, ends_of
from statefx.connectors.kafka.reading import NO_EPOCH, Readers, Span
from statefx.connectors.kafka.rows import Refused, Rows, TopicPartition
from statefx.errors import InputError
from statefx.operators import Collector, Context, PartitionedTransactionalSpout, to_ddl
from statefx.operators.context import DRIVER
from statefx.protocol.barrier import LeftOut
from statefx.protocol.identity import TransactionAttempt

logger = logging.getLogger("statefx")

DEFAULT_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")
GROUP = "statefx.{application}.{spout}"

Policy = Literal["fail", "skip"]

_OWNED = {
    "group.id": "no group decides who reads what; group= names the one that is told how far it was read",
    "group.instance.id": "no group decides who reads what",
    "group.protocol": "no group decides who reads what",
    "partition.assignment.strategy": "no group decides who reads what",
    "isolation.level": "isolation= says it, so that the driver plans by the same offsets",
    "auto.offset.reset": "offsets that are gone must not be passed over in silence: start= and lost= say what to do",
    "enable.auto.commit": "the checkpoint says what was read, and the group is told after that",
    "auto.commit.enable": "the checkpoint says what was read, and the group is told after that",
    "enable.auto.offset.store": "the checkpoint says what was read, and the group is told after that",
    "enable.partition.eof": "a range may end in offsets that have no record, and then only this tells the end",
    "receive.message.max.bytes": "a smaller one would have the client stand still; maxRecordBytes= refuses records",
}
"""Settings of the client that a user can't give, because a record would be lost or read twice; and why."""

_KEPT = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    # A client that gets a larger answer ends the connection, and would never get past the record.
    "receive.message.max.bytes": 1_000_000_000,
}

_DEFAULTS = {
    # Else records that a disk or a wire has damaged are read as they are. The sums cost too little to be measured: 1 M
    # records of 100 bytes take 0.6 s of a processor with them and without.
    "check.crcs": True,
    # Where the last offsets of a range are markers of transactions, only an answer without records shows that the end
    # is reached, and a broker holds such an answer back this long: by default half a second, in each transaction.
    "fetch.wait.max.ms": 50,
    # By default, a client that has fetched enough waits a second before it fetches again: 1 M rows in 6 s, not in 1.5.
    "fetch.queue.backoff.ms": 10,
    # What is fetched ahead of a transaction, for each partition that a task keeps warm.
    "queued.max.messages.kbytes": 16_384,
}


class KafkaSource:
    """What spouts of topics have in common: arguments, clients, and the records of a range; see `KafkaSpout`."""

    def __init__(
        self,
        servers: str,
        topics: str | Sequence[str] | re.Pattern[str],
        value: str,
        schema: Any,
        *,
        key: str,
        columns: Sequence[str],
        start: Start,
        limits: Limits,
        maxRecordBytes: int | None,
        isolation: str,
        unavailable: str,
        lost: str,
        bad: str,
        group: str | None,
        patience: float,
        config: Mapping[str, Any] | None,
    ) -> None:
        self.topics = topics_of(topics)
        self.start = start_of(start, self.topics)
        check_bound("maxRows", limits.rows)
        check_bound("maxPartitions", limits.partitions)
        check_bound("maxRecordBytes", maxRecordBytes)
        check_choice("isolation", isolation, ("read_committed", "read_uncommitted"))
        check_choice("unavailable", unavailable, ("wait", "skip"))
        check_choice("lost", lost, ("fail", "skip"))
        check_choice("bad", bad, ("fail", "skip"))
        self.limits = limits
        self.isolation, self.unavailable, self.lost, self.bad = isolation, unavailable, lost, bad
        self._losses = Losses(lost == "skip")
        self.group, self.patience_secs = group_of(group), patience_of(patience)
        values = format_of(value, schema)
        self.rows = Rows(values, key, columns_of(columns, values), maxRecordBytes)
        self.outputFields = to_ddl(self.rows.schema)
        self.clients = Clients(_rules(isolation), servers, config)
        self._readers: Readers | None = None
        self._gone = 0
        """How many offsets of the range that is emitted were deleted."""

    def reads(self, target: str) -> bool:
        """Tell whether it is one of the topics."""
        return is_target(target, self.clients.servers, self.topics)

    def _name_group(self, context: Context) -> str:
        """Find out which group is told what is read, if one is; return the name of a group for the clients."""
        named = {"application": context.config["topology.transactional.id"], "spout": context.component}
        self._group = None if self.group is None else self.group.format(**named)
        return self._group or GROUP.format(**named)  # each client must have one

    def _emit(self, collector: Collector, span: Span) -> Generator[None, None, LeftOut]:
        """Emit a range of offsets, batch by batch; return how much of it was left out."""
        assert self._readers is not None
        tp = span.tp
        self._gone = 0
        refused: list[Refused] = []
        for batch, without in self.rows.batches(tp, self._readers.read(span, self.rows.wanted)):
            if without and self.bad == "fail":
                raise InputError(
                    f"the record at offset {without[0].offset} of {tp} can't be read: {without[0].reason}. "
                    "Correct key=, value=, schema= or maxRecordBytes=, or set bad='skip' to leave such records out",
                    topic=tp.topic, partition=tp.partition, offset=without[0].offset,
                )  # fmt: skip
            refused += without
            collector.emitBatch(batch)
            yield
        # Only now: a client goes on in a new topic of the same name without an error, so these may be its records.
        self._readers.check(span)
        why = f"{tp}, offset {refused[0].offset}: {refused[0].reason}" if refused else ""
        return LeftOut(self._gone, len(refused), why)

    def _pass_over(self, tp: TopicPartition, start: int, first: int) -> None:
        """Pass over offsets of a batch that was planned; InputError if that is not allowed."""
        self._losses.pass_over(tp, start, first)
        self._gone += first - start


class KafkaSpout(KafkaSource, PartitionedTransactionalSpout):
    """Emits the records of Kafka's topics, each of them once.

    The driver plans for each partition which offsets a transaction reads, and writes that into the checkpoint before a
    task reads them. No consumer group decides anything. Partitions and topics that come later are read from
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
        A consumer group that is told what is committed, for tools that watch its lag; nothing depends on it. With None
        no group is told.
    patience : float
        Seconds that a task waits for records without any progress, before the transaction is tried again.
    config : Mapping, optional
        Settings of librdkafka, such as ``{"security.protocol": "SASL_SSL"}``. Those that would break exactly-once are
        refused.

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
        super().__init__(
            servers,
            topics,
            value,
            schema,
            key=key,
            columns=columns,
            start=start,
            limits=Limits(maxRows, maxPartitions),
            maxRecordBytes=maxRecordBytes,
            isolation=isolation,
            unavailable=unavailable,
            lost=lost,
            bad=bad,
            group=group,
            patience=patience,
            config=config,
        )
        self._ranges: Ranges | None = None

    # ---- both

    def open(self, context: Context) -> None:
        """Make the clients; they connect when they are asked something."""
        group = self._name_group(context)
        if context.task != DRIVER:
            self._readers = Readers(self.clients, group, self.patience_secs, self._pass_over)
            return
        cluster = Cluster(self.clients, group, self.topics, skips=self.unavailable == "skip")
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
        """Plan up to where the partitions end now; later records are for the next run."""
        self._planning.bounded = True

    def initPartitions(self, metadata: Mapping[int, Any]) -> None:
        """Go on behind what was read; InputError if a topic is not there, or access is denied.

        It is raised too if no broker answers and nothing was ever read: the servers or the settings may be wrong. In a
        later start no broker means that the query waits, and its status says why.
        """
        if not metadata and (why := self.clients.connect(self._planning.cluster.consumer)) is not None:
            raise InputError(why)
        self._planning.begin(metadata)

    def numPartitions(self) -> int:
        """Ask the brokers what there is, and return how many partitions there have ever been; new ones come last."""
        return self._planning.count()

    def partitionsToPlan(self) -> list[int]:
        """Return the partitions that were not read to their end."""
        return self._planning.to_plan()

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
        """Emit a range of offsets, batch by batch; return how much of it, and of the gap before it, was left out."""
        tp, start, end = TopicPartition(metadata["topic"], metadata["partition"]), metadata["start"], metadata["end"]
        epochs = (metadata.get(name, NO_EPOCH) for name in ("start_epoch", "end_epoch"))
        span = Span(tp, metadata["id"], start, end, *epochs)
        assert self._readers is not None
        gap = LeftOut(metadata.get("gap", 0))
        if start == end:
            return gap
        if attempt.attempt and self._readers.is_gone(span):
            self._losses.made_again(tp, start)
            self._losses.pass_over(tp, start, end)
            return gap + LeftOut(end - start)
        return gap + (yield from self._emit(collector, span))


def _rules(isolation: str) -> Rules:
    """Return what the clients of one that reads so are set to."""
    kept = {**_KEPT, "isolation.level": isolation}
    return Rules("KafkaSpout", _OWNED, _DEFAULTS, kept, ("Consumer",))
