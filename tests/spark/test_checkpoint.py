"""Spark's folder as each driver builds it from the log: a driver dies, or sleeps, at every step of another's life."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from statefx.coordinator.log import TransactionLog
from statefx.errors import CheckpointError, CheckpointMismatchError, FencedError
from statefx.protocol.records import Committed, Preparing, RolledBack
from statefx.spark.checkpoint import query_id
from tests.spark.checkpoints import QUERY, Checkpoint, bare, offsets
from tests.spark.running import local_folders

METADATA = f'{{"id": "{QUERY}"}}'
NOTE = 'v1\n{"nextBatchWatermarkMs":0}'


def listed(batch: int) -> str:
    return f'v1\n{{"path":"in/{batch}-0","batchId":{batch}}}'


@pytest.fixture
def ck(place: Path) -> Iterator[Checkpoint]:
    found = Checkpoint(place)
    yield found
    found.end()


STEPS = {
    "taken": (lambda ck: None, set(), set()),
    "planned": (lambda ck: ck.plan(2), set(), set()),
    "PREPARING": (lambda ck: ck.prepare(2), {2}, set()),
    "ROLLED_BACK": (lambda ck: (ck.prepare(2), ck.roll_back(2)), {2}, set()),
    "PREPARING again": (lambda ck: (ck.prepare(2), ck.roll_back(2), ck.begin(2, 1)), {2}, set()),
    "COMMITTING": (lambda ck: (ck.prepare(2), ck.decide(2)), {2}, {2}),
    "COMMITTED": (lambda ck: (ck.prepare(2), ck.decide(2), ck.log.append(Committed(3))), {2}, {2}),
    "noted": (lambda ck: ck.commit(2), {2}, {2}),
}


@pytest.mark.parametrize("lost", [False, True], ids=["folder kept", "folder lost"])
@pytest.mark.parametrize("step", STEPS)
def test_a_driver_that_died_at_any_step(ck: Checkpoint, step: str, lost: bool) -> None:
    """What the log knows is there, durable, and nothing else: a kill and a power cut are the same."""
    ck.commit(0)
    ck.commit(1)
    happens, begun, committed = STEPS[step]
    happens(ck)
    if lost:
        shutil.rmtree(ck.spark)
    ck.generation()  # its driver recovers before it builds Spark's folder
    recover(ck.log)
    ck.start()
    known = sorted({0, 1} | begun)
    noted = sorted({0, 1} | committed)
    expected = {"metadata": METADATA}
    expected |= {f"sources/0/{batch}": listed(batch) for batch in known}
    expected |= {f"offsets/{batch}": offsets(batch) for batch in known if batch >= len(noted) - 2}
    expected |= {f"commits/{batch}": NOTE for batch in noted[-2:]}
    assert ck.files() == expected
    assert query_id(ck.log.state) == QUERY


def recover(log: TransactionLog) -> None:
    for entry in log.state.in_flight:
        if entry.committing:
            log.append(Committed(entry.txid))
        else:
            log.append(RolledBack(entry.txid, entry.attempt, "found at start"))


def test_a_batch_that_was_rolled_back_is_the_same_again(ck: Checkpoint) -> None:
    """Rule 3.9, also with another driver."""
    ck.prepare(0)
    ck.roll_back(0)
    ck.start()
    ck.begin(0, 1)
    assert ck.log.state.in_flight[0].input == bare(0)


def test_one_that_was_only_planned_is_planned_again(ck: Checkpoint) -> None:
    """With whatever there is then; nobody has seen the first plan."""
    ck.plan(0)
    ck.start()
    assert ck.files().keys() == {"metadata"}
    ck.plan(0, files=2)
    ck.begin(0)
    assert ck.log.state.notes.files["0/0"].count("path") == 2


def test_nothing_of_a_driver_that_sleeps_is_read(ck: Checkpoint) -> None:
    """Rule 3.7: it sleeps in any step, is replaced, and goes on in its own folder, under the same numbers and names."""
    ck.commit(0)
    sleeper, log = ck.spark_s, ck.log
    ck.start()
    live = ck.spark
    for name in ("offsets/1", "sources/0/1", "commits/1", "metadata"):
        (Path(sleeper.folder) / name).parent.mkdir(exist_ok=True)
        (Path(sleeper.folder) / name).write_text(offsets(1) if name == "offsets/1" else "of the sleeper")
    with pytest.raises(FencedError):
        log.append(Preparing(2, 0, 1, sleeper.with_notes(sleeper.batch(QUERY, 1))))
    assert ck.files().keys() == {"metadata", "sources/0/0", "offsets/0", "commits/0"}
    ck.commit(1)
    ck.start()
    assert ck.spark != live
    assert (ck.files()["sources/0/1"], ck.files()["metadata"]) == (listed(1), METADATA)


def test_where_sources_begin_is_known_before_there_is_a_transaction(ck: Checkpoint) -> None:
    """Rule 3.8: one that begins with what is newest would pass over what comes while no driver runs."""
    ck.spark_s.note()
    assert ck.log.number == 2, "nothing was written, so there is no record"
    ck.write("sources/1/0", '\0v1\n{"topic":{"0":17}}')
    ck.spark_s.note()
    number = ck.log.number
    ck.spark_s.note()
    assert ck.log.number == number, "once"
    ck.end()
    ck.start()
    assert ck.files()["sources/1/0"] == '\0v1\n{"topic":{"0":17}}'


def test_what_is_noted_counts_before_the_batch_that_relies_on_it(ck: Checkpoint) -> None:
    """The thread that looks while nothing runs may find what a batch needs, just before the batch does."""
    ck.plan(0)
    ck.write("sources/1/0", "began")
    ck.spark_s.note()
    ck.begin(0)
    assert ck.log.state.notes.files == {"0/0": listed(0), "1/0": "began"}


def test_a_list_of_files_that_is_missing_begins_no_transaction(ck: Checkpoint) -> None:
    ck.commit(0)
    ck.plan(1)
    (ck.spark / "sources" / "0" / "1").unlink()
    number = ck.log.number
    with pytest.raises(CheckpointError, match=r"sources/0/1 is missing.*Submit again"):
        ck.begin(1)
    assert ck.log.number == number


def test_a_folder_that_is_deleted_while_the_query_is_at_work_begins_no_transaction(ck: Checkpoint) -> None:
    ck.commit(0)
    ck.plan(1)
    shutil.rmtree(ck.spark)
    number = ck.log.number
    with pytest.raises(CheckpointError, match=r"offsets/1 is missing.*Submit again"):
        ck.begin(1)
    assert ck.log.number == number
    ck.start()
    assert ck.files()["offsets/0"] == offsets(0)


def test_state_of_an_operator_that_is_not_known_begins_no_transaction(ck: Checkpoint) -> None:
    """On the driver's machine it would be lost."""
    ck.plan(0)
    ck.write("state/0/_metadata/metadata", "v1")
    with pytest.raises(CheckpointError, match=r"an operator that statefx does not know.*in a bolt instead"):
        ck.begin(0)


def test_the_folder_is_gone_when_the_query_has_ended(ck: Checkpoint) -> None:
    assert local_folders(ck.location) == [ck.spark.parent]
    ck.end()
    assert local_folders(ck.location) == []
    assert not ck.spark.exists()


def test_a_log_that_was_lost_is_missed(ck: Checkpoint) -> None:
    """Else all would be read again, into empty state."""
    ck.commit(0)
    (ck.location / "state" / "count").mkdir(parents=True)
    (ck.location / "state" / "count" / "1-x.changelog").touch()
    ck.lose("transactions")
    with pytest.raises(
        CheckpointMismatchError, match=r"transactions is missing, but there is state/ beside it.*Restore"
    ):
        ck.check()
