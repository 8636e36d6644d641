"""What is refused of a user's servers and settings of librdkafka before anything connects."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from statefx.connectors.kafka.calls import kafka, text_of
from statefx.errors import ConfigError

OWNED = {
    "bootstrap.servers": "servers= says it",
    "metadata.broker.list": "servers= says it",
    "error_cb": "errors are told by the query",
    "logger": "the client writes to the logger 'statefx.kafka'",
    "on_commit": "nothing depends on what a group is told",
}
"""Settings that neither sinks nor spouts let a user give, and why."""

_NAMES = """
    acks batch.num.messages batch.size broker.address.family client.id client.rack compression.codec
    compression.level compression.type connections.max.idle.ms debug fetch.error.backoff.ms fetch.max.bytes
    fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms linger.ms log_level max.in.flight
    max.in.flight.requests.per.connection max.partition.fetch.bytes message.timeout.ms metadata.max.age.ms oauth_cb
    partitioner queue.buffering.max.kbytes queue.buffering.max.messages queue.buffering.max.ms
    queued.max.messages.kbytes queued.min.messages reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms
    retries retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab sasl.kerberos.principal
    sasl.kerberos.service.name sasl.mechanism sasl.mechanisms sasl.oauthbearer.client.id
    sasl.oauthbearer.client.secret sasl.oauthbearer.config sasl.oauthbearer.method sasl.oauthbearer.scope
    sasl.oauthbearer.token.endpoint.url sasl.password sasl.username security.protocol
    socket.connection.setup.timeout.ms socket.keepalive.enable socket.nagle.disable socket.timeout.ms ssl.ca.location
    ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location
    ssl.endpoint.identification.algorithm ssl.key.location ssl.key.password ssl.key.pem ssl.keystore.location
    ssl.keystore.password statistics.interval.ms stats_cb
"""
"""Settings that users give: among them is looked for the one that is meant by a name that librdkafka does not know."""

_FILES = re.compile(r"ssl\.(ca|certificate|key|keystore|crl)\.location")

_PROBE = ("ssl.ca.location", "probe")
"""No file: librdkafka then looks for the certificates of the system in the usual places."""

NAME = re.compile(r"[\w.\-]{1,249}", re.ASCII)
"""What Kafka allows as the name of a topic."""

_SERVER = re.compile(r"(?:(?P<protocol>\w+)://)?(?:\[[0-9A-Fa-f:.%\w]+\]|[\w.\-]+)(?::(?P<port>\d{1,5}))?", re.ASCII)


def servers_of(who: str, given: Any, config: Mapping[str, Any]) -> str:
    """Return addresses as one text, sorted; ConfigError if one of them is no address.

    librdkafka itself passes over what it can't read, and then waits for a broker for ever.
    """
    if not isinstance(given, str) or not given.strip(", "):
        raise ConfigError(f"{who}'s servers are a text such as 'host:9092', or 'host:9092,other:9092', not {given!r}")
    servers = sorted(each.strip() for each in given.split(",") if each.strip())
    speaks = str(config.get("security.protocol", "plaintext")).lower()
    for each in servers:
        found = _SERVER.fullmatch(each)
        if found is None or not 0 < int(found["port"] or 9092) < 1 << 16:
            raise ConfigError(f"{who}'s servers have {each!r}, which is no address such as 'host:9092'")
        if found["protocol"] and found["protocol"].lower() != speaks:
            raise ConfigError(
                f"{who}'s servers have {each!r}: leave {found['protocol'] + '://'!r} out; security.protocol in config "
                f"says what is spoken there, and it is {speaks!r}"
            )
    return ",".join(servers)


def check_settings(who: str, config: Any, owned: Mapping[str, str]) -> None:
    """Refuse settings that are `owned`, have values of wrong types, or name files that are not there."""
    if not isinstance(config, Mapping):
        raise ConfigError(f"{who}'s config is a dict of librdkafka's settings by their names, not {type(config)}")
    for name, value in config.items():
        if not isinstance(name, str):
            raise ConfigError(f"{who}'s config has {name!r}: settings are named by texts")
        # librdkafka takes those of topics with this prefix too.
        if reason := (OWNED | dict(owned)).get(name.removeprefix("topic.")):
            raise ConfigError(f"{who}'s config can't have {name!r}: {reason}", option=name)
        fits = callable(value) if name.endswith("_cb") else isinstance(value, str | int | float)
        if not fits:
            wanted = "a function" if name.endswith("_cb") else "a text, a number or a bool"
            raise ConfigError(f"{who}'s config has {name!r} as {type(value).__name__}: it is {wanted}", option=name)
        if _FILES.fullmatch(name) and (name, value) != _PROBE and not Path(str(value)).exists():
            raise ConfigError(
                f"{who}'s config names a file that is not here, {name} {value!r}: it must be on the driver and on each "
                "executor, in the same place", option=name,
            )  # fmt: skip


def try_settings(who: str, settings: Mapping[str, Any], user: Mapping[str, Any], kinds: tuple[str, ...]) -> None:
    """Make clients that have no servers to connect to, to see whether librdkafka takes the settings."""
    # Without functions: `oauth_cb` would be called as soon as there is a client. With a logger, which gets nothing
    # before a `poll`: what librdkafka remarks on the settings is logged by the clients that are made later.
    quiet = {name: value for name, value in settings.items() if not name.endswith("_cb")}
    quiet["logger"] = logging.getLogger("statefx.kafka")
    for kind in kinds:
        try:
            getattr(kafka(), kind)(quiet)
        except (kafka().KafkaException, TypeError, ValueError) as error:
            said = text_of(error).strip()
            unknown = next((name for name in user if f'property: "{name}"' in said), None)
            if unknown is not None:
                near = get_close_matches(unknown, _NAMES.split(), 1)
                hint = f": do you mean {near[0]!r}?" if near else "; see librdkafka's CONFIGURATION.md"
                raise ConfigError(f"{who}'s config has {unknown!r}, which librdkafka does not know{hint}") from None
            raise ConfigError(f"{who}: librdkafka refuses the settings in config: {said}") from None
