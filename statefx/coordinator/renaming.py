"""Bolts and spouts that a new topology calls otherwise, and those that it gives up: what a start is told of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from statefx.errors import CheckpointMismatchError, ConfigError
from statefx.operators.dedup import DEDUP
from statefx.plan.levels import name_shown
from statefx.protocol.log_rules import renamed
from statefx.protocol.log_state import LogState
from statefx.topology.graph import INTERNAL, ComponentKind, Topology

logger = logging.getLogger("statefx")


@dataclass(frozen=True)
class Renaming:
    """Old name to new one, and who is given up.

    Contract
    --------
    * Both may stay in a program: what a start has done, the next one passes over.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()

    @classmethod
    def given(cls, rename: Mapping[str, str] | None, drop: Iterable[str], topology: Topology) -> Renaming:
        """Read what a user gave; ConfigError if it does not fit the topology."""
        found = cls.of_names(rename, drop)
        names, dropped = found.names, found.dropped
        keeping = {one.id for one in topology.components if one.stateful or one.kind is ComponentKind.SPOUT}
        for new in names.values():
            if new not in keeping:
                raise ConfigError(
                    f"rename: {new!r} is no stateful bolt and no spout of this topology; there are {sorted(keeping)}. "
                    "Others keep nothing under their names, and may be called otherwise at any start",
                    component=new,
                )
        ids = {one.id for one in topology.components}
        if kept := sorted(dropped & ids):
            raise ConfigError(f"drop: {kept[0]!r} is in this topology: leave it out there, or here", component=kept[0])
        return found

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
        return {*stateful, *spouts, *found.topology.tracked, *found.committed_metadata, *planned}

    def of(self, found: LogState) -> Renaming:
        """Return what of it is to be done in a checkpoint.

        Raises
        ------
        ConfigError
            Both the old and the new name are there.
        CheckpointMismatchError
            A transaction is decided, and those that are renamed have still to commit it.
        """
        if not found.generation or not (self.names or self.dropped):
            return NOTHING_RENAMED
        there = self.known(found)
        names: dict[str, str] = {}
        for old, new in self.names.items():
            if old in there and new in there:
                raise ConfigError(
                    f"rename: the checkpoint in {found.location} has both {old!r} and {new!r}. If an earlier start has "
                    "renamed it, leave it out now",
                    component=old,
                )
            # What is not there has been renamed, or has never kept anything. Of a name that is mistyped, what it should
            # have been is refused as lacking.
            if old in there:
                names[old] = new
                if DEDUP + old in there:
                    names[DEDUP + old] = DEDUP + new
        dropped = frozenset(one for one in there if not self.dropped.isdisjoint((one, name_shown(one))))
        if (names or dropped) and found.committing is not None:
            raise CheckpointMismatchError(
                f"transaction {found.committing.txid} of the checkpoint in {found.location} is decided, and not "
                "committed for everybody: start once with the former topology, and rename then",
                txid=found.committing.txid,
            )
        if names or dropped:
            shown = [f"{old} becomes {new}" for old, new in names.items()]
            shown += [f"what {one} has kept is given up" for one in sorted(dropped)]
            logger.info("checkpoint %s: %s", found.location, ", ".join(shown))
        return Renaming(names, dropped)

    def applied(self, found: LogState) -> LogState:
        """Return what the log would know if it were done."""
        return renamed(found, self.names, self.dropped)


NOTHING_RENAMED = Renaming()
