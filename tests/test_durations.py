"""Lengths of time: one parser, and everywhere that one is given it takes the same spellings, or names them."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefx import Duration, IntervalJoin, Spout, StatefulBolt, TopologyBuilder, WindowedBolt
from statefx.config import NOT_WRITTEN, SPELLINGS, micros_of, seconds_of
from statefx.errors import ConfigError, TopologyError
from statefx.operators.joins import interval_micros
from statefx.spark.submit import _checked_trigger
from statefx.state.view.time_index import milliseconds_of
from statefx.testing import rows

UNITS = {
    1e-6: ["us", "microsecond", "microseconds"],
    1e-3: ["ms", "millisecond", "milliseconds"],
    1: ["s", "sec", "secs", "second", "seconds", "SECONDS"],
    60: ["m", "min", "mins", "minute", "minutes", "Minutes"],
    3600: ["h", "hr", "hrs", "hour", "hours"],
    86400: ["d", "day", "days"],
    604800: ["w", "week", "weeks"],
}
WRONG = [
    "9" * 400 + " s",
    "",
    "soon",
    "10",
    "minutes",
    "10 parsecs",
    "3 months",
    "1 year",
    "-5 minutes",
    "5 minutes and",
    "1e3 s",
    "\u0661 s",
]


class Messages(Spout):
    outputFields = "at timestamp, n long"

    def nextTuple(self, collector):
        pass


class Windows(WindowedBolt):
    outputFields = "n long"

    def execute(self, window, collector):
        pass


class Keep(StatefulBolt):
    def initState(self, state):
        pass

    def execute(self, tup, collector):
        pass


def stream(**more):
    TopologyBuilder("t").setStream("s", rows("at timestamp"), timestamp="at", **more)


GIVEN = {
    "lateness": lambda text: stream(lateness=text),
    "maxAhead": lambda text: stream(maxAhead=text),
    "idleAfter": lambda text: TopologyBuilder("t").setSpout("s", Messages(), timestamp="at", idleAfter=text),
    "dedup": lambda text: TopologyBuilder("t").setSpout("s", Messages(), dedup=text),
    "withTumblingWindow": lambda text: Windows().withTumblingWindow(text),
    "withWindow": lambda text: Windows().withWindow(text, text),
    "withSessionWindow": lambda text: Windows().withSessionWindow(text),
    "withLag": lambda text: Windows().withLag(text),
    "between": lambda text: IntervalJoin("a", "b", "k", ("0 seconds", text), "k"),
    "ttl": lambda text: milliseconds_of(text, "state.map('recent')"),
    "trigger": lambda text: _checked_trigger({"processingTime": text}, 1000),
}


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.integers(1, 999), st.sampled_from([(n, u) for n, us in UNITS.items() for u in us])),
        min_size=1,
        max_size=3,
    )
)
def test_terms_add_up_with_or_without_spaces(terms):
    wanted = sum(number * factor for number, (factor, _) in terms)
    for gap, between in ((" ", " "), ("", " "), ("  ", "")):
        text = between.join(f"{number}{gap}{unit}" for number, (_, unit) in terms)
        assert seconds_of(text) == pytest.approx(wanted)
        assert seconds_of(f" interval {text} ") == pytest.approx(wanted)


@pytest.mark.parametrize("text", ["10 minutes", "30 min", "2m", "1 hour 30 minutes", "500 ms", "interval 5 seconds"])
@pytest.mark.parametrize("call", GIVEN)
def test_every_call_takes_every_spelling(call, text):
    GIVEN[call](text)


@pytest.mark.parametrize("text", WRONG)
@pytest.mark.parametrize("call", GIVEN)
def test_every_call_names_the_spellings_of_what_it_refuses(call, text):
    if (call, text) == ("between", "-5 minutes"):
        text = "-soon"
    with pytest.raises((TopologyError, ConfigError, ValueError)) as raised:
        GIVEN[call](text)
    assert SPELLINGS in str(raised.value)
    assert NOT_WRITTEN in str(raised.value)


LENGTHS = [timedelta(minutes=10), Duration.minutes(10)]


@pytest.mark.parametrize("length", LENGTHS, ids=lambda length: type(length).__name__)
@pytest.mark.parametrize("call", GIVEN)
def test_every_call_takes_a_timedelta_and_a_duration_as_the_text(call, length):
    GIVEN[call](length)


@pytest.mark.parametrize("length", [timedelta(microseconds=-1), 10, True, None, b"1 s", 0.5, timedelta(hours=-1)])
@pytest.mark.parametrize("call", GIVEN)
def test_every_call_refuses_what_is_no_length(call, length):
    if isinstance(length, timedelta) and call == "between":
        return  # a bound of a join may be negative
    if (length is None and call in ("idleAfter", "dedup")) or (call == "ttl" and length in (10, 0.5)):
        return  # none is given; a ttl may be a number of seconds
    if call == "withWindow" and length is None:
        length = 10  # without a slide, it says what it needs
    with pytest.raises((TopologyError, ConfigError, ValueError, TypeError), match="a timedelta"):
        GIVEN[call](length)


@given(st.integers(1, 10**15))
def test_a_length_is_the_same_in_all_three_forms(micros):
    written = f"{micros} us"
    assert micros_of(written) == micros_of(timedelta(microseconds=micros)) == micros_of(Duration(micros)) == micros


@pytest.mark.slow
@given(st.integers(0, 10**9))
def test_event_time_keeps_every_microsecond_of_a_lateness(micros):
    builder = TopologyBuilder("t")
    builder.setStream("s", rows("at timestamp"), timestamp="at", lateness=timedelta(microseconds=micros))
    builder.setBolt("keep", Keep()).fieldsGrouping("s", "at")
    assert builder.createTopology().component("s").timings["default"].lateness_us == micros


def test_lengths_of_no_use_are_refused_in_every_form():
    for more in ({"idleAfter": timedelta(0)}, {"lateness": timedelta(minutes=1)}, {"maxAhead": Duration.hours(1)}):
        with pytest.raises(TopologyError, match=f"{next(iter(more))} needs event time"):
            TopologyBuilder("t").setStream("s", rows("at timestamp"), **more)


@pytest.mark.parametrize("call", GIVEN)
def test_a_length_of_zero_is_taken_or_refused_by_its_reason(call):
    if call in ("lateness", "withLag", "between", "trigger"):
        for text in ("0 seconds", "0s", "0 min", timedelta(0)):
            GIVEN[call](text)
    else:
        with pytest.raises((TopologyError, ValueError), match="above 0, and not '0 min'"):
            GIVEN[call]("0 min")


def test_bounds_of_a_join_may_be_negative():
    assert interval_micros("-5m") == interval_micros(timedelta(minutes=-5)) == -300_000_000
    with pytest.raises(TopologyError, match="two lengths of time"):
        interval_micros("-1 hour 30 minutes")


@pytest.mark.parametrize(
    ("fields", "write"), [((["a"],), '"a"'), ((["a", "b"],), '"a", "b"'), ((), '"word"'), ((5,), '"word"')]
)
@pytest.mark.parametrize("name", ["fieldsGrouping", "partialKeyGrouping"])
def test_fields_in_a_list_are_refused_with_the_call(name, fields, write):
    builder = TopologyBuilder("t")
    with pytest.raises(TopologyError) as raised:
        getattr(builder.setBolt("keep", Keep()), name)("in", *fields)
    assert f'write {name}("in", {write})' in str(raised.value)
