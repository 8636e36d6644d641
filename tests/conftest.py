"""Fixtures that tests of several folders share."""

import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parent.parent

# By default an example that takes 200 ms fails: on a machine that does other things too, any does. A test that hangs is
# ended by pytest-timeout.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")

# No JVM that tests start lives long enough to be worth the best compiler; without it a start takes a third less.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

CLASSES = ROOT / "build" / "spark-classes.jsa"
"""`tests/spark/class_archive.py` makes it, for `make test`. A JVM would warn of one that is stale, hence no log."""

ARCHIVED = f' "-XX:SharedArchiveFile={CLASSES}" -Xlog:disable' if CLASSES.exists() else ""
os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OPTIONS + ARCHIVED)

LONGEST = (
    "tests/examples/test_examples.py",
    "tests/spark/test_zombies.py",
    "tests/recovery/test_matrix.py",
    "tests/coordinator/test_migration.py",
    "tests/spark/test_lost_executors.py",
    "tests/spark/test_processes.py",
    "tests/spark/test_first_batch.py",
    "tests/recovery/test_sweeps.py",
    "tests/client/test_crashes.py",
    "tests/spark/test_faults.py",
    "tests/examples/test_ledger.py",
    "tests/spark/test_spout_phases.py",
    "tests/docs/test_code_blocks.py",
    "tests/spark/test_in_flight.py",
    "tests/spark/test_stops.py",
    "tests/protocol/test_pipeline_model.py",
    "tests/spark/test_scripts.py",
    "tests/spark/test_spark_submit.py",
    "tests/coordinator/test_in_flight.py",
    "tests/spark/test_chains.py",
    "tests/spark/test_spout_kills.py",
)
"""Files that take longest, by length; they come after those of Kafka, which are one piece and wait most of their time.

At the end, one of them would have a process wait for the other."""


def _scope(nodeid: str) -> str:
    """What one process runs: a file, or all tests of Kafka. Another process would start a broker of its own."""
    file = nodeid.partition("::")[0]
    return "kafka" if "kafka" in file else file


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rank = {str(ROOT / path): number for number, path in enumerate(LONGEST)}
    items.sort(key=lambda item: -1 if _scope(item.nodeid) == "kafka" else rank.get(str(item.path), len(rank)))
    if "soak" not in config.option.markexpr:  # not `addopts`: a -m of the command line would take its place
        soak = [item for item in items if item.get_closest_marker("soak")]
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=soak)


class _Scheduling(LoadFileScheduling):
    """As ``--dist loadfile``, but for the tests of Kafka."""

    def _split_scope(self, nodeid: str) -> str:
        return _scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    return _Scheduling(config, log) if config.option.dist == "loadfile" else None


def pytest_configure() -> None:
    missing = [path for path in LONGEST if not (ROOT / path).exists()]
    assert not missing, f"tests/conftest.py names files that are gone: {missing}"


NO_KAFKA = "there is no Kafka"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """Say in one of the last lines how many tests of Kafka were left out: the list of those that were is long."""
    yield
    reasons = [each.longrepr[2] for each in terminalreporter.stats.get("skipped", ()) if NO_KAFKA in each.longrepr[2]]
    if reasons:
        terminalreporter.write_line(
            f"{len(reasons)} tests of Kafka were skipped; {reasons[0].removeprefix('Skipped: ')}"
        )


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
def postgres_database(postgres: "object", tmp_path: Path) -> "object":
    from tests.sinks.database import PostgresDatabase

    return PostgresDatabase(postgres, tmp_path)


@pytest.fixture
def sqlite_database(tmp_path: Path) -> "object":
    from tests.sinks.database import SqliteDatabase

    return SqliteDatabase(tmp_path)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest) -> "object":
    return request.getfixturevalue(f"{request.param}_database")


@pytest.fixture(scope="session")
def spark() -> Iterator["object"]:
    """The one Spark session of a test run, with the settings that the documentation recommends."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    from statefx.spark.session import RECOMMENDED

    builder = SparkSession.builder.master("local[2]").appName("statefx-tests")
    settings = {
        **RECOMMENDED,
        "spark.ui.enabled": "true",  # a session of another test may have switched it off for the JVM
        "spark.ui.port": "0",  # any that is free: what it shows is tested
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.executorEnv.PYTHONPATH": str(ROOT),  # bolts of test modules are found by their module's name
        "spark.sql.streaming.numRecentProgressUpdates": "10",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
