"""``verify`` finds each file that is damaged or missing, says what it touches, and finds nothing where nothing is."""

import json
import os
import pty
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from statefx import Checkpoint, TopologyBuilder, TransactionalSpout, TransactionAttempt
from statefx.admin.damage import Verified, verify
from statefx.command import main
from statefx.errors import CheckpointError, StatefxError
from statefx.log.location import Folders
from statefx.log.takeover import read_checkpoint
from statefx.protocol.metadata import INLINE_MAX_BYTES
from statefx.storage import FolderStorage, Stored
from statefx.testing import Crash, Limits, TopologyTester
from tests.admin.checkpoints import Keep, Keeper, keeper, keeping, put, server
from tests.spouts.numbers import Count, Opaque
from tests.spouts.numbers import topology as numbers
from tests.testing.places import place
from tests.testing.topologies import SMALL

__all__ = ["keeper", "place", "server"]

WORK = [put(a=n, **{f"k{n}": n}) for n in range(1, 9)]
MERGING = Limits(files_max=2, sweep_every=4, min_age_secs=0.0, versions_kept=3)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


@pytest.mark.slow
def test_whole_ones_are_ok_and_unchanged(keeper: Keeper) -> None:
    keeper.run(*WORK)
    before = {path: path.read_bytes() for path in keeper.folder.rglob("*") if path.is_file()}
    told: list[tuple[int, int]] = []
    found = Checkpoint(keeper.folder).verify(progress=lambda done, total: told.append((done, total)))
    assert found.ok
    assert found.damaged == ()
    assert found.txid == 8
    assert found.files > 0
    assert told[-1] == (found.bytes, found.bytes)
    assert all(done <= total for done, total in told)
    assert {path: path.read_bytes() for path in keeper.folder.rglob("*") if path.is_file()} == before


@pytest.mark.slow
@pytest.mark.parametrize("limits", [None, SMALL, MERGING], ids=["plain", "snapshots", "merging"])
def test_each_file_that_a_version_needs(place: Path, limits) -> None:
    """What opening a version raises, `verify` has told; and it names nothing that is whole."""
    with Keeper(place) as keeper:
        keeper.run(*WORK, limits=limits)
        assert Checkpoint(keeper.folder).verify().ok
        files = sorted(path for path in keeper.folder.glob("state/*/*/*") if path.is_file())
        whole = place / "whole"
        shutil.copytree(keeper.folder, whole)
        needed = 0
        for path in files:
            for how in ("flipped", "cut", "deleted"):
                if how == "flipped":
                    flip(path, random.Random(path.name).randrange(path.stat().st_size))
                elif how == "cut":
                    path.write_bytes(path.read_bytes()[:-1])
                else:
                    path.unlink()
                damaged = {each.path for each in Checkpoint(keeper.folder).verify().damaged}
                name = str(path.relative_to(keeper.folder))
                assert damaged <= {name}
                try:
                    with Checkpoint(keeper.folder).state("keep") as view:
                        dict(view.items())
                except StatefxError:
                    assert damaged == {name}, how
                    needed += 1
                shutil.copy(whole / name, path)
        assert needed >= 6


