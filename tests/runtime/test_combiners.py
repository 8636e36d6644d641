"""Combiners: whatever is added up before it is sent, the results are those of the rows one by one."""

import tempfile
from collections import Counter
from contextlib import suppress
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statefx import BasicBolt, TopologyBuilder
from statefx.connectors import CollectSink, MemoryTransactionalSpout
from statefx.errors import BoltError, FailedException
from statefx.runtime import outlets
from statefx.testing import Crash, TopologyTester, rows
from statefx.testing.faults import JobFails
from tests.bolts import Pass, WithState

WORD, COUNTED = "word string", "word string, count long"


class Count(WithState):
    """Counts words of which each comes once."""

    def execute(self, tup, collector):
        self.state.put(tup.word, self.state.get(tup.word, 0) + 1)

    def prePrepare(self, txid):
        if txid == 2 and not self.context.attempt and self.context.config.get("fails"):
            raise FailedException("once")


class Sum(Count):
    combinedFields = COUNTED

    def execute(self, tup, collector):
        self.state.put(tup.word, self.state.get(tup.word, 0) + tup["count"])


class ByTuple(Sum):
    def initCombine(self, tup):
        return tup.word, 1

    def combine(self, a, b):
        return a.word, a["count"] + b["count"]


class ByBatch(Sum):
    def combineBatch(self, batch):
        return counted(batch)


class Vectorised(ByBatch):
    def executeBatch(self, batch, collector):
        for word, count in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            self.state.put(word, self.state.get(word, 0) + count)


class Split(BasicBolt):
    outputFields = COUNTED

    def execute(self, tup, collector):
        collector.emit((tup.word, 1))


class Merge(Sum):
    combinedFields = None

    def combine(self, a, b):
        return a._replace(count=a["count"] + b["count"])


def counted(batch):
    return pa.Table.from_batches([batch]).group_by("word").aggregate([([], "count_all")]).rename_columns(
        ["word", "count"]
    )  # fmt: skip


def spout(data, take=100):
    return MemoryTransactionalSpout([[(word,) for word in part] for part in data], WORD, take)


def topology(bolt, data, tasks=2, readers=2, take=100, *, behind=None, grouping="fieldsGrouping"):
    builder = TopologyBuilder("words")
    builder.setSpout("words", spout(data, take), parallelism=tasks)
    source = "words"
    if behind is not None:
        builder.setBolt("behind", behind, parallelism=tasks).localOrShuffleGrouping("words")
        source = "behind"
    getattr(builder.setBolt("count", bolt, parallelism=readers), grouping)(source, "word")
    return builder.createTopology()


def expected(data):
    return dict(Counter(word for part in data for word in part))


PARTS = st.lists(st.lists(st.sampled_from([None, "", "a", "b", "ä", "long" * 9]), max_size=30), min_size=1, max_size=4)
BOLTS = [(ByTuple, None), (ByBatch, None), (Vectorised, None), (Merge, Split), (ByBatch, partial(Pass, WORD))]


