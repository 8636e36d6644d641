"""Rows that wait in quarantine when a bolt groups its rows otherwise, or gets other tasks: none may be lost."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from statefx import Checkpoint, ReplayDeadLetters, TopologyBuilder
from statefx.errors import CheckpointError
from statefx.log.log import read_state
from statefx.operators.quarantine import GroupKeys
from statefx.plan.hashing import row_hasher
from statefx.storage import FolderStorage
from statefx.testing import TopologyTester, rows
from tests.bolts import Ignores, WithState

FIELDS = "key string, size long, n long"
KEYS = [f"key {number}" for number in range(40)]
MENDED = set()


class Orders(WithState):
    def key(self, tup):
        return tup.key

    def execute(self, tup, collector):
        self.state.put(self.key(tup), [*self.state.get(self.key(tup), []), tup.n])
        if tup.n < 0 and tup.n not in MENDED:
            raise ValueError(f"no order {tup.n}")


class Sized(Orders):
    stateVersion = 2

    def migrateState(self, version, key, value):
        return value

    def migrateKey(self, version, key):
        return key, len(key)

    def groupingKey(self, key):
        return key

    def key(self, tup):
        return tup.key, tup.size


def topology(bolt, parallelism, *fields):
    builder = TopologyBuilder("orders")
    builder.setStream("live", rows(FIELDS))
    builder.setStream("letters", rows("row string, number long"))
    builder.setBolt("again", ReplayDeadLetters(FIELDS, quarantined=True)).globalGrouping("letters")
    orders = builder.setBolt("orders", bolt, parallelism, onError="quarantineKey")
    orders.fieldsGrouping("live", *fields).fieldsGrouping("again", *fields)
    builder.setBolt("read", Ignores()).shuffleGrouping("orders", stream="deadLetter")
    return builder.createTopology()


def started(place, given, **more):
    return TopologyTester(given, place, {"topology.state.provider": "memory"}, **more)


def send(tester, n=None, letters=()):
    """Send a row of each key, and letters; return the letters of the transaction."""
    live = [] if n is None else [(key, len(key), n) for key in KEYS]
    sent = tester.send({"live": live, "letters": list(letters)})
    return [(letter[0], letter[-1]) for letter in sent.emitted("orders", "deadLetter")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bolt", "was", "now"), [(Sized, 2, 2), (Sized, 2, 3), (Sized, 1, 1), (Orders, 1, 1), (Orders, 2, 1)]
)
def test_a_bolt_with_keys_in_quarantine_keeps_its_grouping_until_they_are_free(tmp_path, bolt, was, now):
    """They are written as the fields of the grouping: with other fields, no row that waits would be found again."""
    MENDED.clear()
    place, change = tmp_path / "ck", {"rescale": was != now}
    with started(place, topology(Orders(), was, "key")) as tester:
        send(tester, 1)
        letters = send(tester, -2) + send(tester, 3)
    generation = read_state(FolderStorage(place)).generation
    with pytest.raises(CheckpointError, match=r"can't group its rows otherwise .*of its key 'key \d+'.*quarantined"):
        started(place, topology(bolt(), now, "key", "size"), **change)
    assert read_state(FolderStorage(place)).generation == generation
    assert len(list(Checkpoint(place).quarantined("orders"))) == len(KEYS)

    MENDED.add(-2)
    with started(place, topology(Orders(), was, "key")) as tester:
        assert send(tester, letters=letters) == []
    with started(place, topology(bolt(), now, "key", "size"), **change) as tester:
        assert send(tester, 4) == []
        found = tester.state("orders")
        assert list(found.values()) == [[1, -2, 3, 4]] * len(KEYS)


PAIRS = pa.struct([("x", pa.float32()), ("-0.0", pa.string())])
SAME = [
    (pa.float64(), [0.0, -0.0]),
    (pa.list_(pa.float64()), [[0.0, -0.0, -0.05, -0.0], [-0.0, 0.0, -0.05, 0.0]]),
    (PAIRS, [{"x": 0.0, "-0.0": '\\"-0.0'}, {"x": -0.0, "-0.0": '\\"-0.0'}]),
]
OTHERS = [
    (pa.float64(), [-0.05, 0.0, -1e-9, float("nan"), float("-inf"), 5e-324, None]),
    (pa.string(), ["-0.0", "0.0", "", "\0", "\U0001f600", '"', "\\", None]),
    (pa.int64(), [-(2**63), 2**63 - 1, 0, -1]),
    (pa.binary(), [b"", b"\0", b"\xff"]),
    (pa.bool_(), [True, False, None]),
    (pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
    (pa.timestamp("us", tz="UTC"), [datetime(1, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)]),
    (pa.timestamp("us"), [datetime(1969, 12, 31, 23, 59, 59, 1), datetime(9999, 12, 31)]),
    (pa.decimal128(5, 2), [Decimal("-0.05"), Decimal("0.00"), Decimal("999.99")]),
    (pa.decimal128(38, 10), [Decimal(-(10**20)), Decimal("1e-10")]),
]


@pytest.mark.parametrize(("kind", "given", "keys"), [(*each, 1) for each in SAME] + [(*e, len(e[1])) for e in OTHERS])
def test_a_key_is_kept_as_the_hash_of_the_grouping_takes_it(kind, given, keys):
    """By what is kept `rescale` finds the task; and values that are one to the grouping are one key."""
    form, hasher = (
        GroupKeys([kind, pa.string()]),
        row_hasher(pa.schema([("_0", kind), ("_1", pa.string())]), ["_0", "_1"]),
    )
    columns = [pa.array(given, kind), pa.array(["-0.0"] * len(given))]
    stored = form.keys(columns)
    assert len(set(stored)) == keys
    for key, value in zip(stored, columns[0].to_pylist(), strict=True):
        assert hasher(form.fields(key)) == hasher((value, "-0.0"))
        assert form.fields(key)[1] == "-0.0"
