import json
import os
from pathlib import Path

import pytest

from statefx.coordinator.entries import RECORD_BYTES_MAX, digest, entry_name, entry_of, numbers, read_entry, text_of
from statefx.coordinator.log import TransactionLog, read_state
from statefx.errors import (
    CheckpointError,
    CheckpointFormatError,
    FencedError,
    StateCorruptedError,
    StatePhaseError,
)
from statefx.protocol.log_rules import fold
from statefx.protocol.records import Checkpoint, Committed, Generation, Lineage, RolledBack
from statefx.storage import FolderStorage, Stored
from tests.coordinator.histories import BEGINNING, EVENTFUL, IDENTITY, committing, preparing, transaction


@pytest.fixture
def folder(tmp_path):
    return FolderStorage(tmp_path / "checkpoint")


def path_of(folder, number):
    return folder.path(entry_name(number))


def filled(folder, records=EVENTFUL, limit=100):
    log = TransactionLog(folder, limit)
    for record in records:
        log.append(record)
    return log


def test_records_are_numbered_from_one_and_read_back(folder):
    log = TransactionLog(folder)
    assert [log.append(record) for record in EVENTFUL] == list(range(1, len(EVENTFUL) + 1))
    assert log.state == fold(EVENTFUL) == read_state(folder) == TransactionLog(folder).state
    assert [read_entry(folder, number).record for number in numbers(folder)] == EVENTFUL


def test_nothing_but_records_is_left_in_the_folder(folder):
    filled(folder)
    assert sorted(os.listdir(folder.path("transactions"))) == [f"{n:020d}.json" for n in range(1, len(EVENTFUL) + 1)]


def test_an_empty_log_is_empty_and_reading_it_is_an_error_that_makes_nothing(folder):
    with pytest.raises(CheckpointError, match="no transaction log"):
        read_state(folder)
    assert TransactionLog(folder).state == fold([])
    assert not os.path.exists(folder.root)


def test_a_record_that_can_not_follow_is_refused_before_anything_is_written(folder):
    log = filled(folder, BEGINNING)
    with pytest.raises(StatePhaseError, match="nothing was written"):
        log.append(Committed(1))
    assert numbers(folder) == [1, 2]
    assert log.append(preparing(1)) == 3


def test_what_the_caller_changes_later_changes_no_state(folder):
    log = TransactionLog(folder)
    log.append(Lineage("l"))
    options = {"hosts": ["a", "b"]}
    log.append(Generation(1, "/", IDENTITY.kept_by("m:C", options)))
    options["hosts"].clear()
    assert log.state.topology.stateful["count"].options == {"hosts": ["a", "b"]}
    log.fold()
    assert read_state(folder) == log.state


def test_what_json_can_not_hold_is_refused_before_anything_is_written(folder):
    log = filled(folder, BEGINNING[:1])
    with pytest.raises(TypeError):
        log.append(Generation(1, "/", IDENTITY.kept_by("m:C", {"hosts": {1, 2}})))
    assert log.append(BEGINNING[1]) == 2


@pytest.mark.slow
def test_a_record_that_everybody_would_have_to_read_is_refused_and_names_what_is_large_in_it(folder):
    log = filled(folder, [*BEGINNING, preparing(1)])
    before = log.state
    left = RECORD_BYTES_MAX - len(text_of(committing(1, committables={"files": "x", "table": {"0": ""}})))
    large = committing(1, committables={"files": "x", "table": {"0": "x" * (left + 1)}})
    with pytest.raises(CheckpointError, match="largest part is the committables of 'table' with") as caught:
        log.append(large)
    assert caught.value.size_bytes == RECORD_BYTES_MAX + 1
    assert log.state is before
    assert log.append(committing(1, committables={"files": "x", "table": {"0": "x" * left}})) == 4
    log.fold()
    assert read_state(folder) == log.state


# Folding


def unfenced(folder):
    """The numbers of the records that folding may delete, the newest CHECKPOINT, and what follows it."""
    return [n for n in numbers(folder) if not isinstance(read_entry(folder, n).record, Generation | Lineage)]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_folding_changes_nothing_but_the_number_of_files(folder, limit):
    log = filled(folder, limit=limit)
    assert log.state == fold(EVENTFUL) == read_state(folder) == TransactionLog(folder).state
    assert len(unfenced(folder)) <= limit + 1 or limit == 100


