"""Lag, rates and ETA, from what spouts say of how far they are."""

import pytest

from statefx.connectors.kafka.planning import distances
from statefx.connectors.kafka.rows import TopicPartition
from statefx.metrics.lag import PARTITIONS_MAX, WINDOW_SECS, Lag


def kafka(read, latest):
    """What Kafka's spouts say."""
    return distances({TopicPartition("t", 0): read}, {TopicPartition("t", 0): latest})


def test_rates_and_eta_follow_from_offsets():
    lag = Lag()
    for second in range(11):
        assert lag.take(kafka(300 * second, 10_000 + 100 * second), float(second))
    told = lag.as_dict()
    assert told["lagRecords"] == 8000
    assert told["rateIn"] == pytest.approx(100)
    assert told["rateOut"] == pytest.approx(300)
    assert told["etaSecs"] == pytest.approx(40)
    assert told["lagSecs"] == pytest.approx(80)
    assert told["partitions"] == [{"partition": "t-0", "lagRecords": 8000}]


def test_a_spout_that_falls_behind_has_no_eta():
    lag = Lag()
    for second in range(3):
        lag.take({"lagRecords": 10 * second + 10}, float(second))
    assert lag.as_dict()["etaSecs"] is None
    assert lag.as_dict()["lagRecords"] == 30
    assert lag.as_dict()["rateIn"] is None


def test_a_spout_that_has_caught_up_is_not_behind():
    lag = Lag()
    lag.take(kafka(5, 5), 0.0)
    assert (lag.as_dict()["lagSecs"], lag.as_dict()["etaSecs"]) == (0, 0)


def test_rates_are_of_the_last_minute_and_few_looks_are_kept():
    lag = Lag()
    for step in range(10_000):
        lag.take(kafka(step, step), step / 10)
    assert len(lag._looks) <= WINDOW_SECS + 2
    assert lag.as_dict()["rateOut"] == pytest.approx(10)


def test_only_the_partitions_furthest_behind_are_told():
    lag = Lag()
    lag.take({"lagRecords": {number: number for number in range(1000)}}, 0.0)
    told = lag.as_dict()
    assert len(told["partitions"]) == PARTITIONS_MAX
    assert told["partitions"][0] == {"partition": "999", "lagRecords": 999}
    assert told["lagRecords"] == sum(range(1000))


def test_many_partitions_have_a_lag_together():
    lag = Lag()
    parts = [TopicPartition("t", number) for number in range(1000)]
    assert lag.take(distances(dict.fromkeys(parts, 0), {tp: tp.partition % 6 for tp in parts}), 0.0)
    assert lag.as_dict()["lagRecords"] == pytest.approx(2500, abs=50)  # the average is rounded


@pytest.mark.parametrize(
    "said",
    [
        None,
        7,
        [],
        {},
        {"lagRecords": "many"},
        {"lagRecords": {"a": None}},
        {"latestOffset": 7},
        {"latestOffset": {"t": 7}},
    ],
)
def test_what_says_nothing_of_lag_is_passed_over(said):
    assert not Lag().take(said, 0.0)
