"""A topic of Kafka as the target of a sink: messages and marker in one transaction of Kafka.

::

    marker()     the committed offset of the group that is named after the transactional id, with JSON as its metadata
    publish()    init_transactions, read the marker again;  begin, messages, marker, commit

It is natural to read the marker, and to publish if it is at the transaction before. This order of events breaks it:
driver A reads the marker and sleeps; B takes over, publishes t and moves the marker; A wakes up and publishes t once
more. So `init_transactions` comes first. It ends what an earlier producer of the transactional id has begun, and has
the brokers refuse that producer from then on. A marker that is read after it can change only by a producer that comes
later, and refuses this one (rule 10.8).

One would also keep the producer for the next transaction: a commit takes 16 to 51 ms with it, 130 to 330 with a new
one. The client resends, over another connection, what was in flight on one that it has lost, so a broker may find the
first copy much later. Brokers tell transactions apart by the epoch alone, which `init_transactions` raises and a
commit does not (KIP-890 would; librdkafka 2.16 lacks it). Within an epoch these copies are dangerous:

    EndTxn(commit) of t        in t+1, before its marker: rows without a marker, which are published again
    EndTxn(abort) of t         in the next attempt, after its rows: a marker without rows
    TxnOffsetCommit of t       in t+1, after its own marker: rows with the marker of t, which are published again

So a producer is kept only while it has lost no connection and none of its calls has failed (rule 10.11). Copies of
other requests do no harm: a message has a number and is written once; a partition that is added to a transaction
without rows changes nothing; and a producer that a late `InitProducerId` refuses fails.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import repeat
from typing import Any

import pyarrow as pa

from statefx.connectors.kafka.clients import (
    Answer,
    Clients,
    answer,
    bounded,
    close_consumer,
    has_code,
    kafka,
    patiently,
    text_of,
)
from statefx.connectors.staged import StagedRows, Target
from statefx.errors import SinkError
from statefx.operators.sinks import Marker, marker_gone

logger = logging.getLogger("statefx")

# ---- who publishes where

_REMEDIES = {
    **dict.fromkeys(
        ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"),
        "a broker has just started and is not ready yet",
    ),
    **dict.fromkeys(
        ("_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"),
        "make topic {topic!r} first; if it was deleted, the marker is gone with it: start with adopt='takeover' then",
    ),
    "_UNKNOWN_PARTITION": "add partitions to topic {topic!r}: it has fewer than when the rows were prepared",
    "TOPIC_AUTHORIZATION_FAILED": "allow {user} Write and Read of topic {topic!r}",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "allow {user} Write of the transactional id {id!r}",
    "GROUP_AUTHORIZATION_FAILED": "allow {user} Read of the consumer group {id!r}",
    "CLUSTER_AUTHORIZATION_FAILED": "allow {user} IdempotentWrite of the cluster",
    "INVALID_TRANSACTION_TIMEOUT": "lower transactionTimeoutSecs, or raise the broker's transaction.max.timeout.ms",
    "MSG_SIZE_TOO_LARGE": "raise max.message.bytes of topic {topic!r} to what it was when the rows were prepared",
    "INVALID_TIMESTAMP": "the time of a message is too far from the broker's clock: raise "
    "message.timestamp.before.max.ms or message.timestamp.after.max.ms of topic {topic!r}; before Kafka 4, "
    "message.timestamp.difference.max.ms",
    "INVALID_RECORD": "topic {topic!r} is compacted now, and a message has no key: set its cleanup.policy back to "
    "what it was when the rows were prepared",
    "NOT_ENOUGH_REPLICAS": "fewer brokers are there than min.insync.replicas of topic {topic!r}: start the others",
    "_FENCED": "another driver has taken over, or the broker has ended a transaction that took too long; the next "
    "try finds out which",
    "_FATAL": "another driver has taken over; the next try finds out whether it has",
}
"""What to do, by the code of an error."""


@dataclass(frozen=True, slots=True)
class Publisher:
    """A transactional id, and the topic that it publishes to."""

    clients: Clients
    topic: str
    transactional_id: str

    @property
    def target(self) -> str:
        return f"kafka://{self.clients.servers}/{self.topic}#{self.transactional_id}"

    def refusal(self, what: str) -> SinkError:
        """Return an error that names the target and says `what` is wrong there."""
        return SinkError(f"{self.target}: {what}", target=self.target)

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Raise what the client raises as SinkError, which names the target, the reason and the remedy."""
        try:
            yield
        except kafka().KafkaException as error:
            name = error.args[0].name()
            remedy = _REMEDIES.get(name, "").format(topic=self.topic, id=self.transactional_id, user=self.clients.user)
            raise self.refusal(f"{self.clients.reason(error)} ({name}){remedy and ': '}{remedy}") from error


