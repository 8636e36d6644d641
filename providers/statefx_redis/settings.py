"""The options of the redis provider and of RedisSink, checked on the driver."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from statefx.errors import ConfigError

PROVIDER = "topology.state.provider.config"
"""Where the state provider's options are given."""

_SCHEMES = ("redis", "rediss", "unix")
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")


class Secret(str):
    """A text that is never shown; what needs it calls ``encode`` or compares it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return "***"


@dataclass(frozen=True)
class Settings:
    """What may be set, with the defaults.

    The options are those that follow ``database``, and ``url`` or Storm's ``jedisPoolConfig``, which say the rest.
    The url is ``redis://``, ``rediss://`` (TLS) or ``unix://``, with database, user and password if there are any.

    Attributes
    ----------
    host, port : str, int
        Where the server listens.
    path : str
        Its Unix socket; empty: by host and port.
    tls : tuple of (name, value), or None
        The certificates' parameters in the url; None: no TLS.
    database : int
        Its number.
    username, password : str
        They win over those in the url.
    cluster : bool
        The url is that of any node of a Redis Cluster.
    timeout_secs, connect_timeout_secs : float
        How long to wait for a reply, for a connection.
    retries : int
        How often a call is tried again when the connection is lost or the server is loading.
    backoff_secs : float
        The wait before the first of them; it doubles, up to `BACKOFF_MAX_SECS`.
    max_connections : int
        Per process; who needs one more waits for it.
    prefix : str
        What every key begins with.
    source : str
        Where all this was given, for messages.
    """

    host: str = "localhost"
    port: int = 6379
    path: str = ""
    tls: tuple[tuple[str, str], ...] | None = None
    database: int = 0
    username: str = ""
    password: Secret = field(default=Secret(), repr=False)
    cluster: bool = False
    timeout_secs: float = 5.0
    connect_timeout_secs: float = 5.0
    retries: int = 6
    backoff_secs: float = 0.1
    max_connections: int = 8
    prefix: str = "statefx"
    source: str = PROVIDER

    @property
    def address(self) -> str:
        """The server's, without user and password."""
        if self.path:
            return f"unix://{self.path}?db={self.database}"
        scheme = "redis" if self.tls is None else "rediss"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}/{self.database}"

    @classmethod
    def of(cls, options: Mapping[str, Any], source: str = PROVIDER) -> Settings:
        """Return the settings that `options` name; ConfigError says what is wrong with them, and where."""
        try:
            return replace(cls._of(options), source=source)
        except _RefusedError as error:
            raise ConfigError(f"{source}: {error}", option=error.args[0]) from None

    @classmethod
    def _of(cls, options: Mapping[str, Any]) -> Settings:
        for name in options:
            if name not in OPTIONS:
                nearest = difflib.get_close_matches(str(name), OPTIONS, 1, 0.0)[0]
                raise _RefusedError(name, f"is unknown; did you mean {nearest!r}? Known: {', '.join(sorted(OPTIONS))}")
            OPTIONS[name](name, options[name])
        if "jedisPoolConfig" in options and "url" in options:
            raise _RefusedError("jedisPoolConfig", "and url both say where the server is: give one")
        found = cls()
        if "url" in options:
            found = replace(found, **_of_url(options["url"]))
        elif "jedisPoolConfig" in options:
            found = replace(found, **_of_jedis(options["jedisPoolConfig"]))
        plain = {name: value for name, value in options.items() if name not in ("url", "jedisPoolConfig")}
        if "password" in plain:
            plain["password"] = hidden(plain["password"])
        found = replace(found, **plain)
        if found.username and not found.password:
            raise _RefusedError("username", "needs a password")
        if found.cluster and (found.database or found.path):
            raise _RefusedError("cluster", "has database 0 only, and is reached by host and port")
        return found


