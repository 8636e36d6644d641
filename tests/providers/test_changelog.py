from __future__ import annotations

import errno
import os
import resource
import struct
import uuid
from pathlib import Path
from typing import BinaryIO

import pytest
from xxhash import xxh3_128

from statefx.errors import CheckpointFormatError, StateCorruptedError, StateError
from statefx.state.changelog.chain import Changelog
from statefx.state.changelog.files import (
    CHANGELOG,
    SNAPSHOT,
    Identity,
    listed,
    new_token,
    read_file,
    read_head,
    write_file,
)
from statefx.state.contract.store import EMPTY, Namespace, SnapshotRef, Version
from statefx.storage import FolderStorage

NAMESPACE = Namespace("lineage", "count", 0)


def identity(kind: str = CHANGELOG) -> Identity:
    return Identity(kind, NAMESPACE, Version(1, new_token()), 1, EMPTY)


def chain(changelog: Changelog, length: int, value: bytes = b"v") -> list[Version]:
    versions = [EMPTY]
    for txid in range(1, length + 1):
        version = Version(txid, uuid.uuid4().hex)
        changelog.prepare(version, 1, versions[-1], [(b"%d" % txid, value)])
        versions.append(version)
    return versions


@pytest.fixture
def changelog(tmp_path: Path) -> Changelog:
    return Changelog(NAMESPACE, FolderStorage(tmp_path))


class Broken(FolderStorage):
    """A disk that fails."""

    def reader(self, name: str) -> BinaryIO:
        raise OSError(errno.EIO, "Input/output error")


