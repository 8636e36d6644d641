"""FilePartitionedSpout with logs: every line once, however logs are renamed, linked, copied and cut."""

import os
from collections import Counter

import pytest

from statefx.connectors.files import FilePartitionedSpout
from statefx.connectors.files import spout as files_module
from statefx.errors import InputError, StatefxError
from statefx.testing import Crash, TopologyTester
from tests.spouts.test_files import folder, topology

__all__ = ["folder"]


def lines(*texts):
    return "".join(f"{text}\n" for text in texts)


def logs(folder, tmp_path, **options):
    return TopologyTester(topology(FilePartitionedSpout(folder, "text", growing=True, **options)), tmp_path / "ck")


def read(tester):
    tester.drain()
    return {value: count for (value,), count in tester.state("count").items()}


@pytest.mark.slow
def test_a_log_that_is_rotated_is_read_to_its_end_and_the_new_one_from_its_beginning(folder, tmp_path):
    (folder / "app.log").write_text(lines("one"))
    with logs(folder, tmp_path) as tester:
        assert read(tester) == {"one": 1}
        with (folder / "app.log").open("a") as log:
            log.write(lines("two"))
        (folder / "app.log").rename(folder / "app.log.1")
        (folder / "app.log").write_text(lines("three", "one"))
        assert read(tester) == {"one": 2, "two": 1, "three": 1}
        (folder / "app.log.1").rename(folder / "app.log.2")
        (folder / "app.log").rename(folder / "app.log.1")
        with (folder / "app.log.1").open("a") as log:  # who writes may not know yet that it was renamed
            log.write(lines("four"))
        (folder / "app.log").write_text(lines("five"))
        (folder / "app.log.3.gz").write_bytes(b"what is no longer written")
        found = {"one": 2, "two": 1, "three": 1, "four": 1, "five": 1}
        assert read(tester) == found
        (folder / "app.log.2").unlink()
        assert read(tester) == found
    with tester.restart() as other:
        (folder / "app.log").rename(folder / "app.log.0")
        (folder / "app.log").write_text(lines("six"))
        assert read(other) == {**found, "six": 1}


def test_a_log_that_is_rotated_between_plan_and_emission_is_found(folder, tmp_path):
    (folder / "app.log").write_text(lines("one", "two"))
    spout = FilePartitionedSpout(folder, "text", growing=True)
    rehearsal = TopologyTester(topology(spout), tmp_path / "rehearsal")
    with rehearsal:
        rehearsal.emit()
        at = rehearsal.steps.index("after PREPARING(1, 0)") + 1
    with pytest.raises(Crash):
        TopologyTester(topology(spout), tmp_path / "ck", crash_at=at).emit()
    (folder / "app.log").rename(folder / "app.log.1")
    (folder / "app.log").write_text(lines("three"))
    with logs(folder, tmp_path) as successor:
        assert read(successor) == {"one": 1, "two": 1, "three": 1}


@pytest.mark.parametrize("created", [True, False])
@pytest.mark.parametrize(
    "step", ["stat 1", "behind_last_line 1", "head_of 1", "stat 3", "stat 4", "head_of 2", "read 1", "stat 6"]
)
def test_a_log_that_is_rotated_before_any_step_of_a_batch_is_read_once(folder, tmp_path, monkeypatch, step, created):
    log, calls = folder / "app.log", Counter()

    def counted(name, call):
        def counting(*given, **named):
            if name != "stat" or given == (str(log),):
                calls[name] += 1
                if f"{name} {calls[name]}" == step:
                    log.rename(folder / "app.log.1")
                    if created:
                        log.write_text(lines("three", "four", "five"))
            return call(*given, **named)

        return counting

    log.write_text(lines("one", "two"))
    with logs(folder, tmp_path) as tester:
        with monkeypatch.context() as patched:
            for name in ("behind_last_line", "head_of", "read"):
                patched.setattr(files_module, name, counted(name, getattr(files_module, name)))
            patched.setattr(os, "stat", counted("stat", os.stat))
            tester.emit()
        assert read(tester) == dict.fromkeys(["one", "two", *(["three", "four", "five"] if created else [])], 1)
    name, number = step.split()
    assert calls[name] >= int(number)


@pytest.mark.slow
def test_a_log_may_be_moved_out_of_the_folder_when_all_of_it_was_read(folder, tmp_path):
    (folder / "app.log").write_text(lines("one"))
    with logs(folder, tmp_path) as tester:
        assert read(tester) == {"one": 1}
        (folder / "app.log").rename(tmp_path / "app.log")
        (folder / "app.log").write_text(lines("two"))
        assert read(tester) == {"one": 1, "two": 1}
        with (folder / "app.log").open("a") as log:
            log.write("half a li")
        assert read(tester) == {"one": 1, "two": 1}
        with (folder / "app.log").open("a") as log:
            log.write("ne\nand a ha")
        assert read(tester) == {"one": 1, "two": 1, "half a line": 1}
        (folder / "app.log").rename(tmp_path / "app.log.1")
        with pytest.raises(InputError, match=r"app.log was deleted, cut or moved away before all of it was read"):
            tester.emit()


