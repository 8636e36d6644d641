"""``topology.transactional.id`` names the application at every target: who is refused, and do the remedies work."""

import shutil
import sqlite3
from contextlib import closing

import pytest

from statefx import BasicBolt, TopologyBuilder
from statefx.connectors.files import FileSink
from statefx.connectors.sql import SqlSink
from statefx.errors import CheckpointMismatchError, FencedError, SinkOwnedError
from statefx.testing import Crash, TopologyTester, rows
from statefx.testing.crashes import crashes
from statefx.testing.steps import DurableSteps
from tests.sinks.durable_steps import folder_and_database_steps
from tests.sinks.test_sinks import in_files


class Pass(BasicBolt):
    outputFields = "word string, n long"

    def execute(self, tup, collector):
        collector.emit((tup.word, 1))


class Shop:
    """Starts topologies of any name, on any checkpoint, with one target."""

    def __init__(self, place, kind):
        self.place = place
        self.kind = kind

    def start(self, name, checkpoint, id=None, **options):
        sink = FileSink(self.place / "out") if self.kind == "files" else SqlSink(f"sqlite:///{self.place}/db", "words")
        builder = TopologyBuilder(name)
        builder.setStream("lines", rows("word string"))
        builder.setBolt("pass", Pass()).shuffleGrouping("lines")
        builder.setSink("out", sink).shuffleGrouping("pass")
        config = {} if id is None else {"topology.transactional.id": id}
        return TopologyTester(builder.createTopology(), self.place / checkpoint, config=config, **options)

    def run(self, name, checkpoint, word, id=None, **options):
        with self.start(name, checkpoint, id, **options) as tester:
            tester.send({"lines": [(word,)]})
            return tester.steps

    def words(self):
        if self.kind == "files":
            return [word for word, _ in in_files(self.place)]
        with closing(sqlite3.connect(self.place / "db")) as connection, connection:
            return sorted(word for (word,) in connection.execute("select word from words").fetchall())


@pytest.fixture(params=["files", "table"])
def shop(request, tmp_path):
    return Shop(tmp_path, request.param)


@pytest.mark.slow
def test_another_checkpoint_of_the_application_is_refused_and_named_by_its_id(shop):
    shop.run("first", "ck1", "a", "shop")
    for _ in range(2):
        with pytest.raises(SinkOwnedError, match="application 'shop' with another checkpoint") as refused:
            shop.start("second", "ck2", "shop")
        assert refused.value.owner == "shop"
    shop.run("first", "ck1", "b", "shop")
    assert shop.words() == ["a", "b"]


@pytest.mark.slow
def test_who_has_lost_a_checkpoint_is_told_that_a_takeover_brings_all_rows_again(shop):
    shop.run("words", "ck", "a", "shop")
    shutil.rmtree(shop.place / "ck")
    says = "This checkpoint is new.*would come again. Restore the checkpoint.* Or empty the target.*adopt='takeover'"
    with pytest.raises(SinkOwnedError, match=says):
        shop.start("words", "ck", "shop")
    shop.run("words", "ck", "a", "shop", adopt="takeover")
    assert shop.words() == ["a", "a"]


def test_another_application_is_refused_also_where_the_topologies_have_one_name(shop):
    shop.run("words", "ck1", "a", "shop")
    with pytest.raises(SinkOwnedError, match=r"belongs to application 'shop'\. ") as refused:
        shop.start("words", "ck2", "office")
    assert refused.value.owner == "shop"


@pytest.mark.slow
def test_who_takes_over_goes_on_and_the_former_owner_is_refused(shop):
    shop.run("first", "ck1", "a", "shop")
    shop.run("second", "ck2", "b", "office", adopt="takeover")
    with pytest.raises(SinkOwnedError, match="belongs to application 'office'") as refused:
        shop.start("first", "ck1", "shop")
    assert "would come again" not in str(refused.value)  # its checkpoint is not new
    shop.run("second", "ck2", "c", "office")
    shop.run("first", "ck1", "d", "shop", adopt="takeover")
    assert shop.words() == ["a", "b", "c", "d"]


