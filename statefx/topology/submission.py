"""Checks of a topology and its settings, by ``submit`` and by ``TopologyTester`` alike."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from statefx.config import Config
from statefx.errors import ConfigError, TopologyError
from statefx.operators.bolts import Stateful
from statefx.operators.sinks import Sink
from statefx.protocol.reports import SPOUT_TASKS_MAX
from statefx.state.contract.store import StateProvider
from statefx.topology.builder import TopologyBuilder
from statefx.topology.checks import named
from statefx.topology.graph import ComponentKind, Grouping, Promise, Topology

logger = logging.getLogger("statefx")


def check_settings(topology: Any, config: Any, caller: str) -> Config:
    """Return the settings of a run; log doubts about the wiring. A TopologyError or ConfigError names the remedy."""
    if not isinstance(topology, Topology):
        given = "the builder" if isinstance(topology, TopologyBuilder) else f"an object of {type(topology).__name__}"
        raise TopologyError(f"{caller} needs a Topology, got {given}: pass builder.createTopology()")
    settings = Config.parse(config, topology.name)
    check_config(topology, settings)
    for doubt in [*doubts(topology), *settings.doubts(), *_untracked(topology, config)]:
        logger.warning("%s", doubt)
    return settings


def check_config(topology: Topology, config: Config) -> None:
    """Refuse settings without meaning for this topology, such as several transactions at a time without spouts."""
    streams = [component.id for component in topology.components if component.is_stream]
    # Spark plans a micro-batch when the one before it has ended: there is no input for a second transaction.
    if streams and (config.max_spout_pending or 1) > 1:
        raise ConfigError(
            f"topology.max.spout.pending is {config.max_spout_pending}, but {topology.name!r} reads DataFrames "
            f"({', '.join(streams)}), whose micro-batches come one at a time; leave it at 1",
            key="topology.max.spout.pending",
            value=config.max_spout_pending,
        )
    tasks = sum(one.parallelism for one in topology.components if one.kind is ComponentKind.SPOUT)
    if topology.tracked_spouts and tasks > SPOUT_TASKS_MAX:
        raise TopologyError(
            f"{topology.name!r} has {tasks} tasks of spouts, and with a Spout there may be {SPOUT_TASKS_MAX}: take "
            "less parallelism, or several topologies"
        )
    check_trees(topology, config, (config.state_checkpoint_interval_ms or 0) / 1000)


def check_trees(topology: Topology, config: Config, interval_secs: float) -> None:
    """Refuse an interval in which tuples would time out; ConfigError."""
    if topology.tracked_spouts and interval_secs > config.message_timeout_secs:
        raise ConfigError(
            f"a transaction begins each {interval_secs:g} s, and topology.message.timeout.secs is "
            f"{config.message_timeout_secs:g}: tuples are acked when a transaction is committed, so they would time "
            "out. Take a shorter topology.state.checkpoint.interval.ms or trigger, or a longer timeout",
            key="topology.message.timeout.secs",
            value=config.message_timeout_secs,
        )


def _untracked(topology: Topology, config: Mapping[str, Any] | None) -> list[str]:
    """Name the settings of trees, where there are none."""
    if topology.tracked_spouts:
        return []
    settings = (
        "topology.message.timeout.secs",
        "topology.acker.executors",
        "topology.trace",
        "topology.spout.batch.ms",
        "topology.sleep.spout.wait.strategy.time.ms",
    )
    of_transactions = "; topology.transaction.timeout.secs is how long a transaction may take"
    return [
        f"{key} has no effect: {topology.name!r} has no Spout, and only tuples of one are tracked"
        f"{of_transactions if key == settings[0] else ''}"
        for key in settings
        if key in (config or {})
    ]


def doubts(topology: Topology) -> list[str]:
    """Return what may be meant as it is wired, and mostly is not; ``submit`` logs each as a warning.

    No errors: a bolt may well keep one sum per task over shuffled rows, and tasks without rows do no harm.
    """
    found = []
    for component in topology.components:
        tasks, inputs = component.parallelism, topology.inputs(component.id)
        if inputs and tasks > 1 and all(edge.grouping.promise is Promise.FIRST for edge in inputs):
            found.append(
                f"{named(component)} has {tasks} tasks, but all of its input comes by global grouping, to task 0: "
                "the others get no row. Use parallelism=1"
            )
        # Where rules are broadcast, they may be all that the bolt keeps.
        keeps = isinstance(component.operator, Stateful) and not any(edge.grouping.broadcast for edge in inputs)
        if tasks > 1 and keeps:
            found += [
                f"bolt {component.id!r} keeps state in {tasks} tasks, but its input {edge.source!r} comes by "
                f"{edge.grouping} grouping: rows of one key go to any task, and each task has a part of the state. Use "
                "fieldsGrouping, or parallelism=1, if state is kept by key"
                for edge in inputs
                if edge.grouping.promise is Promise.ANY
            ]
        if tasks > 1 and isinstance(component.operator, Sink) and component.operator.key:
            key = component.operator.key
            found += [
                f"sink {component.id!r} replaces rows by its key ({', '.join(key)}) in {tasks} tasks, but its input "
                f"{edge.source!r} comes by {edge.grouping} grouping: of two rows with one key in one transaction "
                f"that of the higher task counts, not the later one. Use fieldsGrouping({edge.source!r}, "
                f"{', '.join(map(repr, key))}), or parallelism=1"
                for edge in inputs
                if _scatters(edge.grouping, key)
            ]
    return found


def _scatters(grouping: Grouping, key: Sequence[str]) -> bool:
    """Return whether rows with one key may go to several tasks; a direct sender may well keep them together."""
    if grouping.promise is Promise.KEY:
        return not set(grouping.fields) <= set(key)
    return grouping.promise in (Promise.ANY, Promise.KEY_OF_TWO)


def check_misplaced(settings: Config, provider: StateProvider) -> None:
    """Refuse the state provider's options that stand beside its settings, where they would be ignored."""
    for key in settings.user:
        if key in provider.option_names and key not in settings.state_provider_config:
            raise ConfigError(
                f"config has {key!r}, an option of the state provider {settings.state_provider!r}: put it into "
                "topology.state.provider.config. If it is a setting of your own, give it another name",
                key=key,
                nearest="topology.state.provider.config",
            )


