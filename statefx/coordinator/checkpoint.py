"""The checkpoint location as a driver finds it: its format, whose it is, and the generation taken on it."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from statefx.coordinator.fitness import check_identity
from statefx.coordinator.log import TransactionLog, read_state
from statefx.errors import (
    CheckpointError,
    CheckpointFormatError,
    CheckpointMismatchError,
    ConfigError,
    FencedError,
    ProviderError,
)
from statefx.operators import overrides
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Generation, Lineage
from statefx.state.encoding.options import Encoding
from statefx.storage import FolderStorage, Storage
from statefx.topology.checks import keyed, routing
from statefx.topology.graph import Component, Topology

FORMAT = 2
ADOPTIONS = ("move", "fork")
TAKE_TRIES = 10

_NO_MATTER = (".", "format", "lost+found")
"""How names begin that a folder may hold before it is a checkpoint: left by a crash, or there from the start."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LOCAL = re.compile(r"file:(?:/|///+|//localhost/+)((?:[^/].*)?)", re.IGNORECASE | re.DOTALL)
"""A path as a URI without a host: ``file:/x``, ``file:///x``, ``file://localhost/x``."""


@dataclass(frozen=True)
class Folders:
    """The parts of a checkpoint location.

    Parameters
    ----------
    location : str
    part : str
        The name of Spark's part: each driver that takes over gives it a new one.
    """

    location: str
    part: str = "spark"

    @property
    def storage(self) -> Storage:
        """All of it, by name."""
        return FolderStorage(self.location)

    @property
    def log(self) -> str:
        """The transaction log."""
        return os.path.join(self.location, "transactions")

    @property
    def spark(self) -> str:
        """Spark's own checkpoint."""
        return os.path.join(self.location, self.part)

    @property
    def state(self) -> str:
        """State files."""
        return os.path.join(self.location, "state")

    @property
    def format(self) -> str:
        """The version of all of it."""
        return os.path.join(self.location, "format")


def local_path(location: str | os.PathLike[str]) -> str:
    """Return a checkpoint location as an absolute path.

    Raises
    ------
    ConfigError
        It names a file system that statefx can't use.
    """
    text = os.fspath(location) if isinstance(location, str | os.PathLike) else None
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"checkpointLocation must be a folder's path, got {location!r}")
    found = _LOCAL.fullmatch(text)
    if found is None and _SCHEME.match(text):
        raise ConfigError(
            f"checkpointLocation {text!r} names a file system; only folders are supported that are mounted at the same "
            "path on the driver and the executors: give that path, or file:/path (and for a folder whose name has a "
            f"colon: ./{text})"
        )
    return os.path.realpath(f"/{found[1]}" if found else text)


def identity(
    topology: Topology,
    provider: str,
    source: str,
    encodings: Mapping[str, Encoding] | None = None,
    options: Mapping[str, Any] | None = MappingProxyType({}),
) -> dict[str, Any]:
    """Return what must stay the same for a topology to go on with a checkpoint.

    Parameters
    ----------
    topology : Topology
    provider : str
        Reference of the state provider, ``module:Class``: two names of one are one.
    source : str
        ``stream`` or ``batch``.
    encodings : Mapping[str, Encoding], optional
        Of stateful components; those it has none for have the standard one.
    options : Mapping[str, Any] or None
        What the provider's `public_options` says; for `openState`, and may change.

    Raises
    ------
    ProviderError
        JSON can't write them.
    """
    given = encodings or {}
    kept = None if options is None else dict(options)
    try:
        json.dumps(kept)
    except (TypeError, ValueError) as error:
        raise ProviderError(f"{provider}: public_options() must return what JSON can write: {error}") from None
    stateful = {
        c.id: _of_component(topology, c, {"provider": provider, "options": kept}, given.get(c.id, Encoding()))
        for c in topology.components
        if c.stateful
    }
    return {"name": topology.name, "source": source, "stateful": stateful}


def _of_component(
    topology: Topology, component: Component, place: Mapping[str, Any], encoding: Encoding
) -> dict[str, Any]:
    """``options`` and ``encoding`` (for `openState`) and ``migrates`` tell of it, and may change; all else must stay.

    Fields that rows are grouped by may be renamed.
    """
    version = getattr(component.bolt, "stateVersion", 1)
    found = {
        "parallelism": component.parallelism,
        **place,
        "codec": encoding.name,
        "stateVersion": version,
        "keys": routing(topology, component.id),
        "fields": keyed(topology, component.id),
    }
    if encoding.own:
        found["encoding"] = encoding.own
    if version > 1:
        found["migrates"] = overrides(type(component.bolt), "migrateState")
    return found


def look(folders: Folders) -> LogState:
    """Read a checkpoint without changing it; empty if there is none."""
    _check_format(folders)
    if not os.path.isdir(folders.log):
        return LogState()
    return read_state(folders.storage)


