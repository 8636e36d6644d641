"""Which keys of a bolt's grouping are in quarantine, and how many rows of each wait."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from statefx.admin.reading import component_of, kept_provider, open_task
from statefx.coordinator.generation import read_checkpoint
from statefx.coordinator.location import Folders, checkpoint_location
from statefx.errors import CheckpointError
from statefx.operators.ddl import parse_type
from statefx.runtime.quarantine import GroupKeys, held
from statefx.state.contract.spaces import Space, end_of

_HEAD = Space.QUARANTINE.value


@dataclass(frozen=True)
class Quarantined:
    """A key whose rows are held back.

    Attributes
    ----------
    key : object
        The field of the bolt's ``fieldsGrouping``, or a tuple of its fields.
    task : int
    rows : int
        How many rows wait, each of which is a dead letter.
    first : int
        The ``number`` of the dead letter that has to be replayed first; those behind it count on from there.
    txid : int
        The transaction in which a row of the key raised an error.
    error : str
        That error, in one line.
    """

    key: Any
    task: int
    rows: int
    first: int
    txid: int
    error: str


def quarantined(
    checkpointLocation: str | os.PathLike[str], component: str, config: Mapping[str, Any] | None = None
) -> Iterator[Quarantined]:
    """Yield the keys of a bolt with ``onError="quarantineKey"`` whose rows are held back, by task, then by key.

    Changes nothing. Nothing is held in memory but a block of each task. While the topology runs, a task may be shown
    as of a later transaction than another one.

    Parameters
    ----------
    checkpointLocation : str or path
        As given to ``submit``.
    component : str
        The bolt's id.
    config : Mapping, optional
        As of `openState`.

    Raises
    ------
    CheckpointError, ConfigError
        As of `openState`; also if the bolt's rows are not grouped by fields.

    Examples
    --------
    >>> for each in quarantined("checkpoints/bank", "balances"):     # doctest: +SKIP
    ...     print(each.key, each.rows, each.error)
    """
    folders = Folders(checkpoint_location(checkpointLocation))
    state = read_checkpoint(folders)
    known = component_of(state, component, folders)
    groupings = [types for kind, *types in known.routing if kind == "fields"]
    if len(groupings) != 1:
        raise CheckpointError(
            f"bolt {component!r} gets its rows by no fieldsGrouping, or by several: no key of it can be in quarantine",
            component=component,
        )
    provider = kept_provider(state, known, component, config)
    form = GroupKeys([parse_type(each) for each in groupings[0]])

    def found() -> Iterator[Quarantined]:
        for task in range(known.parallelism):
            with closing(open_task(provider, folders, state, component, task)[0]) as store:
                for stored, value in store.scan(_HEAD, end_of(_HEAD)):
                    fields, waits = form.fields(stored), held(value)
                    key = fields[0] if len(fields) == 1 else fields
                    yield Quarantined(key, task, waits.next - waits.first, waits.first, waits.txid, waits.why)

    return found()
