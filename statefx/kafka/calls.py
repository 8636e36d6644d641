"""Calls of the client that may never return, within bounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any, TypeVar

from statefx.kafka.words import kafka, named

REQUEST_SECS = 5.0
"""Of one question to a broker. The driver waits that long between two looks at its other work."""

GRACE_SECS = 1.0
"""How much longer than it was told to a call may take before it is left alone."""

_NOT_YET = (
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "CONCURRENT_TRANSACTIONS",
    "_WAIT_COORD",
)
"""Errors that are over soon: a broker has just started, has given groups to another, or ends a transaction still."""

BELIEVED_SECS = 5.0
"""How long it is asked again whether a topic is there: a broker that was away says for a moment that it is not."""

_AGAIN_SECS = 0.01

Answer = TypeVar("Answer")


def bounded(call: Callable[[float], Answer], secs: float) -> Answer:
    """Call in a thread of its own, which is left behind with its client if it does not return.

    The client is given the time as well. But when a broker ends under `send_offsets_to_transaction`, that call never
    returns, also after the broker is back; nor does the `close` of a consumer whose commit is on its way to a broker
    that is gone.

    Raises
    ------
    confluent_kafka.KafkaException
        It has not returned: ``_TIMED_OUT``.
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
    """Call, again as long as the answer is one that is over soon, or one that is named here; `secs` in all."""
    began = time.monotonic()
    limit = began + secs
    while True:
        try:
            return call(max(limit - time.monotonic(), _AGAIN_SECS))
        except kafka().KafkaException as error:
            if named(error, "UNKNOWN_TOPIC_OR_PART"):
                limit = min(limit, began + BELIEVED_SECS)
            if not (error.args[0].retriable() or named(error, *_NOT_YET, *more)) or time.monotonic() > limit:
                raise
        time.sleep(_AGAIN_SECS)


def end(consumer: Any) -> None:
    """End a client, and wait no longer than for an answer."""
    with suppress(kafka().KafkaException):
        bounded(lambda _: consumer.close(), REQUEST_SECS)


def answer(future: Future[Answer], secs: float | None = None) -> Answer:
    """Return what a broker answers to one question, which was to take so long, by default `REQUEST_SECS`.

    Raises
    ------
    confluent_kafka.KafkaException
        The broker says so, or nobody has answered: ``_TIMED_OUT``.
    """
    try:
        return future.result((REQUEST_SECS if secs is None else secs) + 1)
    except FutureTimeoutError:
        raise _timed_out() from None


def _timed_out() -> Exception:
    late: Exception = kafka().KafkaException(kafka().KafkaError(kafka().KafkaError._TIMED_OUT))
    return late
