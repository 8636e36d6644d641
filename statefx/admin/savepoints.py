"""Changes of a checkpoint that stands still which are one record of its log: savepoints, going back, other names.

Going back, in place::

    1 what can be refused is, and every version is opened      2 the next generation: former drivers are fenced
    3 every version is opened again: a driver may have deleted what the log named no more when it was fenced
    4 RESTORED: state and sources are where they were, and the next transaction has the next number

A failure before 4 leaves everything as it was. What is gone back to can be written to another folder instead, a
checkpoint of its own: a rewriting (`statefx.admin.rewrite`) that ends with a log there, which is one CHECKPOINT.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any

from statefx.admin.reading import Progress, at_pin, counted, found_checkpoint, open_task, provider_of
from statefx.admin.rewrite import FULL, Rewrite, Side, WrittenTasks, check_changeable, copies, fence, taken
from statefx.errors import (
    CheckpointError,
    ConfigError,
    FencedError,
    StateCorruptedError,
    StateError,
    StatefxError,
    TopologyError,
)
from statefx.log import pins as kept
from statefx.log.entries import read_entries
from statefx.log.location import Folders, checkpoint_location, write_format
from statefx.log.log import TransactionLog
from statefx.log.pins import Savepoint
from statefx.log.takeover import Renaming, read_checkpoint
from statefx.plan.levels import name_shown
from statefx.protocol.identity import FileRef, TaskId, Version
from statefx.protocol.log_rules import apply, checkpoint, pin_of
from statefx.protocol.log_state import LogState, TakenBack
from statefx.protocol.records import Generation, Lineage, Migrated, Pin, Record, Rescaled, Restored
from statefx.state.contract.store import StateProvider
from statefx.storage import Storage
from statefx.topology.checks import check_id

logger = logging.getLogger("statefx")

APPEND = "append"
REWIND = "rewind"
SINKS = (APPEND, REWIND)


def savepoint(folders: Folders, config: Mapping[str, Any] | None, name: str) -> Savepoint:
    """Keep the last committed transaction under a name; a driver that runs is fenced."""
    provider = _to_take(folders, config, name)[1]
    return kept.take(taken(folders, "take the savepoint"), provider, name)


def savepoint_plan(folders: Folders, config: Mapping[str, Any] | None, name: str) -> str:
    """Return what `savepoint` would do; refuses what that would refuse, and changes nothing."""
    found, _ = _to_take(folders, config, name)
    return f"keep transaction {found.state_txid} of {folders.location} as {name!r}"


def _to_take(folders: Folders, config: Mapping[str, Any] | None, name: str) -> tuple[LogState, StateProvider]:
    kept.check_name(name)
    found = found_checkpoint(folders)
    check_changeable(found, folders, "take the savepoint")
    provider = provider_of(found, config)
    kept.check_new(found, provider, name)
    return found, provider


def savepoints(folders: Folders) -> tuple[Savepoint, ...]:
    """Return what is kept under names, oldest transaction first."""
    shown = [kept.savepoint(name, pin) for name, pin in found_checkpoint(folders).pinned.items()]
    return tuple(sorted(shown, key=lambda each: (each.txid, each.time, each.name)))


def delete_savepoint(folders: Folders, name: str) -> None:
    """Delete a savepoint; a driver that runs is fenced."""
    deletion_plan(folders, name)
    kept.delete(taken(folders, "delete the savepoint"), name)


def deletion_plan(folders: Folders, name: str) -> str:
    """Return what `delete_savepoint` would do; refuses what that would refuse, and changes nothing."""
    found = found_checkpoint(folders)
    pin = kept.pinned(found, name, folders.location)
    check_changeable(found, folders, "delete the savepoint")
    return f"delete the savepoint {name!r} of {folders.location}, of transaction {pin.state_txid}"


# ---- going back


@dataclass(frozen=True)
class Restoration:
    """What `Checkpoint.restore` has done.

    Attributes
    ----------
    location : str
        The folder that goes on.
    txid : int
        The transaction whose state and sources it goes on from.
    given_up : int
        How many transactions after it were given up; what was read then comes again.
    next_txid : int
        The next transaction. Numbers are never used twice.
    published : Mapping[str, int]
        By sink, the rows of those transactions, as far as the log still knows and the sink tells. They stay where they
        are, and the rows that come again are published behind them; but not those of `taken_back`.
    taken_back : Mapping[str, str]
        Sinks, with their targets, that take back what they have published after `txid`: when the topology starts the
        next time, before its first transaction.
    undone : tuple of str
        Bolts and spouts that tools have rescaled, written, renamed or dropped since the state that is gone on from, as
        far as the log still knows: they are as they were then.
    """

    location: str
    txid: int
    given_up: int
    next_txid: int
    published: Mapping[str, int]
    taken_back: Mapping[str, str] = field(default_factory=dict)
    undone: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = f"{self.location} goes on from transaction {self.txid}, with transaction {self.next_txid}"
        if self.given_up:
            verb = "was" if self.given_up == 1 else "were"
            past = counted(self.given_up, "transaction")
            said += f"; {past} after it {verb} given up, and what was read then comes again"
        return said + self._of_others()

    @property
    def plan(self) -> str:
        """The same as a plan, before it is done."""
        said = f"let {self.location} go on from transaction {self.txid}"
        if self.given_up:
            which = _transactions(self.txid + 1, self.txid + self.given_up)
            said += f", and give up {which}: what was read then comes again"
        return said + self._of_others()

    def _of_others(self) -> str:
        said = said_of_sinks(self.published, self.taken_back)
        if self.undone:
            said.append(f"as before they were rescaled, written, renamed or dropped: {', '.join(self.undone)}")
        return "".join(f"; {each}" for each in said)


def said_of_sinks(published: Mapping[str, int], taken_back: Mapping[str, str]) -> list[str]:
    """Say what becomes of rows that were published in transactions which are given up."""
    said = [
        f"the next start takes back what sink {sink!r} has published since, from {target}"
        for sink, target in taken_back.items()
    ]
    stays = {sink: count for sink, count in published.items() if sink not in taken_back}
    rows = ", ".join(f"{counted(count, 'row')} of {sink!r}" for sink, count in stays.items())
    return [*said, f"published in these, and still there: {rows}"] if rows else said


def restore(
    folders: Folders,
    config: Mapping[str, Any] | None,
    savepoint: str | None,
    txid: int | None,
    *,
    to: str | os.PathLike[str] | None,
    sinks: str | None,
    progress: Progress | None,
) -> Restoration:
    """Go back to a pin in place; or write it to a folder, by default that of the last committed transaction."""
    check_sinks(sinks)
    if to is None:
        found, provider, pin = _asked(folders, config, savepoint, txid)
        return go_back(folders, found, provider, pin, sinks=sinks, keeps_plans=_reads_on(found, pin))
    if sinks is not None:
        raise ConfigError("with to= nothing is published twice: the new checkpoint owns no target. Leave sinks out")
    target = Folders(checkpoint_location(to))
    return copy_pin(folders, *_asked(folders, config, savepoint, txid, last=True), target, progress)


def restoration(
    folders: Folders, config: Mapping[str, Any] | None, savepoint: str | None, txid: int | None, sinks: str | None
) -> Restoration:
    """Return what `restore` would do in place; refuses what that would refuse, and changes nothing."""
    check_sinks(sinks)
    found, _, pin = _asked(folders, config, savepoint, txid)
    return planned(folders, found, pin, sinks)


def _asked(
    folders: Folders,
    config: Mapping[str, Any] | None,
    savepoint: str | None,
    txid: int | None,
    *,
    last: bool = False,
) -> tuple[LogState, StateProvider, Pin]:
    """Find what to go back to; `last` has it be the last committed transaction where neither is given."""
    found = found_checkpoint(folders)
    provider = provider_of(found, config)
    kept.check_keeps_versions(provider)
    if last and savepoint is None and txid is None:
        return found, provider, pin_of(found)
    return found, provider, _pin(folders, found, savepoint, txid)


def _reads_on(found: LogState, pin: Pin) -> bool:
    """Return whether the sources are where the pin has left them: nothing is read again but what was planned since."""
    where = attrgetter("state_txid", "committed_metadata", "topology.streams")
    return bool(where(pin) == where(found))


# ---- what is refused


def _check_same(found: LogState, folders: Folders, state: LogState) -> None:
    if (state.generation, state.committed, state.pinned) != (found.generation, found.committed, found.pinned):
        raise _gone_on(folders)


def _gone_on(folders: Folders) -> CheckpointError:
    return CheckpointError(
        f"a topology runs on the checkpoint in {folders.location}: it has gone on meanwhile. Stop it first",
        path=folders.location,
    )


def _pin(folders: Folders, found: LogState, savepoint: str | None, txid: int | None) -> Pin:
    if (savepoint is None) == (txid is None):
        raise ConfigError("say what to go back to: the name of a savepoint, or txid=, and not both")
    if savepoint is not None:
        return kept.pinned(found, savepoint, folders.location)
    if isinstance(txid, bool) or not isinstance(txid, int) or txid < 1:
        raise ConfigError(f"txid must be the number of a committed transaction, from 1, got {txid!r}")
    known = known_pins(folders, written=True)
    if txid in known:
        return known[txid]
    if txid > found.committed:
        raise CheckpointError(
            f"transaction {txid} is not committed in {folders.location}: the last one is {found.committed}",
            path=folders.location,
            txid=txid,
        )
    span = f"{min(known)} to {max(known)}" if known else "none"
    there = f"its savepoints are {sorted(found.pinned)}" if found.pinned else "it has no savepoints"
    raise CheckpointError(
        f"the log of the checkpoint in {folders.location} does not know any more what transaction {txid} had left; "
        f"those that it knows are {span}, and {there}",
        path=folders.location,
        txid=txid,
    )


def known_pins(folders: Folders, *, ancestors: bool = False, written: bool = False) -> dict[int, Pin]:
    """Return what each transaction had left, of those that the log still knows; files may be gone.

    With `ancestors` only of those that the state of now came from, and not of what was given up. With `written` what
    tools have made of it before the next one: as readers see it, and as it is once the log was folded.
    """
    state, known = LogState(), dict[int, Pin]()
    for entry in read_entries(folders.storage):
        before, state = state.decided, apply(state, entry.record, entry.time_ms)
        # Not where RESTORED has brought back what an earlier one had left.
        if state.decided and (state.decided != before or not known) and state.restored is None:
            known[state.decided] = pin_of(state)
        if written and isinstance(entry.record, Rescaled) and state.state_txid in known:
            known[state.state_txid] = pin_of(state)
        if ancestors and isinstance(entry.record, Restored):
            known = {txid: pin for txid, pin in known.items() if txid <= entry.record.pin.state_txid}
        if isinstance(entry.record, Migrated):  # the provider of now has no version of before
            known.clear()
    return known


def changed_since(folders: Folders, pin: Pin) -> tuple[str, ...]:
    """Return what tools have changed since a pin, as far as the log still knows: no number of a transaction tells."""

    def names_of(pin: Pin) -> tuple[object, ...]:
        return pin.state_txid, pin.heads, pin.kept_as, pin.committed_metadata.keys()

    state, changed = LogState(), set[str]()
    for entry in read_entries(folders.storage):
        state, record = apply(state, entry.record), entry.record
        if isinstance(record, Rescaled):
            changed |= record.tasks.keys()
        elif isinstance(record, Generation):
            changed |= {*record.renamed.values(), *record.dropped}
        if names_of(pin_of(state)) == names_of(pin):
            changed.clear()
    return tuple(sorted(changed))


def _open_all(folders: Folders, found: LogState, provider: StateProvider, pin: Pin) -> None:
    """Open the state of every task as it was, so that a file that is missing is told before anything is changed."""
    state = at_pin(found, pin)
    with _unless_swept(folders, pin, _NOTHING_CHANGED):
        for name in sorted(pin.heads):
            task = TaskId.parse(name)
            with closing(open_task(provider, folders, state, task.component, task.task)[0]) as store:
                next(iter(store.scan(None, None)), None)
        for ref in files_beside(state):
            _read_beside(folders, ref, pin, _NOTHING_CHANGED)


_NOTHING_CHANGED = "Nothing was changed"


@contextmanager
def _unless_swept(folders: Folders, pin: Pin, then: str) -> Iterator[None]:
    """Raise CheckpointError for a missing file of a version that is not kept any more: no backup has to be found."""
    try:
        yield
    except StateCorruptedError as error:
        if not error.data.get("missing") or _is_among(_kept(read_checkpoint(folders)), pin):
            raise
        raise CheckpointError(
            f"transaction {pin.state_txid} of the checkpoint in {folders.location} is not kept any more: files of it "
            "were deleted, as of all transactions but the last ones and those of savepoints. "
            f"{then}; take a savepoint of what has to stay",
            path=folders.location,
            txid=pin.state_txid,
        ) from error


def _kept(state: LogState) -> list[Pin]:
    """Return the pins whose files are never swept while the log is as it is."""
    return [pin_of(state), *state.pinned.values()]


def _is_among(pins: Iterable[Pin], pin: Pin) -> bool:
    """Return whether one of the pins names the same files; snapshots apart, of which `repair` takes others."""
    return any(
        (each.heads, each.notes, each.committed_metadata) == (pin.heads, pin.notes, pin.committed_metadata)
        for each in pins
    )


def _read_beside(folders: Folders, ref: FileRef, pin: Pin, then: str) -> bytes:
    path, data = f"{folders.storage.url}/{ref.name}", None
    try:
        data = folders.storage.read(ref.name)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise CheckpointError(f"{path} can't be read ({error}). {then}; try again", path=path) from error
    if data is None or not ref.fits(data):
        raise StateCorruptedError(
            f"{path}, which says how far sources were read in transaction {pin.state_txid}, is gone or damaged. "
            f"{then}; go back to a savepoint, whose files are kept",
            path=path,
            missing=data is None,
        )
    return data


def files_beside(state: LogState | Pin) -> list[FileRef]:
    """Return the files in which sources and spouts have put what was too large for the log."""
    said = (each for layers in state.committed_metadata.values() for each in layers)
    return [*state.notes.aside, *(each.file for each in said if each.file is not None)]


def _transactions(first: int, last: int) -> str:
    return f"transaction {first}" if first == last else f"transactions {first} to {last}"


def check_sinks(sinks: str | None) -> None:
    """Refuse what can't be said of rows that were published."""
    if sinks not in (None, *SINKS):
        raise ConfigError(f"sinks must be 'append', 'rewind' or None, got {sinks!r}")


