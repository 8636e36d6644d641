"""``statefx`` in a shell: exit codes, one line for an error, tables that stay tables, JSON that programs read."""

import json
import os
import pty
import shlex
import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from statefx import Checkpoint, StatefulBolt, TopologyBuilder
from statefx.command import CELL_CHARS, SHOWN, _cli, main
from statefx.coordinator.requests import RequestServer
from statefx.log.entries import FOLDER
from statefx.log.log import TransactionLog
from statefx.protocol.records import BatchInput, Preparing
from statefx.storage import FolderStorage
from statefx.testing import rows
from tests.admin.test_absent import CHECKPOINTS, LISTS, made
from tests.coordinator.serving import taken
from tests.spark.running import wait_for
from tests.testing.places import place
from tests.testing.topologies import SMALL, Driver, lines, totals, words

__all__ = ["place"]

WORK = [lines("to be or", "not to be"), lines("that is")]


class Odd(StatefulBolt):
    """Keeps what JSON and tables don't take as it is."""

    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put(b"\x00", "two\nlines")
        self.state.put(float("inf"), [1, (2, None)])
        self.state.put(("a", 1), datetime(2026, 1, 2))
        self.state.put("long", "x" * 1000)
        self.state.put("nan", float("nan"))


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "statefx", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.slow
def test_as_a_process_beside_a_driver_at_work(place: Path) -> None:
    found = []
    with Driver(place) as driver:
        tester = driver.start(totals())
        tester.send(WORK[0])
        tester.when("after COMMITTING(2, 0)", lambda: found.append(run("transactions", driver.folder, "--json")))
        tester.send(WORK[1])
        assert tester.txid == 2
        code = run("state", driver.folder, "split")
    assert (found[0].returncode, found[0].stderr) == (0, "")
    listed = [json.loads(line) for line in found[0].stdout.splitlines()]
    assert [(each["txid"], each["state"]) for each in listed] == [(1, "COMMITTED"), (2, "COMMITTING")]
    assert (code.returncode, code.stdout) == (1, "")
    (line,) = code.stderr.splitlines()
    assert line.endswith("holds no state of 'split'; its stateful bolts are ['count', 'total']")


