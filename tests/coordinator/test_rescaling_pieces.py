"""A rescaling in pieces that several workers do, in any order and more than once."""

from math import gcd, lcm

import pytest

from statefx.admin.rescaling import pieces_of, rescale
from statefx.errors import CheckpointError
from statefx.log.location import Folders
from tests.coordinator.changing import held, rescaled_here, send
from tests.coordinator.test_rescaling import Plain, topology
from tests.testing.topologies import SMALL, Driver


class Twice:
    """Three workers; each piece is done twice, the last one first, and what the second try returns is taken."""

    slots = 3

    def run(self, work, pieces, told):
        for piece in reversed(pieces):
            work(piece, told)
            yield work(piece, told)


@pytest.mark.parametrize("slots", [1, 2, 4, 7])
@pytest.mark.parametrize(("was", "now"), [(1, 5), (5, 1), (2, 4), (4, 2), (6, 4), (3, 4), (12, 8), (64, 96)])
def test_each_new_task_is_written_once_by_one_who_reads_all_that_may_have_its_keys(was, now, slots):
    pieces = pieces_of(was, now, slots, together=False)
    assert sorted(task for piece in pieces for task in piece.now) == list(range(now))
    of = {task: piece for piece in pieces for task in piece.now}
    for hashed in range(lcm(was, now)):
        assert hashed % was in of[hashed % now].was
    assert len(pieces) >= min(slots, now)
    if gcd(was, now) >= slots:
        assert sorted(task for piece in pieces for task in piece.was) == list(range(was)), "no task is read twice"


def test_what_belongs_to_a_task_is_read_for_all_of_the_new_ones():
    for piece in pieces_of(4, 6, 3, together=True):
        assert list(piece.was) == [0, 1, 2, 3]


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("was", "now", "provider"), [(2, 4, "memory"), (6, 4, "rocksdb"), (2, 3, "rocksdb"), (3, 1, "memory")]
)
def test_pieces_are_together_what_one_would_have_done(place, provider, was, now):
    with Driver(place, provider) as driver:
        send(driver, range(6), topology(was), limits=SMALL)
        here, expected = rescaled_here(driver, now, place)
        done = rescale(Folders(str(driver.folder)), None, {"count": now}, workers=Twice())
        assert (done.tasks, done.keys, done.bytes) == (here.tasks, here.keys, here.bytes)
        assert held(driver, now) == expected


def test_few_keys_are_too_few_for_all_pieces_together(place):
    """No piece reads all tasks, so none of them can tell."""
    with Driver(place, "rocksdb") as driver:
        send(driver, range(1), topology(6, Plain))
        before = held(driver, 6)
        with pytest.raises(CheckpointError, match="with so few that may be chance"):
            rescale(Folders(str(driver.folder)), None, {"count": 3}, workers=Twice())
        assert held(driver, 6) == before
