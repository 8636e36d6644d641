"""Windowed bolts against a plain recount: rows out of order, late ones, rollbacks, restarts and crashes."""

import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from statefx import Checkpoint, Count, Duration, StatefulWindowedBolt, TopologyBuilder, Window, WindowedBolt
from statefx.connectors import MemoryTransactionalSpout
from statefx.errors import BoltError, CheckpointMismatchError, FailedException, TopologyError
from statefx.state.view.task_state import windows_of
from statefx.testing import Crash, TopologyTester, rows
from tests.runtime.recount import KINDS, NOON, Recount, at, secs_of, windowed

LATENESS = 5
FIELDS = "user string, at timestamp, number long"
PROVIDERS = ["memory", "rocksdb"]
FAIL = []


def fail(what):
    if what in FAIL:
        FAIL.remove(what)
        raise FailedException("not now")


class Values(WindowedBolt):
    """Keeps the numbers of a window, sorted."""

    outputFields = "user string, start timestamp, end timestamp, numbers array<long>"

    def initWindow(self):
        return []

    def addToWindow(self, value, tup):
        fail(tup.number)
        return sorted([*value, tup.number])

    def mergeWindows(self, a, b):
        a.extend(b)  # it may change the first
        return sorted(a)

    def emitWindow(self, window, value, collector):
        fail("emit")
        collector.emit((window.key, window.start, window.end, value))


class Tuples(StatefulWindowedBolt):
    """Is given the tuples of a window, and counts the windows in a state of its own."""

    outputFields = "user string, start timestamp, end timestamp, now array<long>, new array<long>, expired array<long>"

    def initState(self, state):
        self.windows = state

    def execute(self, window, collector):
        fail("emit")
        self.windows.put(window.key, self.windows.get(window.key, 0) + 1)
        parts = [sorted(tup.number for tup in part) for part in (window, window.getNew(), window.getExpired())]
        assert list(window) == window.get()
        if window.start is not None:
            assert [tup.at for tup in window] == sorted(tup.at for tup in window)
        collector.emit((window.key, window.start, window.end, *parts))


def topology(batches, bolt, per_key=True):
    builder = TopologyBuilder("windows")
    spout = MemoryTransactionalSpout(
        [[row for batch in batches for row in batch]], FIELDS, takePerBatch=len(batches[0])
    )
    builder.setSpout("rows", spout, timestamp="at", lateness=f"{LATENESS} seconds")
    bolts = builder.setBolt(
        "windows", bolt if bolt._windowing.counted else bolt.withLateTupleStream("late"), 2 if per_key else 1
    )
    _ = bolts.fieldsGrouping("rows", "user") if per_key else bolts.globalGrouping("rows")
    return builder.createTopology()


def batches_of(chance, transactions=20, rows_each=3):
    """Rows out of order, some late, some without a time, with a pause that ends all windows."""
    found, number, now = [], 0, 0
    for _ in range(transactions):
        now += chance.choice([0, 1, 2, 2, 3, 60])
        batch = []
        for _ in range(rows_each):
            secs = chance.choice([now + chance.randint(-6, 3)] * 6 + [now - chance.randint(5, 40), None])
            batch.append(
                (chance.choice("abcd"), None if secs is None else at(secs + chance.choice([0, 0.25, 0.5])), number)
            )
            number += 1
        found.append(batch)
    return found


def expected(kind, batches, per_key, values):
    recount, newest = Recount(kind), None
    for batch in batches:
        rows_of = [(user if per_key else None, secs_of(time), number) for user, time, number in batch]
        times = [secs for _, secs, _ in rows_of if secs is not None]
        newest = max([*times, *([] if newest is None else [newest])], default=None)
        recount.take(rows_of, None if newest is None else newest - LATENESS)
    wanted = [(key, start, end, *parts[: 1 if values else 3]) for key, start, end, *parts in recount.found]
    return sorted(wanted, key=repr), sorted(recount.late)


