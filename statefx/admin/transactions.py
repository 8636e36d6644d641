"""What became of the last transactions of a checkpoint, read from its log."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from statefx.admin.reading import check_started
from statefx.log.location import Folders, checkpoint_location
from statefx.log.takeover import read_checkpoint
from statefx.operators.sealed_names import OwnerName, Sealed, sealed_in
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Committing
from statefx.protocol.transaction import Phase

GIVEN_UP = "GIVEN_UP"

_TIMES = ("prepared_ms", "committing_ms", "ended_ms")


@dataclass(frozen=True, slots=True)
class Transaction:
    """One attempt of a transaction.

    Attributes
    ----------
    txid : int
        Its number.
    attempt : int
        Which try of it.
    generation : int
        Which driver's.
    state : str
        ``PREPARING``, ``COMMITTING``, ``COMMITTED`` or ``ROLLED_BACK``; ``GIVEN_UP`` for one that was committed, and
        that `restore` or `repair` has gone back beyond. ``RESTORED`` is no transaction: at this place, the checkpoint
        went back to what `txid` had left.
    prepared_ms, committing_ms, ended_ms : int or None
        When it began, when its commit was decided and when it ended, in milliseconds since the epoch, by the clock of
        the driver's machine; None: not yet, or never.
    input_rows, output_rows : int
        What was read from the sources, and what reached the ends of the topology; 0 before the commit is decided.
    state_bytes : int
        By how much stored state has grown.
    reason : str
        Why it was rolled back; the first 200 characters.
    sinks : Mapping[str, Mapping[str, int]]
        By sink, the ``rows`` and ``bytes`` that were decided to be published; without sinks that don't tell.
    queues : Mapping[str, Mapping[str, Any]]
        What one that is COMMITTING takes off queues, by spout: which ``queue``, and how many messages it has ``sealed``
        there. Empty before that, since what is sealed is not in the log before the decision (`resolve` shows it), and
        when it has ended.
    """

    txid: int
    attempt: int
    generation: int
    state: str
    prepared_ms: int | None
    committing_ms: int | None
    ended_ms: int | None
    input_rows: int
    output_rows: int
    state_bytes: int
    reason: str
    sinks: Mapping[str, Mapping[str, int]]
    queues: Mapping[str, Mapping[str, Any]]

    @property
    def secs(self) -> float | None:
        """How long it took, in seconds; None: it has not ended. Less than 0 where the clock was set back."""
        if self.ended_ms is None or self.prepared_ms is None:
            return None
        return (self.ended_ms - self.prepared_ms) / 1000

    def __repr__(self) -> str:
        since = self.ended_ms or self.committing_ms or self.prepared_ms
        rows = "" if self.committing_ms is None else f", {self.input_rows} rows in, {self.output_rows} out"
        given = "".join(f", {each['rows']} to {sink}" for sink, each in self.sinks.items())
        given += "".join(f", {each['sealed']} messages of {spout} sealed" for spout, each in self.queues.items())
        why = f": {self.reason}" if self.reason else ""
        name = f"Transaction {self.txid}, attempt {self.attempt}, generation {self.generation}"
        return f"<{name}: {self.state} {time_text(since)}{rows}{given}{why}>"


def transactions(checkpointLocation: str | os.PathLike[str]) -> list[Transaction]:
    """List the last transactions of a checkpoint, attempt by attempt; also while the topology runs.

    Changes nothing. Needs neither Spark nor the topology, nor what its state provider and its sinks need.

    Parameters
    ----------
    checkpointLocation : str or path
        As given to ``submit``.

    Returns
    -------
    list of Transaction
        The newest last: about the last 1,000 attempts that have ended, and those that are open.

    Raises
    ------
    CheckpointError
        There is no checkpoint, or the folder is something else; or a newer release wrote it.
    StateCorruptedError
        A record of the log is damaged.

    Examples
    --------
    >>> for each in transactions("checkpoints/word-count")[-3:]:     # doctest: +SKIP
    ...     print(each.txid, each.state, each.secs, each.reason)
    """
    folders = Folders(checkpoint_location(checkpointLocation))
    found = read_checkpoint(folders)
    check_started(found, folders)
    return attempts_in(found)


def attempts_in(state: LogState) -> list[Transaction]:
    """Return the last attempts that the log remembers, oldest first."""
    found = []
    held = {(entry.txid, entry.attempt): _held(entry.committing) for entry in state.in_flight if entry.committing}
    for past in state.past():
        each: dict[str, Any] = past._asdict()
        each |= {name: each[name] or None for name in _TIMES}
        if past.state == Phase.COMMITTED and state.is_given_up(past.txid):
            each["state"] = GIVEN_UP
        each["sinks"] = {given.sink: {"rows": given.rows, "bytes": given.bytes} for given in past.sinks}
        each["queues"] = {} if past.ended_ms else held.get((past.txid, past.attempt), {})
        found.append(Transaction(**each))
    return found


def _held(decision: Committing) -> dict[str, dict[str, Any]]:
    """Return what a decision takes off queues, by spout."""
    found: dict[str, dict[str, Any]] = {}
    for committable in decision.committables.values():
        for name, messages in sealed_in(committable).items():
            sealed = Sealed.read(name)
            owner = None if sealed is None else OwnerName.read(sealed.owner)
            if owner is not None and isinstance(committable, Mapping):
                each = found.setdefault(owner.component, {"queue": committable.get("target"), "sealed": 0})
                each["sealed"] += messages
    return found


def time_text(time_ms: int | None) -> str:
    """Show a time of the log, in UTC.

    >>> time_text(1_000), time_text(None)
    ('1970-01-01 00:00:01.000Z', '')
    """
    if time_ms is None:
        return ""
    shown = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", "milliseconds")
    return shown.replace("+00:00", "Z")
