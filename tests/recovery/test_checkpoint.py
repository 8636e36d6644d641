"""Whose a checkpoint is, who may go on with it, and what is refused before anything is written (rules 1)."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statefx import BasicBolt, Checkpoint, Topology, TopologyBuilder
from statefx.errors import (
    CheckpointError,
    CheckpointFormatError,
    CheckpointMismatchError,
    ConfigError,
    StateCorruptedError,
)
from statefx.log.location import local_path
from statefx.log.log import read_state
from statefx.storage import FolderStorage
from statefx.testing import Crash, TopologyTester, rows
from tests.testing.topologies import SMALL, Count, Driver, Split, Total, Witness, lines, totals, word_count, words

WORK = [lines("to be or not to be"), lines("that is the question")]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def built(*declare: Callable[[TopologyBuilder], Any], name: str = "word-count", streaming: bool = True) -> Topology:
    builder = TopologyBuilder(name)
    builder.setStream("lines", rows("value string", streaming=streaming))
    builder.setBolt("split", Split(), parallelism=2).shuffleGrouping("lines")
    for each in declare:
        each(builder)
    return builder.createTopology()


def count(parallelism: int = 2, id: str = "count", bolt: Any = None) -> Callable[[TopologyBuilder], Any]:
    return lambda b: b.setBolt(id, bolt or Count(), parallelism).fieldsGrouping("split", "word")


class CountTwo(Count):
    stateVersion = 2


class Stateless(BasicBolt):
    outputFields = "word string"

    def execute(self, tup, collector):
        collector.emit((tup.word,))


@pytest.mark.parametrize(
    ("topology", "config", "says"),
    [
        (built(count(3)), {}, r"'count' has parallelism 3.*written with 2: go back to 2"),
        (
            built(count()),
            {"topology.state.provider": "rocksdb"},
            r"provider 'rocksdb', .*written with 'memory': go back to 'memory' .*migrate",
        ),
        (built(count(bolt=CountTwo())), {}, r"'count' has stateVersion 2.*written with 1"),
        (built(), {}, r"holds state of bolt 'count', which the topology no longer has.*bring it back"),
        (built(count(id="counts")), {}, r"holds state of bolt 'count'"),
        (built(count(bolt=Stateless())), {}, r"or which is no longer stateful"),
        (
            built(count(), name="other"),
            {},
            r"is of topology 'word-count', this one has 'other'.*own checkpointLocation",
        ),
        (built(count(), streaming=False), {}, r"is of kind of input 'stream', this one has 'batch'"),
    ],
)
def test_what_is_not_the_topology_of_the_checkpoint_is_refused_before_anything_is_written(
    driver, topology, config, says
):
    tester = driver.start(word_count())
    tester.send(WORK[0])
    before = content(driver.folder)
    with pytest.raises(CheckpointMismatchError, match=says):
        driver.start(topology, config=config)
    assert content(driver.folder) == before
    tester.send(WORK[1])
    assert tester.state("count") == words(WORK), "and the one that runs was not fenced"


@pytest.mark.parametrize(
    ("config", "adopt", "error"),
    [
        ({"topology.state.provdier": "memory"}, None, ConfigError),
        ({"topology.state.provider": "cassandra"}, None, ConfigError),
        ({}, "copy", ConfigError),
    ],
)
def test_a_mistake_is_found_before_anything_is_written(driver, config, adopt, error):
    with pytest.raises(error):
        driver.start(config=config, adopt=adopt)
    assert not driver.folder.exists()


@pytest.mark.slow
def test_stateless_bolts_may_come_and_go(driver):
    driver.start().send(WORK[0])
    more = built(count(), lambda b: b.setBolt("echo", Stateless(), 3).shuffleGrouping("count"))
    tester = driver.start(more)
    tester.send(WORK[1])
    assert sorted(word for (word,) in tester.emitted("echo")) == sorted(["that", "is", "the", "question"])
    tester = driver.start()
    tester.send(lines("be"))
    assert tester.state("count") == words([*WORK, lines("be")])


@pytest.mark.slow
def test_a_new_stateful_bolt_starts_empty(driver, provider):
    driver.start().send(WORK[0])
    more = built(count(), count(id="recount"), lambda b: b.setBolt("total", Total()).globalGrouping("recount"))
    tester = driver.start(more)
    assert tester.state("recount") == {}
    tester.send(WORK[1])
    assert tester.state("recount") == words(WORK[1:])
    assert tester.state("total")["total"] == 4
    assert tester.state("count") == words(WORK)
    tester = driver.start(more)
    tester.send(WORK[0])
    assert tester.state("recount") == words([*WORK])


@pytest.mark.slow
def test_a_transaction_is_rolled_forward_for_the_bolts_it_was_decided_for(place):
    """COMMITTING was written without the bolt that the next topology has."""
    one = built(count(), lambda b: b.setBolt("told", Witness()).globalGrouping("lines"))
    with Driver(place, name="rehearsal") as driver:
        rehearsal = driver.start(one)
        rehearsal.send(WORK[0])
        moment = rehearsal.steps.index("after COMMITTING(1, 0)") + 1
    with Driver(place) as driver:
        with pytest.raises(Crash):
            driver.start(one, crash_at=moment).send(WORK[0])
        driver.journal.clear()
        both = built(
            count(),
            lambda b: b.setBolt("told", Witness()).globalGrouping("lines"),
            lambda b: b.setBolt("total", Total()).globalGrouping("count"),
        )
        tester = driver.start(both)
        assert tester.recoveries == [{"txid": 1, "rolled": "forward"}]
        assert [event for event, *_ in driver.journal] == ["open", "initState", "preCommit", "close"]
        assert tester.state("count") == words(WORK[:1])
        tester.send(WORK[1])
        assert tester.state("total")["total"] == 4


@pytest.mark.slow
def test_a_checkpoint_deleted_and_run_again_starts_clean_whatever_caches_there_are(driver, provider):
    driver.config["topology.state.provider.config"] = {"catch_up_kb": 0} if provider == "rocksdb" else {}
    for _ in range(2):
        tester = driver.start(totals())
        for work in WORK:
            tester.send(work)
        assert tester.state("count") == words(WORK)
        assert tester.generation == 1
        shutil.rmtree(driver.folder)
    tester = driver.start(totals())
    assert (tester.txid, tester.state("count")) == (0, {})


def test_only_the_state_deleted_is_corruption_and_not_an_empty_state(driver, place):
    driver.start().send(WORK[0])
    shutil.rmtree(driver.folder / "state")
    with pytest.raises(StateCorruptedError, match="missing"):
        driver.start(cache=place / "other").send(WORK[1])


@pytest.mark.slow
def test_two_topologies_with_bolts_of_one_name_never_meet(place, provider):
    """They share the machine, and so the folder of caches."""
    with Driver(place, provider) as one, Driver(place, provider, "other") as other:
        testers = one.start(word_count(name="one")), other.start(word_count(name="other"))
        for n in range(3):
            for tester, work in zip(testers, WORK, strict=True):
                tester.send(work)
                assert tester.state("count") == {word: (n + 1) * k for word, k in words([work]).items()}


# ---- moved and copied checkpoints


def copied(place: Path, provider: str = "memory") -> Driver:
    with Driver(place, provider, "original") as driver:
        tester = driver.start(totals())
        for work in WORK:
            tester.send(work)
    shutil.copytree(place / "original", place / "copy")
    return Driver(place, provider, "copy")


def test_a_checkpoint_found_elsewhere_is_refused_until_the_caller_says_why(place):
    with copied(place) as driver:
        before = content(driver.folder)
        with pytest.raises(CheckpointMismatchError, match=r"adopt='move'.*adopt='fork'"):
            driver.start(totals())
        assert content(driver.folder) == before


@pytest.mark.slow
def test_a_moved_checkpoint_goes_on_with_its_lineage(place, provider):
    with copied(place, provider) as driver:
        shutil.rmtree(place / "original")
        lineage = read_state(FolderStorage(driver.folder)).lineage
        tester = driver.start(totals(), adopt="move")
        assert (tester.txid, tester.generation) == (2, 2)
        tester.send(WORK[0])
        assert tester.state("count") == words([*WORK, WORK[0]])
        assert read_state(FolderStorage(driver.folder)).lineage == lineage
        driver.start(totals()).send(WORK[1])


@pytest.mark.slow
def test_a_fork_and_its_original_go_on_independently(place, provider):
    """On one machine, with caches of one another's past, snapshots and sweeps on both sides."""
    with Driver(place, provider, "original") as original:
        tester = original.start(totals(), limits=SMALL)
        for work in WORK * 2:
            tester.send(work)
        shutil.copytree(original.folder, place / "fork")
        done = {"original": WORK * 2, "fork": WORK * 2}
        with Driver(place, provider, "fork") as fork:
            forked = fork.start(totals(), adopt="fork", limits=SMALL)
            assert forked.txid == 4
            assert forked.state("count") == words(done["fork"])
            for n in range(6):
                for name, each in (("original", tester), ("fork", forked)):
                    work = lines(f"only-{name} {n}")
                    done[name] = [*done[name], work]
                    each.send(work)
                    assert each.state("count") == words(done[name])
            forked.advance(3600)
            forked.sweep()
            tester = original.start(totals(), limits=SMALL)
            forked = fork.start(totals(), limits=SMALL)
            assert tester.state("count") == words(done["original"])
            assert forked.state("count") == words(done["fork"])
            lineages = {read_state(FolderStorage(each.folder)).lineage for each in (original, fork)}
            assert len(lineages) == 2
            with Checkpoint(fork.folder).state("total") as view:
                assert view["total"] == sum(words(done["fork"]).values())


