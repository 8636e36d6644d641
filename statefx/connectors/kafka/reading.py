"""The records of a range of offsets, and no others; in the tasks."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from statefx.connectors.kafka.clients import (
    FAILURE_SECS,
    REQUEST_SECS,
    Clients,
    close_consumer,
    denial,
    describe_topics,
    has_code,
    kafka,
    text_of,
)
from statefx.connectors.kafka.planning import DOUBT_SECS, cut_off
from statefx.connectors.kafka.rows import Records, TopicPartition
from statefx.errors import FailedException, InputError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

logger = logging.getLogger("statefx")

TAKEN = 400
"""Messages that are taken from the client at once: fewer than the 700 new objects at which Python collects garbage."""

ROWS = 4_000
ROWS_BYTES = 16 << 20
"""How many records are held as objects of Python, more or less, and their bytes: more would no longer be in the
processor's second cache when they become columns."""

READERS_MAX = 16
"""Partitions that a task keeps warm. Each is a client with threads and up to 16 MB of its own; to use one for another
partition costs up to ``fetch.wait.max.ms``, since what it has asked for must be answered first."""

_AGAIN_SECS = 0.1
"""The pause between two questions to a broker that does not answer."""

_POLL_SECS = 0.5
"""How long one wait for records takes, in which no interrupt is noticed."""

NO_EPOCH = -1
"""No epoch is known of the leader of a partition."""


class Span(NamedTuple):
    """A range of offsets that was planned, up to before `end`.

    `topic_id` tells the topic from a later one of the same name. `start_epoch` is the epoch of the leader that had the
    records before `start`: the broker compares it with its own, and without it, a partition that has lost its last
    records, and has new ones at their offsets, looks like one that has grown. `end_epoch` is that of the leader that
    had the records before `end`.
    """

    tp: TopicPartition
    topic_id: str
    start: int
    end: int
    start_epoch: int = NO_EPOCH
    end_epoch: int = NO_EPOCH

    @classmethod
    def of(cls, planned: Mapping[str, Any]) -> Span:
        """Return the range that metadata of `planning.Ranges` says."""
        tp = TopicPartition(planned["topic"], planned["partition"])
        epochs = (planned.get(name, NO_EPOCH) for name in ("start_epoch", "end_epoch"))
        return cls(tp, planned["id"], planned["start"], planned["end"], *epochs)


