"""Queries on Spark whose checkpoint is on S3: killed in each phase, and started again."""

import pytest

import statefx
from statefx import openState, submit
from statefx.errors import ConfigError
from tests.spark.bolts import recount, word_count
from tests.spark.drivers import EXPECTED, FILES, hold, log_at, published
from tests.spark.running import feed, lines_of
from tests.spark.storing import TEXTS
from tests.storage.s3_server import as_users_have_it, s3_server

pytestmark = pytest.mark.slow


@pytest.fixture
def url():
    with s3_server() as address, as_users_have_it(address) as made:
        yield made()


@pytest.mark.soak
@pytest.mark.parametrize("phase", ["PREPARING", "COMMITTING"])
def test_a_driver_that_was_killed(drivers, place, url, phase):
    feed(place / "in", **FILES)
    hold(place, phase, 1)
    first = drivers(place, more={"location": url})
    first.wait_until(lambda log: [(str(one.phase), one.txid) for one in log.in_flight] == [(phase, 2)], phase)
    assert first.kill() == (phase, 2)
    second = drivers(place, more={"location": url}).end()
    assert second["ended"]
    assert second["recoveries"]
    assert dict(openState(url, "count").items()) == EXPECTED
    assert published(place) == EXPECTED
    assert log_at(url).generation == 2
    assert not (place / "ck").exists()


@pytest.mark.soak
def test_a_driver_that_was_replaced(drivers, place, url):
    feed(place / "in", **FILES)
    hold(place, "PREPARING", 1)
    first = drivers(place, more={"location": url})
    first.wait_until(lambda log: [one.txid for one in log.in_flight] == [2], "PREPARING")
    assert drivers(place, more={"location": url}).end()["ended"]
    hold(place, "PREPARING", 0)
    assert first.end(3)["error"] == "FencedError"
    assert dict(openState(url, "count").items()) == EXPECTED
    assert published(place) == EXPECTED


def test_workers_that_can_not_read_it_are_named(spark, place, url):
    """Their environment is that of the JVM, which began before the credentials were set."""
    feed(place / "in", a=["a"])
    topology = word_count(lines_of(spark, place / "in"))
    with pytest.raises(ConfigError, match=r"can't read the checkpoint in s3://.* with a local master"):
        submit(topology, spark, url)
    assert log_at(url).generation == 0


@pytest.mark.soak
def test_a_life_with_savepoints_other_tasks_and_state_as_a_table(drivers, place, url):
    said = drivers(place, program="tests.spark.storing", more={"location": url}).end()
    two, three = (recount(line for name in names for line in TEXTS[name]) for names in ("ab", "abc"))
    assert (said["savepoint"], said["counted"]) == (2, three)
    assert said["changed"] == sorted(
        ["update" if word in two else "insert", word] for word in three if three[word] != two.get(word)
    )
    assert said["restored"] == two
    assert said["rescaled"] == {**three, "z": 7}
    assert said["partitions"] == 3
    assert statefx.verify(url).ok
