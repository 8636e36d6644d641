"""The observation document: what a driver last wrote of itself beside its log, for readers in other processes.

`observed.json` is no part of the protocol: no start reads it, and a copy or a rewrite of the checkpoint leaves it out.
The driver replaces it every few seconds. A reader that finds none, or a torn one, makes a shorter document of the log.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from statefx.log.location import OBSERVED, Folders
from statefx.log.shape import oddity
from statefx.logs import iso
from statefx.protocol.log_state import GIVEN_UP, LogState
from statefx.storage import FolderStorage, Storage, is_remote

Document = dict[str, Any]

FORMAT = 1

BYTES_MAX = 1_000_000
"""Size of a document on disk. It is replaced as a whole, so a larger one would cost traffic all the time."""

READ_MAX = 4 * BYTES_MAX
"""What is larger, no driver has written."""

SIGN_OF_LIFE_SECS = 60.0
"""How old a running driver's document gets at most, while nothing changes."""

STALE_SECS = 3 * SIGN_OF_LIFE_SECS
"""Age of a document from which its driver counts as dead, if its process can't be looked at."""

TRANSACTIONS = 60

WRONG = ("stuck", "failing", "failed", "dead", "unknown")
"""States of ``health`` that are worth waking somebody: exit code 1, and 503 of ``/healthz``."""

OVER = ("ended", "failed", "dead")
"""States of a query that is no more: what it measured is of the past."""

_GENERATION = re.compile(rb'"generation": ?(\d+)')
_HEAD_BYTES = 1024

_TIME = re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?\+00:00")
"""A time as ``since`` has it: in a sentence nobody reads milliseconds."""


def secs_of(text: str | None) -> float | None:
    """Return a time of a document in seconds since the epoch, or None if there is none.

    >>> secs_of('1970-01-01T00:00:00.500+00:00')
    0.5
    """
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def health(state: str, since: str | None, sentence: str, remedy: str = "") -> dict[str, Any]:
    if not sentence.endswith((".", "!", "?")):  # it may end with the reason that somebody else has written
        sentence += "."
    return {"state": state, "since": since, "sentence": _TIME.sub(r"\1 \2 UTC", sentence), "remedy": remedy}


def last_committed(txid: int) -> str:
    """Return the end of a sentence: which transaction is the last committed one, of which 0 is none."""
    return f"the last committed transaction is {txid}" if txid else "no transaction was committed yet"


# ---- writing


def is_gone(storage: Storage) -> bool:
    """Return whether the checkpoint's folder was deleted: whoever observes must not bring it back."""
    return isinstance(storage, FolderStorage) and not os.path.isdir(storage.root)


def write_observation(storage: Storage, document: Document) -> bool:
    """Replace the document; return False, having written nothing, if it is not this driver's to write any more.

    A newer driver has written one, or the checkpoint's folder was deleted and must not come back. Raises OSError or
    StorageError: the storage is unreachable or full.
    """
    if is_gone(storage):
        return False
    with suppress(FileNotFoundError):
        generation = _GENERATION.search(storage.read(OBSERVED, 0, _HEAD_BYTES))
        if generation is not None and int(generation[1]) > document["generation"]:
            return False
    storage.put(OBSERVED, bounded(document))
    return True


_TASKS_SHOWN = (64, 8, 0)


def bounded(document: Document) -> bytes:
    """Return the document as JSON of at most `BYTES_MAX`; what is cut is counted under ``leftOut``."""
    data = _json(document)
    if len(data) <= BYTES_MAX:
        return data
    document = {**document, "leftOut": dict(document.get("leftOut", {}))}
    for cut in (_without_traces, *(lambda d, n=n: _fewer_tasks(d, n) for n in _TASKS_SHOWN), _without_lists):
        cut(document)
        data = _json(document)
        if len(data) <= BYTES_MAX:
            return data
    kept = ("format", "generation", "topology", "lineage", "driver", "checkpoint", "startedAt", "writtenAt", "endedAt",
            "error", "health", "leftOut")  # fmt: skip
    return _json({name: document[name] for name in kept if name in document})


