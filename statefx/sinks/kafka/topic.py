"""A topic of Kafka as the target of a sink: messages and marker in one transaction of Kafka.

::

    marker()     the committed offset of the group that is named after the transactional id, with JSON as its metadata
    publish()    init_transactions, read the marker once more;  begin, messages, marker, commit

`init_transactions` ends what a former producer of the same transactional id has begun, and refuses that producer from
then on. So the order makes publishing exact: a marker that is read after it can change no more, except by a producer
that comes later, and which then refuses this one (rule 10.8).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import repeat
from typing import Any

import pyarrow as pa

from statefx.errors import SinkError
from statefx.kafka.calls import Answer, bounded, end
from statefx.kafka.clients import Clients
from statefx.kafka.words import kafka
from statefx.operators.sinks import Marker
from statefx.sinks.kafka.limits import CALL_SECS, Questions, limits_of, told
from statefx.sinks.staged import StagedRows, Target

_STABLE_SECS = 2.0
"""How long the first look at a marker waits for a transaction under way to end."""

_ABORT_SECS = 5.0

_POLL_EVERY = 1_000
"""Messages between two looks at what the broker has answered."""

_MARKED_PARTITION = 0  # a group can't have an offset of a partition that the topic lacks

_RETRIED_SECS = 0.005


class KafkaTopic(Target):
    """One topic, and the marker of one transactional id.

    Parameters
    ----------
    clients : Clients
    topic, transactional_id : str
    timeout_secs : float
        Of a transaction.
    target : str
        What messages name.
    """

    def __init__(self, clients: Clients, topic: str, transactional_id: str, timeout_secs: float, target: str) -> None:
        self._clients, self._topic, self._id = clients, topic, transactional_id
        self._timeout_secs, self._target = timeout_secs, target
        self._kafka = kafka()
        self._producer: Any = None
        self._consumers: dict[str, Any] = {}
        self._published: Marker | None = None

    def check(self) -> None:
        """Refuse a topic that is not there, and a timeout that the broker does not allow (see `Place.check`)."""
        questions = Questions(self._clients, self._target)
        questions.limits(self._topic)
        allowed_ms = questions.timeout_ms_max()
        if allowed_ms is not None and self._timeout_secs * 1000 > allowed_ms:
            raise SinkError(
                f"{self._target}: transactionTimeoutSecs is {self._timeout_secs:g}, and the broker allows "
                f"{allowed_ms / 1000:g} s: lower it, or raise the broker's transaction.max.timeout.ms",
                target=self._target,
            )

    def marker(self) -> Marker | None:
        if self._producer is not None and self._published is not None:
            return self._published  # whoever has changed it since has ended this producer, which `publish` finds
        with told(self._target):
            try:
                return self._stable_marker(_STABLE_SECS)
            except self._kafka.KafkaException:
                # A driver that died in a transaction has left it open: until `init_transactions` ends it, only what
                # was there before can be read.
                return self._parsed(self._committed("read_uncommitted"))

    def _stable_marker(self, secs: float | None = None) -> Marker | None:
        return self._parsed(self._committed("read_committed", secs))

    def _committed(self, level: str, secs: float | None = None) -> Any:
        place = [self._kafka.TopicPartition(self._topic, _MARKED_PARTITION)]
        found = self._patiently(lambda left: self._reader(level).committed(place, timeout=left), secs)[0]
        if found.error is not None:
            raise self._kafka.KafkaException(found.error)
        return found

    def _parsed(self, found: Any) -> Marker | None:
        if found.offset < 0:
            return None
        try:
            return Marker(**json.loads(found.metadata))
        except (TypeError, ValueError):
            raise SinkError(
                f"{self._target}: consumer group {self._id} has an offset that is no marker: somebody else uses the "
                "group. Give the sink another transactionalId; or delete the group's offsets, and start with "
                "adopt='takeover' if you know which messages are there",
                target=self._target,
            ) from None

    def publish(self, marker: Marker, previous: Marker | None, rows: StagedRows) -> None:
        """Publish in one transaction of Kafka (see `Target.publish`)."""
        with told(self._target):
            if self._producer is not None:
                try:
                    self._write(marker, rows)
                except self._kafka.KafkaException as error:
                    # Being refused proves no successor: a driver of before, which woke up in its start, has ended this
                    # producer, and sees by the marker that it is late.
                    if not error.args[0].fatal():
                        raise
                    self._drop_producer()
                else:
                    return
            self._producer = self._initialised()
            # Only now: a producer of before may have been in the middle of its commit until `init_transactions`.
            if self._stable_marker() != previous:
                raise SinkError(f"{self._target}: another driver has published meanwhile", target=self._target)
            self._write(marker, rows)

    def close(self) -> None:
        self._drop_producer()
        consumers, self._consumers = self._consumers, {}
        for each in consumers.values():
            end(each)

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
            self._give_up()
            if isinstance(error, self._kafka.KafkaException) and time.monotonic() - began > self._timeout_secs:
                raise self._too_slow() from error
            raise

    # ---- the steps of a transaction of Kafka

    def _initialised(self) -> Any:
        """Return a producer after which no older one of this transactional id can write."""
        limits = limits_of(self._clients, self._topic, self._target)
        settings = {
            "transactional.id": self._id,
            "transaction.timeout.ms": int(self._timeout_secs * 1000),
            "message.max.bytes": min(max(limits.message_bytes_max, 1_000), 1_000_000_000),  # what the client allows
        }
        producer = self._clients.producer(**settings)
        self._patiently(producer.init_transactions)
        return producer

    def _begin(self) -> None:
        self._producer.begin_transaction()

    def _send(self, batch: pa.RecordBatch, began: float) -> None:
        """Hand messages to the client, which sends them in the background."""
        topic, produce, poll = self._topic, self._producer.produce, self._producer.poll
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        pairs = zip(columns.pop("value"), columns.pop("key", repeat(None)), strict=False)
        more = _arguments(columns) if columns else repeat({})
        for number, (pair, named) in enumerate(zip(pairs, more, strict=False)):
            while True:
                try:
                    produce(topic, *pair, **named)
                    break
                except BufferError:  # the client has enough to send
                    if time.monotonic() - began > self._timeout_secs:
                        raise self._too_slow() from None
                    poll(_RETRIED_SECS)
            if not number % _POLL_EVERY:
                poll(0)

    def _mark(self, marker: Marker) -> None:
        """Put the marker into the transaction."""
        place = self._kafka.TopicPartition(
            self._topic, _MARKED_PARTITION, max(marker.txid, 0), metadata=json.dumps(asdict(marker))
        )
        group = self._reader().consumer_group_metadata()
        self._patiently(lambda secs: self._producer.send_offsets_to_transaction([place], group, secs))

    def _commit(self) -> None:
        """Commit; it fails if any message has not reached the broker."""
        self._patiently(self._producer.commit_transaction, self._timeout_secs)

    def _give_up(self) -> None:
        """Let others read on: an open transaction hides from them what anybody has written behind it."""
        with suppress(self._kafka.KafkaException):
            self._producer.purge()
            bounded(self._producer.abort_transaction, _ABORT_SECS)

    def _reader(self, level: str = "read_committed") -> Any:
        """Return a consumer; with ``read_committed`` it waits for transactions that hold an offset of the group."""
        if level not in self._consumers:
            self._consumers[level] = self._clients.consumer(self._id, **{"isolation.level": level})
        return self._consumers[level]

    def _patiently(self, call: Callable[[float], Answer], secs: float | None = None) -> Answer:
        """Call, again as long as the broker says that it can't tell yet; `secs` in all, by default `CALL_SECS`."""
        limit = time.monotonic() + (CALL_SECS if secs is None else secs)
        while True:
            try:
                return bounded(call, max(limit - time.monotonic(), _RETRIED_SECS))
            except self._kafka.KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > limit:
                    raise
            time.sleep(_RETRIED_SECS)

    def _too_slow(self) -> SinkError:
        return SinkError(
            f"{self._target}: publishing took longer than {self._timeout_secs:g} s, after which the broker ends a "
            "transaction: raise transactionTimeoutSecs, or make transactions smaller. It is tried again",
            target=self._target,
        )


def _arguments(columns: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield what the client is given of each message beside its value and key; it takes no None."""
    for values in zip(*columns.values(), strict=True):
        yield {name: value for name, value in zip(columns, values, strict=True) if value is not None}
