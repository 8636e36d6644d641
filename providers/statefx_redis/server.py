"""The server as this process reaches it: connections, tries, and what its errors mean."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from statefx.errors import DeniedError, StateCorruptedError, StateError, StatefxError, UnreachableError
from statefx_redis.scripts import sound
from statefx_redis.settings import Settings

logger = logging.getLogger("statefx")

OLDEST = (6, 2)
BACKOFF_MAX_SECS = 2.0
CONNECTIONS = 8
"""Per process; a thread that needs one more waits for it."""

_AGAIN = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.AskError,  # and MovedError: a cluster that changes
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
    exceptions.RedisClusterException,
)
_NEVER = (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.NoPermissionError)

_Answer = TypeVar("_Answer")


class Server:
    """Round trips to one server or cluster."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._client: Any = None
        self._cluster: Any = None

    def eval(self, script: str, keys: Sequence[str], *arguments: Any) -> Any:
        """Run a script on the node that has `keys`; one round trip.

        Raises StateCorruptedError: the script has found what statefx never writes; FencedError: the script has found a
        newer generation.
        """
        return sound(self.call(keys[0], lambda client: client.eval(script, len(keys), *keys, *arguments)))

    def call(self, key: str, do: Callable[[Any], _Answer]) -> _Answer:
        """Call `do` with a client of the node that has `key`, again and again while the connection is lost.

        Raises UnreachableError: all tries have failed; StateCorruptedError: a key of ours is of a type that we don't
        make; DeniedError, StateError: the server refuses.
        """
        sent = False
        tries = 0
        while True:
            try:
                return self.trip(self._node(key), do)
            except (*_AGAIN, exceptions.ReadOnlyError) as error:
                if isinstance(error, _NEVER):
                    raise self._meaning(error, key) from None
                sent = sent or _may_have_arrived(error)
                failure = error
            except exceptions.RedisError as error:
                raise self._meaning(error, key) from None
            self._lost(failure)
            if tries >= self.settings.retries:
                if isinstance(failure, exceptions.ReadOnlyError):
                    raise self._meaning(failure, key)
                raise UnreachableError(
                    f"{self.settings.address} can't be reached after {tries + 1} tries ({self._text(failure)}): "
                    "is the server up, and the url right?",
                    server=self.settings.address,
                    sent=sent,
                )
            threading.Event().wait(min(BACKOFF_MAX_SECS, self.settings.backoff_secs * 2**tries))
            tries += 1

    def trip(self, client: Any, do: Callable[[Any], _Answer]) -> _Answer:
        return do(client)

    def check(self, refusal: type[StatefxError], kept: str) -> None:
        """Refuse servers that can't keep what is `kept` there, by an error of the class `refusal`."""
        try:
            nodes = self._nodes()
        except DeniedError as error:
            raise refusal(error.message, **error.data) from None
        address = self.settings.address
        for info in nodes:
            version = str(info.get("redis_version", "0"))
            policy = info.get("maxmemory_policy", "noeviction")
            if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < OLDEST:
                raise refusal(f"{address} is Redis {version}: 6.2 or later is needed", server=address)
            if policy != "noeviction":
                remedy = "set maxmemory-policy noeviction"
                raise refusal(f"{address} may evict {kept} (maxmemory-policy {policy}): {remedy}", server=address)
            if info.get("role") == "slave":
                raise refusal(f"{address} is a read-only replica: give the url of the primary", server=address)
            if str(info.get("aof_enabled", "1")) == "0":
                logger.warning(
                    "%s has appendonly off: after a crash of the server it may be older than the checkpoint, and %s is "
                    "then refused as such; set appendonly yes",
                    address,
                    kept,
                )

    def _nodes(self) -> list[dict[str, Any]]:
        """Return what each primary says of itself (INFO)."""
        if not self.settings.cluster:
            return [self.call("", lambda client: client.info())]
        self.call("", lambda client: client.ping())
        found = []
        for node in self._cluster.get_primaries():
            connection = self._cluster.get_redis_connection(node)
            found.append(self.call("", lambda _, connection=connection: connection.info()))  # type: ignore[misc]
        return found

    def _node(self, key: str) -> Any:
        if not self.settings.cluster:
            if self._client is None:
                self._client = _client(self.settings)
            return self._client
        if self._cluster is None:
            self._cluster = _cluster(self.settings)
        return self._cluster.get_redis_connection(self._cluster.get_node_from_key(key))

    def _lost(self, error: Exception) -> None:
        """Connect again: a cluster may have changed, a primary may have become a replica."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        elif self._client is not None and isinstance(error, exceptions.ReadOnlyError):
            self._client.connection_pool.disconnect(inuse_connections=False)

    def _meaning(self, error: Exception, key: str) -> StateError:
        """Return the error to raise for one of redis-py's; none ever holds the password."""
        said, server = self._text(error), self.settings.address
        if isinstance(error, _NEVER) or "NOAUTH" in said or "NOPERM" in said:
            return DeniedError(
                f"{server} refuses this user ({said}): check username and password in {self.settings.source}, and the "
                "user's permissions",
                server=server,
            )
        if "WRONGTYPE" in said:
            return StateCorruptedError(
                f"{server}: {key}, or a key beside it, was overwritten with another type ({said}); restore it from a "
                "backup, or give the topology a prefix of its own",
                server=server,
                missing=False,
            )
        if isinstance(error, exceptions.ReadOnlyError) or "READONLY" in said:
            return StateError(f"{server} is a read-only replica ({said}): give the url of the primary", server=server)
        if isinstance(error, exceptions.OutOfMemoryError) or "OOM" in said:
            return StateError(
                f"{server} is out of memory ({said}): raise maxmemory, or delete what is not needed", server=server
            )
        return StateError(f"{server} answered: {said}", server=server)

    def _text(self, error: Exception) -> str:
        said = f"{type(error).__name__}: {error}"
        secret = str.__str__(self.settings.password)
        return said.replace(secret, "***") if secret else said