def _json(document: Document) -> bytes:
    return json.dumps(document, separators=(",", ":"), default=str).encode("utf-8", "backslashreplace")


def _without_traces(document: Document) -> None:
    document["exceptions"] = [{**one, "traceback": ""} for one in document.get("exceptions", ())]
    for name in ("tasksOf", "metrics", "recent"):
        if document.get(name):
            document["leftOut"][name] = len(document[name])
            document[name] = None


def _fewer_tasks(document: Document, most: int) -> None:
    """Keep the busiest tasks of each component."""
    left = 0
    components = {}
    for name, one in document.get("components", {}).items():
        tasks = sorted(one.get("tasks", ()), key=lambda task: -(task.get("activity") or {}).get("busy", 0.0))
        left += max(0, len(tasks) - most)
        components[name] = {**one, "tasks": tasks[:most]}
    document["components"] = components
    document["leftOut"]["tasks"] = document["leftOut"].get("tasks", 0) + left


def _without_lists(document: Document) -> None:
    for name in ("components", "edges", "sources", "status"):
        if document.get(name):
            document["leftOut"][name] = len(document[name])
            document[name] = type(document[name])()


# ---- the driver's process


def process() -> dict[str, Any]:
    """Return what tells this process from all others: host, pid, and on Linux the machine's boot and the start."""
    found: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid()}
    with suppress(OSError, IndexError):
        found |= {"machine": _machine(), "began": _began(os.getpid())}
    return found


def is_running(driver: Mapping[str, Any]) -> bool | None:
    """Return whether the process of a document's driver runs, or None if this machine can't tell."""
    pid = driver.get("pid")
    if not isinstance(pid, int):
        return None
    try:
        if driver.get("machine") != _machine():
            return None
    except OSError:  # no /proc
        return _is_there(pid) if driver.get("host") == socket.gethostname() and sys.platform != "win32" else None
    try:
        return bool(_began(pid) == driver.get("began")) and not _is_zombie(pid)
    except (OSError, IndexError):
        return False


