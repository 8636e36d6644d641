"""Writes a bolt's state as an older version of it reads it, so that older code can go on from there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from statefx.admin.reading import Progress, component_of, counted, found_checkpoint, provider_of
from statefx.admin.rekeying import NewForm, Rekey
from statefx.admin.rewrite import Rewrite
from statefx.admin.routing import GroupingKey
from statefx.errors import CheckpointError, CheckpointMismatchError, ConfigError
from statefx.operators import Stateful, overrides
from statefx.protocol.topology_identity import StatefulIdentity


@dataclass(frozen=True)
class Downgrade:
    """What `downgrade` has done.

    Attributes
    ----------
    component : str
    was, version : int
        The ``stateVersion`` of the checkpoint before, and now.
    keys, bytes : int
        How many entries of state were written, and the size of their keys and values.
    seconds : float
        How long it took.
    """

    component: str
    was: int
    version: int
    keys: int
    bytes: int
    seconds: float

    def __str__(self) -> str:
        if self.was == self.version:
            return f"{self.component} has version {self.version} already: nothing was to be done"
        return (
            f"{self.component} has version {self.version}, and had {self.was}; {counted(self.keys, 'key')}, "
            f"{self.bytes} bytes, {self.seconds:.1f} s"
        )


def downgrade(
    checkpointLocation: str | os.PathLike[str],
    component: str,
    bolt: Stateful,
    version: int,
    config: Mapping[str, Any] | None = None,
    *,
    groupingKey: GroupingKey | None = None,
    progress: Progress | None = None,
) -> Downgrade:
    """Write the state of a bolt as an older ``stateVersion`` of it did; its topology must not run.

    Call it with the code of the newer version, which alone knows both forms; then start the older code.

    Parameters
    ----------
    checkpointLocation, component, config
        As of `openState`.
    bolt : Stateful
        The bolt of the newer version, with a `Stateful.downgradeState`, and a `Stateful.downgradeKey` if it has a
        ``migrateKey``. It is not opened.
    version : int
        The ``stateVersion`` of the code that is to run next.
    groupingKey : callable, optional
        Is given a key of the older form (of what is kept under a name: name and key), and returns the field, or the
        tuple of fields, that the older code groups by. Needed where ``downgradeKey`` sends keys to other tasks.
    progress : callable (done, total), optional
        As of `rescale`.

    Returns
    -------
    Downgrade
        How much was written. If the checkpoint has this version already, nothing is done.

    Raises
    ------
    ConfigError
        The arguments are wrong, or a hook is missing; nothing was changed.
    CheckpointError
        There is no such bolt, it is of another version than `bolt`, a transaction is under way, keys can't be shown to
        belong anywhere, or two become one; nothing was changed.
    BoltError, StateError
        A hook has raised, or a disk is full; nothing was changed.

    Contract
    --------
    * One record makes it so: after a crash all is of the newer version, or nothing is above the older one.
    * Values that an older version wrote, `version` or before, stay as they are: the older code knows them.
    * A driver that runs on the checkpoint is fenced.
    * State in a server is written under a new name there. What was there is deleted by the next start's first sweep.

    Examples
    --------
    >>> print(downgrade("checkpoints/word-count", "count", CountInBatches(), 1))     # doctest: +SKIP
    """
    _check(bolt, version)
    folders, found = found_checkpoint(checkpointLocation)
    known = component_of(found, component, folders)
    was, provider = known.state_version, provider_of(found, config)
    if was == version:
        return Downgrade(component, was, version, 0, 0, 0.0)
    _check_version(bolt, version, component, was, folders.location)
    form = older_form(known, bolt, version, groupingKey)
    step = Rekey(component, form, f"given the form of version {version}")
    done = Rewrite(folders, provider, {component: step}, "downgrade", progress=progress).run(found)
    return Downgrade(component, was, version, done.keys, done.bytes, done.seconds)


def _check_version(bolt: Stateful, version: int, component: str, was: int, location: str) -> None:
    if was < version:
        raise CheckpointError(
            f"{component!r} in {location} has version {was}: a start with a bolt of version {version} upgrades it",
            component=component,
        )
    if bolt.stateVersion != was:
        raise CheckpointMismatchError(
            f"{component!r} in {location} has version {was}, and {type(bolt).__name__} has stateVersion "
            f"{bolt.stateVersion}: give the bolt that ran last",
            component=component,
            found=was,
            wanted=bolt.stateVersion,
        )


def older_form(known: StatefulIdentity, bolt: Stateful, version: int, groupingKey: GroupingKey | None) -> NewForm:
    """Return what becomes of what a bolt keeps that is written as an older version of it did."""

    def value(wrote: int, key: Any, value: Any) -> Any:
        newest = value if wrote == bolt.stateVersion else bolt.migrateState(wrote, key, value)
        return bolt.downgradeState(version, key, newest)

    key = partial(bolt.downgradeKey, version) if overrides(type(bolt), "downgradeKey") else None
    return NewForm(replace(known, state_version=version), key, "downgradeKey", groupingKey, version, value)


def _check(bolt: Any, version: Any) -> None:
    if not isinstance(bolt, Stateful):
        raise ConfigError(f"downgrade: give an object of the bolt's class, which keeps state, not {bolt!r}")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ConfigError(f"downgrade: version must be the stateVersion of the older code, from 1, got {version!r}")
    for hook, needed in (("downgradeState", True), ("downgradeKey", overrides(type(bolt), "migrateKey"))):
        if needed and not overrides(type(bolt), hook):
            why = "" if hook == "downgradeState" else "it has a migrateKey, so keys may have changed; "
            arguments = "version, key, value" if hook == "downgradeState" else "version, key"
            raise ConfigError(
                f"downgrade: {type(bolt).__name__} has no {hook}: {why}define def {hook}(self, {arguments}); or go "
                "back with statefx.restore to a savepoint of the older version"
            )
