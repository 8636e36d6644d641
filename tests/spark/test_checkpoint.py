"""Spark's folder as each driver builds it from the log: a driver dies, or sleeps, at every step of another's life."""

import errno
import json
import os
import random
import re
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from statefx import submit
from statefx.errors import CheckpointError, CheckpointMismatchError, FencedError, InputError, StateCorruptedError
from statefx.log.entries import entry_name
from statefx.log.location import Folders
from statefx.log.log import TransactionLog
from statefx.protocol.log_rules import pin_of
from statefx.protocol.records import Committed, Committing, Generation, Pin, Preparing, Restored, RolledBack
from statefx.spark import source_notes
from statefx.spark.checkpoint import SparkCheckpoint, check_places, query_id
from statefx.spark.source_notes import INLINE_BYTES_MAX, SETTING, SourceFiles, lists_of, missing_compacted, united
from statefx.storage import FolderStorage
from tests.spark.checkpoints import IDENTITY, QUERY, Checkpoint, bare, offsets
from tests.spark.running import BOUND_SECS, feed, kept, lines_of, local_folders
from tests.spark.test_spark_state import NOW, keeping

METADATA = f'{{"id": "{QUERY}"}}'
NOTE = 'v1\n{"nextBatchWatermarkMs":0}'


def listed(batch: int) -> str:
    return f'v1\n{{"path":"in/{batch}-0","batchId":{batch}}}'


@pytest.fixture
def ck(place: Path) -> Iterator[Checkpoint]:
    found = Checkpoint(place)
    yield found
    found.end()


STEPS = {
    "taken": (lambda ck: None, set(), set()),
    "planned": (lambda ck: ck.plan(2), set(), set()),
    "PREPARING": (lambda ck: ck.prepare(2), {2}, set()),
    "ROLLED_BACK": (lambda ck: (ck.prepare(2), ck.roll_back(2)), {2}, set()),
    "PREPARING again": (lambda ck: (ck.prepare(2), ck.roll_back(2), ck.begin(2, 1)), {2}, set()),
    "COMMITTING": (lambda ck: (ck.prepare(2), ck.decide(2)), {2}, {2}),
    "COMMITTED": (lambda ck: (ck.prepare(2), ck.decide(2), ck.log.append(Committed(3))), {2}, {2}),
    "noted": (lambda ck: ck.commit(2), {2}, {2}),
}


@pytest.mark.parametrize("lost", [False, True], ids=["folder kept", "folder lost"])
@pytest.mark.parametrize("step", STEPS)
def test_a_driver_that_died_at_any_step(ck, step, lost):
    """What the log knows is there, durable, and nothing else: a kill and a power cut are the same."""
    ck.commit(0)
    ck.commit(1)
    happens, begun, committed = STEPS[step]
    happens(ck)
    if lost:
        shutil.rmtree(ck.spark)
    ck.generation()  # its driver recovers before it builds Spark's folder
    recover(ck.log)
    ck.start()
    known = sorted({0, 1} | begun)
    noted = sorted({0, 1} | committed)
    expected = {"metadata": METADATA}
    expected |= {f"sources/0/{batch}": listed(batch) for batch in known}
    expected |= {f"offsets/{batch}": offsets(batch) for batch in known if batch >= len(noted) - 2}
    expected |= {f"commits/{batch}": NOTE for batch in noted[-2:]}
    assert ck.files() == expected
    assert query_id(ck.log.state) == QUERY


def recover(log: TransactionLog) -> None:
    for entry in log.state.in_flight:
        if entry.committing:
            log.append(Committed(entry.txid))
        else:
            log.append(RolledBack(entry.txid, entry.attempt, "found at start"))


def test_a_batch_that_was_rolled_back_is_the_same_again(ck):
    """Rule 3.9, also with another driver."""
    ck.prepare(0)
    ck.roll_back(0)
    ck.start()
    ck.begin(0, 1)
    assert ck.log.state.in_flight[0].input == bare(0)


def test_one_that_was_only_planned_is_planned_again(ck):
    """With whatever there is then; nobody has seen the first plan."""
    ck.plan(0)
    ck.start()
    assert ck.files().keys() == {"metadata"}
    ck.plan(0, files=2)
    ck.begin(0)
    assert ck.log.state.notes.files["0/0"].count("path") == 2


