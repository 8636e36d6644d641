"""The conformance suite of spouts, shipped for those who write one; needs the extra ``testing``."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from statefx.config import Config
from statefx.coordinator.driver_spout import DriverSpout
from statefx.operators.bolts import StatefulBolt
from statefx.operators.context import DRIVER, Context
from statefx.operators.spouts import ReplayingSpout, TransactionalSpout, may_finish
from statefx.plan.deployment import Deployment
from statefx.plan.levels import compile_plan
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.order import Emission, EmissionOrder, Order
from statefx.runtime.outlets import Outbox
from statefx.runtime.spout_task import SpoutTask
from statefx.runtime.worker import Worker
from statefx.testing.contract import Contract
from statefx.testing.crashes import crashes
from statefx.testing.processes import WatchingCollector
from statefx.testing.steps import DurableSteps
from statefx.testing.tester import TopologyTester
from statefx.topology.builder import TopologyBuilder

TRANSACTIONS_MAX = 1000
LOOKS_MAX = 5
"""How often in a row a spout may find nothing before it counts as having read all that there is."""

Rows = Counter[str]
Said = dict[str, Any]
"""Metadata by partition; a TransactionalSpout has one, without a name."""


@dataclass
class Emitted:
    """The outcome of one transaction: its metadata, its rows, and the metadata before."""

    txid: int
    before: Said
    said: Said = field(default_factory=dict)
    rows: Rows = field(default_factory=Counter)

    @property
    def something(self) -> bool:
        """Whether anything was read; metadata that stays as it was says that nothing was."""
        return bool(self.rows) or any(self.before.get(name) != each for name, each in self.said.items())


def _context(task: int, parallelism: int, config: Mapping[str, Any]) -> Context:
    settings = Config.parse(config, "spout").mapping()
    return Context(settings, "spout", task, parallelism, 1, "origin")


class _Tasks:
    """The tasks of a spout, all of them new."""

    def __init__(self, contract: SpoutContract, spout: ReplayingSpout, parallelism: int) -> None:
        plan = compile_plan(_topology(pickle.loads(pickle.dumps(spout)), parallelism))
        config = Config.parse(contract.config, "spout").mapping()
        nowhere = cast("Any", None)  # nothing is stored
        deployment = Deployment("spout", plan, config, "", {}, "origin", 1, nowhere, nowhere, origin="origin")
        self._tasks = [SpoutTask(Worker(), deployment, TaskId("spout", task)) for task in range(parallelism)]
        for task in self._tasks:
            task.collector_class = WatchingCollector

    def emit(self, attempt: TransactionAttempt, orders: Sequence[EmissionOrder]) -> tuple[Said, Rows]:
        """Emit what the tasks are told; return what they say together, and all rows."""
        said: Said = {}
        rows: Rows = Counter()
        for task, told in zip(self._tasks, orders, strict=True):
            order = Order(attempt, 1, emissions={task.id: copy.deepcopy(told)})
            task.enter(order, "token", (), Outbox(0, 0, ()))
            task.begin()
            paused = task.emit()
            while paused:
                paused = task.resume()
            found = cast("Said | None", task.prepare().metadata)
            said |= told.partitions if told.emission is Emission.AGAIN else found or {}
            collector = task.attempt.collector
            assert isinstance(collector, WatchingCollector)
            rows += Counter(repr((each, row)) for (_, each), given in collector.watched.items() for row in given)
        return said, rows

    def close(self) -> None:
        for task in self._tasks:
            task.close()


class _Driver:
    """A driver and its tasks, from one start to the next."""

    def __init__(
        self, contract: SpoutContract, spout: ReplayingSpout, said: Said | None = None, parallelism: int = 0
    ) -> None:
        self.contract = contract
        self.said = dict(said or {})
        """The newest metadata of each partition."""
        self.parallelism = parallelism or contract.parallelism
        self.spout = spout
        self.own = DriverSpout("spout", pickle.loads(pickle.dumps(spout)), self.parallelism)
        self.own.spout.open(_context(DRIVER, self.parallelism, contract.config))
        if not isinstance(spout, TransactionalSpout):
            known = {int(name): copy.deepcopy(each) for name, each in self.said.items()}
            self.own.spout.initPartitions(known)  # type: ignore[attr-defined]  # those with partitions have it
        self.tasks = _Tasks(contract, spout, self.parallelism)

    @property
    def plans(self) -> bool:
        return self.own.emission is Emission.AGAIN

    def plan(self, txid: int, before: Said | None = None) -> Said:
        """Return what the driver plans; of a spout that plans nothing, what its tasks are told."""
        ready = self.own.spout.isReady()
        assert isinstance(ready, bool), f"isReady returns True or False, not {ready!r}"
        before = copy.deepcopy(self.said if before is None else before)
        if self.plans:
            return self.own.plan(txid, before) if ready else {}
        names = self.own.partitions(txid, before)
        return {name: before.get(name) for name in names} if ready else {}

    def orders(self, told: Said, emission: Emission | None = None, committed: int = -1) -> list[EmissionOrder]:
        return [each for _, each in self.own.orders(emission or self.own.emission, told, committed)]

    def next(self, txid: int, attempt: int = 0) -> Emitted:
        """Run a transaction; it counts when `take` is given it."""
        found = Emitted(txid, dict(self.said))
        orders = self.orders(self.plan(txid), committed=txid - 1)
        found.said, found.rows = self.tasks.emit(TransactionAttempt(txid, attempt), orders)
        return found

    def take(self, emitted: Emitted) -> Emitted:
        self.said = {**self.said, **emitted.said}
        return emitted

    def drain(self, first: int = 1, most: int = TRANSACTIONS_MAX) -> list[Emitted]:
        """Run and take transactions until there is nothing more to read."""

        def taken(txid: int) -> Emitted:
            emitted = self.take(self.next(txid))
            assert emitted.said or not emitted.rows, "rows without metadata would come again and again"
            return emitted

        return _until_nothing(taken, first, most)

    def again(self, emitted: Emitted, tasks: _Tasks | None = None, committed: int | None = None) -> tuple[Said, Rows]:
        """Emit a transaction again; by default as tasks do that have seen nothing yet."""
        attempt, orders = TransactionAttempt(emitted.txid, 1), self.orders_again(emitted, committed)
        if tasks is not None:
            return tasks.emit(attempt, orders)
        with closing(_Tasks(self.contract, self.spout, self.parallelism)) as fresh:
            return fresh.emit(attempt, orders)

    def orders_again(self, emitted: Emitted, committed: int | None = None) -> list[EmissionOrder]:
        # What is emitted again is not committed, and neither is what comes after it.
        committed = emitted.txid - 1 if committed is None else committed
        return self.orders(emitted.said, Emission.AGAIN, committed)

    def close(self) -> None:
        self.own.spout.close()
        self.tasks.close()


def _together(emitted: Sequence[Emitted]) -> Rows:
    return sum((each.rows for each in emitted), Counter())


def _until_nothing(run: Callable[[int], Emitted], first: int = 1, most: int = TRANSACTIONS_MAX) -> list[Emitted]:
    """Run transactions until there is nothing more to read, or `most` had something; return those that had."""
    found: list[Emitted] = []
    nothing = 0
    for txid in range(first, first + TRANSACTIONS_MAX):
        emitted = run(txid)
        nothing = 0 if emitted.something else nothing + 1
        if emitted.something:
            found.append(emitted)
        if nothing == LOOKS_MAX or len(found) == most:
            return found
    raise AssertionError(f"there was something to read in each of {TRANSACTIONS_MAX} transactions")


class Count(StatefulBolt):
    """Counts rows."""

    def initState(self, state: Any) -> None:
        self.counts = state

    def execute(self, tup: Any, collector: Any) -> None:
        row = repr((tup._stream, tuple(tup)))
        self.counts[row] = self.counts.get(row, 0) + 1


def _topology(spout: ReplayingSpout, parallelism: int = 1) -> Any:
    builder = TopologyBuilder("spout")
    builder.setSpout("spout", spout, parallelism=parallelism)
    reader = builder.setBolt("count", Count())
    declared = spout.outputFields
    for stream in declared if isinstance(declared, Mapping) else ["default"]:
        reader.globalGrouping("spout", stream=stream)
    return builder.createTopology()


class SpoutContract(Contract):
    """The contract of spouts, as pytest tests.

    Subclass it in a test module and define `make` and `rows`. No test may be overridden.
    """

    parallelism = 2
    """How many tasks read it."""

    config: ClassVar[Mapping[str, Any]] = {}
    """The topology's settings."""

    def make(self, place: Path) -> ReplayingSpout:
        """Return a spout over a source that has rows for three transactions or more.

        What it needs is made below `place`, or is there already; it is called once in a test.
        """
        raise NotImplementedError

    def rows(self, place: Path) -> Sequence[tuple[Any, ...]]:
        """Return all rows that the source has; of the stream ``default``, or as (stream, row) of several ones."""
        raise NotImplementedError

    def more(self, place: Path) -> Sequence[tuple[Any, ...]]:
        """Add rows to the source and return them; none, if rows can't be added."""
        return ()

    @contextmanager
    def _drained(self, place: Path) -> Iterator[tuple[_Driver, list[Emitted]]]:
        """Read all that there is; skip a spout that may emit other rows when it is asked again."""
        with closing(_Driver(self, self.make(place))) as driver:
            if driver.own.emission is Emission.OPAQUE:
                pytest.skip("an opaque spout may emit other rows")
            yield driver, driver.drain()

    def _all(self, rows: Sequence[tuple[Any, ...]]) -> Rows:
        def with_stream(row: tuple[Any, ...]) -> tuple[Any, ...]:
            has_one = len(row) == 2 and isinstance(row[0], str) and isinstance(row[1], tuple)
            return row if has_one else ("default", row)

        return Counter(repr(with_stream(row)) for row in rows)

    def test_every_row_comes_once_in_three_transactions_or_more(self, tmp_path: Path) -> None:
        with closing(_Driver(self, self.make(tmp_path))) as driver:
            emitted = driver.drain()
        assert _together(emitted) == self._all(self.rows(tmp_path))
        assert len(emitted) >= 3, "the contract needs a source for several transactions"

    def test_the_same_metadata_emits_the_same_rows_in_another_task(self, tmp_path: Path) -> None:
        with self._drained(tmp_path) as (driver, emitted):
            for each in emitted:
                assert driver.again(each)[1] == each.rows, f"transaction {each.txid}"

    def test_a_transaction_is_emitted_again_when_all_was_read(self, tmp_path: Path) -> None:
        """Also backwards: which one fails, and when, nobody knows."""
        with self._drained(tmp_path) as (driver, emitted):
            self.more(tmp_path)
            for each in reversed(emitted):
                assert driver.again(each)[1] == each.rows, f"transaction {each.txid}"

    def test_the_same_metadata_emits_the_same_rows_in_another_process(self, tmp_path: Path) -> None:
        with self._drained(tmp_path) as (driver, emitted):
            asked = [(TransactionAttempt(each.txid, 1), driver.orders_again(each)) for each in emitted]
            work = pickle.dumps((self.config, self.parallelism, driver.spout, asked))
        program = "from statefx.testing import spout_contract; spout_contract.run_process()"
        own = {"PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path])), "PYTHONHASHSEED": "7"}
        done = subprocess.run(
            [sys.executable, "-c", program], input=work, env=os.environ | own, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        assert pickle.loads(done.stdout) == [each.rows for each in emitted]

    def test_another_attempt_of_the_same_transaction_emits_the_same_rows_from_a_task_that_goes_on(
        self, tmp_path: Path
    ) -> None:
        """The tasks' copies are kept: what they remember of the attempt that failed may not count."""
        with self._drained(tmp_path) as (driver, emitted):
            for each in emitted:
                assert driver.again(each, driver.tasks)[1] == each.rows

    def test_an_attempt_that_failed_leaves_nothing_out_and_doubles_nothing(self, tmp_path: Path) -> None:
        """Each transaction is tried twice; where its metadata was not durable, the second attempt finds out anew."""
        with closing(_Driver(self, self.make(tmp_path))) as driver:

            def twice(txid: int) -> Emitted:
                first = driver.next(txid)
                return driver.take(first if driver.plans else driver.next(txid, 1))

            emitted = _until_nothing(twice)
        assert _together(emitted) == self._all(self.rows(tmp_path))

    def test_the_next_driver_goes_on_behind_what_was_read(self, tmp_path: Path) -> None:
        spout = self.make(tmp_path)
        said: Said = {}
        emitted: list[Emitted] = []
        for _ in range(TRANSACTIONS_MAX):
            with closing(_Driver(self, spout, said)) as driver:
                found = driver.drain(len(emitted) + 1, most=1)
                said = driver.said
            if not found:
                break
            emitted += found
        assert _together(emitted) == self._all(self.rows(tmp_path))

    def test_what_a_driver_has_planned_and_not_written_down_is_planned_again(self, tmp_path: Path) -> None:
        spout = self.make(tmp_path)
        said: Said = {}

        def planned_twice(txid: int) -> Emitted:
            with closing(_Driver(self, spout, said)) as killed:
                killed.plan(txid)
            with closing(_Driver(self, spout, said)) as driver:
                found = driver.take(driver.next(txid))
            said.update(driver.said)
            return found

        assert _together(_until_nothing(planned_twice)) == self._all(self.rows(tmp_path))

    def test_where_there_is_nothing_new_nothing_is_read(self, tmp_path: Path) -> None:
        with closing(_Driver(self, self.make(tmp_path))) as driver:
            last = driver.drain()[-1].txid
            for txid in range(last + LOOKS_MAX + 1, last + 2 * LOOKS_MAX):
                found = driver.next(txid)
                assert not found.something
                assert not (driver.plans and found.said), "transactions without rows would follow each other for ever"
                driver.take(found)

    def test_a_finished_partition_stays_finished_without_rows(self, tmp_path: Path) -> None:
        """What `isFinished` says is trusted: the watermark passes rows that would come all the same."""
        spout = self.make(tmp_path)
        if not may_finish(spout):
            pytest.skip("its partitions never finish")
        finished: set[str] = set()
        with closing(_Driver(self, spout)) as driver:
            asked: Any = driver.own.spout
            for emitted in driver.drain():
                again = [name for name in finished if emitted.said.get(name, "") not in ("", emitted.before[name])]
                assert not again, f"there were batches of {again}, which isFinished had called finished"
                for name, said in emitted.said.items():
                    answers = [asked.isFinished(int(name), copy.deepcopy(said)) for _ in range(2)]
                    assert answers in ([True] * 2, [False] * 2), f"isFinished goes by its arguments, not {answers}"
                    finished |= {name} if answers[0] else set()
            known = {int(name) for name in driver.said if asked.isFinished(int(name), driver.said[name])}
        assert known == set(map(int, finished)), "what is finished stays finished"

    def test_rows_that_are_added_come_once(self, tmp_path: Path) -> None:
        spout = self.make(tmp_path)
        with closing(_Driver(self, spout)) as driver:
            last = driver.drain()[-1].txid
            added = self._all(self.more(tmp_path))
            if not added:
                pytest.skip("rows can't be added to this source")
            assert _together(driver.drain(last + LOOKS_MAX + 1)) == added
        with closing(_Driver(self, spout, driver.said)) as successor:
            assert _together(successor.drain(last + 100)) == Counter()

    def test_other_tasks_emit_the_same_rows_together(self, tmp_path: Path) -> None:
        """The parallelism may be another one after a restart, while a transaction waits to be tried again."""
        with self._drained(tmp_path) as (driver, emitted):
            spout, said = driver.spout, driver.said
        for parallelism in (1, self.parallelism + 1):
            with closing(_Driver(self, spout, said, parallelism)) as other:
                for each in emitted:
                    assert other.again(each)[1] == each.rows

    def test_cleaning_up_takes_nothing_that_is_not_committed(self, tmp_path: Path) -> None:
        with self._drained(tmp_path) as (driver, emitted):
            for txid in range(1, emitted[-1].txid + 1):
                for each in emitted:
                    if each.txid >= txid:
                        assert driver.again(each, driver.tasks, committed=txid - 1)[1] == each.rows

    def test_a_topology_whose_driver_crashes_at_any_step_counts_each_row_once(self, tmp_path: Path) -> None:
        topology, root = _topology(self.make(tmp_path), self.parallelism), tmp_path / "crashes"
        root.mkdir()
        expected = self._all(self.rows(tmp_path))

        def life(steps: DurableSteps | None = None) -> dict[Any, int]:
            with TopologyTester(topology, root / "checkpoint", self.config, steps=steps) as tester:
                tester.drain()
                return tester.state("count")

        for point in crashes(root, life):
            with TopologyTester(topology, root / "checkpoint", self.config) as recovered:
                assert Counter(recovered.state("count")) <= expected, point
            if point.is_new(recovered.txid):
                assert life() == expected, point


def run_process() -> None:
    """Emit, in a process of its own, what standard input asks for."""
    config, parallelism, spout, asked = pickle.load(sys.stdin.buffer)
    contract = SpoutContract()
    vars(contract)["config"] = config
    tasks = _Tasks(contract, spout, parallelism)
    sys.stdout.buffer.write(pickle.dumps([tasks.emit(attempt, orders)[1] for attempt, orders in asked]))