def planned(folders: Folders, found: LogState, pin: Pin, sinks: str | None) -> Restoration:
    """Return what going back to a pin would do; refuse what does not go."""
    check_changeable(found, folders, "restore it")
    taken_back = _to_take_back(found, folders, pin, sinks)
    txid, given_up = pin.state_txid, max(0, found.state_txid - pin.state_txid)
    published = _published_since(found, txid)
    undone = changed_since(folders, pin)
    return Restoration(folders.location, txid, given_up, found.committed + 1, published, taken_back, undone)


def _published_since(found: LogState, txid: int) -> dict[str, int]:
    """Return by sink how many rows of the transactions after one are in its target."""
    rows: dict[str, int] = {}
    gone = [back for back in found.taken_back if _is_begun(found, back)]
    for past in found.past():
        is_gone = any(back.after < past.txid <= back.until for back in gone)
        if past.state == "COMMITTED" and past.txid > txid and not is_gone:
            for volume in past.sinks:
                if volume.rows:
                    rows[volume.sink] = rows.get(volume.sink, 0) + volume.rows
    return rows


def _already_published(found: LogState, pin: Pin) -> str:
    published = _published_since(found, pin.state_txid)
    shown = ", ".join(f"{rows} of sink {sink!r}" for sink, rows in published.items())
    past = _transactions(pin.state_txid + 1, found.committed)
    targets = ", ".join(f"{sink!r} ({target})" for sink, target in sorted(found.targets.items()))
    rows = f"rows ({shown})" if shown else "rows"
    return (
        f"{past} may have published {rows} to {targets}. What was read then "
        "would come again, and be published once more behind that. Say sinks='append' if that is right, or "
        "remove these rows there by hand and say it then; or sinks='rewind' where all these sinks can take them back; "
        "or call restore with to=, into another checkpoint, whose sinks "
        "have other targets"
    )


