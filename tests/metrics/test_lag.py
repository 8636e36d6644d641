"""Lag, rates and ETA, from what spouts say of how far they are."""

import pytest

from statefx.connectors.kafka.planning import distances
from statefx.connectors.kafka.rows import TopicPartition
from statefx.metrics.lag import PARTITIONS_MAX, RATED_APART_SECS, RATED_MAX, WINDOW_SECS, Lag


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
    (only,) = told.pop("partitions")
    assert only.pop("partition") == "t-0"
    assert only == pytest.approx(told), "the one partition is the source"


def test_each_partition_has_its_own_rates_and_eta():
    lag, parts = Lag(), [TopicPartition("t", number) for number in range(3)]
    for second in range(0, 200, 5):
        read = {parts[0]: 10 * second, parts[1]: 2 * second, parts[2]: 7}
        latest = {parts[0]: 4000 + 5 * second, parts[1]: 100 + 3 * second, parts[2]: 7}
        lag.take(distances(read, latest), float(second))
    of = {each["partition"]: each for each in lag.as_dict()["partitions"]}
    assert of["t-0"] == pytest.approx(
        {"lagRecords": 3025, "lagSecs": 605, "rateIn": 5, "rateOut": 10, "etaSecs": 605} | {"partition": "t-0"}
    )
    falling = {"lagRecords": 295, "lagSecs": 295 / 3, "rateIn": 3, "rateOut": 2, "etaSecs": None}
    assert of["t-1"] == pytest.approx(falling | {"partition": "t-1"})
    idle = {"lagRecords": 0, "lagSecs": 0, "rateIn": 0, "rateOut": 0, "etaSecs": 0}
    assert of["t-2"] == pytest.approx(idle | {"partition": "t-2"})


def test_a_partition_that_comes_later_has_rates_of_its_own_time():
    lag, first, later = Lag(), TopicPartition("t", 0), TopicPartition("t", 1)
    for second in range(0, 40, 5):
        lag.take(distances({first: second}, {first: second}), float(second))
    for second in range(40, 80, 5):
        lag.take(distances({first: 40, later: 2 * second}, {first: 40, later: 2 * second + 10}), float(second))
    assert {each["partition"]: each["rateOut"] for each in lag.as_dict()["partitions"]}["t-1"] == pytest.approx(2)


def test_looks_at_partitions_are_bounded():
    lag = Lag()
    for step in range(1000):
        lag.take({"lagRecords": {"a": step}}, float(step))
    assert len(lag._parts) <= WINDOW_SECS / RATED_APART_SECS + 2
    lag = Lag()
    lag.take({"lagRecords": {str(number): number for number in range(RATED_MAX + 1)}}, 0.0)
    assert len(lag._parts) == 0
    assert lag.as_dict()["partitions"][0]["rateIn"] is None


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


@pytest.mark.slow
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
    assert (told["partitions"][0]["partition"], told["partitions"][0]["lagRecords"]) == ("999", 999)
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
