"""Ends the open transactions of a driver that is gone, without the topology.

::

    1 nothing is open, or something is decided: refused      2 the next generation: who ran before is fenced
    3 ROLLED_BACK, the newest first

Nothing can come between 1 and 2: the log is read, and the GENERATION record takes the number behind what was read
(rule 3.1). So no driver is ever fenced for an abort that is then refused.

Step 3 is a recovery's, which a start would do next, but for one thing: a recovery first tells the tasks of bolts with
``preRollback`` (rule 7.3), and here there are no tasks. A rollback that was logged is never told again. So where the
checkpoint has such a bolt, the transaction that it may have to be told of is left open: it is the lowest one, since no
later one has come to the ordered phase (rules 2.3, 6.3). The next start rolls it back as it would have done anyway.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import partial

from statefx.admin.reading import check_started
from statefx.coordinator.adoption import NOTHING_ADOPTED
from statefx.coordinator.generation import read_checkpoint, take_generation
from statefx.coordinator.location import Folders, checkpoint_location
from statefx.coordinator.log import TransactionLog
from statefx.errors import CheckpointError
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.log_state import LogState
from statefx.protocol.records import RolledBack
from statefx.storage import Storage

logger = logging.getLogger("statefx")

REASON = "aborted by statefx.abort"


@dataclass(frozen=True)
class Aborted:
    """What `abort` has done.

    Attributes
    ----------
    generation : int
        The one that it took: drivers of older ones can't commit any more.
    rolled_back : tuple of TransactionAttempt
        What it ended, the newest first; each has ``txid`` and ``attempt``.
    left : TransactionAttempt or None
        What the next start rolls back, since `bolts` have to be told of it.
    bolts : tuple of str
        Bolts with ``preRollback``.
    """

    generation: int
    rolled_back: tuple[TransactionAttempt, ...]
    left: TransactionAttempt | None
    bolts: tuple[str, ...]

    def __str__(self) -> str:
        said = [f"generation {self.generation} is taken, and older drivers are fenced"]
        said += [f"attempt {each.attempt} of transaction {each.txid} is rolled back" for each in self.rolled_back]
        if self.left is not None:
            said.append(
                f"attempt {self.left.attempt} of transaction {self.left.txid} is rolled back by the next start, which "
                f"calls preRollback of {', '.join(self.bolts)}"
            )
        return "; ".join(said)


def abort(checkpointLocation: str | os.PathLike[str]) -> Aborted:
    """End the open transactions of a driver that is gone; if it lives, it is fenced.

    A start of the topology does the same by itself, and needs no abort before it. This is for a checkpoint whose
    topology shall not be started now: what was prepared is given up, and a driver that only seems to be gone commits
    nothing any more. The next start goes on as after any rollback: the same rows come again.

    Parameters
    ----------
    checkpointLocation : str or path
        As given to ``submit``.

    Returns
    -------
    Aborted
        What it did.

    Raises
    ------
    CheckpointError
        There is no checkpoint, no transaction is open, or one is COMMITTING: that is decided, and only a start can
        carry it out. Nothing was changed, and nobody was fenced.
    FencedError
        A topology was started meanwhile, which ends the open transactions itself.
    LogOutcomeUnknownError
        The disk did not tell whether a record was written: call `transactions` to see.
    StateCorruptedError
        A record of the log is damaged.

    Contract
    --------
    * ``preRollback`` can't be called without the topology. Where a bolt has it, the transaction that it must be told
      of stays PREPARING in the log, and nobody can commit it: the next start calls ``preRollback`` and rolls it back.
    * What tasks and sinks have prepared is named by nobody, and deleted by the next start, as after a crash.

    Examples
    --------
    >>> print(abort("checkpoints/word-count"))     # doctest: +SKIP
    """
    folders = Folders(checkpoint_location(checkpointLocation))
    check_started(read_checkpoint(folders), folders)
    log = take_generation(folders, None, NOTHING_ADOPTED, shared=False, opened=partial(_opened, folders))
    return _aborted(log, folders)


def _opened(folders: Folders, storage: Storage) -> TransactionLog:
    log = TransactionLog(storage)
    # At each try to take the generation: a driver that runs may have decided since the last look (rule 2.5).
    _check_open(log.state, folders)
    return log


def _check_open(state: LogState, folders: Folders) -> None:
    if not state.in_flight:
        raise CheckpointError(
            f"no transaction is open in the checkpoint in {folders.location}, the last one that was committed is "
            f"{state.committed}: there is nothing to abort",
            path=folders.location,
        )
    if state.committing is not None:
        txid = state.committing.txid
        raise CheckpointError(
            f"transaction {txid} of the checkpoint in {folders.location} is COMMITTING: it is decided, and can't be "
            "aborted any more. Start the topology, which rolls it forward",
            path=folders.location,
            txid=txid,
        )


def _aborted(log: TransactionLog, folders: Folders) -> Aborted:
    state = log.state
    bolts = tuple(sorted(id for id, bolt in state.topology.stateful.items() if bolt.rolls_back))
    # Bolts are told of the lowest one alone: committers of those after it can't have run (rule 6.3).
    entries = state.in_flight[1:] if bolts else state.in_flight
    ended = tuple(TransactionAttempt(entry.txid, entry.attempt) for entry in reversed(entries))
    for each in ended:  # rule 3.6: from the newest down
        log.append(RolledBack(each.txid, each.attempt, REASON))
    first = state.in_flight[0]
    left = TransactionAttempt(first.txid, first.attempt) if bolts else None
    done = Aborted(state.generation, ended, left, bolts)
    logger.info("%s: %s", folders.location, done)
    return done
