"""The generation of a driver: a checkpoint is read, the next generation is taken on it, a newer one is noticed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection

from statefx.coordinator.adoption import check_adoption, forks, warn_of_fork
from statefx.coordinator.entries import FOLDER as LOG
from statefx.coordinator.format import PLACE, check_format, is_empty, write_format
from statefx.coordinator.location import Folders
from statefx.coordinator.log import TransactionLog, read_state
from statefx.coordinator.participants import check_participants
from statefx.coordinator.renaming import NOTHING_RENAMED, Renaming
from statefx.errors import CheckpointError, CheckpointMismatchError, FencedError
from statefx.protocol.log_rules import apply
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Generation, Lineage
from statefx.protocol.topology_identity import TopologyIdentity
from statefx.storage import Storage, is_remote

TAKE_TRIES = 10
"""Each lost try is a record that another driver has appended meanwhile. So many in a row are no accident: several
drivers start again and again, and one more try would only fence another of them."""

_AFTER_THE_LOG = ("state/", "sources/")
"""Beginnings of names that nothing has before there is a log."""


def read_checkpoint(folders: Folders) -> LogState:
    """Read a checkpoint without changing it; empty if there is none."""
    try:
        check_format(folders.storage)
    except OSError as error:
        if not is_remote(folders.location):
            raise
        raise CheckpointError(
            f"checkpointLocation {folders.location} can't be read ({error.strerror or error}): give {PLACE}",
            path=folders.location,
        ) from error
    if is_empty(folders.storage, LOG):
        _check_beginning(folders)
        return LogState()
    return read_state(folders.storage)


def _check_beginning(folders: Folders) -> None:
    """Refuse what is left of a checkpoint whose log was lost: it would begin with empty state, and read all again."""
    left = next((prefix for prefix in _AFTER_THE_LOG if not is_empty(folders.storage, prefix)), None)
    if left is not None and is_empty(folders.storage, LOG):  # not a driver that is just making the checkpoint
        raise CheckpointMismatchError(
            f"the transaction log in {folders.log} is missing, but there is {left} beside it. Restore {folders.log} "
            f"from a copy made with the rest, or start with a new checkpointLocation (and an empty state).",
            path=folders.log,
        )


def take_generation(
    folders: Folders,
    wanted: TopologyIdentity | None,
    adopt: frozenset[str],
    *,
    shared: bool,
    others: Collection[str] = (),
    renaming: Renaming = NOTHING_RENAMED,
    opened: Callable[[Storage], TransactionLog] = TransactionLog,
) -> TransactionLog:
    """Open the log for appending and take the next generation (rule 1.2): from here on older drivers are fenced.

    A driver that is still at work may win a number meanwhile; then the log is read and checked again.

    Parameters
    ----------
    wanted : TopologyIdentity or None
        Of the topology that goes on; None: nothing goes on yet, the checkpoint stays that of whoever ran last.
    adopt, shared
        As of `check_adoption`.
    others : Collection[str]
        Names of the participants besides state.
    renaming : Renaming
        Which bolts and spouts are called otherwise from now on, or are gone.
    opened : callable
        Opens the log. If it raises, nothing has changed: nothing can have been appended between its reading and the
        GENERATION record.

    Raises
    ------
    CheckpointMismatchError
        As `check_adoption` and `check_participants`.
    FencedError
        Others went on taking generations for `TAKE_TRIES` tries.
    """
    write_format(folders.storage)
    for tries in range(TAKE_TRIES):
        log = opened(folders.storage)
        changes = renaming.of(log.state)
        found = changes.applied(log.state)
        becomes = wanted or found.topology
        if is_remote(folders.location) and found.generation and found.location != folders.location:
            folders.storage.check()  # it came with all that the first start would have tried, to another store perhaps
        check_adoption(found, becomes, folders, adopt, shared=shared)
        forking = forks(found, folders, adopt)
        # The driver at work goes on deciding until it is fenced (rule 10.6).
        check_participants(forked(found) if forking else found, others)
        try:
            if not log.state.lineage or forking:  # a fork's state must never meet the original's (rule 1.1)
                log.append(Lineage(uuid.uuid4().hex))
            generation = log.state.generation + 1
            dropped, takes_over = tuple(sorted(changes.dropped)), "takeover" in adopt
            log.append(Generation(generation, folders.location, becomes, changes.names, dropped, takes_over))
        except FencedError:
            if tries == TAKE_TRIES - 1:
                raise
        else:
            warn_of_fork(found, folders, adopt)
            return log
    raise AssertionError("unreachable")


def forked(found: LogState) -> LogState:
    """Return what a checkpoint is as a fork: it owns no target of the original's."""
    return apply(found, Lineage(uuid.uuid4().hex), found.time_ms)


def check_newest(folders: Folders, generation: int) -> LogState:
    """Return the log as it is now; FencedError if a newer generation has taken over."""
    state = read_state(folders.storage)
    if state.generation != generation:
        raise FencedError(
            f"generation {state.generation} has taken over the checkpoint in {folders.location}; this is {generation}. "
            "There is one driver at a time: this one has ended, and the other goes on where it was. If that is a tool "
            "that changes the checkpoint, such as restore or rescale, start again when it is done. Another topology "
            "needs a checkpointLocation of its own",
            generation=state.generation,
        )
    return state
