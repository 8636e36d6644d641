"""State in a server that is given to other tasks: what a crash leaves there is one of the two, and nothing stays."""

import pytest

from statefx import TopologyBuilder, rescale
from statefx.log.log import read_state
from statefx.protocol.identity import TaskId
from statefx.state.registry import load_provider
from statefx.storage import FolderStorage
from statefx.testing import rows
from tests.coordinator.changing import held, send
from tests.coordinator.migrating import REFERENCES
from tests.coordinator.on_redis import names_on, on_redis, server
from tests.coordinator.test_rescaling import Plain, topology
from tests.testing.topologies import SMALL, Driver, Split

__all__ = ["server"]

pytestmark = pytest.mark.server


@pytest.mark.parametrize(("was", "now"), [(2, 4), (3, 1)])
def test_it_is_as_if_the_bolt_had_had_these_tasks_and_what_the_others_had_is_deleted(server, place, was, now):
    with Driver(place) as driver, Driver(place, name="same") as same:
        config = on_redis(server)
        send(driver, range(6), topology(was), config=config)
        send(same, range(6), topology(now), config=config)
        done = rescale(driver.folder, {"count": now})
        assert done.tasks == {"count": (was, now)}
        assert held(driver, now) == held(same, now)
        kept_as = read_state(FolderStorage(driver.folder)).kept_as["count"]
        assert kept_as != "count"
        assert names_on(server, driver) == {"count", kept_as}
        send(driver, range(6, 9), topology(now), config=config, limits=SMALL)
        send(same, range(6, 9), topology(now), config=config)
        assert held(driver, now) == held(same, now)
        assert names_on(server, driver) == {kept_as}, "what no task has any more is swept"
        if now > 1:  # and again: each time under another name
            rescale(driver.folder, {"count": was})
            send(driver, [9], topology(was), config=config)
            assert read_state(FolderStorage(driver.folder)).kept_as["count"] != kept_as


def test_nothing_is_deleted_that_a_newer_generation_has_written_or_a_task_still_has(server, place):
    with Driver(place) as driver:
        send(driver, range(2), topology(2), config=on_redis(server))
        state = read_state(FolderStorage(driver.folder))
        provider = load_provider(REFERENCES["redis"], {"url": server.url})
        assert provider.forget(state.lineage, (), state.generation - 1) == 0
        assert provider.forget(state.lineage, [TaskId("count", 0), TaskId("count", 1)], state.generation) == 2
        assert names_on(server, driver) == {"count"}
        assert sum(map(len, held(driver, 2)))
        assert provider.forget(state.lineage, [TaskId("count", 0)], state.generation) == 1
        assert names_on(server, driver) == {"count"}


def test_a_bolt_that_is_dropped_leaves_nothing_on_the_server_and_may_come_back(server, place):
    with Driver(place) as driver:
        config = on_redis(server)
        send(driver, range(2), topology(2), config=config)
        builder = TopologyBuilder("rescaled")
        builder.setStream("lines", rows("value string"))
        builder.setBolt("split", Split()).shuffleGrouping("lines")
        builder.setBolt("other", Plain(), 2).fieldsGrouping("split", "word")
        send(driver, [2], builder.createTopology(), config=config, limits=SMALL, drop=["count"])
        assert names_on(server, driver) == set()
        send(driver, [3], topology(2), config=config)
        assert names_on(server, driver) == {"count"}
