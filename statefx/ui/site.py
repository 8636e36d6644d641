"""What the page's server answers: its files, its data under ``/v1/topologies``, live changes, metrics and health."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from statefx.checkpoint import Checkpoint
from statefx.errors import CheckpointError, CodecError, ConfigError, StatefxError
from statefx.log.observation import WRONG
from statefx.metrics.registry import Measured
from statefx.ui import archive
from statefx.ui.bundle import bundle
from statefx.ui.door import said
from statefx.ui.scraping import Written, exposed, written
from statefx.ui.watched import Watched, encoded

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

STREAMS = 64
"""How many pages may be open at once; each has a connection."""

LOOKS = 2
"""How many requests may read the checkpoint at once: of a driver that works, most of the machine is its own."""

LOG_SECS = 5.0
"""How long what was read of the log is shown."""

MAPS_SECS = 600.0
"""The same of the names of maps."""

BEAT_SECS = 5.0
"""How often a stream in which nothing changes says that it is alive."""


class _Name(Convertor[str]):
    """A topology's name in an address: any text, also with slashes and line feeds."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("topology", _Name())


class Site:
    """The topologies that one server shows.

    `tick_secs` is how often streams look for changes.
    """

    def __init__(self, tick_secs: float = 1.0) -> None:
        self.topologies: dict[str, Watched] = {}
        self.lines: Iterable[logging.LogRecord] = ()
        self._tick = tick_secs
        self._closing: asyncio.Event | None = None
        self._streams = 0
        self._looks = asyncio.Semaphore(LOOKS)
        self._assets = {
            each.name: each.read_bytes() for each in (files(__package__) / "assets").iterdir() if each.is_file()
        }
        own = "/v1/topologies/{name:topology}"
        routes: list[tuple[str, Callable[[Request], Awaitable[Response]]]] = [
            ("/", self._page),
            ("/assets/{file}", self._asset),
            ("/healthz", self._health),
            ("/metrics", self._metrics),
            ("/v1/topologies", self._list),
            (f"{own}/events", self._events),
            (f"{own}/tasks", self._of(self._tasks)),
            (f"{own}/worked", self._of(self._worked)),
            (f"{own}/transactions", self._reading("transactions", archive.attempts)),
            (f"{own}/history", self._reading("history", archive.history)),
            (f"{own}/state", self._reading("state", archive.bolts)),
            (f"{own}/state/maps", self._of(self._maps)),
            (f"{own}/state/key", self._of(self._key)),
            (f"{own}/deadletters", self._of(self._held)),
            (f"{own}/bundle", self._of(self._bundle)),
            (own, self._of(self._document)),
        ]
        self.app = Starlette(
            routes=[Route(path, endpoint, methods=["GET"]) for path, endpoint in routes],
            exception_handlers={HTTPException: _failed, StatefxError: _refused, OSError: _unread},
        )

    def close(self) -> None:
        """End all streams, each with the last change; called on the server's thread."""
        if self._closing is not None:
            self._closing.set()

    # ---- the page

    async def _page(self, request: Request) -> Response:
        return self._file("index.html")

    async def _asset(self, request: Request) -> Response:
        return self._file(request.path_params["file"])

    def _file(self, name: str) -> Response:
        """Answer with one of the files that were there at the start: nothing of a request becomes a path."""
        if name not in self._assets:
            raise HTTPException(404, "there is no such file")
        kind = _TYPES.get(name[name.rfind(".") :], "text/plain")
        return Response(self._assets[name], media_type=kind, headers={"cache-control": "no-cache"})

    # ---- what is known

    async def _list(self, request: Request) -> Response:
        def listed() -> list[dict[str, Any]]:
            found = []
            for one in list(self.topologies.values()):
                health = one.snapshot().document.get("health")
                sentence = health.get("sentence") if isinstance(health, Mapping) else None
                found.append(
                    {
                        "name": one.name,
                        "checkpoint": one.checkpoint.location,
                        "health": one.health,
                        "sentence": sentence,
                    }
                )
            return found

        return _json({"topologies": await run_in_threadpool(listed)})

    def _of(
        self, answer: Callable[[Request, Watched], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint about the topology that a request names."""

        async def endpoint(request: Request) -> Response:
            return await answer(request, self._named(request))

        return endpoint

    def _named(self, request: Request) -> Watched:
        name = request.path_params["name"]
        if name not in self.topologies:
            raise HTTPException(
                404, f"no topology {name!r} is shown here; there is {', '.join(self.topologies) or 'none'}"
            )
        return self.topologies[name]

    def _reading(self, name: str, look: Callable[[Checkpoint], Any]) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that reads the log, for all pages together every few seconds."""

        async def answer(request: Request, one: Watched) -> Response:
            return _json(await self._look(lambda: one.lately((name,), LOG_SECS, lambda: look(one.checkpoint))))

        return self._of(answer)

    async def _look(self, look: Callable[[], Any]) -> Any:
        async with self._looks:
            return await run_in_threadpool(look)

    async def _document(self, request: Request, one: Watched) -> Response:
        found = await run_in_threadpool(one.snapshot)
        return Response(found.changed(0), media_type="application/json")

    async def _tasks(self, request: Request, one: Watched) -> Response:
        components = (await run_in_threadpool(one.snapshot)).document.get("components") or {}
        component = _given(request, "component")
        if component not in components:
            raise HTTPException(404, f"there is no component {component!r}")
        return _json({"component": component, "tasks": components[component].get("tasks") or []})

    async def _worked(self, request: Request, one: Watched) -> Response:
        """Answer when the tasks of one of the last transactions worked."""
        known = (await run_in_threadpool(one.snapshot)).document.get("tasksOf") or []
        wanted = _given(request, "txid"), _given(request, "attempt")
        for each in known:
            if (str(each["txid"]), str(each["attempt"])) == wanted:
                return _json(each)
        raise HTTPException(
            404, f"times of tasks are known of the last {len(known)} transactions that this driver has committed"
        )

    async def _maps(self, request: Request, one: Watched) -> Response:
        component = _given(request, "component")
        look = lambda: one.lately(("maps", component), MAPS_SECS, lambda: archive.maps(one.checkpoint, component))  # noqa: E731
        return _json(await self._look(look))

    async def _key(self, request: Request, one: Watched) -> Response:
        component, key = _given(request, "component"), _given(request, "key")
        map, task = request.query_params.get("map") or None, request.query_params.get("task") or None
        if task is not None and not task.isdecimal():
            raise ConfigError(f"task is a number, not {task!r}")
        number = None if task is None else int(task)
        return _json(await self._look(lambda: archive.explained(one.checkpoint, component, key, map, number)))

    async def _held(self, request: Request, one: Watched) -> Response:
        component = _given(request, "component")
        look = lambda: one.lately(("held", component), LOG_SECS, lambda: archive.held(one.checkpoint, component))  # noqa: E731
        return _json(await self._look(look))

    async def _bundle(self, request: Request, one: Watched) -> Response:
        data = await self._look(lambda: bundle(one, list(self.lines)))
        name = quote(f"statefx-{one.name}.zip", safe=" ")
        return Response(
            data, media_type="application/zip", headers={"content-disposition": f"attachment; filename*=UTF-8''{name}"}
        )

    # ---- as it changes

    async def _events(self, request: Request) -> Response:
        one = self._named(request)
        if self._streams >= STREAMS:
            raise HTTPException(503, f"{STREAMS} pages are open already: close one")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        if request.method == "HEAD":  # whose answer has an end
            return Response(media_type="text/event-stream", headers=headers)
        return StreamingResponse(self._changes(one), media_type="text/event-stream", headers=headers)

    async def _changes(self, one: Watched) -> AsyncIterator[bytes]:
        """Yield events: ``change`` has the sections that are new, ``beat`` says that none is, ``end`` is the last."""
        self._closing = self._closing or asyncio.Event()
        self._streams += 1
        seen, quiet, over = 0, 0.0, False
        try:
            yield b"retry: 2000\n\n"
            while True:
                found = one.newest
                if found is None:
                    found = await run_in_threadpool(one.snapshot)
                if found.number > seen:
                    yield b"event: change\ndata: %b\n\n" % found.changed(seen)
                    seen, quiet = found.number, 0.0
                elif quiet >= BEAT_SECS:
                    yield b"event: beat\ndata: {}\n\n"
                    quiet = 0.0
                if over:
                    yield b"event: end\ndata: {}\n\n"
                    return
                over = await _set_within(self._closing, self._tick) or one.name not in self.topologies
                quiet += self._tick
        finally:
            self._streams -= 1

    # ---- for other programs

    async def _health(self, request: Request) -> Response:
        states = [await run_in_threadpool(lambda one=one: one.health) for one in list(self.topologies.values())]  # type: ignore[misc]
        worst = next((each for each in WRONG if each in states), states[0] if states else "starting")
        return Response(f"{worst}\n", 503 if worst in WRONG else 200, media_type="text/plain")

    async def _metrics(self, request: Request) -> Response:
        measured: list[Measured | Written] = []
        missing: list[str] = []
        for one in list(self.topologies.values()):
            found = one.measured or written((await run_in_threadpool(one.snapshot)).document)
            if isinstance(found, str):
                missing.append(f"{one.name}: {found}")
            else:
                measured.append(found)
        if not measured:
            raise HTTPException(503, "; ".join(missing) or "no topology is shown here")
        text, kind = await run_in_threadpool(exposed, measured, request.headers.get("accept", ""))
        return Response(text, headers={"content-type": kind})


def _given(request: Request, name: str) -> str:
    found = request.query_params.get(name)
    if found is None:
        raise ConfigError(f"say {name}=...")
    return found


async def _set_within(event: asyncio.Event, secs: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), secs)
    except TimeoutError:
        return False
    return True


def _json(data: Any) -> Response:
    return Response(encoded(data), media_type="application/json")


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return said(error.status_code, error.detail)


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, ConfigError | CodecError):
        return said(400, str(error))
    return said(404 if isinstance(error, CheckpointError) else 503, str(error))


async def _unread(request: Request, error: Exception) -> Response:
    return said(503, f"the checkpoint can't be read: {error}")
