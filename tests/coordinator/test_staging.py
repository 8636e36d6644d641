"""DataFrames whose batches are staged ahead: what is handed over, by whom it is read, and crashes at every step."""

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from statefx.coordinator.attempt import Batch
from statefx.coordinator.retrying import RenewInputError, StoppedError
from statefx.coordinator.staging import StagedBatch, StagedSource
from statefx.coordinator.times import Ticks
from statefx.protocol.records import StreamInput
from statefx.protocol.staged import StagedPart
from statefx.runtime import staging
from statefx.testing import Crash, TopologyTester
from statefx.testing.crashes import crashes
from statefx.testing.faults import HooksFail, JobFails
from statefx.testing.feeding import staged_rows
from statefx.testing.steps import DurableSteps
from tests.recovery.test_matrix import check_hooks
from tests.testing.living import Zombie, lose_run
from tests.testing.topologies import Driver, lines, totals, words

TEXTS = ["to be or", "not to be", "that is", "the question", "to be", "to do", "", "to dream"]
TOTALS = totals()


@pytest.fixture(autouse=True)
def in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "INLINE_BYTES_MAX", 0)


def end_of(input: object) -> int:
    """Return how far a batch reads: its offsets are the numbers of texts."""
    return int(input.offsets.partition("-")[2]) if isinstance(input, StreamInput) else 0


class Spark(threading.Thread):
    """Stages `TEXTS` batch by batch, from where the log says, and hands them over; each batch has a random size.

    Parameters
    ----------
    tester : TopologyTester
    chance : random.Random
    is_ahead : bool
        Whether the next batch is there when the loop asks; else none is staged before the loop has nothing to do.
    renews_after : int, optional
        The batch behind which its query has to be started again.
    """

    def __init__(
        self, tester: TopologyTester, chance: random.Random, is_ahead: bool, renews_after: int | None = None
    ) -> None:
        super().__init__(daemon=True)
        self.tester, self.chance, self.is_ahead, self.renews_after = tester, chance, is_ahead, renews_after
        self.log = tester._coordinator.log
        self.state = self.log.state
        assert not self.state.in_flight
        self.asked = threading.Semaphore(0)
        self.noted: list[StreamInput] = []
        self.source = StagedSource(
            tester._launch.plan, self.log, self.note, lambda: None, self.wake, self.delete,
            tester._progress, tester._coordinator.ticks,
        )  # fmt: skip

    # ---- in its thread

    def run(self) -> None:
        try:
            self.stage_all()
        except BaseException as error:  # noqa: BLE001 - raised by `read`
            self.source.end(error)

    def stage_all(self) -> None:
        at = end_of(self.state.last_input)
        for batch in count(self.state.committed):
            if not self.is_ahead:
                self.asked.acquire()
            if at == len(TEXTS):
                break
            assert self.source.upcoming == batch
            planned = self.state.planned
            begun = planned is not None and planned.batch_id == batch
            # Where no transaction has begun, whoever reads it anew may cut it in another place.
            end = end_of(planned) if begun else min(at + self.chance.randint(1, 3), len(TEXTS))
            input = StreamInput("query", batch, f"{at}-{end}")
            parts = staged_rows(self.tester._launch.plan, self.tester._staged, lines(*TEXTS[at:end]), 0)
            assert len(parts) == 1
            assert parts[0].name
            if not self.source.hand_over(StagedBatch(input, parts)):
                return
            if batch == self.renews_after:
                raise RenewInputError("it could not be staged")
            at = end
        self.source.end()

    def wake(self) -> None:
        self.tester._engine.interrupt()
        with self.source._changed:
            self.source._changed.notify_all()

    # ---- in the loop

    def ready(self, txid: int) -> bool:
        """Wait until it is known whether a batch is there; see `is_ahead`."""
        source = self.source
        self.check_read()
        if self.is_ahead:
            with source._changed:
                assert source._changed.wait_for(lambda: source._waiting or source.is_over or txid in source._begun, 30)
        return source.ready(txid)

    def rest(self, secs: float) -> bool:
        """Have the next batch staged, as nothing else is to be done."""
        self.asked.release()
        with self.source._changed:
            assert self.source._changed.wait_for(lambda: self.source._waiting or self.source.is_over, 30)
        return True

    def check_read(self) -> None:
        """Whoever waits for all that is there must not be told too early (see `Query.processAllAvailable`)."""
        handed_over = self.source.upcoming
        assert not self.source.is_read or self.log.state.committed >= handed_over

    def note(self, input: StreamInput) -> StreamInput:
        assert input not in self.noted, "once for all attempts"
        self.noted.append(input)
        return input

    def delete(self, parts: Iterable[StagedPart]) -> None:
        names = [part.name for part in parts]
        begun = {part.name for txid, batch in self.source._begun.items() for part in batch.parts}
        assert begun.isdisjoint(names) or self.source.is_over, "it may be tried again until it is committed"
        self.tester._staged.delete(names)

    # ---- what the loop asks of a source

    def next(self, txid: int) -> Batch:
        assert self.source.next(txid) is self.source.next(txid)
        return self.source.next(txid)

    def look_secs(self) -> float:
        return self.source.look_secs()

    def ended(self, txid: int) -> bool:
        self.check_read()
        return self.source.ended(txid)


