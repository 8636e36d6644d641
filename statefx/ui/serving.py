"""The page's server: a port, and a thread that answers on it for as long as something is shown there."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from statefx.checkpoint import Checkpoint
from statefx.errors import ConfigError
from statefx.metrics.registry import Measured
from statefx.ui import archive
from statefx.ui.bundle import Tail
from statefx.ui.door import HOSTS, Door, given_names, is_loopback
from statefx.ui.site import STREAMS, Site
from statefx.ui.watched import FAR_SECS, LIVE_SECS, Watched

logger = logging.getLogger("statefx")

TOKEN = "STATEFX_UI_TOKEN"
"""The token of a page that is not on a loopback address; in the environment, since settings travel to all tasks."""

TOKEN_CHARS = 16
"""How long a token is at least."""

_BACKLOG = 64

CONNECTIONS = 2 * STREAMS
"""How many connections there may be: each takes a file of the driver's process, and a driver that has none left can't
append to its log."""

HEAD_SECS = 10.0
"""How long a connection may take to say what it asks for."""

_CLOSE_SECS = 1
"""How long requests may go on when the server ends."""

_TAKEN_IN_SECS = 0.01
"""How long a connection may be on its way from the listening socket into the server's list."""

_FREED_SECS = 5.0
"""How long a start waits for the port of a query of this process that is just ending."""

_THREAD = "statefx-page"


class Shown(Measured, Protocol):
    """A query, as a page needs it."""

    @property
    def name(self) -> str:
        """The topology's."""

    def observation(self) -> Mapping[str, Any]:
        """Return what is known of it now."""


class _Connection(H11Protocol):
    """One connection: closed if there are too many, and if nothing is asked on it for long."""

    _late: asyncio.TimerHandle | None = None
    _is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= CONNECTIONS:
            self._is_refused = True
            transport.abort()
            return
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        if not self._is_refused:
            super().data_received(data)
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        if not self._is_refused:
            super().connection_lost(exc)

    def _watch(self) -> None:
        """Close it in a while if what was sent is no whole head of a request."""
        if self.conn.their_state is not h11.IDLE:
            self._unwatch()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_SECS, self.transport.abort)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class _Uvicorn(uvicorn.Server):
    """Ends the streams of open pages, which would never end by themselves, before it waits for requests.

    Whoever is still there when that has taken too long is cut off: asyncio ends and leaves its socket open.
    """

    site: Site

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.site.close()
        for server in self.servers:
            server.close()
        # One that is accepted and not in the list yet would not be asked to close: the end would wait for it in vain.
        await asyncio.sleep(_TAKEN_IN_SECS)
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # that is when they close


class Server:
    """A port of this machine, and what is shown on it.

    Parameters
    ----------
    host : str
        The address as it was given.
    listening : socket
        Has the port.
    token : str or None
        What readers need where the address is not loopback.
    names : frozenset of str
        Under which the page may be asked for besides its own.
    """

    def __init__(
        self, host: str, listening: socket.socket, token: str | None, names: frozenset[str] = frozenset()
    ) -> None:
        self.host, self.port = host, int(listening.getsockname()[1])
        self.token = token
        self.site = Site()
        self.users = 0
        self._tail = Tail()
        self.site.lines = self._tail.records
        logger.addHandler(self._tail)
        config = uvicorn.Config(
            Door(self.site.app, host, self.token, self.port, names),
            http=_Connection, ws="none", lifespan="off", loop="asyncio", log_config=None, access_log=False,
            server_header=False, proxy_headers=False, timeout_graceful_shutdown=_CLOSE_SECS, backlog=_BACKLOG,
        )  # fmt: skip
        self._server = _Uvicorn(config)
        self._server.site = self.site
        self._socket = listening
        self._thread: threading.Thread | None = None
        logging.getLogger("uvicorn.error").addFilter(_is_news)

    @property
    def address(self) -> str:
        """The URL without a token."""
        name = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}/"

    def url(self, name: str | None = None) -> str:
        """Return the page's URL, with the token if one is needed; that of one topology where several are shown."""
        asked = [] if self.token is None else [f"token={self.token}"]
        if name is not None and list(self.site.topologies) != [name]:
            asked.append(f"topology={quote(name, safe='')}")
        return f"{self.address}?{'&'.join(asked)}" if asked else self.address

    def show(
        self,
        name: str,
        checkpoint: Checkpoint,
        observe: Callable[[], Mapping[str, Any]],
        least_secs: float = LIVE_SECS,
        measured: Measured | None = None,
    ) -> Watched:
        """Show a topology. One that is shown under this name already has ended, and is replaced."""
        watched = Watched(name, checkpoint, observe, least_secs, measured)
        self.site.topologies[name] = watched
        return watched

    def start(self) -> None:
        """Answer, on a thread of its own, which does not keep the process alive."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"{_THREAD}-{self.port}", daemon=True)
            self._thread.start()

    def run(self) -> None:
        """Answer until the process is interrupted."""
        self._server.run([self._socket])

    def stop(self) -> None:
        """Begin to end; what is waited for is `ended`."""
        logger.removeHandler(self._tail)
        self._server.should_exit = True
        if self._thread is None:
            self._socket.close()

    def ended(self, timeout: float) -> bool:
        """Wait until the port is free again; return whether it is."""
        if self._thread is not None:
            self._thread.join(timeout)
        return self._thread is None or not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._server.run([self._socket])
        except Exception:  # the query goes on without its page
            logger.exception("the page at %s ended", self.address)


class Page:
    """What a query has of the server on its port, which several queries of a process may share.

    Attributes
    ----------
    url : str
        With the token if there is one.
    """

    def __init__(self, server: Server, name: str, checkpoint: Checkpoint) -> None:
        self._server, self._name, self._checkpoint = server, name, checkpoint
        self._watched: Watched | None = None
        self._closed = False

    @property
    def url(self) -> str:
        """The page's address, with the token if one is needed."""
        return self._server.url(self._name)

    def show(self, query: Shown) -> None:
        """Show a query, and begin to answer."""
        show = self._server.show
        self._watched = show(self._name, self._checkpoint, query.observation, measured=query)
        self._server.start()
        if self._server.token is None:
            logger.info("%s: its page is at %s", self._name, self.url)
        else:
            logger.warning("%s: its page is open to other machines, at %s", self._name, self.url)

    def close(self) -> None:
        """Show the end to pages that are open, and give the port back unless another query has it; waits for neither.

        Does nothing when it is called again.
        """
        with _lock:
            if self._closed:
                return
            self._closed = True
        threading.Thread(target=self._close, name=f"{_THREAD}-end", daemon=True).start()

    def _close(self) -> None:
        if self._watched is not None:
            self._watched.snapshot(anew=True)
        with _lock:
            topologies, server = self._server.site.topologies, self._server
            if topologies.get(self._name) is self._watched and server.users > 1:
                del topologies[self._name]
            server.users -= 1
            if not server.users:
                server.stop()


