"""The control connections of a run: the driver's end, which one thread serves, and a chain's.

The driver's thread never waits for one connection: sockets don't block, what is to be sent waits in a bounded queue,
and a chain that takes nothing is found out by its missing signs of life (rules 13.6 and 13.10).
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from statefx import logs
from statefx.errors import ConfigError
from statefx.protocol import messages
from statefx.protocol.messages import (
    CHALLENGE_BYTES,
    HELLO_BYTES_MAX,
    MAGIC,
    ChainId,
    FrameError,
    FrameKind,
    Frames,
    frame,
)

logger = logging.getLogger("statefx")


ALIVE_SECS = 1.0
"""Between two signs of life: so seldom that an idle topology of 8 tasks costs a thousandth of a core."""

SILENCE_SECS = 20.0
"""After which a chain is taken for dead (rule 13.11). A worker that runs answers within a second from a thread of its
own; but a machine that swaps, or Python code that holds the interpreter's lock (a long regular expression), has stood
still for seconds."""

HELLO_SECS = 10.0
"""How long a stranger may take to say who he is."""

STRANGERS_MAX = 256
"""Connections that have not proved who they are; more are closed at once."""

QUEUED_BYTES_MAX = 256 << 20
"""Of frames for one chain that it has not read; an order has kilobytes."""

_READ_BYTES = 1 << 18


@dataclass(slots=True, eq=False)
class _Peer:
    """One connection, as the driver sees it."""

    socket: socket.socket
    address: str
    nonce: bytes
    frames: Frames
    deadline: float
    chain: ChainId | None = None
    last_received_at: float = 0.0
    queue: deque[bytes] = field(default_factory=deque)
    queued_bytes: int = 0


OnFrame = Callable[[ChainId, FrameKind, bytes], None]
Lost = Callable[[ChainId, str], None]


class ControlServer:
    """The driver's end of the control connections of one run.

    Port 0 is any that is free; ConfigError if it can't listen there. `run` and `secret` are of rule 13.1. Each of
    `chains` may connect once. The server's thread calls `on_frame` for a chain's frames, with HELLO when the chain is
    there, and `lost` for a chain whose connection is gone or silent, with the reason.
    """

    def __init__(
        self,
        host: str,
        port: int,
        run: bytes,
        secret: bytes,
        chains: Collection[ChainId],
        on_frame: OnFrame,
        lost: Lost,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._secret, self._chains = run, secret, frozenset(chains)
        self._on_frame, self._lost, self._clock = on_frame, lost, clock
        self._listener = listening(host, port)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._peers: dict[socket.socket, _Peer] = {}
        self._known: dict[ChainId, _Peer] = {}
        self._gone: set[ChainId] = set()
        """Chains that were there, and whose connections are gone: the run ends."""
        self._outgoing: deque[tuple[ChainId, bytes]] = deque()
        self._closing = False
        self.refused = 0
        """Strangers that were turned away."""
        self._looked = self._clock()
        self._next_alive = self._looked + ALIVE_SECS
        self._thread = threading.Thread(target=logs.carrying(self._serve), name="statefx-control", daemon=True)
        self._thread.start()

    # ---- for any thread

    def send(self, chain: ChainId, kind: FrameKind, body: bytes = b"") -> None:
        """Queue a frame for a chain; drop it if the chain is disconnected, which is or will be reported as lost."""
        self._outgoing.append((chain, frame(kind, body)))
        self._wake()

    def close(self) -> None:
        """Close all connections; a chain whose connection is gone ends itself (rule 13.7)."""
        self._closing = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it is awake, or closed
            self._waker.send(b"\0")

    # ---- the thread

    def _serve(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except Exception:
            logger.exception("the thread of the control connections has failed")
            for chain in list(self._known):
                self._lost(chain, "the driver's control thread has failed")
        finally:
            for peer in list(self._peers.values()):
                self._drop(peer)
            for each in (self._listener, self._woken, self._waker):
                each.close()
            self._selector.close()

    def _turn(self) -> None:
        now = self._clock()
        for key, events in self._selector.select(max(0.0, self._next_alive - now)):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._woken:
                self._drain_wakes()
            else:
                self._handle(self._peers.get(key.fileobj), events)  # type: ignore[call-overload]
        while self._outgoing:
            chain, data = self._outgoing.popleft()
            peer = self._known.get(chain)
            if peer is not None:
                self._enqueue(peer, data)
        if self._clock() >= self._next_alive:
            self._look_for_silence()

    def _drain_wakes(self) -> None:
        try:
            while self._woken.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _accept(self) -> None:
        try:
            accepted, address = self._listener.accept()
        except OSError:  # it has gone again
            return
        accepted.setblocking(False)
        if sum(peer.chain is None for peer in self._peers.values()) >= STRANGERS_MAX:
            accepted.close()
            return
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        now = self._clock()
        peer = _Peer(
            accepted, str(address[0]), os.urandom(messages.NONCE_BYTES), Frames(HELLO_BYTES_MAX), now + HELLO_SECS
        )
        self._peers[accepted] = peer
        self._selector.register(accepted, selectors.EVENT_READ)
        self._enqueue(peer, MAGIC + peer.nonce)

    def _handle(self, peer: _Peer | None, events: int) -> None:
        if peer is None:  # dropped in this very turn
            return
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(peer)
            if events & selectors.EVENT_READ:
                self._read(peer)
        except FrameError as error:
            self._end(peer, str(error))
        except OSError as error:
            self._end(peer, f"its connection is gone: {error.strerror or error}")

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.socket.recv(_READ_BYTES if peer.chain is not None else HELLO_BYTES_MAX)
        except BlockingIOError:
            return
        if not data:
            self._end(peer, "its connection was closed")
            return
        peer.last_received_at = self._clock()
        for kind, body in peer.frames.feed(data):
            if peer.chain is None:
                self._greet(peer, kind, body)
            elif kind is not FrameKind.ALIVE:
                self._on_frame(peer.chain, kind, body)

    def _greet(self, peer: _Peer, kind: FrameKind, body: bytes) -> None:
        if kind is not FrameKind.HELLO:
            raise FrameError("it did not say HELLO")
        chain = messages.check_hello(self._secret, peer.nonce, self._run, body)
        if chain not in self._chains:
            raise FrameError(f"the run has no chain {chain}")
        peer.chain = chain
        peer.frames.max_bytes = messages.FRAME_BYTES_MAX
        # Rule 13.1: Spark runs a task of a pipelined job once; two of them would both prepare. And one that took the
        # place of a chain that is gone, before the run has ended, would have all orders sent out again.
        if chain in self._known or chain in self._gone:
            self._end(peer, f"a second connection for chain {chain.level}/{chain.partition}")
            return
        self._known[chain] = peer
        self._enqueue(peer, frame(FrameKind.WELCOME, messages.welcome(self._secret, peer.nonce, self._run, chain)))
        self._on_frame(chain, FrameKind.HELLO, body)

    def _enqueue(self, peer: _Peer, data: bytes) -> None:
        peer.queue.append(data)
        peer.queued_bytes += len(data)
        if peer.queued_bytes > QUEUED_BYTES_MAX:
            self._end(peer, f"it has not read {peer.queued_bytes} bytes")
            return
        try:
            self._flush(peer)
        except OSError as error:
            self._end(peer, f"its connection is gone: {error.strerror or error}")

    def _flush(self, peer: _Peer) -> None:
        while peer.queue:
            data = peer.queue[0]
            try:
                sent = peer.socket.send(data)
            except BlockingIOError:
                break
            peer.queued_bytes -= sent
            if sent < len(data):
                peer.queue[0] = data[sent:]
                break
            peer.queue.popleft()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.queue else 0)
        self._selector.modify(peer.socket, events)

    def _look_for_silence(self) -> None:
        now = self._clock()
        if now - self._looked > 5 * ALIVE_SECS:  # this driver stood still: no frame could be received
            for peer in self._peers.values():
                peer.last_received_at = now
        self._looked = now
        # From now, not from when it was due: a driver that was frozen sends one sign, and not one for each second.
        self._next_alive = now + ALIVE_SECS
        for peer in list(self._peers.values()):
            if peer.chain is None:
                if now >= peer.deadline:
                    self._end(peer, "it did not say who it is")
                continue
            if now - peer.last_received_at > SILENCE_SECS:
                self._end(peer, f"no sign of life for {now - peer.last_received_at:.0f} seconds")
                continue
            if not peer.queue:
                self._enqueue(peer, frame(FrameKind.ALIVE))

    def _end(self, peer: _Peer, why: str) -> None:
        """Close a connection; report a chain's, count a stranger's."""
        if peer.socket not in self._peers:
            return
        self._drop(peer)
        if peer.chain is not None:
            self._known.pop(peer.chain, None)
            self._gone.add(peer.chain)
            self._lost(peer.chain, why)
            return
        self.refused += 1
        if self.refused == 1:
            logger.warning(
                "%s connected to the driver's control port %d and was turned away: %s. Further ones are only counted",
                peer.address,
                self.address[1],
                why,
            )

    def _drop(self, peer: _Peer) -> None:
        self._peers.pop(peer.socket, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.socket)
        peer.socket.close()


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; ConfigError if it can't."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise ConfigError(f"the driver can't listen at {host!r} for its tasks: {error.strerror or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"the driver can't listen at {host}:{port} for its tasks ({error.strerror or error}): "
            "choose another topology.control.port, or 0 for any that is free"
        ) from error
    return listener


class ControlLostError(ConnectionError):
    """The driver is gone, or has ended the run: the chain ends, and prepares nothing more (rule 13.7)."""


class DriverUnreachableError(ControlLostError):
    """The driver's port can't be reached; the text says which, and what to do."""


class ChainControl:
    """A chain's end of its control connection.

    A thread reads: it answers signs of life while the chain's own thread runs a bolt, and reports an attempt that is
    abandoned in the middle of it. `timeout_secs` is for the connection and the greeting. DriverUnreachableError: the
    driver can't be reached. ControlLostError, of any call: the connection is gone, or the driver is another one.
    """

    def __init__(
        self, address: tuple[str, int], run: bytes, secret: bytes, chain: ChainId, timeout_secs: float = 10.0
    ) -> None:
        self._ready = threading.Condition()
        self._frames: deque[tuple[FrameKind, bytes]] = deque()
        self._sending = threading.Lock()
        self._lost: str | None = None
        self.abandoned: Callable[[tuple[int, int]], None] = lambda attempt: None
        """Called by the reading thread when the driver abandons an attempt."""
        self.alive: Callable[[], None] = lambda: None
        """Called by the reading thread with each sign of life of the driver."""
        self.levels: Callable[[bytes], None] = lambda body: None
        """Called by the reading thread with the driver's LEVELS."""
        where = f"the driver at {address[0]}:{address[1]}"
        try:
            self._socket = socket.create_connection(address, timeout=timeout_secs)
        except OSError as error:
            raise DriverUnreachableError(
                f"{where} can't be reached ({error.strerror or error}): executors connect to spark.driver.host and "
                "topology.control.port; open that port in the firewall, or set them to what the executors reach"
            ) from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            challenge = self._exactly(CHALLENGE_BYTES)
            if not challenge.startswith(MAGIC):
                raise ControlLostError(f"{where} does not speak the protocol of statefx")
            nonce = challenge[len(MAGIC) :]
            self._socket.sendall(frame(FrameKind.HELLO, messages.hello(secret, nonce, run, chain)))
            incoming = Frames()
            while not self._frames:
                self._frames.extend(incoming.feed(self._some()))
            kind, body = self._frames.popleft()
            if kind is not FrameKind.WELCOME or not messages.is_welcome(secret, nonce, run, chain, body):
                raise ControlLostError(f"{where} is not the driver of this run")
            # A sign of life may have come together with the greeting, and is no order.
            self._frames = deque(each for each in self._frames if each[0] is not FrameKind.ALIVE)
            self._socket.settimeout(None)
        except (OSError, FrameError) as error:
            self._socket.close()
            if isinstance(error, ControlLostError):
                raise
            raise ControlLostError(f"{where} did not answer: {error}") from error
        threading.Thread(target=self._read, args=(incoming,), name="statefx-control", daemon=True).start()

    def next(self, timeout_secs: float | None = None) -> tuple[FrameKind, bytes] | None:
        """Wait for the driver's next frame; return None after `timeout_secs`."""
        with self._ready:
            if not self._frames and self._lost is None and timeout_secs != 0:
                self._ready.wait_for(lambda: self._frames or self._lost is not None, timeout_secs)
            if self._frames:
                return self._frames.popleft()
            if self._lost is not None:
                raise ControlLostError(self._lost)
            return None

    def send(self, kind: FrameKind, body: bytes = b"") -> None:
        try:
            with self._sending:
                self._socket.sendall(frame(kind, body))
        except OSError as error:
            raise ControlLostError(f"the driver is gone: {error.strerror or error}") from error

    def check(self) -> None:
        if self._lost is not None:
            raise ControlLostError(self._lost)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, incoming: Frames) -> None:
        try:
            while True:
                for kind, body in incoming.feed(self._some()):
                    if kind is FrameKind.ALIVE:
                        self.send(FrameKind.ALIVE)
                        self.alive()
                        continue
                    if kind is FrameKind.LEVELS:
                        self.levels(body)
                        continue
                    with self._ready:
                        self._frames.append((kind, body))
                        self._ready.notify()
                    if kind is FrameKind.ABANDON:
                        self.abandoned(messages.unpack_attempt(body))
        except (OSError, FrameError) as error:
            with self._ready:
                self._lost = f"the driver has closed the control connection: {error}"
                self._ready.notify()

    def _some(self) -> bytes:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionError("it was closed")
        return data

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self._socket.recv(size - len(data))
            if not chunk:
                raise ConnectionError("it was closed")
            data += chunk
        return data
