"""Calls that are made again: their delays, tuples that wait in state, and the circuit breaker of a task.

::

    a call fails -> again, in this attempt     after a short delay
                 -> its tuple waits in state   for a longer one, or for the breaker; a transaction comes when it is due
                 -> its error counts           no retry is left, or it is of a kind that is not tried again

What waits lies in the task's store, one entry for each tuple, and is prepared with the state: an attempt that is rolled
back leaves nothing, and another driver goes on with it. It is written at the end of an attempt, when no call is in
flight; until then it is in memory, as all that waits is: its number is bounded.

If tuples of a key keep their order, those that come later wait for the one that waits, with no time of their own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
import pyarrow as pa

from statefx.config import seconds_of
from statefx.errors import FailedException, StatefxError
from statefx.operators.async_bolts import AsyncBolt
from statefx.operators.user_errors import cause_of
from statefx.operators.waiting import Waiting, WaitingTuples, group_of, place_of, written
from statefx.plan.levels import name_shown
from statefx.protocol.reports import BREAKER_STATES, CallReport
from statefx.runtime.calls import Call, Calls
from statefx.state.view.task_state import TaskState
from statefx.topology.graph import Edge

logger = logging.getLogger("statefx")

DOUBLINGS = 6
"""After so many retries the delay grows no longer: it is 64 times the first one."""

INSIDE_SECS = 1.0
"""How long the tuple of a call may wait for retries in one attempt, in all: nothing commits meanwhile."""

WAITING_MAX = 10_000
"""Tuples of a task that wait: they are in memory."""

_WHY_MAX = 300
"""Of an error, so many characters are kept with each tuple."""


def delay_secs(tries: int, first_secs: float, random: float) -> float:
    """Return the delay after so many calls; `random` is in [0, 1).

    It is "equal jitter" (Marc Brooker, Exponential Backoff And Jitter, AWS Architecture Blog, 2015): half of a delay
    that doubles, and as much again at random, so that tuples that failed together are not tried together.

    >>> [delay_secs(tries, 1.0, 0.5) for tries in (1, 2, 3, 7, 8)]
    [0.75, 1.5, 3.0, 48.0, 48.0]
    """
    whole: float = first_secs * 2 ** min(tries - 1, DOUBLINGS)
    return whole / 2 + whole / 2 * random


# ---- the breaker


class Admission(Enum):
    """Whether a call may be made."""

    YES = "it is made"
    WAITS = "no call is made: the tuple waits"
    AFTER_PROBE = "when the one call that is made now has ended"


_CLOSED, _HALF_OPEN, _OPEN = BREAKER_STATES


class Breaker:
    """Holds back the calls of a task while its service is away; lives as long as the task.

    ::

        closed --so many failures, one after the other--> open --after its time--> half open: one call
           ^                                               ^                          |       |
           +--------------------- it has succeeded --------|--------------------------+       |
                                                           +------------ it has failed -------+

    Calls that began before the last change count no longer. `changes` counts those so far. Times are of one clock, in
    milliseconds.
    """

    def __init__(self, failures: int | None, delay_ms: float, who: str) -> None:
        self._most, self._delay_ms, self._who = failures, delay_ms, who
        self.state = _CLOSED
        self.until_ms = 0.0
        self.epoch = self.changes = 0
        self._failures = 0
        self._is_probing = False

    def begin(self) -> None:
        """Begin an attempt: a call of the one before has no outcome."""
        self._is_probing = False

    @property
    def is_open(self) -> bool:
        """Whether no call is made, until `until_ms`."""
        return self.state == _OPEN

    @property
    def shown(self) -> str:
        """Its state, as people are shown it; empty if there is no breaker."""
        return "" if self._most is None else self.state

    def admit(self, now_ms: float) -> Admission:
        """Return whether a call may be made now."""
        if self.state == _CLOSED:
            return Admission.YES
        if self.state == _OPEN:
            if now_ms < self.until_ms:
                return Admission.WAITS
            self._turn(_HALF_OPEN, "makes one call, to see whether its service is back")
        if self._is_probing:
            return Admission.AFTER_PROBE
        self._is_probing = True
        return Admission.YES

    def ended(self, epoch: int, now_ms: float, why: str = "") -> bool:
        """Note that a call has ended, admitted in this epoch; `why` if it failed. Return whether the state changed."""
        if epoch != self.epoch or self._most is None:
            return False
        if not why:
            self._failures, self._is_probing = 0, False
            if self.state == _HALF_OPEN:
                self._turn(_CLOSED, "makes calls again: its service is back")
                return True
            return False
        self._failures += 1
        if self.state != _HALF_OPEN and self._failures < self._most:
            return False
        self.until_ms = now_ms + self._delay_ms
        times = "one call has" if self._failures == 1 else f"{self._failures} calls have"
        secs = self._delay_ms / 1000
        self._turn(_OPEN, f"makes no calls for {secs:g} s, and tuples wait: {times} failed one after the other: {why}")
        return True

    def _turn(self, state: str, what: str) -> None:
        self.state = state
        self.changes += 1
        self.epoch += 1
        self._is_probing = False
        if state == _CLOSED:
            self._failures = 0
        logger.log(logging.WARNING if state == _OPEN else logging.INFO, "%s %s", self._who, what)


# ---- retries


@dataclass(frozen=True)
class Policy:
    """What a bolt says of retries; `by_key` is whether tuples of a key keep their order."""

    retries: int
    delay_secs: float
    on: tuple[type[Exception], ...]
    by_key: bool

    @classmethod
    def of(cls, bolt: AsyncBolt, *, by_key: bool) -> Policy:
        """Read it from a bolt."""
        return cls(bolt.retries, seconds_of(bolt.retryDelay) or 0.0, tuple(bolt.retryOn), by_key)

    def covers(self, error: BaseException) -> bool:
        """Return whether a call that has raised this may be made again: no error of statefx, such as misuse, is."""
        return isinstance(error, self.on) and not isinstance(error, StatefxError | MemoryError)


class Retries:
    """The retries of one attempt of a task.

    `clock` returns the time in milliseconds since 1970, `random` numbers in [0, 1), and `groups` the key of each row as
    tuples that wait are kept by it. `watermark` is kept with tuples of this attempt. While calls are made, all is for
    the loop's thread; before and after, for the chain's.
    """

    def __init__(
        self,
        policy: Policy,
        breaker: Breaker,
        calls: Calls,
        state: TaskState,
        *,
        task: int,
        txid: int,
        watermark: int | None,
        clock: Callable[[], float],
        random: Callable[[], float],
        groups: Callable[[Edge, pa.RecordBatch], list[bytes]],
    ) -> None:
        self._policy, self._breaker, self._calls = policy, breaker, calls
        self._task, self._txid, self._watermark = task, txid, watermark
        self._clock, self._random, self._groups_of = clock, random, groups
        self._tuples = WaitingTuples(state)
        self._entries = self._tuples.read()
        self._groups = {group_of(place) for place in self._entries} if policy.by_key else set[Any]()
        self._behind: set[Any] = set(self._groups)
        """Keys of which a tuple waits until a later transaction."""
        self._leaving: list[Call] = []
        """Calls whose tuples wait from now on, in the order of each key."""
        self._count = len(self._entries)
        self._replaced: dict[bytes, Waiting | None] = {}
        self._parked: list[Call] = []
        self._places: dict[int, bytes] = {}
        """By the identity of what they have waited as."""
        self._made_again = 0
        breaker.begin()

    # ---- before calls are made

    @property
    def has_entries(self) -> bool:
        """Whether tuples of earlier transactions wait."""
        return bool(self._entries)

    @property
    def has_waiting(self) -> bool:
        """Whether they wait by key: rows are to be given theirs by `groups` then."""
        return bool(self._groups)

    def due(self) -> Iterator[tuple[bytes, Waiting]]:
        """Yield what is to be tried in this attempt, in order; later tuples of a key right after the first."""
        now = self._clock()
        if self._breaker.is_open and now < self._breaker.until_ms:
            return
        last, is_due = None, False
        for place, waiting in self._entries.items():
            group = group_of(place)
            if not (self._policy.by_key and group == last):  # else it goes by the first one of its key
                last, is_due = group, waiting.due_ms <= now
                if is_due:
                    self._behind.discard(group)
            if is_due:
                self._places[id(waiting)] = place
                yield place, waiting

    # ---- the loop's thread

    def admits(self, call: Call) -> bool:
        """Return whether a call is to be made now; otherwise its tuple waits, or it comes later."""
        if call.fed.edge is None:  # a tick, which can't wait
            call.epoch = -1
            return True
        if self._policy.by_key and call.key in self._behind:
            self._wait(call, 0.0)
            return False
        match self._breaker.admit(self._clock()):
            case Admission.WAITS:
                self._wait(call, self._clock())
                return False
            case Admission.AFTER_PROBE:
                self._parked.append(call)
                return False
        call.epoch = self._breaker.epoch
        return True

    def after(self, call: Call) -> Call | None:
        """Return what counts of a call that has ended; None: another call is made for the tuple, or it waits."""
        error, waiting = call.error, call.fed.waiting
        before = 0 if waiting is None else waiting.tries
        fails = error is not None and call.fed.edge is not None and (call.is_late or self._policy.covers(error))
        why = cause_of(error)[:_WHY_MAX] if fails and error is not None else ""
        is_changed = self._breaker.ended(call.epoch, self._clock(), why)
        following: Call | None = call
        if fails and before + call.tries < self._policy.retries:
            following = self._again(call, before, why)
        elif waiting is not None:
            self._replaced[self._places[id(waiting)]] = None
            self._count -= 1
        if fails and following is call and self._policy.retries:
            since = self._txid if waiting is None else waiting.txid
            call.note = f"after {before + call.tries + 1} tries, the first in transaction {since}"
        if is_changed:
            parked, self._parked = self._parked, []
            for other in parked:
                self._calls.again(other)
        return following

    def _again(self, call: Call, before: int, why: str) -> Call | None:
        following = call.next_try()
        following.why = why
        self._made_again += 1
        secs = delay_secs(before + following.tries, self._policy.delay_secs, self._random())
        if self._breaker.state == _CLOSED and following.waited_secs + secs <= INSIDE_SECS:
            following.waited_secs += secs
            self._calls.again(following, secs)
            return None
        self._keep_for_later(following, self._clock() + secs * 1000)
        return following

    def _wait(self, call: Call, due_ms: float) -> None:
        """Have a tuple wait of which no call is made now."""
        self._keep_for_later(call, due_ms)
        self._calls.ended(call)

    def _keep_for_later(self, call: Call, due_ms: float) -> None:
        call.waits, call.due_ms = True, due_ms
        self._leaving.append(call)
        if self._policy.by_key:
            self._behind.add(call.key)
        self._count += call.fed.waiting is None
        if self._count > WAITING_MAX:
            self._calls.fail(
                FailedException(
                    f"{WAITING_MAX:,} tuples of the task wait for calls to be made again, as many as may. The "
                    "transaction is tried again, at most topology.transaction.attempts.max times; then the query ends, "
                    "and nothing is lost: start again when calls succeed, or raise that setting for a service that is "
                    "away longer"
                )
            )

    # ---- after all calls

    def write(self, key_of: Callable[[Any], str | None]) -> None:
        """Change in the task's state what has changed; `key_of` returns the idempotency key of a tuple."""
        for number, call in enumerate(self._leaving):
            due_ms, waiting, edge, batch = int(call.due_ms), call.fed.waiting, call.fed.edge, call.fed.batch
            if waiting is not None:
                if call.tries:
                    tries, key = waiting.tries + call.tries, waiting.key or key_of(call.tup)  # a rescale may allow one
                    changed = msgspec.structs.replace(waiting, due_ms=due_ms, tries=tries, why=call.why, key=key)
                    self._replaced[self._places[id(waiting)]] = changed
                continue
            assert edge is not None
            assert batch is not None
            row = batch.slice(call.at, 1)
            (group,) = self._groups_of(edge, row)
            self._replaced[place_of(group, self._txid, number, self._task)] = Waiting(
                due_ms,
                call.tries,
                call.why,
                self._txid,
                name_shown(edge.source),
                edge.stream,
                key_of(call.tup),
                self._watermark,
                written(row),
            )
        for place, entry in self._replaced.items():
            self._tuples.put(place, entry)
            if entry is None:
                del self._entries[place]
            else:
                self._entries[place] = entry
        self._entries = dict(sorted(self._entries.items()))

    @property
    def due_ms(self) -> int:
        """When the next transaction is due for tuples that wait, in milliseconds since 1970; 0: none does."""
        times, last = [], None
        for place, waiting in self._entries.items():
            group = group_of(place)
            if not (self._policy.by_key and group == last):
                times.append(waiting.due_ms)
            last = group
        until = self._breaker.until_ms if self._breaker.is_open else 0.0
        return max(min(times), math.ceil(until), 1) if times else 0

    @property
    def held_watermark(self) -> int | None:
        """The watermark that rows are still to be emitted at; None: none is."""
        marks = [waiting.watermark for waiting in self._entries.values() if waiting.watermark is not None]
        return min(marks, default=None)

    @property
    def report(self) -> CallReport:
        """What is shown to people."""
        breaker = self._breaker
        return CallReport(len(self._entries), self._made_again, breaker.shown, breaker.changes)
