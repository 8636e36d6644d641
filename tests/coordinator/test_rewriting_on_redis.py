"""State in a server that is given other keys or values: as in files, all of it or none, and nothing stays behind."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from statefx import Checkpoint, TopologyBuilder
from statefx.errors import CheckpointError, ConfigError, FencedError, StateCorruptedError
from statefx.log.location import Folders
from statefx.protocol.identity import TaskId
from statefx.state.contract.store import StateContext
from statefx.storage import FolderStorage
from statefx.testing import Crash, rows
from statefx.testing.steps import DurableSteps, SteppedLog, SteppedStorage
from tests.coordinator import test_downgrade, test_migrated_keys
from tests.coordinator.changing import START, WORK, held, log_of, send
from tests.coordinator.on_redis import crashes, names_on, on_redis, server, stepped
from tests.coordinator.test_downgrade import One, Tuples, Two, word_of
from tests.coordinator.test_migrated_keys import First, Second, Sized, topology
from tests.coordinator.test_rescaling import Plain
from tests.testing.topologies import SMALL, Driver

__all__ = ["server"]

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
TYPED = {"key": "word string", "value": "n long"}


class Pair:
    """The same checkpoint twice: its state is in Redis, and in RocksDB."""

    def __init__(self, server, place):
        self.server = server
        self.on_redis, self.on_files = Driver(place), Driver(place, "rocksdb", "same")
        self.on_redis.config |= on_redis(server)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for driver in self.both:
            driver.__exit__(*error)

    @property
    def both(self):
        return self.on_redis, self.on_files

    def send(self, numbers, topology, **more):
        for driver in self.both:
            send(driver, numbers, topology, **more)

    def check(self, tasks, name="count"):
        """Compare what each task holds, key by key."""
        found = held(self.on_redis, tasks, name)
        assert found == held(self.on_files, tasks, name)
        assert any(own[None] for own in found)

    def check_names(self, before):
        """See that what was written has a name of its own, and that what was there is deleted after the next start."""
        kept_as = log_of(self.on_redis).kept_as["count"]
        assert kept_as not in before
        assert names_on(self.server, self.on_redis) == {*before, kept_as}
        assert "count" not in log_of(self.on_files).kept_as
        return kept_as


# ---- migrateKey


@pytest.mark.parametrize(("bolt", "was", "now"), [(Second, 2, 2), (Sized, 2, 3), (Second, 3, 1)])
def test_keys_have_the_form_that_they_have_in_files(server, place, bolt, was, now):
    first, second = First(was == now), bolt(was == now)
    with Pair(server, place) as pair:
        pair.send(range(6), topology(was, first), limits=SMALL)
        for driver in pair.both:
            with driver.start(topology(now, second), now=START + timedelta(seconds=36), rescale=was != now):
                pass
        pair.check(now)
        kept_as = pair.check_names({"count"})
        pair.send(range(6, 12), topology(now, second), limits=SMALL)
        pair.check(now)
        assert test_migrated_keys.fired(pair.on_redis, now) > 3, "timers of before have fired under their new keys"
        assert names_on(server, pair.on_redis) == {kept_as}
        # Where it is kept in files again, it has the name that it has by now.
        Checkpoint(pair.on_redis.folder).migrate("rocksdb")
        pair.check(now)


def both_bolts(tasks, bolt):
    """A bolt whose keys get another form, and one that gets other tasks alone."""
    builder = TopologyBuilder("keys")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("split", bolt.split()).shuffleGrouping("lines")
    builder.setBolt("count", bolt, tasks).fieldsGrouping("split", "word")
    builder.setBolt("counted", Plain(), tasks).fieldsGrouping("split", "word")
    return builder.createTopology()


@pytest.mark.soak
def test_a_killed_start_has_given_all_new_keys_and_tasks_or_none(server, place):
    second = both_bolts(3, Second(for_task=False))
    with Pair(server, place) as pair:
        pair.send(range(6), both_bolts(2, First(for_task=False)))
        changes = {"rescale": True, "now": START + timedelta(seconds=42)}
        with pair.on_files.start(second, **changes) as tester:
            tester.send(WORK[6])
        seen = []
        for at in crashes(server, pair.on_redis, place):
            try:
                pair.on_redis.start(second, crash_at=at, **changes)
            except Crash:
                known = log_of(pair.on_redis).topology.stateful
                seen.append((known["count"].state_version, known["count"].parallelism, known["counted"].parallelism))
                with pair.on_redis.start(second, limits=SMALL, **changes) as tester:
                    tester.send(WORK[6])
                pair.check(3)
                pair.check(3, "counted")
                assert names_on(server, pair.on_redis) == set(log_of(pair.on_redis).kept_as.values())
                continue
            break
        assert seen == sorted(seen)
        assert set(seen) == {(1, 2, 2), (2, 3, 3)}


# ---- downgrade


@pytest.mark.parametrize("newer", [Two, Tuples])
def test_an_older_version_finds_what_it_finds_in_files(server, place, newer):
    older, newest = test_downgrade.topology(One()), test_downgrade.topology(newer())
    with Pair(server, place) as pair:
        pair.send(range(2), older)
        pair.send(range(2, 4), newest)
        before = names_on(server, pair.on_redis)  # `Tuples` has given keys another form on its way
        for driver in pair.both:
            done = Checkpoint(driver.folder).downgrade("count", newer(), 1, groupingKey=word_of)
            assert (done.was, done.version) == (2, 1)
        pair.check(2)
        kept_as = pair.check_names(before)
        pair.send(range(4, 7), older, limits=SMALL)
        pair.check(2)
        assert names_on(server, pair.on_redis) == {kept_as}


# ---- Checkpoint.write


MENDED = pa.table({"word": ["to", "be", "new", "w3"], "n": pa.array([70, None, 1, 33], pa.int64())})


def write(driver, mode="merge"):
    checkpoint = Checkpoint(driver.folder, driver.config)
    return checkpoint.write("count", MENDED, mode=mode, schema=TYPED, groupingKey=lambda key: key)


@pytest.mark.parametrize("mode", ["merge", "overwrite"])
def test_rows_are_written_as_they_are_in_files(server, place, mode):
    with Pair(server, place) as pair:
        pair.send(range(6), topology(2, First()))
        before = pair.on_redis.folder
        with Checkpoint(before).state("count") as view, Checkpoint(before).state("count", map="pairs") as pairs:
            own, kept = dict(view.items()), dict(pairs.items())
            done = write(pair.on_redis, mode)
            assert done == write(pair.on_files, mode)
            assert (done.rows, done.deleted) == (3, 1)
            assert view.refresh(), "what was written is shown under its new name"
            changed = {"to": 70, "new": 1, "w3": 33}
            merged = {**own, **changed}
            del merged["be"]
            assert dict(view.items()) == (merged if mode == "merge" else changed)
            assert pairs.refresh()
            assert dict(pairs.items()) == kept
            assert not view.refresh()
        pair.check(2)
        kept_as = pair.check_names({"count"})
        tables = [Checkpoint(driver.folder).table("count", schema=TYPED) for driver in pair.both]
        assert tables[0].equals(tables[1])
        assert tables[0].num_rows == len(merged if mode == "merge" else changed)
        pair.send(range(6, 9), topology(2, First()), limits=SMALL)
        pair.check(2)
        assert names_on(server, pair.on_redis) == {kept_as}
        for driver in pair.both:  # and again, where all keys are known by now
            write(driver, mode)
        pair.check(2)
        pair.check_names({kept_as})


def test_who_has_opened_what_was_there_before_is_told_to_open_it_again(server, place):
    with Pair(server, place) as pair:
        pair.send(range(3), topology(2, First()))
        with Checkpoint(pair.on_redis.folder).state("count") as view:
            table = Checkpoint(pair.on_redis.folder)._table("count", schema=TYPED)
            before = dict(view.items())
            for driver in pair.both:
                write(driver)
            assert dict(view.items()) == before, "until it is deleted"
            pair.send([3], topology(2, First()), limits=SMALL)
            with pytest.raises(StateCorruptedError, match=r"a tool wrote the state anew.*open it again"):
                dict(view.items())
            with pytest.raises(CheckpointError, match="transaction 3 of the state of 'count' is not kept any more"):
                table.table()
            assert view.refresh()
            with Checkpoint(pair.on_files.folder).state("count") as same:
                assert dict(view.items()) == dict(same.items())


def write_stepped(folder, url, steps, mode="merge"):
    """Write as `write` does, with steps that are counted."""
    writer = Checkpoint(folder)._writer("count", mode=mode, schema=TYPED, grouping_key=lambda key: key)
    writer.provider = stepped(url, steps)
    writer.folders = Folders(str(folder), wrap=partial(SteppedStorage, steps=steps))
    writer.opened = partial(SteppedLog, steps=steps, limit=100)
    writer.write_table(MENDED)


def is_written(driver):
    """Tell whether the rows are there; they are either all there or none of them."""
    written = "count" in log_of(driver).kept_as
    with Checkpoint(driver.folder).state("count") as view:
        assert (view.get("to") == 70) == ("be" not in view) == written
    return written


def go_on_writing(pair, mode):
    """Write again, run a transaction, and compare with what has run without a crash."""
    write(pair.on_redis, mode)
    send(pair.on_redis, [4], topology(2, First()), limits=SMALL)
    pair.check(2)
    assert names_on(pair.server, pair.on_redis) == {log_of(pair.on_redis).kept_as["count"]}


class Killing(DurableSteps):
    """Kills this process at the first moment that begins so."""

    def __init__(self, begins):
        super().__init__()
        self.begins = begins

    def call(self, moment):
        if moment.startswith(self.begins):
            os.kill(os.getpid(), signal.SIGKILL)


KILLED_AT = ["after fence", "after prepare count~", "after commit count~", "before RESCALED", "after RESCALED"]


@pytest.mark.soak
@pytest.mark.slow
def test_a_process_that_was_killed_while_it_wrote_has_written_all_rows_or_none(server, place):
    code = (
        f"import sys; from {__name__} import Killing, write_stepped; folder, url, moment = sys.argv[1:]; "
        "write_stepped(folder, url, Killing(moment))"
    )
    with Pair(server, place) as pair:
        pair.send(range(4), topology(2, First()))
        write(pair.on_files)
        send(pair.on_files, [4], topology(2, First()))
        seen = []
        for moment, _ in zip(KILLED_AT, crashes(server, pair.on_redis, place), strict=False):
            command = [sys.executable, "-c", code, str(pair.on_redis.folder), server.url, moment]
            done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, timeout=60)
            assert done.returncode == -signal.SIGKILL, done.stderr
            seen.append(is_written(pair.on_redis))
            go_on_writing(pair, "merge")
        assert seen == [False, False, False, False, True]


def test_a_driver_that_runs_is_fenced_and_a_refused_call_fences_nobody(server, place):
    with Pair(server, place) as pair:
        pair.send(range(4), topology(2, First()))
        running = pair.on_redis.start(topology(2, First()), now=START + timedelta(seconds=28))
        twice = pa.concat_tables([MENDED, MENDED])
        with pytest.raises(ConfigError, match="two rows have the key"):
            Checkpoint(pair.on_redis.folder).write("count", twice, schema=TYPED, groupingKey=lambda key: key)
        running.send(WORK[4])
        send(pair.on_files, [4], topology(2, First()))
        pair.check(2)
        assert names_on(server, pair.on_redis) == {"count"}
        for driver in pair.both:
            write(driver)
        with pytest.raises(FencedError):
            running.send(WORK[5])
        pair.check(2)
        pair.send([5], topology(2, First()), limits=SMALL)
        pair.check(2)


def test_no_task_of_a_former_driver_prepares_while_rows_are_written(server, place):
    with Pair(server, place) as pair:
        pair.send(range(4), topology(2, First()))
        found, steps, refused = log_of(pair.on_redis), DurableSteps(), []
        task = TaskId("count", 0)
        context = StateContext(found.generation, found.head(str(task)), FolderStorage(place), str(place / "cache"))
        with closing(stepped(server.url, DurableSteps()).newState(found.namespace(task), context)) as late:

            def prepare():
                with pytest.raises(FencedError):
                    late.prepare(found.committed + 1, "late", [(b"ulate", b"1")])
                refused.append("late")

            steps.when("before RESCALED", prepare)
            write_stepped(pair.on_redis.folder, server.url, steps)
        assert refused == ["late"]