def test_a_log_that_begins_as_a_short_one_that_is_gone_is_refused(folder, tmp_path):
    """With the number of the one that is gone, which a file system gives to the next new file."""
    log = folder / "app.log"
    log.write_text(lines("start"))
    with logs(folder, tmp_path) as tester:
        assert read(tester) == {"start": 1}
        log.rename(tmp_path / "app.log")
        assert read(tester) == {"start": 1}
        (tmp_path / "app.log").write_text(lines("start", "two"))
        (tmp_path / "app.log").rename(log)
        with pytest.raises(InputError, match=r"app.log begins as app.log does"):
            tester.emit()


LONG = [f"{number} " + "x" * 30 for number in range(100)]


@pytest.mark.parametrize(
    ("written", "cut"), [(LONG, False), (LONG, True), (["one"], True)], ids=["copied", "cut", "short"]
)
def test_the_copy_of_a_log_that_is_rotated_by_copy_and_truncation_is_refused(cut, written, folder, tmp_path):
    (folder / "app.log").write_text(lines(*written))
    with logs(folder, tmp_path) as tester:
        assert len(read(tester)) == len(written)
        (folder / "app.log.1").write_text(lines(*written, "more"))
        if cut:
            (folder / "app.log").write_text(lines("new"))
        with pytest.raises(InputError, match=r"app.log.1 begins as app.log does.*not copytruncate"):
            read(tester)


@pytest.mark.slow
@pytest.mark.parametrize("link", [os.link, lambda log, name: os.symlink(log.name, name)], ids=["hard", "symbolic"])
@pytest.mark.parametrize("name", ["app.INFO", "z.log"])
@pytest.mark.parametrize("when", ["before", "empty", "after"])
def test_a_log_with_two_names_is_read_once(when, name, link, folder, tmp_path):
    (folder / "app.log").write_text("" if when == "empty" else lines("one"))
    if when != "after":
        link(folder / "app.log", folder / name)
    with logs(folder, tmp_path) as tester:
        tester.emit()
        if when == "after":
            link(folder / "app.log", folder / name)
        with (folder / "app.log").open("a") as log:
            log.write(lines("two"))
        found = {"two": 1} if when == "empty" else {"one": 1, "two": 1}
        tester.emit()
        assert tester.emit() is None, "a log that is read again under its other name has no end"
        assert read(tester) == found
    with tester.restart() as again:
        assert again.emit() is None


def test_a_new_log_with_number_and_name_of_a_deleted_one_is_read(folder, tmp_path):
    """A file that is cut in place stands for the one that a file system gives the number of the deleted one."""
    log = folder / "app.log"
    log.write_text(lines("one", "two"))
    with logs(folder, tmp_path) as tester:
        assert read(tester) == {"one": 1, "two": 1}
        log.write_text(lines("three"))
        assert read(tester) == {"one": 1, "two": 1, "three": 1}
    with tester.restart() as again:
        log.write_text(lines("four", "five") + "half")
        assert read(again) == dict.fromkeys(["one", "two", "three", "four", "five"], 1)
        log.write_text(lines("six"))
        with pytest.raises(InputError, match="deleted, cut or moved away before all of it was read"):
            again.emit()


@pytest.mark.parametrize("before", [True, False])
def test_growing_is_not_switched_in_a_checkpoint(before, folder, tmp_path):
    (folder / "app.log").write_text(lines("one"))
    with TopologyTester(topology(FilePartitionedSpout(folder, "text", growing=before)), tmp_path / "ck") as tester:
        assert read(tester) == {"one": 1}
    other = TopologyTester(topology(FilePartitionedSpout(folder, "text", growing=not before)), tmp_path / "ck")
    with pytest.raises(StatefxError, match=f"was read with growing={before}.*new checkpointLocation"):
        other.emit()


@pytest.mark.slow
@pytest.mark.parametrize("seen", [0, 500])
def test_a_copy_that_was_seen_while_it_was_short_is_refused(seen, folder, tmp_path):
    (folder / "app.log").write_text(lines(*LONG))
    with logs(folder, tmp_path) as tester:
        tester.drain()
        (folder / "app.log.1").write_text(lines(*LONG)[:seen])
        tester.drain()
        (folder / "app.log.1").write_text(lines(*LONG))
        with pytest.raises(InputError, match=r"app.log.1 begins as app.log does"):
            tester.emit()


def test_a_rotation_while_the_folder_is_looked_at_is_followed(folder, tmp_path, monkeypatch):
    log, one, two = (folder / name for name in ("app.log", "app.log.1", "app.log.2"))
    real, begun = files_module.stats, []

    def look(folder, names):
        found = real(folder, names)
        if not begun:  # the first look ends as if it had come to app.log.1 and app.log.2 before they had these names
            begun.append(one.rename(two))
            log.rename(one)
            log.write_text(lines("new"))
            return {"app.log": found["app.log"]}
        return found

    log.write_text(lines("old"))
    with logs(folder, tmp_path) as tester:
        tester.drain()
        log.rename(one)
        log.write_text(lines("middle"))
        with one.open("a") as file:
            file.write(lines("more") + "half")
        assert read(tester) == {"old": 1, "more": 1, "middle": 1}
        monkeypatch.setattr(files_module, "stats", look)
        assert tester.emit() is None  # not drain(), which looks once more before it begins
        assert begun
        assert read(tester) == {"old": 1, "more": 1, "middle": 1, "new": 1}
