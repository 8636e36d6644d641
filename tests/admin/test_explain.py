"""``explain``: the task that has a key, its value, and the files and transactions that it comes from."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from statefx import Checkpoint
from statefx.command import main
from statefx.errors import CheckpointError, CodecError, StateCorruptedError
from statefx.testing import Limits
from statefx.testing.faults import JobFails
from tests.admin.checkpoints import KEYS, KeepAll, Keeper, keeper, keeping, put, ruled, server
from tests.testing.places import place
from tests.testing.topologies import SMALL

__all__ = ["keeper", "place", "server"]

WORK = [put(a=1, b=1), put(b=2), put(a=None, b=2), put(c=1)]


@pytest.mark.slow
def test_every_provider_tells_task_and_value(keeper: Keeper) -> None:
    keeper.run(*WORK)
    found = Checkpoint(keeper.folder).explain("keep", "b")
    with Checkpoint(keeper.folder).state("keep", byTask=True) as view:
        (holder,) = [task for task, key in view if key == "b"]
    assert [(each.task, each.present, each.value) for each in found.tasks] == [(holder, True, 2)]
    assert found.txid == 4
    assert Checkpoint(keeper.folder).explain("keep", "nothing").tasks == ()
    assert Checkpoint(keeper.folder).explain("keep", "b", task=1 - holder).tasks == ()


def test_files_tell_the_transactions_that_changed_it(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK)
        (kept,) = Checkpoint(keeper.folder).explain("keep", "b").tasks
        assert kept.transactions == ((3, 3), (2, 2), (1, 1))
        assert [(file.value, file.deleted) for file in kept.files] == [(2, False), (2, False), (1, False)]
        assert all((keeper.folder / file.path).exists() for file in kept.files)
        (gone,) = Checkpoint(keeper.folder).explain("keep", "a").tasks
        assert (gone.present, gone.value) == (False, None)
        assert [(file.txid, file.deleted) for file in gone.files] == [(3, True), (1, False)]
        assert "changed in 3: deleted" in str(Checkpoint(keeper.folder).explain("keep", "a"))


def test_what_was_rolled_back_is_not_shown(place: Path) -> None:
    with Keeper(place) as keeper:
        tester = keeper.start(keeping())
        tester.send(put(a=1))
        tester.send(put(a=2), JobFails())
        (kept,) = Checkpoint(keeper.folder).explain("keep", "a").tasks
        assert len(list((keeper.folder / f"state/keep/{kept.task}").glob("*2-*.changelog"))) >= 1
        assert kept.transactions == ((2, 2), (1, 1))


@pytest.mark.slow
def test_merged_files_and_snapshots(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(
            *(put(a=n) for n in range(1, 31)),
            limits=Limits(files_max=2, sweep_every=1, min_age_secs=0.0, versions_kept=2),
        )
        (kept,) = Checkpoint(keeper.folder).explain("keep", "a").tasks
        assert kept.files[0].value == kept.value == 30
        assert any(first < last for first, last in kept.transactions)
        assert {file.value for file in kept.files} <= set(range(1, 31))
        assert all(file.value == file.txid for file in kept.files)
    with Keeper(place) as keeper:
        keeper.folder = place / "snapshots"
        keeper.run(*(put(a=n) for n in range(1, 8)), limits=SMALL)
        (kept,) = Checkpoint(keeper.folder).explain("keep", "a").tasks
        assert [file.value == file.txid for file in kept.files if file.kind == "snapshot"] != []
        assert "snapshot at" in str(kept.files[-1]) or any("snapshot at" in str(file) for file in kept.files)


@pytest.mark.slow
def test_keys_of_every_type_and_maps(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(put(a=1), topology=keeping(1, KeepAll()))
        for number, key in enumerate(KEYS):
            (kept,) = Checkpoint(keeper.folder).explain("keep", key).tasks
            assert kept.value == kept.files[0].value == [number, str(key)]
    with Keeper(place) as keeper:
        keeper.folder = place / "maps"
        keeper.run({"rows": [("a", 1, "recent"), ("a", 2, "plain"), ("a", 3, "own")]}, now=datetime.now(UTC))
        found = {
            name: Checkpoint(keeper.folder).explain("keep", "a", map=name).tasks[0] for name in ("recent", "plain")
        }
        assert [each.value for each in found.values()] == [each.files[0].value for each in found.values()] == [1, 2]
    with Keeper(place) as keeper:
        keeper.folder = place / "rules"
        keeper.run({"rows": [("a", 1)], "rules": [("limit", 5)]}, topology=ruled())
        assert [each.value for each in Checkpoint(keeper.folder).explain("keep", "limit", map="rules").tasks] == [5]


@pytest.mark.soak
@pytest.mark.slow
def test_of_a_large_file_few_blocks_are_read(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run({"rows": [(f"k{n:06d}", n, "own") for n in range(60_000)]}, topology=keeping(1))
        (path,) = (keeper.folder / "state/keep/0").glob("*.changelog")
        damaged = bytearray(path.read_bytes())
        damaged[-10] ^= 1  # in the last block
        path.write_bytes(damaged)
        for number in (0, 1, 8191, 8192, 8193, 30_000, 40_000):
            (kept,) = Checkpoint(keeper.folder).explain("keep", f"k{number:06d}").tasks
            assert kept.value == number
        assert Checkpoint(keeper.folder).explain("keep", "k0000005").tasks == ()
        with pytest.raises(StateCorruptedError, match=path.name):
            Checkpoint(keeper.folder).explain("keep", "k059999")


def test_mistakes(place: Path) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK)
        with pytest.raises(CodecError, match="a list"):
            Checkpoint(keeper.folder).explain("keep", [])
        with pytest.raises(CheckpointError, match="holds no state of 'other'"):
            Checkpoint(keeper.folder).explain("other", "a")
        with pytest.raises(CheckpointError, match=r"tasks 0\.\.1"):
            Checkpoint(keeper.folder).explain("keep", "a", task=7)


@pytest.mark.slow
def test_from_a_shell(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Keeper(place) as keeper:
        keeper.run(*WORK)
        folder = os.fspath(keeper.folder)
        assert main(["explain", folder, "keep", "b"]) == 0
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(each["kind"], each["txid"], each["value"]) for each in told][:2] == [
            ("now", 4, 2),
            ("changelog", 3, 2),
        ]
        assert main(["explain", folder, "keep", "b", "--table"]) == 0
        assert capsys.readouterr().out.split()[:6] == ["task", "what", "from", "to", "value", "file"]
        assert main(["explain", folder, "keep", "[1"]) == 1
        assert "'[1' of 'keep' at" in capsys.readouterr().err, "no JSON: the text"
        assert main(["explain", folder, "keep", '["a", 1]']) == 1
        assert "('a', 1) of 'keep' at" in capsys.readouterr().err
        assert main(["explain", folder, "keep"]) == 2
        assert main(["explain", folder, "keep", '{"a": 1}']) == 1
