"""The client library: its errors, and calls of it that may never return, within bounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from statefx.errors import ConfigError

if TYPE_CHECKING:
    import confluent_kafka

AWAY = ("_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_AUTHENTICATION", "_SSL")
"""Codes that say no more than that a call has failed: why no broker was reached, `diagnose` finds out."""

REQUEST_SECS = 5.0
"""How long one question to a broker may take. The driver does nothing else meanwhile."""

CONTROLLER_SECS = 1.0
"""How long a question to the controller may take before its address is asked for again."""

GRACE_SECS = 1.0
"""How much longer than its own time-out a call may take before it is given up."""

_NOT_YET = (
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "CONCURRENT_TRANSACTIONS",
    "_WAIT_COORD",
)
"""Errors that pass soon: a broker has just started, has given groups to another, or is still ending a transaction."""

BELIEVED_SECS = 5.0
"""How long a broker is asked again that says that a topic is not there: one that has just started says so of all."""

_AGAIN_SECS = 0.01
_AGAIN_SECS_MAX = 0.25
"""The pauses between two calls grow. They begin short, because most transactions of Kafka end within milliseconds. If
the pauses did not grow, a call that fails at once would be made a hundred times in a second, in a new thread each."""

Answer = TypeVar("Answer")


def kafka() -> Any:
    """Return the client library; ConfigError with the remedy if it is not installed."""
    try:
        import confluent_kafka  # noqa: PLC0415 - an extra: only who uses Kafka needs it
        import confluent_kafka.admin  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError("Kafka needs confluent-kafka: pip install 'statefx[kafka]'") from error
    return confluent_kafka


def text_of(error: BaseException | confluent_kafka.KafkaError) -> str:
    """Return what an error of the client says, without the frame that it is printed in."""
    inner = error.args[0] if isinstance(error, Exception) and error.args else error
    return inner.str() if hasattr(inner, "str") else str(inner)


def has_code(error: Any, *names: str) -> bool:
    """Tell whether an error of the client, or one that carries it, has one of these codes."""
    inner = error.args[0] if isinstance(error, Exception) and error.args else error
    return hasattr(inner, "code") and any(inner.code() == getattr(kafka().KafkaError, name, None) for name in names)


def bounded(call: Callable[[float], Answer], secs: float) -> Answer:
    """Call in a thread of its own; if the call does not return, that thread is left behind, with the client.

    The call is given `secs` as its own time-out as well. But when a broker ends under `send_offsets_to_transaction`,
    that call never returns, also after the broker is back; nor does the `close` of a consumer whose commit is on its
    way to a broker that is gone.

    Raises
    ------
    confluent_kafka.KafkaException
        What the call raises; ``_TIMED_OUT`` if it has not returned.
    """
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call(secs))
        except BaseException as error:  # noqa: BLE001 - who waits raises it
            errors.append(error)

    thread = threading.Thread(target=run, name="statefx-kafka", daemon=True)
    thread.start()
    thread.join(secs + GRACE_SECS)
    if errors:
        raise errors[0]
    if answers:
        return answers[0]
    raise _timed_out()


def patiently(call: Callable[[float], Answer], secs: float, *more: str) -> Answer:
    """Call, and call again for `secs` in all while it fails with an error that passes soon, or with one of `more`."""
    began = time.monotonic()
    limit = began + secs
    pause = _AGAIN_SECS
    missing: BaseException | None = None
    while True:
        try:
            return call(max(limit - time.monotonic(), _AGAIN_SECS))
        except kafka().KafkaException as error:
            if has_code(error, "UNKNOWN_TOPIC_OR_PART"):
                limit, missing = min(limit, began + BELIEVED_SECS), error
            if not (error.args[0].retriable() or has_code(error, *_NOT_YET, *more)) or time.monotonic() > limit:
                if missing is not None and has_code(error, "_TIMED_OUT"):
                    raise missing from None  # the last call had little time: what a broker has said before tells more
                raise
        time.sleep(pause)
        pause = min(1.5 * pause, _AGAIN_SECS_MAX)


def describe_topics(admin: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return what brokers say of each topic: its description, or the KafkaException that says why there is none.

    librdkafka sends this question to the controller by its last metadata, which it fetches every 5 minutes, and brokers
    of KRaft name any broker of the cluster as the controller. If that one is away, only new metadata help.
    """

    def ask(secs: float) -> dict[str, Any]:
        futures = admin.describe_topics(kafka().TopicCollection(list(names)), request_timeout=secs)
        found = {}
        for name, future in futures.items():
            try:
                found[name] = answer(future, secs)
            except kafka().KafkaException as error:
                found[name] = error
        return found

    found = ask(CONTROLLER_SECS)
    if any(has_code(each, "_TIMED_OUT") for each in found.values()):
        with suppress(kafka().KafkaException):
            admin.list_topics(timeout=CONTROLLER_SECS)
            found = ask(REQUEST_SECS)
    return found


def close_consumer(consumer: Any) -> None:
    """Close a consumer; one that does not come to its end is left behind."""
    with suppress(kafka().KafkaException):
        bounded(lambda _: consumer.close(), REQUEST_SECS)


def answer(future: Future[Answer], secs: float) -> Answer:
    """Return what a broker answers to a question that was asked with a time-out of `secs`.

    Raises
    ------
    confluent_kafka.KafkaException
        What the broker says, or ``_TIMED_OUT`` if none has answered.
    """
    try:
        return future.result(secs + GRACE_SECS)
    except FutureTimeoutError:
        raise _timed_out() from None


def _timed_out() -> Exception:
    late: Exception = kafka().KafkaException(kafka().KafkaError(kafka().KafkaError._TIMED_OUT))
    return late
