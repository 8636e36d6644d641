"""Damage of a checkpoint: how it is found, and how to go on from other files of the state, or from an earlier one."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from statefx.admin.reading import (
    Progress,
    at_pin,
    check_idle,
    check_started,
    check_yes,
    codec_of,
    counted,
    found_checkpoint,
    kept_provider,
    provider_of,
    task_entries,
)
from statefx.admin.savepoints import changed_since, check_sinks, files_beside, go_back, known_pins, said_of_sinks
from statefx.admin.savepoints import planned as restoration_of
from statefx.errors import CheckpointError, StateCorruptedError, StateError, StatefxError
from statefx.log import pins as kept
from statefx.log.beside import named_files
from statefx.log.location import Folders
from statefx.log.takeover import read_checkpoint
from statefx.operators.waiting import group_of
from statefx.protocol.identity import EMPTY, FileRef, Namespace, TaskId, Version
from statefx.protocol.log_rules import pin_of
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Pin
from statefx.state.changelog.chain import Changelog, Damaged, Kept, find_damage
from statefx.state.changelog.files import snapshot_name
from statefx.state.changelog.store import ChangelogProvider
from statefx.state.contract.spaces import Space, name_of
from statefx.state.contract.store import SnapshotRef, StateProvider
from statefx.state.encoding.codec import Codec, StandardCodec
from statefx.state.view.changes import codec_for

logger = logging.getLogger("statefx")


_TRIES = 5
"""Of what is read while files of it are deleted; each reads only those that no one before has read."""


@dataclass(frozen=True)
class Damage:
    """A file, or a part of it, that is not what it must be.

    Attributes
    ----------
    path : str
        The file; of state that a server keeps, whose state it is.
    problem : str
        What is wrong with it.
    component : str
        The bolt whose state it has; empty: none's.
    task : int or None
    keys : tuple of two (str or None)
        Between which keys the damage is, as Python writes them; None: from the first, or up to the last one.
    transactions : tuple of int or None
        The first and the last transaction whose changes are in the file; the first is 0 where nobody knows.
    """

    path: str
    problem: str
    component: str = ""
    task: int | None = None
    keys: tuple[str | None, str | None] = (None, None)
    transactions: tuple[int, int] | None = None

    def __str__(self) -> str:
        said = [f"{self.path}: {self.problem}"]
        if self.component:
            bounds = [f"{word} {key}" for word, key in zip(("after", "before"), self.keys, strict=True) if key]
            said.append(" ".join([f"it has keys of {self.component}/{self.task}", " and ".join(bounds)]).rstrip())
        if self.transactions is not None:
            first, last = self.transactions
            said.append(_transactions(first, last))
        return "; ".join(said)


def _transactions(first: int, last: int) -> str:
    if first == last:
        return f"transaction {last}"
    return f"transactions {first} to {last}" if first else f"transaction {last}, and perhaps some before it"


@dataclass(frozen=True)
class Verified:
    """What `Checkpoint.verify` has found.

    Attributes
    ----------
    txid : int
        The last transaction whose commit is decided; 0 if the log can't be read.
    files, bytes : int
        What was read, without the log.
    seconds : float
    damaged : tuple of Damage
        Empty: all that is needed is whole.
    """

    txid: int
    files: int
    bytes: int
    seconds: float
    damaged: tuple[Damage, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damaged

    def __str__(self) -> str:
        what = f"{counted(self.files, 'file')} with {self.bytes} bytes, up to transaction {self.txid}"
        if self.damaged and not self.txid and not self.files:
            what = "the transaction log can't be read, and without it nothing else was"
        return "\n".join([f"{what}: {len(self.damaged) or 'nothing'} damaged", *map(str, self.damaged)])


def verify(folders: Folders, config: Mapping[str, Any] | None, progress: Progress | None = None) -> Verified:
    """Read all that a kept version needs, and compare it with its checksums; a damaged log is damage too."""
    began = time.monotonic()
    try:
        state = read_checkpoint(folders)
    except StateCorruptedError as error:
        path = str(getattr(error, "path", folders.log))
        name = os.path.relpath(path, folders.location)
        problem = error.message.removeprefix(f"transaction log record {path}: ")
        return Verified(0, 0, 0, time.monotonic() - began, (Damage(name, problem),))
    check_started(state, folders)
    reading = _Reading(folders, config, progress)
    reading.files_beside_the_log(state)
    for component in sorted(state.topology.stateful):
        reading.component(state, component)
    reading.left_in_savepoints(state)
    reading.end()
    return Verified(state.shown_txid, reading.files, reading.done, time.monotonic() - began, tuple(reading.damaged))


class _Reading:
    """One look at a checkpoint: what has been read, and what was found."""

    def __init__(self, folders: Folders, config: Mapping[str, Any] | None, progress: Progress | None) -> None:
        self._folders = folders
        self._storage = folders.storage
        self._config = config
        self._progress = progress
        self._total = sum(each.size_bytes for each in self._storage.list("state/")) if progress else 0
        self.damaged: list[Damage] = []
        self.files = self.done = 0

    def _read(self, size_bytes: int) -> None:
        self.files += 1
        self.done += size_bytes
        if self._progress is not None:
            self._progress(self.done, max(self.done, self._total))

    def end(self) -> None:
        """Say that all has been read: what no version needs is among the total, and was not."""
        if self._progress is not None:
            self._progress(self.done, self.done)

    def files_beside_the_log(self, state: LogState) -> None:
        """Check the files that records name."""
        seen = set[FileRef]()
        for _ in range(_TRIES):
            for ref in [*_named(state)]:
                if ref in seen:
                    continue
                seen.add(ref)
                try:
                    data = self._storage.read(ref.name)
                except OSError as error:
                    if isinstance(error, FileNotFoundError):  # a fold deletes what it has put together in another one
                        state = read_checkpoint(self._folders)
                        if ref not in _named(state):
                            continue
                    self.damaged.append(Damage(ref.name, f"it can't be read: {error.strerror}"))
                    continue
                self._read(len(data))
                if not ref.fits(data):
                    self.damaged.append(Damage(ref.name, "its checksum does not fit the record that names it"))

    def component(self, state: LogState, component: str) -> None:
        """Check what all tasks of a bolt keep."""
        found = state.topology.stateful[component]
        provider = kept_provider(state, found, component, self._config)
        codec = codec_of(component, found)
        for task in range(found.parallelism):
            id = TaskId(component, task)
            if isinstance(provider, ChangelogProvider):
                self.damaged += [_damage(each, id, codec) for each in self._of_files(state, partial(_needed, id))]
            else:
                self._of_server(state, provider, id)

    def left_in_savepoints(self, state: LogState) -> None:
        """Check what savepoints alone still have: of bolts that are gone, renamed or of another number of tasks."""
        now = {state.namespace(TaskId.parse(name)).id for name in state.heads_to_come()}
        for id in state.pinned_versions():
            if id not in now:
                found = self._of_files(state, partial(_pinned, id))
                self.damaged += [_damage(each, id, StandardCodec()) for each in found]

    def _of_files(self, state: LogState, needed: Callable[[LogState], _Needed]) -> list[Damaged]:
        """Return the damage of the files that are needed.

        A topology that runs deletes files once newer ones have taken their place. So one that is missing is damage if
        the log, which is read again then, still names it.
        """
        damaged, gone, missing, whole = list[Damaged](), set[str](), set[str](), set[str]()
        for _ in range(_TRIES):
            namespace, versions, snapshots = needed(state)
            damaged = find_damage(Changelog(namespace, self._storage), versions, snapshots, self._read, whole)
            before, gone = state, {each.name for each in damaged if each.missing} - missing
            if not gone or (state := read_checkpoint(self._folders)) == before:
                return damaged
            missing |= gone
        return [each for each in damaged if each.name not in gone]

    def _of_server(self, state: LogState, provider: StateProvider, id: TaskId) -> None:
        try:
            for keys, values in task_entries(provider, self._folders, state, *id):
                self._read(sum(map(len, keys)) + sum(map(len, values)))
        except StateError as error:
            self.damaged.append(Damage(str(id), error.message, *id))


_Needed = tuple[Namespace, list[Kept], set[SnapshotRef]]
"""Whose files they are, the versions that have to be readable, and all snapshots."""


def _needed(id: TaskId, state: LogState) -> _Needed:
    """Return what is needed of a task, now and by savepoints."""
    kept, head = state.snapshots.get(str(id), ()), state.heads_to_come().get(str(id), EMPTY)
    namespace, pins, snapshots = _pinned(state.namespace(id).id, state)
    return namespace, [(head, kept[0] if kept else None), *pins], snapshots.union(kept)


def _pinned(id: TaskId, state: LogState) -> _Needed:
    """Return what savepoints need of a namespace."""
    pins = state.pinned_versions().get(id, [])
    return Namespace(state.lineage, *id), pins, {snapshot for _, snapshot in pins if snapshot is not None}


def _named(state: LogState) -> Iterator[FileRef]:
    """Yield the files that the log names beside state."""
    yield from state.notes.aside
    for pin in state.pinned.values():
        yield from pin.notes.aside
    yield from named_files(state)


def _damage(found: Damaged, id: TaskId, codec: Codec) -> Damage:
    keys = tuple(None if key is None else _shown(key, codec) for key in (found.after, found.before))
    return Damage(found.name, found.problem, *id, (keys[0], keys[1]), (found.first, found.last))


def _shown(key: bytes, codec: Codec) -> str:
    """Return a key as Python writes it, and whose it is if it is not the bolt's own."""
    try:
        if key[:1] == Space.USER.value:
            return repr(codec_for(codec, Space.USER.value)[0].decode_key(key))
        if key[:1] == Space.NAMED.value:
            kind, name = name_of(key)
            head = len(key) - len(key.split(b"\0", 2)[2])
            return f"{kind.value} {name}: {codec_for(codec, key[:head])[0].decode_key(key)!r}"
        if key[:1] == Space.QUARANTINE.value:
            return f"quarantine: {key[1:].decode()}"
        if key[:1] == Space.WAITING.value:
            return f"waiting call: {group_of(key).decode()}"
    except (StatefxError, ValueError):
        pass
    return repr(key)


