"""Requests to a driver at work: each order of events of who asks, who answers, and who dies (rules 17.1 to 17.7)."""

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest

from statefx import Checkpoint
from statefx.command import main
from statefx.coordinator import requests
from statefx.coordinator.requests import AT_ONCE, RequestServer
from statefx.errors import CheckpointError, ConfigError, FencedError
from statefx.log.location import Folders
from statefx.log.requests import (
    ANSWER,
    BELL,
    BYTES_MAX,
    DRIVER,
    REQUEST,
    TAKEN,
    Answered,
    Patience,
    RunningDriver,
    Silence,
    UnansweredError,
    ask,
    folder_of,
)
from statefx.storage import FolderStorage
from tests.conftest import ROOT
from tests.coordinator.serving import take_savepoint, taken
from tests.spark.running import wait_for
from tests.testing.topologies import Driver, lines

SOON = Patience(taken_secs=0.3, silent_secs=0.6, answer_secs=20.0)
"""Of one who asks where nobody will answer."""

LONG = Patience(taken_secs=20.0, silent_secs=20.0, answer_secs=20.0)


class Site:
    """A checkpoint with one transaction, and its driver, which listens and does as it is told by a test."""

    def __init__(self, location, storage=None):
        self.folders = Folders(str(location))
        self.storage = storage or self.folders.storage
        self.done = []
        self.going = threading.Event()
        self.servers = []

    def driver(self, **more):
        """A driver of the next generation; `more` are commands of its own."""
        log = taken(self.folders.location)
        log.storage = self.storage

        def note(**arguments):
            self.done.append(arguments)
            return {"number": len(self.done)}

        def wait():
            self.done.append("began")
            assert self.going.wait(30)
            return {}

        commands = {"note": note, "wait": wait, "savepoint": lambda name: take_savepoint(log, name), **more}
        self.servers.append(RequestServer(log, commands, look_secs=0.02))
        return self.servers[-1]

    def serving(self, **more):
        server = self.driver(**more)
        server.start()
        wait_for(lambda: server._folder + DRIVER in self.names(), "the driver to serve")
        return server

    def ask(self, command, patience=LONG, **arguments):
        return ask(self.folders, command, arguments, patience)

    @contextmanager
    def asking(self, command, patience=LONG, **arguments):
        """Ask on a thread; yield what will hold the answer, or the error."""
        found = []

        def run():
            try:
                found.append(self.ask(command, patience, **arguments))
            except Exception as error:  # noqa: BLE001 - the test looks at it
                found.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield found
        finally:
            self.going.set()
            thread.join(60)
            assert not thread.is_alive()

    def names(self, ending=""):
        return [each.name for each in self.folders.storage.list("requests/") if each.name.endswith(ending)]

    def write(self, said, id="f" * 32, generation=None, rings=True):
        folder = folder_of(generation or 2)
        data = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.folders.storage.put(f"{folder}{id}{REQUEST}", data)
        if rings:
            self.folders.storage.put(folder + BELL, b"")
        return f"{folder}{id}"

    def close(self):
        self.going.set()
        for server in self.servers:
            server.end({"result": {"ended": True}})


@pytest.fixture
def site(place):
    with Driver(place) as driver, ExitStack() as stack:
        driver.start().send(lines("to be or not to be"))
        made = Site(driver.folder)
        stack.callback(made.close)
        yield made


def test_it_is_carried_out_answered_and_removed(site):
    site.serving()
    answer = site.ask("note", word="be")
    assert isinstance(answer, Answered)
    assert (answer.result, site.done) == ({"number": 1}, [{"word": "be"}])
    assert (answer.driver.generation, answer.driver.pid) == (2, os.getpid())
    assert site.names() == [folder_of(2) + DRIVER]


@pytest.mark.slow
def test_the_driver_s_refusal_is_raised_by_the_one_who_asks(site):
    def refuse():
        raise ConfigError("not like this")

    def fail():
        raise KeyError("lost")

    site.serving(refuse=refuse, fail=fail)
    with pytest.raises(ConfigError, match="not like this"):
        site.ask("refuse")
    with pytest.raises(CheckpointError, match="could not do it: KeyError: 'lost'"):
        site.ask("fail")
    with pytest.raises(ConfigError, match=r"does not know 'dance'.*another release"):
        site.ask("dance")
    with pytest.raises(CheckpointError, match="TypeError"):
        site.ask("wait", forever=True)
    assert site.names() == [folder_of(2) + DRIVER]


