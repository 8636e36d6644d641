"""Savepoints of a checkpoint that stands still: taken, listed, deleted, gone back to, and made a checkpoint of its own.

Going back, in place::

    1 what can be refused is, and every version is opened      2 the next generation: who ran before is fenced
    3 RESTORED: state and sources are where they were, and the next transaction has the next number

A failure before 3 leaves everything as it was, and so does one before the log is written there (`export`)::

    1 the state of every task is written to the new folder, read back and compared
    2 what the log names beside itself is copied           3 the log, which is one CHECKPOINT
"""

from __future__ import annotations

import logging
import os
import tempfile
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from statefx.admin.migration import Entries, sum_of
from statefx.admin.reading import Progress, check_idle, check_started, kept_provider, open_task
from statefx.config import Config
from statefx.coordinator import savepoints as kept
from statefx.coordinator.adoption import NOTHING_ADOPTED
from statefx.coordinator.entries import read_entries
from statefx.coordinator.format import write_format
from statefx.coordinator.generation import read_checkpoint, take_generation
from statefx.coordinator.location import Folders, checkpoint_location
from statefx.coordinator.log import TransactionLog
from statefx.coordinator.renaming import NOTHING_RENAMED, Renaming
from statefx.coordinator.savepoints import Savepoint
from statefx.errors import CheckpointError, ConfigError, StateCorruptedError
from statefx.protocol.identity import EMPTY, FileRef, TaskId, Version
from statefx.protocol.log_rules import apply, checkpoint, fold, pin_of
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Generation, Lineage, Migrated, Pin, Restored
from statefx.state.contract.store import StateContext, StateProvider, prepare_as
from statefx.state.registry import load_provider
from statefx.storage import Storage

logger = logging.getLogger("statefx")

APPEND = "append"
REWIND = "rewind"
SINKS = (APPEND, REWIND)


@dataclass(frozen=True)
class Restoration:
    """What `restore` has done.

    Attributes
    ----------
    location : str
        The folder that goes on.
    txid : int
        The transaction whose state and sources it goes on from.
    given_up : int
        How many transactions after it were given up; what they read comes again.
    next_txid : int
        The next transaction. Numbers are never used twice.
    published : Mapping[str, int]
        By sink, the rows of those transactions, as far as the log still knows and the sink tells. They stay where they
        are, and the rows that come again are published behind them; but not those of `taken_back`.
    taken_back : Mapping[str, str]
        Sinks, with their targets, that take back what they have published after `txid`: when the topology starts the
        next time, before its first transaction.
    """

    location: str
    txid: int
    given_up: int
    next_txid: int
    published: Mapping[str, int]
    taken_back: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        said = f"{self.location} goes on from transaction {self.txid}, with transaction {self.next_txid}"
        if self.given_up:
            said += f"; {self.given_up} transactions after it were given up, and what they read comes again"
        for sink, target in self.taken_back.items():
            said += f"; the next start takes back what sink {sink!r} has published since, from {target}"
        stays = {sink: count for sink, count in self.published.items() if sink not in self.taken_back}
        rows = ", ".join(f"{count} rows of {sink!r}" for sink, count in stays.items())
        return f"{said}; published in these, and still there: {rows}" if rows else said


def savepoint(
    checkpointLocation: str | os.PathLike[str], name: str, config: Mapping[str, Any] | None = None
) -> Savepoint:
    """Take a savepoint of a checkpoint whose topology does not run; while it does, call ``query.savepoint``.

    Parameters
    ----------
    checkpointLocation : str or path
        As given to ``submit``.
    name : str
        Letters, digits, dots, dashes and underscores.
    config : Mapping, optional
        Settings as given to ``submit``: needed only where a secret is among the provider's options.

    Returns
    -------
    Savepoint
        Of the last committed transaction.

    Raises
    ------
    ConfigError
        The name can't be one, or state is kept in a server, which keeps no versions.
    CheckpointError
        There is no checkpoint, a transaction is under way in it, or the name is taken.

    Contract
    --------
    * Copies nothing: one record is written, however large state is.
    * A driver that runs on the checkpoint is fenced.
    """
    folders, found = found_checkpoint(checkpointLocation)
    check_idle(found, folders, "take the savepoint")
    provider = provider_of(found, config)
    kept.check_name(name)
    kept.check_keeps_versions(provider)
    if name in found.pinned or not found.decided:
        kept.take(TransactionLog(folders.storage), provider, name)  # refuses
    return kept.take(taken(folders, "take the savepoint"), provider, name)


