"""The sequencer: which record, job or resolution comes next, for several transactions in flight.

A pure value: events in, commands out. The driver carries the commands out and reports what came of them; nothing else
decides what is appended to the log, or when::

    Offered -> Append PREPARING -> Run P -> Append PROCESSED -> Run O -> Append COMMITTING -> Resolve COMMIT
                                   (one job where there is one segment)               (nothing where COMMITTING commits)
            -> Append COMMITTED, or what carries it -> Deliver

    Failed(t): Cancel t and every later one; Resolve ROLLBACK of t; Append ROLLED_BACK from the newest down to t

`Pipeline.advance` looks at the whole state and says what can be done now; so an event only notes what happened, in
whatever order things happen, and no wake-up can be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from statefx.protocol.commands import (
    Acked,
    Append,
    Appended,
    Cancel,
    Command,
    Deliver,
    Failed,
    Happening,
    Idle,
    Offered,
    Resolution,
    Resolve,
    Segment,
    StartSegment,
    Stop,
    Unresolved,
)
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.transaction import INITIAL, ActionKind, Event, Phase, Stage, TransactionState

# ---- commands


# ---- events


_RESOLUTIONS: Mapping[ActionKind | None, Resolution] = {
    ActionKind.COMMIT: Resolution.COMMIT,
    ActionKind.ROLLBACK: Resolution.ROLLBACK,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Constants of a running topology."""

    pending: int = 1  # how many transactions may be in flight
    segments: int = 1  # 1: one job per attempt. 2: P, then O; needed where more than one is pending
    # Spouts emit their metadata: what t+1 reads follows from what t emitted, so their P run one after the other.
    emitted: bool = False
    # What they emitted must be durable before a committer runs: a record PROCESSED is written.
    writes_processed: bool = False
    commits_at_decision: bool = False  # no task has anything to do at a commit: COMMITTING commits
    attempts_max: int = 10  # how often one transaction may fail

    def __post_init__(self) -> None:
        if (
            self.segments not in (1, 2)
            or self.pending < 1
            or (self.segments == 1 and (self.pending > 1 or self.writes_processed))
        ):
            raise ValueError(f"more than one transaction, or PROCESSED, needs two segments: {self}")


