"""What was published after a savepoint is taken back: of files, tables and lists; all of it, or nothing is restored."""

import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from statefx import Checkpoint, TopologyBuilder
from statefx.connectors.files import FileSink, committedFiles
from statefx.connectors.simple import CollectSink, ConsoleSink
from statefx.connectors.sql import SqlSink
from statefx.connectors.staged import Target
from statefx.errors import CheckpointError, CheckpointMismatchError, ConfigError, SinkError, TopologyError
from statefx.log.log import TransactionLog, read_state
from statefx.storage import FolderStorage
from statefx.testing import rows
from statefx.testing.crashes import crashes
from tests.bolts import Tally
from tests.sinks.durable_steps import fast, folder_and_database_steps
from tests.spouts.test_tracked import Words
from tests.testing.places import place
from tests.testing.topologies import Count, Driver, Split, lines, words

__all__ = ["fast", "place"]

WORK = [lines(f"to be {number}", f"w{number % 3}") for number in range(24)]
GIVEN_UP = [lines(f"never {number}", "to be") for number in range(12)]


def topology(**sinks):
    builder = TopologyBuilder("word-count")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("split", "word")
    for name, sink in sinks.items():
        builder.setSink(name, sink, parallelism=2).shuffleGrouping("split")
    return builder.createTopology()


def written(folder):
    """Return how often each word is in committed files, as readers see them."""
    found = Counter()
    for path in committedFiles(folder):
        found.update(line.split('"word":"')[1].split('"')[0] for line in Path(path).read_text().splitlines())
    return found


class Two:
    """A topology that writes its words to files and to a table."""

    def __init__(self, place):
        self.folder, self.database = place / "out", place / "out.db"
        self.driver = Driver(place)

    def topology(self, **more):
        table = SqlSink(f"sqlite:///{self.database}", "words", txid="txid")
        return topology(files=FileSink(self.folder, "json"), table=table, **more)

    def send(self, works, **more):
        with self.driver.start(self.topology(), **more) as tester:
            for work in works:
                tester.send(work)

    def files(self):
        """Return how often each word is in committed files, as readers see them."""
        return written(self.folder)

    def table(self):
        with closing(sqlite3.connect(self.database)) as connection:
            return Counter(word for (word,) in connection.execute("select word from words"))

    def check(self, works):
        expected = words(works)
        assert (self.files(), self.table()) == (expected, expected)
        with Checkpoint(self.driver.folder).state("count") as state:
            assert dict(state.items()) == expected


@pytest.fixture
def two(place, fast):
    two = Two(place)
    with two.driver:
        yield two


def begin(two, before=5, after=3):
    two.send(WORK[:before])
    Checkpoint(two.driver.folder).savepoint("then")
    two.send(GIVEN_UP[:after])


@pytest.mark.daily(1)
@pytest.mark.parametrize(("before", "after"), [(5, 12), (1, 1), (9, 1), (3, 5)])
@pytest.mark.slow
def test_what_was_published_since_is_taken_back_by_the_next_start(two, before, after):
    begin(two, before, after)
    done = Checkpoint(two.driver.folder).restore("then", sinks="rewind")
    assert done.taken_back == {"files": str(two.folder), "table": two.topology().sinks["table"][0].target}
    assert "the next start takes back what sink 'files' has published since" in str(done)
    assert two.files() == words(WORK[:before] + GIVEN_UP[:after]), "nothing is taken back before"
    two.send([])
    two.check(WORK[:before])
    two.send(WORK[before:])
    two.check(WORK)


@pytest.mark.slow
def test_rows_that_were_taken_back_do_not_count_as_published(two):
    begin(two, before=2, after=3)
    checkpoint = Checkpoint(two.driver.folder)
    since = sum(words(GIVEN_UP[:3]).values())
    assert checkpoint.restore("then", sinks="rewind").published == {"files": since, "table": since}
    two.send(WORK[2:3])
    since = sum(words(WORK[2:3]).values())
    assert checkpoint.restore("then", sinks="append").published == {"files": since, "table": since}


@pytest.mark.slow
def test_readers_that_list_files_themselves_see_them_go_with_a_sweep(two):
    begin(two)
    Checkpoint(two.driver.folder).restore("then", sinks="rewind")
    with two.driver.start(two.topology()) as tester:
        tester.send(WORK[5])
        tester.sweep()
    left = {path.name for path in two.folder.glob("part-*")}
    assert left == {Path(name).name for name in committedFiles(two.folder)}


