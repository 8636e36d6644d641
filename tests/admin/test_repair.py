"""``repair`` goes on from the newest state that is whole, changes nothing unless told to, and is all or nothing."""

import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from statefx import Checkpoint, Topology, TopologyBuilder, TransactionalSpout, TransactionAttempt
from statefx.admin import damage
from statefx.admin.savepoints import go_back
from statefx.command import main
from statefx.coordinator.participants import SnapshotPolicy
from statefx.errors import CheckpointError, CheckpointFormatError, ConfigError, StateCorruptedError
from statefx.log.location import Folders
from statefx.log.log import TransactionLog, read_state
from statefx.protocol.identity import FileRef
from statefx.protocol.metadata import INLINE_MAX_BYTES
from statefx.protocol.records import Generation, Noted, SourceNotes
from statefx.state.changelog.files import Artefact, read_heads, read_range
from statefx.storage import FolderStorage
from statefx.testing import Limits, TopologyTester
from statefx.testing.steps import Crash, DurableSteps, SteppedLog, SteppedStorage, every_crash
from tests.admin.checkpoints import Keeper, keeping, put, server
from tests.admin.test_verify import flip
from tests.bolts import Count, Split
from tests.testing.places import place
from tests.testing.topologies import archived, lines

__all__ = ["place", "server"]

WORK = [put(a=n, **{f"k{n}": n}) for n in range(1, 9)]
BY_KEY = {"keep": lambda key: key}
IMAGES = Limits(SnapshotPolicy(min_bytes=1, ratio=0), sweep_every=1000)
"""A snapshot of one task in each transaction, and nothing is deleted."""


def kept(folder: Path) -> dict[Any, Any]:
    with Checkpoint(folder).state("keep") as view:
        return dict(view.items())


def after(count: int) -> dict[str, int]:
    return {key: value for work in WORK[:count] for key, value, _ in work["rows"]}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def newest(folder: Path, task: int = 0, kind: str = "changelog") -> Path:
    return max((folder / f"state/keep/{task}").glob(f"*.{kind}"))


def read_whole(storage: FolderStorage, name: str) -> None:
    (head,) = read_heads(storage, [name])
    if not isinstance(head, Artefact):
        raise head
    for _ in read_range(storage, head, None, None):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["changelog", "snapshot"])
@pytest.mark.parametrize("how", ["head", "body", "cut", "deleted"])
def test_texts_of_damage_name_the_file_once_and_the_remedy(place: Path, how: str, kind: str, capsys: Any) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK, limits=IMAGES)
        path = newest(keeper.folder, 0, kind)
        if how == "deleted":
            path.unlink()
        elif how == "cut":
            path.write_bytes(path.read_bytes()[:-1])
        else:
            flip(path, 20 if how == "head" else path.stat().st_size - 1)
        name = str(path.relative_to(keeper.folder))
        (damage, *_) = Checkpoint(keeper.folder).verify().damaged
        assert name not in damage.problem
        assert "backup" not in damage.problem
        for command in ("verify", "repair"):
            assert main([command, str(keeper.folder), "--table"]) == 1
            shown = capsys.readouterr().out
            assert damage.problem in shown, "nothing is cut off"
            assert "?" not in shown
            assert not shown.startswith("0 files")
            assert all(line.count(name) <= 1 for line in shown.splitlines())
        storage = FolderStorage(keeper.folder)
        with pytest.raises(StateCorruptedError, match=r"call Checkpoint\(location\).repair\(\)") as raised:
            read_whole(storage, name)
        assert str(raised.value).count(name) == 1


@pytest.mark.slow
def test_what_is_whole_stays_as_it_is(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK)
        before = files(keeper.folder)
        found = Checkpoint(keeper.folder).repair(yes=True)
        assert (found.damaged, found.txid, found.done) == ((), 8, False)
        assert str(found).endswith("nothing is damaged")
        assert files(keeper.folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["memory", "rocksdb"])