def check_sendable(topology: Topology, settings: Mapping[str, Any], dumps: Callable[[Any], bytes]) -> None:
    """Refuse bolts and user settings that can't be sent to executors, and bolts that can't be copied.

    `dumps` pickles as Spark does for its workers. TopologyError names the bolt, the attribute and the remedy;
    ConfigError names the setting.
    """
    for component in topology.components:
        if component.operator is None:
            continue
        try:
            dumps(component.operator)  # here, on the driver: else it fails in the first transaction, as Spark's error
        except Exception as error:
            raise TopologyError(
                f"{component.kind} {component.id!r} can't be sent to the executors"
                f"{_attribute(component.operator, dumps)} ({_short(error)}): {_remedy(error)}",
                component=component.id,
            ) from error
        try:
            copy.deepcopy(component.operator)
        except Exception as error:
            raise TopologyError(
                f"{component.kind} {component.id!r} can't be copied ({_short(error)}), and each task has its own copy: "
                "make what can't be copied in open(), not in __init__",
                component=component.id,
            ) from error
    for key, value in settings.items():
        try:
            dumps(value)
        except Exception as error:
            raise ConfigError(
                f"setting {key!r} can't be sent to the executors ({_short(error)}): give plain data, which pickle can "
                "take",
                key=key,
            ) from error


def _remedy(error: Exception) -> str:
    if type(error).__module__.startswith("pyspark"):
        return (
            "a SparkSession or a DataFrame can't be used in a bolt. What it reads of a DataFrame comes as a "
            "stream (setStream), or as plain values, such as df.collect() on the driver"
        )
    return "make connections, locks and files in open(), not in __init__"


def _attribute(bolt: Any, dumps: Callable[[Any], bytes]) -> str:
    """Name the attribute that can't be pickled, if it is one alone."""
    for name, value in vars(bolt).items():
        try:
            dumps(value)
        except Exception:  # noqa: BLE001 - pickling runs code of anyone
            return f" because of its attribute {name!r}"
    return ""


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def check_closing(topology: Topology) -> None:
    """Refuse to close event time where there is none, or where the input never ends: ConfigError."""
    if topology.tracked_spouts:
        spout = next(iter(topology.tracked_spouts))
        raise ConfigError(
            f"closeTime is for an input that ends, and spout {spout!r} hands out tuples one by one and never says that "
            "it has no more: leave it out",
            spout=spout,
        )
    if not any(component.timings for component in topology.components):
        raise ConfigError(
            'closeTime ends what waits for event time, and no input has any: say timestamp="at" of one, or leave '
            "closeTime out"
        )
