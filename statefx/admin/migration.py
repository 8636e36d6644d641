"""Moves committed state to another provider: copied, read back, compared, then switched by one record of the log.

::

    1 both sides are checked, and reached       2 a generation is taken: other drivers are fenced
    3 the state of every task is copied under a new lineage, read back and compared
    4 MIGRATED is durable: lineage, provider and heads are those of the copy

A failure before 4 leaves a copy under a lineage that nobody asks for, and the state where it was.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
from xxhash import xxh3_128

from statefx.admin.progress import Metered, ProgressMeter
from statefx.admin.reading import Progress, check_idle, check_started, kept_options, open_task
from statefx.config import Config
from statefx.coordinator.adoption import NOTHING_ADOPTED, check_adoption
from statefx.coordinator.generation import read_checkpoint, take_generation
from statefx.coordinator.location import Folders, checkpoint_location
from statefx.coordinator.log import TransactionLog, read_state
from statefx.errors import (
    CheckpointError,
    CheckpointMismatchError,
    ConfigError,
    FencedError,
    StateCorruptedError,
    StateError,
)
from statefx.protocol.identity import EMPTY, Namespace, TaskId, Version
from statefx.protocol.log_rules import pin_of
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Migrated
from statefx.state.contract.ranges import in_blocks
from statefx.state.contract.store import (
    StateContext,
    StateLocation,
    StateProvider,
    StateStore,
    Write,
    open_store,
    prepare_as,
)
from statefx.state.registry import load_provider, name_of, resolve
from statefx.storage import Storage

logger = logging.getLogger("statefx")

_PASSES = 3
"""State is read to be counted, read to be written, and read back."""


@dataclass(frozen=True)
class Migration:
    """What `migrate` has done.

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


def migrate(
    checkpointLocation: str | os.PathLike[str],
    to: str,
    config: Mapping[str, Any] | str | None = None,
    *,
    source: Mapping[str, Any] | str | None = None,
    progress: Progress | None = None,
) -> Migration:
    """Move the committed state of all stateful bolts of a checkpoint to another state provider.

    Stop the topology first. Afterwards submit it with the new provider; the old one is then refused.

    Parameters
    ----------
    checkpointLocation : str or path
        As given to ``submit``.
    to : str
        The provider that shall keep the state: a registered name, or ``module:Class``.
    config : Mapping or JSON text, optional
        Its options, as for ``topology.state.provider.config``.
    source : Mapping or JSON text, optional
        The options of the provider that keeps the state now: needed only where a secret is among them.
    progress : callable (done, total), optional
        As of `rescale`.

    Returns
    -------
    Migration

    Raises
    ------
    ConfigError
        A provider or an option is wrong, or the state is kept by this provider already; nothing was changed.
    CheckpointError
        There is no checkpoint, or a transaction is under way in it.
    StateError
        A provider can't be reached, or refuses. The state is where it was: migrate again. `StateCorruptedError` if the
        source is damaged, or what was read back is not what was copied.
    FencedError
        A topology was started meanwhile, or another migration. The state is where that one says.

    Contract
    --------
    * A driver that runs on the checkpoint is fenced.
    * Until the switch, which is one record of the log, the source is only read, and everything goes on from it.
    * What the switch names has been read back from the target, and is equal in every byte.
    * A migration that ended early begins again from nothing, and never goes on with what was copied before.

    Examples
    --------
    >>> migrate("checkpoints/word-count", to="redis", config={"url": "redis://db:6379/0"})     # doctest: +SKIP
    """
    folders = Folders(checkpoint_location(checkpointLocation))
    found = read_checkpoint(folders)
    kept = _provider_of(found, folders)
    wanted = resolve(_options("to", to, None).state_provider)
    if wanted == kept:
        raise ConfigError(
            f"the state of the checkpoint in {folders.location} is kept by {name_of(wanted)!r} already; if an earlier "
            "migration was killed before it could say so, it had switched",
            provider=wanted,
        )
    target = load_provider(wanted, _options("config", to, config).state_provider_config)
    if source is None:
        some = next(iter(found.topology.stateful.values()))  # one provider keeps all of them
        source = kept_options(some, "the state", "source={...}")
    origin = load_provider(kept, _options("source", kept, source).state_provider_config)
    return Migrator(folders, origin, target, wanted, progress=progress).run(found)


