"""The tutorial's files and commands, in its order, in an empty folder: each command does what the page shows."""

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.tables import DOCS
from tests.ports import free_port

PAGE = (DOCS / "getting-started.md").read_text(encoding="utf-8").partition("## Write it\n")[2]
FILE = r"`(\w+\.py)`[^`]*?:\n\n<!-- not run: [^\n]*test_tutorial[^\n]* -->\n```python\n(.*?)```"
FILES = re.findall(FILE, PAGE, re.DOTALL)
COMMANDS = [
    command.rstrip("\n").partition("\n")[::2]
    for block in re.findall(r"^```console\n\$ (.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    for command in block.split("\n$ ")
]
PORT = "4050"
END = "the command has ended with "
WITHIN_SECS = 240


class Shell:
    """A shell with job control, as a terminal has."""

    def __init__(self, folder: Path) -> None:
        env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env={**env, "PYSPARK_PYTHON": sys.executable},
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
        self.run("kill -9 $(jobs -p) 2>/dev/null")
        self._bash.communicate("exit\n")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    opened = Shell(tmp_path)
    yield opened
    opened.close()


def test_the_tutorial_has_what_is_run_here():
    assert [name for name, _ in FILES] == ["bank.py", "test_bank.py", "pay.py", "look.py"]
    assert len(COMMANDS) > 10


@pytest.mark.soak  # three starts of Spark, and a kill: more than a minute
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_tutorial_does_what_it_shows(tmp_path, shell):
    port = str(free_port())
    for name, text in FILES:
        (tmp_path / name).write_text(text.replace(PORT, port))
    page = b""
    for command, shown in COMMANDS:
        code, printed = shell.run(command)
        bound = time.monotonic() + WITHIN_SECS
        while shown and printed.rstrip() != shown and time.monotonic() < bound:
            time.sleep(0.5)  # noqa: TID251 - a wait with a bound: it shows what is committed by now
            code, printed = shell.run(command)
        log = tmp_path / "bank.log"
        story = f"{command}\n{printed}\n{log.read_text()[-3000:] if log.exists() else ''}"
        assert code == 0, story
        assert not shown or printed.rstrip() == shown, story
        if shown and not page:
            page = urllib.request.urlopen(f"http://127.0.0.1:{port}/").read()
    assert f"<http://127.0.0.1:{PORT}>" in PAGE
    assert b"<html" in page