@pytest.mark.slow
def test_a_fork_of_a_fork_reads_files_of_all_three_lineages(place, provider):
    done = []
    folder = "0"
    with Driver(place, provider, folder) as driver:
        driver.start().send(WORK[0])
    done.append(WORK[0])
    for n in (1, 2):
        shutil.copytree(place / str(n - 1), place / str(n))
        with Driver(place, provider, str(n)) as driver:
            tester = driver.start(adopt="fork", cache=place / "another-machine")
            work = lines(f"fork-{n} to")
            tester.send(work)
            done.append(work)
            assert tester.state("count") == words(done)


@pytest.mark.slow
def test_a_copy_that_was_committing_is_rolled_forward_on_both_sides(place):
    with Driver(place, name="rehearsal") as driver:
        rehearsal = driver.start(totals())
        rehearsal.send(WORK[0])
        moment = rehearsal.steps.index("after COMMITTING(1, 0)") + 1
    with Driver(place, name="original") as driver:
        with pytest.raises(Crash):
            driver.start(totals(), crash_at=moment).send(WORK[0])
        shutil.copytree(driver.folder, place / "fork")
        for name, adopt in (("original", None), ("fork", "fork")):
            with Driver(place, name=name) as each:
                tester = each.start(totals(), adopt=adopt)
                assert tester.recoveries == [{"txid": 1, "rolled": "forward"}]
                tester.send(WORK[1])
                assert tester.state("count") == words(WORK)


