"""What RedisSink writes into a list, a stream and a hash of a real server, read by its client."""

import pyarrow as pa
import pytest

from statefx.operators.json_values import JsonRows
from statefx_redis import RedisSink
from tests.connectors.round_trips import RoundTrips
from tests.providers.redis_server import RedisServer


@pytest.fixture(scope="module")
def server():
    with RedisServer(appendonly="no") as server:
        yield server


class InRedis(RoundTrips):
    kind = "list"

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, server):
        cls.server = server

    def sink(self, place, schema):
        return RedisSink(self.server.url, f"rows-{place}", kind=self.kind)

    def texts(self, client, name):
        return client.lrange(name, 0, -1)

    def read(self, place, schema):
        texts = self.texts(self.server.client(), f"rows-{place}")
        return pa.Table.from_batches([JsonRows(schema).decode(texts)])


class TestList(InRedis):
    pass


class TestStream(InRedis):
    kind = "stream"

    def texts(self, client, name):
        return [entry[b"row"] for _, entry in client.xrange(name)]