def read(tester: TopologyTester, make: Callable[[TopologyTester], Spark]) -> None:
    while True:
        spark = tester.spark = make(tester)
        source = spark.source
        tester._coordinator.rest = spark.rest
        spark.start()
        dead = False
        try:
            tester._coordinator.run(spark)
        except RenewInputError as again:
            source.end(again)
        except Crash:
            dead = True
            raise
        finally:
            if dead:  # whoever is dead deletes nothing
                source.end()
            else:
                source.stop()
            spark.asked.release()
            spark.join(30)
            assert not spark.is_alive()
        source.close()
        if not isinstance(source.error, RenewInputError):
            break
    if source.error is not None:
        raise source.error


# ---- crashes


def nothing(tester: TopologyTester) -> None:
    pass


def attempts_fail(tester: TopologyTester) -> None:
    tester.inject(JobFails(), HooksFail(), JobFails())


def run_is_lost(tester: TopologyTester) -> None:
    lose_run(tester, "after prepare count/0 for 2")


def chain_freezes(tester: TopologyTester) -> None:
    zombie = Zombie(tester, "before prepare count/1 for 2", "count", 1)
    tester.when("after PREPARING(3, 0)", zombie.go_on)


def part_is_lost(tester: TopologyTester) -> None:
    def lose() -> None:
        (part,) = tester.spark.source._begun[2].parts
        tester._staged.delete([part.name])

    tester.when("after PREPARING(2, 0)", lose)


def is_stopped(tester: TopologyTester) -> None:
    def stop() -> None:
        tester.spark.source.stop()
        tester._coordinator.stop()

    tester.when("after PREPARING(2, 0)", stop)


SCHEDULES: dict[str, tuple[Callable[[TopologyTester], None], bool, int | None, set[str]]] = {
    # what goes wrong, whether Spark is ahead, behind which batch its query is started again, what is rolled back
    "nothing fails": (nothing, True, None, set()),
    "nothing fails, and nothing waits": (nothing, False, None, set()),
    "attempts fail": (attempts_fail, True, None, {"ROLLED_BACK(1, 0)", "ROLLED_BACK(1, 1)"}),
    "the run is lost": (run_is_lost, True, None, {"ROLLED_BACK(2, 0)"}),
    "the run is lost, and nothing waits": (run_is_lost, False, None, {"ROLLED_BACK(2, 0)"}),
    "a chain freezes": (chain_freezes, True, None, {"ROLLED_BACK(2, 0)"}),
    "a part is lost": (part_is_lost, True, None, {"ROLLED_BACK(2, 0)"}),
    "the next batch can't be staged": (nothing, True, 1, set()),
    "it can't be staged, and an attempt fails": (run_is_lost, True, 1, {"ROLLED_BACK(2, 0)"}),
    "it is stopped": (is_stopped, True, None, set()),
}


