"""Several sinks of one topology: whatever fails, and whoever dies, each has each transaction once."""

import json
import sqlite3
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict

import pyarrow.parquet as pq
import pytest

from statefx import Checkpoint, TopologyBuilder
from statefx.connectors import StagedSink, Target
from statefx.connectors.files import FileSink, committedFiles
from statefx.connectors.files.manifest import Manifest
from statefx.connectors.sql import SqlSink
from statefx.coordinator.retrying import StoppedError
from statefx.errors import CheckpointError, FencedError, SinkError
from statefx.operators.sinks import Marker
from statefx.storage import FolderStorage
from statefx.testing import Crash, Limits, TopologyTester, rows
from statefx.testing.crashes import crashes
from tests.sinks.durable_steps import fast, folder_and_database_steps
from tests.testing.living import Zombie, lose_run
from tests.testing.topologies import Count, Split

__all__ = ["fast"]

pytestmark = pytest.mark.usefixtures("fast")

WORDS = [["to", "be", "to"], ["x", "be"], []]
TABLES = {"table": "counts", "log": "log"}
FEW = Limits(sweep_every=1, min_age_secs=0.0, fold_after=8)


class Ledger(Target):
    """A user's own: a JSON file that is replaced as a whole."""

    def __init__(self, path):
        self.path = path

    def read(self):
        if not self.path.exists():
            return None, []
        found = json.loads(self.path.read_text("utf-8"))
        return Marker(**found["marker"]), found["rows"]

    def marker(self):
        return self.read()[0]

    def publish(self, marker, previous, rows):
        found, known = self.read()
        if found != previous:
            raise SinkError("another driver was here")
        text = json.dumps({"marker": asdict(marker), "rows": known + [list(row.values()) for row in rows.rows()]})
        with FolderStorage(self.path.parent).writer(self.path.name) as file:
            file.write(text.encode())


class LedgerSink(StagedSink):
    def __init__(self, path):
        self.path = path

    @property
    def target(self):
        return str(self.path)

    def connect(self, schema):
        return Ledger(self.path)


class Places:
    """A topology with a sink of each kind, and what programs find where they write."""

    def __init__(self, place, names=("files", "table", "log", "ledger")):
        self.place, self.names = place, names
        place.mkdir(exist_ok=True)
        self.database = place / "db"

    def topology(self):
        builder = TopologyBuilder("counts")
        builder.setStream("lines", rows("value string"))
        builder.setBolt("split", Split()).shuffleGrouping("lines")
        builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("split", "word")
        url = f"sqlite:///{self.database}"
        for name, sink in {
            "files": FileSink(self.place / "out"),
            "table": SqlSink(url, "counts", key="word"),
            "log": SqlSink(url, "log", deadLetter="rejected"),
            "ledger": LedgerSink(self.place / "ledger"),
        }.items():
            if name in self.names:
                builder.setSink(name, sink).fieldsGrouping("count", "word")
        return builder.createTopology()

    def start(self, **options):
        return TopologyTester(self.topology(), self.place / "ck", limits=FEW, **options)

    def run(self, statement):
        with closing(sqlite3.connect(self.database)) as connection, connection:
            return connection.execute(statement).fetchall()

    def table(self, name):
        return self.run(f"select word, count from {name}") if self.has(name) else []

    def has(self, name):
        return self.run(f"select 1 from sqlite_master where name = '{name}'")

    def rows_of(self, name):
        if name in TABLES:
            return self.table(TABLES[name])
        if name == "ledger":
            return list(map(tuple, Ledger(self.place / "ledger").read()[1]))
        files = committedFiles(self.place / "out") if (self.place / "out" / "_spark_metadata").exists() else []
        return [tuple(row.values()) for file in files for row in pq.ParquetFile(file).read().to_pylist()]

    def unpublished(self):
        return len(list((self.place / "out").glob("part-*"))) - len(committedFiles(self.place / "out"))

    def check(self, transactions, names=None):
        expected = emitted(transactions)
        for name in names or self.names:
            rows = dict(expected).items() if name == "table" else expected
            assert sorted(self.rows_of(name)) == sorted(rows), name


def emitted(transactions):
    """Return what the bolt emits in the first transactions."""
    words = [word for some in WORDS[:transactions] for word in some]
    return [(word, words[: at + 1].count(word)) for at, word in enumerate(words)]


