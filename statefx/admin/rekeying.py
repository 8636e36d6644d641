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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from statefx.admin.reading import Progress, codec_of, component_of, counted, found_checkpoint, provider_of
from statefx.admin.rewrite import OpenSide, Piece, Rewrite, Source, Step, check_changeable
from statefx.admin.routing import GroupingKey, Proof, Router, Taker, check_function, check_grouping, router_of
from statefx.admin.sorted_files import SortedEntries
from statefx.admin.work import Report
from statefx.errors import BoltError, CheckpointError, CheckpointMismatchError, ConfigError
from statefx.log.adoption import same_tasks
from statefx.log.location import Folders
from statefx.operators.bolts import Stateful
from statefx.operators.context import DRIVER
from statefx.operators.hooks import overrides
from statefx.operators.user_errors import bolt_error
from statefx.protocol.log_state import LogState
from statefx.protocol.topology_identity import StatefulIdentity
from statefx.state.contract.spaces import NameKind, Space, head_of, name_of
from statefx.state.encoding.codec import Codec, StandardCodec
from statefx.state.encoding.values import EXPIRY_BYTES, NEVER, expiry_of, unwrap, wrap
from statefx.state.view.changes import OWN_KEYS, codec_for
from statefx.state.view.time_index import index_entry, timer_key, timer_value, with_timer_key, with_timer_value

logger = logging.getLogger("statefx")


KeyForm = Callable[[Any], Any]
"""Returns the new form of a key: of a map (name, key)."""

ValueForm = Callable[[int, Any, Any], Any]
"""(version that wrote it, key, value) -> the new form of a value."""


class Owner(Enum):
    """Whose an entry is: a key's, and so the task's that the key belongs to; a task's; or that of all tasks."""

    KEY = "key"
    TASK = "task"
    ALL = "all"


class Entry(NamedTuple):
    """An entry in its new form; `is_new` says whether its key is another one than before."""

    stored: bytes
    data: bytes
    owner: Owner
    is_new: bool


