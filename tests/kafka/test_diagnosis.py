"""Why no broker can be reached: librdkafka says it in its log alone, in texts that these tests pin."""

import gc
import socket
import threading
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from statefx.connectors.kafka import KafkaSink, clients
from statefx.errors import SinkError
from tests.ports import free_port


@contextmanager
def answering(reply):
    """Listen at a port, and give each that connects `reply`, or nothing, before the connection ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1000)
                    connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def diagnosed(servers):
    return clients.diagnose(servers, {"bootstrap.servers": servers, "log_level": 2}, 0.4)


@pytest.mark.slow
def test_a_port_where_nothing_listens():
    servers = f"127.0.0.1:{free_port()}"
    assert f"no broker answers at {servers} (tried for " in diagnosed(servers)
    assert "refused (CONNECT); nothing listens there" in diagnosed(servers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "what answers there is no broker of Kafka"),
        (b"", "the broker ends the connection: if it wants TLS"),
    ],
)
def test_what_listens_is_no_broker_or_wants_something_else(reply, told):
    with answering(reply) as servers:
        assert told in diagnosed(servers)


@pytest.mark.slow
def test_a_name_that_is_not_known():
    assert "is the name right, and does this machine know it?" in diagnosed("no-such-host.invalid:9092")


@pytest.mark.slow
def test_several_addresses_are_told_one_by_one():
    servers = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]
    said = diagnosed(",".join(servers))
    assert all(f"{each}: " in said for each in servers)


def test_addresses_that_brokers_give_for_themselves():
    away = SimpleNamespace(id=1, host="127.0.0.1", port=free_port())
    said = clients._unreachable([away])
    assert said.startswith(f"broker 1 says that it is 127.0.0.1:{away.port}, and there: ")
    assert said.endswith("Correct advertised.listeners of the brokers, or this machine's names")
    with answering(b"") as address:
        there = SimpleNamespace(id=2, host="127.0.0.1", port=int(address.rpartition(":")[2]))
        assert clients._unreachable([away, there]) is None


@pytest.mark.slow
def test_a_client_whose_call_has_failed_is_freed_once_nobody_uses_it(monkeypatch):
    """The reason is looked for while the error is handled: calls that fail then must not keep the error's frames."""
    monkeypatch.setattr(clients, "FAILURE_SECS", 0.2)
    publisher = KafkaSink(f"127.0.0.1:{free_port()}", "words").publisher

    def fail():
        client = publisher.clients.admin(1.0)
        with pytest.raises(SinkError, match="no broker answers"), publisher.translated_errors():
            client.list_topics(timeout=0.1)
        return weakref.ref(client)

    left = fail()
    gc.collect()
    assert left() is None