def _is_begun(found: LogState, back: TakenBack) -> bool:
    """Return whether rows may be taken back already; where no driver has started since, RESTORED gives that up."""
    return back is not found.taking_back or found.generation != back.generation


def _to_take_back(found: LogState, folders: Folders, pin: Pin, sinks: str | None) -> Mapping[str, str]:
    """Return which sinks have to take back what, where it was published; refuse what does not go (rule 3.14)."""
    if sinks == APPEND:
        return {}
    txid, due = pin.state_txid, found.taking_back
    for past in found.taken_back:
        if past.after < txid <= past.until and _is_begun(found, past):
            raise CheckpointError(
                f"transaction {txid} was given up once, and rows of transactions {past.after + 1} to {past.until} were "
                "taken back from the targets of sinks, or may have been: they would be lacking there, for what "
                f"they came from is not read again. Go back to a transaction up to {past.after}; or call restore "
                "with to=, into another checkpoint, whose sinks have other targets; or say sinks='append' if that is "
                "right",
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
            "may come again; or call restore with to=, into another checkpoint, whose sinks have other targets",
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
    *,
    keeps_plans: bool = False,
) -> Restoration:
    """Let a checkpoint go on from a pin, by one record (see `restore`); `keeps_plans` is as of `Restored`."""
    done = planned(folders, found, pin, sinks)
    _open_all(folders, found, provider, pin)
    log = taken(folders, "restore it", partial(_check_same, found, folders), opened)
    fence(provider, folders, log.state)
    # A first look takes minutes, and the driver that is fenced now may have folded its log and swept meanwhile. After a
    # fold files may go at any time: it deletes without another look at the fence.
    if not _is_among(
        (*_kept(log.state), *known_pins(folders).values(), *known_pins(folders, written=True).values()), pin
    ):
        raise _gone_on(folders)
    _open_all(folders, log.state, provider, pin)
    log.append(Restored(log.state.generation, pin, done.taken_back, keeps_plans))
    logger.info("%s", done)
    return done


