"""Where transactions come from: spouts, and one batch of the tester's."""

from __future__ import annotations

import copy
import logging
import math
import threading
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any, Protocol

from statefx.coordinator.attempt import Attempt, Batch, Emissions
from statefx.coordinator.driver_spout import DriverSpout
from statefx.coordinator.progress import Progress
from statefx.coordinator.retrying import backoff_secs
from statefx.coordinator.times import Ticks
from statefx.errors import FailedException
from statefx.log.beside import Newest, lost_metadata, read_metadata
from statefx.log.log import TransactionLog
from statefx.operators.acker import is_of_acks
from statefx.operators.context import DRIVER, Context
from statefx.operators.hooks import overrides
from statefx.operators.spouts import ReplayingSpout, TransactionalSpout, check_json, has_partitions, may_finish, plans
from statefx.operators.user_errors import RAISED
from statefx.plan.levels import Plan
from statefx.protocol.batches import Batches, Partitions, changed, not_durable, to_be_durable
from statefx.protocol.identity import TaskId
from statefx.protocol.jsonform import Json, json_copy
from statefx.protocol.metadata import BySpout, Metadata, read_now
from statefx.protocol.order import Emission, EmissionOrder
from statefx.protocol.records import SpoutInput
from statefx.storage import Storage
from statefx.topology.graph import ComponentKind

logger = logging.getLogger("statefx")


LOOK_SECS = 0.1
"""How long it takes at most until a source is asked again; nothing wakes the loop when there is something to read."""


class Source(Protocol):
    """Input of transactions; only the coordinator's thread calls it.

    It is asked again for a transaction that was rolled back, also after later ones were given: a source whose input
    must be the same again keeps it until the transaction is committed (rule 9.4).
    """

    def ready(self, txid: int) -> bool:
        """Return whether there is input for `txid` now."""

    def next(self, txid: int) -> Batch:
        """Return the input of `txid`, for which it is ready."""

    def look_secs(self) -> float:
        """Return when to ask again, if it was not ready."""

    def ended(self, txid: int) -> bool:
        """Return whether there will never be input for `txid`."""


@dataclass
class OneBatch:
    """The source of one transaction, whose input is there; `committed` returns the last committed txid."""

    batch: Batch
    txid: int
    committed: Callable[[], int]

    def ready(self, txid: int) -> bool:
        return txid == self.txid and not self.ended(txid)

    def next(self, txid: int) -> Batch:
        """Return the batch; the same one to every attempt."""
        return self.batch

    def look_secs(self) -> float:
        return LOOK_SECS

    def ended(self, txid: int) -> bool:
        return self.committed() >= self.txid


_LOOK_SECS = 0.15  # by so much a transaction may begin late without a cause: the loop looks every 0.1 s
_EMPTY_SECS = 0.05  # from an empty transaction to the next, at first, when spouts that can't plan have nothing

_LOOKS = 5
_LOOK_SECS_MIN = 0.01
"""How often in the time between two transactions it looks for something to read, and how long it waits at least. After
each look in a row that finds nothing it waits twice as long, up to `LOOK_SECS`: 50 looks a second took 1.2 % of a core,
and ten a third of a percent."""

_IDLE_SHARE = 9
"""How much longer than a look it waits for the next one: 10,000 partitions in which nothing is new take a tenth of a
processor, not all of it. A second at most: a look may have waited for a server that is back now."""


@dataclass(frozen=True, slots=True)
class SpoutTrigger:
    """When transactions begin, and whether there is a last one."""

    interval_secs: float = 0.0
    """In this time as many transactions begin as may be in flight, evenly spread."""
    once: bool = False
    """One transaction, if there is anything to read."""
    available_now: bool = False
    """Until there is nothing to read."""
    close_time: bool = False
    """With `available_now`: then event time is closed."""


