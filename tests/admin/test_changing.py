"""Tools that change a checkpoint which stands still, from a shell and from Python: what they print, refuse, leave."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statefx import Checkpoint
from statefx.admin import savepoints as tool
from statefx.command import main
from statefx.errors import CheckpointError, CheckpointFormatError, ConfigError, FencedError
from statefx.log.entries import FOLDER, digest
from statefx.log.log import TransactionLog, read_state
from statefx.storage import FolderStorage
from statefx.testing import Crash
from statefx.testing.steps import DurableSteps, SteppedLog, every_crash
from tests.admin.checkpoints import Keeper, keeping, put
from tests.testing.places import place

__all__ = ["place"]

WORK = [put(a=1, b=2), put(a=5, c=3)]


@pytest.fixture
def keeper(place: Path) -> Any:
    with Keeper(place) as keeper:
        keeper.run(*WORK)
        yield keeper


def told(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, Any]]:
    assert main([str(each) for each in words]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def state(folder: Path, bolt: str = "keep") -> dict[Any, Any]:
    with Checkpoint(folder).state(bolt) as view:
        return dict(view.items())


# ---- what is printed


@pytest.mark.slow
def test_results_are_json_where_no_terminal_reads_them(keeper: Keeper, place: Path, capsys: Any) -> None:
    folder = keeper.folder
    (taken,) = told(capsys, "savepoint", folder, "one", "--yes")
    assert (taken["name"], taken["txid"]) == ("one", 2)
    (done,) = told(capsys, "restore", folder, "--to", place / "copy")
    assert (done["location"], done["txid"], done["taken_back"]) == (str(place / "copy"), 2, {})
    (done,) = told(capsys, "restore", folder, "--txid", 1, "--yes")
    assert (done["txid"], done["given_up"], done["next_txid"]) == (1, 1, 3)
    (done,) = told(capsys, "repair", folder, "--yes")
    assert (done["damaged"], done["done"]) == ([], False)
    assert main(["restore", str(folder), "one", "--yes", "--table"]) == 0
    assert capsys.readouterr().out.startswith(f"{folder} goes on from transaction 2")


def test_state_as_it_was_and_what_has_changed(keeper: Keeper, capsys: Any) -> None:
    folder = keeper.folder
    Checkpoint(folder).savepoint("two")
    keeper.run(put(b=None, d=8))
    rows = told(capsys, "state", folder, "keep", "--at", "two")
    assert {row["key"]: row["value"] for row in rows} == {"a": 5, "b": 2, "c": 3}
    assert {row["key"] for row in told(capsys, "state", folder, "keep", "--at", 1, "--task", 0)} < {"a", "b"}
    changed = told(capsys, "state", folder, "keep", "--since", "two")
    assert sorted((row["op"], row["key"], row["before"], row["after"]) for row in changed) == [
        ("delete", "b", 2, None),
        ("insert", "d", None, 8),
    ]
    between = told(capsys, "state", folder, "keep", "--since", 1, "--at", 2)
    assert {(row["op"], row["key"]) for row in between} == {("update", "a"), ("insert", "c")}
    assert main(["state", str(folder), "keep", "--since", "two", "--table"]) == 0
    assert "delete" in capsys.readouterr().out
    assert main(["state", str(folder), "--at", "two"]) == 2
    assert main(["state", str(folder), "keep", "--at", "never"]) == 1


def test_state_goes_out_as_json_and_comes_back(keeper: Keeper, place: Path, capsys: Any) -> None:
    assert main(["state", str(keeper.folder), "keep"]) == 0
    rows = place / "rows.json"
    rows.write_text(capsys.readouterr().out + '{"key": ["t", 1], "value": {"n": 2}}\n{"key": "b", "value": null}\n')
    asked = ["write-state", str(keeper.folder), "keep", str(rows), "--by-key"]
    assert main(asked) == 2
    assert "would write 5 rows" in capsys.readouterr().err
    before = state(keeper.folder)
    rows.write_text('{"key": "t", "value": {"n": 2}}\n{"key": "b", "value": null}\n')
    (done,) = told(capsys, *asked, "--yes")
    assert (done["rows"], done["deleted"]) == (1, 1)
    assert state(keeper.folder) == {**{key: each for key, each in before.items() if key != "b"}, "t": {"n": 2}}
    for wrong, said in (
        ("{", "neither Parquet nor a line of JSON"),
        ("[1]", "neither Parquet nor a line of JSON"),
        ('{"kye": 1}', """such as {"key": "spark", "value": 3}, but {"kye": 1}"""),
        ('{"key": {"n": 1}, "value": 2}', "{'n': 1} is no key: a key is a text"),
    ):
        rows.write_text(f'{{"key": "t", "value": 1}}\n\n{wrong}\n')
        assert main([*asked, "--yes"]) == 2
        told_of = capsys.readouterr().err
        assert "rows.json, line 3: " in told_of
        assert said in told_of
    rows.write_text('{"key": 5, "value": 2}')
    assert main([*asked, "--yes"]) == 1
    told_of = capsys.readouterr().err
    assert "grouped by (key string), and its key 5 does not fit that. That is the row with key 5 and value 2" in told_of


def test_parquet_and_tables_are_written_without_spark(keeper: Keeper, place: Path, capsys: Any) -> None:
    table = pa.table({"word": ["a", "z"], "n": pa.array([None, 9], pa.int64()), "task": [0, 0]})
    pq.write_table(table, place / "rows.parquet")
    typed = {"key": "word string", "value": "n long"}
    words = ["write-state", keeper.folder, "keep", place / "rows.parquet", "--by-key", "--yes"]
    told(capsys, *words, "--schema", json.dumps(typed))
    assert state(keeper.folder) == {"b": 2, "c": 3, "z": 9}
    done = Checkpoint(keeper.folder).write("keep", table, mode="overwrite", schema=typed, groupingKey=lambda key: key)
    assert (done.rows, done.deleted) == (1, 1)
    assert state(keeper.folder) == {"z": 9}
    with pytest.raises(ConfigError, match="there is no column 'word'"):
        Checkpoint(keeper.folder).write("keep", table.drop_columns(["word"]), schema=typed, groupingKey=lambda key: key)
    with pytest.raises(ConfigError, match="two rows have the key 'a'"):
        Checkpoint(keeper.folder).write(
            "keep", pa.concat_tables([table, table]), schema=typed, groupingKey=lambda key: key
        )
    assert state(keeper.folder) == {"z": 9}


# ---- other names


def test_what_is_renamed_goes_on_under_its_name(keeper: Keeper, capsys: Any) -> None:
    assert main(["rename", str(keeper.folder), "keep=kept"]) == 2
    assert "this would call keep kept" in capsys.readouterr().err
    (done,) = told(capsys, "rename", keeper.folder, "keep=kept", "--yes")
    assert done["names"] == {"keep": "kept"}
    assert state(keeper.folder, "kept") == {"a": 5, "b": 2, "c": 3}
    keeper.run(put(d=4), topology=keeping(2, id="kept"))
    assert state(keeper.folder, "kept") == {"a": 5, "b": 2, "c": 3, "d": 4}
    assert str(Checkpoint(keeper.folder).rename(drop=["kept"])).endswith("what kept has kept is given up")
    keeper.run(put(d=4), topology=keeping(2, id="kept"))
    assert state(keeper.folder, "kept") == {"d": 4}


def test_a_rename_that_can_not_be_changes_nothing(keeper: Keeper) -> None:
    before = read_state(FolderStorage(keeper.folder))
    for names, drop, said in (
        ({}, [], "say who is called what"),
        ({"kep": "kept"}, [], "'kep' keeps nothing; .* there are \\['keep', 'rows'\\]"),
        ({}, ["kep"], "'kep' keeps nothing"),
        ({"keep": "a/b"}, [], "can't be a component's id"),
        ({"keep": "../out"}, [], "can't be a component's id"),
        ({"keep": "kept"}, ["keep"], "is not alone"),
        ({"keep": "keep"}, [], "'keep' has that name already: leave it out"),
    ):
        with pytest.raises(CheckpointError if "keeps nothing" in said else ConfigError, match=said):
            Checkpoint(keeper.folder).rename(names, drop=drop)
    with pytest.raises(CheckpointError, match="has a topology been submitted there"):
        Checkpoint(keeper.folder / "nowhere").rename({"keep": "kept"})
    assert read_state(FolderStorage(keeper.folder)) == before


def test_a_rename_that_was_killed_is_done_or_not(keeper: Keeper, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(keeper.folder, place / "before")
    seen = set()
    for at in every_crash():
        shutil.rmtree(keeper.folder)
        shutil.copytree(place / "before", keeper.folder)
        opened = partial(SteppedLog, steps=DurableSteps(crash_at=at), limit=100)
        monkeypatch.setattr(tool, "taken", partial(tool.taken, opened=opened))
        try:
            Checkpoint(keeper.folder).rename({"keep": "kept"})
        except Crash:
            monkeypatch.undo()
            there = set(read_state(FolderStorage(keeper.folder)).topology.stateful)
            assert there in ({"keep"}, {"kept"})
            seen |= there
            if there == {"keep"}:
                Checkpoint(keeper.folder).rename({"keep": "kept"})
            assert state(keeper.folder, "kept") == {"a": 5, "b": 2, "c": 3}
            continue
        break
    assert seen == {"keep", "kept"}


# ---- faults, and names that lead elsewhere


@pytest.mark.parametrize(
    "tool_of",
    [
        lambda f: Checkpoint(f).savepoint("x"),
        lambda f: Checkpoint(f).restore("one"),
        lambda f: Checkpoint(f).rename({"keep": "n"}),
    ],
)
def test_a_driver_that_runs_is_fenced_and_loses_nothing(keeper: Keeper, tool_of: Any) -> None:
    Checkpoint(keeper.folder).savepoint("one")
    tester = keeper.driver.start(keeping(2)) if hasattr(keeper, "driver") else keeper.start(keeping(2))
    tool_of(keeper.folder)
    with pytest.raises(FencedError, match=r"another driver has taken over .*, or a tool that changes the checkpoint"):
        tester.send(put(z=1))


def test_a_tool_that_another_one_overtakes_changes_nothing(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one comes between the last look and the record."""
    Checkpoint(keeper.folder).savepoint("one")
    keeper.run(put(z=1))
    append = TransactionLog.append

    def overtaken(log: TransactionLog, record: Any) -> Any:
        if record.kind == "RESTORED":
            monkeypatch.undo()
            Checkpoint(keeper.folder).rename({"keep": "kept"})
        return append(log, record)

    monkeypatch.setattr(TransactionLog, "append", overtaken)
    with pytest.raises(FencedError):
        Checkpoint(keeper.folder).restore("one")
    assert state(keeper.folder, "kept") == {"a": 5, "b": 2, "c": 3, "z": 1}


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc/x", "a\\b", "a\0b", "x" * 101, ".hidden", 7])
def test_names_that_lead_elsewhere_are_none(keeper: Keeper, name: Any) -> None:
    found = Checkpoint(keeper.folder)
    for call in (found.savepoint, found.restore, found.deleteSavepoint):
        with pytest.raises((ConfigError, CheckpointError), match=r"a savepoint's name has|say what to go back to"):
            call(name)
    assert Checkpoint(keeper.folder).savepoints() == ()