@dataclass
class EntryForms:
    """Makes the new form of the entries of one bolt.

    Parameters
    ----------
    bolt, txid
        For messages: the bolt, and the transaction whose state this is.
    codec : Codec
        The bolt's.
    key : callable, optional
        Makes the keys; None: they stay.
    key_hook : str
        What the user calls it.
    version : int, optional
        Values of later versions become of this one.
    value : callable, optional
        Makes these values.
    """

    bolt: str
    txid: int
    codec: Codec
    key: KeyForm | None
    key_hook: str
    version: int | None = None
    value: ValueForm | None = None
    _codecs: dict[bytes, Codec] = field(default_factory=dict, init=False)

    def entries(self, stored: bytes, data: bytes) -> list[Entry]:
        """Return the new form of an entry, and of its place in the index if it is over at a time.

        Raises
        ------
        BoltError
            A function of the user's has raised, or what it returned can't be kept; names it and the key.
        """
        if stored[:1] == Space.SYSTEM.value:
            # Places in the index are made of the entries: those of deleted entries may have keys that become one.
            return []
        entry = self._entry(stored, data)
        if stored[:1] != Space.NAMED.value or (expiry := expiry_of(data)) == NEVER:
            return [entry]
        place, keys = index_entry(entry.stored, expiry)
        return [entry, entry._replace(stored=place, data=keys)]

    def _entry(self, stored: bytes, data: bytes) -> Entry:
        space = stored[:1]
        if space in (Space.QUARANTINE.value, Space.WAITING.value):  # by what rows are grouped by, which no hook knows
            return Entry(stored, data, Owner.KEY, is_new=False)
        if space == Space.TIMERS.value:
            return self._timer(stored, data)
        kind, name = name_of(stored) if space == Space.NAMED.value else (None, None)
        head = space if kind is None else head_of(kind, name or "")
        codec = self._spaced(head, of_task=kind in (NameKind.LIST, NameKind.VALUE))
        key = codec.decode_key(stored)
        if kind is None and isinstance(key, str) and key.startswith(OWN_KEYS):
            return Entry(stored, self._relabelled(data), Owner.TASK, is_new=False)
        data = self._value(key if name is None else (name, key), data)
        if kind in (NameKind.LIST, NameKind.VALUE):  # their keys are statefx's own
            return Entry(stored, data, Owner.TASK, is_new=False)
        moved = stored if self.key is None else self._moved(codec, key, name)
        return Entry(moved, data, Owner.ALL if kind is NameKind.BROADCAST else Owner.KEY, moved != stored)

    def shown(self, stored: bytes) -> str:
        """Return the key of an entry as a message names it."""
        if stored[:1] == Space.TIMERS.value:
            return f"{self.codec.decode_key(timer_key(stored))!r} (of a timer)"
        kind, name = name_of(stored) if stored[:1] == Space.NAMED.value else (None, None)
        codec = self._spaced(stored[:1] if kind is None else head_of(kind, name or ""))
        return f"{codec.decode_key(stored)!r}" + ("" if kind is None else f" of state.{kind.value}({name!r})")

    def _spaced(self, head: bytes, *, of_task: bool = False) -> Codec:
        found = self._codecs.get(head)
        if found is None:
            found = self._codecs[head] = StandardCodec(head) if of_task else codec_for(self.codec, head)[0]
        return found

    # ---- keys

    def _moved(self, codec: Codec, key: Any, name: str | None) -> bytes:
        assert self.key is not None
        given = key if name is None else (name, key)
        with self._hook(self.key_hook, given):
            new = self.key(given)
            if name is not None:
                if not isinstance(new, tuple) or len(new) != 2 or new[0] != name:
                    raise TypeError(
                        f"it returned {new!r}: of what is kept under a name it must return ({name!r}, the new key)"
                    )
                new = new[1]
            return codec.encode_key(new)

    def _timer(self, stored: bytes, data: bytes) -> Entry:
        value = timer_value(stored, data)
        if value is not None:
            data = with_timer_value(self._relabelled(value))
        moved = stored
        if self.key is not None:
            codec = self._spaced(b"")
            moved = with_timer_key(stored, self._moved(codec, codec.decode_key(timer_key(stored)), None))
        return Entry(moved, data, Owner.KEY, moved != stored)

    # ---- values

    def _value(self, key: Any, data: bytes) -> bytes:
        if self.version is None:
            return data
        lasts = data[:EXPIRY_BYTES] if expiry_of(data) != NEVER else b""
        version, inner = unwrap(data[len(lasts) :])
        if version <= self.version:
            return data
        assert self.value is not None
        codec = self._spaced(b"")
        value = codec.decode_value(inner)
        with self._hook("downgradeState", key):
            return lasts + wrap(self.version, codec.encode_value(self.value(version, key, value)))

    def _relabelled(self, data: bytes) -> bytes:
        """Return a value whose form is the same in all versions, as one of the version that is to be."""
        if self.version is None:
            return data
        version, inner = unwrap(data)
        return data if version <= self.version else wrap(self.version, inner)

    @contextmanager
    def _hook(self, name: str, key: Any) -> Iterator[None]:
        try:
            yield
        except BoltError:
            raise
        except Exception as error:
            raised = bolt_error(error, self.bolt, DRIVER, name, self.txid)
            raise BoltError(f"{raised.message}; of key {key!r}. Nothing was changed", **raised.data) from error


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
    """What `Checkpoint.downgrade` has done.

    Attributes
    ----------
    component : str
    was, version : int
        The ``stateVersion`` of the checkpoint before, and now.
    keys, bytes : int
        How many entries of state were written, with those of maps and timers, and the size of their keys and values.
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
            f"{self.component} has version {self.version}, and had {self.was}; "
            f"{counted(self.keys, 'entry', 'entries')}, "
            f"{self.bytes} bytes, {self.seconds:.1f} s"
        )


def downgrade(
    folders: Folders,
    config: Mapping[str, Any] | None,
    component: str,
    bolt: Stateful,
    version: int,
    grouping_key: GroupingKey | None,
    progress: Progress | None,
) -> Downgrade:
    """Write the state of a bolt as an older ``stateVersion`` of it did; `bolt` is of the newer one."""
    found, was, step = _to_downgrade(folders, component, bolt, version, grouping_key)
    provider = provider_of(found, config)
    if step is None:
        return Downgrade(component, was, version, 0, 0, 0.0)
    done = Rewrite(folders, provider, {component: step}, "downgrade", progress=progress).run(found)
    return Downgrade(component, was, version, done.keys, done.bytes, done.seconds)


def downgrade_plan(
    folders: Folders, component: str, bolt: Stateful, version: int, grouping_key: GroupingKey | None
) -> str | None:
    """Return what `downgrade` would do, None if nothing; refuses what shows without reading state."""
    found, was, step = _to_downgrade(folders, component, bolt, version, grouping_key)
    if step is None:
        return None
    check_changeable(found, folders, "downgrade")
    if found.holds(component):
        step.check(found, found.topology.stateful[component])
    return f"write {component} of {folders.location}, which has version {was}, as version {version} of it did"


def _to_downgrade(
    folders: Folders, component: str, bolt: Stateful, version: int, grouping_key: GroupingKey | None
) -> tuple[LogState, int, Rekey | None]:
    """Return the log, the version of now, and the step to the older one; None: nothing is to be done."""
    _check(bolt, version)
    check_function(grouping_key, "downgrade")
    found = found_checkpoint(folders)
    known = component_of(found, component, folders)
    was = known.state_version
    if was == version:
        return found, was, None
    _check_version(bolt, version, component, was, folders.location)
    form = older_form(known, bolt, version, grouping_key)
    return found, was, Rekey(component, form, f"given the form of version {version}")


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


def older_form(known: StatefulIdentity, bolt: Stateful, version: int, grouping_key: GroupingKey | None) -> NewForm:
    """Return what becomes of what a bolt keeps that is written as an older version of it did."""

    def value(wrote: int, key: Any, value: Any) -> Any:
        newest = value if wrote == bolt.stateVersion else bolt.migrateState(wrote, key, value)
        return bolt.downgradeState(version, key, newest)

    key = partial(bolt.downgradeKey, version) if overrides(type(bolt), "downgradeKey") else None
    return NewForm(replace(known, state_version=version), key, "downgradeKey", grouping_key, version, value)


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
                "back with Checkpoint.restore to a savepoint of the older version"
            )
