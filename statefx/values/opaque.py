"""Values in a database of the user's, exact with any spout: what failed attempts have written is taken back (rule 9.8).

A task keeps three things:

* in the database, a row for each key: the value, the value before, and the version that names the write;
* in the database, one row for the task, its **journal**: the attempt that wrote last, the mark it began with, and the
  keys it writes;
* in the bolt's state, the **mark**: the journal's version, as the last committed transaction left it. State is exact:
  if the journal is at the mark, what it names was committed; if it is beyond, an attempt has written that was not.
  Whoever makes the map first puts the first mark there: nothing was committed before this transaction. Else nobody
  could tell a state that was lost from one whose only attempts with rows have failed. And if the journal began with
  another mark, the state has gone back alone by more than one transaction, whose values before are gone.

An attempt works in these steps:

1. It reads the journal. If the journal is beyond the mark, its keys are *in doubt*.
2. It makes the journal its own, with the keys it will write and those in doubt, unless it has changed since 1.
3. It reads its keys and those in doubt. Each begins with its value, or with the value before if its version is beyond
   the mark.
4. It writes all of them that have not changed since 3; keys in doubt get the value they began with. What was refused
   is done again from 3.
5. It puts the mark into the bolt's state.

Why a late task of an earlier attempt harms nobody: if it is before its own step 2, that step is refused from now on.
If it is behind it, all that it can still write is named in the journal, so those keys are in doubt for whoever comes
next, and get another version in 4, also if they are unchanged. What it wrote before then is taken back by 3 and 4; what
it writes later is refused. So behind 4 the database has the values of the committed attempts and this one's, and stays
so until another attempt has passed step 2.

Where the backend writes all keys of a call in one atomic act, 1 and the reading in 3 are one step, 2 and 4 another:
nobody has a journal and writes its keys later, so the journal's version alone keeps late tasks out.

What was not taken: a rule for each value alone, as in Storm, whose later transaction begins with the value of whoever
wrote last. If attempt 0 of transaction 5 has written a key for which attempt 1 has no row, transaction 6 counts what
was never committed. To know of each attempt whether it was committed would need a list of them all; the journal needs
one mark, and takes back what readers of the database would otherwise see for ever.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from inspect import GEN_SUSPENDED, getgeneratorstate
from typing import Any, TypeVar

from statefx.errors import FailedException, StatePhaseError, ValueMismatchError
from statefx.operators.context import Context
from statefx.protocol.identity import TransactionAttempt
from statefx.state.view.changes import OWN_KEYS
from statefx.state.view.task_state import KeyValueState
from statefx.values.backend import (
    RESERVED,
    Get,
    KeyValueBackend,
    Put,
    Row,
    Stamp,
    Steps,
    begun,
    carry_out,
    check_keys,
    decode,
    encode,
    owner_of,
    refuse_stubborn,
    stamp_of,
    version_of,
)
from statefx.values.value import OpaqueValue, behind

T = TypeVar("T")

_Change = Callable[[str, Any], Any]
"""(key, value) -> the new value."""

_NO_RUN = "-"  # of the first mark: no run of an attempt has written


class OpaqueMap:
    """Values by key in a database of the user's, exactly once with any spout.

    Made in ``initState``, by a bolt with state, behind a ``fieldsGrouping`` by the key. It writes in the transaction's
    ordered phase, and other readers of the database see what it writes at once; what an attempt has written that then
    fails is taken back by the next one.

    Parameters
    ----------
    backend : KeyValueBackend
        Where the values are.
    state : KeyValueState
        What ``initState`` is given. One entry of it is the map's: its key is `MARK` and the map's name.
    context : Context
        What ``open`` is given.
    name : str, optional
        Of the map; by default the component's. Two maps of one bolt need two names.

    Contract
    --------
    * After a transaction is committed, the values are those of its committed attempt and of the transactions before,
      whatever other attempts have written, and whenever; that holds also for keys which only a failed attempt had.
    * That needs one call of `multiUpdate` in every transaction, also when there is nothing to update: it takes back
      what the attempt before has left. Without one, the next call does it, and until then readers may see it.
    * After a call that the backend has failed the attempt fails too, whoever catches the error; a call that fails by
      itself, as for a value that JSON can't hold, has changed nothing.
    * Between a failure and the next attempt, readers see what the failed attempt has written; `rollback`, called by the
      bolt's ``preRollback``, takes it back at once.
    """

    MARK = f"{OWN_KEYS}OpaqueMap "

    def __init__(
        self, backend: KeyValueBackend, state: KeyValueState[Any, Any], context: Context, name: str | None = None
    ) -> None:
        self._backend = backend
        self._state = state
        self._context = context
        self._name = context.component if name is None else name
        self._own = Stamp(
            TransactionAttempt(context.txid, context.attempt),
            uuid.uuid4().hex[:8],
            owner_of("opaque", f"{self._name}/{context.task}", context),
        )
        self._journal = f"{RESERVED}{self._name}/{context.task}"
        first = Stamp(TransactionAttempt(context.txid - 1, 0), _NO_RUN, self._own.owner)
        self._mark = Stamp.parse(state.get(self._mark_key, str(first)))
        if self._mark == first:
            # By the attempt that is committed, also if it never calls the map: an attempt before it may have written.
            with suppress(StatePhaseError):  # preRollback and preCommit only read
                state.put(self._mark_key, str(first))
        self._doubtful: set[str] = set()
        self._half_written = self._rolling_back = False

    @property
    def _mark_key(self) -> str:
        return self.MARK + self._name

    def multiGet(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of those keys that have one, with what this attempt has written.

        Raises
        ------
        ValueMismatchError
            A value is another map's or task's, or a later attempt has written it.
        """
        found: dict[str, Any] = self._run(self._get(check_keys(keys)))
        return found

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of one key."""
        return self.multiGet([key]).get(key, default)

    def multiUpdate(
        self, changes: Mapping[str, T], update: Callable[[Any, T], Any], initial: Any = None
    ) -> dict[str, Any]:
        """Change values: each becomes ``update(value, change)``; return the new ones.

        When it is called
            Once in each transaction, in ``finishBatch`` or ``prePrepare``, also without changes; more often costs more
            round trips. Each call is four of them at most, whatever the number of keys; two, if the backend is atomic.

        Parameters
        ----------
        changes : Mapping
            What is to be done to each key.
        update : callable
            Given the value and the change, returns the new value; None: the key has none any more. It may be called
            several times for a key and must depend on its arguments alone; the value it may change in place.
        initial : Any
            The value of a key that has none.

        Raises
        ------
        FailedException
            Another run of this attempt has written; the next attempt will do it.
        ValueMismatchError
            Table and checkpoint are not at the same transaction, a later attempt has written, or keys are those of
            another map or task.
        TypeError
            A key is no str, or JSON can't hold a value.
        """
        new: dict[str, Any] = self._run(self._update(check_keys(changes), changes, update, initial))
        return new

    def multiPut(self, values: Mapping[str, Any]) -> None:
        """Set values, whatever they were; as `multiUpdate`."""
        self.multiUpdate(values, lambda _, value: value)

    def rollback(self) -> None:
        """Take back what the attempt that is rolled back has written; for ``preRollback``, if readers must not wait.

        Raises
        ------
        ValueMismatchError
            As `multiUpdate`.
        """
        self._rolling_back = True
        self._run(self._update([], {}, lambda value, _: value, None))

    def _run(self, steps: Steps[Any]) -> Any:
        now = TransactionAttempt(self._context.txid, self._context.attempt)
        if now != self._own.attempt:
            raise StatePhaseError(
                f"the map {self._name!r} was made for {self._own.attempt} and is used in {now}: make it in initState"
            )
        try:
            return carry_out(steps, self._backend)
        except Exception as error:
            # What comes of the values that the map was given comes before any is written. After an error of the backend
            # nobody knows what is written: else the attempt could be committed with half an update.
            if self._half_written or getgeneratorstate(steps) == GEN_SUSPENDED:
                self._state._reads.failed(error)
            raise

    def _get(self, keys: list[str]) -> Steps[dict[str, Any]]:
        rows = yield Get(keys)
        values = {key: self._start(key, row)[0] for key, row in rows.items()}
        return {key: value for key, value in values.items() if value is not None}

    def _update(
        self,
        keys: list[str],
        changes: Mapping[str, Any],
        update: Callable[[Any, Any], Any],
        initial: Any,
    ) -> Steps[dict[str, Any]]:
        # Where all keys are one atomic act, nobody can have a journal and write its keys later: steps 1 to 4 are one.
        way = self._write_at_once if getattr(self._backend, "atomic", False) else self._write_behind_journal
        new = yield from way(keys, lambda key, value: update(begun(value, initial), changes[key]))
        if not self._rolling_back:
            self._state.put(self._mark_key, str(self._own))  # step 5
        return {key: new[key] for key in keys}

    def _write_at_once(self, keys: list[str], change: _Change) -> Steps[dict[str, Any]]:
        expected: dict[str, str | None] = {}
        while True:
            rows = dict((yield Get([self._journal, *keys])))
            entry, in_doubt = self._entry(rows.get(self._journal), keys)
            if others := sorted(in_doubt.difference(keys)):
                rows |= yield Get(others)
            refuse_stubborn(expected, expected, rows)
            new, writes = self._changed([*keys, *others], keys, rows, change)
            writes[self._journal] = entry
            expected = {key: version_of(rows.get(key)) for key in writes}
            if not (yield Put(writes, expected)):
                return new

    def _write_behind_journal(self, keys: list[str], change: _Change) -> Steps[dict[str, Any]]:
        yield from self._take_journal(keys)  # steps 1 and 2
        new: dict[str, Any] = {}
        left = sorted(self._doubtful.union(keys))
        expected: dict[str, str | None] = {}
        while left:
            rows = yield Get(left)  # step 3
            refuse_stubborn(set(left) & expected.keys(), expected, rows)
            expected = {key: version_of(rows.get(key)) for key in left}
            changed, writes = self._changed(left, keys, rows, change)
            new |= changed
            self._half_written = True
            left = yield Put(writes, expected)  # step 4
        self._half_written = False
        self._doubtful.clear()
        return new

    def _take_journal(self, keys: list[str]) -> Steps[None]:
        """Make the journal this attempt's."""
        expected: dict[str, str | None] = {}
        refused: list[str] = []
        while True:
            rows = yield Get([self._journal])
            row = rows.get(self._journal)
            refuse_stubborn(refused, expected, rows)
            entry, in_doubt = self._entry(row, keys)
            expected = {self._journal: version_of(row)}
            if row != entry:
                refused = yield Put({self._journal: entry}, expected)
            if row == entry or not refused:
                self._doubtful |= in_doubt
                return

    def _entry(self, row: Row | None, keys: list[str]) -> tuple[Row, set[str]]:
        """Return the journal as this attempt writes it, and the keys that are in doubt."""
        in_doubt = self._in_doubt(row)
        named = _began_and_named(row)[1] if row is not None and row.version == str(self._own) else in_doubt
        undo = json.dumps([str(self._mark), sorted(named.union(keys))], ensure_ascii=False)
        return Row(str(self._own), None, undo), in_doubt

    def _changed(
        self, written: list[str], keys: list[str], rows: Mapping[str, Row], change: _Change
    ) -> tuple[dict[str, Any], dict[str, Row]]:
        """Return the new values of `keys`, and the rows of all that is `written`: others get what they began with."""
        new, writes, own = {}, {}, set(keys)
        for key in written:
            value, prev = self._start(key, rows.get(key))
            undo = encode(key, prev)  # now: it may be the value that `change` changes in place
            if key in own:
                value = new[key] = change(key, value)
            writes[key] = Row(str(self._own), encode(key, value), undo)
        return new, writes

    def _in_doubt(self, journal: Row | None) -> set[str]:
        """Return the keys that an attempt which was not committed may have written, or may still write."""
        own, mark, where = self._own, self._mark, f"the journal {self._journal!r}"
        if journal is None:
            if mark.run != _NO_RUN:
                raise self._mismatch(f"{where} is missing, and so is what was written up to", mark.attempt)
            return set()
        stamp = stamp_of(self._journal, journal, own.owner)
        if stamp in (own, mark):
            return set()
        if own.attempt < stamp.attempt:
            raise behind(own.attempt, stamp.attempt, where)
        self._refuse_twin(self._journal, stamp)
        began, named = _began_and_named(journal)
        # Attempts that fail, and transactions without a call, leave the mark that the journal began with.
        if stamp.attempt.txid <= mark.attempt.txid or began != str(mark):
            has = "knows nothing of the values" if mark.run == _NO_RUN else f"is at {mark.attempt}"
            raise self._mismatch(f"the bolt's state {has}, and {where} is at", stamp.attempt)
        return named

    def _refuse_twin(self, key: str, stamp: Stamp) -> None:
        """Raise if another run of this attempt has written: it may be the one whose ack counts, or its rollback."""
        if stamp.attempt == self._own.attempt and not self._rolling_back:
            raise FailedException(
                f"another run of this very attempt has written {key!r}; the next attempt starts over. If all fail so, "
                "the bolt has two maps of one name: give each a name of its own"
            )

    def _mismatch(self, what: str, found: TransactionAttempt) -> ValueMismatchError:
        return ValueMismatchError(
            f"{what} transaction {found.txid}, attempt {found.attempt}: table and checkpoint are not at the same "
            "transaction. Restore both as they were at one time; or, to begin anew, empty the table and use a new "
            "checkpoint",
            found=found,
            attempt=self._own.attempt,
        )

    def _start(self, key: str, row: Row | None) -> tuple[Any, Any]:
        """Return what this attempt begins with at a key, and the value that the last committed transaction left."""
        if row is None:
            return None, None
        stamp = stamp_of(key, row, self._own.owner)
        curr, prev = decode(row.value), decode(row.undo)
        if stamp == self._own:
            return curr, prev
        self._refuse_twin(key, stamp)
        start = OpaqueValue(stamp.attempt, curr, prev).get(self._own.attempt, self._mark.attempt.txid)
        return start, start


def _began_and_named(journal: Row) -> tuple[str, set[str]]:
    """Return the mark that the writer of a journal began with, and the keys that it names."""
    began, named = decode(journal.undo)
    return began, set(named)
