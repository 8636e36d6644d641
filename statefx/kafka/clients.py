"""The clients of a cluster: which of their settings are whose, and what they are made with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from statefx.errors import ConfigError
from statefx.kafka.words import kafka, text_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

logger = logging.getLogger("statefx.kafka")

_DEFAULTS = {
    "client.id": "statefx",
    "reconnect.backoff.max.ms": 1_000,
    "socket.keepalive.enable": True,
    # Each attempt to connect would be a line: a broker that is away is told by whoever waits for it.
    "log_level": 2,
}

_OWNED = {
    "bootstrap.servers": "servers= says it",
    "metadata.broker.list": "servers= says it",
    "error_cb": "errors are told by the query",
    "logger": "the client writes to the logger 'statefx.kafka'",
}


class Clients:
    """Makes clients of one cluster.

    Parameters
    ----------
    who : str
        Whom messages name: the class that a user has made.
    servers : str
        As ``bootstrap.servers``.
    config : Mapping
        A user's settings of librdkafka.
    owned : Mapping of str to str
        Settings that are not a user's, and why; beside those that never are.
    defaults : Mapping
        What a user's settings override.
    kept : Mapping
        What they don't.

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

    def __init__(
        self,
        who: str,
        servers: str,
        config: Mapping[str, Any] | None,
        owned: Mapping[str, str],
        defaults: Mapping[str, Any],
        kept: Mapping[str, Any],
    ) -> None:
        kafka()
        if not isinstance(servers, str) or not servers.strip(", "):
            raise ConfigError(f"{who} needs the servers, such as 'host:9092', not {servers!r}")
        self.servers = ",".join(sorted(each.strip() for each in servers.split(",") if each.strip()))
        for name, reason in (_OWNED | dict(owned)).items():
            if name in (config or {}):
                raise ConfigError(f"{who}'s config can't have {name!r}: {reason}", option=name)
        self._config = {**_DEFAULTS, **defaults, **(config or {}), **kept}
        name = self.setting("sasl.username", None)
        self.user = "this client's user" if name is None else f"user {name!r}"
        trial = {**self._config, "group.id": "statefx", "log_level": 0}  # without servers it connects to nobody
        try:
            kafka().Consumer(trial).close()
        except (kafka().KafkaException, TypeError, ValueError) as error:
            raise ConfigError(f"{who}: the client refuses its settings: {text_of(error)}") from None

    def setting(self, name: str, default: Any) -> Any:
        """Return a setting, or what it is by default."""
        return self._config.get(name, default)

    def consumer(self, group: str, **more: Any) -> Consumer:
        """Return one that belongs to no group: a name it must have all the same."""
        made: Consumer = kafka().Consumer(self._settings(**more, **{"group.id": group}))
        return made

    def producer(self, **more: Any) -> Producer:
        """Return one that writes."""
        made: Producer = kafka().Producer(self._settings(**more))
        return made

    def admin(self) -> Any:
        """Return a client that asks about topics and offsets."""
        return kafka().admin.AdminClient(self._settings())

    def _settings(self, **more: Any) -> dict[str, Any]:
        own = {"bootstrap.servers": self.servers, "logger": logger, "error_cb": _note}
        return {**self._config, **more, **own}


def _note(error: Any) -> None:
    """Note what a client tries again by itself; what comes of it is told by whoever waits for it."""
    logger.debug("%s", error.str())
