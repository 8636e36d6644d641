"""The event loop of one bolt's object, on a thread of its own; and threads for calls that block.

A thread of its own, and not the chain's: between two batches of rows and between two transactions the chain's thread
waits for others, and clients would miss answers, heartbeats and the ends of their connections. A loop that a bolt
blocks blocks nothing else, so the chain's thread can report it and leave. And the chain's thread may run a loop of the
user's, as in a notebook.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

from statefx import logs
from statefx.errors import FailedException
from statefx.operators.bolts import Bolt
from statefx.operators.user_errors import user_stack
from statefx.runtime.activity import Schedstat

logger = logging.getLogger("statefx")

LOOP = "_statefx_loop"
"""Where a bolt's object has its loop, in its ``__dict__``: users' classes own its other names."""

CLOSE_SECS = 5.0
"""How long ``close`` of a bolt may take."""

WATCH_SECS = 0.25
"""How often a thread that waits for a loop looks whether it lives."""

BLOCKED_SECS = 0.75
"""After which a loop that does not answer is reported: within a second, with the look before."""

REPORT_SECS = 10.0
"""How long a loop that is still blocked is not reported again."""

LEFT_MIN = 100
"""Threads that calls which took too long may leave behind, at least; twice as many as run calls, if those are more."""


class NoThreadError(FailedException):
    """There is no thread for a call, through no fault of its row: the attempt fails."""


class LoopThread:
    """An event loop, and the daemon thread that runs it until `close`.

    Every method but `close`'s own parts is for other threads. A loop that user code stops is run again.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()  # by the policy of the process: uvloop's if the user has installed it
        self._name = name
        self._is_closing = False
        self._asked: float | None = None
        """When it was asked whether it lives, as of `time.monotonic`; None: it has answered."""
        self._reported = 0.0
        self._threads: Threads | None = None
        self._schedstat: Schedstat | None = None
        with logs.of_no_transaction():
            self._thread = threading.Thread(target=copy_context().run, args=(self._run,), name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not self._is_closing:
                try:
                    self.loop.run_forever()
                except BaseException:
                    logger.exception("%s: a task of the bolt's raised what ends an event loop; it goes on", self._name)
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()

    @property
    def is_here(self) -> bool:
        """Whether the caller runs on the loop's thread."""
        return threading.get_ident() == self._thread.ident

    def scheduled_secs(self) -> tuple[float, float]:
        """Return how long the thread was on a processor, and ready to run without one; zeros where nothing tells."""
        try:
            if self._schedstat is None:
                self._schedstat = Schedstat(self._thread.native_id or 0)
            return self._schedstat.secs()
        except (OSError, ValueError):  # no such figures, or the thread has ended
            return 0.0, 0.0

    def post(self, call: Callable[..., object], *args: object) -> None:
        """Have the loop call something soon, with what the caller logs; nothing once it is closed."""
        try:
            self.loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            if not self._is_closing:
                raise

    def threads(self, number: int) -> Threads:
        """Return the threads for calls that block, made at the first call."""
        if self._threads is None:
            self._threads = Threads(self, number, self._name)
        return self._threads

    def run(self, coroutine: Coroutine[Any, Any, Any], who: str, check: Callable[[], None]) -> Any:
        """Run a coroutine to its end and return what it does; cancel it if `check` raises, and raise that."""
        future: Future[Any] = Future()
        tasks: list[asyncio.Task[None]] = []

        async def carry_out() -> None:
            try:
                result = await coroutine
            except BaseException as error:  # noqa: BLE001 - asyncio would end the loop's thread by some of them
                future.set_exception(error)
            else:
                future.set_result(result)

        def cancel() -> None:
            tasks[0].cancel()

        self.post(lambda: tasks.append(self.loop.create_task(carry_out())))
        while True:
            try:
                return future.result(WATCH_SECS)
            except NotYetError:
                if future.done():  # the coroutine's own
                    raise
            try:
                check()
            except BaseException:
                self.post(cancel)
                raise
            self.watch(who)

    # ---- a loop that is blocked

    def watch(self, who: str) -> None:
        """Look whether the loop answers, and warn with its stack if it has not done so for a while."""
        now = time.monotonic()
        if self._asked is None:
            self._asked = now
            self.post(self._answer)
        elif now - self._asked >= BLOCKED_SECS and now - self._reported >= REPORT_SECS:
            self._reported = now
            logger.warning(
                "%s blocks its event loop for %.1f s: none of its calls goes on meanwhile. Await what takes long, or "
                "call it by asyncio.to_thread(...); plain functions run in threads with threads=20. It stands at\n%s",
                who, now - self._asked, self.stack(),
            )  # fmt: skip

    def _answer(self) -> None:
        self._asked = None

    def stack(self) -> str:
        """Return where the loop's thread stands in code of the user's, or in any if it does not."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        if frame is None:
            return "(its thread has ended)"
        return user_stack(frame)

    # ---- the end

    def close(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None, *, wait: bool = True) -> None:
        """End what runs on the loop, run `last`, and end the loop; wait for that at most `CLOSE_SECS`."""
        if self._is_closing:
            return
        self.post(lambda: self.loop.create_task(self._end(last)))
        if wait and not self.is_here:
            self._thread.join(CLOSE_SECS + 1)
        if self._threads is not None:
            self._threads.close()

    async def _end(self, last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        own = asyncio.current_task()
        try:
            if last is not None:
                async with asyncio.timeout(CLOSE_SECS):
                    await last()
        except TimeoutError:
            logger.warning("%s: close() has not ended within %g s; ignored", self._name, CLOSE_SECS)
        except BaseException:
            logger.exception("%s: close() raised; ignored", self._name)
        finally:
            left = [task for task in asyncio.all_tasks() if task is not own]
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=0.1)
            await self.loop.shutdown_asyncgens()
            self._is_closing = True
            self.loop.stop()


def open_loop(bolt: Bolt, name: str) -> LoopThread:
    """Give a bolt's object its loop."""
    bolt.__dict__[LOOP] = made = LoopThread(name)
    return made


def loop_of(bolt: Bolt) -> LoopThread:
    found: LoopThread = bolt.__dict__[LOOP]
    return found


class Threads:
    """Daemon threads that run calls that block; begun when there is something to do.

    Not an executor of Python's: the interpreter waits for its threads as it ends, and one may hang. Then another one
    takes its place, until as many hang as may.
    """

    def __init__(self, loop: LoopThread, number: int, name: str) -> None:
        self._loop, self._most, self._name = loop, number, name
        self._waiting: SimpleQueue[tuple[Callable[[], None], asyncio.Future[None]] | None] = SimpleQueue()
        self._idle = self._number = 0

    async def run(self, call: Callable[[], None]) -> None:
        """Run a call in one of the threads; on the loop. Once it is cancelled, nobody waits for that thread.

        Raises NoThreadError if none is idle and no more may, or can, be started.
        """
        future: asyncio.Future[None] = self._loop.loop.create_future()
        context = copy_context()
        if self._idle:
            self._idle -= 1
        else:
            self._start()
        self._waiting.put((lambda: context.run(call), future))
        await future

    def _start(self) -> None:
        left = self._number - self._most  # at least so many are left behind, for no more calls are made at once
        why: object = f"{left} are left behind"
        if left < max(2 * self._most, LEFT_MIN):
            try:
                threading.Thread(target=self._work, name=f"{self._name}-{self._number + 1}", daemon=True).start()
            except RuntimeError as error:
                why = error
            else:
                self._number += 1
                return
        raise NoThreadError(
            f"{self._name}: there is no thread for a call ({why}): calls that took longer than the bolt's timeout "
            "still run in theirs, and the transaction is tried again. Give the client a shorter timeout of its own"
        )

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None:
            call, future = job
            error: BaseException | None = None
            try:
                call()
            except BaseException as raised:  # noqa: BLE001 - raised where it is awaited
                error = raised
            self._loop.post(self._done, future, error)
            del job, call, future, error

    def _done(self, future: asyncio.Future[None], error: BaseException | None) -> None:
        self._idle += 1
        if future.done():  # cancelled meanwhile
            return
        if error is None:
            future.set_result(None)
        else:
            # A future refuses a StopIteration: a coroutine would end by it.
            future.set_exception(error if not isinstance(error, StopIteration) else RuntimeError(f"{error!r}"))

    def close(self) -> None:
        for _ in range(self._number):
            self._waiting.put(None)