@pytest.mark.slow
def test_a_checkpoint_whose_id_was_changed_is_another_application_and_may_take_over(shop):
    shop.run("words", "ck", "a", "shop")
    with pytest.raises(SinkOwnedError, match="belongs to application 'shop'"):
        shop.start("words", "ck", "office")
    shop.run("words", "ck", "b", "office", adopt="takeover")
    shop.run("words", "ck", "c", "office")
    assert shop.words() == ["a", "b", "c"]


def test_a_topology_keeps_its_checkpoint_by_its_name_and_its_targets_by_the_id(shop):
    """A topology that was renamed needs a new checkpoint, which is another owner of the targets."""
    shop.run("words", "ck", "a", "shop")
    says = "of topology 'words', this one has 'counts': go back to 'words', or .* give its sinks new targets too"
    with pytest.raises(CheckpointMismatchError, match=says):
        shop.start("counts", "ck", "shop")
    with pytest.raises(SinkOwnedError, match="'shop' with another checkpoint"):
        shop.start("counts", "ck2", "shop")
    shop.run("counts", "ck2", "b", "shop", adopt="takeover")
    assert shop.words() == ["a", "b"]


@pytest.mark.slow
def test_without_the_setting_the_name_of_the_topology_is_the_application(shop):
    shop.run("words", "ck1", "a")
    with pytest.raises(SinkOwnedError, match=r"belongs to application 'words'\. "):
        shop.start("counts", "ck2")
    shop.run("words", "ck1", "b", "words")
    assert shop.words() == ["a", "b"]


@pytest.mark.slow
def test_a_restored_checkpoint_goes_on_under_another_id(shop):
    shop.run("words", "ck", "a", "shop")
    shutil.copytree(shop.place / "ck", shop.place / "backup")
    shop.run("words", "ck", "b", "shop")
    shutil.rmtree(shop.place / "ck")
    shutil.move(shop.place / "backup", shop.place / "ck")
    for adopt in (None, "takeover"):
        with pytest.raises(FencedError, match=r"give it another topology\.transactional\.id, and start with adopt"):
            shop.start("words", "ck", "shop", adopt=adopt)
    shop.run("words", "ck", "c", "shop-2", adopt="takeover")
    assert shop.words() == ["a", "b", "c"]


@pytest.mark.slow
def test_a_crash_anywhere_before_the_id_is_changed_doubles_nothing(tmp_path, kind):
    """Rows may be there and not COMMITTED: they are of this checkpoint, whatever its application is called."""
    (tmp_path / "rehearsal").mkdir()
    steps = Shop(tmp_path / "rehearsal", kind).run("words", "ck", "a", "shop", crash_at=None)
    first = steps.index("after COMMITTING(1, 0)")
    for at in range(first, len(steps) + 1):
        (tmp_path / str(at)).mkdir()
        shop = Shop(tmp_path / str(at), kind)
        with pytest.raises(Crash):
            shop.run("words", "ck", "a", "shop", crash_at=at)
        with shop.start("words", "ck", "office", adopt="takeover") as tester:
            if tester.txid == 0:
                tester.send({"lines": [("a",)]})
        assert shop.words() == ["a"], steps[at - 1]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before COMMITTED(1)", "after COMMITTING(1, 0)"])
def test_a_start_with_another_id_that_dies_at_any_step_loses_and_doubles_nothing(tmp_path, kind, moment):
    """The rows are there, or not yet; the start that changes the id dies in its fence; the next one goes on."""
    shop, starts = Shop(tmp_path, kind), 0
    with pytest.raises(Crash):
        shop.run("words", "ck", "a", "shop", steps=at_moment(moment))

    def life(steps):
        with folder_and_database_steps(lambda *_: steps.reach("a change")):
            shop.start("words", "ck", "office", adopt="takeover").close()

    for point in crashes(
        tmp_path, life, reruns=False
    ):  # what is raised rolls back in SQLite, a kill leaves its journal
        starts += len(point.moments)
        shop.start("words", "ck", "office", adopt="takeover").close()
        assert shop.words() == ["a"]
    assert starts > 3


def at_moment(moment):
    """Return steps of which `moment` is the last."""
    steps = DurableSteps()
    steps.when(moment, die)
    return steps


def die():
    raise Crash("here")


@pytest.fixture(params=["files", "table"])
def kind(request):
    return request.param
