"""Images as dicts in the process's memory, caught up from changelogs and shared by the stores of a process."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from statefx.protocol.identity import Namespace, Version
from statefx.state.changelog import Changelog, Route
from statefx.state.changelog_store import Image
from statefx.state.store import StateContext


@dataclass(slots=True, eq=False)
class Materialisation:
    """One version of one namespace; its entries change only while nobody has leased it."""

    namespace: Namespace
    version: Version
    generation: int
    entries: dict[bytes, bytes]
    leases: int = 0
    order: list[bytes] | None = field(default=None)

    def keys(self) -> list[bytes]:
        """Return the keys in order; sorted once per version."""
        if self.order is None:
            self.order = sorted(self.entries)
        return self.order


class DictImage(Image):
    """A leased materialisation."""

    def __init__(self, materialisation: Materialisation, lock: threading.RLock) -> None:
        self._materialisation = materialisation
        self._lock = lock

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys`, None where absent."""
        return list(map(self._materialisation.entries.get, keys))

    def scan(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with start <= key < stop, in key order."""
        keys = self._materialisation.keys()
        entries = self._materialisation.entries
        low = 0 if start is None else bisect_left(keys, start)
        high = len(keys) if stop is None else bisect_left(keys, stop)
        for at in range(low, high):
            yield keys[at], entries[keys[at]]

    def close(self) -> None:
        """End the lease."""
        with self._lock:
            self._materialisation.leases -= 1


class MaterialisationCache:
    """The materialisations of a process, the newest of each folder.

    A store leases one. A leased one is copied before it is caught up, so an older reader stays right; a
    store that is behind the cache gets a private one, and the cache is never taken back.
    """

    def __init__(self) -> None:
        self._newest: dict[str, Materialisation] = {}
        self._lock = threading.RLock()

    def open(self, changelog: Changelog, context: StateContext) -> DictImage:
        """Return the image of ``context.version``."""
        with self._lock:
            cached = self._newest.get(changelog.folder)
            if cached is not None and cached.namespace != changelog.namespace:
                cached = None
            route = changelog.route(context.version, context.snapshot, None if cached is None else cached.version)
            if cached is not None and route.cached and not route.steps:
                found = cached
            else:
                found = self._caught_up(changelog, context, route, cached)
            found.leases += 1
            return DictImage(found, self._lock)

    def _caught_up(
        self, changelog: Changelog, context: StateContext, route: Route, cached: Materialisation | None
    ) -> Materialisation:
        shared = not context.read_only and (cached is None or _replaces(context, cached))
        entries: dict[bytes, bytes] = {}
        if cached is not None and route.cached:
            entries = cached.entries
            if cached.leases or not shared:
                entries = entries.copy()
            else:
                del self._newest[changelog.folder]
        apply(route, entries)
        found = Materialisation(changelog.namespace, context.version, context.generation, entries)
        if shared:
            self._newest[changelog.folder] = found
        return found


def apply(route: Route, entries: dict[bytes, bytes]) -> None:
    """Bring `entries` from the route's start to its end; what is left after an error is of no version."""
    for keys, values in route.chunks():
        if None in values:
            for key, value in zip(keys, values, strict=True):
                if value is None:
                    entries.pop(key, None)
                else:
                    entries[key] = value
        else:
            entries.update(zip(keys, values, strict=True))  # type: ignore[arg-type]  # no None among the values


def _replaces(context: StateContext, cached: Materialisation) -> bool:
    """Say whether a store of `context` may put its image in the place of `cached`."""
    if context.generation != cached.generation:
        return context.generation > cached.generation
    return context.version.txid >= cached.version.txid