@dataclass
class Migrator:
    """One migration; `reference` is the target's, ``module:Class``."""

    folders: Folders
    source: StateProvider
    target: StateProvider
    reference: str
    opened: Callable[[Storage], TransactionLog] = TransactionLog
    clock: Callable[[], float] = time.monotonic
    progress: Progress | None = None

    def run(self, found: LogState) -> Migration:
        """Move the state of the checkpoint that was found in `found`."""
        began = self.clock()
        lineage = uuid.uuid4().hex
        self._check(found)
        self._reach(found, lineage)
        shared = self.source.location is StateLocation.SERVER
        # From here on a driver that ran is fenced. All that can be refused without harm has been (rule 1.5).
        log = take_generation(self.folders, found.topology, NOTHING_ADOPTED, shared=shared, opened=self.opened)
        check_idle(log.state, self.folders, "migrate")
        before = log.state
        # The log fences records only. Without fences of the providers a task of the former driver could still commit to
        # the source when it has been copied (rule 4.2).
        self.source.fence(before.lineage, before.generation, self.folders.storage)
        self.target.fence(lineage, before.generation, self.folders.storage)
        meter = ProgressMeter.of(self.progress, pin_of(before), _PASSES)
        tokens, sizes, sums = {}, {}, []
        for number, name in enumerate(sorted(before.heads), 1):
            tokens[name], sizes[name], copied = self._move(before, lineage, name, meter)
            sums.append(copied)
            logger.info(
                "state of %s is copied to %s and read back: %d keys, %d bytes (%d of %d)",
                name, self.reference, copied.keys, copied.bytes, number, len(before.heads),
            )  # fmt: skip
        options = self.target.public_options()
        # The switch: until this record stands, every start opens the source, whatever has been copied.
        log.append(Migrated(before.generation, lineage, self.reference, tokens, sizes, options))
        meter.end()
        logger.info("the state of the checkpoint in %s is kept by %s now", self.folders.location, self.reference)
        return Migration(
            source=_provider_of(before, self.folders),
            target=self.reference,
            txid=before.committed,
            components=len(before.topology.stateful),
            tasks=len(tokens),
            keys=sum(each.keys for each in sums),
            bytes=sum(each.bytes for each in sums),
            seconds=self.clock() - began,
            left=before.lineage,
        )

    def _check(self, found: LogState) -> None:
        """Refuse what can be refused without touching anything."""
        check_adoption(
            found, found.topology, self.folders, NOTHING_ADOPTED, shared=self.source.location is StateLocation.SERVER
        )
        check_idle(found, self.folders, "migrate")
        if found.pinned:
            raise CheckpointError(
                f"the checkpoint in {self.folders.location} has the savepoints {sorted(found.pinned)}, which can't be "
                "moved: delete them first (statefx.deleteSavepoint), or keep them elsewhere (statefx.export)",
                path=self.folders.location,
            )

    def _reach(self, found: LogState, lineage: str) -> None:
        """Find out, before anyone is fenced, that a provider can't be reached."""
        self.target.fence(lineage, found.generation, self.folders.storage)
        if self.source.location is StateLocation.SERVER:
            try:
                for name in sorted(found.heads)[:1]:  # one task shows whether server and password are right
                    self._open_source(found, name).close()
            except StateCorruptedError:
                if read_checkpoint(self.folders) == found:  # else it has only gone on
                    raise

    def _move(self, state: LogState, lineage: str, name: str, meter: ProgressMeter) -> tuple[str, int, Sum]:
        """Copy the state of one task and compare; return the token and the size of the copy, and what it holds."""
        namespace = replace(state.namespace(TaskId.parse(name)), lineage=lineage)
        try:
            token, size, there, copied = self._copied(state, namespace, name, meter)
        except StateError:  # who has taken over may have deleted what was read: it is not damaged then
            self._check_newest(state)
            raise
        self._check_newest(state)
        if copied != there:
            raise StateCorruptedError(
                f"{self.reference} gives back other state of {name} than it was given: {copied} for {there}. Nothing "
                "was switched; the state is where it was. Look for the fault in the provider or its server.",
                component=namespace.component,
                task=namespace.task,
                found=copied,
                expected=there,
            )
        return token, size, copied

    def _copied(
        self, state: LogState, namespace: Namespace, name: str, meter: ProgressMeter
    ) -> tuple[str, int, Sum, Sum]:
        """Copy the state of one task; return the token, its size, what there was, and what a new store gives back."""
        txid = state.heads[name].txid
        with (
            tempfile.TemporaryDirectory(prefix="statefx-migration-", ignore_cleanup_errors=True) as cache,
            closing(self._open_source(state, name)) as origin,
        ):
            source = Metered(origin, meter)
            there = sum_of(source.scan(None, None))
            with closing(self._open_target(state, namespace, EMPTY, cache)) as store:
                token, size = self._copy(store, txid, Entries(source, there.keys), namespace)
            # Another store: the one that wrote could answer from its memory.
            with closing(self._open_target(state, namespace, Version(txid, token), cache, read_only=True)) as store:
                return token, size, there, sum_of(Metered(store, meter).scan(None, None))

    def _copy(self, store: StateStore, txid: int, entries: Entries, namespace: Namespace) -> tuple[str, int]:
        if next(iter(store.scan(None, None)), None) is not None:
            raise StateError(
                f"{self.reference} holds state of {namespace} before anything was copied there: it does not keep "
                "lineages apart",
                namespace=namespace,
            )
        prepared = prepare_as(store, txid, uuid.uuid4().hex, entries)
        # In files of the checkpoint the token in MIGRATED commits. No later record would name a server's.
        if self.target.location is StateLocation.SERVER:
            store.commit(txid, prepared.token)
        return prepared.token, prepared.size_bytes

    def _open_source(self, state: LogState, name: str) -> StateStore:
        return open_task(self.source, self.folders, state, *TaskId.parse(name))[0]

    def _open_target(
        self, state: LogState, namespace: Namespace, version: Version, cache: str, read_only: bool = False
    ) -> StateStore:
        context = StateContext(state.generation, version, self.folders.storage, cache, read_only=read_only)
        return open_store(self.target, namespace, context)

    def _check_newest(self, state: LogState) -> None:
        """End if someone has taken over: what was read may then be of two transactions, or gone."""
        newest = read_state(self.folders.storage).generation
        if newest != state.generation:
            raise FencedError(
                f"generation {newest} has taken over the checkpoint in {self.folders.location}: a topology was "
                "started, or another migration. This one has switched nothing.",
                generation=state.generation,
                newest=newest,
            )