@pytest.mark.slow
def test_it_says_which_keys_and_transactions(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run({"rows": [(f"k{n:06d}", n, "own") for n in range(30_000)]}, put(z=1), topology=keeping(1))
        path = min((keeper.folder / "state/keep/0").glob("*.changelog"))
        flip(path, path.stat().st_size // 2)
        found = Checkpoint(keeper.folder).verify()
        (damage,) = found.damaged
        assert not found.ok
        assert (damage.component, damage.task, damage.transactions) == ("keep", 0, (1, 1))
        low, high = damage.keys
        assert (low, high) in {("'k008191'", "'k016384'"), ("'k016383'", "'k024576'")}
        assert damage.path == str(path.relative_to(keeper.folder))
        assert f"keys of keep/0 after {low} and before {high}" in str(found)
        flip(path, 3)
        (damage,) = Checkpoint(keeper.folder).verify().damaged
        assert damage.keys == (None, None)
        assert damage.transactions == (0, 1)
        assert "it has keys of keep/0; transaction 1, and" in str(damage)


@pytest.mark.slow
def test_several_at_once_and_what_lies_below_a_damaged_head(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK, topology=keeping(1))
        files = sorted((keeper.folder / "state/keep/0").glob("*.changelog"))
        flip(files[5], 70)
        files[2].unlink()
        flip(files[0], files[0].stat().st_size - 1)
        found = Checkpoint(keeper.folder).verify()
        assert [each.path.rpartition("/")[2] for each in found.damaged] == [files[0].name, files[2].name, files[5].name]
        assert [each.transactions for each in found.damaged] == [(1, 1), (3, 3), (6, 6)]


@pytest.mark.slow
def test_a_savepoint_that_is_damaged(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK[:3], topology=keeping(1), limits=SMALL).close()
        Checkpoint(keeper.folder).savepoint("before")
        pin = read_checkpoint(Folders(str(keeper.folder))).pinned["before"]
        keeper.run(*WORK[3:], *WORK, topology=keeping(1), limits=SMALL)
        assert Checkpoint(keeper.folder).verify().ok
        snapshot = pin.snapshots["keep/0"]
        (path,) = (keeper.folder / "state/keep/0").glob(f"*-{snapshot.checksum}.snapshot")
        flip(path, path.stat().st_size - 1)
        assert [each.path for each in Checkpoint(keeper.folder).verify().damaged] == [
            str(path.relative_to(keeper.folder))
        ]


@pytest.mark.slow
def test_the_log(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK)
        path = max((keeper.folder / "transactions").glob("*.json"))
        flip(path, 40)
        (damage,) = Checkpoint(keeper.folder).verify().damaged
        assert damage.path == str(path.relative_to(keeper.folder))
    with pytest.raises(CheckpointError, match="has a topology been submitted there"):
        Checkpoint(place / "nowhere").verify()


@pytest.mark.server
def test_a_server_that_has_lost_state(place: Path, server: Any) -> None:
    with Keeper(place, server=server) as keeper:
        keeper.run(*WORK)
        with server.client() as client:
            client.flushall()
        found = Checkpoint(keeper.folder).verify()
        assert {(each.component, each.task) for each in found.damaged} == {("keep", 0), ("keep", 1)}


@pytest.mark.slow
def test_beside_a_topology_whose_files_come_and_go(place: Path) -> None:
    with Keeper(place) as keeper:
        tester = keeper.run(*WORK, limits=MERGING)
        left = iter(range(100))

        def work(done: int, total: int) -> None:
            number = next(left, None)
            if number is not None and number % 3 == 0:
                tester.send(put(a=number, b=number))

        for _ in range(5):
            assert Checkpoint(keeper.folder).verify(progress=work).ok
        assert tester.txid > len(WORK) + 5


class Meanwhile(FolderStorage):
    """Something happens before each look at state and metadata that `chosen` names by number."""

    def __init__(self, folder: Path, happens: Callable[[], object], chosen: Container[int]) -> None:
        super().__init__(folder)
        self.happens, self.chosen, self.looks = happens, chosen, 0

    def look(self, *names: str) -> None:
        # The log alone can't be read if it is folded at each look. `read_all` may have threads.
        if names[0].startswith("transactions") or threading.current_thread() is not threading.main_thread():
            return
        self.looks += 1
        if self.looks - 1 in self.chosen:
            self.happens()

    def reader(self, name: str) -> BinaryIO:
        self.look(name)
        return super().reader(name)

    def read_all(self, names: Sequence[str], stop: int | None = None) -> Sequence[bytes | OSError]:
        self.look(*names, "")
        return super().read_all(names, stop)

    def list(self, prefix: str = "", after: str = "") -> Iterator[Stored]:
        self.look(prefix)
        return super().list(prefix, after)


def looked(folder: Path, happens: Callable[[], object], chosen: Container[int]) -> tuple[Verified, int]:
    """Verify while something happens; return what was found, and how many looks that took."""
    storage = Meanwhile(folder, happens, chosen)
    return verify(Folders(str(folder), lambda _: storage), None, lambda done, total: None), storage.looks


class Talks(TransactionalSpout):
    """Its metadata are too large for a record of the log."""

    outputFields = "key string, value long, where string"

    def initializeTransaction(self, txid: int, previous: Any) -> Any:
        return {"txid": txid, "said": "x" * 70_000}

    def emitBatch(self, attempt: TransactionAttempt, metadata: Any, collector: Any) -> None:
        for key in ("a", f"k{metadata['txid'] % 5}"):
            collector.emit((key, metadata["txid"], "own"))


def talking(keeper: Keeper) -> TopologyTester:
    """Start a topology that folds, merges and sweeps all the time, and run a few transactions."""
    builder = TopologyBuilder("talking")
    builder.setSpout("talks", Talks())
    builder.setBolt("keep", Keep(), 1).fieldsGrouping("talks", "key")
    limits = replace(MERGING, fold_after=4, sweep_every=1, versions_kept=1)
    tester = keeper.start(builder.createTopology(), limits=limits)
    for _ in range(6):
        tester.emit()
    return tester


@pytest.mark.slow
@pytest.mark.parametrize("often", [1, 12, 1000])
def test_whenever_a_topology_goes_on_only_what_is_needed_is_missed(place: Path, often: int) -> None:
    """Folds, merges and sweeps delete at once what a look before has found in the log."""
    with Keeper(place) as keeper:
        tester = talking(keeper)

        def goes_on() -> None:
            for _ in range(4):
                tester.emit()

        _, looks = looked(keeper.folder, goes_on, ())
        for at in range(0, looks, often):
            found, _ = looked(keeper.folder, goes_on, range(at, at + often))
            assert found.ok, f"at look {at}: {found}"


@pytest.mark.slow
def test_what_was_only_taken_in_may_go_at_any_time(place: Path) -> None:
    """A sweep may come long after the record by which nobody needs it: the log says the same before and after."""
    with Keeper(place) as keeper:
        keeper.run(*WORK, topology=keeping(1), limits=MERGING).close()
        spare = 0
        for path in sorted(keeper.folder.glob("state/keep/0/*.changelog")):
            data = path.read_bytes()
            path.unlink()
            is_spare = Checkpoint(keeper.folder).verify().ok
            path.write_bytes(data)
            _, looks = looked(keeper.folder, lambda: None, ())
            for at in range(looks) if is_spare else ():
                assert looked(keeper.folder, path.unlink, {at})[0].ok
                path.write_bytes(data)
                spare += 1
        assert spare


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["metadata", "state"])
def test_what_a_savepoint_needs_is_missed_also_while_a_topology_goes_on(place: Path, kind: str) -> None:
    with Keeper(place) as keeper:
        talking(keeper).close()
        Checkpoint(keeper.folder).savepoint("before")
        pin = read_checkpoint(Folders(str(keeper.folder))).pinned["before"]
        of_spout = [layer.file.name for layer in pin.committed_metadata["talks"] if layer.file is not None]
        (of_bolt,) = keeper.folder.glob(f"state/keep/0/*-{pin.heads['keep/0'].token}.changelog")
        lost = {"metadata": of_spout[0], "state": str(of_bolt.relative_to(keeper.folder))}[kind]
        tester = talking(keeper)
        (keeper.folder / lost).unlink()
        found, _ = looked(keeper.folder, tester.emit, range(15))
        assert [each.path for each in found.damaged] == [lost]


@pytest.mark.soak
@pytest.mark.slow
def test_a_bar_on_a_terminal_and_none_elsewhere(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK)
        command = [sys.executable, "-m", "statefx", "verify", os.fspath(keeper.folder), "--json"]
        terminal, child = pty.openpty()
        environment = {**os.environ, "TERM": "xterm"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=child, env=environment) as process:
            os.close(child)
            shown = b""
            with suppress(OSError):  # which is how a terminal ends
                while part := os.read(terminal, 4096):
                    shown += part
            assert process.stdout is not None
            assert json.loads(process.stdout.read())["damaged"] == []
            assert process.wait(60) == 0
        os.close(terminal)
        assert b"verify" in shown
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
        assert (json.loads(done.stdout)["damaged"], done.stderr) == ([], b"")


@pytest.mark.slow
def test_from_a_shell(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK)
        folder = os.fspath(keeper.folder)
        assert main(["verify", folder]) == 0
        assert json.loads(capsys.readouterr().out)["damaged"] == []
        assert main(["verify", folder, "--table"]) == 0
        assert "nothing damaged" in capsys.readouterr().out
        path = max((keeper.folder / "state/keep/1").glob("*.changelog"))
        flip(path, path.stat().st_size - 1)
        assert main(["verify", folder]) == 1
        (line,) = capsys.readouterr().out.splitlines()
        assert [each["path"] for each in json.loads(line)["damaged"]] == [str(path.relative_to(folder))]
        assert main(["verify", folder, "--table"]) == 1
        shown = capsys.readouterr().out
        assert "1 damaged" in shown
        assert path.name in shown
        assert main(["verify", str(place / "nowhere")]) == 1


class Says(Opaque):
    """Its three partitions together are too large for the decision, those of each task are not for its ack."""

    def upcoming(self, last: Any) -> Any:
        return {**super().upcoming(last), "padding": "x" * (INLINE_MAX_BYTES * 2 // 5)}


class Commits(Count):
    def preCommit(self, txid: int) -> None:
        pass


@pytest.mark.slow
def test_what_a_decision_names_that_no_bolt_has_carried_out_is_read(place: Path) -> None:
    def crash() -> None:
        raise Crash

    with Keeper(place) as keeper:
        tester = keeper.start(numbers(Says(place), Commits()))
        tester.when("after COMMITTING(1, 0)", crash)
        with pytest.raises(Crash):
            tester.drain()
        state = read_checkpoint(Folders(str(keeper.folder)))
        assert state.committing is not None
        assert Checkpoint(keeper.folder).verify().ok
        (path,) = (keeper.folder / "metadata").iterdir()
        flip(path, 70)
        (damaged,) = Checkpoint(keeper.folder).verify().damaged
        assert damaged.path == f"metadata/{path.name}"
