"""Exceptions of users' code, as the driver keeps them: named, counted, bounded, without values in tracebacks."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statefx import BasicBolt, TopologyBuilder
from statefx.coordinator.progress import EXCEPTIONS_KEPT, MESSAGE_SHOWN, Progress, described
from statefx.errors import AttemptsExhaustedError, BoltError, FailedException
from statefx.operators.user_errors import bolt_error, frames_of, user_traceback
from statefx.testing import TopologyTester, rows


def raised(message, cause=None):
    try:
        try:
            if cause is not None:
                raise KeyError(cause)
        except KeyError as error:
            raise ValueError(message) from error
        raise ValueError(message)
    except ValueError as error:
        return error


SECRET = "4711-0815"


@pytest.mark.slow
@given(st.text(max_size=50), st.text(max_size=50))
@example("\nTraceback (of a letter)\n  File 4711-0815", "")
@example("two\nlines: 4711-0815", "\n\n  4711-0815")
def test_the_frames_of_a_traceback_have_no_text_of_an_exception(message, cause):
    error = raised(f"{SECRET}{message}", cause)
    found = frames_of(user_traceback(error))
    assert SECRET not in found
    frames = [line for line in found.splitlines() if line.startswith("  File ")]
    assert len(frames) == 2
    assert [line for line in found.splitlines() if line in ("KeyError", "ValueError")] == ["KeyError", "ValueError"]


def test_a_text_that_is_no_traceback_has_no_frames():
    assert frames_of(f"no traceback: {SECRET}\n  {SECRET}") == ""


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def progress():
    return Progress(now=Clock())


def test_an_exception_that_is_raised_again_is_counted_and_newest(progress):
    def error(number):
        return bolt_error(ValueError(f"no {number}"), "count", number, "execute", 7)

    for number in (1, 2, 1):
        progress.now.now = float(number)
        progress.raised(error(number))
    again = error(3)
    progress.raised(again)
    progress.raised(again)  # the very same object, as the query ends by it
    assert [(each["task"], each["message"], each["count"]) for each in progress.exceptions] == [
        (2, "no 2", 1), (1, "no 1", 2), (3, "no 3", 1),
    ]  # fmt: skip
    assert progress.exceptions[1]["at"] == "1970-01-01T00:00:01.000+00:00"


def test_the_last_are_kept_and_are_plain_data(progress):
    for number in range(3 * EXCEPTIONS_KEPT):
        progress.raised(bolt_error(ValueError(str(number) * MESSAGE_SHOWN), "count", number, "execute", 7))
    found = progress.exceptions
    assert [each["task"] for each in found] == list(range(2 * EXCEPTIONS_KEPT, 3 * EXCEPTIONS_KEPT))
    assert {*found[0]} == {"at", "component", "task", "type", "message", "traceback", "count"}
    assert all(len(each["message"]) <= MESSAGE_SHOWN for each in found)
    assert json.loads(json.dumps(found)) == found


def test_what_a_call_on_the_driver_raises_has_the_component_and_no_task():
    found = described(raised("x"), "out")
    assert (found["component"], found["task"], found["type"], found["message"]) == ("out", None, "ValueError", "x")
    assert "in raised" in found["traceback"]
    of_driver = described(bolt_error(ValueError("x"), "numbers", -1, "planPartitionBatch", 7, "spout"))
    assert (of_driver["component"], of_driver["task"]) == ("numbers", None)


class Refuses(BasicBolt):
    def __init__(self, kind):
        self.kind = kind

    def execute(self, tup, collector):
        raise self.kind(f"the feed is stale: {tup.word}")


@pytest.mark.parametrize(
    ("kind", "ends"), [(ValueError, BoltError), (FailedException, AttemptsExhaustedError)], ids=["raised", "failed"]
)
def test_the_exceptions_of_a_bolt_name_it_and_its_line(kind, ends, place):
    builder = TopologyBuilder("words")
    builder.setStream("words", rows("word string"))
    builder.setBolt("refuses", Refuses(kind)).globalGrouping("words")
    with TopologyTester(builder.createTopology(), place) as tester, pytest.raises(ends):
        tester.send({"words": [(SECRET,)]})
    (found,) = tester._progress.exceptions
    assert (found["component"], found["task"], found["type"]) == ("refuses", 0, kind.__name__)
    assert "the feed is stale" in found["message"]
    lines = found["traceback"].splitlines()
    assert lines[1].endswith(", in execute")
    assert SECRET not in found["traceback"]
    assert found["count"] >= 1
