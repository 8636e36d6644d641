"""The user's session is as it was: settings, catalog, job group, job tags."""

import json
import os
import subprocess
import sys

import pytest

from statefx.errors import ConfigError
from statefx.spark import session as session_module
from statefx.spark.session import RECOMMENDED
from tests.conftest import ROOT
from tests.spark.bolts import word_count
from tests.spark.drivers import ENVIRONMENT
from tests.spark.running import feed, lines_of, run, state

pytestmark = pytest.mark.slow


def face(spark):
    context = spark.sparkContext
    return {
        "settings": spark.conf.getAll,
        "views": [table.name for table in spark.catalog.listTables()],
        "functions": [row.function for row in spark.sql("show user functions").collect()],
        "group": context.getLocalProperty("spark.jobGroup.id"),
        "description": context.getLocalProperty("spark.job.description"),
        "order": context.getLocalProperty("statefx.order"),
        "tags": context.getJobTags(),
        "python": context.pythonExec,
        "queries": [query.id for query in spark.streams.active],
    }


def test_nothing_of_the_user_s_session_changes(spark, place):
    spark.sparkContext.setJobGroup("mine", "my job", interruptOnCancel=True)
    spark.sparkContext.addJobTag("my-tag")
    before = face(spark)
    assert before["group"] == "mine"
    feed(place / "in", a=["x y"], b=["x"])
    run(word_count(lines_of(spark, place / "in")), spark, place / "stream", trigger={"availableNow": True})
    run(word_count(spark.createDataFrame([("x",)], "value string")), spark, place / "batch")
    assert face(spark) == before
    spark.sparkContext.removeJobTag("my-tag")
    for key in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
        spark.sparkContext.setLocalProperty(key, None)


def test_the_user_s_settings_reach_the_input_and_ours_do_not(spark, place):
    """Adaptive execution is off in our jobs only; ANSI mode, say, is the user's."""
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", "false")
    session.conf.set("spark.sql.adaptive.enabled", "true")
    frame = session.sql("select cast('no number' as int) is null as odd").selectExpr("string(odd) as value")
    run(word_count(frame), session, place / "ck")
    assert state(place / "ck", "count") == {"true": 1}
    assert session.conf.get("spark.sql.adaptive.enabled") == "true"


def test_two_queries_in_one_session(spark, place):
    from statefx import submit

    queries = []
    for name in ("one", "two"):
        feed(place / name, a=[f"{name} x"] * 3, b=["x"])
        topology = word_count(lines_of(spark, place / name), name="same-name")
        queries.append(submit(topology, spark, place / f"ck-{name}", trigger={"availableNow": True}))
    for query in queries:
        assert query.awaitTermination(120)
    for name in ("one", "two"):
        assert state(place / f"ck-{name}", "count") == {name: 3, "x": 4}


def test_a_batch_is_not_told_of_settings_of_streams(spark, monkeypatch, caplog):
    other = spark.newSession()
    other.conf.set(next(key for key in RECOMMENDED if "streaming" in key), "another")
    monkeypatch.setattr(session_module, "_hinted", False)
    session_module.hint(other, streaming=False)
    assert caplog.records == []
    session_module.hint(other, streaming=True)
    session_module.hint(other, streaming=True)
    assert len(caplog.records) == 1


SET_TO_CONNECT = {"SPARK_REMOTE": "sc://localhost/;token=secret", "SPARK_CONNECT_MODE_ENABLED": "1"}


@pytest.mark.parametrize("name", SET_TO_CONNECT)
def test_a_process_that_is_set_to_spark_connect_is_told(monkeypatch, name):
    monkeypatch.setenv(name, SET_TO_CONNECT[name])
    with pytest.raises(ConfigError, match=f"needs a classic SparkSession.* start a new one without {name}$"):
        session_module.session()


@pytest.mark.parametrize("version", ["3.5.1", "4.2.0", "3.5.1-amzn-0"])
def test_an_older_spark_home_is_told(monkeypatch, tmp_path, version):
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / f"spark-core_2.12-{version}.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=rf"SPARK_HOME names {version} in {tmp_path}: unset SPARK_HOME"):
        session_module.session()


OLD = '__version__ = "3.5.1"\ndef __getattr__(name): return type(name, (Exception,), {})\n'
"""A PySpark of which any name can be imported that stands in a package that there was."""


