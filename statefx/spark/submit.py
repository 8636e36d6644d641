"""Starts a topology on a Spark session."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

from statefx import logs
from statefx.config import NOT_WRITTEN, SPELLINGS, Config, micros_of
from statefx.coordinator.coordinator import Coordinator
from statefx.coordinator.launch import Launch, check_batch_id
from statefx.coordinator.observation import Observer
from statefx.coordinator.spouts import SpoutTrigger
from statefx.errors import CheckpointError, ConfigError, StatefxError
from statefx.listeners import TopologyListener, check_listener
from statefx.log.adoption import Adopt, forks
from statefx.log.log import TransactionLog
from statefx.protocol.log_state import LogState
from statefx.spark.checkpoint import (
    STAGED,
    SparkCheckpoint,
    check_places,
    check_run_folders,
    not_made,
    query_id,
    run_folder,
)
from statefx.spark.executors import Executors
from statefx.spark.failures import without_internal_frames
from statefx.spark.feeds import BatchFeed, SpoutFeed, StreamFeed
from statefx.spark.internals import places_of, sources_of, task_slots
from statefx.spark.job import PipelinedEngine, held_slots, planning_session, warm_up
from statefx.spark.preflight import (
    check_alone,
    check_apart,
    check_control_port,
    check_executors,
    check_slots,
    check_stream,
)
from statefx.spark.query import Bar, Feed, Page, Query, bar, watch
from statefx.spark.session import check_session, hint, is_local
from statefx.spark.staging import Stager, unite
from statefx.spark.tables import frame_of
from statefx.spark.worker import dumps
from statefx.storage import FolderStorage, Storage, is_remote
from statefx.topology.graph import Topology
from statefx.topology.submission import check_closing, check_trees

if TYPE_CHECKING:
    pass

logger = logging.getLogger("statefx")

INTERVAL_MS = 1000
SPOUTS_INTERVAL_MS = 100
"""The time between two transactions where no setting says it. To stage a DataFrame costs some 100 ms; a transaction
10 to 20, in most of which it waits for the disk."""

TRACKED_INTERVAL_MS = 25
"""With a Spout, whose messages wait for their acks: at 10,000 a second half of them had theirs within 60 ms with an
interval of 100 ms, 42 with 50, 19 with 20 and 10 without one."""

_CLOSING = '{"availableNow": True, "closeTime": True}'
_FORMS = f'{{"processingTime": "5 seconds"}}, {{"availableNow": True}}, {_CLOSING} or {{"once": True}}'


def submit(
    topology: Topology,
    spark: SparkSession,
    checkpointLocation: str | os.PathLike[str],
    config: Mapping[str, Any] | None = None,
    trigger: Mapping[str, Any] | None = None,
    *,
    batchId: int | None = None,
    adopt: Adopt = None,
    rename: Mapping[str, str] | None = None,
    drop: Iterable[str] = (),
    rescale: bool = False,
    progress: bool | None = None,
    listeners: Iterable[TopologyListener] = (),
) -> Query:
    """Start a topology on Spark, going on from its last committed transaction.

    Parameters
    ----------
    topology : Topology
        From ``TopologyBuilder.createTopology``.
    spark : SparkSession
        A classic session, not Spark Connect; none of its settings is changed.
    checkpointLocation : str or path
        A folder of this topology alone, at the same path for driver and executors; or a prefix in an object store.
    config : Mapping, optional
        Settings by Storm's names; see the configuration reference.
    trigger : Mapping, optional
        ``{"processingTime": "5 seconds"}``, ``{"availableNow": True}`` or ``{"once": True}``; by default every
        ``topology.state.checkpoint.interval.ms``. For streaming DataFrames and spouts only. With
        ``{"availableNow": True, "closeTime": True}``, also for batch DataFrames, event time ends with the input: all
        windows, joins and timers end, and rows that come later are refused.
    batchId : int, optional
        For batch DataFrames: grows from start to start; one that was applied before, or a lower one, is skipped.
    adopt : str or collection of str, optional
        ``"move"`` for a checkpoint of which nothing is left where it was last run; ``"fork"`` for a copy that goes its
        own way; ``"takeover"``: targets of sinks that another application or checkpoint owns belong to this one from
        now on (a new checkpoint writes all that is there again). Or a list.
    rename : Mapping, optional
        Of stateful bolts, spouts and streaming DataFrames, ids in this checkpoint to new ones. May stay in the program.
    drop : collection of str, optional
        Stateful bolts and spouts that the topology no longer has: their state is deleted. May stay as well.
    rescale : bool
        Whether stateful bolts with another parallelism than in the checkpoint are rescaled first. May stay as well.
    progress : bool, optional
        Whether a line on stderr shows transactions, rows and rows a second; by default where stderr is a terminal.
    listeners : collection of TopologyListener, optional
        Called with what happens, from the start on, as by `Query.addListener`.

    Returns
    -------
    Query
        Running; it has methods of pyspark's StreamingQuery.

    Raises
    ------
    TopologyError, ConfigError
        A mistake, found before anything was started or changed.
    CheckpointError
        The checkpoint location can't be used for this topology; nothing was changed.
    """
    try:
        changes = {"adopt": adopt, "rename": rename, "drop": drop, "rescale": rescale}
        with logs.fields(topology=getattr(topology, "name", None)), ExitStack() as opened:
            return _submit(
                topology, spark, checkpointLocation, config, trigger, batchId, changes, progress, listeners, opened
            )
    except StatefxError as error:
        raise without_internal_frames(error, "submit ended") from error.__cause__


def _submit(
    topology: Topology,
    spark: SparkSession,
    checkpointLocation: str | os.PathLike[str],
    config: Mapping[str, Any] | None,
    trigger: Mapping[str, Any] | None,
    batchId: int | None,
    changes: Mapping[str, Any],
    progress: bool | None,
    listeners: Iterable[TopologyListener],
    opened: ExitStack,
) -> Query:
    """Submit; what is `opened` is closed when this raises."""
    session = check_session(spark)
    launch = Launch(
        topology,
        config,
        checkpointLocation,
        caller="submit",
        dumps=dumps,
        **changes,
        dataframe=partial(frame_of, session),
    )
    _check_arguments(topology, trigger, batchId, progress)
    called = _listeners(listeners)
    default_ms = _interval_ms(topology, launch.settings)
    arguments = {}
    if topology.streaming or topology.reads_spouts or trigger is not None:
        arguments = _checked_trigger(trigger, default_ms)
    check_slots(topology, launch.plan, session, launch.folders.storage.url)
    frame = None if topology.reads_spouts else _check_frame(launch)
    check_trees(topology, launch.settings, _spout_trigger(arguments).interval_secs)
    served = launch.metrics_server()
    if served is not None:
        opened.callback(served.close)
    page = _page(launch, config, opened)
    own = planning_session(session)
    warm_up(own, launch.plan)
    preflight = partial(_preflight, launch, own, frame, batchId)
    log = launch.start(preflight=preflight, workers=Executors(own, f"{topology.name}: rescale"))
    shown = bar(topology.name, progress)
    stopping = threading.Event()
    staging = _staging_folder(launch, log, session)
    deployment = launch.deployment(log, staged=staging)
    engine = PipelinedEngine(
        deployment, own, launch.settings.transaction_timeout_secs, launch.settings.control_port, stopping
    )
    coordinator = _coordinator(launch, log, engine, stopping, shown)
    feed: Feed
    if frame is None:
        feed = SpoutFeed(launch.spout_source(coordinator, _spout_trigger(arguments)), coordinator, engine)
    else:
        if topology.streaming:
            frame = _united(launch, frame, log.state.topology.streams)
        unasked_ms = default_ms if trigger is None else None
        feed = _frame_feed(launch, frame, arguments, batchId, coordinator, engine, stopping, unasked_ms)
    observer = Observer(launch, log, coordinator.progress, versions={"pyspark": pyspark.__version__})
    query = Query(topology.name, feed, coordinator, shown, called, observer, page)
    if served is not None:
        served.attach(query)
        query.metricsUrl = served.url
        launch.on_end(served.close)
    watch(query)
    query.start()
    opened.pop_all()
    return query


def _page(launch: Launch, config: Mapping[str, Any] | None, opened: ExitStack) -> Page | None:
    """Take the port of the page, if there is to be one: a port that is taken is found out before anything is changed.

    By name: the page shows checkpoints as well, whose room is above this one.
    """
    settings = launch.settings
    if settings.ui_port is None:
        return None
    claimed = import_module("statefx.ui").claimed
    page: Page = claimed(settings.ui_host, settings.ui_port, launch.topology.name, launch.folders.location, config)
    opened.callback(page.close)
    return page


def _staging_folder(launch: Launch, log: TransactionLog, session: SparkSession) -> Storage:
    """Return the storage for staged rows."""
    folders = launch.folders
    if launch.topology.reads_spouts or is_remote(folders.location):
        return folders.storage
    if not _stages_here(launch, session):
        return FolderStorage(folders.location, durable=False)
    try:
        folder = run_folder(STAGED, f"{log.state.lineage}-{log.state.generation}")
    except OSError as error:  # the disk has become full since `check_run_folders`
        raise CheckpointError(not_made(error), path=error.filename) from error
    launch.on_end(folder.remove)
    return FolderStorage(folder.path, durable=False)


def _stages_here(launch: Launch, session: SparkSession) -> bool:
    """Return whether rows are staged on this machine, as all tasks run there, and not in the checkpoint."""
    remote = is_remote(launch.folders.location)
    return not launch.topology.reads_spouts and not remote and is_local(session.sparkContext)


def _frame_feed(
    launch: Launch,
    frame: DataFrame,
    trigger: Mapping[str, Any],
    batch_id: int | None,
    coordinator: Coordinator,
    engine: PipelinedEngine,
    stopping: threading.Event,
    unasked_ms: int | None,
) -> Feed:
    log, plan, context = coordinator.log, launch.plan, frame.sparkSession.sparkContext
    stager = Stager(
        plan,
        frame.columns,
        engine.staged,
        launch.folders.storage,
        log.state.generation,
        engine.labels,
        coordinator.progress,
        lambda: task_slots(context) - held_slots(),
        coordinator.shape.attempts_max,
        coordinator.retry_delay_secs,
        stopping,
    )
    engine.busy = lambda: stager.holds_slots
    if not launch.topology.streaming:
        closes = "closeTime" in trigger
        return BatchFeed(frame, batch_id, plan, coordinator, engine, stager, close_time=closes)
    name = _query_name(launch, log.state)
    checkpoint = SparkCheckpoint(launch.folders, log, sources_of(frame))
    return StreamFeed(frame, launch.folders, checkpoint, trigger, name, plan, coordinator, engine, stager, unasked_ms)


def _query_name(launch: Launch, state: LogState) -> str:
    """Return the name of Spark's query, which is unique in a session: it is the same at each start.

    By the origin, as a move to another provider changes the lineage, and a driver of before may still run.
    """
    return f"{launch.topology.name}-{state.origin[:8]}"


def _interval_ms(topology: Topology, settings: Config) -> int:
    if settings.state_checkpoint_interval_ms is not None:
        return settings.state_checkpoint_interval_ms
    if topology.tracked_spouts:
        return TRACKED_INTERVAL_MS
    return SPOUTS_INTERVAL_MS if topology.reads_spouts else INTERVAL_MS


def _check_frame(launch: Launch) -> DataFrame:
    """Return the rows of all streams as one DataFrame, if Spark can run it."""
    frame = unite(_frames(launch))
    if launch.topology.streaming:
        check_stream(frame)
        check_apart(frame, launch.folders.location)
    return frame


def _frames(launch: Launch) -> dict[str, DataFrame]:
    return {one.id: one.dataframe for one in launch.topology.components if one.is_stream}


def _united(launch: Launch, frame: DataFrame, order: Sequence[str]) -> DataFrame:
    """Return `frame`, made of the streams as they are declared, with its sources in the order that the log has."""
    frames = _frames(launch)
    return frame if not order or list(order) == list(frames) else unite(frames, order)


def _preflight(
    launch: Launch, session: SparkSession, frame: DataFrame | None, batch_id: int | None, found: LogState
) -> None:
    """Check what is Spark's own of a start."""
    folders, streaming = launch.folders, launch.topology.streaming
    if streaming:
        is_other = found.location != folders.location or forks(found, folders, launch.adopt)
        assert frame is not None
        check_places(found, places_of(_united(launch, frame, launch.streams(found))), folders.storage)
        check_alone(session, query_id(found), "" if is_other else _query_name(launch, found), folders.location)
    check_run_folders(streaming=streaming, staged=_stages_here(launch, session))
    if port := launch.settings.control_port:
        check_control_port(session, port)
    check_executors(session, folders, launch.references, launch.topology)
    hint(session, streaming=streaming)
    if found.committed:
        logger.info("checkpoint %s: going on after transaction %d", folders.location, found.committed)
    else:
        logger.info("checkpoint %s: state is empty, no transaction has been committed", folders.location)
    if frame is not None and not streaming and batch_id is None and (found.committed or found.committing):
        logger.warning(
            "checkpoint %s: transactions were committed before, and this batch has no batchId: its rows are applied, "
            "also if they were before. submit(..., batchId=20260101) applies a batch once",
            folders.location,
        )


