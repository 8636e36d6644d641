"""Checks before anything starts, for what would fail on the executors or for want of slots."""

from __future__ import annotations

import importlib
import os
import platform
import re
import shutil
import socket
import sys
import sysconfig
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from statefx.errors import CheckpointError, CheckpointMismatchError, ConfigError, TopologyError
from statefx.log.location import Folders
from statefx.operators.folders import InFolder
from statefx.operators.sinks import Sink
from statefx.plan.levels import Plan
from statefx.spark import internals
from statefx.spark.control import listening
from statefx.spark.failures import last_line, not_importable
from statefx.spark.job import addresses, held_slots
from statefx.spark.session import DAEMON, LOADED_WORKERS, PIPELINED_PYTHON, SLOTS, is_local, is_submitted, local_master
from statefx.spark.worker import modules_of
from statefx.storage import is_remote
from statefx.storage.contract import PROBE
from statefx.storage.folder import probe as probed
from statefx.topology.checks import named
from statefx.topology.graph import Topology

_PROBES_PER_EXECUTOR = 2

_FOUND = "host string, problem string, module string, missing string"
"""A probe's answer: a module that it could not import, and the one that was missing, maybe another; or a folder."""

_STATEFUL = {
    "Deduplicate": "dropDuplicates or distinct",
    "Aggregate": "an aggregation",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "TransformWithState": "transformWithState",
    "Join": "a join of two streams",
}
"""How the names of those nodes of a plan begin that keep state in a stream, and what the user calls them.

By the plan's nodes: Spark's own `isStatefulOperation` passes over ``dropDuplicates`` without an event time. One that is
missing here is found before it has begun anything (`SparkCheckpoint.with_notes`)."""

_UNSEEN = "unseen"
"""The answer of an executor that sees nothing where the checkpoint, or a folder of a component's, is."""

_LOCAL_PATH = re.compile(r"(?:file:(?://)?)?(/[^:*?\[{]*|[^:/*?\[{][^:*?\[{]*)")
"""A path without a pattern; one with a pattern may or may not name the folder."""


def check_stream(frame: DataFrame) -> None:
    """Refuse what Spark's analysis refuses in a streaming query, and Spark's own stateful operators: TopologyError.

    Their tasks write state on any machine, outside of the topology's transactions. To carry it along, each start would
    need a copy of it in a shared folder with hard links, which object stores lack; a bolt keeps it in the checkpoint.
    """
    for name in internals.streaming_operators(frame):
        for prefix, operator in _STATEFUL.items():
            if name.startswith(prefix):
                raise TopologyError(
                    f"the streaming input of this topology has an operator of Spark's that keeps state, {operator}: "
                    "its state is no part of the topology's transactions. Use a StatefulBolt behind a fieldsGrouping, "
                    "as the cookbook does. A batch DataFrame may have it",
                    operator=operator,
                )
    try:
        internals.check_streaming(frame)
    except AnalysisException as error:
        raise TopologyError(
            f"Spark can't run the streaming input of this topology: {str(error).splitlines()[0]} Do that step in a "
            "bolt instead (a topology's query runs in Spark's output mode `update`)"
        ) from error


def check_apart(frame: DataFrame, location: str) -> None:
    """Refuse a checkpoint inside a folder that the input is read from: its files would come as rows, for ever."""
    for option in internals.streamed_paths(frame):
        if is_remote(location) and location.startswith(f"{_store_url(option)}/"):
            raise ConfigError(
                f"checkpointLocation {location} is below {option}, which the input is read from: the checkpoint's own "
                "objects would be read as input. Give a prefix outside of it",
                location=location,
            )
        found = _LOCAL_PATH.fullmatch(option)
        path = os.path.realpath(found[1]) if found is not None else ""
        if path and not is_remote(location) and os.path.commonpath([path, location]) == path:
            raise ConfigError(
                f"checkpointLocation {location} is inside {path}, which the input is read from: the checkpoint's own "
                "files would be read as input. Give a folder outside of it",
                path=path,
                location=location,
            )