@pytest.mark.slow
def test_a_crash_at_any_step_of_a_fork_can_be_forked_again(place):
    copied(place)
    for n in range(1, 100):
        shutil.copytree(place / "original", place / str(n))
        with Driver(place, name=str(n)) as driver:
            try:
                driver.start(totals(), adopt="fork", crash_at=n).send(WORK[0])
            except Crash:
                tester = driver.start(totals(), adopt="fork")
                tester.run([*WORK, WORK[0]])
                assert tester.state("count") == words([*WORK, WORK[0]])
            else:
                return
    raise AssertionError("the fork never came through")


# ---- damage


@pytest.mark.slow
def test_a_damaged_state_file_is_named_and_other_namespaces_are_untouched(driver, place, provider):
    tester = driver.start(totals())
    for work in WORK:
        tester.send(work)
    [damaged] = sorted((driver.folder / "state" / "count" / "1").glob(f"{2:020d}-*.changelog"))[-1:]
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    before = {name: each for name, each in content(driver.folder).items() if name.startswith("state")}
    fresh = driver.start(totals(), cache=place / "fresh")
    with pytest.raises(StateCorruptedError, match=damaged.name):
        fresh.send(lines("to be"))
    assert fresh.steps[-1] == "after ROLLED_BACK(3, 0)", "not tried again: it can't succeed"
    with pytest.raises(StateCorruptedError, match=damaged.name):
        fresh.state("count", task=1)
    assert fresh.state("total")["total"] == 10
    assert fresh.state("count", task=0)
    after = content(driver.folder)
    assert {name: after[name] for name in before if "fence" not in name} == {
        name: data for name, data in before.items() if "fence" not in name
    }
    damaged.write_bytes(data)
    tester = driver.start(totals(), cache=place / "fresh")
    tester.send(lines("to be"))
    assert tester.state("count") == words([*WORK, lines("to be")])


