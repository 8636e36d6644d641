"""KafkaSpout: the topics of a cluster, read exactly once."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal

from statefx.errors import FailedException, InputError
from statefx.kafka.clients import Clients
from statefx.operators import Collector, Context, PartitionedTransactionalSpout, to_ddl
from statefx.operators.context import DRIVER
from statefx.operators.spouts import INCOMPLETE
from statefx.protocol.identity import TransactionAttempt
from statefx.spouts.kafka.arguments import (
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
from statefx.spouts.kafka.planning import Cluster, Limits, Shares, Sizes, Start, distances, first_offsets
from statefx.spouts.kafka.reading import Readers
from statefx.spouts.kafka.rows import Place, Refused, Rows, made_again
from statefx.spouts.kafka.settings import DEFAULTS, KEPT, OWNED

logger = logging.getLogger("statefx")

DEFAULT_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")
GROUP = "statefx.{application}.{spout}"

_DOUBT_AGAIN_SECS = 0.1
"""Between two looks of a start while it is not believed yet that a topic is not there."""

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
    schemas : Mapping of int to schema, optional
        For Avro whose values begin with the number of a schema in a registry: the schemas by their numbers.
    key : str
        What keys are: ``bytes`` or ``string``.
    columns : sequence of str
        Of ``key``, ``value``, ``topic``, ``partition``, ``offset``, ``timestamp`` and ``headers``: those that are
        emitted, in this order. ``value`` stands for all fields that are made of it.
    start : str, datetime or Mapping
        Where a first run begins: ``"earliest"``, ``"latest"``, a time with a time zone, or
        ``{topic: {partition: offset}}``, in which partitions that are not named begin with the earliest. Later runs go
        on where the last one has ended.
    maxRows, maxBytes, maxPartitions : int, optional
        What a transaction reads at most, of all partitions together. Rows are counted as offsets; bytes are estimated
        by records that the driver looks at.
    maxRecordBytes : int, optional
        Of key and value of a record; a larger one is refused (`bad`).
    isolation : str
        ``"read_committed"``, or ``"read_uncommitted"``, which also reads what producers may take back.
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
        confluent-kafka is not installed, or a setting can't be used.
    TopologyError
        An argument can't be used.
    """

    def __init__(
        self,
        servers: str,
        topics: str | Sequence[str] | re.Pattern[str],
        value: str = "bytes",
        schema: Any = None,
        *,
        schemas: Mapping[int, Any] | None = None,
        key: str = "bytes",
        columns: Sequence[str] = DEFAULT_COLUMNS,
        start: Start = "earliest",
        maxRows: int | None = 1_000_000,
        maxBytes: int | None = None,
        maxPartitions: int | None = None,
        maxRecordBytes: int | None = None,
        isolation: str = "read_committed",
        lost: Policy = "fail",
        bad: Policy = "fail",
        group: str | None = GROUP,
        patience: float = 30.0,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.topics = topics_of(topics)
        self.start = start_of(start, self.topics)
        check_bound("maxRows", maxRows)
        check_bound("maxBytes", maxBytes)
        check_bound("maxPartitions", maxPartitions)
        check_bound("maxRecordBytes", maxRecordBytes)
        check_choice("isolation", isolation, ("read_committed", "read_uncommitted"))
        check_choice("lost", lost, ("fail", "skip"))
        check_choice("bad", bad, ("fail", "skip"))
        self.limits = Limits(maxRows, maxBytes, maxPartitions)
        self.isolation, self.lost, self.bad = isolation, lost, bad
        self.group, self.patience_secs = group_of(group), patience_of(patience)
        values = format_of(value, schema, schemas)
        self.rows = Rows(values, key, columns_of(columns, values), maxRecordBytes)
        self.outputFields = to_ddl(self.rows.schema)
        self.clients = Clients("KafkaSpout", servers, config, OWNED, DEFAULTS, {**KEPT, "isolation.level": isolation})
        self._cluster: Cluster | None = None
        self._readers: Readers | None = None

    # ---- both

    def reads(self, target: str) -> bool:
        """Tell whether it is one of the topics."""
        return is_target(target, self.clients.servers, self.topics)

    def open(self, context: Context) -> None:
        """Make the clients; they connect when they are asked something."""
        named = {"application": context.config["topology.transactional.id"], "spout": context.component}
        self._group = None if self.group is None else self.group.format(**named)
        reading = self._group or GROUP.format(
            **named
        )  # a client must have the name of one, and never tells it anything
        if context.task != DRIVER:
            self._readers = Readers(self.clients, reading, self.patience_secs, self._pass_read)
            return
        self._cluster = Cluster(self.clients, reading, self.topics)
        self._shares = Shares(self.limits)
        self._sizes = Sizes(self._cluster.consumer) if self.limits.bytes is not None else None
        self._numbers: list[Place | None] = []
        self._first: dict[Place, int] | None = None
        """Where a first run begins, as of the first look: partitions that come later begin at their beginning."""
        self._until: dict[Place, int] | None = None
        """Where it ends, if it reads what was there when it began (`prepareForAvailableNow`)."""
        self._bounded = self._has_looked = False
        self._ends: dict[Place, int] = {}
        self._read: dict[Place, Any] = {}
        self._planned: dict[Place, Any] = {}
        """What the last look has planned, and no transaction is known to have begun with."""

    def close(self) -> None:
        """End the clients."""
        if self._readers is not None:
            self._readers.close()
        if self._cluster is not None:
            self._cluster.close()

    # ---- on the driver

    @property
    def _there(self) -> Cluster:
        assert self._cluster is not None
        return self._cluster

    def prepareForAvailableNow(self) -> None:
        """End where the partitions end at the first look; what comes later is for the next run."""
        self._bounded = True

    def initPartitions(self, metadata: Mapping[int, Any]) -> None:
        """Take over which number stands for which partition: the metadata of each says it; and look what there is.

        So a topic that is not there, or access that is denied, is told by the start. Nobody who answers is none: the
        query waits, and its status says so.
        """
        self._numbers = [None] * (max(metadata, default=-1) + 1)
        for number, said in metadata.items():
            self._numbers[number] = place = Place(said["topic"], said["partition"])
            self._read[place] = said
        while not self._has_looked:
            try:
                self.numPartitions()
                self._has_looked = True
            except FailedException:
                if not self._there.doubts:
                    return
                time.sleep(_DOUBT_AGAIN_SECS)

    def numPartitions(self) -> int:
        """Look what there is, and return how many partitions there have been; new ones come last."""
        if self._has_looked:  # a moment ago, by the start
            self._has_looked = False
            return len(self._numbers)
        cluster = self._there
        cluster.discover({place.topic for place in self._read | self._planned})
        known = set(self._numbers)
        new = iter([place for place in cluster.places if place not in known])
        self._numbers = [next(new, None) if place is None else place for place in self._numbers]
        self._numbers += new
        self._look()
        return len(self._numbers)

    def _look(self) -> None:
        """Ask what there is to be read of all partitions, and share out what a transaction may read."""
        cluster, read, listed = self._there, self._read | self._planned, set(self._there.places)
        numbers = {place: number for number, place in enumerate(self._numbers) if place is not None and place in listed}
        self._ends = cluster.ends(numbers)
        self._starts = self._begin_fresh([place for place in numbers if place not in read], bool(read))
        starts = self._starts | {place: read[place]["end"] for place in numbers if place in read}
        self._end_now(starts)
        lags = {place: lag for place, start in starts.items() if (lag := self._readable(place) - start) > 0}
        self._beginnings = cluster.beginnings(
            place for place in lags if place not in self._starts or self.start != "earliest"
        )
        sizes = {} if self._sizes is None else self._sizes.of({place: starts[place] for place in lags})
        self._share = self._shares.of(
            {numbers[place]: lag for place, lag in lags.items()},
            {numbers[place]: size for place, size in sizes.items()},
        )

    def _begin_fresh(self, fresh: Sequence[Place], later: bool) -> dict[Place, int]:
        """Return where partitions begin that nothing was read of; `later`: others were read."""
        if self._first is None:
            # A first run begins where it was told to. What is found later is all new.
            known = later or self.start == "earliest"
            self._first = {} if known else first_offsets(self._there, self.start, fresh)
        found = self._there.beginnings([place for place in fresh if place not in self._first])
        return found | {place: self._first[place] for place in fresh if place in self._first}

    def _end_now(self, starts: Mapping[Place, int]) -> None:
        """Take down where this run ends, unless a broker that starts says that less is there than was read."""
        if self._bounded and self._until is None and all(self._ends[place] >= at for place, at in starts.items()):
            self._until = dict(self._ends)

    def _readable(self, place: Place) -> int:
        """Return how far a partition is read, at most."""
        return self._ends[place] if self._until is None else self._until.get(place, -1)

    def planPartitionBatch(self, partition: int, lastMetadata: Any) -> Any:
        """Return the next range of offsets.

        The first one of a partition says where it begins, also if there is nothing in it yet: ``latest`` would be
        another offset after a restart.
        """
        place = self._numbers[partition]
        if place is None:
            return None
        former = self._planned.get(place, self._read.get(place))
        self._planned.pop(place, None)
        self._read |= {place: lastMetadata} if lastMetadata is not None else {}
        if lastMetadata != former:  # what was planned last never began: the shares were those of other ranges
            self._planned.clear()
            self._look()
        if (found := self._begin(place, lastMetadata)) is None:
            return None
        start, skipped = found
        if self._until is not None and place not in self._until:
            return None  # it came later: the next run reads it from its beginning
        end = max(start, min(self._readable(place), start + self._share.get(partition, 0)))
        topic_id = self._there.ids[place.topic]
        if lastMetadata is not None and (end, topic_id) == (lastMetadata["end"], lastMetadata["id"]):
            return None
        planned = {"topic": place.topic, "partition": place.partition, "id": topic_id, "start": start, "end": end}
        self._planned[place] = planned | ({"skipped": skipped} if skipped else {})
        return self._planned[place]

    def _begin(self, place: Place, last: Any) -> tuple[int, int] | None:
        """Return where a batch begins, and how many offsets of the partition were passed over; None if none does."""
        if last is not None:
            return self._went_on(place, last)
        if place not in self._starts:
            return None
        start = self._starts[place]
        first = self._beginnings.get(place, start)
        return self._pass(place, start, first) if first > start else (start, 0)

    def _went_on(self, place: Place, last: Any) -> tuple[int, int] | None:
        """Return where a partition goes on, and how many offsets were passed over in it; None if it does not."""
        cluster, start, skipped = self._there, last["end"], last.get("skipped", 0)
        topic_id = cluster.ids.get(place.topic)
        if cluster.doubted(f"topic {place.topic!r}", topic_id is None):
            if self.lost == "fail":
                raise InputError(
                    f"topic {place.topic!r} was deleted; {place} was read up to offset {start}. Start with a new "
                    "checkpointLocation, or set lost='skip' to go on with the other topics",
                    topic=place.topic, partition=place.partition, offset=start,
                )  # fmt: skip
            return None
        if topic_id != last["id"]:
            if self.lost == "fail":
                raise InputError(made_again(place, start), topic=place.topic, partition=place.partition, offset=start)
            if place not in self._ends:
                return None  # the new one has fewer partitions
            logger.warning("%s", made_again(place, start))
            return self._there.beginnings([place])[place], skipped
        if cluster.doubted(f"the end of {place}", self._ends[place] < start):
            raise InputError(
                f"{place} was read up to offset {start}, and now ends at {self._ends[place]}: its last records were "
                "lost in the cluster (an election of a replica that did not have them), or its data were restored. New "
                "records would take the offsets of those that were read. Start with a new checkpointLocation",
                topic=place.topic, partition=place.partition, offset=start,
            )  # fmt: skip
        first = self._beginnings.get(place, start)
        return self._pass(place, start, first, skipped) if first > start else (start, skipped)

    def committed(self, metadata: Mapping[int, Any]) -> Any:
        """Tell the group what was read, and the progress how far that is behind what there was at the last look."""
        read = {Place(said["topic"], said["partition"]): said["end"] for said in metadata.values()}
        if self._group is not None:
            self._there.tell_group(read)
        return distances(read, self._ends)

    # ---- in the tasks

    def emitPartitionBatch(
        self, attempt: TransactionAttempt, collector: Collector, partition: int, metadata: Any
    ) -> Generator[None, None, Any]:
        """Emit a range of offsets, batch by batch; return INCOMPLETE if some of them were passed over."""
        place, start, end = Place(metadata["topic"], metadata["partition"]), metadata["start"], metadata["end"]
        assert self._readers is not None
        if start == end:
            return None
        if attempt.attempt and self._is_gone(place, metadata):
            return INCOMPLETE
        self._is_whole = True
        refused: list[Refused] = []
        for batch, without in self.rows.batches(place, self._readers.read(place, start, end, self.rows.wanted)):
            if without and self.bad == "fail":
                raise InputError(
                    f"the record at offset {without[0].offset} of {place} can't be read: {without[0].reason}. Mend "
                    "what KafkaSpout is told of key, value and sizes, or set bad='skip' to leave such records out",
                    topic=place.topic, partition=place.partition, offset=without[0].offset,
                )  # fmt: skip
            refused += without
            collector.emitBatch(batch)
            yield
        if self._readers.topic_id(place.topic) != metadata["id"]:
            # Only now it is sure that these were the records that were planned: a client goes on in a topic of the
            # same name without a word.
            self._readers.close()
            raise FailedException(f"topic {place.topic!r} was deleted while {place} was read; it is looked at again")
        if refused:
            logger.warning(
                "transaction %d leaves out %d records of %s between %d and %d; the first is %d: %s",
                attempt.txid, len(refused), place, start, end, refused[0].offset, refused[0].reason,
            )  # fmt: skip
        return None if self._is_whole else INCOMPLETE

    def _is_gone(self, place: Place, metadata: Any) -> bool:
        """Tell whether there is nothing left of what was planned; InputError if that is no matter of indifference."""
        assert self._readers is not None
        if self._readers.topic_id(place.topic) == metadata["id"]:
            return False
        if self.lost == "fail":
            said = made_again(place, metadata["start"])
            raise InputError(said, topic=place.topic, partition=place.partition, offset=metadata["start"])
        self._pass(place, metadata["start"], metadata["end"])
        return True

    def _pass_read(self, place: Place, start: int, first: int) -> None:
        """Pass over offsets of a batch that was planned, or refuse to."""
        self._pass(place, start, first)
        self._is_whole = False

    def _pass(self, place: Place, start: int, first: int, skipped: int = 0) -> tuple[int, int]:
        """Pass over offsets, or refuse to; return where it goes on, and how many of the partition were passed over."""
        said = f"{first - start} offsets of {place}, from {start} to before {first}, were deleted and never read"
        if self.lost == "fail":
            raise InputError(
                f"{said}: by the topic's retention, or by hand. Start with a new checkpointLocation, or set "
                "lost='skip' to go on behind them",
                topic=place.topic, partition=place.partition, start=start, stop=first,
            )  # fmt: skip
        logger.warning("%s; they are passed over (lost='skip')", said)
        return first, skipped + first - start