def test_where_no_driver_listens_that_is_known_at_once(site):
    found = site.ask("note")
    assert isinstance(found, Silence)
    assert found.driver is None
    assert "no driver is at work" in found.reason
    site.serving().end({"result": {}})
    assert site.names() == [], "a driver that ends takes its sign down"
    assert isinstance(site.ask("note"), Silence)


@pytest.mark.slow
def test_where_nothing_runs_stop_says_that_there_is_nothing_to_stop(site, monkeypatch):
    def said(command):
        return str(site.ask(command, SOON).error(command))

    assert said("stop").endswith("Nothing was changed, and there is nothing to stop")
    assert said("pause").endswith("Nothing was changed: submit the topology, and ask again")
    site.driver()._beat()
    assert "end the process there if it is still running" in said("stop"), "it may run, and only be silent"
    monkeypatch.setattr("statefx.log.requests.is_running", lambda driver: False)
    assert "is gone without having ended" in said("stop")
    assert said("stop").endswith("Nothing was changed, and there is nothing to stop")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ended", "killed", "silent"])
def test_a_savepoint_without_a_query_names_a_driver_to_fence_only_where_one_may_run(site, monkeypatch, capsys, kind):
    if kind != "ended":
        site.driver()._beat()
        monkeypatch.setattr("statefx.log.requests.is_running", lambda driver: None if kind == "silent" else False)
        monkeypatch.setattr(Checkpoint._ask, "__defaults__", (0.1, *Checkpoint._ask.__defaults__[1:]))
    assert main(["savepoint", site.folders.location, "v1"]) == 2
    told = capsys.readouterr().err
    assert "this would keep transaction 1" in told
    assert ("and fence that driver if it still runs" in told) == (kind == "silent")


@pytest.mark.slow
def test_the_log_says_what_was_asked_for_and_by_whom(site, caplog):
    caplog.set_level(logging.DEBUG, "statefx")
    site.serving(status=dict)
    site.ask("note", level="DEBUG", name="line\nbreak" * 100)
    site.ask("status")
    site.storage.delete(site.names())
    site.write({"command": "note", "arguments": {}, "validSecs": 20})
    wait_for(lambda: len(site.done) == 2, "the second note")
    found = [(each.levelname, each.getMessage()) for each in caplog.records if "was asked for" in each.getMessage()]
    who = f"'process {os.getpid()} on {socket.gethostname()}'"
    (_, noted), status, other = found
    assert noted.startswith("note 'DEBUG' 'line\\nbreak")
    assert noted.endswith(f" was asked for, by {who}")
    assert len(noted) < 400
    assert status == ("DEBUG", f"status was asked for, by {who}"), "a monitor asks without end"
    assert other == ("INFO", "note was asked for, by 'somebody'")


@pytest.mark.parametrize(
    ("command", "status", "says"),
    [
        ("pause", {"paused": {"since": "noon"}}, "paused; the last committed transaction is 216"),
        ("pause", {"paused": {}, "isTransactionActive": True, "txid": 217, "phase": "COMMITTING"},
         "paused; transaction 217 is still in flight (COMMITTING)"),
        ("resume", {}, "it goes on; the last committed transaction is 216"),
        ("stop", {"isTransactionActive": True, "txid": 217, "phase": "COMMITTING"},
         "it has not ended; transaction 217 is still in flight (COMMITTING)"),
    ],
)  # fmt: skip
def test_an_answer_is_said_in_words(command, status, says):
    driver = RunningDriver(1, "here", 2)
    said = str(Answered("/ck", command, driver, {"status": status, "committed": 216}))
    assert said == f"{command} /ck: {says}"


@pytest.mark.slow
def test_a_request_that_nobody_takes_is_withdrawn_and_never_carried_out(site):
    """Rule 17.2: the driver is suspended, and wakes up when nobody waits any more."""
    driver = site.driver()
    driver._beat()
    found = site.ask("note", SOON)
    assert isinstance(found, Silence)
    assert found.driver is not None
    assert "has not taken a request for 0.3 s" in found.reason
    driver.start()
    assert site.ask("note", word="later").result == {"number": 1}
    assert site.done == [{"word": "later"}]


