"""A rescaling in pieces that several workers do, in any order and more than once."""

from collections import Counter
from datetime import timedelta
from math import gcd, lcm

import pyarrow as pa
import pytest

from statefx import TopologyBuilder, WindowedBolt
from statefx.admin.rescaling import pieces_of, rescale
from statefx.admin.routing import NOWHERE, Router
from statefx.errors import CheckpointError
from statefx.log.location import Folders
from statefx.operators.quarantine import GroupKeys
from statefx.operators.waiting import place_of
from statefx.plan.hashing import row_hasher
from statefx.state.contract.spaces import NameKind, Space, head_of
from statefx.state.encoding.codec import StandardCodec
from statefx.state.view.time_index import index_part, indexed_keys, time_bytes, with_timer_key
from statefx.testing import TopologyTester, rows
from tests.coordinator.changing import held, rescaled_here, send, stored
from tests.coordinator.test_rescaling import Plain, topology
from tests.coordinator.test_rescaling_blocks import Taken
from tests.runtime import test_quarantine as quarantining
from tests.runtime import test_retries as retrying
from tests.testing.topologies import SMALL, Driver


class Twice:
    """Three workers; each piece is done twice, the last one first, and what the second try returns is taken."""

    slots = 3

    def run(self, work, pieces, told):
        for piece in reversed(pieces):
            work(piece, told)
            yield work(piece, told)


class Windows(WindowedBolt):
    def execute(self, window, collector):
        pass


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


WORDS = [f"word {number}" for number in range(60)]
SCHEMA = pa.schema([("_0", pa.string())])
MAP, RULES = head_of(NameKind.MAP, "recent"), head_of(NameKind.BROADCAST, "rules")


def entries_of(was):
    """What tasks have of every kind that has no layout of its own, in the order of keys."""
    hashed, tasks = row_hasher(SCHEMA, ["_0"]), [dict[bytes, bytes]() for _ in range(was)]
    for word, group in zip(WORDS, GroupKeys(SCHEMA.types).keys([pa.array(WORDS)]), strict=True):
        own = tasks[hashed((word,)) % was]
        key, in_map = (StandardCodec(head).encode_key(word) for head in (Space.USER.value, MAP))
        own |= dict.fromkeys([key, in_map, group, place_of(group[1:], 7, 1, 0)], word.encode())
        own[with_timer_key(Space.TIMERS.value + b"p" + time_bytes(9) + b"\0name", key[1:])] = b""
        own[with_timer_key(Space.TIMERS.value + b"kp" + b"\0name", key[1:])] = time_bytes(9)
    for task, own in enumerate(tasks):
        own |= {place_of(b"", 7, number, task): b"no key" for number in range(12)}
        own |= {StandardCodec(RULES).encode_key(word): word.encode() for word in WORDS[:5]}
        if in_map := [key for key in own if key.startswith(MAP)]:
            own |= dict([index_part(Space.SYSTEM.value + MAP + time_bytes(9), in_map, task)])
    return [sorted(own.items()) for own in tasks]


def given(tasks, now, pieces):
    """What each new task is given, where pieces are done by themselves."""
    found = {}
    for piece in pieces:
        router = Router("count", ("_0",), SCHEMA, StandardCodec(), None, "moved")
        takers = {new: Taken() for new in piece.now}
        for task in piece.was:
            router.route(iter(tasks[task]), task, len(tasks), [takers.get(new, NOWHERE) for new in range(now)])
        found |= {new: sorted(taker.entries) for new, taker in takers.items()}
    return [found[new] for new in range(now)]


