"""What Spark's workers could not be sent is refused here too, though here nothing is sent."""

from __future__ import annotations

from statefx.config import Config
from statefx.topology.graph import Topology
from statefx.topology.submission import check_sendable


def check_travels(topology: Topology, settings: Config) -> None:
    """Refuse bolts and settings as ``submit`` does.

    Raises
    ------
    TopologyError, ConfigError
        See `check_sendable`.
    """
    try:
        from statefx.spark.pickling import dumps  # noqa: PLC0415 - a fifth of a second, which not every import pays
    except ImportError:  # without pyspark there is nobody to ask
        return
    check_sendable(topology, settings.mapping(), dumps)