# ---- what the topic and its brokers allow: asked without writing anything

CALL_SECS = 20.0
"""How long one question to the brokers may take, with all that it is asked again."""

_ASK_SECS = 5.0
"""How long one question may take before it is asked again, by another client if this one knows no broker."""

_SILENT = ("_TRANSPORT", "_TIMED_OUT")

_LIMITS_SECS = 60.0
"""How long a process believes what it knows of a topic's limits."""

_PAST, _FUTURE = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
_BOTH = "message.timestamp.difference.max.ms"
"""Of brokers before 4.0. Those before 3.6 have no other, and later ones go by it where the others have no limit."""

_NO_LIMIT = str(2**63 - 1)

_DEFAULTS = {
    "max.message.bytes": "1048588",
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    _PAST: _NO_LIMIT,
    _FUTURE: "3600000",
}
"""Kafka's own, for a topic whose configuration nobody may read, or of a broker that has no such setting."""


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Limits of a topic.

    `message_bytes_max` counts all that Kafka adds to a message, and of several that are sent together. A `compacted`
    topic keeps the newest message of each key only: a message must have one then. `past_ms_max` and `future_ms_max` are
    how far a message's time may be before and behind the broker's clock; None where the broker sets the time itself.
    """

    partitions: int
    message_bytes_max: int
    compacted: bool
    past_ms_max: int | None
    future_ms_max: int | None

    @classmethod
    def of(cls, partitions: int, settings: Mapping[str, str]) -> TopicLimits:
        found = {**_DEFAULTS, **settings}
        if (both := settings.get(_BOTH)) is not None:
            found |= {name: both for name in (_PAST, _FUTURE) if settings.get(name, _NO_LIMIT) == _NO_LIMIT}
        bytes_max = int(found["max.message.bytes"])
        if found["compression.type"] not in ("producer", "uncompressed"):
            # The broker compresses messages again and checks their size again. What can't be compressed grows:
            # 1,048,588 random bytes by up to 530 (gzip, snappy).
            bytes_max -= 64 + bytes_max // 1024
        own_times = found["message.timestamp.type"] == "LogAppendTime"
        return cls(
            partitions,
            bytes_max,
            "compact" in found["cleanup.policy"],
            None if own_times else int(found[_PAST]),
            None if own_times else int(found[_FUTURE]),
        )


_known_limits: dict[tuple[str, str], tuple[float, TopicLimits]] = {}


def limits_of(publisher: Publisher, *, age_secs_max: float = _LIMITS_SECS) -> TopicLimits:
    """Return what a topic can take, as of `age_secs_max` ago at most; or what was known last, if nobody can be asked.

    SinkError if the topic is not there; or if nobody can be asked, and this process has never known.
    """
    topic = publisher.clients.servers, publisher.topic
    when, limits = _known_limits.get(topic, (0.0, None))
    if limits is None or time.monotonic() - when >= age_secs_max:
        try:
            limits = Questions(publisher).limits()
        except SinkError as error:
            if limits is None or has_code(error.__cause__, "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"):
                raise
            logger.warning("%s; the sink goes on with the limits of the topic that it knew before", error.message)
        _known_limits[topic] = time.monotonic(), limits
    return limits


class Questions:
    """Questions to the brokers that write nothing."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    @cached_property
    def _admin(self) -> Any:
        return self._publisher.clients.admin(CALL_SECS)

    def connect(self) -> None:
        """Connect; SinkError with the reason and the remedy if no broker can be reached."""
        if (why := self._publisher.clients.connect(self._admin)) is not None:
            raise self._publisher.refusal(why)

    def limits(self) -> TopicLimits:
        """Return what the topic can take; SinkError if it is not there, or nobody answers."""
        topic = self._publisher.topic

        def ask(left: float) -> Any:
            found = self._listed(left, topic).topics[topic]
            if found.error is not None:
                raise kafka().KafkaException(found.error)
            return found

        with self._publisher.translated_errors():
            found = patiently(ask, CALL_SECS, *_SILENT, "LEADER_NOT_AVAILABLE", "UNKNOWN_TOPIC_OR_PART")
        return TopicLimits.of(len(found.partitions), self._settings(kafka().admin.RESOURCE_TOPIC, topic))

    def timeout_ms_max(self) -> int | None:
        """Return the longest transaction that the broker allows; None if it does not say."""
        with self._publisher.translated_errors():
            brokers = patiently(self._listed, CALL_SECS, *_SILENT).brokers
        if not brokers:  # one that has just started answers before it counts itself
            return None
        found = self._settings(kafka().admin.RESOURCE_BROKER, str(next(iter(brokers))))
        return int(found["transaction.max.timeout.ms"]) if found else None

    def _listed(self, secs: float, *topic: str) -> Any:
        try:
            return self._admin.list_topics(*topic, timeout=min(secs, _ASK_SECS))
        except kafka().KafkaException as error:
            if has_code(error, "_TRANSPORT"):
                del self._admin  # see `Clients.is_stranded`
            raise

    def allowed(self) -> set[str]:
        """Return what the user may do with the topic: ``WRITE``, ``READ``...; nothing if the broker does not say."""
        topic = self._publisher.topic
        asked = kafka().TopicCollection([topic])
        try:
            future = self._admin.describe_topics(asked, include_authorized_operations=True, request_timeout=CALL_SECS)
            return {operation.name for operation in answer(future[topic], CALL_SECS).authorized_operations or ()}
        except kafka().KafkaException as error:
            logger.debug("%s: can't see what is allowed: %s", self._publisher.target, error)
            return set()

    def _settings(self, kind: Any, name: str) -> dict[str, str]:
        """Return the settings of a topic or broker; none if they may not be read.

        Clients for administrators end the process by a failed assertion when a broker goes away under a question to the
        coordinator of a group (librdkafka's issue 4605, in 2.6 and in 2.16 alike): offsets and members of groups must
        not be asked for by them. This question goes to any broker, and was asked 450 times of one that was killed and
        stopped at random.
        """
        resource = kafka().admin.ConfigResource(kind, name)
        try:
            future = self._admin.describe_configs([resource], request_timeout=CALL_SECS)[resource]
            entries = answer(future, CALL_SECS).values()
            return {entry.name: entry.value for entry in entries if entry.value is not None}
        except kafka().KafkaException as error:
            logger.debug("%s: can't read the settings of %s: %s", self._publisher.target, name, error)
            return {}


