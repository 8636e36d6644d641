"""A checkpoint on S3 is as exact as one in a folder: crashes, lost answers, refusals, tools."""

from pathlib import Path
from unittest.mock import patch

import pytest

from statefx import Checkpoint, TopologyBuilder
from statefx.connectors.files import FileSink, committedFiles
from statefx.errors import CheckpointError, CheckpointMismatchError, ConfigError, FencedError, StatefxError
from statefx.log.location import Folders, checkpoint_location
from statefx.state import EMPTY, Retention
from statefx.storage import storage_at
from statefx.storage.objects import ObjectStorage
from statefx.testing import rows
from statefx.testing.site import Site, image
from statefx.testing.steps import Crash
from statefx_memory import MemoryStateProvider
from tests.storage.s3_server import SECRET, as_users_have_it, s3_server
from tests.testing.lives import seeds
from tests.testing.topologies import SMALL, Count, Driver, Split, lines, word_count, words

WORK = [lines("to be or not to be", "that is the question"), lines("to sleep", "to dream"), lines(), lines("no more")]

pytestmark = pytest.mark.slow


class Remote(Driver):
    """As `Driver`, on a checkpoint in an object store."""

    def __init__(self, place: Path, url: str, provider: str = "memory") -> None:
        super().__init__(place, provider)
        self.folder = url


@pytest.mark.daily(1)
@pytest.mark.parametrize("apart", [20, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("provider", ["memory", "rocksdb"])
def test_a_crash_at_any_step(bucket, tmp_path, provider, apart):
    """`make test` takes every twentieth step, and begins at another one each time."""
    with Remote(tmp_path / "whole", bucket(), provider) as driver:
        whole = driver.start(limits=SMALL)
        whole.run(WORK)
        steps = len(whole.steps)
    for crash_at in range(1 + next(seeds(0)) % apart, steps + 1, apart):
        with Remote(tmp_path / str(crash_at), bucket(), provider) as driver:
            with pytest.raises(Crash):
                driver.start(limits=SMALL, crash_at=crash_at).run(WORK)
            after = driver.start(limits=SMALL)
            after.run(WORK)
            assert after.state("count") == words(WORK), crash_at


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 8))])
def test_answers_that_are_lost_late_or_503(between, tmp_path, seed):
    """A request that is given up may have been carried out; a driver that can't know ends, and the next one goes on."""
    with as_users_have_it(between.address) as made, Remote(tmp_path, made()) as driver:
        between.disturb(0.15, seed)
        for _ in range(20):
            try:
                tester = driver.start(limits=SMALL)
                tester.run(WORK)
                assert tester.state("count") == words(WORK)
                break
            except (StatefxError, OSError):  # it gave up; nothing of what it did may be lost or counted twice
                continue
        else:
            pytest.fail("twenty drivers gave up one after the other")
        assert between.faults > 10


def test_tools_work_on_it(bucket, tmp_path):
    url = bucket()
    with Remote(tmp_path, url) as driver:
        driver.start().run(WORK[:2])
        Checkpoint(url).savepoint("two")
        driver.start().run(WORK)
    assert counts(url) == words(WORK)
    assert not Checkpoint(url).verify().damaged
    other = f"{url}-other"
    Checkpoint(url).restore("two", to=other)
    assert counts(other) == words(WORK[:2])
    Checkpoint(url).restore("two", to=tmp_path / "folder")
    assert counts(tmp_path / "folder") == words(WORK[:2])
    Checkpoint(url).rescale({"count": 3}, groupingKey={"count": lambda key: key})
    assert counts(url) == words(WORK)
    assert [each.task for each in Checkpoint(url).explain("count", "to").tasks]
    Checkpoint(url).deleteSavepoint("two")
    Checkpoint(url).migrate("rocksdb")
    assert counts(url) == words(WORK)


def test_back_to_a_savepoint_in_place_and_elsewhere(bucket, tmp_path):
    url = bucket()
    with Remote(tmp_path, url) as driver:
        driver.start().run(WORK[:2])
        Checkpoint(url).savepoint("two")
        driver.start().run(WORK)
        Checkpoint(url).restore("two", to=f"{url}-two")
        assert counts(f"{url}-two") == words(WORK[:2])
        assert counts(url) == words(WORK)
        Checkpoint(url).restore("two")
        assert counts(url) == words(WORK[:2])
        tester = driver.start()
        for work in WORK[2:]:
            tester.send(work)
        assert counts(url) == words(WORK)


