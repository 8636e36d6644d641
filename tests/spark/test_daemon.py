"""Where the program that forks Spark's Python workers takes pyspark from."""

import os

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
