"""The conformance suite of sinks, shipped for those who write one; needs the extra ``testing``."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pyarrow as pa
import pytest

from statefx.connectors.files import FileSink
from statefx.connectors.files.manifest import txid_of_file
from statefx.errors import FencedError, SinkError, SinkMismatchError, SinkOwnedError
from statefx.operators.sinks import (
    COMMITTABLE_BYTES_MAX,
    CheckpointPosition,
    Committable,
    CommitterContext,
    Owner,
    Sink,
    SinkCommitter,
    WriterContext,
)
from statefx.protocol.identity import TransactionAttempt
from statefx.storage import FolderStorage
from statefx.testing.contract import Contract
from statefx.testing.steps import Crash


class At:
    """Calls something at the n-th step; or crashes there, and at each one from there on, as who is dead."""

    def __init__(self, at: int, do: Callable[[], None] | None = None) -> None:
        self._left, self._do = at, do
        self.passed = False

    def __call__(self) -> None:
        """Count this step."""
        self._left -= 1
        self.passed = self._left <= 0
        if self.passed and self._do is None:
            raise Crash
        if self._left == 0 and self._do is not None:
            self._do()


@contextmanager
def folder_steps(step: Callable[[], None]) -> Iterator[None]:
    """Call `step` before every change in a folder."""
    delete = FolderStorage.delete

    def stepped(name: str) -> AbstractContextManager[Any]:
        method = getattr(FolderStorage, name)

        def call(self: FolderStorage, *arguments: Any) -> Any:
            step()
            return method(self, *arguments)

        return patch.object(FolderStorage, name, call)

    def deleted(self: FolderStorage, names: Any) -> None:
        for name in names:
            step()
            delete(self, [name])

    with stepped("create"), stepped("writer"), patch.object(FolderStorage, "delete", deleted):
        yield


TOGETHER_SECS = 2
"""So long one waits for the other, which may be waiting for a lock that this one holds."""


def _meet(barrier: threading.Barrier) -> None:
    """Wait for the other thread, so that both have looked before one writes."""
    with suppress(threading.BrokenBarrierError):
        barrier.wait(TOGETHER_SECS)


START = CheckpointPosition(0, 0)
FIRST, SECOND, THIRD = (Owner("app", "origin", generation) for generation in (1, 2, 3))
OTHERS = (Owner("app", "copy", 1), Owner("else", "origin", 1))
STEPS_MAX = 300

Named = Mapping[int, Committable]


class _Driver:
    """Drivers and tasks of one checkpoint with a sink; each call has it from a pickle, as another process."""

    def __init__(self, contract: SinkContract, place: Path, checkpoint: str = "checkpoint") -> None:
        self.contract = contract
        self.sink = contract.make(place)
        self.storage = FolderStorage(place / checkpoint)
        self._committers: list[SinkCommitter] = []

    def committer(self, owner: Owner) -> SinkCommitter:
        sink: Sink = pickle.loads(pickle.dumps(self.sink))
        committer = sink.committer(CommitterContext("out", owner, self.contract.schema, self.storage))
        self._committers.append(committer)
        return committer

    def kill(self) -> None:
        """End all connections, as the system does with those of a process that died."""
        for each in self._committers:
            with suppress(Exception, Crash):
                each.close()

    def start(self, owner: Owner, reached: CheckpointPosition = START, *, takeover: bool = False) -> SinkCommitter:
        before = self.committer(Owner(owner.application, owner.origin, owner.generation - 1))
        before.check(reached, takeover=takeover)
        before.close()
        found = self.committer(owner)
        found.fence(reached, takeover=takeover)
        return found

    def write(self, txid: int, *words: Sequence[str]) -> Named:
        """Return what the tasks have prepared, each of which writes some words."""
        named = {}
        for task, some in enumerate(words):
            sink: Sink = pickle.loads(pickle.dumps(self.sink))
            context = WriterContext(
                component="out",
                task=task,
                parallelism=len(words),
                attempt=TransactionAttempt(txid, 0),
                token=uuid4().hex,
                schema=self.contract.schema,
                storage=self.storage,
            )
            writer = sink.writer(context)
            rows = {"word": list(some), "n": list(range(len(some)))}
            writer.write(pa.RecordBatch.from_pydict(rows, schema=self.contract.schema))
            prepared = writer.prepare(txid)
            writer.close()
            if prepared is not None:
                text = json.dumps(dict(prepared))
                assert len(text) <= COMMITTABLE_BYTES_MAX
                named[task] = json.loads(text)
        return named

    def read(self) -> list[str]:
        return sorted(self.contract.read(self.sink))


def _commit(committer: SinkCommitter, txid: int, named: Named) -> None:
    committer.commit(TransactionAttempt(txid, 0), named)


def _race(committers: Sequence[SinkCommitter], txid: int, named: Named, barrier: threading.Barrier) -> None:
    """Commit in two threads at once; what the slower one raises is its own affair."""

    def commit(committer: SinkCommitter) -> None:
        _meet(barrier)
        with suppress(Exception):
            _commit(committer, txid, named)
        barrier.abort()  # the other one waits for nobody any more

    with ThreadPoolExecutor(len(committers)) as threads:
        list(threads.map(commit, committers))


class SinkContract(Contract):
    """The contract of sinks, as pytest tests.

    Subclass it in a test module and define `make` and `read`. No test may be overridden.
    """

    schema = pa.schema([("word", pa.string()), ("n", pa.int64())])

    checksummed = True
    """Whether a commit notices a byte that was changed in a staged file. FileSink's notices its length alone."""

    first, stride = 1, 1
    """The steps at which drivers crash or stop: the first one, and how far the next one is. Each is tried by default;
    a sample, whose beginning changes from run to run, is for a server that takes seconds for each."""

    def make(self, place: Path) -> Sink:
        """Return a sink whose target is in the folder `place`, or is named after it; of one place, one target."""
        raise NotImplementedError("a subclass of SinkContract defines 'make'")

    def read(self, sink: Sink) -> Sequence[str]:
        """Return ``word`` of all rows that a reader of the target sees; none if there is no target yet."""
        raise NotImplementedError("a subclass of SinkContract defines 'read'")

    def staged(self, sink: Sink, storage: FolderStorage) -> Sequence[Path] | None:
        """Return the files of rows that wait to be published.

        By default those of a StagedSink and of FileSink; override it for others. None says that the rows are no
        files, and that nobody can lose them.
        """
        if isinstance(sink, FileSink):
            folder = FolderStorage(sink.target)
            return [Path(folder.path(each.name)) for each in folder.list() if txid_of_file(each.name) is not None]
        return [Path(storage.path(each.name)) for each in storage.list("staged/")]

    def steps(self, step: Callable[[], None]) -> AbstractContextManager[Any]:
        """Call `step` before each durable step of a sink, by default those in folders.

        Override it for a target that is not a folder, beside ``super().steps(step)``.
        """
        return folder_steps(step)

    def pauses(self, step: Callable[[], None]) -> AbstractContextManager[Any]:
        """Call `step` before each durable step at which a driver may stop while others go on; by default every one.

        Leave out those at which the sink holds a lock of the target.
        """
        return self.steps(step)

    def _every_step(self, place: Path, run: Callable[[Path, int], bool]) -> bool:
        """Run in a folder of its own for each step, while there is such a step; tell whether there was one."""

        def sees(at: int) -> bool:
            (place / str(at)).mkdir()
            return run(place / str(at), at)

        seen = sum(1 for _ in takewhile(sees, range(self.first, STEPS_MAX, self.stride)))
        return bool(seen) or (self.first > 1 and sees(1))  # there may be fewer steps than `first`

    # ---- committing

    def test_rows_are_seen_when_they_are_committed_and_not_before(self, tmp_path: Path) -> None:
        driver = _Driver(self, tmp_path)
        committer = driver.start(FIRST)
        named = driver.write(1, ["a", "b"], ["c"])
        driver.write(1, ["nobody", "names"], ["this"])
        assert driver.read() == []
        _commit(committer, 1, named)
        assert driver.read() == ["a", "b", "c"]

    def test_a_commit_again_changes_nothing_in_this_driver_or_the_next(self, tmp_path: Path) -> None:
        driver = _Driver(self, tmp_path)
        committer = driver.start(FIRST)
        first, second = driver.write(1, ["a"]), driver.write(2, ["b"])
        for txid, named in [(1, first), (1, first), (2, second), (1, first), (2, second)]:
            _commit(committer, txid, named)
        for reached, owner in [(CheckpointPosition(1, 2), SECOND), (CheckpointPosition(2, 2), THIRD)]:
            _commit(driver.start(owner, reached), 2, second)
        assert driver.read() == ["a", "b"]

    def test_a_transaction_without_rows_moves_the_marker(self, tmp_path: Path) -> None:
        driver = _Driver(self, tmp_path)
        committer = driver.start(FIRST)
        _commit(committer, 1, {})
        _commit(committer, 2, driver.write(2, [], []))
        committer = driver.start(SECOND, CheckpointPosition(2, 2))
        _commit(committer, 3, driver.write(3, ["a"], []))
        assert driver.read() == ["a"]

    def test_a_commit_that_left_out_a_transaction_is_refused(self, tmp_path: Path) -> None:
        driver = _Driver(self, tmp_path)
        committer = driver.start(FIRST)
        with pytest.raises(SinkMismatchError):
            _commit(committer, 2, driver.write(2, ["b"]))
        assert driver.read() == []

    # ---- who may write

    def test_an_older_generation_publishes_nothing_that_the_newer_one_has_not(self, tmp_path: Path) -> None:
        driver = _Driver(self, tmp_path)
        zombie = driver.start(FIRST)
        old, new = driver.write(1, ["old"]), driver.write(1, ["new"])
        newer = driver.start(SECOND)
        with pytest.raises(FencedError):
            _commit(zombie, 1, old)
        _commit(newer, 1, new)
        _commit(zombie, 1, old)  # passed over: transaction 1 is there
        assert driver.read() == ["new"]
        for takeover in (False, True):
            with pytest.raises(FencedError):
                driver.committer(FIRST).fence(CheckpointPosition(1, 1), takeover=takeover)
        _commit(newer, 2, driver.write(2, ["b"]))
        assert driver.read() == ["b", "new"]

    def test_a_target_of_another_is_refused_and_can_be_taken_over(self, tmp_path: Path) -> None:
        for number, other in enumerate(OTHERS):
            place = tmp_path / str(number)
            place.mkdir()
            driver, another = _Driver(self, place), _Driver(self, place, "other")
            former = driver.start(FIRST)
            for txid in (1, 2):
                _commit(former, txid, driver.write(txid, [f"a{txid}"]))
            for call in (another.committer(other).check, another.committer(other).fence):
                with pytest.raises(SinkOwnedError):
                    call(START, takeover=False)
            late = driver.write(3, ["late"])
            later = another.start(other, takeover=True)
            coming = another.write(1, ["b"])
            former.sweep(2)
            with pytest.raises(SinkOwnedError):
                _commit(former, 3, late)
            _commit(later, 1, coming)
            assert driver.read() == ["a1", "a2", "b"]

    def test_a_target_that_is_elsewhere_than_the_checkpoint_is_refused(self, tmp_path: Path) -> None:
        driver = _Driver(self, tmp_path)
        _commit(driver.start(FIRST), 1, driver.write(1, ["a"]))
        for reached in (CheckpointPosition(0, 0), CheckpointPosition(3, 3)):
            with pytest.raises(SinkMismatchError):
                driver.committer(FIRST).check(reached, takeover=False)
            with pytest.raises(SinkMismatchError):
                driver.committer(SECOND).fence(reached, takeover=False)
        committer = driver.start(SECOND, CheckpointPosition(3, 3), takeover=True)
        _commit(committer, 4, driver.write(4, ["d"]))
        assert driver.read() == ["a", "d"]

    def test_takeover_of_what_is_in_place_doubles_nothing(self, tmp_path: Path) -> None:
        driver = _Driver(self, tmp_path)
        named = driver.write(1, ["a"])
        for owner, reached in [(FIRST, START), (SECOND, CheckpointPosition(0, 1)), (THIRD, CheckpointPosition(1, 1))]:
            _commit(driver.start(owner, reached, takeover=True), 1, named)
        assert driver.read() == ["a"]

    # ---- faults

    def test_rows_that_are_lost_or_damaged_are_not_published_until_they_are_back(self, tmp_path: Path) -> None:
        driver = _Driver(self, tmp_path)
        committer = driver.start(FIRST)
        named = driver.write(1, ["a"])
        staged = self.staged(driver.sink, driver.storage)
        checksummed = self.checksummed and not isinstance(driver.sink, FileSink)
        assert staged is None or staged, "no staged file was seen: override 'staged'"
        for path in staged or ():
            data = path.read_bytes()
            middle = len(data) // 2
            changed = [data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]] if checksummed else []
            for spoiled in (data[:-1], *changed, None):
                path.unlink() if spoiled is None else path.write_bytes(spoiled)
                with pytest.raises(SinkError):
                    _commit(committer, 1, named)
                assert driver.read() == []
            path.write_bytes(data)
        _commit(committer, 1, named)
        assert driver.read() == ["a"]

    def test_a_sweep_leaves_what_is_to_come(self, tmp_path: Path) -> None:
        driver = _Driver(self, tmp_path)
        committer = driver.start(FIRST)
        _commit(committer, 1, driver.write(1, ["a"]))
        coming = driver.write(2, ["b"])
        committer.sweep(1)
        _commit(committer, 2, coming)
        committer.sweep(2)
        assert driver.read() == ["a", "b"]

    def test_a_crash_at_any_step_leaves_each_transaction_once(self, tmp_path: Path) -> None:
        assert self._every_step(tmp_path, self._crash), "no step was seen: override 'steps'"

    def _crash(self, place: Path, at: int) -> bool:
        program = _Program(_Driver(self, place))
        count = At(at)
        with self.steps(count):
            try:
                program.run(FIRST)
            except (Exception, Crash):  # who is dead can't tidy up either, and may fail at that
                if not count.passed:
                    raise
            program.driver.kill()
        found = program.driver.read()
        assert found in (_words(program.committed), _words(program.committed + 1)), f"after step {at}"
        program.run(SECOND)
        assert program.driver.read() == _words(TRANSACTIONS), f"after a crash at step {at}"
        return count.passed

    # ---- taking back

    def test_what_is_taken_back_is_gone_after_any_crash_and_rows_of_others_stay(self, tmp_path: Path) -> None:
        (tmp_path / "looked at").mkdir()
        if not self.make(tmp_path / "looked at").rewinds:
            pytest.skip("this sink can't take rows back")
        assert self._every_step(tmp_path, self._rewind), "no step was seen: override 'steps'"

    def _rewind(self, place: Path, at: int) -> bool:
        others = _Driver(self, place, "others")
        former = others.start(OTHERS[0])
        for txid in (1, 2, 3):
            _commit(former, txid, others.write(txid, [f"other{txid}"]))
        driver = _Driver(self, place)
        committer = driver.start(FIRST, takeover=True)
        for txid in (1, 2, 3, 4):
            _commit(committer, txid, driver.write(txid, [f"w{txid}"] if txid != 2 else []))
        seen, kept = driver.read(), sorted(["other1", "other2", "other3", "w1"])
        count, reached = At(at), CheckpointPosition(4, 4, known=True)
        with self.steps(count):
            try:
                driver.start(SECOND, reached).rewind(1)
            except (Exception, Crash):
                if not count.passed:
                    raise
            driver.kill()
        assert driver.read() in (seen, kept), f"after step {at}"
        committer = driver.start(THIRD, reached)
        for _ in range(2):
            committer.rewind(1)
            assert driver.read() == kept, f"after a crash at step {at}"
        coming = range(5, 6 if count.passed else 17)
        for txid in coming:
            _commit(committer, txid, driver.write(txid, [f"w{txid}"]))
            committer.sweep(txid)
        assert driver.read() == sorted([*kept, *(f"w{txid}" for txid in coming)])
        return count.passed

    # ---- concurrency

    def test_a_driver_that_stops_anywhere_while_the_next_one_works_changes_nothing(self, tmp_path: Path) -> None:
        assert self._every_step(tmp_path, self._stop), "no step was seen: override 'steps'"

    def _stop(self, place: Path, at: int) -> bool:
        driver = _Driver(self, place)
        driver.start(FIRST).close()
        first = driver.write(1, ["a"])
        newer: list[SinkCommitter] = []

        def take_over() -> None:
            newer.append(driver.start(THIRD, CheckpointPosition(0, 1)))
            _commit(newer[0], 1, first)
            _commit(newer[0], 2, driver.write(2, ["b"]))

        count = At(at, take_over)
        with self.pauses(count), suppress(FencedError, SinkError):
            zombie = driver.committer(SECOND)
            zombie.fence(START, takeover=False)
            _commit(zombie, 1, first)
        if count.passed:
            _commit(newer[0], 3, driver.write(3, ["c"]))
            assert driver.read() == ["a", "b", "c"], f"stopped at step {at}"
        return count.passed

    def test_of_two_that_commit_at_the_same_moment_one_does(self, tmp_path: Path) -> None:
        driver = _Driver(self, tmp_path)
        # Of one generation, which never has two drivers: an older one would be refused before it comes to its write.
        committers = [driver.start(FIRST), driver.committer(FIRST)]
        for txid in range(1, 5):
            named, barrier = driver.write(txid, [f"w{txid}"]), threading.Barrier(2)
            with self.pauses(partial(_meet, barrier)) if txid == 1 else nullcontext():
                _race(committers, txid, named, barrier)
            _commit(committers[0], txid, named)
            assert driver.read() == [f"w{number}" for number in range(1, txid + 1)]


TRANSACTIONS = 4


def _words(transactions: int) -> list[str]:
    return [f"w{txid}" for txid in range(1, transactions + 1) if txid != 2]


class _Program:
    """Transactions one after the other; it remembers what a log would. The second has no rows."""

    def __init__(self, driver: _Driver) -> None:
        self.driver = driver
        self.committed = 0
        self.decided: dict[int, Named] = {}

    def run(self, owner: Owner) -> None:
        """Start, end what is decided, and go on to the last transaction."""
        reached = CheckpointPosition(self.committed, max([self.committed, *self.decided]))
        committer = self.driver.start(owner, reached)
        for txid in range(self.committed + 1, TRANSACTIONS + 1):
            if txid not in self.decided:
                self.decided[txid] = self.driver.write(txid, [f"w{txid}"] if txid != 2 else [])
            _commit(committer, txid, self.decided[txid])
            self.committed = txid
            committer.sweep(txid)