def _options(argument: str, provider: str, options: Mapping[str, Any] | str | None) -> Config:
    """Parse a provider and its options as `submit` does."""
    given = {"topology.state.provider": provider, "topology.state.provider.config": options or {}}
    try:
        return Config.parse(given, "migrate")
    except ConfigError as error:
        raise ConfigError(f"migrate: {argument}: {error.message}", **error.data) from None


def _provider_of(state: LogState, folders: Folders) -> str:
    check_started(state, folders)
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


class Sum(NamedTuple):
    """What entries amount to: how many there are, the bytes of their keys and values, and a checksum of all of them."""

    keys: int
    bytes: int
    checksum: str

    def __str__(self) -> str:
        return f"{self.keys} keys, {self.bytes} bytes, checksum {self.checksum}"


def sum_of(entries: Iterable[tuple[bytes, bytes]]) -> Sum:
    """Sum up `entries`; equal sums are equal entries in equal order."""
    summing = Summing()
    for keys, values in in_blocks(entries):
        summing.add(keys, values)
    return summing.sum


class Summing:
    """Sums up entries that come in blocks; how they are cut into blocks makes no difference."""

    def __init__(self) -> None:
        self._keys = self._bytes = 0
        # Lengths tell where one ends and the next begins. Each part is a stream of its own, so that it can be summed up
        # by a pass over all of a block.
        self._parts = [(xxh3_128(), xxh3_128()) for _ in range(2)]

    def add(self, keys: list[bytes], values: list[bytes]) -> None:
        """Take the next entries."""
        for part, (lengths, data) in zip((keys, values), self._parts, strict=True):
            sizes = np.fromiter(map(len, part), np.dtype("<u8"), len(part))
            lengths.update(sizes.tobytes())
            data.update(b"".join(part))
            self._bytes += int(sizes.sum())
        self._keys += len(keys)

    @property
    def sum(self) -> Sum:
        """What they amount to."""
        digests = b"".join(each.digest() for part in self._parts for each in part)
        return Sum(self._keys, self._bytes, xxh3_128(digests).hexdigest())


class Scanned(Protocol):
    """What has entries in key order."""

    def scan(self, start: bytes | None, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) with start <= key < stop."""


class Entries(Sequence[Write]):
    """The `count` entries of `store` in key order, for ``StateStore.prepare``: never in memory as a whole.

    Going through it once, entry by entry or slice by slice, reads the store once. Going back reads it again.
    """

    def __init__(self, store: Scanned, count: int) -> None:
        self._store = store
        self._count = count
        self._rows: Iterator[Write] = iter(())
        self._at = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Write]:
        yield from self._store.scan(None, None)

    @overload
    def __getitem__(self, at: int) -> Write: ...
    @overload
    def __getitem__(self, at: slice) -> list[Write]: ...
    def __getitem__(self, at: int | slice) -> Write | list[Write]:
        wanted = range(self._count)[at]
        if isinstance(wanted, int):
            return self._read(wanted, wanted + 1)[0]
        return self._read(wanted.start, wanted.stop) if wanted.step == 1 else [self[each] for each in wanted]

    def _read(self, start: int, stop: int) -> list[Write]:
        if start >= stop:
            return []
        if start < self._at:
            self._rows, self._at = iter(self), 0
        found = list(islice(self._rows, start - self._at, stop - self._at))
        self._at = stop
        return found