def test_other_names_at_a_start(bucket, tmp_path):
    def counting(name):
        builder = TopologyBuilder("word-count")
        builder.setStream("lines", rows("value string"))
        builder.setBolt("split", Split(), parallelism=2).shuffleGrouping("lines")
        builder.setBolt(name, Count(), parallelism=2).fieldsGrouping("split", "word")
        return builder.createTopology()

    url = bucket()
    with Remote(tmp_path, url) as driver:
        driver.start().run(WORK[:2])
        driver.start(counting("tally"), rename={"count": "tally"}).run(WORK)
        assert counts(url, "tally") == words(WORK)
        with pytest.raises(CheckpointMismatchError, match="drop"):
            driver.start(counting("new"))
        driver.start(counting("new"), drop=["tally"]).run([*WORK, lines("to")])
        assert counts(url, "new") == {"to": 1}


def test_damage_is_found_and_repaired(bucket, tmp_path):
    url = bucket()
    with Remote(tmp_path, url) as driver:
        driver.start().run(WORK)
        storage = storage_at(url)
        names = [each.name for each in storage.list("state/count/") if each.name.endswith(".changelog")]
        newest = max(names, key=lambda name: name.rpartition("/")[2])
        txid = int(newest.rpartition("/")[2].partition("-")[0])
        storage.put(newest, storage.read(newest)[:-1])
        [damage] = Checkpoint(url).verify().damaged
        assert newest in damage.path
        assert Checkpoint(url).repair().txid == txid - 1
        assert Checkpoint(url).repair(yes=True).done
        assert [each.name for each in storage.list("damaged/")] == [f"damaged/{newest}"]
        assert Checkpoint(url).verify().ok
        tester = driver.start(cache=tmp_path / "another")
        for work in WORK[txid - 1 :]:
            tester.send(work)
        assert counts(url) == words(WORK)


class Picky(Count):
    def execute(self, tup, collector):
        if tup.word == "be":
            raise ValueError("no such word")
        super().execute(tup, collector)


def test_a_row_that_a_bolt_can_not_deal_with(bucket, tmp_path):
    builder = TopologyBuilder("word-count")
    builder.setStream("lines", rows("value string"))
    builder.setBolt("split", Split(), parallelism=2).shuffleGrouping("lines")
    builder.setBolt("count", Picky(), parallelism=2, onError="deadLetter").fieldsGrouping("split", "word")
    builder.setSink("letters", FileSink(tmp_path / "letters", "json")).shuffleGrouping("count", stream="deadLetter")
    url = bucket()
    with Remote(tmp_path, url) as driver:
        driver.start(builder.createTopology()).run(WORK)
    expected = words(WORK)
    files = committedFiles(tmp_path / "letters")
    letters = [row for file in files for row in Path(file).read_text(encoding="utf-8").splitlines()]
    assert len(letters) == expected.pop("be") == 2
    assert counts(url) == expected


def counts(url, bolt="count"):
    return dict(Checkpoint(url).state(bolt).items())


def test_no_secret_is_in_it(bucket, tmp_path, caplog):
    url = bucket()
    with caplog.at_level("DEBUG"), Remote(tmp_path, url) as driver:
        driver.start(limits=SMALL).run(WORK)
    storage = storage_at(url)
    found = list(storage.list())
    assert len(found) > 10
    assert not [each.name for each in found if SECRET.encode() in storage.read(each.name)]
    assert SECRET not in caplog.text
    assert SECRET not in repr(storage)


def test_a_store_without_conditional_requests_is_refused(tmp_path):
    with s3_server(conditional=False) as address, as_users_have_it(address) as made:
        url = made()
        with Remote(tmp_path, url) as driver, pytest.raises(CheckpointError, match="lets a name be created twice"):
            driver.start()
        assert {each.name.partition("-")[0] for each in storage_at(url).list()} <= {"probe"}


def test_a_bucket_that_is_not_there_is_named(bucket, tmp_path):
    with (
        Remote(tmp_path, "s3://no-such-bucket/word-count") as driver,
        pytest.raises(CheckpointError, match=r"s3://no-such-bucket/word-count can't be read .*a bucket that is there"),
    ):
        driver.start()


@pytest.mark.parametrize(
    "location",
    [
        *("s3://bucket", "s3://bucket/", "s3://bucket/../x", "s3://bucket/x/.hidden", "s3://bucket/x?a=b"),
        *("s3://bucket/x/%2e%2e", "s3://bucket/a%2Fb", "s3://bucket/a\\b"),
        *(
            "gs:bucket/x",
            "s3://key:secret@bucket/x",
            "s3a://key:secret@bucket/x",
            "s3a://bucket/../x",
            "abfss://c@account",
        ),
    ],
)
def test_what_is_no_url_of_a_store_is_refused(location):
    with pytest.raises(ConfigError, match="must name a bucket and a prefix in it, as s3://bucket/word-count"):
        checkpoint_location(location)