# ---- the topic as a target

_STABLE_SECS = 2.0
"""How long the first look at a marker waits for a transaction under way to end.

Kafka answers a commit before readers see it. A driver that starts right after that must not take the marker before it
for the last one: the log is ahead of that marker."""

_MARKER_ASK_SECS = 2.0
"""How long one question for the marker may take before it is asked again."""

_DENIED = ("GROUP_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED")

_MARKED_PARTITION = 0  # a group can't have an offset of a partition that the topic lacks

_ABORT_SECS = 5.0
"""How long an abort may take; if it does not come through, the next `init_transactions` or the broker aborts."""

_POLL_EVERY = 1_000
"""Messages between two looks at what the broker has answered."""

_FULL_SECS = 0.005
"""The pause while the client has as much to send as it takes."""

_LOST = re.compile("FAIL|REQTMOUT")
"""How lines about a connection or a request that is lost begin."""

_CONNECTING = re.compile(r" in state (TRY_)?CONNECT\b")
"""Lines about a connection that has never carried a request: to the first of two addresses of a name, say."""

_BATCH_BYTES = 1_000_000
"""librdkafka's default of ``batch.size``."""

_MESSAGE_BYTES = 1_000_000_000
"""What the client lets pass at most. The tasks look at sizes; another look here would refuse what was decided when the
topic's limit is raised under a warm producer."""


