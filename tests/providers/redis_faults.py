"""What goes wrong between statefx and a Redis server: crashes at round trips, other clients' turns, a bad network."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

from statefx.testing import Crash
from statefx_redis.server import Server

TRIPS_MAX = 500


class Trips:
    """Counts the round trips of this process in its block; crashes at one moment, or calls `between` at each.

    There is one moment before each trip and one after it.
    """

    def __init__(self, crash_at: int | None = None, between: Callable[[int], object] | None = None) -> None:
        self.passed = 0
        self.crashed = False
        self._crash_at = crash_at
        self._between = between
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        original = Server.trip

        def trip(server: Server, client: Any, do: Callable[[Any], Any]) -> Any:
            self._pass()
            answer = original(server, client, do)
            self._pass()
            return answer

        self._patch.setattr(Server, "trip", trip)
        return self

    def _pass(self) -> None:
        self.passed += 1
        if self._crash_at is not None and self.passed >= self._crash_at:
            self.crashed = True
            raise Crash(f"at {self.passed}")
        if self._between is not None:
            between, self._between = self._between, None  # what it does is not counted
            passed = self.passed
            between(passed)
            self.passed, self._between = passed, between

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        self._patch.undo()
        return kind is Crash


def crashes() -> Iterator[int]:
    yield from range(1, TRIPS_MAX)
    raise AssertionError(f"more than {TRIPS_MAX} moments")


class Apart:
    """A client whose pipelines let others have their turn between two commands."""

    def __init__(self, client: Any, turn: Callable[[], object]) -> None:
        self._client = client
        self._turn = turn
        self._answers: list[Any] = []

    def pipeline(self, transaction: bool) -> Self:
        assert not transaction
        self._answers = []
        return self

    def execute(self, raise_on_error: bool) -> list[Any]:
        return self._answers

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def command(*arguments: Any) -> Any:
            self._turn()
            answer = getattr(self._client, name)(*arguments)
            self._answers.append(answer)
            return answer

        return command


class Proxy:
    """Stands before a server, and cuts every connection after some bytes, or hands them on in slow drops.

    Parameters
    ----------
    port : int
        The server's.
    cut_after : int
        Bytes of one direction after which both are cut; 0: never.
    cuts : int
        How many connections are cut; those that follow are not.
    towards : str
        ``server`` or ``client``: whose incoming bytes are counted.
    drop : int
        Bytes handed on at once, with a pause of a millisecond after each; 0: as they come.
    """

    def __init__(self, port: int, cut_after: int = 0, cuts: int = 0, towards: str = "client", drop: int = 0) -> None:
        self._server = port
        self._left = cuts
        self._cut_after = cut_after
        self._towards = towards
        self._drop = drop
        self._pause = threading.Event()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._run(self._accept)

    def _run(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._server))
            except OSError:
                near.close()
                continue
            self._sockets += (near, far)
            cut = self._left > 0 and self._cut_after > 0
            self._left -= 1
            self._run(self._pump, near, far, self._cut_after if cut and self._towards == "server" else 0)
            self._run(self._pump, far, near, self._cut_after if cut and self._towards == "client" else 0)

    def _pump(self, source: socket.socket, sink: socket.socket, limit: int) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(self._drop or 65536):
                if self._drop:
                    self._pause.wait(0.001)
                if limit and passed + len(data) >= limit:
                    sink.sendall(data[: limit - passed])
                    break
                passed += len(data)
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for each in self._sockets:
            each.close()