def savepoints(checkpointLocation: str | os.PathLike[str]) -> tuple[Savepoint, ...]:
    """Return the savepoints of a checkpoint, oldest transaction first; also while its topology runs.

    Raises
    ------
    CheckpointError
        There is no checkpoint.
    """
    _, found = found_checkpoint(checkpointLocation)
    shown = [kept.savepoint(name, pin) for name, pin in found.pinned.items()]
    return tuple(sorted(shown, key=lambda each: (each.txid, each.time, each.name)))


def deleteSavepoint(checkpointLocation: str | os.PathLike[str], name: str) -> None:
    """Delete a savepoint of a checkpoint whose topology does not run; while it does, call ``query.deleteSavepoint``.

    The files that nothing else needs go with a later sweep, while the topology runs.

    Raises
    ------
    CheckpointError
        There is no checkpoint, or no such savepoint; the message lists those there are.

    Contract
    --------
    * A driver that runs on the checkpoint is fenced.
    """
    folders, found = found_checkpoint(checkpointLocation)
    kept.pinned(found, name)
    check_idle(found, folders, "delete the savepoint")
    kept.delete(taken(folders, "delete the savepoint"), name)


def restore(
    checkpointLocation: str | os.PathLike[str],
    savepoint: str | None = None,
    *,
    txid: int | None = None,
    to: str | os.PathLike[str] | None = None,
    sinks: str | None = None,
    config: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Restoration:
    """Go back to a savepoint, or to any transaction that is still kept: state, timers, and how far sources were read.

    Stop the topology first. The next start goes on from there, with any code that could go on from it.

    Parameters
    ----------
    checkpointLocation : str or path
        As given to ``submit``.
    savepoint : str, optional
        The name of a savepoint.
    txid : int, optional
        In place of it, a transaction of those since the log was last folded, the last 30 to 100.
    to : str or path, optional
        A folder that is new or empty: it becomes a checkpoint of its own, which stands alone, and this one stays as it
        is. By default this one goes back.
    sinks : str, optional
        ``"append"``: rows that were published since stay, and come once more behind them. ``"rewind"``: they are taken
        back from their targets by the next start, before its first transaction; all of these sinks must be able to.
        Without either, a checkpoint whose sinks have published something since is refused.
    config : Mapping, optional
        Settings as given to ``submit``: needed only where a secret is among the provider's options.
    progress : callable (done, total), optional
        As of `verify`, with `to`.

    Returns
    -------
    Restoration

    Raises
    ------
    ConfigError
        The arguments are wrong, or state is kept in a server, which keeps no versions.
    CheckpointError
        There is no checkpoint, no such savepoint or transaction, a transaction is under way, `to` is not empty; or
        sinks have published rows since, can't take them back, or have taken back those of the very transaction.
    StateCorruptedError
        A file that the savepoint needs is missing or damaged.

    Contract
    --------
    * What raises has changed nothing. One record makes it so: a crash leaves the checkpoint as it was, or restored.
    * A driver that runs on the checkpoint is fenced, but not with `to`.
    * Numbers of transactions that were given up are never used again: no target takes new rows for old ones.
    * Savepoints stay, also those of what was given up: ``restore`` goes forward again, where no rows were taken back.
    * What queues were told to forget since is not delivered again. So with ``"rewind"`` it is refused, with or before
      the next start, where messages were acknowledged: their rows would be lost.
    * With ``"rewind"``, each start repeats the taking back until a transaction is decided.

    """
    check_sinks(sinks)
    folders, found = found_checkpoint(checkpointLocation)
    if to is not None and sinks is not None:
        raise ConfigError("with to= nothing is published twice: the new checkpoint owns no target. Leave sinks out")
    provider = provider_of(found, config)
    kept.check_keeps_versions(provider)
    pin = _pin(folders, found, savepoint, txid)
    if to is not None:
        return _exported(folders, found, provider, pin, Folders(checkpoint_location(to)), progress)
    return go_back(folders, found, provider, pin, sinks=sinks)


def export(
    checkpointLocation: str | os.PathLike[str],
    to: str | os.PathLike[str],
    savepoint: str | None = None,
    *,
    txid: int | None = None,
    config: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Restoration:
    """Write a savepoint, or the last transaction, to a folder that stands alone: a checkpoint, to keep or to start.

    As ``restore(..., to=...)``; by default it takes the last committed transaction. While the topology runs, take a
    savepoint first: the janitor may delete what is read.
    """
    folders, found = found_checkpoint(checkpointLocation)
    provider = provider_of(found, config)
    kept.check_keeps_versions(provider)
    last = savepoint is None and txid is None
    pin = pin_of(found) if last else _pin(folders, found, savepoint, txid)
    return _exported(folders, found, provider, pin, Folders(checkpoint_location(to)), progress)


def at_pin(state: LogState, pin: Pin) -> LogState:
    """Return what the log would know if it had ended with `pin`: for readers of what is kept."""
    return apply(replace(state, in_flight=(), committed=pin.txid), Restored(state.generation, pin))


# ---- what is refused


def check_sinks(sinks: str | None) -> None:
    """Refuse what can't be said of rows that were published."""
    if sinks not in (None, *SINKS):
        raise ConfigError(f"sinks must be 'append' or 'rewind', or left out, got {sinks!r}")


def found_checkpoint(location: str | os.PathLike[str]) -> tuple[Folders, LogState]:
    """Return what the log of a checkpoint knows; CheckpointError if there is none."""
    folders = Folders(checkpoint_location(location))
    found = read_checkpoint(folders)
    check_started(found, folders)
    return folders, found


def provider_of(found: LogState, config: Mapping[str, Any] | None) -> StateProvider:
    """Return who keeps the state; without a stateful bolt any will do, for there is nothing to keep."""
    some = next(iter(found.topology.stateful.items()), None)  # one provider keeps all of them
    if some is None:
        given = Config.parse(config, found.topology.name)
        return load_provider(given.state_provider, given.state_provider_config)
    component, bolt = some
    return kept_provider(found, bolt, component, config)


def _check_same(found: LogState, folders: Folders, state: LogState) -> None:
    if (state.generation, state.committed, state.pinned) != (found.generation, found.committed, found.pinned):
        raise CheckpointError(
            f"a topology runs on the checkpoint in {folders.location}: it has gone on meanwhile. Stop it first",
            path=folders.location,
        )


def taken(
    folders: Folders,
    what: str,
    check: Callable[[LogState], None] = lambda state: None,
    opened: Callable[[Storage], TransactionLog] = TransactionLog,
    adopt: frozenset[str] = NOTHING_ADOPTED,
    renaming: Renaming = NOTHING_RENAMED,
) -> TransactionLog:
    """Take the next generation, after a last look."""

    def looked_at(storage: Storage) -> TransactionLog:
        log = opened(storage)
        # At each try to take the generation: a driver that runs may have begun something since the last look.
        check_idle(log.state, folders, what)
        check(log.state)
        return log

    return take_generation(folders, None, adopt, shared=False, renaming=renaming, opened=looked_at)


def _pin(folders: Folders, found: LogState, savepoint: str | None, txid: int | None) -> Pin:
    if (savepoint is None) == (txid is None):
        raise ConfigError("say what to go back to: the name of a savepoint, or txid=, and not both")
    if savepoint is not None:
        return kept.pinned(found, savepoint)
    if isinstance(txid, bool) or not isinstance(txid, int) or txid < 1:
        raise ConfigError(f"txid must be the number of a committed transaction, from 1, got {txid!r}")
    known = known_pins(folders)
    if txid in known:
        return known[txid]
    span = f"{min(known)} to {max(known)}" if known else "none"
    raise CheckpointError(
        f"the log of the checkpoint in {folders.location} does not know any more what transaction {txid} had left; "
        f"those that it knows are {span}, and its savepoints are {sorted(found.pinned) or 'none'}",
        path=folders.location,
        txid=txid,
    )


def known_pins(folders: Folders, *, ancestors: bool = False) -> dict[int, Pin]:
    """Return what each transaction had left, of those that the log still knows; files may be gone.

    With `ancestors` only of those that the state of now came from, and not of what was given up.
    """
    state, known = LogState(), dict[int, Pin]()
    for entry in read_entries(folders.storage):
        before, state = state.decided, apply(state, entry.record, entry.time_ms)
        # Not where RESTORED has brought back what an earlier one had left.
        if state.decided and (state.decided != before or not known) and state.restored is None:
            known[state.decided] = pin_of(state)
        if ancestors and isinstance(entry.record, Restored):
            known = {txid: pin for txid, pin in known.items() if txid <= entry.record.pin.state_txid}
        if isinstance(entry.record, Migrated):  # the provider of now has no version of before
            known.clear()
    return known


def _open_all(folders: Folders, found: LogState, provider: StateProvider, pin: Pin) -> None:
    """Open the state of every task as it was, so that a file that is missing is told before anything is changed."""
    state = at_pin(found, pin)
    for name in sorted(pin.heads):
        task = TaskId.parse(name)
        with closing(open_task(provider, folders, state, task.component, task.task)[0]) as store:
            next(iter(store.scan(None, None)), None)
    for ref in files_beside(state):
        path = f"{folders.storage.url}/{ref.name}"
        try:
            whole = ref.fits(folders.storage.read(ref.name))
        except FileNotFoundError:
            whole = False
        if not whole:
            raise StateCorruptedError(
                f"{path}, which says how far sources were read in transaction {pin.state_txid}, is gone or damaged. "
                "Nothing was changed; go back to a savepoint, whose files are kept",
                path=path,
            )


def files_beside(state: LogState) -> list[FileRef]:
    """Return the files in which sources and spouts have put what was too large for the log."""
    said = (each for layers in state.committed_metadata.values() for each in layers)
    return [*state.notes.aside, *(each.file for each in said if each.file is not None)]


def _published_since(found: LogState, txid: int) -> dict[str, int]:
    rows: dict[str, int] = {}
    for past in found.past():
        if past.state == "COMMITTED" and past.txid > txid:
            for volume in past.sinks:
                if volume.rows:
                    rows[volume.sink] = rows.get(volume.sink, 0) + volume.rows
    return rows


def _already_published(found: LogState, pin: Pin) -> str:
    published = _published_since(found, pin.state_txid)
    shown = ", ".join(f"{rows} of sink {sink!r}" for sink, rows in published.items())
    targets = ", ".join(f"{sink!r} ({target})" for sink, target in sorted(found.targets.items()))
    rows = f"rows ({shown})" if shown else "rows"
    return (
        f"transactions {pin.state_txid + 1} to {found.committed} may have published {rows} to {targets}. What they "
        "have read would come again, and be published once more behind that. Say sinks='append' if that is right, or "
        "remove these rows there by hand and say it then; or sinks='rewind' where all these sinks can take them back; "
        "or restore into another checkpoint with to=, whose sinks "
        "have other targets"
    )


def _to_take_back(found: LogState, folders: Folders, pin: Pin, sinks: str | None) -> Mapping[str, str]:
    """Return which sinks have to take back what, where it was published; refuse what does not go (rule 3.14)."""
    if sinks == APPEND:
        return {}
    txid, due = pin.state_txid, found.taking_back
    for past in found.taken_back:
        # Where no driver has started since, RESTORED gives up what nobody has begun.
        if past.after < txid <= past.until and not (past is due and found.generation == past.generation):
            raise CheckpointError(
                f"transaction {txid} was given up once, and rows of transactions {past.after + 1} to {past.until} were "
                "taken back from the targets of sinks, or may have been: they would be lacking there, for what "
                f"they came from is not read again. Go back to a transaction up to {past.after}; or restore into "
                "another checkpoint with to=, whose sinks have other targets; or say sinks='append' if that is right",
                path=folders.location,
                txid=txid,
            )
    if sinks == REWIND:
        return _rewound(found, folders, txid)
    # Not by `txid`: what was restored before has the number of what was given up then. The newest state of all has
    # seen all that was published, but for what was given up before it, with the user's consent.
    if found.targets and txid not in (found.state_txid, found.committed):
        raise CheckpointError(_already_published(found, pin), path=folders.location, txid=txid)
    return due.targets if due is not None and txid == found.state_txid else {}


def _rewound(found: LogState, folders: Folders, txid: int) -> Mapping[str, str]:
    """Return the sinks that have published something after a transaction; all of them can take it back."""
    since = {sink: found.targets[sink] for sink, each in sorted(found.published.items()) if each.last > txid}
    can_not = {sink: target for sink, target in since.items() if found.published[sink].fixed > txid}
    if can_not:
        shown = ", ".join(f"{sink!r} ({target})" for sink, target in can_not.items())
        raise CheckpointError(
            f"what was published after transaction {txid} can't be taken back by {shown}: of these sinks, or as they "
            "were set up or wrote elsewhere then, or since they were taken over, nobody can tell which rows are a "
            "transaction's. Nothing was changed. Remove these rows by hand and say sinks='append', or say it if they "
            "may come once more; or restore into another checkpoint with to=, whose sinks have other targets",
            path=folders.location,
            txid=txid,
            sinks=sorted(can_not),
        )
    return since


# ---- in place


def go_back(
    folders: Folders,
    found: LogState,
    provider: StateProvider,
    pin: Pin,
    opened: Callable[[Storage], TransactionLog] = TransactionLog,
    sinks: str | None = None,
) -> Restoration:
    """Let a checkpoint go on from a pin, by one record (see `restore`)."""
    check_idle(found, folders, "restore it")
    taken_back = _to_take_back(found, folders, pin, sinks)
    _open_all(folders, found, provider, pin)
    log = taken(folders, "restore it", partial(_check_same, found, folders), opened)
    # Rule 4.2: the log fences records alone; a task of the former driver could still prepare.
    provider.fence(log.state.lineage, log.state.generation, folders.storage)
    log.append(Restored(log.state.generation, pin, taken_back))
    txid, given_up = pin.state_txid, max(0, found.state_txid - pin.state_txid)
    published, next_txid = _published_since(found, txid), log.state.committed + 1
    done = Restoration(folders.location, txid, given_up, next_txid, published, taken_back)
    logger.info("%s", done)
    return done


# ---- a checkpoint of its own


def _exported(
    folders: Folders,
    found: LogState,
    provider: StateProvider,
    pin: Pin,
    target: Folders,
    progress: Progress | None = None,
) -> Restoration:
    storage = target.storage
    if target.storage.url.startswith(f"{folders.storage.url}/"):
        raise CheckpointError(
            f"{target.location} is in the checkpoint {folders.location} itself, whose files are statefx's to sweep: "
            "give a folder elsewhere",
            path=target.location,
        )
    if next(iter(storage.list()), None) is not None:
        raise CheckpointError(
            f"{target.location} is not empty: give a folder that is new. Nothing was changed. Only if an export was "
            "killed in it, so that it has no log: delete it, and export again",
            path=target.location,
        )
    _open_all(folders, found, provider, pin)
    state, lineage = at_pin(found, pin), uuid.uuid4().hex
    heads: dict[str, Version] = {}
    growth: dict[str, int] = {}
    sizes, done_bytes = {name: kept.stored_bytes(pin, name) for name in pin.heads}, 0
    for number, name in enumerate(sorted(pin.heads), 1):
        heads[name], growth[name] = _copied(folders, storage, provider, state, lineage, name)
        done_bytes += sizes[name]
        if progress is not None:
            progress(done_bytes, sum(sizes.values()))
        logger.info("state of %s is written to %s (%d of %d)", name, target.location, number, len(pin.heads))
    for ref in files_beside(state):
        storage.put(ref.name, folders.storage.read(ref.name))
    alone = replace(pin, heads=heads, growth=growth, snapshots={})
    records = (Lineage(lineage), Generation(1, target.location, pin.topology), Restored(1, alone))
    write_format(storage)
    # The log in one step: a start on a folder whose log ended earlier would begin with empty state.
    TransactionLog(storage).append(checkpoint(replace(fold(records), time_ms=pin.time_ms)))
    done = Restoration(target.location, pin.state_txid, 0, pin.txid + 1, {})
    logger.info("%s", done)
    return done


def _copied(
    folders: Folders, storage: Storage, provider: StateProvider, state: LogState, lineage: str, name: str
) -> tuple[Version, int]:
    """Write the state of one task to another checkpoint; return its version there, and the size."""
    task, version = TaskId.parse(name), state.heads[name]
    namespace = replace(state.namespace(task), lineage=lineage)
    with (
        tempfile.TemporaryDirectory(prefix="statefx-export-", ignore_cleanup_errors=True) as cache,
        closing(open_task(provider, folders, state, task.component, task.task)[0]) as origin,
    ):
        there = sum_of(origin.scan(None, None))
        with closing(provider.newState(namespace, StateContext(1, EMPTY, storage, cache))) as store:
            written = prepare_as(store, version.txid, uuid.uuid4().hex, Entries(origin, there.keys))
        copy = Version(version.txid, written.token)
        context = StateContext(1, copy, storage, cache, read_only=True)
        with closing(provider.newState(namespace, context)) as store:
            found = sum_of(store.scan(None, None))
    if found != there:
        raise StateCorruptedError(
            f"what was written of {name} to {storage.url} is not what was read: {found} for {there}. Delete that "
            "folder, and look for the fault in its disk",
            component=task.component,
            task=task.task,
            found=found,
            expected=there,
        )
    return copy, written.size_bytes