@dataclass
class SpoutSource(Emissions):
    """Gives transactions what spouts have to read (see `Source`)."""

    plan: Plan
    storage: Storage
    log: TransactionLog
    config: Mapping[str, Any]
    """The ``context.config`` of spouts."""
    trigger: SpoutTrigger
    pending: int
    """How many transactions may be in flight."""
    progress: Progress
    """Shows why nobody knows what there is to read; its clock is that of the trigger."""
    ticks: Ticks
    """A tick that is due begins a transaction, also if there is nothing to read."""
    woken: threading.Event | None = None
    """Set when a spout that lives in its task may have something (see `RunEngine.woken`); None: there is none."""
    due_ms: int = field(default=0, init=False)
    """When a tree times out, in milliseconds since the epoch: a transaction begins then, also if nothing comes."""
    idle_looks: int = field(default=0, init=False)
    """How often it has looked for something to read, and found nothing while nothing was in flight."""
    _nothing: bool = field(default=False, init=False)
    """Whether no transaction was needed when it looked last. `_only_time`: one was, but there was nothing to read."""
    _only_time: bool = field(default=False, init=False)
    _fruitless: int = field(default=0, init=False)
    """How many looks in a row have found nothing."""
    _spouts: list[DriverSpout] = field(default_factory=list, init=False)
    _planned: tuple[int, dict[str, Metadata]] | None = field(default=None, init=False)
    """The plan of the next transaction, which is not in the log yet."""
    _kept: tuple[int, dict[str, Metadata]] = field(default=(0, {}), init=False)
    """Batches that were planned of the next transaction when another spout was away: no spout plans one twice."""
    _newest: dict[str, Newest] = field(default_factory=dict, init=False)
    _look_after: float = field(default=0.0, init=False)
    _refusals: int = field(default=0, init=False)
    """How often in a row a spout has raised FailedException when it was asked."""
    _batches: Batches = field(default_factory=Batches, init=False)
    _told: int = field(default=-1, init=False)  # the last committed transaction that spouts were told of
    _empty: int = field(default=-1, init=False)
    """The last transaction in which nothing was emitted; -1: there is none. `_empties`: how many in a row."""
    _empties: int = field(default=0, init=False)
    _began: float = field(default=-math.inf, init=False)
    _due: float = field(default=-math.inf, init=False)
    """When the trigger allows the next transaction."""
    _first: int = field(default=0, init=False)  # the first transaction that has begun here; 0: none has
    _waited_for: str = field(default="", init=False)
    """The spout that was not ready when it was asked last: nobody knows whether there is something to read."""
    _closing: int = field(default=-1, init=False)  # the transaction that closes event time; -1: none does

    def __post_init__(self) -> None:
        self.clock = self.progress.clock

    def open(self) -> None:
        for component in self.plan.components.values():
            if not isinstance(component.operator, ReplayingSpout):
                continue
            own = DriverSpout(component.id, copy.deepcopy(component.operator), component.parallelism, self.progress)
            context = Context(
                config=MappingProxyType(dict(self.config)),
                component=component.id,
                task=DRIVER,
                parallelism=component.parallelism,
                generation=self.log.state.generation,
                origin=self.log.state.origin,
            )
            with own.calling("open", self.log.state.committed + 1):
                own.spout.open(context)
            self._spouts.append(own)
            if self.trigger.available_now:
                with own.calling("prepareForAvailableNow", self.log.state.committed + 1):
                    own.spout.prepareForAvailableNow()
            known = self._last(own.id, max(self.log.state.planned_metadata, default=0) + 1)
            own.check_names(known)
            if not isinstance(own.spout, TransactionalSpout):
                own.newest = max(map(int, known), default=-1)
                with own.calling("initPartitions", self.log.state.committed + 1):
                    own.spout.initPartitions(_copies(known))  # type: ignore[attr-defined]

    def _tell_committed(self) -> None:
        """Report the last commit to spouts with ``committed``; nothing depends on it."""
        state = self.log.state
        if state.committed == self._told:
            return
        self._told = state.committed
        for each in self._spouts:
            if isinstance(each.spout, TransactionalSpout) or not overrides(type(each.spout), "committed"):
                continue
            try:
                read = _copies(self._committed(each.id))
                with self.progress.asking(each.id, "committed", state.committed):
                    reached = each.spout.committed(read)  # type: ignore[attr-defined]  # both kinds with partitions
                if reached is not None:
                    self.progress.reached(each.id, check_json(reached))
            except RAISED:
                logger.exception("spout %s: committed() raised; ignored", each.id)

    def close(self) -> None:
        self._tell_committed()
        for each in self._spouts:
            try:
                with self.progress.asking(each.id, "close", self.log.state.committed):
                    each.spout.close()
            except RAISED:
                logger.exception("spout %s: close() raised; ignored", each.id)
        self._spouts.clear()

    # ---- Source

    def ready(self, txid: int) -> bool:
        """Return whether the trigger allows a transaction now, and there is something to read, or time to close."""
        if self._has_input(txid):
            return True
        if self._closes(txid) and not self.log.state.in_flight:
            self._closing = txid
            return True
        return False

    def _has_input(self, txid: int) -> bool:
        self._tell_committed()
        # Else an idle topology would commit empty transactions as fast as it can.
        waits = self._found_nothing(txid) and not self._time_has_come(txid)
        empty_secs = min(1.0, backoff_secs(self._empties, _EMPTY_SECS)) if waits else 0.0
        if self.clock() < max(self._due, self._began + empty_secs):
            return False
        state = self.log.state
        if self._was_begun(txid):
            return not (self.trigger.once and self._is_read(txid))
        if self._is_read(txid):
            return False
        if self._planned is None or self._planned[0] != txid:
            if self.clock() < self._look_after:
                return False
            began = self.clock()
            try:
                self._look(txid)
            except FailedException as failure:  # no transaction has begun: none uses up a try, and none is given up
                self._refusals += 1
                wait_secs = backoff_secs(self._refusals, self.config["topology.transaction.retry.delay.ms"] / 1000)
                self._look_after, self._nothing = self.clock() + wait_secs, False
                self.progress.away(txid, failure.message)
                logger.warning("planning failed, retrying in %g s: %s", wait_secs, failure.message)
                return False  # and not idle: there may be something to read
            self._refusals = 0
            keeps = self.trigger.available_now and self._waited_for  # from ending: people have to see which does
            why = f"spout {keeps!r} is not ready, and the query ends when all is read" if keeps else ""
            self.progress.away(txid, why, waits=bool(self._waited_for))
            if self._planned is None:
                self._look_after = self.clock() + min(1.0, _IDLE_SHARE * (self.clock() - began))
            self._nothing = self._planned is None
            self._fruitless = self._fruitless + 1 if self._nothing else 0
        if (self._nothing or self._only_time or self._found_nothing(txid)) and not state.in_flight:
            self.idle_looks += 1
        return not self._nothing

    def _look(self, txid: int) -> None:
        """Ask the spouts what there is to read, and plan it."""
        self._planned, self._only_time, self._waited_for = None, False, ""
        woken = self.woken is not None and (self.woken.is_set() or 0 < self.due_ms <= self.progress.now() * 1000)
        timed = self._time_has_come(txid)
        if not (self._spouts or woken or timed):
            return
        for each in self._spouts:
            with each.calling("isReady", txid):
                ready: Any = each.spout.isReady()
                if ready is None:  # a return is missing: it would wait for ever
                    raise TypeError("isReady returns True or False, not None")
            if not ready:
                self._waited_for = each.id
                return
        planning = [each for each in self._spouts if plans(each.spout)]
        kept = self._kept[1] if self._kept[0] == txid else {}
        self._kept = txid, kept
        for each in planning:
            if each.id not in kept and (found := self._plan(each, txid)).partitions:
                kept[each.id] = found
        planned = {each.id: kept.get(each.id, Metadata()) for each in planning}
        rows = woken or len(planned) < len(self._spouts) or any(each.partitions for each in planned.values())
        self._only_time = timed and not rows
        if rows or timed:
            self._planned = txid, planned

    def _time_has_come(self, txid: int) -> bool:
        """Return whether `txid` is to begin for a tick, or for a timer of a bolt.

        With ``availableNow`` it never is: ticks would go on for ever, and for a timer it would wait.
        """
        now_ms = round(self.progress.now() * 1000)
        return not self.trigger.available_now and self.ticks.time_has_come(txid, now_ms)

    def _plan(self, spout: DriverSpout, txid: int) -> Metadata:
        # Not `_last`: a look is to cost what is new, not what was ever read.
        in_flight = self._batches.in_flight(self.log.state, spout.id, txid, self._read)
        last: ChainMap[str, Json] = ChainMap(*map(dict, reversed(in_flight)), self._committed(spout.id))
        return read_now(chain.from_iterable(reversed(last.maps)), spout.plan(txid, last))

    def next(self, txid: int) -> Batch:
        """Return the input of `txid`: what the log has of it, otherwise what was planned now."""
        self._began = self.clock()
        apart_secs = self.trigger.interval_secs / self.pending
        # From when it was due, if it is late only since the loop looks ten times a second: it would be late each time.
        is_late = self._began - self._due > _LOOK_SECS
        self._due = (self._began if is_late else self._due) + apart_secs
        self._first = self._first or txid
        state = self.log.state
        _, planned = self._planned if self._planned is not None and self._planned[0] == txid else (txid, {})
        self._planned = None
        if self.woken is not None:
            self.due_ms = 0  # this transaction tells anew
            self.woken.clear()  # before the order is sent: a spout that wakes from here on may be too late for it
        # Of a spout that is new in a transaction which another one has begun before, nothing is read in it.
        plan = {each.id: planned.get(each.id, Metadata()) for each in self._spouts if plans(each.spout)}
        new = not_durable(plan, state, txid)
        closes = txid == self._closing
        return Batch(SpoutInput(), None, new, self, closes)

    def look_secs(self) -> float:
        """Return when to look again: when the trigger allows a transaction, then some times in each of its intervals.

        While there is nothing to read, ever more seldom.
        """
        left = self._due - self.clock()
        if left > 0:
            return min(LOOK_SECS, left)
        apart_secs = self.trigger.interval_secs / self.pending
        often = max(_LOOK_SECS_MIN, apart_secs / _LOOKS) if apart_secs else LOOK_SECS
        return backoff_secs(self._fruitless, often, LOOK_SECS)

    def ended(self, txid: int) -> bool:
        return self._is_read(txid) and not self._closes(txid)

    def _closes(self, txid: int) -> bool:
        """Return whether to close event time, since all is read: in a transaction of its own, which reads nothing.

        If it ends more than one transaction takes, there are several.
        """
        return self.trigger.close_time and self._is_read(txid) and self.log.state.closes

    def _is_read(self, txid: int) -> bool:
        """Return whether there is nothing more to read, as far as the trigger goes."""
        if 0 <= self._closing < txid or (self._closed_in_part and not self._was_begun(txid)):
            return True  # rows that have come since are for the next start, which refuses them
        if self.trigger.once:
            return self._nothing or 0 < self._first < txid
        if self._was_begun(txid):  # the one before may have found nothing in its second attempt
            return False
        saw_nothing = self._nothing and not self._waited_for
        return self.trigger.available_now and (saw_nothing or self._found_nothing(txid))

    def _was_begun(self, txid: int) -> bool:
        """Return whether a transaction was begun before, here or by a former driver: its input may be durable."""
        state = self.log.state
        if self._closed_in_part:  # it closed as well, unless it was to read something
            return any(said.partitions or said.file for said in state.planned_metadata.get(txid, {}).values())
        return bool(state.next_attempt(txid)) or txid in state.planned_metadata

    @property
    def _closed_in_part(self) -> bool:
        """Whether event time is closed, and not all that has waited for it has ended."""
        return self.trigger.close_time and self.log.state.closed > 0 and self.log.state.closes

    def _found_nothing(self, txid: int) -> bool:
        """Return whether spouts whose tasks find their input found none in the transaction before."""
        return self._empty == txid - 1 and not all(plans(each.spout) for each in self._spouts)

    # ---- Emissions

    def orders(self, attempt: Attempt) -> Mapping[TaskId, EmissionOrder]:
        state, txid, batch = self.log.state, attempt.name.txid, attempt.batch
        assert batch is not None
        found: dict[TaskId, EmissionOrder] = {}
        for each in self._spouts:
            told: Mapping[str, Json]
            if batch.closes:  # a task that finds out itself what there is must not find rows that have come since
                emission, told = Emission.AGAIN, {}
            elif each.id in batch.planned:  # durable by now, and here: reading 10,000 partitions back takes 4 to 8 ms
                emission, told = Emission.AGAIN, batch.planned[each.id].partitions
            else:
                names = partial(each.partitions, txid)
                committed = self._committed(each.id)
                emission, told = self._batches.emission_for(
                    committed, state, each.id, txid, each.emission, names, self._read
                )
            found.update(each.orders(emission, told, state.committed))
        return found

    def partitions(self, attempt: Attempt) -> dict[str, int]:
        timed = [each for each in self._spouts if self.plan.components[each.id].timings and has_partitions(each.spout)]
        return {each.id: each.number(attempt.name.txid) for each in timed}

    def finished(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        committed = self.log.state.committed
        for each in self._spouts:
            if self.plan.components[each.id].timings and may_finish(each.spout):
                spout: Any = each.spout
                with each.calling("isFinished", committed + 1):
                    known = _copies(self._committed(each.id))
                    found[each.id] = [number for number, said in known.items() if spout.isFinished(number, said)]
                    if overrides(type(spout), "partitionsToForget"):
                        left = self._last(each.id, max(self.log.state.planned_metadata, default=committed) + 1).keys()
                        numbers = {*map(int, left), *known}
                        unknown = set(range(each.newest)) - numbers
                        found[each.id] += [number for number in unknown if spout.isFinished(number, None)]
        return found

    def processed(self, attempt: Attempt) -> None:
        """Note what spouts emitted, by spout and partition, and whether there was anything."""
        txid, orders, complete = attempt.name.txid, attempt.orders or {}, attempt.complete
        assert complete is not None
        said: dict[str, dict[str, Json]] = {}
        # Rows that a spout leaves out are read all the same: tasks that are told what to emit say nothing of it.
        found = any(order.emission is Emission.AGAIN and order.partitions for order in orders.values())
        rows = {edge.id for edge in self.plan.edges if not is_of_acks(edge.target)}
        self.due_ms = 0
        for task, ack in complete.acks.items():
            self.due_ms = min(filter(None, (self.due_ms, ack.trees.due_ms)), default=0)
            order = orders.get(task)
            if order is None and self.plan.components[ack.component].kind is ComponentKind.SPOUT:
                found = found or any(count for edge, count in ack.emitted.items() if edge in rows)
            if order is not None:
                beyond = changed(order, ack.metadata or {})
                found = found or bool(beyond) or any(ack.emitted.values())
                said.setdefault(ack.component, {}).update(beyond)
        attempt.said = said
        self._batches = self._batches.processed(txid, said, self.log.state.committed)
        if not found:
            self._empty, self._empties = txid, self._empties + 1
            return
        self._empties = 0
        if self._empty == txid:  # the attempt that found nothing was rolled back, and this one has found something
            self._empty = -1

    def emitted(self, attempt: Attempt, emission: Emission) -> BySpout:
        return to_be_durable(attempt.orders or {}, attempt.said, emission)

    def _last(self, spout: str, txid: int) -> dict[str, Json]:
        return self._batches.last(self._committed(spout), self.log.state, spout, txid, self._read)

    def _committed(self, spout: str) -> dict[str, Json]:
        """Return a spout's newest committed metadata, of which its own code may be given copies alone."""
        newest = self._newest.setdefault(spout, Newest())
        return newest.after(self.log.state.committed_metadata.get(spout, ()), self._read)

    def _read(self, metadata: Metadata) -> Partitions:
        try:
            return read_metadata(self.storage, metadata)
        except FileNotFoundError as error:
            self.log.check()  # a successor may have folded the log, and deleted what no record of its own names
            raise lost_metadata(self.storage, metadata) from error


def _copies(said: Partitions) -> dict[int, Json]:
    """Return copies by partition: a spout may change them in place."""
    return {int(name): json_copy(metadata) for name, metadata in said.items()}