@pytest.mark.slow
def test_a_start_that_dies_anywhere_is_repeated_until_all_is_taken_back(two, place, fast):
    begin(two, 3, 4)
    Checkpoint(two.driver.folder).restore("then", sinks="rewind")
    points = 0

    def life(steps):
        with folder_and_database_steps(lambda *_: steps.reach("a change")):
            two.send(WORK[3:4], cache=place / "cache")

    for point in crashes(place, life):
        points += 1
        two.driver.cache = point.cache
        two.send([])
        with Checkpoint(two.driver.folder).state("count") as state:
            sent = dict(state.items()) == words(WORK[:4])
        two.check(WORK[: 4 if sent else 3])
        if point.is_new(sent):
            two.send(WORK[4 if sent else 3 : 12])
            two.check(WORK[:12])
    assert points > 10


@pytest.mark.slow
def test_one_that_was_not_begun_is_given_up_by_the_next_restore(two):
    begin(two)
    Checkpoint(two.driver.folder).savepoint("all")
    Checkpoint(two.driver.folder).restore("then", sinks="rewind")
    assert Checkpoint(two.driver.folder).restore("all").taken_back == {}
    two.send(WORK[5:6])
    two.check(WORK[:5] + GIVEN_UP[:3] + WORK[5:6])


@pytest.mark.slow
def test_what_was_taken_back_can_not_be_gone_forward_to(two):
    begin(two)
    Checkpoint(two.driver.folder).savepoint("all")
    Checkpoint(two.driver.folder).restore("then", sinks="rewind")
    two.send([])
    for sinks in (None, "rewind"):
        with pytest.raises(CheckpointError, match="transaction 8 was given up once, and rows of transactions 6 to 8"):
            Checkpoint(two.driver.folder).restore("all", sinks=sinks)
    two.send(WORK[5:8])
    with pytest.raises(CheckpointError, match="were taken back"):
        Checkpoint(two.driver.folder).restore("all", sinks="rewind")
    Checkpoint(two.driver.folder).restore("then", sinks="rewind")
    two.send(WORK[5:8])
    two.check(WORK[:8])
    assert Checkpoint(two.driver.folder).restore("all", sinks="append").txid == 8, (
        "who says so takes targets as they are"
    )


@pytest.mark.slow
def test_twice_further_back_and_once_more_as_it_is(two):
    begin(two)
    Checkpoint(two.driver.folder).restore("then", sinks="rewind")
    assert Checkpoint(two.driver.folder).restore("then").taken_back.keys() == {"files", "table"}, (
        "it is still to be done"
    )
    two.send([])
    assert Checkpoint(two.driver.folder).restore(txid=2, sinks="rewind").taken_back.keys() == {"files", "table"}
    two.send(WORK[2:5])
    two.check(WORK[:5])


@pytest.mark.slow
def test_rows_that_were_left_once_can_be_taken_back_later(two):
    begin(two)
    Checkpoint(two.driver.folder).restore("then", sinks="append")
    two.send(WORK[5:7])
    Checkpoint(two.driver.folder).restore("then", sinks="rewind")
    two.send(WORK[5:8])
    two.check(WORK[:8])


@pytest.mark.slow
def test_append_after_it_leaves_the_rows(two):
    begin(two)
    Checkpoint(two.driver.folder).restore("then", sinks="rewind")
    Checkpoint(two.driver.folder).restore("then", sinks="append")
    two.send(WORK[5:6])
    assert two.files() == two.table() == words(WORK[:6] + GIVEN_UP[:3])


@pytest.mark.slow
def test_other_tools_leave_it_to_be_done(two):
    begin(two)
    Checkpoint(two.driver.folder).restore("then", sinks="rewind")
    Checkpoint(two.driver.folder).deleteSavepoint("then")
    two.send(WORK[5:8])
    two.check(WORK[:8])


@pytest.mark.slow
def test_a_fold_of_the_log_keeps_it(two):
    begin(two)
    Checkpoint(two.driver.folder).restore("then", sinks="rewind")
    TransactionLog(FolderStorage(two.driver.folder)).fold()
    two.send(WORK[5:8])
    two.check(WORK[:8])


@pytest.mark.slow
def test_all_sinks_can_or_nothing_is_changed(place):
    url = f"sqlite:///{place}/out.db"
    made = topology(files=FileSink(place / "out", "json"), table=SqlSink(url, "words"))
    with Driver(place) as driver:
        with driver.start(made) as tester:
            tester.send(WORK[0])
        Checkpoint(driver.folder).savepoint("one")
        with driver.start(made) as tester:
            tester.send({"lines": []})
        assert Checkpoint(driver.folder).restore("one", sinks="rewind").taken_back == {}, "nothing was published"
        with driver.start(made) as tester:
            tester.send(WORK[1])
        before = read_state(FolderStorage(driver.folder))
        with pytest.raises(CheckpointError, match=r"can't be taken back by 'table' \(.*#words\).*sinks='append'.*to="):
            Checkpoint(driver.folder).restore("one", sinks="rewind")
        assert read_state(FolderStorage(driver.folder)) == before