def shown(row):
    key, start, end, *parts = row
    return (key, secs_of(start), secs_of(end), *parts)


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "kind", "per_key"),
    [
        (form, kind, (number + other) % 2 == 0)
        for number, kind in enumerate(KINDS)
        for other, form in enumerate([Values, Tuples])
    ],
)
def test_windows_are_those_of_a_recount(form, kind, per_key, tmp_path):
    """With attempts that fail in the hooks, and restarts between transactions."""
    chance = random.Random(f"{form}, {kind}, {per_key}")
    batches = batches_of(chance)
    FAIL[:] = [17, "emit"]
    of = topology(batches, windowed(form(), kind), per_key)
    tester = TopologyTester(of, tmp_path / "ck", now=at(10_000), seed=chance.randint(0, 99))
    emitted, late, counted = [], [], 0
    while (sent := tester.emit()) is not None:
        emitted += map(shown, sent.emitted("windows"))
        if not kind.startswith("counted"):
            late += [(number, by) for _, _, number, by in sent.emitted("windows", "late")]
        counted += sent.progress.late.get("windows", 0)
        if chance.random() < 0.2:
            tester = tester.restart()
    wanted, late_numbers = expected(kind, batches, per_key, form is Values)
    assert sorted(emitted, key=repr) == wanted
    assert sorted(number for number, _ in late) == late_numbers
    assert counted == len(late)
    if not kind.startswith("counted"):
        assert late_numbers, "else nothing is tried"
        assert all(by is None or by >= 0 for _, by in late)
    tester.close()


class ToState(StatefulWindowedBolt):
    """Keeps each window that it is given in its state: a crash may take away what was emitted before it."""

    def initState(self, state):
        self.windows = state

    def execute(self, window, collector):
        place = window.key, secs_of(window.start), secs_of(window.end)
        assert place not in self.windows, "it comes once"
        self.windows.put(place, sorted(tup.number for tup in window))


class ValuesToState(Values):
    outputFields = None

    def initState(self, state):
        self.windows = state

    def emitWindow(self, window, value, collector):
        place = window.key, secs_of(window.start), secs_of(window.end)
        assert place not in self.windows, "it comes once"
        self.windows.put(place, value)


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 20))])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("counted")])
@pytest.mark.parametrize("form", [ToState, ValuesToState])
def test_a_crash_at_any_step_loses_no_window_and_gives_none_twice(form, kind, seed, tmp_path):
    chance = random.Random(f"{form}, {kind}, {seed}")
    batches = batches_of(chance)
    of, provider = topology(batches, windowed(form(), kind)), chance.choice(PROVIDERS)
    tester, done = None, False
    while not done:
        try:
            if tester is None:
                options = {"crash_at": chance.choice([None, chance.randint(5, 80)]), "seed": chance.randint(0, 99)}
                config = {"topology.state.provider": provider}
                tester = TopologyTester(of, tmp_path / "ck", config, now=at(10_000), **options)
            done = tester.emit() is None
            if chance.random() < 0.1:
                tester = tester.restart()
        except Crash:
            tester = None
    found = {**tester.state("windows", 0), **tester.state("windows", 1)}
    wanted, _ = expected(kind, batches, True, True)
    assert found == {(key, start, end): numbers for key, start, end, numbers in wanted}
    tester.close()


def by_clock(bolt, place, now=NOON):
    builder = TopologyBuilder("clock")
    rows_of = [("a", number) for number in range(3)]
    builder.setSpout("rows", MemoryTransactionalSpout([rows_of], "user string, number long", takePerBatch=1))
    builder.setBolt("windows", bolt).fieldsGrouping("rows", "user")
    return TopologyTester(builder.createTopology(), place, now=now)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "end"), [("tumbling", 10), ("sliding", 10), ("session", 7)])
def test_without_event_time_windows_end_by_the_clock_in_a_transaction_that_comes_by_itself(kind, end, tmp_path):
    with by_clock(windowed(Values(), kind), tmp_path, at(1)) as tester:
        for _ in range(3):
            assert tester.emit().emitted("windows") == []
        assert tester.emit() is None
        tester.advance(end - 1.001)
        assert tester.emit() is None
        tester.advance(0.001)
        assert [shown(row)[2:] for row in tester.emit().emitted("windows")] == [(end, [0, 1, 2])]
        if kind == "sliding":
            tester.advance(10)
            assert [shown(row)[2:] for row in tester.emit().emitted("windows")] == [(20, [0, 1, 2])]
        tester.advance(1000)
        assert tester.emit() is None


