"""The redis provider: state on a server that every machine reaches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from statefx.errors import ProviderError
from statefx.state.contract.store import (
    Namespace,
    Retention,
    StateContext,
    StateLocation,
    StateProvider,
    StateStore,
    Storage,
    TaskId,
    Version,
    require,
)
from statefx_redis import scripts
from statefx_redis.scripts import Names, damaged, lineage_keys, text
from statefx_redis.settings import Options, Settings, masked, unmasked

if TYPE_CHECKING:
    from statefx_redis.server import Server


class RedisStateProvider(StateProvider):
    """Keeps state on a Redis server 6.2 or later, or a compatible one; for state that others read too.

    Parameters
    ----------
    options : Mapping[str, Any]
        See `statefx_redis.settings.Options`; Storm's ``jedisPoolConfig`` is understood.

    Raises
    ------
    ProviderError
        The extra is not installed.
    """

    location: ClassVar[StateLocation] = StateLocation.SERVER
    option_names: ClassVar[Collection[str]] = Options.__struct_fields__

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(masked(options))
        self._settings = Settings.of(options)
        require("redis", "redis", "state provider 'redis'", "the driver")

    def public_options(self) -> Mapping[str, Any] | None:
        """Return all of them, unless a password is among them or in the url."""
        return None if self._settings.password else unmasked(self.options)

    def newState(self, namespace: Namespace, context: StateContext) -> StateStore:
        require("redis", "redis", "state provider 'redis'", "this worker")
        from statefx_redis.store import RedisStateStore  # noqa: PLC0415  # imports redis, an extra

        return RedisStateStore(self._server(), namespace, context)

    def fence(self, lineage: str, generation: int, storage: Storage) -> None:
        """Check the server, then let it refuse older generations: first new namespaces, then those there are."""
        server = self._server()
        server.check(ProviderError, "state")
        keys = lineage_keys(self._settings.prefix, lineage)
        for tag in server.eval(scripts.FENCE, keys, generation)[1]:
            names = Names(self._settings.prefix, text(tag))
            if not names.are_of(lineage):
                raise damaged(keys[1], f"{names.tag!r} is no task of this checkpoint")
            server.eval(scripts.RAISE, [names.meta], generation, lineage)

    def artefacts(self, namespace: Namespace, storage: Storage) -> Sequence[str]:
        return self._tokens(self._server(), Names.of(self._settings.prefix, namespace))

    def _tokens(self, server: Server, names: Names) -> list[str]:
        return list(map(text, server.call(names.tokens, lambda client: client.hkeys(names.tokens))))

    def sweep(self, namespace: Namespace, storage: Storage, found: Sequence[str], retained: Retention) -> int:
        """Delete prepared hashes that can't be named any more; their age does not matter, for nobody reads them."""
        server, names = self._server(), Names.of(self._settings.prefix, namespace)
        gone = 0
        for token in found:
            if token == retained.head.token:
                continue
            keys = [names.meta, names.tokens, names.prepared(token)]
            gone += server.eval(scripts.DROP, keys, retained.generation, token)[0] == b"DROPPED"
        return gone

    def forget(self, lineage: str, is_left: Callable[[TaskId], bool], generation: int, txid: int) -> int:
        """Delete the namespaces that are registered, and left behind."""
        from statefx_redis.store import mismatch  # noqa: PLC0415  # imports redis, an extra

        server, prefix, gone = self._server(), self._settings.prefix, 0
        keys = lineage_keys(prefix, lineage)
        for found in server.call(keys[1], lambda client: client.smembers(keys[1])):
            names = Names(prefix, text(found))
            if not names.are_of(lineage) or not is_left(names.task):
                continue
            tokens = self._tokens(server, names)
            there = [names.meta, names.data, names.order, names.tokens, *map(names.prepared, tokens)]
            answer, *ahead = server.eval(scripts.FORGET, there, generation, txid)
            if answer == b"AHEAD":
                kept = Version(int(ahead[0]), text(ahead[1]))
                raise mismatch(Namespace(lineage, *names.task), names, Version(txid, ""), kept)
            if answer == b"DROPPED":
                # Behind the rest: a namespace that is not registered would be fenced, and forgotten, by nobody.
                server.eval(scripts.UNREGISTER, keys, generation, names.tag)
                gone += 1
        return gone

    def _server(self) -> Server:
        from statefx_redis.server import server_of  # noqa: PLC0415  # imports redis, an extra

        return server_of(self._settings)
