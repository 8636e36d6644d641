"""What is measured: the table of metrics, the registry that has their values, and what hands them on.

`catalog` is the table from which everything is made, `registry` has the values, and `prometheus` and `otel` hand them
on. A user's program needs `statefx.metrics.prometheus.collector` alone;
for annotations, here are the types of ``context.metrics``.
"""

from typing import TYPE_CHECKING

from statefx.elsewhere import lookup
from statefx.operators.metrics import Counter, Gauge, Histogram, Metrics

__all__ = ["Counter", "Gauge", "Histogram", "Metrics"]

if not TYPE_CHECKING:
    __getattr__ = lookup(__name__)