def test_nothing_of_a_driver_that_sleeps_is_read(ck):
    """Rule 3.7: it sleeps in any step, is replaced, and goes on in its own folder, under the same numbers and names."""
    ck.commit(0)
    sleeper, log = ck.spark_s, ck.log
    ck.start()
    live = ck.spark
    for name in ("offsets/1", "sources/0/1", "commits/1", "metadata"):
        (Path(sleeper.folder) / name).parent.mkdir(exist_ok=True)
        (Path(sleeper.folder) / name).write_text(offsets(1) if name == "offsets/1" else "of the sleeper")
    with pytest.raises(FencedError):
        log.append(Preparing(2, 0, 1, sleeper.with_notes(sleeper.batch(QUERY, 1))))
    assert ck.files().keys() == {"metadata", "sources/0/0", "offsets/0", "commits/0"}
    ck.commit(1)
    ck.start()
    assert ck.spark != live
    assert (ck.files()["sources/0/1"], ck.files()["metadata"]) == (listed(1), METADATA)


def test_where_sources_begin_is_known_before_there_is_a_transaction(ck):
    """Rule 3.8: one that begins with what is newest would pass over what comes while no driver runs."""
    ck.spark_s.note()
    assert ck.log.number == 2, "nothing was written, so there is no record"
    ck.write("sources/1/0", '\0v1\n{"topic":{"0":17}}')
    ck.spark_s.note()
    number = ck.log.number
    ck.spark_s.note()
    assert ck.log.number == number, "once"
    ck.end()
    ck.start()
    assert ck.files()["sources/1/0"] == '\0v1\n{"topic":{"0":17}}'


def test_what_is_noted_counts_before_the_batch_that_relies_on_it(ck):
    """The thread that looks while nothing runs may find what a batch needs, just before the batch does."""
    ck.plan(0)
    ck.write("sources/1/0", "began")
    ck.spark_s.note()
    ck.begin(0)
    assert ck.log.state.notes.files == {"0/0": listed(0), "1/0": "began"}


def test_a_list_of_files_that_is_missing_begins_no_transaction(ck):
    ck.commit(0)
    ck.plan(1)
    (ck.spark / "sources" / "0" / "1").unlink()
    number = ck.log.number
    with pytest.raises(CheckpointError, match=r"sources/0/1 is missing.*Submit again"):
        ck.begin(1)
    assert ck.log.number == number


def test_a_folder_that_is_deleted_while_the_query_is_at_work_begins_no_transaction(ck):
    ck.commit(0)
    ck.plan(1)
    shutil.rmtree(ck.spark)
    number = ck.log.number
    with pytest.raises(CheckpointError, match=r"offsets/1 is missing.*Submit again"):
        ck.begin(1)
    assert ck.log.number == number
    ck.start()
    assert ck.files()["offsets/0"] == offsets(0)


def test_state_of_an_operator_that_is_not_known_begins_no_transaction(ck):
    """On the driver's machine it would be lost."""
    ck.plan(0)
    ck.write("state/0/_metadata/metadata", "v1")
    with pytest.raises(CheckpointError, match=r"an operator that statefx does not know.*in a bolt instead"):
        ck.begin(0)


IN, OTHER = "/data/in", "s3a://data/other"


