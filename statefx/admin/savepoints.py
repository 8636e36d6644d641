"""Savepoints of a checkpoint that stands still: taken, listed, deleted, gone back to, and made a checkpoint of its own.

Going back, in place::

    1 what can be refused is, and every version is opened      2 the next generation: who ran before is fenced
    3 RESTORED: state and sources are where they were, and the next transaction has the next number

A failure before 3 leaves everything as it was, and so does one before the log is written there (`export`)::

    1 the state of every task is written to the new folder, read back and compared
    2 what the log names beside itself is copied           3 the log, which is one CHECKPOINT
"""

from __future__ import annotations

import errno
import logging
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from statefx.admin.migration import Entries, Summing, sum_of
from statefx.admin.progress import Metered, ProgressMeter
from statefx.admin.reading import (
    Progress,
    blocks_at,
    check_idle,
    check_started,
    kept_provider,
    open_task,
)
from statefx.admin.restoration import Restoration, check_sinks, planned
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
from statefx.errors import (
    CheckpointError,
    ConfigError,
    FencedError,
    StateCorruptedError,
    StateError,
    StatefxError,
)
from statefx.protocol.identity import EMPTY, FileRef, TaskId, Version
from statefx.protocol.log_rules import apply, checkpoint, fold, pin_of
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Generation, Lineage, Migrated, Pin, Record, Restored
from statefx.state.contract.store import StateContext, StateProvider, open_store, prepare_as
from statefx.state.registry import load_provider
from statefx.storage import Storage

logger = logging.getLogger("statefx")

_FULL = (errno.ENOSPC, errno.EDQUOT)

_PASSES = 3
"""Of a copy: state is read to be counted, read to be written, and read back."""


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
        With `to`, as of `rescale`.

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
    if to is not None and sinks is not None:
        raise ConfigError("with to= nothing is published twice: the new checkpoint owns no target. Leave sinks out")
    folders, found, provider, pin = _asked(checkpointLocation, savepoint, txid, config)
    if to is not None:
        return _exported(folders, found, provider, pin, Folders(checkpoint_location(to)), progress)
    return go_back(folders, found, provider, pin, sinks=sinks)