@pytest.mark.slow
def test_a_clock_that_is_set_back_begins_no_window_anew(tmp_path):
    with by_clock(windowed(Values(), "tumbling"), tmp_path, at(9)) as tester:
        tester.emit()
        tester.advance(1)
        assert [shown(row)[1:] for row in tester.emit().emitted("windows")] == [(0, 10, [0])]
        tester.advance(-3)
        tester.emit()
        tester.emit()
        tester.advance(13)
        assert [shown(row)[1:] for row in tester.emit().emitted("windows")] == [(10, 20, [1, 2])]


class Busiest(WindowedBolt):
    """Of the windows of all users that end together, the one with most rows."""

    outputFields = "end timestamp, user string, rows long"

    def execute(self, window, collector):
        most = max(window, key=lambda tup: (len(tup.numbers), tup.user))
        collector.emit((window.end, most.user, len(most.numbers)))


class Stamped(Values):
    outputFields = "user string, at timestamp, numbers array<long>"

    def emitWindow(self, window, value, collector):
        collector.emit((window.key, window.maxTimestamp, value))


@pytest.mark.slow
def test_windows_behind_windows_end_in_the_same_transaction(tmp_path):
    batches = batches_of(random.Random(5))
    builder = TopologyBuilder("chain")
    spout = MemoryTransactionalSpout([[row for batch in batches for row in batch]], FIELDS, takePerBatch=3)
    builder.setSpout("rows", spout, timestamp="at", lateness=f"{LATENESS} seconds")
    builder.setBolt("users", windowed(Stamped(), "sliding"), 2).fieldsGrouping("rows", "user")
    busiest = Busiest().withTumblingWindow("10 seconds").withTimestampField("at")
    builder.setBolt("busiest", busiest).globalGrouping("users")
    wanted, ends = expected("sliding", batches, True, True)[0], {}
    for user, _, end, numbers in wanted:
        ends[end] = max(ends.get(end, (0, "")), (len(numbers), user))
    with TopologyTester(builder.createTopology(), tmp_path, now=at(10_000)) as tester:
        found = {}
        while (sent := tester.emit()) is not None:
            assert not sent.progress.late.get("busiest")
            together = {secs_of(row[1]) + 1e-6 for row in sent.emitted("users")}
            assert {secs_of(row[0]) for row in sent.emitted("busiest")} == {round(end, 3) for end in together}
            found |= {secs_of(end): (rows_of, user) for end, user, rows_of in sent.emitted("busiest")}
    assert found == ends


def test_behind_dataframes_windows_end_in_the_transaction_that_brings_the_time(tmp_path):
    builder = TopologyBuilder("frames")
    builder.setStream("rows", rows(FIELDS))
    bolt = windowed(Values(), "tumbling").withTimestampField("at").withLag("5 seconds").withLateTupleStream("late")
    builder.setBolt("windows", bolt).fieldsGrouping("rows", "user")
    of = builder.createTopology()
    assert "windows: Values x 1, stateful, tumbling windows of 10 s" in of.describe()
    with TopologyTester(of, tmp_path, now=NOON) as tester:
        sent = tester.send({"rows": [("a", at(1), 1), ("a", at(30), 2), ("a", at(9), 3)]})
        assert [shown(row) for row in sent.emitted("windows")] == [("a", 0, 10, [1, 3])]
        sent = tester.send({"rows": [("a", at(9), 4), ("a", None, 5)]})
        assert sent.emitted("windows", "late") == [("a", at(9), 4, 16.0), ("a", None, 5, None)]
        assert sent.progress.as_dict()["rowsLate"] == {"windows": 2}


