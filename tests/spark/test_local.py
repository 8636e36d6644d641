"""Folders of one run: gone when its process is, and not before."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from statefx.spark.checkpoint import RunFolder, sweep

HOLDER = """
import sys
from statefx.spark.checkpoint import RunFolder
print(RunFolder(sys.argv[1], "run").path, flush=True)
sys.stdin.read()
"""


SLEEPER = """
import os, shutil, signal, sys
from statefx.spark.checkpoint import RunFolder

def sleep(*arguments, **options):
    print("sleeps", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

shutil.rmtree = sleep
RunFolder(sys.argv[1], "run")
"""
"""A process that is stopped while it begins: it deletes the folder of one that has died."""


@pytest.fixture
def above(tmp_path: Path) -> Path:
    return tmp_path / "spark"


def names(above: Path) -> list[str]:
    return sorted(path.name for path in above.iterdir() if path.is_dir())


def held(above: Path) -> tuple[subprocess.Popen[str], Path]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(above)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    return holder, Path(holder.stdout.readline().strip())


def test_it_is_of_this_user_alone_and_removed_with_all_in_it(above):
    folder = RunFolder(str(above), "lineage-3")
    (name,) = names(above)
    assert name.startswith("lineage-3-")
    assert (above / name).stat().st_mode & 0o777 == 0o700
    Path(folder.path, "offsets").mkdir()
    folder.remove()
    assert names(above) == []


def test_those_of_one_process_leave_each_other_alone(above):
    folders = [RunFolder(str(above), "run") for _ in range(3)]
    assert len(names(above)) == 3
    folders[1].remove()
    RunFolder(str(above), "run").remove()
    assert [Path(folder.path).exists() for folder in folders] == [True, False, True]
    for folder in (folders[0], folders[2]):
        folder.remove()


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("end", ["killed", "stopped", "at work"])
def test_that_of_another_process_goes_when_it_has_died_and_not_when_it_sleeps(above, end):
    holder, theirs = held(above)
    (theirs / "offsets").mkdir()
    if end == "killed":
        holder.kill()
        holder.wait()
    elif end == "stopped":
        os.kill(holder.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
    folder = RunFolder(str(above), "run")
    try:
        assert (theirs / "offsets").exists() == (end != "killed")
        assert len(names(above)) == (1 if end == "killed" else 2)
    finally:
        folder.remove()
        holder.kill()
        holder.communicate()


def test_what_a_jvm_writes_after_the_end_goes_with_the_next(above):
    folder = RunFolder(str(above), "run")
    folder.remove()
    Path(folder.path, "offsets").mkdir(parents=True)
    RunFolder(str(above), "run").remove()
    assert names(above) == []


@pytest.mark.slow
@pytest.mark.soak
def test_one_that_was_stopped_while_it_begins_keeps_nobody_from_beginning(above):
    (above / "dead").mkdir(parents=True)
    sleeper = subprocess.Popen([sys.executable, "-c", SLEEPER, str(above)], stdout=subprocess.PIPE, text=True)
    try:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == "sleeps\n"
        began = subprocess.run(
            [sys.executable, "-c", HOLDER, str(above)], stdin=subprocess.DEVNULL, timeout=20, check=True
        )
        assert began.returncode == 0
    finally:
        sleeper.kill()
        sleeper.communicate()


def test_a_folder_that_is_deleted_before_it_is_locked_is_made_again(above, monkeypatch):
    """Another process begins at the same time, and takes the new folder for one whose process has died."""
    made, others = tempfile.mkdtemp, [lambda: sweep(str(above))]

    def swept(**options: str) -> str:
        root: str = made(**options)
        while others:
            others.pop()()
        return root

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    folder = RunFolder(str(above), "run")
    sweep(str(above))
    assert Path(folder.path).is_dir()
    folder.remove()


def test_what_cleans_temporary_folders_leaves_it_alone(above):
    """systemd-tmpfiles passes over a folder that it can't lock, with all that lies in it."""
    folder = RunFolder(str(above), "run")
    opened = os.open(Path(folder.path).parent, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(opened)
        folder.remove()
