"""Other names for what a checkpoint that stands still keeps; ``submit(..., rename=, drop=)`` does it at a start."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from statefx.admin.reading import check_idle
from statefx.admin.savepoints import found_checkpoint, taken
from statefx.coordinator.renaming import Renaming
from statefx.errors import ConfigError, TopologyError
from statefx.plan.levels import name_shown
from statefx.topology.checks import check_id


@dataclass(frozen=True)
class Renamed:
    """What `rename` has done.

    Attributes
    ----------
    location : str
    names : Mapping[str, str]
        Old id to new one.
    dropped : tuple of str
        Whose state, or position in its source, was given up.
    """

    location: str
    names: Mapping[str, str]
    dropped: tuple[str, ...]

    def __str__(self) -> str:
        said = [f"{old} is called {new}" for old, new in self.names.items()]
        said += [f"what {one} has kept is given up" for one in self.dropped]
        return f"{self.location}: {', '.join(said)}"


def rename(
    checkpointLocation: str | os.PathLike[str], names: Mapping[str, str] | None = None, *, drop: Iterable[str] = ()
) -> Renamed:
    """Give stateful bolts and spouts of a checkpoint other ids, or give up what they keep; its topology must not run.

    Parameters
    ----------
    checkpointLocation : str or path
        As given to ``submit``.
    names : Mapping[str, str], optional
        Old id to new one.
    drop : iterable of str
        Ids whose state, or whose position in their source, is given up. Savepoints keep it.

    Returns
    -------
    Renamed

    Raises
    ------
    ConfigError
        The arguments are wrong, there is no such id, or a new one is there already.
    CheckpointError
        There is no checkpoint, or a transaction is under way in it.

    Contract
    --------
    * Copies nothing: one record is written, the GENERATION that fences a driver that runs.

    Examples
    --------
    >>> print(rename("checkpoints/word-count", {"count": "tally"}))     # doctest: +SKIP
    """
    folders, found = found_checkpoint(checkpointLocation)
    renaming = Renaming.of_names(names, drop)
    for new in renaming.names.values():
        try:
            check_id(new, ())
        except TopologyError as error:
            raise ConfigError(f"rename: {error.message}", component=new) from None
    there = renaming.known(found)
    asked = {*renaming.names, *renaming.dropped}
    if not asked or (lacking := sorted(asked - there)):
        what = f"{lacking[0]!r} keeps nothing" if asked else "say who is called what, or who is dropped"
        shown = sorted(one for one in there if one == name_shown(one))
        raise ConfigError(f"rename: {what}; in {folders.location} there are {shown or 'none'}")
    renaming.of(found)  # refuses a new name that is there
    check_idle(found, folders, "rename")
    taken(folders, "rename", renaming=renaming)
    return Renamed(folders.location, dict(renaming.names), tuple(sorted(renaming.dropped)))
