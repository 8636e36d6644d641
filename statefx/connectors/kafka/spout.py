"""KafkaSpout and OpaqueKafkaSpout: the topics of a cluster, read exactly once.

The opaque one reads in batches of which none waits for a partition without a leader.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from statefx.config import is_count, is_number
from statefx.connectors.kafka.clients import NAME, Clients, Rules
from statefx.connectors.kafka.planning import Cluster, Losses, Ranges, Start, distances, ends_of, is_named
from statefx.connectors.kafka.reading import Readers, Span
from statefx.connectors.kafka.rows import (
    COLUMNS,
    TRACED_ROWS,
    TRACES_MAX,
    Avro,
    Bytes,
    Format,
    Json,
    Refused,
    Rows,
    Text,
    TopicPartition,
    traces_of,
)
from statefx.errors import FailedException, InputError, TopologyError
from statefx.operators.context import DRIVER, Collector, Context
from statefx.operators.schema import to_ddl
from statefx.operators.spouts import OpaquePartitionedTransactionalSpout, PartitionedTransactionalSpout
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.reports import LeftOut

if TYPE_CHECKING:
    from confluent_kafka import Message

logger = logging.getLogger("statefx")

# ---- what the arguments may be

_TOPICS = "topics are a name, a list of names, or a pattern, re.compile('payments-.*')"


def topics_of(given: Any) -> list[str] | re.Pattern[str]:
    if isinstance(given, re.Pattern):
        if isinstance(given.pattern, bytes):
            raise TopologyError(f"{_TOPICS}, of a text, not {given!r}")
        return given
    if not isinstance(given, str) and (isinstance(given, Mapping | bytes) or not isinstance(given, Collection)):
        raise TopologyError(f"{_TOPICS}, not {given!r}")
    names = [given] if isinstance(given, str) else list(given)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise TopologyError(f"{_TOPICS}, not {given!r}")
    for name in names:
        if NAME.fullmatch(name) is None:
            hint = "; several names are a list" if "," in name else ""
            raise TopologyError(f"no topic can be called {name!r}: letters, digits, '.', '_' and '-'{hint}. {_TOPICS}")
    if len(set(names)) < len(names):
        raise TopologyError(f"a topic is named twice: {given!r}")
    return names


def start_of(given: Any, topics: Sequence[str] | re.Pattern[str]) -> Start:
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise TopologyError(f"start={given!r} has no time zone: datetime(..., tzinfo=timezone.utc)")
        return given
    if isinstance(given, Mapping):
        return {topic: _offsets_of(topic, offsets, topics) for topic, offsets in given.items()} or _no_start(given)
    return str(given) if given in ("earliest", "latest") else _no_start(given)


def _no_start(given: Any) -> Start:
    raise TopologyError(
        "start is 'earliest', 'latest', datetime(..., tzinfo=timezone.utc), or offsets by topic and partition, "
        f"{{'payments': {{0: 17, 1: 5}}}}, not {given!r}"
    )


def _offsets_of(topic: Any, offsets: Any, topics: Sequence[str] | re.Pattern[str]) -> dict[int, int]:
    if not is_named(str(topic), topics):
        raise TopologyError(f"start= has offsets of topic {topic!r}, which topics= does not name")
    if not isinstance(offsets, Mapping) or not all(is_count(number, 0) for pair in offsets.items() for number in pair):
        raise TopologyError(
            f"start= has by topic the first offset of each partition, all whole numbers from 0, as in {{'payments': "
            f"{{0: 17, 1: 5}}}}, not {offsets!r}; partitions without an entry begin with the earliest"
        )
    return dict(offsets)


def is_target(target: str, servers: str, topics: Sequence[str] | re.Pattern[str]) -> bool:
    """Return whether one of the topics is where a `KafkaSink` writes, by its `target`."""
    cluster = f"kafka://{servers}/"
    return target.startswith(cluster) and is_named(target.removeprefix(cluster).partition("#")[0], topics)


def columns_of(given: Any, values: Format) -> list[str]:
    names = [] if isinstance(given, str) or not isinstance(given, Sequence) else list(given)
    if not names:
        raise TopologyError(f"columns= names what is emitted, as in ('value', 'timestamp'), not {given!r}")
    for name in names:
        if names.count(name) > 1:
            raise TopologyError(f"columns= names {name!r} twice: {given!r}")
        if name not in COLUMNS:
            hint = "; 'value' stands for all fields of schema=" if name in values.schema.names else ""
            raise TopologyError(f"KafkaSpout has no column {name!r}: there are {', '.join(COLUMNS)}{hint}")
    return names


def group_of(given: Any) -> str | None:
    """Return the name of a group, in which the names of application and spout may be left open."""
    if given is None:
        return None
    try:
        if isinstance(given, str) and given.format(application="a", spout="s").strip():
            return given
    except (LookupError, ValueError, AttributeError):
        pass
    raise TopologyError(
        "group is the name of a consumer group, in which {application} and {spout} stand for those of the topology, or "
        f"None, not {given!r}"
    )


def patience_of(given: Any) -> float:
    if not is_number(given) or not 0 < given < math.inf:
        raise TopologyError(f"patience is a number of seconds above 0, not {given!r}")
    return float(given)


def check_choice(name: str, given: str, allowed: Sequence[str]) -> None:
    if given not in allowed:
        raise TopologyError(f"{name} is {' or '.join(map(repr, allowed))}, not {given!r}")


def format_of(value: str, schema: Any) -> Format:
    if value not in ("bytes", "string", "json", "avro"):
        raise TopologyError(f"KafkaSpout has no values as {value!r}: there are bytes, string, json and avro")
    if (schema is None) != (value in ("bytes", "string")):
        wants = (
            f"have no schema, and schema={schema!r} is given: say 'json' or 'avro', or leave it out"
            if schema is not None
            else "need schema=, such as 'account string, amount long'"
            if value == "json"
            else "need schema=, an Avro schema"
        )
        raise TopologyError(f"KafkaSpout: values as {value} {wants}")
    if value == "avro":
        return Avro(schema)
    if value == "json":
        return Json(schema)
    return Bytes("value") if value == "bytes" else Text("value")


# ---- spouts

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
    "receive.message.max.bytes": "a smaller one would have the client stand still",
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
    """The common part of spouts of topics: arguments, clients, and the records of a range; see `KafkaSpout`."""

    _throttled_secs: float = 0.0
    _traces: Sequence[str] = ()

    _left_out: LeftOut

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
        if maxRows is not None and not is_count(maxRows):
            raise TopologyError(f"maxRows is a whole number from 1, or None, not {maxRows!r}")
        check_choice("isolation", isolation, ("read_committed", "read_uncommitted"))
        check_choice("unavailable", unavailable, ("wait", "skip"))
        check_choice("lost", lost, ("fail", "skip"))
        check_choice("bad", bad, ("fail", "skip"))
        self.rows_max = maxRows
        self.isolation, self.unavailable, self.lost, self.bad = isolation, unavailable, lost, bad
        self._losses = Losses(lost == "skip")
        self.group, self.patience_secs = group_of(group), patience_of(patience)
        values = format_of(value, schema)
        self.rows = Rows(values, key, columns_of(columns, values))
        self.outputFields = to_ddl(self.rows.schema)
        kept = {**_KEPT, "isolation.level": isolation}
        self.clients = Clients(Rules("KafkaSpout", _OWNED, _DEFAULTS, kept, ("Consumer",)), servers, config)
        self._readers: Readers | None = None
        self._gone = 0
        """The number of offsets of the range being emitted that were deleted."""

    def reads(self, target: str) -> bool:
        return is_target(target, self.clients.servers, self.topics)

    def _name_group(self, context: Context) -> str:
        """Find out which group is told what is read, if one is; return the name of a group for the clients."""
        named = {"application": context.config["topology.transactional.id"], "spout": context.component}
        self._group = None if self.group is None else self.group.format(**named)
        return self._group or GROUP.format(**named)  # each client must have one

    def _progress(self, metadata: Mapping[int, Any], cluster: Cluster, ends: Mapping[TopicPartition, int]) -> Any:
        """Commit to the group what was read; return how far that is behind what there was at the last look."""
        read = ends_of(metadata.values())
        if self._group is not None:
            cluster.tell_group(read)
        return distances(read, ends, cluster.away)

    def _emit(self, collector: Collector, span: Span) -> Iterator[None]:
        """Emit a range of offsets, batch by batch, and note how much of it was left out."""
        assert self._readers is not None
        tp = span.tp
        self._gone = 0
        refused: list[Refused] = []
        for batch, without in self.rows.batches(tp, self._readers.read(span, self.rows.wanted)):
            if without and self.bad == "fail":
                raise InputError(
                    f"the record at offset {without[0].offset} of {tp} can't be read: {without[0].reason}. "
                    "Correct key=, value= or schema=, or set bad='skip' to leave such records out",
                    topic=tp.topic, partition=tp.partition, offset=without[0].offset,
                )  # fmt: skip
            refused += without
            collector.emitBatch(batch)
            yield
        # Only now: a client goes on in a new topic of the same name without an error, so these may be its records.
        self._readers.check(span)
        why = f"{tp}, offset {refused[0].offset}: {refused[0].reason}" if refused else ""
        self._left_out += LeftOut(self._gone, len(refused), why)

    def _throttled(self, event: Any) -> None:
        """Note that a broker has held a request back; called by a client that is being read from."""
        self._throttled_secs += event.throttle_time

    def _trace(self, messages: Sequence[Message]) -> None:
        """Note the trace contexts of some messages, each once; looking into all of them would cost as much as rows."""
        found = [] if len(self._traces) >= TRACES_MAX else traces_of(messages[:TRACED_ROWS])
        self._traces = list(dict.fromkeys([*self._traces, *found]))[:TRACES_MAX] if found else self._traces

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
        Their names; or a pattern that names must match as a whole, those that come later too. A later start may name
        others; a topic that is named again continues where it was left.
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
        Where the first start begins: ``"earliest"``, ``"latest"``, a time with a time zone, or
        ``{topic: {partition: offset}}``, in which partitions that are not named begin with the earliest. Later starts
        ignore it.
    maxRows : int, optional
        What a transaction reads at most, of all partitions together. Rows are counted as offsets.
    isolation : str
        ``"read_committed"``, or ``"read_uncommitted"``, which also reads what producers may take back.
    unavailable : str
        What to do while the leader of a partition does not answer: ``"wait"`` plans no transaction until all leaders
        answer, ``"skip"`` plans those of the other partitions. Nothing is lost: the partition goes on where it was.
    lost : str
        What to do when records were deleted before they were read, or their topic was deleted or made again: ``"fail"``
        ends the query with an error that names partition and offsets, ``"skip"`` continues after them, and logs how
        many offsets these were.
    bad : str
        What to do with a record that is not what `key` and `value` say: ``"fail"`` or ``"skip"``.
    group : str, optional
        A consumer group to which committed offsets are reported, for tools that watch its lag; nothing depends on it.
        None: no group.
    patience : float
        Seconds that a task waits for records without any progress, before the transaction is retried. Choose it below
        ``topology.transaction.timeout.secs`` and above the time that the cluster takes to elect a leader.
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

    _ranges: Ranges | None = None

    # ---- both

    def open(self, context: Context) -> None:
        group = self._name_group(context)
        if context.task != DRIVER:
            self._readers = Readers(
                self.clients, group, self.patience_secs, self._pass_over, self._throttled, self._trace
            )
            return
        cluster = Cluster(self.clients, group, self.topics, skips=self.unavailable == "skip")
        self._ranges = Ranges(cluster, self.start, self.rows_max, self._losses)

    def close(self) -> None:
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
        return self._planning.to_plan()

    def planPartitionBatch(self, partition: int, lastMetadata: Any) -> Any:
        return self._planning.plan(partition, lastMetadata)

    def partitionsToForget(self) -> list[int]:
        return self._planning.to_forget()

    def isFinished(self, partition: int, metadata: Any) -> bool:
        """Return whether the partition's topic was deleted, as far as `lost` allows that."""
        return metadata is None or "gone" in metadata

    def committed(self, metadata: Mapping[int, Any]) -> Any:
        return self._progress(metadata, self._planning.cluster, self._planning.known_ends)

    # ---- in the tasks

    def emitPartitionBatch(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, metadata: Any
    ) -> Iterator[None]:
        span = Span.of(metadata)
        assert self._readers is not None
        self._left_out += LeftOut(metadata.get("gap", 0))
        if span.start == span.end:
            return
        if attempt.attempt and self._readers.is_gone(span):
            self._losses.made_again(span.tp, span.start)
            self._losses.pass_over(span.tp, span.start, span.end)
            self._left_out += LeftOut(span.end - span.start)
            return
        yield from self._emit(collector, span)


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
        Not ``"latest"``: a task that looks later would begin at another offset. A time is also where partitions begin
        that come later, so a later start must give the same one, or ``"earliest"``.
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
        isolation: str = "read_committed",
        lost: Policy = "fail",
        bad: Policy = "fail",
        group: str | None = GROUP,
        patience: float = 30.0,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            servers, topics, value, schema, key=key, columns=columns, start=start,
            maxRows=maxRows, isolation=isolation,
            unavailable="skip", lost=lost, bad=bad, group=group, patience=patience, config=config,
        )  # fmt: skip
        if not isinstance(self.topics, list):
            raise TopologyError(f"OpaqueKafkaSpout: topics are names, ['a', 'b'], and no pattern: {topics!r}")
        if self.start == "latest":
            raise TopologyError(
                "OpaqueKafkaSpout: start='latest' would be another offset for each task that looks: give a time, the "
                "same one in each start, start=datetime(2026, 12, 31, tzinfo=timezone.utc)"
            )
        # In the metadata, since a task that reads a partition for the first time can't tell a later start.
        self._since = {"since": str(self.start.astimezone(UTC))} if isinstance(self.start, datetime) else {}
        self._names: list[str] = self.topics
        self._cluster: Cluster | None = None

    def open(self, context: Context) -> None:
        group = self._name_group(context)
        self._cluster = Cluster(self.clients, group, self.topics, skips=True)
        if context.task != DRIVER:
            self._readers = Readers(
                self.clients, group, self.patience_secs, self._pass_over, self._throttled, self._trace
            )
        self._ends: dict[TopicPartition, int] = {}
        self._count = 0
        self._read: set[str] = set()
        """Topics of which something was read, as the driver knows."""
        self._attempt: TransactionAttempt | None = None

    def close(self) -> None:
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
        """Refuse other topics or times than before; InputError too if a topic is not there, or no broker answered."""
        for number, said in metadata.items():
            now = self._partition(number)
            if now != (said["topic"], said["partition"]):
                raise InputError(
                    f"partition {number} was {said['topic']}-{said['partition']}, and is {now} with "
                    f"topics={self._names!r}: go back to the former topics, in their order, or start with a new "
                    "checkpointLocation",
                    topic=said["topic"],
                )
            if self._since and said.get("since") != self._since["since"]:
                raise InputError(
                    f"start= is the time {self._since['since']}, and was {said.get('since', 'no time')} when this "
                    "checkpoint began: in partitions that were never read, records before this one would be skipped. "
                    "Give the former, or 'earliest', by which they are read from their beginning",
                    topic=said["topic"],
                )
        self._count = max(metadata, default=-1) + 1
        self._read = {said["topic"] for said in metadata.values()}
        if not metadata and (why := self.clients.connect(self._topics_view.consumer)) is not None:
            raise InputError(why)
        self._topics_view.insist(lambda: self._topics_view.discover(self._read))

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
        self._read |= {said["topic"] for said in metadata.values()}
        return self._progress(metadata, self._topics_view, self._ends)

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
            if planned["start"] < planned["end"]:
                for _ in self._emit(collector, Span.of(planned)):
                    emitted = True
                    yield
        except FailedException as why:
            if emitted:  # the next attempt is without this partition, if its leader is still away then
                raise
            logger.warning("%s is skipped in transaction %d: %s", tp, attempt.txid, why.message)
            return None
        self._left_out += LeftOut(planned.get("gap", 0))
        return planned

    def _plan(self, attempt: TransactionAttempt, tp: TopicPartition, last: Any) -> Any:
        cluster = self._topics_view
        if attempt != self._attempt:
            self._attempt = attempt
            if attempt.attempt:  # a topic may have been made again since the last look
                cluster.look_again()
        cluster.discover(self._names)  # none counts as missing: the driver has refused those that never were there
        share = None if self.rows_max is None else max(1, self.rows_max // max(1, len(cluster.partitions)))
        planned = Ranges(cluster, self._start_of(tp), share, self._losses).of(tp, last)
        return planned and planned | self._since

    def _start_of(self, tp: TopicPartition) -> Start:
        """Return where the partition begins; of other partitions nothing is asked."""
        if not isinstance(self.start, Mapping):
            return self.start
        first = self.start.get(tp.topic, {}).get(tp.partition)
        return "earliest" if first is None else {tp.topic: {tp.partition: first}}
