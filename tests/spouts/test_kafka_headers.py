"""Headers that Kafka's client can't read, in a record that its own library has written to its own mock of a broker."""

import ctypes

import confluent_kafka
import pytest
from confluent_kafka import Consumer, TopicPartition

from statefx.connectors.kafka.rows import Bytes, Records, Rows, traces_of

TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TOPIC, VALUE, HEADERS, FLAGS, COPY = 1, 4, 10, 7, 2
"""Of librdkafka's ``rd_kafka_producev``."""


@pytest.fixture
def messages():
    """Return two messages: the name of the first one's header is not UTF-8."""
    lib, pointer, size = ctypes.CDLL(confluent_kafka.cimpl.__file__), ctypes.c_void_p, ctypes.c_size_t
    for name in ("conf_new", "new", "mock_cluster_new", "headers_new"):
        getattr(lib, f"rd_kafka_{name}").restype = pointer
    lib.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p

    def producer(**settings):
        conf, said = pointer(lib.rd_kafka_conf_new()), ctypes.create_string_buffer(512)
        for name, value in settings.items():
            assert lib.rd_kafka_conf_set(conf, name.replace("_", ".").encode(), value.encode(), said, size(512)) == 0
        return pointer(lib.rd_kafka_new(0, conf, said, size(512)))

    owner = producer(bootstrap_servers="127.0.0.1:1")
    cluster = pointer(lib.rd_kafka_mock_cluster_new(owner, 1))
    servers = lib.rd_kafka_mock_cluster_bootstraps(cluster).decode()
    lib.rd_kafka_mock_topic_create(cluster, b"t", 1, 1)
    writer = producer(bootstrap_servers=servers)
    number = ctypes.c_int
    for name, value in ((b"\xff\xfe", b"bad"), (b"traceparent", TRACE)):
        headers = pointer(lib.rd_kafka_headers_new(size(1)))
        lib.rd_kafka_header_add(headers, name, ctypes.c_ssize_t(-1), value, ctypes.c_ssize_t(-1))
        lib.rd_kafka_producev(
            writer, number(TOPIC), b"t", number(VALUE), value, size(len(value)), number(FLAGS), number(COPY),
            number(HEADERS), headers, number(0),
        )  # fmt: skip
        assert lib.rd_kafka_flush(writer, 20_000) == 0
    reader = Consumer({"bootstrap.servers": servers, "group.id": "g"})
    reader.assign([TopicPartition("t", 0, confluent_kafka.OFFSET_BEGINNING)])
    yield reader.consume(2, 30)
    reader.close()
    lib.rd_kafka_destroy(writer)
    lib.rd_kafka_mock_cluster_destroy(cluster)
    lib.rd_kafka_destroy(owner)


@pytest.mark.slow
def test_a_name_that_is_not_utf_8_refuses_its_record_alone_and_only_where_headers_are_read(messages):
    """The client raises, and at the next call returns a list with a hole in it."""
    assert [message.value() for message in messages] == [b"bad", TRACE]
    assert traces_of(messages) == [TRACE.decode()], "before the rows, and of the same messages"
    for columns, offsets in ((["value"], []), (["value", "headers"], [0]), (["headers"], [0])):
        rows = Rows(Bytes("value"), "bytes", columns)
        records = Records(rows.wanted)
        records.add(messages)
        batch, refused = rows.of(TopicPartition("t", 0), records)
        assert [each.offset for each in refused] == offsets
        assert len(batch) == 2 - len(offsets)
        assert all("not UTF-8" in each.reason for each in refused)