@pytest.mark.parametrize("kind", ["tumbling", "session", "counted"])
def test_tuples_that_were_kept_have_the_fields_of_now(kind, tmp_path):
    """A field that is new is None in older tuples, one that is gone is missing, and their order may change."""

    class Fields(WindowedBolt):
        outputFields = "rows array<string>"

        def execute(self, window, collector):
            names = window.get()[0]._names
            collector.emit(
                ([f"{names}: {[secs_of(one) if isinstance(one, datetime) else one for one in tup]}" for tup in window],)
            )

    def of(fields):
        builder = TopologyBuilder("fields")
        builder.setStream("rows", rows(fields), timestamp="at")
        builder.setBolt("windows", windowed(Fields(), kind)).globalGrouping("rows")
        return builder.createTopology()

    with TopologyTester(of("at timestamp, old long, user string"), tmp_path, now=at(100)) as tester:
        tester.send({"rows": [(at(1), 1, "a")]})
    with TopologyTester(of("user string, at timestamp, fresh long"), tmp_path, now=at(100)) as tester:
        tester.send({"rows": [("b", at(2), 2), ("b", at(100), 3)]})
        (found,) = tester.emitted("windows")[0]
    names = "('user', 'at', 'fresh')"
    assert found[:2] == [f"{names}: ['a', 1.0, None]", f"{names}: ['b', 2.0, 2]"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_values_of_windows_are_upgraded(kind, tmp_path):
    class Second(Values):
        stateVersion = 2

        def migrateState(self, version, key, value):
            assert (version, key) == (1, ("windows", "a"))
            return [number * 100 for number in value]

    def of(bolt):
        builder = TopologyBuilder("versions")
        builder.setStream("rows", rows(FIELDS), timestamp="at")
        builder.setBolt("windows", windowed(bolt, kind)).fieldsGrouping("rows", "user")
        return builder.createTopology()

    with TopologyTester(of(Values()), tmp_path, now=at(100)) as tester:
        tester.send({"rows": [("a", at(1), 1)]})
    with TopologyTester(of(Second()), tmp_path, now=at(100)) as tester:
        for number in (2, 3, 4, 5):
            tester.send({"rows": [("a", at(2 + 20 * (number > 3)), number)]})
        assert tester.emitted("windows")[0][3] == sorted([100, 2, 3][: 2 if kind == "counted, sliding" else 3])


@pytest.mark.slow
def test_other_windows_on_the_same_checkpoint_are_refused(tmp_path):
    batches = [[("a", at(1), 1)]]
    kept = "by event time for each key (string), of which values are kept"
    with TopologyTester(topology(batches, Values().withTumblingWindow("10 seconds")), tmp_path) as tester:
        tester.drain()
    with pytest.raises(CheckpointMismatchError) as error:
        TopologyTester(topology(batches, Values().withTumblingWindow(Duration(10_000_001))), tmp_path)
    assert f"has windows 'tumbling windows of 10.000001 s {kept}'" in str(error.value)
    assert f"go back to 'tumbling windows of 10 s {kept}', or give the others to a bolt" in str(error.value)
    with pytest.raises(CheckpointMismatchError, match="of which tuples are kept"):
        TopologyTester(topology(batches, Tuples().withTumblingWindow("10 seconds")), tmp_path)


@pytest.mark.slow
def test_with_another_key_windows_are_others_also_in_one_task(tmp_path):
    def of(*fields):
        builder = TopologyBuilder("keys")
        builder.setStream("rows", rows(FIELDS), timestamp="at")
        bolt = builder.setBolt("windows", windowed(Values(), "tumbling"))
        _ = bolt.fieldsGrouping("rows", *fields) if fields else bolt.globalGrouping("rows")
        return builder.createTopology()

    with TopologyTester(of("user"), tmp_path) as tester:
        tester.send({"rows": [("a", at(1), 1)]})
    with pytest.raises(CheckpointMismatchError, match="10 s by event time, of which values are kept"):
        TopologyTester(of(), tmp_path)
    with pytest.raises(CheckpointMismatchError, match=r"for each key \(string, bigint\)"):
        TopologyTester(of("user", "number"), tmp_path)


@pytest.mark.parametrize("hook", ["initWindow", "addToWindow", "mergeWindows", "emitWindow"])
def test_what_a_hook_raises_names_it(hook, tmp_path):
    def bad(self, *arguments):
        raise ValueError("no good")

    bolt = type("Bad", (Values,), {hook: bad})().withWindow("20 seconds", "10 seconds")
    batches = [[("a", at(1), 1), ("a", at(12), 1)], [("a", at(1000), 1)] * 2]
    with TopologyTester(topology(batches, bolt), tmp_path, now=at(1000)) as tester:
        wanted = "addToWindow" if hook == "initWindow" else hook
        with pytest.raises(BoltError, match=f"'windows', task ., hook {wanted}, .*no good"):
            tester.drain()


FAR = [datetime(1, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(2300, 1, 1, tzinfo=UTC)]


@pytest.mark.parametrize("form", [Values, Tuples])
@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
def test_times_that_are_far_away(form, kind, tmp_path):
    """Centuries between two rows are no work, and a row from the far future ends no windows."""
    batches = [[("a", FAR[0], 1), ("a", FAR[1], 2)], [("a", FAR[2], 3), ("a", at(0), 4)], [("a", at(100), 5)] * 2]
    with TopologyTester(topology(batches, windowed(form(), kind)), tmp_path, now=at(200)) as tester:
        tester.drain()
        found = {number for row in tester.emitted("windows") for number in row[3]}
        assert {1, 2, 4} <= found | {row[2] for row in tester.emitted("windows", "late")}
        assert 3 not in found


@pytest.mark.parametrize("key", ["double", "array<string>", "timestamp", "decimal(5,2)", "date", "binary", "boolean"])
def test_keys_of_all_kinds(key, tmp_path):
    from datetime import date
    from decimal import Decimal

    keys = {
        "double": [0.5, None],
        "timestamp": [NOON, None],
        "decimal(5,2)": [Decimal("1.50"), None],
        "date": [date(2026, 5, 1), None],
        "binary": [b"\0", b""],
        "boolean": [True, False],
    }
    builder = TopologyBuilder("keys")
    builder.setStream("rows", rows(f"key {key}, at timestamp, number long"), timestamp="at")

    class Sizes(Values):
        outputFields = f"key {key}, numbers array<long>"

        def emitWindow(self, window, value, collector):
            collector.emit((window.key, value))

    builder.setBolt("windows", Sizes().withTumblingWindow("10 seconds")).fieldsGrouping("rows", "key")
    if key == "array<string>":
        with pytest.raises(TopologyError, match="windows by 'key', of type array<string>, which is no key"):
            builder.createTopology()
        return
    one, two = keys[key]
    with TopologyTester(builder.createTopology(), tmp_path, now=at(200)) as tester:
        tester.send({"rows": [(one, at(1), 1), (two, at(1), 2)]})
        tester.send({"rows": [(one, at(1), 3), (one, at(100), 4)]})
        assert sorted(numbers for _, numbers in tester.emitted("windows")) == [[1, 3], [2]]


class Sums(WindowedBolt):
    """Adds up the numbers of a window, in Arrow."""

    outputFields = "user string, start timestamp, end timestamp, sum long, rows long"

    def executeBatch(self, batch):
        sums = pa.table(batch).group_by([*KEYS[self.per_key], "window"])
        return sums.aggregate([("number", "sum"), ([], "count_all")])

    def __init__(self, per_key):
        self.per_key = per_key

    def mergeWindows(self, a, b):
        return tuple(map(sum, zip(a, b, strict=True)))

    def emitWindow(self, window, value, collector):
        fail("emit")
        collector.emit((window.key, window.start, window.end, *value))


KEYS = {True: ["user"], False: []}


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "per_key"),
    [("tumbling", False), ("sliding", True), ("sliding, with panes of 1 s", False)],
)
def test_windows_in_arrow_batches_are_those_of_a_recount(kind, per_key, tmp_path):
    chance = random.Random(f"{kind}, {per_key}")
    batches = batches_of(chance)
    FAIL[:] = ["emit"]
    of = topology(batches, windowed(Sums(per_key), kind), per_key)
    tester = TopologyTester(of, tmp_path / "ck", now=at(10_000), seed=chance.randint(0, 99))
    emitted, late = [], []
    while (sent := tester.emit()) is not None:
        emitted += map(shown, sent.emitted("windows"))
        late += [(number, by) for _, _, number, by in sent.emitted("windows", "late")]
        if chance.random() < 0.2:
            tester = tester.restart()
    wanted, late_numbers = expected(kind, batches, per_key, True)
    sums = [(key, start, end, sum(numbers), len(numbers)) for key, start, end, numbers in wanted]
    assert sorted(emitted, key=repr) == sorted(sums, key=repr)
    assert sorted(number for number, _ in late) == late_numbers
    tester.close()