def check(tester: TopologyTester, journal: list[tuple[object, ...]]) -> int:
    """Compare with what the texts come to that are committed; return how many they are."""
    state = tester._coordinator.log.state
    end = end_of(state.last_input)
    counts = words([lines(*TEXTS[:end])])
    assert tester.state("count") == counts
    expected = {"total": sum(counts.values()), "txid": tester.txid} if tester.txid else {}
    assert tester.state("total") == expected
    check_hooks(journal, tester.txid)
    return end


def left(cache: Path) -> set[Path]:
    return {path for path in (cache / "staged").rglob("*") if path.is_file()}


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_crash_at_any_step_while_batches_are_staged_ahead(place, schedule, stride):
    goes_wrong, is_ahead, renews_after, rolled_back = SCHEDULES[schedule]
    passed: set[str] = set()
    committed: set[int] = set()

    def life(steps: DurableSteps) -> None:
        chance, renewing = random.Random(1), [renews_after, None, None]

        def make(tester: TopologyTester) -> Spark:
            return Spark(tester, chance, is_ahead, renewing.pop(0))

        for number in count():
            with driver.start(TOTALS, steps=steps, cache=place / "cache") as tester:
                if number == 0:
                    goes_wrong(tester)
                read(tester, make)
                assert not left(place / "cache")
                passed.update(tester.steps)
                if check(tester, driver.journal) == len(TEXTS):
                    return

    with Driver(place) as driver:
        for point in crashes(place, life, driver.journal, every=stride):
            tester = driver.start(TOTALS, cache=point.cache)
            end, before = check(tester, driver.journal), left(point.cache)
            committed.add(tester.txid)
            if point.is_new(tester.txid, end):
                read(tester, lambda tester: Spark(tester, random.Random(2), is_ahead))  # cut in other places
                assert check(tester, driver.journal) == len(TEXTS)
                assert left(point.cache) <= before, "what it has staged itself is gone"
            tester.close()
    assert {step.removeprefix("after ") for step in passed if step.startswith("after ROLLED_BACK")} == rolled_back
    assert {0, 1, 2, 3} <= committed
    assert f"after PREPARING({max(committed)}, 0)" in passed


# ---- what is handed over


@pytest.fixture
def tester(driver):
    return driver.start(TOTALS)


class Handing:
    def __init__(self, tester: TopologyTester) -> None:
        self.tester = tester
        self.deleted: list[str] = []
        self.woken = threading.Semaphore(0)
        self.source = StagedSource(
            tester._launch.plan, tester._coordinator.log, lambda input: input, lambda: None, self.woken.release,
            lambda parts: self.deleted.extend(part.name for part in parts),
            tester._progress, tester._coordinator.ticks,
        )  # fmt: skip

    def batch(self, number: int) -> StagedBatch:
        parts = staged_rows(self.tester._launch.plan, self.tester._staged, lines(f"text-{number}"), 0)
        return StagedBatch(StreamInput("query", number, f"{number}-{number + 1}"), parts)

    def hand_over(self, batch: StagedBatch) -> tuple[threading.Thread, list[bool]]:
        """Hand a batch over in a thread; return when it is there, with what is said of it."""
        said: list[bool] = []
        thread = threading.Thread(target=lambda: said.append(self.source.hand_over(batch)), daemon=True)
        thread.start()
        assert self.woken.acquire(timeout=30)
        return thread, said


def names(*batches: StagedBatch) -> list[str]:
    return [part.name for batch in batches for part in batch.parts]


def test_a_batch_is_taken_when_a_transaction_begins_and_its_parts_stay_until_it_is_committed(tester):
    handing = Handing(tester)
    source, first, second = handing.source, handing.batch(0), handing.batch(1)
    assert not source.ready(1)
    assert source.upcoming == 0
    thread, said = handing.hand_over(first)
    assert (source.upcoming, said) == (1, [])
    assert not source.is_read
    assert source.ready(1)
    thread.join(30)
    assert said == [True]
    assert source.ready(1), "as often as it is asked"
    assert source.next(1) is source.next(1)
    assert source.upcoming == 1
    thread, said = handing.hand_over(second)
    assert source.upcoming == 2
    tester._coordinator.transact(source.next(1))
    assert handing.deleted == []
    assert source.ready(2)
    assert handing.deleted == names(first)
    thread.join(30)
    assert said == [True]
    assert not source.is_read
    assert not source.ended(2)
    source.end()
    assert source.ready(2)
    assert not source.ended(2)
    tester._coordinator.transact(source.next(2))
    assert source.ended(3)
    assert handing.deleted == names(first, second)
    assert tester.state("count") == {"text-0": 1, "text-1": 1}


