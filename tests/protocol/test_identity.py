import pytest

from statefx.protocol.identity import SnapshotRef, TaskId, Version
from statefx.protocol.jsonform import from_json, to_json


@pytest.mark.parametrize("task", [TaskId("count", 0), TaskId("a/b", 12)])
def test_the_text_of_a_task_is_read_back(task):
    assert TaskId.parse(str(task)) == task
    assert task == tuple(task)


@pytest.mark.parametrize("text", ["", "count", "count/", "/3", "count/x", "count/-1", "count/²"])
def test_what_names_no_task_is_refused(text):
    with pytest.raises(ValueError, match="component/task was expected"):
        TaskId.parse(text)


def test_a_snapshot_has_one_form():
    snapshot = SnapshotRef(Version(7, "token"), "checksum", 3)
    assert from_json(SnapshotRef | None, to_json(snapshot)) == snapshot
