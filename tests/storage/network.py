"""A proxy before a server: it counts, lets requests wait, answers 503, and drops connections."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.conftest import ROOT
from tests.storage.s3_server import s3_server

LOST = "lost"
"""The connection is dropped before the request comes to the server."""

UNANSWERED = "unanswered"
"""The request is carried out, and the connection is dropped before the answer."""

HALF = "half"
"""The connection is dropped within the answer."""

BUSY = "busy"
"""503, and the request is not carried out."""

LATE = "late"
"""The request waits."""

FAULTS = (LOST, UNANSWERED, HALF, BUSY, LATE)

_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_HOP = {"connection", "keep-alive", "transfer-encoding", "date", "server"}


@dataclass(frozen=True)
class Request:
    """One request, and when it was here, in seconds."""

    method: str
    path: str
    status: int
    began: float
    ended: float
    headers: dict[str, str]


class Network:
    """What there is between a client and a server, and what has gone over it.

    Attributes
    ----------
    address : str
        For the client.
    requests : list of Request
        In the order in which they were answered.
    delay_secs : float
        What a request takes, at the least; the server's own time is part of it.
    late_secs : float
        What one that is `LATE` takes in addition.
    """

    def __init__(self, server: str, delay_secs: float = 0.0) -> None:
        self.requests: list[Request] = []
        self.delay_secs = delay_secs
        self.late_secs = 0.02
        self.faults = 0
        self._next: list[str] = []
        self._server = server.removeprefix("http://")
        self._share = 0.0
        self._random = random.Random()
        self._lock = threading.Lock()
        self._listening = _Listening(("127.0.0.1", 0), _Handler)
        self._listening.network = self
        self.address = f"http://127.0.0.1:{self._listening.server_port}"
        self._thread = threading.Thread(target=self._listening.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._listening.shutdown()
        self._thread.join()
        self._listening.server_close()

    def disturb(self, share: float, seed: int = 0) -> None:
        """Let a share of the requests from now on fail, each in one of the ways of `FAULTS`."""
        self._share, self._random = share, random.Random(seed)

    def spoil(self, *faults: str) -> None:
        """Let the next requests go wrong in these ways, one each."""
        self._next += faults

    def mend(self) -> None:
        """Let all go well that was to go wrong."""
        with self._lock:
            self._next.clear()

    def fault(self) -> str | None:
        """Choose what becomes of the next request."""
        with self._lock:
            if self._next:
                return self._next.pop(0)
            if self._random.random() >= self._share:
                return None
            self.faults += 1
            return self._random.choice(FAULTS)

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection to the server."""
        return http.client.HTTPConnection(self._server, timeout=60)

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[Request]]:
        """Yield a list that has the requests of the block, when it has ended."""
        first, found = len(self.requests), list[Request]()
        yield found
        found += self.requests[first:]


def in_sequence(requests: list[Request]) -> list[Request]:
    """Return as many of these as may have waited for one another: each began when the one before had ended."""
    found: list[Request] = []
    for each in sorted(requests, key=lambda request: request.ended):
        if not found or each.began >= found[-1].ended:
            found.append(each)
    return found


class _Listening(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    network: Network

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that give a request up, or are killed, drop connections too."""


class _Handler(BaseHTTPRequestHandler):
    server: _Listening
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def setup(self) -> None:
        super().setup()
        self.upstream = self.server.network.connect()

    def finish(self) -> None:
        super().finish()
        self.upstream.close()

    def pass_on(self) -> None:
        began = time.monotonic()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.network.fault()
        if fault == LOST:
            self.drop()
            return
        if fault == BUSY:
            self.answer(503, [("Content-Type", "application/xml")], _SLOW_DOWN)
            return
        self.upstream.request(self.command, self.path, body, dict(self.headers.items()))
        response = self.upstream.getresponse()
        data = response.read()
        if fault == UNANSWERED:
            self.drop()
            return
        late_secs = self.server.network.late_secs if fault == LATE else 0
        wait = began + self.server.network.delay_secs + late_secs - time.monotonic()
        if wait > 0:
            time.sleep(wait)  # noqa: TID251 - a slow network
        ended = time.monotonic()
        self.server.network.requests.append(
            Request(self.command, self.path, response.status, began, ended, dict(self.headers.items()))
        )
        self.answer(response.status, response.getheaders(), data, half=fault == HALF)

    def answer(self, status: int, headers: list[tuple[str, str]], data: bytes, half: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in {*_HOP, "content-length"}:
                self.send_header(name, value)
        length = {name.lower(): value for name, value in headers}.get("content-length")
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if half else data)
        self.wfile.flush()
        if half:
            self.drop()

    def drop(self) -> None:
        """Reset the connection: a reply that ends early may not look as one that is whole."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = pass_on  # noqa: N815 - http.server's names

    def log_message(self, *given: Any) -> None:
        pass


@contextlib.contextmanager
def network(server: str, delay_secs: float = 0.0) -> Iterator[Network]:
    """Yield a proxy before a server."""
    made = Network(server, delay_secs)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def slow_s3(delay_secs: float) -> Iterator[str]:
    """Yield the address of an S3 server with a network before it; both run in processes of their own."""
    command = [sys.executable, "-m", "tests.storage.network", str(delay_secs)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


def main(delay_secs: str) -> None:
    """Print the address; serve until the input ends."""
    with s3_server() as server, network(server, float(delay_secs)) as between:
        sys.stdout.write(f"{between.address}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