def _coordinator(
    launch: Launch,
    log: TransactionLog,
    engine: PipelinedEngine,
    stopping: threading.Event,
    shown: Bar | None,
) -> Coordinator:
    return launch.coordinator(
        log,
        engine,
        launch.janitor(log),
        pause=lambda secs: not stopping.wait(secs),
        rest=engine.rest,
        committed=shown.committed if shown is not None else lambda done: None,
    )


def _check_arguments(topology: Topology, trigger: Any, batch_id: Any, progress: Any) -> None:
    """Refuse arguments that the topology's kind of input has no use for."""
    continuous = topology.streaming or topology.reads_spouts
    if continuous and batch_id is not None:
        kind = "topology of spouts" if topology.reads_spouts else "streaming query"
        raise ConfigError(f"batchId is for batch DataFrames; a {kind} numbers its own batches")
    closes = isinstance(trigger, Mapping) and "closeTime" in trigger
    if not continuous and trigger is not None and not closes:
        raise ConfigError(
            f"trigger is for streaming DataFrames; a batch DataFrame is one transaction. Only {_CLOSING} is for both"
        )
    if closes:
        check_closing(topology)
    if progress not in (None, True, False):
        raise ConfigError(f"progress must be True, False or None (where stderr is a terminal), got {progress!r}")
    if batch_id is not None:
        check_batch_id(batch_id)
    ending = {"availableNow", "once"} & set(trigger if isinstance(trigger, Mapping) else ())
    if topology.tracked_spouts and ending:
        spout = next(iter(topology.tracked_spouts))
        raise ConfigError(
            f"trigger is {ending.pop()}, but spout {spout!r} hands out tuples one by one and never says that it has no "
            "more: leave trigger out, and call query.stop() when enough was read",
            spout=spout,
        )