@pytest.mark.slow
def test_a_sink_that_wrote_elsewhere_since_can_not_take_it_back(place):
    with Driver(place) as driver:
        for number, out in enumerate(("a", "a", "b")):
            with driver.start(topology(files=FileSink(place / out, "json"))) as tester:
                tester.send(WORK[number])
        with pytest.raises(CheckpointError, match="or wrote elsewhere then"):
            Checkpoint(driver.folder).restore(txid=1, sinks="rewind")
        Checkpoint(driver.folder).restore(txid=2, sinks="rewind")
        with driver.start(topology(files=FileSink(place / "b", "json"))):
            assert committedFiles(place / "b") == []
            assert committedFiles(place / "a") != []


@pytest.mark.slow
@pytest.mark.parametrize("now", ["former", "later", "new"])
def test_a_sink_that_has_another_id_since_takes_back_by_its_target(place, now):
    def made(id):
        return topology(**{id: FileSink(place / "out", "json")})

    with Driver(place) as driver:
        for number, id in enumerate(("former", "former", "later", "later")):
            with driver.start(made(id)) as tester:
                tester.send(WORK[number])
        assert Checkpoint(driver.folder).restore(txid=1, sinks="rewind").taken_back.keys() == {"former", "later"}
        with driver.start(made(now)) as tester:
            assert written(place / "out") == words(WORK[:1])
            tester.send(WORK[1])
        assert written(place / "out") == words(WORK[:2])


@pytest.mark.parametrize("other", ["lacks", "elsewhere", "can't"])
@pytest.mark.slow
def test_a_start_that_can_not_take_back_is_refused_before_it_changes_anything(two, other):
    begin(two)
    Checkpoint(two.driver.folder).restore("then", sinks="rewind")
    files, url = FileSink(two.folder, "json"), f"sqlite:///{two.database}"
    table = {"elsewhere": SqlSink(url, "others", txid="txid"), "can't": SqlSink(url, "words")}
    given = {"files": files} if other == "lacks" else {"files": files, "table": table[other]}
    before = read_state(FolderStorage(two.driver.folder))
    with pytest.raises(CheckpointMismatchError, match=r"6 to 8 .* are to be taken back from .* by sink 'table'"):
        two.driver.start(topology(**given))
    assert read_state(FolderStorage(two.driver.folder)) == before
    two.send(WORK[5:8])
    two.check(WORK[:8])


@pytest.mark.slow
def test_rows_of_who_had_the_target_before_stay(place):
    """Their transactions have the same numbers."""
    with Two(place).driver as driver:
        two = Two(place)
        two.driver = driver
        begin(two)
        folder, driver.folder = driver.folder, place / "second"
        two.send(WORK[:2], adopt="takeover")
        two.send(WORK[2:8])
        Checkpoint(driver.folder).restore(txid=3, sinks="rewind")
        two.send([])
        first = Counter(words(WORK[:5] + GIVEN_UP[:3]))
        assert two.files() == two.table() == first + Counter(words(WORK[:3]))
        two.send(WORK[3:5])
        assert two.files() == two.table() == first + Counter(words(WORK[:5]))
        assert folder != driver.folder


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_what_another_one_took_over_is_not_taken_back(two, place, when):
    """Its numbers are gone: rows that are read again would come once more, behind those that were to be taken back."""
    two.send(WORK[:3])
    Checkpoint(two.driver.folder).savepoint("three")
    two.send(WORK[3:5])
    own = two.driver.folder
    if when == "before":
        Checkpoint(own).restore("three", sinks="rewind")
    Checkpoint(own).restore("three", to=place / "other")
    two.driver.folder = place / "other"
    two.send(WORK[8:9], adopt="takeover")
    two.driver.folder = own
    if when == "after":
        two.send(WORK[5:6], adopt="takeover")
        with pytest.raises(CheckpointError, match="or since they were taken over"):
            Checkpoint(own).restore("three", sinks="rewind")
        two.send(WORK[6:8])
        Checkpoint(own).restore(txid=6, sinks="rewind")
        two.send(WORK[6:7])
        assert two.files() == two.table() == words(WORK[:7] + WORK[8:9])
        return
    if when == "between":
        Checkpoint(own).restore("three", sinks="rewind")
    before = read_state(FolderStorage(own))
    with pytest.raises(SinkError, match="takeover"):
        two.send([])
    with pytest.raises(CheckpointMismatchError, match="which adopt='takeover' rules out"):
        two.send([], adopt="takeover")
    assert read_state(FolderStorage(own)) == before
    Checkpoint(own).restore("three", sinks="append")
    two.send([], adopt="takeover")
    assert two.files() == two.table() == words(WORK[:5] + WORK[8:9])


