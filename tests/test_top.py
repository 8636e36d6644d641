"""`statefx top` and `statefx why` in a terminal, from documents of any kind."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time

import pytest
from rich.console import Console

from statefx import top
from statefx.command import main
from statefx.log.location import OBSERVED
from statefx.log.observation import OVER, WRONG, health, process
from statefx.logs import iso
from statefx.testing import TopologyTester
from statefx.top import _COLOURS, screen
from tests.test_why import CASES
from tests.testing.topologies import lines, word_count

BOUND_SECS = 30


def shown(document, **more):
    console = Console(width=160, file=io.StringIO(), force_terminal=False)
    console.print(screen(document, time.time(), **more))
    return console.file.getvalue()


@pytest.fixture
def checkpoint(place):
    with TopologyTester(word_count(), place) as tester:
        tester.send(lines("a b"))
    return place


def put(place, **more):
    document = CASES["slow bolt"] | {
        "format": 1, "generation": 1, "lineage": "l", "checkpoint": os.path.realpath(place), "driver": process(),
        "writtenAt": iso(time.time()), "endedAt": None,
    }  # fmt: skip
    (place / OBSERVED).write_text(json.dumps(document | more))
    return document | more


def test_the_screen_has_health_tasks_transactions_and_bars():
    text = shown(CASES["slow bolt"] | {"health": {"state": "healthy", "sentence": "well", "remedy": ""}})
    assert "healthy  well" in text
    assert "count" in text
    assert "committed" in text


def test_names_that_a_terminal_would_obey_are_shown_as_text():
    evil = "\x1b[2J\n<script>'\" [/data] [red]x[/red] :warning:"
    document = {
        **CASES["slow bolt"],
        "topology": evil,
        "health": {"state": "stuck", "sentence": evil, "remedy": evil},
        "components": {evil: {"tasks": []}},
        "sources": {evil: {"eventTime": {"heldBackBy": evil}}},
        "sinks": {evil: {"stuckSince": iso(0.0), "why": evil}},
        "transactions": [{"txid": 1, "attempt": 0, "outcome": "rolled back", "reason": evil, "rows": 1}],
    }
    text = shown(document)
    assert "\x1b" not in text
    assert "\\x1b[2J\\n<script>" in text
    assert text.count("[/data] [red]x[/red] :warn") >= 7


def test_what_can_have_no_rate_has_a_dash_and_the_bar_a_legend():
    graph = {"components": [{"name": name, "kind": name, "tasks": 1} for name in ("spout", "bolt", "sink")]}
    figures = {"rowsInPerSec": 7.0, "rowsOutPerSec": 0.0, "tasks": [], "activity": {"busy": 0.5, "idle": 0.5}}
    document = {**CASES["slow bolt"], "graph": graph, "components": dict.fromkeys(("spout", "bolt", "sink"), figures)}
    lines = shown(document | {"health": {"state": "healthy", "sentence": "well", "remedy": ""}}).splitlines()
    (header,) = [line for line in lines if line.startswith("component")]
    assert all(f"{char} " in header for _, char, _ in top._ACTIVITIES)
    assert all(name in header for name, _, _ in top._ACTIVITIES)
    rates = {line.split()[0]: line.partition("50 %")[2].split()[:2] for line in lines if "50 %" in line}
    assert rates == {"spout": ["-", "0"], "bolt": ["7", "0"], "sink": ["7", "-"]}


def test_a_transaction_that_runs_has_the_time_until_now():
    running = {"txid": 9, "attempt": 0, "outcome": "running", "began": iso(100.0), "ended": None, "rows": 1}
    document = {**CASES["slow bolt"], "transactions": [running], "writtenAt": iso(111.5)}
    text = shown(document | {"health": {"state": "stuck", "sentence": "stuck", "remedy": ""}})
    assert re.search(r"9 +0 +running +00:01:40\.000 +11,500 +1", text)


def test_a_pipe_gets_all_of_a_reason_and_a_terminal_what_fits(checkpoint, capsys):
    why = f"{'locked ' * 60}end that process"
    rolled = {"txid": 1, "attempt": 0, "outcome": "rolled back", "reason": why, "rows": 1}
    document = put(checkpoint, sinks={"db": {"stuckSince": iso(0.0), "why": why}}, transactions=[rolled])
    assert main(["top", str(checkpoint), "--once", "--table"]) == 0
    printed = capsys.readouterr().out
    assert printed.count(f": {why}") == 1
    assert printed.count(why) == 2
    assert not [line for line in printed.splitlines() if line.endswith(" ")]
    lines = shown(document).splitlines()
    assert max(map(len, lines)) <= 160
    assert "end that process" in " ".join(lines[-3:])  # of a sink that is stuck all is needed: it takes more lines
    assert [line for line in lines if line.split()[:3] == ["1", "0", "rolled"]]


def test_of_many_components_those_that_fit_are_shown_and_the_others_counted():
    document = CASES["slow bolt"] | {"components": {f"bolt-{number}": {"tasks": []} for number in range(200)}}
    text = shown(document, height=40)
    assert "... and 184 more components" in text
    assert len(text.splitlines()) <= 40


@pytest.mark.daily(8)
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_documents_that_lack_things_are_shown(name):
    health = {"state": "unknown", "sentence": "nothing is known", "remedy": ""}
    for key in CASES[name]:
        shown(CASES[name] | {key: None} | {"health": health})
    assert "nothing is known" in shown({"health": health})


@pytest.mark.slow
def test_once_prints_a_table_and_its_exit_code_says_whether_it_is_well(checkpoint, capsys):
    put(checkpoint)
    assert main(["top", str(checkpoint), "--once", "--table"]) == 0
    assert "rows/s" in (printed := capsys.readouterr().out) or "component" in printed
    put(checkpoint, health={"state": "stuck", "since": None, "sentence": "the database is away", "remedy": "mend it"})
    assert main(["top", str(checkpoint), "--once", "--table"]) == 1
    printed = capsys.readouterr().out
    assert "the database is away" in printed
    assert "mend it" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "code"),
    [("healthy", 0), ("idle", 0), ("starting", 0), ("ended", 0), *((each, 1) for each in WRONG)],
)
def test_the_exit_code_is_that_of_the_health(checkpoint, capsys, state, code):
    put(checkpoint, health=health(state, None, "It is so"))
    for command in (["top", str(checkpoint), "--once"], ["status", str(checkpoint)]):
        assert main(command) == code, command
    assert {state for state in _COLOURS if state in WRONG} == set(WRONG)


@pytest.mark.parametrize("state", OVER)
def test_of_a_driver_that_is_gone_no_rate_and_no_age_is_shown_as_of_now(state):
    sinks = {"out": {"stuckSince": iso(90.0), "why": "away"}}
    document = CASES["slow bolt"] | {
        "health": health(state, None, "It is so"), "writtenAt": iso(100.0), "endedAt": None,
        "sources": {"lines": {"rateOut": 2207.0}}, "sinks": sinks,
    }  # fmt: skip
    text = shown(document)
    assert "2,207 rows/s read" not in text
    assert "are those of 00:01:40 UTC, when its driver wrote them last" in text
    assert "for 10 s: away" in text
    assert "2,207 rows/s read" in shown(document | {"health": health("healthy", None, "well")})


def test_a_transaction_that_is_open_is_shown_with_its_phase():
    one = {"txid": 7, "attempt": 0, "outcome": "running", "phase": "COMMITTING", "began": iso(0.0), "ended": None}
    text = shown(CASES["slow bolt"] | {"transactions": [one], "health": health("failed", None, "It is so")})
    assert "COMMITTING" in text
    assert "running" not in text


def test_json_is_the_document(checkpoint, capsys):
    document = put(checkpoint)
    assert main(["top", str(checkpoint), "--once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == document
    assert main(["why", str(checkpoint), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["diagnoses"][0]["name"] == "slow bolt"
    assert main(["why", str(checkpoint), "--table"]) == 0
    assert "1. bolt 'count' bounds throughput" in capsys.readouterr().out


def test_a_place_without_a_checkpoint_is_told(tmp_path, capsys):
    for command in ("top", "why"):
        assert main([command, str(tmp_path)]) == 1
        assert "statefx:" in capsys.readouterr().err


@pytest.mark.slow
def test_a_terminal_shows_it_anew_each_second_until_q(checkpoint):
    put(checkpoint)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm", "COLUMNS": "160", "LINES": "50"}
        os.execv(sys.executable, [sys.executable, "-m", "statefx", "top", str(checkpoint)])
    try:
        read_until(terminal, b"well")
        put(checkpoint, health={"state": "failing", "since": None, "sentence": "it has changed", "remedy": ""})
        read_until(terminal, b"it has changed")
        (checkpoint / OBSERVED).write_text("torn")
        read_until(terminal, b"unknown")
        os.write(terminal, b"q")
        end = time.monotonic() + BOUND_SECS
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
            assert time.monotonic() < end, "q does not end it"
            threading.Event().wait(0.05)
        assert os.waitstatus_to_exitcode(ended[1]) == 0
        pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)


def read_until(terminal, text):
    end = time.monotonic() + BOUND_SECS
    seen = b""
    while text not in seen:
        assert time.monotonic() < end, seen[-2000:]
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 65536)
    return seen


@pytest.mark.slow
def test_it_is_no_terminal_that_a_pipe_reads(checkpoint):
    put(checkpoint)
    command = [sys.executable, "-m", "statefx", "top", str(checkpoint)]
    run = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=BOUND_SECS, stdin=subprocess.DEVNULL
    )
    assert json.loads(run.stdout)["topology"] == "sick"
