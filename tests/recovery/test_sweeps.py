"""Sweeps beside transactions: when they look, what they may delete, what stays bounded, and clocks that jump."""

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from freezegun import freeze_time

from statefx import Checkpoint, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout
from statefx.connectors.files import committedFiles
from statefx.coordinator import janitor
from statefx.coordinator import janitor as janitor_module
from statefx.coordinator.janitor import OwnThread
from statefx.coordinator.participants import SnapshotPolicy
from statefx.errors import FencedError, LogOutcomeUnknownError
from statefx.log.log import RECORDS_BEFORE_CHECKPOINT
from statefx.protocol.identity import TaskId
from statefx.state.changelog import chain, files, merging, sweeping
from statefx.state.changelog.files import Artefact
from statefx.storage import FolderStorage, Storage
from statefx.testing import Crash, Limits, TopologyTester
from statefx.testing.faults import JobFails
from tests.bolts import Tally
from tests.testing.living import LivingTester, Zombie, left_behind, lose_run
from tests.testing.topologies import Driver, archived, lines, totals, word_count, words

EAGER = Limits(
    SnapshotPolicy(min_bytes=1, ratio=0, share=1),
    fold_after=6,
    sweep_every=10_000,
    min_age_secs=0.0,
    files_max=1,
    versions_kept=0,
)
"""Snapshots in every transaction, merges too, no sweep but those of the test, nothing too young for it."""

MERGING = replace(EAGER, snapshots=SnapshotPolicy())

BEFORE = [lines("a b"), lines("b c"), lines("c d a")]
DURING = lines("to be or not")


def moments(place: Path, limits: Limits) -> list[str]:
    """Return the moments of one transaction that rolls an attempt back, and makes snapshots in both."""
    with Driver(place, name="rehearsal") as driver:
        tester = driver.start(totals(), limits=limits)
        for work in BEFORE:
            tester.send(work)
        passed = len(tester.steps)
        tester.send(DURING, JobFails())
        return tester.steps[passed:]


def pairs(listings: range, distances: int) -> Iterator[tuple[int, int]]:
    """Yield each listing's moment with itself and with some that follow it: near ones and far ones in turn."""
    for listed in listings:
        yield listed, listed
        for turn in range(distances):
            after = (1, 2, 5, 11)[(listed + turn) % 4]
            if listed + after < listings.stop:
                yield listed, listed + after


