"""A test that starts a JVM or a server is marked so, and else fails: `make check` is for what needs neither."""

import os
import subprocess

import pytest

from tests.conftest import NO_JAVA


@pytest.mark.parametrize(
    "program", ["java", "/opt/spark/bin/spark-submit", "redis-server", "/usr/lib/postgresql/bin/initdb"]
)
def test_without_a_marker_neither_a_jvm_nor_a_server_is_started(program):
    with pytest.raises(RuntimeError, match=f"this test starts {program}: mark it with .*server"):
        subprocess.Popen([program])


def test_without_a_marker_processes_that_it_starts_find_no_java():
    shown = subprocess.run(["sh", "-c", "echo $JAVA_HOME"], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == NO_JAVA


@pytest.mark.spark
def test_with_one_they_do():
    assert os.environ.get("JAVA_HOME") != NO_JAVA
