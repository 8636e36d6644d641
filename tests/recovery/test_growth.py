"""Snapshots, folds and sweeps: what is kept, and what a restart has to read, stay bounded."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statefx import StatefulBolt, TopologyBuilder, openState
from statefx.connectors import MemoryTransactionalSpout
from statefx.coordinator import janitor
from statefx.coordinator.log import RECORDS_BEFORE_CHECKPOINT
from statefx.coordinator.state import SnapshotPolicy
from statefx.state.changelog import chain, files, merging
from statefx.state.changelog.files import Artefact
from statefx.storage import Storage
from statefx.testing import Limits
from statefx.testing.faults import JobFails
from tests.testing.living import LivingTester, Zombie, left_behind, lose_run
from tests.testing.topologies import Driver, lines, totals, word_count, words

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
    """The files whose entries have been read."""
    found: list[str] = []
    original = files.read_file

    def reading_it(storage: Storage, artefact: Artefact) -> object:
        found.append(artefact.name)
        return original(storage, artefact)

    for module in (files, merging, chain):
        monkeypatch.setattr(module, "read_file", reading_it)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("limits", "provider"), [(LIMITS, "memory"), (NEVER, "rocksdb")], ids=["snapshots", "merges"])
def test_over_100_transactions_files_and_replay_stay_bounded(
    place: Path, provider: str, limits: Limits, read: list[str]
) -> None:
    work = [lines(f"word-{n % 10} all") for n in range(TRANSACTIONS)]
    with Driver(place, provider) as driver:
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
        assert most["transactions"] <= 20 + 3, (
            "records since the last fold; LINEAGE and GENERATION; `folded` (rule 3.4)"
        )
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


class Count(StatefulBolt):
    outputFields = {}

    def initState(self, state: Any) -> None:
        self.state = state

    def execute(self, tup: Any, collector: Any) -> None:
        self.state.put(tup.number, self.state.get(tup.number, 0) + 1)


@pytest.mark.slow
@pytest.mark.soak
def test_at_twenty_transactions_a_second_files_bytes_and_sweeps_stay_bounded(
    place: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks that live make a file each in a transaction, and none may go for a minute."""
    transactions, rate, keys, tasks = 3000, 20, 1000, 2
    synced, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(file), sync(file)))
    sweeps, sweep = [], janitor.Janitor.sweep
    monkeypatch.setattr(janitor.Janitor, "sweep", lambda self: (sweeps.append(self), sweep(self))[1])
    builder = TopologyBuilder("fast")
    numbers = [[(n % keys,) for n in range(4 * transactions)]]
    builder.setSpout("numbers", MemoryTransactionalSpout(numbers, "number long", takePerBatch=4))
    builder.setBolt("count", Count(), parallelism=tasks).fieldsGrouping("numbers", "number")
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


def test_a_sweep_keeps_what_is_young(place: Path) -> None:
    with Driver(place) as driver:
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


def test_runs_shorter_than_the_time_between_two_sweeps_are_swept_too(place: Path) -> None:
    limits = Limits(sweep_every=5, min_age_secs=0.0)
    with Driver(place) as driver:
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


def test_a_sweep_deletes_nothing_of_a_transaction_that_is_not_committed(place: Path) -> None:
    with Driver(place) as driver:
        tester = driver.start(limits=Limits(min_age_secs=0.0))
        tester.send(lines("a"))
        swept = []
        tester.when("before COMMITTING(2, 0)", lambda: swept.append(tester._janitor.sweep()))
        tester.when("after COMMITTING(2, 0)", lambda: swept.append(tester._janitor.sweep()))
        tester.send(lines("a"))
        assert swept == [0, 0]
        assert driver.start(cache=place / "fresh").state("count") == {"a": 2}


def test_a_damaged_file_keeps_a_namespace_from_being_swept_and_the_others_are(place: Path) -> None:
    with Driver(place) as driver:
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


@pytest.mark.slow
def test_a_reader_that_loses_a_file_to_a_sweep_opens_the_newer_version(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is read, then the files go, then the state is opened."""
    from statefx.admin import reading

    with Driver(place) as driver:
        tester = driver.start(
            limits=Limits(SnapshotPolicy(min_bytes=1, ratio=0, share=1), min_age_secs=0.0, sweep_every=1000)
        )
        for _ in range(3):
            tester.send(lines("a"))
        original, late = reading.read_checkpoint, [True]

        def look(folders: object) -> object:
            state = original(folders)  # type: ignore[arg-type]
            if late:
                late.pop()
                for _ in range(6):
                    tester.send(lines("a"))
                assert tester.sweep() > 0
            return state

        monkeypatch.setattr(reading, "read_checkpoint", look)
        with openState(driver.folder, "count") as view:
            assert (view.txid, dict(view.items())) == (9, {"a": 9})


@pytest.mark.slow
def test_snapshots_that_are_due_are_spread_over_transactions(place: Path) -> None:
    limits = Limits(SnapshotPolicy(min_bytes=1, ratio=0), min_age_secs=0.0)
    with Driver(place) as driver:
        tester = driver.start(word_count(16), limits=limits)
        made, passed = [], 0
        for number in range(12):
            tester.send(lines(" ".join(f"word-{n}-{number}" for n in range(64))))
            made.append({step for step in tester.steps[passed:] if step.startswith("after snapshot")})
            passed = len(tester.steps)
        assert made[0] == set()
        assert [len(each) for each in made[1:]] == [2] * 11
        assert len(set().union(*made)) == 16, "each has its turn"
