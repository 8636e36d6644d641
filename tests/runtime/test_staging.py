"""Rows of DataFrames that are staged: what was written is read, or its loss is told, and all tasks have a share."""

import base64
import errno
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefx import Topology, TopologyBuilder
from statefx.coordinator.retrying import RenewInputError
from statefx.coordinator.runs import text_for
from statefx.plan import wire
from statefx.protocol import messages
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.order import Order, SentOrder, lines_of
from statefx.protocol.reports import FailureKind
from statefx.protocol.staged import Sharing, StagedPart, orders_of
from statefx.protocol.watermark import Timing
from statefx.runtime import staging
from statefx.runtime.outlets import RowsNotWrittenError
from statefx.runtime.staging import PartLostError, PartWriter, read_part
from statefx.runtime.worker import Worker
from statefx.storage import FolderStorage
from statefx.testing import Limits, TopologyTester, feeding, rows
from statefx.testing.faults import JobFails
from tests.bolts import Pass
from tests.runtime.one_chain import chain_attempt, deployment, order_of, rows_of, run
from tests.testing.lives import seeds
from tests.testing.living import LivingTester
from tests.testing.topologies import Count, Split, lines, words

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("text", pa.string()),
        ("nested", pa.list_(pa.struct([("x", pa.binary())]))),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
AHEAD = timedelta(minutes=5)
CLOCK_MS = round(NOON.timestamp() * 1000)

TEXTS = st.one_of(st.none(), st.text(max_size=5), st.integers(0, 2000).map("x".__mul__))
NESTED = st.one_of(st.none(), st.lists(st.fixed_dictionaries({"x": st.binary(max_size=9)}), max_size=3))
TIMES = st.one_of(st.none(), st.integers(-900, 900).map(lambda secs: NOON + timedelta(seconds=secs)))
ROWS = st.lists(st.tuples(st.one_of(st.none(), st.integers(-9, 9)), TEXTS, NESTED, TIMES), max_size=20)


class Far(FolderStorage):
    """Is reached over a network, as its URL says; what is written there is compressed."""

    url = "far://away"