Outcome = tuple["Pipeline", tuple[Command, ...]]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """All transactions in flight, and what was decided about them.

    `committed` is the last transaction that every participant committed; `entries` are those in flight, from
    ``committed + 1`` on. `attempts` has the next attempt of each transaction, `tries` how often it has failed here, as
    tuples of (txid, int). `appending` was sent and is not durable yet; `unwritten`: COMMITTED of `committed` is not in
    the log yet. `stopping`: nothing more is admitted; `ended`: nothing is left to do.

    * Transactions in flight are a contiguous range; at most one of them is COMMITTING.
    * O(t) runs only when COMMITTING(t-1) is durable; COMMITTING(t) is appended only when t-1 is committed.
    * Once the append of COMMITTING(t) has begun, t is never rolled back.
    * ROLLED_BACK is appended from the newest down; transactions before a failed one are not touched.
    * Only the transaction that failed uses up an attempt.
    * An event of an attempt that is not in flight changes nothing.
    """

    shape: Shape = field(default_factory=Shape)
    committed: int = 0
    entries: tuple[TransactionState, ...] = ()
    attempts: tuple[tuple[int, int], ...] = ()
    tries: tuple[tuple[int, int], ...] = ()
    appending: Append | None = None
    unwritten: bool = False
    stopping: bool = False

    @classmethod
    def recover(
        cls, shape: Shape, committed: int, in_flight: Sequence[TransactionState], attempts: Mapping[int, int]
    ) -> Outcome:
        """Begin where a former driver ended, by its log: roll forward what is COMMITTING, and back all the others.

        `in_flight` are PREPARING or COMMITTING, by txid from ``committed + 1``. `attempts` has the next attempt of each
        transaction that was tried.
        """
        entries = []
        lowest = next((each.txid for each in in_flight if each.phase is Phase.PREPARING), None)
        for state in in_flight:
            # Rule 2.3: O of a later one has waited for COMMITTING of this one, and can't have begun. Whether O of this
            # one had begun the log does not say: its tasks are told of the rollback (rule 6.3), perhaps for nothing.
            ordered = state.txid == lowest
            found = TransactionState(state.phase, state.txid, state.attempt)
            entries.append(replace(found.step(Event.START, Stage.UNRESOLVED), ordered=ordered))
        numbers = tuple(sorted((txid, attempt) for txid, attempt in attempts.items() if txid > committed))
        moved, commands = cls(shape, committed, tuple(entries), numbers).advance()
        # Rule 6.5: the former driver may have died before it told of the last commit, also where the next one is
        # COMMITTING by now: that record may have carried the COMMITTED of this one, and the crash came right after it.
        again = (Deliver(committed),) if committed else ()
        return moved, (*again, *commands)

    @property
    def admits(self) -> bool:
        """Whether the next transaction may begin: there is room, nothing is rolling back, and it was not stopped."""
        room = len(self.entries) < self.shape.pending
        if (
            self.stopping
            or not room
            or self.appending is not None
            or any(entry.is_rolling_back for entry in self.entries)
        ):
            return False
        # where t+1 begins with what t emitted, that has to be there (rule 9.5)
        return not (self.shape.emitted and self.entries) or self.entries[-1].stage >= Stage.PROCESSED

    @property
    def next(self) -> TransactionAttempt:
        txid = self.entries[-1].txid + 1 if self.entries else self.committed + 1
        return TransactionAttempt(txid, dict(self.attempts).get(txid, 0))

    @property
    def ended(self) -> bool:
        """Whether it was stopped and nothing is left to do."""
        return self.stopping and not self.entries and self.appending is None and not self.unwritten

    def failures(self, txid: int) -> int:
        return dict(self.tries).get(txid, 0)

    # ---- events

    def on(self, event: Happening) -> Outcome:
        """Return the pipeline after `event`, and the commands that follow, in order."""
        match event:
            case Offered():
                return self._admit() if self.admits else (self, ())
            case Appended(append):
                return self._durable(append)
            case Stop(now):
                return self._stop(now)
            case Idle():
                if self.unwritten and not self.entries and self.appending is None:
                    return self._append("COMMITTED", TransactionAttempt(self.committed, 0))
                return self, ()
            case Failed(attempt, final):
                return self._failed(attempt, final)
        entry = self._entry(event.attempt)
        if entry is None:  # of a former attempt, or of one that is over (rule 6.4)
            return self, ()
        if isinstance(event, Acked):
            return self._acked(entry, event.segment)
        told = Phase.COMMITTING if event.resolution is Resolution.COMMIT else Phase.ROLLING_BACK
        if entry.stage is not Stage.RESOLVING or entry.phase is not told:
            return self, ()
        if isinstance(event, Unresolved):
            return self._with(entry.step(Event.FAILED, Stage.UNRESOLVED)).advance()
        return self._with(replace(entry, stage=Stage.RESOLVED)).advance()

    def _admit(self) -> Outcome:
        name = self.next
        # As if the one before were committed, also while it is in flight: the table of phases is of one transaction
        # alone, and what may overlap with it is decided here (rule 2.2).
        before = INITIAL if name.txid == 1 else TransactionState(Phase.COMMITTED, name.txid - 1)
        if name.attempt:
            before = TransactionState(Phase.ROLLED_BACK, name.txid, name.attempt - 1)
        entry = before.step(Event.PREPARE)
        numbers = {**dict(self.attempts), name.txid: name.attempt + 1}
        moved = replace(self, entries=(*self.entries, entry), attempts=tuple(sorted(numbers.items())))
        return moved._append(before.record(Event.PREPARE) or "", name)

    def _append(self, kind: str, attempt: TransactionAttempt) -> Outcome:
        # COMMITTED costs no record of its own while one of these follows (rule 3.5)
        carries = self.committed if self.unwritten and kind in ("PREPARING", "COMMITTING") else None
        append = Append(kind, attempt, carries)
        return replace(self, appending=append), (append,)

    def _durable(self, append: Append) -> Outcome:
        if append != self.appending:  # of an append that this pipeline has not asked for (rule 6.4)
            return self, ()
        moved = replace(self, appending=None)
        ended = append.attempt.txid if append.kind == "COMMITTED" else append.committed
        if ended is None:
            return moved._noted(append).advance()
        # Told when no crash can take COMMITTED back: a restart would commit it again, and tell of it once more as new.
        # And told before all that follows: so only the last commit can have been missed (rule 6.5).
        moved, commands = replace(moved, unwritten=False)._noted(append).advance()
        return moved, (Deliver(ended), *commands)

    def _noted(self, append: Append) -> Pipeline:
        """Return the pipeline with the record written, before anything follows from it."""
        entry = self._entry(append.attempt)
        if entry is None:
            return self
        if append.kind == "ROLLED_BACK":
            return replace(self, entries=self.entries[:-1])
        if append.kind == "COMMITTING":
            stage = Stage.COMMITTED if self.shape.commits_at_decision else Stage.UNRESOLVED
            entry = entry.step(Event.ALL_ACKED, stage)
        elif append.kind == "PROCESSED" and not entry.is_rolling_back:
            entry = replace(entry, stage=Stage.PROCESSED)
        elif append.kind == "PREPARING" and not entry.is_rolling_back:
            entry = replace(entry, stage=Stage.BEGUN)
        return self._with(entry)

    def _acked(self, entry: TransactionState, segment: Segment) -> Outcome:
        wanted = Stage.ORDERED if segment is Segment.ORDERED else Stage.PROCESSING
        if entry.stage is not wanted:
            return self, ()
        if segment is Segment.PROCESSING:
            stage = Stage.EMITTED if self.shape.writes_processed else Stage.PROCESSED
        else:
            stage = Stage.PREPARED
        return self._with(replace(entry, stage=stage)).advance()

    def _failed(self, attempt: TransactionAttempt, final: bool) -> Outcome:
        entry = self._entry(attempt)
        # Rule 2.5: with DECIDING the record may be in the log already, whatever this driver hears of the append.
        if entry is None or entry.is_rolling_back or entry.stage >= Stage.DECIDING:
            return self, ()
        # Rule 6.2: those above it are rolled back with it, and use up no try of theirs.
        tries = {**dict(self.tries), entry.txid: self.failures(entry.txid) + 1}
        moved = replace(self, tries=tuple(sorted(tries.items())))
        if final or tries[entry.txid] >= self.shape.attempts_max:
            moved = replace(moved, stopping=True)
        return moved._start_rollback(entry.txid, ended=attempt)

    def _stop(self, now: bool) -> Outcome:
        moved = replace(self, stopping=True)
        undecided = [entry.txid for entry in self.entries if entry.stage < Stage.DECIDING and not entry.is_rolling_back]
        if self.entries and not now:  # the lowest may end (rule 9.7): it waits for nobody
            undecided = [txid for txid in undecided if txid > self.entries[0].txid]
        return moved._start_rollback(undecided[0]) if undecided else moved.advance()

    def _start_rollback(self, lowest: int, ended: TransactionAttempt | None = None) -> Outcome:
        """Roll back `lowest` and all that is above it; the job of `ended` needs no cancelling."""
        entries, cancelled = [], []
        for entry in self.entries:
            if entry.txid >= lowest and not entry.is_rolling_back:
                if entry.stage in (Stage.PROCESSING, Stage.ORDERED) and entry.name != ended:
                    cancelled.append(Cancel(entry.name))
                entry = entry.step(Event.FAILED, Stage.UNRESOLVED)
            entries.append(entry)
        moved, commands = replace(self, entries=tuple(entries)).advance()
        return moved, (*cancelled, *commands)

    # ---- what is next

    def advance(self) -> Outcome:
        """Return everything that can be done now."""
        moved, commands = self, list[Command]()
        while True:
            step = moved._next_step()
            if step is None:
                return moved, tuple(commands)
            moved, more = step
            commands += more

    def _next_step(self) -> Outcome | None:
        if self.entries:
            lowest = self.entries[0]
            if lowest.decided:
                return self._commit(lowest) or self._step_undecided()
            # Rule 2.4: only the lowest is decided, and it is the lowest when all before it are committed. Any other one
            # that is PREPARED waits here.
            if lowest.stage is Stage.PREPARED and self.appending is None:
                if self.unwritten and self.shape.commits_at_decision:
                    # Recovered in COMMITTING: a topology that had hooks has decided it.
                    # Carried by a COMMITTING that commits, a crash after that record would leave two untold (rule 6.5).
                    return self._append("COMMITTED", TransactionAttempt(self.committed, 0))
                name = lowest.record(Event.ALL_ACKED) or ""
                return self._with(replace(lowest, stage=Stage.DECIDING))._append(name, lowest.name)
        elif self.stopping and self.unwritten and self.appending is None:
            return self._append("COMMITTED", TransactionAttempt(self.committed, 0))
        return self._step_undecided()

    def _commit(self, entry: TransactionState) -> Outcome | None:
        """Carry the decision out.

        The decision fixed whether participants have work. One of a former driver may be of a topology that had more to
        do at a commit than this one has: it names the tasks, and COMMITTED has to follow it.
        """
        if entry.stage is Stage.UNRESOLVED:
            return self._tell(entry)
        if entry.stage is Stage.RESOLVING:
            return None
        committed = entry.stage is Stage.COMMITTED
        moved = replace(
            self,
            committed=entry.txid,
            entries=self.entries[1:],
            attempts=_above(self.attempts, entry.txid),
            tries=_above(self.tries, entry.txid),
            unwritten=not committed,
        )
        return moved, (Deliver(entry.txid),) if committed else ()

    def _tell(self, entry: TransactionState) -> Outcome:
        resolve = Resolve(_RESOLUTIONS[entry.action(Event.START)], entry.name)
        return self._with(replace(entry, stage=Stage.RESOLVING)), (resolve,)

    def _step_undecided(self) -> Outcome | None:
        newest = self.entries[-1] if self.entries else None
        if newest is not None and newest.is_rolling_back:
            step = self._roll_back(newest)
            if step is not None:
                return step
        turn = True  # whether all before it are decided
        for entry in self.entries:
            if not entry.is_rolling_back:
                step = self._run(entry, turn)
                if step is not None:
                    return step
            turn = turn and entry.decided  # O opens state at what the one before makes: that must be decided (rule 2.3)
        return None

    def _roll_back(self, entry: TransactionState) -> Outcome | None:
        """The newest comes first (rule 3.6): so what the log says to be in flight is always without gaps (rule 2.2)."""
        if entry.stage is Stage.UNRESOLVED:
            if not entry.ordered:
                return self._with(replace(entry, stage=Stage.RESOLVED)), ()
            if entry.txid != self.committed + 1:  # rule 6.3: preRollback sees the committed state of all before it
                return None
            return self._tell(entry)
        if entry.stage is Stage.RESOLVED and self.appending is None:
            kind = entry.record(Event.ROLLED_BACK) or ""
            return self._with(entry.step(Event.ROLLED_BACK, entry.stage))._append(kind, entry.name)
        return None

    def _run(self, entry: TransactionState, turn: bool) -> Outcome | None:
        if entry.stage is Stage.BEGUN:
            segment = Segment.WHOLE if self.shape.segments == 1 else Segment.PROCESSING
            ordered = segment is Segment.WHOLE
            return self._with(replace(entry, stage=Stage.PROCESSING, ordered=ordered)), (
                StartSegment(segment, entry.name),
            )
        if entry.stage is Stage.EMITTED and self.appending is None:
            return self._append("PROCESSED", entry.name)
        if entry.stage is Stage.PROCESSED and turn:
            start = StartSegment(Segment.ORDERED, entry.name)
            return self._with(replace(entry, stage=Stage.ORDERED, ordered=True)), (start,)
        return None

    def _entry(self, attempt: TransactionAttempt) -> TransactionState | None:
        return next((entry for entry in self.entries if entry.name == attempt), None)

    def _with(self, entry: TransactionState) -> Pipeline:
        entries = tuple(entry if other.txid == entry.txid else other for other in self.entries)
        return replace(self, entries=entries)


def _above(numbers: Iterable[tuple[int, int]], txid: int) -> tuple[tuple[int, int], ...]:
    return tuple(each for each in numbers if each[0] > txid)