# ---- repair


ASIDE = "damaged/"
"""Below this damaged files are kept as they were found: the originals are swept when no version needs them."""


@dataclass(frozen=True)
class Repair:
    """What `Checkpoint.repair` has done, or would do.

    Attributes
    ----------
    location : str
    damaged : tuple of Damage
        What `Checkpoint.verify` finds; empty: nothing is to be done.
    txid : int
        The transaction whose state the checkpoint goes on from.
    given_up : int
        Transactions since then, whose input is read again; 0: no state is lost.
    rebuilt : tuple of str
        Tasks (``count/0``) whose state is read from other files than before: an older snapshot, or changelogs alone.
    dropped : tuple of str
        Damaged files that are not needed to go on, and that the log then names no more: snapshots, plans of spouts for
        transactions to come, who make others, and notes of sources for them, which read again.
    undone : tuple of str
        Bolts and spouts that tools have rescaled, written, renamed or dropped since the state that is gone on from:
        they are again as they were then, and it is to be done once more.
    savepoints : tuple of str
        Names of savepoints that can't be restored any more.
    done : bool
        False: nothing was changed, since `yes` was not given, or only files are damaged that the state does not need.
    published : Mapping[str, int]
        By sink, the rows of transactions that are given up: as of `Restoration`.
    taken_back : Mapping[str, str]
        Sinks, with their targets, that take these rows back at the next start: as of `Restoration`.
    refused : str
        Why it would be refused as it was called, and what to say, such as ``sinks="append"``; empty: it would not be.
    """

    location: str
    damaged: tuple[Damage, ...]
    txid: int
    given_up: int
    rebuilt: tuple[str, ...]
    dropped: tuple[str, ...]
    undone: tuple[str, ...]
    savepoints: tuple[str, ...]
    done: bool
    published: Mapping[str, int] = field(default_factory=dict)
    taken_back: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""

    def __str__(self) -> str:
        if not self.damaged:
            return f"{self.location}: nothing is damaged"
        lines = [str(each) for each in self.damaged]
        if self.given_up:
            lines.append(
                f"the newest state that is whole is that of transaction {self.txid}: "
                f"{counted(self.given_up, 'transaction')} after it {'is' if self.given_up == 1 else 'are'} given up, "
                "and what was read then comes again"
            )
        elif not self.undone:
            lines.append(f"the state of transaction {self.txid} is whole: nothing is given up")
        if self.undone:
            lines.append(
                f"since transaction {self.txid} these were rescaled, written, renamed or dropped, which is undone: "
                f"{', '.join(self.undone)}"
            )
        if self.rebuilt:
            lines.append(f"read from other files: {', '.join(self.rebuilt)}")
        if self.dropped:
            lines.append(f"not needed (sources read again, spouts make other plans): {', '.join(self.dropped)}")
        if self.savepoints:
            lost = ", ".join(self.savepoints)
            lines.append(
                f"savepoints that can't be restored any more: {lost}. Delete them: until then files of their tasks stay"
            )
        if self.refused:
            lines.append(f"nothing was changed: {self.refused}")
            return "\n".join(lines)
        if said := said_of_sinks(self.published, self.taken_back):
            lines.append("; ".join(said))
        why = "stop the topology, and say --yes, or yes=True" if self._mends else "the state is whole without them"
        lines.append("repaired" if self.done else f"nothing was changed: {why}")
        return "\n".join(lines)

    @property
    def _mends(self) -> bool:
        """Whether there is something to do: else savepoints alone are damaged, or files that nobody needs."""
        return bool(self.rebuilt or self.dropped or self.given_up or self.undone)


