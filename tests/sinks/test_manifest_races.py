"""Drivers that stop at any look at a FileSink's folder, while others go on there, and wake up afterwards."""

import errno
import os
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from statefx.connectors.files.manifest import COMPACT_KEPT_SECS, Layout, Manifest, WrittenFile
from statefx.connectors.files.sink import FileSink
from statefx.errors import FencedError, SinkError, SinkOwnedError
from statefx.operators.sinks import CheckpointPosition, CommitterContext, Owner
from statefx.protocol.identity import TransactionAttempt
from statefx.storage import FolderStorage
from statefx.testing import Crash

A1, A2, A3 = (Owner("a", "origin", generation) for generation in (1, 2, 3))
B1, B2, C1 = Owner("b", "other", 1), Owner("b", "other", 2), Owner("c", "third", 1)
START, FIRST_DECIDED = CheckpointPosition(0, 0), CheckpointPosition(0, 1)
LAYOUT = Layout("parquet", (), "word string")
SCHEMA = LAYOUT.fields


class Paused(FolderStorage):
    """A folder's storage that does something else before its n-th call."""

    def __init__(self, root, at, do):
        super().__init__(root)
        self.calls, self.at, self.do = 0, at, do

    def _step(self):
        self.calls += 1
        if self.calls == self.at:
            self.do()

    def create(self, name, data):
        self._step()
        super().create(name, data)

    def create_alike(self, name, other):
        self._step()
        super().create_alike(name, other)

    def sizes(self, names):
        self._step()
        return super().sizes(names)

    def list(self, prefix="", after=""):
        self._step()
        return super().list(prefix, after)

    def read(self, name, start=0, stop=None):
        self._step()
        return super().read(name, start, stop)

    def delete(self, names):
        self._step()
        super().delete(names)


