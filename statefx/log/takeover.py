"""The generation of a driver: a checkpoint is read, the next generation is taken on it, a newer one is noticed.

Bolts and spouts that the new topology calls otherwise, and those that it gives up, go with it (`Renaming`).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from statefx.errors import CheckpointError, CheckpointMismatchError, ConfigError, FencedError
from statefx.log.adoption import check_adoption, forks, warn_of_fork
from statefx.log.entries import FOLDER as LOG
from statefx.log.location import PLACE, Folders, check_format, is_empty, write_format
from statefx.log.log import TransactionLog, read_state
from statefx.operators.dedup import DEDUP
from statefx.plan.levels import name_shown
from statefx.protocol.log_rules import apply, renamed
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Generation, Lineage
from statefx.protocol.topology_identity import TopologyIdentity
from statefx.storage import Storage, is_remote
from statefx.topology.graph import INTERNAL, ComponentKind, Topology

logger = logging.getLogger("statefx")


@dataclass(frozen=True)
class Renaming:
    """Renamed components, old name to new one, and dropped ones.

    A program may keep both: later starts ignore renames and drops already applied.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    keeping: frozenset[str] | None = None
    """Ids of the new topology that keep something under their names; None: there is no new one."""

    @classmethod
    def given(cls, rename: Mapping[str, str] | None, drop: Iterable[str], topology: Topology) -> Renaming:
        """Read what a user gave; ConfigError if it does not fit the topology."""
        found = cls.of_names(rename, drop)
        names, dropped = found.names, found.dropped
        keeping = {one.id for one in topology.components if one.stateful or one.kind is ComponentKind.SPOUT}
        if topology.streaming:
            keeping |= {one.id for one in topology.components if one.is_stream}
        for new in names.values():
            if new not in keeping:
                raise ConfigError(
                    f"rename: {new!r} is no stateful bolt and no spout of this topology, and no streaming DataFrame; "
                    f"there are {sorted(keeping)}. Others keep nothing under their names, and may be called otherwise "
                    "at any start",
                    component=new,
                )
        ids = {one.id for one in topology.components}
        if kept := sorted(dropped & ids):
            raise ConfigError(f"drop: {kept[0]!r} is in this topology: leave it out there, or here", component=kept[0])
        return replace(found, keeping=frozenset(keeping))

    @classmethod
    def of_names(cls, rename: Mapping[str, str] | None, drop: Iterable[str]) -> Renaming:
        """Read what a user gave; ConfigError if it does not fit together."""
        names = {} if rename is None else rename
        if not isinstance(names, Mapping) or not all(isinstance(each, str) for pair in names.items() for each in pair):
            raise ConfigError(f"rename must be a mapping of old ids to new ones, got {rename!r}")
        dropped = None if isinstance(drop, str) or not isinstance(drop, Iterable) else frozenset(drop)
        if dropped is None or not all(isinstance(each, str) for each in dropped):
            raise ConfigError(f"drop must be a list of ids, such as ['old'], got {drop!r}")
        for old, new in names.items():
            if old.startswith(INTERNAL):  # a topology has it under this id alone; no name that begins so can be given
                raise ConfigError(f"rename: {old!r} is statefx's own, and has no other name", component=old)
            if old == new:
                raise ConfigError(f"rename: {old!r} has that name already: leave it out", component=old)
            if old in names.values() or old in dropped or list(names.values()).count(new) > 1:
                raise ConfigError(
                    f"rename: {old!r} to {new!r} is not alone: no name may be on both sides, given twice, or dropped "
                    "too. Do it in two steps",
                    component=old,
                )
        return cls(names, dropped)

    @staticmethod
    def known(found: LogState) -> set[str]:
        """Return the ids under which a checkpoint keeps something; a spout with dedup is there by both its ids."""
        planned = {spout for said in found.planned_metadata.values() for spout in said}
        stateful = found.topology.stateful
        spouts = set(map(name_shown, stateful))
        streams = found.topology.streams
        return {*stateful, *spouts, *streams, *found.topology.tracked, *found.committed_metadata, *planned}

    def of(self, found: LogState, location: str) -> Renaming:
        """Return the part of it that is still to be done in a checkpoint; `location` is where that lies now.

        ConfigError: both the old and the new name are there; or neither, while what the checkpoint keeps is not all
        in the topology. CheckpointMismatchError: a transaction is decided, and renamed components have still to commit
        it.
        """
        if not found.generation or not (self.names or self.dropped):
            return NOTHING_RENAMED
        there = self.known(found)
        inputs = {name_shown(key.source) for one in found.topology.stateful.values() for key in one.key_fields}
        names: dict[str, str] = {}
        for old, new in self.names.items():
            if old in there and new in there:
                raise ConfigError(
                    f"rename: the checkpoint in {location} has both {old!r} and {new!r}. If an earlier start has "
                    "renamed it, leave it out now",
                    component=old,
                )
            # What is not there has been renamed, or has never kept anything.
            if old not in there and new not in there:
                self._refuse_mistyped(old, found, location)
            if old in there or old in inputs:
                names[old] = new
                if DEDUP + old in there:
                    names[DEDUP + old] = DEDUP + new
        there.difference_update(found.topology.streams)  # none is dropped: Spark goes on with all of them
        # What is renamed as well may be dropped by the name that it gets: messages say that one.
        called = ((one, {one, name_shown(one), names.get(one, one)}) for one in there)
        dropped = frozenset(one for one, by in called if not self.dropped.isdisjoint(by))
        if (names or dropped) and found.committing is not None:
            raise CheckpointMismatchError(
                f"transaction {found.committing.txid} of the checkpoint in {location} is decided, and not "
                "committed yet: start once with the former topology, and rename then",
                txid=found.committing.txid,
            )
        if names or dropped:
            shown = [f"{old} becomes {new}" for old, new in names.items()]
            shown += [f"what {one} has kept is given up" for one in sorted(dropped)]
            logger.info("checkpoint %s: %s", location, ", ".join(shown))
        return Renaming(names, dropped)

    def _refuse_mistyped(self, old: str, found: LogState, location: str) -> None:
        """Refuse a name of which the checkpoint knows nothing, if it lacks another: that is refused anyway.

        Then the refusal would advise a `rename`, as if none had been given.
        """
        if self.keeping is None:
            return
        kept = {*map(name_shown, found.topology.stateful), *found.topology.streams}
        lacking = sorted(
            one for one in kept - self.keeping - self.names.keys() - self.dropped if not one.startswith(INTERNAL)
        )
        if lacking:
            raise ConfigError(
                f"rename: the checkpoint in {location} keeps nothing under the name {old!r}. What it has and this "
                f"topology has not is {', '.join(map(repr, lacking))}: give one of these as the old name",
                component=old,
            )

    def applied(self, found: LogState) -> LogState:
        """Return the log's state with the renaming done."""
        return renamed(found, self.names, self.dropped)


