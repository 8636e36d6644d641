"""A checkpoint as users see it: one object that reads and changes what a topology has committed.

`Checkpoint` is imported from ``statefx``; from here, what its methods return.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from statefx.admin import damage, ending, looking, migration, rekeying, rescaling, savepoints
from statefx.admin.damage import Damage, Repair, Verified
from statefx.admin.ending import Aborted, SealedMessages
from statefx.admin.looking import Explained, KeyFile, KeyTask, Quarantined, Transaction
from statefx.admin.migration import Migration
from statefx.admin.reading import (
    At,
    Progress,
    StateTable,
    StateView,
    ViewRequest,
    check_progress,
    found_checkpoint,
    read_newest,
    state_table,
)
from statefx.admin.rekeying import Downgrade
from statefx.admin.rescaling import Rescaling
from statefx.admin.routing import GroupingKey
from statefx.admin.savepoints import Renamed, Restoration
from statefx.admin.state_writing import StateWriter, Written, state_writer
from statefx.config import Config
from statefx.errors import ConfigError
from statefx.log.location import Folders, checkpoint_location
from statefx.log.observation import OVER, health, observation_with_log
from statefx.log.pins import Savepoint, check_name, pinned
from statefx.log.requests import (
    ANSWER_SECS,
    TAKEN_SECS,
    Answered,
    Patience,
    RunningDriver,
    Silence,
    UnansweredError,
    ask,
)
from statefx.log.takeover import read_checkpoint
from statefx.notebook import bounded, checkpoint_html
from statefx.operators.bolts import Stateful
from statefx.operators.spouts import Spout
from statefx.protocol.log_state import LogState
from statefx.state import Codec
from statefx.state.view.changes import Upgrade
from statefx.why import Diagnosis, Why, why

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Aborted",
    "Answered",
    "Damage",
    "Diagnosis",
    "Downgrade",
    "Explained",
    "KeyFile",
    "KeyTask",
    "Migration",
    "Quarantined",
    "Renamed",
    "Repair",
    "Rescaling",
    "Restoration",
    "RunningDriver",
    "Savepoint",
    "SealedMessages",
    "StateView",
    "Transaction",
    "Verified",
    "Why",
    "Written",
]

logger = logging.getLogger("statefx")


class Checkpoint:
    """The checkpoint of a topology: its state, its transactions, its savepoints; read, repaired, changed.

    Needs no topology, and pyspark only where a DataFrame or a session is given. Nothing is read before a method is
    called, and each call reads the log anew, so an object stays right while a topology runs.

    Parameters
    ----------
    location : str or path
        The ``checkpointLocation`` given to ``submit``.
    config : Mapping, optional
        Settings as given to ``submit``. Only ``topology.state.provider.config`` is used, and only if a secret is among
        the provider's options: the checkpoint has all others, as last given.

    Raises
    ------
    ConfigError
        `location` can't be a checkpoint's, or a setting is wrong.

    Contract
    --------
    * Every method but `resolve` raises CheckpointError if there is no checkpoint, or a newer release wrote it, and
      StateCorruptedError if a record of the log is damaged, which `verify` returns instead.
    * `state`, `table`, `toDataFrame`, `observation`, `why`, `transactions`, `explain`, `quarantined`, `savepoints` and
      `verify` change nothing and may be called while the topology runs; so may `repair` and `resolve` without
      ``yes=True``.
    * `status`, `stop`, `pause`, `resume` and `loglevel` ask the query that runs, through objects in the checkpoint, in
      whichever process and on whichever machine it is; `savepoint` and `deleteSavepoint` do so if one runs.
    * The other methods need the topology stopped: all but `abort` raise CheckpointError if a transaction is in flight.
      A driver that runs after all is fenced, or has gone on meanwhile and the call is refused. `restore` with `to` does
      neither: it only reads this checkpoint.
    * They change the checkpoint by one record of its log (`abort`: one for each transaction). After an error or a crash
      it is as it was, or all is done; savepoints show state as it was then.
    * State in a server is written under a new name there. The next start's first sweep deletes what was there.
    * `progress` is called with two numbers: the bytes that are done, and about how many there are.

    Examples
    --------
    >>> checkpoint = Checkpoint("checkpoints/word-count")
    >>> with checkpoint.state("count") as counts:     # doctest: +SKIP
    ...     print(counts.txid, counts["spark"], len(counts))
    """

    def __init__(self, location: str | os.PathLike[str], config: Mapping[str, Any] | None = None) -> None:
        self._folders = Folders(checkpoint_location(location))
        Config.parse(config, "")
        self._config = config

    @property
    def location(self) -> str:
        """An absolute path, or an object store's URL."""
        return self._folders.location

    def __repr__(self) -> str:
        return f"Checkpoint({self.location!r})"

    def _repr_html_(self) -> str | None:
        """Return what the log knows, for notebooks."""

        def made() -> str:
            state = found_checkpoint(self._folders)
            try:
                observed = observation_with_log(self._folders, state)
            except OSError:  # the log alone says most of it
                observed = {}
            return checkpoint_html(self.location, state, observed)

        return bounded(made)

    # ---- state

    def state(
        self,
        component: str,
        task: int | None = None,
        *,
        map: str | None = None,
        byTask: bool = False,
        codec: Codec | None = None,
        migrate: Upgrade | None = None,
    ) -> StateView:
        """Open the committed state of one bolt for reading, as last committed; `table` shows it as it was.

        Parameters
        ----------
        component : str
            The stateful bolt's id.
        task : int, optional
            Read one task's state only; by default that of all tasks, as one mapping.
        map : str, optional
            Show what the bolt keeps in ``state.map(name)``, in place of the state itself; or in
            ``state.broadcast(name)``, which all tasks hold alike and is shown once. Of a windowed bolt ``"windows"``
            are its open windows: ``(key, start, end)``, and the window's value or tuples. The view's `names` lists all
            maps.
        byTask : bool
            Whether keys are shown as ``(task, key)``, for state in which several tasks hold one key.
        codec : Codec, optional
            What the state was written with, if its class can't be imported here; by default the class that the
            checkpoint names is loaded.
        migrate : callable (version, key, value) -> value, optional
            Called with what versions of the bolt before the present ``stateVersion`` have written, as ``migrateState``
            is; by default every value is shown as it was written.

        Returns
        -------
        StateView
            All tasks at one txid, the last whose commit is decided; close it, or use it in a ``with``.

        Raises
        ------
        CheckpointError
            There is no such bolt, task or map; the message lists those there are. A map in which nothing is kept is
            known if the bolt's ``stateSchema`` has it. Or the state was written with another codec than `codec`.
        ConfigError
            The codec that the state was written with can't be loaded; or the provider's options have to be given; or
            `task` or `map` can't be one.
        StateCorruptedError
            A file is damaged.
        """
        if not isinstance(byTask, bool):
            raise ConfigError(f"byTask must be True or False, got {byTask!r}")
        if migrate is not None and not callable(migrate):
            raise ConfigError(f"migrate must be a function of version, key and value, got {migrate!r}")
        return StateView(ViewRequest(self._folders, self._config, component, task, map, codec, migrate, byTask))

    def table(
        self,
        component: str,
        *,
        task: int | None = None,
        map: str | None = None,
        start: Any = None,
        stop: Any = None,
        at: At = None,
        diff: tuple[At, At] | None = None,
        schema: Mapping[str, Any] | None = None,
        codec: Codec | None = None,
    ) -> pa.Table:
        """Return the committed state of one bolt as a table; also as it was, and what has changed.

        Parameters
        ----------
        component, task, map, codec
            As of `state`.
        start, stop : optional
            Read the keys with start <= key < stop, and no others.
        at : int or str, optional
            A transaction, of which about a hundred stay readable, or a savepoint's name; by default the last whose
            commit is decided.
        diff : tuple of two, optional
            Two such: show what is not the same in both.
        schema : Mapping, optional
            Types of key and value as Spark DDL, such as ``{"key": "word string", "value": "count long"}``; what is
            left out is a column of JSON text, ``key`` or ``value``. By default the bolt's ``stateSchema``.

        Returns
        -------
        pyarrow.Table
            Columns of key and value, ``task`` and ``space``; by task, then by key. A key that several tasks hold has a
            row for each of them. With `diff` the columns are ``op`` ("insert", "update" or "delete"), the key,
            ``before``, ``after``, ``task`` and ``space``.

        Raises
        ------
        ConfigError, CodecError
            An argument is wrong, or a key or value does not fit `schema`; or a server keeps the state, which has no
            other transaction than the last.
        CheckpointError
            There is no such bolt, task, map, savepoint or transaction, or it is not kept any more.
        StateCorruptedError
            A file is damaged.
        """

        def table(log: LogState) -> pa.Table:
            return state_table(
                self._folders, log, self._config, component, task=task, map=map, start=start, stop=stop, at=at,
                diff=diff, schema=schema, codec=codec,
            ).table()  # fmt: skip

        return read_newest(self._folders, table)

    def toDataFrame(
        self,
        spark: SparkSession,
        component: str,
        *,
        task: int | None = None,
        map: str | None = None,
        start: Any = None,
        stop: Any = None,
        at: At = None,
        diff: tuple[At, At] | None = None,
        schema: Mapping[str, Any] | None = None,
        codec: Codec | None = None,
    ) -> DataFrame:
        """Return what `table` does as a DataFrame, with a partition for each task.

        Parameters
        ----------
        spark : SparkSession
            A classic session whose executors see the checkpoint.
        component, task, map, start, stop, at, diff, schema, codec
            As of `table`; raises what that does.

        Contract
        --------
        * Comparisons of ``task`` and of the key's columns with constants, in ``filter`` or ``where`` of the DataFrame
          itself, also one after another, find their place in the files as `task`, `start` and `stop` do. No filter
          changes which rows come out.
        * The transaction is that of the call, whenever rows are read. When its files are deleted, reading fails and
          says so. Where a server keeps the state, each read shows its tasks as last committed.
        """
        from statefx.spark.session import check_session
        from statefx.spark.tables import state_frame

        session = check_session(spark, "toDataFrame")
        table = self._table(
            component, task=task, map=map, start=start, stop=stop, at=at, diff=diff, schema=schema, codec=codec
        )
        return state_frame(session, table)

    def _table(self, component: str, **options: Any) -> StateTable:
        """Find the files of a table, of which nothing is read yet; `options` as of `table`."""
        return state_table(self._folders, read_checkpoint(self._folders), self._config, component, **options)

    def write(
        self,
        component: str,
        rows: DataFrame | pa.Table,
        *,
        mode: Literal["merge", "overwrite"] = "merge",
        schema: Mapping[str, Any] | None = None,
        groupingKey: GroupingKey | None = None,
        codec: Codec | None = None,
        progress: Progress | None = None,
    ) -> Written:
        """Write rows into the committed state of a bolt; each key goes to the task that its grouping's fields hash to.

        Parameters
        ----------
        component, codec
            As of `state`. Something must have been committed there before.
        rows : DataFrame or pyarrow.Table
            As `table` shows them: columns of key and value, whose types can be made those of `schema` without loss.
            Others, such as ``task``, are not looked at, but for ``space``: rows that were shown of a map are refused.
            A DataFrame is encoded and sorted by its executors, a table here, in memory and without Spark.
        mode : str
            ``"merge"``: rows take the place of entries with the same keys, a row whose value is null deletes its key,
            and other keys stay. ``"overwrite"``: the bolt has the keys of these rows and no others. Maps and timers
            stay.
        schema : Mapping, optional
            As of `table`: by default the bolt's ``stateSchema``; without either, columns ``key`` and ``value`` have
            JSON. What JSON says must fit the ``stateSchema``, too. Several fields are a tuple.
        groupingKey : callable, optional
            As of `rescale`, for this bolt.
        progress : callable, optional

        Returns
        -------
        Written
            How much was written, and how much there is now.

        Raises
        ------
        ConfigError
            An argument is wrong, a column is lacking, two rows have one key, a row is of a map, or a key or a value is
            none that the bolt can keep, or not of its type.
        CheckpointError
            There is no such bolt, it has committed nothing yet, or nothing shows which task a key belongs to.
        StateError
            A disk is full.

        Contract
        --------
        * Sources stay where they are.

        Examples
        --------
        >>> rows = pa.table({"word": ["spark"], "n": [3]})     # doctest: +SKIP
        >>> print(checkpoint.write("count", rows, schema={"key": "word string", "value": "n long"}))   # doctest: +SKIP
        """
        check_progress(progress)
        frame = not isinstance(rows, pa.Table)
        if frame and not _is_batch(rows):
            raise ConfigError(f"write: give a DataFrame that is no stream, or a pyarrow.Table, got {rows!r}")
        writer = self._writer(component, mode=mode, schema=schema, grouping_key=groupingKey, codec=codec)
        if not frame:
            return writer.write_table(rows, progress)
        from statefx.spark.tables import write_frame

        return write_frame(rows, writer, progress)

    def _writer(self, component: str, **options: Any) -> StateWriter:
        """Check all of `write` but the rows; changes nothing."""
        return state_writer(self._folders, self._config, component, **options)

    def explain(
        self, component: str, key: Any, *, task: int | None = None, map: str | None = None, codec: Codec | None = None
    ) -> Explained:
        """Return which tasks have a key, its value, the files that hold it, and the transactions that changed it.

        Of each file only the block is read in which the key is, or would be.

        Parameters
        ----------
        component, codec
            As of `state`.
        key : object
            A key of the bolt's.
        task : int, optional
            Look into one task only; by default into all.
        map : str, optional
            The key is one of ``state.map(name)`` or ``state.broadcast(name)``; or of the grouping of a windowed bolt,
            for ``"windows"``: a value is a list of the key's open windows then.

        Returns
        -------
        Explained
            ``print`` shows it.

        Raises
        ------
        CodecError
            `key` can't be a key.
        CheckpointError, ConfigError, StateCorruptedError
            As of `state`.
        """
        return looking.explain(self._folders, self._config, component, key, task=task, map=map, codec=codec)

    def quarantined(self, component: str) -> Iterator[Quarantined]:
        """Yield the keys of a bolt with ``onError="quarantineKey"`` whose rows are held back, by task, then by key.

        Nothing is held in memory but a block of each task. While the topology runs, a task may be shown as of a later
        transaction than another one.

        Raises
        ------
        CheckpointError, ConfigError
            As of `state`; also if the bolt's rows are not grouped by fields.
        """
        return looking.quarantined(self._folders, self._config, component)

    # ---- transactions

    def observation(self) -> dict[str, Any]:
        """Return what the driver last wrote of itself beside the log, as `Query.observation`: its ``health`` first.

        Works on any machine, and after the driver's death: ``health`` says whether it runs, and ``writtenAt`` how old
        all of it is. Without a document that can be read, there is what the log knows: the last transactions.

        Raises
        ------
        OSError
            The document can't be read.
        """
        return observation_with_log(self._folders, found_checkpoint(self._folders))

    def why(self) -> Why:
        """Return what bounded throughput when the driver last wrote `observation`, and what kept results late.

        Raises
        ------
        OSError
            The document can't be read.
        """
        return why(self.observation())

    def transactions(self) -> list[Transaction]:
        """Return the last transactions, attempt by attempt, the newest last.

        These are about the last 1,000 attempts that have ended, and those that are open. Needs neither the state
        provider nor what the sinks need.
        """
        return looking.transactions(self._folders)

    def abort(self) -> Aborted:
        """End the open transactions of a driver that is gone; if it lives, it is fenced.

        A start of the topology does the same by itself, and needs no abort before it. This is for a checkpoint whose
        topology shall not be started now: what was prepared is given up, and a driver that only seems to be gone
        commits nothing any more. The next start goes on as after any rollback: the same rows come again.

        Raises
        ------
        CheckpointError
            No transaction is open, or one is COMMITTING: that is decided, and only a start can carry it out. Nothing
            was changed, and nobody was fenced.
        FencedError
            A topology was started meanwhile, which ends the open transactions itself.
        LogOutcomeUnknownError
            The disk did not tell whether a record was written: call `transactions` to see.

        Contract
        --------
        * ``preRollback`` can't be called without the topology. Where a bolt has it, the transaction that it must be
          told of stays PREPARING in the log, and nobody can commit it: the next start calls ``preRollback`` and rolls
          it back.
        * What tasks and sinks have prepared is named by nobody, and deleted by the next start, as after a crash.
        """
        return ending.abort(self._folders)

    def resolve(
        self,
        queue: Spout,
        *,
        yes: bool = False,
        unknown: Literal["acknowledge", "release"] | None = None,
        origin: str | None = None,
    ) -> list[SealedMessages]:
        """End what a topology or a client that is gone has left sealed in a queue: by its log, without the topology.

        A start of the topology does the same by itself. This is for one that shall not be started now, or never again.

        Parameters
        ----------
        queue : QueueSpout
            Where the messages are, such as ``SqlQueueSpout(url, "orders")``; other queues of the topology one by one.
        yes : bool
            Do it. Otherwise nothing is changed, and what it would do is returned.
        unknown : str, optional
            What becomes of messages of which no log can tell whether they were processed, since the checkpoint is
            gone, or was restored from a backup that is older: ``"release"`` has them processed, perhaps a second time;
            ``"acknowledge"`` takes them off, perhaps unprocessed. By default they are left.
        origin : str, optional
            With `unknown`, for a checkpoint that is gone: which one it was. The error without it lists what there is.

        Returns
        -------
        list of SealedMessages
            What is sealed for this checkpoint, and what is done with it; with `yes` it is done.

        Raises
        ------
        ConfigError
            `queue` can't acknowledge in the transaction; or `unknown`, `origin` can't be used.
        CheckpointError
            There is no checkpoint, and `unknown` and `origin` don't both say what to do. Nothing was changed.
        UnreachableError, FencedError
            The queue can't be reached: do it again. A topology was started meanwhile, which ends what it finds sealed.

        Contract
        --------
        * What the log has decided is taken off the queue; all else goes back to it, when nobody can decide it any
          more. It may be killed at any point, and done again.
        * A driver that runs is fenced if it has sealed something that is not decided (``fence``), and goes on if not.
          One that is fenced loses and doubles nothing: start it again.
        * What is released belongs to the spout that had it until ``idleSecs`` are over.

        Examples
        --------
        >>> for each in Checkpoint("checkpoints/billing").resolve(SqlQueueSpout(url, "orders")):     # doctest: +SKIP
        ...     print(each.action, each.messages, each.reason)
        """
        return ending.resolve(self._folders, queue, yes=yes, unknown=unknown, origin=origin)

    # ---- asking the query that runs

    def status(self, *, wait: float = TAKEN_SECS) -> dict[str, Any]:
        """Return the `observation` of now, which the driver at work is asked for; or the last one that was written.

        Parameters
        ----------
        wait : float
            Seconds until a driver that does not take a request counts as gone. It takes one within a second or two; on
            a mount that caches names, or in a process that is starved, later.

        Returns
        -------
        dict
            As of `observation`, and ``asked``: whether the driver has ``answered``, and the ``reason``. Where one
            should have and did not, ``health`` says so.

        Raises
        ------
        CheckpointError
            Requests can't be written.
        OSError
            As of `observation`.
        """
        try:
            asked = self._ask("status", {}, wait)
        except UnansweredError as error:
            return self._observed(error.message, is_expected=True)
        if isinstance(asked, Silence):
            return self._observed(asked.reason, is_expected=asked.driver is not None)
        found: dict[str, Any] = asked.result["observation"]
        return found | {"asked": {"answered": True, "reason": f"{asked.driver} has answered"}}

    def _observed(self, reason: str, *, is_expected: bool) -> dict[str, Any]:
        """Return what was written last; a driver that is expected to answer has not."""
        found = self.observation()
        # What it wrote itself says more: one that is stuck may well not answer.
        if is_expected and found["health"]["state"] not in (*OVER, "stuck"):
            remedy = "Look at that machine. If its process is gone, submit the topology again: nothing is lost."
            found["health"] = health("unknown", found.get("writtenAt"), f"{reason[0].upper()}{reason[1:]}.", remedy)
        return found | {"asked": {"answered": False, "reason": reason}}

    def stop(self, timeout: float = 60.0, *, wait: float = TAKEN_SECS) -> Answered:
        """End the query that runs on this checkpoint, as `Query.stop` does, and return when it has ended.

        Parameters
        ----------
        timeout : float
            Seconds that the running transaction has to end; then it is rolled back.
        wait : float
            As of `status`.

        Returns
        -------
        Answered
            Its result has ``ended``, the last ``committed`` transaction, ``error``, if one has ended the query, and its
            ``health`` then: of a transaction that is decided and not published it says so.

        Raises
        ------
        CheckpointError
            No query runs here; nothing was changed. Or the driver has taken the request, and no answer has come: the
            message says what is known.
        """
        _check_secs("stop", "timeout", timeout)
        return self._must_ask("stop", {"timeout": timeout}, wait, timeout + ANSWER_SECS)

    def pause(self, *, wait: float = TAKEN_SECS) -> Answered:
        """Have the query that runs on this checkpoint begin no further transaction, as `Query.pause` does.

        Returns at once: the result's ``status`` says what is still in flight. Parameters and errors are those of
        `stop`.
        """
        return self._must_ask("pause", {}, wait)

    def resume(self, *, wait: float = TAKEN_SECS) -> Answered:
        """Have a query go on that was paused, as `Query.resume` does. Parameters and errors are those of `stop`."""
        return self._must_ask("resume", {}, wait)

    def loglevel(self, level: str, logger: str = "statefx", *, wait: float = TAKEN_SECS) -> Answered:
        """Set the level of a logger in the driver's process and in its workers, until these end.

        Parameters
        ----------
        level : str
            A name that `logging` knows, such as ``"DEBUG"``.
        logger : str
            The logger's name; ``""`` is the root.
        wait : float
            As of `status`.

        Raises
        ------
        ConfigError
            There is no such level.
        CheckpointError
            As of `stop`.
        """
        known = logging.getLevelNamesMapping()
        if not isinstance(level, str) or level.upper() not in known:
            raise ConfigError(f"loglevel: {level!r} is no level; there are {sorted(known, key=known.__getitem__)}")
        return self._must_ask("loglevel", {"level": level.upper(), "name": logger}, wait)

    def _must_ask(
        self, command: str, arguments: Mapping[str, Any], wait: float, answer_secs: float = ANSWER_SECS
    ) -> Answered:
        """Ask for what makes sense with a running query alone."""
        asked = self._ask(command, arguments, wait, answer_secs)
        if isinstance(asked, Silence):
            raise asked.error(command)
        return asked

    def _ask(
        self, command: str, arguments: Mapping[str, Any], wait: float = TAKEN_SECS, answer_secs: float = ANSWER_SECS
    ) -> Answered | Silence:
        _check_secs(command, "wait", wait)
        found_checkpoint(self._folders)
        return ask(self._folders, command, arguments, Patience(wait, answer_secs=answer_secs))

    # ---- savepoints, and going back

    def savepoint(self, name: str) -> Savepoint:
        """Keep the last committed transaction under a name, to go back to.

        Copies nothing: one record is written, however large state is. The query that runs on this checkpoint, if one
        does, is asked to write it, as by `Query.savepoint`, and goes on. Where the driver does not answer for 15
        seconds it counts as gone, and is fenced if it is not.

        Parameters
        ----------
        name : str
            Letters, digits, dots, dashes and underscores.

        Raises
        ------
        ConfigError
            The name can't be one, or state is kept in a server, which keeps no versions.
        CheckpointError
            The name is taken.
        """
        asked = self._ask_for_savepoint(name)
        if not isinstance(asked, Silence):
            return asked
        if asked.driver is not None:
            logger.warning("%s: it counts as gone, and is fenced if it is not", asked.reason)
        return savepoints.savepoint(self._folders, self._config, name)

    def _ask_for_savepoint(self, name: str) -> Savepoint | Silence:
        """Have the query that runs take a savepoint; an answer that is lost is told by the log."""
        check_name(name)
        before = {each.name for each in savepoints.savepoints(self._folders)}
        try:
            asked = self._ask("savepoint", {"name": name})
        except UnansweredError:
            found = {each.name: each for each in savepoints.savepoints(self._folders)}
            if name in before or name not in found:
                raise
            return found[name]
        if isinstance(asked, Silence):
            return asked
        said = asked.result
        return Savepoint(said["name"], said["txid"], datetime.fromisoformat(said["time"]), said["bytes"])

    def savepoints(self) -> tuple[Savepoint, ...]:
        """Return the savepoints, oldest transaction first."""
        return savepoints.savepoints(self._folders)

    def deleteSavepoint(self, name: str) -> None:
        """Delete a savepoint; the query that runs on this checkpoint, if one does, is asked to, and goes on.

        The files that nothing else needs go with a later sweep, while the topology runs.

        Raises
        ------
        CheckpointError
            There is no such savepoint; the message lists those there are.
        """
        asked = self._ask_to_delete(name)
        if asked is not None:
            if asked.driver is not None:
                logger.warning("%s: it counts as gone, and is fenced if it is not", asked.reason)
            savepoints.delete_savepoint(self._folders, name)

    def _ask_to_delete(self, name: str) -> Silence | None:
        """Have the query that runs delete a savepoint; return why nobody has."""
        pinned(found_checkpoint(self._folders), name, self.location)
        try:
            asked = self._ask("deleteSavepoint", {"name": name})
        except UnansweredError:
            if name in {each.name for each in savepoints.savepoints(self._folders)}:
                raise
            return None
        return asked if isinstance(asked, Silence) else None

    def restore(
        self,
        savepoint: str | None = None,
        *,
        txid: int | None = None,
        to: str | os.PathLike[str] | None = None,
        sinks: Literal["append", "rewind"] | None = None,
        progress: Progress | None = None,
    ) -> Restoration:
        """Go back to a savepoint or a transaction: state, timers, and how far sources were read; or copy it with `to`.

        The next start goes on from there, with any code that could go on from it.

        Parameters
        ----------
        savepoint : str, optional
            The name of a savepoint.
        txid : int, optional
            In place of it, a transaction that the log still knows: one since it was last folded, and right after that
            the last one alone. The error for another one names them.
        to : str or path, optional
            A folder that is new or empty: it becomes a checkpoint of its own, which stands alone, and this one stays
            as it is. By default this one goes back. With `to`, and neither `savepoint` nor `txid`, the last committed
            transaction is copied. While the topology runs, copy a savepoint: it deletes files of other versions.
        sinks : str, optional
            ``"append"``: rows that were published since stay, and come once more behind them. ``"rewind"``: they are
            taken back from their targets by the next start, before its first transaction; all of these sinks must be
            able to. Without either, a checkpoint whose sinks have published something since is refused.
        progress : callable, optional
            With `to`.

        Raises
        ------
        ConfigError
            The arguments are wrong, or state is kept in a server, which keeps no versions.
        CheckpointError
            There is no such savepoint or transaction, or it is not kept any more; `to` is not empty; or sinks have
            published rows since, can't take them back, or have taken back those of the very transaction.
        StateCorruptedError
            A file that the savepoint needs is missing or damaged.

        Contract
        --------
        * Numbers of transactions that were given up are never used again: no target takes new rows for old ones.
        * Savepoints stay, also those of what was given up: this goes forward again, where no rows were taken back.
        * What queues were told to forget since is not delivered again. So with ``"rewind"`` it is refused, with or
          before the next start, where messages were acknowledged: their rows would be lost.
        * With ``"rewind"``, each start repeats the taking back until a transaction is decided.
        * Tables of maps (`statefx.values`) do not go back: restore them as of the same transaction. Else an `OpaqueMap`
          takes back one transaction that was given up, and raises ValueMismatchError if there are more; a
          `TransactionalMap` can't know it, and applies what is read again a second time.
        """
        check_progress(progress)
        return savepoints.restore(self._folders, self._config, savepoint, txid, to=to, sinks=sinks, progress=progress)

    def _restoration(self, savepoint: str | None, txid: int | None, sinks: str | None) -> Restoration:
        """Return what `restore` would do in place; changes nothing."""
        return savepoints.restoration(self._folders, self._config, savepoint, txid, sinks)

    # ---- other forms of what is kept

    def rescale(
        self,
        tasks: Mapping[str, int],
        *,
        groupingKey: Mapping[str, GroupingKey] | None = None,
        progress: Progress | None = None,
        spark: SparkSession | None = None,
    ) -> Rescaling:
        """Give stateful bolts another number of tasks; then submit the topology with this parallelism.

        ``submit(..., rescale=True)`` does both.

        Parameters
        ----------
        tasks : Mapping
            Bolt to the number of tasks that it shall have.
        groupingKey : Mapping, optional
            Bolt to a function that is given a key of its state (of what is kept under a name: name and key) and
            returns the field, or the tuple of fields, that its grouping hashes. Not needed where a key is that field or
            these fields, or a tuple that begins with them, and the bolt has more than one task and more than a few
            keys. For texts as keys, in the state as in its maps:
            ``lambda key: key[1] if isinstance(key, tuple) else key``.
        progress : callable, optional
        spark : SparkSession, optional
            Its executors read and write tasks at the same time; by default this process does. Not what is in a server.

        Returns
        -------
        Rescaling
            How much was moved.

        Raises
        ------
        ConfigError
            The arguments are wrong.
        CheckpointError
            There is no such bolt, it does not get its rows by ``fieldsGrouping``, or it keeps what belongs to a task.
        StateCorruptedError
            What is read is damaged, or what was read back is not what was written.
        StateError
            A disk is full, that of the checkpoint or that of temporary files.

        Contract
        --------
        * For every key, the fields of its grouping are shown to name the task that it lies in. One task holds all
          keys, so that nothing can be shown, and a few keys may lie so by chance: then `groupingKey` has to be given.
        * Memory does not grow with state: it is read, sorted into temporary files, written and read back.
        * On executors, what a lost worker was doing is done again as often as Spark tries a task. On ``local[n]`` that
          is once: then this raises, and the bolt is as it was.
        """
        check_progress(progress)
        if spark is None:
            return rescaling.rescale(self._folders, self._config, tasks, grouping_key=groupingKey, progress=progress)
        from statefx.spark.executors import rescale_on

        return rescale_on(spark, self._folders, self._config, tasks, groupingKey, progress)

    def migrate(
        self, to: str, config: Mapping[str, Any] | str | None = None, *, progress: Progress | None = None
    ) -> Migration:
        """Move the committed state of all stateful bolts to another state provider; then submit with that one.

        Parameters
        ----------
        to : str
            The provider that shall keep the state: a registered name, or ``module:Class``.
        config : Mapping or JSON text, optional
            Its options, as for ``topology.state.provider.config``. Those of the provider that keeps the state now are
            the checkpoint's, or in the settings that this object was made with.
        progress : callable, optional

        Raises
        ------
        ConfigError
            A provider or an option is wrong, or the state is kept by this provider already.
        CheckpointError
            The checkpoint has savepoints, which can't be moved.
        StateError
            A provider can't be reached, or refuses. `StateCorruptedError` if the source is damaged, or what was read
            back is not what was copied.
        FencedError
            A topology was started meanwhile, or another migration. The state is where that one says.

        Contract
        --------
        * Until the switch, which is one record of the log, the source is only read, and everything goes on from it.
        * What the switch names has been read back from the target, and is equal in every byte.
        * A migration that ended early begins again from nothing, and never goes on with what was copied before.

        Examples
        --------
        >>> checkpoint.migrate("redis", {"url": "redis://db:6379/0"})     # doctest: +SKIP
        """
        check_progress(progress)
        return migration.migrate(self._folders, self._config, to, config, progress)

    def downgrade(
        self,
        component: str,
        bolt: Stateful,
        version: int,
        *,
        groupingKey: GroupingKey | None = None,
        progress: Progress | None = None,
    ) -> Downgrade:
        """Write the state of a bolt as an older ``stateVersion`` of it did; then start the older code.

        Call it with the code of the newer version, which alone knows both forms.

        Parameters
        ----------
        component : str
            The stateful bolt's id.
        bolt : Stateful
            The bolt of the newer version, with a `Stateful.downgradeState`, and a `Stateful.downgradeKey` if it has a
            ``migrateKey``. It is not opened.
        version : int
            The ``stateVersion`` of the code that is to run next.
        groupingKey : callable, optional
            Is given a key of the older form (of what is kept under a name: name and key), and returns the field, or
            the tuple of fields, that the older code groups by. Needed where ``downgradeKey`` sends keys to other tasks.
        progress : callable, optional

        Returns
        -------
        Downgrade
            How much was written. If the checkpoint has this version already, nothing is done.

        Raises
        ------
        ConfigError
            The arguments are wrong, or a hook is missing.
        CheckpointError
            There is no such bolt, it is of another version than `bolt`, keys can't be shown to belong anywhere, or two
            become one.
        BoltError, StateError
            A hook has raised, or a disk is full.

        Contract
        --------
        * Values that an older version wrote, `version` or before, stay as they are: the older code knows them.
        """
        check_progress(progress)
        return rekeying.downgrade(self._folders, self._config, component, bolt, version, groupingKey, progress)

    def rename(self, names: Mapping[str, str] | None = None, *, drop: Iterable[str] = ()) -> Renamed:
        """Give stateful bolts, spouts and streaming DataFrames other ids, or give up what they keep; copies nothing.

        Parameters
        ----------
        names : Mapping[str, str], optional
            Old id to new one.
        drop : iterable of str
            Ids whose state, or whose position in their source, is given up; not of a DataFrame. Savepoints keep it.

        Raises
        ------
        ConfigError
            The arguments are wrong, or a new id is there already.
        CheckpointError
            There is no such id; the message lists those there are.
        """
        return savepoints.rename(self._folders, names, drop)

    # ---- damage

    def verify(self, *, progress: Progress | None = None) -> Verified:
        """Read everything that a kept version needs, and compare it with its checksums.

        The transaction log and the files that it names, and of each task the files of its last version, of those
        before it that stay readable, of its snapshots and of savepoints. Of state that a server keeps, each entry is
        read.

        Returns
        -------
        Verified
            ``ok``, or what is ``damaged``. What could not be read for another reason, such as a server that gives no
            answer, is damage too, with the reason.

        Raises
        ------
        ConfigError
            The provider or the codec of a bolt can't be loaded.
        """
        check_progress(progress)
        return damage.verify(self._folders, self._config, progress)

    def repair(
        self,
        *,
        yes: bool = False,
        sinks: Literal["append", "rewind"] | None = None,
        progress: Progress | None = None,
    ) -> Repair:
        """Go on from the newest state that is whole, where files are damaged; by default only say what that is.

        For each task other files of the same state are tried: an older snapshot with all changelogs since, or all
        changelogs. If a task's last state can't be had, all go back to the newest transaction of which every task's
        can, of those that the state of now came from and that the log still knows, as `restore` does it. What
        `rescale`, `write` or `rename` have done since is then undone too. Damaged files are copied below ``damaged/``
        in the checkpoint.

        Parameters
        ----------
        yes : bool
            Do it. Without it nothing is changed, and the result's `refused` says what it would need.
        sinks : str, optional
            As of `restore`: ``"append"`` if rows that were published since may come once more, ``"rewind"`` if they
            are to be taken back.
        progress : callable, optional
            As of `verify`.

        Raises
        ------
        ConfigError
            The arguments are wrong, or state is kept in a server, which has its own ways to be repaired.
        CheckpointError
            Sinks have published rows since, a file can't be read at the moment, or copies can't be made.
        StateCorruptedError
            The log is damaged, or no such state is whole. The message says what to do, and names savepoints that are
            whole.
        """
        check_progress(progress)
        return damage.repair(self._folders, self._config, yes=yes, sinks=sinks, progress=progress)


def _check_secs(call: str, name: str, secs: object) -> None:
    if isinstance(secs, bool) or not isinstance(secs, int | float) or not 0 <= secs < math.inf:
        raise ConfigError(f"{call}: {name} is a number of seconds, 0 or more, not {secs!r}")


def _is_batch(rows: object) -> bool:
    """Return whether `rows` is a DataFrame that is no stream: nobody has one without pyspark."""
    if "pyspark.sql" not in sys.modules:
        return False
    from statefx.spark.tables import is_batch

    return is_batch(rows)
