"""State of a task on S3, as in a folder: the interface is one."""

import pytest

from statefx.state import EMPTY, Retention
from statefx.storage import storage_at
from statefx.testing.site import Site, image
from statefx_memory import MemoryStateProvider
from statefx_rocksdb import RocksDbStateProvider


@pytest.fixture(params=[MemoryStateProvider, RocksDbStateProvider])
def site(request, tmp_path, bucket):
    site = Site(request.param({}), tmp_path, place=lambda root: storage_at(bucket()))
    yield site
    site.close()


@pytest.mark.slow
def test_versions_merges_snapshots_and_sweeps(site):
    site.start(1)
    site.files_max = 2
    version, expected, snapshot, history = EMPTY, {}, None, []
    for number in range(1, 25):
        changes = {b"%d" % (number % 7): b"%d" % number, b"%d" % (number % 5): None}
        version = site.commit(version, changes, snapshot=snapshot)
        expected = {key: value for key, value in {**expected, **changes}.items() if value is not None}
        history.append((version, expected))
        if number == 12:
            snapshot = site.open(version).snapshot()
    gone = site.sweep(Retention(1, version, (snapshot,), -60, since=20))
    assert gone > 0
    for at in (24, 22, 20):
        assert image(site.open(history[at - 1][0], snapshot=snapshot)) == history[at - 1][1]
    there = site.elsewhere()
    assert image(there.open(version, snapshot=snapshot)) == expected


@pytest.mark.slow
def test_what_was_prepared_is_committed_elsewhere_and_an_older_generation_is_refused(site):
    site.start(1)
    version = site.commit(EMPTY, {b"a": b"1"})
    site.start(2)
    with pytest.raises(Exception, match="generation 2 has taken over"):
        site.commit(version, {b"a": b"2"}, generation=1)
    assert image(site.open(site.commit(version, {b"b": b"2"}, generation=2))) == {b"a": b"1", b"b": b"2"}


@pytest.mark.slow
def test_an_image_larger_than_one_request_brings(site):
    changes = {b"%06d" % number: bytes(1000) for number in range(9000)}
    version = site.commit(EMPTY, dict(changes))
    assert image(site.elsewhere().open(version)) == changes
