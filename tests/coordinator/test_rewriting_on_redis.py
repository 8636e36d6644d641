"""State in a server that a tool writes anew, or that nobody has any more: who may read, write and delete it when."""

import shutil
from contextlib import closing
from functools import partial

import pyarrow as pa
import pytest

from statefx import Checkpoint, TopologyBuilder
from statefx.errors import CheckpointError, ConfigError, FencedError, StateCorruptedError
from statefx.log.location import Folders
from statefx.protocol.identity import TaskId
from statefx.state.contract.store import StateContext
from statefx.state.registry import load_provider
from statefx.storage import FolderStorage
from statefx.testing import Limits, rows
from statefx.testing.steps import DurableSteps, SteppedLog, SteppedProvider, SteppedStorage
from tests.coordinator.changing import START, WORK, held, log_of, names_on, send
from tests.coordinator.migrating import REFERENCES
from tests.coordinator.test_migrated_keys import First, topology
from tests.coordinator.test_rescaling import Plain
from tests.coordinator.test_rescaling import topology as rescaled
from tests.providers.redis_server import RedisServer
from tests.testing.topologies import SMALL, Driver, Split, lines

pytestmark = pytest.mark.server

TYPED = {"key": "word string", "value": "n long"}
MENDED = pa.table({"word": ["to", "be", "new", "w3"], "n": pa.array([70, None, 1, 33], pa.int64())})


@pytest.fixture(scope="module")
def server():
    with RedisServer(appendonly="no") as server:
        yield server


@pytest.fixture
def driver(server, place):
    with Driver(place) as driver:
        driver.config["topology.state.provider"] = REFERENCES["redis"]
        driver.config["topology.state.provider.config"] = {"url": server.url}
        yield driver


def write(driver, table=MENDED):
    return Checkpoint(driver.folder, driver.config).write("count", table, schema=TYPED, groupingKey=lambda key: key)


def test_who_has_opened_what_was_there_before_is_told_to_open_it_again(driver):
    send(driver, range(3), topology(2, First()))
    with (
        Checkpoint(driver.folder).state("count") as view,
        Checkpoint(driver.folder).state("count") as fresh,
        Checkpoint(driver.folder).state("count", map="pairs") as pairs,
    ):
        table = Checkpoint(driver.folder)._table("count", schema=TYPED)
        before, kept = dict(view.items()), dict(pairs.items())
        done = write(driver)
        assert (done.rows, done.deleted) == (3, 1)
        assert dict(view.items()) == before, "until it is deleted"
        written = {**before, "to": 70, "new": 1, "w3": 33}
        del written["be"]
        assert fresh.refresh(), "what was written is shown under its new name"
        assert dict(fresh.items()) == written
        assert not fresh.refresh()
        assert pairs.refresh()
        assert dict(pairs.items()) == kept
        send(driver, [3], topology(2, First()), limits=SMALL)
        with pytest.raises(StateCorruptedError, match=r"a tool wrote the state anew.*open it again"):
            dict(view.items())
        with pytest.raises(CheckpointError, match="transaction 3 of the state of 'count' is not kept any more"):
            table.table()
        assert view.refresh()
        assert view.get("to") == 71


def test_a_driver_that_runs_is_fenced_and_a_refused_call_fences_nobody(driver, server):
    send(driver, range(4), topology(2, First()))
    running = driver.start(topology(2, First()), now=START)
    with pytest.raises(ConfigError, match="two rows have the key"):
        write(driver, pa.concat_tables([MENDED, MENDED]))
    running.send(WORK[4])
    assert names_on(server, driver) == {"count"}
    write(driver)
    with pytest.raises(FencedError):
        running.send(WORK[5])


def test_no_task_of_a_former_driver_prepares_while_rows_are_written(driver, place):
    send(driver, range(4), topology(2, First()))
    found, steps, refused = log_of(driver), DurableSteps(), []
    task = TaskId("count", 0)
    context = StateContext(found.generation, found.head(str(task)), FolderStorage(place), str(place / "cache"))
    provider = load_provider(REFERENCES["redis"], driver.config["topology.state.provider.config"])
    with closing(provider.newState(found.namespace(task), context)) as late:

        def prepare():
            with pytest.raises(FencedError):
                late.prepare(found.committed + 1, "late", [(b"ulate", b"1")])
            refused.append("late")

        steps.when("before RESCALED", prepare)
        writer = Checkpoint(driver.folder)._writer("count", mode="merge", schema=TYPED, grouping_key=lambda key: key)
        writer.provider = SteppedProvider(provider, steps)
        writer.folders = Folders(str(driver.folder), wrap=partial(SteppedStorage, steps=steps))
        writer.opened = partial(SteppedLog, steps=steps, limit=100)
        writer.write_table(MENDED)
    assert refused == ["late"]


def test_nothing_is_deleted_that_a_newer_generation_has_written_or_a_task_still_has(driver, server):
    send(driver, range(2), rescaled(2))
    state = log_of(driver)
    provider = load_provider(REFERENCES["redis"], {"url": server.url})
    forget = partial(provider.forget, state.lineage)
    assert forget(lambda task: True, state.generation - 1, state.decided) == 0
    assert forget(lambda task: task.component == "other", state.generation, state.decided) == 2
    assert names_on(server, driver) == {"count"}
    assert sum(map(len, held(driver, 2)))
    for _ in range(2):
        with pytest.raises(StateCorruptedError, match=r"the server has gone on\. .* restore the newer one"):
            forget(lambda task: task == ("count", 1), state.generation + 1, 1)
    assert forget(lambda task: task == ("count", 1), state.generation, state.decided) == 1
    assert names_on(server, driver) == {"count"}


def counting(*bolts):
    builder = TopologyBuilder("counting")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    for bolt in bolts:
        builder.setBolt(bolt, Plain(), 2).fieldsGrouping("split", "word")
    return builder.createTopology()


@pytest.mark.parametrize("is_written", [False, True])
def test_a_start_on_an_older_copy_deletes_nothing_of_what_came_later(driver, place, is_written):
    send(driver, range(2), counting("count"))
    shutil.copytree(driver.folder, place / "older")
    if is_written:
        write(driver)  # under another name, with the number of a transaction that the copy has
    after = counting("count", "added")
    with driver.start(after) as tester:
        tester.send(lines("be"))  # of the tasks of count, one writes nothing
    expected = [held(driver, 2, bolt) for bolt in ("count", "added")]
    newer = log_of(driver)
    driver.folder.rename(place / "newer")
    (place / "older").rename(driver.folder)
    while log_of(driver).generation <= newer.generation:  # each start takes the next one
        with pytest.raises((FencedError, StateCorruptedError)) as refused:
            send(driver, [2], after, limits=SMALL)
    assert "restore the newer one" in str(refused.value)
    shutil.rmtree(driver.folder)
    (place / "newer").rename(driver.folder)
    assert [held(driver, 2, bolt) for bolt in ("count", "added")] == expected
    send(driver, [2], after)


@pytest.mark.parametrize("limits", [SMALL, Limits()], ids=["swept", "at once"])
def test_a_bolt_that_is_dropped_leaves_nothing_on_the_server_and_may_come_back(driver, server, limits):
    send(driver, range(2), rescaled(2))
    builder = TopologyBuilder("rescaled")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    builder.setBolt("other", Plain(), 2).fieldsGrouping("split", "word")
    send(driver, [2], builder.createTopology(), limits=limits, drop=["count"])
    assert names_on(server, driver) == (set() if limits is SMALL else {"count"})
    send(driver, [3], rescaled(2))
    assert names_on(server, driver) == {"count"}
