"""closeTime of a streaming DataFrame."""

import json
import os
import threading

import pytest

from statefx import TopologyBuilder, openState, submit
from statefx.errors import ConfigError, InputError
from tests.spark.running import run, wait_for
from tests.spouts.test_close_time import Keep, PerTen
from tests.spouts.timed import Planned, at

pytestmark = pytest.mark.slow
CLOSES = {"availableNow": True, "closeTime": True}
FIELDS = "partition int, at timestamp"


def topology(add):
    builder = TopologyBuilder("closing")
    add(builder)
    builder.setBolt("windows", PerTen().withTumblingWindow("10 seconds")).globalGrouping("rows")
    builder.setBolt("keep", Keep()).localOrShuffleGrouping("windows")
    return builder.createTopology()


def windows(place):
    with openState(place / "ck", "keep") as state:
        return {secs: count for (_, _, secs, rows), count in state.items() for _ in range(rows)}


def write(folder, name, *times):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps({"partition": 0, "at": each.isoformat()}) + "\n" for each in times))


def test_a_streaming_dataframe_closes_once(spark, place):
    def of():
        frame = spark.readStream.schema(FIELDS).json(str(place / "in"))
        return topology(lambda builder: builder.setStream("rows", frame, timestamp="at"))

    write(place / "in", "a.json", at(1), at(11))
    for _ in range(2):  # the second start finds nothing new
        run(of(), spark, place / "ck", trigger=CLOSES)
        assert windows(place) == {at(0): 1, at(10): 1}
    write(place / "in", "b.json", at(21))
    for _ in range(2):
        with pytest.raises(InputError, match="closed by transaction 2 "):
            run(of(), spark, place / "ck", trigger={"availableNow": True})
    assert windows(place) == {at(0): 1, at(10): 1}


def test_a_query_of_sparks_that_others_stop_closes_nothing(spark, place):
    """Its input is not read to the end."""
    go = place / "go"

    def waiting(batches):
        for batch in batches:
            if at(21) in batch.column(1).to_pylist():
                (place / "held").touch()
                wait_for(go.exists, "the sign to go on")
            yield batch

    for number, secs in enumerate((1, 21, 41)):
        write(place / "in", f"{number}.json", at(secs))
        os.utime(place / "in" / f"{number}.json", (number, number))
    lines = spark.readStream.schema(FIELDS).option("maxFilesPerTrigger", 1).json(str(place / "in"))
    frame = lines.mapInArrow(waiting, FIELDS)
    of = topology(lambda builder: builder.setStream("rows", frame, timestamp="at"))
    query = submit(of, spark, place / "ck", trigger=CLOSES)
    wait_for((place / "held").exists, "the second batch to be staged")
    (own,) = [each for each in spark.streams.active if each.name.startswith("closing")]
    stopping = threading.Thread(target=own.stop)
    stopping.start()
    wait_for(lambda: not own.isActive, "it to be stopped")
    go.touch()
    stopping.join()
    with pytest.raises(InputError, match="event time is not closed"):
        query.awaitTermination()
    assert at(40) not in windows(place)
    run(of, spark, place / "ck", trigger=CLOSES)
    assert windows(place) == {at(0): 1, at(20): 1, at(40): 1}


def test_mistakes_are_refused(spark, place):
    untimed = topology(lambda builder: builder.setSpout("rows", Planned([[[1]]])))
    with pytest.raises(ConfigError, match="no input has any"):
        run(untimed, spark, place / "ck", trigger=CLOSES)
    timed = topology(lambda builder: builder.setSpout("rows", Planned([[[1]]]), timestamp="at"))
    for trigger in ({"closeTime": True}, {"once": True, "closeTime": True}, CLOSES | {"closeTime": 1.5}):
        with pytest.raises(ConfigError, match="trigger must be one of"):
            run(timed, spark, place / "ck", trigger=trigger)
