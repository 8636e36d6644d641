"""Gives what stateful bolts keep another form: their keys, and with them order and task, or their values.

::

    1 what can be refused is
    2 each task's state is read once; every entry is given its new form, sent to its new task, and sorted in files
    3 keys that have become one are refused
    4 the next generation: who ran before is fenced
    5 the entries of each task are merged into one file of state, which is read back and compared
    6 RESCALED is durable: the bolts have these files, this version and these tasks

A failure before 6 leaves the bolts as they were; what was written is named by nobody, and swept.

No proof can show where the new form of a key belongs: it has never lain anywhere. So a bolt whose keys go to other
tasks says with ``groupingKey`` what they are grouped by. Keys that stay as they are are proved as `rescale` does it,
and so are new ones that all belong where the old ones lie.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

from statefx.admin.entry_forms import Entry, EntryForms, KeyForm, Owner, ValueForm
from statefx.admin.progress import ProgressMeter
from statefx.admin.reading import Progress, check_idle, codec_of, task_blocks
from statefx.admin.routing import GroupingKey, Router, Taker, check_grouping, router_of
from statefx.admin.savepoints import fence, taken
from statefx.admin.sorting import SortedEntries
from statefx.admin.task_writing import TaskWriter, new_names, unless_overtaken
from statefx.coordinator.adoption import NOTHING_ADOPTED, same_tasks
from statefx.coordinator.location import Folders
from statefx.coordinator.log import TransactionLog
from statefx.errors import CheckpointError
from statefx.protocol.identity import TaskId
from statefx.protocol.log_rules import pin_of, with_names
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Rescaled
from statefx.protocol.topology_identity import StatefulIdentity
from statefx.state.contract.spaces import Space
from statefx.state.contract.store import StateProvider
from statefx.storage import Storage

logger = logging.getLogger("statefx")

_STAYING = {"shuffle", "all", "global", "broadcast"}
"""Groupings by which no key belongs to a task: what lies in one stays there."""

_PASSES = 3
"""State is read, written, and read back."""


@dataclass(frozen=True)
class NewForm:
    """What becomes of what a bolt keeps; `key`, `version` and `value` as of `EntryForms`."""

    becomes: StatefulIdentity
    key: KeyForm | None
    key_hook: str
    grouping_key: GroupingKey | None
    version: int | None = None
    value: ValueForm | None = None


class Rewritten(NamedTuple):
    """How many entries of state were written, and the size of their keys and values."""

    keys: int
    bytes: int


@dataclass
class Rewriter:
    """One rewriting; `what` says in messages what a bolt is given, `then` what is to be done when nothing runs."""

    folders: Folders
    provider: StateProvider
    what: str
    then: str
    opened: Callable[[Storage], TransactionLog] = TransactionLog
    adopt: frozenset[str] = NOTHING_ADOPTED
    progress: Progress | None = None

    def run(self, found: LogState, forms: Mapping[str, NewForm]) -> Rewritten:
        """Do it; return how much was written.

        Raises
        ------
        CheckpointError
            A transaction is under way, or keys can't be shown to belong anywhere, or two become one.
        BoltError
            A function of the user's has raised.
        StateCorruptedError
            What is read is damaged, or what was read back is not what was written.
        """
        holding = {bolt: form for bolt, form in forms.items() if found.holds(bolt)}
        for bolt, form in holding.items():
            self._check(bolt, found.topology.stateful[bolt], form)
        check_idle(found, self.folders, self.then)
        with tempfile.TemporaryDirectory(prefix="statefx-rewrite-", ignore_cleanup_errors=True) as folder:
            # Rule 1.5: what can refuse comes before the generation is taken. `_check_same` sees to it that it holds.
            meter = ProgressMeter.of(self.progress, pin_of(found), _PASSES, holding)
            entries = {
                bolt: self._sorted(found, bolt, form, os.path.join(folder, str(number)), meter)
                for number, (bolt, form) in enumerate(holding.items())
            }
            log = taken(self.folders, self.then, partial(self._check_same, found), self.opened, self.adopt)
            state = log.state
            names = new_names(self.provider, state, forms)
            target = with_names(state, names)
            fence(self.provider, self.folders, state)
            writer = TaskWriter(self.folders.storage, self.provider, meter.blocks)
            with unless_overtaken(self.folders, state):
                for bolt, own_entries in entries.items():
                    for task in range(own_entries.tasks):
                        writer.write(target, TaskId(bolt, task), own_entries.tasks, own_entries.of(task), folder)
            meter.end()
            becomes = {bolt: form.becomes for bolt, form in forms.items()}
            tasks = {bolt: each.parallelism for bolt, each in becomes.items()}
            log.append(Rescaled(state.generation, tasks, writer.done.tokens, writer.done.sizes, names, becomes))
        return Rewritten(writer.done.keys, writer.done.bytes)

    # ---- what is refused

    def _check(self, bolt: str, before: StatefulIdentity, form: NewForm) -> None:
        if before.layout is not None:
            raise CheckpointError(
                f"bolt {bolt!r} can't be {self.what}: it keeps {before.layout.kept}, which have statefx's own form",
                component=bolt,
            )
        if _stays(before, form):
            return
        check_grouping(bolt, form.becomes, self.what)
        if form.grouping_key is None and (before.parallelism == 1 or not same_tasks(before, form.becomes)):
            why = "it has had one task" if before.parallelism == 1 else "its rows are grouped otherwise than before"
            raise CheckpointError(
                f"bolt {bolt!r} can't be {self.what}: {why}, so nothing shows to which task a key belongs. "
                f"{self._remedy(form)}",
                component=bolt,
            )

    def _remedy(self, form: NewForm) -> str:
        fields = ", ".join(form.becomes.key_fields[0].fields) if form.becomes.key_fields else "the field"
        what = f"from the new form of a key what its rows are grouped by: ({fields})"
        if form.version is None:
            return f"Define groupingKey(self, key) in the bolt, which returns {what}"
        return f"Give groupingKey=, a function that returns {what}; in a shell, --by-key says that it is the key"

    def _check_same(self, found: LogState, state: LogState) -> None:
        if (state.heads, state.topology.stateful) != (found.heads, found.topology.stateful):
            raise CheckpointError(
                f"the checkpoint in {self.folders.location} has gone on meanwhile: stop its topology, and {self.then}",
                path=self.folders.location,
            )

    # ---- keys and tasks

    def _sorted(self, found: LogState, bolt: str, form: NewForm, path: str, meter: ProgressMeter) -> SortedEntries:
        """Return the entries of a bolt in their new form, by their new tasks."""
        before = found.topology.stateful[bolt]
        forms = EntryForms(
            bolt, found.committed, codec_of(bolt, before), form.key, form.key_hook, form.version, form.value
        )
        entries = SortedEntries(path, form.becomes.parallelism)
        placing = self._placing(bolt, before, form, entries)
        for task in range(before.parallelism):
            for keys, values in meter.blocks(task_blocks(self.provider, self.folders, found, bolt, task)):
                placing.place(task, chain.from_iterable(map(forms.entries, keys, values)))
            logger.info("state of %s/%d is read (%d of %d)", bolt, task, task + 1, before.parallelism)
        entries.flush()
        placing.check_proof()
        for task in range(entries.tasks):
            if (twice := entries.of(task).twice()) is not None:
                origins = [task] if _stays(before, form) else range(before.parallelism)
                raise self._two_in_one(found, bolt, forms, twice, origins)
        return entries

    def _placing(self, bolt: str, before: StatefulIdentity, form: NewForm, entries: SortedEntries) -> _Placing:
        if _stays(before, form):
            return _Placing(entries.takers(), before.parallelism)
        router = router_of(bolt, form.becomes, form.grouping_key, what=self.what, remedy=self._remedy(form))
        proves = before.parallelism > 1 and same_tasks(before, form.becomes)
        return _Placing(entries.takers(), before.parallelism, router, proves, form.grouping_key is not None)

    def _two_in_one(
        self, found: LogState, bolt: str, forms: EntryForms, stored: bytes, origins: Iterable[int]
    ) -> CheckpointError:
        """Return the error that names two keys that have become one; only for it, they are read again."""
        shown: list[str] = []
        for task in origins:
            for keys, values in task_blocks(self.provider, self.folders, found, bolt, task):
                for old, data in zip(keys, values, strict=True):
                    if any(entry.stored == stored for entry in forms.entries(old, data)):
                        shown.append(f"{forms.shown(old)} in task {task}")
        return CheckpointError(
            f"bolt {bolt!r} can't be {self.what}: {forms.key_hook} makes one key of {' and '.join(shown)}, which is "
            f"{forms.shown(stored)}: one of their values would be lost. Nothing was changed; give each a key of its "
            "own, or have the former version put them together first",
            component=bolt,
        )


def _stays(before: StatefulIdentity, form: NewForm) -> bool:
    """Tell whether every entry stays in the task in which it is."""
    becomes = form.becomes
    if before.parallelism != becomes.parallelism:
        return False
    return form.key is None or becomes.parallelism == 1 or {kind for kind, *_ in becomes.routing} <= _STAYING


@dataclass(frozen=True)
class _Placing:
    """Sends the entries of a bolt to their new tasks.

    Parameters
    ----------
    takers : sequence
        Those of the new tasks.
    was : int
        How many tasks there were.
    router : Router, optional
        None: everything stays in its task.
    proves : bool
        Whether a key that has not changed must belong to the very task in which it lies.
    told : bool
        Whether the bolt says where keys belong; if not, new ones have to be shown as well.
    """

    takers: Sequence[Taker]
    was: int
    router: Router | None = None
    proves: bool = False
    told: bool = False

    def place(self, task: int, entries: Iterable[Entry]) -> None:
        """Send entries of a task, which come in the order in which they lay there."""
        shown: list[tuple[bytes, bytes]] = []
        told: list[tuple[bytes, bytes]] = []
        for stored, data, owner, is_new in entries:
            # What an OpaqueMap has written stays in its tasks, so its mark may only stay where all keys do.
            stays = owner is Owner.TASK and len(self.takers) == self.was
            if self.router is None or (stays and (self.proves or stored[:1] != Space.USER.value)):
                self.takers[task].add(stored, data)
            elif owner is Owner.ALL:  # all tasks hold the same
                for taker in self.takers if task == 0 else ():
                    taker.add(stored, data)
            else:
                (told if self.told and (is_new or not self.proves) else shown).append((stored, data))
        if self.router is None:
            return
        self.router.route(iter(told), 0, 1, self.takers)  # as if they came from one task: they may belong anywhere
        self.router.route(iter(shown), task, self.was, self.takers)

    def check_proof(self) -> None:
        """Refuse what may be chance."""
        if self.router is not None:
            self.router.check_proof(self.was)
