"""The client library, confluent-kafka: what its clients are made with, its calls within bounds, and why they fail.

A call that fails says only that no broker answers; the reason is in the log of the client. So a client is made whose
log is read. Tests have librdkafka fail in each of these ways, so that another text of it is noticed.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from statefx import logs
from statefx.errors import ConfigError, FailedException, InputError, StatefxError

if TYPE_CHECKING:
    import confluent_kafka
    from confluent_kafka import Consumer, Producer

logger = logs.with_fields(logging.getLogger("statefx.kafka"))

# ---- calls that may never return

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
    """Return whether an error of the client, or one that carries it, has one of these codes."""
    inner = error.args[0] if isinstance(error, Exception) and error.args else error
    return hasattr(inner, "code") and any(inner.code() == getattr(kafka().KafkaError, name, None) for name in names)


def bounded(call: Callable[[float], Answer], secs: float) -> Answer:
    """Call in a thread of its own, which is left behind if the call does not return; KafkaException _TIMED_OUT then.

    The call is given `secs` as its own time-out as well. But when a broker ends under `send_offsets_to_transaction`,
    that call never returns, also after the broker is back; nor does the `close` of a consumer whose commit is on its
    way to a broker that is gone.
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
    if any(has_code(description, "_TIMED_OUT") for description in found.values()):
        with suppress(kafka().KafkaException):
            admin.list_topics(timeout=CONTROLLER_SECS)
            found = ask(REQUEST_SECS)
    return found


def close_consumer(consumer: Any) -> None:
    """Close a consumer; one that does not come to its end is left behind."""
    with suppress(kafka().KafkaException):
        bounded(lambda _: consumer.close(), REQUEST_SECS)


def answer(future: Future[Answer], secs: float) -> Answer:
    """Return what a broker answers to a question with a time-out of `secs`; KafkaException _TIMED_OUT if none does."""
    try:
        return future.result(secs + GRACE_SECS)
    except FutureTimeoutError:
        raise _timed_out() from None


def _timed_out() -> Exception:
    late: Exception = kafka().KafkaException(kafka().KafkaError(kafka().KafkaError._TIMED_OUT))
    return late


# ---- what is refused of a user's settings before anything connects

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
    servers = sorted(server.strip() for server in given.split(",") if server.strip())
    speaks = str(config.get("security.protocol", "plaintext")).lower()
    for server in servers:
        found = _SERVER.fullmatch(server)
        if found is None or not 0 < int(found["port"] or 9092) < 1 << 16:
            raise ConfigError(f"{who}'s servers have {server!r}, which is no address such as 'host:9092'")
        if found["protocol"] and found["protocol"].lower() != speaks:
            raise ConfigError(
                f"{who}'s servers have {server!r}: leave {found['protocol'] + '://'!r} out; security.protocol in "
                f"config says what is spoken there, and it is {speaks!r}"
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


# ---- why no broker can be reached: only the log of a client says it

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
    log = logging.Logger("statefx.connectors.kafka.clients")  # noqa: LOG001 - nobody else's: its lines are not to be read
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
    for broker in islice(brokers, _ASKED_MAX):
        try:
            socket.create_connection((broker.host.strip("[]"), broker.port), FAILURE_SECS).close()
        except OSError as error:
            failures.append(f"broker {broker.id} says that it is {broker.host}:{broker.port}, and there: {error}")
        else:
            return None
    if not failures:
        return None
    return f"{'; '.join(failures)}. Correct advertised.listeners of the brokers, or this machine's names"


# ---- clients

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
    """Settings of the clients of a sink or a spout."""

    who: str  # the class of the user's sink or spout, which errors name
    owned: Mapping[str, str]  # settings that a user can't give, and why
    defaults: Mapping[str, Any]  # settings that a user's replace
    kept: Mapping[str, Any]  # settings that no user's replace
    kinds: tuple[str, ...]  # the classes of confluent-kafka whose clients it makes


class Clients:
    """Makes clients of one cluster.

    `servers` are as ``bootstrap.servers``, and afterwards sorted, so that the same servers are the same text. `config`
    may have passwords, so nothing shows it. librdkafka is asked at once whether it takes these settings together with
    those of `trial`, which some client gets later; ConfigError if it does not, or is not installed.
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
        return self._config.get(name, default)

    def consumer(self, group: str, **more: Any) -> Consumer:
        """Return a consumer that joins no group; `group` is the name that librdkafka wants all the same."""
        made: Consumer = kafka().Consumer(self._settings(**more, **{"group.id": group}))
        return made

    def producer(self, on_line: Callable[[str], None], **more: Any) -> Producer:
        """Return a producer whose calls, such as `poll`, hand each line of its log to `on_line` (rule 10.11).

        librdkafka reports that a connection was lost, or that a request timed out, in its log only: not each of these
        comes to `error_cb` or out of a call. So its log is on up to level 6 (info) at least, whichever ``log_level``
        the user has set; the logger ``statefx.kafka`` gets only the lines of that level.
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
        """Return whether a client has nobody left to ask although there are brokers: make another one then.

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
