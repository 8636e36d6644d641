"""A standalone cluster of Spark's, with two executors that have addresses of their own: tasks connect over them."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from statefx import Checkpoint
from tests.conftest import ROOT
from tests.ports import free_port
from tests.spark.spouting import Places, expected, outcome
from tests.storage.s3_server import as_users_have_it, s3_server

CORES = 4
"""Of each executor: a topology of `tests.spark.spouting` needs six slots, and so both executors."""

EACH = 20
SPARK_HOME = Path(pyspark.__file__).parent


@contextmanager
def running(host, *command, **more):
    """Run a daemon of Spark's at an address of loopback; SIGKILL ends it, and its executors."""
    own = {"SPARK_LOCAL_IP": host, "SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable, **more}
    env = {**os.environ, **own}
    program = ["bash", str(SPARK_HOME / "bin" / "spark-class"), *map(str, command)]
    process = subprocess.Popen(program, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def cluster(*folders):
    """Run a master, and a worker on each folder, which has its temporary files there as well; yield its URL."""
    port = free_port()
    deploy = "org.apache.spark.deploy"
    with ExitStack() as stack:
        stack.enter_context(
            running("127.0.0.1", f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", 0)
        )
        for last, folder in enumerate(folders, 2):
            host = f"127.0.0.{last}"
            options = ("--host", host, "--webui-port", 0, "--cores", CORES, "--memory", "1g", "-d", folder)
            worker = (f"{deploy}.worker.Worker", *options, f"spark://127.0.0.1:{port}")
            stack.enter_context(running(host, *worker, TMPDIR=str(folder)))
        yield f"spark://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    with cluster(*(tmp_path_factory.mktemp("worker") for _ in range(2))) as url:
        yield url


@pytest.fixture
def ran(drivers, place, master):
    """Run a driver on the cluster to its end; return what it said."""

    def run():
        more = {"master": master}
        driver = drivers(place, "rocksdb", program="tests.spark.spouting", more=more, each=EACH)
        driver.end()
        assert outcome(place) == (expected(EACH), expected(EACH))
        return driver.said

    return run


@pytest.mark.soak
@pytest.mark.spark
def test_rows_and_orders_go_between_machines(ran):
    assert ran()["runs"] == 1


@pytest.mark.soak
@pytest.mark.spark
def test_a_worker_is_killed_and_another_run_goes_on(place, ran):
    Places(place).kill("execute", 2)
    assert ran()["runs"] == 2


@pytest.mark.soak
@pytest.mark.spark
def test_an_executor_is_killed_and_another_run_goes_on(place, ran):
    """The JVM of one of the two; Spark starts it again."""
    Places(place).kill("prepare", 2, "executor")
    assert ran()["runs"] >= 2


@pytest.mark.soak
@pytest.mark.spark
def test_no_folder_is_shared_but_an_executor_is_killed(drivers, place, tmp_path, monkeypatch):
    """The checkpoint is in S3: driver and executors have temporary folders of their own, and nothing of it in them."""
    machines = [tmp_path / name for name in ("driver", "worker-1", "worker-2")]
    for each in machines:
        each.mkdir()
    with s3_server() as address, as_users_have_it(address) as made, cluster(*machines[1:]) as master:
        url = made()
        monkeypatch.setenv("TMPDIR", str(machines[0]))
        Places(place).kill("prepare", 2, "executor")
        more = {"master": master, "location": url}
        driver = drivers(place, "rocksdb", program="tests.spark.spouting", more=more, each=EACH)
        driver.end(bound_secs=240)  # two JVMs of executors begin one after the other
        assert driver.said["runs"] >= 2
        assert outcome(place, url) == (expected(EACH), expected(EACH))
        assert Checkpoint(url).verify().ok
    assert not (place / "ck").exists()
    assert [path for path in tmp_path.rglob("*") if path.name == "transactions" or path.suffix == ".changelog"] == []


@pytest.mark.soak
@pytest.mark.spark
def test_a_folder_that_executors_do_not_see_is_refused_before_anything_is_begun(drivers, place, master, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    driver = drivers(place, program="tests.spark.unseen_folders", more={"master": master})
    driver.end(bound_secs=240)
    remedy = "use a folder that is mounted at the same path on the driver and on every executor"
    for unseen, name, folder in (("sink", "archive", "out"), ("spout", "lines", "in")):
        said, begun = driver.said[unseen]
        found = f"{unseen} {name!r}: the folder /proc/self/cwd/{folder} is not visible on executor "
        assert said.startswith(f"ConfigError: {found}"), said
        assert said.endswith(remedy)
        assert not begun
    assert driver.said["nothing"] == ["", True]
    assert driver.said["left"] == []


# ---- An executor is killed between a shuffle and its readers, on a cluster of two: exact, and the query goes on.


ROLLED_BACK = ("between bolts", "random input", "shuffled stream")
"""A bolt's executor dies, and with it the attempt."""

STAGED = (
    "random input, staged",
    "random input, shuffled",
    "cached input",
    "cached shuffle",
    "cached shuffle, staged",
    "unmade cached shuffle, staged",
    "shuffled stream, staged",
)
"""One dies before its transaction begins."""

UNSURE = ("spouts", "spouts, in each phase")
"""All tasks may have been on the other executor: then nothing was lost."""


@pytest.fixture(scope="module")
def told(request, tmp_path_factory):
    """What the program says of each topology that a test asks for; it runs them all in one cluster."""
    items = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["name"] if hasattr(item, "callspec") else "rescaled" for item in items]
    env = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.losing_executors", str(tmp_path_factory.mktemp("cluster")), *names],
        cwd=ROOT,
        env={**env, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: found for line in lines for name, found in line.items()}


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [*ROLLED_BACK, *STAGED, *UNSURE])
def test_what_is_committed_is_exact(told, name):
    assert "error" not in told[name], told[name]["error"]
    assert told[name]["killed"]
    if name in ROLLED_BACK:
        assert told[name]["reasons"], "the attempt was committed although its executor died"


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_another_executor_gives_keys_to_other_tasks(told):
    assert "error" not in told["rescaled"], told["rescaled"]["error"]
    assert told["rescaled"]["killed"]