@st.composite
def batches(draw: st.DrawFn) -> list[pa.RecordBatch]:
    """Batches as Spark hands them over, of which some are parts of others."""
    found = []
    for of in draw(st.lists(ROWS, max_size=6)):
        columns = list(zip(*of, strict=True)) or [()] * len(SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        found.append(batch.slice(draw(st.integers(0, batch.num_rows)) if draw(st.booleans()) else 0))
    return found


@contextmanager
def storage_with(kind: type[FolderStorage] = FolderStorage, **sizes: int) -> Iterator[FolderStorage]:
    """Yield an empty storage, while parts and batches have other sizes."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name, size in sizes.items():
            patch.setattr(wire if name == "BATCH_BYTES" else staging, name, size)
        yield kind(folder, durable=False)


def written(storage: FolderStorage, given: list[pa.RecordBatch], timing: Timing | None = None) -> list[StagedPart]:
    writer = PartWriter(storage, "input/1-a", "s", 0, SCHEMA, timing, CLOCK_MS, staging.inline_bytes(1))
    for batch in given:
        writer.write(batch)
    return writer.close()


@pytest.mark.slow
@given(
    batches(), st.sampled_from([FolderStorage, Far]), st.sampled_from([1, 700, 5_000, 64 << 20]),
    st.sampled_from([0, 1_500, 32 << 10]), st.sampled_from([100, 8 << 20]),
)  # fmt: skip
def test_what_was_written_is_read_in_order_whatever_the_sizes(given, kind, part, inline, batch):
    with storage_with(kind, PART_BYTES=part, INLINE_BYTES_MAX=inline, BATCH_BYTES=batch) as storage:
        parts = [StagedPart.unpack(each.pack()) for each in written(storage, given)]
        read = [list(read_part(storage, each.share(0, each.rows))) for each in parts]
        assert pa.Table.from_batches([b for each in read for b in each], SCHEMA) == pa.Table.from_batches(given, SCHEMA)
        assert [each.rows for each in parts] == [sum(b.num_rows for b in each) for each in read]
        assert all(bool(each.content) == (each.size_bytes <= inline) == (not each.name) for each in parts)
        assert sorted(each.name for each in storage.list()) == sorted(each.name for each in parts if each.name)
        if part == 1:
            assert len(parts) == sum(map(len, read))


@pytest.mark.slow
@given(batches(), st.sampled_from([1, 64 << 20]))
def test_a_part_tells_what_times_its_rows_have(given, part):
    with storage_with(PART_BYTES=part) as storage:
        parts = written(storage, given, Timing("at", ahead_us=AHEAD // timedelta(microseconds=1)))
        for each in parts:
            times = [
                at
                for batch in read_part(storage, each.share(0, each.rows))
                for at in batch["at"].to_pylist()
                if at is not None
            ]
            counting = [at for at in times if at <= NOON + AHEAD]
            assert each.ahead == len(times) - len(counting)
            greatest = None if each.greatest_us is None else datetime.fromtimestamp(each.greatest_us / 1_000_000, UTC)
            assert greatest == max(counting, default=None)


@pytest.mark.slow
@given(st.integers(0, 1 << 20), st.sampled_from(["flipped", "cut off", "longer", "gone", "of another part"]))
def test_a_file_that_is_damaged_or_missing_is_never_read(place_in, what):
    with storage_with(INLINE_BYTES_MAX=0, PART_BYTES=1) as storage:
        batch = pa.RecordBatch.from_pylist([{"n": 1, "text": "a"}], SCHEMA)
        part, other = written(storage, [batch, batch.slice(0, 1)])
        path = Path(storage.root, part.name)
        data = bytearray(path.read_bytes())
        at = place_in % len(data)
        if what == "gone":
            path.unlink()
        elif what == "of another part":
            path.write_bytes(Path(storage.root, other.name).read_bytes() + b"\0" * (at + 1))
        else:
            data[at] ^= 1 << place_in % 8
            path.write_bytes({"flipped": data, "cut off": data[:at], "longer": data + b"\0"}[what])
        with pytest.raises(PartLostError, match=part.name):
            list(read_part(storage, part.share(0, 1)))
        assert list(read_part(storage, other.share(0, 1))) == [batch]


class Failing(FolderStorage):
    def __init__(self, root: str, number: int) -> None:
        super().__init__(root, durable=False)
        self.number = number

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        raise OSError(self.number, "the file system says so")


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.EIO, PartLostError), (errno.ESTALE, PartLostError), (errno.EMFILE, OSError), (errno.ETIMEDOUT, OSError)],
)
def test_an_error_that_lasts_loses_a_part_and_others_do_not(number, error):
    """The next attempt reads the same part, where that may help (rule 15.2)."""
    with storage_with(INLINE_BYTES_MAX=0) as storage:
        (part,) = written(storage, [pa.RecordBatch.from_pylist([{"n": 1}], SCHEMA)])
        with pytest.raises(error, match="the file system says so"):
            list(read_part(Failing(storage.root, number), part.share(0, 1)))


@pytest.mark.daily(5)
@pytest.mark.slow
@pytest.mark.parametrize("writers", [1, 500, 513, 1600, 5_000])
@pytest.mark.parametrize("sharing", Sharing)
def test_however_many_parts_are_inline_their_order_can_be_sent(writers, sharing):
    """One task may be told of all of them."""
    size = staging.inline_bytes(writers)
    assert size == staging.INLINE_BYTES_MAX or writers * size > staging.INLINE_BYTES_IN_ALL - writers
    content = base64.b64encode(bytes(size)).decode("ascii")
    parts = [StagedPart("s", number, 9, size, content) for number in range(writers)]
    order = Order(TransactionAttempt(1, 0), 1, emissions=orders_of(parts, {"s": (1, sharing)}))
    body = lines_of(order, []).encode("ascii")
    assert messages.frame(messages.FrameKind.RUN, body)


def full(path: Path) -> None:
    path.mkdir()
    (path / "input").write_bytes(b"")


@pytest.mark.parametrize("harm", [Path.touch, full])
def test_rows_that_can_not_be_written_are_told_with_the_folder(tmp_path, harm):
    harm(tmp_path / "content")
    storage = FolderStorage(tmp_path / "content", durable=False)
    with storage_with(INLINE_BYTES_MAX=0), pytest.raises(RowsNotWrittenError, match=f"{storage.root} .*make room"):
        written(storage, [pa.RecordBatch.from_pylist([{"n": 1}], SCHEMA)])


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is a part, and each part a file."""
    monkeypatch.setattr(staging, "INLINE_BYTES_MAX", 0)
    monkeypatch.setattr(feeding, "INPUT_ROWS_MAX", 1)


def files(tester: TopologyTester) -> list[Path]:
    return sorted(path for path in Path(tester._staged.root).rglob("*") if path.is_file())


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.slow
@pytest.mark.usefixtures("in_files")
@pytest.mark.parametrize("damage", [Path.unlink, cut_off])
@pytest.mark.parametrize("later", [False, True])
def test_an_attempt_over_lost_rows_is_rolled_back_and_they_are_staged_again(driver, damage, later):
    """No other attempt is made over them, also if one has read them before."""
    tester = driver.start()
    tester.send(lines("a b"))
    known = files(tester)
    batch = tester._batch(lines("a", "b c", "d"))
    lost = [path for path in files(tester) if path not in known][1]
    if later:
        tester.inject(JobFails())
        tester.when("pause", lambda: damage(lost))
    else:
        damage(lost)
    with pytest.raises(RenewInputError, match=f"{lost.name} is (missing|damaged)") as caught:
        tester._coordinator.transact(batch)
    assert caught.value.data["kind"] is FailureKind.INPUT
    assert caught.value.component == "lines"
    assert tester.steps[-1] == f"after ROLLED_BACK(2, {int(later)})"
    assert tester.state("count") == {"a": 1, "b": 1}
    assert tester.send(lines("a", "b c", "d")).txid == 2
    assert tester.state("count") == {"a": 2, "b": 2, "c": 1, "d": 1}


@pytest.mark.usefixtures("in_files")
def test_all_attempts_read_the_same_parts(driver):
    tester = driver.start()
    sent = tester.send(lines("a b", "b c", "c"), JobFails(), JobFails())
    assert sent.progress.attempt == 2
    assert tester.state("count") == {"a": 1, "b": 2, "c": 2}
    assert len(files(tester)) == 3, "staged once"


# ---- which task emits which


PARTS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(1, 7)), max_size=12)