@cache
def server_of(settings: Settings) -> Server:
    """Return this process's server for `settings`: worker processes outlive tasks, and connections with them."""
    return Server(settings)


def _client(settings: Settings) -> Any:
    kind: Any = redis.Connection
    options = _options(settings)
    if settings.path:
        kind = redis.UnixDomainSocketConnection
        options["path"] = settings.path
        del options["socket_keepalive"]
    else:
        options.update(host=settings.host, port=settings.port, socket_connect_timeout=settings.timeout_secs)
        if settings.tls is not None:
            kind = redis.SSLConnection
            options.update(settings.tls)
    pool = redis.BlockingConnectionPool(  # type: ignore[no-untyped-call]  # so it is in redis-py
        max_connections=CONNECTIONS,
        timeout=settings.timeout_secs,
        connection_class=kind,
        db=settings.database,
        **options,
    )
    return redis.Redis(connection_pool=pool)


def _cluster(settings: Settings) -> Any:
    options = _options(settings)
    if settings.tls is not None:
        options.update(settings.tls, ssl=True)
    return RedisCluster(
        host=settings.host,
        port=settings.port,
        socket_connect_timeout=settings.timeout_secs,
        max_connections=CONNECTIONS,
        **options,
    )


def _options(settings: Settings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "socket_timeout": settings.timeout_secs,
        "socket_keepalive": True,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),  # tries are counted here, where it is known what they may have done
    }
    if settings.password:
        options["password"] = str.__str__(settings.password)
        options["username"] = settings.username or None
    return options


def _may_have_arrived(error: BaseException) -> bool:
    """Return whether the request may have been carried out: not if there was no connection in the first place."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError | FileNotFoundError):
            return False
        cause = cause.__cause__ or cause.__context__
    return not isinstance(error, exceptions.ResponseError | exceptions.BusyLoadingError)
