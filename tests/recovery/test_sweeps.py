"""Sweeps beside transactions: when they look, what they read, what they may delete."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from statefx.coordinator import janitor as janitor_module
from statefx.coordinator.janitor import OwnThread
from statefx.coordinator.state import SnapshotPolicy
from statefx.testing import Limits, TopologyTester
from statefx.testing.faults import JobFails
from tests.testing.living import Zombie, left_behind, lose_run
from tests.testing.topologies import Driver, lines, totals, words

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
        found = tester._janitor.look()
        if second == first:
            gone.append(tester._janitor.delete(found))
        else:
            tester.when(second, lambda: gone.append(tester._janitor.delete(found)))

    tester.when(first, look)


@pytest.mark.slow
@pytest.mark.parametrize("limits", [EAGER, MERGING], ids=["snapshots", "merges"])
def test_a_sweep_at_any_moment_of_a_transaction_deletes_nothing_that_is_needed(
    place: Path, limits: Limits, stride: int
) -> None:
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


def test_one_reading_of_the_log_serves_all_namespaces(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = janitor_module.check_newest
    with Driver(place) as driver:
        tester = driver.start(totals(), limits=Limits(min_age_secs=0.0))
        lose_run(tester, "after prepare count/0 for 1")
        tester.send(lines("a b c d"))
        tester.wake()
        listing = tester._janitor.provider.artefacts

        def listed(*place: object) -> object:
            read.append("listing")
            return listing(*place)  # type: ignore[arg-type]

        def newest(*given: object) -> object:
            read.append("log")
            return original(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(tester._janitor.provider, "artefacts", listed)
        monkeypatch.setattr(janitor_module, "check_newest", newest)
        assert tester.sweep() == left_behind(tester) > 0
        assert read == ["listing"] * 3 + ["log"]


def test_a_zombie_that_prepares_between_listing_and_log_is_left_to_the_next_sweep(place: Path) -> None:
    with Driver(place) as driver:
        tester = driver.start(totals(), limits=EAGER)
        zombie = Zombie(tester, "before prepare total/0 for 1", "total")
        tester.send(lines("a b c d"))
        found = tester._janitor.look()
        zombie.go_on()
        before = set(driver.folder.rglob("*.changelog"))
        tester._janitor.delete(found)
        assert len(before - set(driver.folder.rglob("*.changelog"))) == 2, "those of count; the zombie's is kept"
        assert tester.sweep() == 1


def test_a_sweep_runs_beside_what_it_was_started_by() -> None:
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


def test_a_sweep_that_fails_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("of the file system")

    own_thread = OwnThread()
    own_thread(fail)
    own_thread.wait(30)
    assert "state was not swept" in caplog.text


def test_a_query_ends_after_the_sweep_that_it_started(place: Path) -> None:
    """Who has stopped it may delete the folder, which fails while files go in it."""
    going, ended = threading.Event(), threading.Event()
    with Driver(place) as driver:
        tester = driver.start(limits=Limits(min_age_secs=0.0))
        tester.send(lines("a b c d"), JobFails())
        janitor = replace(tester._janitor, run=OwnThread(), every=1)
        listing = janitor.provider.artefacts

        def slow(*place: object) -> object:
            going.wait(30)
            return listing(*place)  # type: ignore[arg-type]

        def close() -> None:
            janitor.close()
            ended.set()

        janitor.provider.artefacts = slow  # type: ignore[method-assign,assignment]
        janitor.committed(1)
        closing = threading.Thread(target=close)
        closing.start()
        assert not ended.is_set()
        going.set()
        closing.join(30)
        assert ended.is_set()
        assert tester.sweep() == 0, "it has been done"