@pytest.mark.parametrize("how", ["flipped", "deleted"])
def test_a_snapshot_is_made_up_for_by_other_files(place: Path, provider: str, how: str) -> None:
    with Keeper(place, provider) as keeper:
        keeper.run(*WORK, limits=IMAGES)
        damaged = [newest(keeper.folder, task, "snapshot") for task in range(2)]
        data = [path.read_bytes() for path in damaged]
        for path in damaged:
            flip(path, path.stat().st_size - 1) if how == "flipped" else path.unlink()
        before = files(keeper.folder)
        found = Checkpoint(keeper.folder).repair()
        assert (found.txid, found.given_up, found.rebuilt, found.done) == (8, 0, ("keep/0", "keep/1"), False)
        assert files(keeper.folder) == before
        assert Checkpoint(keeper.folder).repair(yes=True).done
        assert kept(keeper.folder) == after(8)
        assert Checkpoint(keeper.folder).verify().ok
        aside = [keeper.folder / "damaged" / path.relative_to(keeper.folder) for path in damaged]
        assert [path.exists() for path in aside] == [how == "flipped"] * 2
        if how == "flipped":
            assert [path.read_bytes() for path in aside] == [path.read_bytes() for path in damaged] != data
        # On another machine, where no cache hides what is missing.
        keeper.start(keeping(), cache=place / "another").send(put(z=9))
        assert kept(keeper.folder) == {**after(8), "z": 9}


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["memory", "rocksdb"])
def test_else_all_tasks_go_back(place: Path, provider: str) -> None:
    with Keeper(place, provider) as keeper:
        keeper.run(*WORK)
        txid = int(newest(keeper.folder).name.partition("-")[0])
        flip(newest(keeper.folder), 70)
        planned = Checkpoint(keeper.folder).repair()
        assert (planned.txid, planned.given_up, planned.rebuilt) == (txid - 1, 9 - txid, ())
        assert re.search(f"{9 - txid} transactions? after it (is|are) given up, and what was read then", str(planned))
        done = Checkpoint(keeper.folder).repair(yes=True)
        assert (done.txid, done.given_up, done.done) == (txid - 1, 9 - txid, True)
        assert kept(keeper.folder) == after(txid - 1)
        assert Checkpoint(keeper.folder).verify().ok
        tester = keeper.start(keeping(), cache=place / "another")
        for work in WORK[txid - 1 :]:
            tester.send(work)
        assert kept(keeper.folder) == after(8)
        assert tester.txid == 8 + 9 - txid, "numbers that were given up are not used again"


@pytest.mark.slow
def test_a_savepoint_is_named_if_nothing_else_is_whole(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK[:3]).close()
        Checkpoint(keeper.folder).savepoint("three")
        keeper.run(*WORK[3:]).close()
        for path in (keeper.folder / "state/keep").rglob("*.changelog"):
            if int(path.name.partition("-")[0]) > 3:
                path.unlink()
        assert Checkpoint(keeper.folder).repair().txid == 3, "the log still knows it"
        folded = patch.object(damage, "known_pins", lambda folders, ancestors: {})
        with folded, pytest.raises(StateCorruptedError, match=r"that is whole, \['three'\], with Checkpoint.restore"):
            Checkpoint(keeper.folder).repair(yes=True)
        assert Checkpoint(keeper.folder).restore("three").txid == 3
        assert kept(keeper.folder) == after(3)


@pytest.mark.slow
def test_what_was_given_up_stays_given_up(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK[:3]).close()
        Checkpoint(keeper.folder).savepoint("three")
        keeper.run(*WORK[3:]).close()
        Checkpoint(keeper.folder).savepoint("eight")
        Checkpoint(keeper.folder).restore("three")
        keeper.run(put(z=1, y=2, x=3, w=4)).close()
        assert kept(keeper.folder) == {**after(3), "z": 1, "y": 2, "x": 3, "w": 4}
        for task in range(2):
            path = newest(keeper.folder, task)
            if path.name.startswith(f"{9:020d}"):
                flip(path, 70)
        found = Checkpoint(keeper.folder).repair(yes=True)
        assert (found.txid, found.given_up) == (3, 6)
        assert kept(keeper.folder) == after(3)


