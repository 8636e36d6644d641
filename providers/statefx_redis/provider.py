"""The redis provider: state on a server that every machine reaches."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from statefx.errors import FencedError, ProviderError
from statefx.state.contract.store import (
    Capabilities,
    Namespace,
    Retention,
    StateContext,
    StateProvider,
    StateStore,
    Storage,
)
from statefx_redis import scripts
from statefx_redis.answers import damaged, text
from statefx_redis.names import Names, lineage_keys
from statefx_redis.settings import OPTIONS, Settings, masked, unmasked

if TYPE_CHECKING:
    from statefx_redis.server import Server

logger = logging.getLogger("statefx")

OLDEST = (6, 2)


class RedisStateProvider(StateProvider):
    """Keeps state on a Redis server 6.2 or later, or a compatible one; for state that others read too.

    Parameters
    ----------
    options : Mapping[str, Any]
        See `Settings`; Storm's ``jedisPoolConfig`` is understood.

    Raises
    ------
    ProviderError
        The extra is not installed.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        durable=True, shared=True, lazy_commit=False, fences_writers=True
    )

    option_names: ClassVar[Collection[str]] = OPTIONS

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(masked(options))
        self._settings = Settings.of(self.options)
        _require_redis("the driver")

    def public_options(self) -> Mapping[str, Any] | None:
        """Return all of them, unless a password is among them or in the url."""
        return None if self._settings.password else unmasked(self.options)

    def newState(self, namespace: Namespace, context: StateContext) -> StateStore:
        _require_redis("this worker")
        from statefx_redis.store import RedisStateStore  # noqa: PLC0415  # imports redis, an extra

        return RedisStateStore(self._server(), namespace, context)

    def fence(self, lineage: str, generation: int, storage: Storage) -> None:
        """Check the server, then let it refuse older generations: first new namespaces, then those there are."""
        server = self._server()
        self._check(server)
        keys = lineage_keys(self._settings.prefix, lineage)
        answer = server.eval(scripts.FENCE, keys, generation)
        _not_fenced(answer, keys[0], generation)
        for tag in answer[1]:
            names = Names(self._settings.prefix, text(tag))
            if not names.are_of(lineage):
                raise damaged(keys[1], f"{names.tag!r} is no task of this checkpoint")
            answer = server.eval(scripts.RAISE, [names.meta], generation, lineage)
            _not_fenced(answer, names.meta, generation)

    def artefacts(self, namespace: Namespace, storage: Storage) -> Sequence[str]:
        """Return the tokens of the namespace's prepared hashes."""
        server, names = self._server(), Names.of(self._settings.prefix, namespace)
        return list(map(text, server.call(names.tokens, lambda client: client.hkeys(names.tokens))))

    def sweep(self, namespace: Namespace, storage: Storage, found: Sequence[str], retained: Retention) -> int:
        """Delete prepared hashes that can't be named any more; their age does not matter, for nobody reads them."""
        server, names = self._server(), Names.of(self._settings.prefix, namespace)
        gone = 0
        for token in found:
            if token == retained.head.token:
                continue
            keys = [names.meta, names.tokens, names.prepared(token)]
            answer = server.eval(scripts.DROP, keys, retained.generation, token)
            _not_fenced(answer, names.meta, retained.generation)
            gone += answer[0] == b"DROPPED"
        return gone

    def _server(self) -> Server:
        from statefx_redis.server import server_of  # noqa: PLC0415  # imports redis, an extra

        return server_of(self._settings)

    def _check(self, server: Server) -> None:
        """Refuse servers that can't keep state."""
        from statefx_redis.server import DeniedError  # noqa: PLC0415  # imports redis, an extra

        try:
            nodes = server.nodes()
        except DeniedError as error:
            raise ProviderError(error.message, **error.data) from None
        for info in nodes:
            self._check_node(info)

    def _check_node(self, info: Mapping[str, Any]) -> None:
        address = self._settings.address
        version = str(info.get("redis_version", "0"))
        if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < OLDEST:
            raise ProviderError(f"{address} is Redis {version}: 6.2 or later is needed", server=address)
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise ProviderError(
                f"{address} may evict state (maxmemory-policy {policy}): set maxmemory-policy noeviction",
                server=address,
                policy=policy,
            )
        if info.get("role") == "slave":
            raise ProviderError(f"{address} is a read-only replica: give the url of the primary", server=address)
        if str(info.get("aof_enabled", "1")) == "0":
            logger.warning(
                "%s has appendonly off: after a crash of the server it may be older than the checkpoint, and state is "
                "then refused as corrupted; set appendonly yes",
                address,
            )


def _not_fenced(answer: list[Any], key: str, generation: int) -> None:
    if answer[0] == b"FENCED":
        raise FencedError(
            f"{key}: generation {answer[1]} has taken over from generation {generation}; stop this driver",
            generation=generation,
            newest=answer[1],
        )


def _require_redis(where: str) -> None:
    try:
        import redis  # noqa: F401, PLC0415  # only whether it is there
    except ImportError as error:
        raise ProviderError(
            f"state provider 'redis' needs redis-py, which can't be imported on {where} ({error}): "
            "pip install statefx[redis]"
        ) from error