@pytest.mark.parametrize(
    ("offsets", "lists", "places", "says"),
    [
        (["0", "3"], {"0": f"{IN}/x", "1": f"{OTHER}/x"}, [(0, IN), (1, OTHER)], ""),
        (
            ["0", "3"],
            {"0": f"{IN}/x", "1": f"{OTHER}/x"},
            [(0, OTHER), (1, IN)],
            f"{OTHER} is read in the place of {IN},",
        ),
        (["0", "3"], {"0": f"{IN}/x", "1": f"{OTHER}/x"}, [(0, "/data/moved"), (1, OTHER)], ""),
        (["0", "3"], {"0": f"{IN}/x", "1": f"{OTHER}/x"}, [(0, ""), (1, "")], ""),
        (["0", "3"], {"0": f"{IN}/x", "1": ""}, [(0, IN), (1, OTHER)], ""),
        (["0", "3"], {"0": f"{IN}/a/x", "1": f"{IN}/y"}, [(0, f"{IN}/a"), (1, IN)], ""),
        (["0", "3"], {"0": "/a%20b/x", "1": "/c/y"}, [(0, "/c"), (1, "/a b")], "/c is read in the place of /a b,"),
        (["0", "3"], {"0": f"{IN}/x", "1": f"{OTHER}/x"}, [(0, IN)], "read 1 sources, and did read 2"),
        (["0"], {"0": f"{IN}/x"}, [(0, IN), (1, OTHER)], "read 2 sources, and did read 1"),
        (["0", "3"], {"0": f"{IN}/x", "1": f"{IN}/x"}, [(0, IN), (0, IN)], "read one source where they read several"),
        (["3", "3"], {"0": f"{IN}/x"}, [(0, IN), (0, IN)], ""),
        (["3", "3"], {"0": f"{IN}/x"}, [(0, IN), (1, IN)], "sources of their own where they read one before"),
        (["3", "-"], {"0": f"{IN}/x"}, [(0, IN), (1, OTHER)], ""),
    ],
)
@pytest.mark.parametrize("aside", [False, True])
def test_sources_that_have_changed_places_are_refused(ck, monkeypatch, offsets, lists, places, says, aside):
    """Rule 3.15: Spark would not notice it where the last transaction had no rows."""
    if aside:
        monkeypatch.setattr(source_notes, "INLINE_BYTES_MAX", 0)
    ck.sources = [min(at, len(lists) - 1) for at in range(len(offsets))]
    ck.start()
    check_places(ck.log.state, places, ck.folders.storage)  # nothing was read
    for source, path in lists.items():
        url = path if "://" in path else f"file://{path}"
        for number in range(4):
            last = f'\n{{"path":"{url}","timestamp":1,"batchId":{number}}}' if path else ""
            ck.write(f"sources/{source}/{number}", f"v1{last if number == 3 else ''}")
    lines = [f'{{"logOffset":{each}}}' if each.isdecimal() else each for each in offsets]
    commit(ck, 0, "\n".join(["v1", "{}", *lines]))
    with pytest.raises(CheckpointMismatchError, match=re.escape(says)) if says else nullcontext():
        check_places(ck.log.state, places, ck.folders.storage)


def test_the_folder_is_gone_when_the_query_has_ended(ck):
    assert local_folders(ck.location) == [ck.spark.parent]
    ck.end()
    assert local_folders(ck.location) == []
    assert not ck.spark.exists()


def test_a_log_that_was_lost_is_missed(ck):
    """Else all would be read again, into empty state."""
    ck.commit(0)
    (ck.location / "state" / "count").mkdir(parents=True)
    (ck.location / "state" / "count" / "1-x.changelog").touch()
    ck.lose("transactions")
    with pytest.raises(
        CheckpointMismatchError, match=r"transactions is missing, but there is state/ beside it.*Restore"
    ):
        ck.check()


# ---- What sources write down: kept by the log whatever the source is, and its size, at the cost of what is new.


def sources(ck: Checkpoint) -> dict[str, bytes]:
    below = ck.spark / "sources"
    return {str(path.relative_to(below)): path.read_bytes() for path in below.rglob("*") if path.is_file()}


def commit(ck: Checkpoint, batch: int, text: str = "v1\n{}\n17") -> None:
    ck.write(f"offsets/{batch}", text)
    source = ck.spark_s.with_notes(ck.spark_s.batch(QUERY, batch))
    ck.log.append(Preparing(batch + 1, 0, ck.log.state.generation, source))
    ck.log.append(Committing(batch + 1, 0, ck.log.state.generation, {}))
    ck.write(f"commits/{batch}", "v1\n{}")


def lines(batch: int, files: int) -> str:
    return "".join(
        f'\n{{"path":"file:/data/in/{batch:06}-{n:06}","timestamp":1,"batchId":{batch}}}' for n in range(files)
    )


