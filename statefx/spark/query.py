"""A running topology with methods of pyspark's StreamingQuery, and the progress line on its terminal.

The line is drawn when a transaction is committed and at no other time. Spark draws its own bar, of stages, while a job
runs, and wipes it when the job has ended: so the two take turns, and no thread has to draw between transactions.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import math
import os
import shutil
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from statefx import logs
from statefx.coordinator.coordinator import Coordinator
from statefx.coordinator.observation import Observer
from statefx.coordinator.progress import Outcome, TransactionProgress
from statefx.coordinator.requests import STOP, RequestServer
from statefx.coordinator.retrying import StoppedError
from statefx.errors import BoltError, CheckpointError, ConfigError, FencedError, StatefxError
from statefx.listeners import Listeners, TopologyListener
from statefx.log import pins as savepoints
from statefx.log.observation import bounded as bounded_document
from statefx.log.pins import Savepoint
from statefx.log.requests import error_to_tell
from statefx.metrics.registry import Registry
from statefx.notebook import ShownProgress, bounded, figure, query_html
from statefx.spark.failures import without_internal_frames
from statefx.spark.job import PipelinedEngine
from statefx.why import Why, why

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger("statefx")


_COLUMNS_MAX = 79
"""Spark wipes 80 columns, however wide the terminal is; what stood beyond them would stay."""


class Line(logging.Filter):
    """The last line of a terminal; as a filter of loggers and handlers it makes room for log lines."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lock = threading.RLock()  # what is written may be logged, by the stream or a finalizer
        self._drawn = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Wipe the line: the record may go to the same terminal. The next transaction draws it again."""
        self.draw("")
        return True

    def draw(self, text: str, end: str = "\r") -> None:
        """Show `text` on the line; with a line feed as `end` it stays."""
        with self._lock, contextlib.suppress(OSError, ValueError):  # the terminal is gone; the query goes on
            if end == "\r":
                text = text[: max(1, min(shutil.get_terminal_size().columns - 1, _COLUMNS_MAX))]
            # No escapes, which not every terminal and no notebook knows.
            wiped = f"\r{' ' * self._drawn}\r" if self._drawn else ""
            self._drawn = len(text) if end == "\r" else 0
            # The cursor goes back: what Spark's JVM writes next begins its line there, and not behind the text.
            self._stream.write(f"{wiped}{text}{end}" if text else wiped)
            self._stream.flush()


class Bar:
    """The line's text for one query: transactions, rows, rows a second."""

    def __init__(self, name: str, line: Line, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._line = line
        self._clock = clock
        self._began = clock()
        self._transactions = self._rows = 0
        self._text = ""

    def committed(self, done: TransactionProgress) -> None:
        self._transactions += 1
        self._rows += done.input_rows
        rate = self._rows / max(self._clock() - self._began, 0.001)
        count = f"{self._transactions:,} transactions (last: {done.txid:,})"
        self._text = f"{self._name}: {count}, {self._rows:,} rows, {rate:,.0f} rows/s"
        self._line.draw(self._text)

    def ended(self) -> None:
        """Let the last text stand."""
        if self._text:
            self._line.draw(self._text, end="\n")


_line: Line | None = None
_lock = threading.Lock()


def bar(name: str, wanted: bool | None) -> Bar | None:
    """Return the bar of a query, if there is to be one; with None as `wanted` where stderr is a terminal."""
    global _line  # noqa: PLW0603 - a terminal has one last line
    if wanted is False or (wanted is None and not _is_terminal()):
        return None
    with _lock:
        _line = _line or Line(sys.stderr)
        # Also what others log goes to the terminal, such as py4j's INFO lines.
        for each in (logger, *logger.handlers, *logging.getLogger().handlers):
            each.addFilter(_line)  # at most once
    return Bar(name, _line)


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # none at all, or closed
        return False


_POLL_SECS = 0.1
"""How often they look: nothing wakes `start` when a recovery gets stuck, nor `stop` when the query ends by itself."""

_SIGNAL_SECS = 0.5
"""How late a handler of a signal may run, at most."""

_PROGRAM_SECS = 10.0
"""How long the program may go on when its queries have been stopped; one that serves something else would never end."""

_HOOK_SECS = 1.0
"""A hook of a spout's copy on the driver that runs for so long when time is up is not waited for."""

_CALL_SECS = 5.0
"""How long the commit of a sink on the driver may go on when time is up. One that runs jobs of Spark ends sooner, since
these are cancelled; one that waits for a server may take any time, and nobody can end it."""


class Feed(Protocol):
    """Brings transactions to the coordinator until its input ends or it is stopped."""

    def run(self, started: Callable[[], None]) -> None:
        """Feed; returns when the input has ended, and raises any other end."""

    def drain(self) -> None:
        """Begin no further transaction, and wait for the current one."""

    def cancel(self) -> None:
        """Cancel the current transaction; it is rolled back."""

    def process_all_available(self, ended: threading.Event) -> None:
        """Wait until all input that is there now has been committed, or `ended` is set."""


class Page(Protocol):
    """What a browser shows of a query: that of `statefx.ui`, which is above this room."""

    @property
    def url(self) -> str:
        """Where it is."""

    def show(self, query: Query) -> None:
        """Begin to answer."""

    def close(self) -> None:
        """Show the end, and give the port back; waits for nothing."""


class Query:
    """A topology that has been submitted.

    Contract
    --------
    - `awaitTermination` raises what ended the query; `exception` returns it.
    - `stop` leaves nothing half done: the running transaction is committed, or rolled back.
    """

    def __init__(
        self,
        name: str,
        feed: Feed,
        coordinator: Coordinator,
        bar: Bar | None = None,
        listeners: Iterable[TopologyListener] = (),
        observer: Observer | None = None,
        page: Page | None = None,
    ) -> None:
        self.name = name
        self.metricsUrl: str | None = None
        """Where Prometheus reads the metrics, if there is a ``topology.metrics.port``."""
        self._bar = bar
        self._observer = observer
        if observer is not None:
            observer.status = lambda: self.status
        self._feed = feed
        self._coordinator = coordinator
        self._page = page
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None
        self._waiting: set[int] = set()
        """Threads that wait for its end and are given its error."""
        self._how = ""
        """What has ended it, or has asked it to end first: the beginning of a sentence."""
        self._stopping: set[int] = set()
        """Threads that stop it."""
        progress = coordinator.progress
        self._repeats = logs.Repeats()
        with self._logged():
            self._listeners = Listeners(name, progress.status, progress.of)
            progress.watchers.append(self._tell)
            for listener in listeners:
                self._listeners.add(listener)
            self._thread = threading.Thread(target=logs.carrying(self._run), name=f"statefx-{name}", daemon=True)
        self._started = threading.Event()
        self._ended = threading.Event()
        self._requests: RequestServer | None = None

    def __repr__(self) -> str:
        ended = "ended" if self._error is None else f"ended by {type(self._error).__name__}"
        return f"<Query {self.name!r}, {'running' if self.isActive else ended}>"

    def _repr_html_(self) -> str | None:
        """Return what the query does, for notebooks."""
        return bounded(lambda: query_html(self.observation()))

    def start(self) -> None:
        """Start; returns when transactions can flow (or recovery is stuck), raises what made the start fail."""
        with self._logged():
            self._requests = RequestServer(self._coordinator.log, self._commands())
        if self._observer is not None:
            self._observer.start()
        if self._page is not None:
            self._page.show(self)
        try:
            self._thread.start()
            self._requests.start()
            while not self._started.wait(_POLL_SECS) and not self._coordinator.progress.is_stuck:
                pass  # a commit that is being repeated since a former run must not keep the caller from seeing it
        except BaseException:  # Ctrl-C: nobody has this query, and nobody could stop it
            if self._thread.is_alive():
                self._stop_as("It was stopped by an interrupt of submit", 0)
            raise
        if self._ended.is_set():
            self._raise()

    @property
    def isActive(self) -> bool:
        """Whether the query is running."""
        return not self._ended.is_set()

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query ends.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; with it, returns whether the query has ended.

        Raises
        ------
        StatefxError
            What ended it, if it wasn't `stop` or the end of its input.
        """
        if timeout is not None:
            _check_secs("awaitTermination", timeout)
        with self._awaiting():
            ended = self._wait(timeout)
        if ended:
            self._raise()
        return None if timeout is None else ended

    def _wait(self, timeout: float | None) -> bool:
        """Wait until the query ends; in pieces, since Python runs handlers of signals in the main thread alone.

        A signal that comes just as a wait begins, or that the system gives to another thread, does not end the wait:
        the query of a process that was asked to terminate once went on for ever.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not self._ended.wait(max(0.0, min(_SIGNAL_SECS, end - time.monotonic()))):
            if time.monotonic() >= end:
                return False
        return True

    def exception(self) -> BaseException | None:
        """Return what ended the query, or None."""
        return self._error

    @property
    def status(self) -> dict[str, Any]:
        """The query's status: phase, txid, attempt; ``stuck`` if a commit fails again and again, ``paused``.

        ``run`` is the id of the Spark job that holds the tasks, ``since`` when all of them
        were there, and ``runs`` how many such jobs there were.
        """
        status = self._coordinator.progress.status() | self._coordinator.engine.status() | {"isActive": self.isActive}
        if self._error is not None:
            status["message"] = str(self._error)
        return status

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        """The last committed transaction, or None."""
        recent = self.recentProgress
        return recent[-1] if recent else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        """The last committed transactions of this run, oldest first."""
        return [ShownProgress(each) for each in self._coordinator.progress.recent()]

    def plot(self) -> Figure:
        """Draw the last committed transactions: rows a second, the time of each phase, and lag where it is known.

        The lag is that of spouts that report it, in records; otherwise how far each watermark is behind, in seconds.

        Returns
        -------
        matplotlib.figure.Figure
            A notebook shows it; ``savefig`` writes it to a file.

        Raises
        ------
        ConfigError
            matplotlib is not installed: ``pip install 'statefx[plot]'``.
        """
        return figure(self.name, self.recentProgress)

    @property
    def uiUrl(self) -> str | None:
        """Where a browser shows the query, with the token if one is needed; None without ``topology.ui.port``."""
        return None if self._page is None else self._page.url

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """All metrics now: each a dict of ``name``, as Prometheus shows it, ``kind``, ``labels``, ``value``.

        The value of a histogram is a dict of ``count``, ``sum`` and ``buckets``. See :doc:`/metrics`.
        """
        return self._registry.as_dicts()

    @property
    def _registry(self) -> Registry:
        return self._coordinator.progress.measures.registry

    @property
    def _watchers(self) -> list[Callable[[Outcome], None]]:
        return self._coordinator.progress.watchers

    @property
    def recoveries(self) -> list[dict[str, Any]]:
        """Transactions of a former run that were rolled forward or back at start."""
        return list(self._coordinator.progress.recoveries)

    def observation(self) -> dict[str, Any]:
        """Return all that the driver knows of the topology, as plain data: health, graph, rates, lag, transactions.

        The driver writes the same beside the log every few seconds, where `Checkpoint.observation` reads it. The keys
        are those of the page on observing; a key that nothing is known of is missing or None.
        """
        assert self._observer is not None
        return self._observer.document()

    def why(self) -> Why:
        """Return what bounds throughput now, and what keeps results late: in sentences, the weightiest first."""
        return why(self.observation())

    def processAllAvailable(self) -> None:
        """Wait until all input that is there now has been committed; while the query is paused, until it goes on."""
        self._started.wait()
        if not self._ended.is_set():
            with self._awaiting():
                self._feed.process_all_available(self._ended)
        self._raise()

    def savepoint(self, name: str) -> Savepoint:
        """Take a savepoint of the last decided transaction, which `Checkpoint.restore` can go back to.

        Costs one record of the log, however large state is; no transaction waits for it.

        Parameters
        ----------
        name : str
            Letters, digits, dots, dashes and underscores.

        Raises
        ------
        ConfigError
            The name can't be one, or state is kept in a server, which keeps no versions.
        CheckpointError
            There is a savepoint of this name, nothing has been committed yet, or the query has ended.
        """
        self._check_active(f"call Checkpoint(location).savepoint({name!r})")
        return savepoints.take(self._coordinator.log, self._coordinator.participants.state.provider, name)

    def deleteSavepoint(self, name: str) -> None:
        """Delete a savepoint of this query's checkpoint.

        Raises
        ------
        CheckpointError
            There is no such savepoint, or the query has ended.
        """
        self._check_active(f"call Checkpoint(location).deleteSavepoint({name!r})")
        savepoints.delete(self._coordinator.log, name)

    def pause(self) -> None:
        """Begin no further transaction until `resume`; those in flight go on to their end.

        Tasks keep their state and slots, and sources stay where they are. ``status`` says ``paused``. A query that is
        started anew is not paused.

        Raises
        ------
        CheckpointError
            The query has ended.
        """
        self._check_active("there is nothing to pause")
        if self._coordinator.hold(True):
            logger.info("query %s is paused", self.name)

    def resume(self) -> None:
        """Go on after `pause`; a query that is not paused goes on as it does.

        Raises
        ------
        CheckpointError
            The query has ended.
        """
        self._check_active("submit the topology again")
        if self._coordinator.hold(False):
            logger.info("query %s goes on", self.name)

    def _check_active(self, remedy: str) -> None:
        if not self.isActive:
            raise CheckpointError(f"query {self.name!r} has ended: {remedy}")

    def addListener(self, listener: TopologyListener) -> None:
        """Call a listener with what happens from now on; adding it again, or after the end, is a no-op.

        Parameters
        ----------
        listener : TopologyListener
            Called on a thread of its own. ``submit(..., listeners=[...])`` misses nothing.

        Raises
        ------
        ConfigError
            It is no listener, or has a method that is never called.
        """
        with self._logged():
            self._listeners.add(listener)

    def removeListener(self, listener: TopologyListener) -> None:
        """Call a listener no more; events that wait for it are dropped. One that was not added: a no-op."""
        self._listeners.remove(listener)

    def stop(self, timeout: float = 60.0) -> None:
        """End the query: wait up to `timeout` seconds for the running transaction, else roll it back.

        A hook of a spout's copy on the driver, or the commit of a sink, that does not return keeps the query active;
        `stop` does not wait for it longer than `timeout` and a second, or `timeout` and five seconds.
        """
        _check_secs("stop", timeout)
        self._stop_as("It was stopped by query.stop()", timeout)

    def _stop_as(self, how: str, timeout: float = 60.0) -> None:
        self._how = self._how or how
        self._stopping.add(threading.get_ident())
        try:
            with self._logged():
                self._stop(timeout)
        finally:
            self._stopping.discard(threading.get_ident())

    def _stop(self, timeout: float) -> None:
        # On a thread of its own: it waits for a transaction, and `timeout` says for how long this call does.
        drain = threading.Thread(target=self._feed.drain, daemon=True)
        drain.start()
        end = time.monotonic() + timeout
        while drain.is_alive() and not self._ended.is_set() and time.monotonic() < end:
            drain.join(min(_POLL_SECS, max(0.0, end - time.monotonic())))
        self._feed.cancel()
        cancelled, progress = time.monotonic(), self._coordinator.progress
        while not self._ended.wait(_POLL_SECS):  # what may never return, and nobody can end, is not waited for
            asked = progress.asked(_HOOK_SECS)
            if asked is not None:
                logger.warning(
                    "query %s: %s: stop does not wait for it. What is in flight is rolled back when it returns, or by "
                    "the next start",
                    self.name,
                    asked.reason(progress.clock()),
                )
                return
            running = progress.call_reason
            if running and time.monotonic() >= cancelled + _CALL_SECS:
                logger.warning(
                    "query %s: %s: stop does not wait for it. The transaction is decided: it is committed by this "
                    "call, or by the next start",
                    self.name,
                    running,
                )
                return

    @contextmanager
    def _logged(self) -> Iterator[None]:
        with logs.of_query(self.name, self._repeats):
            yield

    def _run(self) -> None:
        state = self._coordinator.log.state
        self._listeners.started(state.location, state.generation, state.committed)
        try:
            # Rule 6.5: before the feed. Spark's folder is built from what the log says then, with nothing under way.
            self._coordinator.recover()
            self._feed.run(self._started.set)
        except StoppedError as stopped:
            if self._how:
                logger.info("query %s was stopped", self.name)
            else:  # it ends without an error: who waits for it would take its input for ended
                self._how = f"It ended because {stopped.message}"
                logger.warning("query %s ended because %s: nobody has stopped the query", self.name, stopped.message)
        except BaseException as error:
            self._error = error
            if isinstance(error, BoltError):
                self._coordinator.progress.raised(error)
            # of a bolt's error the lines that count are in its own traceback, which is shown before it
            if isinstance(error, StatefxError):
                without_internal_frames(error, f"query {self.name} ended")
            self._trace = error.__traceback__
            if self._started.is_set() and not self._waiting:  # who neither waits nor asks would never hear of it
                known = isinstance(error, StatefxError) and not isinstance(error, BoltError)  # its text says enough
                shown = None if known else error.with_traceback(self._trace)
                logger.error("query %s ended: %s: %s", self.name, type(error).__name__, error, exc_info=shown)
        finally:
            try:
                self._end()
            finally:  # whatever has raised, as a handler of the log may: `stop` and `awaitTermination` wait for this
                self._ended.set()
                self._started.set()
                if self._page is not None:
                    self._page.close()

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.ended()
        self._coordinator.end()  # before `stop` returns: who has stopped a query may delete its folder
        if self._observer is not None:
            self._observer.end(self._error, self._how or "Its input ended")
        self._listeners.close(self._error, self._waiting | self._stopping)
        if self._requests is not None:
            self._requests.end(self._last_answer())
        self._repeats.close()

    def _tell(self, outcome: Outcome) -> None:
        """Tell the listeners of the end of an attempt."""
        name = outcome.attempt.name
        if outcome.done is None:
            self._listeners.rolled_back(name.txid, name.attempt, outcome.reason)
        else:
            self._listeners.committed(name.txid)

    # ---- what is asked from outside (see `statefx.coordinator.requests`)

    def _commands(self) -> dict[str, Callable[..., Mapping[str, Any]]]:
        """Return what requests can ask for; the names are those of `Checkpoint`'s methods."""
        return {
            "savepoint": self._asked_for_savepoint,
            "deleteSavepoint": self._asked_to_delete,
            "status": lambda: {"observation": json.loads(bounded_document(self.observation()))},
            "loglevel": self._asked_for_level,
            "pause": lambda: self._status_after(self.pause),
            "resume": lambda: self._status_after(self.resume),
            STOP: self._asked_to_stop,
        }

    def _asked_for_savepoint(self, name: str) -> dict[str, Any]:
        return savepoints.to_answer(self.savepoint(name))

    def _asked_to_delete(self, name: str) -> dict[str, Any]:
        self.deleteSavepoint(name)
        return {"name": name}

    def _asked_for_level(self, level: str, name: str) -> dict[str, Any]:
        done = logs.set_level(level, name)
        if isinstance(self._coordinator.engine, PipelinedEngine):
            self._coordinator.engine.send_levels()
        return done

    def _status_after(self, change: Callable[[], None]) -> dict[str, Any]:
        change()
        return {"status": self.status, "committed": self._coordinator.log.state.committed}

    def _asked_to_stop(self, timeout: float) -> dict[str, Any]:
        self._stop_as("It was stopped from outside, by statefx stop,", timeout)
        # Here it has not ended: of one that has, `_last_answer` is sent before this returns.
        return {"ended": False, "committed": self._coordinator.log.state.committed, "status": self.status}

    def _last_answer(self) -> dict[str, Any]:
        """Return the answer to requests to stop, of a query that has ended."""
        if isinstance(self._error, FencedError):  # not the one that runs now
            return {"error": error_to_tell(self._error)}
        error = None if self._error is None else f"{type(self._error).__name__}: {self._error}"
        done: dict[str, Any] = {"ended": True, "committed": self._coordinator.log.state.committed, "error": error}
        if self._observer is not None:
            with contextlib.suppress(Exception):  # the answer goes out, whatever is wrong with what is shown
                done["health"] = self._observer.health()
        return {"result": done}

    @contextmanager
    def _awaiting(self) -> Iterator[None]:
        """Deliver the query's end to the thread while the block runs."""
        self._waiting.add(threading.get_ident())
        try:
            yield
        finally:
            self._waiting.discard(threading.get_ident())

    def _raise(self) -> None:
        """Raise what ended the query, if anything did; each time as if it were the first."""
        if self._error is not None:
            raise self._error.with_traceback(self._trace)


_running: weakref.WeakSet[Query] = weakref.WeakSet()
_process = 0
"""The process that these run in: one that is forked from it has copies of them, and the handler of its signal."""


def watch(query: Query) -> None:
    """Stop `query` when the process is asked to terminate, and warn if the process ends while it runs.

    A handler of the user's own is left alone. Handlers can be set in the main thread only: a query that is submitted
    elsewhere is not stopped.
    """
    global _process  # noqa: PLW0603 - as the handler
    if _process != os.getpid():
        _running.clear()
        _process = os.getpid()
    _running.add(query)
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


@atexit.register
def _tell() -> None:
    """Name the queries that end with the process: threads of a query don't keep it alive."""
    for query in list(_running):
        if query.isActive and _process == os.getpid():
            with query._logged():
                logger.warning(
                    "query %r was running when the script ended, and ended with it; the next submit goes on after the "
                    "last committed transaction, and nothing is lost. Let it run with query.awaitTermination(); end "
                    "it, also after Ctrl-C, with query.stop()",
                    query.name,
                )


def _terminate(number: int, frame: object) -> None:
    """Begin the end; a second signal ends the process at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if _process != os.getpid():  # as of multiprocessing, whose Pool ends its processes so, and waits for that
        os.kill(os.getpid(), signal.SIGTERM)
        return
    # No daemon: the process must live until the queries have ended.
    threading.Thread(target=_stop_all, name="statefx-terminate").start()


def _stop_all() -> None:
    """Stop every query, then end the process as the signal would have; not in the handler, which must not wait.

    By the signal and not with exit code 0: a supervisor takes both for a clean end, but a Job of Kubernetes, or a
    pipeline, that was evicted half way would count as complete with 0.
    """
    for query in list(_running):
        query._stop_as("It was stopped by SIGTERM")
    threading.main_thread().join(_PROGRAM_SECS)  # it goes on behind `awaitTermination`
    os.kill(os.getpid(), signal.SIGTERM)


def _check_secs(call: str, timeout: object) -> None:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise ConfigError(f"{call}: timeout is a number of seconds, 0 or more, not {timeout!r}")