def check_alone(session: SparkSession, query_id: str | None, own: str, location: str) -> None:
    """Refuse a checkpoint if one that was copied from it, or that it was copied from, runs here.

    Both have the id of one Spark query, and Spark would stop the other (rule 6.12). `own` is the name under which a
    former driver of this very checkpoint runs it, which may be stopped; empty: there is none.
    """
    running = None if query_id is None else internals.name_of_running(session, query_id)
    if running is not None and running != own:
        raise CheckpointMismatchError(
            f"a copy of the checkpoint in {location}, or what it was copied from, is at work in this Spark application "
            f"(as query {running!r} of Spark), and Spark runs a query once: run this one in another application, or "
            "call stop() of the other's query first",
            location=location,
            query=running,
        )


def check_control_port(session: SparkSession, port: int) -> None:
    """Refuse a port that is taken, also by the driver that this start would fence.

    Each run listens there anew: the first one would end the query, maybe hours later, when its first row comes.
    """
    limit = time.monotonic() + PORT_SECS
    while True:
        try:
            listening(addresses(session)[1], port).close()
            return
        except ConfigError:
            if time.monotonic() >= limit:
                raise
        time.sleep(_LOOK_SECS)


_imported: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""SparkContext -> modules that its workers were seen to import: programs that submit many times ask once."""


def check_executors(session: SparkSession, folders: Folders, references: Iterable[str], topology: Topology) -> None:
    """Refuse executors that lack a package or a module, run another Python, or don't see the checkpoint or a folder.

    In local mode the executor is this process's own JVM. Where its workers run this very Python, only modules that are
    not installed are looked for, such as one next to the user's script: the driver finds it there, and workers do not.
    In addition to statefx and the topology's operators workers load `references`, as ``module:Class``: the state
    provider, the user's encodings. `session` is the one that the topology's jobs are planned in: they get the workers
    that are started here.
    """
    context = session.sparkContext
    master = str(context.master)
    local = master.startswith("local") and not master.startswith("local-cluster")
    remote = is_remote(folders.location)
    holders = _modules(topology)
    with internals.worker_program(context) as program:
        same = local and _is_this_python(program)
    seen = _imported.setdefault(context, set())
    if same:
        holders = {name: who for name, who in holders.items() if name not in seen and not _is_installed(name)}
        if not holders and not remote:  # workers reach a store by an environment of their own: the JVM's
            return
    loaded = {name.partition(":")[0] for name in references if ":" in name}
    modules = ["statefx.spark.worker", *sorted(loaded), *sorted(holders)]
    probe = f"{PROBE}{uuid.uuid4().hex}"
    folders.storage.put(probe, b"")
    probes = ExitStack()
    try:
        shown = {} if local else _folders(topology, probes)
        # More tasks than slots, so that every executor is likely to get one: Spark can't be asked for one on each.
        width = 1 if same else max(1, context.defaultParallelism) * _PROBES_PER_EXECUTOR
        prober = _prober(folders.location, probe, modules, list(shown))
        with internals.worker_program(context):
            rows = session.range(0, width, 1, width).mapInArrow(prober, _FOUND)
        found = rows.collect()
    except (PySparkException, Py4JError) as error:
        raise ConfigError(_first_job_failure(str(error))) from error
    finally:
        probes.close()
        folders.storage.delete([probe])
    for host, problem, module, missing in found:
        if missing and module in holders:
            reason = not_importable(missing, local=is_local(context))
            raise ConfigError(f"{holders[module]}: {reason}", module=missing, host=host)
        if problem and module in holders:
            raise ConfigError(f"{holders[module]}: {_import_failure(module, problem)}", module=module, host=host)
        if problem == _UNSEEN and module in shown:
            raise ConfigError(unseen(shown[module], host), host=host)
        if problem == _UNSEEN:
            what = f"checkpointLocation {folders.location}"
            raise CheckpointError(unseen(what, host), path=folders.location, host=host)
        if problem:
            raise ConfigError(f"executor {host}: {problem}", host=host)
    seen.update(holders)


def _store_url(option: str) -> str:
    """Return an input's path as a checkpoint location would be written: Spark has other names for S3."""
    return re.sub("^s3[an]:", "s3:", option.rstrip("/"))


def _folders(topology: Topology, probes: ExitStack) -> dict[str, str]:
    """Return the folders that executors must see, and how messages name each; those made for it end with `probes`."""
    found: dict[str, str] = {}
    for component in topology.components:
        operator = component.operator
        if isinstance(operator, InFolder):
            name = f"{named(component)}: the folder {operator.path}"
            if isinstance(operator, Sink):  # an executor may have made one of the same name: a former run's
                found[probes.enter_context(probed(operator.path))] = name
            elif os.path.isdir(operator.path):  # else `open` of the spout tells
                found[operator.path] = name
    return found


