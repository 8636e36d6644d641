"""The tutorial's files and commands, in its order, in an empty folder: each command does what the page shows."""

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.error import URLError

import pytest

from tests.docs.tables import DOCS
from tests.kafka.libraries import UnavailableError
from tests.metrics.prometheus_server import program
from tests.ports import free_port

PAGE = (DOCS / "getting-started.md").read_text(encoding="utf-8").partition("## Write it\n")[2]
FILE = re.compile(
    r"`(\w+\.(?:py|yml))`[^`]*?:\n\n(?:<!-- not run: [^\n]*test_tutorial[^\n]* -->\n)?```(?:python|yaml)\n(.*?)```",
    re.DOTALL,
)
COMMANDS = re.compile(r"^```console\n\$ (.*?)^```", re.DOTALL | re.MULTILINE)
ADDRESS = re.compile(r"<(http://127\.0\.0\.1:\d+\S*)>")
PORTS = ("4050", "7077", "9400", "9099")
END = "the command has ended with "
WITHIN_SECS = 600


class Shell:
    """A shell with job control, as a terminal has."""

    def __init__(self, folder: Path, programs: Path) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
        env |= {"PATH": f"{programs}:{_prometheus()}:{env['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.run("set -m")

    def run(self, command: str) -> tuple[int, str]:
        assert self._bash.stdin
        assert self._bash.stdout
        self._bash.stdin.write(f"{command}\necho {END}$?\n")
        self._bash.stdin.flush()
        printed = ""
        for line in self._bash.stdout:
            if line.startswith(END):
                return int(line.removeprefix(END)), printed
            printed += line
        raise AssertionError(f"the shell has ended: {printed}")

    def close(self) -> None:
        self.run("for job in $(jobs -p); do kill -9 -- -$job; done 2>/dev/null")  # with all that it has started
        self._bash.communicate("exit\n")


def _prometheus() -> str:
    """Return the folder of a Prometheus, or an empty text if there is none."""
    try:
        return str(Path(program("prometheus")).parent)
    except UnavailableError:
        return ""


def steps(page: str) -> Iterator[tuple[str, str]]:
    """Yield each command with what it prints, and each address that is to be opened, in their order."""
    for match in re.finditer(f"{COMMANDS.pattern}|{ADDRESS.pattern}", page, COMMANDS.flags):
        block, address = match.groups()
        yield from [(address, "")] if address else [text.partition("\n")[::2] for text in block.split("\n$ ")]


def opened(address: str) -> bytes:
    bound = time.monotonic() + WITHIN_SECS
    while True:
        try:
            return urllib.request.urlopen(address).read()
        except URLError:
            assert time.monotonic() < bound, address
            time.sleep(0.5)  # noqa: TID251 - a wait with a bound


def follow(folder: Path, programs: Path) -> None:
    """Do what the page says, in an empty folder, with the programs of an environment."""
    page = PAGE.replace("path/to/clone", str(DOCS.parent))
    for port in PORTS:
        assert f":{port}" in page
        page = page.replace(port, str(free_port()))
    for name, text in FILE.findall(page):
        (folder / name).write_text(text)
    with closing(Shell(folder, programs)) as shell:
        for command, shown in steps(page):
            prometheus = command.startswith("prometheus") or command.endswith("/alerts")
            if prometheus and not _prometheus():
                continue
            if command.startswith("http"):  # Debian's package has the pages of Prometheus elsewhere than its program
                assert opened(command.replace("/alerts", "/api/v1/rules"))
                continue
            code, printed = shell.run(command)
            bound = time.monotonic() + WITHIN_SECS
            while shown and printed.rstrip() != shown.rstrip() and time.monotonic() < bound:
                time.sleep(0.5)  # noqa: TID251 - a wait with a bound: it shows what is committed by now
                code, printed = shell.run(command)
            log = folder / "bank.log"
            story = f"{command}\n{printed}\n{log.read_text()[-3000:] if log.exists() else ''}"
            assert code == 0, story
            assert not shown or printed.rstrip() == shown.rstrip(), story
            if command.startswith("prometheus"):
                scraped(command)


def scraped(command: str) -> None:
    """Wait until Prometheus has the bank's metrics."""
    (address,) = re.findall(r"127\.0\.0\.1:\d+", command)
    query = f"http://{address}/api/v1/query?query=statefx_transactions_total"
    bound = time.monotonic() + WITHIN_SECS
    while b"statefx_transactions_total" not in opened(query):
        assert time.monotonic() < bound, opened(f"http://{address}/api/v1/targets")
        time.sleep(0.5)  # noqa: TID251 - a wait with a bound


def test_the_tutorial_has_what_is_run_here():
    names = [name for name, _ in FILE.findall(PAGE)]
    assert names == ["bank.py", "test_bank.py", "pay.py", "look.py", "prometheus.yml"]
    assert len([*steps(PAGE)]) > 25


@pytest.mark.soak  # four starts of Spark, and two kills: minutes
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_the_tutorial_does_what_it_shows(tmp_path):
    follow(tmp_path, Path(sys.executable).parent)
