"""Event time of files: what was read to its end holds no watermark."""

import json
import os
from datetime import timedelta

import pytest

from statefx import TopologyBuilder
from statefx.connectors.files import FilePartitionedSpout
from statefx.connectors.files import spout as spouts
from statefx.log.log import read_state
from statefx.state.view.time_index import micros
from statefx.storage import FolderStorage
from statefx.testing import TopologyTester
from tests.spouts.timed import START, Watch


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [1, 3])
def test_files_read_to_their_ends_hold_no_watermark(tasks, tmp_path):
    """An empty one neither; one of which a part was read does, and the greatest time of all is where it stands."""
    folder = made(tmp_path, "a.json", times(range(5)))
    made(tmp_path, "b.json", "")
    made(tmp_path, "c.json", times(range(20, 60)))
    found = []
    with TopologyTester(of_time(folder, tasks, maxBytesPerFile=200), tmp_path / "checkpoint", now=START) as tester:
        while sent := tester.emit():
            found.append(sent.progress.watermarks.get("watch"))
    assert found[0] < found[-1] == micros(START + timedelta(seconds=59))
    assert found == sorted(found)
    made(tmp_path, "d.json", times([100]))
    with TopologyTester(of_time(folder, tasks), tmp_path / "checkpoint", now=START) as tester:
        assert tester.emit().progress.watermarks["watch"] == micros(START + timedelta(seconds=100))
    assert set(read_state(FolderStorage(tmp_path / "checkpoint")).unit_times) == {"rows/-1"}


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [1, 2])
def test_files_gone_for_long_hold_no_watermark_after_a_start(tasks, tmp_path, monkeypatch):
    """Their names lie in a list, and their partitions have no metadata any more."""
    monkeypatch.setattr(spouts, "LISTED", 2)
    folder = made(tmp_path, "a.json", times([1]))
    tester = TopologyTester(of_time(folder, tasks), tmp_path / "checkpoint", now=START)
    for turn in range(5):
        with tester:
            for number in range(3):
                made(tmp_path, f"{turn}{number}.json", times([10 * turn + 10]))
            tester.drain()
            assert len(os.listdir(folder)) == 3 + (turn == 0)
            for each in os.scandir(folder):
                os.unlink(each)
            tester.drain()
            made(tmp_path, f"{turn}.json", times([10 * turn + 11]))
            reached = tester.emit().progress.watermarks["watch"]
            assert reached == micros(START + timedelta(seconds=10 * turn + 11))
            (folder / f"{turn}.json").unlink()
        tester = tester.restart()


def test_a_log_that_has_left_the_folder_holds_no_watermark(tmp_path):
    folder = made(tmp_path, "a.log", times([1]))
    made(tmp_path, "b.log", times([5]))
    with TopologyTester(of_time(folder, growing=True), tmp_path / "checkpoint", now=START) as tester:
        assert tester.emit().progress.watermarks["watch"] == micros(START + timedelta(seconds=1))
        (folder / "a.log").unlink()
        tester.drain()
        made(tmp_path, "c.log", times([9]))
        assert tester.emit().progress.watermarks["watch"] == micros(START + timedelta(seconds=5))


def made(place, name, text):
    folder = place / "timed"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder


def times(seconds):
    return "".join(json.dumps({"at": (START + timedelta(seconds=each)).isoformat()}) + "\n" for each in seconds)


def of_time(folder, tasks=1, **options):
    builder = TopologyBuilder("files")
    builder.setSpout("rows", FilePartitionedSpout(folder, "json", "at timestamp", **options), tasks, timestamp="at")
    builder.setBolt("watch", Watch()).globalGrouping("rows")
    return builder.createTopology()