@pytest.mark.slow
def test_what_can_not_be_read_at_the_moment_is_not_given_up(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK)
        before, path = files(keeper.folder), newest(keeper.folder)
        name, read = str(path.relative_to(keeper.folder)), FolderStorage.read

        def busy(self: FolderStorage, asked: str, start: int = 0, stop: int | None = None) -> bytes:
            if asked == name:
                raise OSError(5, "503 Slow Down")
            return read(self, asked, start, stop)

        with (
            patch.object(FolderStorage, "read", busy),
            pytest.raises(CheckpointError, match=r"can't be determined now .*503"),
        ):
            Checkpoint(keeper.folder).repair(yes=True)
        assert files(keeper.folder) == before


@pytest.mark.slow
def test_a_copy_that_can_not_be_made_stops_it(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK)
        flip(newest(keeper.folder), 70)
        before = files(keeper.folder)
        full = patch.object(FolderStorage, "put", side_effect=OSError(28, "No space left on device"))
        with full, pytest.raises(CheckpointError, match="make room in"):
            Checkpoint(keeper.folder).repair(yes=True)
        assert files(keeper.folder) == before


@pytest.mark.slow
def test_a_savepoint_that_is_lost_is_named(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK[:3], limits=IMAGES).close()
        Checkpoint(keeper.folder).savepoint("three")
        snapshots = list((keeper.folder / "state/keep").rglob("*.snapshot"))
        keeper.run(*WORK[3:], limits=IMAGES).close()
        for path in snapshots:
            flip(path, path.stat().st_size - 1)
        found = Checkpoint(keeper.folder).repair(yes=True)
        assert found.savepoints == ("three",)
        assert (found.txid, found.given_up, found.done) == (8, 0, False)
        assert kept(keeper.folder) == after(8)
        assert "savepoints that can't be restored any more: three" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["flipped", "deleted"])
@pytest.mark.parametrize("which", ["older", "newest", "pinned"])
def test_repaired_is_said_where_verify_finds_nothing_any_more(place: Path, which: str, how: str) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK[:3], limits=IMAGES).close()
        pinned = newest(keeper.folder, 0, "snapshot")
        if which == "pinned":
            Checkpoint(keeper.folder).savepoint("three")
        keeper.run(*WORK[3:], limits=IMAGES).close()
        *_, older, last = sorted((keeper.folder / "state/keep/0").glob("*.snapshot"))
        path = {"older": older, "newest": last, "pinned": pinned}[which]
        flip(path, path.stat().st_size - 1) if how == "flipped" else path.unlink()
        before, is_mended = files(keeper.folder), which != "pinned"
        planned = Checkpoint(keeper.folder).repair()
        assert (str(path.relative_to(keeper.folder)) in planned.dropped) is is_mended
        done = Checkpoint(keeper.folder).repair(yes=True)
        assert (done.given_up, done.done) == (0, is_mended)
        assert Checkpoint(keeper.folder).verify().ok is is_mended
        if not is_mended:
            assert files(keeper.folder) == before
            assert str(done) == str(planned)
            assert str(done).endswith("nothing was changed: the state is whole without them")
        assert main(["repair", str(keeper.folder), "--yes"]) == (0 if is_mended else 1)
        assert kept(keeper.folder) == after(8)


def counting(spout: TransactionalSpout) -> Topology:
    builder = TopologyBuilder("word-count")
    builder.setSpout("lines", spout)
    builder.setBolt("split", Split()).shuffleGrouping("lines")
    builder.setBolt("count", Count()).fieldsGrouping("split", "word")
    return builder.createTopology()