# ---- a checkpoint of its own


def copy_pin(
    folders: Folders,
    found: LogState,
    provider: StateProvider,
    pin: Pin,
    to: Folders,
    progress: Progress | None = None,
    opened: Callable[[Storage], TransactionLog] = TransactionLog,
) -> Restoration:
    """Write what a pin has kept to another folder, which becomes a checkpoint."""
    state = at_pin(found, pin)
    PinCopy(folders, provider, copies(state), "copy it", opened, progress=progress, pin=pin, to=to).run(state)
    done = Restoration(to.location, pin.state_txid, 0, pin.txid + 1, {}, undone=changed_since(folders, pin))
    logger.info("%s", done)
    return done


@dataclass
class PinCopy(Rewrite):
    """A rewriting of what a pin has kept, whose target is a checkpoint of its own; fences no driver.

    Run with what the log would know if it had ended with the pin (`at_pin`).
    """

    pin: Pin = field(kw_only=True)
    to: Folders = field(kw_only=True)

    def check(self, found: LogState) -> None:
        folders, to = self.folders, self.to
        if to.storage.url == folders.storage.url:
            raise CheckpointError(
                f"{to.location} is the checkpoint itself: give another folder, that is new", path=to.location
            )
        if to.storage.url.startswith(f"{folders.storage.url}/"):
            raise CheckpointError(
                f"{to.location} is in the checkpoint {folders.location} itself, whose files are statefx's to sweep: "
                "give a folder elsewhere",
                path=to.location,
            )
        with self.writing(found):
            try:
                next(iter(to.storage.parts()), None)
            except NotADirectoryError:
                raise CheckpointError(
                    f"{to.location} is not a folder: give one that is new or empty. Nothing was changed",
                    path=to.location,
                ) from None
            empty = next(iter(to.storage.list()), None) is None
        if not empty:
            raise CheckpointError(
                f"{to.location} is not empty: give a folder that is new. Nothing was changed. Only if a copy was "
                "killed in it, so that it has no log: delete it, and copy again",
                path=to.location,
            )
        _open_all(folders, found, self.provider, self.pin)

    def begin(self, found: LogState) -> tuple[LogState, Side]:
        alone = replace(found, lineage=uuid.uuid4().hex, generation=1)
        return found, Side(self.to, lambda: self.provider, alone, room="")

    def end(self, state: LogState, target: Side, written: WrittenTasks) -> None:
        storage, pin = self.to.storage, self.pin
        heads = {name: Version(pin.heads[name].txid, token) for name, token in written.tokens.items()}
        with self.writing(state):
            for ref in files_beside(state):
                storage.put(ref.name, _read_beside(self.folders, ref, pin, f"Delete {self.to.location}"))
            alone = replace(pin, heads=heads, growth=written.sizes, snapshots={})
            first = Generation(1, self.to.location, pin.topology)
            records = (Lineage(target.state.lineage), first, Restored(1, alone))
            write_format(storage)
            began = LogState()
            for record in records:
                began = apply(began, record, pin.time_ms)
            self._begin_log(checkpoint(began))

    def _begin_log(self, record: Record) -> None:
        """Write the log in one step: a start on a folder whose log ended earlier would begin with empty state."""
        log = self.opened(self.to.storage)
        with suppress(FencedError):
            if log.number == 0:
                log.append(record)
                return
        raise CheckpointError(
            f"another copy has filled {self.to.location} meanwhile, and stands there, whole: copy to a folder of its "
            "own. The original is as it was",
            path=self.to.location,
        )

    @contextmanager
    def writing(self, state: LogState) -> Iterator[None]:
        """Say of a folder that can't be written what is to be done, and of one that was begun on a full disk."""
        to, as_it_was = self.to.location, f"the checkpoint in {self.folders.location} is as it was"
        try:
            with _unless_swept(self.folders, self.pin, f"Delete {to}"):
                yield
        except (OSError, StatefxError) as error:
            cause: BaseException | None = error
            while cause is not None and getattr(cause, "errno", None) not in FULL:
                cause = cause.__cause__
            if cause is not None:
                raise StateError(f"{error}: make room, delete {to}, and copy again; {as_it_was}", path=to) from error
            if not isinstance(error, OSError):
                raise
            raise CheckpointError(
                f"{to}: {error}. Give a folder that can be made, and that this user may write; {as_it_was}", path=to
            ) from error