@pytest.mark.slow
def test_what_is_returned_for_a_batch_has_key_and_window(tmp_path):
    class Bare(Sums):
        def executeBatch(self, batch):
            return batch.select(["number"])

    of = topology([[("a", at(1), 1)]], Bare(True).withTumblingWindow("1 minute"))
    wanted = r"executeBatch of a windowed bolt returns a pyarrow\.Table with the columns user, window"
    with TopologyTester(of, tmp_path) as tester, pytest.raises(BoltError, match=wanted):
        tester.drain()


# ---- mistakes


class Groups(Values):
    """Keeps lists in a dict, and merges as the page says: it changes `a`, and puts parts of `b` into it."""

    outputFields = "user string, numbers array<long>"

    def initWindow(self):
        return {}

    def addToWindow(self, value, tup):
        value.setdefault("all", []).append(tup.number)
        return value

    def mergeWindows(self, a, b):
        for name, numbers in b.items():
            if name in a:
                a[name].extend(numbers)
            else:
                a[name] = numbers
        return a

    def emitWindow(self, window, value, collector):
        collector.emit((window.key, sorted(value.get("all", []))))
        value["all"].append(-1)


@pytest.mark.slow
@pytest.mark.parametrize(("length", "slide"), [("30 seconds", "10 seconds"), (Count(3), Count(1))])
def test_hooks_may_change_what_they_are_given(length, slide, tmp_path):
    """No window gets what was merged, or changed, for another one that shares a part with it."""
    batches = [[("a", at(5), 1)], [("a", at(15), 2)], [("a", at(25), 3)], [("a", at(100), 4)], [("a", at(200), 5)]]
    builder = TopologyBuilder("shared")
    spout = MemoryTransactionalSpout([[row for batch in batches for row in batch]], FIELDS, takePerBatch=1)
    builder.setSpout("rows", spout, timestamp="at")
    builder.setBolt("windows", Groups().withWindow(length, slide)).fieldsGrouping("rows", "user")
    with TopologyTester(builder.createTopology(), tmp_path, now=at(1000)) as tester:
        tester.drain()
        of_time = [[1], [1, 2], [1, 2, 3], [2, 3], [3], [4], [4], [4]]
        of_tuples = [[1], [1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
        wanted = of_tuples if isinstance(length, Count) else of_time
        assert [numbers for _, numbers in tester.emitted("windows")] == wanted


@pytest.mark.slow
def test_tuples_before_a_pause_are_not_kept_for_ever(tmp_path):
    batches = [[("a", at(100 * number), number)] for number in range(12)]
    with TopologyTester(
        topology(batches, Tuples().withTumblingWindow("10 seconds")),
        tmp_path,
        now=at(2000),
    ) as tester:
        while tester.emit() is not None:
            pass
        assert len(tester.emitted("windows")) == 11
        with Checkpoint(tmp_path).state("windows") as view:
            held = [row for state in view._opened.states.values() for row in windows_of(state, "open").items()]
        assert len(held) <= 2, "the open window, and the one before it"


@pytest.mark.slow
def test_a_clock_that_jumped_ahead_holds_only_what_came_meanwhile(tmp_path):
    with by_clock(windowed(Values(), "tumbling"), tmp_path, at(9)) as tester:
        tester.emit()
        tester.advance(86_400)
        tester.emit()  # ends the window of before; its row has the time of the wrong clock
        tester.advance(-86_400 + 20)
        tester.emit()
        tester.advance(10)
        assert tester.emit() is not None
        assert [row[3] for row in tester.emitted("windows")] == [[0], [2]]


def two_bolts(one, other, **times):
    builder = TopologyBuilder("two")
    builder.setStream("rows", rows(FIELDS), **times)
    for id, bolt in (("one", one), ("other", other)):
        builder.setBolt(id, bolt.withTumblingWindow("10 seconds")).fieldsGrouping("rows", "user")
    return builder.createTopology()


def test_two_bolts_may_say_the_same_of_a_stream_and_nothing_else():
    stamped = [Values().withTimestampField("at").withLag("5 seconds") for _ in range(2)]
    of = two_bolts(*stamped)
    assert [of.component(id).time_fields for id in ("one", "other")] == [{("rows", "default"): "at"}] * 2
    with pytest.raises(TopologyError, match="bolt 'other' and bolt 'one' say withTimestampField and withLag of 'rows'"):
        two_bolts(Values().withTimestampField("at").withLag("5 seconds"), Values().withTimestampField("at"))
    for bolts in ((Values().withTimestampField("at"), Values()), (Values(), Values().withTimestampField("at"))):
        of = two_bolts(*bolts)
        assert sorted(map(len, (of.component(id).time_fields for id in ("one", "other")))) == [0, 1]


def test_a_field_has_to_be_said_where_event_time_comes_from_further_ahead():
    def of(bolt):
        builder = TopologyBuilder("ahead")
        builder.setStream("rows", rows(FIELDS), timestamp="at")
        builder.setBolt("first", windowed(Stamped(), "tumbling")).fieldsGrouping("rows", "user")
        builder.setBolt("second", bolt.withTumblingWindow("10 seconds")).globalGrouping("first")
        return builder.createTopology()

    with pytest.raises(TopologyError, match="event time of its input 'first' comes from further ahead: say which"):
        of(Busiest())
    with pytest.raises(TopologyError, match="withLag is of no use behind 'first'"):
        of(Busiest().withTimestampField("at").withLag("5 seconds"))
    assert of(Busiest().withTimestampField("at"))


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (lambda batch: batch.drop_columns(["number"]), "not in the batch|of another type|returns a pyarrow"),
        (
            lambda batch: batch.set_column(3, "window", pa.array([None] * len(batch), batch.schema.field(3).type)),
            "not in the batch",
        ),
        (lambda batch: batch.set_column(3, "window", batch["window"].cast(pa.string())), ""),
        (lambda batch: batch.set_column(3, "window", pc.add(batch["window"], timedelta(days=1))), "not in the batch"),
        (lambda batch: batch.set_column(3, "window", batch["window"].cast(pa.timestamp("ns", "UTC"))), ""),
    ],
)
def test_windows_of_a_batch_are_those_that_it_was_given(made, wanted, tmp_path):
    class Made(Sums):
        def executeBatch(self, batch):
            return made(
                batch.drop_columns(["at"]).append_column("at", batch["at"]).select(["user", "at", "number", "window"])
            ).select(["user", "number", "window"])

        def emitWindow(self, window, value, collector):
            collector.emit((window.key, window.start, window.end, value, 1))

        def mergeWindows(self, a, b):
            return a + b

    of = topology([[("a", at(1), 7)], [("a", at(100), 8)]], Made(True).withTumblingWindow("10 seconds"))
    with TopologyTester(of, tmp_path, now=at(1000)) as tester:
        if wanted:
            with pytest.raises(BoltError):
                tester.drain()
        else:
            tester.drain()
            assert [shown(row) for row in tester.emitted("windows")] == [("a", 0, 10, 7, 1)]