@pytest.mark.slow
def test_who_gives_up_as_the_driver_takes_it_waits_for_the_answer(site, monkeypatch):
    """Rule 17.2: one of the two has it."""
    server = site.serving()
    taken_by_driver = threading.Event()
    take = RequestServer._take

    def late(self, id):
        wait_for(lambda: site.names(REQUEST), "the request")
        taken_by_driver.wait(30)
        take(self, id)

    monkeypatch.setattr(RequestServer, "_take", late)
    from statefx.log.requests import _Asking

    withdraw = _Asking._withdraw

    def lost(self):
        taken_by_driver.set()
        wait_for(lambda: site.names(TAKEN), "the driver to take it")
        return withdraw(self)

    monkeypatch.setattr(_Asking, "_withdraw", lost)
    assert site.ask("note", Patience(0.1, 20, 20), word="late").result == {"number": 1}
    assert site.done == [{"word": "late"}]
    assert server._thread.is_alive()


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_driver_that_is_killed_with_the_request_in_its_hand(site, dies):
    """Rule 17.5: what came of it is read in the log."""
    process = process_of(site, dies)
    with pytest.raises(UnansweredError, match=r"took the request, and was killed.*not known"):
        site.ask("savepoint", Patience(20, 0.6, 20), name="v1")
    assert process.wait(30) == -signal.SIGKILL
    found = [each.name for each in Checkpoint(site.folders.location).savepoints()]
    assert found == ([] if dies == "before" else ["v1"])


@pytest.mark.slow
def test_a_savepoint_whose_answer_is_lost_is_told_by_the_log(site, monkeypatch):
    monkeypatch.setattr("statefx.checkpoint.Patience", lambda wait, answer_secs: Patience(20, 0.6, 20))
    process_of(site, "after")
    assert Checkpoint(site.folders.location).savepoint("v1").name == "v1"
    process_of(site, "before")
    with pytest.raises(UnansweredError):
        Checkpoint(site.folders.location).savepoint("v2")


def process_of(site, dies):
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.coordinator.serving", site.folders.location, dies],
        cwd=ROOT,
        stdin=subprocess.PIPE,
    )
    before = set(site.names(DRIVER))
    wait_for(lambda: set(site.names(DRIVER)) - before or process.poll() is not None, "the process to listen")
    assert process.poll() is None
    return process


@pytest.mark.slow
def test_a_driver_that_was_killed_before_it_saw_the_request_is_told_from_a_busy_one(site):
    process = process_of(site, "never")
    assert site.ask("savepoint", name="v1").result["name"] == "v1"
    process.kill()
    process.communicate()
    found = site.ask("savepoint", name="v2")
    assert isinstance(found, Silence)
    assert f"(process {process.pid} on " in found.reason
    assert "is gone without having ended" in found.reason, "on the same machine nobody has to wait for that"
    assert site.names() == [folder_of(2) + DRIVER]


def test_a_copy_of_a_checkpoint_at_work_is_told_from_it_at_once(site, tmp_path):
    site.serving()
    origin, copy = Path(site.folders.location), tmp_path / "copy"
    shutil.copytree(origin, copy)
    began = time.monotonic()
    with pytest.raises(CheckpointError, match=f"no driver is at work on .*copied from {origin}: the driver of") as told:
        Checkpoint(copy).stop(wait=600)
    assert time.monotonic() - began < 60, "nobody there will answer"
    assert str(copy) in str(told.value)
    assert site.ask("note").result == {"number": 1}, "the original goes on"


@pytest.mark.soak
@pytest.mark.slow
def test_a_driver_of_another_machine_that_was_killed_is_waited_for(site, monkeypatch):
    process = process_of(site, "never")
    process.kill()
    process.communicate()
    monkeypatch.setattr("statefx.log.requests.is_running", lambda driver: None)
    found = site.ask("savepoint", SOON, name="v2")
    assert isinstance(found, Silence)
    assert "has not taken a request for 0.3 s" in found.reason
    assert site.names() == [folder_of(2) + BELL, folder_of(2) + DRIVER], "the bell may be another one's too"


@pytest.mark.slow
def test_a_driver_that_is_suspended_with_the_request_in_its_hand_gives_no_sign_of_life(site):
    """Rule 17.5."""
    process = process_of(site, "suspended")
    with pytest.raises(UnansweredError, match=r"no sign of life for .* s: it was killed or is suspended"):
        site.ask("savepoint", Patience(20, 0.6, 20), name="v1")
    process.kill()
    process.communicate()


