"""The start of a topology on a checkpoint: what refuses it, what it does to state, and the next generation.

State gets other tasks, and keys another form, before the start goes on with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from statefx.admin.parallel import Here, Workers
from statefx.admin.quarantined import check_free
from statefx.admin.rescaling import Rescaler
from statefx.admin.rewriting import NewForm, Rewriter
from statefx.coordinator.format import write_format
from statefx.coordinator.launch import Launch
from statefx.coordinator.log import TransactionLog
from statefx.operators import overrides
from statefx.protocol.log_state import LogState
from statefx.storage import Storage

logger = logging.getLogger("statefx")


def start(
    launch: Launch,
    opened: Callable[[Storage], TransactionLog] = TransactionLog,
    *,
    preflight: Callable[[LogState], None] = lambda found: None,
    workers: Workers | None = None,
) -> TransactionLog:
    """Take the next generation of a checkpoint, once all that can refuse the start has been checked (rule 1.5).

    Parameters
    ----------
    preflight : callable
        Checks what is the caller's own; given what was found.
    workers : Workers, optional
        Who gives state other tasks, by default this process.

    Raises
    ------
    ConfigError, CheckpointError, SinkError, BoltError
        The checkpoint, or the caller's own check, refuses the start. What is refused has changed nothing; where one
        bolt is to have other keys and another one other tasks, keys come first, by a record of their own, and stay if
        the tasks are refused.
    FencedError
        Another driver started at the same time.
    """
    found = launch.check_checkpoint()
    write_format(launch.folders.storage)  # makes the folder, in which executors then look for a file
    preflight(found)
    _fit_state(launch, found, opened, workers or Here())
    return launch.take_generation(opened)


def _fit_state(launch: Launch, found: LogState, opened: Callable[[Storage], TransactionLog], workers: Workers) -> None:
    """Have state be as the topology wants it."""
    folders, provider, words = launch.folders, launch.provider, launch.adopt
    for id in launch.regrouped(found):
        check_free(provider, folders, found, id)
    bolts = launch.bolts(found)
    keys = {id: bolt.groupingKey for id, bolt in bolts.items() if overrides(type(bolt), "groupingKey")}
    if rekeyed := launch.rekeyed(found):
        forms = {}
        for id, becomes in rekeyed.items():
            version = found.topology.stateful[id].state_version
            forms[id] = NewForm(becomes, partial(bolts[id].migrateKey, version), "migrateKey", keys.get(id))
        rewriter = Rewriter(
            folders, provider, "given other keys", "start the version that gives keys another form", opened, words
        )
        done = rewriter.run(found, forms)
        logger.info("%s: keys of %s have another form; %d keys were written", folders.location, [*forms], done.keys)
    if tasks := launch.rescalings(found):
        rescaler = Rescaler(folders, provider, keys, opened, adopt=words, workers=workers, build=launch.build_provider)
        rescaler.run(found, tasks)