def test_a_damaged_log_is_named(driver):
    driver.start().send(WORK[0])
    record = sorted((driver.folder / "transactions").glob("*.json"))[2]
    record.write_bytes(record.read_bytes().replace(b"PREPARING", b"PREPARINg"))
    with pytest.raises(StateCorruptedError, match=record.name):
        driver.start()


def test_a_newer_format_is_refused(driver):
    driver.start().send(WORK[0])
    (driver.folder / "format").write_text('{"format": 3}')
    before = content(driver.folder)
    with pytest.raises(CheckpointFormatError, match="format 3"):
        driver.start()
    with pytest.raises(CheckpointFormatError, match="format 3"):
        Checkpoint(driver.folder).state("count")
    assert content(driver.folder) == before


def test_state_names_what_there_is(driver, place):
    tester = driver.start()
    with pytest.raises(CheckpointError, match=r"'split'; its stateful bolts are \['count'\]"):
        tester.state("split")
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        Checkpoint(place / "nowhere").state("count")
    assert tester.state("count") == {}


@pytest.mark.slow
def test_state_shows_one_transaction_at_every_moment(driver, place, provider):
    """Looked at after each step of several transactions: always a committed txid, and all tasks at it."""
    tester: TopologyTester = driver.start(totals())
    seen = set()

    def look() -> None:
        with Checkpoint(driver.folder).state("count") as counts, Checkpoint(driver.folder).state("total") as total:
            assert counts.txid == total.txid
            assert dict(counts.items()) == words(work[: counts.txid])
            assert total.get("total", 0) == sum(words(work[: counts.txid]).values())
            seen.add(counts.txid)

    work = [*WORK, *WORK]
    rehearsal = _moments(place, work)
    for moment in set(rehearsal):
        tester.when(moment, look)
    tester.run(work)
    assert seen == {0, 1, 2, 3, 4}


def _moments(place: Path, work: list[Any]) -> list[str]:
    with Driver(place, name="rehearsal") as driver:
        tester = driver.start(totals())
        before = len(tester.steps)
        tester.run(work)
        return tester.steps[before:]


@pytest.mark.slow
def test_a_view_that_was_opened_stays_at_its_transaction(driver, provider):
    tester = driver.start()
    tester.send(WORK[0])
    with Checkpoint(driver.folder).state("count") as view:
        tester.send(WORK[1])
        assert view.txid == 1
        assert dict(view.items()) == words(WORK[:1])
        assert "question" not in view


@pytest.mark.parametrize("name", ["words.txt", "word-count"])
def test_a_folder_of_other_things_is_no_checkpoint(place, name):
    """An input folder, or the one above the checkpoints: as new checkpoints they would begin with empty state."""
    (place / "other" / name).mkdir(parents=True)
    before = content(place)
    with Driver(place, name="other") as driver:
        with pytest.raises(CheckpointFormatError, match=rf"is no checkpoint, and not empty \(it holds '{name}'\)"):
            driver.start(word_count())
        assert content(place) == before
        (place / "other" / name).rmdir()
        (place / "other" / ".hidden").touch()
        (place / "other" / "format.left-by-a-crash").touch()
        (place / "other" / "lost+found").mkdir()
        driver.start(word_count()).send(WORK[0])


# ---- where it may be


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/a/ck", "/a/ck"),
        ("file:/a/ck", "/a/ck"),
        ("file:///a/ck", "/a/ck"),
        ("FILE://localhost/a/ck", "/a/ck"),
        ("./dbfs:/ck", f"{Path.cwd()}/dbfs:/ck"),
        ("/a/dbfs:/ck", "/a/dbfs:/ck"),
    ],
)
def test_a_location_is_a_path(location, path):
    assert local_path(location) == path


@pytest.mark.parametrize(
    "location", ["dbfs:/ck", "hdfs://host/ck", "s3a://bucket/ck", "gs:ck", "C:/ck", "file:ck", "file://host/ck", ""]
)
def test_a_location_on_another_file_system_makes_no_folder(location):
    """``dbfs:/x`` was a folder ``dbfs:`` below the current one, gone with the driver's machine."""
    with pytest.raises(ConfigError, match="checkpointLocation"):
        local_path(location)
    for call in (lambda: Checkpoint(location).state("count"), lambda: Checkpoint(location).migrate("memory")):
        with pytest.raises(ConfigError, match="checkpointLocation"):
            call()
