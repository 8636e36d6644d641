"""An S3 server on loopback, a process of its own: moto, with one request at a time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.conftest import ROOT

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class OneAtATime:
    """Moto checks a condition and writes in two steps: two creators in one round of 150 both won. A lock ends that."""

    def __init__(self, inner: Application) -> None:
        self._inner = inner
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        with self._lock:
            return list(self._inner(environ, start_response))


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
def s3_server(conditional: bool = True, page: int = 1000) -> Iterator[str]:
    """Yield the server's address; a listing has so many names to a `page`."""
    command = [sys.executable, "-m", "tests.storage.s3_server", *([] if conditional else ["unconditional"])]
    environment = {**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(page)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip().decode()
        assert port, "the server did not start"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


def main(*given: str) -> None:
    """Print the port; serve until killed, or until whoever started this is gone."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *said: Any) -> None:
            pass

    application: Application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    if given:
        application = Unconditional(application)
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
