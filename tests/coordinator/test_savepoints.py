"""Savepoints: what is kept is given back, whatever was committed, folded, merged and swept since."""

import errno
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from statefx import Checkpoint, TopologyBuilder, TransactionalSpout
from statefx.admin.reading import provider_of
from statefx.admin.savepoints import go_back, known_pins
from statefx.command import main
from statefx.errors import (
    CheckpointError,
    ConfigError,
    FencedError,
    StateCorruptedError,
)
from statefx.log import pins
from statefx.log.location import Folders
from statefx.log.log import RECORDS_BEFORE_CHECKPOINT, TransactionLog, read_state
from statefx.log.pins import take
from statefx.protocol.records import Generation
from statefx.storage import FolderStorage
from statefx.testing import Crash, TopologyTester
from tests.admin.test_repair import crash
from tests.admin.test_verify import flip
from tests.bolts import WithState
from tests.coordinator.migrating import REFERENCES
from tests.providers.redis_server import RedisServer
from tests.spouts.numbers import ALL, TAKEN, Planned, Whole
from tests.spouts.numbers import Count as CountNumbers
from tests.spouts.numbers import topology as numbered
from tests.testing.topologies import SMALL, Driver, archived, lines, totals, word_count, words

WORK = [lines(f"to be {number}", "or not", f"w{number % 3} w{number % 5}") for number in range(30)]
GIVEN_UP = [lines(f"never {number}", "to be") for number in range(12)]


def send(driver, works, topology=None, **more):
    with driver.start(topology or totals(), **more) as tester:
        for work in works:
            tester.send(work)


def begin(driver, **more):
    """Commit five transactions, take the savepoint "five", and commit what will be given up."""
    send(driver, WORK[:5], **more)
    taken = Checkpoint(driver.folder).savepoint("five")
    send(driver, GIVEN_UP, **more)
    return taken


def committed(driver, component="count"):
    with Checkpoint(driver.folder).state(component) as state:
        return dict(state.items())


def artefacts(driver):
    return {path for path in Path(driver.folder, "state").rglob("*") if path.is_file()}


@pytest.mark.slow
def test_what_was_committed_since_is_given_up_and_the_stream_goes_on(place):
    with Driver(place) as driver:
        taken = begin(driver)
        assert (taken.name, taken.txid, Checkpoint(driver.folder).savepoints()) == ("five", 5, (taken,))
        done = Checkpoint(driver.folder).restore("five")
        assert (done.txid, done.given_up, done.next_txid, done.published) == (5, 12, 18, {})
        assert committed(driver) == words(WORK[:5])
        send(driver, WORK[5:])
        assert committed(driver) == words(WORK)
        assert committed(driver, "total")["total"] == sum(words(WORK).values())