@pytest.mark.slow
def test_a_copy_takes_nothing_back_and_has_targets_of_its_own(two, place):
    begin(two)
    Checkpoint(two.driver.folder).restore("then", sinks="rewind")
    shutil.copytree(two.driver.folder, place / "copy")
    with Driver(place, name="copy") as copy:
        for adopt in ("fork", ["fork", "takeover"]):
            with pytest.raises(
                CheckpointMismatchError, match=r"of the original, and this is a copy .*targets of their"
            ):
                copy.start(two.topology(), adopt=adopt)
        own = topology(files=FileSink(place / "own", "json"))
        for works in ([], WORK[5:6]):  # the first start may decide nothing
            with copy.start(own, adopt="fork") as tester:
                for work in works:
                    tester.send(work)
        assert written(place / "own") == words(WORK[5:6])
        with Checkpoint(copy.folder).state("count") as state:
            assert dict(state.items()) == words(WORK[:6])
    two.send(WORK[5:8])
    two.check(WORK[:8])


@pytest.mark.slow
def test_what_is_collected_is_forgotten_and_the_console_stands_in_nobodys_way(place):
    collected = CollectSink()
    with Driver(place) as driver:
        made = topology(list=collected, console=ConsoleSink())
        with driver.start(made) as tester:
            for work in WORK[:3]:
                tester.send(work)
        Checkpoint(driver.folder).restore(txid=1, sinks="rewind")
        with driver.start(made):
            assert sorted(collected.transactions) == [1]


@pytest.mark.slow
def test_repair_takes_back_too(two):
    begin(two, 5, 3)
    newest = max(Path(two.driver.folder, "state", "count").rglob("*"), key=lambda path: (path.is_file(), path.name))
    newest.write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="sinks='rewind'"):
        Checkpoint(two.driver.folder).repair(yes=True)
    done = Checkpoint(two.driver.folder).repair(yes=True, sinks="rewind")
    assert done.txid == 7
    two.send(WORK[5:6])
    two.check(WORK[:5] + GIVEN_UP[:2] + WORK[5:6])


@pytest.mark.slow
def test_messages_that_were_acknowledged_are_not_lost(place):
    def made():
        builder = TopologyBuilder("tracked")
        builder.setSpout("words", Words("a", "b", "c", "d"))
        builder.setBolt("count", Tally("word"), 2).fieldsGrouping("words", "word")
        builder.setSink("out", FileSink(place / "out", "json")).shuffleGrouping("words")
        return builder.createTopology()

    with Driver(place) as driver:
        with driver.start(made()) as tester:
            tester.emit()
        found = read_state(FolderStorage(driver.folder)).committed
        with driver.start(made()) as tester:
            tester.emit()
        rows_then = committedFiles(place / "out")
        Checkpoint(driver.folder).restore(txid=found, sinks="rewind")
        with pytest.raises(CheckpointMismatchError, match=r"'words' has acknowledged the messages .*sinks='append'"):
            driver.start(made())
        Checkpoint(driver.folder).restore(txid=found, sinks="append")
        with driver.start(made()):
            assert committedFiles(place / "out") == rows_then


def test_what_is_refused(place):
    with pytest.raises(ConfigError, match="'append', 'rewind' or None"):
        Checkpoint(place).restore("x", sinks="forget")
    with pytest.raises(ConfigError, match="can't be taken back, so txid= is for a table without a key"):
        SqlSink("sqlite:///x.db", "words", key="word", txid="txid")
    with pytest.raises(ConfigError, match="txid must be the name"):
        SqlSink("sqlite:///x.db", "words", txid="")
    with pytest.raises(TopologyError, match="a field 'word' already"):
        topology(table=SqlSink(f"sqlite:///{place}/x.db", "words", txid="word"))


@pytest.mark.slow
def test_a_sink_that_only_says_that_it_can_does_not_start(place):
    class Says(SqlSink):
        rewinds = True

        def __init__(self, *given):
            super().__init__(*given, txid="txid")

        def connect(self, schema):
            return Bare(super().connect(schema))

    class Bare(Target):
        def __init__(self, table):
            self.table = table

        def marker(self):
            return self.table.marker()

        def publish(self, marker, previous, rows):
            self.table.publish(marker, previous, rows)

    with Driver(place) as driver:
        made = topology(table=Says(f"sqlite:///{place}/x.db", "words"))
        with driver.start(made) as tester:
            for work in WORK[:2]:
                tester.send(work)
        Checkpoint(driver.folder).restore(txid=1, sinks="rewind")
        with pytest.raises(SinkError, match="its target has no rewind"):
            driver.start(made)
