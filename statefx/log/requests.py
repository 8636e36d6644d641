"""Requests to a driver at work: objects beside the log, so that a shell can ask it without a port (rule 17).

::

    requests/<generation>/driver.json          a driver of this generation listens; written anew while it carries
                                               something out
    requests/<generation>/bell                 there is something new: the one name that a driver looks for
    requests/<generation>/<id>.request.json    what is asked
    requests/<generation>/<id>.taken.json      who has it: the driver, or the one who asked and waits no longer
    requests/<generation>/<id>.answer.json     what came of it

Who may write into the checkpoint may ask. Here is the side that asks; `statefx.coordinator.requests` is the other one.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from statefx import errors
from statefx.errors import AlreadyExistsError, CheckpointError, FencedError, StatefxError, StorageError
from statefx.log.location import Folders
from statefx.log.observation import is_copied, is_running
from statefx.log.takeover import read_checkpoint
from statefx.storage import Storage, is_remote

logger = logging.getLogger("statefx")

FOLDER = "requests/"
DRIVER = "driver.json"
BELL = "bell"
REQUEST, TAKEN, ANSWER = ".request.json", ".taken.json", ".answer.json"

BYTES_MAX = 4 << 20
"""Of a request and of an answer, which may hold all that a driver tells of itself."""

TAKEN_SECS = 15.0
"""How long a driver may take to take a request, before it counts as gone. It looks each second, and on a thread of its
own; a mount that caches names shows it the request some seconds late."""

SILENT_SECS = 15.0
"""How long nothing may be seen of a driver that has taken a request: it gives a sign of life each `BEAT_SECS`."""

BEAT_SECS = 2.0

ANSWER_SECS = 60.0
"""How long an answer is waited for."""

_POLL_SECS = 0.05
_POLL_SECS_MAX = 0.5
_REMOTE_POLL_SECS = 0.25
"""How often the answer is looked for: seldom and seldomer, and in an object store, where each look is a request, never
as often."""

_TRIES = 3
"""Each try but the first follows a driver that was replaced just now."""


def folder_of(generation: int) -> str:
    return f"{FOLDER}{generation:020}/"


@dataclass(frozen=True)
class RunningDriver:
    """A driver that listens.

    Attributes
    ----------
    generation : int
    host : str
    pid : int
        Of its process, on that machine or in its container.
    """

    generation: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"the driver of generation {self.generation} (process {self.pid} on {self.host})"


@dataclass(frozen=True)
class Answered:
    """What a running query has answered.

    Attributes
    ----------
    location : str
    command : str
        What it was asked: the name of the method of `Checkpoint`.
    driver : RunningDriver
    result : Mapping
        Plain data.
    """

    location: str
    command: str
    driver: RunningDriver
    result: Mapping[str, Any]

    def __str__(self) -> str:
        if "status" in self.result and "committed" in self.result:
            return f"{self.command} {self.location}: {self._after()}"
        said = ", ".join(f"{name} {value}" for name, value in self.result.items() if value is not None)
        return f"{self.command} {self.location}: {said or 'done'}"

    def _after(self) -> str:
        """Return how a query that goes on is after what was asked of it, in words."""
        status = self.result["status"]
        done = "paused" if "paused" in status else "it has not ended" if self.command == "stop" else "it goes on"
        if not status.get("isTransactionActive"):
            return f"{done}; the last committed transaction is {self.result['committed']}"
        return f"{done}; transaction {status['txid']} is still in flight ({status['phase']})"


@dataclass(frozen=True)
class Silence:
    """Nobody has answered, and nobody will: nothing was carried out.

    Attributes
    ----------
    generation : int
        0 where nothing was ever started.
    driver : RunningDriver or None
        Who should have; None where no driver listens.
    """

    location: str
    generation: int
    driver: RunningDriver | None
    reason: str
    is_over: bool
    """Whether that driver has ended for certain, or there is none."""

    def error(self, command: str) -> CheckpointError:
        """Return what a call raises that makes sense with a running query alone."""
        remedy = "Nothing was changed: submit the topology, and ask again"
        if command == "stop":
            remedy = "Nothing was changed, and there is nothing to stop"
            if self.driver is not None and not self.is_over:
                remedy = "Nothing was changed: look at that machine, and end the process there if it is still running"
        return CheckpointError(
            f"{command}: {self.reason}. {remedy}",
            path=self.location,
            generation=self.generation,
        )


class UnansweredError(CheckpointError):
    """A driver has taken a request, and no answer has come: what came of it is not known."""


@dataclass(frozen=True)
class Patience:
    """How long one who asks waits, in seconds (see `TAKEN_SECS`, `SILENT_SECS` and `ANSWER_SECS`)."""

    taken_secs: float = TAKEN_SECS
    silent_secs: float = SILENT_SECS
    answer_secs: float = ANSWER_SECS


PATIENCE = Patience()


def ask(
    folders: Folders, command: str, arguments: Mapping[str, Any], patience: Patience = PATIENCE
) -> Answered | Silence:
    """Ask the driver at work for something, and wait for its answer.

    CheckpointError: there is no checkpoint, or requests can't be written. UnansweredError: the driver has taken the
    request, and has died since, or needs longer than `patience` says. Any other StatefxError: the driver's own refusal.
    """
    for tries_left in reversed(range(_TRIES)):
        generation = read_checkpoint(folders).generation
        try:
            found = _Asking(folders, generation, command, arguments, patience).run()
        except FencedError:  # rule 17.4: it was replaced, and has done nothing
            if not tries_left or read_checkpoint(folders).generation == generation:
                raise
            continue
        if isinstance(found, Answered) or not tries_left or read_checkpoint(folders).generation == generation:
            return found
    raise AssertionError("unreachable")


@dataclass
class _Asking:
    """One request to one generation."""

    folders: Folders
    generation: int
    command: str
    arguments: Mapping[str, Any]
    patience: Patience
    id: str = field(default_factory=lambda: uuid4().hex)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._storage: Storage = self.folders.storage
        self._folder = folder_of(self.generation)
        self._process: Mapping[str, Any] = {}
        """What the driver says of its process."""

    def run(self) -> Answered | Silence:
        try:
            driver, origin = self._driver(), self._process.get("checkpoint")
            nobody = f"no driver is at work on the checkpoint in {self.folders.location}"
            if driver is None:
                return self._silence(None, nobody)
            if is_copied(origin, self.folders.location, self._process):
                return self._silence(None, f"{nobody}, which was copied from {origin}: {driver} is at work there")
            if self._is_gone:
                return self._silence(driver, self._gone(driver))
            self._write()
            try:
                return self._await(driver)
            except BaseException:  # also Ctrl-C: nobody waits any more, so it shall not be carried out any more
                with suppress(StorageError, OSError):
                    if self._withdraw():
                        self._clear()
                raise
        except (StorageError, OSError) as error:
            raise CheckpointError(
                f"{self.command}: the driver at work on {self.folders.location} can't be asked: {error}. Requests are "
                "objects in the checkpoint: who asks must be able to list, read, write and delete there",
                path=self.folders.location,
            ) from error

    def _name(self, kind: str) -> str:
        return f"{self._folder}{self.id}{kind}"

    def _driver(self) -> RunningDriver | None:
        try:
            self._process = json.loads(self._storage.read(self._folder + DRIVER, stop=BYTES_MAX))
            return RunningDriver(self.generation, str(self._process["host"]), int(self._process["pid"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self._storage.url}/{self._folder}{DRIVER} is not what a driver writes: {error!r}. Delete it; a "
                "driver at work writes it again when it has something to do",
                path=self.folders.location,
            ) from error

    @property
    def _is_gone(self) -> bool:
        """Whether the driver was killed on this very machine; of another one nobody here can tell."""
        return is_running(self._process) is False

    def _gone(self, driver: RunningDriver) -> str:
        return f"{driver} of {self.folders.location} is gone without having ended: it was killed, or crashed"

    def _write(self) -> None:
        asked = {"id": self.id, "command": self.command, "arguments": dict(self.arguments)}
        said = {
            **asked,
            "validSecs": self.patience.taken_secs,
            "by": f"process {os.getpid()} on {socket.gethostname()}",
        }
        self._storage.create(self._name(REQUEST), json.dumps(said).encode())
        self._storage.put(self._folder + BELL, self.id.encode())  # behind the request: who hears it finds that

    def _await(self, driver: RunningDriver) -> Answered | Silence:
        asked = heard = self.clock()
        pause = _REMOTE_POLL_SECS if is_remote(self._storage.url) else _POLL_SECS
        beat: float | None = None
        was_there, was_taken, beats = True, False, 0
        while True:
            gone = self._is_gone  # asked first: an answer that it has left is seen
            found = {each.name: each.modified for each in self._storage.list(self._folder)}
            if self._name(ANSWER) in found:
                return self._answered(driver)
            now, last = self.clock(), beat
            is_there = self._folder + DRIVER in found
            beat = found.get(self._folder + DRIVER)
            is_taken = self._name(TAKEN) in found
            if beat != last or is_taken != was_taken:
                heard = now
            beats += None not in (beat, last) and beat != last
            if is_taken:
                if gone:
                    raise self._unanswered(f"{driver} took the request, and was killed, or crashed")
                self._check_alive(driver, is_there or was_there, now - heard, now - asked)
            elif self._is_hopeless(now - asked, ended=gone or not (is_there or was_there)) and self._withdraw():
                self._clear()
                not_taken = self._not_taken(driver, is_there=is_there, is_busy=beats > 0)
                reason = self._gone(driver) if gone else not_taken
                return self._silence(driver, reason, is_over=gone or not is_there)
            elif self._name(REQUEST) not in found:
                raise self._unanswered(f"the request to {driver} was deleted by somebody")
            was_there, was_taken = is_there, is_taken
            time.sleep(pause)
            pause = min(2 * pause, _POLL_SECS_MAX)

    def _is_hopeless(self, secs: float, *, ended: bool) -> bool:
        return ended or secs >= self.patience.taken_secs

    def _not_taken(self, driver: RunningDriver, *, is_there: bool, is_busy: bool) -> str:
        if not is_there:
            return f"{driver} of {self.folders.location} has ended"
        if is_busy:
            return (
                f"{driver} of {self.folders.location} is alive, and has not taken a request for "
                f"{self.patience.taken_secs:g} s: it carries out others, which were asked for before"
            )
        return (
            f"{driver} of {self.folders.location} has not taken a request for {self.patience.taken_secs:g} s: it was "
            "killed, it is suspended, or it does not reach the checkpoint"
        )

    def _check_alive(self, driver: RunningDriver, is_there: bool, silent_secs: float, secs: float) -> None:
        """Raise UnansweredError where it makes no sense to wait on (rule 17.5)."""
        if not is_there:  # the last thing that a driver does, behind its answers
            raise self._unanswered(f"{driver} took the request, and has ended without an answer")
        if silent_secs >= self.patience.silent_secs:
            raise self._unanswered(
                f"{driver} took the request, and has given no sign of life for {silent_secs:.0f} s: it was killed "
                "or is suspended"
            )
        if secs >= self.patience.answer_secs:
            raise self._unanswered(
                f"{driver} took the request, is alive, and has not done it after {secs:.0f} s. It may still do it"
            )

    def _unanswered(self, what: str) -> UnansweredError:
        return UnansweredError(
            f"{self.command}: {what}. Whether it was carried out is not known; `statefx status` and `statefx log` show "
            f"how {self.folders.location} stands",
            path=self.folders.location,
            generation=self.generation,
        )

    def _withdraw(self) -> bool:
        """Take the request back (rule 17.2); return whether it is certain that nobody carries it out."""
        try:
            self._storage.create(self._name(TAKEN), json.dumps({"withdrawn": self.id}).encode())
        except AlreadyExistsError:
            return False
        return True

    def _answered(self, driver: RunningDriver) -> Answered:
        said = json.loads(self._storage.read(self._name(ANSWER), stop=BYTES_MAX))
        self._clear()
        if "error" in said:
            raise error_of(said["error"], self.folders.location)
        return Answered(self.folders.location, self.command, driver, said["result"])

    def _clear(self) -> None:
        # The request first: one without its `taken` could be taken once more.
        with suppress(OSError):  # what stays is swept by the driver
            self._storage.delete([self._name(REQUEST)])
            self._storage.delete([self._name(TAKEN), self._name(ANSWER)])

    def _silence(self, driver: RunningDriver | None, reason: str, *, is_over: bool = True) -> Silence:
        return Silence(self.folders.location, self.generation, driver, reason, is_over)


def error_to_tell(error: BaseException) -> dict[str, str]:
    """Return an error as an answer has it."""
    return {"type": type(error).__name__, "message": str(error) or repr(error)}


def error_of(told: Any, location: str) -> StatefxError:
    """Return the error that a driver has told."""
    name, message = (told.get("type"), told.get("message")) if isinstance(told, Mapping) else (None, told)
    kind = getattr(errors, str(name), None)
    if isinstance(kind, type) and issubclass(kind, StatefxError):
        return kind(str(message), path=location)
    return CheckpointError(f"the driver of {location} could not do it: {name}: {message}", path=location)