def _listeners(listeners: Any) -> Sequence[TopologyListener]:
    """Refuse what can't be called."""
    if isinstance(listeners, str) or not isinstance(listeners, Iterable):
        raise ConfigError(f"listeners is a list of listeners, not {listeners!r}: write listeners=[...]")
    found = list(listeners)
    for listener in found:
        check_listener(listener)
    return found


def _checked_trigger(trigger: Mapping[str, Any] | None, default_ms: int) -> dict[str, Any]:
    """Return the arguments for Spark's ``trigger``, in one of its three forms; by default every checkpoint interval."""
    if trigger is None:
        return {"processingTime": f"{default_ms} milliseconds"}
    if isinstance(trigger, Mapping) and dict(trigger) == {"availableNow": True, "closeTime": True}:
        return dict(trigger)
    if not isinstance(trigger, Mapping) or len(trigger) != 1:
        raise ConfigError(f"trigger must be one of {_FORMS}, got {trigger!r}")
    kind, value = next(iter(trigger.items()))
    if kind in ("availableNow", "once") and value is True:
        return {kind: value}
    if kind == "processingTime":
        micros = micros_of(value, zero=True)
        if micros is None:  # Spark would refuse it only when its query begins
            raise ConfigError(
                f"trigger: {value!r} is no interval; write it as in {{'processingTime': '5 seconds'}}, or {SPELLINGS}; "
                f"{NOT_WRITTEN}",
                value=value,
            )
        return {kind: f"{round(micros / 1000)} milliseconds"}
    raise ConfigError(f"trigger must be one of {_FORMS}, got {trigger!r}")


def _spout_trigger(arguments: Mapping[str, Any]) -> SpoutTrigger:
    """Return the result of `_checked_trigger` for spouts."""
    if "processingTime" in arguments:
        return SpoutTrigger(int(arguments["processingTime"].split()[0]) / 1000)
    return SpoutTrigger(
        once="once" in arguments, available_now="availableNow" in arguments, close_time="closeTime" in arguments
    )
