"""A broker which one request reaches late: its connection is cut before, so the client sends it again."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from threading import Event, Thread
from typing import BinaryIO, Self

from tests.kafka.broker import WAIT_SECS, KafkaBroker

OFFSET_COMMIT, END_TXN, TXN_OFFSET_COMMIT = 8, 26, 28
"""Numbers of requests, as Kafka's protocol has them."""


class LateBroker(KafkaBroker):
    """A broker whose clients all come to a proxy."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._wanted: int | None = None
        self._kept = b""
        self._has_kept = Event()
        super().__init__(advertised_listeners=f"PLAINTEXT://{self.address}")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    def start(self) -> Self:
        Thread(target=self._accept, daemon=True).start()
        return super().start()

    def keep(self, request: int) -> None:
        """Keep the next request of that number, and cut the connection that it came on."""
        self._has_kept.clear()
        self._wanted = request

    @property
    def has_kept(self) -> bool:
        return self._has_kept.is_set()

    def deliver(self) -> None:
        """Hand the broker what was kept, and wait for its answer."""
        assert self._has_kept.wait(WAIT_SECS), "no such request has come"
        self._has_kept.clear()
        with self._connected() as broker:
            broker.sendall(self._kept)
            assert _frame(broker.makefile("rb")), "the broker did not answer"

    def close(self) -> None:
        self._listening.close()
        super().close()

    def _connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), WAIT_SECS)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:  # closed
                return
            Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, self._connected() as broker:
            for each in (client, broker):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                each.settimeout(None)
            Thread(target=_answer, args=(client, broker), daemon=True).start()
            requests = client.makefile("rb")
            while frame := _frame(requests):
                if struct.unpack_from(">h", frame, 4)[0] == self._wanted:
                    self._wanted, self._kept = None, frame
                    self._has_kept.set()
                    break
                broker.sendall(frame)
            for each in (client, broker):
                each.shutdown(socket.SHUT_RDWR)  # what reads from it would keep it open


def _answer(client: socket.socket, broker: socket.socket) -> None:
    with suppress(OSError):
        while some := broker.recv(1 << 16):
            client.sendall(some)
        client.shutdown(socket.SHUT_RDWR)


def _frame(source: BinaryIO) -> bytes:
    """Return one request or answer, with its length in front; nothing at the end."""
    length = source.read(4)
    return length and length + source.read(struct.unpack(">i", length)[0])
