"""Starts a topology on a Spark session."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from statefx.config import Config
from statefx.coordinator import homes
from statefx.coordinator.adoption import check_adoption
from statefx.coordinator.coordinator import Coordinator
from statefx.coordinator.format import write_format
from statefx.coordinator.generation import read_checkpoint, take_generation
from statefx.coordinator.janitor import Janitor
from statefx.coordinator.location import Folders, local_path
from statefx.coordinator.log import TransactionLog
from statefx.coordinator.participants import participants_of
from statefx.coordinator.progress import TransactionProgress
from statefx.errors import ConfigError
from statefx.plan.deployment import Deployment, cache_folder
from statefx.plan.levels import compile_plan
from statefx.spark import offsets, part
from statefx.spark.bar import Bar, bar
from statefx.spark.engine import SparkEngine
from statefx.spark.feeds import BatchFeed, StreamFeed
from statefx.spark.frames import Intake, unite
from statefx.spark.pickling import dumps
from statefx.spark.preflight import check_alone, check_apart, check_executors, check_stream
from statefx.spark.query import Feed, Query
from statefx.spark.session import check_session, clone, hint
from statefx.spark.shutdown import watch
from statefx.spark.trigger import check_trigger
from statefx.state.registry import load_provider, resolve
from statefx.topology.checks import encodings_of
from statefx.topology.graph import Topology
from statefx.topology.identity import identify
from statefx.topology.submission import check_beside, check_sendable, checked

logger = logging.getLogger("statefx")


def submit(
    topology: Topology,
    spark: SparkSession,
    checkpointLocation: str | os.PathLike[str],
    config: Mapping[str, Any] | None = None,
    trigger: Mapping[str, Any] | None = None,
    *,
    batchId: int | None = None,
    adopt: str | None = None,
    progress: bool | None = None,
) -> Query:
    """Start a topology on Spark, going on from its last committed transaction.

    Parameters
    ----------
    topology : Topology
        From ``TopologyBuilder.createTopology``.
    spark : SparkSession
        A classic session; none of its settings is changed.
    checkpointLocation : str or path
        A folder that driver and executors see, of this topology alone.
    config : Mapping, optional
        Settings by Storm's names; see the configuration reference.
    trigger : Mapping, optional
        ``{"processingTime": "5 seconds"}``, ``{"availableNow": True}`` or ``{"once": True}``; by default every
        ``topology.state.checkpoint.interval.ms``. For streaming DataFrames only.
    batchId : int, optional
        For batch DataFrames: growing from run to run; an id that was applied before, or a lower one, is passed over.
    adopt : str, optional
        For a checkpoint that is found elsewhere than it was last run: ``"move"`` if nothing is left where it was,
        ``"fork"`` for a copy that shall go its own way.
    progress : bool, optional
        Whether a line on stderr tells of transactions, rows and rows a second; by default where stderr is a terminal.

    Returns
    -------
    Query
        Running; its face is that of pyspark's StreamingQuery.

    Raises
    ------
    TopologyError, ConfigError
        A mistake, found before anything was started or changed.
    CheckpointError
        The checkpoint location can't be used for this topology; nothing was changed.
    """
    session = check_session(spark)
    settings = checked(topology, config, "submit")
    streaming = topology.streaming
    _check_inputs(streaming, trigger, batchId, progress)
    arguments = check_trigger(trigger, settings.state_checkpoint_interval_ms) if streaming else {}
    check_sendable(topology, settings.mapping(), dumps)
    run = _Run(session, topology, settings, Folders(local_path(checkpointLocation)), streaming)
    log = run.take(adopt)
    shown = bar(topology.name, progress)
    coordinator, engine = run.assemble(log, shown)
    feed: Feed
    if streaming:
        name = f"{topology.name}-{log.state.lineage[:8]}"  # Spark wants it unique in a session; the same at each start
        unasked_ms = settings.state_checkpoint_interval_ms if trigger is None else None
        feed = StreamFeed(run.frame, run.folders, arguments, name, coordinator, engine, unasked_ms)
    else:
        feed = BatchFeed(run.frame, batchId, session, coordinator, engine)
    query = Query(topology.name, feed, coordinator, shown)
    watch(query)
    query.start()
    return query


class _Run:
    """What one call of `submit` puts together."""

    def __init__(
        self, session: SparkSession, topology: Topology, settings: Config, folders: Folders, streaming: bool
    ) -> None:
        self._session = session
        self._topology = topology
        self._settings = settings
        self._streaming = streaming
        self._reference = resolve(settings.state_provider)
        self._provider = load_provider(self._reference, settings.state_provider_config)
        check_beside(settings, self._provider)
        self._encodings = encodings_of(topology, settings)
        self._plan = compile_plan(topology)
        self.folders = folders
        self.frame = unite({c.id: c.dataframe for c in topology.components if c.is_stream})
        if streaming:
            check_stream(self.frame)
            check_apart(self.frame, folders.location)
        Intake(self._plan, self.frame)  # what Spark can't route is refused before the checkpoint is touched

    def take(self, adopt: str | None) -> TransactionLog:
        """Check that the checkpoint fits, and only then take a generation on it."""
        wanted = identify(self._topology, self._reference, self._encodings, self._provider.public_options())
        shared = self._provider.capabilities.shared
        found = read_checkpoint(self.folders)
        check_adoption(found, wanted, self.folders, adopt, shared=shared)
        homes.check_only(found, self.folders, adopt, cache_folder())
        if self._streaming:
            offsets.check(self.folders, found)
            if adopt is not None and found.location != self.folders.location:
                check_alone(self._session, offsets.wanted(found), self.folders.location)
        write_format(self.folders.storage)
        encodings = [reference for each in self._encodings.values() for reference in each.classes.values()]
        check_executors(self._session, self.folders, [self._reference, *encodings])
        hint(self._session, streaming=self._streaming)
        log = take_generation(self.folders, wanted, adopt, shared=shared)
        homes.note(log.state, cache_folder())
        if log.state.committed:
            logger.info("checkpoint %s: going on after transaction %d", self.folders.location, log.state.committed)
        else:
            logger.info("checkpoint %s: state is empty, no transaction has been committed", self.folders.location)
        if self._streaming:
            self.folders = part.take(self.folders, offsets.wanted(log.state), log.state.generation)
            offsets.restore(self.folders, log.state)
        self._provider.fence(log.state.lineage, log.state.generation, self.folders.state)
        return log

    def assemble(self, log: TransactionLog, shown: Bar | None) -> tuple[Coordinator, SparkEngine]:
        """Build the driver's side and the engine for the generation just taken."""
        deployment = Deployment(
            name=self._topology.name,
            plan=self._plan,
            config=self._settings.mapping(),
            provider=self._reference,
            options=self._settings.state_provider_config,
            lineage=log.state.lineage,
            generation=log.state.generation,
            storage=self.folders.storage,
            encodings=self._encodings,
        )
        stopping = threading.Event()
        engine = SparkEngine(deployment, self.frame, self._settings.transaction_timeout_secs, stopping)
        engine.bind(clone(self._session))
        participants = participants_of(self._plan, lazy_commit=self._provider.capabilities.lazy_commit)
        janitor = Janitor(
            self.folders, self._provider, sorted(participants.stateful), log.state.lineage, log.state.generation
        )

        def committed(done: TransactionProgress) -> None:
            janitor.committed(done.txid)
            if shown is not None:
                shown.committed(done)

        coordinator = Coordinator(
            name=self._topology.name,
            log=log,
            engine=engine,
            participants=participants,
            attempts_max=self._settings.transaction_attempts_max,
            pause=lambda secs: not stopping.wait(secs),
            committed=committed,
            ended=janitor.close,
        )
        return coordinator, engine


def _check_inputs(streaming: bool, trigger: Any, batch_id: Any, progress: Any) -> None:
    """Refuse arguments that the topology's kind of input has no use for."""
    if streaming and batch_id is not None:
        raise ConfigError("batchId is for batch DataFrames; a streaming query numbers its own batches")
    if not streaming and trigger is not None:
        raise ConfigError("trigger is for streaming DataFrames; a batch DataFrame is one transaction")
    if progress not in (None, True, False):
        raise ConfigError(f"progress must be True, False or None (where stderr is a terminal), got {progress!r}")
    if batch_id is not None and (isinstance(batch_id, bool) or not isinstance(batch_id, int) or batch_id < 0):
        raise ConfigError(f"batchId must be a whole number, growing from run to run, got {batch_id!r}")
