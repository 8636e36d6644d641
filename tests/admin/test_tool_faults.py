"""Tools on full disks, tools that are killed, and what they tell of how far they are."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statefx import Checkpoint
from statefx.command import main
from statefx.errors import CheckpointError, LogOutcomeUnknownError, StatefxError
from tests.admin.checkpoints import Keeper, Newer, keeping, put
from tests.admin.test_verify import flip
from tests.testing.disks import Disk
from tests.testing.places import place

__all__ = ["place"]

ROWS = pa.table({"word": ["a", "z"], "n": pa.array([7, 9], pa.int64())})
TYPED = {"key": "word string", "value": "n long"}


class Oldest(Newer):
    """Goes back to the values of `Keep`, which are the same."""

    def downgradeState(self, version, key, value):
        return value


def write(folder: Path, **more: Any) -> None:
    Checkpoint(folder).write("keep", ROWS, schema=TYPED, groupingKey=lambda key: key, **more)


def older(folder: Path, **more: Any) -> None:
    Checkpoint(folder).downgrade("keep", Oldest(), 1, **more)


def copy(folder: Path, **more: Any) -> None:
    Checkpoint(folder).restore(to=folder.with_name("copy"), **more)


def move(folder: Path, **more: Any) -> None:
    Checkpoint(folder).migrate("rocksdb", **more)


def mend(folder: Path) -> None:
    Checkpoint(folder).repair(yes=True)


def state(folder: Path) -> dict[Any, Any]:
    with Checkpoint(folder).state("keep", migrate=Newer().migrateState) as view:
        return dict(view.items())


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def keeper(place: Path) -> Any:
    with Keeper(place) as keeper:
        keeper.run(put(a=1, b=2), topology=keeping(2, Oldest())).close()
        keeper.run(put(a=5, c=3), topology=keeping(2, Oldest())).close()
        yield keeper


# ---- disks that are full


@pytest.mark.slow
@pytest.mark.parametrize("tool", [write, older])
def test_a_full_disk_changes_nothing_and_is_named(keeper: Keeper, monkeypatch: pytest.MonkeyPatch, tool: Any) -> None:
    """Wherever it fails: the state is as it was, and the tool does its work when there is room."""
    before, failures = state(keeper.folder), every_full(keeper.folder / "state", monkeypatch, tool, keeper.folder)
    for error in failures:
        assert error.data["errno"] == errno.ENOSPC
        assert "No space left on device. Nothing was changed: the checkpoint needs room" in str(error)
    assert len(failures) >= 2, "each of two tasks writes a file"
    assert state(keeper.folder) == (before if tool is older else {"a": 7, "b": 2, "c": 3, "z": 9})


def every_full(folder: Path, monkeypatch: pytest.MonkeyPatch, tool: Callable[[Path], None], given: Path) -> list[Any]:
    """Call a tool until it is done, on a disk that is full one write later each time; return what it raised."""
    failures: list[Any] = []
    before = state(given)
    while (error := once_full(folder, len(failures), monkeypatch, partial(tool, given))) is not None:
        failures.append(error)
        assert state(given) == before
    return failures


def once_full(folder: Path, passing: int, monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> Any:
    """Return what a call raises on a disk that is full after so many writes; None: it is done before that."""
    with monkeypatch.context() as patch:
        disk = Disk(patch, folder)
        disk.passing, disk.left = passing, 1
        try:
            call()
        except StatefxError as error:
            return error
    return None


@pytest.mark.slow
def test_a_copy_to_a_full_disk_leaves_the_original_and_no_checkpoint(
    keeper: Keeper, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, target, at = files(keeper.folder), place / "copy", 0
    while (error := once_full(target, at, monkeypatch, partial(copy, keeper.folder))) is not None:
        assert re.search(f"No space left on device.*make room, delete {target}, and copy again", str(error))
        assert files(keeper.folder) == before
        if not isinstance(error.__cause__, LogOutcomeUnknownError):  # then the log is there, and may not be durable
            with pytest.raises(StatefxError):
                state(target)
        shutil.rmtree(target)
        at += 1
    assert at >= 4, "files of two tasks, the format, and the log"
    assert state(target) == state(keeper.folder)


def test_a_copy_to_where_no_folder_can_be(keeper: Keeper, place: Path) -> None:
    before = files(keeper.folder)
    with pytest.raises(CheckpointError, match=r"Give a folder that can be made.* is as it was"):
        Checkpoint(keeper.folder).restore(to=place / ("x" * 300))
    assert files(keeper.folder) == before


def test_of_two_copies_to_one_folder_one_is_told(keeper: Keeper, place: Path) -> None:
    before, told = files(keeper.folder), []

    def meanwhile(done: int, total: int) -> None:
        if not told:  # it has looked, and nothing is there yet
            told.append(done)
            copy(keeper.folder)

    with pytest.raises(CheckpointError, match=r"another copy has filled .*copy meanwhile.* copy to a folder of its"):
        copy(keeper.folder, progress=meanwhile)
    assert told
    assert files(keeper.folder) == before
    assert state(place / "copy") == state(keeper.folder)


@pytest.mark.slow
def test_a_repair_on_a_full_disk_can_be_done_again(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper.run(put(a=6), topology=keeping(2, Oldest())).close()
    flip(newest_of(keeper.folder), 70)
    kinds, at = set(), 0
    while (error := once_full(keeper.folder, at, monkeypatch, partial(mend, keeper.folder))) is not None:
        assert "No space left on device" in str(error)
        if Checkpoint(keeper.folder).verify().ok:  # the record is there, and the disk did not say that it is durable
            assert isinstance(error, LogOutcomeUnknownError)
        kinds.add(type(error).__name__)
        at += 1
    assert at >= 6
    assert kinds >= {"CheckpointError", "LogOutcomeUnknownError"}, "the damaged file is copied, and the log is written"
    assert Checkpoint(keeper.folder).verify().ok


def newest_of(folder: Path) -> Path:
    return max((folder / "state/keep").rglob("*.changelog"), key=lambda path: path.name)


# ---- tools that are killed


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("words", [("verify",), ("explain", "keep", "a")])
def test_a_tool_that_only_reads_leaves_nothing_when_it_is_killed(keeper: Keeper, place: Path, words: Any) -> None:
    """Killed while it reads: a named pipe in place of a file of state holds it there."""
    held = newest_of(keeper.folder) if words[0] == "verify" else next((keeper.folder / "transactions").glob("*.json"))
    data = held.read_bytes()
    before = files(keeper.folder)
    held.unlink()
    os.mkfifo(held)
    temporary = place / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "statefx", words[0], str(keeper.folder), *words[1:]]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        writer = opened_for_writing(held, process)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        os.close(writer)
    held.unlink()
    held.write_bytes(data)
    assert files(keeper.folder) == before
    assert list(temporary.iterdir()) == []
    assert Checkpoint(keeper.folder).verify().ok


def opened_for_writing(pipe: Path, process: "subprocess.Popen[bytes]") -> int:
    """Return the end of a named pipe that nothing is written to, when the process has opened the other one."""
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError):  # ENXIO: nobody reads it yet
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    raise AssertionError("the tool has not read the file")


# ---- how far it is


@pytest.mark.parametrize("tool", [write, older, copy, move])
def test_progress_goes_up_block_by_block_and_ends_at_its_total(keeper: Keeper, tool: Any) -> None:
    told: list[tuple[int, int]] = []
    tool(keeper.folder, progress=lambda done, total: told.append((done, total)))
    done = [each for each, _ in told]
    assert done == sorted(done)
    assert len(set(done)) >= 4, "both tasks are written and read back"
    assert all(each <= total for each, total in told)
    assert told[-1][0] == told[-1][1] > 0


# ---- what is said before it is done


@pytest.mark.slow
def test_restore_says_first_what_would_be_given_up(keeper: Keeper, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(keeper.folder)
    assert main(["restore", str(keeper.folder), "--txid", "1"]) == 2
    assert "go on from transaction 1, and give up transaction 2: what was read then" in capsys.readouterr().err
    assert main(["restore", str(keeper.folder), "--txid", "7"]) == 1
    assert "transaction 7 is not committed in" in capsys.readouterr().err
    assert files(keeper.folder) == before
    Checkpoint(keeper.folder).savepoint("two")
    assert "; 1 transaction after it was given up, and what was read" in str(Checkpoint(keeper.folder).restore(txid=1))
    assert main(["restore", str(keeper.folder), "two"]) == 2
    assert "go on from transaction 2. Nothing was changed" in capsys.readouterr().err


@pytest.mark.slow
def test_by_key_is_one_flag_and_a_refusal_names_it(keeper: Keeper, capsys: pytest.CaptureFixture[str]) -> None:
    rescale = ["rescale", str(keeper.folder), "keep=3", "--yes"]
    assert main(rescale) == 1
    assert "say groupingKey={'keep': lambda key: key}, or in a shell --by-key" in capsys.readouterr().err
    assert main([*rescale, "--by-key"]) == 0


def test_each_command_says_what_it_does_in_a_sentence_that_is_not_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    listed = printed.split("Commands:\n")[1].splitlines()
    assert len(listed) >= 17
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []
