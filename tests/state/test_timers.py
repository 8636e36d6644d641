"""Timers as state: what fires, in which order, and what a rollback takes back, against plain Python."""

import random
from datetime import UTC, datetime, timedelta, timezone

import pytest

from statefx import KeyValueState
from statefx.errors import CodecError
from statefx.state import EMPTY, Codec
from statefx.state.view import time_index as timers_module
from statefx.state.view.time_index import EPOCH, Clock, Timers, due_micros, fire, micros
from statefx.testing.site import Site
from statefx_memory import MemoryStateProvider

CLOCKS = [False, True]


def at(secs):
    return EPOCH + timedelta(seconds=secs)


def clock_of(processing):
    return Clock.PROCESSING if processing else Clock.EVENT


class Reference:
    """Timers as a dict; what fires is found by looking at all of them."""

    def __init__(self):
        self.timers = {}

    def copy(self):
        other = Reference()
        other.timers = dict(self.timers)
        return other

    def fire(self, processing, limit):
        while True:
            due = [
                (time, key, name, value)
                for (each, key, name), (time, value) in self.timers.items()
                if each == processing and time <= limit
            ]
            if not due:
                return
            time, key, name, value = min(due)
            del self.timers[processing, key, name]
            yield key, time, value, name


def change(chance, timers, reference, now):
    key, name, processing = chance.choice("abcd"), chance.choice(["", "x"]), chance.choice(CLOCKS)
    if chance.random() < 0.75:
        time, value = now + chance.randint(-3, 12), chance.choice([None, 1, [2], "v"])
        timers.set(key, at(time), value, name=name, processing=processing)
        reference.timers[processing, key, name] = time, value
    else:
        assert timers.delete(key, name=name, processing=processing) == (
            reference.timers.pop((processing, key, name), None) is not None
        )
    found = timers.get(key, name=name, processing=processing)
    known = reference.timers.get((processing, key, name))
    assert found == (None if known is None else at(known[0]))


@pytest.mark.daily(16)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(15))
def test_random_timers_against_plain_python(checkpoint, seed):
    chance = random.Random(seed)
    state, version, txid, now = None, EMPTY, 0, 0
    committed = Reference()
    for _ in range(25):
        if state is None or chance.random() < 0.3:
            if state is not None:
                state.close()
            state = KeyValueState(checkpoint.store(version), version=version)
        timers, reference = Timers(state), committed.copy()
        for _ in range(chance.randint(0, 6)):
            change(chance, timers, reference, now)
        now += chance.randint(0, 4)
        for processing in CLOCKS:
            expected = reference.fire(processing, now)
            for timer in fire(timers, clock_of(processing), micros(at(now))):
                key, time, value, name = next(expected)
                assert timer == (key, at(time), value, name, processing)
                if chance.random() < 0.4:  # sets and deletes timers while they fire, for times passed and to come
                    change(chance, timers, reference, now)
            assert next(expected, None) is None
            times = [time for (each, *_), (time, _) in reference.timers.items() if each == processing]
            due = due_micros(timers, clock_of(processing))
            assert (due is None) <= (not times)
            assert due is None or not times or due <= micros(at(min(times)))
        if chance.random() < 0.3:
            state.rollback()
            continue
        txid += 1
        state.prepareCommit(txid)
        state.commit(txid)
        committed, version = reference, state.version
    state.close()


def test_timers_are_apart_from_the_state(checkpoint):
    state = KeyValueState(checkpoint.store())
    timers = Timers(state)
    timers.set("a", at(1), "value")
    assert not state
    assert "a" not in state
    assert list(state.names()) == []
    state.put("a", 1)
    assert [timer.value for timer in fire(timers, Clock.EVENT, micros(at(1)))] == ["value"]
    assert dict(state.items()) == {"a": 1}


@pytest.mark.parametrize(
    "time", [datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC), at(0.000001), at(-1)]
)
def test_times_come_back_to_the_microsecond(checkpoint, time):
    state = KeyValueState(checkpoint.store())
    timers = Timers(state)
    timers.set(("k", 1), time)
    assert timers.get(("k", 1)) == time
    assert list(fire(timers, Clock.EVENT, micros(time) - 1)) == []
    assert [timer.at for timer in fire(timers, Clock.EVENT, micros(time))] == [time]
    assert due_micros(timers, Clock.EVENT) is None


def test_what_can_not_be_a_timer_is_refused(checkpoint):
    timers = Timers(KeyValueState(checkpoint.store()))
    with pytest.raises(TypeError, match="a timer's time is a datetime"):
        timers.set("a", 5)
    with pytest.raises(ValueError, match="needs a time zone"):
        timers.set("a", datetime(2020, 1, 1))
    with pytest.raises(CodecError, match="the timer of key 'a'"):
        timers.set("a", at(1), object())
    with pytest.raises(CodecError):
        timers.set({1}, at(1))
    assert list(fire(timers, Clock.EVENT, micros(at(5)))) == []


def test_a_transaction_without_due_timers_reads_none(checkpoint, monkeypatch):
    state = KeyValueState(checkpoint.store())
    timers = Timers(state)
    for number in range(100):
        timers.set(number, at(1000 + number))
    assert list(fire(timers, Clock.EVENT, micros(at(1)))) == []
    scans = []
    monkeypatch.setattr(type(state._reads), "scan", lambda *_: scans.append(1) or iter(()))
    for secs in range(2, 50):
        timers.set("again", at(2000 + secs))
        assert list(fire(timers, Clock.EVENT, micros(at(secs)))) == []
        assert due_micros(timers, Clock.EVENT) == micros(at(1000))
    assert not scans


class TextCodec(Codec):
    """A user's own, whose keys order as texts do and whose values may be empty."""

    name = "text"

    def encode_key(self, key):
        return str(key).encode()

    def decode_key(self, data):
        return data.decode()

    def encode_value(self, value):
        return str(value).encode()

    def decode_value(self, data):
        return data.decode()


def test_timers_and_lists_under_a_codec_of_the_users(tmp_path):
    site = Site(MemoryStateProvider({}), tmp_path)
    state = KeyValueState(site.open(), TextCodec())
    timers = Timers(state)
    timers.set("a", at(1), "")
    timers.set("b", at(2))
    state.list("list").extend(range(12))
    state.value("value").put("")
    state.map("map").put(7, "seven")
    state.prepareCommit(1)
    state.commit(1)
    again = KeyValueState(site.open(state.version), TextCodec(), version=state.version)
    assert [(timer.key, timer.value) for timer in fire(Timers(again), Clock.EVENT, micros(at(5)))] == [
        ("a", ""),
        ("b", None),
    ]
    assert [*again.list("list")] == [str(number) for number in range(12)]
    again.list("list").append("new")
    assert again.list("list").truncate(3) == 10
    assert [*again.list("list")] == ["10", "11", "new"]
    assert again.value("value").get() == ""
    assert dict(again.map("map").items()) == {"7": "seven"}
    site.close()


# ---- times at the ends


ENDS = [
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),
    datetime.min.replace(tzinfo=timezone(timedelta(minutes=1))),
]


@pytest.mark.parametrize("beyond", ENDS)
@pytest.mark.parametrize("processing", [False, True])
def test_a_time_that_utc_does_not_have_is_refused(checkpoint, beyond, processing):
    timers = Timers(KeyValueState(checkpoint.store()))
    with pytest.raises(ValueError, match=r"datetime\.max\.replace\(tzinfo=UTC\)"):
        timers.set("k", beyond, processing=processing)
    assert timers.get("k", processing=processing) is None


@pytest.mark.parametrize("end", [datetime.min, datetime.max])
def test_the_ends_of_utc_are_times_like_others(checkpoint, end):
    timers = Timers(KeyValueState(checkpoint.store()))
    timers.set("k", end.replace(tzinfo=UTC))
    assert timers.get("k") == end.replace(tzinfo=UTC)
    assert [timer.at for timer in fire(timers, Clock.EVENT, (1 << 63) - 1)] == [end.replace(tzinfo=UTC)]


@pytest.mark.parametrize("beyond", ENDS)
def test_a_checkpoint_with_a_time_beyond_the_ends_fires_it(checkpoint, beyond, monkeypatch):
    """Such timers could be set once, and ended each start."""
    monkeypatch.setattr(timers_module, "_FIRST_US", -(1 << 62))
    monkeypatch.setattr(timers_module, "_LAST_US", 1 << 62)
    timers = Timers(KeyValueState(checkpoint.store()))
    timers.set("k", beyond)
    nearest = max(min(datetime.max.replace(tzinfo=UTC), timers.get("k")), datetime.min.replace(tzinfo=UTC))
    assert timers.get("k") == nearest
    assert [timer.at for timer in fire(timers, Clock.EVENT, (1 << 63) - 1)] == [nearest]