@pytest.mark.slow
@given(PARTS, st.integers(1, 5), st.integers(1, 5), st.sampled_from(Sharing))
def test_each_row_is_in_one_share_and_those_of_a_partition_keep_their_order(sizes, a, b, sharing):
    parts = [StagedPart(*each, 1, content=f"{number}") for number, each in enumerate(sizes)]
    orders = orders_of(parts, {"a": (a, sharing), "b": (b, sharing)})
    for stream, width in (("a", a), ("b", b)):
        told = [list(orders[TaskId(stream, task)].partitions.values()) for task in range(width)]
        shares = [[(content, row) for content, _, _, *span in each for row in range(*span)] for each in told]
        own = [part for part in parts if part.stream == stream]
        every = [(part.content, row) for part in own for row in range(part.rows)]
        assert sorted(chain.from_iterable(shares)) == sorted(every)
        assert all(share == sorted(share, key=every.index) for share in shares)
        partitions = {part.partition for part in own}
        if sharing is Sharing.EVENLY or (sharing is Sharing.STAYING and len(partitions) < width):
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
        else:
            of = {part.content: part.partition for part in own}
            homes = {(of[content], task) for task, share in enumerate(shares) for content, _ in share}
            assert len(homes) == len(partitions), "the rows of each are in one task"
    assert set(orders) == {TaskId(stream, task) for stream, width in (("a", a), ("b", b)) for task in range(width)}