def test_folding_keeps_the_newest_checkpoint_and_what_follows(folder):
    log = filled(folder, limit=4)
    kept = [read_entry(folder, number).record for number in unfenced(folder)]
    assert isinstance(kept[0], Checkpoint)
    assert not any(isinstance(record, Checkpoint) for record in kept[1:])
    assert numbers(folder)[-1] == log.number


def test_folding_keeps_what_fences_the_drivers_of_before(folder):
    filled(folder, limit=4).fold()
    kept = [read_entry(folder, number).record for number in numbers(folder)]
    fences = [record for record in EVENTFUL if isinstance(record, Generation | Lineage)]
    assert [record for record in kept if isinstance(record, Generation | Lineage)] == fences


def test_a_log_opened_after_a_fold_that_died_deletes_what_was_left(folder, monkeypatch):
    log = filled(folder)
    with monkeypatch.context() as patched:
        patched.setattr(FolderStorage, "delete", lambda self, names: list(names)[:0])
        log.fold()
    assert len(numbers(folder)) == len(EVENTFUL) + 1
    again = TransactionLog(folder)
    again.fold()
    assert unfenced(folder) == [again.number]


def test_numbers_are_never_used_again(folder):
    log = filled(folder, BEGINNING)
    log.fold()
    log.fold()
    assert numbers(folder) == [1, 2, 4]
    assert TransactionLog(folder).append(preparing(1)) == 5


def test_a_log_reopened_between_appends_folds_as_well(folder):
    for record in EVENTFUL:
        TransactionLog(folder, limit=3).append(record)
    assert len(unfenced(folder)) <= 4
    assert read_state(folder) == fold(EVENTFUL)


def test_a_reader_that_missed_what_folding_wrote_looks_again(folder, monkeypatch):
    """The names it read before the fold, without what the fold wrote: the log seems to end at its second record."""
    filled(folder, limit=4)
    real, looks = FolderStorage.list, []

    def late(self, prefix):
        looks.append(prefix)
        found = list(real(self, prefix))
        return found[:2] if len(looks) == 1 else found

    monkeypatch.setattr(FolderStorage, "list", late)
    assert read_state(folder) == fold(EVENTFUL)


# Several writers


def test_the_second_writer_of_a_number_is_fenced_and_stays_so(folder):
    old, new = filled(folder, BEGINNING), TransactionLog(folder)
    new.append(Generation(2, "/", IDENTITY))
    before = old.state
    for _ in range(2):
        with pytest.raises(FencedError, match="another driver"):
            old.append(preparing(1))
    assert old.state is before
    assert read_state(folder) == new.state


def test_a_zombie_meets_its_successors_first_record_however_much_was_folded(folder):
    zombie = filled(folder, [*BEGINNING, preparing(1)])
    successor = TransactionLog(folder)
    for record in (
        Generation(2, "/", IDENTITY),
        RolledBack(1, 0, "restart"),
        preparing(1, 1, 2),
        committing(1, 1, 2),
    ):
        successor.append(record)
    successor.fold()
    successor.append(Committed(1))
    successor.fold()
    with pytest.raises(FencedError, match="is its own"):
        zombie.append(committing(1))
    assert zombie.state.committing is None
    assert read_state(folder) == TransactionLog(folder).state == successor.state


def test_a_zombie_of_a_checkpoint_that_was_forked_meets_the_new_lineage(folder):
    zombie = filled(folder, [*BEGINNING, preparing(1)])
    fork = TransactionLog(folder)
    for record in (Lineage("fork"), Generation(2, "/", IDENTITY)):
        fork.append(record)
    fork.fold()
    with pytest.raises(FencedError):
        zombie.append(committing(1))
    assert read_state(folder) == fork.state


def test_a_log_that_is_due_to_be_folded_still_begins_with_the_successors_generation(folder):
    """A CHECKPOINT in its place would be folded away later, and a driver that had been asleep would win its number."""
    zombie = filled(folder, [*BEGINNING, *transaction(1), preparing(2)])
    successor = TransactionLog(folder, limit=4)
    for record in (Generation(2, "/", IDENTITY), RolledBack(2, 0, "restart"), preparing(2, 1, 2)):
        successor.append(record)
    successor.fold()
    with pytest.raises(FencedError, match="is its own"):
        zombie.append(committing(2))
    assert zombie.state.committing is None
    assert read_state(folder) == TransactionLog(folder).state == successor.state


