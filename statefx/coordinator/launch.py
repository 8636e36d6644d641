"""How a topology is started on a checkpoint, step by step; ``submit`` and its like add what is their own.

::

    Launch(...)         refuses what the arguments alone show
    check_checkpoint    refuses what the checkpoint shows; until here nothing has been changed
    take_generation     takes the next generation: drivers of before are fenced from here on
    deployment          what is sent to the tasks, for the engine
    coordinator         who carries out the transactions of this generation, and first recovers

The order is one of safety: a mistake that was found only after a generation was taken would have fenced a driver that
was well, and would leave the checkpoint without one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from statefx.admin.looking import check_free
from statefx.admin.rekeying import NewForm, Rekey
from statefx.admin.rescaling import rescalings
from statefx.admin.rewrite import Rewrite, Step
from statefx.admin.work import Here, Workers
from statefx.coordinator.attempt import Engine
from statefx.coordinator.coordinator import Coordinator
from statefx.coordinator.driver_spout import DriverSpout, check_spouts
from statefx.coordinator.janitor import Janitor
from statefx.coordinator.measuring import Measures
from statefx.coordinator.participants import (
    Participant,
    Participants,
    SnapshotPolicy,
    StateParticipant,
    check_taking_back,
    sinks_of,
)
from statefx.coordinator.progress import Progress, TransactionProgress
from statefx.coordinator.running_attempts import AckChecker
from statefx.coordinator.runs import RunEngine
from statefx.coordinator.spouts import SpoutSource, SpoutTrigger
from statefx.coordinator.times import Ticks
from statefx.coordinator.tracing import Traces
from statefx.errors import ConfigError, FencedError, SinkError
from statefx.log.adoption import Adopt, adoptions, check_adoption, forks, same_keys
from statefx.log.location import Folders, checkpoint_location, write_format
from statefx.log.log import TransactionLog
from statefx.log.takeover import Renaming, check_participants, forked, read_checkpoint, take_generation
from statefx.operators.bolts import Stateful
from statefx.operators.hooks import overrides
from statefx.operators.sinks import ToDataFrame, no_spark
from statefx.operators.user_errors import RAISED
from statefx.plan.deployment import Deployment
from statefx.plan.levels import compile_plan
from statefx.protocol.identity import TaskId
from statefx.protocol.log_rules import with_stateful, with_tasks
from statefx.protocol.log_state import LogState
from statefx.protocol.order import Emission
from statefx.protocol.pipeline import Shape
from statefx.protocol.topology_identity import StatefulIdentity
from statefx.state.contract.store import FILES_MAX, StateLocation
from statefx.state.registry import load_provider, resolve
from statefx.storage import Storage
from statefx.topology.additions import with_acker, with_acknowledging, with_dedup, with_ticks
from statefx.topology.checks import encodings_of
from statefx.topology.graph import INTERNAL, Topology
from statefx.topology.identity import identify
from statefx.topology.submission import check_misplaced, check_sendable, check_settings

if TYPE_CHECKING:
    from statefx.metrics.prometheus import MetricsServer

logger = logging.getLogger("statefx")

_CHECK_TRIES = 10


class Launch:
    """One start of a topology on a checkpoint.

    `topology`, `config`, `checkpointLocation`, `adopt`, `rename`, `drop` and `rescale` are as the user gave them to
    `caller` (``submit``, ``TopologyTester`` or ``TransactionalClient``, for messages). `dumps` pickles as Spark does
    for its workers; with None, nothing here can tell what Spark could not send. `cache` is the folder for caches of
    state, "" the machine's own. `others` are participants besides state and the topology's sinks.

    Raises TopologyError or ConfigError for a mistake; it names the thing and the remedy.
    """

    def __init__(
        self,
        topology: Topology,
        config: Mapping[str, Any] | None,
        checkpointLocation: str | os.PathLike[str],
        adopt: Adopt,
        *,
        caller: str,
        dumps: Callable[[Any], bytes] | None,
        cache: str = "",
        others: tuple[Participant, ...] = (),
        rename: Mapping[str, str] | None = None,
        drop: Iterable[str] = (),
        rescale: bool = False,
        dataframe: ToDataFrame = no_spark,
        wrap: Callable[[Storage], Storage] = lambda storage: storage,
    ) -> None:
        self.settings = check_settings(topology, config, caller)
        given = topology
        # First: what statefx adds gets no ticks.
        topology = with_acknowledging(with_dedup(with_ticks(given, self.settings.tick_tuple_freq_secs)))
        topology = with_acker(topology, self.settings.message_timeout_secs, self.settings.acker_executors)
        self.topology = topology
        # Where a spout lives in its task, topology.max.spout.pending counts its tuples.
        one_by_one = topology.tracked_spouts or not topology.replaying_spouts
        self.pending = 1 if one_by_one else self.settings.max_spout_pending or 1
        self._emissions = {DriverSpout(id, spout, 1).emission for id, spout in topology.replaying_spouts.items()}
        self.adopt = adoptions(adopt)
        self._renaming = Renaming.given(rename, drop, topology)
        if rescale not in (True, False):
            raise ConfigError(f"rescale must be True or False, got {rescale!r}")
        self._rescale = rescale
        self._cache = cache
        self._endings: list[Callable[[], None]] = []
        if dumps is not None:
            check_sendable(topology, self.settings.mapping(), dumps)
        self.folders = Folders(checkpoint_location(checkpointLocation), wrap)
        self._sinks = sinks_of(
            topology,
            self.folders.storage,
            self.settings.transactional_id,
            takeover="takeover" in self.adopt,
            dataframe=dataframe,
        )
        self.others = (*others, *self._sinks)
        self._provider_reference = resolve(self.settings.state_provider)
        self.build_provider = partial(load_provider, self._provider_reference, self.settings.state_provider_config)
        self.provider = self.build_provider()
        check_misplaced(self.settings, self.provider)
        self._encodings = encodings_of(given, self.settings)  # the acker's keys and values are its own
        # Rule 9.1: one transaction at a time needs one segment, unless what spouts emitted must be durable in between.
        self.plan = compile_plan(topology, segments=1 if self.pending == 1 and not self._writes_processed else 2)
        self._identity = identify(topology, self._provider_reference, self._encodings, self.provider.public_options())

    @property
    def references(self) -> list[str]:
        """References that workers load besides statefx, as ``module:Class``."""
        return [self._provider_reference, *(each for one in self._encodings.values() for each in one.classes.values())]

    def start(
        self,
        opened: Callable[[Storage], TransactionLog] = TransactionLog,
        *,
        preflight: Callable[[LogState], None] = lambda found: None,
        workers: Workers | None = None,
    ) -> TransactionLog:
        """Take the next generation, once all that can refuse the start has been checked (rule 1.5).

        `preflight` is the caller's own check of the checkpoint's state. `workers` rewrite state for other numbers of
        tasks; by default, this process does. FencedError: another driver started at the same time. After any other
        error nothing was changed.
        """
        found = self.check_checkpoint()
        write_format(self.folders.storage)  # makes the folder, in which executors then look for a file
        preflight(found)
        if steps := self.steps(found):
            then = "start the version that gives state other keys or tasks"
            Rewrite(
                self.folders, self.provider, steps, then, opened, self.adopt,
                workers=workers or Here(), build=self.build_provider,
            ).run(found)  # fmt: skip
        return self.take_generation(opened)

    def steps(self, found: LogState) -> dict[str, Step]:
        """Return by bolt the rewrite that its state needs before the topology can go on with it."""
        for id in self.regrouped(found):
            check_free(self.provider, self.folders, found, id)
        bolts, stateful = self.bolts(found), found.topology.stateful
        keys = {id: bolt.groupingKey for id, bolt in bolts.items() if overrides(type(bolt), "groupingKey")}
        steps: dict[str, Step] = {}
        for id, becomes in self.rekeyed(found).items():
            key = partial(bolts[id].migrateKey, stateful[id].state_version)
            steps[id] = Rekey(id, NewForm(becomes, key, "migrateKey", keys.get(id)), "given other keys")
        if tasks := self.rescalings(found):
            steps |= rescalings(
                found, tasks, {id: keys[id] for id in keys.keys() & tasks.keys()}, self.folders.location
            )
        return steps

    def check_checkpoint(self) -> LogState:
        """Refuse a checkpoint that the topology can't go on with; return its folded log; changes nothing.

        An error names both sides and the remedy. FencedError: another driver started at the same time.
        """
        # Rule 1.5: all of it before a generation is taken. A start that is refused must not fence a driver that is
        # well.
        for tries_left in reversed(range(_CHECK_TRIES)):
            found = read_checkpoint(self.folders)
            try:
                self._check(found)
            except (SinkError, FencedError) as error:
                # Targets are looked at after the log: meanwhile a driver may have started, or gone on.
                now = read_checkpoint(self.folders)
                if (now.lineage, now.generation) != (found.lineage, found.generation):
                    raise FencedError(
                        f"another driver has started on the checkpoint in {self.folders.location} at the same time, as "
                        f"generation {now.generation}: this one has changed nothing. There is one driver at a time",
                        generation=now.generation,
                    ) from error
                if now == found or not tries_left:
                    raise
            else:
                return found
        raise AssertionError("unreachable")

    def _check(self, found: LogState) -> None:
        becomes = self._check_log(found)
        for sink in self._sinks:
            sink.check(becomes)

    def _check_log(self, found: LogState) -> LogState:
        """Refuse what does not fit to the log; return what is gone on from."""
        found = self._renaming.of(found, self.folders.location).applied(found)
        found = with_stateful(with_tasks(found, self.rescalings(found)), self.rekeyed(found))
        check_adoption(found, self._identity, self.folders, self.adopt, shared=self._shared)
        becomes = forked(found) if forks(found, self.folders, self.adopt) else found
        check_participants(becomes, self.folders.location, self._others)
        # Messages name the folder that was given, and not where a checkpoint that was moved or copied has been.
        check_spouts(replace(found, location=self.folders.location), self.topology.replaying_spouts)
        here = replace(becomes, location=self.folders.location)
        check_taking_back(here, self.topology, takeover="takeover" in self.adopt)
        return becomes

    def rescalings(self, found: LogState) -> dict[str, int]:
        """Return the new number of tasks of each bolt that this start rescales.

        By the names that they have in the checkpoint. Without ``rescale`` only statefx's own: the number of their tasks
        is a setting, or that of a spout, and their keys need no proof. Not those that are `rekeyed`, which have these
        tasks as well.
        """
        return {
            was: now.parallelism
            for was, (before, now) in self._both(found).items()
            if before.parallelism != now.parallelism and not _rekeys(before, now)
            if self._rescale or was.startswith(INTERNAL)
        }

    def rekeyed(self, found: LogState) -> dict[str, StatefulIdentity]:
        """Return how bolts keep their state when this start has given their keys another form (``migrateKey``).

        By the names that they have in the checkpoint.
        """
        becomes = {}
        for was, (before, now) in self._both(found).items():
            if _rekeys(before, now):
                new = replace(before, state_version=now.state_version)
                if self._rescale:
                    new = replace(new, parallelism=now.parallelism)
                if any(kind == "fields" for kind, *_ in now.routing):  # keys go to the tasks that these rows go to
                    new = replace(new, routing=now.routing, key_fields=now.key_fields)
                becomes[was] = new
        return becomes

    def regrouped(self, found: LogState) -> list[str]:
        """Return the bolts whose rows have other keys than in a checkpoint, by the names that they have there."""
        return [was for was, (before, now) in self._both(found).items() if not same_keys(before, now)]

    def _both(self, found: LogState) -> dict[str, tuple[StatefulIdentity, StatefulIdentity]]:
        """Return how the stateful bolts that stay keep their state, in a checkpoint and in this topology."""
        known, wanted = found.topology.stateful, self._identity.stateful
        stay = {was: id for id, was in self._found_as(found).items() if id in wanted and was in known}
        return {was: (known[was], wanted[id]) for was, id in stay.items()}

    def _found_as(self, found: LogState) -> Mapping[str, str]:
        """Return the names in a checkpoint of components that are there; not of a new one with the name of another."""
        names = self._renaming.of(found, self.folders.location).names
        former = {new: old for old, new in names.items()}
        return {one.id: former.get(one.id, one.id) for one in self.topology.components if one.id not in names}

    def streams(self, found: LogState) -> tuple[str, ...]:
        """Return the streams in the order in which the checkpoint has them (rule 3.15); empty if it has none yet."""
        return self._renaming.of(found, self.folders.location).applied(found).topology.streams

    def bolts(self, found: LogState) -> dict[str, Stateful]:
        """Return the stateful bolts of the topology, by the names that they have in a checkpoint."""
        names = self._found_as(found)
        found_bolts: dict[str, Stateful] = {}
        for one in self.topology.components:
            if one.id in names and isinstance(one.operator, Stateful):
                found_bolts[names[one.id]] = one.operator
        return found_bolts

    def take_generation(self, opened: Callable[[Storage], TransactionLog] = TransactionLog) -> TransactionLog:
        """Take the next generation of the checkpoint; return its log, open for appending.

        CheckpointError: as `check_checkpoint`, for changes made since. FencedError: other drivers go on taking
        generations.
        """

        def checked(storage: Storage) -> TransactionLog:
            log = opened(storage)
            # Another start may have renamed a spout since: this one would read its input from the beginning.
            self._check_log(log.state)
            return log

        log = take_generation(
            self.folders,
            self._identity,
            self.adopt,
            shared=self._shared,
            others=self._others,
            renaming=self._renaming,
            opened=checked,
        )
        # The log fences the records of older drivers; state files and servers have fences of their own. Before anything
        # is recovered, so that no task of an older driver prepares or commits meanwhile (rule 4.2).
        self.participants(log).fence()
        self._forget_dropped(log.state)
        return log

    def _forget_dropped(self, state: LogState) -> None:
        """Have a server forget bolts that were dropped, before one of the same name begins anew where they were."""
        stateful = state.topology.stateful.items()
        tasks = {TaskId(name, number) for name, known in stateful for number in range(known.parallelism)}
        begun = {task for task in tasks if str(task) in state.heads}
        if self._shared and begun != tasks:
            if (decided := state.committing) is not None and decided.committing is not None:
                begun |= tasks & {TaskId.parse(name) for name in decided.committing.tokens}
            # None but these: by an older copy of the log more seems to be left, and its versions are not compared yet.
            anew = {state.namespace(task).id for task in tasks - begun} - state.pinned_versions().keys()
            self.provider.forget(state.lineage, anew.__contains__, state.generation, state.decided)

    def metrics_server(self) -> MetricsServer | None:
        """Begin to serve metrics, if a port is given; before `start`, since a port that is taken is a mistake."""
        if self.settings.metrics_port is None:
            return None
        try:
            from statefx.metrics.prometheus import MetricsServer  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ConfigError(f"topology.metrics.port is {self.settings.metrics_port}: {error}") from error
        return MetricsServer(self.settings.metrics_host, self.settings.metrics_port)

    def participants(self, log: TransactionLog) -> Participants:
        return Participants(StateParticipant.of(self.plan, log, self.provider, self.folders.storage), self.others)

    def deployment(self, log: TransactionLog, files_max: int = FILES_MAX, staged: Storage | None = None) -> Deployment:
        """Return what tasks are sent in the generation of `log`; rows of DataFrames are staged in `staged`."""
        return Deployment(
            name=self.topology.name,
            plan=self.plan,
            config=self.settings.mapping(),
            provider=self._provider_reference,
            options=self.settings.state_provider_config,
            lineage=log.state.lineage,
            generation=log.state.generation,
            origin=log.state.origin,
            kept_as=log.state.kept_as,
            tracked=log.state.topology.tracked,
            storage=self.folders.storage,
            staged=staged or self.folders.storage,
            cache=self._cache,
            encodings=self._encodings,
            files_max=files_max,
        )

    def on_end(self, release: Callable[[], None]) -> None:
        self._endings.append(release)

    def janitor(self, log: TransactionLog) -> Janitor:
        stateful = [task for task in self.plan.tasks if self.plan.components[task.component].stateful]
        state = log.state
        return Janitor(
            self.folders,
            self.provider,
            stateful,
            state.lineage,
            state.generation,
            kept_as=state.kept_as,
            others=self.others,
        )

    def coordinator(
        self,
        log: TransactionLog,
        engine: Engine,
        janitor: Janitor,
        pause: Callable[[float], bool],
        committed: Callable[[TransactionProgress], None] = lambda done: None,
        *,
        policy: SnapshotPolicy | None = None,
        progress: Progress | None = None,
        attempts_max: int | None = None,
        rest: Callable[[float], bool] | None = None,
    ) -> Coordinator:
        """Return the coordinator of the generation of `log`; it recovers first.

        `engine` runs what `deployment` says; `janitor` is called for every committed transaction, and waited for at the
        end.
        """

        def swept(done: TransactionProgress) -> None:
            if isinstance(engine, RunEngine) and self.topology.tracked_spouts:
                engine.send_outcomes(done.txid, done.trees)
            janitor.committed(done.txid)
            committed(done)

        def ended() -> None:
            for release in (engine.close, *self._endings, janitor.close, *(sink.close for sink in self._sinks)):
                try:
                    release()
                except RAISED:  # the others are released all the same, and the query's end is told
                    logger.exception("%s: what it releases at its end raised; ignored", self.topology.name)

        shown = progress or Progress()
        shown.measures = Measures(self.topology.name, self.plan, clock=shown.clock, now=shown.now)
        shown.measures.watch(log, shown.status)
        if isinstance(engine, RunEngine):
            engine.on_begun, engine.on_activity = shown.measures.run_began, shown.measures.spent
        shown.found_sinks([sink.name for sink in self._sinks], log.state.past())
        participants, checker = self.participants(log), AckChecker(self.plan)
        shape = Shape(
            self.pending,
            checker.segments,
            emitted=bool(self._emissions - {Emission.AGAIN}),
            writes_processed=self._writes_processed,
            commits_at_decision=participants.commits_at_decision,
            attempts_max=attempts_max or self.settings.transaction_attempts_max,
        )
        return Coordinator(
            name=self.topology.name,
            log=log,
            engine=engine,
            participants=participants,
            checker=checker,
            shape=shape,
            ticks=Ticks(self._tick_secs, log, round(shown.now() * 1000)),
            pause=pause,
            rest=rest,
            committed=swept,
            ended=ended,
            policy=policy or SnapshotPolicy(),
            retry_delay_secs=self.settings.transaction_retry_delay_ms / 1000,
            progress=shown,
            traces=Traces(self.plan.spouts, tuple(self.plan.components), tracing=self.settings.trace),
        )

    def spout_source(self, coordinator: Coordinator, trigger: SpoutTrigger) -> SpoutSource:
        """Return the source of the transactions of `coordinator`, if they come from spouts."""
        engine = coordinator.engine
        woken = engine.woken if self.topology.tracked_spouts and isinstance(engine, RunEngine) else None
        return SpoutSource(
            self.plan,
            self.folders.storage,
            coordinator.log,
            self.settings.mapping(),
            trigger,
            self.pending,
            coordinator.progress,
            coordinator.ticks,
            woken,
        )

    @property
    def _tick_secs(self) -> Mapping[str, float]:
        components = self.plan.components.values()
        return {one.id: one.tick_secs for one in components if one.tick_secs is not None}

    @property
    def _writes_processed(self) -> bool:
        return Emission.NEW in self._emissions

    @property
    def _others(self) -> list[str]:
        return [each.name for each in self.others]

    @property
    def _shared(self) -> bool:
        return self.provider.location is StateLocation.SERVER


def _rekeys(before: StatefulIdentity, now: StatefulIdentity) -> bool:
    return now.migrates_keys and now.upgrades and before.state_version < now.state_version


def check_batch_id(batch_id: Any) -> None:
    """Refuse what can't number the batches of successive runs."""
    if isinstance(batch_id, bool) or not isinstance(batch_id, int) or batch_id < 0:
        raise ConfigError(f"batchId must be a whole number, growing from run to run, got {batch_id!r}")