def sweep_between(tester: TopologyTester, first: str, second: str, gone: list[int]) -> None:
    """List at the moment `first`, read the log and delete at the `second`, which may be the same."""

    def look() -> None:
        found = tester._janitor.look(tester._janitor.in_turn())
        if second == first:
            gone.append(tester._janitor.delete(found))
        else:
            tester.when(second, lambda: gone.append(tester._janitor.delete(found)))

    tester.when(first, look)


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("limits", [EAGER, MERGING], ids=["snapshots", "merges"])
def test_a_sweep_at_any_moment_of_a_transaction_deletes_nothing_that_is_needed(place, limits, stride):
    """It lists at one moment, and reads the log and deletes at a later one, as a thread of its own may."""
    found = moments(place, limits)
    assert any("snapshot" in moment for moment in found) == (limits is EAGER)
    swept, listings = 0, range((limits is EAGER) % stride, len(found), stride)
    for number, (listed, deleted) in enumerate(pairs(listings, distances=4 // stride)):
        with Driver(place, name=f"run-{number}") as driver:
            tester = driver.start(totals(), limits=limits)
            for work in BEFORE:
                tester.send(work)
            gone: list[int] = []
            sweep_between(tester, found[listed], found[deleted], gone)
            tester.send(DURING, JobFails())
            assert len(gone) == 1, (found[listed], found[deleted])
            swept += gone[0]
            after = driver.start(totals(), cache=place / f"fresh-{number}", limits=limits)
            after.send(lines("x"))
            assert after.state("count") == words([*BEFORE, DURING, lines("x")]), (found[listed], found[deleted])
    assert swept > 100 // stride, "the sweeps had something to do"


def test_one_reading_of_the_log_serves_all_namespaces(driver, place, monkeypatch):
    read: list[str] = []
    original = janitor_module.check_newest
    tester = driver.start(totals(), limits=Limits(min_age_secs=0.0))
    lose_run(tester, "after prepare count/0 for 1")
    tester.send(lines("a b c d"))
    tester.wake()
    listing = tester._janitor.provider.artefacts

    def listed(*place: object) -> object:
        read.append("listing")
        return listing(*place)

    def newest(*given: object) -> object:
        read.append("log")
        return original(*given)

    monkeypatch.setattr(tester._janitor.provider, "artefacts", listed)
    monkeypatch.setattr(janitor_module, "check_newest", newest)
    assert tester.sweep() == left_behind(tester) > 0
    assert read == ["listing"] * 3 + ["log"]


@pytest.mark.slow
def test_a_zombie_that_prepares_between_listing_and_log_is_left_to_the_next_sweep(driver):
    tester = driver.start(totals(), limits=EAGER)
    zombie = Zombie(tester, "before prepare total/0 for 1", "total")
    tester.send(lines("a b c d"))
    found = tester._janitor.look(tester._janitor.in_turn())
    zombie.go_on()
    before = set(driver.folder.rglob("*.changelog"))
    tester._janitor.delete(found)
    assert len(before - set(driver.folder.rglob("*.changelog"))) == 2, "those of count; the zombie's is kept"
    assert tester.sweep() == 1


def test_a_sweep_runs_beside_what_it_was_started_by():
    going, ended = threading.Event(), threading.Event()
    done: list[str] = []

    def sweep() -> None:
        going.wait(30)
        done.append(threading.current_thread().name)
        ended.set()

    own_thread = OwnThread()
    own_thread(sweep)
    own_thread(sweep)
    assert done == [], "nobody waits for it"
    going.set()
    own_thread.wait(30)
    assert ended.is_set()
    assert done == ["statefx-janitor"], "the second one came while the first was under way"
    own_thread(sweep)
    own_thread.wait(30)
    assert len(done) == 2


def test_a_sweep_that_is_fenced_deletes_no_state_of_bolts_that_are_gone(driver):
    """Rule 4.3: it sleeps when it has read the log, and restore brings the bolt back meanwhile."""

    def asleep() -> Iterator[TaskId]:
        yield from tasks
        Checkpoint(driver.folder).restore(txid=1)

    driver.start(totals()).send(BEFORE[0])
    janitor = driver.start(word_count(name="totals"), drop=["total"])._janitor
    found, tasks = janitor.look(janitor.in_turn()), list(janitor.tasks)
    janitor.tasks = asleep()
    with pytest.raises(FencedError):
        janitor.delete(found)
    with Checkpoint(driver.folder).state("total") as state:
        assert state["total"] == 2


def test_a_sweep_that_fails_ends_nothing(caplog):
    def fail() -> None:
        raise ValueError("of the file system")

    own_thread = OwnThread()
    own_thread(fail)
    own_thread.wait(30)
    assert "state was not swept" in caplog.text


def test_a_query_ends_after_the_sweep_that_it_started(driver, place):
    """Who has stopped it may delete the folder, which fails while files go in it."""
    going, ended = threading.Event(), threading.Event()
    tester = driver.start(limits=Limits(min_age_secs=0.0))
    tester.send(lines("a b c d"), JobFails())
    janitor = replace(tester._janitor, run=OwnThread(), every=1)
    listing = janitor.provider.artefacts

    def slow(*place: object) -> object:
        going.wait(30)
        return listing(*place)

    def close() -> None:
        janitor.close()
        ended.set()

    janitor.provider.artefacts = slow
    janitor.committed(1)
    closing = threading.Thread(target=close)
    closing.start()
    assert not ended.is_set()
    going.set()
    closing.join(30)
    assert ended.is_set()
    assert tester.sweep() == 0, "it has been done"


# ---- Clocks that jump: files in use are swept as if they were old, and times run back.


WORK = [lines("to be or", "not to be"), lines("that is to be")]
TIMES = {"be": 3, "is": 1, "not": 1, "or": 1, "that": 1, "to": 3}
COUNTS = [(word, count) for word, times in TIMES.items() for count in range(1, times + 1)]


def published(out: Path) -> list[tuple[str, int]]:
    rows = [json.loads(row) for file in committedFiles(out) for row in Path(file).read_text("utf-8").splitlines()]
    return sorted((row["word"], row["count"]) for row in rows)


@pytest.fixture
def jump(monkeypatch, place):
    """At the next call of `call` that gives a name with `text` in it, a sweep sees a clock that is two hours ahead."""
    swept = []

    def at(call: str, text: str) -> list[int]:
        original = getattr(os, call)

        def jumping(source: str, target: str) -> None:
            if text in target and not swept:
                with freeze_time(datetime.now(UTC) + timedelta(hours=2)):
                    swept.append(
                        sum(FolderStorage(place / each).discard_unfinished("") for each in ("checkpoint", "out"))
                    )
            original(source, target)

        monkeypatch.setattr(os, call, jumping)
        return swept

    return at


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "name"), [("/state/count/", "StateError: "), ("/out/part-", "FileNotFoundError: ")], ids=["state", "sink"]
)
def test_a_task_s_file_that_is_swept_while_it_is_written_is_written_again_by_the_next_attempt(
    driver, place, jump, text, name
):
    (place / "out").mkdir()
    tester = driver.start(archived(place / "out"))
    swept = jump("rename", text)
    for work in WORK:
        tester.send(work)
    failed, *others = Checkpoint(driver.folder).transactions()
    assert swept[0] >= 1
    assert (failed.state, failed.attempt, [each.state for each in others]) == ("ROLLED_BACK", 0, ["COMMITTED"] * 2)
    assert name in failed.reason
    assert "was deleted while it was" in failed.reason
    assert published(place / "out") == COUNTS