def wide(tasks: int) -> Topology:
    builder = TopologyBuilder("wide")
    builder.setStream("s", rows("n long, text string"))
    builder.setBolt("reader", Pass("n long, text string"), tasks).fieldsGrouping(
        "s", "n"
    )  # rows of a key must keep their order
    return builder.createTopology()


@pytest.mark.parametrize("tasks", [4, 10])
def test_each_task_of_a_stream_emits_its_share(place, monkeypatch, tasks):
    monkeypatch.setattr(feeding, "INPUT_ROWS_MAX", 1)
    made = deployment(place, wide(tasks))
    width = made.plan.components["s"].parallelism
    acks = run(Worker(), made, order_of(made, {"s": [(n, "") for n in range(31)]}))
    assert [ack.failed for ack in acks.values()] == [None] * (width + tasks)
    shares = [acks[TaskId("s", task)].emitted[0] for task in range(width)]
    assert sum(shares) == 31
    assert max(shares) - min(shares) <= 1
    assert sum(acks[TaskId("reader", task)].received[0] for task in range(tasks)) == 31


def test_parts_are_emitted_in_their_order(place, monkeypatch):
    """As the order is sent, whose text has their numbers."""
    monkeypatch.setattr(feeding, "INPUT_ROWS_MAX", 2)
    made = deployment(place, wide(1))
    order = order_of(made, {"s": [(n, "") for n in range(31)]})
    sent = SentOrder(text_for(made.plan, order, made.plan.levels[0][0]))
    schema = made.plan.streams["s"]
    found: list[int] = []
    for _, kind, _, _, payload in rows_of(chain_attempt(Worker(), made, sent).run([])):
        if kind == wire.RECORDS:
            found += wire.deserialize(payload, schema)[1]["n"].to_pylist()
    assert found == list(range(31))


@pytest.mark.slow
@pytest.mark.usefixtures("in_files")
def test_a_task_reads_on_when_what_it_has_emitted_is_sent(place, monkeypatch):
    read: list[str] = []
    reading = FolderStorage.read

    def noting(self: FolderStorage, name: str, *span: Any) -> bytes:
        read.append(name)
        return reading(self, name, *span)

    monkeypatch.setattr(FolderStorage, "read", noting)
    made = deployment(place, wide(1))
    sending = chain_attempt(Worker(), made, order_of(made, {"s": [(n, "x" * (1 << 20)) for n in range(40)]})).run([])
    assert next(sending).nbytes < wire.BATCH_BYTES + (4 << 20)
    assert len(read) < 15
    assert sum(row[2] for row in rows_of(sending) if row[1] == wire.RECORDS) > 25
    assert len(read) == 40


# ---- whatever befalls the tasks


@pytest.mark.slow
def test_chains_that_are_lost_cut_and_frozen_lose_and_double_no_row(place, monkeypatch):
    for seed in seeds(1):
        chance = random.Random(seed)
        monkeypatch.setattr(feeding, "INPUT_ROWS_MAX", chance.choice([1, 3, 100]))
        monkeypatch.setattr(staging, "INLINE_BYTES_MAX", chance.choice([0, 1 << 20]))
        builder = TopologyBuilder("staged")
        builder.setStream("lines", rows("value string"))
        split = builder.setBolt("split", Split(), chance.randint(1, 9))
        chance.choice([split.shuffleGrouping, split.allGrouping])("lines")
        builder.setBolt("count", Count(), 2).fieldsGrouping("split", "word")
        topology = builder.createTopology()
        times = 1 if topology.inputs("split")[0].grouping.kind == "shuffle" else topology.component("split").parallelism
        work = [lines(*(" ".join(chance.choices("abcde", k=2)) for _ in range(chance.randint(0, 8)))) for _ in range(6)]
        config = {"topology.transaction.attempts.max": 1000}
        limits = Limits(pauses=10_000)
        with LivingTester(topology, place / str(seed), config, seed=seed, breaks=True, limits=limits) as tester:
            for each in work:
                tester.send(each)
            tester.wake()
            assert tester.state("count") == {word: n * times for word, n in words(work).items()}
