"""Two lives of one lineage in one session: what Python workers keep of the one never serves the other."""

import shutil

import pytest

from statefx import StatefulBolt, TopologyBuilder, submit
from statefx.errors import CheckpointMismatchError
from tests.spark.running import feed, lines_of, run, state

pytestmark = pytest.mark.slow

NOW = {"availableNow": True}


class Adds(StatefulBolt):
    """Counts words, by so much a word."""

    def __init__(self, step):
        self.step = step

    def initState(self, counts):
        self.counts = counts

    def execute(self, tup, collector):
        self.counts.put(tup.value, self.counts.get(tup.value, 0) + self.step)


def adding(spark, folder, step=1):
    builder = TopologyBuilder("adding")
    builder.setStream("lines", lines_of(spark, folder))
    builder.setBolt("count", Adds(step)).globalGrouping("lines")
    return builder.createTopology()


@pytest.fixture(params=["memory", "rocksdb"])
def config(request):
    return {"topology.state.provider": request.param}


def test_a_backup_restored_in_place_runs_the_mended_bolt(spark, place, config):
    """Lineage and generation are those of the run with the mistake; so are the numbers of its transactions."""
    ck, backup = place / "ck", place / "backup"
    feed(place / "in", a=["x"])
    run(adding(spark, place / "in"), spark, ck, config, trigger=NOW)
    shutil.copytree(ck, backup)
    feed(place / "in", b=["x"])
    run(adding(spark, place / "in", step=1000), spark, ck, config, trigger=NOW)
    assert state(ck, "count", config=config) == {"x": 1001}
    shutil.rmtree(ck)
    shutil.copytree(backup, ck)
    run(adding(spark, place / "in"), spark, ck, config, trigger=NOW)
    assert state(ck, "count", config=config) == {"x": 2}
    feed(place / "in", c=["x"])
    run(adding(spark, place / "in"), spark, ck, config, trigger=NOW)
    assert state(ck, "count", config=config) == {"x": 3}


@pytest.mark.parametrize("config", [{"topology.state.provider": "rocksdb"}])
def test_a_copy_is_not_moved_while_its_original_is_there(spark, place, config):
    """They would have written state into one another's folders."""
    ck, copy = place / "ck", place / "copy"
    feed(place / "in", a=["x"])
    run(adding(spark, place / "in"), spark, ck, config, trigger=NOW)
    shutil.copytree(ck, copy)
    with pytest.raises(CheckpointMismatchError, match=f"was not moved: it is still in {ck},"):
        submit(adding(spark, place / "in"), spark, copy, config, trigger=NOW, adopt="move")
    shutil.rmtree(ck)
    feed(place / "in", b=["x"])
    run(adding(spark, place / "in"), spark, copy, config, trigger=NOW, adopt="move")
    assert state(copy, "count", config=config) == {"x": 2}


def test_two_lives_that_nobody_could_see_share_nothing_in_a_worker(spark, place, config):
    """One after the other, each out of sight of the other, with generations and transactions of the same numbers."""
    ck, copy, away = place / "ck", place / "copy", place / "away"
    feed(place / "in", a=["x"])
    run(adding(spark, place / "in"), spark, ck, config, trigger=NOW)
    shutil.copytree(ck, copy)
    ck.rename(away)
    feed(place / "in", b=["x"])
    run(adding(spark, place / "in", step=10), spark, copy, config, trigger=NOW, adopt="move")
    copy.rename(place / "copy-away")
    away.rename(ck)
    run(adding(spark, place / "in", step=100), spark, ck, config, trigger=NOW)
    assert state(ck, "count", config=config) == {"x": 101}
    assert state(place / "copy-away", "count", config=config) == {"x": 11}
