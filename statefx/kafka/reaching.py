"""Whether a cluster can be reached; and if not, what stands in the way, and what to mend.

A call that fails says no more than that no broker answers. Why, the client says in the lines of its log alone.
"""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from statefx.kafka.words import kafka

GREETING_SECS = 1.0
"""How long a start waits before it looks for what stands in the way."""

FIRST_SECS = 5.0
"""How long a start then waits for a broker: one that is restarted in this moment may come back."""

LATER_SECS = 2.0
"""How long it is looked for the reason why a call has failed."""

_ASKED_MAX = 3
"""Brokers that are tried by the address that they give for themselves."""

_LINE = re.compile(
    r"\]: (?:\w+://)?(?P<address>[^/\s]+:\d+)/\S+: (?P<said>.*?)(?: \(after [^()]* in state (?P<state>\w+)[^()]*\))?\Z"
)

_TLS = "if it wants TLS, set security.protocol to SSL or SASL_SSL; if it wants a user, to SASL_PLAINTEXT or SASL_SSL"

_CERTIFICATE = (
    "ssl.ca.location in config must name the file (PEM) of who has signed the broker's certificate, which must have "
    "this host among its names"
)

_REMEDIES = (
    ("authentication error|Authentication failed", "mend sasl.username and sasl.password in config"),
    ("not valid in current SASL state", "this port takes no user: set security.protocol to PLAINTEXT or SSL"),
    ("mechanism handshake failed", "set sasl.mechanism in config to one that the broker has"),
    ("certificate verify failed", _CERTIFICATE),
    (
        "handshake failed.*(closed by peer|wrong version|packet length)|closed by peer.*SSL_HANDSHAKE",
        "this port does not speak TLS: set security.protocol to PLAINTEXT or SASL_PLAINTEXT, or take the port for TLS",
    ),
    ("certificate required|alert", "the broker refuses this client's certificate: see ssl.certificate.location"),
    ("resolve", "is the name right, and does this machine know it?"),
    ("refused", "nothing listens there: is the address right, and does the broker run?"),
    ("response size", "what answers there is no broker of Kafka"),
    ("closed by peer|Disconnected|Broken pipe|reset", f"the broker ends the connection: {_TLS}"),
)

_HOPELESS = re.compile("uthentication|mechanism|SASL state|certificate verify")
"""What does not pass by itself."""


class _Lines(logging.Handler):
    """What the client says last of each address."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if found := _LINE.search(record.getMessage()):
            state = found["state"] or ""
            self.said[found["address"]] = f"{found['said'].strip()}{state and f' ({state})'}"


def obstacle(servers: str, settings: Mapping[str, Any], secs: float) -> str | None:
    """Return what stands in the way of a cluster, as found out within `secs`; None if nothing does."""
    lines = _Lines()
    log = logging.Logger("statefx.kafka.reaching")  # noqa: LOG001 - nobody else's: its lines are not to be read
    log.addHandler(lines)
    admin = kafka().admin.AdminClient({**settings, "logger": log, "log_level": 6})
    began, patience = time.monotonic(), 0.25
    while True:
        left = began + secs - time.monotonic()
        try:
            brokers = admin.list_topics(timeout=max(0.05, min(patience, left))).brokers
        except kafka().KafkaException:
            admin.poll(0.05)  # hears its log
        else:
            return _unknown(brokers.values())
        hopeless = len(lines.said) == len(servers.split(",")) and all(map(_HOPELESS.search, lines.said.values()))
        if hopeless or left < 0:
            return _sentence(servers, lines.said, time.monotonic() - began)
        patience *= 2


def _sentence(servers: str, said: Mapping[str, str], secs: float) -> str:
    told = f"no broker answers at {servers} (tried for {secs:.1f} s)"
    if not said:
        return f"{told}: is the address right, and does a firewall let this machine through?"
    parts = []
    for address, words in said.items():
        remedy = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, words)), "")
        parts.append(f"{address}: {words}{remedy and f'; {remedy}'}")
    return f"{told}: {'. '.join(parts)}"


def _unknown(brokers: Iterable[Any]) -> str | None:
    """Return what stands in the way of the addresses that brokers give for themselves; None if one can be reached."""
    failures = []
    for each in islice(brokers, _ASKED_MAX):
        try:
            socket.create_connection((each.host.strip("[]"), each.port), LATER_SECS).close()
        except OSError as error:
            failures.append(f"broker {each.id} says that it is {each.host}:{each.port}, and there: {error}")
        else:
            return None
    if not failures:
        return None
    return f"{'; '.join(failures)}. Mend advertised.listeners of the brokers, or this machine's names"
