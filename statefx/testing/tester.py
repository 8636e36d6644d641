"""Runs a topology in this process, without Spark: the same runtime, coordinator, log, state and recovery."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from itertools import islice
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from statefx.admin.reading import StateView, ViewRequest
from statefx.coordinator.attempt import Attempt, Batch
from statefx.coordinator.janitor import EVERY_TRANSACTIONS, MIN_AGE_SECS, VERSIONS_KEPT
from statefx.coordinator.launch import Launch, check_batch_id
from statefx.coordinator.participants import Participant, SnapshotPolicy
from statefx.coordinator.progress import Outcome, Progress, TransactionProgress
from statefx.coordinator.spouts import SpoutTrigger
from statefx.coordinator.staging import staged
from statefx.errors import (
    BoltError,
    CheckpointMismatchError,
    ConfigError,
    TopologyError,
    TransactionError,
)
from statefx.log.adoption import Adopt
from statefx.log.location import Folders
from statefx.log.log import RECORDS_BEFORE_CHECKPOINT
from statefx.metrics.registry import Registry
from statefx.protocol.completeness import Complete
from statefx.protocol.log_state import SinkVolume
from statefx.protocol.records import BatchInput
from statefx.state.contract.store import FILES_MAX
from statefx.storage import FolderStorage
from statefx.testing.faults import Fault
from statefx.testing.feeding import Feed, Work, feeds_of, given, identity, staged_rows, with_feeds
from statefx.testing.living import LocalRunEngine
from statefx.testing.processes import Emitted, Process, merged
from statefx.testing.steps import DurableSteps, SteppedLog, SteppedProvider, SteppedStorage
from statefx.topology.graph import Topology
from statefx.topology.submission import check_closing


@dataclass(frozen=True)
class Limits:
    """Settings that a test wants smaller than a topology does.

    Attributes
    ----------
    snapshots : SnapshotPolicy
        When a task writes a snapshot.
    fold_after : int
        Records of the log before it is folded.
    sweep_every : int
        Transactions between two sweeps.
    min_age_secs : float
        Files younger than this are not swept; see ``TopologyTester.advance``.
    files_max : int
        How many state files of like size a task leaves before it merges them.
    versions_kept : int
        How many transactions back a version stays readable.
    pauses : int
        How many waits between tries a driver may ask for before it is stopped.
    """

    snapshots: SnapshotPolicy = field(default_factory=SnapshotPolicy)
    fold_after: int = RECORDS_BEFORE_CHECKPOINT
    sweep_every: int = EVERY_TRANSACTIONS
    min_age_secs: float = MIN_AGE_SECS
    files_max: int = FILES_MAX
    versions_kept: int = VERSIONS_KEPT
    pauses: int = 50


@dataclass(frozen=True)
class Sent:
    """One committed transaction.

    Attributes
    ----------
    progress : TransactionProgress
        As a query would tell it.
    """

    progress: TransactionProgress
    _emitted: Emitted = field(repr=False)
    _topology: Topology = field(repr=False)

    @property
    def txid(self) -> int:
        """The transaction."""
        return self.progress.txid

    def emitted(self, component: str, stream: str = "default") -> list[tuple[Any, ...]]:
        """Return what a bolt emitted in it, task by task, whether or not another bolt reads it.

        Raises
        ------
        TopologyError
            There is no such bolt, or it declares no such stream: what it emits there can't be compared with anything.
        """
        check_stream(self._topology, component, stream)
        return list(self._emitted.get((component, stream), ()))


def check_stream(topology: Topology, component: str, stream: str) -> None:
    """Refuse what is no stream of the topology with a TopologyError."""
    outputs = topology.component(component).outputs
    if stream not in outputs:
        raise TopologyError(
            f"{component!r} has no stream {stream!r}; its streams are {', '.join(outputs) or 'none'}",
            component=component,
            stream=stream,
        )


class WatchedProgress(Progress):
    """A progress that tells which runs of the tasks have counted, by txid."""

    complete: dict[int, Complete]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.complete = {}

    def committing(self, attempt: Attempt, volumes: Iterable[SinkVolume]) -> None:
        """The decision is durable."""
        super().committing(attempt, volumes)
        assert attempt.complete is not None
        self.complete[attempt.name.txid] = attempt.complete


class Scratch:
    """A temporary folder that is deleted with the object."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="statefx-tester-")
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class Place(Enum):
    """Where a checkpoint is if no folder is given; None would be a mistake, as to ``submit``."""

    OWN = "a folder of the tester's own"


