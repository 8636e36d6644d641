"""A copy of a checkpoint: whoever follows the messages word by word gets it started, and nothing is lost or doubled."""

import ast
import contextlib
import itertools
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from statefx import Topology, TopologyBuilder
from statefx.connectors.files import FileSink
from statefx.connectors.sql import SqlSink
from statefx.errors import CheckpointMismatchError, ConfigError, FencedError, SinkOwnedError
from statefx.log.log import read_state
from statefx.storage import FolderStorage
from statefx.testing import Crash, rows
from tests.sinks.durable_steps import folder_and_database_steps
from tests.sinks.test_sinks import in_files
from tests.spark.running import listing
from tests.testing.topologies import Count, Driver, Split, lines, words

WORK = [lines("a b"), lines("b c"), lines("c d"), lines("d e")]


class Target:
    def __init__(self, place: Path, kind: str, name: str = "") -> None:
        self.kind = kind
        self.place = place / name if name else place
        self.path = str(self.place / ("out" if kind == "files" else "db"))

    @property
    def topology(self) -> Topology:
        self.place.mkdir(exist_ok=True)
        builder = TopologyBuilder("word-count")
        builder.setStream("lines", rows("value string"))
        builder.setBolt("split", Split(), parallelism=2).shuffleGrouping("lines")
        builder.setBolt("count", Count(), parallelism=2).fieldsGrouping("split", "word")
        sink = FileSink(self.path) if self.kind == "files" else SqlSink(f"sqlite:///{self.path}", "words")
        builder.setSink("out", sink).shuffleGrouping("count")
        return builder.createTopology()

    def rows(self) -> Counter[str]:
        if self.kind == "files":
            found = [word for word, _ in in_files(self.place)]
        elif not Path(self.path).exists():
            found = []
        else:
            with contextlib.closing(sqlite3.connect(self.path)) as connection:
                found = [word for (word,) in connection.execute("select word from words")]
        return Counter(found)


@pytest.fixture(params=["files", "table"])
def target(request: pytest.FixtureRequest, place: Path) -> Target:
    return Target(place, request.param)


@pytest.fixture
def original(place: Path, target: Target) -> Iterator[Driver]:
    """A checkpoint that was copied after its first transaction, and then ran on, with another driver."""
    with Driver(place, name="original") as driver:
        driver.start(target.topology).send(WORK[0])
        shutil.copytree(driver.folder, place / "copy")
        driver.start(target.topology).send(WORK[1])
        yield driver


@pytest.fixture
def copy(place: Path, original: Driver) -> Iterator[Driver]:
    with Driver(place, name="copy") as driver:
        yield driver


def refused(driver: Driver, topology: Topology, adopt: Any, error: type[Exception] = CheckpointMismatchError) -> str:
    """Return what a start is told; nothing is changed by it."""
    before = listing(driver.folder)
    with pytest.raises(error) as told:
        driver.start(topology, adopt=adopt)
    assert listing(driver.folder) == before
    return str(told.value)


def advised(message: str) -> list[Any]:
    return [ast.literal_eval(found) for found in re.findall(r"adopt=('\w+'|\[[^]]*\])", message)]


@pytest.mark.slow
def test_a_copy_goes_its_own_way_with_a_target_of_its_own(original, copy, target):
    own = Target(target.place, target.kind, "own")
    assert advised(refused(copy, own.topology, None)) == ["move", "fork"]
    tester = copy.start(own.topology, adopt="fork")
    tester.send(WORK[2])
    assert tester.state("count") == words([WORK[0], WORK[2]])
    copy.start(own.topology).send(WORK[3])
    copy.start(own.topology, adopt="fork").send(WORK[3])  # it may stay in a program
    original.start(target.topology).send(WORK[3])
    assert target.rows() == words([WORK[0], WORK[1], WORK[3]])
    assert own.rows() == words([WORK[2], WORK[3], WORK[3]])


@pytest.mark.slow
def test_a_copy_takes_the_originals_targets(original, copy, target):
    """The generation at the target is newer than the copy knows; so is its transaction."""
    assert advised(refused(copy, target.topology, None)) == ["move", "fork"]
    assert advised(refused(copy, target.topology, "takeover")) == [["move", "takeover"], ["fork", "takeover"]]
    assert advised(refused(copy, target.topology, "move")) == ["fork"]
    assert advised(refused(copy, target.topology, ["move", "takeover"])) == [["fork", "takeover"]]
    message = refused(copy, target.topology, "fork", SinkOwnedError)
    assert "give the copy's sink a target of its own" in message
    both = ["fork", "takeover"]
    assert advised(message) == [both]
    tester = copy.start(target.topology, adopt=both)
    tester.send(WORK[2])
    assert tester.state("count") == words([WORK[0], WORK[2]])
    copy.start(target.topology, adopt=both).send(WORK[3])
    assert target.rows() == words(WORK)
    refused(original, target.topology, None, SinkOwnedError)


