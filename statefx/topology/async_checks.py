"""Checks of bolts whose calls overlap: their settings, the form of their hooks, and how their input is grouped."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from statefx.config import NOT_WRITTEN, SPELLINGS, is_count, micros_of
from statefx.errors import StatefxError, TopologyError
from statefx.operators.async_bolts import AsyncBolt
from statefx.operators.bolts import Bolt, Stateful
from statefx.operators.hooks import overrides
from statefx.operators.windows import WindowedBolt
from statefx.topology.checks import named
from statefx.topology.graph import Component, DeclaredInput, OnError

CAPACITY_MAX = 10_000
"""Calls in flight in a task: each is a task of an event loop, and mostly a connection."""

THREADS_MAX = 1000
WAIT_MS_MAX = 60_000
RATE_MAX = 1_000_000

RETRIES_MAX = 1000


def check_async(id: str, bolt: Bolt, mode: OnError) -> None:
    """Refuse settings and hooks of an AsyncBolt that have no meaning, each with the remedy; other bolts have none."""
    if not isinstance(bolt, AsyncBolt):
        return
    name = type(bolt).__name__
    checks = (_settings, _retries, _execute, _batches)
    why = next(filter(None, (check(bolt, name) for check in checks)), "") or _unfit(bolt, name, mode)
    if why:
        raise TopologyError(f"bolt {id!r}: {why}", component=id)


def _settings(bolt: AsyncBolt, name: str) -> str:
    capacity, timeout, threads, ordered = bolt.capacity, bolt.timeout, bolt.threads, bolt.ordered
    if not (is_count(capacity) and capacity <= CAPACITY_MAX):
        return (
            f"capacity of {name} is how many calls a task has in flight, 1 to {CAPACITY_MAX}, as capacity = 100; "
            f"not {capacity!r}"
        )
    if timeout is not None and micros_of(timeout) is None:
        return (
            f"timeout of {name} is how long one call may take, such as {SPELLINGS}; {NOT_WRITTEN}; or None; above 0, "
            f"and not {timeout!r}"
        )
    if not isinstance(ordered, bool):
        return f"ordered of {name} is True (rows leave in the order of tuples) or False, not {ordered!r}"
    if threads is not None and not (is_count(threads) and threads <= THREADS_MAX):
        return f"threads of {name} is a number of threads for each task, 1 to {THREADS_MAX}, or None; not {threads!r}"
    rate = bolt.ratePerSecond
    if rate is not None and not (_is_number(rate) and 0 < rate <= RATE_MAX):
        return f"ratePerSecond of {name} is how many calls a second a task begins, above 0, or None; not {rate!r}"
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _retries(bolt: AsyncBolt, name: str) -> str:
    if not (is_count(bolt.retries, 0) and bolt.retries <= RETRIES_MAX):
        return f"retries of {name} is how often a call is made again, 0 to {RETRIES_MAX}; not {bolt.retries!r}"
    for delay in ("retryDelay", "breakerDelay"):
        given = getattr(bolt, delay)
        if micros_of(given) is None:
            return f"{delay} of {name} is a time such as {SPELLINGS}; {NOT_WRITTEN}; above 0, and not {given!r}"
    kinds: Any = bolt.retryOn
    if not (isinstance(kinds, tuple) and kinds and all(isinstance(one, type) for one in kinds)):
        return f"retryOn of {name} is a tuple of types, as retryOn = (ConnectionError, TimeoutError); not {kinds!r}"
    for kind in kinds:
        if not issubclass(kind, Exception) or issubclass(kind, StatefxError):
            why = "no Exception" if not issubclass(kind, Exception) else "statefx's own, which no other call would mend"
            return f"retryOn of {name} has {kind.__name__}, which is {why}: leave it out"
    failures = bolt.breakerFailures
    if failures is not None and not is_count(failures):
        return (
            f"breakerFailures of {name} is after how many failed calls in a row the breaker opens, 1 or more, or None; "
            f"not {failures!r}"
        )
    return ""


def _execute(bolt: AsyncBolt, name: str) -> str:
    if bolt.vectorised and overrides(type(bolt), "execute"):
        return f"{name} has execute and executeBatch: define one, for tuples come by one of them"
    hook, given = ("executeBatch", "batch") if bolt.vectorised else ("execute", "tup")
    is_async = _is_async(getattr(bolt, hook))
    if bolt.threads is None and not is_async:
        return (
            f"{hook} of {name} is a plain function, which would block the event loop of all calls: write async def "
            f"{hook}(self, {given}, collector), and await what takes long; or have it run in threads, as threads = 20"
        )
    if bolt.threads is not None and is_async:
        return f"{name} has threads, for a plain def {hook}, and its {hook} is async def: leave out threads"
    return ""


def _batches(bolt: AsyncBolt, name: str) -> str:
    most, wait_ms = bolt.maxBatch, bolt.maxWaitMs
    if not bolt.vectorised:
        if (most, wait_ms) != (AsyncBolt.maxBatch, AsyncBolt.maxWaitMs):
            return (
                f"maxBatch and maxWaitMs of {name} are for executeBatch, which it has not: define it, or leave both out"
            )
        return ""
    if not is_count(most):
        return (
            f"maxBatch of {name} is how many tuples a call is given at most, 1 or more, as maxBatch = 64; not {most!r}"
        )
    if most > bolt.capacity:
        return (
            f"maxBatch of {name} is {most}, and with capacity = {bolt.capacity} tuples in flight no batch would be "
            f"full: say capacity = {most} or more, twice that for two batches at a time, or a lower maxBatch"
        )
    if not (_is_number(wait_ms) and 0 <= wait_ms <= WAIT_MS_MAX):
        return (
            f"maxWaitMs of {name} is how many milliseconds a batch waits for more tuples, 0 to {WAIT_MS_MAX}, as "
            f"maxWaitMs = 5; not {wait_ms!r}"
        )
    if bolt._keeps_calls:
        return (
            f"{name} has executeBatch, and retries or a breaker, which are for execute: try again in executeBatch "
            "itself, or define async def execute"
        )
    if isinstance(bolt, Stateful):
        return (
            f"{name} has executeBatch and keeps state: calls of one key keep their order, and a batch is one call for "
            "many keys. Define async def execute; or let an AsyncBolt without state take batches, and a StatefulBolt "
            "read what it emits"
        )
    return ""


def _unfit(bolt: AsyncBolt, name: str, mode: OnError) -> str:
    if isinstance(bolt, WindowedBolt):
        return f"{name} is an AsyncBolt and a WindowedBolt: let an AsyncBolt read what the windows emit"
    if isinstance(bolt, Stateful) and bolt.threads is not None:
        return (
            f"{name} keeps state, which no threads may share: write async def execute, and await "
            "asyncio.to_thread(...) for a client that blocks"
        )
    if mode is OnError.QUARANTINE_KEY:
        return (
            f'{name} can\'t have onError="{mode}": calls of later rows may have begun when one fails. Say '
            f'onError="{OnError.DEAD_LETTER}", which holds back no later rows'
        )
    return ""


def _is_async(function: Any) -> bool:
    """Return whether calling a function makes a coroutine; also one that a decorator has wrapped."""
    return any(map(inspect.iscoroutinefunction, (function, inspect.unwrap(function))))


def check_keyed(reader: Component, inputs: Sequence[DeclaredInput]) -> None:
    """Refuse inputs that are not grouped by fields, of a bolt whose tuples are to keep their order by them."""
    bolt = reader.operator
    if not isinstance(bolt, AsyncBolt) or not (isinstance(bolt, Stateful) or (bolt._keeps_calls and bolt.ordered)):
        return
    for one in inputs:
        if not one.grouping.fields and not one.grouping.broadcast:
            why = (
                "calls overlap, and only those of one key keep their order, so that state of a key has one call at a "
                "time. Group it by fields"
            )
            if not isinstance(bolt, Stateful):
                why = (
                    f"a tuple of {type(bolt).__name__} may wait for another call, and would hold back the rows of all "
                    "that come later. Say ordered = False, or group it by fields: tuples of one key keep their order "
                    "then"
                )
            raise TopologyError(
                f"{named(reader)} reads {one.source!r} by {one.grouping}: {why}, as .fieldsGrouping({one.source!r}, "
                '"user")',
                component=reader.id,
                source=one.source,
            )