def test_what_waits_when_it_is_stopped_is_deleted_and_what_has_begun_is_read(tester):
    handing = Handing(tester)
    source, first, second, third = handing.source, *map(handing.batch, range(3))
    handing.hand_over(first)
    assert source.ready(1)
    thread, said = handing.hand_over(second)
    source.stop()
    thread.join(30)
    assert said == [False]
    assert handing.deleted == names(second)
    assert source.ready(1)
    assert not source.ended(1)
    assert source.hand_over(third) is False
    assert handing.deleted == names(second, third)
    tester._coordinator.transact(source.next(1))
    assert source.ended(2)
    assert not source.ready(2)
    source.stop()
    source.close()
    assert handing.deleted == names(second, third, first)


def test_the_first_reason_counts_and_what_was_handed_over_is_read(tester):
    handing = Handing(tester)
    source, first = handing.source, handing.batch(0)
    thread, said = handing.hand_over(first)
    source.end(error := RenewInputError("first"))
    source.end(RenewInputError("second"))
    thread.join(30)
    assert said == [False]
    assert source.error is error
    assert not source.ended(1)
    assert source.ready(1)
    tester._coordinator.transact(source.next(1))
    assert source.ended(2)


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_over_parts_that_are_lost_nothing_is_tried_again(tester, harm):
    handing = Handing(tester)
    source, first = handing.source, handing.batch(0)
    handing.hand_over(first)
    assert source.ready(1)
    path = Path(tester._staged.url) / first.parts[0].name
    whole = path.read_bytes()
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(RenewInputError, match=f"{path.name} is {harm}"):
        tester._coordinator.transact(source.next(1))
    assert tester.steps[-1] == "after ROLLED_BACK(1, 0)"
    path.write_bytes(whole)
    tester.inject(JobFails())
    done = tester._coordinator.transact(source.next(1))
    assert done.attempt == 2, "what has failed for another reason is tried again over the same parts"
    assert tester.state("count") == {"text-0": 1}


def test_a_lost_batch_is_not_read_until_another_query_reads_it(tester):
    handing = Handing(tester)
    source, first = handing.source, handing.batch(0)
    handing.hand_over(first)
    assert source.ready(1)
    tester._staged.delete(names(first))
    with pytest.raises(RenewInputError) as caught:
        tester._coordinator.transact(source.next(1))
    for leave in (lambda: source.end(caught.value), source.stop, source.close):
        assert not source.is_read
        leave()
    assert not source.is_read


def test_an_input_that_ends_between_two_looks_ends_the_loop(tester, monkeypatch):
    source = Handing(tester).source
    ended, looks = source.ended, []

    def looked(txid: int) -> bool:
        looks.append(ended(txid))
        source.end()  # as the thread does that waits for Spark's query
        return looks[-1]

    monkeypatch.setattr(source, "ended", looked)
    tester._coordinator.run(source)
    assert looks == [False, True]


def test_a_planned_batch_is_expected_with_its_offsets_alone(tester):
    """Rule 3.7."""
    handing = Handing(tester)
    source, first, second = handing.source, handing.batch(0), handing.batch(1)
    assert source.expects(first.input)
    assert not source.expects(second.input)
    handing.hand_over(first)
    assert source.ready(1)
    stop_at_first_failure(tester, source, 1)
    source = Handing(tester).source
    assert source.expects(first.input)
    assert not source.expects(replace(first.input, offsets="0-2"))
    assert not source.expects(replace(first.input, query_id="another"))


