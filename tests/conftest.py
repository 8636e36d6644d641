"""Fixtures that tests of several folders share."""

import functools
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import weakref
import zlib
from collections import Counter
from collections.abc import Generator, Iterator
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, ClassVar

import hypothesis
import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from statefx.testing.living import LocalRunEngine
from tests.testing.places import place, provider
from tests.ui.browsing import browser, tab

__all__ = ["browser", "place", "provider", "tab"]

ROOT = Path(__file__).parent.parent

# By default an example that takes 200 ms fails: on a machine that does other things too, any does. A test that hangs is
# ended by pytest-timeout.
hypothesis.settings.register_profile("unhurried", deadline=None, max_examples=50)
hypothesis.settings.load_profile("unhurried")

# No JVM that tests start lives long enough to be worth the best compiler; without it a start takes a third less.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

CLASSES = ROOT / "build" / "spark-classes.jsa"
"""`tests/spark/class_archive.py` makes it, for `make test`. A JVM would warn of one that is stale, hence no log."""

ARCHIVED = f' "-XX:SharedArchiveFile={CLASSES}" -Xlog:disable' if CLASSES.exists() else ""
os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OPTIONS + ARCHIVED)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's "&" hands it on, to programs that tests interrupt too
    signal.signal(signal.SIGINT, signal.default_int_handler)

MEMORY = Path("/dev/shm")
"""Files in memory, on Linux: tests wait for no disk there, and each of thousands asks it to sync a dozen times."""

if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 << 30:  # containers often have 64 MB
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    # Also of servers, which sync each write as users have it, and of thousands of sites that state machines make.
    tempfile.tempdir = str(MEMORY)

GROUPS = ("kafka", "spark", "postgres", "player", "programs")
"""Fixtures that start a server or a JVM: one process runs all tests that have the same, those of Kafka first.

They wait most of their time.
"""


def _scope(item: pytest.Item) -> str:
    """What is one piece of work for a process: the tests of a group, or of a file."""
    fixtures = {*getattr(item, "fixturenames", ())}
    if hasattr(item, "callspec"):  # of `database`
        fixtures |= {each for each in item.callspec.params.values() if isinstance(each, str)} & {"postgres"}
    return next((group for group in reversed(GROUPS) if group in fixtures), item.nodeid.partition("::")[0])


NEEDED_BY_FIXTURE = {
    "spark": ("spark", "player", "own_player", "programs", "drivers"),
    "server": ("kafka", "postgres"),
}
"""Markers, and the fixtures that bring them: a test that uses one is marked without being told."""

SERVERS = {"RedisServer", "KafkaBroker", "PostgresServer"}
"""Classes that start a server: a test that names one is marked too, and so is one with a fixture that does.

A fixture with parameters marks those itself. The other tests of a module stay in `make check`.
"""

NEEDED_BY_PROGRAM = {
    **dict.fromkeys(("spark-submit", "java"), ("spark", "server")),
    **dict.fromkeys(("redis-server", "initdb", "postgres", "prometheus"), ("server",)),
}
"""Programs, and the markers of a test that may start them."""

NO_JAVA = "/a-test-that-starts-Java-is-marked-spark-or-server"

_running: list[pytest.Item] = []


def _refuse_unmarked(event: str, arguments: tuple[object, ...]) -> None:
    """Fail a test that starts a JVM or a server without a marker that keeps it out of `make check`."""
    if event == "subprocess.Popen" and _running:
        markers = NEEDED_BY_PROGRAM.get(os.path.basename(str(arguments[0])), ())
        if markers and not any(map(_running[0].get_closest_marker, markers)):
            raise RuntimeError(f"this test starts {arguments[0]}: mark it with {' or '.join(markers)}")


sys.addaudithook(_refuse_unmarked)