def _machine() -> str:
    """Return the boot and the namespace of process ids that pids here are of: containers share a host's name."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"


def _began(pid: int) -> str:
    """Return when a process began, in clock ticks since the boot: its pid may have been used before."""
    return _stat(pid)[19]


def _stat(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def _is_zombie(pid: int) -> bool:
    """Return whether a process has ended, and nobody has asked for its exit code: in a container often nobody does."""
    return _stat(pid)[0] in "ZX"


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


# ---- reading


def read_observation(folders: Folders, now: float | None = None) -> Document:
    """Return the document of a checkpoint, with its `health` as a reader sees it at `now` (by default: now).

    Reads one object and no log, so it may be called each second. If there is no document, or a torn or odd one,
    ``health`` says so, and all else is missing. Raises OSError: the storage can't be read.
    """
    now = time.time() if now is None else now
    nothing = {"format": FORMAT, "checkpoint": folders.location, "driver": {}, "writtenAt": None}
    try:
        found = _parsed(folders.storage.read(OBSERVED, 0, READ_MAX + 1))
    except FileNotFoundError:
        sentence = f"No driver has written an observation ({OBSERVED}) to {folders.location} yet."
        remedy = "Drivers write one within seconds of their start; look at what its log says: statefx transactions."
        return {**nothing, "health": health("unknown", None, sentence, remedy)}
    except ValueError as error:
        sentence = f"{OBSERVED} in {folders.location} can't be used: {error}."
        remedy = "A running driver replaces it within a minute. It may be deleted: no start reads it."
        return {**nothing, "health": health("unknown", None, sentence, remedy)}
    return {**found, "health": _as_read(found, folders, now)}


def _parsed(data: bytes) -> Document:
    """Return a document that readers can show; ValueError says in words what it is instead."""
    if len(data) > READ_MAX:
        raise ValueError(f"it has more than {READ_MAX:,} bytes, and a driver writes {BYTES_MAX:,} at most")
    try:
        found = json.loads(data, parse_constant=lambda name: None)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is cut off, or no JSON ({type(error).__name__}: {error})") from None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    if found.get("format") != FORMAT:
        raise ValueError(f"it has format {str(found.get('format'))[:20]}, and this statefx reads {FORMAT}")
    if odd := oddity(found):
        raise ValueError(f"another program or release has written it ({odd})")
    return found


def is_copied(origin: object, location: str, driver: Mapping[str, Any]) -> bool:
    """Return whether what a driver wrote about its checkpoint `origin` lies in a copy of that one.

    False where nobody can tell: another machine may have the same folder mounted at another path.
    """
    if not isinstance(origin, str) or origin == location:
        return False
    if is_remote(origin) and is_remote(location):
        return True
    try:
        return driver.get("machine") == _machine() and not os.path.samefile(origin, location)
    except OSError:  # no /proc, or `origin` is gone
        return False


def _as_read(document: Document, folders: Folders, now: float) -> dict[str, Any]:
    """Return a document's health as of its reader: the driver may have died since it was written."""
    location, driver = folders.location, document.get("driver") or {}
    said: dict[str, Any] = document.get("health") or health("unknown", None, "The document says nothing of it.")
    written, at = document.get("writtenAt"), secs_of(document.get("writtenAt"))
    age = 0.0 if at is None else max(0.0, now - at)
    origin = document.get("checkpoint")
    # Of a fresh one a mount may show it at another path.
    if is_copied(origin, location, driver) or (origin != location and age > STALE_SECS):
        sentence = f"This was written {written} about {origin}: the checkpoint was copied or moved from there."
        return health("unknown", written, sentence, "A driver that is started on this one writes its own.")
    if said.get("state") in OVER or at is None:
        return said
    running = is_running(driver)
    who = f"Its driver, process {driver.get('pid')} on {driver.get('host')}"
    remedy = (
        "Submit the topology again with this checkpoint: it goes on after the last committed transaction, and nothing "
        "is lost or counted twice."
    )
    if running is False:
        return health("dead", written, f"{who}, is gone without having ended: it was killed, or crashed.", remedy)
    if running is None and abs(now - at) > STALE_SECS:
        stored = _stored(folders.storage)
        silent = age if stored is None else now - stored
        if silent > STALE_SECS:
            sentence = (
                f"{who}, has written nothing for {silent:.0f} s, and writes every {SIGN_OF_LIFE_SECS:.0f} s at least: "
                "it has died, hangs, or can't reach the checkpoint."
            )
            return health("dead", written, sentence, f"Look at that machine. If the process is gone: {remedy}")
        sentence = (
            f"{who}, dates what it wrote {abs(now - at):.0f} s {'before' if at < now else 'after'} now, while the "
            f"storage says that it was written {max(silent, 0.0):.0f} s ago: clocks differ, or {OBSERVED} came from a "
            f"backup. It said: {said.get('sentence')}"
        )
        return health("unknown", written, sentence, "Ask the driver itself: statefx status. Set the clocks right.")
    if age > STALE_SECS:  # what it wrote hours ago, perhaps that it is healthy, says nothing of now
        sentence = (
            f"{who}, is there, and has written nothing for {age:.0f} s, though it writes every "
            f"{SIGN_OF_LIFE_SECS:.0f} s at least: it is suspended, hangs, or can't write to the checkpoint; "
            "or its query ended when it could not."
        )
        remedy = f"Look at that process, its log, and the checkpoint's disk. If it hangs, end it. Then: {remedy}"
        return health("stuck", written, sentence, remedy)
    return said


def _stored(storage: Storage) -> float | None:
    """Return when the document was stored, by the clock of the storage; None if nothing tells."""
    return next((each.modified for each in storage.list(OBSERVED) if each.name == OBSERVED), None)


