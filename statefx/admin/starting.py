"""The start of a topology on a checkpoint: what refuses it, what it does to state, and the next generation.

State gets other tasks, and keys another form, before the start goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from statefx.admin.quarantined import check_free
from statefx.admin.rekeying import NewForm, Rekey
from statefx.admin.rescaling import rescalings
from statefx.admin.rewrite import Rewrite, Step
from statefx.admin.work import Here, Workers
from statefx.coordinator.format import write_format
from statefx.coordinator.launch import Launch
from statefx.coordinator.log import TransactionLog
from statefx.operators import overrides
from statefx.protocol.log_state import LogState
from statefx.storage import Storage


def start(
    launch: Launch,
    opened: Callable[[Storage], TransactionLog] = TransactionLog,
    *,
    preflight: Callable[[LogState], None] = lambda found: None,
    workers: Workers | None = None,
) -> TransactionLog:
    """Take the next generation of a checkpoint, once all that can refuse the start has been checked (rule 1.5).

    `preflight` checks what is the caller's own, given what was found. `workers` give state other tasks, by default this
    process does.

    Raises
    ------
    ConfigError, CheckpointError, SinkError, BoltError
        The checkpoint, or the caller's own check, refuses the start; nothing was changed.
    FencedError
        Another driver started at the same time.
    """
    found = launch.check_checkpoint()
    write_format(launch.folders.storage)  # makes the folder, in which executors then look for a file
    preflight(found)
    if steps := steps_of(launch, found):
        then = "start the version that gives state other keys or tasks"
        Rewrite(
            launch.folders, launch.provider, steps, then, opened, launch.adopt,
            workers=workers or Here(), build=launch.build_provider,
        ).run(found)  # fmt: skip
    return launch.take_generation(opened)


def steps_of(launch: Launch, found: LogState) -> dict[str, Step]:
    """Return what has to be done that state is as the topology wants it, by bolt."""
    for id in launch.regrouped(found):
        check_free(launch.provider, launch.folders, found, id)
    bolts, stateful = launch.bolts(found), found.topology.stateful
    keys = {id: bolt.groupingKey for id, bolt in bolts.items() if overrides(type(bolt), "groupingKey")}
    steps: dict[str, Step] = {}
    for id, becomes in launch.rekeyed(found).items():
        key = partial(bolts[id].migrateKey, stateful[id].state_version)
        steps[id] = Rekey(id, NewForm(becomes, key, "migrateKey", keys.get(id)), "given other keys")
    if tasks := launch.rescalings(found):
        steps |= rescalings(found, tasks, {id: keys[id] for id in keys.keys() & tasks.keys()})
    return steps