class KafkaTopic(Target):
    """One topic, and the marker of one transactional id; a transaction of Kafka may take `timeout_secs`."""

    def __init__(self, publisher: Publisher, timeout_secs: float, *, keyed: bool) -> None:
        self._publisher, self._timeout_secs, self._keyed = publisher, timeout_secs, keyed
        self._kafka = kafka()
        self._questions = Questions(publisher)
        self._producer: Any = None
        self._has_lost = False
        """Whether the producer has lost a connection or a request (rule 10.11)."""
        self._consumers: dict[str, Any] = {}
        """By isolation level."""
        self._published: Marker | None = None
        """The marker that the producer has published last."""

    def check(self) -> None:
        publisher, questions = self._publisher, self._questions
        questions.connect()
        limits = limits_of(publisher, age_secs_max=0)
        if limits.compacted and not self._keyed:
            raise publisher.refusal(
                f"topic {publisher.topic!r} is compacted, and takes no message without a key: give KafkaSink key=, or "
                "write to a topic with cleanup.policy=delete"
            )
        allowed_ms = questions.timeout_ms_max()
        if allowed_ms is not None and self._timeout_secs * 1000 > allowed_ms:
            raise publisher.refusal(
                f"transactionTimeoutSecs is {self._timeout_secs:g}, and the broker allows {allowed_ms / 1000:g} s: "
                "lower it, or raise the broker's transaction.max.timeout.ms"
            )
        lacking = sorted({"WRITE", "READ"} - (questions.allowed() or {"WRITE", "READ"}))
        if lacking:
            # The rest is asked for before anything is read: the start writes a marker.
            raise publisher.refusal(
                f"{publisher.clients.user} lacks {' and '.join(lacking)} of topic {publisher.topic!r}: allow both "
                "WRITE (its messages) and READ (the marker is an offset of it)"
            )

    def marker(self) -> Marker | None:
        if self._producer is not None and self._published is not None:
            return (
                self._published
            )  # a driver that has changed it since has fenced this producer, and `publish` notices that
        with self._publisher.translated_errors():
            # Else each question below waits for brokers that are away, one after the other: over a minute in all, in
            # which `query.status` does not say that they are.
            self._questions.connect()
            self.is_settled = True
            try:
                found = self._stable_marker(_STABLE_SECS)
            except self._kafka.KafkaException as error:
                if has_code(error, *_DENIED):
                    raise
                # A driver that died in a transaction has left it open: until `init_transactions` ends it, only what
                # was there before can be read. Or a broker that is slow, or has just started, has not ended what it
                # has answered: with the marker before that the target would be said to come from a backup.
                self.is_settled = False
                found = self._parsed(self._committed("read_uncommitted", CALL_SECS))
        if found is None:  # a deleted topic takes the marker with it: the error must name the topic
            limits_of(self._publisher, age_secs_max=0)
        return found

    def settled(self) -> Marker | None:
        found = self.marker()
        if not self.is_settled:
            self._drop_producer()
            with self._publisher.translated_errors():
                self._producer = self._initialised()
                found = self._stable_marker(CALL_SECS)
            self.is_settled = True
        return found

    def _stable_marker(self, secs: float) -> Marker | None:
        return self._parsed(self._committed("read_committed", secs))

    def _committed(self, level: str, secs: float) -> Any:
        """Return the offset of the group; with ``read_committed`` once no transaction that holds it is under way."""
        consumer = self._reader(level)
        place = [self._kafka.TopicPartition(self._publisher.topic, _MARKED_PARTITION)]

        def ask(left: float) -> Any:
            try:
                (found,) = bounded(lambda secs: consumer.committed(place, timeout=secs), min(left, _MARKER_ASK_SECS))
            except self._kafka.KafkaException:
                told = consumer.poll(0)  # the call times out where access to the group is denied: an event says so
                if told is None or told.error() is None:
                    raise
                raise self._kafka.KafkaException(told.error()) from None
            if found.error is not None:
                raise self._kafka.KafkaException(found.error)
            return found

        try:
            return patiently(ask, secs, "_TIMED_OUT")
        except self._kafka.KafkaException:
            if self._publisher.clients.is_stranded(consumer):
                del self._consumers[level]
            raise

    def _parsed(self, found: Any) -> Marker | None:
        if found.offset < 0:
            return None
        try:
            return Marker(**json.loads(found.metadata))
        except (TypeError, ValueError):
            raise self._publisher.refusal(
                f"consumer group {self._publisher.transactional_id!r} has an offset that is no marker: somebody has "
                "reset it, or uses the group. Give the sink another transactionalId; or delete the group, look at the "
                "end of the topic, and start with adopt='takeover'"
            ) from None

    def publish(self, marker: Marker, previous: Marker | None, rows: StagedRows) -> None:
        with self._publisher.translated_errors():
            if self._is_warm():
                try:
                    self._write(marker, rows)
                except self._kafka.KafkaException as error:
                    # Being refused proves no successor: a driver of before, which woke up in its start, has ended this
                    # producer, and sees by the marker that it is late.
                    if not error.args[0].fatal():
                        raise
                else:
                    return
            self._producer = self._initialised()
            # Only now: a producer of before may have been in the middle of its commit until `init_transactions`.
            found = self._stable_marker(CALL_SECS)
            if found is None and previous is not None:
                raise marker_gone(self._publisher.target)
            if found != previous:
                raise self._publisher.refusal("another driver has published meanwhile")
            self._write(marker, rows)

    def close(self) -> None:
        self._drop_producer()
        consumers, self._consumers = self._consumers, {}
        for consumer in consumers.values():
            close_consumer(consumer)

    def _is_warm(self) -> bool:
        """Return whether there is a producer of which no request can be under way any more (rule 10.11)."""
        if self._producer is not None:
            # The client notes that a connection is lost before it sends anything again: what the last commit needed to
            # be sent twice for is known by now.
            self._producer.poll(0)
            if self._has_lost:
                self._drop_producer()
        return self._producer is not None

    def _read_line(self, line: str) -> None:
        """Note that a connection or a request is lost, if a line of the log says so; errors don't tell of each."""
        if _LOST.match(line) and not _CONNECTING.search(line):
            self._has_lost = True

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        self._published = None
        if producer is not None:
            producer.purge()  # else its end would wait for a broker that does not answer

    def _write(self, marker: Marker, rows: StagedRows) -> None:
        began = time.monotonic()
        try:
            self._begin()
            for batch in rows:
                self._send(batch, began)
            self._mark(marker)
            self._commit()
            self._published = marker
        except BaseException as error:
            self._abort()
            if isinstance(error, self._kafka.KafkaException) and time.monotonic() - began > self._timeout_secs:
                raise self._too_slow(text_of(error)) from error
            raise

    # ---- the steps of a transaction of Kafka

    def _initialised(self) -> Any:
        """Return a producer after which no older one of this transactional id can write."""
        publisher = self._publisher
        self._questions.connect()  # as in `marker`
        limits = limits_of(publisher, age_secs_max=0)  # it may have been lowered, and be what has failed
        settings = {
            "transactional.id": publisher.transactional_id,
            "transaction.timeout.ms": int(self._timeout_secs * 1000),
            "log.connection.close": True,  # else no line says that a connection was closed
            "message.max.bytes": _MESSAGE_BYTES,
            # The topic's limit is one of what is sent together.
            "batch.size": min(limits.message_bytes_max, int(publisher.clients.setting("batch.size", _BATCH_BYTES))),
        }
        self._has_lost = False
        producer = publisher.clients.producer(self._read_line, **settings)
        self._patiently(producer.init_transactions)
        return producer

    def _begin(self) -> None:
        self._producer.begin_transaction()

    def _send(self, batch: pa.RecordBatch, began: float) -> None:
        topic, produce, poll = self._publisher.topic, self._producer.produce, self._producer.poll
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        pairs = zip(columns.pop("value"), columns.pop("key", repeat(None)), strict=False)
        more = _arguments(columns) if columns else repeat({})
        for number, (pair, others) in enumerate(zip(pairs, more, strict=False)):
            while True:
                try:
                    produce(topic, *pair, **others)
                    break
                except BufferError:  # the client has enough to send
                    if time.monotonic() - began > self._timeout_secs:
                        raise self._too_slow("messages are still to be sent") from None
                    poll(_FULL_SECS)
            if not number % _POLL_EVERY:
                poll(0)

    def _mark(self, marker: Marker) -> None:
        publisher = self._publisher
        group = self._reader().consumer_group_metadata()
        text = json.dumps(asdict(marker))
        place = self._kafka.TopicPartition(publisher.topic, _MARKED_PARTITION, max(marker.txid, 0), metadata=text)
        self._patiently(lambda secs: self._producer.send_offsets_to_transaction([place], group, secs))

    def _commit(self) -> None:
        """Commit; it fails if any message has not reached the broker."""
        self._patiently(self._producer.commit_transaction, self._timeout_secs)

    def _abort(self) -> None:
        """Let others read on: an open transaction hides from them what anybody has written behind it."""
        with suppress(self._kafka.KafkaException):
            self._producer.purge()
            bounded(self._producer.abort_transaction, _ABORT_SECS)
        self._drop_producer()  # what has failed, or the abort, may be under way still (rule 10.11)

    def _reader(self, level: str = "read_committed") -> Any:
        """Return a consumer; with ``read_committed`` it waits for transactions that hold an offset of the group.

        An administrator's `list_consumer_group_offsets` would say more, and was tried: where a broker was slow,
        librdkafka 2.16 aborted the process in it.
        """
        if level not in self._consumers:
            clients = self._publisher.clients
            self._consumers[level] = clients.consumer(self._publisher.transactional_id, **{"isolation.level": level})
        return self._consumers[level]

    def _patiently(self, call: Callable[[float], Answer], secs: float | None = None) -> Answer:
        """Call the producer, and again while it fails with an error that passes soon; by default for `CALL_SECS`."""
        return patiently(lambda left: bounded(call, left), CALL_SECS if secs is None else secs)

    def _too_slow(self, why: str) -> SinkError:
        return self._publisher.refusal(
            f"publishing took longer than {self._timeout_secs:g} s, after which the broker ends a transaction ({why}): "
            "raise transactionTimeoutSecs, or make transactions smaller"
        )


def _arguments(columns: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield what the client is given of each message besides value and key; it takes no None."""
    for values in zip(*columns.values(), strict=True):
        yield {name: value for name, value in zip(columns, values, strict=True) if value is not None}