def restoration(
    checkpointLocation: str | os.PathLike[str],
    savepoint: str | None = None,
    *,
    txid: int | None = None,
    sinks: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Restoration:
    """Return what `restore` would do in place; refuses what that would refuse, and changes nothing."""
    check_sinks(sinks)
    folders, found, _, pin = _asked(checkpointLocation, savepoint, txid, config)
    return planned(folders, found, pin, sinks)


def _asked(
    location: str | os.PathLike[str], savepoint: str | None, txid: int | None, config: Mapping[str, Any] | None
) -> tuple[Folders, LogState, StateProvider, Pin]:
    folders, found = found_checkpoint(location)
    provider = provider_of(found, config)
    kept.check_keeps_versions(provider)
    return folders, found, provider, _pin(folders, found, savepoint, txid)


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
    savepoint first: the janitor may delete what is read. `progress` is told as there.
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


def fence(provider: StateProvider, folders: Folders, state: LogState) -> None:
    """Have no task of a former driver write any more, once its checkpoint was `taken`.

    Rule 4.2: the log fences records alone; a task of the former driver could still prepare.
    """
    provider.fence(state.lineage, state.generation, folders.storage)


# ---- what is refused


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
    done = planned(folders, found, pin, sinks)
    _open_all(folders, found, provider, pin)
    log = taken(folders, "restore it", partial(_check_same, found, folders), opened)
    fence(provider, folders, log.state)
    log.append(Restored(log.state.generation, pin, done.taken_back))
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
    if storage.url == folders.storage.url:
        raise CheckpointError(
            f"{target.location} is the checkpoint itself: give another folder, that is new", path=target.location
        )
    if target.storage.url.startswith(f"{folders.storage.url}/"):
        raise CheckpointError(
            f"{target.location} is in the checkpoint {folders.location} itself, whose files are statefx's to sweep: "
            "give a folder elsewhere",
            path=target.location,
        )
    with _naming_the_folder(folders, target):
        empty = next(iter(storage.list()), None) is None
    if not empty:
        raise CheckpointError(
            f"{target.location} is not empty: give a folder that is new. Nothing was changed. Only if an export was "
            "killed in it, so that it has no log: delete it, and export again",
            path=target.location,
        )
    _open_all(folders, found, provider, pin)
    state, lineage = at_pin(found, pin), uuid.uuid4().hex
    heads: dict[str, Version] = {}
    growth: dict[str, int] = {}
    meter = ProgressMeter.of(progress, pin, _PASSES)
    with _naming_the_folder(folders, target):
        for number, name in enumerate(sorted(pin.heads), 1):
            heads[name], growth[name] = _copied(folders, storage, provider, state, lineage, name, meter)
            logger.info("state of %s is written to %s (%d of %d)", name, target.location, number, len(pin.heads))
        for ref in files_beside(state):
            storage.put(ref.name, folders.storage.read(ref.name))
        alone = replace(pin, heads=heads, growth=growth, snapshots={})
        records = (Lineage(lineage), Generation(1, target.location, pin.topology), Restored(1, alone))
        write_format(storage)
        _begin_log(target, checkpoint(replace(fold(records), time_ms=pin.time_ms)))
    meter.end()
    done = Restoration(target.location, pin.state_txid, 0, pin.txid + 1, {})
    logger.info("%s", done)
    return done


def _begin_log(target: Folders, record: Record) -> None:
    """Write the log in one step: a start on a folder whose log ended earlier would begin with empty state."""
    log = TransactionLog(target.storage)
    with suppress(FencedError):
        if log.number == 0:
            log.append(record)
            return
    raise CheckpointError(
        f"another export has filled {target.location} meanwhile, and its copy stands there, whole: export to a folder "
        "of its own. The original is as it was",
        path=target.location,
    )


@contextmanager
def _naming_the_folder(folders: Folders, target: Folders) -> Iterator[None]:
    """Say of a folder that can't be written what is to be done, and of one that was begun on a disk that is full."""
    try:
        yield
    except (OSError, StatefxError) as error:
        cause: BaseException | None = error
        while cause is not None and getattr(cause, "errno", None) not in _FULL:
            cause = cause.__cause__
        if cause is None:
            if not isinstance(error, OSError):
                raise
            raise CheckpointError(
                f"{target.location}: {error}. Give a folder that can be made, and that this user may write; the "
                f"checkpoint in {folders.location} is as it was",
                path=target.location,
            ) from error
        raise StateError(
            f"{error}. The checkpoint in {folders.location} is as it was: make room, delete {target.location}, and "
            "export again",
            path=target.location,
        ) from error


def _copied(
    folders: Folders,
    storage: Storage,
    provider: StateProvider,
    state: LogState,
    lineage: str,
    name: str,
    meter: ProgressMeter,
) -> tuple[Version, int]:
    """Write the state of one task to another checkpoint; return its version there, and the size."""
    task, version = TaskId.parse(name), state.heads[name]
    namespace = replace(state.namespace(task), lineage=lineage)
    with (
        tempfile.TemporaryDirectory(prefix="statefx-export-", ignore_cleanup_errors=True) as cache,
        closing(open_task(provider, folders, state, task.component, task.task)[0]) as origin,
    ):
        source = Metered(origin, meter)
        there = sum_of(source.scan(None, None))
        with closing(open_store(provider, namespace, StateContext(1, EMPTY, storage, cache))) as store:
            written = prepare_as(store, version.txid, uuid.uuid4().hex, Entries(source, there.keys))
        copy = Version(version.txid, written.token)
        summing = Summing()
        context = StateContext(1, copy, storage, cache, read_only=True)
        for keys, values in meter.blocks(blocks_at(provider, namespace, context)):
            summing.add(keys, values)
        found = summing.sum
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