@pytest.mark.soak
@pytest.mark.slow
def test_a_driver_that_is_suspended_with_its_sign_up_carries_nothing_out_late(site):
    process = process_of(site, "never")
    os.kill(process.pid, signal.SIGSTOP)
    assert isinstance(site.ask("savepoint", SOON, name="v1"), Silence)
    os.kill(process.pid, signal.SIGCONT)
    assert site.ask("savepoint", name="v2").result["name"] == "v2"
    assert [each.name for each in Checkpoint(site.folders.location).savepoints()] == ["v2"]
    process.communicate(b"")


@pytest.mark.slow
def test_a_driver_that_takes_long_is_alive(site, monkeypatch):
    """Rule 17.5: it gives signs of life while it is at it."""
    monkeypatch.setattr(requests, "BEAT_SECS", 0.05)
    site.serving()
    with site.asking("wait", Patience(20, 0.5, 60)) as found:
        wait_for(lambda: site.done, "the driver to begin")
        end = time.monotonic() + 1.5
        wait_for(lambda: found or time.monotonic() > end, "some time to pass")
        assert found == []
    assert found[0].result == {}


@pytest.mark.slow
def test_who_waits_no_longer_is_told_that_it_may_still_be_done(site):
    site.serving()
    with site.asking("wait", Patience(20, 20, 0.3)) as found:
        wait_for(lambda: found, "the one who asks to give up")
    assert "is alive, and has not done it" in str(found[0])


@pytest.mark.slow
def test_two_who_ask_are_both_answered_and_each_request_is_carried_out_once(site):
    site.serving()
    with site.asking("note", who=1) as one, site.asking("note", who=2) as other:
        wait_for(lambda: one and other, "two answers")
    assert sorted(each["who"] for each in site.done) == [1, 2]
    assert sorted(each.result["number"] for each in (*one, *other)) == [1, 2]
    with site.asking("savepoint", name="same") as one, site.asking("savepoint", name="same") as other:
        wait_for(lambda: one and other, "two answers")
    (refused,) = [each for each in (*one, *other) if isinstance(each, CheckpointError)]
    assert "there is a savepoint 'same' already" in str(refused)


def test_a_checkpoint_that_was_deleted_does_not_come_back(site):
    """A client that its program drops looks for requests once more, when the program has deleted its folder."""
    server = site.driver()
    shutil.rmtree(site.folders.location)
    server.start()
    server._thread.join(30)
    assert not server._thread.is_alive()
    assert not Path(site.folders.location).exists()


@pytest.mark.slow
def test_of_more_than_a_few_all_are_carried_out(site):
    site.serving()
    number = 3 * AT_ONCE
    with ExitStack() as stack:
        found = [stack.enter_context(site.asking("note", who=who)) for who in range(number)]
        wait_for(lambda: all(found), "all answers")
    assert sorted(each["who"] for each in site.done) == list(range(number))
    assert site.names() == [folder_of(2) + DRIVER]


@pytest.mark.slow
def test_who_asks_for_something_else_does_not_wait_behind_those_that_take_long(site, monkeypatch):
    """Eight shells that wait for a stop are no reason to take the driver for dead."""
    monkeypatch.setattr(requests, "BEAT_SECS", 0.05)
    site.serving()
    with ExitStack() as stack:
        for _ in range(AT_ONCE + 1):
            stack.enter_context(site.asking("wait"))
        wait_for(lambda: site.done.count("began") == AT_ONCE, "as many as are carried out at once")
        assert site.ask("note").result == {"number": AT_ONCE + 1}
        busy = site.ask("wait", SOON)
        assert "is alive, and has not taken a request" in busy.reason
    assert site.done.count("began") == AT_ONCE + 1
    assert site.names() == [folder_of(2) + DRIVER]


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("is_taken", [False, True])
def test_what_shells_that_were_killed_have_left_keeps_nobody_waiting(site, is_taken):
    """Those that still wait have asked last; the others are answered by and by, and none is carried out late."""
    said = {"command": "late", "arguments": {}, "validSecs": -requests.SLACK_SECS}
    for number in range(600):
        left = site.write(said, f"{number:032}", rings=False)
        if is_taken:
            site.storage.put(left + TAKEN, b"{}")
            site.storage.put(left + ANSWER, b"{}")
    site.serving()
    began = time.monotonic()
    assert site.ask("note", Patience(taken_secs=10.0)).result == {"number": 1}
    assert time.monotonic() - began < 10
    assert site.done == [{}]