@pytest.mark.slow
def test_a_manifest_that_is_swept_while_it_is_written_is_written_again(driver, place, jump):
    (place / "out").mkdir()
    tester = driver.start(archived(place / "out"))
    swept = jump("link", "/_spark_metadata/1")
    for work in WORK:
        tester.send(work)
    assert swept == [1]
    assert published(place / "out") == COUNTS


@pytest.mark.slow
@pytest.mark.parametrize("record", range(3, 9))
def test_a_record_that_is_swept_while_it_is_written_ends_the_driver_and_the_next_one_goes_on(
    driver, place, jump, record
):
    (place / "out").mkdir()
    swept = jump("link", f"/transactions/{record:020}")
    with pytest.raises(LogOutcomeUnknownError, match="may or may not have been appended"):
        driver.start(archived(place / "out")).run(WORK)
    driver.start(archived(place / "out")).run(WORK)
    assert swept == [1]
    assert published(place / "out") == COUNTS


def test_a_clock_that_is_set_back_gives_a_transaction_less_than_no_time(driver, place):
    (place / "out").mkdir()

    def set_back():
        tester._began -= 3600

    tester = driver.start(archived(place / "out"), now=datetime(2000, 1, 1, tzinfo=UTC))
    tester.when("after PREPARING(1, 0)", set_back)
    for work in WORK:
        tester.send(work)
    back, after = Checkpoint(driver.folder).transactions()
    assert (back.state, back.secs) == ("COMMITTED", -3600)
    assert (after.state, after.secs) == ("COMMITTED", 0)
    assert "COMMITTED 1999-12-31 23:00" in repr(back)
    assert published(place / "out") == COUNTS


# ---- Snapshots, folds and sweeps: what is kept, and what a restart has to read, stay bounded.


