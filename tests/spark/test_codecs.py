"""Codecs of users' own and upgrades, where bolts run in other processes and errors come through Spark."""

import pytest

from statefx import StatefulBolt, TopologyBuilder, openState, submit
from statefx.errors import BoltError, CheckpointMismatchError, ConfigError
from tests.spark.running import run, state

pytestmark = pytest.mark.slow

JSON = {"topology.state.provider.config": {"components": {"last": {"codec": "tests.testing.codecs:Json"}}}}
ROWS = [("a", 1), ("b", 2), ("a", 3)]


class Total(StatefulBolt):
    def initState(self, state):
        self.state = state

    def execute(self, tup, collector):
        self.state.put(tup.key, self.state.get(tup.key, 0) + tup.value)


class TotalInList(Total):
    stateVersion = 2

    def execute(self, tup, collector):
        self.state.put(tup.key, [self.state.get(tup.key, [0])[0] + tup.value])

    def migrateState(self, version, key, value):
        return [value]


class TotalRaising(TotalInList):
    def migrateState(self, version, key, value):
        raise ValueError(f"no form for {key}")


def topology(spark, bolt):
    builder = TopologyBuilder("totals")
    builder.setStream("rows", spark.createDataFrame(ROWS, "key string, value int"))
    builder.setBolt("last", bolt, parallelism=2).fieldsGrouping("rows", "key")
    return builder.createTopology()


def test_a_codec_and_an_upgrade(spark, tmp_path):
    run(topology(spark, Total()), spark, tmp_path, JSON)
    assert state(tmp_path, "last") == {"a": 4, "b": 2}
    with pytest.raises(BoltError, match="hook migrateState, transaction 2: ValueError: no form for") as told:
        run(topology(spark, TotalRaising()), spark, tmp_path, JSON)
    assert (told.value.component, told.value.hook, told.value.txid) == ("last", "migrateState", 2)
    run(topology(spark, TotalInList()), spark, tmp_path, JSON)
    with openState(tmp_path, "last", migrate=TotalInList().migrateState) as view:
        assert dict(view.items()) == {"a": [8], "b": [4]}
    with pytest.raises(CheckpointMismatchError, match=r"has codec 'statefx-1', .* with 'json-1'"):
        submit(topology(spark, TotalInList()), spark, tmp_path)


def test_a_codec_that_is_not_there_is_refused_before_anything_is_written(spark, tmp_path):
    config = {"topology.state.provider.config": {"codec": "shop.codecs:Json"}}
    with pytest.raises(ConfigError, match=r"shop\.codecs:Json can't be imported: ModuleNotFoundError"):
        submit(topology(spark, Total()), spark, tmp_path / "checkpoint", config)
    assert not (tmp_path / "checkpoint").exists()