@pytest.mark.parametrize("which", ["older", "newest"])
def test_repair_keeps_what_an_attempt_that_was_rolled_back_has_read(place: Path, which: str) -> None:
    """A service, or a TransactionalMap, would take other rows for those of the attempt that was rolled back."""

    class Growing(TransactionalSpout):
        outputFields = "value string"

        def initializeTransaction(self, txid: int, previous: Any) -> Any:
            return [txid, len(looks)]

        def emitBatch(self, attempt: TransactionAttempt, metadata: Any, collector: Any) -> None:
            for number in range(metadata[1]):
                collector.emit((f"word{number}",))

    looks: list[int] = [1]
    topology = counting(Growing())
    with Keeper(place) as keeper:
        tester = keeper.start(topology, limits=IMAGES)
        for _ in range(4):
            tester.emit()
        tester.when("before COMMITTING(5, 0)", crash)
        with pytest.raises(Crash):
            tester.emit()
        keeper.start(topology).close()
        _, older, last, _ = sorted((keeper.folder / "state/count/0").glob("*.snapshot"))  # the fourth was not decided
        path = older if which == "older" else last
        flip(path, path.stat().st_size - 1)
        assert Checkpoint(keeper.folder).repair(yes=True).done
        assert Checkpoint(keeper.folder).verify().ok
        looks.append(2)
        tester = keeper.start(topology, limits=IMAGES)
        tester.emit()
        assert tester.state("count") == {"word0": 5}, "the rows of its first attempt"


class LargePlans(TransactionalSpout):
    """Emits a line in each transaction; its plans are too large for the log."""

    outputFields = "value string"
    lines = ("to be", "or not", "to be")

    def initializeTransaction(self, txid: int, previous: Any) -> Any:
        done = previous[0] if previous else 0
        return [done + 1, "x" * INLINE_MAX_BYTES] if done < len(self.lines) else None

    def emitBatch(self, attempt: TransactionAttempt, metadata: Any, collector: Any) -> None:
        collector.emit((self.lines[metadata[0] - 1],))


def crash() -> None:
    raise Crash


@pytest.mark.parametrize("how", ["flipped", "deleted"])
def test_a_spout_makes_another_plan_where_one_is_lost(place: Path, how: str) -> None:
    topology = counting(LargePlans())
    with Keeper(place) as keeper:
        tester = keeper.start(topology)
        tester.when("before COMMITTING(2, 0)", crash)
        with pytest.raises(Crash):
            tester.drain()
        keeper.start(topology).close()
        state = read_state(FolderStorage(keeper.folder))
        (plan,) = state.planned_metadata[2].values()
        assert plan.file is not None, "rolled back, and to be read again"
        path = keeper.folder / plan.file.name
        flip(path, 70) if how == "flipped" else path.unlink()
        with pytest.raises(StateCorruptedError, match=r"Checkpoint\(location\).repair\(\)"):
            keeper.start(topology).drain()
        planned = Checkpoint(keeper.folder).repair()
        assert (planned.txid, planned.given_up, planned.dropped) == (1, 0, (plan.file.name,))
        assert Checkpoint(keeper.folder).repair(yes=True).done
        assert Checkpoint(keeper.folder).verify().ok
        tester = keeper.start(topology)
        tester.drain()
        assert tester.state("count") == {"to": 2, "be": 2, "or": 1, "not": 1}


def test_notes_that_no_transaction_needs_are_given_up_where_they_are_lost(place: Path) -> None:
    """Of an attempt that was rolled back, say: its sources read them again. No start goes on without."""
    with Keeper(place) as keeper:
        keeper.run(*WORK[:2]).close()
        log = TransactionLog(FolderStorage(keeper.folder))
        log.append(Generation(log.state.generation + 1, log.state.location, log.state.topology))
        ref = FileRef.of("sources/lost.json", b"{}")
        log.append(Noted(log.state.generation, SourceNotes(aside=(ref,))))
        planned = Checkpoint(keeper.folder).repair()
        assert (planned.txid, planned.given_up, planned.dropped) == (2, 0, (ref.name,))
        assert str(planned).endswith("nothing was changed: stop the topology, and say --yes, or yes=True")
        assert Checkpoint(keeper.folder).repair(yes=True).done
        assert Checkpoint(keeper.folder).verify().ok
        assert kept(keeper.folder) == after(2)


