"""What errors of the client mean, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statefx.errors import ConfigError, FailedException, InputError, StatefxError

if TYPE_CHECKING:
    import confluent_kafka

_DENIED = (
    "TOPIC_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
    "_AUTHENTICATION",
)


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


def named(error: Any, *names: str) -> bool:
    """Tell whether an error of the client, or one that carries it, has one of these codes."""
    inner = error.args[0] if isinstance(error, Exception) and error.args else error
    return hasattr(inner, "code") and any(inner.code() == getattr(kafka().KafkaError, name, None) for name in names)


def failure(error: Any, what: str) -> StatefxError:
    """Return what a reader raises: a denial ends the query, anything else is tried again."""
    if named(error, *_DENIED):
        return InputError(
            f"{what}: {text_of(error)}. Give the user of this client READ on the topics, or mend its credentials, and "
            "start again: nothing is lost"
        )
    return FailedException(f"{what}: {text_of(error)}")