@pytest.mark.daily(2)
@pytest.mark.slow
@pytest.mark.parametrize(("bolt", "behind"), BOLTS)
@settings(max_examples=12)
@given(data=PARTS, tasks=st.integers(1, 4), readers=st.integers(1, 4), held=st.sampled_from([1, 200, 1 << 20]))
def test_results_are_those_of_the_rows_one_by_one(bolt, behind, data, tasks, readers, held):
    """Several transactions, of which the second one fails once; what is held is let go soon, or at the end."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as place:
        patch.setattr(outlets, "GATHERED_BYTES", held)
        patch.setattr(outlets, "SUMS_BYTES", held)
        behind = behind and behind()
        wired = topology(bolt(), data, tasks, readers, take=9, behind=behind)
        with TopologyTester(wired, place, {"fails": True}) as tester:
            tester.drain()
            assert tester.state("count") == expected(data)
            # Of an empty partition, one transaction says that it is finished.
            assert tester.txid == max(1, *(-(-len(part) // 9) for part in data))


def test_inputs_with_other_fields_are_added_up_to_the_same_sums(tmp_path):
    class Both(Sum):
        def initCombine(self, tup):
            return (tup.word, 10 * tup["count"]) if tup._source == "split" else (tup.word, 1)

        def combine(self, a, b):
            return [a.word, a["count"] + b["count"]]

    builder = TopologyBuilder("words")
    builder.setSpout("words", spout([["a", "b", "a"]]))
    builder.setBolt("split", Split()).shuffleGrouping("words")
    builder.setBolt("count", Both()).fieldsGrouping("words", "word").fieldsGrouping("split", "word")
    with TopologyTester(builder.createTopology(), tmp_path) as tester:
        assert tester.emit().progress.rows["count"] == 4
        assert tester.state("count") == {"a": 22, "b": 11}


def test_a_combiner_works_ahead_of_the_transactions_that_are_ordered(tmp_path):
    """It is part of the first job: with several in flight, what it raises fails the transaction that it ran for."""

    class FailsAhead(ByBatch):
        tried = 0

        def combineBatch(self, batch):
            type(self).tried += 1
            if type(self).tried == 2:
                raise FailedException("the second")
            return super().combineBatch(batch)

    data = [["a", "b", "a", "c"]]
    with TopologyTester(topology(FailsAhead(), data, take=1), tmp_path, {"topology.max.spout.pending": 3}) as tester:
        tester.drain()
        assert tester.state("count") == expected(data)
        assert FailsAhead.tried > len(data[0])


@pytest.mark.parametrize("grouping", ["fieldsGrouping", "partialKeyGrouping"])
def test_sums_are_sent_and_rows_are_counted(grouping, tmp_path):
    """Of 300 rows in two tasks, six go over the edge; the progress tells of both."""
    data = [["a", "b", "c"] * 50, ["a", "b", "c"] * 50]
    wired = topology(ByBatch(), data, take=1000, grouping=grouping)
    with TopologyTester(wired, tmp_path) as tester:
        sent = tester.emit()
        assert sent.progress.input_rows == 300
        assert sent.progress.rows["count"] == 6
        total = Counter()
        for task in range(2):
            total.update(tester.state("count", task))
        assert total == expected(data)


def test_only_the_edge_of_the_bolt_that_combines_is_added_up(tmp_path):
    seen = CollectSink()
    data = [["a", "b", "a"], ["a"]]
    builder = TopologyBuilder("words")
    builder.setSpout("words", spout(data), parallelism=2)
    builder.setBolt("rows", Count()).fieldsGrouping("words", "word")
    builder.setBolt("sums", ByTuple()).fieldsGrouping("words", "word")
    builder.setSink("seen", seen).globalGrouping("words")
    with TopologyTester(builder.createTopology(), tmp_path) as tester:
        sent = tester.emit()
        assert tester.state("rows") == tester.state("sums") == expected(data)
        assert sent.progress.input_rows == 4
        assert {name: sent.progress.rows[name] for name in ("rows", "sums", "seen")} == {
            "rows": 4,
            "sums": 3,
            "seen": 4,
        }


@pytest.mark.parametrize("bolt", [ByTuple, ByBatch])
def test_rows_of_a_dataframe_are_added_up_where_they_are_emitted(bolt, tmp_path):
    """They are the sums that the bolt gets, whatever it reads; another reader gets the rows."""
    builder = TopologyBuilder("words")
    builder.setStream("words", rows(WORD))
    builder.setBolt("count", bolt(), parallelism=2).fieldsGrouping("words", "word")
    builder.setBolt("rows", Count(), parallelism=2).fieldsGrouping("words", "word")
    with TopologyTester(builder.createTopology(), tmp_path) as tester:
        sent = tester.send({"words": [("a",), ("b",), ("a",)] * 10})
        assert tester.state("count") == tester.state("rows") == {"a": 20, "b": 10}
        assert sent.progress.input_rows == sent.progress.rows["rows"] == 30
        assert sent.progress.rows["count"] <= 4


class PassOn(BasicBolt):
    outputFields = COUNTED
    combinedFields = COUNTED
    combineBatch = ByBatch.combineBatch

    def execute(self, tup, collector):
        assert (tup._source, tup._stream) == ("words", "default")
        collector.emit(tup)


@pytest.mark.parametrize("grouping", ["localOrShuffleGrouping", "shuffleGrouping", "globalGrouping", "allGrouping"])
def test_batches_are_added_up_by_any_grouping_also_inside_a_chain(grouping, tmp_path):
    data = [["a", "b", "a"], ["a"]]
    builder = TopologyBuilder("words")
    builder.setSpout("words", spout(data), parallelism=2)
    getattr(builder.setBolt("sums", PassOn(), parallelism=2), grouping)("words")
    with TopologyTester(builder.createTopology(), tmp_path) as tester:
        sent = tester.emit()
        times = 2 if grouping == "allGrouping" else 1
        assert sent.progress.rows["sums"] == 3 * times
        found = Counter()
        for word, count in tester.emitted("sums"):
            found[word] += count
        assert found == {word: times * count for word, count in expected(data).items()}


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("pending", [1, 3])
def test_a_crash_at_any_moment_loses_and_doubles_nothing(pending, tmp_path, monkeypatch):
    monkeypatch.setattr(outlets, "GATHERED_BYTES", 30)
    data = [["a", "b", "a", "c", "a", "a", "b"], ["a", "b", "b", "b"]]
    config = {"topology.max.spout.pending": pending, "fails": True}
    moment = 0
    while True:
        moment += 2 * pending
        crashed = False
        try:
            TopologyTester(topology(ByBatch(), data, take=4), tmp_path / str(moment), config, crash_at=moment).drain()
        except Crash:
            crashed = True
        with TopologyTester(topology(ByBatch(), data, take=4), tmp_path / str(moment), config) as successor:
            successor.drain()
            assert successor.state("count") == expected(data), f"crash at moment {moment}"
        if not crashed:
            assert moment > 15
            return


def test_a_run_that_is_lost_takes_with_it_what_was_added_up(tmp_path):
    words = ["a", "b", "a"] * 10 + ["a", "c"]
    builder = TopologyBuilder("words")
    builder.setStream("words", rows(WORD))
    builder.setBolt("split", Pass(WORD), 2).shuffleGrouping("words")
    builder.setBolt("count", ByTuple(), 2).fieldsGrouping("split", "word")
    with TopologyTester(builder.createTopology(), tmp_path) as tester:
        sent = tester.send({"words": [(word,) for word in words]}, JobFails())
        assert tester.state("count") == Counter(words)
        assert sent.progress.attempt == 1


@pytest.mark.slow
def test_what_a_task_holds_has_a_limit(tmp_path, monkeypatch):
    """However many rows a transaction has, `combineBatch` is given no more than the limit, and one batch."""
    monkeypatch.setattr(outlets, "GATHERED_BYTES", 4000)
    given = []

    class Noting(ByBatch):
        def combineBatch(self, batch):
            given.append(batch.nbytes)
            return super().combineBatch(batch)

        def __deepcopy__(self, memo):
            return self

    data = [["word"] * 20_000]
    with TopologyTester(topology(Noting(), data, take=100_000), tmp_path) as tester:
        tester.drain()
        assert tester.state("count") == expected(data)
    assert len(given) > 1
    assert max(given) < sum(given)


class Raises(ByTuple):
    def combine(self, a, b):
        raise ValueError("no sum")


class Forgets(ByTuple):
    def combine(self, a, b):
        a["count"] + b["count"]


class Lowers(ByTuple):
    def combine(self, a, b):
        return a.word.lower(), a["count"] + b["count"]


class TooWide(ByTuple):
    def initCombine(self, tup):
        return tup.word, 1, None


class Misfit(ByTuple):
    def combine(self, a, b):
        return a.word, 1.5


class RaisesBatch(ByBatch):
    def combineBatch(self, batch):
        raise ValueError("no sum")


class Returns(ByBatch):
    def __init__(self, make):
        self.make = make

    def combineBatch(self, batch):
        return self.make(batch)


@pytest.mark.parametrize(
    ("bolt", "hook", "words"),
    [
        (Raises(), "combine", ["ValueError: no sum", "test_combiners.py"]),
        (Forgets(), "combine", ["returned None", "return a tuple of word, count"]),
        (Lowers(), "combine", ["sum of 'a' of rows of 'A'", "(word) stay as they are"]),
        (TooWide(), "initCombine", ["('A', 1, None)", "return a tuple of word, count"]),
        (Misfit(), "combine", ["1.5", "`count bigint`"]),
        (RaisesBatch(), "combineBatch", ["ValueError: no sum", "test_combiners.py"]),
        (Returns(lambda batch: None), "combineBatch", ["returned None", "RecordBatch or a Table"]),
        (Returns(lambda batch: batch), "combineBatch", ["fields word,", "word, count", "combinedFields"]),
        (
            Returns(lambda batch: pa.table({"word": ["A"], "count": ["many"]})),
            "combineBatch",
            ["many"],
        ),
        (
            Returns(lambda batch: pa.table({"word": ["a"], "count": [2]})),
            "combineBatch",
            ["'a' as word", "stay as they are"],
        ),
        (
            Returns(lambda batch: pa.table({"word": ["A"] * 9, "count": [1] * 9})),
            "combineBatch",
            ["made 9 rows of 2"],
        ),
    ],
)  # fmt: skip
def test_what_goes_wrong_names_the_bolt_and_the_hook(bolt, hook, words, tmp_path):
    with TopologyTester(topology(bolt, [["A", "A"]], tasks=1), tmp_path) as tester, pytest.raises(BoltError) as error:
        tester.emit()
    text = str(error.value)
    assert f"spout 'words', task 0, hook {hook} of bolt 'count', transaction 1: " in text
    assert all(word in text for word in words), text


def test_a_combiner_may_fail_a_transaction(tmp_path):
    class FailsOnce(ByTuple):
        attempts = 0

        def combine(self, a, b):
            type(self).attempts += 1
            if type(self).attempts == 1:
                raise FailedException("not yet")
            return super().combine(a, b)

    with TopologyTester(topology(FailsOnce(), [["a", "a"]]), tmp_path) as tester:
        assert tester.emit().progress.attempt == 1
        assert tester.state("count") == {"a": 2}


def test_a_bolt_that_goes_on_after_an_error_of_its_combiner_loses_no_row(tmp_path, monkeypatch):
    """The error comes out of whichever `emit` fills a batch, and again at the end."""
    monkeypatch.setattr(outlets, "GATHERED_BYTES", 1)

    class GoesOn(BasicBolt):
        outputFields = WORD

        def executeBatch(self, batch, collector):
            with suppress(BoltError):
                collector.emitBatch(batch)

    wired = topology(RaisesBatch(), [["a"] * 9], behind=GoesOn())
    with TopologyTester(wired, tmp_path) as tester, pytest.raises(BoltError, match="no sum"):
        tester.emit()