def check(found: LogState, wanted: Mapping[str, Any], folders: Folders, adopt: str | None, *, shared: bool) -> None:
    """Refuse a checkpoint that this topology can't go on with; changes nothing.

    Raises
    ------
    ConfigError
        `adopt` is not one of the two words.
    CheckpointMismatchError
        Names both sides and the remedy.
    """
    if adopt is not None and adopt not in ADOPTIONS:
        raise ConfigError(f"adopt must be 'move' or 'fork', got {adopt!r}")
    if not found.generation:
        return
    check_identity(found.topology, wanted, folders.location)
    if found.location != folders.location and adopt is None:
        raise CheckpointMismatchError(
            f"the checkpoint in {folders.location} was last run in {found.location}. If it was moved, submit with "
            "adopt='move'; if it is a copy that shall go its own way, with adopt='fork'. Never run both as one.",
            location=folders.location,
            last=found.location,
        )
    if adopt == "fork" and shared:
        raise CheckpointMismatchError(
            f"the checkpoint in {folders.location} can't be forked: its state lives outside the folder, "
            "where both would change it. Use adopt='move', or start with a new checkpointLocation.",
            location=folders.location,
        )


def take(
    folders: Folders,
    wanted: Mapping[str, Any],
    adopt: str | None,
    *,
    shared: bool,
    opened: Callable[[Storage], TransactionLog] = TransactionLog,
) -> TransactionLog:
    """Open the log for appending and take the next generation: from here on older drivers are fenced.

    A driver that is still at work may win a number meanwhile; then the log is read and checked again.

    Raises
    ------
    CheckpointMismatchError
        As `check`.
    FencedError
        Others went on taking generations for `TAKE_TRIES` tries.
    """
    prepare(folders)
    for tries in range(TAKE_TRIES):
        log = opened(folders.storage)
        check(log.state, wanted, folders, adopt, shared=shared)
        try:
            if not log.state.lineage or adopt == "fork":
                log.append(Lineage(uuid.uuid4().hex))
            started = datetime.now(UTC).isoformat(timespec="seconds")
            log.append(Generation(log.state.generation + 1, folders.location, wanted, started))
        except FencedError:
            if tries == TAKE_TRIES - 1:
                raise
        else:
            return log
    raise AssertionError("unreachable")


def prepare(folders: Folders) -> None:
    """Make the folder and its format file.

    Raises
    ------
    CheckpointError
        It can't be made or written.
    """
    try:
        os.makedirs(folders.location, exist_ok=True)
        if not os.path.exists(folders.format):
            temporary = f"{folders.format}.{uuid.uuid4().hex}"
            with open(temporary, "w", encoding="ascii") as file:
                json.dump({"format": FORMAT}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, folders.format)
    except OSError as error:
        raise CheckpointError(
            f"checkpointLocation {folders.location} can't be written ({error.strerror}): "
            "give a folder in which this user may create files",
            path=folders.location,
        ) from error


def check_newest(folders: Folders, generation: int) -> LogState:
    """Return the log as it is now, unless a newer generation has taken over.

    Raises
    ------
    FencedError
        Names it.
    """
    state = read_state(folders.storage)
    if state.generation != generation:
        raise FencedError(
            f"generation {state.generation} has taken over the checkpoint in {folders.location}; this is {generation}. "
            "There is one driver at a time: this one has ended, and the other goes on where it was. Another topology "
            "needs a checkpointLocation of its own",
            generation=state.generation,
        )
    return state


def _check_format(folders: Folders) -> None:
    try:
        with open(folders.format, encoding="ascii") as file:
            found = json.load(file)["format"]
    except FileNotFoundError:
        if os.path.exists(folders.format):  # another driver is just making the checkpoint
            _check_format(folders)
            return
        if os.path.isdir(folders.log) and os.listdir(folders.log):
            raise CheckpointFormatError(
                f"{folders.format} is missing, but there is a transaction log beside it: restore the file "
                f'({{"format": {FORMAT}}} if this release wrote the checkpoint)',
                path=folders.format,
            ) from None
        _check_empty(folders)
        return
    except NotADirectoryError as error:
        raise CheckpointError(
            f"checkpointLocation {folders.location} is not a folder", path=folders.location
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointFormatError(f"{folders.format} can't be read: {error}", path=folders.format) from error
    if found != FORMAT:
        raise CheckpointFormatError(
            f"{folders.location} has checkpoint format {found!r}, this statefx reads {FORMAT}: "
            "open it with the release that wrote it",
            path=folders.format,
            format=found,
        )


def _check_empty(folders: Folders) -> None:
    """Refuse a folder of other things: a mistyped path would otherwise be a new checkpoint, with empty state."""
    try:
        found = sorted(name for name in os.listdir(folders.location) if not name.startswith(_NO_MATTER))
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointError(
            f"checkpointLocation {folders.location} can't be read: {error.strerror}", path=folders.location
        ) from error
    if found:
        raise CheckpointFormatError(
            f"checkpointLocation {folders.location} is no checkpoint, and not empty (it holds {found[0]!r}): give a "
            "folder of this topology's own",
            path=folders.location,
        )
