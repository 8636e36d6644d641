"""The steps of calls that have state: what runs between two awaits of a call, and what it changes.

While calls are in flight, one journal is attached to the state. It is empty before and after every step:

- A step that ends its call keeps what it has changed, or takes it back if it has raised or returned something, or has
  failed a tuple that belongs to no tree.
- A step that has changed something and awaits is refused, and its change taken back: another call's change of the same
  entry could come between, and neither could be undone without the other.
- Entries in the journal before a step were made by code that is in no call: that fails the attempt.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from statefx.errors import StatePhaseError
from statefx.state.view import task_state
from statefx.state.view.changes import StepJournal
from statefx.state.view.task_state import TaskState

LEAVE_SECS = 1.0
"""How long the end of an attempt waits for a step that runs: its state can't be closed meanwhile."""


class Ended(Protocol):
    """A call, which may have ended before its code has: it took too long. `has_lost`: it has failed its loose tuple."""

    done: bool
    has_lost: bool


class Slices:
    """Steps of the calls of one attempt, one at a time; all but `leave` are for the loop's thread.

    `fail` is called with what fails the attempt as a whole.
    """

    def __init__(self, state: TaskState, who: str, fail: Callable[[BaseException], None]) -> None:
        self._state, self._who, self._fail = state, who, fail
        self._journal = StepJournal()
        self._lock = threading.Lock()
        self._has_left = False
        task_state.keep_journal(state, self._journal)

    def prefetch(self, keys: Any) -> None:
        """Read what is not known of keys, unless the attempt has ended."""
        with self._lock:
            if not self._has_left:
                self._state.prefetch(keys)

    def run(self, coroutine: Coroutine[Any, Any, Any], call: Ended) -> _Sliced:
        """Return what runs a call, step by step, when it is awaited."""
        return _Sliced(self, coroutine, call)

    def leave(self) -> bool:
        """Run no step from now on; return False if one runs and does not end: it may use the state."""
        if not self._lock.acquire(timeout=LEAVE_SECS):
            return False
        self._has_left = True
        task_state.keep_journal(self._state, None)
        self._lock.release()
        return True

    def check(self) -> None:
        """Raise if state was changed since the last step."""
        if self._journal:
            raise self._stray()

    def step(self, call: Ended, advance: Callable[[], Any], coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a call up to its next await, or to its end, which is a StopIteration."""
        with self._lock:
            if self._has_left:
                with suppress(BaseException):  # cancelled as elsewhere, whichever of the two comes first
                    coroutine.throw(asyncio.CancelledError())
                coroutine.close()  # it has caught that, and awaits
                raise asyncio.CancelledError
            journal = self._journal
            if journal:
                self._undo()
                self._fail(self._stray())
            try:
                awaited = advance()
            except StopIteration as end:
                if journal:
                    # A call that returns something has failed; and of a tuple that belongs to no tree nothing is kept.
                    if call.done or call.has_lost or end.value is not None:
                        self._undo()
                    journal.clear()
                raise
            except BaseException:
                if journal:
                    self._undo()
                raise
            if journal:
                self._undo()
                if not call.done:
                    coroutine.close()
                    if journal:
                        self._undo()
                    raise StatePhaseError(
                        f"{self._who} changed state and then awaited: other calls go on meanwhile, and what they "
                        "change could no longer be told apart if one of them fails. Change state after the last await"
                    )
            return awaited

    def _undo(self) -> None:
        try:
            task_state.undo(self._state, self._journal)
        except Exception as error:  # noqa: BLE001 - a read of state has failed: nothing of the attempt can be kept
            self._fail(error)
        self._journal.clear()

    def _stray(self) -> BaseException:
        return StatePhaseError(
            f"{self._who} changed state outside of execute, in a task or a thread that it has begun: return what was "
            "found, and change state in execute, after its last await"
        )


class _Sliced:
    """A call's coroutine, run by `Slices.step` each time that what it awaits is there."""

    __slots__ = ("_call", "_coroutine", "_slices")

    def __init__(self, slices: Slices, coroutine: Coroutine[Any, Any, Any], call: Ended) -> None:
        self._slices, self._coroutine, self._call = slices, coroutine, call

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine, call, step = self._coroutine, self._call, self._slices.step
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                if error is None:
                    awaited = step(call, partial(coroutine.send, value), coroutine)
                else:
                    awaited = step(call, partial(coroutine.throw, error), coroutine)
            except StopIteration as end:
                return end.value
            value, error = None, None
            try:
                value = yield awaited
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as raised:  # noqa: BLE001 - as it would be raised in the coroutine itself
                error = raised