@pytest.mark.slow
def test_nothing_whole_is_left(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK)
        for path in (keeper.folder / "state/keep/0").glob("*.changelog"):
            flip(path, 70)
        before = files(keeper.folder)
        with pytest.raises(StateCorruptedError, match=r"no state of the checkpoint in .* is whole.*from a copy"):
            Checkpoint(keeper.folder).repair(yes=True)
        assert files(keeper.folder) == before


@pytest.mark.slow
def test_a_repair_that_was_killed_has_changed_all_or_nothing(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK).close()
        txid = int(newest(keeper.folder).name.partition("-")[0])
        flip(newest(keeper.folder), 70)
        shutil.copytree(keeper.folder, place / "before")
        seen = set()
        for at in every_crash():
            shutil.rmtree(keeper.folder)
            shutil.copytree(place / "before", keeper.folder)
            steps = DurableSteps(crash_at=at)
            stepped = Folders(str(keeper.folder), wrap=lambda storage, steps=steps: SteppedStorage(storage, steps))
            back = partial(go_back, opened=partial(SteppedLog, steps=steps, limit=100))
            try:
                with patch.object(damage, "go_back", back):
                    damage.repair(stepped, None, yes=True, sinks=None, progress=None)
            except Crash:
                seen.add(Checkpoint(keeper.folder).verify().ok)
                assert Checkpoint(keeper.folder).verify().ok is (kept_or_none(keeper.folder) == after(txid - 1))
                Checkpoint(keeper.folder).repair(yes=True)
                assert Checkpoint(keeper.folder).verify().ok
                assert kept(keeper.folder) == after(txid - 1)
                continue
            break
        assert seen == {False, True}


def kept_or_none(folder: Path) -> dict[Any, Any] | None:
    try:
        return kept(folder)
    except StateCorruptedError:
        return None


@pytest.mark.slow
def test_from_a_shell(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK)
        assert main(["repair", str(keeper.folder)]) == 0
        flip(newest(keeper.folder), 70)
        capsys.readouterr()
        assert main(["repair", str(keeper.folder), "--table"]) == 1
        assert "nothing was changed: stop the topology, and say --yes" in capsys.readouterr().out
        assert main(["repair", str(keeper.folder), "--yes", "--table"]) == 0
        assert "repaired" in capsys.readouterr().out
        assert main(["verify", str(keeper.folder)]) == 0


@pytest.mark.slow
def test_what_is_refused(place: Path) -> None:
    with pytest.raises(CheckpointError, match="has a topology been submitted there"):
        Checkpoint(place / "nowhere").repair()
    with Keeper(place) as keeper:
        keeper.run(*WORK)
        with pytest.raises(ConfigError, match="sinks must be 'append', 'rewind' or None, got 'forget'"):
            Checkpoint(keeper.folder).repair(sinks="forget")


@pytest.mark.parametrize("yes", ["no", "yes", 1, 0, None])
def test_yes_is_true_or_false(place: Path, yes: Any) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK[:2])
        for call in (
            lambda: Checkpoint(keeper.folder).repair(yes=yes),
            lambda: Checkpoint(keeper.folder).resolve(None, yes=yes),
        ):
            with pytest.raises(ConfigError, match="yes must be True or False, got"):
                call()


