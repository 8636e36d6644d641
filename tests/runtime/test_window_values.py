"""Values of windows are the same whether a transaction ends between two tuples of a window or not."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from statefx import TopologyBuilder, WindowedBolt
from statefx.errors import StatefxError
from statefx.testing import TopologyTester, rows
from tests.runtime.recount import KINDS, at, windowed

FORMS = {
    "alone": lambda time: time,
    "tuple": lambda time: (1, time),
    "list": lambda time: [time],
    "dict": lambda time: {"at": [time]},
    "key": lambda time: {time: 1},
}


class Latest(WindowedBolt):
    """Keeps a moment in a zone, in some form."""

    outputFields = "value string"

    def __init__(self, form, zone):
        self.form, self.zone = form, zone

    def initWindow(self):
        return ()

    def addToWindow(self, value, tup):
        return FORMS[self.form](datetime(2026, 3, 28, 12, tzinfo=self.zone))

    def mergeWindows(self, a, b):
        return b

    def emitWindow(self, window, value, collector):
        collector.emit((repr(value),))


class LatestOfTuples(Latest):
    """Keeps the moment of the last tuple as it was given."""

    def addToWindow(self, value, tup):
        return FORMS[self.form](tup.at)


def windows_in(bolt, kind, folder):
    builder = TopologyBuilder("windows")
    builder.setStream("rows", rows("user string, at timestamp"), timestamp="at")
    builder.setBolt("windows", windowed(bolt, kind)).fieldsGrouping("rows", "user")
    return TopologyTester(builder.createTopology(), folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_zone_of_a_place_in_the_value_of_a_window_is_refused(form, kind, tmp_path):
    with (
        windows_in(Latest(form, ZoneInfo("Europe/Berlin")), kind, tmp_path) as tester,
        pytest.raises(StatefxError, match=r"the window of key .*ZoneInfo.*Return .astimezone\(timezone.utc\) of it"),
    ):
        tester.send({"rows": [("a", at(1))]})


@pytest.mark.parametrize("kind", KINDS)
def test_offset_in_the_value_of_a_window_is_kept(kind, tmp_path):
    with windows_in(Latest("dict", UTC), kind, tmp_path) as tester:
        tester.send({"rows": [("a", at(second)) for second in range(9)]})
        for second in (1000, 2000):
            tester.send({"rows": [("a", at(second))]})
        assert set(tester.emitted("windows")) == {(repr({"at": [datetime(2026, 3, 28, 12, tzinfo=UTC)]}),)}


@pytest.mark.parametrize("form", FORMS)
def test_the_moment_of_a_tuple_is_kept_as_it_was_given(form, tmp_path):
    with windows_in(LatestOfTuples(form, None), "tumbling", tmp_path) as tester:
        for second in (1, 2, 1000, 2000):
            tester.send({"rows": [("a", at(second))]})
        assert tester.emitted("windows")[0] == (repr(FORMS[form](at(2))),)