def sent(words):
    return {"lines": [(word,) for word in words]}


# ---- crashes


@contextmanager
def stepped(steps):
    """Have every change in a folder or a database be a step."""
    with folder_and_database_steps(lambda *_: steps.reach("a change")):
        yield


@pytest.mark.slow
def test_a_crash_at_every_step_of_log_state_files_and_database(place):
    places, moments = Places(place, ("files", "table")), 0

    def life(steps):
        with stepped(steps), places.start() as tester:
            tester.run(map(sent, WORDS[:2]))

    for point in crashes(place, life, reruns=False):  # what is raised rolls back in SQLite, a kill leaves its journal
        moments += len(point.moments)
        with places.start() as recovered:
            places.check(recovered.txid)
        if point.is_new(recovered.txid):
            with places.start() as tester:
                tester.run(map(sent, WORDS[:2]))
                assert tester.txid == 2
            places.check(2)
    assert moments > 60


@pytest.mark.slow
def test_a_crash_at_every_step_of_a_start_that_rolls_forward(place):
    """The first driver dies when all is decided and nothing published."""
    places, moments = Places(place, ("files", "log")), 0
    tester = places.start()
    tester.send(sent(WORDS[0]))
    tester.when("after COMMITTING(2, 0)", die)
    with pytest.raises(Crash):
        tester.send(sent(WORDS[1]))
    places.check(1)

    def life(steps):
        with stepped(steps), places.start():
            pass

    for point in crashes(place, life, reruns=False):
        moments += len(point.moments)
        with places.start() as tester:
            assert tester.txid == 2
        places.check(2)
    assert moments > 10


def die():
    raise Crash("here")


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("freezes", [None, "ledger", "log"])
def test_what_an_attempt_wrote_that_was_rolled_back_is_never_published(place, freezes):
    unpublished = []
    for seed in range(4):
        places = Places(place / str(seed))
        with places.start(seed=seed) as tester:
            tester.send(sent(WORDS[0]))
            moment = f"after write staged/{freezes or 'log'}/"
            if freezes:
                tester.when("after PREPARING(3, 0)", Zombie(tester, moment, freezes).go_on)
            else:
                lose_run(tester, moment)
            tester.when("after ROLLED_BACK(2, 0)", lambda places=places: unpublished.append(places.unpublished()))
            assert tester.send(sent(WORDS[1])).progress.attempt == 1
            tester.send(sent(WORDS[2]))
            tester.wake()
            tester.sweep()
        places.check(len(WORDS))
        with places.start() as tester:
            tester.sweep()
        assert [path for path in (places.place / "ck" / "staged").rglob("*") if path.is_file()] == []
        assert places.unpublished() == 0
    assert any(unpublished)


# ---- one sink of several is stuck


class Broken:
    def __init__(self, places, monkeypatch, name):
        self.places, self.name, self.tries = places, name, 0
        self.patch = monkeypatch

    def spoil(self):
        if self.name in TABLES:
            self.places.run(f"alter table {TABLES[self.name]} rename column count to m")
        elif self.name == "files":
            self.patch.setattr(Manifest, "publish", self.fail)
        else:
            self.patch.setattr(Ledger, "publish", self.fail)

    def fail(self, *_, **__):
        raise OSError(28, "No space left on device")

    def mend(self):
        if self.name in TABLES:
            self.places.run(f"alter table {TABLES[self.name]} rename column m to count")
        else:
            self.patch.undo()


@pytest.fixture(params=["files", "table", "log", "ledger"])
def broken(request, place):
    with pytest.MonkeyPatch.context() as patch:
        yield Broken(Places(place / "here"), patch, request.param)


def others(name):
    return [each for each in ("files", "table", "log", "ledger") if each != name]


@contextmanager
def stuck(broken, then):
    """Yield a driver that comes to `then` when the second transaction is in all targets but the broken one."""
    places = broken.places
    with places.start() as tester:
        tester.send(sent(WORDS[0]))
        broken.spoil()
        seen = []

        def paused():
            found = tester.status["stuck"]
            seen.append((found["txid"], found["reason"].partition(":")[0]))
            assert found["phase"] == "commit"
            if len(seen) < 3:
                places.check(2, others(broken.name))
            if len(seen) < 3:
                tester.when("pause", paused)
            else:
                then(tester)

        tester.when("pause", paused)
        yield tester
        assert seen == [(2, broken.name)] * 3