def pytest_collection_finish() -> None:
    """Keep what was imported away from the collector of garbage, which else looks at all of it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test have Java only if it is marked so; processes that it starts inherit that."""
    _running[:] = [item]
    with pytest.MonkeyPatch.context() as patch:
        if not any(map(item.get_closest_marker, NEEDED_BY_FIXTURE)):
            patch.setenv("JAVA_HOME", NO_JAVA)
        try:
            return (yield)
        finally:
            _running.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """End the chains of testers that a test has made and not closed: each keeps what it had in its hands."""
    made = weakref.WeakSet[LocalRunEngine]()
    init = LocalRunEngine.__init__

    def note(self: LocalRunEngine, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        made.add(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalRunEngine, "__init__", note)
        try:
            return (yield)
        finally:
            for engine in list(made):
                engine.close()


SLOW_OF_CONTRACTS = {
    "runTest",
    "test_a_crash_at_any_step_leaves_each_transaction_once",
    "test_a_crash_in_snapshot_or_sweep_harms_no_version",
    "test_a_driver_that_stops_anywhere_while_the_next_one_works_changes_nothing",
    "test_a_scan_costs_what_is_read_of_it",
    "test_a_scan_in_a_large_transaction_costs_what_is_read_of_it",
    "test_a_topology_whose_driver_crashes_at_any_step_counts_each_row_once",
    "test_a_version_can_be_read_when_caches_are_ahead",
    "test_an_entry_is_never_seen_when_its_time_has_passed",
    "test_caches_catch_up_from_any_version",
    "test_many_are_read_at_once_each_with_its_own_outcome",
    "test_of_many_that_race_for_a_name_one_wins_and_knows_it",
    "test_rows_come_back_as_they_were_or_are_refused_before_the_decision",
    "test_what_a_driver_has_planned_and_not_written_down_is_planned_again",
    "test_what_is_kept_under_names_goes_with_the_state",
    "test_what_is_over_is_removed_a_few_entries_at_a_time",
    "test_what_is_taken_back_is_gone_after_any_crash_and_rows_of_others_stay",
}
"""Tests of `statefx.testing`'s contracts and machines: a mark there would be one that users' pytest does not know."""

SOAK_OF_CONTRACTS = {"test_a_hundred_thousand_keys_in_one_transaction", "test_more_names_than_one_answer_holds"}
"""Likewise; for each provider and storage more than all else of its contract takes, and only more of the same."""

SEEDS = 3
"""How many of a test's random lives `make check` takes: those with other values of `seed` are marked slow."""


def pytest_itemcollected(item: pytest.Item) -> None:
    seed = item.callspec.params.get("seed") if hasattr(item, "callspec") else None
    name = item.name.partition("[")[0]
    if (isinstance(seed, int) and seed >= SEEDS) or name in SLOW_OF_CONTRACTS | SOAK_OF_CONTRACTS:
        item.add_marker("slow")
    if name in SOAK_OF_CONTRACTS and getattr(item, "cls", None):
        item.add_marker("soak")
    for marker, fixtures in NEEDED_BY_FIXTURE.items():
        if not set(fixtures).isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(marker)
    if any(not SERVERS.isdisjoint(_names(function.__code__)) for function in _functions(item)):
        item.add_marker("server")


def _functions(item: pytest.Item) -> Iterator[FunctionType]:
    """Yield a test's function, and those of its fixtures that have no parameters."""
    found = [getattr(item, "function", None)]
    if isinstance(item, pytest.Function):
        fixtures = (each for known in item._fixtureinfo.name2fixturedefs.values() for each in known)
        found += [each.func for each in fixtures if not each.params]
    yield from (each for each in found if isinstance(each, FunctionType))


@functools.cache  # most tests share their fixtures
def _names(code: CodeType) -> frozenset[str]:
    """Return the names that a function uses, also within functions of its own."""
    within = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return frozenset(code.co_names).union(*within)


def _uses_broker(item: pytest.Item) -> bool:
    return "kafka" in getattr(item, "fixturenames", ())


def _broker_rank(item: pytest.Item) -> int:
    """Return when a test of a group comes, by what it does with the one broker.

    Those that may kill it come first, before others have left it hundreds of partitions: a broker that starts after a
    SIGKILL looks through each of them, which takes longer than all else of its start. Those that have none come last.
    """
    if not _uses_broker(item):
        return 2
    return int({"kill", "restart"}.isdisjoint(chain.from_iterable(_names(each.__code__) for each in _functions(item))))


@pytest.hookimpl(trylast=True)  # when the test's own clients are gone
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Kill the broker behind the last test of a group that has it: one that waits takes a twentieth of a processor.

    Whoever asks it for a topic revives it.
    """
    if _brokers and nextitem is not None and _uses_broker(item) and not _uses_broker(nextitem):
        _brokers[0].kill()


_brokers: list[Any] = []
"""The one broker of this process, once it runs."""


DAILY_OF_CONTRACTS = {
    "test_a_crash_at_any_step_leaves_each_transaction_once": 3,
    "test_a_topology_whose_driver_crashes_at_any_step_counts_each_row_once": 2,
    "test_an_entry_is_never_seen_when_its_time_has_passed": 2,
    "test_a_scan_costs_what_is_read_of_it": 2,
    "test_the_same_metadata_emits_the_same_rows_in_another_process": 1,
    "test_what_is_kept_under_names_goes_with_the_state": 4,
    "test_what_is_over_is_removed_a_few_entries_at_a_time": 3,
    "test_what_is_taken_back_is_gone_after_any_crash_and_rows_of_others_stay": 2,
}
"""How many classes and variants of a contract run a test in `make test`: users' pytest knows no mark of ours."""


def _leave_to_soak(items: list[pytest.Item]) -> None:
    """Mark the variants of tests that say `daily` as soak, but for as many as they say."""
    variants: dict[str, list[pytest.Item]] = {}
    for item in items:
        function, _, _ = item.nodeid.partition("[")
        name = function.rpartition("::")[2]
        if not item.get_closest_marker("soak") and (item.get_closest_marker("daily") or name in DAILY_OF_CONTRACTS):
            variants.setdefault(name if name in DAILY_OF_CONTRACTS else function, []).append(item)
    for function, each in variants.items():
        mark = each[0].get_closest_marker("daily")
        chosen = _various(function, each, mark.args[0] if mark else DAILY_OF_CONTRACTS[function])
        for item in each:
            if item not in chosen:
                item.add_marker("soak")


def _various(function: str, variants: list[pytest.Item], count: int) -> list[pytest.Item]:
    """Return variants that differ in as many of their arguments as can be; the function's name says which comes first.

    Else every test of several providers would run with the first one alone. Each run takes the same variants, so that
    what fails is due to the change.
    """

    def arguments(item: pytest.Item) -> set[object]:
        return {*item.callspec.indices.items()} if hasattr(item, "callspec") else set()

    first = zlib.crc32(function.encode()) % len(variants)
    left, seen, chosen = variants[first:] + variants[:first], set[object](), list[pytest.Item]()
    while left and len(chosen) < count:
        chosen.append(best := max(left, key=lambda item: len(arguments(item) - seen)))
        left.remove(best)
        seen |= arguments(best)
    return chosen


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_to_soak(items)
    if "soak" not in config.option.markexpr:  # not `addopts`: a -m of the command line would take its place
        soak = [item for item in items if item.get_closest_marker("soak")]
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=soak)
    scopes = {item.nodeid: _scope(item) for item in items}
    slow = Counter(scopes[item.nodeid] for item in items if item.get_closest_marker("slow"))
    rank = {group: number for number, group in enumerate(GROUPS, -len(GROUPS))}
    # Long pieces first: what is left in the end is spread evenly.
    items.sort(key=lambda item: (rank.get(scope := scopes[item.nodeid], 0), -slow[scope], _broker_rank(item)))
    worker = getattr(config, "workerinput", None)
    if worker and worker["workerid"] == "gw0":
        Path(worker["scopes"]).write_text(json.dumps(scopes), encoding="utf-8")