_lock = threading.Lock()

_servers: dict[tuple[str, int], Server] = {}
"""Those that queries of this process have opened, by what was asked for."""


def claim(host: str, port: int, name: str, checkpoint: Checkpoint) -> Page:
    """Return the page of a query that is about to start; its port is taken from now on. Call `Page.close` in the end.

    ConfigError: as of `opened`.
    """
    with _lock:
        server = _servers.get((host, port)) if port else None
        if server is None or not server.users:
            if server is not None:
                server.ended(_FREED_SECS)
            server = opened(host, port, "topology.ui.port")
            _servers[host, port] = server
        server.users += 1
    return Page(server, name, checkpoint)


def opened(host: str, port: int, wanted: str) -> Server:
    """Return a server that has a port, and shows nothing yet.

    ConfigError: the port is taken, or the address is none of this machine's; `wanted` names what asked for it.
    """
    token, names = None if is_loopback(host) else _token(), given_names(os.environ.get(HOSTS, ""))
    return Server(host, _listening(host, port, wanted), token, names)


def _listening(host: str, port: int, wanted: str) -> socket.socket:
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise ConfigError(f"topology.ui.host: {host!r} is no address ({error}): give 127.0.0.1, or 0.0.0.0") from error
    listening = socket.socket(family, kind)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(_BACKLOG)  # until then another process could bind it as well
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            problem = f"{wanted}: port {port} of {host} is taken by another program: give another one, or 0 for any"
        elif error.errno == errno.EACCES:
            problem = f"{wanted}: this user may not open port {port}: give one from 1024, or 0 for any that is free"
        else:
            problem = f"topology.ui.host: {host!r} is no address of this machine ({error}): give 127.0.0.1, or 0.0.0.0"
        raise ConfigError(problem, host=host, port=port) from error
    return listening


def _token() -> str:
    given = os.environ.get(TOKEN, "")
    if not given:
        return secrets.token_urlsafe(24)
    if len(given) < TOKEN_CHARS or not given.isascii() or any(each in given for each in ' ;,"\\%&#+='):
        raise ConfigError(
            f"{TOKEN} must have {TOKEN_CHARS} characters or more, letters, digits, dashes and underscores: take what "
            "python -c 'import secrets; print(secrets.token_urlsafe(24))' prints"
        )
    return given


def standing(server: Server, checkpoint: Checkpoint) -> None:
    """Show a checkpoint whose driver is dead, or runs elsewhere, under the name of its topology.

    CheckpointError: there is none.
    """
    document = archive.observed(checkpoint)
    name = str(document.get("topology") or checkpoint.location.rstrip("/").rpartition("/")[2])
    server.show(name, checkpoint, lambda: archive.observed(checkpoint), FAR_SECS)


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a line of uvicorn's is news; those of other servers all are.

    That a page begins or ends is none, nor who is cut off by the end, and what is no HTTP either: who looks for open
    ports sends a lot of it.
    """
    if not (record.threadName or "").startswith(_THREAD):
        return True
    is_cut_off = record.msg.startswith("Cancel ") or (
        record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
    )
    return record.levelno > logging.WARNING and not is_cut_off
