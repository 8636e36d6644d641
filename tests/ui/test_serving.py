"""The page's server: its port, its thread, the stream of changes, and the end."""

import asyncio
import gc
import json
import logging
import socket
import sys
import threading
import time
from contextlib import ExitStack, suppress

import httpx2 as httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from statefx import Checkpoint
from statefx.errors import ConfigError
from statefx.ui import claimed, serving, site
from statefx.ui.door import HOSTS
from tests.ui.checkpoints import filled
from tests.ui.waiting import wait_until

LOOPBACK = "127.0.0.1"


class Query:
    """What a page needs of a query."""

    def __init__(self, name="bank"):
        self.name = name
        self.document = {"topology": name, "health": {"state": "healthy", "sentence": "All is well."}, "error": None}
        self.observed = 0
        self.metrics = [
            {"name": "statefx_transactions_total", "kind": "counter", "value": 7.0,
             "labels": {"topology": name, "outcome": "committed"}},
        ]  # fmt: skip

    def observation(self):
        self.observed += 1
        return dict(self.document)


@pytest.fixture
def place(tmp_path):
    return str(filled(tmp_path / "checkpoint", 1))


@pytest.fixture
def pages(place):
    """Claims pages and closes them."""
    claims = []

    def claim(port=0, host=LOOPBACK, name="bank"):
        claims.append(claimed(host, port, name, place))
        return claims[-1]

    yield claim
    for page in claims:
        page.close()
    assert wait_until(lambda: not [each for each in threading.enumerate() if each.name.startswith("statefx-page")])


def get(page, path, **more):
    return httpx.get(page.url.partition("?")[0].rstrip("/") + path, timeout=10, **more)


def events(url, wanted):
    """Yield the events of a stream until `wanted` of them have come."""
    with httpx.stream("GET", url, timeout=10) as answer:
        event = ""
        for text in answer.iter_lines():
            if text.startswith("event: "):
                event = text[7:]
            elif text.startswith("data: "):
                yield event, json.loads(text[6:])
                wanted -= 1
                if not wanted:
                    return


@pytest.mark.slow
def test_a_query_is_shown_from_its_start_to_its_end(pages):
    page, query = pages(), Query()
    page.show(query)
    assert get(page, "/v1/topologies/bank").json()["health"]["sentence"] == "All is well."
    page.close()
    assert wait_until(lambda: is_free(httpx.URL(page.url).port))


def test_a_port_that_is_taken_is_refused_before_anything_starts():
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"topology\.ui\.port: port {port} of 127\.0\.0\.1 is taken.* or 0 for any"
        ):
            claimed(LOOPBACK, port, "bank", "checkpoint")


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_an_address_of_another_machine_is_refused(host):
    with pytest.raises(ConfigError, match=r"topology\.ui\.host.*give 127.0.0.1"):
        claimed(host, 0, "bank", "checkpoint")


def test_a_port_is_taken_by_the_claim_and_given_back_by_a_close_without_a_page(pages):
    page = pages()
    port = httpx.URL(page.url).port
    with pytest.raises(ConfigError, match="taken"):
        serving.opened(LOOPBACK, port, "--port")
    page.close()
    assert wait_until(lambda: is_free(port))