NOTHING = lambda self, *arguments: None  # noqa: E731


@pytest.mark.parametrize(
    ("hooks", "wanted"),
    [
        (
            ["execute", "initWindow", "addToWindow", "emitWindow"],
            "Bad defines addToWindow, emitWindow, execute, initWindow",
        ),
        (["execute", "mergeWindows"], "Bad defines execute, mergeWindows"),
        (["initWindow", "addToWindow"], "Bad defines addToWindow, initWindow"),
        (["executeBatch", "emitWindow", "initWindow", "addToWindow"], "or executeBatch"),
        ([], "Bad defines none of its hooks"),
        (["execute", "finishBatch"], "Bad.finishBatch would never be called: a WindowedBolt has no finishBatch"),
        (["execute", "onTimer"], "has no onTimer"),
        (["execute", "executeBroadcast"], "has no executeBroadcast"),
        (["execute", "combine"], "has no combine"),
    ],
)
def test_hooks_that_do_not_fit_are_refused(hooks, wanted):
    with pytest.raises(TypeError, match=wanted):
        type("Bad", (WindowedBolt,), dict.fromkeys(hooks, NOTHING))()


@pytest.mark.parametrize(
    ("declare", "wanted"),
    [
        (lambda b: b.setBolt("w", Values()).globalGrouping("rows"), "say which windows Values has, as in Values"),
        (lambda b: b.setBolt("w", windowed(Values(), "session")).globalGrouping("rows").setTicks(5), "gets no ticks"),
        (
            lambda b: b.setBolt("w", Sums(False).withSessionWindow("1 minute")).globalGrouping("rows"),
            "defines executeBatch, and",
        ),
        (
            lambda b: b.setBolt("w", Sums(False).withWindow(Count(3))).globalGrouping("rows"),
            "defines executeBatch, and",
        ),
        (
            lambda b: b.setBolt("w", Tuples().withWindow(Count(3)).withLateTupleStream("l")).globalGrouping("rows"),
            "nothing is late",
        ),
        (
            lambda b: b.setBolt("w", windowed(Tuples(), "session").withLateTupleStream("__l")).globalGrouping("rows"),
            "__l",
        ),
        (
            lambda b: b.setBolt("w", windowed(Tuples(), "session").withTimestampField("number")).globalGrouping("rows"),
            "the field 'number' has the type bigint, and event time is a timestamp",
        ),
        (lambda b: b.setBolt("w", Tuples().withWindow("1 minute")), "a window of time needs a slide"),
        (lambda b: b.setBolt("w", Tuples().withWindow("1 minute", Count(1))), "both of time, or both a Count"),
        (lambda b: b.setBolt("w", Tuples().withWindow("1 minute", "1 hour")), "tuples between windows would be lost"),
        (lambda b: b.setBolt("w", Tuples().withTumblingWindow("soon")), "withTumblingWindow takes a time, such as"),
        (lambda b: b.setBolt("w", Tuples().withTumblingWindow(Count(0))), "Count takes a number of tuples"),
        (lambda b: b.setBolt("w", Tuples().withTumblingWindow(timedelta(0))), "above 0, and not"),
        (lambda b: b.setBolt("w", Tuples().withSessionWindow(Count(1))), "withSessionWindow takes a time"),
        (lambda b: b.setBolt("w", Tuples().withTumblingWindow("1 hour").withTumblingWindow("1 hour")), "already"),
    ],
)
def test_mistakes_are_told_before_anything_starts(declare, wanted):
    builder = TopologyBuilder("mistakes")
    builder.setStream("rows", rows(FIELDS))
    with pytest.raises(TopologyError, match=wanted):
        declare(builder) and builder.createTopology()


