"""The clients of a cluster: what they are made with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from statefx.errors import FailedException, InputError, StatefxError
from statefx.kafka import reaching
from statefx.kafka.settings import check_settings, servers_of, try_settings
from statefx.kafka.words import AWAY, kafka, named, text_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

logger = logging.getLogger("statefx.kafka")

_DENIED = (
    "TOPIC_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
)

_DEFAULTS = {
    "client.id": "statefx",
    "reconnect.backoff.max.ms": 1_000,
    "socket.keepalive.enable": True,
    # Each attempt to connect would be a line: a broker that is away is told by whoever waits for it.
    "log_level": 2,
}

_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)
"""The levels of Python that the client gives to its own, 0 to 7."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a sink's, or a spout's, clients are set to.

    Attributes
    ----------
    who : str
        Whom messages name: the class that a user has made.
    owned : Mapping of str to str
        Settings that are not a user's, and why.
    defaults : Mapping
        What a user's settings override.
    kept : Mapping
        What they don't.
    kinds : tuple of str
        Of the clients that it uses.
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
        Settings that come later, for trying whether all of them go together.

    Attributes
    ----------
    servers : str
        In order, so that the same servers are the same text.
    user : str
        Whom the brokers ask for permissions, in words.

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
        """Return one that belongs to no group: a name it must have all the same."""
        made: Consumer = kafka().Consumer(self._settings(**more, **{"group.id": group}))
        return made

    def producer(self, heard: Callable[[str], None], **more: Any) -> Producer:
        """Return one that writes; its `poll` hands `heard` each line of its log, from level 6 (info) on."""
        settings = self._settings(**more)
        level = int(settings["log_level"])
        log = _Log(heard, _LEVELS[min(level, 7)])
        made: Producer = kafka().Producer({**settings, "log_level": max(level, 6), "logger": log})
        return made

    def admin(self) -> Any:
        """Return a client that asks about topics and offsets."""
        return kafka().admin.AdminClient(self._settings())

    def obstacle(self, secs: float) -> str | None:
        """Return why no broker can be reached, and what to mend, as found out within `secs`; None if one can."""
        return reaching.obstacle(self.servers, self._settings(), secs)

    def greet(self, client: Any) -> str | None:
        """Have a client connect; return why it can't, and what to mend; None if it can."""
        try:
            client.list_topics(timeout=reaching.GREETING_SECS)
        except kafka().KafkaException:
            return self.obstacle(reaching.FIRST_SECS)
        return None

    def reason(self, error: Any) -> str:
        """Return why a call has failed: what the broker said, or, if none has answered, what stands in the way."""
        return (self.obstacle(reaching.LATER_SECS) if named(error, *AWAY) else None) or text_of(error)

    def failure(self, error: Any, what: str) -> StatefxError:
        """Return what a reader raises: a denial ends the query, anything else is tried again."""
        return denial(error, what) or FailedException(f"{what}: {self.reason(error)}")

    def _settings(self, **more: Any) -> dict[str, Any]:
        own = {"bootstrap.servers": self.servers, "logger": logger, "error_cb": _note}
        return {**self._config, **more, **own}


def denial(error: Any, what: str) -> InputError | None:
    """Return what a reader raises that is denied access; None if it is not."""
    if not named(error, *_DENIED):
        return None
    return InputError(
        f"{what}: {text_of(error)}. Give the user of this client READ on the topics, or mend its credentials, and "
        "start again: nothing is lost"
    )


class _Log:
    """What a client writes its log to."""

    def __init__(self, heard: Callable[[str], None], least: int) -> None:
        self._heard, self._least = heard, least

    def log(self, level: int, text: str, *parts: str) -> None:
        """Take a line: its kind, the client, and what it says."""
        self._heard(text % parts)
        if level >= self._least:
            logger.log(level, text, *parts)


def _note(error: Any) -> None:
    """Note what a client tries again by itself; what comes of it is told by whoever waits for it."""
    logger.debug("%s", error.str())