def is_free(port):
    try:
        with socket.create_connection((LOOPBACK, port), 1):
            return False
    except OSError:
        return True


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_without_the_extra_the_error_says_what_to_install(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("statefx.ui.find_spec", lambda name: None if name == package else object())
    with pytest.raises(
        ConfigError, match=rf"topology.ui.port opens a page, which takes {package}: pip install 'statefx\[ui\]'"
    ):
        claimed(LOOPBACK, 0, "bank", "checkpoint")


@pytest.mark.slow
def test_two_queries_of_a_process_share_a_port(pages):
    first = pages()
    port = httpx.URL(first.url).port
    serving._servers[LOOPBACK, port] = first._server  # as if it had been asked for by number
    second = pages(port, name="other")
    first.show(Query())
    second.show(Query("other"))
    assert [each["name"] for each in get(first, "/v1/topologies").json()["topologies"]] == ["bank", "other"]
    assert second.url.endswith(f":{port}/?topology=other")
    first.close()
    assert wait_until(
        lambda: [each["name"] for each in get(second, "/v1/topologies").json()["topologies"]] == ["other"]
    )


@pytest.mark.slow
def test_a_start_after_an_end_has_the_same_port(pages):
    first = pages()
    port = httpx.URL(first.url).port
    serving._servers[LOOPBACK, port] = first._server
    first.show(Query())
    assert get(first, "/healthz").status_code == 200
    first.close()
    assert wait_until(lambda: not first._server.users)
    second = pages(port)
    second.show(Query())
    assert get(second, "/healthz").status_code == 200


@pytest.mark.slow
def test_changes_come_and_only_what_changed(pages):
    page, query = pages(), Query()
    page.show(query)
    stream = events(f"{page.url}v1/topologies/bank/events", 2)
    kind, first = next(stream)
    assert (kind, first["topology"]) == ("change", "bank")
    query.document["error"] = "ValueError"
    kind, second = next(stream)
    assert (kind, second["error"], "topology" in second) == ("change", "ValueError", False)


@pytest.mark.slow
def test_a_head_of_the_stream_has_an_end(pages):
    page = pages()
    page.show(Query())
    url = page.url.rstrip("/") + "/v1/topologies/bank/events"
    answer = httpx.head(url, timeout=10)
    assert (answer.status_code, answer.headers["content-type"][:17]) == (200, "text/event-stream")
    assert page._server.site._streams == 0


@pytest.mark.slow
def test_pages_beyond_the_limit_are_refused(pages, monkeypatch):
    monkeypatch.setattr(site, "STREAMS", 1)
    page = pages()
    page.show(Query())
    url = f"{page.url}v1/topologies/bank/events"
    first = events(url, 2)
    next(first)
    assert get(page, "/v1/topologies/bank/events").status_code == 503
    first.close()
    assert wait_until(lambda: page._server.site._streams == 0)


@pytest.mark.slow
def test_the_end_reaches_pages_that_are_open(pages):
    page, query = pages(), Query()
    page.show(query)
    stream = events(f"{page.url}v1/topologies/bank/events", 10)
    next(stream)
    query.document |= {"endedAt": "2026-01-01T00:00:00.000+00:00", "error": "BoltError: x"}
    page.close()
    found = list(stream)
    assert found[-1] == ("end", {})
    assert {"endedAt", "error"} <= {key for _, data in found for key in data}


@pytest.mark.slow
def test_a_query_does_not_wait_for_a_page_that_reads_nothing(pages):
    """A browser that has stopped reading must keep neither the end nor the port."""
    page, query = pages(), Query()
    page.show(query)
    port = httpx.URL(page.url).port
    with socket.create_connection((LOOPBACK, port)) as lazy:
        lazy.sendall(b"GET /v1/topologies/bank/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert wait_until(lambda: query.observed > 0)
        query.document["blob"] = "x" * 5_000_000
        page.close()
        assert wait_until(lambda: is_free(port))


@pytest.mark.slow
def test_connections_that_say_nothing_are_bounded_and_end(pages, monkeypatch):
    """Each takes a file of the driver's process, and a driver without any can't append to its log."""
    monkeypatch.setattr(serving, "CONNECTIONS", 4)
    monkeypatch.setattr(serving, "HEAD_SECS", 1.0)
    page = pages()
    page.show(Query())
    place = LOOPBACK, httpx.URL(page.url).port
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(place, 10)) for _ in range(20)]
        for each in silent[:4]:
            each.sendall(b"GET /v1/topol")
        ends = [_end(each) for each in silent]
        assert all(secs < 1.0 for secs in ends[4:])
        assert get(page, "/healthz").status_code == 200


def _end(connection):
    """How long it takes until the server has closed a connection."""
    began = time.monotonic()
    with suppress(ConnectionResetError):
        assert connection.recv(10) == b""
    return time.monotonic() - began


@pytest.mark.slow
def test_what_is_no_http_is_refused_without_a_line_in_the_log(pages, caplog):
    page = pages()
    page.show(Query())
    with socket.create_connection((LOOPBACK, httpx.URL(page.url).port), 10) as scan:
        scan.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert scan.recv(100).startswith(b"HTTP/1.1 400")
    assert get(page, "/healthz").status_code == 200
    assert not [each for each in caplog.records if each.name.startswith("uvicorn")]


@pytest.mark.slow
def test_pages_that_are_open_share_one_observation(pages):
    page, query = pages(), Query()
    page.show(query)
    page._watched._least = 3600.0
    streams = [events(f"{page.url}v1/topologies/bank/events", 2) for _ in range(5)]
    assert {next(each)[0] for each in streams} == {"change"}
    assert query.observed == 1
    for each in streams:
        each.close()