@pytest.mark.parametrize(
    ("hook", "kind"),
    [
        *(("addToWindow", kind) for kind in KINDS),
        *(("mergeWindows", kind) for kind in KINDS if "," in kind or kind == "sliding"),
    ],
)
def test_a_hook_that_forgets_to_return_is_told(hook, kind, tmp_path):
    def forgets(self, a, b):
        a.append(b)

    bolt = windowed(type("Forgets", (Values,), {hook: forgets})(), kind)
    batches = [[("a", at(secs), secs)] for secs in (1, 11, 12, 13, 14, 15, 1000, 2000)]
    builder = TopologyBuilder("forgets")
    spout = MemoryTransactionalSpout([[row for batch in batches for row in batch]], FIELDS)
    builder.setSpout("rows", spout, timestamp="at")
    builder.setBolt("windows", bolt).globalGrouping("rows")
    with (
        TopologyTester(builder.createTopology(), tmp_path, now=at(2000)) as tester,
        pytest.raises(BoltError, match=f"{hook} returned None: it returns the new value|has no attribute 'append'"),
    ):
        tester.drain()


def test_who_takes_a_window_for_a_tuple_is_told_what_it_has():
    with pytest.raises(
        AttributeError, match=r"a window has key, start, .* and no 'user'; fields are those of its tuples"
    ):
        _ = Window("a", None, None).user


def test_windows_by_the_clock_of_rows_that_have_a_time_are_warned_of(caplog):
    def of(**times):
        builder = TopologyBuilder("clock")
        builder.setStream("rows", rows(FIELDS))
        builder.setBolt("windows", windowed(Values(), "tumbling"), **times).globalGrouping("rows")
        return builder.createTopology()

    of()
    assert "the windows of bolt 'windows' go by the driver's clock" in caplog.text
    with pytest.raises(TopologyError, match="of what it emits has the event time, and its input has none"):
        of(timestamp="start")
