"""Whether a topology may go on with the checkpoint that it was given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statefx.coordinator.fitness import check_identity
from statefx.coordinator.location import Folders
from statefx.errors import CheckpointMismatchError, ConfigError
from statefx.protocol.log_state import LogState

ADOPTIONS = ("move", "fork")


def check_adoption(
    found: LogState, wanted: Mapping[str, Any], folders: Folders, adopt: str | None, *, shared: bool
) -> None:
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