class Folder:
    """What drivers do to one folder; the rows of a transaction are one file, named after it."""

    def __init__(self, root, at=0, do=None):
        self.root = str(root)
        self.manifest = Manifest(self.root)
        self.zombie = Manifest(self.root)
        self.zombie.storage = Paused(self.root, at, do and (lambda: do(self)))

    @property
    def woke_up(self):
        return self.zombie.storage.calls >= self.zombie.storage.at

    def publish(self, owner, *txids, manifest=None):
        for txid in txids:
            file = WrittenFile(f"{owner.application}-{txid}", 1, 1)
            (manifest or self.manifest).publish(owner, txid, lambda file=file: [file])

    def fence(self, owner, reached=START, takeover=False):
        self.manifest.fence(owner, reached, LAYOUT, takeover=takeover)

    def begin(self, txids, *, by_zombie):
        """A1 has published so many transactions; `by_zombie`: that one has, and knows where it is without listing."""
        self.fence(A1)
        paused, self.zombie.storage = self.zombie.storage, FolderStorage(self.root)
        self.publish(A1, *range(1, txids + 1), manifest=self.zombie if by_zombie else self.manifest)
        self.zombie.storage = paused

    def names(self, application=""):
        return [each.name for each in self.manifest.files() if each.name.startswith(application)]


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """Thousands of files are made durable here, which no test looks at."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def races(tmp_path, do, before=(7, 8, 9)):
    """Yield folders, with each number of transactions before, whose zombie stops at each of its calls in turn."""
    for txids in before:
        for at in range(1, 100):
            folder = Folder(tmp_path / f"{txids}-{at}", at, do)
            yield folder, txids
            if not folder.woke_up:
                assert at > 3
                break


def named(application, *txids):
    return [f"{application}-{txid}" for txid in txids]


@pytest.mark.slow
def test_a_driver_that_stops_in_its_first_fence_takes_no_number_of_the_next_one(tmp_path):
    def successor(folder):
        folder.fence(A2, FIRST_DECIDED)
        folder.publish(A2, 1, 2, 3)

    for folder, _ in races(tmp_path, successor, before=[0]):
        try:
            folder.zombie.fence(A1, START, LAYOUT, takeover=False)
            folder.publish(A1, 1, manifest=folder.zombie)
        except FencedError:
            assert folder.woke_up
        if folder.woke_up:
            folder.publish(A2, 1, 2, 3, 4)
            assert folder.names() == named("a", 1, 2, 3, 4)


@pytest.mark.slow
def test_a_driver_that_stops_while_it_takes_over_takes_no_number_of_the_next_one(tmp_path):
    def successor(folder):
        folder.fence(B2, FIRST_DECIDED, takeover=True)
        folder.publish(B2, 1, 2, 3)

    for folder, txids in races(tmp_path, successor):
        folder.fence(A1)
        folder.publish(A1, *range(1, txids + 1))
        try:
            folder.zombie.fence(B1, START, LAYOUT, takeover=True)
            folder.publish(B1, 1, manifest=folder.zombie)
        except FencedError:
            assert folder.woke_up
        if folder.woke_up:
            folder.publish(B2, 1, 2, 3, 4)
            assert folder.names("b") == named("b", 1, 2, 3, 4)
            assert folder.names("a") == named("a", *range(1, txids + 1))


@pytest.mark.slow
@pytest.mark.parametrize("by_zombie", [False, True])
@pytest.mark.parametrize("later", [2, 25])
def test_who_is_taken_over_in_the_middle_of_a_commit_knows_whether_its_rows_are_there(tmp_path, later, by_zombie):
    """After 25 transactions its own manifest may be among those that are deleted."""

    def takeover(folder):
        folder.fence(B1, takeover=True)
        folder.publish(B1, *range(1, later + 1))
        folder.manifest.forget_old(0)

    for folder, txids in races(tmp_path, takeover):
        folder.begin(txids, by_zombie=by_zombie)
        published = True
        try:
            folder.publish(A1, txids + 1, manifest=folder.zombie)
        except SinkError:
            published = False
        if folder.woke_up:
            folder.publish(B1, later + 1)
            assert folder.names("b") == named("b", *range(1, later + 2))
            with pytest.raises(SinkOwnedError):
                folder.publish(A1, txids + 2)
        assert folder.names("a") == named("a", *range(1, txids + 1 + published))


def test_who_knows_which_manifest_is_the_newest_still_asks_who_owns_the_folder(tmp_path):
    folder = Folder(tmp_path)
    folder.begin(1, by_zombie=True)
    folder.fence(A2, CheckpointPosition(1, 1))  # which goes on, without a seal
    with pytest.raises(FencedError):
        folder.publish(A1, 2, manifest=folder.zombie)
    assert folder.names() == named("a", 1)


@pytest.mark.slow
@pytest.mark.parametrize("by_zombie", [False, True])
def test_whose_empty_transaction_falls_on_the_seal_of_another_takes_no_number_of_it(tmp_path, by_zombie):
    for folder, txids in races(tmp_path, lambda folder: folder.fence(B1, takeover=True)):
        folder.begin(txids, by_zombie=by_zombie)
        with suppress(SinkOwnedError):
            folder.zombie.publish(A1, txids + 1, list)
        if folder.woke_up:
            with pytest.raises(SinkOwnedError):
                folder.publish(A1, txids + 2, manifest=folder.zombie)
            folder.publish(B1, 1)
            assert folder.names("b") == named("b", 1)
        assert folder.names("a") == named("a", *range(1, txids + 1))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [(True, True), (False, True), (True, False)])
def test_who_takes_over_while_another_commits_keeps_its_rows_and_begins_after_them(tmp_path, rows):
    """An empty manifest has the bytes of a seal."""
    done = []

    def commit(folder):
        at = len(folder.names("a")) + 1
        try:
            for txid, has_rows in zip((at, at + 1), rows, strict=True):
                if has_rows:
                    folder.publish(A1, txid)
                    done.append(txid)
                else:
                    folder.manifest.publish(A1, txid, list)
        except SinkOwnedError:
            pass

    for folder, txids in races(tmp_path, commit):
        done.clear()
        folder.fence(A1)
        folder.publish(A1, *range(1, txids + 1))
        folder.zombie.fence(B1, START, LAYOUT, takeover=True)
        folder.publish(B1, 1, 2)
        assert folder.names("a") == named("a", *range(1, txids + 1), *done)
        assert folder.names("b") == named("b", 1, 2)


@pytest.mark.slow
def test_of_two_that_take_over_the_one_that_came_later_stays(tmp_path):
    def third(folder):
        folder.fence(C1, takeover=True)
        folder.publish(C1, 1, 2)

    for folder, txids in races(tmp_path, third):
        folder.fence(A1)
        folder.publish(A1, *range(1, txids + 1))
        try:
            folder.zombie.fence(B1, START, LAYOUT, takeover=True)
        except SinkOwnedError:
            folder.publish(C1, 3)
            assert folder.names("c") == named("c", 1, 2, 3)
            continue
        owner, other = (C1, B1) if folder.manifest.marker().is_of(C1) else (B1, C1)
        first = len(folder.names(owner.application)) + 1
        folder.publish(owner, first)
        assert folder.names(owner.application) == named(owner.application, *range(1, first + 1))
        with pytest.raises(SinkOwnedError):
            folder.publish(other, 3)
        assert folder.names("a") == named("a", *range(1, txids + 1))


@pytest.mark.slow
@pytest.mark.parametrize("by_zombie", [False, True])
def test_a_commit_that_slept_through_a_takeover_there_and_back_publishes_nothing_more(tmp_path, by_zombie):
    def there_and_back(folder):
        last = len(folder.names("a"))
        folder.fence(B1, takeover=True)
        folder.publish(B1, *range(1, 26))
        folder.manifest.forget_old(0)
        folder.fence(A2, CheckpointPosition(last, last), takeover=True)
        folder.manifest.forget_old(0)
        folder.publish(A2, *range(last + 1, last + 4))

    for folder, txids in races(tmp_path, there_and_back):
        folder.begin(txids, by_zombie=by_zombie)
        try:
            folder.publish(A1, txids + 1, manifest=folder.zombie)
        except SinkError:
            assert folder.woke_up
        if folder.woke_up:
            last = len(folder.names("a"))
            folder.publish(A2, last + 1)
            assert folder.names("a") == named("a", *range(1, last + 2))
            assert folder.names("b") == named("b", *range(1, 26))


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("takeover", [False, True])
def test_a_crash_anywhere_in_fence_or_commit_leaves_every_transaction_once(tmp_path, takeover):
    def crash(_):
        raise Crash

    for folder, txids in races(tmp_path, crash):
        folder.fence(A1)
        folder.publish(A1, *range(1, txids + 1))
        folder.fence(A2, CheckpointPosition(txids, txids))
        folder.manifest.forget_old(0)
        reached = CheckpointPosition(txids, txids + 1)  # COMMITTING of one more is durable
        try:
            folder.zombie.fence(A3, reached, LAYOUT, takeover=takeover)
            folder.publish(A3, txids + 1, manifest=folder.zombie)
        except Crash:
            pass
        next_one = replace(A3, generation=4)
        folder.fence(next_one, reached, takeover=takeover)
        folder.publish(next_one, txids + 1, txids + 2)
        assert folder.names() == named("a", *range(1, txids + 3))


def test_takeover_left_in_a_program_doubles_nothing_after_a_crash_before_committed(tmp_path):
    folder = Folder(tmp_path)
    folder.fence(A1, takeover=True)
    folder.publish(A1, 1)
    folder.fence(A2, CheckpointPosition(0, 1), takeover=True)
    folder.publish(A2, 1, 2)
    assert folder.names() == named("a", 1, 2)


@pytest.mark.slow
def test_a_reader_that_ten_transactions_overtook_lists_again(tmp_path):
    def go_on(folder):
        folder.publish(A1, *range(10, 45))
        folder.manifest.forget_old(0)

    for folder, _ in races(tmp_path, go_on, before=[9]):
        folder.fence(A1)
        folder.publish(A1, *range(1, 10))
        names = [each.name for each in folder.zombie.files()]
        assert names == named("a", *range(1, len(names) + 1))
        assert len(names) >= 9


def test_manifests_that_a_reader_may_be_reading_stay_for_a_while(tmp_path):
    folder = Folder(tmp_path)
    folder.fence(A1)
    folder.publish(A1, *range(1, 35))
    folder.manifest.forget_old()
    manifests = tmp_path / "_spark_metadata"
    assert len(list(manifests.iterdir())) == 35
    for number in range(5):
        os.utime(manifests / str(number), (1, 1))
    folder.manifest.forget_old()
    assert sorted(int(each.name.partition(".")[0]) for each in manifests.iterdir()) == list(range(5, 35))
    assert folder.names() == named("a", *range(1, 35))


def test_a_compact_manifest_is_as_old_as_those_beside_it_and_goes_before_them(tmp_path):
    """It names all files, and one without new ones is a link, which has the time of the first."""
    folder = Folder(tmp_path)
    folder.fence(A1)
    folder.publish(A1, 1)
    for txid in range(2, 50):
        folder.manifest.publish(A1, txid, list)
    manifests = tmp_path / "_spark_metadata"

    def compacts():
        return sorted(int(path.stem) for path in manifests.glob("*.compact"))

    os.utime(manifests / "9.compact", (1, 1))
    assert (manifests / "49.compact").stat().st_mtime == 1
    folder.manifest.forget_old()
    assert compacts() == [9, 19, 29, 39, 49]
    for number in set(range(25)) - set(compacts()):
        os.utime(manifests / str(number), (time.time() - 2 * COMPACT_KEPT_SECS,) * 2)
    folder.manifest.forget_old()
    assert compacts() == [29, 39, 49]
    assert (manifests / "0").exists()
    assert folder.names() == named("a", 1)


class Counted(FolderStorage):
    """Counts what it reads, writes and lists."""

    counts = (0, 0, 0)

    def _count(self, *more):
        self.counts = tuple(map(sum, zip(self.counts, more, strict=True)))

    def read(self, name, start=0, stop=None):
        data = super().read(name, start, stop)
        self._count(len(data), 0, 0)
        return data

    def create(self, name, data):
        self._count(0, len(data), 0)
        super().create(name, data)

    def list(self, prefix="", after=""):
        for each in super().list(prefix, after):
            self._count(0, 0, 1)
            yield each


def test_a_transaction_without_rows_costs_the_same_however_many_there_were(tmp_path):
    def costs(files, transactions):
        folder = Folder(tmp_path / str(files))
        folder.manifest.storage = Counted(folder.root)
        folder.fence(A1)
        folder.manifest.publish(A1, 1, lambda: [WrittenFile(f"a-{n}", 1, 1) for n in range(files)])
        for txid in range(2, transactions + 1):
            folder.manifest.publish(A1, txid, list)
        folder.manifest.storage.counts = Counted.counts
        for txid in range(transactions + 1, transactions + 21):
            folder.manifest.publish(A1, txid, list)
        counts = folder.manifest.storage.counts
        folder.publish(A1, transactions + 21)
        assert len(folder.names()) == files + 1
        return counts

    assert costs(files=2000, transactions=100) == costs(files=1, transactions=10)


def test_who_may_not_make_more_links_writes_the_compact_manifest_anew(tmp_path, monkeypatch):
    def refused(source, target, link=os.link):
        if ".unfinished" not in source:
            raise OSError(errno.EMLINK, "Too many links")
        link(source, target)

    monkeypatch.setattr(os, "link", refused)
    folder = Folder(tmp_path)
    folder.fence(A1)
    folder.publish(A1, 1)
    for txid in range(2, 25):
        folder.manifest.publish(A1, txid, list)
    first, second = (tmp_path / "_spark_metadata" / name for name in ("9.compact", "19.compact"))
    assert not first.samefile(second)
    assert first.read_bytes() == second.read_bytes()
    assert folder.names() == named("a", 1)


def test_fences_do_not_become_more_with_each_start(tmp_path):
    folder = Folder(tmp_path)
    owners, sealed = (tmp_path / "_statefx" / name for name in ("owners", "sealed"))
    for start in range(1, 21):
        owner = Owner("ab"[start % 2], "origin", start)
        folder.fence(owner, CheckpointPosition(start - 1, start - 1), takeover=True)
        folder.publish(owner, start)
        if start == 2:
            folder.manifest.forget_old()
            assert len(list(owners.iterdir())) == 2, "somebody may have slept for a while"
        if start > 2:
            for path in sorted(owners.iterdir())[:-1]:
                os.utime(path, (1, 1))
            folder.manifest.forget_old()
            assert len(list(owners.iterdir())) <= 3
            assert len(list(sealed.iterdir())) <= 3
    assert len(folder.names()) == 20


@pytest.mark.slow
def test_who_slept_until_the_fence_of_its_number_was_deleted_does_not_own_the_folder(tmp_path):
    """Starts that go on write no seal, which would be taken."""
    has_fenced = []

    def successors(folder):
        last = len(folder.names())
        has_fenced.append(folder.manifest.marker().generation == 2)
        for owner in (A3, replace(A3, generation=4)):
            folder.fence(owner, CheckpointPosition(last, last))
        folder.manifest.forget_old(0)

    for folder, txids in races(tmp_path, successors):
        folder.begin(txids, by_zombie=False)
        has_fenced.clear()
        try:
            folder.zombie.fence(A2, CheckpointPosition(txids, txids), LAYOUT, takeover=False)
        except FencedError:
            continue
        assert has_fenced in ([], [True])


@pytest.mark.slow
def test_a_sweep_that_slept_through_a_takeover_deletes_no_file_of_who_took_over(tmp_path):
    def coming(folder):
        folder.fence(B1, takeover=True)
        (tmp_path / folder.root / COMING).write_bytes(b"x")

    COMING = "part-0000000001-00000-b-0000.parquet"  # noqa: N806 - a constant of this test
    for folder, txids in races(tmp_path, coming):
        folder.fence(A1)
        folder.publish(A1, *range(1, txids + 1))
        committer = FileSink(folder.root).committer(CommitterContext("out", A1, SCHEMA, folder.manifest.storage))
        committer._manifest = folder.zombie
        committer.sweep(txids)
        if folder.woke_up:
            size = (tmp_path / folder.root / COMING).stat().st_size
            folder.manifest.publish(B1, 1, lambda size=size: [WrittenFile(COMING, size, 1)])
    older = FileSink(folder.root).committer(CommitterContext("out", A1, SCHEMA, folder.manifest.storage))
    coming(folder)
    older.sweep(100)  # long after: B's generation is not newer than A's, and its transactions have smaller numbers
    assert (tmp_path / folder.root / COMING).exists()


def test_times_in_the_manifest_do_not_run_back_with_the_clock(tmp_path):
    folder = Folder(tmp_path)
    folder.fence(A1)
    for txid, modified in enumerate([5000, 1000, 7000, 6000], 1):
        if txid == 3:
            folder.manifest = Manifest(folder.root)
        folder.manifest.publish(A1, txid, lambda n=txid, at=modified: [WrittenFile(f"a-{n}", 1, at)])
    assert [each.modified_ms for each in folder.manifest.files()] == [5000, 5000, 7000, 7000]


def test_a_zombie_writes_nothing_of_its_own_after_a_commit_by_its_successor(tmp_path):
    folder = Folder(tmp_path)
    folder.fence(A1)
    folder.publish(A1, 1)
    folder.fence(A2, CheckpointPosition(1, 2))
    folder.publish(A2, 2)
    folder.publish(A1, 2)
    with pytest.raises(FencedError):
        folder.publish(A1, 3)
    committer = FileSink(folder.root).committer(CommitterContext("out", A1, SCHEMA, folder.manifest.storage))
    with pytest.raises(FencedError):
        committer.commit(TransactionAttempt(3, 0), {})
    with pytest.raises(FencedError):
        committer.fence(CheckpointPosition(1, 2), takeover=True)
    assert folder.names() == named("a", 1, 2)
