"""Everything statefx raises, in one tree.

::

    StatefxError
    |-- TopologyError (ValueError)        the topology is wired wrong
    |-- ConfigError (ValueError)          a setting is unknown, of the wrong type or out of range
    |   `-- ProviderError                 a state provider can't be found, imported or built
    |-- CheckpointError                   the checkpoint location can't be used for this run
    |   |-- CheckpointMismatchError       it belongs to another topology, or part of it was replaced
    |   `-- CheckpointFormatError         it was written in a format this version does not read
    |-- InputError                        the input can't be read, or is not as the checkpoint knows it
    |-- FencedError                       a newer generation has taken over: stop, do not retry
    |-- LogOutcomeUnknownError            an append to the log may or may not have happened
    |-- StorageError                      bytes of a checkpoint could not be written
    |   |-- AlreadyExistsError            another writer has the name
    |   |-- NotWrittenError               known not to have been written
    |   `-- OutcomeUnknownError           may have been written, or may still be
    |-- StateError
    |   |-- CodecError (TypeError)        a key or value of a type that state can't hold
    |   |-- StateClosedError              used after close
    |   |-- StatePhaseError               called in a phase in which it has no meaning
    |   |-- StateCorruptedError           a file or record is damaged, missing or edited
    |   |-- AmbiguousKeyError (LookupError)  several tasks hold the key
    |   |-- UnreachableError              a server that keeps state gave no answer
    |   |-- DeniedError                   it does not let this user in, or not do this
    |   |-- CommitFailedError             known not to have been committed: commit again
    |   `-- CommitOutcomeUnknownError     may have been committed: read back, commit again, never roll back
    |-- SinkError                         a sink can't publish: repeated while a transaction is committed
    |   |-- SinkOwnedError                the target belongs to another application or checkpoint
    |   |-- SinkMismatchError             the target is not at the checkpoint's transaction
    |   `-- StagedRowsLostError           rows that wait to be published are missing or damaged
    |-- ValueMismatchError                a value in the user's database is another one's, or of another time
    |-- TransactionError
    |   |-- FailedException               raised by a bolt: fails the transaction, not the query
    |   |-- TransactionConflictError      another one has what this transaction was to take or to change
    |   |-- TransactionTimeoutError       topology.transaction.timeout.secs has passed
    |   `-- AttemptsExhaustedError        topology.transaction.attempts.max has been reached
    `-- BoltError                         a bolt's own code raised
        `-- SchemaError                   a bolt emitted what its declared schema can't hold

Every error carries its data as attributes (``txid``, ``component``, ``task``, ``path``, ...) and survives
pickling with them.
"""

from __future__ import annotations

from typing import Any


