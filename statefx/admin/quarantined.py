"""Which keys of a bolt's grouping are in quarantine, and how many rows of each wait."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from statefx.admin.reading import component_of, kept_provider, open_task
from statefx.errors import CheckpointError
from statefx.log.location import Folders, checkpoint_location
from statefx.log.takeover import read_checkpoint
from statefx.operators.quarantine import GroupKeys, held
from statefx.operators.schema import parse_type
from statefx.protocol.log_state import LogState
from statefx.protocol.topology_identity import StatefulIdentity
from statefx.state.contract.spaces import Space, end_of
from statefx.state.contract.store import StateProvider

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
    if len(_groupings(known)) != 1:
        raise CheckpointError(
            f"bolt {component!r} gets its rows by no fieldsGrouping, or by several: no key of it can be in quarantine",
            component=component,
        )
    return _found(kept_provider(state, known, component, config), folders, state, component)


def check_free(provider: StateProvider, folders: Folders, state: LogState, component: str) -> None:
    """Refuse that rows of a bolt get other keys while some are in quarantine.

    Nothing tells which new key a row that waits has: it would be dropped when it is replayed, and later rows would pass
    it.

    Raises
    ------
    CheckpointError
        Names a key.
    """
    known = state.topology.stateful[component]
    if len(_groupings(known)) != 1 or not state.holds(component):
        return
    with closing(_found(provider, folders, state, component)) as found:
        first = next(found, None)
    if first is not None:
        raise CheckpointError(
            f"bolt {component!r} can't group its rows otherwise than before: of its key {first.key!r}, and maybe of "
            f"others, rows wait in quarantine, and would never be executed. Start it with the grouping of before, and "
            "replay or forget them; statefx.quarantined lists the keys",
            component=component,
        )


def _groupings(known: StatefulIdentity) -> list[Sequence[str]]:
    """Return the types of the fields that a bolt's rows are grouped by."""
    return [types for kind, *types in known.routing if kind == "fields"]


def _found(provider: StateProvider, folders: Folders, state: LogState, component: str) -> Generator[Quarantined]:
    known = state.topology.stateful[component]
    form = GroupKeys([parse_type(each) for each in _groupings(known)[0]])
    for task in range(known.parallelism):
        with closing(open_task(provider, folders, state, component, task)[0]) as store:
            for stored, value in store.scan(_HEAD, end_of(_HEAD)):
                fields, waits = form.fields(stored), held(value)
                key = fields[0] if len(fields) == 1 else fields
                yield Quarantined(key, task, waits.next - waits.first, waits.first, waits.txid, waits.why)