def test_the_request_of_one_who_was_killed_is_not_carried_out_late(site, monkeypatch):
    """Rule 17.3: and no clock of a machine has a say in it."""
    monkeypatch.setattr(time, "time", lambda: 5.0)
    said = {"command": "note", "arguments": {}, "validSecs": 15}
    old, new = site.write(said, "a" * 32, rings=False), site.write(said, "b" * 32)
    path = Path(site.folders.location, old + REQUEST)
    os.utime(path, times=(path.stat().st_mtime - 60,) * 2)
    site.serving()
    wait_for(lambda: len(site.names(ANSWER)) == 2, "both to be answered")
    assert len(site.done) == 1
    assert "60 s old" in site.storage.read(old + ANSWER).decode()
    assert json.loads(site.storage.read(new + ANSWER)) == {"result": {"number": 1}}


def test_a_request_to_a_former_generation_is_not_carried_out(site):
    """Rule 17.1."""
    said = {"command": "note", "arguments": {}, "validSecs": 1000}
    former = site.driver()
    former._beat()
    name = site.write(said, generation=2)
    site.serving()
    assert site.ask("note", word="now").result == {"number": 1}
    assert site.done == [{"word": "now"}]
    assert site.names(TAKEN) == []
    assert name + REQUEST in site.names()


def test_a_driver_that_was_replaced_and_does_not_know_it_does_nothing(site):
    """Rule 17.4: who asks now asks its successor."""
    site.serving()
    site.serving()
    name = site.write({"command": "note", "arguments": {}, "validSecs": 15}, generation=2)
    wait_for(lambda: name + ANSWER in site.names(), "the former driver to answer")
    assert "FencedError" in site.storage.read(name + ANSWER).decode()
    assert site.done == []
    assert site.ask("note").driver.generation == 3


@pytest.mark.slow
def test_who_asks_a_driver_that_is_replaced_meanwhile_asks_its_successor(site):
    first = site.driver()
    first._beat()
    with site.asking("note", Patience(1.0, 20, 20), word="be") as found:
        wait_for(lambda: site.names(REQUEST), "the request")
        site.serving()
    assert found[0].driver.generation == 3
    assert site.done == [{"word": "be"}]


def test_a_query_that_ends_answers_all_that_is_open(site):
    """Rule 17.6."""
    server = site.serving(stop=lambda: site.going.wait(30))
    with site.asking("stop") as stopped, site.asking("wait") as waiting:
        wait_for(lambda: len(site.names(TAKEN)) == 2, "both to be taken")
        server.end({"result": {"ended": True, "committed": 1}})
        wait_for(lambda: stopped and waiting, "both answers")
    assert stopped[0].result == {"ended": True, "committed": 1}
    assert "the query ended while it was asked for wait" in str(waiting[0])
    assert site.names() == []


def test_what_was_asked_for_as_the_query_ends_is_answered_too(site):
    server = site.serving(stop=lambda: site.going.wait(30))
    server._look_secs = 60.0
    with site.asking("stop") as found:
        wait_for(lambda: site.names(BELL) or site.names(TAKEN), "the request")
        server.end({"result": {"ended": True}})
        wait_for(lambda: found, "the answer")
    assert found[0].result == {"ended": True}


@pytest.mark.slow
def test_a_driver_that_ends_before_it_sees_the_request(site):
    driver = site.driver()
    driver._beat()
    with site.asking("note") as found:
        wait_for(lambda: site.names(REQUEST), "the request")
        site.folders.storage.delete([folder_of(2) + DRIVER])
    assert isinstance(found[0], Silence)
    assert "has ended" in found[0].reason
    assert site.names() == [folder_of(2) + BELL]


