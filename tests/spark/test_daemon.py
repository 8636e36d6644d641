"""What the program that forks Spark's Python workers has loaded, and where it takes pyspark from."""

import os
import subprocess
import sys

import pytest

from statefx.spark import daemon
from statefx.spark.daemon import unzipped


def spark_in(folder, package="pyspark"):
    """A Spark in `folder`, as it lies in a downloaded one, or as pip installs it; return its archives."""
    lib = folder / package / "python" / "lib" if package else folder / "python" / "lib"
    lib.mkdir(parents=True)
    archives = [lib / "pyspark.zip", lib / "py4j-0.10-src.zip"]
    for archive in archives:
        archive.touch()
    if package:
        (folder / package / "__init__.py").touch()
    return [str(archive) for archive in archives]


def test_pyspark_comes_compiled_from_where_pip_has_installed_it(tmp_path):
    archives = spark_in(tmp_path / "site-packages")
    mine = [str(tmp_path / "mine"), str(tmp_path / "mine.zip")]
    path = ["", *archives, *mine, str(tmp_path / "site-packages")]
    assert unzipped(path) == ["", *mine, str(tmp_path / "site-packages")]


def test_the_archive_of_another_spark_stays(tmp_path):
    """Workers must not run the pyspark that happens to be installed beside a downloaded Spark."""
    spark_in(tmp_path / "site-packages")
    path = [*spark_in(tmp_path / "spark-4.3.0-bin-hadoop3", package=""), str(tmp_path / "site-packages")]
    assert unzipped(path) == path


def test_an_archive_stays_where_the_rest_of_the_path_does_not_find_its_package(tmp_path):
    path = [*spark_in(tmp_path / "site-packages"), os.fspath(tmp_path)]
    assert unzipped(path) == path


@pytest.mark.slow
def test_nothing_talks_to_an_object_store_before_workers_are_forked():
    """Its client has threads, which no fork takes along: workers would hang at their first request."""
    loaded = f"import importlib, sys; [importlib.import_module(name) for name in {daemon.LOADED}]"
    run = subprocess.run(
        [sys.executable, "-c", f"{loaded}; print('obstore' in sys.modules, 'statefx.runtime.slot' in sys.modules)"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert run.stdout.split() == ["False", "True"]
