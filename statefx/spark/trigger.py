"""When transactions begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from statefx.coordinator.spouts import SpoutTrigger
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
    if kind in ("availableNow", "once") and value is True:
        return {kind: value}
    if kind == "processingTime" and isinstance(value, str) and value.strip():
        _check_interval(value)
        return {kind: value}
    raise ConfigError(f"trigger must be one of {_FORMS}, got {trigger!r}")


def spout_trigger(arguments: Mapping[str, Any]) -> SpoutTrigger:
    """Return what `check_trigger` has returned, for spouts."""
    if "processingTime" in arguments:
        interval = _jvm().org.apache.spark.sql.streaming.Trigger.ProcessingTime(arguments["processingTime"])
        return SpoutTrigger(interval.intervalMs() / 1000)
    return SpoutTrigger(once="once" in arguments, available_now="availableNow" in arguments)


def _jvm() -> Any:
    context = SparkContext._active_spark_context
    assert context is not None
    return context._jvm


def _check_interval(text: str) -> None:
    """Refuse what Spark would refuse only when its query begins."""
    try:
        _jvm().org.apache.spark.sql.streaming.Trigger.ProcessingTime(text)
    except (PySparkException, Py4JError) as error:
        raise ConfigError(
            f"trigger: {text!r} is no interval; write it as in {{'processingTime': '5 seconds'}}", value=text
        ) from error
