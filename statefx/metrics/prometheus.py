"""Hands metrics to Prometheus: at a port of the driver, on its page, or in a registry of ``prometheus_client``."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from statefx.errors import ConfigError
from statefx.metrics.catalog import METRICS, Kind
from statefx.metrics.registry import USERS_HELP, Measured

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError("metrics for Prometheus need prometheus-client: pip install 'statefx[metrics]'") from error

_HELP = {metric.exposed: metric.help for metric in METRICS}


def collector(query: Measured, *, timestamp: float | None = None) -> Collector:
    """Return the metrics of a query as a collector, for a registry of ``prometheus_client``.

    Parameters
    ----------
    query : Query, TransactionalClient or TopologyTester
    timestamp : float, optional
        When the metrics were read, in seconds since the epoch; by default a scraper takes them for those of now.

    Returns
    -------
    prometheus_client.registry.Collector
        For ``prometheus_client.REGISTRY.register(collector(query))``. It reads the query whenever it is scraped.
    """
    return _QueryCollector(query, timestamp)


class _QueryCollector(Collector):
    def __init__(self, query: Measured, timestamp: float | None) -> None:
        self._query, self._timestamp = query, timestamp

    def describe(self) -> Iterable[Metric]:
        """Return nothing: several topologies of a process have the same names, told apart by a label."""
        return []

    def collect(self) -> Iterator[Metric]:
        together: dict[str, list[dict[str, Any]]] = {}
        for sample in self._query.metrics:
            together.setdefault(sample["name"], []).append(sample)
        for name, samples in together.items():
            yield _family(name, samples, self._timestamp)


def _family(name: str, samples: list[dict[str, Any]], at: float | None) -> Metric:
    """Return the samples of one metric; a label that one of them lacks is empty, which Prometheus takes for none."""
    labels = list(dict.fromkeys(label for sample in samples for label in sample["labels"]))
    text = _HELP.get(name, USERS_HELP)
    kind = Kind(samples[0]["kind"])
    if kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(name, text, labels=labels)
        for sample in samples:
            value = sample["value"]
            buckets = [(str(bound), count) for bound, count in value["buckets"]]
            histogram.add_metric(_values(sample, labels), buckets, value["sum"], at)
        return histogram
    made = CounterMetricFamily if kind is Kind.COUNTER else GaugeMetricFamily
    family = made(name, text, labels=labels)
    for sample in samples:
        family.add_metric(_values(sample, labels), sample["value"], timestamp=at)
    return family


def _values(sample: dict[str, Any], labels: list[str]) -> list[str]:
    # A partition may be named after a file whose name is no UTF-8: one such would cost the scrape of all metrics.
    return [sample["labels"].get(label, "").encode("utf-8", "backslashreplace").decode() for label in labels]


CONNECTIONS = 16
"""How many connections are served at once: each has a thread and a file of the driver's process, and a driver that has
no file left can't append to its log."""

SILENT_SECS = 10.0
"""How long nothing may come from one who asks, or be taken by them."""


class _Handler(WSGIRequestHandler):
    timeout = SILENT_SECS

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: it would be a line for each scrape."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *args: Any, **more: Any) -> None:
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(*args, **more)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread of its own, or close the connection if there are too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, on that thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore who has gone, or was silent for too long."""


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _Port:
    """A port of this machine, and the metrics that are read there; ConfigError if it can't be had."""

    def __init__(self, host: str, port: int) -> None:
        self.users = 0
        self.registry = CollectorRegistry()
        try:
            place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            kind = _ServerV6 if place[0] == socket.AF_INET6 else _Server
            app = make_wsgi_app(self.registry)
            self._server = make_server(str(place[4][0]), port, app, server_class=kind, handler_class=_Handler)
        except OSError as error:
            raise ConfigError(
                f"topology.metrics.port: metrics can't be served at {host}:{port} ({error.strerror or error}): give "
                "another port, or 0 for any that is free, which query.metricsUrl tells; and as topology.metrics.host "
                "an address of this machine",
                host=host,
                port=port,
            ) from error
        run = self._server.serve_forever
        self._thread = threading.Thread(target=run, name="statefx-metrics", daemon=True)
        self._thread.start()
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}/metrics"

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown()
            self._server.server_close()
        self._thread.join(1.0)


_lock = threading.Lock()

_ports: dict[tuple[str, int], _Port] = {}
"""Those that are open, by what was asked for."""


class MetricsServer:
    """Serves the metrics of a query over HTTP, to whoever reaches the port; port 0 is any that is free.

    Queries of a process may share a port: one that is started again has it while the former one ends.

    Raises
    ------
    ConfigError
        It can't listen there.
    """

    def __init__(self, host: str, port: int) -> None:
        self._asked = host, port
        self._collector: Collector | None = None
        self._closed = False
        with _lock:
            self._port = _ports.get(self._asked) or _Port(host, port)
            self._port.users += 1
            if port:
                _ports[self._asked] = self._port
        self.url = self._port.url

    def attach(self, query: Measured) -> None:
        """Serve the metrics of a query from now on."""
        self._collector = collector(query)
        self._port.registry.register(self._collector)

    def close(self) -> None:
        """Stop serving, and free the port unless another query has it; again is a no-op."""
        with _lock:
            if self._closed:
                return
            self._closed = True
            if self._collector is not None:
                self._port.registry.unregister(self._collector)
            self._port.users -= 1
            if not self._port.users:
                _ports.pop(self._asked, None)
                self._port.close()