NOTHING_RENAMED = Renaming()


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

    A driver that is still at work may win a number meanwhile; then the log is read and checked again. Without a
    `wanted` topology nothing goes on yet: the checkpoint stays that of whoever ran last. `opened` opens the log: if it
    raises, nothing has changed, since nothing can have been appended between its reading and the GENERATION record.
    CheckpointMismatchError: as `check_adoption` and `check_participants`. FencedError: others went on taking
    generations for `TAKE_TRIES` tries.
    """
    write_format(folders.storage)
    for tries in range(TAKE_TRIES):
        log = opened(folders.storage)
        changes = renaming.of(log.state, folders.location)
        found = changes.applied(log.state)
        becomes = wanted or found.topology
        if is_remote(folders.location) and found.generation and found.location != folders.location:
            folders.storage.check()  # it came with all that the first start would have tried, to another store perhaps
        check_adoption(found, wanted, folders, adopt, shared=shared)
        forking = forks(found, folders, adopt)
        # The driver at work goes on deciding until it is fenced (rule 10.6).
        check_participants(forked(found) if forking else found, folders.location, others)
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
    """Return a checkpoint's state as a fork: it owns no target of the original's."""
    return apply(found, Lineage(uuid.uuid4().hex), found.time_ms)


def check_newest(folders: Folders, generation: int) -> LogState:
    """Return the log's state as it is now; FencedError if a newer generation has taken over."""
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


def check_participants(found: LogState, location: str, others: Collection[str] = ()) -> None:
    """Refuse a checkpoint whose decided transaction names a participant that the topology lacks (rule 10.6).

    Nobody could commit what was decided for it.
    """
    record = None if found.committing is None else found.committing.committing
    lacking = sorted(set(record.committables if record else ()) - set(others))
    if record is not None and lacking and not found.shared_origins:  # a fork leaves it to the original
        targets = [record.committables[name] for name in lacking]
        shown = [
            f"{name!r} ({decided['target']})" if isinstance(decided, Mapping) and "target" in decided else repr(name)
            for name, decided in zip(lacking, targets, strict=True)
        ]
        raise CheckpointMismatchError(
            f"transaction {record.txid} of the checkpoint in {location} is decided, and not committed to "
            f"{', '.join(shown)}, which this topology does not have, or calls otherwise: start once with the former "
            "topology, and change it then",
            txid=record.txid,
            lacking=lacking,
        )
