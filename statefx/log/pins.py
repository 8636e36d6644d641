"""Savepoints: what the log keeps under a name until it is deleted, and from where a checkpoint can go on again.

Taking one is one record of the log, and copies nothing: files of state are never changed, and the janitor keeps those
that a savepoint needs. The record may stand anywhere between the others, so no transaction waits for it.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from statefx.errors import CheckpointError, ConfigError, StatePhaseError
from statefx.log.log import TransactionLog
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Pin, Pinned, Unpinned
from statefx.state.contract.store import StateLocation, StateProvider

_TRIES = 100
"""Each lost try is a transaction that was decided between two statements of this thread."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class Savepoint:
    """A transaction to which a checkpoint can be restored.

    Attributes
    ----------
    name : str
        As it was given.
    txid : int
        The last transaction that it holds.
    time : datetime
        When it was taken, by the driver's clock, in UTC.
    bytes : int
        How much of state has to be read to open it, as far as the provider tells. Files that the present state needs
        as well are counted too.
    """

    name: str
    txid: int
    time: datetime
    bytes: int

    def __str__(self) -> str:
        return f"{self.name}: transaction {self.txid}, taken at {self.time:%Y-%m-%d %H:%M:%S} UTC, {self.bytes} bytes"


def to_answer(taken: Savepoint) -> dict[str, Any]:
    """Return a savepoint as a driver's answer to the request for it has it."""
    return {"name": taken.name, "txid": taken.txid, "time": taken.time.isoformat(), "bytes": taken.bytes}


def take(log: TransactionLog, provider: StateProvider, name: str) -> Savepoint:
    """Take a savepoint of the last decided transaction; any thread may call it.

    ConfigError: the name can't be one, or the provider keeps no versions. CheckpointError: the name is taken, nothing
    has been committed, or the record could not be written.
    """
    for _ in range(_TRIES):
        state = log.state
        check_new(state, provider, name)
        try:
            _append(log, Pinned(name, state.decided))
        except StatePhaseError:  # the driver's thread has decided another transaction meanwhile
            continue
        return savepoint(name, log.state.pinned[name])
    raise CheckpointError(f"savepoint {name!r} was not taken: transactions are decided too fast; try again")


def _append(log: TransactionLog, record: Pinned | Unpinned) -> None:
    # On a thread of its own: a cell of a notebook that is interrupted amid an append would end the query (rule 3.2).
    with ThreadPoolExecutor(1) as aside:
        aside.submit(log.append, record).result()


def check_new(state: LogState, provider: StateProvider, name: str) -> None:
    """Refuse a savepoint that can't be taken; raises as `take`."""
    check_name(name)
    check_keeps_versions(provider)
    if name in state.pinned:
        txid = state.pinned[name].state_txid
        raise CheckpointError(
            f"there is a savepoint {name!r} already, of transaction {txid}: delete it, or give this one another name",
            savepoint=name,
        )
    if not state.decided:
        raise CheckpointError("nothing has been committed yet: there is nothing to keep", savepoint=name)


def delete(log: TransactionLog, name: str) -> None:
    """Delete a savepoint; the janitor then deletes the files that nothing else needs."""
    pinned(log.state, name, log.state.location)
    _append(log, Unpinned(name))


def pinned(state: LogState, name: str, location: str) -> Pin:
    """Return the pin of a name; CheckpointError if there is none, which names the checkpoint by `location`."""
    check_name(name)
    if name not in state.pinned:
        there = sorted(state.pinned) or "none"
        raise CheckpointError(
            f"the checkpoint in {location} has no savepoint {name!r}; there are {there}", savepoint=name
        )
    return state.pinned[name]


def savepoint(name: str, pin: Pin) -> Savepoint:
    size = sum(stored_bytes(pin, task) for task in pin.heads)
    return Savepoint(name, pin.state_txid, datetime.fromtimestamp(pin.time_ms / 1000, UTC), size)


def stored_bytes(pin: Pin, task: str) -> int:
    """Return how much has to be read to open the state of a task, as far as the provider tells."""
    snapshot = pin.snapshots.get(task)
    return pin.growth.get(task, 0) + (snapshot.size_bytes if snapshot is not None else 0)


def check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"a savepoint's name has 1 to 100 letters, digits, dots, dashes and underscores, and begins with a letter "
            f"or a digit, got {name!r}"
        )
    if name.isdecimal():
        raise ConfigError(
            f"{name!r} reads as a transaction's number, and can't name a savepoint: call it 'v{name}', or something "
            f"else with a letter. To name transaction {name}, give a number: at={name}, or txid={name} in restore"
        )


def check_keeps_versions(provider: StateProvider) -> None:
    """Refuse a provider whose state is in a server, which has the newest version alone."""
    if provider.location is StateLocation.SERVER:
        raise ConfigError(
            "the state of this checkpoint is kept in a server, which has its newest version alone: there are no "
            "savepoints of it. Move it to files with Checkpoint(location).migrate('rocksdb'), or back up the server "
            "and the checkpoint's folder together, with the topology stopped",
        )
