"""Bolt objects: how one is made, opened and closed, and how what its hooks raise gets its name."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from statefx.errors import (
    BoltError,
    CodecError,
    FailedException,
    FencedError,
    StateClosedError,
    StateError,
    StatePhaseError,
)
from statefx.operators import Bolt, Context, ReplayingSpout, Spout, Stateful
from statefx.operators.user_errors import bolt_error
from statefx.plan.deployment import Deployment
from statefx.protocol.identity import EMPTY, TaskId, TransactionAttempt, Version
from statefx.state.contract.store import StateStore
from statefx.state.view.lent import LentState

logger = logging.getLogger("statefx")

_USER_STATE_ERRORS = (CodecError, StateClosedError, StatePhaseError)
"""Errors of state that the bolt's own code makes; the others are the store's."""

_CONTEXT = "_statefx_context"


class ProcessGone(BaseException):
    """The worker process has died, as tests play it: nothing may take it for an error of the bolt's."""


@contextmanager
def hook(task: TaskId, name: str, txid: int, kind: str = "bolt") -> Iterator[None]:
    """Turn what a hook of the user's raises into an error that names component, task, hook and transaction."""
    try:
        yield
    except (FailedException, FencedError):
        raise
    except BoltError as error:
        if "hook" in error.data:  # migrateState, called from within another
            raise
        raise bolt_error(error, *task, name, txid, kind) from error
    except StateError as error:
        if not isinstance(error, _USER_STATE_ERRORS):
            raise
        raise bolt_error(error, *task, name, txid, kind) from error
    except ProcessGone:
        raise
    except BaseException as error:  # asyncio's CancelledError, KeyboardInterrupt: as bare they end more than the task
        raise bolt_error(error, *task, name, txid, kind) from error


def open_operator(deployment: Deployment, task: TaskId, attempt: TransactionAttempt) -> Bolt | ReplayingSpout | Spout:
    """Return a bolt or a spout of its own for a task, opened."""
    made = made_operator(deployment, task, attempt)
    with hook(task, "open", attempt.txid, deployment.plan.components[task.component].kind):
        made.open(context_of(made))
    return made


def made_operator(deployment: Deployment, task: TaskId, attempt: TransactionAttempt) -> Bolt | ReplayingSpout | Spout:
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
    )
    context.enter(attempt)
    bolt.__dict__[_CONTEXT] = context  # not an attribute of the class: users' classes own its names
    return bolt


def context_of(bolt: Bolt | ReplayingSpout | Spout) -> Context:
    """Return the context with which a bolt was opened."""
    context: Context = bolt.__dict__[_CONTEXT]
    return context


def close_bolt(bolt: Bolt | ReplayingSpout | Spout) -> None:
    """Close a bolt that is given up."""
    try:
        bolt.close()
    except ProcessGone:
        raise
    except BaseException:
        logger.exception("close of %s failed; it changes nothing", type(bolt).__name__)


def view_of(
    deployment: Deployment,
    task: TaskId,
    bolt: Stateful,
    txid: int,
    opened: Callable[[], StateStore],
    *,
    version: Version = EMPTY,
    read_only: bool = False,
    state_class: type[LentState] = LentState,
) -> LentState:
    """Open a task's state as its bolt sees it: by the bolt's codec, and of the bolt's version.

    The bolt is open: its ``migrateState`` is called as values of older versions are read. `opened` opens the store. The
    tester's `state_class` also watches what the bolt does with values.
    """

    def upgrade(version: int, key: Any, value: Any) -> Any:
        with hook(task, "migrateState", txid):
            return bolt.migrateState(version, key, value)

    with hook(task, "open", txid):
        codec = deployment.codec(task.component)
    return state_class(
        opened(), codec, version=version, read_only=read_only, state_version=bolt.stateVersion, upgrade=upgrade
    )