LIMITS = Limits(
    SnapshotPolicy(min_bytes=1500, ratio=0),
    fold_after=20,
    sweep_every=5,
    min_age_secs=0.0,
    files_max=2,
    versions_kept=10,
)
TRANSACTIONS = 100
NEVER = replace(LIMITS, snapshots=SnapshotPolicy())
"""What the transactions of these tests change is little: no snapshot is due because of it, however many there are."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    original = files.read_file

    def reading_it(storage: Storage, artefact: Artefact) -> object:
        found.append(artefact.name)
        return original(storage, artefact)

    for module in (files, merging, chain):
        monkeypatch.setattr(module, "read_file", reading_it)
    return found


@pytest.mark.soak
@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize(("limits", "provider"), [(LIMITS, "memory"), (NEVER, "rocksdb")], ids=["snapshots", "merges"])
def test_over_100_transactions_files_and_replay_stay_bounded(driver, place, provider, limits, read):
    work = [lines(f"word-{n % 10} all") for n in range(TRANSACTIONS)]
    tester = driver.start(totals(), limits=limits)
    most = {"state": 0, "transactions": 0}
    for n, each in enumerate(work):
        if n % 20 == 13:
            zombie = Zombie(tester, f"before prepare count/1 for {n + 1}", "count", 1)
        tester.send(each, *([JobFails()] if n % 20 == 3 else []))
        if n % 20 == 17:
            zombie.go_on()
        for folder, before in most.items():
            files = sum(1 for path in (driver.folder / folder).rglob("*") if path.is_file())
            most[folder] = max(before, files)
    assert most["transactions"] <= 20 + 3, "records since the last fold; LINEAGE and GENERATION; `folded` (rule 3.4)"
    assert most["state"] <= 3 * (2 * 12 + 10 + 5 + 5), (
        "two snapshots, what is kept, what no sweep has seen, what failed"
    )
    read.clear()
    fresh = driver.start(totals(), cache=place / "fresh", limits=limits)
    fresh.send(lines())
    assert len(read) <= 3 * (1 + 11), "one snapshot and what came after it, for each of three tasks"
    assert any(path.endswith(".snapshot") for path in read) == (limits is LIMITS)
    assert fresh.state("count") == words(work)
    assert fresh.txid == TRANSACTIONS + 1
    bytes_kept = sum(path.stat().st_size for path in driver.folder.rglob("*") if path.is_file())
    assert bytes_kept < 200_000


@pytest.mark.slow
@pytest.mark.soak
def test_at_twenty_transactions_a_second_files_bytes_and_sweeps_stay_bounded(place, provider, monkeypatch):
    """Tasks that live make a file each in a transaction, and none may go for a minute."""
    transactions, rate, keys, tasks = 3000, 20, 1000, 2
    synced, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(file), sync(file)))
    sweeps, sweep = [], janitor.Janitor.sweep
    monkeypatch.setattr(janitor.Janitor, "sweep", lambda self: (sweeps.append(self), sweep(self))[1])
    builder = TopologyBuilder("fast")
    numbers = [[(n % keys,) for n in range(4 * transactions)]]
    builder.setSpout("numbers", MemoryTransactionalSpout(numbers, "number long", takePerBatch=4))
    builder.setBolt("count", Tally("number"), parallelism=tasks).fieldsGrouping("numbers", "number")
    config = {"topology.state.provider": provider}
    with LivingTester(builder.createTopology(), place / "checkpoint", config, seed=1, freshObjects=False) as tester:
        seen: set[str] = set()
        written = []
        for _ in range(transactions // 50):
            synced.clear()
            for _ in range(50):
                tester.emit()
            tester.advance(50 / rate)
            found = {path: path.stat().st_size for path in (place / "checkpoint").rglob("*") if path.is_file()}
            state = {str(path): size for path, size in found.items() if "state" in path.parts}
            written.append(sum(size for path, size in state.items() if path not in seen) / 50 / tasks)
            seen = set(state)
            assert len(synced) <= 50 * (2 * tasks + 2 * 2) + 10, "a file and its folder: each task's, and two records"
            young = janitor.MIN_AGE_SECS * (1 + janitor.PAUSE_SHARE) * rate
            assert len(state) <= tasks * (young + janitor.VERSIONS_KEPT + 100), "those of a minute and a quarter"
            assert len(found) - len(state) <= RECORDS_BEFORE_CHECKPOINT + 6
        assert tester.txid == transactions
        assert len(sweeps) <= transactions / rate / (janitor.MIN_AGE_SECS * janitor.PAUSE_SHARE) + 1
        assert max(written) < 5000, "of a task in a transaction that changes two keys of a thousand"
        assert tester.state("count") == dict.fromkeys(range(keys), 4 * transactions // keys)


def test_a_sweep_keeps_what_is_young(driver):
    tester = driver.start(limits=Limits(min_age_secs=60.0))
    lose_run(tester, "after prepare count/0 for 1")
    tester.send(lines("a b c"))
    tester.wake()
    tester.send(lines("a"))
    assert tester.sweep() == 0
    tester.advance(59)
    assert tester.sweep() == 0
    tester.advance(2)
    assert tester.sweep() == left_behind(tester) > 0
    assert tester.sweep() == 0
    assert tester.state("count") == {"a": 2, "b": 1, "c": 1}


@pytest.mark.parametrize("folder", ["", "transactions", "metadata", "sources", "state/count/0", "input"])
def test_a_sweep_deletes_what_was_being_written_in_any_folder_of_the_checkpoint(driver, folder):
    """Their writers have died: drivers, and workers that wrote rows of a DataFrame."""
    tester = driver.start(limits=Limits(min_age_secs=60.0))
    tester.send(lines("a"))
    above = driver.folder / folder
    above.mkdir(parents=True, exist_ok=True)
    old, young = above / ".unfinished-x-1", above / ".unfinished-x-2"
    old.touch()
    young.touch()
    os.utime(old, (1, 1))
    tester.sweep()
    assert young.exists()
    assert not old.exists()


@pytest.mark.slow
def test_runs_shorter_than_the_time_between_two_sweeps_are_swept_too(driver):
    limits = Limits(sweep_every=5, min_age_secs=0.0)
    first = driver.start(limits=limits)
    lose_run(first, "after prepare count/0 for 1")
    first.send(lines("a b c"))
    first.wake()
    left = set((driver.folder / "state").rglob("*.changelog"))
    for _ in range(2):
        tester = driver.start(limits=limits)
        tester.send(lines("a"))
        tester.send(lines("b"))
    kept = set((driver.folder / "state").rglob("*.changelog"))
    assert len(left - kept) == left_behind(first) > 0


@pytest.mark.slow
def test_what_a_run_that_ends_in_its_sweep_has_left_the_next_ones_sweep(driver):
    """In a store, listings may take longer than the end of a driver waits; then the process is gone."""
    limits = Limits(sweep_every=1000, min_age_secs=0.0)
    first = driver.start(word_count(8), limits=limits)
    lose_run(first, "after prepare count/0 for 1")
    first.send(lines("a b c d e f g h"))
    first.wake()
    there = [sum(1 for _ in (driver.folder / "state").rglob("*.changelog"))]
    assert left_behind(first) > 4
    while there[-1] > there[0] - left_behind(first):
        tester = driver.start(word_count(8), limits=limits)
        listing, end = tester._janitor.provider.artefacts, tester._clock() + janitor.WAIT_SECS

        def slow(*place, tester=tester, listing=listing, end=end):
            tester._now += janitor.WAIT_SECS / 4
            if tester._clock() > end:
                raise Crash
            return listing(*place)

        tester._janitor.provider.artefacts = slow
        with pytest.raises(Crash):
            tester._janitor.sweep()
        there.append(sum(1 for _ in (driver.folder / "state").rglob("*.changelog")))
        assert len(there) < 10
    assert there[1] < there[0], "each deletes what it has come to"


def test_a_sweep_that_ends_among_the_files_of_a_task_has_deleted_what_it_has_looked_at(driver, monkeypatch):
    tester = driver.start(word_count(1), limits=Limits(min_age_secs=0.0))
    for txid in (1, 2, 3):
        lose_run(tester, f"after prepare count/0 for {txid}")
        tester.send(lines("a"))
    looks, read = [], sweeping.read_heads

    def read_heads(*of):
        looks.append(of)
        if len(looks) == 3:
            raise Crash
        return read(*of)

    for name, changed in (("BATCH", 1), ("_HEADS", 1), ("read_heads", read_heads)):
        monkeypatch.setattr(sweeping, name, changed)
    with pytest.raises(Crash):
        tester._janitor.sweep()
    assert tester._janitor.sweep() == 1


def test_a_sweep_deletes_nothing_of_a_transaction_that_is_not_committed(driver, place):
    tester = driver.start(limits=Limits(min_age_secs=0.0))
    tester.send(lines("a"))
    swept = []
    tester.when("before COMMITTING(2, 0)", lambda: swept.append(tester._janitor.sweep()))
    tester.when("after COMMITTING(2, 0)", lambda: swept.append(tester._janitor.sweep()))
    tester.send(lines("a"))
    assert swept == [0, 0]
    assert driver.start(cache=place / "fresh").state("count") == {"a": 2}


@pytest.mark.slow
def test_a_damaged_file_keeps_a_namespace_from_being_swept_and_the_others_are(driver):
    tester = driver.start(totals(), limits=Limits(min_age_secs=0.0))
    lose_run(tester, "after prepare count/0 for 1")
    zombie = Zombie(tester, "before prepare count/1 for 1", "count", 1)
    tester.send(lines("a b c d"))
    zombie.go_on()
    tester.wake()
    damaged = list((driver.folder / "state" / "count" / "0").glob("*.changelog"))
    assert len(damaged) > 1
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-1])
    assert tester.sweep() == left_behind(tester) - (len(damaged) - 1) > 0
    assert all(path.exists() for path in damaged)


def viewed(checkpoint):
    with checkpoint.state("count") as view:
        assert view.txid == 9
        return view["a"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "read",
    [
        viewed,
        lambda checkpoint: json.loads(checkpoint.table("count")["value"][0].as_py()),
        lambda checkpoint: checkpoint.explain("count", "a").tasks[0].value,
    ],
    ids=["state", "table", "explain"],
)
def test_a_reader_that_loses_a_file_to_a_sweep_reads_the_newer_version(driver, monkeypatch, read):
    """The log is read, then the files go, then the state is opened."""
    from statefx.admin import reading

    tester = driver.start(
        limits=Limits(SnapshotPolicy(min_bytes=1, ratio=0, share=1), min_age_secs=0.0, sweep_every=1000)
    )
    for _ in range(3):
        tester.send(lines("a"))
    original, late = reading.read_checkpoint, [True]

    def look(folders: object) -> object:
        state = original(folders)
        if late:
            late.pop()
            for _ in range(6):
                tester.send(lines("a"))
            assert tester.sweep() > 0
        return state

    monkeypatch.setattr(reading, "read_checkpoint", look)
    assert read(Checkpoint(driver.folder)) == 9
    assert not late


@pytest.mark.slow
def test_snapshots_that_are_due_are_spread_over_transactions(driver):
    limits = Limits(SnapshotPolicy(min_bytes=1, ratio=0), min_age_secs=0.0)
    tester = driver.start(word_count(16), limits=limits)
    made, passed = [], 0
    for number in range(12):
        tester.send(lines(" ".join(f"word-{n}-{number}" for n in range(64))))
        made.append({step for step in tester.steps[passed:] if step.startswith("after snapshot")})
        passed = len(tester.steps)
    assert made[0] == set()
    assert [len(each) for each in made[1:]] == [2] * 11
    assert len(set().union(*made)) == 16, "each has its turn"