def test_ctrl_c_takes_a_request_back(site, monkeypatch):
    driver = site.driver()
    driver._beat()

    def interrupt(secs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("statefx.log.requests.time.sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            site.ask("note")
    assert site.names(REQUEST) == site.names(TAKEN) == []
    driver.start()
    assert site.ask("note", word="then").result == {"number": 1}


GARBAGE = [
    b"",
    b"{",
    b"[]",
    b"\xff\x00",
    b'{"arguments": []}',
    {"command": "note", "arguments": {}},
    {"command": ["note"], "arguments": {}, "validSecs": 15},
    {"command": "note", "arguments": {}, "validSecs": "long"},
    {"command": "_carry_out", "arguments": {}, "validSecs": 15},
    b" " * (BYTES_MAX + 10),
]


@pytest.mark.slow
def test_what_is_no_request_is_answered_by_an_error_and_stops_nothing(site):
    site.serving()
    for number, said in enumerate(GARBAGE):
        site.write(said, f"{number:032}")
    wait_for(lambda: len(site.names(ANSWER)) == len(GARBAGE), "all to be answered")
    assert all("error" in json.loads(site.storage.read(name)) for name in site.names(ANSWER))
    site.storage.put(f"{folder_of(2)}odd name.txt", b"x")
    assert site.ask("note").result == {"number": 1}
    assert site.done == [{}]


class Failing(FolderStorage):
    """A folder whose reads fail while `failing` is set."""

    failing = False

    def read(self, name, start=0, stop=None):
        if self.failing and name.endswith(BELL):
            raise OSError(5, "the server is away")
        return super().read(name, start, stop)


@pytest.mark.slow
def test_requests_that_can_t_be_looked_for_are_one_warning(site, caplog):
    """Rule 17.7: the driver goes on, and so does this when it can."""
    site.storage = Failing(site.folders.location)
    server = site.serving()
    looks = count()
    look = server._look
    server._look = lambda: (next(looks), look())
    site.storage.failing = True
    wait_for(lambda: next(looks) > 30, "some looks")
    site.storage.failing = False
    assert site.ask("note").result == {"number": 1}
    warned = [each.getMessage() for each in caplog.records if "can't be looked for" in each.getMessage()]
    assert len(warned) == 1
    assert "the server is away" in warned[0]


class Hanging(FolderStorage):
    """A folder whose reads hang until `going` is set."""

    def __init__(self, root, going):
        super().__init__(root)
        self.going, self.hangs = going, threading.Event()

    def read(self, name, start=0, stop=None):
        if name.endswith(BELL):
            self.hangs.set()
            assert self.going.wait(30)
        return super().read(name, start, stop)


@pytest.mark.slow
def test_a_query_does_not_wait_long_for_a_store_that_hangs(site, monkeypatch):
    """Rule 17.7."""
    monkeypatch.setattr(requests, "END_SECS", 0.2)
    site.storage = Hanging(site.folders.location, site.going)
    server = site.serving()
    assert site.storage.hangs.wait(30)
    began = time.monotonic()
    server.end({"result": {}})
    assert time.monotonic() - began < 20
    assert server._thread.is_alive()


def test_what_nobody_waits_for_any_more_is_swept(site):
    site.driver()._beat()  # of a driver that was killed
    said = {"command": "note", "arguments": {}, "validSecs": 10**9}
    left = site.write(said, "a" * 32, generation=2, rings=False)
    fresh = site.write(said, "b" * 32, generation=2, rings=False)
    newer = site.write(said, "c" * 32, generation=4, rings=False)
    for name in (left + REQUEST, folder_of(2) + DRIVER, newer + REQUEST):
        path = Path(site.folders.location, name)
        os.utime(path, times=(path.stat().st_mtime - 2 * requests.SWEEP_SECS,) * 2)
    site.serving()
    wait_for(lambda: left + REQUEST not in site.names(), "the old one to be swept")
    assert sorted(site.names()) == [fresh + REQUEST, folder_of(3) + DRIVER, newer + REQUEST]


def test_folders_of_former_drivers_do_not_become_more_with_each_start(site):
    for _ in range(10):
        server = site.driver()
        server._look()
        server._ending = {}
        server._finish()
    site.driver()._beat()  # and is killed
    server = site.driver()
    server._look()
    found = sorted(path.name for path in (Path(site.folders.location) / "requests").iterdir())
    assert found == [folder_of(generation).split("/")[1] for generation in (12, 13)]


def test_who_may_not_write_may_not_ask(site, monkeypatch):
    site.serving()

    def refused(self, name, data):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(FolderStorage, "create", refused)
        with pytest.raises(CheckpointError, match=r"can't be asked.*Permission denied.*able to list, read, write"):
            site.ask("note")
    assert site.done == []


def test_a_fenced_driver_s_answer_is_raised_where_nobody_has_taken_over(site):
    def fenced():
        raise FencedError("gone")

    site.serving(fenced=fenced)
    with pytest.raises(FencedError, match="gone"):
        site.ask("fenced")