@pytest.mark.slow
def test_one_sink_fails_at_commit_and_the_others_have_committed(broken):
    with stuck(broken, lambda tester: broken.mend()) as tester:
        tester.send(sent(WORDS[1]))
        assert "stuck" not in tester.status
    broken.places.check(2)


@pytest.mark.slow
def test_the_driver_dies_while_one_sink_is_stuck_and_the_next_one_publishes_there_alone(broken):
    def die(tester):
        raise Crash("here")

    with stuck(broken, die) as tester, pytest.raises(Crash):
        tester.send(sent(WORDS[1]))
    broken.mend()
    broken.places.check(1, [broken.name])
    with broken.places.start() as tester:
        assert tester.recoveries == [{"txid": 2, "rolled": "forward"}]
        broken.places.check(2)


@pytest.mark.slow
def test_a_driver_is_replaced_while_a_sink_is_stuck(broken):
    replaced = []

    def replace(tester):
        broken.mend()
        successor = broken.places.start()
        assert successor.recoveries == [{"txid": 2, "rolled": "forward"}]
        replaced.append(successor)

    with stuck(broken, replace) as tester, pytest.raises(FencedError):
        tester.send(sent(WORDS[1]))
    broken.places.check(2)
    with replaced[0] as successor:
        successor.send(sent([]))
        assert successor.txid == 3
    broken.places.check(2)


@pytest.mark.slow
def test_a_driver_is_replaced_while_a_sink_is_stuck_for_the_next_one_too(broken):
    """Whichever of them finds it mended first: rows come once."""

    def replace(tester):
        with suppress(SinkError, OSError, StoppedError):  # refused at the start, or stuck until it is stopped
            TopologyTester(broken.places.topology(), broken.places.place / "ck", limits=Limits(pauses=1))
        broken.mend()

    with stuck(broken, replace) as tester, suppress(FencedError):
        tester.send(sent(WORDS[1]))
    with broken.places.start() as tester:
        assert tester.txid == 2
        tester.send(sent([]))
    broken.places.check(2)


@pytest.mark.slow
def test_abort_while_a_sink_is_stuck_is_refused_and_fences_nobody(broken):
    def ask(tester):
        with pytest.raises(CheckpointError, match="rolls it forward"):
            Checkpoint(broken.places.place / "ck").abort()
        last = Checkpoint(broken.places.place / "ck").transactions()[-1]
        assert (last.txid, last.state) == (2, "COMMITTING")
        broken.mend()

    with stuck(broken, ask) as tester:
        tester.send(sent(WORDS[1]))
        assert (tester.txid, tester.generation) == (2, 1)
    broken.places.check(2)


# ---- dead letters of several sinks


@pytest.mark.slow
def test_each_sink_puts_aside_its_own_rows_and_no_other_has_less_for_it(place):
    places = Places(place / "here")
    places.run("create table log (word text, count integer check (count < 2))")
    places.run("create table small (word text check (length(word) < 2), count integer)")
    builder = TopologyBuilder("counts")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("split", "word")
    url = f"sqlite:///{places.database}"
    for table in ("log", "small", "counts"):
        builder.setSink(table, SqlSink(url, table, deadLetter="rejected"), parallelism=2).shuffleGrouping("count")
    topology = builder.createTopology()
    for moment in ("after COMMITTING(1, 0)", "before COMMITTED(1)", "after COMMITTING(2, 0)", None):
        tester = TopologyTester(topology, place / "here" / "ck")
        if moment:
            tester.when(moment, die)
        with suppress(Crash), tester:
            tester.run(map(sent, WORDS))
    everything = emitted(3)
    assert sorted(places.table("counts")) == sorted(everything)
    assert sorted(places.table("log")) == sorted((word, n) for word, n in everything if n < 2)
    assert sorted(places.table("small")) == sorted((word, n) for word, n in everything if len(word) < 2)
    found = [(target, txid, *json.loads(content).values()) for target, txid, content in places.run(
        "select target, txid, content from rejected")]  # fmt: skip
    assert sorted(found) == sorted(
        [("log", 1, "to", 2), ("log", 2, "be", 2), ("small", 1, "be", 1), ("small", 2, "be", 2)]
        + [("small", 1, "to", n) for n in (1, 2)]
    )