def test_a_copy_is_made_in_no_file(keeper: Keeper, place: Path) -> None:
    (place / "file").write_text("mine")
    for to in (place / "file", place / "file" / "copy"):
        with pytest.raises(
            CheckpointError, match=rf"^{to} is not a folder: give one that is new or empty\. Nothing was"
        ):
            Checkpoint(keeper.folder).restore(to=to)
    assert (place / "file").read_text() == "mine"


def test_a_copy_is_made_nowhere_in_the_checkpoint_itself(keeper: Keeper, place: Path) -> None:
    files = sorted(keeper.folder.rglob("*"))
    (place / "link").symlink_to(keeper.folder / "state")
    for to in (
        keeper.folder / "copy",
        keeper.folder / "state" / "x",
        place / "link" / "x",
        keeper.folder / "a" / ".." / "b",
    ):
        with pytest.raises(CheckpointError, match=r"is in the checkpoint .* itself"):
            Checkpoint(keeper.folder).restore(to=to)
    assert sorted(keeper.folder.rglob("*")) == files


def test_a_checkpoint_of_a_newer_release_is_left_alone(keeper: Keeper) -> None:
    Checkpoint(keeper.folder).savepoint("one")
    newest = max((keeper.folder / FOLDER).glob("*.json"))
    fields = json.loads(newest.read_bytes())
    del fields["checksum"]
    fields["record"]["from_tomorrow"] = 1
    fields["checksum"] = digest(json.dumps(fields, separators=(",", ":")).encode())
    newest.write_bytes(json.dumps(fields, separators=(",", ":")).encode() + b"\n")
    files = {path: path.read_bytes() for path in keeper.folder.rglob("*") if path.is_file()}
    for call in (
        lambda: Checkpoint(keeper.folder).savepoint("two"),
        lambda: Checkpoint(keeper.folder).restore("one"),
        lambda: Checkpoint(keeper.folder).restore(to=keeper.folder.with_name("copy")),
        lambda: Checkpoint(keeper.folder).rename({"keep": "kept"}),
        lambda: Checkpoint(keeper.folder).savepoints(),
    ):
        with pytest.raises(CheckpointFormatError, match="newer release"):
            call()
    assert {path: path.read_bytes() for path in keeper.folder.rglob("*") if path.is_file()} == files
