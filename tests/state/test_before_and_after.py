"""What state gives back is the same before and after a commit, and in another process: for each kind of value and key.

Else what a bolt computes would depend on where its transactions end.
"""

from collections import namedtuple
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statefx.errors import CodecError
from statefx.state.view.task_state import broadcasting
from statefx.state.view.time_index import EPOCH, Clock, Timers, fire

Point = namedtuple("Point", "x y")


class Level(IntEnum):
    LOW = 1


class Word(str):
    pass


class Whole(int):
    pass


ZONES = st.one_of(
    st.none(),
    st.sampled_from([UTC, timezone(timedelta(0), "GMT"), timezone(timedelta(hours=1), "CET")]),
    st.sampled_from(["Europe/Berlin", "Asia/Kathmandu", "UTC", "America/St_Johns"]).map(ZoneInfo),
    st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23))),
)
FOLDED = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([0.0, -0.0, float("nan"), 5e-324]),
    st.decimals(),
    st.sampled_from([Decimal(text) for text in ("1.50", "-0", "0E+3", "1E+2", "NaN", "-NaN7", "sNaN", "Infinity")]),
    st.text(st.characters()),
    st.binary(max_size=9),
    st.dates(),
    st.datetimes(timezones=ZONES),
    st.sampled_from([FOLDED, FOLDED.replace(fold=1), datetime.min.replace(tzinfo=UTC), datetime.max]),
    st.timedeltas(),
    # state refuses these
    st.sampled_from([Level.LOW, Word("a"), Whole(1), np.float64(1.5), np.int64(1), np.str_("a"), frozenset({1})]),
    st.sampled_from([bytearray(b"a"), memoryview(b"a"), 1j, np.datetime64("2026-01-01")]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(Point, inner, inner),
        st.dictionaries(st.text(max_size=2), inner, max_size=2),
    ),
    max_leaves=6,
)
KEYS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)


def shown(value):
    """Say all of a value that code can see: types, zones, signs and the forms of numbers."""
    if isinstance(value, tuple | list):
        return type(value).__name__, getattr(value, "_fields", None), [shown(each) for each in value]
    if isinstance(value, dict):
        return [(shown(key), shown(each)) for key, each in value.items()]
    if isinstance(value, datetime):
        later = None
        with suppress(OverflowError):
            later = repr(value + timedelta(days=1))
        return repr(value), later, value.tzname(), value.fold
    return type(value).__name__, repr(value)


def seen(state):
    """Return all that can be seen of a state, by each way that leads there."""
    keys = list(state.keys())
    ways = {
        "items": state.items(),
        "reverse": state.items(reverse=True),
        "get": [(key, state.get(key)) for key in keys],
        "[]": [(key, state[key]) for key in keys],
        "getAll": state.getAll(keys).items() if keys else (),
    }
    return {way: [(shown(key), shown(value)) for key, value in entries] for way, entries in ways.items()}


FILL = {
    "put": lambda state, entries: [state.put(*entry) for entry in entries],
    "put twice": lambda state, entries: [state.put(*entry) for entry in entries * 2],
    "putAll": lambda state, entries: state.putAll(dict(entries)),
}


def looks(checkpoint, fill, look, last=None):
    """Return what is seen of a state when it is filled, prepared and committed, and in the next process."""
    state = checkpoint.open(clock_ms=0)
    fill(state)
    found = [look(state)]
    state.prepareCommit(1)
    found.append(look(state))
    state.commit(1)
    found.append(look(state))
    version = state.version
    state.close()
    state = checkpoint.open(version, clock_ms=0)
    found += [look(state), (last or look)(state)]
    state.close()
    return found


SETTINGS = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("key", [-0.0, (-0.0, "a")])
def test_a_key_of_zero_is_one_before_and_after_a_commit(key, checkpoint_at, tmp_path):
    found = looks(checkpoint_at(tmp_path), lambda state: state.put(key, 1), seen)
    assert found == [found[-1]] * 5
    assert found[0]["items"] == [(shown(0.0 if key == 0 else (0.0, "a")), shown(1))]


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["state", "map", "map with ttl"])
@SETTINGS
@given(data=st.data())
def test_state_gives_the_same_back_before_and_after_a_commit(name, checkpoint_at, tmp_path_factory, data):
    checkpoint = checkpoint_at(tmp_path_factory.mktemp("checkpoint"))
    entries = data.draw(st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=3))
    way = data.draw(st.sampled_from(sorted(FILL)))

    def within(state):
        options = {"ttl": timedelta(days=1)} if name == "map with ttl" else {}
        return state if name == "state" else state.map("m", **options)

    def fill(state):
        with suppress(CodecError, TypeError):  # refused, or no key of a dict; what came before it counts
            FILL[way](within(state), entries)

    first, *others = looks(checkpoint, fill, lambda state: seen(within(state)))
    for look in others:
        assert look == first


@pytest.mark.slow
@SETTINGS
@given(values=st.lists(VALUES, min_size=1, max_size=3))
def test_lists_values_and_timers_are_the_same_after_a_commit(checkpoint_at, tmp_path_factory, values):
    def fill(state):
        timers = Timers(state)
        broadcasting(state, on=True)
        for number, value in enumerate(values):
            for change in (
                lambda value=value: state.list("l").append(value),
                lambda value=value: state.value("v").put(value),
                lambda value=value: state.broadcast("b").put(1, value),
                lambda value=value, number=number: timers.set(number, EPOCH, value),
                lambda value=value: timers.set(value, EPOCH, 1, name="by key"),
            ):
                with suppress(CodecError):
                    change()

    def look(state):
        timers = Timers(state)
        get = state.value("v").get
        fired = [timers.get(number) for number in range(len(values))]
        return shown([list(state.list("l")), [get(), get()], state.broadcast("b").get(1), fired])

    def fires(state):
        return shown([list(timer) for timer in fire(Timers(state), Clock.EVENT, 1)])

    checkpoint = checkpoint_at(tmp_path_factory.mktemp("checkpoint"))
    first, *others = looks(checkpoint, fill, look)
    for other in others:
        assert other == first
    checkpoint = checkpoint_at(tmp_path_factory.mktemp("checkpoint"))
    *_, after = looks(checkpoint, fill, lambda _: None, fires)
    state = checkpoint_at(tmp_path_factory.mktemp("checkpoint")).open(clock_ms=0)
    fill(state)
    assert fires(state) == after
    state.close()
