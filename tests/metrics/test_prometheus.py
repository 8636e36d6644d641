"""What Prometheus is shown: read back by its own client's parser, and over HTTP."""

import socket
from contextlib import ExitStack, closing
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from statefx.errors import ConfigError
from statefx.metrics import prometheus
from statefx.metrics.catalog import BY_NAME, METRICS
from statefx.metrics.prometheus import MetricsServer, collector
from statefx.metrics.registry import USERS_HELP, Registry
from tests.metrics.reading import value
from tests.metrics.test_exactly_once import topology
from tests.ports import free_port
from tests.testing.topologies import lines


class Measured:
    def __init__(self, registry):
        self.registry = registry

    @property
    def metrics(self):
        return self.registry.as_dicts()


def registry_of(*measured):
    found = CollectorRegistry()
    for each in measured:
        found.register(collector(each))
    return found


def samples(text):
    return {(sample.name, *sorted(sample.labels.items())): sample.value for family in text for sample in family.samples}


def filled(name="words"):
    """A registry with a value of each metric."""
    registry = Registry(name)
    for number, metric in enumerate(METRICS, 1):
        labels = [f"{label}-1" for label in metric.labels]
        if metric.kind == "histogram":
            registry.observe(metric.name, number, *labels)
        elif metric.kind == "counter":
            registry.add(metric.name, number, *labels)
        else:
            registry.gather(
                lambda name=metric.name, number=number, labels=labels: [registry.sample(name, number, *labels)]
            )
    return registry


@pytest.mark.parametrize(
    ("generate", "read"), [(generate_latest, parse), (generate_openmetrics, parse_openmetrics)], ids=["text", "open"]
)
def test_each_metric_is_read_back_by_prometheus_parser(generate, read):
    families = list(read(generate(registry_of(Measured(filled()))).decode()))
    assert {family.name for family in families} == {metric.name for metric in METRICS}
    for family in families:
        metric = BY_NAME[family.name]
        assert family.type == metric.kind
        assert family.documentation == metric.help
        assert {label for sample in family.samples for label in sample.labels} - {"le"} == {"topology", *metric.labels}


def test_two_topologies_share_a_registry():
    found = samples(parse(generate_latest(registry_of(Measured(filled("a")), Measured(filled("b")))).decode()))
    assert {dict(key[1:])["topology"] for key in found} == {"a", "b"}


def test_odd_labels_are_escaped():
    registry = Registry('quo"te\n<script>')
    registry.add("statefx_rows_late", 1, 'a\\b"c\nd')
    ((name, *labels),) = samples(parse(generate_latest(registry_of(Measured(registry))).decode()))
    assert (name, dict(labels)) == (
        "statefx_rows_late_total", {"topology": 'quo"te\n<script>', "component": 'a\\b"c\nd'}
    )  # fmt: skip


def test_half_a_surrogate_pair_costs_no_scrape():
    """A partition may be named after a file whose name is no UTF-8."""
    registry = Registry("words")
    registry.add("statefx_rows_late", 1, b"caf\xe9".decode("utf-8", "surrogateescape"))
    ((_, *labels),) = samples(parse(generate_latest(registry_of(Measured(registry))).decode()))
    assert dict(labels)["component"] == "caf\\udce9"


def test_metrics_of_users_are_shown(driver):
    tester = driver.start(topology(1))
    tester.send(lines("to be"))
    text = generate_latest(registry_of(tester)).decode()
    assert f"# HELP words_total {USERS_HELP}" in text, "as OpenTelemetry has it"
    found = samples(parse(text))
    own = ("component", "count"), ("topology", "counting"), ("word", "to")
    assert found["words_total", *own] == 1
    assert found["length_bucket", ("component", "count"), ("le", "2.0"), ("topology", "counting")] == 2
    assert found["last", ("component", "count"), ("task", "0"), ("topology", "counting")] == 2


@pytest.mark.slow
def test_a_server_is_read_and_frees_its_port():
    registry = filled()
    served = MetricsServer("127.0.0.1", 0)
    served.attach(Measured(registry))
    with closing(urlopen(served.url, timeout=10)) as answer:
        found = samples(parse(answer.read().decode()))
    wanted = value(registry.as_dicts(), "statefx_generation")
    assert found["statefx_generation", ("topology", "words")] == wanted
    served.close()
    served.close()
    with pytest.raises(URLError):
        urlopen(served.url, timeout=10)


@pytest.mark.slow
def test_connections_that_say_nothing_are_bounded_and_end(monkeypatch):
    """Each takes a file of the driver's process, and a driver without any can't append to its log."""
    monkeypatch.setattr(prometheus, "CONNECTIONS", 3)
    monkeypatch.setattr(prometheus._Handler, "timeout", 1.0)
    served = MetricsServer("127.0.0.1", 0)
    with ExitStack() as stack:
        stack.callback(served.close)
        served.attach(Measured(filled()))
        place = "127.0.0.1", urlsplit(served.url).port
        silent = [stack.enter_context(socket.create_connection(place, 10)) for _ in range(20)]
        assert [each.recv(10) for each in silent[3:]] == [b""] * 17
        assert [each.recv(10) for each in silent[:3]] == [b""] * 3  # by the limit of time
        with closing(urlopen(served.url, timeout=10)) as answer:
            assert answer.status == 200


@pytest.mark.slow
def test_queries_of_a_process_share_a_port_until_the_last_of_them_ends():
    port = free_port()
    first, second = (MetricsServer("127.0.0.1", port) for _ in range(2))
    first.attach(Measured(filled(name="first")))
    second.attach(Measured(filled(name="second")))

    def shown():
        with closing(urlopen(second.url, timeout=10)) as answer:
            return {dict(labels)["topology"] for _, *labels in samples(parse(answer.read().decode()))}

    assert shown() == {"first", "second"}
    first.close()
    first.close()
    assert shown() == {"second"}
    second.close()
    with closing(socket.create_server(("127.0.0.1", port))), pytest.raises(ConfigError, match="another port"):
        MetricsServer("127.0.0.1", port)
    again = MetricsServer("127.0.0.1", port)
    again.close()


def test_a_taken_port_is_refused_with_a_remedy():
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"127.0.0.1:{port} .*in use.*another port, or 0"):
            MetricsServer("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(ConfigError, match="an address of this machine"):
        MetricsServer("192.0.2.1", 0)
