"""State in the worker process's memory, durable through changelog files in the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statefx.errors import ConfigError
from statefx.state.changelog.chain import Changelog
from statefx.state.changelog.store import ChangelogProvider, DictImage, Image, MaterialisationCache
from statefx.state.contract.store import StateContext

_CACHE = MaterialisationCache()
"""The process's own: Spark's worker processes outlive tasks, and see a namespace again and again."""


class MemoryStateProvider(ChangelogProvider):
    """Keeps each task's whole state in memory; for state that fits.

    Parameters
    ----------
    options : Mapping[str, Any]
        None are known.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        if options:
            raise ConfigError(
                f"state provider 'memory' takes no options, got {sorted(options)}; remove them from "
                "topology.state.provider.config",
                options=sorted(options),
            )

    def open_image(self, changelog: Changelog, context: StateContext) -> Image:
        return DictImage(_CACHE, changelog, context)
