"""Metrics in the form that Prometheus reads, for the page's ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from statefx.errors import ConfigError


class Measured(Protocol):
    """A query."""

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """All metrics as they are now, as plain data."""


def exposed(measured: Iterable[Measured], accept: str) -> tuple[bytes, str]:
    """Return metrics in the best form of those that a scraper accepts, and its content type.

    ConfigError: the extra ``metrics`` is missing.
    """
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder

        from statefx.metrics.prometheus import collector
    except ImportError as error:
        raise ConfigError("/metrics takes prometheus-client: pip install 'statefx[metrics]' where it runs") from error
    registry = CollectorRegistry(auto_describe=False)
    for one in measured:
        registry.register(collector(one))
    encode, kind = choose_encoder(accept)
    return encode(registry), kind
