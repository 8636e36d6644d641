"""What a start does to state before it goes on with it: other tasks, and keys in another form."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from statefx.admin.parallel import Here, Workers
from statefx.admin.quarantined import check_free
from statefx.admin.rescaling import Rescaler
from statefx.admin.rewriting import NewForm, Rewriter
from statefx.coordinator.adoption import Adopt, adoptions
from statefx.coordinator.launch import Launch
from statefx.coordinator.log import TransactionLog
from statefx.operators import overrides
from statefx.protocol.log_state import LogState
from statefx.storage import Storage

logger = logging.getLogger("statefx")


def fit_state(
    launch: Launch,
    found: LogState,
    adopt: Adopt,
    opened: Callable[[Storage], TransactionLog] = TransactionLog,
    workers: Workers | None = None,
) -> None:
    """Have the state of a checkpoint be as the topology of `launch` wants it, which `check_checkpoint` has allowed.

    `workers` give it other tasks, by default this process.

    Raises
    ------
    ConfigError, CheckpointError, BoltError
        It can't be. What is refused has changed nothing; where one bolt is to have other keys and another one other
        tasks, keys come first, by a record of their own, and stay if the tasks are refused.
    """
    folders, provider, words = launch.folders, launch.provider, adoptions(adopt)
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
        rescaler = Rescaler(
            folders, provider, keys, opened, adopt=words, workers=workers or Here(), build=launch.build_provider
        )
        rescaler.run(found, tasks)
