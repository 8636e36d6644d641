"""Gives what stateful bolts keep another form: their keys, and with them order and task, or their values.

A start does it with ``migrateKey``; `downgrade` writes a bolt's state as an older version of it reads it. A step of
`statefx.admin.rewrite`: each task's state is read once before any driver is fenced, and every entry is given its new
form, sent to its new task, and sorted in files; keys that have become one are refused.

No proof can show where the new form of a key belongs: it has never lain anywhere. So a bolt whose keys go to other
tasks says with ``groupingKey`` what they are grouped by. Keys that stay as they are are proved as `rescale` does it,
and so are new ones that all belong where the old ones lie.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

from statefx.admin.entry_forms import Entry, EntryForms, KeyForm, Owner, ValueForm
from statefx.admin.reading import Progress, codec_of, component_of, counted, found_checkpoint, provider_of
from statefx.admin.rewrite import OpenSide, Piece, Rewrite, Source, Step
from statefx.admin.routing import GroupingKey, Proof, Router, Taker, check_grouping, router_of
from statefx.admin.sorted_files import SortedEntries
from statefx.admin.work import Report
from statefx.errors import CheckpointError, CheckpointMismatchError, ConfigError
from statefx.log.adoption import same_tasks
from statefx.operators.bolts import Stateful
from statefx.operators.hooks import overrides
from statefx.protocol.log_state import LogState
from statefx.protocol.topology_identity import StatefulIdentity
from statefx.state.contract.spaces import Space

logger = logging.getLogger("statefx")

_STAYING = {"shuffle", "all", "global", "broadcast"}
"""Groupings by which no key belongs to a task: what lies in one stays there."""


@dataclass(frozen=True)
class NewForm:
    """What becomes of what a bolt keeps; `key`, `version` and `value` as of `EntryForms`."""

    becomes: StatefulIdentity
    key: KeyForm | None
    key_hook: str
    grouping_key: GroupingKey | None
    version: int | None = None
    value: ValueForm | None = None


@dataclass
class Rekey(Step):
    """Another form of what one bolt keeps; `what` says in messages what the bolt is given.

    Reading raises BoltError where a function of the user's raises.
    """

    bolt: str
    form: NewForm
    what: str
    _sorted: SortedEntries = field(init=False)

    def becomes(self, known: StatefulIdentity) -> StatefulIdentity:
        return self.form.becomes

    def entries(
        self, source: OpenSide, piece: Piece, folder: str, report: Report
    ) -> tuple[Mapping[int, Source], Proof]:
        return {task: self._sorted.of(task) for task in piece.now}, Proof()

    # ---- what is refused

    def check(self, found: LogState, known: StatefulIdentity) -> None:
        form = self.form
        if known.layout is not None:
            raise self._refused(f"it keeps {known.layout.kept}, which have statefx's own form")
        if _stays(known, form):
            return
        check_grouping(self.bolt, form.becomes, self.what)
        if form.grouping_key is None and (known.parallelism == 1 or not same_tasks(known, form.becomes)):
            why = "it has had one task" if known.parallelism == 1 else "its rows are grouped otherwise than before"
            raise self._refused(f"{why}, so nothing shows to which task a key belongs. {self._remedy()}")

    def _refused(self, why: str) -> CheckpointError:
        return CheckpointError(f"bolt {self.bolt!r} can't be {self.what}: {why}", component=self.bolt)

    def _remedy(self) -> str:
        form = self.form
        fields = ", ".join(form.becomes.key_fields[0].fields) if form.becomes.key_fields else "the field"
        what = f"from the new form of a key what its rows are grouped by: ({fields})"
        if form.version is None:
            return f"Define groupingKey(self, key) in the bolt, which returns {what}"
        return f"Give groupingKey=, a function that returns {what}; in a shell, --by-key says that it is the key"

    # ---- keys and tasks

    def read(self, source: OpenSide, path: str, report: Report) -> None:
        """Sort the entries in their new form, by their new tasks."""
        form, before = self.form, source.state.topology.stateful[self.bolt]
        forms = EntryForms(
            self.bolt, source.state.committed, codec_of(self.bolt, before), form.key, form.key_hook, form.version,
            form.value,
        )  # fmt: skip
        entries = self._sorted = SortedEntries(path, form.becomes.parallelism)
        placing = self._placing(before, entries)
        for task in range(before.parallelism):
            for keys, values in source.blocks(self.bolt, task, report):
                placing.place(task, chain.from_iterable(map(forms.entries, keys, values)))
            logger.info("state of %s/%d is read (%d of %d)", self.bolt, task, task + 1, before.parallelism)
        entries.flush()
        placing.check_proof()
        for task in range(entries.tasks):
            if (twice := entries.of(task).twice()) is not None:
                origins = [task] if _stays(before, form) else range(before.parallelism)
                raise self._two_in_one(source, forms, twice, origins)

    def _placing(self, before: StatefulIdentity, entries: SortedEntries) -> _Placing:
        form = self.form
        if _stays(before, form):
            return _Placing(entries.takers(), before.parallelism)
        router = router_of(self.bolt, form.becomes, form.grouping_key, what=self.what, remedy=self._remedy())
        proves = before.parallelism > 1 and same_tasks(before, form.becomes)
        return _Placing(entries.takers(), before.parallelism, router, proves, form.grouping_key is not None)

    def _two_in_one(
        self, source: OpenSide, forms: EntryForms, stored: bytes, origins: Iterable[int]
    ) -> CheckpointError:
        """Return the error that names two keys that have become one; only for it, they are read again."""
        shown: list[str] = []
        for task in origins:
            for keys, values in source.blocks(self.bolt, task, lambda size: None):
                for old, data in zip(keys, values, strict=True):
                    if any(entry.stored == stored for entry in forms.entries(old, data)):
                        shown.append(f"{forms.shown(old)} in task {task}")
        return self._refused(
            f"{forms.key_hook} makes one key of {' and '.join(shown)}, which is {forms.shown(stored)}: one of their "
            "values would be lost. Nothing was changed; give each a key of its own, or have the former version put "
            "them together first"
        )


def _stays(before: StatefulIdentity, form: NewForm) -> bool:
    """Return whether every entry stays in its task."""
    becomes = form.becomes
    if before.parallelism != becomes.parallelism:
        return False
    return form.key is None or becomes.parallelism == 1 or {kind for kind, *_ in becomes.routing} <= _STAYING


@dataclass(frozen=True)
class _Placing:
    """Sends the entries of a bolt to the `takers` of their new tasks; without a router all stay in their tasks.

    `was` is the number of tasks before; `proves` says whether a key that has not changed must belong to the very task
    in which it lies; `given` whether the bolt says where keys belong: otherwise new ones have to be shown as well.
    """

    takers: Sequence[Taker]
    was: int
    router: Router | None = None
    proves: bool = False
    given: bool = False

    def place(self, task: int, entries: Iterable[Entry]) -> None:
        """Send entries of a task, which come in the order in which they lay there."""
        shown: list[tuple[bytes, bytes]] = []
        anywhere: list[tuple[bytes, bytes]] = []
        for stored, data, owner, is_new in entries:
            # What an OpaqueMap has written stays in its tasks, so its mark may only stay where all keys do.
            stays = owner is Owner.TASK and len(self.takers) == self.was
            if self.router is None or (stays and (self.proves or stored[:1] != Space.USER.value)):
                self.takers[task].add(stored, data)
            elif owner is Owner.ALL:  # all tasks hold the same
                for taker in self.takers if task == 0 else ():
                    taker.add(stored, data)
            else:
                (anywhere if self.given and (is_new or not self.proves) else shown).append((stored, data))
        if self.router is None:
            return
        self.router.route(iter(anywhere), 0, 1, self.takers)  # as if they came from one task
        self.router.route(iter(shown), task, self.was, self.takers)

    def check_proof(self) -> None:
        if self.router is not None:
            self.router.check_proof(self.was)


# ---- to an older version


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
