"""State goes to other tasks in blocks: as it does key by key, and on disks that are full."""

import errno
import os
import random
from contextlib import ExitStack

import pyarrow as pa
import pytest

from statefx import Checkpoint
from statefx.admin.rewrite import FULL
from statefx.admin.routing import Router
from statefx.admin.sorted_files import SortedRun
from statefx.errors import CheckpointError, StateError
from statefx.plan.hashing import row_hasher
from statefx.state.contract.spaces import NameKind, Space, head_of
from statefx.state.encoding.codec import StandardCodec
from tests.coordinator.changing import held, send
from tests.coordinator.test_rescaling import topology
from tests.testing.disks import Disk
from tests.testing.topologies import SMALL, Driver

HEADS = (head_of(NameKind.MAP, "last"), Space.USER.value)


class Taken:
    def __init__(self):
        self.entries = []

    def add(self, key, value):
        self.entries.append((key, value))

    def extend(self, keys, values):
        self.entries.extend(zip(keys, values, strict=True))


def keys_of(kind, random):
    if kind == pa.string():
        return [random.choice(["user-", "é", "", "\0", "z" * 40]) + str(random.randrange(10**6)) for _ in range(1200)]
    size = 2**31 if kind == pa.int32() else 2**63
    return [0, -1, size - 1, -size, *(random.randrange(-size, size) for _ in range(1200))]


def stored(keys, was, task, hasher):
    """What a task has of keys: a map and the state itself, in order."""
    mine = [key for key in set(keys) if hasher((key,)) % was == task]
    return sorted((StandardCodec(head).encode_key(key), repr(key).encode()) for head in HEADS for key in mine)


def routed(router, entries, task, was, now, size=None):
    takers = [Taken() for _ in range(now)]
    if size is None:
        router.route(iter(entries), task, was, takers)
    else:
        blocks = [list(zip(*entries[at : at + size], strict=True)) for at in range(0, len(entries), size)]
        router.route_blocks([(list(keys), list(values)) for keys, values in blocks], task, was, takers)
    return [taker.entries for taker in takers]


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize(("was", "now"), [(2, 4), (3, 2), (2, 1)])
@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.int32()], ids=str)
def test_blocks_go_where_their_keys_go_one_by_one(kind, was, now):
    schema = pa.schema([("field", kind)])
    keys, hasher = keys_of(kind, random.Random(1)), row_hasher(schema, ["field"])
    for size in (1, 500, 5000):  # of 5000, a block has keys of the map and of the state
        one, many = (Router("count", ("field",), schema, StandardCodec(), None, "moved") for _ in range(2))
        for task in range(was):
            entries = stored(keys, was, task, hasher)
            assert routed(many, entries, task, was, now, size) == routed(one, entries, task, was, now)
        many.check_proof(was)


def test_a_block_with_one_key_that_lies_wrong_is_refused_and_the_key_is_named():
    schema = pa.schema([("field", pa.string())])
    hasher = row_hasher(schema, ["field"])
    keys = [f"user-{number:05d}" for number in range(2000)]
    wrong = next(key for key in keys[900:] if hasher((key,)) % 2 == 1)
    encode = StandardCodec(Space.USER.value).encode_key
    entries = sorted([*stored(keys, 2, 0, hasher)[-900:], (encode(wrong), b"")])
    router = Router("count", ("field",), schema, StandardCodec(), None, "moved")
    with pytest.raises(CheckpointError, match=rf"its key '{wrong}' lies in task 0, .* it belongs to task 1"):
        routed(router, entries, 0, 2, 4, len(entries))


def test_keys_of_a_map_in_blocks_need_the_same_proof():
    """A map of few keys may lie right by chance, also where these are keys of the state."""
    schema = pa.schema([("field", pa.string())])
    hasher = row_hasher(schema, ["field"])
    keys = [f"user-{number:05d}" for number in range(2000)]
    for others, proved in ((keys[:40], True), (keys[:3], False), (["page 1", "page 2", "page 3"], False)):
        router = Router("count", ("field",), schema, StandardCodec(), None, "moved")
        for task in range(2):
            of_map = [each for each in stored(others, 2, task, hasher) if each[0].startswith(HEADS[0])]
            own = [each for each in stored(keys, 2, task, hasher) if each[0].startswith(HEADS[1])]
            for part in (of_map, own):
                routed(router, part, task, 2, 4, 5000)
        if proved:
            router.check_proof(2)
        else:
            with pytest.raises(CheckpointError, match=r"it has 3 keys of state.map\('last'\), .*may be chance"):
                router.check_proof(2)


# ---- disks that are full


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "says"),
    [
        *((number, "the checkpoint needs room for the state once more. Make room, and do it again") for number in FULL),
        *((number, "see why, and do it again") for number in (errno.ENOENT, errno.EACCES, errno.EIO)),
    ],
)
def test_the_disk_of_the_checkpoint_is_full_or_refuses(place, monkeypatch, number, says):
    with Driver(place, "rocksdb") as driver:
        send(driver, range(6), topology(2), limits=SMALL)
        before = held(driver, 2)
        with monkeypatch.context() as patch:
            disk = Disk(patch, driver.folder / "state" / "count", OSError(number, os.strerror(number)))
            disk.passing, disk.left = 1, 1
            with pytest.raises(
                StateError, match=rf"cannot be written: {os.strerror(number)}\. Nothing was changed: {says}$"
            ):
                Checkpoint(driver.folder).rescale({"count": 4})
            assert disk.failed
        assert held(driver, 2) == before
        assert Checkpoint(driver.folder).rescale({"count": 4}).tasks == {"count": (2, 4)}


def test_the_disk_of_temporary_files_is_full():
    """Only when the last of it is written, or before."""
    for size in (10, 1 << 20):
        says = pytest.raises(StateError, match=r"/dev: a temporary file .*Nothing was changed.*TMPDIR")
        with says as caught, ExitStack() as stack:
            SortedRun("/dev/full", stack).extend([b"key"], [bytes(size)])
        assert caught.value.data["errno"] == errno.ENOSPC


# ---- how far it is


@pytest.mark.slow
def test_progress_ends_with_all_of_it(place):
    with Driver(place, "rocksdb") as driver:
        send(driver, range(6), topology(2), limits=SMALL)
        told = []
        done = Checkpoint(driver.folder).rescale(
            {"count": 4}, progress=lambda so_far, total: told.append((so_far, total))
        )
        assert [so_far for so_far, _ in told] == sorted(so_far for so_far, _ in told)
        assert all(so_far <= total for so_far, total in told)
        assert told[-1][0] == told[-1][1]
        read = told[-1][0] - 2 * done.bytes  # what was written was read back
        # An entry of the index by time is parted among tasks, and what all tasks hold is written for each.
        assert 0.75 * done.bytes < read <= done.bytes