def unseen(what: str, host: str) -> str:
    """Return the error text for an executor that does not see a folder."""
    return (
        f"{what} is not visible on executor {host}: use a folder that is mounted at the same "
        "path on the driver and on every executor"
    )


def _modules(topology: Topology) -> dict[str, str]:
    """Return the modules that workers import to unpickle operators, without Python's own, and the component of each."""
    return {
        module: named(component)
        for component in topology.components
        if component.operator is not None
        for module in modules_of(component.operator)
        if (top := module.partition(".")[0]) not in sys.stdlib_module_names and top not in ("statefx", "__main__")
    }


def _is_installed(module: str) -> bool:
    """Return whether a module lies where this Python looks for packages, whatever the folder of the script."""
    found = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None)
    installed = {os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    return found is not None and any(os.path.realpath(found).startswith(each + os.sep) for each in installed)


def _is_this_python(program: str) -> bool:
    """Return whether a program is the interpreter of this process, or another name of it in the same environment."""
    found = shutil.which(program)
    if found is None or not sys.executable:
        return False
    folders = {os.path.realpath(os.path.dirname(path)) for path in (found, sys.executable)}
    return len(folders) == 1 and os.path.samefile(found, sys.executable)


def _prober(
    location: str, probe: str, modules: Sequence[str], folders: Sequence[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that needs nothing installed where it runs, but what PySpark needs."""

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        for _ in batches:
            pass
        problem = module = missing = ""
        for name in modules:
            module = name
            try:
                importlib.import_module(name)
            except ImportError as error:
                if isinstance(error, ModuleNotFoundError):
                    missing = error.name or name
                problem = f"{name} can't be imported ({error}): install it there, and statefx with its extras"
                break
            except (Exception, SystemExit) as error:  # noqa: BLE001 - code of the user's
                problem = f"{type(error).__name__}: {error}"
                break
        if not problem:
            from statefx.storage import storage_at  # noqa: PLC0415 - up to here statefx may not have been there

            try:
                storage_at(location).read(probe)
            except (FileNotFoundError, NotADirectoryError):
                problem = _UNSEEN
            except Exception as error:  # noqa: BLE001 - credentials, networks, the package that talks to the store
                problem = (
                    f"can't read the checkpoint in {location} ({error}). Workers have the environment of the executor, "
                    "with spark.executorEnv: with a local master, that of the driver when its session was built"
                )
        for path in folders if not problem else ():
            if not os.path.isdir(path):
                problem, module = _UNSEEN, path
                break
        found = {"host": socket.gethostname(), "problem": problem, "module": module, "missing": missing}
        yield pa.RecordBatch.from_pylist([found])

    return run  # a nested function travels by value: a module of ours may be just what is missing there


def _import_failure(module: str, problem: str) -> str:
    """Return the remedy for a module that workers find, but whose own code raises."""
    said = f"Spark's workers import module {module!r} for it, which raises {problem.splitlines()[0]}"
    if "CONTEXT_ONLY_VALID_ON_DRIVER" in problem:
        return (
            f"{said.partition(': ')[0]}: it makes a SparkSession, and only the driver may. Put getOrCreate() under "
            "`if __name__ == '__main__':` or into a function, or the bolts into a module of their own"
        )
    return f"{said}. What a program does belongs under `if __name__ == '__main__':`"


def _first_job_failure(text: str) -> str:
    if "PYTHON_VERSION_MISMATCH" in text:
        return (
            f"Spark's workers run another Python than the driver's {platform.python_version()}: before the session is "
            "built, set PYSPARK_PYTHON to one of the same minor version, which is there on every executor "
            f"({last_line(text)})"
        )
    if LOADED_WORKERS[DAEMON] in text:  # it ended before it could fork a worker, which would tell more
        return (
            f"Spark's workers can't be started: the Python that they run can't load statefx. It is of another version "
            f"than the driver's {platform.python_version()}, or lacks statefx or its extras: before the session is "
            f"built, set PYSPARK_PYTHON to one that has them, or leave it unset ({last_line(text)})"
        )
    return (
        f"a first job on the executors failed: {last_line(text)}. They run PYSPARK_PYTHON, or else python3 (in "
        "local mode the driver's own): it must be there, with statefx and its extras"
    )


PORT_SECS = 5.0
"""How long a run that has ended may take to let its port go."""

EXECUTORS_SECS = 10.0
_LOOK_SECS = 0.2
"""How long it waits for the executors of a cluster, which come some seconds after the session is there."""

_LEVELS_MAX = 2
"""Levels in a session whose Python workers are not pipelined. There the JVM reads what one sends only where it waits
for no input: those of the first level have none, and those of the last one send nothing."""


def slots_needed(topology: Topology, plan: Plan) -> int:
    """Return how many slots of Spark a run takes, with one for jobs: those that stage, or those of a sink's commit."""
    return sum(plan.widths) + bool(topology.sinks or plan.streams)


def check_slots(topology: Topology, plan: Plan, session: SparkSession, checkpoint: str = "") -> None:
    """Refuse a session that can't hold all tasks at once; those of a driver of the same `checkpoint` end.

    ConfigError says what to write, with the number of slots.
    """
    context = session.sparkContext
    needed, held = slots_needed(topology, plan), held_slots(checkpoint)
    if len(plan.widths) > _LEVELS_MAX and context.getConf().get(PIPELINED_PYTHON, "false") != "true":
        raise ConfigError(
            f"{topology.name!r} has {len(plan.widths)} levels of tasks, which need {PIPELINED_PYTHON}=true, which "
            f"the session lacks, and which no session takes once it runs. Call spark.stop(), and build it with "
            f"{_session(context, needed + held)}; or give SparkSession.builder that setting",
            key=PIPELINED_PYTHON,
        )
    there = _slots(context, needed + held)
    if needed <= there - held:
        return
    jobs = "the jobs that read its DataFrames" if plan.streams else "what sinks run at their commit"
    other = f", one of them for {jobs}" if topology.sinks or plan.streams else ""
    raise ConfigError(
        f"the tasks of {topology.name!r} live at the same time: they need {needed} slots of Spark{other}. "
        f"{context.master} has {there}"
        + (f", of which other topologies hold {held}" if held else "")
        + f". {_more(context, needed + held)}, or less parallelism",
        needed=needed,
        slots=there,
    )


def _session(context: SparkContext, slots: int) -> str:
    given = is_local(context) and (is_submitted() or slots > SLOTS)
    return f'statefx.session("{context.appName}"' + (f', master="{local_master(slots)}")' if given else ")")


def _more(context: SparkContext, slots: int) -> str:
    if not is_local(context):
        conf = context.getConf()
        asked = int(conf.get("spark.executor.instances", "0"))
        each = int(conf.get("spark.executor.cores", "1")) // int(conf.get("spark.task.cpus", "1"))
        if conf.get("spark.dynamicAllocation.enabled", "false") == "true":  # and nothing runs before this check
            return (
                "Spark's dynamic allocation gives executors to waiting tasks only: set "
                "spark.dynamicAllocation.enabled=false, and spark.executor.instances"
            )
        if asked * each >= slots:
            return (
                f"After {EXECUTORS_SECS:g} s not all are there: {asked} executors were asked for "
                "(spark.executor.instances): wait until Spark's UI shows them, or set "
                "spark.scheduler.minRegisteredResourcesRatio=1.0"
            )
        return "Take more executors, or more spark.executor.cores (which may be more than there are cores)"
    if is_submitted():
        return (
            f"If spark-submit chose {context.master}, give it --master '{local_master(slots)}' (slots are threads "
            f"there, not cores); or write {_session(context, slots)}"
        )
    own = f"local[{slots}] or more (slots are threads there, not cores)"
    first = "" if slots > SLOTS else f"{_session(context, slots)}, which has {SLOTS}, or "
    return f"Call spark.stop(), and take {first}{own}"


def _slots(context: SparkContext, wanted: int) -> int:
    """Return how many slots there are; on a cluster, wait for executors while there are less than `wanted`."""
    limit = time.monotonic() + (0 if is_local(context) else EXECUTORS_SECS)
    while (there := internals.task_slots(context)) < wanted and time.monotonic() < limit:
        time.sleep(_LOOK_SECS)
    return there
