"""What a session without room for all tasks is told, on clusters that no test has."""

from types import SimpleNamespace

import pytest
from pyspark import SparkConf

from statefx.errors import ConfigError
from statefx.spark import preflight

DYNAMIC = (
    "Spark's dynamic allocation gives executors to waiting tasks only: set spark.dynamicAllocation.enabled=false, and"
)
ON_THEIR_WAY = "4 executors were asked for (spark.executor.instances): wait until Spark's UI shows them, or set"
MORE = "Take more executors, or more spark.executor.cores"


@pytest.mark.parametrize(
    ("settings", "there", "says"),
    [
        ({}, 0, MORE),
        ({"spark.executor.instances": "4", "spark.executor.cores": "2"}, 0, ON_THEIR_WAY),
        ({"spark.executor.instances": "4", "spark.executor.cores": "2"}, 6, ON_THEIR_WAY),
        ({"spark.executor.instances": "4", "spark.executor.cores": "1"}, 0, MORE),
        ({"spark.executor.instances": "4", "spark.executor.cores": "4", "spark.task.cpus": "4"}, 0, MORE),
        ({"spark.executor.instances": "4", "spark.dynamicAllocation.enabled": "true"}, 0, DYNAMIC),
    ],
    ids=str,
)
def test_executors_that_are_on_their_way_are_waited_for_and_others_are_asked_for(monkeypatch, settings, there, says):
    conf = SparkConf(loadDefaults=False).setAll([*settings.items()])
    context = SimpleNamespace(master="yarn", appName="bank", getConf=lambda: conf)
    topology = SimpleNamespace(name="bank", sinks={"out": None})
    monkeypatch.setattr(preflight, "EXECUTORS_SECS", 0.0)
    monkeypatch.setattr(preflight.internals, "task_slots", lambda context: there)
    with pytest.raises(ConfigError) as refused:
        preflight.check_slots(
            topology, SimpleNamespace(widths=(3, 4), streams=()), SimpleNamespace(sparkContext=context)
        )
    assert f"they need 8 slots of Spark, one of them for what sinks run at their commit. yarn has {there}" in str(
        refused.value
    )
    assert says in str(refused.value)
