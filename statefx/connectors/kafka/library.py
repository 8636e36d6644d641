"""The client library, and the codes and texts of its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statefx.errors import ConfigError

if TYPE_CHECKING:
    import confluent_kafka

AWAY = ("_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_AUTHENTICATION", "_SSL")
"""Codes that say no more than that a call has failed: why no broker was reached, `diagnose` finds out."""


def kafka() -> Any:
    """Return the client library; ConfigError with the remedy if it is not installed."""
    try:
        import confluent_kafka  # noqa: PLC0415 - an extra: only who uses Kafka needs it
        import confluent_kafka.admin  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError("Kafka needs confluent-kafka: pip install 'statefx[kafka]'") from error
    return confluent_kafka


def text_of(error: BaseException | confluent_kafka.KafkaError) -> str:
    """Return what an error of the client says, without the frame that it is printed in."""
    inner = error.args[0] if isinstance(error, Exception) and error.args else error
    return inner.str() if hasattr(inner, "str") else str(inner)


def has_code(error: Any, *names: str) -> bool:
    """Tell whether an error of the client, or one that carries it, has one of these codes."""
    inner = error.args[0] if isinstance(error, Exception) and error.args else error
    return hasattr(inner, "code") and any(inner.code() == getattr(kafka().KafkaError, name, None) for name in names)
