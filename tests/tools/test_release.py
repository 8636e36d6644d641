"""The archives of a release: what is in them, and what they do in an environment that has nothing else."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from statefx import __version__
from tests.docs import test_tutorial as tutorial
from tests.docs.test_code_blocks import program

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = {Path(path).name for path in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
OURS = {"bench", "dev", "docs", "release"}
"""Extras for work on statefx itself."""

RELEASED = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["project"]["classifiers"]))
PYTHONS = os.environ.get("PYTHONS", "").split() or [f"python{version}" for version in (RELEASED[0], RELEASED[-1])]

TYPED = '''
"""A user's program, checked as strictly as mypy can."""

from collections.abc import Iterator
from typing import NamedTuple

import statefx_memory
import statefx_rocksdb
from statefx_redis import RedisSink

from statefx import Checkpoint, Collector, KeyValueState, Query, StatefulBolt, TopologyBuilder, session, submit
from statefx.connectors.files import FilePartitionedSpout, FileSink


class Payment(NamedTuple):
    account: str
    cents: int


class Balances(StatefulBolt):
    outputFields = Payment

    def initState(self, state: KeyValueState[str, int]) -> None:
        self.balances = state

    def execute(self, tup: Payment, collector: Collector) -> None:
        balance = self.balances.get(tup.account, 0) + tup.cents
        self.balances.put(tup.account, balance)
        collector.emit(Payment(tup.account, balance))


def run(folder: str) -> Query:
    builder = TopologyBuilder("bank")
    builder.setSpout("payments", FilePartitionedSpout(folder, "json", "account string, cents long"))
    builder.setBolt("balances", Balances()).fieldsGrouping("payments", "account")
    builder.setSink("results", FileSink("results")).shuffleGrouping("balances")
    return submit(builder.createTopology(), session("bank"), "checkpoints/bank")


def balances() -> Iterator[tuple[object, object]]:
    with Checkpoint("checkpoints/bank").state("balances") as state:
        yield from state.items()


PROVIDERS = [statefx_memory.MemoryStateProvider, statefx_rocksdb.RocksDbStateProvider, RedisSink]
'''


def build(folder, *options):
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, *options, ROOT],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return sorted(folder.iterdir())


@pytest.mark.slow
def test_wheel_has_types_licence_and_commands(tmp_path):
    """Without ``py.typed``, `mypy --strict` refuses the imports that the documentation shows."""
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        texts = {name: wheel.read(name).decode() for name in wheel.namelist()}
    info = f"statefx-{__version__}.dist-info"
    assert "[console_scripts]\nstatefx = statefx.command:main\n" in texts[f"{info}/entry_points.txt"]
    assert f"\nVersion: {__version__}\n" in texts[f"{info}/METADATA"]
    assert texts[f"{info}/licenses/LICENSE"] == (ROOT / "LICENSE").read_text()
    assert {name.partition("/")[0] for name in texts} == {*PACKAGES, info}
    assert {package for package in PACKAGES if f"{package}/py.typed" not in texts} == set()
    # Nothing of others is in it. What comes to be must bring its licence, in `license-files`.
    notice = re.compile(r"copyright|\(c\) ?\d{4}|@license|SPDX-License|MIT License", re.IGNORECASE)
    assert [name for name, text in texts.items() if not name.startswith(info) and notice.search(text)] == []
    minified = [name for name, text in texts.items() if any(len(line) > 1000 for line in text.splitlines())]
    assert [name for name in minified if not name.startswith(info)] == []


@pytest.mark.soak
def test_sdist_is_whole_and_builds_the_same_wheel(tmp_path):
    first, second, direct = (tmp_path / name for name in ("first", "second", "direct"))
    wheel, sdist = build(first)  # the wheel is built from the sdist
    assert [path.read_bytes() for path in build(second)] == [wheel.read_bytes(), sdist.read_bytes()]
    assert [path.read_bytes() for path in build(direct, "--wheel")] == [wheel.read_bytes()]
    with tarfile.open(sdist) as archive:
        there = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert {name for name in tracked.splitlines() if (ROOT / name).exists()} - there == set()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(tmp_path_factory.mktemp("dist"), "--wheel")[0]


@pytest.fixture(scope="module", params=PYTHONS)
def bare(request, wheel, tmp_path_factory):
    """The folder of commands of an environment of one Python, which has the wheel with all that users may ask for."""
    python = shutil.which(request.param)
    if not python or subprocess.run([python, "-c", "import ensurepip"], check=False, stderr=-3).returncode:
        message = f'no {request.param} is here: name one, as in PYTHONS="python3.11 /opt/python3.14/bin/python3"'
        pytest.fail(message) if "PYTHONS" in os.environ else pytest.skip(message)
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([python, "-m", "venv", folder], check=True)
    extras = ",".join(sorted(PROJECT["project"]["optional-dependencies"].keys() - OURS))
    subprocess.run([folder / "bin" / "pip", "install", "-q", f"{wheel}[{extras}]", "mypy"], check=True)
    return folder / "bin"


def run(bare, folder, *command):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    env |= {"PATH": f"{bare}:{env['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-5000:]}"
    return done.stdout


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(900)  # pip fetches Spark
def test_readme_runs_in_an_empty_environment(bare, tmp_path):
    assert run(bare, tmp_path, bare / "statefx", "--version") == f"statefx, version {__version__}\n"
    (tmp_path / "readme.py").write_text(program((ROOT / "README.md").read_text()))
    counted = run(bare, tmp_path, bare / "python", "readme.py").splitlines()
    assert "{'be': 2, 'not': 1, 'or': 1, 'to': 2}" in counted


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_users_program_is_typed(bare, tmp_path):
    (tmp_path / "typed.py").write_text(TYPED)
    assert run(bare, tmp_path, bare / "mypy", "--strict", "typed.py").startswith("Success")


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_tutorial_runs_in_an_empty_environment(bare, tmp_path):
    tutorial.follow(tmp_path, bare)
