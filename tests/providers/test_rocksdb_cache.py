"""The copy of a namespace on a machine: processes that die, stop and race, and damage on its disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from statefx.errors import ConfigError, ProviderError
from statefx.state.contract.store import EMPTY, Namespace, Retention, Version
from statefx.testing.site import Site, image, prepare
from statefx_rocksdb import RocksDbStateProvider, database, images
from statefx_rocksdb.database import Database, Head, UnusableError
from statefx_rocksdb.images import Handles, PrivateFolder
from statefx_rocksdb.provider import Settings

PENDING = "compaction-pending"
OPTIONS = {"catch_up_kb": 0, "hot_cache_mb": 0}

WORKER = """
import json, sys
from pathlib import Path
from statefx.state.contract.store import Version
from statefx.testing.site import Site, image
from statefx_rocksdb import RocksDbStateProvider
root, lineage, options, versions, generation = json.loads(sys.argv[1])
site = Site(RocksDbStateProvider(options), Path(root), lineage)
print("ready", flush=True)
sys.stdin.readline()
for txid, token in versions:
    print(txid, flush=True)
    store = site.open(Version(txid, token), generation=generation)
    assert set(image(store).values()) == {b"%d" % txid}
    store.close()
print("done", flush=True)
"""

HOLDER = """
import sys
from statefx_rocksdb.images import PrivateFolder, locked
folder = PrivateFolder(sys.argv[1])
with locked(sys.argv[1] + "/lock", 0) as held:
    print(held, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(images, "LOCK_SECS", 0.2)
    site = Site(RocksDbStateProvider(OPTIONS), tmp_path)
    yield site
    site.close()


def history(site: Site, length: int, keys: int = 300) -> list[Version]:
    """Every transaction sets every key to its txid, so that a mix of two versions shows."""
    changes = {b"%06d" % number: b"" for number in range(keys)}
    version, versions = EMPTY, []
    writer = Site(RocksDbStateProvider({}), site.root, site.lineage)
    for txid in range(1, length + 1):
        version = writer.commit(version, dict.fromkeys(changes, b"%d" % txid))
        versions.append(version)
    writer.close()
    shutil.rmtree(site.cache, ignore_errors=True)
    return versions


def place(site: Site) -> Path:
    return site.cache / site.lineage / "count" / "0"


def head(site: Site) -> Version:
    database = Database(str(place(site) / "db"), Settings())
    found = database.head()
    database.close()
    assert found is not None
    assert found.complete
    return found.version


def read(site: Site, version: Version, *, generation: int = 1) -> set[bytes]:
    store = site.open(version, generation=generation)
    try:
        return set(image(store).values())
    finally:
        store.close()


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def worker(site: Site, versions: list[Version], generation: int = 1) -> subprocess.Popen[str]:
    described = [str(site.root), site.lineage, OPTIONS, [[each.txid, each.token] for each in versions], generation]
    process = start(WORKER, json.dumps(described))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=30)


def forget() -> None:
    """Let this process have no database open, as one that has just started."""
    while images._handles._kept:
        images._handles.drop(next(iter(images._handles._kept)))


def test_several_files_at_once_leave_the_last_entry_of_each_key(site: Site) -> None:
    """A key that is deleted and set again, one that is set and deleted, and keys of NUL bytes, over a copy and anew."""
    changes: list[dict[bytes, bytes | None]] = [
        {b"": b"0", b"\x00": b"0", b"deleted": b"0", b"kept": b"0", b"again": b"0"},
        {b"again": None, b"\x00": None, b"short": b"1"},
        {b"deleted": None, b"": b"2", b"again": b"2", b"short": None},
        {b"\x00": b"3"},
    ]
    writer = Site(RocksDbStateProvider({}), site.root, site.lineage)
    versions = [EMPTY]
    for each in changes:
        versions.append(writer.commit(versions[-1], each))
    writer.close()
    shutil.rmtree(site.cache, ignore_errors=True)
    forget()
    site.open(versions[1]).close()
    assert head(site) == versions[1]
    for _ in ("three files are written over the copy", "four files become a new copy"):
        store = site.open(versions[-1])
        assert image(store) == {b"": b"2", b"\x00": b"3", b"kept": b"0", b"again": b"2"}
        store.close()
        assert head(site) == versions[-1]
        shutil.rmtree(place(site))
        forget()


