"""The user's objects: how one is made, opened and closed, and how what its hooks raise gets its name."""

from __future__ import annotations

import copy
import inspect
import logging
import reprlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from statefx.errors import (
    BoltError,
    CodecError,
    FailedException,
    FencedError,
    SchemaError,
    StateClosedError,
    StateError,
    StatePhaseError,
)
from statefx.operators.async_bolts import AsyncBolt
from statefx.operators.bolts import Bolt, Stateful, attach_timers
from statefx.operators.context import Context
from statefx.operators.spouts import ReplayingSpout, Spout
from statefx.operators.unpacking import values_in
from statefx.operators.user_errors import bolt_error
from statefx.operators.window_state import upgraded
from statefx.operators.windows import WindowedBolt
from statefx.plan.deployment import Deployment
from statefx.protocol.identity import EMPTY, TaskId, TransactionAttempt, Version
from statefx.runtime.loops import loop_of, open_loop
from statefx.state.contract.spaces import NameKind
from statefx.state.contract.store import StateStore
from statefx.state.view.task_state import TaskState
from statefx.state.view.time_index import Timers
from statefx.topology.graph import Edge

logger = logging.getLogger("statefx")

USER_STATE_ERRORS = (CodecError, StateClosedError, StatePhaseError)
"""Errors of state that the bolt's own code makes; the others are the store's."""

_CONTEXT = "_statefx_context"


class AbandonedError(Exception):
    """The attempt was abandoned: its chain goes no further."""


class ProcessGone(BaseException):
    """The worker process has died, as tests play it: no code may take it for an error of the bolt's."""


@contextmanager
def hook(task: TaskId, name: str, txid: int, kind: str = "bolt") -> Iterator[None]:
    """Name component, task, hook and transaction in what a user's hook raises."""
    try:
        yield
    except (FailedException, FencedError, AbandonedError):
        raise
    except BoltError as error:
        if "hook" in error.data:  # migrateState, called from within another
            raise
        raise bolt_error(error, *task, name, txid, kind) from error
    except StateError as error:
        if not isinstance(error, USER_STATE_ERRORS):
            raise
        raise bolt_error(error, *task, name, txid, kind) from error
    except ProcessGone:
        raise
    except BaseException as error:  # asyncio's CancelledError, KeyboardInterrupt: as bare they end more than the task
        raise bolt_error(error, *task, name, txid, kind) from error


def open_object(
    deployment: Deployment,
    task: TaskId,
    attempt: TransactionAttempt,
    clock_ms: int = 0,
    watermark: int | None = None,
    *,
    check: Callable[[], None] = lambda: None,
    share: Callable[..., Any] | None = None,
) -> Any:
    """Return a bolt or a spout of its own for a task, opened; `clock_ms` and `watermark` as of `Context.enter`.

    An `AsyncBolt` is opened on a loop of its own; `check` raises if nobody waits for that any longer. `share` is what
    ``context.shared`` calls.
    """
    made = made_object(deployment, task, attempt, clock_ms, watermark, share)
    with hook(task, "open", attempt.txid, deployment.plan.components[task.component].kind):
        if not isinstance(made, AsyncBolt):
            made.open(context_of(made))
            return made
        loop = open_loop(made, f"statefx-{task.component}-{task.task}")
        try:
            loop.run(
                _awaited(partial(made.open, context_of(made))), f"bolt {task.component!r}, task {task.task},", check
            )
        except BaseException:
            loop.close(wait=False)
            raise
    return made


async def _awaited(call: Callable[[], Any]) -> None:
    given = call()
    if inspect.isawaitable(given):
        await given


