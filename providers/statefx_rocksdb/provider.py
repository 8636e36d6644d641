"""The rocksdb provider: a RocksDB directory per namespace on each worker machine, caught up from the changelog."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from statefx.errors import ConfigError
from statefx.state.changelog.chain import Changelog
from statefx.state.changelog.store import ChangelogProvider, Image, MaterialisationCache
from statefx.state.contract.store import StateContext, checked_options, require

_KEY = "topology.state.provider.config"


class Settings(Struct, frozen=True):
    """The settings, with their defaults.

    Attributes
    ----------
    dir : str
        Absolute folder on every worker for caches of all checkpoints; empty: the user's own below the
        machine's temporary folder.
    block_cache_mb : int
        RocksDB's block cache, one per process; 0: none, and the system's page cache does the work.
    catch_up_kb : int
        Changelog bytes that are read over RocksDB before they are written to it; 0: written at once.
    hot_cache_mb : int
        What a worker process remembers of entries read or changed recently, for all its tasks; 0: nothing.
    """

    dir: str = ""
    block_cache_mb: Annotated[int, Meta(ge=0, le=65536)] = 0
    catch_up_kb: Annotated[int, Meta(ge=0, le=1048576)] = 4096
    hot_cache_mb: Annotated[int, Meta(ge=0, le=65536)] = 64

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """Return the settings that `options` name; ConfigError says what is wrong with them."""
        settings = checked_options(cls, options, _KEY)
        if settings.dir and not os.path.isabs(settings.dir):
            raise ConfigError(f"{_KEY}: dir must be an absolute path, got {settings.dir!r}", option="dir")
        return settings


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
        require("rocksdict", "rocksdb", "state provider 'rocksdb'", "this worker")
        from statefx_rocksdb.images import LocalImages, RocksDbImage  # noqa: PLC0415  # imports rocksdict, an extra

        hot = MaterialisationCache(0) if context.read_only else _hot_cache(self._settings.hot_cache_mb)
        return RocksDbImage(LocalImages(self._settings, changelog, context), hot, changelog, context)


@cache
def _hot_cache(size_mb: int) -> MaterialisationCache:
    """Return the process's own: Spark's worker processes outlive tasks, and see a namespace again and again."""
    return MaterialisationCache(size_mb << 20)
