"""Moves committed state to another provider: copied under a new lineage, and switched to by one record of the log.

Until that record, MIGRATED, stands, every start opens the source, whatever has been copied: a failure leaves a copy
under a lineage that no driver asks for, and the state where it was.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from statefx.admin.reading import Progress, counted, found_checkpoint, open_task, provider_of
from statefx.admin.rewrite import Rewrite, Side, WrittenTasks, check_changeable, copies
from statefx.config import Config
from statefx.errors import CheckpointError, CheckpointMismatchError, ConfigError, StateCorruptedError
from statefx.log.location import Folders
from statefx.log.takeover import read_checkpoint
from statefx.protocol.identity import TaskId
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Migrated
from statefx.state.contract.store import StateLocation, StateProvider
from statefx.state.registry import load_provider, name_of, resolve


@dataclass(frozen=True)
class Migration:
    """What `Checkpoint.migrate` has done.

    Attributes
    ----------
    source, target : str
        References of the providers, ``module:Class``.
    txid : int
        The transaction whose state was moved.
    components, tasks : int
        How many stateful bolts there are, and how many of their tasks had state.
    keys, bytes : int
        How many entries were copied, and the size of their keys and values as they are stored.
    seconds : float
        How long it took.
    left : str
        The lineage of what was left behind in the source: nobody asks for it any more.
    """

    source: str
    target: str
    txid: int
    components: int
    tasks: int
    keys: int
    bytes: int
    seconds: float
    left: str

    def __str__(self) -> str:
        size = f"{counted(self.keys, 'entry', 'entries')}, {counted(self.bytes, 'byte')}, {self.seconds:.1f} s"
        return (
            f"the state of {counted(self.components, 'bolt')} at transaction {self.txid} was moved from "
            f"{name_of(self.source)} to {name_of(self.target)}: {counted(self.tasks, 'task')}, {size}; submit with "
            f"topology.state.provider={name_of(self.target)!r}"
        )


def migration_plan(
    folders: Folders, config: Mapping[str, Any] | None, to: str, options: Mapping[str, Any] | str | None
) -> str:
    """Return what `migrate` would do; refuses what shows without reaching a provider, and changes nothing."""
    found, migrator = _migrator(folders, config, to, options, None)
    check_changeable(found, folders, "migrate")
    migrator.check_savepoints(found)
    provider = name_of(_provider_of(found, folders))
    return (
        f"move the state of {', '.join(sorted(found.topology.stateful))} of {folders.location} from {provider} to {to}"
    )


def migrate(
    folders: Folders,
    config: Mapping[str, Any] | None,
    to: str,
    options: Mapping[str, Any] | str | None,
    progress: Progress | None,
) -> Migration:
    """Move the state of all bolts to the provider `to` with `options`; `config` is that of the present one."""
    found, migrator = _migrator(folders, config, to, options, progress)
    return migrator.move(found)


def _migrator(
    folders: Folders,
    config: Mapping[str, Any] | None,
    to: str,
    options: Mapping[str, Any] | str | None,
    progress: Progress | None,
) -> tuple[LogState, Migrator]:
    found = found_checkpoint(folders)
    kept = _provider_of(found, folders)
    wanted = resolve(_options("to", to, None).state_provider)
    if wanted == kept:
        raise ConfigError(
            f"the state of the checkpoint in {folders.location} is kept by {name_of(wanted)!r} already; if an earlier "
            "migration was killed before it could say so, it had switched",
            provider=wanted,
        )
    target = load_provider(wanted, _options("config", to, options).state_provider_config)
    source = provider_of(found, config)
    return found, Migrator(folders, source, copies(found), "migrate", progress=progress, target=target, to=wanted)


@dataclass
class Migrator(Rewrite):
    """A rewriting whose target is another provider; `to` is its reference, ``module:Class``."""

    target: StateProvider = field(kw_only=True)
    to: str = field(kw_only=True)
    lineage: str = field(init=False, default_factory=lambda: uuid.uuid4().hex)

    def move(self, found: LogState) -> Migration:
        """Move the state of the checkpoint that was found in `found`."""
        source = _provider_of(found, self.folders)
        done = self.run(found)
        components, tasks = len(found.topology.stateful), len(done.tokens)
        return Migration(
            source, self.to, found.committed, components, tasks, done.keys, done.bytes, done.seconds, found.lineage
        )

    @property
    def target_provider(self) -> StateProvider:
        return self.target

    def check(self, found: LogState) -> None:
        super().check(found)
        self.check_savepoints(found)
        self._reach(found)

    def check_savepoints(self, found: LogState) -> None:
        """Refuse a checkpoint that has some."""
        if found.pinned:
            raise CheckpointError(
                f"the checkpoint in {self.folders.location} has the savepoints {sorted(found.pinned)}, which can't be "
                "moved: delete them first (Checkpoint.deleteSavepoint), or keep them elsewhere (Checkpoint.restore "
                "with to=)",
                path=self.folders.location,
            )

    def _reach(self, found: LogState) -> None:
        """Find out, before any driver is fenced, that a provider can't be reached."""
        self.target.fence(self.lineage, found.generation, self.folders.storage)
        if self.provider.location is StateLocation.SERVER:
            try:
                for name in sorted(found.heads)[:1]:  # one task shows whether server and password are right
                    open_task(self.provider, self.folders, found, *TaskId.parse(name))[0].close()
            except StateCorruptedError:
                if read_checkpoint(self.folders) == found:  # else it has only gone on, which is refused below
                    raise

    def begin(self, found: LogState) -> tuple[LogState, Side]:
        state = self.take(found)
        self.target.fence(self.lineage, state.generation, self.folders.storage)
        return state, Side(self.folders, lambda: self.target, replace(state, lineage=self.lineage))

    def record(self, state: LogState, target: Side, written: WrittenTasks) -> Migrated:
        options = self.target.public_options()
        return Migrated(state.generation, self.lineage, self.to, written.tokens, written.sizes, options)


def _options(argument: str, provider: str, options: Mapping[str, Any] | str | None) -> Config:
    """Parse a provider and its options as `submit` does."""
    given = {"topology.state.provider": provider, "topology.state.provider.config": options or {}}
    try:
        return Config.parse(given, "migrate")
    except ConfigError as error:
        raise ConfigError(f"migrate: {argument}: {error.message}", **error.data) from None


def _provider_of(state: LogState, folders: Folders) -> str:
    found = {bolt.provider for bolt in state.topology.stateful.values()}
    if not found:
        raise CheckpointError(
            f"the topology of the checkpoint in {folders.location} has no stateful bolt: there is nothing to migrate",
            path=folders.location,
        )
    if len(found) > 1:
        raise CheckpointMismatchError(
            f"the state of the checkpoint in {folders.location} is kept by several providers, {sorted(found)}",
            path=folders.location,
        )
    return found.pop()
