"""What takes part in the decision to commit a transaction: anything whose effects have to go with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from statefx.coordinator.attempt import Work
from statefx.protocol.barrier import Ack
from statefx.protocol.identity import TaskId, TransactionAttempt
from statefx.protocol.jsonform import Json
from statefx.protocol.log_state import LogState


class Participant(ABC):
    """Takes part in every transaction of a topology, by what its tasks have acked.

    Attributes
    ----------
    name : str
        Unique in the topology, and the same at every start: the log knows it by it.

    Contract
    --------
    * `commit` may come again for the same txid and attempt, from another driver too, and after it was done: then it
      changes nothing (rule 10.2: the target holds a marker).
    * `commit` comes in the order of txids, and only when COMMITTING is durable. The transaction is COMMITTED, and the
      next one decided, when the commits of all participants are done.
    * `rollback` is a courtesy: a driver that was killed never calls it. What nobody named is garbage (rule 4.3).
    """

    name: str

    @abstractmethod
    def decision(self, acks: Mapping[TaskId, Ack]) -> Json:
        """Return what a commit has to know, from the acks of all tasks; it stands in COMMITTING."""

    @abstractmethod
    def commit(self, attempt: TransactionAttempt, decision: Json) -> Work | None:
        """Return the job that commits: repeated until it is done. None: COMMITTING has committed it."""

    def rollback(self, attempt: TransactionAttempt) -> Work | None:
        """Return the job that rolls back, if there is anything to do; repeated, but not for ever."""
        return None

    @abstractmethod
    def fence(self, state: LogState) -> None:
        """Keep older drivers out: the generation in `state` was just taken."""

    def sweep(self, state: LogState) -> int:
        """Delete what no transaction after `state.committed` can name; return how many things went.

        By the txid that each has in its name. What was staged since `state` was read is of a later one (rule 4.3).
        """
        return 0