class TestFiles:
    @pytest.mark.parametrize("count", [0, 1, 8191, 8192, 8193, 20_000])
    def test_what_was_written_is_read(self, tmp_path: Path, count: int) -> None:
        entries = [(b"%08d" % number, None if number % 7 == 0 else b"%d" % number) for number in range(count)]
        written = write_file(FolderStorage(tmp_path), "s", identity(), entries)
        found = read_head(FolderStorage(tmp_path), written.name)
        assert found == written
        assert found.entries == count
        assert found.size_bytes == os.path.getsize(tmp_path / found.name)
        chunks = list(read_file(FolderStorage(tmp_path), found))
        assert [row for keys, values in chunks for row in zip(keys, values, strict=True)] == entries

    def test_large_values_make_many_chunks(self, tmp_path: Path) -> None:
        entries = [(b"%d" % number, bytes(3 << 20)) for number in range(5)]
        written = write_file(FolderStorage(tmp_path), "s", identity(), entries)
        assert [len(keys) for keys, _ in read_file(FolderStorage(tmp_path), written)] == [1] * 5

    @pytest.mark.parametrize("keys", [[b"b", b"a"], [b"a", b"a"]])
    def test_unsorted_entries_are_refused_and_nothing_is_left(self, tmp_path: Path, keys: list[bytes]) -> None:
        with pytest.raises(ValueError, match="sorted"):
            write_file(FolderStorage(tmp_path), "s", identity(), [(key, b"") for key in keys])
        assert list((tmp_path / "s").iterdir()) == []

    def test_equal_images_are_equal_files(self, changelog: Changelog) -> None:
        [_, version] = chain(changelog, 1)
        entries = [(b"%08d" % number, b"v" * (number % 50)) for number in range(30_000)]
        first = changelog.snapshot(version, 1, entries)
        [path] = Path(changelog.where).glob("*.snapshot")
        content = path.read_bytes()
        assert changelog.snapshot(version, 1, iter(entries)) == first
        assert path.read_bytes() == content

    def test_every_single_flipped_bit_is_found(self, tmp_path: Path) -> None:
        written = write_file(FolderStorage(tmp_path), "s", identity(), [(b"key", b"value"), (b"kez", None)])
        content = Path(tmp_path, written.name).read_bytes()
        for at in range(0, len(content) * 8, 5):
            flipped = bytearray(content)
            flipped[at // 8] ^= 1 << at % 8
            Path(tmp_path, written.name).write_bytes(flipped)
            with pytest.raises(StateCorruptedError, match=written.identity.version.token):
                list(read_file(FolderStorage(tmp_path), read_head(FolderStorage(tmp_path), written.name)))

    @pytest.mark.parametrize("keep", [0, 1, 63, 64, 100, 300])
    def test_every_length_but_the_right_one_is_found(self, tmp_path: Path, keep: int) -> None:
        written = write_file(FolderStorage(tmp_path), "s", identity(), [(b"%03d" % n, b"value") for n in range(100)])
        os.truncate(tmp_path / written.name, keep)
        with pytest.raises(StateCorruptedError) as caught:
            read_head(FolderStorage(tmp_path), written.name)
        assert caught.value.path == str(tmp_path / written.name)
        assert caught.value.missing is False

    def test_a_newer_format_is_told_from_damage(self, tmp_path: Path) -> None:
        written = write_file(FolderStorage(tmp_path), "s", identity(), [])
        content = bytearray(Path(tmp_path, written.name).read_bytes())
        content[8:12] = struct.pack(">I", 2)
        content[48:64] = xxh3_128(bytes(content[:48]) + bytes(content[64:])).digest()
        Path(tmp_path, written.name).write_bytes(content)
        with pytest.raises(CheckpointFormatError, match="upgrade"):
            read_head(FolderStorage(tmp_path), written.name)

    def test_a_full_disk_leaves_nothing_and_says_which_file(self, tmp_path: Path) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(StateError) as caught:
                write_file(FolderStorage(tmp_path), "s", identity(), [(b"a", bytes(1 << 20))])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert caught.value.errno == errno.EFBIG
        assert str(tmp_path) in caught.value.path
        assert list((tmp_path / "s").iterdir()) == []

    def test_a_file_that_cannot_be_read_is_not_a_missing_one(self, tmp_path: Path) -> None:
        with pytest.raises(StateError) as caught:
            read_head(Broken(tmp_path), "s/a")
        assert caught.value.errno == errno.EIO
        assert not isinstance(caught.value, StateCorruptedError)
        with pytest.raises(StateCorruptedError) as missing:
            read_head(FolderStorage(tmp_path), "none")
        assert missing.value.missing is True


class TestRoute:
    def test_from_nothing(self, changelog: Changelog) -> None:
        versions = chain(changelog, 3)
        route = changelog.route(versions[3], None, None)
        assert (route.start, route.cached) == (EMPTY, False)
        assert [step.identity.version for step in route.steps] == versions[1:]

    def test_from_a_cache_in_the_chain(self, changelog: Changelog) -> None:
        versions = chain(changelog, 3)
        route = changelog.route(versions[3], None, versions[1])
        assert (route.start, route.cached) == (versions[1], True)
        assert [step.identity.version for step in route.steps] == versions[2:]

    @pytest.mark.parametrize("cached", [Version(2, "of another attempt"), Version(9, "ahead")])
    def test_a_cache_out_of_the_chain_is_not_used(self, changelog: Changelog, cached: Version) -> None:
        versions = chain(changelog, 3)
        route = changelog.route(versions[3], None, cached)
        assert (route.start, route.cached) == (EMPTY, False)

    def test_a_cache_ahead_is_not_used(self, changelog: Changelog) -> None:
        versions = chain(changelog, 3)
        assert changelog.route(versions[2], None, versions[3]).cached is False

    def test_a_cache_older_than_the_snapshot_is_caught_up_where_that_is_less(self, changelog: Changelog) -> None:
        versions = chain(changelog, 4)
        large = changelog.snapshot(versions[3], 1, [(b"%05d" % number, b"v" * 100) for number in range(100)])
        route = changelog.route(versions[4], large, versions[1])
        assert (route.start, route.cached, len(route.steps)) == (versions[1], True, 3)
        small = changelog.snapshot(versions[3], 2, [])
        route = changelog.route(versions[4], small, versions[1])
        assert (route.start, route.cached, len(route.steps)) == (versions[3], False, 1)

    def test_a_cache_older_than_what_was_kept_is_not_used(self, changelog: Changelog) -> None:
        versions = chain(changelog, 4)
        snapshot = changelog.snapshot(versions[3], 1, [(b"%05d" % number, b"v" * 100) for number in range(100)])
        [path] = Path(changelog.where).glob(f"*{versions[2].token}*")
        path.unlink()
        route = Changelog(NAMESPACE, changelog.storage).route(versions[4], snapshot, versions[1])
        assert (route.start, route.cached) == (versions[3], False)

    def test_without_the_snapshot_named_there_is_no_way(self, changelog: Changelog) -> None:
        versions = chain(changelog, 2)
        with pytest.raises(StateCorruptedError) as caught:
            changelog.route(versions[2], SnapshotRef(versions[1], "0" * 32, 1), None)
        assert caught.value.missing is True

    def test_names_that_are_not_artefacts_are_left_alone(self, changelog: Changelog) -> None:
        chain(changelog, 1)
        for name in (
            "notes.txt",
            "1.changelog",
            "a-b-c.changelog",
            f"1-2-{32 * 'a'}.{SNAPSHOT}.bak",
            f"1-2.{SNAPSHOT}",
        ):
            (Path(changelog.where) / name).touch()
        found = list(changelog.storage.list())
        assert len(found) == 6
        assert [each.kind for each in map(listed, found) if each] == [CHANGELOG]
