"""A spout that lives in its task: what it emits waits for a transaction, and is kept until that is decided.

::

    nextTuple -> waiting -> transaction t: kept -> COMMITTED(t): ack, fail
                                ^          |
                                +----------+ rolled back: the same tuples once more, the spout is not asked

Each tuple with an id has a root, a number that travels with all that is anchored to it. A task that fails a tuple
tells its roots, and the trees that nobody has failed are acked (rule 11.3).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from statefx import logs
from statefx.errors import BoltError, FencedError, StatefxError
from statefx.operators.acker import ACKS, ASKS, TreeEvent, key_of, place_of
from statefx.operators.context import DEFAULT_STREAM, SpoutCollector
from statefx.operators.spouts import TAKEN, Spout
from statefx.operators.user_errors import bolt_error
from statefx.protocol.counting import NOTHING_COUNTED, Counted
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.reports import ROOTS_MAX, TreeReport, root_of
from statefx.runtime.collector import TaskCollector
from statefx.runtime.gathering import is_text, weight
from statefx.runtime.spout_task import SourceTask
from statefx.runtime.task import Prepared
from statefx.runtime.trees import LOOSE_ROOT
from statefx.runtime.user_objects import close_object, context_of, hook, made_object
from statefx.state.encoding.keys import key_decoder, key_encoder
from statefx.topology.additions import without_ids

ROWS_MAX = 100_000
"""Tuples of a task in one transaction: as Python objects some 20 MB, and as much of those that wait meanwhile."""

BYTES_MAX = 64 << 20
"""Of texts, bytes and nested values in them."""

HANGS_SECS = 10.0
"""How long one call of a spout may take before the driver warns. Calls that wait for a server with a time-out of a few
seconds pass, as slow as they make everything."""

LATENCIES_KEPT = 1000
"""Of which the median and the 99th percentile are told."""

_encode, _decode = key_encoder(), key_decoder()


# Plain tuples, of which there are as many as messages: a namedtuple takes ten times as long to make.
Delivery = tuple[str, tuple[Any, ...], int | None, int | None]
"""A tuple that a spout has emitted: stream, values, task, root; without a root it is not tracked."""

_Tracked = tuple[Any, bytes, float]
"""A message: its id, the id as a key, and when it was emitted, in seconds of the clock."""


class SpoutHost(SpoutCollector):
    """Calls the user's spout, and buffers and tracks what it emits: its collector.

    `spout` has its context, and is opened when the acker has reported which of its trees go on. `outputs` are its
    streams' schemas; `number` is of the task among those of all spouts, for its roots. `batch_secs` is how long the
    spout is called when a transaction begins; `pending_max` limits the tuples that are neither acked nor failed. `name`
    is the spout's in trees that may outlive their transaction, which another id does not change; without it, none may.
    With `dedup` its rows travel with the ids of their messages. `failure` is what the spout raised between two
    transactions: the next one raises it.
    """

    def __init__(
        self,
        task: TaskId,
        spout: Spout,
        outputs: Mapping[str, pa.Schema],
        number: int,
        *,
        batch_secs: float,
        pending_max: int | None,
        name: str | None = None,
        dedup: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._number, self._dedup = number, dedup
        self._name = None if name is None else f"{name}/{task.task}"
        self._task, self._spout, self._clock = task, spout, clock
        self._logged = logs.ready(component=task.component, task=task.task)
        self._batch_secs, self._pending_max = batch_secs, pending_max
        self._checks = TaskCollector(task.component, outputs, (), TransactionAttempt(0, 0), "spout")
        self._weighed = {
            name: [at for at, field in enumerate(schema) if is_text(field.type) or pa.types.is_nested(field.type)]
            for name, schema in outputs.items()
        }
        self._waiting: list[tuple[str, tuple[Any, ...], int | None, _Tracked | None]] = []
        self._waiting_bytes = 0
        self._kept: dict[int, Sequence[Delivery]] = {}
        """Rows of the transactions that are not decided, by txid."""
        self._counted: dict[int, Counted] = {}
        """What the spout has counted until these began."""
        self._tracked: dict[int, _Tracked] = {}
        """By root: what was emitted in a transaction, and neither acked nor failed."""
        self._pending: set[bytes] = set()
        """The ids of these, and of what waits for a transaction, as keys."""
        self._restored: set[bytes] = set()
        """Those of messages that another object of this task has emitted, whose trees go on."""
        self._unnamed: list[tuple[int, int]] = []
        """Trees that go on, of which the acker does not know the ids, behind their transactions."""
        self._is_open = False
        self._counts = dict.fromkeys(("emitted", "ack", "fail"), 0)
        self._latencies: deque[float] = deque(maxlen=LATENCIES_KEPT)
        self.failure: StatefxError | None = None
        self._calling, self._calls = "", 0
        """The method that runs, and how many calls there were."""
        self._watched = 0, 0.0
        """How many calls there were when another thread looked, and since when it finds as many."""
        self._warned: set[str] = set()

    # ---- between transactions

    @property
    def may_be_asked(self) -> bool:
        """Whether there is room for what it would emit, and it has not raised."""
        return (
            self._is_open
            and self.failure is None
            and len(self._waiting) < ROWS_MAX
            and self._waiting_bytes < BYTES_MAX
            and (self._pending_max is None or len(self._pending) < self._pending_max)
        )

    @property
    def is_waiting(self) -> bool:
        """Whether a transaction is needed: for what was emitted, or to report what the spout raised, or an id."""
        return bool(self._waiting or self._unnamed) or self.failure is not None

    def ask(self) -> bool:
        """Call nextTuple; return whether it has emitted anything."""
        before, entered = len(self._waiting), logs.swap(self._logged)
        try:
            self._call("nextTuple", self._spout.nextTuple, self)
        finally:
            logs.leave(entered)
        return len(self._waiting) > before

    def on_committed(self, txid: int, report: TreeReport) -> None:
        """Call the spout back for its tuples, now that a transaction is committed."""
        entered = logs.swap(self._logged)
        try:
            self._call_back(txid, report)
        finally:
            logs.leave(entered)

    def _call_back(self, txid: int, report: TreeReport) -> None:
        if not self._is_open:
            self._open(report.pending.get(str(self._task), ()))
        failed = {root: reason for reason, roots in report.failed.items() for root in roots}
        held = set(report.held)
        self._counted.pop(txid, None)
        for _, _, _, root in self._kept.pop(txid, ()):
            if root is None:
                continue
            if root in failed:
                self._end(root, "fail", self._spout.fail, failed[root])
            elif root in held:  # the acker is told by which id it has to be named, should this task be lost
                self._unnamed.append((txid, root))
            else:
                self._end(root, "ack", self._spout.ack)
        for root in report.acked:
            self._end(root, "ack", self._spout.ack)
        for root in sorted(failed):
            self._end(root, "fail", self._spout.fail, failed[root])

    def _end(self, root: int, name: str, method: Callable[[Any], object], reason: str = "") -> None:
        """Call the spout back for the end of a tree, if it is one of its own."""
        if self.failure is not None or (tracked := self._tracked.pop(root, None)) is None:
            return
        id, key, emitted = tracked
        self._pending.discard(key)
        self._restored.discard(key)
        self._latencies.append(self._clock() - emitted)
        self._counts[name] += 1
        if not reason:
            self._call(name, method, id)
            return
        object.__setattr__(context_of(self._spout), "failure", reason)
        self._call(name, method, id)
        object.__setattr__(context_of(self._spout), "failure", "")

    def _open(self, pending: Iterable[tuple[int, bytes]]) -> None:
        """Open the spout: the ids of its trees that go on are known by now."""
        self._is_open = True
        for root, key in pending:
            self._tracked[root] = _decode(key), key, self._clock()
            self._pending.add(key)
            self._restored.add(key)
        object.__setattr__(context_of(self._spout), "pending", tuple(id for id, _, _ in self._tracked.values()))
        self._call("open", self._spout.open, context_of(self._spout))
        if self.failure is None:
            self._call("activate", self._spout.activate)

    def enter(self, attempt: TransactionAttempt, clock_ms: int, watermark: int | None) -> None:
        context_of(self._spout).enter(attempt, clock_ms, watermark)

    def close(self) -> None:
        if self._is_open:
            self._call("deactivate", self._spout.deactivate)
            close_object(self._spout)

    def _call(self, name: str, method: Callable[..., object], *arguments: object) -> None:
        """Call the spout; the next transaction reports to the driver what it raises."""
        self._calling = name
        self._calls += 1
        try:
            returned = method(*arguments)
            if returned is None:
                return
            raise TypeError(f"{name} returned {returned!r}, which nobody would see")
        except BaseException:  # noqa: BLE001 - as `with hook` around the call, which takes longer than all the rest
            try:
                with hook(self._task, name, 0, kind="spout"):
                    raise
            except (BoltError, FencedError) as error:
                self.failure = self.failure or error
            except StatefxError as error:  # a FailedException too: no transaction could be tried again because of it
                self.failure = self.failure or bolt_error(error, *self._task, name, 0, "spout")
        finally:
            self._calling = ""

    def hangs(self) -> str:
        """Return a warning if a call does not return, once for each method; called now and then by another thread."""
        name, calls, now = self._calling, self._calls, self._clock()
        if not name or calls != self._watched[0]:
            self._watched = calls, now
            return ""
        secs = now - self._watched[1]
        if secs < HANGS_SECS or name in self._warned:
            return ""
        self._warned.add(name)
        remedy = (
            "emit what there is now, and return without waiting for more; it is called again"
            if name == "nextTuple"
            else "give what it calls a time-out"
        )
        return (
            f"spout {self._task.component!r}, task {self._task.task}: {name} has not returned for {secs:.0f} s, and "
            f"transactions, acks and fails wait for it: {remedy}"
        )

    # ---- a transaction

    def batch(self, txid: int) -> Sequence[Delivery]:
        """Return what a transaction emits: the same in each of its attempts (rule 11.2)."""
        if txid not in self._kept:
            if self._name is None and not self._is_open:
                self._open(())
            self._fill()
            self._kept[txid] = self._numbered(txid)
            self._counted[txid] = context_of(self._spout).metrics.take()
            self._waiting, self._waiting_bytes = [], 0
        if self.failure is not None:
            raise self.failure
        return self._kept[txid]

    def counted(self, txid: int) -> Counted:
        """Return what counts with a transaction: the same in each of its attempts, as its rows."""
        return self._counted.get(txid, NOTHING_COUNTED)

    def _numbered(self, txid: int) -> list[Delivery]:
        """Return what waits as what a transaction emits, and what the acker gets before."""
        found: list[Delivery] = []
        if not self._is_open:
            asking = f"{self._task}\0{self._name}".encode()
            found.append((ASKS, (0, 0, TreeEvent.ASK, 0, asking), None, None))
        # Most trees that go on end with the transaction after: their ids are never needed.
        for began, root in self._unnamed:
            if root in self._tracked and began < txid - 1:
                data = f"{self._name}\0".encode() + self._tracked[root][1]
                found.append((ACKS, (key_of(root), place_of(root), TreeEvent.ID, 0, data), None, None))
        self._unnamed = [(began, root) for began, root in self._unnamed if began >= txid - 1]
        first = root_of(txid, self._number, 0)
        for root, (stream, values, task, tracked) in enumerate(self._waiting, first):
            if self._dedup and stream in self._weighed:
                values = (*values, None if tracked is None else tracked[1])
            if tracked is None:
                found.append((stream, values, task, None))
            else:
                self._tracked[root] = tracked
                found.append((stream, values, task, root))
        return found

    def _fill(self) -> None:
        """Ask until it has nothing, or there is enough for a transaction."""
        ends = self._clock() + self._batch_secs
        while self.may_be_asked and self.ask() and self._clock() < ends:
            pass

    def counts(self) -> dict[str, int | float]:
        """Return its counts for people (see `Ack.counts`)."""
        counts = self._counts
        found: dict[str, int | float] = {
            "emitted": counts["emitted"],
            "acked": counts["ack"],
            "failed": counts["fail"],
            "pending": len(self._pending),
        }
        if isinstance(redelivered := self._spout.redelivered, int):
            found["redelivered"] = redelivered
        if self._latencies:
            ordered = sorted(self._latencies)
            found["latencyP50Ms"] = round(ordered[len(ordered) // 2] * 1000, 3)
            found["latencyP99Ms"] = round(ordered[len(ordered) * 99 // 100] * 1000, 3)
            oldest = next(iter(self._tracked.values()), None)
            found["oldestPendingMs"] = round((self._clock() - oldest[2]) * 1000, 3) if oldest else 0.0
        return found

    # ---- as the collector of nextTuple

    def emit(
        self,
        values: Any = (),
        /,
        stream: str = DEFAULT_STREAM,
        task: int | None = None,
        id: Any = None,
        **fields: Any,
    ) -> None:
        row = self._checks.checked(values, stream, fields)
        if id is not None and self._restored and _encode(id) in self._restored:
            return  # its source delivers it again, and its tree goes on: it will be acked or failed
        if len(self._waiting) >= ROOTS_MAX or self._waiting_bytes >= 2 * BYTES_MAX:
            raise BoltError(
                f"spout {self._task.component!r} has emitted {len(self._waiting):,} tuples of {self._waiting_bytes:,} "
                "bytes that wait for a transaction, and nextTuple does not return: let it emit a few tuples and "
                "return, it is called again",
                component=self._task.component,
            )
        for at in self._weighed[stream]:
            self._waiting_bytes += weight(row[at])
        self._waiting.append((stream, row, task, None if id is None else self._track(id)))
        if stream != TAKEN:  # it goes with a message, and is none
            self._counts["emitted"] += 1

    def emitDirect(
        self, task: int, values: Any = (), /, stream: str = DEFAULT_STREAM, id: Any = None, **fields: Any
    ) -> None:
        self.emit(values, stream=stream, task=task, id=id, **fields)

    def _track(self, id: Any) -> _Tracked:
        key = _encode(id)
        if key in self._pending:
            # One answer could not be told from the other.
            raise BoltError(
                f"spout {self._task.component!r} emitted id {id!r}, and a tuple with that id was neither acked nor "
                "failed yet: wait for that, or give each tuple an id of its own",
                component=self._task.component,
            )
        self._pending.add(key)
        return id, key, self._clock()


class TrackedSpoutTask(SourceTask):
    """Emits what a resident spout has handed out for the transaction.

    The first attempt makes the `host`, which emits the same again if an attempt is rolled back.
    """

    host: SpoutHost | None = None

    def begin(self) -> None:
        super().begin()
        if self.host is not None:
            self.host.enter(*self.attempt.moment)
            return
        plan, config = self.deployment.plan, self.deployment.config
        plain = without_ids(self.component.outputs)
        self.host = SpoutHost(
            self.id,
            made_object(self.deployment, self.id, *self.attempt.moment, self._share),
            plain or self.component.outputs,
            plan.spouts.index(self.id),
            batch_secs=config["topology.spout.batch.ms"] / 1000,
            pending_max=config["topology.max.spout.pending"],
            name=self.deployment.tracked.get(self.id.component),
            dedup=plain is not None,
        )

    def _emission(self) -> Iterator[None]:
        assert self.host is not None
        collector, outbox, trees = self.attempt.collector, self.attempt.outbox, self.attempt.trees
        assert trees is not None
        anchor = trees.anchor
        # A message that leaves its queue with the transaction has no id here, and is given again if that fails.
        without = None if TAKEN in self.component.outputs else LOOSE_ROOT
        tracks = self.deployment.config["topology.acker.executors"] != 0
        for stream, values, task, root in self.host.batch(self.attempt.txid):
            try:
                anchor.root = root if tracks and root is not None else without
                collector.emit(values, stream, task)
            except BaseException:  # as `with`, of which each tuple would need one
                with self._hook("emit"):
                    raise
            if outbox.pressing:
                yield

    def prepare(self) -> Prepared:
        assert self.host is not None
        return Prepared(counts=self.host.counts())

    def counted(self) -> Counted:
        assert self.host is not None
        return self.host.counted(self.attempt.txid)

    def close(self) -> None:
        if self.host is not None:
            self.host.close()

    def forget_object(self) -> None:
        self.host = None
