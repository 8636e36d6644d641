"""The options of the redis provider and of RedisSink, checked on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Meta, Struct
from msgspec.structs import asdict

from statefx.errors import ConfigError
from statefx.state.contract.store import checked_options

PROVIDER = "topology.state.provider.config"
"""Where the state provider's options are given."""

_SCHEMES = ("redis", "rediss", "unix")
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")

_Text = Annotated[str, Meta(min_length=1)]
_Seconds = Annotated[float, Meta(gt=0, le=600)]


class Secret(str):
    """A text that is never shown; what needs it calls ``encode`` or compares it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return "***"


class Jedis(Struct, frozen=True, forbid_unknown_fields=True):
    """Storm's ``jedisPoolConfig``; its timeout is in milliseconds."""

    host: _Text = "localhost"
    port: Annotated[int, Meta(ge=1, le=65535)] = 6379
    timeout: Annotated[int, Meta(ge=1, le=600_000)] = 5000
    password: _Text | None = None
    database: Annotated[int, Meta(ge=0)] = 0


class Options(Struct, frozen=True):
    """The settings, with their defaults.

    Attributes
    ----------
    url : str
        ``redis://``, ``rediss://`` (TLS) or ``unix://``, with database, user and password if there are any.
    jedisPoolConfig : Jedis
        In place of the url.
    username, password : str
        They win over those in the url.
    cluster : bool
        The url is that of any node of a Redis Cluster.
    timeout_secs : float
        How long to wait for a connection, for a reply.
    retries : int
        How often a call is tried again when the connection is lost or the server is loading.
    backoff_secs : float
        The wait before the first of them; it doubles, up to `BACKOFF_MAX_SECS`.
    prefix : str
        What every key begins with.
    """

    url: _Text = ""
    jedisPoolConfig: Jedis = Jedis()  # noqa: N815  # Storm's name
    username: _Text = ""
    password: _Text = ""
    cluster: bool = False
    timeout_secs: _Seconds = 5.0
    retries: Annotated[int, Meta(ge=0, le=100)] = 6
    backoff_secs: Annotated[float, Meta(gt=0, le=60)] = 0.1
    prefix: _Text = "statefx"


class Settings(Options, frozen=True):
    """The options, and what the url or ``jedisPoolConfig`` says of the server; these two are empty here.

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
    source : str
        Where all this was given, for messages.
    """

    password: Secret = Secret()
    host: str = "localhost"
    port: int = 6379
    path: str = ""
    tls: tuple[tuple[str, str], ...] | None = None
    database: int = 0
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
        given = asdict(checked_options(Options, unmasked(options), source))
        plain = {name: given[name] for name in options if name not in ("url", "jedisPoolConfig")}
        try:
            server = _of_url(given["url"]) if "url" in options else _of_jedis(given["jedisPoolConfig"])
            found = {**server, **plain, "source": source}
            found["password"] = Secret(found.get("password", ""))
            settings = cls(**found)
            if "url" in options and "jedisPoolConfig" in options:
                raise ValueError("jedisPoolConfig and url both say where the server is: give one")
            if settings.username and not settings.password:
                raise ValueError("username needs a password")
            if settings.cluster and (settings.database or settings.path):
                raise ValueError("cluster has database 0 only, and is reached by host and port")
            if "{" in settings.prefix or "}" in settings.prefix:
                raise ValueError("prefix must not hold braces: they say where a Redis Cluster keeps a key")
        except ValueError as error:
            raise ConfigError(f"{source}: {error}", option=str(error).partition(" ")[0]) from None
        return settings


def masked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` with what may hold a password as a `Secret`."""
    found = dict(options)
    for name in ("url", "password"):
        if isinstance(found.get(name), str):
            found[name] = Secret(found[name])
    if isinstance(found.get("jedisPoolConfig"), Mapping):
        found["jedisPoolConfig"] = masked(found["jedisPoolConfig"])
    return found


def unmasked(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: unmasked(value) if isinstance(value, Mapping) else str.__str__(value) if isinstance(value, str) else value
        for name, value in options.items()
    }


def _of_url(url: str) -> dict[str, Any]:
    wrong = "url must be like redis://host:6379/0, rediss://host:6379/0 or unix:///path?db=0"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(wrong) from None  # what it says may hold the password
    queries = dict(parse_qsl(parts.query, keep_blank_values=True))
    tls = tuple((name, queries.pop(name)) for name in _TLS if name in queries and parts.scheme == "rediss")
    database = queries.pop("db", "0" if parts.scheme == "unix" else parts.path.strip("/") or "0")
    if parts.scheme not in _SCHEMES or not database.isdecimal() or (parts.scheme == "unix" and not parts.path):
        raise ValueError(wrong)
    if queries:
        raise ValueError(f"url has parameters that are not known: {', '.join(sorted(queries))}")
    found: dict[str, Any] = {
        "database": int(database),
        "username": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
    }
    if parts.scheme == "unix":
        return {**found, "path": unquote(parts.path)}
    tls_or_none = tls if parts.scheme == "rediss" else None
    return {**found, "host": unquote(parts.hostname or "localhost"), "port": port or 6379, "tls": tls_or_none}


def _of_jedis(config: Jedis) -> dict[str, Any]:
    return {
        "host": config.host,
        "port": config.port,
        "timeout_secs": config.timeout / 1000,
        "password": config.password or "",
        "database": config.database,
    }