# ---- other names


@dataclass(frozen=True)
class Renamed:
    """What `Checkpoint.rename` has done.

    Attributes
    ----------
    location : str
    names : Mapping[str, str]
        Old id to new one.
    dropped : tuple of str
        Whose state, or position in its source, was given up.
    """

    location: str
    names: Mapping[str, str]
    dropped: tuple[str, ...]

    def __str__(self) -> str:
        said = [f"{old} is called {new}" for old, new in self.names.items()]
        said += [f"what {one} has kept is given up" for one in self.dropped]
        return f"{self.location}: {', '.join(said)}"


def rename(folders: Folders, names: Mapping[str, str] | None, drop: Iterable[str]) -> Renamed:
    """Write the GENERATION that gives ids other names, or drops them; it fences a driver that runs."""
    renaming = _to_rename(folders, names, drop)
    taken(folders, "rename", renaming=renaming)
    return Renamed(folders.location, dict(renaming.names), tuple(sorted(renaming.dropped)))


def renaming_plan(folders: Folders, names: Mapping[str, str] | None, drop: Iterable[str]) -> str:
    """Return what `rename` would do; refuses what that would refuse, and changes nothing."""
    renaming = _to_rename(folders, names, drop)
    said = [f"call {old} {new}" for old, new in renaming.names.items()]
    said += [f"give up what {one} keeps" for one in sorted(renaming.dropped)]
    return f"{', '.join(said)} in {folders.location}"


