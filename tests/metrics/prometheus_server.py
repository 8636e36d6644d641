"""A real Prometheus for tests: the system's, or that of Debian's package, unpacked into the user's cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.kafka.libraries import UnavailableError, cache
from tests.ports import free_port

WAIT_SECS = 60
FETCH_SECS = 240

UNAVAILABLE = 503
"""What it answers while it starts."""


def program(name: str) -> str:
    """Return the command ``prometheus`` or ``promtool``; fetch the package if this machine has never done so."""
    if found := shutil.which(name):
        return found
    folder = cache() / "prometheus"
    found = folder / "usr" / "bin" / name
    if not found.exists():
        _fetch(folder)
    return str(found)


def _fetch(folder: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise UnavailableError("there is no prometheus in the path, and no apt-get that could fetch it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as here:
        try:
            subprocess.run(
                ["apt-get", "download", "-q", "prometheus"],
                cwd=here, check=True, capture_output=True, timeout=FETCH_SECS, text=True,
            )  # fmt: skip
            (package,) = Path(here).glob("*.deb")
            subprocess.run(["dpkg-deb", "-x", package, "all"], cwd=here, check=True, capture_output=True, text=True)
        except (subprocess.SubprocessError, OSError, ValueError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
            raise UnavailableError(f"Debian's prometheus could not be fetched: {' '.join(said)}") from error
        try:
            (Path(here) / "all").rename(folder)
        except OSError:  # another process was quicker
            assert folder.exists()


class PrometheusServer:
    """Scrapes one address five times a second, with the rules of a file; ended with `close`."""

    def __init__(self, target: str, rules: Path | None = None) -> None:
        command = program("prometheus")
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="statefx-prometheus-"))
        scrape = {"job_name": "statefx", "static_configs": [{"targets": [target]}]}
        config: dict[str, Any] = {
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "1s"},
            "rule_files": [] if rules is None else [str(rules)],
            "scrape_configs": [scrape],
        }
        (self.folder / "prometheus.yml").write_text(json.dumps(config))
        self._log = (self.folder / "log").open("wb")
        self._process = subprocess.Popen(
            [
                command,
                f"--config.file={self.folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={self.folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            stdout=self._log, stderr=self._log, cwd=self.folder,
        )  # fmt: skip

    def get(self, path: str, **query: str) -> Any:
        """Return what its API answers; waits until it is there."""
        address = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urlencode(query)}"
        end = time.monotonic() + WAIT_SECS
        while True:
            try:
                with urlopen(address, timeout=WAIT_SECS) as answer:
                    return json.load(answer)["data"]
            except URLError as error:
                starts = not isinstance(error, HTTPError) or error.code == UNAVAILABLE
                if self._process.poll() is not None or time.monotonic() > end or not starts:
                    said = error.read() if isinstance(error, HTTPError) else b""
                    raise AssertionError(f"{said!r}\n{(self.folder / 'log').read_text()}") from error

    def query(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Return an expression's value now, by labels."""
        found = self.get("query", query=expression)["result"]
        return {tuple(sorted(each["metric"].items())): float(each["value"][1]) for each in found}

    def wait_for(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Return an expression's value as soon as it has one."""
        end = time.monotonic() + WAIT_SECS
        while not (found := self.query(expression)):
            assert time.monotonic() < end, f"{expression} has no value: {self.get('targets')}"
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait(WAIT_SECS)
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def promtool(*arguments: str | os.PathLike[str]) -> str:
    """Run promtool; return what it says, with AssertionError where it finds a mistake."""
    run = subprocess.run(
        [program("promtool"), *arguments], capture_output=True, text=True, timeout=WAIT_SECS, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr
