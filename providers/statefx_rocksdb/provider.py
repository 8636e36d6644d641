"""The rocksdb provider: a RocksDB directory per namespace on each worker machine, caught up from the changelog."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, ClassVar

from statefx.state.changelog.chain import Changelog
from statefx.state.changelog.store import ChangelogProvider, Image, MaterialisationCache
from statefx.state.contract.store import StateContext, require
from statefx_rocksdb.settings import Settings


class RocksDbStateProvider(ChangelogProvider):
    """Keeps each task's state in RocksDB on the worker's disk; for state that does not fit in memory.

    Parameters
    ----------
    options : Mapping[str, Any]
        See `Settings`.

    Raises
    ------
    ProviderError
        The extra is not installed.
    """

    option_names: ClassVar[Collection[str]] = Settings.__struct_fields__

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._settings = Settings.of(options)
        require("rocksdict", "rocksdb", "state provider 'rocksdb'", "the driver")

    def public_options(self) -> Mapping[str, Any]:
        """Return all of them: folders and sizes."""
        return self.options

    def open_image(self, changelog: Changelog, context: StateContext) -> Image:
        """Return the image of ``context.version`` from the machine's copy, or from a private one."""
        require("rocksdict", "rocksdb", "state provider 'rocksdb'", "this worker")
        from statefx_rocksdb.image import RocksDbImage  # noqa: PLC0415  # imports rocksdict, an extra
        from statefx_rocksdb.place import Place  # noqa: PLC0415  # likewise

        hot = MaterialisationCache(0) if context.read_only else _hot_cache(self._settings.hot_cache_mb)
        return RocksDbImage(Place(self._settings, changelog, context), hot, changelog, context)


@cache
def _hot_cache(size_mb: int) -> MaterialisationCache:
    """Return the process's own: Spark's worker processes outlive tasks, and see a namespace again and again."""
    return MaterialisationCache(size_mb << 20)