def _to_rename(folders: Folders, names: Mapping[str, str] | None, drop: Iterable[str]) -> Renaming:
    renaming = Renaming.of_names(names, drop)
    found = found_checkpoint(folders)
    for new in renaming.names.values():
        try:
            check_id(new, ())
        except TopologyError as error:
            raise ConfigError(f"rename: {error.message}", component=new) from None
    there = renaming.known(found)
    asked = {*renaming.names, *renaming.dropped}
    shown = sorted(one for one in there if one == name_shown(one)) or "none"
    if not asked:
        raise ConfigError(f"rename: say who is called what, or who is dropped; in {folders.location} there are {shown}")
    if lacking := sorted(asked - there):
        raise CheckpointError(
            f"rename: {lacking[0]!r} keeps nothing; in {folders.location} there are {shown}",
            path=folders.location,
            component=lacking[0],
        )
    if streams := sorted(renaming.dropped.intersection(found.topology.streams)):
        raise ConfigError(
            f"drop: {streams[0]!r} is a streaming DataFrame, and none can be taken away: how far each was read is "
            "known together. Start with a new checkpointLocation (and empty state)",
            component=streams[0],
        )
    renaming.of(found, folders.location)  # refuses a new name that is there
    check_changeable(found, folders, "rename")
    return renaming