def made_object(
    deployment: Deployment,
    task: TaskId,
    attempt: TransactionAttempt,
    clock_ms: int = 0,
    watermark: int | None = None,
    share: Callable[..., Any] | None = None,
) -> Any:
    """Return a bolt or a spout of its own for a task, with its context, and not open."""
    part = deployment.plan.components[task.component]
    assert isinstance(part.operator, Bolt | ReplayingSpout | Spout)
    with hook(task, "open", attempt.txid, part.kind):  # tried on the driver, but code of the user's may tell them apart
        bolt = copy.deepcopy(part.operator)
    context = Context(
        config=MappingProxyType(dict(deployment.config)),  # what one task writes, no other would see
        component=task.component,
        task=task.task,
        parallelism=part.parallelism,
        generation=deployment.generation,
        origin=deployment.origin,
        ordered=deployment.plan.place[task][0] >= deployment.plan.cut,
        _share=share,
    )
    context.enter(attempt, clock_ms, watermark)
    bolt.__dict__[_CONTEXT] = context  # not an attribute of the class: users' classes own its names
    return bolt


def context_of(bolt: Bolt | ReplayingSpout | Spout) -> Context:
    context: Context = bolt.__dict__[_CONTEXT]
    return context


def check_nothing(name: str, returned: object) -> None:
    """Refuse what a hook returns: it would be ignored, and was likely meant to be emitted."""
    if returned is None:
        return
    if inspect.iscoroutine(returned):
        returned.close()  # else Python warns later that it was never awaited
    raise TypeError(
        f"{name} returned {reprlib.repr(returned)} ({type(returned).__name__}), which nobody would see: emit rows with "
        "collector.emit(...), and return nothing"
    )


def close_object(bolt: Bolt | ReplayingSpout | Spout, *, wait: bool = True) -> None:
    """Close a user's object; `wait` for one that has a loop, at most a few seconds."""
    if isinstance(bolt, AsyncBolt):
        loop_of(bolt).close(partial(_awaited, bolt.close), wait=wait)
        return
    try:
        bolt.close()
    except ProcessGone:
        raise
    except BaseException:
        logger.exception("%s: close() raised; ignored", type(bolt).__name__)


def init_state(task: TaskId, bolt: Stateful, state: TaskState, txid: int, timers_refusal: str = "") -> None:
    """Give a bolt its state, and its timers if it hears them; `timers_refusal` says why none may be of event time."""
    attach_timers(bolt, lambda: Timers(state, timers_refusal))
    with hook(task, "initState", txid):
        bolt.initState(state)


def view_of(
    deployment: Deployment,
    task: TaskId,
    bolt: Bolt,
    txid: int,
    opened: Callable[[], StateStore],
    *,
    version: Version = EMPTY,
    read_only: bool = False,
    clock_ms: int | None = None,
    state_class: type[TaskState] = TaskState,
) -> TaskState:
    """Open a task's state as its bolt sees it: by the bolt's codec, and of the bolt's version.

    The bolt is open: its ``migrateState`` is called as values of older versions are read. `opened` opens the store.
    `clock_ms` is the order's time, by which entries are over that have one. The tester's `state_class` also watches
    what the bolt does with values.
    """

    def upgrade(version: int, key: Any, value: Any) -> Any:
        with hook(task, "migrateState", txid):
            if isinstance(bolt, WindowedBolt) and type(key) is tuple and key:
                place = key[0]  # (kind, name), which no key of a user's can be
                if type(place) is tuple and place and place[0] is NameKind.WINDOWS:
                    return upgraded(bolt, place[1], key[1], value, version)
            assert isinstance(bolt, Stateful)
            return bolt.migrateState(version, key, value)

    with hook(task, "open", txid):
        codec = deployment.codec(task.component)
    return state_class(
        opened(),
        codec,
        version=version,
        read_only=read_only,
        state_version=bolt.stateVersion if isinstance(bolt, Stateful) else 1,
        upgrade=upgrade,
        clock_ms=clock_ms,
    )


def values_of(batch: pa.RecordBatch, source: str, edge: Edge) -> list[list[Any]]:
    found = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            found.append(values_in(column))
        except (UnicodeDecodeError, ValueError, OverflowError, pa.ArrowException) as error:
            raise SchemaError(
                f"field {name!r} of stream {edge.stream!r} of {source!r} holds a value that Python can't: {error}. "
                "Clean it up before the topology, or take whole batches with executeBatch",
                component=edge.target,
                stream=edge.stream,
                field=name,
            ) from error
    return found