def repair(
    folders: Folders,
    config: Mapping[str, Any] | None,
    *,
    yes: bool,
    sinks: str | None,
    progress: Progress | None,
) -> Repair:
    """Find the newest state that is whole, and with `yes` go on from it."""
    check_yes(yes)
    check_sinks(sinks)
    found = found_checkpoint(folders)
    provider = provider_of(found, config)
    kept.check_keeps_versions(provider)
    verified = verify(folders, config, progress)
    if verified.ok:
        return Repair(folders.location, (), found.state_txid, 0, (), (), (), (), done=False)
    check_idle(found, folders, "repair it")
    pin = _newest_whole(folders, found)
    planned = _planned(folders, found, verified.damaged, pin)
    if not planned._mends:
        return planned
    planned = _with_sinks(planned, folders, found, pin, sinks, yes=yes)
    if yes:
        _keep_aside(folders, verified.damaged)
        # An attempt that was rolled back is read by its plan, or by the notes that its sources made for it.
        lost = set(planned.dropped).difference(_snapshot_files(found))
        keeps_plans = not (planned.given_up or planned.undone or lost)
        go_back(folders, found, provider, pin, sinks=sinks, keeps_plans=keeps_plans)
    return replace(planned, done=yes)


def _with_sinks(done: Repair, folders: Folders, found: LogState, pin: Pin, sinks: str | None, *, yes: bool) -> Repair:
    """Add what becomes of published rows; what is refused for them is said, or raised with `yes`."""
    try:
        restoration = restoration_of(folders, found, pin, sinks)
    except CheckpointError as error:
        if yes:
            raise
        return replace(done, refused=error.message)
    return replace(done, published=restoration.published, taken_back=restoration.taken_back)