@pytest.mark.parametrize("name", ["0/0", "0", "1/deep/er/note", "0/shard-commit/3", "name with blank/ü"])
@pytest.mark.parametrize("content", [b"v1\n{}", b"", b"\0v1\r\n", bytes(range(256)), "ü\u2028\n".encode()])
def test_whatever_a_source_writes_comes_back_as_it_was(ck, name, content):
    path = ck.spark / "sources" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    commit(ck, 0)
    ck.start()
    assert sources(ck) == {name: content}


def test_checksums_and_what_is_just_being_written_are_no_notes(ck):
    for name in (".0.crc", ".0.b2c3.tmp", "..0.b2c3.tmp.crc", "0", ".hidden"):
        ck.write(f"sources/0/{name}", "x")
    commit(ck, 0)
    ck.start()
    assert sources(ck).keys() == {"0/0", "0/.hidden"}


def test_what_a_source_replaces_or_deletes_is_followed(ck, monkeypatch):
    for name in ("0/a", "0/b", "0/below/c"):
        ck.write(f"sources/{name}", "first")
    commit(ck, 0)
    ck.write("sources/0/a", "other")  # of the same size
    (ck.spark / "sources/0/b").unlink()
    ck.write("sources/0/d", "new")
    commit(ck, 1)
    expected = {"0/a": b"other", "0/below/c": b"first", "0/d": b"new"}
    ck.start()
    assert sources(ck) == expected
    (ck.spark / "sources/0/d").unlink()
    commit(ck, 2)
    ck.start()
    assert sources(ck) == {"0/a": b"other", "0/below/c": b"first"}, "also by a driver that has not written it itself"


@pytest.mark.parametrize(
    "loss", [Path.unlink, lambda path: path.write_bytes(b"\0v1"), lambda path: path.write_bytes(b"")]
)
def test_where_a_source_begins_is_put_back_and_its_loss_is_never_logged(ck, loss):
    """The first batch is tried again, by the same driver and by the next one: it must begin where it began."""
    began = '\0v1\n{"topic":{"0":17}}'
    ck.write("sources/0/0", began)
    ck.write("offsets/0", 'v1\n{}\n{"topic":{"0":20}}')
    ck.begin(0)
    for attempt in (1, 2):
        loss(ck.spark / "sources/0/0")
        ck.roll_back(0, attempt - 1)
        ck.spark_s.note()
        assert sources(ck) == {"0/0": began.encode()}
        loss(ck.spark / "sources/0/0")
        ck.begin(0, attempt)
        assert ck.log.state.notes.files == {"0/0": began}
        ck.start()
        assert sources(ck) == {"0/0": began.encode()}


@pytest.mark.slow
@pytest.mark.parametrize("interval", [1, 2, 3, 10])
def test_compacted_lists_of_files_replace_those_before_them(ck, interval):
    """Kept is what Spark reads: the last batches' own lists, and all since the newest compacted one before them."""
    known = "v1"
    for batch in range(41):
        known += lines(batch, 1)
        if (batch + 1) % interval == 0:
            ck.write(f"sources/0/{batch}.compact", known)
        else:
            ck.write(f"sources/0/{batch}", f"v1{lines(batch, 1)}")
        commit(ck, batch, offsets(batch))
        if batch % 7 == 0:
            ck.start()
            found = sources(ck)
            oldest = max(0, batch - 1)
            kept = {int(name.partition("/")[2].partition(".")[0]) for name in found}
            assert kept >= set(range(max(0, oldest - 1), batch + 1))
            assert len(kept) <= 2 * interval + 2
            first = min(kept)
            assert first == 0 or f"0/{first}.compact" in found
            whole = found[f"0/{first}.compact"].decode() if f"0/{first}.compact" in found else "v1" + lines(0, 1)
            for number in range(first + 1, batch + 1):
                if f"0/{number}" in found:
                    whole += found[f"0/{number}"].decode().removeprefix("v1")
                else:
                    whole = found[f"0/{number}.compact"].decode()
            assert whole == known


def test_a_file_that_is_no_list_beside_lists_is_kept_and_hinders_nothing(ck):
    ck.write("sources/0/owner", "me")
    for batch in range(3):
        ck.write(f"sources/0/{batch}.compact", "v1")
        commit(ck, batch, offsets(batch))
        ck.start()
    assert sources(ck).keys() == {"0/owner", "0/0.compact", "0/1.compact", "0/2.compact"}


