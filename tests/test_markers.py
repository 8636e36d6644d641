"""A test that starts a JVM or a server is marked so, and else fails: `make check` is for what needs neither."""

import os
import subprocess

import pytest

from tests.conftest import NO_JAVA
from tests.providers.redis_server import RedisServer


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


@pytest.fixture
def starts():
    return lambda: RedisServer


def test_a_fixture_that_starts_a_server_marks_the_test(request, starts):
    assert request.node.get_closest_marker("server")


def test_another_test_of_the_same_module_is_not_marked(request):
    assert not request.node.get_closest_marker("server")