class _Scheduling(LoadFileScheduling):
    """As ``--dist loadfile``, but for the tests of groups, which only the processes that collect them can tell."""

    scopes: ClassVar[dict[str, str]] = {}

    def _split_scope(self, nodeid: str) -> str:
        return self.scopes[nodeid]

    def schedule(self) -> None:
        self.scopes.update(json.loads(SCOPES.read_text(encoding="utf-8")))
        super().schedule()


SCOPES = Path(tempfile.gettempdir(), f"statefx-scopes-{os.getpid()}.json")
"""Written by the first of the processes that run tests; of the one that schedules them."""


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    node.workerinput["scopes"] = str(SCOPES)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    return _Scheduling(config, log) if config.option.dist == "loadfile" else None


def pytest_unconfigure() -> None:
    SCOPES.unlink(missing_ok=True)


NO_KAFKA = "there is no Kafka"
SLOWEST = 10


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """Say which files took longest, and how many tests of Kafka were left out: the list of those that were is long."""
    yield
    if terminalreporter.config.option.durations:
        _tell_slowest_files(terminalreporter)
    if "not slow" in terminalreporter.config.option.markexpr:
        _tell_slow_tests(terminalreporter)
    reasons = [each.longrepr[2] for each in terminalreporter.stats.get("skipped", ()) if NO_KAFKA in each.longrepr[2]]
    if reasons:
        terminalreporter.write_line(
            f"{len(reasons)} tests of Kafka were skipped; {reasons[0].removeprefix('Skipped: ')}"
        )


SLOW_SECS = 0.5
"""A test of `make check` that takes longer is told of: thousands of them are to take a minute."""