@pytest.mark.slow
def test_json_is_what_the_functions_return(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Driver(place) as driver:
        driver.start(totals(), limits=SMALL).run(WORK)
        assert main(["transactions", str(driver.folder), "--json"]) == 0
        listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [each["ended_ms"] for each in listed] == [
            each.ended_ms for each in Checkpoint(driver.folder).transactions()
        ]
        assert main(["state", str(driver.folder), "count", "--json"]) == 0
        kept = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert {each["key"]: each["value"] for each in kept} == words(WORK)
        assert main(["log", str(driver.folder), "--json"]) == 0
        records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        newest = max(int(path.stem) for path in (driver.folder / FOLDER).glob("*.json"))
        assert records[-1]["number"] == newest
        assert main(["log", str(driver.folder), "--table"]) == 0
        shown = capsys.readouterr().out
        assert f"\n{newest} " in shown.replace("\n  ", "\n")
        driver.start(totals(), limits=SMALL)._coordinator.log.fold()
        assert main(["log", str(driver.folder), "--table"]) == 0
        assert f"transaction {len(WORK)} was the last that is committed" in capsys.readouterr().out


def test_odd_keys_and_values(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = TopologyBuilder("odd")
    builder.setStream("lines", rows("word string"))
    builder.setBolt("odd", Odd()).globalGrouping("lines")
    with Driver(place) as driver:
        driver.start(builder.createTopology()).send(lines("a"))
        assert main(["state", str(driver.folder), "odd", "--table"]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert main(["state", str(driver.folder), "odd", "--json"]) == 0
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(shown) == 6
    assert max(len(line.rstrip()) for line in shown) <= len("task  ") + 2 * CELL_CHARS + 2
    assert sum(line.rstrip().endswith("xxx\u2026") for line in shown) == 1
    assert [each["value"] for each in told if each["key"] == "long"] == ["x" * 1000]
    assert [each["value"] for each in told if each["key"] == "b'\\x00'"] == ["two\nlines"]
    assert [each["value"] for each in told if each["key"] == "inf"] == [[1, [2, None]]]
    assert [each["value"] for each in told if each["key"] == "nan"] == ["nan"]
    assert [each["value"] for each in told if each["key"] == ["a", 1]] == ["datetime.datetime(2026, 1, 2, 0, 0)"]


@pytest.mark.slow
def test_a_table_of_state_ends_and_json_does_not(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Driver(place) as driver:
        driver.start().send(lines(*(f"word-{number}" for number in range(SHOWN + 5))))
        folder = str(driver.folder)
        printed = []
        asked = ([], ["--limit", "0"], ["--json"], ["--json", "--limit", "7"], ["--task", "1", "--limit", "0"])
        for more in (["--table", *each] if "--json" not in each else each for each in asked):
            assert main(["state", folder, "count", *more]) == 0
            printed.append(capsys.readouterr().out.splitlines())
    assert printed[0][-1] == f"... and more than these {SHOWN}"
    assert [len(each) for each in printed[:4]] == [SHOWN + 2, SHOWN + 6, SHOWN + 5, 7]
    assert 1 < len(printed[4]) < SHOWN


def test_of_a_topology_without_state_there_is_an_empty_table(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Driver(place) as driver:
        driver.start()
        assert main(["transactions", str(driver.folder), "--table"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["log", "nowhere"], 1, "there is no checkpoint in"),
        (["transactions", "nowhere"], 1, "has a topology been submitted there?"),
        (["state", "nowhere"], 1, "has a topology been submitted there?"),
        (["state", "nowhere", "count"], 1, "has a topology been submitted there?"),
        (["log", "."], 1, "is no checkpoint, and not empty"),
        (["log", "hdfs://host/x"], 2, "it must be a folder"),
        (["log", "s3://bucket"], 2, "must name a bucket and a prefix in it"),
        (["state", "nowhere", "--task", "1"], 2, "name the bolt behind the checkpoint"),
    ],
)
def test_mistakes_are_one_line_and_no_trace(place, capsys, monkeypatch, arguments, code, said) -> None:
    monkeypatch.chdir(place)
    (place / "notes.txt").write_text("mine")
    assert main(arguments) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("statefx: ")
    assert said in line


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["lag", "x"], ["log"], ["log", "x", "count"], ["state", "x", "count", "--task", "one"],
        ["state", "x", "count", "--limit", "-1"], ["state", "x", "count", "--config", "{"],
        ["state", "x", "count", "--config", "[]"],
    ],
)  # fmt: skip
def test_a_wrong_command_is_told_with_code_2(capsys, arguments) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Usage: statefx" in printed.err


class Running:
    """A driver that answers what is asked, as a query does."""

    def __init__(self, folder: Path, *, ended: bool = True) -> None:
        log = taken(folder)
        status = {"status": {"phase": "idle"}}
        self.server = RequestServer(
            log,
            {
                "status": lambda: {"observation": {**status, "health": {"state": "idle"}}},
                "pause": lambda: status,
                "resume": lambda: status,
                "stop": lambda timeout: {"ended": ended, "committed": 2, **({"error": None} if ended else status)},
                "loglevel": lambda level, name: {"logger": name, "level": level, "was": "INFO"},
            },
            look_secs=0.02,
        )
        self.server.start()
        wait_for(lambda: list(log.storage.list("requests/")), "it to listen")

    def end(self) -> None:
        self.server.end({"result": {}})


ASKING = ("status", "stop", "pause", "resume", "loglevel")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CHECKPOINTS.keys() - {"ui"}))  # which serves, and returns nothing
def test_json_of_every_command_is_objects_of_what_the_method_returns(tmp_path, capsys, name) -> None:
    """A line for each item of a list, else one line; a note on stderr if there is no item, and nothing else."""
    ck = made(tmp_path) / "ck"
    if name == "migrate":
        Checkpoint(ck).deleteSavepoint("kept")
    if name == "abort":
        log = TransactionLog(FolderStorage(ck))
        log.append(Preparing(3, 0, log.state.generation, BatchInput()))
    running = Running(ck) if name in ASKING else None
    queue = json.dumps({"url": f"sqlite:///{tmp_path}/jobs.db", "table": "jobs", "exactlyOnce": True})
    words = shlex.split(CHECKPOINTS[name].format(ck=ck, rows=tmp_path / "rows.json", queue=shlex.quote(queue)))
    by_key = ["--by-key"] if name in ("rescale", "write-state", "downgrade") else []
    code = main([*words, "--json", *by_key])
    if running is not None:
        running.end()
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert all(isinstance(line, dict) for line in lines)
    assert name in LISTS or len(lines) == 1
    assert lines or name in ("quarantined", "resolve")
    assert (code, len(printed.err.splitlines())) == (name == "top", not lines)  # whose document no driver has written


