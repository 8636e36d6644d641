"""What `tests/conftest.py` does with markers: a test that starts a JVM or a server is marked so, or fails; `daily`."""

import os
import subprocess
from types import SimpleNamespace

import pytest

from tests.conftest import NO_JAVA, _various
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


def test_of_variants_the_same_ones_are_taken_that_differ_in_all_arguments():
    all_of_them = [{"number": number, "provider": provider} for number in range(3) for provider in range(2)]
    variants = [SimpleNamespace(callspec=SimpleNamespace(indices=each)) for each in all_of_them]
    for function in ("one", "another", "a third"):
        taken = [each.callspec.indices for each in _various(function, variants, 3)]
        assert sorted(each["number"] for each in taken) == [0, 1, 2]
        assert {each["provider"] for each in taken} == {0, 1}
        assert [each.callspec.indices for each in _various(function, variants, 3)] == taken


@pytest.mark.daily(2)
@pytest.mark.parametrize("number", range(5))
def test_of_its_variants_no_more_than_it_says_run_each_day(request, number):
    function = request.node.nodeid.partition("[")[0]
    alike = [item for item in request.session.items if item.nodeid.partition("[")[0] == function]
    assert sum(not item.get_closest_marker("soak") for item in alike) <= 2