def aside(ck: Checkpoint) -> list[Path]:
    return sorted((ck.location / "sources").iterdir()) if (ck.location / "sources").exists() else []


def test_what_is_much_lies_beside_the_log(ck):
    big = "v1" + lines(0, 2000)
    ck.write("sources/0/0", big)
    ck.write("sources/1/0", "began")
    commit(ck, 0, offsets(0))
    (file,) = aside(ck)
    assert file.stat().st_size > len(big) > INLINE_BYTES_MAX
    assert sum(path.stat().st_size for path in (ck.location / "transactions").iterdir()) < 8_000
    assert (ck.location / ck.log.state.notes.aside[0].name) == file
    ck.plan(1)
    commit(ck, 1, offsets(1))
    assert aside(ck) == [file], "it was not written again"
    ck.log.fold()
    ck.start()
    assert sources(ck).keys() == {"0/0", "0/1", "1/0"}
    assert sources(ck)["0/0"].decode() == big


@pytest.mark.parametrize("damage", ["missing", "damaged", "empty"])
def test_a_damaged_file_beside_the_log_is_named(ck, damage):
    ck.write("sources/0/0", "v1" + lines(0, 2000))
    commit(ck, 0, offsets(0))
    (file,) = aside(ck)
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(b"" if damage == "empty" else data[:-9] + b"x" + data[-8:])
    with pytest.raises(StateCorruptedError, match=f"{file.name} is .*Restore the file from a backup") as caught:
        ck.start()
    assert caught.value.path == str(file)
    file.write_bytes(data)
    ck.start()
    assert sources(ck)