@pytest.mark.slow
@pytest.mark.parametrize("ended", [True, False])
def test_a_stop_is_done_when_the_query_has_ended(tmp_path, capsys, ended) -> None:
    ck = made(tmp_path) / "ck"
    running = Running(ck, ended=ended)
    code = main(["stop", str(ck), "--table"])
    running.end()
    assert ("it has not ended" in capsys.readouterr().out, code) == (not ended, int(not ended))


@pytest.mark.parametrize("name", sorted(CHECKPOINTS))
def test_every_command_takes_settings_and_speaks_json(name) -> None:
    options = {option for parameter in _cli.commands[name].params for option in parameter.opts}
    assert {"--config", "--json"} <= options


def completed(*words: object) -> list[str]:
    context = ShellComplete(_cli, {}, "statefx", "_STATEFX_COMPLETE")
    return [each.value for each in context.get_completions(list(map(str, words[:-1])), str(words[-1]))]


@pytest.mark.parametrize("name", sorted(CHECKPOINTS))
def test_the_shell_completes_the_checkpoint_s_folder(name) -> None:
    (found,) = ShellComplete(_cli, {}, "statefx", "_STATEFX_COMPLETE").get_completions([name], "check")
    assert (found.value, found.type) == ("check", "file")


@pytest.mark.slow
def test_the_shell_completes_what_the_checkpoint_has(tmp_path) -> None:
    folder = made(tmp_path)

    assert {"state", "savepoint", "status", "stop"} <= set(completed(""))
    assert completed("state", folder / "two", "") == ["count", "other"]
    assert completed("explain", folder / "two", "o") == ["other"]
    assert completed("restore", folder / "ck", "") == completed("delete-savepoint", folder / "ck", "k") == ["kept"]
    assert completed("loglevel", folder / "ck", "d") == ["debug"]
    assert completed("state", folder / "nowhere", "") == completed("state", "s3://", "") == []
    assert "--by-key" in completed("rescale", folder / "ck", "count=3", "--by")


@pytest.mark.soak
@pytest.mark.slow
def test_a_table_on_a_terminal_and_json_elsewhere(place: Path) -> None:
    with Driver(place) as driver:
        driver.start().send(lines("to be", "[bold]not\x1b[31m to be"))
        folder = str(driver.folder)
        assert [json.loads(line)["task"] for line in run("state", folder, "count").stdout.splitlines()]
        terminal, child = pty.openpty()
        with subprocess.Popen([sys.executable, "-m", "statefx", "state", folder, "count"], stdout=child) as process:
            os.close(child)
            shown = b""
            with suppress(OSError):  # which is how a terminal ends
                while part := os.read(terminal, 4096):
                    shown += part
            assert process.wait(60) == 0
        os.close(terminal)
    assert b"task" in shown
    assert b"[bold]not\\x1b[31m" in shown
    assert b"\x1b[31m" not in shown


@pytest.mark.slow
def test_a_program_that_does_not_use_the_command_loads_no_library_of_it() -> None:
    loaded = "import sys, statefx.admin.tables; print([each for each in ('click', 'rich') if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.soak
@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error(place: Path) -> None:
    with Driver(place) as driver:
        driver.start().send(lines(*(f"word-{number}-{'x' * 40}" for number in range(3000))))
        command = [sys.executable, "-m", "statefx", "state", str(driver.folder), "count", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == ""
            assert process.wait(60) == 0