@pytest.mark.parametrize(("was", "now"), [(1, 5), (5, 1), (2, 4), (4, 8), (8, 4), (6, 4), (3, 4), (12, 8), (24, 12)])
def test_entries_of_every_kind_are_given_away_once_by_whichever_piece(was, now):
    tasks = entries_of(was)
    here = given(tasks, now, pieces_of(was, now, 1, together=False))
    for slots in (2, 5, 64):
        assert given(tasks, now, pieces_of(was, now, slots, together=False)) == here
    times = Counter(key for own in here for key, _ in own if key[:1] != Space.SYSTEM.value)
    assert times == {
        key: now if key.startswith(RULES) else 1 for own in tasks for key, _ in own if key[:1] != Space.SYSTEM.value
    }
    for own in here:
        indexed = [key for entry in own if entry[0][:1] == Space.SYSTEM.value for key in indexed_keys(*entry)]
        assert sorted(indexed) == [key for key, _ in own if key.startswith(MAP)]


def check_pieces(folder, place, bolt, now):
    """Rescale here, and in pieces: what is done is the same, entry by entry."""
    here, expected = rescaled_here(folder, now, place, bolt)
    done = rescale(Folders(str(folder)), None, {bolt: now}, workers=Twice())
    assert (done.tasks, done.keys, done.bytes) == (here.tasks, here.keys, here.bytes)
    assert stored(folder, bolt) == expected


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("was", "now", "provider"),
    [(4, 8, "memory"), (6, 4, "rocksdb"), (2, 4, "memory"), (2, 3, "rocksdb"), (3, 1, "memory")],
)
def test_pieces_are_together_what_one_would_have_done(place, provider, was, now):
    with Driver(place, provider) as driver:
        send(driver, range(6), topology(was), limits=SMALL)
        check_pieces(driver.folder, place, "count", now)


def held_back(folder, was):
    with quarantining.started(folder, quarantining.topology(parallelism=was)) as tester:
        quarantining.send(tester, [(word, 1) for word in WORDS])
        quarantining.send(tester, [(word, -2) for word in WORDS[::2]])
    return "orders"


def calling(folder, was):
    retrying.SERVICE.__init__()
    with retrying.started(retrying.Lists(), was, place=folder) as tester:
        tester.send({"in": [*enumerate(WORDS)]})
        retrying.SERVICE.until = retrying.NOON + timedelta(days=1)
        tester.send({"in": [*enumerate(WORDS[::2])]})
    return "asks"


def calling_without_keys(folder, was):
    retrying.SERVICE.__init__()
    retrying.SERVICE.until = retrying.NOON + timedelta(days=1)
    with retrying.started(retrying.Asks(ordered=False), was, by=None, place=folder) as tester:
        tester.send({"in": [*enumerate(WORDS)]})
    return "asks"


def in_windows(folder, was):
    builder = TopologyBuilder("windows")
    builder.setStream("rows", rows("user string, number long"))
    windows = Windows().withTumblingWindow("1 hour")
    builder.setBolt("windows", windows, was).fieldsGrouping("rows", "user")
    with TopologyTester(builder.createTopology(), folder, {"topology.state.provider": "memory"}) as tester:
        tester.send({"rows": [(word, number) for number, word in enumerate(WORDS)]})
    return "windows"


@pytest.mark.daily(4)
@pytest.mark.slow
@pytest.mark.parametrize(("was", "now"), [(4, 8), (6, 4), (3, 4)])
@pytest.mark.parametrize("fill", [held_back, calling, calling_without_keys, in_windows])
def test_what_statefx_keeps_for_a_bolt_is_in_pieces_what_it_is_here(place, fill, was, now):
    bolt = fill(place / "checkpoint", was)
    check_pieces(place / "checkpoint", place, bolt, now)


def test_few_keys_are_too_few_for_all_pieces_together(place):
    """No piece reads all tasks, so none of them can tell."""
    with Driver(place, "rocksdb") as driver:
        send(driver, range(1), topology(6, Plain))
        before = held(driver, 6)
        with pytest.raises(CheckpointError, match="with so few that may be chance"):
            rescale(Folders(str(driver.folder)), None, {"count": 3}, workers=Twice())
        assert held(driver, 6) == before
