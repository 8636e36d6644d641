"""Whether a cluster can be reached; and if not, why, and the remedy.

A call that fails says only that no broker answers; the reason is in the log of the client. So a client is made whose
log is read. Tests have librdkafka fail in each of these ways, so that another text of it is noticed.
"""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from statefx.connectors.kafka.calls import kafka

CONNECT_SECS = 1.0
"""How long a start waits for an answer before it looks for the reason."""

START_SECS = 5.0
"""How long a start then looks for the reason: a broker that is just being restarted may come back meanwhile."""

FAILURE_SECS = 2.0
"""How long the reason is looked for while a query runs, after a call that has failed."""

_ASKED_MAX = 3
"""How many brokers are tried at the address that they give for themselves."""

_LINE = re.compile(
    r"\]: (?:\w+://)?(?P<address>[^/\s]+:\d+)/\S+: (?P<said>.*?)(?: \(after [^()]* in state (?P<state>\w+)[^()]*\))?\Z"
)
"""``... [thrd:HOST:PORT/ID]: HOST:PORT/ID: what has failed (after 3ms in state CONNECT, ...)``."""

_TLS = "if it wants TLS, set security.protocol to SSL or SASL_SSL; if it wants a user, to SASL_PLAINTEXT or SASL_SSL"

_CERTIFICATE = (
    "ssl.ca.location in config must name the file (PEM) of who has signed the broker's certificate, which must have "
    "this host among its names"
)

_REMEDIES = (  # the first whose pattern is found
    ("authentication error|Authentication failed", "correct sasl.username and sasl.password in config"),
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
"""Failures that do not pass by themselves: there is no need to wait for `secs`."""


class _Lines(logging.Handler):
    """Keeps the last line of the log about each address."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if found := _LINE.search(record.getMessage()):
            state = found["state"] or ""
            self.said[found["address"]] = f"{found['said'].strip()}{state and f' ({state})'}"


def diagnose(servers: str, settings: Mapping[str, Any], secs: float) -> str | None:
    """Return why a cluster can't be reached, as found out within `secs`; None if it can."""
    lines = _Lines()
    log = logging.Logger("statefx.connectors.kafka.diagnosis")  # noqa: LOG001 - nobody else's: its lines are not to be read
    log.addHandler(lines)
    admin = kafka().admin.AdminClient({**settings, "logger": log, "log_level": 6})
    began, patience = time.monotonic(), 0.25
    while True:
        left = began + secs - time.monotonic()
        try:
            brokers = admin.list_topics(timeout=max(0.05, min(patience, left))).brokers
        except kafka().KafkaException:
            admin.poll(0.05)  # hands its log to `lines`
        else:
            return _unreachable(brokers.values())
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


def _unreachable(brokers: Iterable[Any]) -> str | None:
    """Return why brokers can't be reached at the addresses that they give for themselves; None if one can."""
    failures = []
    for each in islice(brokers, _ASKED_MAX):
        try:
            socket.create_connection((each.host.strip("[]"), each.port), FAILURE_SECS).close()
        except OSError as error:
            failures.append(f"broker {each.id} says that it is {each.host}:{each.port}, and there: {error}")
        else:
            return None
    if not failures:
        return None
    return f"{'; '.join(failures)}. Correct advertised.listeners of the brokers, or this machine's names"
