"""Starts a topology on a Spark session."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from statefx.config import Config
from statefx.coordinator import checkpoint
from statefx.coordinator.checkpoint import Folders
from statefx.coordinator.cast import cast_of
from statefx.coordinator.coordinator import Coordinator
from statefx.coordinator.janitor import Janitor
from statefx.errors import ConfigError, TopologyError
from statefx.spark import offsets
from statefx.spark.engine import SparkEngine
from statefx.spark.feeds import BatchFeed, StreamFeed
from statefx.spark.frames import unite
from statefx.spark.query import Feed, Query
from statefx.spark.session import check_session, clone, hint
from statefx.spark.shutdown import stop_on_sigterm
from statefx.spark.trigger import check_trigger
from statefx.state.registry import load_provider, resolve
from statefx.topology.deployment import Deployment, cache_folder
from statefx.topology.graph import Topology
from statefx.topology.plan import compile_plan


def submit(
    topology: Topology,
    spark: SparkSession,
    checkpointLocation: str | os.PathLike[str],  # noqa: N803 - pyspark's name
    config: Mapping[str, Any] | None = None,
    trigger: Mapping[str, Any] | None = None,
    *,
    batchId: int | None = None,  # noqa: N803 - pyspark's style
    adopt: str | None = None,
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
        ``"move"`` or ``"fork"``, for a checkpoint that is found elsewhere than it was last run.

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
    if not isinstance(topology, Topology):
        raise TopologyError(f"submit needs a Topology, got {type(topology).__name__}: call builder.createTopology()")
    settings = Config.parse(config, topology.name)
    streaming = _is_streaming(topology)
    _check_inputs(settings, streaming, trigger, batchId)
    arguments = check_trigger(trigger, settings.state_checkpoint_interval_ms) if streaming else {}
    reference = resolve(settings.state_provider)
    provider = load_provider(reference, settings.state_provider_config)
    folders = Folders(checkpoint.local_path(checkpointLocation))
    wanted = checkpoint.identity(topology, settings.state_provider, "stream" if streaming else "batch")
    found = checkpoint.look(folders)
    checkpoint.check(found, wanted, folders, adopt, shared=provider.capabilities.shared)
    if streaming:
        offsets.check(folders, found)
    hint(session)
    log = checkpoint.take(folders, wanted, adopt)
    offsets.restore(folders, log.state)
    provider.fence(log.state.lineage, log.state.generation, folders.state)
    plan = compile_plan(topology)
    deployment = Deployment(
        name=topology.name,
        plan=plan,
        config=settings.mapping(),
        provider=reference,
        options=settings.state_provider_config,
        lineage=log.state.lineage,
        generation=log.state.generation,
        location=folders.location,
        cache=cache_folder(),
    )
    frame = unite({c.id: c.dataframe for c in topology.components if c.is_stream})
    stopping = threading.Event()
    engine = SparkEngine(deployment, frame, settings.transaction_timeout_secs, stopping)
    engine.bind(clone(session))
    cast = cast_of(plan, lazy_commit=provider.capabilities.lazy_commit)
    janitor = Janitor(folders, provider, sorted(cast.stateful), log.state.lineage, log.state.generation)
    coordinator = Coordinator(
        log=log,
        engine=engine,
        players=cast,
        attempts_max=settings.transaction_attempts_max,
        pause=lambda secs: not stopping.wait(secs),
        committed=janitor.committed,
    )
    feed: Feed
    if streaming:
        feed = StreamFeed(frame, folders, arguments, topology.name, coordinator, engine)
    else:
        feed = BatchFeed(frame, batchId, session, coordinator, engine)
    query = Query(topology.name, feed, coordinator)
    stop_on_sigterm(query)
    query.start()
    return query


def _is_streaming(topology: Topology) -> bool:
    return any(c.is_stream and c.dataframe.isStreaming for c in topology.components)


def _check_inputs(settings: Config, streaming: bool, trigger: Any, batch_id: Any) -> None:
    """Refuse settings that the topology's kind of input has no use for."""
    if settings.max_spout_pending > 1:
        raise ConfigError(
            "topology.max.spout.pending must be 1 for a topology of DataFrames: Spark gives one micro-batch at a time",
            key="topology.max.spout.pending",
        )
    if streaming and batch_id is not None:
        raise ConfigError("batchId is for batch DataFrames; a streaming query numbers its own batches")
    if not streaming and trigger is not None:
        raise ConfigError("trigger is for streaming DataFrames; a batch DataFrame is one transaction")
    if batch_id is not None and (isinstance(batch_id, bool) or not isinstance(batch_id, int) or batch_id < 0):
        raise ConfigError(f"batchId must be a whole number, growing from run to run, got {batch_id!r}")