@pytest.mark.slow
@pytest.mark.parametrize("files", [1, 40, 400])
def test_files_beside_the_log_stay_few_and_hold_no_more_than_is_needed(ck, files):
    """A long life, with ten lists to a compacted one: each start finds all; what was written is in proportion."""
    known, written = "v1", {}
    for batch in range(60):
        known += lines(batch, files)
        own = f"v1{lines(batch, files)}"
        ck.write(*((f"sources/0/{batch}.compact", known) if batch % 10 == 9 else (f"sources/0/{batch}", own)))
        commit(ck, batch, offsets(batch))
        written |= {path.name: path.stat().st_size for path in aside(ck)}
        assert len(aside(ck)) <= 12
        if batch % 16 == 15:
            before = sources(ck)
            ck.start()
            assert all(before[name] == content for name, content in sources(ck).items())
            assert f"0/{batch}" in sources(ck) or f"0/{batch}.compact" in sources(ck)
    by_spark = sum(len(lines(batch, files)) * (1 + (59 - batch) // 10) for batch in range(60))
    assert sum(written.values()) < 4 * by_spark


def test_what_was_put_aside_without_a_record_is_deleted_by_the_next_start(ck):
    """Its driver died before PREPARING, or sleeps: it can append no record any more that names it."""
    ck.write("sources/0/0", "v1" + lines(0, 2000))
    ck.write("offsets/0", offsets(0))
    ck.spark_s.with_notes(ck.spark_s.batch(QUERY, 0))
    (file,) = aside(ck)
    newer = file.with_name(f"{9:010d}-x")
    newer.touch()
    ck.start()
    assert aside(ck) == [newer], "that of a newer driver may be named in this moment"


@pytest.mark.slow
def test_a_file_that_was_replaced_is_deleted_once_the_log_names_it_no_more(ck):
    known = "v1"
    seen = []
    for batch in range(30):
        known += lines(batch, 400)
        ck.write(f"sources/0/{batch}.compact", known)
        ck.write(f"offsets/{batch}", offsets(batch))
        source = ck.spark_s.with_notes(ck.spark_s.batch(QUERY, batch))
        named = {ref.name.rpartition("/")[2] for ref in ck.log.state.notes.aside}
        assert named <= {path.name for path in aside(ck)}, "the record before it is the one that counts"
        ck.log.append(Preparing(batch + 1, 0, 1, source))
        ck.log.append(Committing(batch + 1, 0, 1, {}))
        seen.append(len(aside(ck)))
    assert max(seen) <= 7


def replaced(ck: Checkpoint) -> Pin:
    """Commit until a batch has replaced files beside the log, and return what the one before it had left."""
    for batch in range(30):
        before = pin_of(ck.log.state)
        ck.write(f"sources/0/{batch}", "v1" + lines(batch, 1000))
        commit(ck, batch, offsets(batch))
        if not set(before.notes.aside) <= set(ck.log.state.notes.aside):
            return before
    raise AssertionError("nothing was replaced")


def restored(ck: Checkpoint, pin: Pin) -> None:
    """Go back to a pin, beside the driver that was started last."""
    log = TransactionLog(ck.folders.storage)
    log.append(Generation(log.state.generation + 1, str(ck.location), IDENTITY))
    log.append(Restored(log.state.generation, pin))


@pytest.mark.parametrize("seen", [True, False], ids=["fenced", "the store does not answer"])
def test_a_driver_that_may_be_fenced_deletes_no_file_that_it_replaced(ck, monkeypatch, seen):
    """Rule 4.3: it was asleep since its last transaction, and restore has gone back to where these files count."""
    pin = replaced(ck)
    restored(ck, pin)
    number = entry_name(ck.log.number + 1)
    if not seen:

        def read(self, name, start=0, stop=None, read=FolderStorage.read):
            if name == number:
                raise OSError(errno.ETIMEDOUT, "the store does not answer")
            return read(self, name, start, stop)

        monkeypatch.setattr(FolderStorage, "read", read)
    ck.write("offsets/29", offsets(29))
    ck.write("sources/0/29", "v1" + lines(29, 1))
    with pytest.raises(FencedError) if seen else nullcontext():
        ck.spark_s.with_notes(ck.spark_s.batch(QUERY, 29))
    assert {ref.name for ref in pin.notes.aside} <= {f"sources/{path.name}" for path in aside(ck)}


def test_a_start_that_is_fenced_meanwhile_deletes_no_notes_of_others(ck):
    """Rule 4.3: it has taken its generation, and goes on when restore has gone back to files that it does not know."""
    pin = replaced(ck)
    ck.generation()
    restored(ck, pin)
    with pytest.raises(FencedError):
        SparkCheckpoint(ck.folders, ck.log, ck.sources).rebuild(10)
    assert {ref.name for ref in pin.notes.aside} <= {f"sources/{path.name}" for path in aside(ck)}


@pytest.mark.soak
@pytest.mark.slow
def test_what_a_transaction_costs_does_not_grow_with_those_before_it(ck, monkeypatch):
    """Twenty thousand lists of files that Spark never put together: nothing of them is looked at, or written, again."""
    for batch in range(20_000):
        path = ck.spark / "sources" / "0" / str(batch)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"v1{lines(batch, 1)}")
    commit(ck, 0, offsets(19_999))
    (file,) = aside(ck)
    opened: list[str] = []
    scandir, put = os.scandir, type(ck.log.storage).put
    monkeypatch.setattr(os, "scandir", lambda folder: (opened.append(str(folder)), scandir(folder))[1])
    monkeypatch.setattr(
        type(ck.log.storage), "put", lambda storage, name, data: (opened.append(name), put(storage, name, data))[1]
    )
    for batch in range(1, 9):
        ck.write(f"sources/0/{19_999 + batch}", f"v1{lines(batch, 1)}")
        commit(ck, batch, offsets(19_999 + batch))
    assert not [path for path in opened if path.endswith("sources/0") or path.startswith("sources/")]
    sizes = [path.stat().st_size for path in sorted((ck.location / "transactions").iterdir())]
    assert max(sizes) < 1500
    assert aside(ck) == [file]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('v1\n{}\n{"logOffset":7}', {"0": 7}),
        (
            'v1\n{"batchTimestampMs":1}\n{"offset":2,"timestamp":1000}\n-\n17\n{"logOffset":-1}\n{"logOffset":3}',
            {"4": 3},
        ),
        ("", {}),
    ],
)
def test_only_file_sources_have_lists(text, found):
    assert lists_of(text, range(9)) == found