def _tell_slow_tests(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [each for each in terminalreporter.stats.get("passed", ()) if each.duration > SLOW_SECS]
    for report in sorted(reports, key=lambda each: -each.duration):
        terminalreporter.write_line(f"{report.duration:4.1f} s  {report.nodeid}: to be quicker, or marked slow")


def _tell_slowest_files(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell the seconds of each of the slowest files."""
    secs: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                secs[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section(f"slowest {SLOWEST} files")
    for file, taken in secs.most_common(SLOWEST):
        terminalreporter.write_line(f"{taken:7.1f} s  {file}")


@pytest.fixture(scope="session")
def kafka() -> Iterator["object"]:
    """The one Kafka broker of a process that runs tests; each test makes its own topics."""
    from tests.kafka.broker import KafkaBroker
    from tests.kafka.libraries import UnavailableError

    try:
        broker = KafkaBroker()
    except UnavailableError as why:
        pytest.skip(f"{NO_KAFKA}: {why}")
    with broker:
        _brokers.append(broker)
        # Kafka makes the topics of its own when they are first asked for, and a test's sink waits two seconds only.
        broker.transact(topic := broker.topic(), "a")
        broker.read(topic, 1)
        yield broker


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator["object"]:
    """The one process that runs pages and examples which need none of their own."""
    from tests.programs import Programs

    with Programs(tmp_path_factory.mktemp("programs")) as process:
        yield process


@pytest.fixture(scope="session")
def postgres() -> Iterator["object"]:
    """The one PostgreSQL server of a process that runs tests; each test has a database of its own."""
    from tests.sinks.postgres_server import PostgresServer

    with PostgresServer() as server:
        yield server


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Records of this test alone.

    A test that lets a driver crash can't close its spouts: their threads go on until the garbage collector comes, as no
    thread of a killed process does, and warn that a server of that test has ended.
    """
    earlier = {thread for thread in threading.enumerate() if thread.name == "statefx-renew"}
    caplog.handler.addFilter(lambda record: threading.current_thread() not in earlier)
    return caplog


@pytest.fixture
def driver(request: pytest.FixtureRequest, place: Path) -> Iterator["object"]:
    """Drivers on one checkpoint in `place`, closed at the end; a test with a `provider` has its state there."""
    from tests.testing.topologies import Driver

    provider = request.getfixturevalue("provider") if "provider" in request.fixturenames else "memory"
    with Driver(place, provider) as made:
        yield made


@pytest.fixture
def postgres_database(postgres: "object", tmp_path: Path) -> "object":
    from tests.sinks.database import PostgresDatabase

    return PostgresDatabase(postgres, tmp_path)


@pytest.fixture
def sqlite_database(tmp_path: Path) -> "object":
    from tests.sinks.database import SqliteDatabase

    return SqliteDatabase(tmp_path)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=[pytest.mark.slow, pytest.mark.server])])
def database(request: pytest.FixtureRequest) -> "object":
    return request.getfixturevalue(f"{request.param}_database")


@pytest.fixture(params=[pytest.param(10, id="tenth"), pytest.param(1, id="each", marks=pytest.mark.soak)])
def stride(request: pytest.FixtureRequest) -> int:
    """How far apart the moments are at which a test crashes: `make test` takes every tenth, `make soak` all of them.

    Cases of one test begin at different moments, so that together they take more than a tenth.
    """
    found: int = request.param
    return found


@pytest.fixture(scope="session")
def spark() -> Iterator["object"]:
    """The one Spark session of a test run, with the settings that the documentation recommends."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    from statefx.spark.session import LOADED_WORKERS, PIPELINED_PYTHON, RECOMMENDED

    builder = SparkSession.builder.master("local[32]").appName("statefx-tests")
    settings = {
        **RECOMMENDED,
        **LOADED_WORKERS,
        PIPELINED_PYTHON: "true",
        "spark.ui.enabled": "true",  # a session of another test may have switched it off for the JVM
        "spark.ui.port": "0",  # any that is free: what it shows is tested
        "spark.ui.showConsoleProgress": "false",
        # Whoever kills or cancels a task waits for the others of its job: by default Spark gives those two seconds.
        "spark.python.task.killTimeout": "100ms",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",  # the slots are for the tasks of topologies, which all live
        "spark.executorEnv.PYTHONPATH": str(ROOT),  # bolts of test modules are found by their module's name
        "spark.sql.streaming.numRecentProgressUpdates": "10",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