def test_a_tick_that_is_rolled_back_leaves_the_next_batch_to_spark(tester):
    """It reads nothing that would have to come again: a next driver that reads once would read that alone."""
    handing = Handing(tester)
    source, first, second = handing.source, handing.batch(0), handing.batch(1)
    handing.hand_over(first)
    assert source.ready(1)
    tester._coordinator.transact(source.next(1))
    source.ticks, source.interval_secs = Ticks({"count": 1.0}, tester._coordinator.log, 0), 0.0
    tester.advance(10)
    assert source.ready(2)
    stop_at_first_failure(tester, source, 2)
    assert tester._coordinator.log.state.planned is None
    assert source.expects(second.input)
    source = Handing(tester).source
    assert source.expects(second.input)
    assert not source.expects(first.input)


class Guarded(dict[int, StagedBatch]):
    """Transactions that have begun, of a source; whoever looks at all of them or changes them holds its lock."""

    def __init__(self, source: StagedSource) -> None:
        super().__init__(source._begun)
        self.source, self.changes = source, 0

    def check(self) -> None:
        # One of another thread would be held by nobody here.
        assert self.source._changed._is_owned(), "without the lock"  # type: ignore[attr-defined]

    def __setitem__(self, *given: Any) -> None:
        self.check()
        self.changes += 1
        super().__setitem__(*given)

    def __iter__(self) -> Iterator[int]:
        self.check()
        return super().__iter__()

    def pop(self, *given: Any) -> StagedBatch:
        self.check()
        return super().pop(*given)

    def values(self) -> Any:
        self.check()
        return super().values()

    def clear(self) -> None:
        self.check()
        super().clear()


@pytest.mark.parametrize("ahead", [True, False])
def test_what_has_begun_is_changed_under_the_lock_alone(tester, ahead):
    """Spark's thread looks at all of it, while the loop takes a batch, begins a tick, forgets both, and ends."""
    handing = Handing(tester)
    source = handing.source
    source.ahead = ahead
    begun = source._begun = Guarded(source)
    for batch in map(handing.batch, range(2)):
        txid = tester.txid + 1
        thread, said = handing.hand_over(batch)
        assert source.ready(txid)
        tester._coordinator.transact(source.next(txid))
        assert not source.ended(txid + 1)
        thread.join(30)
        assert said == [True]
    source.ticks, source.interval_secs = Ticks({"count": 1.0}, tester._coordinator.log, 0), 0.0
    tester.advance(10)
    assert source.ready(3)
    assert not source.is_read
    assert begun.changes == 3, "the last one is a tick's"
    source.close()
    assert not begun.keys()


def stop_at_first_failure(tester: TopologyTester, source: StagedSource, txid: int) -> None:
    tester.inject(JobFails())
    tester.when("pause", tester._coordinator.stop)
    with pytest.raises(StoppedError):
        tester._coordinator.transact(source.next(txid))


@pytest.mark.slow
def test_a_source_that_lets_go_is_held_until_its_batch_is_committed(tester):
    handing = Handing(tester)
    source, first = handing.source, handing.batch(0)
    source.ahead = False
    thread, said = handing.hand_over(first)
    assert source.ready(1)
    thread.join(0.2)
    assert said == []
    tester._coordinator.transact(source.next(1))
    assert not source.ready(2)
    thread.join(30)
    assert said == [True]


@pytest.mark.parametrize("what", ["nothing", "planned", "busy"])
def test_a_tick_takes_neither_the_number_of_a_planned_batch_nor_the_place_of_one_that_is_staged(tester, what):
    """Rule 3.9: the rows of an attempt that another driver has begun come again under its number."""
    handing = Handing(tester)
    source, first, second = handing.source, handing.batch(0), handing.batch(1)
    handing.hand_over(first)
    assert source.ready(1)
    tester._coordinator.transact(source.next(1))
    if what == "planned":
        handing.hand_over(second)
        assert source.ready(2)
        stop_at_first_failure(tester, source, 2)
        handing = Handing(tester)
        source = handing.source
    source.ticks, source.interval_secs = Ticks({"count": 1.0}, tester._coordinator.log, 0), 0.0
    source.busy = lambda: what == "busy"
    tester.advance(10)
    assert source.ready(tester.txid + 1) is (what == "nothing")
    if what == "nothing":
        batch = source.next(2)
        assert isinstance(batch.input, StreamInput)
        assert (batch.input.batch_id, batch.input.offsets) == (1, first.input.offsets)
        assert source.upcoming == 1, "Spark counts its own batches alone"