class Reader:
    """One client, and one partition, which it goes on fetching between transactions.

    It waits up to `patience_secs` without any progress. `lost` is called with the partition, the first offset that is
    gone and the first that is there again, and returns to go on, or raises. `throttled` is called with
    confluent-kafka's ThrottleEvent when a broker has held a request back, `seen` with messages of the range.
    """

    def __init__(
        self,
        clients: Clients,
        group: str,
        patience_secs: float,
        lost: Callable[[TopicPartition, int, int], None],
        throttled: Callable[[Any], None] = lambda event: None,
        seen: Callable[[Sequence[Message]], None] = lambda messages: None,
    ) -> None:
        self._clients, self._seen = clients, seen
        self._consumer: Consumer = clients.consumer(group, throttle_cb=throttled)
        self._patience_secs = patience_secs
        self._lost = lost

        self._at: tuple[TopicPartition, int] | None = None
        """The offset that it would hand out next, if the last range was handed out whole."""
        self.topic_id = ""
        """The topic of what it has fetched."""
        self._ahead: list[Message] = []
        """Records behind the end of the last range."""
        self._next = 0
        """The offset that is expected next: each record before it was handed out, or is in `_ahead`."""
        self._end = 0
        """The end of the range that is read."""
        self._trouble = ""
        """The last error in this range that the client tries again by itself."""

    def read(self, span: Span, wanted: Collection[str]) -> Iterator[Records]:
        """Yield the records of a range.

        The last offsets of a range may have none: markers of transactions, rows of aborted ones, or what compaction
        took. That the end is reached is told by a record behind it, or by the client, which tells where it found the
        partition to end.

        FailedException: there was no progress for too long. InputError: access is denied, or `lost` has raised it.
        """
        tp, end = span.tp, span.end
        warm = (self._at, self.topic_id) == ((tp, span.start), span.topic_id)
        self._end, self.topic_id = end, span.topic_id
        self._at = None  # until the whole range is handed out: a reader that is given up before that seeks again
        self._trouble = ""
        if not warm:
            self._go_to(tp, span.start, span.start_epoch)
        limit = time.monotonic() + self._patience_secs
        records = Records(wanted)
        while True:
            messages = self._cut(end)
            self._seen(messages)
            records.add(messages)
            done = self._next >= end
            if records and (done or len(records) >= ROWS or records.size >= ROWS_BYTES):
                yield records
                records = Records(wanted)
                limit = time.monotonic() + self._patience_secs  # rows may have been kept waiting behind it
            if done:
                break
            if self._take(tp):
                limit = time.monotonic() + self._patience_secs
            elif time.monotonic() >= limit:
                trouble = self._clients.diagnosis(FAILURE_SECS) or self._trouble
                raise FailedException(
                    f"{tp}: nothing came for {self._patience_secs:g} s, and offsets from {self._next} to before "
                    f"{end} are still to be read{trouble and ': '}{trouble}"
                )
        self._at = tp, end

    def close(self) -> None:
        close_consumer(self._consumer)

    def _go_to(self, tp: TopicPartition, start: int, epoch: int = NO_EPOCH) -> None:
        self._ahead, self._next = [], start
        self._consumer.assign([kafka().TopicPartition(*tp, start, leader_epoch=epoch)])

    def _cut(self, end: int) -> list[Message]:
        """Return what was fetched of this range, and keep what is behind it."""
        ahead = self._ahead
        if not ahead or _offset(ahead[-1]) < end:
            self._ahead = []
            return ahead
        stop = bisect_left(ahead, end, key=_offset)
        self._ahead = ahead[stop:]
        return ahead[:stop]

    def _take(self, tp: TopicPartition) -> bool:
        """Take what is there, or wait a little for it; True if there was anything."""
        before = self._next
        messages = self._consumer.consume(TAKEN, 0)
        if not messages:
            # `consume` would wait until it has as many as it was asked for; `poll` returns with the first.
            if (first := self._consumer.poll(_POLL_SECS)) is None:
                return False
            messages = [first, *self._consumer.consume(TAKEN, 0)]
        events: list[Message] = []
        if any(map(kafka().Message.error, messages)):
            events = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
        if messages:
            self._check(tp, messages)
            self._ahead += messages
            self._next = _offset(messages[-1]) + 1
        for event in events:
            self._take_event(tp, event)
        return self._next > before

    def _check(self, tp: TopicPartition, messages: list[Message]) -> None:
        """Refuse records that are not the next ones of this partition: they would be counted as if they were."""
        first, last = messages[0], messages[-1]
        right = all((message.topic(), message.partition()) == tp for message in (first, last))
        if not right or not self._next <= first.offset() <= last.offset():  # type: ignore[operator]
            raise FailedException(
                f"{tp}: the client gave records of {first.topic()}-{first.partition()}, or offsets that were read"
            )

    def _take_event(self, tp: TopicPartition, event: Message) -> None:
        """Take what the client hands out that is no record: the end of the partition, or an error."""
        error = event.error()
        if has_code(error, "_PARTITION_EOF"):
            self._next = max(self._next, event.offset() or 0)
        elif has_code(error, "_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            self._pass_gap(tp, error)
        elif told := denial(error, what := f"{tp} can't be read from {self._next}"):
            raise told
        elif error is not None and error.fatal():
            raise FailedException(f"{what}: {text_of(error)}")
        else:
            self._trouble = text_of(error)  # type: ignore[arg-type]  # it is tried again by the client itself

    def _pass_gap(self, tp: TopicPartition, why: Any) -> None:
        """Find out which offsets are gone, and go on behind them if `lost` returns."""
        try:
            found = self._consumer.get_watermark_offsets(kafka().TopicPartition(*tp), REQUEST_SECS, cached=False)
        except kafka().KafkaException as error:
            raise self._clients.failure(error, f"the offsets of {tp} can't be asked for") from error
        # librdkafka has no code of its own for it.
        if "truncation" in text_of(why) and found is not None and found[0] <= self._next:
            raise cut_off(tp, self._next, f"was cut off before that: {text_of(why)}")
        if found is None or found[0] <= self._next <= found[1]:
            raise FailedException(f"{tp}: the broker did not have offset {self._next} a moment ago")
        if self._next > found[1]:
            raise FailedException(f"{tp} ends at {found[1]}, before {self._next}, up to which it was planned")
        # The next range counts the offsets that are gone behind the end of this one: it begins there, or where what was
        # fetched ahead ends.
        first = max(self._next, min(found[0], self._end))
        if first > self._next:
            self._lost(tp, self._next, first)
        ahead = self._ahead  # came together with this, and is not handed out yet
        self._go_to(tp, first)
        self._ahead = ahead


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None  # of a message that nobody has written yet
    return offset


class Readers:
    """The readers of a task: one for each partition, up to `READERS_MAX`; arguments as of `Reader`."""

    def __init__(
        self,
        clients: Clients,
        group: str,
        patience_secs: float,
        lost: Callable[[TopicPartition, int, int], None],
        throttled: Callable[[Any], None] = lambda event: None,
        seen: Callable[[Sequence[Message]], None] = lambda messages: None,
    ) -> None:
        self._clients, self._seen = clients, seen
        self._group = group
        self._patience_secs = patience_secs
        self._lost = lost
        self._throttled = throttled
        self._readers: dict[TopicPartition, Reader] = {}  # the one that was used last is the last
        self._admin: Any = None

    def read(self, span: Span, wanted: Collection[str]) -> Iterator[Records]:
        """Yield the records of a range; see `Reader.read`."""
        reader = self._readers.pop(span.tp, None)
        if reader is not None and (reader.topic_id, span.end_epoch) != (span.topic_id, span.start_epoch):
            # What it has fetched ahead is of the former topic, and its client expects the epochs of that one's leaders.
            # A new leader may not have it either: [100, 200) would be handed out as the former one had it, and the next
            # range, whose `start_epoch` is the new leader's, would notice nothing. To seek back with the same client
            # was tried: it then reports a loss behind the range, which it has asked about before.
            reader.close()
            reader = None
        if reader is None:
            if len(self._readers) < READERS_MAX:
                reader = Reader(
                    self._clients, self._group, self._patience_secs, self._lost, self._throttled, self._seen
                )
            else:
                reader = self._readers.pop(next(iter(self._readers)))
        try:
            yield from reader.read(span, wanted)
        except BaseException as error:
            reader.close()  # whatever it is in the middle of
            if isinstance(error, InputError):
                self.check(span)  # a shorter topic of the same name looks like a partition that has lost its end
            raise
        self._readers[span.tp] = reader

    def check(self, span: Span) -> None:
        """Raise FailedException if the topic is not the one that was to be read, as far as a broker tells."""
        if self.topic_id(span.tp.topic) != span.topic_id:
            self.close()
            raise FailedException(
                f"topic {span.tp.topic!r} was deleted while {span.tp} was read; it is looked at again"
            )

    def is_gone(self, span: Span) -> bool:
        """Return whether the topic is gone, or another one of its name.

        That is believed when brokers say so for `DOUBT_SECS`: one that has just started does not know all topics.
        """
        last_said: str | None = span.topic_id
        since = 0.0
        while (said := self.topic_id(span.tp.topic)) != span.topic_id:
            if said != last_said:
                last_said, since = said, time.monotonic()
            if time.monotonic() >= since + DOUBT_SECS:
                return True
            time.sleep(_AGAIN_SECS)
        return False

    def topic_id(self, topic: str) -> str | None:
        """Return a topic's id; None if the topic is gone. It waits for a broker as long as reading does."""
        what, limit = f"topic {topic!r} can't be asked about", time.monotonic() + self._patience_secs
        while True:
            self._admin = self._admin or self._clients.admin(REQUEST_SECS)
            said = describe_topics(self._admin, [topic])[topic]
            if not isinstance(said, Exception):
                return str(said.topic_id)
            if has_code(said, "UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID"):
                return None
            if denied := denial(said, what):
                raise denied from said
            if self._clients.is_stranded(self._admin):
                self._admin = None
            # Else a broker that is away for a minute would use up all attempts of a transaction.
            if time.monotonic() >= limit:
                raise self._clients.failure(said, what) from said
            time.sleep(_AGAIN_SECS)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        self._admin = None