@pytest.mark.slow
def test_a_copy_that_has_another_id_is_told_the_same(original, copy, target):
    other = {"topology.transactional.id": "other"}
    with pytest.raises(SinkOwnedError) as told:
        copy.start(target.topology, config=other, adopt="fork")
    assert advised(str(told.value)) == [["fork", "takeover"]]
    copy.start(target.topology, config=other, adopt=["fork", "takeover"]).send(WORK[2])
    assert target.rows() == words(WORK[:3])


@pytest.mark.slow
def test_a_copy_that_goes_on_in_place_of_the_original(original, copy, target):
    """It is older than the target, as a backup is; what was written since then comes again."""
    message = refused(copy, target.topology, "move")
    assert f"delete or rename {original.folder} first" in message
    original.folder.rename(original.folder.with_name("away"))
    message = refused(copy, target.topology, "move", FencedError)
    assert "another topology.transactional.id" in message
    both = ["move", "takeover"]
    assert advised(message) == ["takeover", both]
    new = {"topology.transactional.id": "again"}
    copy.start(target.topology, adopt=both, config=new).send(WORK[1])
    copy.start(target.topology, config=new).send(WORK[2])
    assert target.rows() == words([WORK[0], WORK[1], WORK[1], WORK[2]])


@pytest.fixture
def mounted(original: Driver, copy: Driver) -> Driver:
    """The copy stands where its original was, as in another container; the original is in ``copy`` now."""
    for was, becomes in (("original", "away"), ("copy", "original"), ("away", "copy")):
        (original.folder.parent / was).rename(original.folder.parent / becomes)
    return original


@pytest.mark.slow
def test_a_copy_at_the_path_of_its_original_is_a_fork_once(mounted, target, caplog):
    own = Target(target.place, target.kind, "own")
    message = refused(mounted, target.topology, "fork", SinkOwnedError)
    assert "If it is no copy, start without 'fork'" in message
    assert advised(message) == [["fork", "takeover"]]
    mounted.start(own.topology, adopt="fork").send(WORK[2])
    assert "adopt='fork'" not in caplog.text
    lineage = read_state(FolderStorage(mounted.folder)).lineage
    mounted.start(own.topology, adopt="fork").send(WORK[3])
    assert read_state(FolderStorage(mounted.folder)).lineage == lineage
    assert caplog.text.count("adopt='fork' changes nothing") == 1
    assert own.rows() == words(WORK[2:])
    originals = mounted.folder.with_name("copy")
    shutil.rmtree(mounted.folder)
    originals.rename(mounted.folder)
    mounted.start(target.topology).send(WORK[2])
    assert target.rows() == words(WORK[:3])


@pytest.mark.slow
def test_a_copy_at_the_path_of_its_original_takes_its_targets_once(mounted, target):
    both = ["fork", "takeover"]
    mounted.start(target.topology, adopt=both).send(WORK[1])
    mounted.start(target.topology, adopt=both).send(WORK[2])
    assert target.rows() == words([WORK[0], WORK[1], WORK[1], WORK[2]])  # the original had run on


@pytest.mark.slow
def test_a_fork_in_place_that_crashes_at_any_step_goes_on_as_that_fork(place):
    """A program that says ``adopt="fork"`` at every start, also at the first one, of a new checkpoint."""
    for at in itertools.count(1):
        with Driver(place, name=str(at)) as driver:
            driver.start(adopt="fork").send(WORK[0])
            begun = read_state(FolderStorage(driver.folder)).origin
            with contextlib.suppress(Crash):
                driver.start(adopt="fork", crash_at=at).send(WORK[1])
                break
            crashed = read_state(FolderStorage(driver.folder)).origin
            tester = driver.start(adopt="fork")
            origin = read_state(FolderStorage(driver.folder)).origin
            assert origin != begun
            assert crashed in {begun, origin}
            tester.run(WORK[:2])
            assert tester.state("count") == words(WORK[:2])
    assert at > 10


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "published", "ran_on", "own"),
    [  # each two of them together
        ("files", False, False, False),
        ("files", False, True, True),
        ("files", True, False, True),
        ("files", True, True, False),
        ("table", False, False, True),
        ("table", False, True, False),
        ("table", True, False, False),
        ("table", True, True, True),
    ],
)
def test_what_was_decided_when_it_was_copied_is_published_once(place, kind, *, published, ran_on, own):
    """In the original's target; whoever of both comes first does it."""
    moment, target = "before COMMITTED(1)" if published else "after COMMITTING(1, 0)", Target(place, kind)
    with Driver(place, name="rehearsal") as driver:
        rehearsal = driver.start(Target(place, kind, "rehearsed").topology)
        rehearsal.send(WORK[0])
        at = rehearsal.steps.index(moment) + 1
    with Driver(place, name="original") as original, Driver(place, name="copy") as copy:
        with pytest.raises(Crash):
            original.start(target.topology, crash_at=at).send(WORK[0])
        shutil.copytree(original.folder, copy.folder)
        before = []
        if ran_on:
            original.start(target.topology).send(WORK[3])
            before.append(WORK[3])
        used = Target(place, kind, "own") if own else target
        adopt = "fork" if own else ["fork", "takeover"]
        copy.start(used.topology, adopt=adopt).send(WORK[1])
        copy.start(used.topology).send(WORK[2])
        if own:
            original.start(target.topology).send(WORK[3])
            assert target.rows() == words([WORK[0], *before, WORK[3]])
        assert used.rows() == words(WORK[1:3] if own else [*before, *WORK[:3]])