@pytest.mark.parametrize("first", [Generation(2, "/", IDENTITY), Lineage("fork")], ids=["generation", "lineage"])
def test_a_successor_that_was_asleep_while_the_log_was_folded_takes_no_old_number(folder, first):
    at_work = filled(folder, [*BEGINNING, *transaction(1)])
    late = TransactionLog(folder)
    for record in transaction(2):
        at_work.append(record)
    at_work.fold()
    with pytest.raises(FencedError):
        late.append(first)
    with pytest.raises(FencedError):
        late.append(preparing(2))
    at_work.append(preparing(3))
    assert read_state(folder) == TransactionLog(folder).state == at_work.state


# Damage


def test_a_torn_record_is_named(folder):
    filled(folder)
    path = path_of(folder, 5)
    whole = Path(path).read_bytes()
    for length in range(0, len(whole), 5):
        with open(path, "wb") as file:
            file.write(whole[:length])
        with pytest.raises(StateCorruptedError, match="Restore this file") as caught:
            read_state(folder)
        assert caught.value.path == path


def test_a_flipped_bit_anywhere_is_seen(folder):
    filled(folder, EVENTFUL[:4])
    path = path_of(folder, 4)
    whole = Path(path).read_bytes()
    for at in range(len(whole)):
        with open(path, "wb") as file:
            file.write(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        expected = CheckpointFormatError if whole[:at] == b'{"format":' else StateCorruptedError
        with pytest.raises(expected) as caught:
            read_state(folder)
        assert caught.value.path == path


def test_a_record_that_was_edited_with_a_fitting_checksum_breaks_the_chain(folder):
    filled(folder)
    old = read_entry(folder, 4)
    with open(path_of(folder, 4), "wb") as file:
        file.write(entry_of(4, old.previous, old.nonce, committing(1, 0, 1, hooks=("count/1",))).data)
    with pytest.raises(StateCorruptedError, match="is not the record that 5 follows"):
        read_state(folder)


@pytest.mark.parametrize("missing", [1, 2, len(EVENTFUL) - 1])
def test_a_missing_record_is_named(folder, missing):
    filled(folder)
    os.unlink(path_of(folder, missing))
    for reader in (read_state, TransactionLog):
        with pytest.raises(StateCorruptedError, match="it is missing") as caught:
            reader(folder)
        assert caught.value.path == path_of(folder, missing)


def test_a_record_under_another_number_is_seen(folder):
    log = filled(folder)
    os.rename(path_of(folder, log.number), path_of(folder, log.number + 1))
    with pytest.raises(StateCorruptedError, match=f"holds record {log.number}"):
        read_state(folder)


def test_a_record_that_can_not_stand_where_it_stands_is_named(folder):
    log = filled(folder, BEGINNING)
    entry = entry_of(3, digest(read_entry(folder, 2).data), "nonce", Committed(1))
    with open(path_of(folder, 3), "wb") as file:
        file.write(entry.data)
    with pytest.raises(StateCorruptedError, match="COMMITTED record can't stand here") as caught:
        TransactionLog(folder)
    assert caught.value.number == 3
    assert log.number == 2


def test_another_format_is_refused_as_such(folder):
    filled(folder, BEGINNING)
    path = path_of(folder, 2)
    text = Path(path).read_text()
    with open(path, "w") as file:
        file.write(text.replace('"format":2', '"format":3'))
    with pytest.raises(CheckpointFormatError, match="reads 2"):
        TransactionLog(folder)


@pytest.mark.parametrize("change", [{"kind": "SAVEPOINT"}, {"labels": ["a"]}], ids=["kind", "field"])
def test_what_a_newer_release_wrote_is_told_so_and_is_no_damage(folder, change):
    filled(folder, BEGINNING)
    path = path_of(folder, 2)
    fields = json.loads(Path(path).read_bytes())
    del fields["checksum"]
    fields["record"] |= change
    fields["checksum"] = digest(json.dumps(fields, separators=(",", ":")).encode())
    Path(path).write_bytes(json.dumps(fields, separators=(",", ":")).encode() + b"\n")
    for reader in (read_state, TransactionLog):
        with pytest.raises(CheckpointFormatError, match="newer release"):
            reader(folder)


def test_a_folder_that_changes_under_every_try_of_a_reader_ends_in_an_error(folder, monkeypatch):
    filled(folder, [*BEGINNING, *transaction(1)])
    os.unlink(path_of(folder, 3))
    listings = iter(range(1000))
    real = FolderStorage.list

    def growing(self, prefix):
        return [*real(self, prefix), Stored(entry_name(1000 + next(listings)), 0, 0)]

    monkeypatch.setattr(FolderStorage, "list", growing)
    with pytest.raises(StateCorruptedError, match="changed under each of 10"):
        read_state(folder)
