"""Ends what a driver that is gone has left open, without its topology.

`abort` ends transactions in the log::

    1 nothing is open, or something is decided: refused      2 the next generation: who ran before is fenced
    3 ROLLED_BACK, the newest first

Nothing can come between 1 and 2: the log is read, and the GENERATION record takes the number behind what was read
(rule 3.1). So no driver is ever fenced for an abort that is then refused.

Step 3 is a recovery's, which a start would do next, but for one thing: a recovery first tells the tasks of bolts with
``preRollback`` (rule 7.3), and here there are no tasks. A rollback that was logged is never told again. So where the
checkpoint has such a bolt, the transaction that it may have to be told of is left open: it is the lowest one, since no
later one has come to the ordered phase (rules 2.3, 6.3). The next start rolls it back as it would have done anyway.

`resolve` ends what was left sealed in a queue, by the log::

    1 the names are listed, then the log is read: whoever has sealed them stands in it, unless it is older than they are
    2 named by a decision: acknowledged       decided without it, or of a driver that was replaced: released
    3 left is what the newest driver has sealed and not decided: it may live. The next generation is taken, which
      fences it, and 2 is asked again

So nothing is released that anybody could still decide. A name has the generation of the driver whose tasks have sealed
it, and only that driver decides it; in 2 its last record stands before the GENERATION record of another one. What is
released goes back to the spout that had it, which keeps it until idleSecs are over, if it lives (rule 12.7).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from statefx.admin.reading import check_yes, found_checkpoint
from statefx.errors import CheckpointError, ConfigError
from statefx.log.adoption import NOTHING_ADOPTED, check_adoption
from statefx.log.entries import read_entries
from statefx.log.location import Folders
from statefx.log.log import TransactionLog
from statefx.log.takeover import read_checkpoint, take_generation
from statefx.operators.sealed_names import OwnerName, Sealed, sealed_in
from statefx.operators.spouts import Spout
from statefx.protocol.identity import TransactionAttempt
from statefx.protocol.log_state import InFlight, LogState
from statefx.protocol.records import Committing, RolledBack
from statefx.storage import Storage

logger = logging.getLogger("statefx")

REASON = "aborted by Checkpoint.abort"

ACKNOWLEDGE: Literal["acknowledge"] = "acknowledge"
RELEASE: Literal["release"] = "release"
FENCE: Literal["fence"] = "fence"
LEAVE: Literal["leave"] = "leave"


# ---- transactions in the log


@dataclass(frozen=True)
class Aborted:
    """What `Checkpoint.abort` has done.

    Attributes
    ----------
    generation : int
        The one that it took: drivers of older ones can't commit any more.
    rolled_back : tuple of TransactionAttempt
        What it ended, the newest first; each has ``txid`` and ``attempt``.
    left : TransactionAttempt or None
        What the next start rolls back, since `bolts` have to be told of it.
    bolts : tuple of str
        Bolts with ``preRollback``.
    """

    generation: int
    rolled_back: tuple[TransactionAttempt, ...]
    left: TransactionAttempt | None
    bolts: tuple[str, ...]

    def __str__(self) -> str:
        said = [f"generation {self.generation} is taken, and older drivers are fenced"]
        said += [f"attempt {each.attempt} of transaction {each.txid} is rolled back" for each in self.rolled_back]
        if self.left is not None:
            said.append(
                f"attempt {self.left.attempt} of transaction {self.left.txid} is rolled back by the next start, which "
                f"calls preRollback of {', '.join(self.bolts)}"
            )
        return "; ".join(said)


def abort_plan(folders: Folders) -> str:
    """Return what `abort` would do; refuses what that would refuse, and changes nothing."""
    found = found_checkpoint(folders)
    _check_open(found, folders)
    check_adoption(found, None, folders, NOTHING_ADOPTED, shared=False)
    bolts, entries = _told(found)
    said = [f"roll back attempt {each.attempt} of transaction {each.txid}" for each in reversed(entries)]
    if bolts:
        first = found.in_flight[0]
        said.append(
            f"leave attempt {first.attempt} of transaction {first.txid} to the next start, which calls preRollback of "
            f"{', '.join(bolts)}"
        )
    return f"{', '.join(said)} in {folders.location}, and fence a driver that runs"


def abort(folders: Folders) -> Aborted:
    """Take a generation and roll back what is PREPARING."""
    found_checkpoint(folders)

    def opened(storage: Storage) -> TransactionLog:
        log = TransactionLog(storage)
        # At each try to take the generation: a driver that runs may have decided since the last look (rule 2.5).
        _check_open(log.state, folders)
        return log

    return _aborted(take_generation(folders, None, NOTHING_ADOPTED, shared=False, opened=opened), folders)


def _check_open(state: LogState, folders: Folders) -> None:
    if not state.in_flight:
        raise CheckpointError(
            f"no transaction is open in the checkpoint in {folders.location}, the last one that was committed is "
            f"{state.committed}: there is nothing to abort",
            path=folders.location,
        )
    if state.committing is not None:
        txid = state.committing.txid
        raise CheckpointError(
            f"transaction {txid} of the checkpoint in {folders.location} is COMMITTING: it is decided, and can't be "
            "aborted any more. Start the topology, which rolls it forward",
            path=folders.location,
            txid=txid,
        )


def _told(state: LogState) -> tuple[tuple[str, ...], tuple[InFlight, ...]]:
    """Return the bolts that the next start has to tell, and what can be rolled back without them.

    Bolts are told of the lowest one alone: committers of those after it can't have run (rule 6.3).
    """
    bolts = tuple(sorted(id for id, bolt in state.topology.stateful.items() if bolt.rolls_back))
    return bolts, state.in_flight[1:] if bolts else state.in_flight


def _aborted(log: TransactionLog, folders: Folders) -> Aborted:
    state = log.state
    bolts, entries = _told(state)
    ended = tuple(TransactionAttempt(entry.txid, entry.attempt) for entry in reversed(entries))
    for each in ended:  # rule 3.6: from the newest down
        log.append(RolledBack(each.txid, each.attempt, REASON))
    first = state.in_flight[0]
    left = TransactionAttempt(first.txid, first.attempt) if bolts else None
    done = Aborted(state.generation, ended, left, bolts)
    logger.info("%s: %s", folders.location, done)
    return done


# ---- messages in a queue


@dataclass(frozen=True, slots=True)
class SealedMessages:
    """Messages of a queue that one attempt of a transaction has sealed.

    Attributes
    ----------
    spout : str
        The id of the spout; of a client the queue's name and ``.acks``.
    task : int
        Which of its tasks had them.
    txid : int
        Whose they are.
    attempt : int
        Which try of that transaction has sealed them.
    generation : int
        Which driver's.
    messages : int
        How many.
    action : str
        ``acknowledge``: they are taken off the queue. ``release``: they go back to the queue. ``fence``: drivers up to
        this generation are fenced, then they go back. ``leave``: nothing.
    reason : str
        What the log says of them.
    name : str
        By which they are had: the consumer in Redis, ``statefx_owner`` in a table.
    """

    spout: str
    task: int
    txid: int
    attempt: int
    generation: int
    messages: int
    action: Literal["acknowledge", "release", "fence", "leave"]
    reason: str
    name: str


def resolve(
    folders: Folders,
    queue: Spout,
    *,
    yes: bool = False,
    unknown: Literal["acknowledge", "release"] | None = None,
    origin: str | None = None,
) -> list[SealedMessages]:
    """Judge by the log what is sealed for this checkpoint, and with `yes` acknowledge or release it."""
    check_yes(yes)
    if not isinstance(queue, Spout) or not hasattr(queue, "pendingAcks"):
        raise ConfigError(
            f"{queue!r} is no queue whose messages are acknowledged in the transaction: give one such as "
            "SqlQueueSpout(...) or RedisStreamSpout(...)"
        )
    if unknown not in (None, ACKNOWLEDGE, RELEASE):
        raise ConfigError(f"unknown is 'release' or 'acknowledge', not {unknown!r}")
    try:
        acks = queue.pendingAcks()
    except NotImplementedError:
        raise ConfigError(f"{type(queue).__name__} has no pendingAcks, so it seals nothing") from None
    try:
        return _Resolving(acks, folders, unknown).run(origin, yes=yes)
    finally:
        acks.close()


@dataclass
class _Resolving:
    acks: Any
    folders: Folders
    unknown: Literal["acknowledge", "release"] | None

    def run(self, origin: str | None, *, yes: bool) -> list[SealedMessages]:
        before = read_checkpoint(self.folders)
        if not before.generation:
            return self._without_log(origin, yes=yes)
        if origin is not None and origin != before.origin:
            raise ConfigError(
                f"the origin of the checkpoint in {self.folders.location} is {before.origin!r}, not {origin!r}: leave "
                "out origin, which is for a checkpoint that is gone"
            )
        sealed = self.acks.sealed(f"{before.origin}/")
        # Behind the listing: whoever has sealed something has taken his generation before that.
        found = self._judged(sealed, read_checkpoint(self.folders))
        if yes and any(each.action == FENCE for each in found):
            found = self._judged(sealed, self._fenced())
        return self._done(found, yes=yes)

    def _without_log(self, origin: str | None, *, yes: bool) -> list[SealedMessages]:
        if origin is None or self.unknown is None:
            raise CheckpointError(
                f"there is no checkpoint in {self.folders.location}, so nobody can tell whether what it has sealed in "
                f"{self.acks.target} was processed: give the right folder, or restore it. If it is gone for good, look "
                "at the results, and say unknown='release' to have those messages processed (again, if they were), or "
                f"unknown='acknowledge' to take them off; and origin=, whose they are. {self._origins()}",
                path=self.folders.location,
            )
        sealed = self.acks.sealed(f"{origin}/")
        return self._done([self._unknown(each, "its checkpoint is gone") for each in _read(sealed)], yes=yes)

    def _origins(self) -> str:
        counts: dict[str, int] = {}
        for name, messages in self.acks.sealed("").items():
            if messages and (owner := _owner(name)) is not None:
                counts[owner.origin] = counts.get(owner.origin, 0) + messages
        shown = ", ".join(f"{origin!r} ({messages} messages)" for origin, messages in sorted(counts.items()))
        return f"Sealed are those of {shown}" if counts else "Nothing is sealed there now"

    def _judged(self, sealed: Mapping[str, int], log: LogState) -> list[SealedMessages]:
        decided = self._decided(log)
        return [self._judge(each, log, decided) for each in _read(sealed)]

    def _judge(self, each: SealedMessages, log: LogState, decided: set[str]) -> SealedMessages:
        name = f"attempt {each.attempt} of transaction {each.txid}"
        if each.name in decided:
            return replace(each, action=ACKNOWLEDGE, reason=f"{name} is decided, and names them")
        if each.generation > log.generation:
            why = f"generation {each.generation} has sealed them, and the log ends with {log.generation}: it is older"
            return self._unknown(each, why)
        if each.txid <= log.decided:
            return replace(each, action=RELEASE, reason=f"transaction {each.txid} was decided without them")
        if each.generation < log.generation:
            return replace(each, action=RELEASE, reason=f"{name} was not decided, and its driver was replaced")
        return replace(each, action=FENCE, reason=f"{name} is not decided, and its driver may be running")

    def _unknown(self, each: SealedMessages, reason: str) -> SealedMessages:
        return replace(each, action=self.unknown or LEAVE, reason=reason)

    def _decided(self, log: LogState) -> set[str]:
        """Return the names that the log has decided, as far as it remembers: those that are left are among them."""
        records = [entry.record for entry in read_entries(self.folders.storage)]
        found = [record for record in records if isinstance(record, Committing)]
        found += [each.committing for each in log.in_flight if each.committing is not None]
        return {name for record in found for each in record.committables.values() for name in sealed_in(each)}

    def _fenced(self) -> LogState:
        """Take the next generation; return what the log has decided by then."""
        others: set[str] = set()
        opened = partial(_opened, others)
        return take_generation(self.folders, None, NOTHING_ADOPTED, shared=False, others=others, opened=opened).state

    def _done(self, found: list[SealedMessages], *, yes: bool) -> list[SealedMessages]:
        if yes:
            for each in found:
                if each.action == ACKNOWLEDGE:
                    self.acks.acknowledge(each.name)
                elif each.action == RELEASE:
                    self.acks.release(each.name)
                said = (self.acks.target, each.action, each.messages, each.spout, each.reason)
                logger.info("%s: %s %d messages of %r: %s", *said)
        return found


def _opened(others: set[str], storage: Storage) -> TransactionLog:
    """Open the log; what is decided and not committed, for the `others` too, is left to the next start."""
    log = TransactionLog(storage)
    if log.state.committing is not None and log.state.committing.committing is not None:
        others.update(log.state.committing.committing.committables)
    return log


def _owner(name: str) -> OwnerName | None:
    sealed = Sealed.read(name)
    return None if sealed is None else OwnerName.read(sealed.owner)


def _read(sealed: Mapping[str, int]) -> list[SealedMessages]:
    """Return what the names say, in the order of transactions."""
    found = []
    for name, messages in sealed.items():
        transaction, owner = Sealed.read(name), _owner(name)
        if messages and transaction is not None and owner is not None:
            named = (transaction.txid, transaction.attempt, owner.epoch.generation)
            found.append(SealedMessages(owner.component, owner.task, *named, messages, LEAVE, "", name))
    return sorted(found, key=lambda each: (each.spout, each.generation, each.txid, each.attempt, each.task))
