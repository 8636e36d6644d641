"""Values that a bolt has read or put and then changed in place: state keeps them as they were, and raises nothing."""

from __future__ import annotations

import logging
from contextlib import suppress
from copy import deepcopy
from typing import Any

from statefx.state.view.lent import LentState

logger = logging.getLogger("statefx")

_WATCHED_MAX = 1000
"""Values of one task and attempt that are watched: a copy of each is kept."""


class WatchedState(LentState):
    """A state that remembers what changeable values it handed out, and how they were."""

    __slots__ = ("_handed",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._handed: list[tuple[Any, Any, Any]] = []

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key` (see `KeyValueState.get`); `default` is watched too."""
        value = super().get(key, default)
        self._watch(key, value)
        return value

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key` (see `KeyValueState.put`)."""
        super().put(key, value)
        self._watch(key, value)

    __setitem__ = put

    def tell_changes(self, component: str) -> None:
        """Log the first key whose value was changed and is not what state holds.

        A warning and no error: a bolt may well sort a list that it only emits.
        """
        with suppress(Exception):  # values whose comparison is none, such as numpy's arrays
            for key, value, before in self._handed:
                if value != before and value != super().get(key):
                    logger.warning(
                        "bolt %r changed the value of key %r in place, as %r, after it was read or put; state keeps "
                        "what was put. To keep the change: state.put(key, value) after it",
                        component,
                        key,
                        value,
                    )
                    return

    def _watch(self, key: Any, value: Any) -> None:
        if isinstance(value, list | dict | set) and len(self._handed) < _WATCHED_MAX:
            with suppress(Exception):  # a default of any kind, which need not be one that can be copied
                self._handed.append((key, value, deepcopy(value)))
