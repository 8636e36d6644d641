"""What a bolt is told about where and when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from statefx.protocol.identity import TransactionAttempt
from statefx.state.view.time_index import EPOCH, time_of

DRIVER = -1
"""``context.task`` of the driver's copy of a spout."""


@dataclass(frozen=True, eq=False)
class Context:
    """Where a bolt runs, and which transaction is under way; given to ``open``.

    Attributes
    ----------
    config : Mapping[str, Any]
        All settings by their full names: ``topology.*`` with defaults filled in, and the user's own keys. Read-only.
    component : str
        The id given to ``setBolt``.
    task : int
        Which of the component's instances this is, 0..parallelism-1.
    parallelism : int
        How many instances the component has.
    generation : int
        How many times the topology has been started on this checkpoint.
    origin : str
        Whose the checkpoint is: random, and the same in every start on it. A copy that goes on by itself
        (``adopt="fork"``) has another one. What a bolt keeps outside its state can name its owner by it.
    ordered : bool
        Whether it sees one transaction after the other, in the order of their txids: committers do, and what reads
        from one, and all others unless ``topology.max.spout.pending`` is above 1.
    attempt : int
        How many times the present transaction has been tried before. Live: it changes under the bolt's hands, as
        ``collector.attempt``, which has it together with the txid, does not.
    txid : int
        The present transaction. Live.
    pending : tuple
        For a `Spout` that is opened: the ids of its messages whose trees go on, since bolts keep tuples of them in
        their state. They will be acked or failed, so pass over them if the source delivers them again.
    watermark : datetime or None
        How far event time has come, in UTC: rows of earlier times are late. While rows are executed it is that of the
        end of the transaction before; in ``finishBatch`` and ``prePrepare`` that of the end of this one. It never goes
        back where ``ordered``. None: no input has event time, nothing is known yet, or a commit or a rollback calls a
        hook. Live. See :doc:`/time`.
    processingTime : datetime
        When the present attempt began, in UTC, by the driver's clock: the same in all tasks. It may go back from one
        transaction to the next, if the clock was set back. Live; 1970 in the driver's copy of a spout, and where a
        commit or a rollback calls a hook.
    failure : str
        For a `Spout`, while ``fail`` runs: who failed the message and why, such as ``"bolt 'bill': card refused"`` or
        ``"it was not acked within 30 s"``; of several reasons one. Else empty. Live.
    """

    config: Mapping[str, Any]
    component: str
    task: int
    parallelism: int
    generation: int
    origin: str = ""
    attempt: int = 0
    txid: int = 0
    ordered: bool = True
    pending: tuple[Any, ...] = ()
    failure: str = ""
    watermark: datetime | None = None
    processingTime: datetime = EPOCH

    def enter(self, attempt: TransactionAttempt, clock_ms: int = 0, watermark: int | None = None) -> None:
        """Name the transaction that begins; called by the runtime before any hook of it.

        Parameters
        ----------
        attempt : TransactionAttempt
        clock_ms : int
            The order's, since 1970.
        watermark : int, optional
            Microseconds since 1970.
        """
        object.__setattr__(self, "txid", attempt.txid)
        object.__setattr__(self, "attempt", attempt.attempt)
        object.__setattr__(self, "processingTime", time_of(clock_ms * 1000))
        self.reach(watermark)

    def reach(self, watermark: int | None) -> None:
        """Have event time come so far, in microseconds since 1970."""
        object.__setattr__(self, "watermark", None if watermark is None else time_of(watermark))
