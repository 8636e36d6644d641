"""Calls to a service on Spark: it fails some, which are tried again, and what follows is of one answer each."""

import asyncio
import os
import signal
import threading
from collections import Counter

import pytest

from statefx import AsyncBolt, StatefulAsyncBolt, TopologyBuilder, submit
from statefx.errors import FailedException
from tests.spark.bolts import Once
from tests.spark.running import feed, kinds, lines_of, state, wait_for

pytestmark = pytest.mark.slow


class Service:
    """A server on loopback, on a thread of the test: it answers a line with its length, after a while.

    Of lines with a 5 it refuses the first two calls.
    """

    def __enter__(self):
        self.calls, self.keys, self.most, self._now = Counter(), set(), 0, 0
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)))
        self._thread.start()
        assert started.wait(10)
        return self

    def __exit__(self, *error):
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    async def _serve(self, started):
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        await self._end.wait()
        server.close()

    async def _answer(self, reader, writer):
        key, text = (await reader.readline()).decode().rstrip("\n").split(" ", 1)
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0.02)
        self._now -= 1
        self.calls[text] += 1
        self.keys.add(key)
        is_refused = "5" in text and self.calls[text] <= 2
        writer.write(b"-1\n" if is_refused else f"{len(text)}\n".encode())
        writer.close()


class Ask(AsyncBolt):
    outputFields = "text string, length long"
    capacity, retries, retryDelay = 20, 5, "1200 milliseconds"

    def __init__(self, port, fail, kill):
        self.port, self.fail, self.kill = port, fail, kill

    def open(self, context):
        self.context = context

    async def execute(self, tup, collector):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"{self.context.idempotencyKey(tup)} {tup.value}\n".encode())
        length = int(await reader.readline())
        writer.close()
        if length < 0:
            raise ConnectionError("refused")
        if "7" in tup.value and self.fail:
            raise FailedException("once")
        if "3" in tup.value and self.kill is not None and self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        collector.emit((tup.value, length))


class Total(StatefulAsyncBolt):
    def initState(self, state):
        self.state = state

    async def execute(self, tup, collector):
        total = self.state.get(tup.length, 0)
        await asyncio.sleep(0.001)
        self.state.put(tup.length, total + 1)


@pytest.mark.soak
@pytest.mark.parametrize("kills", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_each_answer_counts_once(spark, place, kills):
    place.mkdir(exist_ok=True)
    texts = {name: [f"{name}{'x' * (number % 9)} {number}" for number in range(40)] for name in "ab"}
    feed(place / "in", **texts)
    with Service() as service:
        builder = TopologyBuilder("services")
        builder.setStream("lines", lines_of(spark, place / "in"))
        ask = Ask(service.port, Once(place), Once(place, "killed") if kills else None)
        builder.setBolt("ask", ask, 2).fieldsGrouping("lines", "value")
        builder.setBolt("total", Total(), 2).fieldsGrouping("ask", "length")
        config = {"topology.state.provider": "rocksdb"}
        query = submit(builder.createTopology(), spark, place / "ck", config)
        every = [text for name in texts.values() for text in name]
        waited = wait_for(lambda: query.status.get("calls") or query.exception(), "tuples to wait for another call")
        assert waited["ask"]["waiting"] > 0
        wait_for(lambda: sum(state(place / "ck", "total").values()) >= len(every) or query.exception(), "all rows")
        query.stop()
    assert state(place / "ck", "total") == Counter(map(len, every))
    assert "ROLLED_BACK" in {kind for kind, *_ in kinds(place / "ck")}
    assert sum(service.calls.values()) > len(every) == len(service.calls) == len(service.keys)
    assert service.most > 2