def test_one_that_has_no_lists_has_none_to_lose(ck):
    commit(ck, 0, 'v1\n{}\n{"offset":2,"timestamp":1000}\n-\n17\n{"logOffset":-1}')
    assert ck.log.state.notes.files == {}


def test_what_can_not_be_put_aside_begins_no_transaction(ck):
    (ck.location / "sources").touch()  # a file in the way
    ck.write("sources/0/0", "v1" + lines(0, 2000))
    ck.write("offsets/0", offsets(0))
    number = ck.log.number
    with pytest.raises(CheckpointError, match=r"the sources of the stream have written down can't be kept in"):
        ck.spark_s.with_notes(ck.spark_s.batch(QUERY, 0))
    assert ck.log.number == number


# ---- A start finds every list of files that Spark looks for, whatever the interval was at which lists were compacted.


class MissingError(Exception):
    """What Spark's query ends with: "49.compact doesn't exist (latestId: 51, compactInterval: 10)"."""


class SparksLog:
    """Spark's FileStreamSourceLog, as it reads and writes a folder: one entry a list, which is its number.

    Parameters
    ----------
    folder : Path
    setting : int
        The session's.
    """

    def __init__(self, folder: Path, setting: int) -> None:
        self.folder = folder
        self.interval = setting
        folder.mkdir(parents=True, exist_ok=True)
        names = [path.name for path in folder.iterdir() if path.name[0] != "."]
        compacted = sorted(int(name.split(".")[0]) for name in names if name.endswith(".compact"))
        if len(compacted) > 1:
            self.interval = compacted[-1] - compacted[-2]
        elif compacted:
            size = compacted[0] + 1
            proper = [each for each in range(setting, size // 2 + 1) if size % each == 0]
            self.interval = proper[0] if setting < size // 2 else size
        self.latest = max((int(name.split(".")[0]) for name in names), default=-1)

    def path(self, number: int) -> Path:
        return self.folder / (f"{number}.compact" if (number + 1) % self.interval == 0 else str(number))

    def read(self, number: int) -> list[int]:
        if not self.path(number).exists():
            raise MissingError(f"{self.path(number)}, latest {self.latest}, interval {self.interval}")
        return [json.loads(line)["batchId"] for line in self.path(number).read_text().splitlines()[1:]]

    def files(self) -> list[int]:
        first = max(0, (self.latest + 1) // self.interval * self.interval - 1)
        return [entry for number in range(first, self.latest + 1) for entry in self.read(number)]

    def of_batch(self, number: int) -> list[int]:
        """What Spark reads to run a batch again: its own list, and the whole if that has gone."""
        found = self.read(number) if self.path(number).exists() else self.files()
        return [entry for entry in found if entry == number]

    def add(self) -> None:
        number = self.latest + 1
        before = range(max(0, number - self.interval), number) if (number + 1) % self.interval == 0 else ()
        entries = [entry for each in before for entry in self.read(each)]
        path = self.path(number)
        path.write_text("v1" + "".join(f'\n{{"path":"in/{each}","batchId":{each}}}' for each in [*entries, number]))
        self.latest = number


DEATHS = ("stopped", "planned by Spark", "PREPARING", "COMMITTING", "while it starts")


def live(ck: Checkpoint, setting: int, batches: int, death: str, adopt: str | None = None) -> None:
    """A driver starts, looks at what Spark finds, and runs batches; it dies within the last one, or is stopped."""
    ck.start(setting, adopt)
    log, state = SparksLog(ck.spark / "sources" / "0", setting), ck.log.state
    planned = sum(each.txid for each in state.in_flight) or state.committed + (state.planned is not None)
    assert log.files() == list(range(planned)), "what was read comes neither again nor never"
    for batch in range(max(0, state.committed - 1), planned):  # Spark may run them again
        assert log.of_batch(batch) == [batch]
    if death == "while it starts":
        return
    for entry in state.in_flight:
        ck.log.append(Committed(entry.txid) if state.committing else RolledBack(entry.txid, entry.attempt, "found"))
    first = ck.log.state.committed
    for batch in range(first, first + batches):
        ends = death if batch == first + batches - 1 else ""
        if batch > log.latest:
            log.add()
        ck.write(f"offsets/{batch}", offsets(batch))
        if ends == "planned by Spark":
            return
        attempt = ck.log.state.next_attempt(batch + 1)
        ck.begin(batch, attempt)
        if ends == "PREPARING":
            return
        ck.decide(batch, attempt)
        if ends == "COMMITTING":
            return
        ck.log.append(Committed(batch + 1))
        ck.note(batch)


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_every_start_finds_what_it_looks_for(ck, seed, monkeypatch):
    """Restarts and crashes at random, one setting or several, lists in the log or, as many large ones, beside it."""
    chosen = random.Random(seed)
    if seed >= 4:
        monkeypatch.setattr(source_notes, "INLINE_BYTES_MAX", 500)
    settings = [chosen.choice([1, 2, 3, 4, 5, 10])] if seed % 2 else [1, 2, 3, 4, 7, 10]
    for _ in range(25):
        live(ck, chosen.choice(settings), chosen.randint(1, 14), chosen.choice(DEATHS))
    live(ck, settings[0], 0, "stopped")
    assert ck.log.state.committed > 60
    assert len(list((ck.spark / "sources" / "0").iterdir())) < 80, "old lists are given up"


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize("setting", [1, 2, 3, 10])
def test_one_setting_and_starts_after_every_number_of_batches(ck, setting):
    """Ten, and thirteen batches a start: the fifth one looked for 49.compact, which nobody had written."""
    for batches in (13, 13, 13, 13, *range(1, 9)):
        live(ck, setting, batches, "stopped")
    live(ck, setting, 0, "stopped")


def test_a_list_is_missing_or_of_an_unknown_format():
    """Then nothing is made up: Spark says what it lacks."""
    assert united(["v1\na", "v1", "v1\nb\nc"]) == "v1\na\nb\nc"
    assert united(["v1"]) == "v1"
    assert united(["v1\na", "v2\nb"]) is None
    assert united(["v1\na", None]) is None
    assert united([]) is None
    assert list(missing_compacted({9, 12}, 13, 10)) == [], "no history of Spark's"


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Drivers of the time when nobody looked at the interval; `undo` ends it."""
    monkeypatch.setattr(SourceFiles, "compact", lambda *_: None)
    return monkeypatch


@pytest.mark.slow
@pytest.mark.parametrize("adopt", [None, "move", "fork"])
def test_a_checkpoint_that_lacks_a_compacted_list_goes_on(ck, as_before, place, adopt):
    for _ in range(4):
        live(ck, 10, 13, "stopped")
    with pytest.raises(MissingError, match=r"49\.compact, latest 51, interval 10"):
        live(ck, 10, 13, "stopped")
    as_before.undo()
    if adopt is not None:
        (place / "other").mkdir()
        ck.location = ck.location.rename(place / "other" / "ck")
        ck.folders = Folders(str(ck.location))
        live(ck, 10, 13, "stopped", adopt)
    for death in ("while it starts", "planned by Spark", "PREPARING", "stopped", "stopped", "stopped"):
        live(ck, 10, 13, death)


@pytest.mark.soak
def test_spark_is_started_again_over_several_compactions(spark, place, as_before):
    """With 3 as the setting, Spark takes 6 for the interval after 5.compact alone, and 3 again after 11.compact."""
    done = 0

    def start(setting, files):
        nonlocal done
        spark.conf.set(SETTING, str(setting))
        feed(place / "in", **{f"{each:03}": [each] for each in range(done, done + files)})
        done += files
        query = submit(keeping(lines_of(spark, place / "in")), spark, place / "ck", trigger=NOW)
        assert query.awaitTermination(BOUND_SECS)

    try:
        start(3, 8)
        start(3, 7)
        with pytest.raises(InputError, match=r"14\.compact does not exist"):
            start(3, 0)
        as_before.undo()
        start(3, 2)
        start(5, 2)
        start(1, 2)
        start(1, 0)
    finally:
        spark.conf.unset(SETTING)
    assert kept(place / "ck", "keep", 1)[0] == [(str(each),) for each in range(done)]