_Result = TypeVar("_Result")


class TopologyTester:
    """One driver of a topology: made on a checkpoint, it takes the next generation and recovers, as ``submit`` does.

    Parameters
    ----------
    topology : Topology
        Its streams are stand-ins made by `rows`, or DataFrames, which are not read.
    checkpointLocation : str or path, optional
        As for ``submit``; by default a new folder, which is deleted with the tester, and which `restart` hands on.
    config : Mapping, optional
        As for ``submit``.
    adopt : str or collection of str, optional
        As for ``submit``.
    rename, drop, rescale : Mapping, collection of str, bool, optional
        As for ``submit``.
    fed : str or collection of str, optional
        Spouts that read what `send` brings, in the place of their own source, which is never opened. All else stays as
        it is wired. A spout's rows go in turn to its tasks; of a ``Spout``, each has its number as id, see `acked`
        and `failed`. `restart` hands on what was sent.
    crash_at : int, optional
        Raise `Crash` at this moment, counted from 1, before or after a durable step; see `steps`.
    steps : DurableSteps, optional
        Counts them in its place, as `statefx.testing.crashes.crashes` wants.
    seed : int
        It decides in which order all that tasks and driver send each other arrives.
    freshObjects : bool
        Whether every attempt of a task gets a bolt object of its own, as if its process had been lost: what a bolt
        keeps in its attributes rather than in its state is then lost, and the test shows it. False: a task keeps its
        bolt, as on Spark while a run goes on. What a bolt keeps in a global is shared by all tasks here, on Spark by
        those of one process.
    cache : str or path, optional
        The machine's folder for caches; by default a new one, which `restart` hands on.
    limits : Limits, optional
        Smaller settings.
    now : datetime, optional
        What the driver's clock shows, as bolts see in ``context.processingTime``; `advance` moves it. By default the
        beginning of the present day in UTC, so that periods of ticks begin with it; `restart` hands on what it shows.

    Contract
    --------
    * What is committed, rolled back, written and raised is what Spark would have made of it; nothing waits.
    * After a crash, or an error, the object refuses to go on: `restart` is the way, or another tester on the folder.
    * A tester that did not crash may go on after another has taken its checkpoint: it is then a zombie, and fenced.
    * It is used in the thread that made it.

    Examples
    --------
    ::

        builder = TopologyBuilder("word-count")
        builder.setStream("lines", rows("value string"))
        builder.setBolt("count", WordCount(), parallelism=2).fieldsGrouping("lines", "value")
        with TopologyTester(builder.createTopology(), tmp_path) as tester:
            tester.send({"lines": [("to",), ("be",), ("to",)]})
            assert tester.state("count") == {"to": 2, "be": 1}

    The topology of production, whose spout ``jobs`` reads Kafka, with rows of the test::

        with TopologyTester(topology, tmp_path, fed="jobs") as tester:
            tester.send({"jobs": [("ann", 5)]})
    """

    _others: tuple[Participant, ...] = ()
    """As of `Launch`; tests of the coordinator have some."""

    def __init__(
        self,
        topology: Topology,
        checkpointLocation: str | os.PathLike[str] | Place = Place.OWN,
        config: Mapping[str, Any] | None = None,
        *,
        adopt: Adopt = None,
        rename: Mapping[str, str] | None = None,
        drop: Iterable[str] = (),
        rescale: bool = False,
        fed: str | Iterable[str] | Mapping[str, Feed] = (),
        crash_at: int | None = None,
        steps: DurableSteps | None = None,
        seed: int = 0,
        freshObjects: bool = True,
        cache: str | os.PathLike[str] | None = None,
        limits: Limits | None = None,
        now: datetime | None = None,
    ) -> None:
        self._feeds = _handed_on(topology, fed, rename) if isinstance(fed, Mapping) else feeds_of(topology, fed)
        self.topology = with_feeds(topology, self._feeds)
        self.pauses: list[float] = []
        self._own = Scratch() if checkpointLocation is Place.OWN else None
        self._scratch = Scratch() if cache is None else None
        self._cache = self._scratch.path if self._scratch else os.fspath(cache or "")
        self._config = config
        self._limits = limits or Limits()
        self._same = {
            "config": config, "cache": self._cache, "limits": limits,
            "seed": seed, "freshObjects": freshObjects, "fed": self._feeds,
        }  # fmt: skip
        """State that `restart` hands on."""
        self._steps = steps or DurableSteps(crash_at)
        self._now = 0.0
        day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        self._began = (day if now is None else now).timestamp()
        self._ended: BaseException | None = None
        self._thread = threading.current_thread()
        self._transactions: list[Sent] = []
        os.makedirs(self._cache, exist_ok=True)
        self._progress = WatchedProgress(clock=self._clock, now=self._time)
        given = {"adopt": adopt, "rename": rename, "drop": drop, "rescale": rescale}
        place = os.path.join(self._own.path, "checkpoint") if self._own else checkpointLocation
        self._start(place, given, seed, freshObjects)
        self._sent = self.txid
        """How many transactions the spouts were `fed`, by this tester and those before it."""

    def _start(self, checkpoint: Any, given: Any, seed: int, fresh: bool) -> None:
        """Do what ``submit`` does, with steps in the place of Spark."""
        steps, limits = self._steps, self._limits
        launch = Launch(
            self.topology, self._config, checkpoint, **given,
            caller="TopologyTester", dumps=_dumps(), cache=self._cache, others=self._others,
            dataframe=_dataframe, wrap=lambda storage: SteppedStorage(storage, steps),
        )  # fmt: skip
        launch.provider = SteppedProvider(launch.provider, steps)
        self._folders = launch.folders
        opened = partial(SteppedLog, steps=steps, limit=limits.fold_after, clock=self._time)
        log = launch.start(opened)
        self._staged = FolderStorage(os.path.join(self._cache, "staged"), durable=False)
        deployment = launch.deployment(log, limits.files_max, self._staged)
        worker = partial(Process, deployment, steps, self._cache, fresh=fresh)
        timeout_secs = launch.settings.transaction_timeout_secs
        self._engine = LocalRunEngine(deployment, worker, seed, timeout_secs, self._clock)
        self._janitor = replace(
            launch.janitor(log),
            min_age_secs=limits.min_age_secs,
            every=limits.sweep_every,
            versions_kept=limits.versions_kept,
            run=_in_line,
            clock=self._clock,
        )
        self._coordinator = launch.coordinator(
            log, self._engine, self._janitor, self._pause, self._note, policy=limits.snapshots, progress=self._progress
        )
        self._launch = launch
        self._driving(self._coordinator.recover)

    def emit(self, *faults: Fault) -> Sent | None:
        """Run the next transaction over what the topology's spouts have to read; None if there is nothing now.

        A tick that is due begins one too.

        It raises what `send` does.
        """
        before = self.txid
        self.inject(*faults)
        self._driving(lambda: self._run_spouts(SpoutTrigger(once=True)))
        return self._transactions[-1] if self.txid > before else None

    def drain(self) -> int:
        """Run transactions until the topology's spouts have nothing more to read; return how many were committed."""
        before = self.txid
        self._driving(lambda: self._run_spouts(SpoutTrigger(available_now=True)))
        return self.txid - before

    def closeTime(self) -> int:
        """Do what the trigger's ``closeTime`` does at the end of the input; return how many transactions it took.

        What spouts have is read first, as by `drain`. Rows that come later are refused.

        Raises
        ------
        ConfigError
            No input has event time, or a `Spout` hands out tuples one by one, and never ends.
        """
        check_closing(self.topology)
        before = self.txid
        if self.topology.reads_spouts:
            self._driving(lambda: self._run_spouts(SpoutTrigger(available_now=True, close_time=True)))
        else:
            nothing = given(self.topology, {})
            self._driving(lambda: self._coordinator.close_time(lambda: self._batch(nothing)))
        return self.txid - before

    def _run_spouts(self, trigger: SpoutTrigger) -> None:
        self._engine.woken.set()  # a spout that lives in its task is asked when the transaction begins
        while True:
            source = self._launch.spout_source(self._coordinator, trigger)
            try:
                source.open()
                self._coordinator.run(source)
            finally:
                source.close()
            if not self.topology.tracked_spouts:
                return
            self._engine.wake()  # what they are told, and what they emit between transactions
            if trigger.once or not self._engine.woken.is_set():
                return

    def send(self, work: Work, *faults: Fault) -> Sent:
        """Run the next transaction over the rows of `work`, until it is committed.

        Parameters
        ----------
        work : Mapping of str to sequence of rows
            By stream, or by spout that is `fed`; a row is a sequence of values. What is left out has no rows. Of a
            spout with several streams, ``(spout, stream)`` names another than the default one.
        faults : Fault
            What goes wrong meanwhile.

        Raises
        ------
        StatefxError
            As ``query.awaitTermination``; the tester has then ended.
        Crash
            At the moment asked for.
        """
        work = given(self.topology, work, self._feeds)
        if self._feeds:
            for (id, stream), sent in work.items():
                self._feeds[id].add(stream, sent)
            self._sent += 1
            found = self.emit(*faults)
            if found is None:
                raise ConfigError("no row was sent, and nothing else is due: give rows, or ask with emit()")
            return found
        self.inject(*faults)
        return self._transact(self._batch(work))

    def acked(self, spout: str) -> list[int]:
        """Return which rows of a ``Spout`` that is `fed` were acked, by their numbers from 0, in order."""
        return list(self._feed(spout).acked)

    def failed(self, spout: str) -> dict[int, str]:
        """Return which rows of a ``Spout`` that is `fed` have failed, by their numbers from 0, and why.

        They are not emitted again: `send` them again if the source would.
        """
        return dict(self._feed(spout).failed)

    def _feed(self, spout: str) -> Feed:
        if spout in self.topology.replaying_spouts:
            raise ConfigError(f"spout {spout!r} gets no ack or fail: only a Spout does")
        if spout not in self._feeds or spout not in self.topology.tracked_spouts:
            raise ConfigError(f"{spout!r} is no Spout that is fed: TopologyTester(..., fed={spout!r})")
        return self._feeds[spout]

    def apply(self, batch_id: int, work: Work, *faults: Fault) -> Sent | None:
        """As `send`, for batch streams and with ``submit``'s ``batchId``; None if that was applied before.

        Raises
        ------
        ConfigError
            The streams are streaming ones, which number their own batches.
        """
        if self.topology.streaming:
            raise ConfigError("apply is for batch streams; streaming ones number their own batches: use send")
        check_batch_id(batch_id)
        work = given(self.topology, work)
        if self._coordinator.log.state.applied(batch_id):
            return None
        self.inject(*faults)
        return self._transact(self._batch(work, batch_id))

    def run(self, transactions: Iterable[Work]) -> list[Sent]:
        """Run those `transactions` that are not committed yet; the first of them has txid 1.

        So after a crash, `restart` and `run` with the same transactions go on as a streaming query would: each
        transaction keeps its txid and its identity.

        Raises
        ------
        CheckpointMismatchError
            The last committed transaction had other rows.
        """
        if self._feeds:  # what a tester that has crashed was sent is in the feeds
            before = len(self._transactions)
            if self._sent:
                self.drain()
            return self._transactions[before:] + [self.send(each) for each in islice(transactions, self._sent, None)]
        done = []
        for number, each in enumerate(transactions):
            work = given(self.topology, each)
            state = self._coordinator.log.state
            if number + 1 > state.committed:
                done.append(self.send(work))
            elif number + 1 == state.committed and state.last_input != identity(number, work):
                raise CheckpointMismatchError(
                    f"transaction {number + 1} was committed with other rows than these", txid=number + 1
                )
        return done

    def inject(self, *faults: Fault) -> None:
        """Let these things go wrong, each once, at the next moment that it fits."""
        self._engine.inject(faults)

    def wake(self) -> None:
        """Let the tasks that were given up and are not dead run to their end."""
        self._driving(self._engine.wake)

    def when(self, moment: str, do: Callable[[], object]) -> None:
        """Call `do` when `moment` next comes, in the middle of what goes on: one of `steps`, or ``pause``."""
        self._steps.when(moment, do)

    def advance(self, secs: float) -> None:
        """Let time pass: the clocks go on, and every state file grows older."""
        self._now += secs
        for folder, _, names in os.walk(os.path.join(self._folders.location, "state")):
            for name in names:
                path = os.path.join(folder, name)
                past = os.stat(path).st_mtime - secs
                os.utime(path, (past, past))

    def sweep(self) -> int:
        """Delete what no retained version needs, now; return how many files went."""
        return self._driving(self._janitor.sweep)

    def restart(self, topology: Topology | None = None, **changes: Any) -> TopologyTester:
        """Start a new driver on the checkpoint: the next generation, on the same machine; this one may be dead.

        Parameters
        ----------
        topology : Topology, optional
            By default the same.
        **changes : Any
            Arguments of the new tester that differ; ``cache=None`` is a machine without caches.
        """
        now = datetime.fromtimestamp(self._time(), UTC)
        arguments: dict[str, Any] = {**self._same, "now": now, **changes}
        successor = TopologyTester(topology or self.topology, self._folders.location, **arguments)
        # Deleted with the last one that uses them.
        successor._scratch, successor._own = successor._scratch or self._scratch, self._own
        successor._sent = self._sent
        return successor

    def close(self) -> None:
        """End in good order; again is a no-op."""
        self._refuse_other_thread()
        self._engine.close()
        self._ended = self._ended or TransactionError("the tester is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def txid(self) -> int:
        """The last committed transaction, as this driver knows it."""
        return self._coordinator.log.state.committed

    @property
    def generation(self) -> int:
        """How many drivers there have been, with this one."""
        return self._coordinator.log.state.generation

    @property
    def steps(self) -> list[str]:
        """Moments before and after each durable step so far: ``before PREPARING(1, 0)``; ``crash_at`` counts them."""
        return list(self._steps.passed)

    @property
    def crashed(self) -> str | None:
        """The moment of the crash, or None."""
        return self._steps.crashed

    @property
    def status(self) -> dict[str, Any]:
        """The ``status`` of a query."""
        return self._progress.status()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The ``metrics`` of a query."""
        return self._registry.as_dicts()

    @property
    def _registry(self) -> Registry:
        return self._progress.measures.registry

    @property
    def _watchers(self) -> list[Callable[[Outcome], None]]:
        return self._progress.watchers

    @property
    def recoveries(self) -> list[dict[str, Any]]:
        """The ``recoveries`` of a query."""
        return list(self._progress.recoveries)

    def emitted(self, component: str, stream: str = "default") -> list[tuple[Any, ...]]:
        """Return what a bolt emitted in all transactions that this driver has committed, however they came."""
        check_stream(self.topology, component, stream)
        return [row for sent in self._transactions for row in sent.emitted(component, stream)]

    def state(self, component: str, task: int | None = None, map: str | None = None) -> dict[Any, Any]:
        """Return the committed state of a bolt, or what it keeps in a named map, as `Checkpoint.state` shows it.

        Raises
        ------
        AmbiguousKeyError
            Several tasks hold a key; give `task`.
        """
        plain = Folders(self._folders.location)  # without the faults of this driver's disk
        request = ViewRequest(plain, self._config, component, task, map, now=self._time, checked=False)
        with StateView(request) as view:
            return dict(view.items())

    def _batch(self, work: Work, batch_id: int | None = None) -> Batch:
        """Stage the rows of a transaction."""
        source = identity(self.txid, work) if self.topology.streaming else BatchInput(batch_id)
        parts = staged_rows(self._launch.plan, self._staged, work, round(self._time() * 1000))
        return staged(self._launch.plan, source, parts)

    def _transact(self, batch: Batch) -> Sent:
        self._driving(lambda: self._coordinator.transact(batch))
        return self._transactions[-1]

    def _note(self, done: TransactionProgress) -> None:
        """Keep what a transaction has come to that is committed now."""
        complete = self._progress.complete.pop(done.txid, None)
        if complete is None:  # a former driver's, which was rolled forward: what it emitted is gone
            return
        runs = [(*task, token) for task, token in complete.tokens.items()]
        self._transactions.append(Sent(done, merged(self._engine.seen, runs), self.topology))

    def _driving(self, do: Callable[[], _Result]) -> _Result:
        self._refuse_other_thread()
        if self._ended is not None:
            raise TransactionError(f"this driver has ended ({self._ended!r}): restart() it") from self._ended
        try:
            with _interruptible():
                return do()
        except BoltError as error:
            self._end(error)
            # else pytest shows 20 frames of statefx between a test and its bolt
            raise error.with_traceback(None) from error.__cause__
        except BaseException as error:
            self._end(error)
            raise

    def _refuse_other_thread(self) -> None:
        if (caller := threading.current_thread()) is not self._thread:
            raise TransactionError(
                f"thread {caller.name!r} called a TopologyTester that thread {self._thread.name!r} made: its tasks can "
                "go on in that thread alone; make it where you use it"
            )

    def _end(self, error: BaseException) -> None:
        """Go on no more; the chains end too, whose frames would otherwise keep all of this for ever."""
        self._ended = error
        self._engine.end_chains()

    def _pause(self, secs: float) -> bool:
        self.pauses.append(secs)
        self._now += secs
        self._steps.call("pause")
        return len(self.pauses) < self._limits.pauses

    def _clock(self) -> float:
        return self._now

    def _time(self) -> float:
        return self._began + self._now


def _handed_on(topology: Topology, feeds: Mapping[str, Feed], rename: Mapping[str, str] | None) -> dict[str, Feed]:
    """Return what was sent to the spouts that a topology has still, by their names of now."""
    found = {(rename or {}).get(id, id): feed for id, feed in feeds.items()}
    spouts = topology.replaying_spouts.keys() | topology.tracked_spouts.keys()
    return {id: feed for id, feed in found.items() if id in spouts}


def _dumps() -> Callable[[Any], bytes] | None:
    """Return what pickles as Spark's workers are sent things: here nothing is sent, and yet it is refused."""
    try:
        from statefx.spark.worker import dumps  # noqa: PLC0415 - a fifth of a second, which not every import pays
    except ImportError:  # without pyspark there is nobody to ask
        return None
    return dumps


def _dataframe(schema: pa.Schema, parts: Sequence[Iterable[pa.RecordBatch]]) -> Any:
    """Return rows as a DataFrame of the session that the test has built; without one this is refused."""
    from statefx.spark.tables import frame_of  # noqa: PLC0415 - as above

    return frame_of(None, schema, parts)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Have Ctrl-C end what is done here, also while a bolt runs, whose error it would be."""
    came = False

    def come(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.default_int_handler(number, frame)

    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, come)
    try:
        yield
    except Exception as error:
        if came:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


def _in_line(do: Callable[[], object]) -> None:
    """Run a sweep where a crash of the driver is a crash of the sweep; its moments are then always the same."""
    do()