def masked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` with what may hold a password as a `Secret`."""
    found = dict(options)
    for name in ("url", "password"):
        if isinstance(found.get(name), str):
            found[name] = hidden(found[name])
    if isinstance(found.get("jedisPoolConfig"), Mapping):
        found["jedisPoolConfig"] = masked(found["jedisPoolConfig"])
    return found


def unmasked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options`, among which there is no password, as they were given."""
    return {
        name: unmasked(value) if isinstance(value, Mapping) else str.__str__(value) if isinstance(value, str) else value
        for name, value in options.items()
    }


def hidden(text: str) -> Secret:
    """Return `text` as a `Secret`."""
    return text if isinstance(text, Secret) else Secret(text)


def _of_url(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(str.__str__(url))
        port = parts.port
    except ValueError:
        parts, port = None, None
    if parts is None or parts.scheme not in _SCHEMES:
        raise _RefusedError("url", "must be like redis://host:6379/0, rediss://host:6379/0 or unix:///path?db=0")
    found: dict[str, Any] = {}
    queries = dict(parse_qsl(parts.query, keep_blank_values=True))
    tls = tuple((name, queries.pop(name)) for name in _TLS if name in queries and parts.scheme == "rediss")
    database = queries.pop("db", "0" if parts.scheme == "unix" else parts.path.strip("/") or "0")
    if queries:
        raise _RefusedError("url", f"has parameters that are not known: {', '.join(sorted(queries))}")
    if not database.isdecimal():
        raise _RefusedError("url", "must name the database by its number")
    found["database"] = int(database)
    if parts.scheme == "unix":
        if not parts.path:
            raise _RefusedError("url", "must name the socket, as in unix:///run/redis.sock")
        found["path"] = unquote(parts.path)
    else:
        found["host"] = unquote(parts.hostname or "localhost")
        found["port"] = port or 6379
        found["tls"] = tls if parts.scheme == "rediss" else None
    found["username"] = unquote(parts.username or "")
    found["password"] = Secret(unquote(parts.password or ""))
    return found


def _of_jedis(config: Mapping[str, Any]) -> dict[str, Any]:
    """Read Storm's mapping; its timeout is in milliseconds."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if name not in _JEDIS:
            raise _RefusedError(f"jedisPoolConfig.{name}", f"is unknown; known: {', '.join(_JEDIS)}")
        if value is None and name == "password":
            continue
        _JEDIS[name](f"jedisPoolConfig.{name}", value)
        if name == "timeout":
            found["timeout_secs"] = found["connect_timeout_secs"] = value / 1000
        else:
            found[name] = hidden(value) if name == "password" else value
    return found


class _RefusedError(Exception):
    """An option, and what is wrong with it."""

    def __str__(self) -> str:
        return "{} {}".format(*self.args)


_Check = Callable[[str, Any], None]


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise _RefusedError(name, f"must be a text that is not empty, got a {type(value).__name__}")


def _prefix(name: str, value: Any) -> None:
    _text(name, value)
    if "{" in value or "}" in value:
        raise _RefusedError(name, "must not hold braces: they say where a Redis Cluster keeps a key")


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise _RefusedError(name, f"must be true or false, got {value!r}")


def _mapping(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise _RefusedError(name, f"must be a mapping, got a {type(value).__name__}")


def _whole(least: int, most: int) -> _Check:
    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _RefusedError(name, f"must be a whole number from {least} to {most}, got {value!r}")

    return check


def _seconds(most: float) -> _Check:
    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
            raise _RefusedError(name, f"must be a number of seconds, more than 0 and at most {most}, got {value!r}")

    return check


OPTIONS: dict[str, _Check] = {
    "url": _text,
    "username": _text,
    "password": _text,
    "cluster": _flag,
    "timeout_secs": _seconds(600),
    "connect_timeout_secs": _seconds(600),
    "retries": _whole(0, 100),
    "backoff_secs": _seconds(60),
    "max_connections": _whole(1, 10_000),
    "prefix": _prefix,
    "jedisPoolConfig": _mapping,
}

_JEDIS: dict[str, _Check] = {
    "host": _text,
    "port": _whole(1, 65535),
    "timeout": _whole(1, 600_000),
    "password": _text,
    "database": _whole(0, 1_000_000),
}
