"""Records that retention takes while a reader is in the middle of them: each is handed out, or told, once."""

import pytest

from statefx.connectors.kafka import reading
from statefx.connectors.kafka.reading import Readers, Span
from statefx.connectors.kafka.rows import TopicPartition
from tests.spouts.kafka_topologies import QUICK, lines, spout, trim

pytestmark = pytest.mark.slow


def test_a_gap_over_two_ranges_is_told_of_both(kafka):
    topic = kafka.topic()
    kafka.send(topic, *lines(0, 300))
    reads, gone = spout(kafka, topic), []
    readers = Readers(reads.clients, "group", 20.0, lambda place, start, first: gone.append((start, first)))

    def offsets(start, end):
        span = Span(TopicPartition(topic, 0), readers.topic_id(topic), start, end)
        return [offset for part in readers.read(span, reads.rows.wanted) for offset in part.offsets]

    trim(kafka, topic, 150)
    assert offsets(0, 100) == []
    assert gone == [(0, 100)]
    assert offsets(100, 200) == list(range(150, 200))
    assert gone == [(0, 100), (100, 150)]
    readers.close()


def test_what_comes_together_with_a_gap_is_handed_out(kafka, monkeypatch):
    """The client has records of before the gap in its queue, and tells of the gap behind them."""
    monkeypatch.setattr(reading, "ROWS", 1)  # one part for each take
    monkeypatch.setattr(reading, "TAKEN", 40)
    topic = kafka.topic()
    for _ in range(30):  # a fetch returns whole batches of a producer
        kafka.send(topic, *["x" * 1_000] * 10)
    config = QUICK | {"queued.min.messages": 100, "fetch.message.max.bytes": 5_000}
    reads, gone = spout(kafka, topic, config=config), []
    readers = Readers(reads.clients, "group", 20.0, lambda place, start, first: gone.append((start, first)))
    span = Span(TopicPartition(topic, 0), readers.topic_id(topic), 0, 300)
    parts = readers.read(span, reads.rows.wanted)
    seen = next(parts).offsets
    for _ in range(20):  # meanwhile the client fills its queue again
        readers.topic_id(topic)
    trim(kafka, topic, 290)
    for part in parts:
        seen += part.offsets
        for _ in range(20):
            readers.topic_id(topic)
    assert len(gone) == 1
    assert seen == [*range(gone[0][0]), *range(290, 300)]
    readers.close()