def observation_with_log(folders: Folders, log: LogState, now: float | None = None) -> Document:
    """Return the document, completed by the log where a driver wrote none, or a newer generation has begun since.

    Raises as `read_observation`.
    """
    found = read_observation(folders, now)
    if found.get("lineage") is None:
        found |= {
            "topology": log.topology.name,
            "lineage": log.lineage,
            "generation": log.generation,
            "transactions": [transaction_entry(past, log.state_of(past)) for past in log.past()[-TRANSACTIONS:]],
        }
    elif found.get("checkpoint") != folders.location:
        pass
    elif log.generation > found.get("generation", 0):
        sentence = (
            f"Generation {log.generation} has taken the checkpoint since {found.get('writtenAt')}, when the driver of "
            f"generation {found.get('generation')} wrote this: a start that has not written yet, or a tool such as "
            "restore."
        )
        found["health"] = health("unknown", iso(log.time_ms / 1000), sentence, "Look again in some seconds.")
        for entry in found.get("transactions") or ():  # the driver did not see the restore
            if entry.get("outcome") == OUTCOMES["COMMITTED"] and log.is_given_up(entry.get("txid", 0)):
                entry["outcome"] = OUTCOMES[GIVEN_UP]
    elif log.generation == found.get("generation"):
        found |= {"transactions": _with_later(found.get("transactions"), log), "health": _as_logged(found, log)}
    return found


def _with_later(written: Any, log: LogState) -> list[dict[str, Any]]:
    """Return the document's transactions with what the log says of those that had not ended when it was written."""
    ended = [one for one in written or () if one.get("outcome") != "running"]
    known = {(one.get("txid"), one.get("attempt")) for one in ended}
    running = {(one.get("txid"), one.get("attempt")): one for one in written or () if one.get("outcome") == "running"}
    first = min((txid for txid, _ in (*known, *running)), default=0)
    later = [transaction_entry(past, log.state_of(past)) for past in log.past() if past.txid >= first]
    later = [one for one in later if (one["txid"], one["attempt"]) not in known]
    # The driver knows more of what still runs than the log does.
    later = [one | running.get((one["txid"], one["attempt"]), {}) if one["outcome"] == "running" else one
             for one in later]  # fmt: skip
    return [*ended, *later][-TRANSACTIONS:]


def _as_logged(document: Document, log: LogState) -> dict[str, Any]:
    """Return a document's health, with the last committed transaction as the log has it: it may be a later one."""
    said: dict[str, Any] = dict(document["health"])
    sentence = str(said.get("sentence"))
    said["sentence"] = _LAST.sub(last_committed(log.committed), sentence)
    if said["state"] == "dead":
        last = last_committed(log.committed)
        said["sentence"] += f" {last[0].upper()}{last[1:]}."
        if decided := [entry.txid for entry in log.in_flight if entry.committing is not None]:
            said["sentence"] += f" {decided_sentence(decided[0])}"
    return said


_LAST = re.compile(r"the last committed transaction is \d+(?=\.$)|no transaction was committed yet(?=\.$)")


def decided_sentence(txid: int) -> str:
    return f"Transaction {txid} is decided and not published: the next start does that first."


OUTCOMES = {"COMMITTED": "committed", "ROLLED_BACK": "rolled back", GIVEN_UP: "given up", "RESTORED": "restored"}
"""What the states of attempts that have ended are called in the document."""


def transaction_entry(past: Any, state: str) -> dict[str, Any]:
    """Return an attempt of the log, a `Past` or a `Transaction`, as the document's ``transactions`` have it."""
    return {
        "txid": past.txid,
        "attempt": past.attempt,
        "outcome": OUTCOMES.get(state, "running"),
        "began": iso(past.prepared_ms / 1000) if past.prepared_ms else None,
        "ended": iso(past.ended_ms / 1000) if past.ended_ms else None,
        "durationMs": {},
        "rows": past.input_rows,
        "reason": past.reason,
        **({} if past.ended_ms else {"phase": state}),
    }