@pytest.mark.parametrize(
    ("location", "own"),
    [
        *((f"{scheme}://bucket/word-count", "s3://bucket/word-count") for scheme in ("s3a", "s3n", "S3", "S3A")),
        ("GS://bucket/x/", "gs://bucket/x/"),
        ("abfss://container@account.dfs.core.windows.net/a/b", "az://container/a/b"),
        ("abfs://container/a", "az://container/a"),
        *(
            (f"{scheme}://container@account.blob.core.windows.net/a", "az://container/a")
            for scheme in ("wasb", "wasbs")
        ),
    ],
)
def test_a_url_with_spark_s_scheme_is_told_what_to_write(location, own):
    with pytest.raises(ConfigError, match=f"another scheme for it: write {own}$"):
        checkpoint_location(location)
    assert checkpoint_location(own)


def test_a_url_is_written_in_one_way(tmp_path):
    assert checkpoint_location("s3://bucket/a/b//") == "s3://bucket/a/b"
    assert checkpoint_location("gs://bucket/a") == "gs://bucket/a"
    folders = Folders("s3://bucket/a")
    assert folders.storage is folders.storage, "a client keeps its connections"
    assert folders.log == "s3://bucket/a/transactions"


def test_two_drivers_one_of_which_is_replaced(bucket, tmp_path):
    with Remote(tmp_path, bucket()) as driver:
        first = driver.start(word_count())
        first.run(WORK[:2])
        second = driver.start(word_count())
        with pytest.raises(FencedError, match="another driver has taken over s3:"):
            first.run(WORK[:3])
        second.run(WORK)
        assert second.state("count") == words(WORK)


def test_what_was_copied_is_moved_only_if_its_origin_is_known_to_be_gone(bucket, tmp_path):
    """A store that can't be read for a moment is no store whose checkpoint is gone: two would go on as one."""
    first, second = bucket(), bucket()
    with Remote(tmp_path, first) as driver:
        driver.start().run(WORK[:2])
    copy(first, second)
    with Remote(tmp_path, second) as driver:
        with pytest.raises(CheckpointMismatchError, match="was not moved: it is still in"):
            driver.start(adopt="move")
        unread = patch.object(ObjectStorage, "list", unreadable(first))
        with unread, pytest.raises(CheckpointMismatchError, match=r"is unknown: s3://.* can't be read .*403"):
            driver.start(adopt="move")
        storage_at(first).delete([each.name for each in storage_at(first).list()])
        moved = driver.start(adopt="move")
        moved.run(WORK)
        assert moved.state("count") == words(WORK)


def copy(origin, target):
    there, here = storage_at(origin), storage_at(target)
    for each in there.list():
        here.put(each.name, there.read(each.name))


def unreadable(url):
    listed = ObjectStorage.list

    def denied(self, prefix="", after=""):
        if self.url == url:
            raise PermissionError(13, "403 Forbidden")
        return listed(self, prefix, after)

    return denied


@pytest.mark.soak
def test_a_copy_in_a_store_without_conditional_requests_is_refused(tmp_path):
    with s3_server(conditional=False) as address, as_users_have_it(address) as made:
        with Driver(tmp_path, name="original") as driver:
            driver.start().run(WORK[:2])
        url = made()
        copy(str(tmp_path / "original"), url)
        with Remote(tmp_path, url) as driver, pytest.raises(CheckpointError, match="lets a name be created twice"):
            driver.start(adopt="fork")


def test_a_snapshot_that_was_long_on_its_way_is_not_swept(bucket, tmp_path):
    """S3 dates it by when its upload began; the log names it when it is there."""
    site = Site(MemoryStateProvider({}), tmp_path, place=lambda root: storage_at(bucket()))
    site.start(1)
    version = site.commit(EMPTY, {b"a": b"1"})
    snapshot = site.open(version).snapshot()
    version = site.commit(version, {b"a": b"2"})
    site.sweep(Retention(1, version, (), -60, since=version.txid))
    assert image(site.open(version, snapshot=snapshot)) == {b"a": b"2"}
    snapshots = [each.name for each in site.storage.list("state/") if each.name.endswith(".snapshot")]
    assert len(snapshots) == 1
    site.close()
