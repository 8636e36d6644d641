"""Sinks that lack one thing each: of each the test that is named for that thing says so."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from statefx.connectors import StagedRows
from statefx.connectors.sql.sink import SqlTable
from statefx.connectors.staged import StagedCommitter, Stager
from statefx.errors import SinkMismatchError, StagedRowsLostError
from statefx.operators.sinks import CheckpointPosition
from statefx.testing.sink_contract import SinkContract
from tests.sinks import test_sink_contract as sound

FOREVER = 1 << 60


class Apart(sound.Ledger):
    """Writes the rows, and then the marker."""

    def publish(self, marker, previous, rows):
        self.write(rows)
        self.move(marker)


class Ageless(sound.Ledger):
    """Does not know which generation wrote last."""

    def marker(self):
        found = super().marker()
        return found and replace(found, generation=0)


class Blind(sound.Ledger):
    """Does not look whether another driver was here."""

    def compare(self, previous, marker):
        pass


class BlindAtStart(sound.Ledger):
    """Does not look at its start whether another driver was here."""

    def compare(self, previous, marker):
        if previous is None or previous.generation == marker.generation:
            super().compare(previous, marker)


class Gullible(sound.Ledger):
    """Takes rows that are lost for none."""

    def write(self, rows):
        with suppress(StagedRowsLostError):
            super().write(rows)


class Eager(Stager):
    """Writes rows where readers see them, before anything is decided."""

    def prepare(self, txid):
        named = super().prepare(txid)
        rows = StagedRows(self._context.storage, self._context.schema, {0: named})
        with sound.Ledger(Path(self._context.storage.root).parent / "ledger") as target:
            target.write(rows)


class Again(StagedCommitter):
    """Writes rows whatever the marker says."""

    def commit(self, attempt, committables):
        with self._connect() as target:
            target.write(StagedRows(self._context.storage, self._context.schema, committables))
        super().commit(attempt, {})


class Skipping(StagedCommitter):
    """Passes over transactions without rows."""

    def commit(self, attempt, committables):
        if committables:
            super().commit(attempt, committables)


class Gapped(StagedCommitter):
    """Publishes whatever comes next."""

    def commit(self, attempt, committables):
        with self._connect() as target:
            found = target.marker()
            target.move(replace(found, txid=max(found.txid, attempt.txid - 1)))
        super().commit(attempt, committables)


class Unfenced(StagedCommitter):
    """Owns a target when it makes it, and never again."""

    def fence(self, reached, *, takeover):
        with self._connect() as target:
            found = target.marker()
        if found is None:
            super().fence(reached, takeover=takeover)


class Anybodys(StagedCommitter):
    """Does not know which checkpoint wrote last."""

    def __init__(self, name, context, connect):
        def connected():
            target, owner = connect(), context.owner
            found = target.marker()
            if found is not None:
                target.move(replace(found, application=owner.application, origin=owner.origin))
            return target

        super().__init__(name, context, connected)


class Anywhere(StagedCommitter):
    """Does not compare how far the checkpoint is."""

    def check(self, reached, *, takeover):
        super().check(CheckpointPosition(0, FOREVER), takeover=takeover)

    def fence(self, reached, *, takeover):
        super().fence(CheckpointPosition(0, FOREVER), takeover=takeover)


class Grasping(StagedCommitter):
    """Begins anew at each takeover, also of what is its own."""

    def fence(self, reached, *, takeover):
        super().fence(reached, takeover=takeover)
        with self._connect() as target:
            if takeover:
                target.move(replace(target.marker(), txid=reached.committed))


class Sweeping(StagedCommitter):
    """Deletes all rows that wait."""

    def sweep(self, committed):
        super().sweep(FOREVER)


NOT_RAISED = pytest.fail.Exception

BROKEN = {
    Eager: (SinkContract.test_rows_are_seen_when_they_are_committed_and_not_before, AssertionError),
    Again: (SinkContract.test_a_commit_again_changes_nothing_in_this_driver_or_the_next, AssertionError),
    Skipping: (SinkContract.test_a_transaction_without_rows_moves_the_marker, SinkMismatchError),
    Gapped: (SinkContract.test_a_commit_that_left_out_a_transaction_is_refused, NOT_RAISED),
    Ageless: (SinkContract.test_an_older_generation_publishes_nothing_that_the_newer_one_has_not, NOT_RAISED),
    Unfenced: (SinkContract.test_an_older_generation_publishes_nothing_that_the_newer_one_has_not, NOT_RAISED),
    Anybodys: (SinkContract.test_a_target_of_another_is_refused_and_can_be_taken_over, SinkMismatchError),
    Anywhere: (SinkContract.test_a_target_that_is_elsewhere_than_the_checkpoint_is_refused, NOT_RAISED),
    Grasping: (SinkContract.test_takeover_of_what_is_in_place_doubles_nothing, AssertionError),
    Gullible: (SinkContract.test_rows_that_are_lost_or_damaged_are_not_published_until_they_are_back, NOT_RAISED),
    Sweeping: (SinkContract.test_a_sweep_leaves_what_is_to_come, StagedRowsLostError),
    Apart: (SinkContract.test_a_crash_at_any_step_leaves_each_transaction_once, AssertionError),
    BlindAtStart: (
        SinkContract.test_a_driver_that_stops_anywhere_while_the_next_one_works_changes_nothing,
        SinkMismatchError,
    ),
    Blind: (SinkContract.test_of_two_that_commit_at_the_same_moment_one_does, AssertionError),
}


@pytest.mark.parametrize("part", BROKEN, ids=lambda part: part.__name__)
def test_a_broken_sink_is_caught(tmp_path, part):
    test, said = BROKEN[part]
    contract = sound.TestLedger()
    name = {sound.Ledger: "opened", Stager: "staging", StagedCommitter: "committing"}[part.__base__]
    contract.parts = {name: part}
    with pytest.raises(said):
        test(contract, tmp_path)


TAKES_BACK = SinkContract.test_what_is_taken_back_is_gone_after_any_crash_and_rows_of_others_stay


@pytest.mark.slow
def test_a_sink_that_takes_back_rows_of_others_is_caught(tmp_path, monkeypatch):
    """Transactions of the checkpoint before a takeover have the same numbers as those of this one."""
    monkeypatch.setattr(SqlTable, "_disown", lambda self, connection: None)
    with pytest.raises(AssertionError):
        TAKES_BACK(sound.TestSqliteWithTxid(), tmp_path)


def test_each_test_of_the_contract_catches_a_sink():
    tests = {each for name, each in vars(SinkContract).items() if name.startswith("test_")}
    assert tests == {test for test, _ in BROKEN.values()} | {TAKES_BACK}