class StatefxError(Exception):
    """Root of all errors raised by statefx.

    Parameters
    ----------
    message : str
        What happened and what to do about it.
    **data : Any
        Picklable facts, kept as attributes of the same names.
    """

    def __init__(self, message: str = "", **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data = data

    def __getattr__(self, name: str) -> Any:
        data: dict[str, Any] = self.__dict__.get("data", {})
        if name in data:
            return data[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.data)


def _rebuild(kind: type[StatefxError], message: str, data: dict[str, Any]) -> StatefxError:
    return kind(message, **data)


class TopologyError(StatefxError, ValueError):
    """The topology is wired wrong; raised on the driver before Spark starts."""


class ConfigError(StatefxError, ValueError):
    """A setting is unknown, of the wrong type or out of range; raised before Spark starts."""


class ProviderError(ConfigError):
    """A state provider can't be found, imported or built."""


class CheckpointError(StatefxError):
    """The checkpoint location can't be used for this run."""


class CheckpointMismatchError(CheckpointError):
    """The checkpoint belongs to another topology, or a part of it was moved, copied or replaced."""


class CheckpointFormatError(CheckpointError):
    """The checkpoint was written in a format that this version does not read."""


class InputError(StatefxError):
    """The input can't be read, or is not as the checkpoint knows it: of a spout, or where Spark has ended its query."""


class FencedError(StatefxError):
    """Another driver, or a tool that changes the checkpoint, has taken it over: stop, do not retry."""


class LogOutcomeUnknownError(StatefxError):
    """An append to the transaction log may or may not have happened, and reading back did not tell."""


class StorageError(StatefxError):
    """Bytes of a checkpoint could not be written."""


class AlreadyExistsError(StorageError):
    """Another writer has created the name."""


class NotWrittenError(StorageError):
    """Known not to have been written; ``usable`` tells whether the storage may be used on."""


class OutcomeUnknownError(StorageError):
    """It may have been written, or may still be: only a later look tells."""


class StateError(StatefxError):
    """Root of what state raises."""


class CodecError(StateError, TypeError):
    """A key or value of a type that state can't hold."""


class StateClosedError(StateError):
    """The state was used after ``close``."""


class StatePhaseError(StateError):
    """The call has no meaning in the present phase of the transaction."""


RESTORE_OR_REPAIR = (
    "Restore the file from a backup of the checkpoint. Without one, stop the topology and call "
    "Checkpoint(location).repair(), in a shell `statefx repair`, which goes on from the newest state "
    "that is whole"
)
"""What to do about a damaged file that `Checkpoint.repair` can do without: any but those of the log."""


class StateCorruptedError(StateError):
    """A state file or log record is damaged, missing or edited; names the file and the remedy."""


class AmbiguousKeyError(StateError, LookupError):
    """Several tasks hold the key; say which with ``task``."""


class UnreachableError(StateError):
    """A server that keeps state gave no answer; ``sent`` tells whether it may have done what it was asked."""


class DeniedError(StateError):
    """A server that keeps state does not let this user in, or does not let it do this."""


class CommitFailedError(StateError):
    """The commit is known not to have happened: commit again."""


class CommitOutcomeUnknownError(StateError):
    """The commit may have happened: read back and commit again; never roll back."""


class SinkError(StatefxError):
    """A sink can't publish; while a transaction is being committed it is tried again until it can."""


class SinkOwnedError(SinkError):
    """The target belongs to another application, or to another checkpoint of this one."""


class SinkMismatchError(SinkError):
    """The target is not at the transaction that the checkpoint is at: one of them was restored from a backup."""


class StagedRowsLostError(SinkError):
    """Rows of a decided transaction, which wait to be published, are missing or damaged."""


class ValueMismatchError(StatefxError):
    """A value in a database of the user's belongs to another map, or is not at the checkpoint's transaction."""


class TransactionError(StatefxError):
    """A transaction could not be carried through."""


class FailedException(TransactionError):
    """Raised by a bolt to fail the transaction it is in; it is rolled back and tried again.

    >>> raise FailedException("the price feed is stale")
    Traceback (most recent call last):
    statefx.errors.FailedException: the price feed is stale
    """


class TransactionConflictError(TransactionError):
    """Another transaction, or another reader, has what this one was to take or to change; nothing of it is kept."""


class TransactionTimeoutError(TransactionError):
    """A transaction took longer than ``topology.transaction.timeout.secs``."""


class AttemptsExhaustedError(TransactionError):
    """A transaction failed ``topology.transaction.attempts.max`` times."""


class BoltError(StatefxError):
    """A bolt's own code raised; carries ``component``, ``task``, ``hook``, ``txid`` and ``traceback``.

    ``traceback`` is the text of the traceback in the task, with the user's frames only, the innermost last. Python
    shows it before this error, as its cause.
    """

    def __init__(self, message: str = "", **data: Any) -> None:
        super().__init__(message, **data)
        if data.get("traceback"):
            self.__cause__ = _TracebackError(data["traceback"])


class _TracebackError(Exception):
    """Shows a traceback of another process, in which the frames themselves have stayed."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"in the task:\n\n{self.text}"


class SchemaError(BoltError):
    """A bolt emitted values that its declared schema can't hold."""
