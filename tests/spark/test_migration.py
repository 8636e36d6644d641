"""State of a topology on Spark that is moved: the stream goes on with the next file, and nothing is counted twice."""

import pytest

from statefx import migrate, openState, submit
from statefx.errors import CheckpointMismatchError, FencedError
from tests.providers.redis_server import RedisServer
from tests.spark.bolts import recount, word_count
from tests.spark.running import feed, kinds, lines_of, run

pytestmark = pytest.mark.slow

TEXTS = {name: [f"{name} b c {number % 7}" for number in range(50)] for name in "abcde"}
ONCE = {"availableNow": True}


def test_a_stream_goes_on_after_each_migration(spark, place):
    with RedisServer(appendonly="no") as server:
        (place / "in").mkdir()
        url = {"url": server.url}
        topology = word_count(lines_of(spark, place / "in"))
        configs = [
            {"topology.state.provider": name, "topology.state.provider.config": options}
            for name, options in (("memory", {}), ("redis", url), ("rocksdb", {}))
        ]
        seen = []
        for number, config in enumerate(configs):
            for name in "abcde"[2 * number : 2 * number + 2]:
                feed(place / "in", **{name: TEXTS[name]})
                seen += TEXTS[name]
            run(topology, spark, place / "ck", config, trigger=ONCE)
            with openState(place / "ck", "count", config=config) as view:
                assert dict(view.items()) == recount(seen)
            if number == 0:
                assert migrate(place / "ck", "redis", url).keys == len(recount(seen))
            elif number == 1:
                assert migrate(place / "ck", "rocksdb", source=url).keys == len(recount(seen))
        assert [txid for kind, txid, _ in kinds(place / "ck") if kind == "COMMITTING"] == [1, 2, 3, 4, 5]
        with pytest.raises(CheckpointMismatchError, match="written with 'rocksdb'"):
            submit(topology, spark, place / "ck", configs[1], trigger=ONCE)


def test_a_query_that_runs_is_fenced(spark, place):
    feed(place / "in", a=TEXTS["a"])
    topology = word_count(lines_of(spark, place / "in"))
    query = submit(topology, spark, place / "ck", trigger={"processingTime": "100 milliseconds"})
    query.processAllAvailable()
    migrate(place / "ck", "rocksdb")
    feed(place / "in", b=TEXTS["b"])
    with pytest.raises(FencedError):
        query.awaitTermination(60)
    run(topology, spark, place / "ck", {"topology.state.provider": "rocksdb"}, trigger=ONCE)
    with openState(place / "ck", "count") as view:
        assert (view.txid, dict(view.items())) == (2, recount(TEXTS["a"] + TEXTS["b"]))
