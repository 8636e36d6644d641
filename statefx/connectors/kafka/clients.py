"""The clients of a cluster: what they are made with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from statefx.connectors.kafka.calls import AWAY, bounded, has_code, kafka, text_of
from statefx.connectors.kafka.diagnosis import CONNECT_SECS, FAILURE_SECS, START_SECS, diagnose
from statefx.connectors.kafka.settings import check_settings, servers_of, try_settings
from statefx.errors import FailedException, InputError, StatefxError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

logger = logging.getLogger("statefx.kafka")

_DENIED = (
    "TOPIC_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
)

_STRANDED_SECS = 0.5

_DEFAULTS = {
    "client.id": "statefx",
    "reconnect.backoff.max.ms": 1_000,
    "socket.keepalive.enable": True,
    # At higher levels each attempt to connect is a line. That a broker is away is said by what waits for it.
    "log_level": 2,
}

_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)
"""Python's levels of logging for those of librdkafka, 0 (emergency) to 7 (debug), as confluent-kafka maps them."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a sink's, or a spout's, clients are set to.

    Attributes
    ----------
    who : str
        The class of the user's sink or spout, which errors name.
    owned : Mapping of str to str
        Settings that a user can't give, and why.
    defaults : Mapping
        Settings that a user's replace.
    kept : Mapping
        Settings that no user's replace.
    kinds : tuple of str
        The classes of confluent-kafka whose clients it makes.
    """

    who: str
    owned: Mapping[str, str]
    defaults: Mapping[str, Any]
    kept: Mapping[str, Any]
    kinds: tuple[str, ...]


class Clients:
    """Makes clients of one cluster.

    Parameters
    ----------
    rules : Rules
    servers : str
        As ``bootstrap.servers``.
    config : Mapping, optional
        A user's settings of librdkafka. They may have passwords, so nothing shows them.
    **trial : Any
        Settings that some client gets later: librdkafka is asked now whether it takes them together with the user's.

    Attributes
    ----------
    servers : str
        In order, so that the same servers are the same text.
    user : str
        The user whose permissions the brokers check, in words.

    Raises
    ------
    ConfigError
        confluent-kafka is not installed, or the servers or a setting can't be used.
    """

    def __init__(self, rules: Rules, servers: str, config: Mapping[str, Any] | None, **trial: Any) -> None:
        kafka()
        given = {} if config is None else config
        check_settings(rules.who, given, rules.owned)
        self.servers = servers_of(rules.who, servers, given)
        self._config = {**_DEFAULTS, **rules.defaults, **given, **rules.kept}
        name = self.setting("sasl.username", None)
        self.user = "this client's user" if name is None else f"user {name!r}"
        try_settings(rules.who, {**self._config, "group.id": "statefx", **trial}, given, rules.kinds)

    def setting(self, name: str, default: Any) -> Any:
        """Return a setting, or what it is by default."""
        return self._config.get(name, default)

    def consumer(self, group: str, **more: Any) -> Consumer:
        """Return a consumer that joins no group; `group` is the name that librdkafka wants all the same."""
        made: Consumer = kafka().Consumer(self._settings(**more, **{"group.id": group}))
        return made

    def producer(self, on_line: Callable[[str], None], **more: Any) -> Producer:
        """Return a producer whose log is read (rule 10.11).

        librdkafka reports that a connection was lost, or that a request timed out, in its log only: not each of these
        comes to `error_cb` or out of a call. So its log is on up to level 6 (info) at least, whichever ``log_level``
        the user has set.

        Parameters
        ----------
        on_line : callable
            Given each line of the log, by the producer's own calls, such as `poll`. Of these lines, the logger
            ``statefx.kafka`` gets only those of the user's ``log_level``.
        **more : Any
            Settings of this producer.
        """
        settings = self._settings(**more)
        level = int(settings["log_level"])
        log = _ReadLog(on_line, _LEVELS[min(level, 7)])
        made: Producer = kafka().Producer({**settings, "log_level": max(level, 6), "logger": log})
        return made

    def admin(self, secs: float) -> Any:
        """Return a client that asks about topics, of which nobody waits for an answer longer than `secs`.

        The client asks any broker that it is connected to, and may be connected to one alone. While that one hangs, its
        connection stays open for ``socket.timeout.ms``, by default a minute, and the client asks no other broker.
        """
        most = min(int(1000 * secs), int(self.setting("socket.timeout.ms", 60_000)))
        return kafka().admin.AdminClient(self._settings(**{"socket.timeout.ms": most}))

    def diagnosis(self, secs: float) -> str | None:
        """Return why no broker can be reached, and the remedy, as found out within `secs`; None if one can."""
        # In a thread of its own: a call of the client that fails while an exception is being handled keeps that
        # exception for ever, and by its frames the client that has failed before, with threads and connections.
        with ThreadPoolExecutor(1) as aside:
            return aside.submit(diagnose, self.servers, self._settings(), secs).result()

    def connect(self, client: Any) -> str | None:
        """Have a client connect; return why it can't, and the remedy; None if it can."""
        with suppress(kafka().KafkaException):
            bounded(lambda secs: client.list_topics(timeout=secs), CONNECT_SECS)  # a thread, as in `diagnosis`
            return None
        return self.diagnosis(START_SECS)

    def is_stranded(self, client: Any) -> bool:
        """Tell whether a client has nobody left to ask although there are brokers: make another one then.

        A broker that does not count itself, because it has just started or was too busy, tells of a cluster without
        brokers. With librdkafka from 2.10 on, a client that hears so may never ask anybody again, also when the servers
        answer that it was made with (its issue 5301).
        """
        try:
            bounded(lambda secs: client.list_topics(timeout=secs), _STRANDED_SECS)
        except kafka().KafkaException as error:
            # One that waits for a broker that hangs times out: it knows other brokers, maybe more than `servers`.
            silent = has_code(error, "_TRANSPORT")
        else:
            return False
        return silent and self.diagnosis(FAILURE_SECS) is None

    def reason(self, error: Any) -> str:
        """Return why a call has failed: what the broker said, or, if none has answered, why none can be reached."""
        return (self.diagnosis(FAILURE_SECS) if has_code(error, *AWAY) else None) or text_of(error)

    def failure(self, error: Any, what: str) -> StatefxError:
        """Return the error of a spout's call that has failed: a denial ends the query, anything else is tried again."""
        return denial(error, what) or FailedException(f"{what}: {self.reason(error)}")

    def _settings(self, **more: Any) -> dict[str, Any]:
        own = {"bootstrap.servers": self.servers, "logger": logger, "error_cb": _note}
        return {**self._config, **more, **own}


def denial(error: Any, what: str) -> InputError | None:
    """Return the error of a spout that is denied access; None if `error` is another one."""
    if not has_code(error, *_DENIED):
        return None
    return InputError(
        f"{what}: {text_of(error)}. Give the user of this client READ on the topics, or correct its credentials, "
        "and start again: nothing is lost"
    )


class _ReadLog:
    """A logger of which a client needs no more than `log`: hands each line on, and logs those of the user's level."""

    def __init__(self, on_line: Callable[[str], None], level_min: int) -> None:
        self._on_line, self._level_min = on_line, level_min

    def log(self, level: int, text: str, *parts: str) -> None:
        """Take a line; its parts are what kind it is of, the client's name, and what it says."""
        self._on_line(text % parts)
        if level >= self._level_min:
            logger.log(level, text, *parts)


def _note(error: Any) -> None:
    """Log an error that the client tries again by itself: if that does not help, the call that waits for it fails."""
    logger.debug("%s", error.str())
