"""Several transactions in flight on Spark: job P and job O of each read one kept shuffle (rules 2 and 9)."""

import threading
from collections import Counter

import pytest

from tests.spark.bolts import Count, Once, Split, recount
from tests.spark.in_flight import InFlight
from tests.spark.running import BOUND_SECS, kinds, reasons, shown, state, wait_for
from tests.spark.test_faults import held, killed

pytestmark = pytest.mark.slow

WORKS = [[f"{name} b c {number % 7}" for number in range(60)] for name in "abcde"]
WORKS[2] = []
ALL = [line for lines in WORKS for line in lines]


def check(location):
    """All is there once, in the bolt behind the cut and in the one behind that."""
    assert state(location, "count") == recount(ALL)
    assert state(location, "again") == recount(ALL)
    committed = [txid for kind, txid, _ in kinds(location) if kind == "COMMITTING"]
    assert committed == list(range(1, len(WORKS) + 1))


def at_once(location):
    """How many transactions were in flight at once, at most."""
    highest, found = 0, set()
    for kind, txid, _ in kinds(location):
        found = found | {txid} if kind == "PREPARING" else found - {txid}
        highest = max(highest, len(found))
    return highest


def stages_run(spark, since):
    """How often stages ran, by name, but for the oldest `since` ones; those that Spark passed over don't count.

    The session is that of other tests too. What one of those cancelled stays FAILED, and Spark's status store shows it
    or not: it forgets old stages, and writes one again as long as a task of it is alive.
    """

    def ended():
        found = [stage for stage in shown(spark, "stages") if stage["stageId"] >= since]
        return found if not any(stage["status"] in ("PENDING", "ACTIVE") for stage in found) else None

    ran = wait_for(ended, "all stages of this test to have ended")
    return Counter(each["name"] for each in ran if each["status"] != "SKIPPED")


def stages_so_far(spark):
    return max((stage["stageId"] for stage in shown(spark, "stages")), default=-1) + 1


def shuffles(spark):
    """How many shuffles Spark knows the files of."""
    return spark.sparkContext._jsc.sc().taskScheduler().mapOutputTracker().shuffleStatuses().size()


@pytest.mark.parametrize("pending", [1, 3, 4])
def test_results_are_those_of_one_after_the_other_and_no_stage_runs_twice(spark, place, pending):
    """Also with fewer slots than transactions: none waits in a slot for another one (rule 2.3)."""
    first, before = stages_so_far(spark), shuffles(spark)
    driver = InFlight(spark, place / "ck", WORKS, pending).drive()
    check(place / "ck")
    assert at_once(place / "ck") == pending
    assert not reasons(place / "ck")
    ran = stages_run(spark, first)
    acks = ["acks"] if pending > 1 else []
    levels = ["read lines", "split[2]", *acks, "count[3]", "again[2]"]
    assert ran == Counter(f"{name} tx {txid} attempt 0" for name in levels for txid in range(1, 6))
    assert not driver.engine._kept
    wait_for(lambda: shuffles(spark) <= before, "what was kept to be freed")


class Waits(Split):
    """Every task waits as long as a file exists."""

    def __init__(self, hold):
        self.hold = hold

    def execute(self, tup, collector):
        held(self.hold)
        super().execute(tup, collector)


def test_no_more_jobs_run_than_fill_the_slots_and_one(spark, place):
    """Else each job O, and so the first commit, queues behind the jobs P of all transactions in flight."""
    works, hold = [[f"{number} b c"] * 4 for number in range(20)], place / "hold"
    hold.touch()
    driver = InFlight(spark, place / "ck", works, pending=len(works), split=Waits(hold))
    running = threading.Thread(target=driver.drive)
    running.start()
    try:
        wait_for(lambda: at_once(place / "ck") == len(works), "all transactions to be under way")
        tracker = spark.sparkContext.statusTracker()
        wait_for(lambda: len(tracker.getActiveJobsIds()) == 2, "two jobs to run, on two slots")
        assert len(driver.engine._processing.waiting) == len(works) - 2
    finally:
        hold.unlink()
        running.join(BOUND_SECS)
    assert not running.is_alive()
    assert state(place / "ck", "count") == recount([line for lines in works for line in lines])
    committed = [txid for kind, txid, _ in kinds(place / "ck") if kind == "COMMITTING"]
    assert committed == list(range(1, len(works) + 1))
    assert not reasons(place / "ck"), "waiting is no try"


class Odd:
    """Does something odd once, in transaction 2; comes in front of a bolt's class."""

    def __init__(self, once, odd):
        self.once = once
        self.odd = odd

    def open(self, context):
        self.context = context

    def execute(self, tup, collector):
        super().execute(tup, collector)
        if self.context.txid == 2 and self.once:
            self.odd()


class OddSplit(Odd, Split):
    pass


class OddCount(Odd, Count):
    pass


@pytest.mark.parametrize("job", ["P", "O"])
def test_a_worker_that_is_killed_has_the_transaction_tried_again_with_all_behind_it(spark, place, job):
    before = shuffles(spark)
    once = Once(place)
    bolts = {"split": OddSplit(once, killed)} if job == "P" else {"count": OddCount(once, killed)}
    driver = InFlight(spark, place / "ck", WORKS, **bolts).drive()
    check(place / "ck")
    assert once.happened
    rolled_back = [(txid, attempt) for kind, txid, attempt in kinds(place / "ck") if kind == "ROLLED_BACK"]
    assert (2, 0) in rolled_back
    assert not [txid for txid, _ in rolled_back if txid < 2]
    assert rolled_back == sorted(rolled_back, reverse=True), "newest first"
    assert not driver.engine._kept
    wait_for(lambda: shuffles(spark) <= before, "what was kept to be freed")


@pytest.mark.parametrize("job", ["P", "O"])
def test_stop_cancels_what_is_behind_the_lowest_and_the_next_driver_goes_on(spark, place, job):
    once, hold = Once(place), place / "hold"
    hold.touch()
    odd = lambda: held(hold)  # noqa: E731 - what the worker runs
    bolts = {"split": OddSplit(once, odd)} if job == "P" else {"count": OddCount(once, odd)}
    driver = InFlight(spark, place / "ck", WORKS, **bolts)
    running = threading.Thread(target=driver.drive)
    running.start()
    wait_for(lambda: once.happened, "transaction 2 to be at work")
    wait_for(lambda: ("COMMITTING", 1, 0) in kinds(place / "ck"), "transaction 1 to be decided")
    driver.coordinator.stop(now=True)
    running.join(BOUND_SECS)
    assert not running.is_alive()
    assert ("ROLLED_BACK", 2, 0) in kinds(place / "ck")
    hold.unlink()
    InFlight(spark, place / "ck", WORKS).drive()
    check(place / "ck")