@pytest.mark.slow
def test_a_plan_says_what_published_rows_need(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = place / "ck", place / "out"
    out.mkdir()
    with TopologyTester(archived(out, 1), folder) as tester:
        for text in ("to be", "or not", "to be"):
            tester.send(lines(text))
    path = max((folder / "state/count/0").glob("*.changelog"))
    flip(path, path.stat().st_size - 1)
    before, checkpoint = files(folder), Checkpoint(folder)
    plan = checkpoint.repair()
    assert (plan.txid, plan.given_up, plan.done) == (2, 1, False)
    assert "transaction 3 may have published rows (2 of sink 'out')" in plan.refused
    assert str(plan).endswith(f"nothing was changed: {plan.refused}")
    assert "yes=True" not in str(plan)
    with pytest.raises(CheckpointError) as refused:
        checkpoint.repair(yes=True)
    assert refused.value.message == plan.refused
    assert main(["repair", str(folder), "--table"]) == 1
    assert "Say --sinks append if" in capsys.readouterr().out
    for sinks, published, said in (
        ("append", {"out": 2}, "published in these, and still there: 2 rows of 'out'"),
        ("rewind", {}, "the next start takes back what sink 'out' has published since"),
    ):
        plan = checkpoint.repair(sinks=sinks)
        assert plan.refused == ""
        assert {sink: rows for sink, rows in plan.published.items() if sink not in plan.taken_back} == published
        assert said in str(plan)
        assert str(plan).endswith("stop the topology, and say --yes, or yes=True")
    assert files(folder) == before
    assert checkpoint.repair(yes=True, sinks="append").done
    assert checkpoint.verify().ok


def test_a_log_that_can_not_be_read_is_said_once(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK[:2]).close()
        record = max((keeper.folder / "transactions").glob("*.json"))
        record.write_text('{"a')
        found = Checkpoint(keeper.folder).verify()
        (damaged,) = found.damaged
        assert damaged.path == str(record.relative_to(keeper.folder))
        assert record.name not in damaged.problem
        assert str(found).startswith("the transaction log can't be read, and without it nothing else was: 1 damaged\n")


@pytest.mark.parametrize("text", ["hi", "", "[]", '{"other": 2}'])
def test_a_format_file_that_says_nothing_is_to_be_restored(place: Path, text: str) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK[:1]).close()
        (keeper.folder / "format").write_text(text)
        with pytest.raises(CheckpointFormatError, match=r'restore the file \({"format": 2} if this release wrote'):
            Checkpoint(keeper.folder).verify()


@pytest.mark.server
def test_state_in_a_server(place: Path, server: Any) -> None:
    with Keeper(place, server=server) as keeper:
        keeper.run(*WORK[:2])
        with pytest.raises(ConfigError, match="kept in a server"):
            Checkpoint(keeper.folder, {"topology.state.provider.config": {"url": server.url}}).repair()


@pytest.mark.slow
@pytest.mark.parametrize("later", [0, 2])
@pytest.mark.parametrize("tool", ["rescale", "write"])
def test_what_a_tool_has_written_is_undone_and_named(place: Path, tool: str, later: int) -> None:
    """Its file has the number of the transaction before it, and no transaction brings it again."""
    with Keeper(place) as keeper:
        keeper.run(*WORK[:5]).close()
        tasks = 3 if tool == "rescale" else 2
        if tool == "rescale":
            Checkpoint(keeper.folder).rescale({"keep": tasks}, groupingKey=BY_KEY)
        else:
            Checkpoint(keeper.folder).write(
                "keep", pa.table({"key": ['"a"', '"b"', '"c"'], "value": ["-1"] * 3}), groupingKey=BY_KEY["keep"]
            )
        written = [version.token for version in read_state(FolderStorage(keeper.folder)).heads.values()]
        keeper.run(*WORK[5 : 5 + later], topology=keeping(tasks)).close()
        for token in written:
            [path] = (keeper.folder / "state/keep").rglob(f"*-{token}.changelog")
            flip(path, 70)
        planned = Checkpoint(keeper.folder).repair()
        assert (planned.txid, planned.given_up, planned.undone, planned.done) == (5, later, ("keep",), False)
        assert "since transaction 5 these were rescaled" in str(planned)
        assert "renamed or dropped, which is undone: keep" in str(planned)
        assert "nothing is given up" not in str(planned)
        assert Checkpoint(keeper.folder).repair(yes=True).done
        assert Checkpoint(keeper.folder).verify().ok
        assert kept(keeper.folder) == after(5)
        keeper.start(keeping(), cache=place / "another").send(put(z=9))
        assert kept(keeper.folder) == {**after(5), "z": 9}
