"""The driver's side of requests: looks for them, carries each out once, answers (rule 17).

On a thread of its own, so that a driver that waits for a commit answers too, and one that is slow to read the
checkpoint slows nothing else down. Nothing that goes wrong here ends a query: it is logged, and seldom.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from statefx import logs
from statefx.errors import AlreadyExistsError, CheckpointError, ConfigError, StatefxError
from statefx.log.log import TransactionLog
from statefx.log.observation import is_gone, process
from statefx.log.requests import (
    ANSWER,
    BEAT_SECS,
    BELL,
    BYTES_MAX,
    DRIVER,
    FOLDER,
    REQUEST,
    TAKEN,
    error_to_tell,
    folder_of,
)
from statefx.storage import Stored

logger = logging.getLogger("statefx")

LOOK_SECS = 1.0
"""How often a driver looks for the bell: one file that is not there, or one GET, the cheapest request of a store (a
dollar a month at S3, where a listing each second would cost 13)."""

AT_ONCE = 8
"""Requests for one command that are carried out at the same time; others wait. Those for another command don't: who
asks how it is while eight wait for a stop would take the driver for dead."""

READ_MAX = 100
"""Of requests that wait, how many are read in one go to see what they ask for."""

LISTED_MAX = 100_000
"""Names that are looked at in one go: three for each shell that was killed in the last hour, of a monitor that is cut
off each second some 10,000."""

WARN_SECS = 600.0
"""One warning in this time says that requests can't be looked for."""

SWEEP_SECS = 3600.0
"""What is older, by the store's clock, nobody waits for."""

STOP = "stop"
"""The one request whose answer is the query's end."""

SLACK_SECS = 2.0
"""By so much the times of two objects may differ that were written at the same moment: stores tell whole seconds."""

END_SECS = 10.0
"""How long the end of a query waits until its last answers are written."""

Command = Callable[..., Mapping[str, Any]]
"""Is called with the arguments of a request, on a thread of its own; what it raises is the answer."""


