"""When transactions begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statefx.errors import ConfigError

_FORMS = '{"processingTime": "5 seconds"}, {"availableNow": True} or {"once": True}'


def check_trigger(trigger: Mapping[str, Any] | None, interval_ms: int) -> dict[str, Any]:
    """Return the arguments for Spark's ``trigger``; without one, every checkpoint interval.

    Raises
    ------
    ConfigError
        It isn't one of the three forms.
    """
    if trigger is None:
        return {"processingTime": f"{interval_ms} milliseconds"}
    if not isinstance(trigger, Mapping) or len(trigger) != 1:
        raise ConfigError(f"trigger must be one of {_FORMS}, got {trigger!r}")
    kind, value = next(iter(trigger.items()))
    if (kind == "processingTime" and isinstance(value, str) and value.strip()) or (
        kind in ("availableNow", "once") and value is True
    ):
        return {kind: value}
    raise ConfigError(f"trigger must be one of {_FORMS}, got {trigger!r}")
