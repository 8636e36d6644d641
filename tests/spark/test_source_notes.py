"""What sources write down: kept by the log whatever the source is, and its size, at the cost of what is new."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from statefx.errors import CheckpointError, StateCorruptedError
from statefx.protocol.records import Committing, Preparing
from statefx.spark.source_notes import INLINE_BYTES_MAX, lists_of
from tests.spark.checkpoints import QUERY, Checkpoint, offsets


@pytest.fixture
def ck(place: Path) -> Iterator[Checkpoint]:
    found = Checkpoint(place)
    yield found
    found.end()


def sources(ck: Checkpoint) -> dict[str, bytes]:
    below = ck.spark / "sources"
    return {str(path.relative_to(below)): path.read_bytes() for path in below.rglob("*") if path.is_file()}


def commit(ck: Checkpoint, batch: int, text: str = "v1\n{}\n17") -> None:
    """A batch of sources that have written what they have."""
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
def test_whatever_a_source_writes_comes_back_as_it_was(ck: Checkpoint, name: str, content: bytes) -> None:
    path = ck.spark / "sources" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    commit(ck, 0)
    ck.start()
    assert sources(ck) == {name: content}


def test_checksums_and_what_is_just_being_written_are_no_notes(ck: Checkpoint) -> None:
    for name in (".0.crc", ".0.b2c3.tmp", "..0.b2c3.tmp.crc", "0", ".hidden"):
        ck.write(f"sources/0/{name}", "x")
    commit(ck, 0)
    ck.start()
    assert sources(ck).keys() == {"0/0", "0/.hidden"}


def test_what_a_source_replaces_or_deletes_is_followed(ck: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_where_a_source_begins_is_put_back_and_its_loss_is_never_logged(ck: Checkpoint, loss) -> None:
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


@pytest.mark.parametrize("interval", [1, 2, 3, 10])
def test_compacted_lists_of_files_replace_those_before_them(ck: Checkpoint, interval: int) -> None:
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


def test_a_file_that_is_no_list_beside_lists_is_kept_and_hinders_nothing(ck: Checkpoint) -> None:
    ck.write("sources/0/owner", "me")
    for batch in range(3):
        ck.write(f"sources/0/{batch}.compact", "v1")
        commit(ck, batch, offsets(batch))
        ck.start()
    assert sources(ck).keys() == {"0/owner", "0/0.compact", "0/1.compact", "0/2.compact"}


def aside(ck: Checkpoint) -> list[Path]:
    return sorted((ck.location / "sources").iterdir()) if (ck.location / "sources").exists() else []


def test_what_is_much_lies_beside_the_log(ck: Checkpoint) -> None:
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
def test_a_damaged_file_beside_the_log_is_named(ck: Checkpoint, damage: str) -> None:
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
def test_files_beside_the_log_stay_few_and_hold_no_more_than_is_needed(ck: Checkpoint, files: int) -> None:
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


def test_what_was_put_aside_without_a_record_is_deleted_by_the_next_start(ck: Checkpoint) -> None:
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
def test_a_file_that_was_replaced_is_deleted_once_the_log_names_it_no_more(ck: Checkpoint) -> None:
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


@pytest.mark.slow
def test_what_a_transaction_costs_does_not_grow_with_those_before_it(
    ck: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_only_file_sources_have_lists(text: str, found: dict[str, int]) -> None:
    assert lists_of(text, range(9)) == found


def test_one_that_has_no_lists_has_none_to_lose(ck: Checkpoint) -> None:
    commit(ck, 0, 'v1\n{}\n{"offset":2,"timestamp":1000}\n-\n17\n{"logOffset":-1}')
    assert ck.log.state.notes.files == {}


def test_what_can_not_be_put_aside_begins_no_transaction(ck: Checkpoint) -> None:
    (ck.location / "sources").touch()  # a file in the way
    ck.write("sources/0/0", "v1" + lines(0, 2000))
    ck.write("offsets/0", offsets(0))
    number = ck.log.number
    with pytest.raises(CheckpointError, match=r"the sources of the stream have written down can't be kept in"):
        ck.spark_s.with_notes(ck.spark_s.batch(QUERY, 0))
    assert ck.log.number == number
