"""The clients of librdkafka: which of their settings are a user's, and what their errors mean."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from statefx.errors import ConfigError, FailedException, InputError, StatefxError

if TYPE_CHECKING:
    import confluent_kafka

logger = logging.getLogger("statefx.kafka")

REQUEST_SECS = 5.0
"""Of one question to a broker. The driver waits that long between two looks at its other work."""

_OURS = {
    "bootstrap.servers": "servers= says it",
    "metadata.broker.list": "servers= says it",
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
    "error_cb": "errors are told by the query",
    "on_commit": "nothing depends on what the group is told",
    "logger": "the client writes to the logger 'statefx.kafka'",
}
"""What would break the promise that each record is read once, by the reason why."""

_READING = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    # A client that is given more than this ends the connection, and would never get past the record.
    "receive.message.max.bytes": 1_000_000_000,
}

_DEFAULTS = {
    # The end of a range in which the last offsets are markers of transactions is told by an answer without records,
    # and a broker keeps back such an answer this long: by default half a second, in each transaction.
    "fetch.wait.max.ms": 50,
    # By default, whoever has fetched enough waits a second before it fetches again: 1 M rows in 6 s, and not in 1.5.
    "fetch.queue.backoff.ms": 10,
    # What is fetched ahead of a transaction, for each partition that a task keeps warm.
    "queued.max.messages.kbytes": 16_384,
    "reconnect.backoff.max.ms": 1_000,
    "socket.keepalive.enable": True,
    # Each attempt to connect would be a line: a broker that is away is told by whoever waits for it.
    "log_level": 2,
}

_DENIED = (
    "TOPIC_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
    "_AUTHENTICATION",
)

_Answer = TypeVar("_Answer")


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def kafka() -> Any:
    """Return the client library; ConfigError with the remedy if it is not installed."""
    try:
        import confluent_kafka  # noqa: PLC0415 - an extra: only who uses Kafka needs it
        import confluent_kafka.admin  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError("KafkaSpout needs confluent-kafka: pip install 'statefx[kafka]'") from error
    return confluent_kafka


class Clients:
    """Makes clients of one cluster.

    Parameters
    ----------
    servers : str
        As ``bootstrap.servers``.
    config : Mapping
        A user's settings of librdkafka.
    isolation : str

    Raises
    ------
    ConfigError
        A setting is statefx's own, or librdkafka refuses it.
    """

    def __init__(self, servers: str, config: Mapping[str, Any], isolation: str) -> None:
        for name in config:
            if name in _OURS:
                raise ConfigError(f"KafkaSpout's config can't have {name!r}: {_OURS[name]}")
        self._config = {
            **_DEFAULTS, **config, **_READING, "bootstrap.servers": servers, "isolation.level": isolation,
        }  # fmt: skip
        trial = {**self._config, "bootstrap.servers": "", "group.id": "statefx", "log_level": 0}  # connects to nobody
        try:
            kafka().Consumer(trial).close()
        except (kafka().KafkaException, TypeError, ValueError) as error:
            raise ConfigError(f"KafkaSpout: the client refuses its settings: {text_of(error)}") from None

    def consumer(self, group: str, **more: Any) -> confluent_kafka.Consumer:
        """Return one that belongs to no group: a name it must have all the same."""
        made: confluent_kafka.Consumer = kafka().Consumer(
            {**self._config, **more, "group.id": group, "logger": logger, "error_cb": _note}
        )
        return made

    def admin(self) -> Any:
        """Return a client that asks about topics and offsets."""
        own = {*_READING, *_DEFAULTS} - {"reconnect.backoff.max.ms", "socket.keepalive.enable", "log_level"} | {
            "isolation.level"
        }
        settings = {name: value for name, value in self._config.items() if name not in own}
        return kafka().admin.AdminClient({**settings, "error_cb": _note})


def end(consumer: confluent_kafka.Consumer) -> None:
    """End a client, and wait no longer than for an answer.

    While a commit of its group is on its way to a broker that is gone, the client's own `close` never returns.
    A thread that is left behind ends with the process.
    """
    closing = threading.Thread(target=consumer.close, daemon=True, name="statefx-kafka-close")
    closing.start()
    closing.join(REQUEST_SECS)


def _note(error: confluent_kafka.KafkaError) -> None:
    """Note what a client tries again by itself; what comes of it is told by whoever waits for it."""
    logger.debug("%s", error.str())


def text_of(error: BaseException | confluent_kafka.KafkaError) -> str:
    """Return what an error of the client says, without the frame that it is printed in."""
    inner = error.args[0] if isinstance(error, Exception) and error.args else error
    return inner.str() if hasattr(inner, "str") else str(inner)


def named(error: Any, *names: str) -> bool:
    """Tell whether an error of the client, or one that carries it, has one of these codes."""
    inner = error.args[0] if isinstance(error, Exception) and error.args else error
    return hasattr(inner, "code") and any(inner.code() == getattr(kafka().KafkaError, name, None) for name in names)


def failure(error: Any, what: str) -> StatefxError:
    """Return what to raise: a denial ends the query, anything else is tried again."""
    if named(error, *_DENIED):
        return InputError(
            f"{what}: {text_of(error)}. Give the user of this client READ on the topics, or mend its credentials, and "
            "start again: nothing is lost"
        )
    return FailedException(f"{what}: {text_of(error)}")


def answer(future: Future[_Answer], what: str) -> _Answer:
    """Return what a broker answers to one question, within bounds.

    Raises
    ------
    confluent_kafka.KafkaException
        The broker has answered, or the client gave up; see `failure`.
    FailedException
        Nobody has answered.
    """
    try:
        return future.result(REQUEST_SECS + 1)
    except FutureTimeoutError:
        raise FailedException(f"{what}: no broker has answered within {REQUEST_SECS:g} s") from None