def _planned(folders: Folders, found: LogState, damaged: tuple[Damage, ...], pin: Pin) -> Repair:
    now = pin_of(found)
    given_up = found.state_txid - pin.state_txid
    same = (pin.state_txid, pin.heads) == (now.state_txid, now.heads)
    changed = (name for name in sorted(pin.heads) if pin.snapshots.get(name) != now.snapshots.get(name))
    rebuilt = tuple(changed) if same else ()
    undone = changed_since(folders, pin)
    beside = {ref.name for ref in files_beside(found)}.difference(ref.name for ref in files_beside(pin))
    others = (*_plans(found), *_snapshot_files(found), *(beside if same else ()))
    dropped = tuple(sorted({each.path for each in damaged}.intersection(others)))
    lost = tuple(sorted(name for name, one in found.pinned.items() if not _restorable(folders, found, one)))
    return Repair(folders.location, damaged, pin.state_txid, given_up, rebuilt, dropped, undone, lost, done=False)


def _plans(found: LogState) -> Iterator[str]:
    """Yield the files of what spouts have planned for transactions to come."""
    planned = (layer.file for by_spout in found.planned_metadata.values() for layer in by_spout.values())
    yield from (file.name for file in planned if file is not None)


def _snapshot_files(found: LogState) -> Iterator[str]:
    """Yield the snapshots that the log names: after RESTORED those of its pin alone, which are whole."""
    for name, snapshots in found.snapshots.items():
        prefix = found.namespace(TaskId.parse(name)).prefix
        yield from (snapshot_name(prefix, each.version, each.checksum) for each in snapshots)