@pytest.mark.slow
def test_metrics_are_those_of_all_queries(pages):
    page = pages()
    port = httpx.URL(page.url).port
    serving._servers[LOOPBACK, port] = page._server
    page.show(Query())
    pages(port, name="other").show(Query("other"))
    found = get(page, "/metrics")
    samples = [each for family in text_string_to_metric_families(found.text) for each in family.samples]
    assert {(each.name, each.labels["topology"], each.value) for each in samples} == {
        ("statefx_transactions_total", "bank", 7.0),
        ("statefx_transactions_total", "other", 7.0),
    }


@pytest.mark.slow
def test_metrics_without_their_extra_say_what_to_install(pages, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client.exposition", None)
    monkeypatch.delitem(sys.modules, "statefx.metrics.prometheus", raising=False)
    page = pages()
    page.show(Query())
    found = get(page, "/metrics")
    assert (found.status_code, "pip install 'statefx[metrics]'" in found.json()["error"]) == (400, True)


@pytest.mark.slow
def test_a_page_for_other_machines_has_a_token_in_its_url_and_says_so(pages, monkeypatch, caplog):
    monkeypatch.setenv(serving.TOKEN, "0123456789abcdef-token")
    page = pages(host="0.0.0.0")
    with caplog.at_level(logging.INFO, "statefx"):
        page.show(Query())
    assert page.url.endswith("/?token=0123456789abcdef-token")
    assert [each.levelname for each in caplog.records if "open to other machines" in each.message] == ["WARNING"]
    port = httpx.URL(page.url).port
    assert httpx.get(f"http://127.0.0.1:{port}/v1/topologies").status_code == 401


def test_a_token_is_made_where_none_is_given(pages, monkeypatch):
    monkeypatch.delenv(serving.TOKEN, raising=False)
    first, second = pages(host="0.0.0.0"), pages(host="0.0.0.0")
    assert first._server.token != second._server.token
    assert len(first._server.token) >= 32


@pytest.mark.parametrize(
    "token", ["short", "with a space in it, and long", "ümläüt-umlaut-umlaut", "semi;colon;semi;colon"]
)
def test_a_token_that_can_not_be_one_is_refused(monkeypatch, token):
    monkeypatch.setenv(serving.TOKEN, token)
    with pytest.raises(ConfigError, match="STATEFX_UI_TOKEN must have 16 characters"):
        claimed("0.0.0.0", 0, "bank", "checkpoint")


@pytest.mark.slow
def test_the_environment_names_hosts_of_a_proxy(pages, monkeypatch):
    monkeypatch.setenv(HOSTS, "statefx.example.org")
    page = pages()
    page.show(Query())
    assert get(page, "/healthz", headers={"host": "statefx.example.org"}).status_code == 200
    assert get(page, "/healthz", headers={"host": "evil.example"}).status_code == 421
    monkeypatch.setenv(HOSTS, "*")
    with pytest.raises(ConfigError, match=HOSTS):
        pages()


@pytest.mark.slow
def test_nothing_of_the_server_stands_in_the_log_but_where_it_is(pages, caplog):
    with caplog.at_level(logging.INFO):
        page = pages()
        page.show(Query())
        get(page, "/healthz")
        page.close()
        assert wait_until(lambda: is_free(httpx.URL(page.url).port))
    assert [each.name for each in caplog.records if each.threadName != "MainThread"] == []
    assert f"its page is at {page.url}" in caplog.text


@pytest.mark.slow
def test_a_checkpoint_that_stands_still_is_shown_under_its_topology(place):
    server = serving.opened(LOOPBACK, 0, "--port")
    serving.standing(server, Checkpoint(place))
    server.start()
    found = httpx.get(f"{server.address}v1/topologies/bank").json()
    assert [each["txid"] for each in found["transactions"]] == [1]
    server.stop()
    assert server.ended(10)


def rest(client):
    """Return all that a connection still brings until the server has closed it."""
    parts = []
    with suppress(ConnectionResetError):
        while part := client.recv(1_000_000):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.slow
def test_who_is_still_connected_when_the_page_ends_is_cut_off(place, caplog):
    released, asked = threading.Event(), threading.Event()

    def observed():
        asked.set()
        assert released.wait(10)
        return {}

    server = serving.opened(LOOPBACK, 0, "--port")
    server.show("bank", Checkpoint(place), observed)
    server.show("large", Checkpoint(place), lambda: {"text": "x" * 20_000_000})
    server.start()
    with ExitStack() as stack:
        stack.callback(released.set)
        silent, begun, idle, deaf, waiting = (
            stack.enter_context(socket.create_connection((LOOPBACK, server.port), 10)) for _ in range(5)
        )
        begun.sendall(b"GET / HT")
        for client, name in ((idle, "none"), (deaf, "large"), (waiting, "bank")):
            client.sendall(f"GET /v1/topologies/{name} HTTP/1.1\r\nHost: {LOOPBACK}:{server.port}\r\n\r\n".encode())
        assert idle.recv(1_000_000).startswith(b"HTTP/1.1 404")
        assert deaf.recv(1) == b"H"
        assert asked.wait(10)
        server.stop()
        assert server.ended(10)
        for client in (silent, begun, idle, deaf, waiting):
            rest(client)
        gc.collect()  # a socket that was left open is an error
    assert caplog.text == ""


def test_a_connection_that_is_just_accepted_when_the_page_ends_is_closed(place, caplog):
    server = serving.opened(LOOPBACK, 0, "--port")
    serving.standing(server, Checkpoint(place))
    tick, clients = server._server.on_tick, []

    async def ticked(counter):
        if is_over := await tick(counter):
            clients.append(socket.create_connection((LOOPBACK, server.port), 10))
            await asyncio.sleep(0)  # the loop has seen it when the end begins, and calls accept after that
        return is_over

    server._server.on_tick = ticked
    server.start()
    assert httpx.get(server.address).status_code == 200
    server.stop()
    assert server.ended(10)
    with clients[0]:
        assert rest(clients[0]) == b""
    gc.collect()  # a socket that was left open is an error
    assert caplog.text == ""


class Far:
    """The page of a checkpoint whose driver is elsewhere, as this document says; `changed` changes it."""

    def __init__(self, place, **changes):
        self.server = serving.opened(LOOPBACK, 0, "--port")
        checkpoint = Checkpoint(place)
        self.document = {**checkpoint.observation(), "writtenAt": WRITTEN, "metrics": Query().metrics}
        self.document |= {"health": {"state": "healthy", "sentence": "All is well."}} | changes
        self.server.show("bank", checkpoint, lambda: self.document)
        self.server.start()

    def metrics(self, **headers):
        return httpx.get(f"{self.server.address}metrics", timeout=10, headers=headers)

    def close(self):
        self.server.stop()
        assert self.server.ended(10)


WRITTEN, WRITTEN_SECS = "2026-03-01T09:00:00+00:00", 1772355600.0


@pytest.fixture
def far(place):
    made = []

    def show(**changes):
        made.append(Far(place, **changes))
        return made[-1]

    yield show
    for one in made:
        one.close()


@pytest.mark.slow
@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text; version=1.0.0"])
def test_metrics_of_a_driver_elsewhere_are_of_when_it_wrote(far, accept):
    found = far().metrics(accept=accept)
    parse = openmetrics if "openmetrics" in found.headers["content-type"] else text_string_to_metric_families
    (sample,) = [each for family in parse(found.text) for each in family.samples]
    assert (found.status_code, sample.name, sample.value) == (200, "statefx_transactions_total", 7.0)
    assert float(sample.timestamp) == WRITTEN_SECS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"health": {"state": "dead", "sentence": "Its driver is gone."}}, "Its driver is gone."),
        ({"health": {"state": "ended", "sentence": "The query was stopped."}}, "The query was stopped."),
        ({"health": {"state": "unknown", "sentence": "It was copied."}}, "It was copied."),
        ({"health": {}}, "Nothing is known of this one."),
        ({"metrics": None}, "give it topology.metrics.port"),
        ({"writtenAt": None}, "give it topology.metrics.port"),
    ],
)
def test_metrics_that_are_not_of_now_are_refused_and_why(far, changes, said):
    found = far(**changes).metrics()
    assert (found.status_code, said in found.json()["error"]) == (503, True), found.text


@pytest.mark.slow
def test_metrics_of_a_checkpoint_that_can_not_be_read_any_more_are_refused(far):
    page = far()
    assert page.metrics().status_code == 200
    page.document = None
    page.server.site.topologies["bank"].snapshot(anew=True)
    found = page.metrics()
    assert (found.status_code, "can't be read: TypeError" in found.json()["error"]) == (503, True), found.text
