"""Metrics in the form that Prometheus reads, for the page's ``/metrics``: of a query here, or of one elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from statefx.errors import ConfigError
from statefx.log.observation import secs_of
from statefx.metrics.registry import Measured

_AT_WORK = ("healthy", "idle", "starting", "stuck", "failing")
"""Health of a driver that writes: what one wrote that has ended since would be taken for news for ever."""


@dataclass(frozen=True)
class Written:
    """Metrics as a driver elsewhere wrote them beside its log.

    Attributes
    ----------
    metrics : list of dict
    timestamp : float
        When it did, in seconds since the epoch.
    """

    metrics: list[dict[str, Any]]
    timestamp: float


def written(document: Mapping[str, Any]) -> Written | str:
    """Return the metrics of an observation, or why there are none to be shown as those of now."""
    health = document.get("health") or {}
    if document.get("unread"):
        return f"the checkpoint can't be read: {document['unread']}"
    if health.get("state") not in _AT_WORK:
        return f"metrics are those of a driver at work. {health.get('sentence') or 'Nothing is known of this one.'}"
    found, at = document.get("metrics"), secs_of(document.get("writtenAt"))
    if found is None or at is None:
        return (
            "the driver writes no metrics beside its log, where they would be too large: give it topology.metrics.port"
        )
    return Written(found, at)


def exposed(measured: Iterable[Measured | Written], accept: str) -> tuple[bytes, str]:
    """Return metrics in the best form of those that a scraper accepts, and its content type.

    ConfigError: the extra ``metrics`` is missing.
    """
    try:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415 - another extra
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415

        from statefx.metrics.prometheus import collector  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError("/metrics takes prometheus-client: pip install 'statefx[metrics]' where it runs") from error
    registry = CollectorRegistry(auto_describe=False)
    for one in measured:
        registry.register(collector(one, timestamp=one.timestamp if isinstance(one, Written) else None))
    encode, kind = choose_encoder(accept)
    return encode(registry), kind