def _newest_whole(folders: Folders, found: LogState) -> Pin:
    """Return where to go on from; its snapshots are those that are whole."""
    for pin in _candidates(folders, found):
        whole = _whole(folders, found, pin, partial(_snapshots, found, pin))
        if whole is not None:
            return whole
    # Not by itself: a savepoint may be of a history that the user has given up.
    left = sorted(name for name, pin in found.pinned.items() if _restorable(folders, found, pin))
    instead = f"go back to a savepoint that is whole, {left}, with Checkpoint.restore; or " if left else ""
    raise StateCorruptedError(
        f"no state of the checkpoint in {folders.location} is whole: neither that of the last transaction, nor of one "
        f"before it that the log knows. Nothing was changed. Restore the files that Checkpoint.verify names from a "
        f"copy of the checkpoint; or {instead}start on a new checkpointLocation, with empty state, and read the input "
        "again",
        path=folders.location,
    )


def _candidates(folders: Folders, found: LogState) -> Iterator[Pin]:
    """Yield what the checkpoint could go on from: the state of now, and what it came from, the newest first."""
    yield pin_of(found)
    yield from reversed(known_pins(folders, ancestors=True).values())


def _whole(
    folders: Folders, found: LogState, pin: Pin, snapshots_of: Callable[[str], list[SnapshotRef | None]]
) -> Pin | None:
    """Return the pin with those of `snapshots_of` by which each task can be read; None: there is a task without."""
    state = at_pin(found, pin)
    if not all(_fits(folders, ref) for ref in files_beside(state)):
        return None
    snapshots: dict[str, SnapshotRef] = {}
    for name in sorted(pin.heads):
        changelog = Changelog(state.namespace(TaskId.parse(name)), folders.storage)
        for snapshot in snapshots_of(name):
            if _reads(changelog, pin.heads[name], snapshot):
                if snapshot is not None:
                    snapshots[name] = snapshot
                break
        else:
            return None
    return replace(pin, snapshots=snapshots)


def _restorable(folders: Folders, found: LogState, pin: Pin) -> bool:
    """Tell whether `restore` can go back to a pin: by the snapshots that it names."""
    return _whole(folders, found, pin, lambda name: [pin.snapshots.get(name)]) is not None


def _snapshots(found: LogState, pin: Pin, name: str) -> list[SnapshotRef | None]:
    """Return what a task's state may be read from, the best first; None: changelogs alone."""
    named = pin.snapshots.get(name)
    same = found.kept_as == pin.kept_as and found.state_txid >= pin.state_txid
    others = [each for each in found.snapshots.get(name, ()) if same and each.version.txid <= pin.heads[name].txid]
    others = sorted((each for each in others if each != named), key=lambda each: each.version, reverse=True)
    return [named, *others, *([None] if named else [])]


def _reads(changelog: Changelog, head: Version, snapshot: SnapshotRef | None) -> bool:
    """Tell whether all files of a version can be read that way, to their last byte."""
    try:
        route = changelog.route(head, snapshot, None)
        for _ in route.chunks():
            pass
    except StateCorruptedError:
        return False
    except StateError as error:  # a server that is busy for a moment must not cost transactions
        raise _not_now(error.message, changelog.where) from error
    return snapshot is None or route.snapshot is not None  # else it is one of another history


def _fits(folders: Folders, ref: Any) -> bool:
    try:
        return bool(ref.fits(folders.storage.read(ref.name)))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _not_now(f"{ref.name}: {error}", folders.location) from error


def _not_now(what: str, path: str) -> CheckpointError:
    return CheckpointError(
        f"whether state is whole can't be determined now ({what}). Nothing was changed: try again later; or delete "
        "that file, if its disk is broken for good, and repair again",
        path=path,
    )


def _keep_aside(folders: Folders, damaged: tuple[Damage, ...]) -> None:
    """Copy what is damaged; what is gone, or can't be read at all, is not."""
    for name in {each.path for each in damaged}:
        data = None
        with suppress(OSError):
            data = folders.storage.read(name)
        if data is None:
            continue
        try:
            folders.storage.put(f"{ASIDE}{name}", data)
        except OSError as error:
            raise CheckpointError(
                f"{name} can't be copied to {ASIDE}{name}, where it would be kept ({error}). The state is as it was: "
                f"make room in {folders.location}, and repair again",
                path=folders.location,
            ) from error
        logger.info("%s is kept as %s%s", name, ASIDE, name)