def test_a_thread_that_is_interrupted_amid_a_savepoint_does_not_end_the_query(place, monkeypatch):
    """As by a cell of a notebook that is interrupted: no append may be interrupted (rule 3.2)."""
    link = os.link

    def interrupted(*paths):
        os.kill(os.getpid(), signal.SIGINT)
        link(*paths)

    with Driver(place) as driver, driver.start() as tester:
        tester.send(lines("to be"))
        log, provider = tester._coordinator.log, tester._coordinator.participants.state.provider
        for call in (partial(pins.take, log, provider, "one"), partial(pins.delete, log, "one")):
            with monkeypatch.context() as patched:
                patched.setattr(os, "link", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    call()
            tester.send(lines("to be"))
            assert ("one" in log.state.pinned) == (call.func is pins.take)
        assert tester.state("count")["be"] == 3


class Growing(TransactionalSpout):
    """Plans of each transaction all that is there: another plan would have other rows."""

    outputFields = "number long"

    def __init__(self, there):
        self.there = there

    def initializeTransaction(self, txid, previous):
        first = previous[1] if previous else 0
        return [first, self.there] if first < self.there else None

    def open(self, context):
        self.first = context.task == 0

    def emitBatch(self, attempt, metadata, collector):
        for number in range(*metadata) if self.first else ():
            collector.emit((number,))


class ByNumber(WithState):
    """Keeps which transaction had a number."""

    def execute(self, tup, collector):
        self.state.put(tup.number, self.context.txid)


class Renewed(ByNumber):
    stateVersion = 2

    def migrateState(self, version, key, value):
        return value


@pytest.mark.parametrize("txid", [2, 1])
@pytest.mark.parametrize("release", [ByNumber, Renewed])
def test_what_was_planned_of_an_attempt_that_failed_is_kept_where_nothing_is_given_up(place, release, txid):
    """A service, or a TransactionalMap, would take other rows for those of the attempt that was rolled back."""

    def start(there, bolt):
        return driver.start(numbered(Growing(there), bolt))

    def dies():
        raise Crash

    with Driver(place) as driver:
        for there in (1, 2):
            start(there, ByNumber()).emit()
        tester = start(3, release())
        tester.when("before COMMITTING(3, 0)", dies)
        with pytest.raises(Crash):
            tester.emit()
        start(3, release()).close()
        done = Checkpoint(driver.folder).restore(txid=txid)
        assert (done.given_up, done.next_txid) == (2 - txid, 3)
        with start(5, ByNumber()) as tester:
            tester.drain()
            assert tester.state("count") == dict(enumerate([1, 2, 3, 4, 4] if txid == 2 else [1, 4, 4, 4, 4]))


@pytest.mark.soak
@pytest.mark.daily(1)
@pytest.mark.slow
def test_folds_merges_snapshots_and_sweeps_take_nothing_of_it(place, provider):
    """Each transaction sweeps and every fifth folds; without the pin the version of five has no file left."""
    with Driver(place, provider) as driver:
        send(driver, WORK[:5], limits=SMALL)
        taken = Checkpoint(driver.folder).savepoint("five")
        send(driver, GIVEN_UP, limits=SMALL)
        send(driver, WORK[5:20], limits=SMALL)
        assert Checkpoint(driver.folder).savepoints() == (taken,)
        Checkpoint(driver.folder).restore("five")
        assert committed(driver) == words(WORK[:5])
        send(driver, WORK[5:], limits=SMALL)
        assert committed(driver) == words(WORK)


@pytest.mark.slow
def test_what_was_given_up_is_swept_once_nothing_keeps_it(place):
    with Driver(place, "rocksdb") as driver:
        send(driver, WORK[:5])
        Checkpoint(driver.folder).savepoint("five")
        before = artefacts(driver)
        send(driver, GIVEN_UP)
        given_up = artefacts(driver) - before
        Checkpoint(driver.folder).restore("five")
        with driver.start(totals()) as tester:
            for work in WORK[5:]:
                tester.send(work)
            tester.advance(3600)
            tester.sweep()
            assert not artefacts(driver) & given_up
        Checkpoint(driver.folder).deleteSavepoint("five")
        assert Checkpoint(driver.folder).savepoints() == ()
        assert committed(driver) == words(WORK)


@pytest.mark.slow
def test_what_was_folded_away_or_restored_is_not_a_transaction_to_go_back_to(place):
    with Driver(place) as driver:
        send(driver, WORK[:8], limits=SMALL)
        Checkpoint(driver.folder).savepoint("eight")
        send(driver, WORK[8:9], limits=SMALL)
        with pytest.raises(CheckpointError, match=r"does not know any more what transaction 1 had left; .* [2-9] to 9"):
            Checkpoint(driver.folder).restore(txid=1)
        Checkpoint(driver.folder).restore("eight")
        log = TransactionLog(FolderStorage(driver.folder))
        log.fold()  # from here on the log has 9 as the last number, and the state of 8
        with pytest.raises(CheckpointError, match="those that it knows are none"):
            Checkpoint(driver.folder).restore(txid=9)


# ---- numbers, sinks


@pytest.mark.slow
def test_rows_that_were_published_are_told_and_come_again_behind(place):
    with Driver(place) as driver:
        out = place / "out"
        topology = archived(out)
        send(driver, WORK[:2], topology)
        Checkpoint(driver.folder).savepoint("two")
        send(driver, WORK[2:4], topology)
        published = sum(path.read_text().count("\n") for path in out.rglob("*.json"))
        with pytest.raises(CheckpointError, match=r"transactions 3 to 4 may have published rows \(\d+ of sink 'out'\)"):
            Checkpoint(driver.folder).restore("two")
        assert committed(driver) == words(WORK[:4])
        done = Checkpoint(driver.folder).restore("two", sinks="append")
        assert 0 < done.published["out"] < published
        send(driver, WORK[2:4], topology)
        again = sum(path.read_text().count("\n") for path in out.rglob("*.json"))
        assert again == published + done.published["out"]
        assert committed(driver) == words(WORK[:4])


def test_a_driver_that_runs_is_fenced(place):
    with Driver(place) as driver:
        tester = driver.start(totals())
        tester.send(WORK[0])
        Checkpoint(driver.folder).savepoint("one")
        with pytest.raises(FencedError):
            tester.send(WORK[1])
        Checkpoint(driver.folder).restore("one")
        assert committed(driver) == words(WORK[:1])


# ---- a checkpoint of its own


@pytest.mark.daily(1)
@pytest.mark.slow
def test_a_copy_stands_alone(place, provider):
    with Driver(place, provider) as driver:
        begin(driver, limits=SMALL)
        done = Checkpoint(driver.folder).restore("five", to=place / "five")
        assert (done.txid, done.next_txid) == (5, 6)
        last = Checkpoint(driver.folder).restore(to=place / "last")
        assert last.txid == 17
        assert committed(driver) == words(WORK[:5] + GIVEN_UP), "the original is as it was"
        shutil.rmtree(driver.folder)
        for name, before in (("five", WORK[:5]), ("last", WORK[:5] + GIVEN_UP)):
            with Driver(place, provider, name) as other:
                assert committed(other) == words(before)
                send(other, WORK[5:])
                assert committed(other) == words(before + WORK[5:])


# ---- what is refused


@pytest.mark.parametrize("name", ["", "a/b", "../up", ".hidden", "a b", "x" * 101, 5, None])
def test_what_can_not_name_a_savepoint(place, name):
    with Driver(place) as driver:
        send(driver, WORK[:1])
        for call in (Checkpoint(driver.folder).savepoint, Checkpoint(driver.folder).deleteSavepoint):
            with pytest.raises(ConfigError, match="a savepoint's name has 1 to 100 letters"):
                call(name)
        assert read_state(FolderStorage(driver.folder)).generation == 1, "nobody was fenced"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2", "20260501"])
def test_a_name_that_reads_as_a_number_is_refused_by_every_call(place, name, capsys):
    with Driver(place) as driver:
        send(driver, WORK[:3])
        for call in (
            lambda: Checkpoint(driver.folder).savepoint(name),
            lambda: Checkpoint(driver.folder).deleteSavepoint(name),
            lambda: Checkpoint(driver.folder).restore(name),
            lambda: Checkpoint(driver.folder).restore(name, to=place / "copy"),
            lambda: Checkpoint(driver.folder)._table("count", at=name),
            lambda: Checkpoint(driver.folder)._table("count", diff=(name, None)),
        ):
            with pytest.raises(ConfigError, match=f"'{name}' reads as a transaction's number.* call it 'v{name}'"):
                call()
        for command in (["savepoint", name, "--yes"], ["restore", name, "--yes"], ["delete-savepoint", name, "--yes"]):
            assert main([command[0], str(driver.folder), *command[1:]]) == 2
            assert "reads as a transaction's number" in capsys.readouterr().err
        assert read_state(FolderStorage(driver.folder)).generation == 1, "nobody was fenced"


@pytest.mark.slow
def test_what_is_not_there_is_told_with_what_is(place):
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        Checkpoint(place / "nowhere").savepoints()
    with Driver(place) as driver:
        with driver.start(word_count()):
            pass
        with pytest.raises(CheckpointError, match="nothing has been committed yet"):
            Checkpoint(driver.folder).savepoint("none")
        send(driver, WORK[:2], word_count())
        Checkpoint(driver.folder).savepoint("two")
        generation = read_state(FolderStorage(driver.folder)).generation
        with pytest.raises(CheckpointError, match=r"has no savepoint 'three'; there are \['two'\]"):
            Checkpoint(driver.folder).restore("three")
        with pytest.raises(CheckpointError, match=r"has no savepoint 'three'"):
            Checkpoint(driver.folder).deleteSavepoint("three")
        with pytest.raises(CheckpointError, match="there is a savepoint 'two' already, of transaction 2"):
            Checkpoint(driver.folder).savepoint("two")
        for wrong in ({}, {"savepoint": "two", "txid": 1}):
            with pytest.raises(ConfigError, match="the name of a savepoint, or txid=, and not both"):
                Checkpoint(driver.folder).restore(**wrong)
        with pytest.raises(ConfigError, match="txid must be the number of a committed transaction"):
            Checkpoint(driver.folder).restore(txid=0)
        with pytest.raises(ConfigError, match="sinks must be 'append'"):
            Checkpoint(driver.folder).restore("two", sinks="forget")
        with pytest.raises(CheckpointError, match="is the checkpoint itself: give another folder"):
            Checkpoint(driver.folder).restore(to=driver.folder)
        with pytest.raises(CheckpointError, match=r"has the savepoints \['two'\], .*delete them first"):
            Checkpoint(driver.folder).migrate("rocksdb")
        assert read_state(FolderStorage(driver.folder)).generation == generation, "nobody was fenced"


@pytest.mark.slow
def test_files_that_were_deleted_by_hand_are_named_before_anything_is_changed(place):
    with Driver(place) as driver:
        send(driver, WORK[:2])
        Checkpoint(driver.folder).savepoint("two")
        before = sorted(Path(driver.folder, "state", "count", "0").glob("*.changelog"))
        send(driver, WORK[2:20], limits=SMALL)
        generation = read_state(FolderStorage(driver.folder)).generation
        for path in before:
            path.unlink()
        with pytest.raises(StateCorruptedError, match=r"state/count/0/.*changelog"):
            Checkpoint(driver.folder).restore("two")
        assert read_state(FolderStorage(driver.folder)).generation == generation
        assert committed(driver) == words(WORK[:20])


class Large(Whole):
    """What it says of a batch is too large for the log."""

    def upcoming(self, last):
        return {**super().upcoming(last), "padding": "x" * 100_000}


@pytest.fixture
def numbers(place):
    builder = TopologyBuilder("numbers")
    builder.setSpout("numbers", Large(place), 2)
    builder.setBolt("count", CountNumbers(), 2).fieldsGrouping("numbers", "number")
    return builder.createTopology()


@pytest.mark.slow
def test_what_spouts_have_said_beside_the_log_is_kept_and_looked_at(place, numbers):
    with Driver(place) as driver:
        with driver.start(numbers, limits=SMALL) as tester:
            tester.emit()
        Checkpoint(driver.folder).savepoint("one")
        with driver.start(numbers, limits=SMALL) as tester:
            tester.drain()
            for _ in range(20):
                tester._coordinator.log.fold()
        Checkpoint(driver.folder).restore("one")
        with driver.start(numbers) as tester:
            tester.drain()
        assert committed(driver) == ALL
        (name,) = read_state(FolderStorage(driver.folder)).pinned["one"].committed_metadata["numbers"]
        Path(driver.folder, name.file.name).unlink()
        generation = read_state(FolderStorage(driver.folder)).generation
        for more in ({}, {"to": place / "to"}):
            with pytest.raises(StateCorruptedError, match=r"metadata/.* is gone or damaged\. Nothing was changed"):
                Checkpoint(driver.folder).restore("one", **more)
        assert read_state(FolderStorage(driver.folder)).generation == generation


class Uneven(Planned):
    """Reads partition 0 alone in the end: what it has said are several layers, and all of them count."""

    def planPartitionBatch(self, partition, lastMetadata):
        start = 0 if lastMetadata is None else lastMetadata["stop"]
        stop = min(self.each, start + (TAKEN if partition == 0 else self.each))
        return {"start": start, "stop": stop, "padding": "x" * 100_000} if start < stop else None


@pytest.fixture
def uneven(place):
    return numbered(Uneven(place), CountNumbers())


@pytest.mark.slow
@pytest.mark.parametrize("given_up", [0, 1])
def test_a_log_that_is_long_keeps_the_files_that_it_goes_back_to(place, uneven, given_up):
    """Each start that dies behind GENERATION makes it longer, and folds nothing: the record that goes back would."""
    with Driver(place) as driver:
        with driver.start(uneven) as tester:
            tester.drain()
        folders = Folders(str(driver.folder))
        found = read_state(folders.storage)
        pin = known_pins(folders)[found.committed - given_up]
        assert len(pin.committed_metadata["numbers"]) > 1
        opened = partial(TransactionLog, limit=1)
        go_back(folders, found, provider_of(found, None), pin, opened, keeps_plans=not given_up)
        assert Checkpoint(driver.folder).verify().ok
        with driver.start(uneven) as tester:
            tester.drain()
        assert committed(driver) == ALL


@pytest.mark.slow
def test_damage_that_a_fold_would_meet_keeps_nobody_from_going_back(place, uneven):
    with Driver(place) as driver:
        tester = driver.start(uneven)
        tester.when("before COMMITTING(3, 0)", crash)
        with pytest.raises(Crash):
            tester.drain()
        log = TransactionLog(FolderStorage(driver.folder))
        *_, layer = log.state.committed_metadata["numbers"]
        flip(Path(driver.folder, layer.file.name), 70)
        for _ in range(RECORDS_BEFORE_CHECKPOINT):
            log.append(Generation(log.state.generation + 1, log.state.location, log.state.topology))
        assert [each.txid for each in Checkpoint(driver.folder).abort().rolled_back] == [3]
        Checkpoint(driver.folder).savepoint("damaged")
        Checkpoint(driver.folder).deleteSavepoint("damaged")
        with pytest.raises(StateCorruptedError, match=r"metadata/.* is damaged.*Checkpoint\(location\).repair\(\)"):
            driver.start(uneven).drain()
        assert Checkpoint(driver.folder).repair(yes=True).txid == 1
        with driver.start(uneven) as tester:
            tester.drain()
        assert committed(driver) == ALL


def test_a_savepoint_takes_no_file_away_that_the_driver_reads(place, uneven, monkeypatch):
    """Another thread takes it, of the query that runs."""
    with Driver(place) as driver:
        tester = driver.start(uneven, limits=replace(SMALL, fold_after=1))
        for _ in range(2):
            tester.emit()
        log, reads = tester._coordinator.log, []

        def read(self, name, start=0, stop=None, read=FolderStorage.read):
            if name.startswith("metadata/"):
                reads.append(name)
                if len(reads) == 1:  # in the look at what there is to read
                    with ThreadPoolExecutor() as other:
                        other.submit(take, log, provider_of(log.state, None), "beside").result()
            return read(self, name, start, stop)

        monkeypatch.setattr(FolderStorage, "read", read)
        tester.drain()
        assert reads
        assert committed(driver) == ALL


UNSWEPT = replace(SMALL, fold_after=100, sweep_every=100, versions_kept=0)


@pytest.mark.parametrize(
    ("meanwhile", "says"),
    [
        (lambda tester: tester._coordinator.log.fold(), "it has gone on meanwhile"),
        (TopologyTester.sweep, "transaction 1 .* is not kept any more"),
    ],
    ids=["fold", "sweep"],
)
def test_what_a_driver_deletes_while_restore_verifies_refuses_it(place, numbers, meanwhile, says):
    with Driver(place) as driver:
        tester, folders = driver.start(numbers, limits=UNSWEPT), Folders(str(driver.folder))
        for _ in range(3):
            tester.emit()
        found, pin = read_state(folders.storage), known_pins(folders)[1]

        def opened(storage):  # every version has been opened
            meanwhile(tester)
            return TransactionLog(storage)

        with pytest.raises(CheckpointError, match=says):
            go_back(folders, found, provider_of(found, None), pin, opened)
        with driver.start(numbers) as tester:
            tester.drain()
        assert committed(driver) == ALL


@pytest.mark.parametrize("more", [{}, {"to": "copy"}], ids=["in place", "copy"])
def test_a_version_that_was_swept_is_called_not_kept_and_not_damaged(place, numbers, more):
    with Driver(place) as driver:
        tester = driver.start(numbers, limits=UNSWEPT)
        for _ in range(3):
            tester.emit()
        tester.sweep()
        tester.close()
        with pytest.raises(CheckpointError, match=r"transaction 1 .* is not kept any more.* take a savepoint"):
            Checkpoint(driver.folder).restore(txid=1, **{name: place / folder for name, folder in more.items()})
        assert read_state(FolderStorage(driver.folder)).generation == 1, "nobody was fenced"


def test_a_copy_of_what_is_swept_meanwhile_says_so(place, numbers):
    with Driver(place) as driver:
        tester, seen = driver.start(numbers, limits=UNSWEPT), []
        tester.emit()

        def going_on(done, total):
            if not seen:
                seen.append(done)
                tester.emit()
                tester.emit()
                tester.sweep()

        with pytest.raises(CheckpointError, match=rf"transaction 1 .* is not kept any more.* Delete {place / 'copy'};"):
            Checkpoint(driver.folder).restore(to=place / "copy", progress=going_on)


@pytest.mark.parametrize("folded", [False, True], ids=["deleted", "folded away"])
def test_a_file_of_the_original_that_goes_is_not_blamed_on_the_copy(place, numbers, folded):
    with Driver(place) as driver:
        tester, seen = driver.start(numbers, limits=UNSWEPT), []
        tester.emit()
        (layer,) = read_state(FolderStorage(driver.folder)).committed_metadata["numbers"]

        def going_on(done, total):
            if not seen:
                seen.append(done)
                if folded:
                    tester.emit()
                    tester._coordinator.log.fold()
                else:
                    Path(driver.folder, layer.file.name).unlink()

        says = "transaction 1 .* is not kept any more" if folded else "is gone or damaged"
        with pytest.raises(
            CheckpointError if folded else StateCorruptedError, match=rf"{says}.* Delete {place / 'copy'};"
        ):
            Checkpoint(driver.folder).restore(to=place / "copy", progress=going_on)


def test_a_file_of_the_original_that_can_not_be_read_is_named(place, numbers, monkeypatch):
    with Driver(place) as driver:
        tester = driver.start(numbers)
        tester.emit()
        tester.close()
        reads = []

        def read(self, name, start=0, stop=None, read=FolderStorage.read):
            if name.startswith("metadata/"):
                reads.append(name)
                if len(reads) == 2:  # the first look was before anything was written
                    raise OSError(errno.ETIMEDOUT, "the store does not answer")
            return read(self, name, start, stop)

        monkeypatch.setattr(FolderStorage, "read", read)
        with pytest.raises(CheckpointError, match=r"checkpoint/metadata/\S+ can't be read .*does not answer"):
            Checkpoint(driver.folder).restore(to=place / "copy")


def test_a_server_that_keeps_no_versions_has_no_savepoints(place):
    with RedisServer(appendonly="no") as server, Driver(place) as driver:
        config = {"topology.state.provider": REFERENCES["redis"]}
        config["topology.state.provider.config"] = {"url": server.url}
        send(driver, WORK[:1], config=config)
        for call in (
            lambda: Checkpoint(driver.folder).savepoint("one"),
            lambda: Checkpoint(driver.folder).restore(to=place / "to"),
        ):
            with pytest.raises(ConfigError, match="has its newest version alone"):
                call()


@pytest.mark.slow
def test_a_transaction_that_is_under_way_is_ended_by_a_start_first(place):
    with Driver(place) as driver:
        tester = driver.start(totals(), crash_at=40)
        with pytest.raises(Crash):
            tester.run(WORK)
        state = read_state(FolderStorage(driver.folder))
        assert state.in_flight
        with pytest.raises(CheckpointError, match=r"is (PREPARING|COMMITTING)\. Stop the topology .* Then restore it"):
            Checkpoint(driver.folder).restore(txid=state.committed)


@pytest.mark.slow
def test_a_savepoint_is_of_the_transaction_whose_state_it_has(place, capsys):
    """After going back, numbers are counted on: two states then have the same number, and differ."""
    with Driver(place) as driver:
        topology = archived(place / "out")
        send(driver, WORK[:1], topology)
        Checkpoint(driver.folder).savepoint("a")
        send(driver, WORK[1:2], topology)
        Checkpoint(driver.folder).savepoint("b")
        Checkpoint(driver.folder).restore("a", sinks="append")
        assert Checkpoint(driver.folder).savepoint("c").txid == 1
        Checkpoint(driver.folder).restore("a")  # it is there already: nothing comes again
        Checkpoint(driver.folder).restore("b")  # it has seen all that was published
        with pytest.raises(CheckpointError, match="may have published rows"):
            Checkpoint(driver.folder).restore("c")
        assert main(["restore", str(driver.folder), "c", "--yes"]) == 1
        error = capsys.readouterr().err
        assert all(
            each in error for each in ("Say --sinks append if", "or --sinks rewind where", "with --to, into another")
        )
        assert committed(driver) == words(WORK[:2])


@pytest.mark.slow
def test_transactions_of_before_a_migration_are_not_gone_back_to(place):
    with Driver(place) as driver:
        send(driver, WORK[:2])
        Checkpoint(driver.folder).migrate("rocksdb")
        with pytest.raises(CheckpointError, match="does not know any more what transaction 1 had left"):
            Checkpoint(driver.folder).restore(txid=1)
    with Driver(place, "rocksdb") as driver:
        send(driver, WORK[2:4])
        assert Checkpoint(driver.folder).restore(txid=3).txid == 3
        assert committed(driver) == words(WORK[:3])