def die_behind(steps: Iterator[Any]) -> None:
    if next(steps, None) is None:
        raise Dead


class Dead(BaseException):
    """The process has died."""


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "table"])
@pytest.mark.parametrize("moment", ["before COMMITTED(1)", "after COMMITTING(1, 0)"])
def test_a_fork_that_dies_at_any_step_at_its_targets_loses_and_doubles_nothing(place, kind, moment, stride):
    with Driver(place, name="rehearsal") as driver:
        rehearsal = driver.start(Target(place, kind, "rehearsed").topology)
        rehearsal.send(WORK[0])
        at = rehearsal.steps.index(moment) + 1
    for left in range(0, 500, stride):
        target = Target(place, kind, str(left))
        (place / str(left)).mkdir()
        with Driver(place / str(left), name="ck") as original, Driver(place / str(left), name="copy") as copy:
            with pytest.raises(Crash):
                original.start(target.topology, crash_at=at).send(WORK[0])
            shutil.copytree(original.folder, copy.folder)
            died = False
            with contextlib.suppress(Dead), folder_and_database_steps(partial(die_behind, iter(range(left)))):
                died = True
                copy.start(target.topology, adopt=["fork", "takeover"])
                died = False
            copy.start(target.topology, adopt=["fork", "takeover"])
            assert target.rows() == words(WORK[:1]), left
        if not died:
            assert left > 3
            return
    raise AssertionError("the fork never came through")


@pytest.mark.parametrize("adopt", ["copy", 3, ["fork", "copy"], ["move", "fork"]])
def test_what_adopt_can_not_be_is_refused(driver, adopt):
    with pytest.raises(ConfigError, match="adopt"):
        driver.start(adopt=adopt)


# ---- moved, or not


@pytest.fixture
def moved(place: Path) -> Iterator[Driver]:
    with Driver(place, name="original") as driver:
        driver.start().send(WORK[0])
    shutil.copytree(driver.folder, place / "moved")
    with Driver(place, name="moved") as driver:
        yield driver


def goes_on(driver: Driver) -> None:
    tester = driver.start(adopt="move")
    assert tester.txid == 1
    tester.send(WORK[1])
    assert tester.state("count") == words(WORK[:2])


@pytest.mark.slow
def test_a_copy_goes_on_once_its_original_is_gone(moved, place):
    assert f"delete or rename {place / 'original'} first" in refused(moved, None, "move")
    shutil.rmtree(place / "original")
    goes_on(moved)


@pytest.mark.slow
def test_an_original_that_can_not_be_run_as_it_is_keeps_no_copy_back(moved, place):
    """Damaged, moved on itself, or of another lineage since: whoever starts it is told."""
    max((place / "original" / "transactions").glob("*.json")).write_bytes(b"")
    goes_on(moved)


def test_the_same_folder_under_another_name_is_no_second_one(moved, place):
    """A folder may be mounted at two places; links stand for that here."""
    with Driver(place, name="seen") as seen:
        seen.folder.mkdir()
        for path in (place / "original").iterdir():
            (seen.folder / path.name).symlink_to(path)
        goes_on(seen)


@pytest.mark.slow
def test_going_back_to_a_backup_in_place_needs_no_word(moved, place):
    with Driver(place, name="original") as driver:
        driver.start().send(WORK[1])
        shutil.rmtree(driver.folder)
        moved.folder.rename(driver.folder)
        driver.start().send(WORK[2])