class RequestServer:
    """Serves requests to the driver of one generation, from `start` to `end`."""

    def __init__(
        self,
        log: TransactionLog,
        commands: Mapping[str, Command],
        *,
        look_secs: float = LOOK_SECS,
        first_secs: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._storage = log.storage
        self._commands = commands
        self._look_secs = look_secs
        self._first_secs = first_secs
        """How long after `start` it begins; what ends before leaves no trace."""
        self._clock = clock
        self._folder = folder_of(log.state.generation)
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._ending: Mapping[str, Any] | None = None
        """The answer to requests to stop, when the query has ended."""
        self._rung = True
        """Whether there may be requests that were not looked at yet."""
        self._waiting: dict[str, str | None] = {}
        """Requests that are to be taken, the next one first, with their commands as far as these were read."""
        self._known: set[str] = set()
        """Requests that were looked at: none is carried out twice."""
        self._unsure: set[str] = set()
        """Those of which it is not known whether `taken` was written."""
        self._pending: dict[str, str] = {}
        """Requests that were taken and not answered, by id, with their commands."""
        self._answers: dict[str, Mapping[str, Any]] = {}
        """Answers that are to be written."""
        self._beaten: float | None = None
        self._swept: float | None = None
        self._warned: float | None = None
        self._driver = json.dumps(process() | {"checkpoint": log.storage.url}).encode()
        self._thread = threading.Thread(target=logs.carrying(self._run), name="statefx-requests", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self, answer: Mapping[str, Any], *, waits: bool = True) -> None:
        """Answer what is still open, and go; `answer` is that to requests to stop. Waits for at most `END_SECS`.

        With `waits=False` it takes no lock, and all of this is done with the next look.
        """
        self._ending = answer
        if waits:
            self._wake.set()
            if self._thread.ident is not None:
                self._thread.join(END_SECS)

    # ---- the thread

    def _run(self) -> None:
        if self._first_secs:
            self._wake.wait(self._first_secs)
            if self._ending is not None:
                return
        while self._ending is None:
            if is_gone(self._storage):
                return
            self._try(self._look)
            self._wake.wait(self._look_secs)
            self._wake.clear()
        self._try(self._look)
        self._try(self._finish)

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - whatever it is, the query goes on
            now = self._clock()
            if self._warned is None or now - self._warned >= WARN_SECS:
                self._warned = now
                logger.warning(
                    "requests to this query can't be looked for or answered in %s/%s: %s. It goes on, and they are "
                    "tried again; this is logged once in %.0f minutes",
                    self._storage.url, self._folder, error, WARN_SECS / 60,
                )  # fmt: skip

    def _look(self) -> None:
        now = self._clock()
        if self._beaten is None or (self._pending and now - self._beaten >= BEAT_SECS):
            self._beat()
        self._write_answers()
        if self._swept is None or now - self._swept >= SWEEP_SECS:
            self._swept = now
            self._beat()  # its time is what the ages of others are told by
            self._sweep()
        is_listed = self._rung or self._is_rung()
        if is_listed:
            self._rung = True  # until all of them were looked at
            # Before the listing: who rings behind it is heard at the next look.
            self._storage.delete([self._folder + BELL])
            self._waiting = self._new()
            self._rung = False
        try:
            self._take_some(is_listed=is_listed)
        except Exception:
            self._rung = True
            raise

    def _is_rung(self) -> bool:
        try:
            self._storage.read(self._folder + BELL)
        except FileNotFoundError:
            return False
        return True

    def _beat(self) -> None:
        self._storage.put(self._folder + DRIVER, self._driver)
        self._beaten = self._clock()

    # ---- taking

    def _new(self) -> dict[str, str | None]:
        """Return the requests that were not looked at, the next one first."""
        found = {each.name.removeprefix(self._folder): each for each in self._listed(self._folder)}
        if len(found) < LISTED_MAX:  # who has its answer deletes its request, and nobody writes one of that id again
            self._known &= {name.removesuffix(REQUEST) for name in found}
        new = [name.removesuffix(REQUEST) for name in found if name.endswith(REQUEST)]
        new = [id for id in new if id in self._unsure or not (id in self._known or id + TAKEN in found)]
        # Of so many, most were asked by shells that are gone, and who still waits asked last.
        new.sort(key=lambda id: (found[id + REQUEST].modified, id), reverse=len(new) > READ_MAX)
        return {id: self._waiting.get(id) for id in new}

    def _take_some(self, *, is_listed: bool) -> None:
        """Take of what waits as much as can be carried out now; `is_listed`: it was there a moment ago."""
        read = refused = 0
        for id in list(self._waiting):
            if len(self._pending) >= AT_ONCE or not is_listed:
                command = self._waiting[id]
                if command is None or list(self._pending.values()).count(command) < AT_ONCE:
                    if read == READ_MAX:
                        return
                    read += 1
                    command = self._waiting[id] = self._command_of(id)
                    if command is None:  # whoever asked waits no longer
                        del self._waiting[id]
                        continue
                if list(self._pending.values()).count(command) >= AT_ONCE:
                    continue
            del self._waiting[id]
            refused += not self._take(id)
            if refused == AT_ONCE:  # the next ones at the next look: a driver has better things to do
                return

    def _command_of(self, id: str) -> str | None:
        """Return what a request asks for, as far as can be told before it is taken, or None if it is gone."""
        try:
            return str(json.loads(self._storage.read(self._folder + id + REQUEST, stop=BYTES_MAX))["command"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError):  # which is answered when it is taken
            return ""

    def _listed(self, prefix: str) -> list[Stored]:
        return list(islice(self._storage.list(prefix), LISTED_MAX))

    def _take(self, id: str) -> bool:
        """Take a request; return whether it is carried out."""
        name, began = self._folder + id, self._clock()
        self._known.add(id)
        self._unsure.add(id)
        try:
            # Rule 17.2: of this driver and the one who asked, one has it. Always the same bytes: a second try, after an
            # answer of the store that was lost, finds its own.
            self._storage.create(name + TAKEN, self._driver)
        except AlreadyExistsError:
            self._unsure.discard(id)
            return False
        self._unsure.discard(id)
        self._pending[id] = ""
        try:
            command, arguments = self._read(id, began)
        except Exception as error:  # noqa: BLE001 - it was taken: who asked must hear why nothing comes of it
            with self._lock:
                self._answers[id] = {"error": error_to_tell(error)}
            return False
        self._pending[id] = command
        work = threading.Thread(
            target=logs.carrying(self._carry_out), args=(id, command, arguments), name=f"statefx-{command}", daemon=True
        )
        work.start()
        return True

    def _read(self, id: str, began: float) -> tuple[str, Mapping[str, Any]]:
        """Return what a request asks for; raises what is wrong with it."""
        name = self._folder + id
        times = {each.name: each.modified for each in self._storage.list(name)}
        said = json.loads(self._storage.read(name + REQUEST, stop=BYTES_MAX))
        if not isinstance(said, dict) or not isinstance(said.get("arguments"), dict):
            raise ConfigError("this is no request")
        # Rule 17.3: by the clock of the store alone, which has written the times of both, and by how long it took here.
        waited = times[name + TAKEN] - times[name + REQUEST] + self._clock() - began
        if waited > float(said["validSecs"]) + SLACK_SECS:
            raise CheckpointError(f"the request was {waited:.0f} s old when it was seen, and was not carried out")
        command = str(said.get("command"))
        if command not in self._commands:
            raise ConfigError(
                f"this driver does not know {command!r}, but {sorted(self._commands)}: it runs another release than "
                "the one that asks"
            )
        # Whoever may write the checkpoint has written it: one short line, whatever is in it.
        values = "".join(f" {value!r:.100}" for value in said["arguments"].values())[:200]
        level = logging.DEBUG if command == "status" else logging.INFO  # which a monitor asks for without end
        logger.log(level, "%s%s was asked for, by %.100r", command, values, str(said.get("by", "somebody")))
        return command, said["arguments"]

    def _carry_out(self, id: str, command: str, arguments: Mapping[str, Any]) -> None:
        said: Mapping[str, Any]
        try:
            self._log.check()  # rule 17.4
            said = {"result": self._commands[command](**arguments)}
            json.dumps(said)
        except Exception as error:
            said = {"error": error_to_tell(error)}
            if not isinstance(error, StatefxError):
                logger.warning("%s was asked for, and raised", command, exc_info=True)
        with self._lock:
            self._answers.setdefault(id, said)
        self._wake.set()

    # ---- answering

    def _write_answers(self) -> None:
        with self._lock:
            answers = dict(self._answers)
        for id, said in answers.items():
            data = json.dumps(said).encode()
            if len(data) > BYTES_MAX:
                large = CheckpointError(f"it was done, and the answer has {len(data)} bytes, of {BYTES_MAX} at most")
                data = json.dumps({"error": error_to_tell(large)}).encode()
            self._storage.put(self._folder + id + ANSWER, data)
            with self._lock:
                del self._answers[id]
                self._pending.pop(id, None)

    def _finish(self) -> None:
        """Answer all that is open, and take the sign down: `DRIVER` goes last (rule 17.6)."""
        assert self._ending is not None
        with self._lock:
            for id, command in self._pending.items():
                over = CheckpointError(f"the query ended while it was asked for {command}: see whether that was done")
                self._answers.setdefault(id, self._ending if command == STOP else {"error": error_to_tell(over)})
        self._write_answers()
        self._storage.delete([self._folder + BELL, self._folder + DRIVER])

    def _sweep(self) -> None:
        """Delete what nobody waits for: of this generation and of former ones, never of a newer one."""
        own = {self._folder + DRIVER, self._folder + BELL}
        now = max(each.modified for each in self._listed(self._folder + DRIVER))
        found = [each for each in self._listed(FOLDER) if each.name < self._folder + "\x7f"]
        old = [each.name for each in found if now - each.modified > SWEEP_SECS]
        old = [name for name in old if name not in own and name.removeprefix(self._folder)[:32] not in self._pending]
        self._storage.delete([name for name in old if name.endswith(REQUEST)])
        self._storage.delete([name for name in old if not name.endswith(REQUEST)])
        # One for each start, through which every sweep would walk. A zombie that writes there makes it again.
        self._storage.discard_empty(FOLDER, before=self._folder)