class TestProcesses:
    @pytest.mark.daily(1)
    @pytest.mark.slow
    @pytest.mark.parametrize("lines", [1, 2, 5])
    def test_a_kill_while_catching_up_leaves_one_whole_version(self, site: Site, lines: int) -> None:
        versions = history(site, 8)
        process = worker(site, versions)
        go(process)
        assert process.stdout is not None
        for _ in range(lines):
            process.stdout.readline()
        end(process)
        if (place(site) / "db" / "CURRENT").exists():
            assert head(site) in versions
        for version in (versions[lines], versions[-1], versions[0]):
            assert read(site, version) == {b"%d" % version.txid}
        assert head(site) == versions[-1]

    @pytest.mark.slow
    @pytest.mark.soak
    def test_two_catch_up_at_once_while_a_third_is_killed(self, site: Site) -> None:
        versions = history(site, 10)
        processes = [worker(site, versions) for _ in range(3)]
        for process in processes:
            go(process)
        assert processes[2].stdout is not None
        processes[2].stdout.readline()
        end(processes[2])
        for process in processes[:2]:
            output, _ = process.communicate(timeout=60)
            assert process.returncode == 0
            assert output.endswith("done\n")
        assert head(site) == versions[-1]
        assert read(site, versions[-1]) == {b"10"}
        assert not list(place(site).glob("private-*/db"))

    @pytest.mark.slow
    def test_a_stopped_holder_of_the_lock_blocks_nobody(self, site: Site) -> None:
        versions = history(site, 4)
        assert read(site, versions[0]) == {b"1"}
        holder = start(HOLDER, str(place(site)))
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "True\n"
            os.kill(holder.pid, signal.SIGSTOP)
            for version in versions:
                assert read(site, version) == {b"%d" % version.txid}
            assert head(site) == versions[0]
        finally:
            end(holder)
        assert len(list(place(site).glob("private-*"))) == 1
        assert read(site, versions[3]) == {b"4"}
        assert head(site) == versions[3]
        assert list(place(site).glob("private-*")) == []

    @pytest.mark.slow
    def test_without_a_copy_to_read_past_the_holder_a_private_one_is_built(self, site: Site) -> None:
        versions = history(site, 2)
        site.cache.mkdir(0o700)
        place(site).mkdir(parents=True)
        holder = start(HOLDER, str(place(site)))
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            store = site.open(versions[1])
            assert set(image(store).values()) == {b"2"}
            assert len(list(place(site).glob("private-*/db"))) == 1
            store.close()
            assert list(place(site).glob("private-*/db")) == []
            assert not (place(site) / "db").exists()
        finally:
            end(holder)

    @pytest.mark.slow
    def test_threads_of_one_process(self, site: Site) -> None:
        versions = history(site, 6, keys=50)
        wrong: list[object] = []

        def run(offset: int) -> None:
            own = Site(site.provider, site.root, site.lineage)
            for step in range(12):
                version = versions[(step * offset) % 6]
                found = read(own, version)
                if found != {b"%d" % version.txid}:
                    wrong.append((version, found))

        threads = [threading.Thread(target=run, args=(offset,)) for offset in (1, 2, 3, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


class TestLock:
    def test_a_wait_ends_and_is_not_repeated_until_the_lock_is_free(self, tmp_path: Path) -> None:
        path, now, pauses = str(tmp_path / "lock"), 0.0, 0

        def pause(secs: float) -> None:
            nonlocal now, pauses
            now, pauses = now + secs, pauses + 1

        def take() -> bool:
            with images.locked(path, 1.0, clock=lambda: now, pause=pause) as held:
                return held

        with images.locked(path, 0):
            assert take() is False
            assert now == pytest.approx(1.0, abs=0.02)
            waited = pauses
            assert take() is False
            assert pauses == waited
        assert take() is True
        with images.locked(path, 0):
            assert take() is False
        assert pauses > waited

    def test_private_folders_of_the_living_are_kept(self, tmp_path: Path) -> None:
        living = PrivateFolder(str(tmp_path))
        images.sweep_private(str(tmp_path))
        assert os.path.isdir(living.path)
        living.close()
        assert list(tmp_path.iterdir()) == []


class TestDamage:
    @pytest.mark.slow
    @pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*", "CURRENT"])
    def test_a_damaged_copy_is_replaced(self, site: Site, pattern: str) -> None:
        versions = history(site, 3)
        read(site, versions[1])
        for path in (place(site) / "db").glob(pattern):
            content = bytearray(path.read_bytes())
            for at in range(0, len(content), 7):
                content[at] ^= 1
            path.write_bytes(content)
        forget()
        for version in (versions[1], versions[2], versions[2]):
            assert read(site, version) == {b"%d" % version.txid}
        assert head(site) == versions[2]
        assert {path.name for path in place(site).iterdir()} == {"db", "lock"}

    @pytest.mark.slow
    def test_damage_found_while_reading_is_healed_in_place(self, site: Site) -> None:
        [version] = history(site, 1, keys=5000)
        read(site, version)
        [path] = (place(site) / "db").glob("*.sst")
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 1
        path.write_bytes(content)
        for reads in (lambda store: store.get([b"%06d" % n for n in range(5000)]), lambda s: list(s.scan(None, None))):
            forget()
            store = site.open(version)
            reads(store)
            assert len(image(store)) == 5000
            assert set(image(store).values()) == {b"1"}
            store.close()
            (place(site) / "damaged").unlink()

    @pytest.mark.slow
    def test_damage_found_when_the_version_that_was_opened_is_swept_asks_for_another_store(self, site: Site) -> None:
        head = history(site, 1, keys=100_000)[0]
        store = site.open(head)
        token = prepare(store, 2, [(b"new", b"2")])
        assert store.advance(2, token, [(b"new", b"2")])
        head = Version(2, token)
        other = Site(site.provider, site.root / "other", site.lineage)
        other.storage, other.files_max = site.storage, 2
        for number in range(20):
            head = other.commit(head, {b"new": b"%d" % number})
        snapshot = other.open(head).snapshot()
        assert snapshot is not None
        assert other.sweep(Retention(1, head, (snapshot,), 0, since=head.txid)) >= 20
        other.close()
        [path] = (place(site) / "db").glob("*.sst")
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 1
        path.write_bytes(content)
        with pytest.raises(UnusableError, match="open the state again"):
            list(store.scan(None, None))
        assert len(image(site.open(head, snapshot=snapshot))) == 100_001

    def test_a_reader_keeps_its_files_when_the_copy_is_replaced(self, site: Site) -> None:
        versions = history(site, 2)
        reader = site.open(versions[0])
        (place(site) / "damaged").touch()
        assert read(site, versions[1]) == {b"2"}
        assert set(image(reader).values()) == {b"1"}

    def test_the_copy_is_never_taken_back(self, site: Site) -> None:
        versions = history(site, 3)
        assert read(site, versions[2]) == {b"3"}
        assert read(site, versions[0]) == {b"1"}
        assert head(site) == versions[2]

    def test_a_read_only_store_changes_nothing_in_the_cache(self, site: Site) -> None:
        versions = history(site, 2)
        read(site, versions[0])
        before = {path: path.read_bytes() for path in site.cache.rglob("*") if path.is_file()}
        store = site.open(versions[1], read_only=True)
        assert set(image(store).values()) == {b"2"}
        store.close()
        assert {path: path.read_bytes() for path in site.cache.rglob("*") if path.is_file()} == before


def restored(site: Site, *, kept: bool) -> tuple[list[Version], list[Version]]:
    """Two histories of one checkpoint, forked by a restored backup; the copy on this machine is of the first one.

    The first one is of generation 9 and has nine transactions. The backup was made after its second one, and gen 3 has
    gone on from there with two more. `kept`: the first one's files are still there.
    """
    first, second = [EMPTY], [EMPTY]
    writer = Site(RocksDbStateProvider({}), site.root, site.lineage)
    keys = [b"%06d" % number for number in range(300)]
    backup = site.root / "backup"
    for txid in range(1, 10):
        first.append(writer.commit(first[-1], dict.fromkeys(keys, b"%d" % txid), generation=9))
        if txid == 2:
            shutil.copytree(site.storage.url, backup)
    shutil.rmtree(site.cache, ignore_errors=True)
    assert read(site, first[-1], generation=9) == {b"9"}
    if not kept:
        shutil.rmtree(site.storage.url)
        shutil.copytree(backup, site.storage.url)
    second += first[1:3]
    for txid in (3, 4):
        second.append(writer.commit(second[-1], dict.fromkeys(keys, b"%d" % txid), generation=3))
    writer.close()
    forget()
    return first, second


class TestRestored:
    """A checkpoint that was restored from a backup, on a machine whose copy has gone on from there."""

    @pytest.mark.slow
    @pytest.mark.parametrize("kept", [True, False])
    def test_the_copy_is_replaced_once(self, site: Site, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        _, versions = restored(site, kept=kept)
        built: list[str] = []
        original = images.LocalImages._built

        def building(self: images.LocalImages, folder: PrivateFolder) -> Database:
            built.append(folder.path)
            return original(self, folder)

        monkeypatch.setattr(images.LocalImages, "_built", building)
        for version in versions[3:]:
            for _ in range(2):
                assert read(site, version, generation=3) == {b"%d" % version.txid}
                assert head(site) == version
        assert len(built) == 1
        assert list(place(site).glob("private-*")) == []

    @pytest.mark.slow
    @pytest.mark.parametrize("kept", [True, False])
    def test_the_hot_cache_is_of_the_new_history(self, site: Site, kept: bool) -> None:
        site.provider = RocksDbStateProvider({**OPTIONS, "hot_cache_mb": 1})
        _, versions = restored(site, kept=kept)
        for version in versions[3:]:
            found = []
            for _ in range(2):
                store = site.open(version, generation=3)
                assert store.get([b"%06d" % number for number in range(300)]) == [b"%d" % version.txid] * 300
                found.append(store._image._leased)  # type: ignore[attr-defined]
                store.close()
            assert found[0] is found[1], "what was read is remembered for the next store"

    @pytest.mark.slow
    def test_a_late_task_of_the_history_that_is_over_reads_its_own(self, site: Site) -> None:
        first, second = restored(site, kept=True)
        for _ in range(2):
            assert read(site, second[4], generation=3) == {b"4"}
            assert read(site, first[5], generation=9) == {b"5"}
        assert read(site, second[4], generation=3) == {b"4"}
        assert head(site) == second[4]

    @pytest.mark.slow
    def test_a_late_task_of_an_older_generation_leaves_the_copy(self, site: Site) -> None:
        first, _ = restored(site, kept=True)
        for generation in (1, 9):
            assert read(site, first[5], generation=generation) == {b"5"}
            assert head(site) == first[9]

    @pytest.mark.slow
    @pytest.mark.soak
    def test_both_histories_at_once_in_several_processes(self, site: Site) -> None:
        first, second = restored(site, kept=True)
        plans = [(9, first[1:] * 2), (9, first[3:] * 2), (3, second[1:] * 4), (3, second[3:] * 4)]
        processes = [worker(site, versions, generation) for generation, versions in plans]
        for process in processes:
            go(process)
        for process in processes:
            output, _ = process.communicate(timeout=60)
            assert process.returncode == 0
            assert output.endswith("done\n")
        assert read(site, second[-1], generation=3) == {b"4"}
        assert list(place(site).glob("private-*/db")) == []


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that are opened for reading, one entry each time."""
    forget()
    found: list[str] = []
    original = images._opened

    def opening(path: str, settings: Settings) -> images.Handle:
        found.append(path)
        return original(path, settings)

    monkeypatch.setattr(images, "_opened", opening)
    return found


class TestHandles:
    def test_a_process_opens_the_copy_once_while_it_is_near(self, site: Site, opened: list[str]) -> None:
        versions = history(site, 5)
        read(site, versions[0])
        assert set(opened) == {str(place(site) / "db")}
        opened.clear()
        site.provider = RocksDbStateProvider({})
        for version in versions:
            assert read(site, version) == {b"%d" % version.txid}
        assert opened == []

    @pytest.mark.slow
    def test_one_that_another_process_has_advanced_still_leads_on(self, site: Site) -> None:
        """The kept database shows an older version; what is read is the version that was asked for."""
        versions = history(site, 4)
        site.provider = RocksDbStateProvider({"catch_up_kb": 0})
        assert read(site, versions[0]) == {b"1"}
        process = worker(site, versions[2:3])
        go(process)
        process.communicate(timeout=30)
        assert head(site) == versions[2]
        for version in (versions[1], versions[3], versions[2]):
            assert read(site, version) == {b"%d" % version.txid}
        assert head(site) == versions[3]

    def test_one_of_a_copy_that_was_deleted_is_no_copy_to_write_to(self, site: Site) -> None:
        versions = history(site, 3)
        site.provider = RocksDbStateProvider({"catch_up_kb": 0})
        assert read(site, versions[0]) == {b"1"}
        shutil.rmtree(site.cache)
        assert read(site, versions[2]) == {b"3"}
        forget()
        assert read(site, versions[2]) == {b"3"}

    def test_only_so_many_are_kept_and_none_is_closed_under_its_reader(self, site: Site, tmp_path: Path) -> None:
        versions = history(site, 1)
        read(site, versions[0])
        few = Handles(limit=2)
        paths = [shutil.copytree(place(site) / "db", tmp_path / f"copy-{n}") for n in range(4)]
        first = few.open(str(paths[0]), Settings())
        for path in paths[1:]:
            few.open(str(path), Settings()).close()
        assert list(few._kept) == [str(path) for path in paths[2:]]
        assert first.database.get([b"%06d" % 7]) == [b"1"]
        first.close()
        with pytest.raises(UnusableError):
            first.database.get([b"%06d" % 7])


class TestHotCache:
    def test_what_is_remembered_follows_every_version(self, site: Site) -> None:
        site.provider = RocksDbStateProvider({"hot_cache_mb": 1})
        version, expected = EMPTY, {}
        for txid in range(1, 12):
            changes = {b"%03d" % number: b"%d" % txid for number in range(0, 300, txid)}
            version = site.commit(version, {**changes, b"%03d" % txid: None})
            expected.update(changes)
            del expected[b"%03d" % txid]
            store = site.open(version)
            assert image(store) == expected
            assert store.get([b"%03d" % txid, b"none"]) == [None, None]
            if txid % 2:
                store.close()

    @pytest.mark.slow
    def test_what_it_has_forgotten_is_read_again(self, site: Site) -> None:
        site.provider = RocksDbStateProvider({"hot_cache_mb": 1})
        expected = {b"%08d" % number: b"v" * 100 for number in range(12_000)}
        version = site.commit(EMPTY, expected)
        for txid in range(2, 8):
            changes = {b"%08d" % number: b"%d" % txid for number in range(txid, 12_000, 3)}
            version = site.commit(version, changes)
            expected.update(changes)
            store = site.open(version)
            keys = list(expected)
            for at in range(0, len(keys), 3000):
                assert store.get(keys[at : at + 3000]) == [expected[key] for key in keys[at : at + 3000]]
            store.close()

    @pytest.mark.slow
    def test_its_size_is_bounded(self, site: Site) -> None:
        site.provider = RocksDbStateProvider({"hot_cache_mb": 1})
        expected = {b"%08d" % number: b"v" * 100 for number in range(20_000)}
        store = site.open(site.commit(EMPTY, expected))
        for _ in range(2):
            keys = list(expected)
            for at in range(0, len(keys), 1000):
                assert store.get(keys[at : at + 1000]) == [b"v" * 100] * 1000
        assert store._image._leased.size_bytes <= 2 << 20  # type: ignore[attr-defined]
        store.close()
        assert store._image._leased.size_bytes <= 1 << 20  # type: ignore[attr-defined]


class TestDatabase:
    @pytest.mark.parametrize("writable", [True, False])
    def test_options_hold_for_a_directory_that_is_there(self, tmp_path: Path, writable: bool) -> None:
        path = str(tmp_path / "db")
        Database(path, Settings(), writable=True).close()
        for size_mb in (5, 0, 3):
            opened = Database(path, Settings(block_cache_mb=size_mb), writable=writable)
            capacity = opened._rdict.property_int_value("rocksdb.block-cache-capacity")
            assert (capacity or 0) == size_mb << 20
            opened.close()

    @pytest.mark.slow
    def test_keys_that_are_not_there_are_found_by_the_filters(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of a directory that is written to again and again."""
        sizes = []
        for bits in (0, database.BLOOM_BITS):
            monkeypatch.setattr(database, "BLOOM_BITS", bits)
            settings, path = Settings(), str(tmp_path / f"db-{bits}")
            for txid in (1, 2, 3):
                writes = [b"%d-%06d" % (txid, number) for number in range(20_000)]
                write(path, settings, txid, writes)
            opened = Database(path, settings)
            sizes.append(opened._rdict.property_int_value("rocksdb.estimate-table-readers-mem") or 0)
            opened.close()
        assert sizes[1] - sizes[0] >= 3 * 20_000 * 10 // 8

    @pytest.mark.slow
    def test_no_merge_is_broken_off_by_closing(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        """It would begin again in the next catch-up, and be broken off again."""
        closed: list[int] = []
        close = Database.close

        def closing(self: Database) -> None:
            numbers = self._rdict.property_int_value
            closed.append(sum(numbers(f"rocksdb.{name}") or 0 for name in ("num-running-compactions", PENDING)))
            close(self)

        monkeypatch.setattr(Database, "close", closing)
        version = EMPTY
        for txid in range(1, 25):
            version = site.commit(version, {b"%06d" % number: b"%d" % txid for number in range(txid, 9_000, 7)})
            site.open(version).close()
        assert sum(closed) == 0
        assert len(closed) > 24
        assert len(list((place(site) / "db").glob("*.sst"))) <= 12


def write(path: str, settings: Settings, txid: int, keys: list[bytes]) -> None:
    database = Database(path, settings, writable=True)
    value = [b"%d" % txid] * len(keys)
    database.apply([(keys, value)], sum(map(len, keys)), Head(Namespace("lineage", "count", 0), Version(txid, "t"), 1))
    database.close()


@pytest.mark.slow
def test_a_store_that_is_open_for_long_needs_no_file_that_is_swept_meanwhile(tmp_path: Path) -> None:
    """What the directory lacks was read when somebody scanned, by when a driver might have deleted it."""
    site = Site(RocksDbStateProvider({}), tmp_path)
    site.files_max = 3
    version, expected = EMPTY, dict[bytes, bytes]()

    def commit() -> Version:
        value = os.urandom(200_000)  # more than comes with the head of a file
        expected[b"%d" % version.txid] = value
        return site.commit(version, {b"%d" % version.txid: value})

    for _ in range(4):
        version = commit()
    store, shown = site.open(version), dict(expected)
    for _ in range(20):
        version = commit()
    assert site.sweep(Retention(1, version, (), 0, since=version.txid)) >= 4
    assert dict(store.scan(None, None)) == shown
    assert store.get(list(shown)) == list(shown.values())
    site.close()


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"block_cache": 5}, "did you mean 'block_cache_mb'"),
            ({"block_cache_mb": -1}, "block_cache_mb: expected `int` >= 0"),
            ({"block_cache_mb": 65537}, "block_cache_mb: expected `int` <= 65536"),
            ({"block_cache_mb": "5"}, "expected `int`, got `str`"),
            ({"block_cache_mb": True}, "expected `int`, got `bool`"),
            ({"dir": "relative/path"}, "absolute"),
            ({"dir": 5}, "dir: expected `str`"),
        ],
    )
    def test_what_is_wrong_is_said_on_the_driver(self, options: dict[str, object], text: str) -> None:
        with pytest.raises(ConfigError, match=text):
            RocksDbStateProvider(options)

    def test_dir_is_where_copies_are_kept(self, site: Site, tmp_path: Path) -> None:
        site.provider = RocksDbStateProvider({**OPTIONS, "dir": str(tmp_path / "fast")})
        site.open(site.commit(EMPTY, {b"a": b"1"}))
        assert list((tmp_path / "fast" / site.lineage / "count" / "0").glob("db"))
        assert not site.cache.exists()

    @pytest.fixture
    def below_the_temporary_folder(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("statefx.state.contract.caches.cache_folder", lambda: str(site.cache))

    @pytest.mark.usefixtures("below_the_temporary_folder")
    def test_other_users_can_neither_read_nor_change_copies(self, site: Site, tmp_path: Path) -> None:
        site.cache.mkdir(0o755)
        version = site.commit(EMPTY, {b"a": b"1"})
        site.open(version)
        site.provider = RocksDbStateProvider({**OPTIONS, "dir": str(tmp_path / "fast")})
        site.open(version)
        assert {folder.stat().st_mode & 0o777 for folder in (site.cache, tmp_path / "fast" / site.lineage)} == {0o700}

    @pytest.mark.usefixtures("below_the_temporary_folder")
    @pytest.mark.parametrize("made", ["writable", "by a group", "link", "file"])
    @pytest.mark.parametrize("read_only", [False, True])
    def test_a_folder_that_another_may_have_made_is_refused(self, site: Site, made: str, read_only: bool) -> None:
        version = site.commit(EMPTY, {b"a": b"1"})
        shutil.rmtree(site.cache)
        if made == "link":
            (site.root / "elsewhere").mkdir(0o700)
            site.cache.symlink_to(site.root / "elsewhere")
        elif made == "file":
            site.cache.touch(0o600)
        else:
            site.cache.mkdir()
            site.cache.chmod(0o777 if made == "writable" else 0o770)
        with pytest.raises(PermissionError, match=r"this user alone .* TMPDIR .* `dir`.*/cache"):
            site.open(version, read_only=read_only)
        site.provider = RocksDbStateProvider({**OPTIONS, "dir": str(site.root / "fast")})
        assert image(site.open(version, read_only=read_only)) == {b"a": b"1"}

    def test_without_rocksdict_the_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "rocksdict", None)
        with pytest.raises(ProviderError, match=r"pip install statefx\[rocksdb\]"):
            RocksDbStateProvider({})
