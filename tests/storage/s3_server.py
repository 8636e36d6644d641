"""An S3 server on loopback: moto, with one request at a time, and what may go wrong on the way to it."""

from __future__ import annotations

import contextlib
import random
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class OneAtATime:
    """Moto checks a condition and writes in two steps: two creators in one round of 150 both won. A lock ends that."""

    def __init__(self, inner: Application) -> None:
        self._inner = inner
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        with self._lock:
            return list(self._inner(environ, start_response))


class Unreliable:
    """Of the requests, refuses some with 503, carries out some and answers 503, and lets some wait."""

    def __init__(self, inner: Application, seed: int, share: float) -> None:
        self._inner = inner
        self._random = random.Random(seed)
        self._share = share
        self.faults = 0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        chosen = self._random.random() / self._share
        if chosen >= 1:
            return self._inner(environ, start_response)
        self.faults += 1
        if chosen < 1 / 3:
            time.sleep(0.02)  # noqa: TID251 - a slow network
            return self._inner(environ, start_response)
        if chosen < 2 / 3:
            list(self._inner(environ, lambda *given: None))  # done, and its answer is lost
        else:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response("503 Slow Down", [("Content-Length", "0")])
        return []


class Unconditional:
    """As stores that know nothing of conditional requests: a name may be created twice."""

    def __init__(self, inner: Application) -> None:
        self._inner = inner

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        environ.pop("HTTP_IF_NONE_MATCH", None)
        return self._inner(environ, start_response)


SECRET = "the-secret-of-the-tests"


@contextlib.contextmanager
def as_users_have_it(address: str) -> Iterator[Callable[[], str]]:
    """Set the environment for a server, as a user does; yield what makes a bucket and returns the URL of a prefix."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_ENDPOINT_URL", address),
            ("AWS_REGION", "us-east-1"),
        ):
            patch.setenv(name, value)
        yield lambda: f"s3://{made_bucket(address)}/checkpoints/word-count"


def made_bucket(address: str) -> str:
    """Make a bucket and return its name."""
    bucket = f"b{uuid4().hex}"
    urllib.request.urlopen(urllib.request.Request(f"{address}/{bucket}", method="PUT")).close()
    return bucket


@contextlib.contextmanager
def s3_server(before: Callable[[Application], Application] = lambda inner: inner) -> Iterator[str]:
    """Yield the server's address; `before` returns what stands before it."""
    application = before(OneAtATime(DomainDispatcherApplication(create_backend_app)))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