@pytest.mark.parametrize("name", ["session", "submit", "Query"])
def test_an_older_pyspark_is_told_from_where_it_comes(tmp_path, name):
    for package in ("pyspark", "pyspark/sql", "pyspark/errors"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(OLD)
    done = subprocess.run(
        [sys.executable, "-c", f"from statefx import {name}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"/other{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    says = f"ImportError: statefx needs PySpark 4.3 or later, and this is 3.5.1 in {tmp_path}: unset PYTHONPATH"
    assert done.stderr.splitlines()[-1] == says


ASK = """
import json, os, sys, statefx
for environment in json.loads(sys.argv[1]):
    os.environ.pop("JAVA_HOME", None)
    os.environ.update(environment)
    try:
        statefx.session()
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_what_is_wrong_with_java_is_told(tmp_path):
    """Also where SPARK_API_MODE is for Spark Connect: the session is a classic one."""
    environments = []
    for name, version in {"none": "", "8": "1.8.0_392", "11": "11.0.2", "17": "17.0.1"}.items():
        java = tmp_path / name / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f"""#!/bin/sh\necho 'openjdk version "{version}" 2026-01-20' >&2\nexit 1\n""")
        java.chmod(0o755)
        environments.append({"JAVA_HOME": str(tmp_path / name)})
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps([*environments, {"PATH": "/nowhere"}])],
        cwd=ROOT,
        env={**os.environ, "SPARK_API_MODE": "connect"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    none, eight, eleven, sound, missing = done.stdout.splitlines()
    begins = "ConfigError Spark's JVM did not start. It needs Java 17 or later, and "
    assert none.startswith(f"{begins}{tmp_path}/none (JAVA_HOME) has none that runs: ")
    assert eight.startswith(f"{begins}{tmp_path}/8 (JAVA_HOME) is 8: ")
    assert eleven.startswith(f"{begins}{tmp_path}/11 (JAVA_HOME) is 11: ")
    assert sound.startswith("PySparkRuntimeError [JAVA_GATEWAY_EXITED]"), "its version is not what is wrong"
    assert missing.startswith(f"{begins}there is no java on PATH, and no JAVA_HOME: ")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What `tests.spark.stopping_sessions` prints, and what it writes to stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.stopping_sessions", str(tmp_path_factory.mktemp("sessions"))],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {name: found for line in lines for name, found in line.items()} | {"stderr": done.stderr}


@pytest.mark.soak
@pytest.mark.spark
def test_workers_of_statefx_s_session_are_forked_with_everything_loaded(told):
    assert "[Stage" not in told["stderr"]
    assert len({pid for pid, *_ in told["own"]}) == 4
    for _, parent, there, rows, product, compiled in told["own"]:
        assert "statefx.spark.daemon" in parent
        assert there == ["pandas", "statefx.runtime.chain"]
        assert (rows, product) == (1000, 300.0)
        assert compiled, "pyspark.zip has no compiled modules"


@pytest.mark.soak
@pytest.mark.spark
def test_a_session_that_runs_already_is_told_and_the_remedy_works(told):
    found = told["after_another"]
    assert 'Call spark.stop(), and take statefx.session("pyspark-shell"), which has 32' in found["refused"]
    for name in ("batch", "stream"):
        said, begun = found["kept"][name]
        assert said.startswith("TopologyError: the DataFrame 'lines' was made with another SparkSession"), said
        assert not begun
    assert told["new_session"][-1] == ["COMMITTING", 1, 0], "another session of the same application is none"


@pytest.mark.soak
@pytest.mark.spark
def test_a_session_that_is_stopped_fails_what_is_at_work_and_ends_what_waits(told):
    assert told["batch"]["error"] == "TransactionError: the SparkContext was stopped while the query was running"
    assert told["spouts"]["error"] == told["stream"]["error"] == told["batch"]["error"]
    assert "COMMITTING" not in str([told["stream"], told["batch"], told["spouts"]])
    assert told["idle"]["error"] is None
    assert told["idle"]["log"][-1] == ["COMMITTING", 1, 0]  # which commits
    assert "ended because the SparkContext was stopped: nobody has stopped the query" in told["stderr"]


@pytest.mark.soak
@pytest.mark.spark
def test_a_session_that_is_stopped_ends_a_commit_that_is_tried_again_and_not_one_that_needs_no_spark(told):
    assert told["away"]["error"] == told["batch"]["error"]
    assert told["away"]["log"][-1] == ["COMMITTING", 1, 0]
    assert told["begun"]["error"] is None
    assert told["begun"]["rows"] == [{"value": "a"}]
    assert told["begun"]["log"][-1] == ["COMMITTED", 1, None]
