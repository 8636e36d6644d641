"""The rocksdb provider's options, checked on the driver."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from statefx.errors import ConfigError

_KEY = "topology.state.provider.config"


@dataclass(frozen=True, slots=True)
class Settings:
    """What may be set, with the defaults.

    Attributes
    ----------
    dir : str
        Absolute folder on every worker for caches of all checkpoints; empty: the user's own below the
        machine's temporary folder.
    block_cache_mb : int
        RocksDB's block cache, one per process; 0: none, and the system's page cache does the work.
    bloom_bits : int
        Bits for each key of the filters that tell which files a key is not in; 0: no filters. Each process that has a
        task's state open holds its filters: 1.25 MB for a million keys at 10 bits.
    write_buffer_mb : int
        RocksDB's memtable while a cache catches up.
    lock_timeout_secs : float
        How long to wait for another process that brings the same cache up to date, before reading past it.
    catch_up_kb : int
        Changelog bytes that are read over RocksDB before they are written to it; 0: written at once.
    hot_cache_mb : int
        What a worker process remembers of entries read or changed recently, for all its tasks; 0: nothing.
    """

    dir: str = ""
    block_cache_mb: int = 0
    bloom_bits: int = 10
    write_buffer_mb: int = 16
    lock_timeout_secs: float = 2.0
    catch_up_kb: int = 4096
    hot_cache_mb: int = 64

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """Return the settings that `options` name; ConfigError says what is wrong with them."""
        known = {field.name for field in fields(cls)}
        for name in options:
            if name not in known:
                nearest = difflib.get_close_matches(str(name), known, 1, 0.0)[0]
                raise ConfigError(
                    f"{_KEY}: unknown option {name!r}; did you mean {nearest!r}? Known: {', '.join(sorted(known))}",
                    option=name,
                )
        for name, (least, most) in _RANGES.items():
            if name in options:
                _check_number(name, options[name], least, most)
        folder = options.get("dir", "")
        if not isinstance(folder, str) or (folder and not os.path.isabs(folder)):
            raise ConfigError(f"{_KEY}: dir must be an absolute path, got {folder!r}", option="dir")
        return cls(**options)


_RANGES: dict[str, tuple[float, float]] = {
    "block_cache_mb": (0, 65536),
    "bloom_bits": (0, 100),
    "write_buffer_mb": (1, 4096),
    "lock_timeout_secs": (0, 600),
    "catch_up_kb": (0, 1048576),
    "hot_cache_mb": (0, 65536),
}


def _check_number(name: str, value: object, least: float, most: float) -> None:
    whole = name != "lock_timeout_secs"
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ConfigError(f"{_KEY}: {name} must be {'an int' if whole else 'a number'}, got {value!r}", option=name)
    if not least <= value <= most:
        raise ConfigError(f"{_KEY}: {name} must be from {least} to {most}, got {value}", option=name)
