"""The client, which makes transactions from plain Python."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from statefx.client.messages import ACKS, Receiver
from statefx.client.outside import Outside
from statefx.client.session import Session
from statefx.client.transaction import OpenTransaction
from statefx.coordinator.launch import Launch
from statefx.coordinator.progress import Outcome
from statefx.errors import ConfigError, TopologyError
from statefx.log.adoption import Adopt
from statefx.metrics.registry import Registry
from statefx.operators.bolts import StatefulBolt
from statefx.operators.schema import parse_schema, to_ddl
from statefx.operators.sinks import Sink
from statefx.operators.spouts import DEAD_FIELDS, TAKEN_ROWS, Spout
from statefx.state.view.task_state import KeyValueState
from statefx.topology.builder import TopologyBuilder
from statefx.topology.graph import RowStream, Topology


class _Kept(StatefulBolt):
    """A component of a client: its state is changed from outside."""

    def initState(self, state: KeyValueState[Any, Any]) -> None: ...
    def execute(self, tup: Any, collector: Any) -> None:
        """Never called: nothing is sent to it."""


class TransactionalClient:
    """Makes transactions from plain Python: rows to several sinks and changes of state, all of them or none.

    Making one takes the checkpoint over: an older client on it is fenced and can't commit any more, and what that one
    left under way is ended first. What was decided is committed, all else is rolled back. No Spark is needed.

    Parameters
    ----------
    checkpointLocation : str or path
        A folder for the log, the state and rows that wait; of this application alone.
    id : str
        The application, at every target and in the checkpoint: ``topology.transactional.id``.
    sinks : Mapping of str to Sink, optional
        Where rows can be sent, by name.
    schemas : Mapping of str to str or pyarrow.Schema, optional
        The fields of each sink's rows, as Spark DDL or Arrow: ``{"out": "account string, amount long"}``.
    state : iterable of str, optional
        Names of components that keep state.
    queues : Mapping of str to QueueSpout, optional
        From where messages are received, by name: ``{"jobs": SqlQueueSpout(..., exactlyOnce=True)}``.
    deadLetters : Mapping of str to str, optional
        Of queues, the sink to which messages are sent that were handed out ``maxTries`` times:
        ``{"jobs": "refused"}``. Its rows have the message's fields, and ``_id string, _tries int, _reason string``;
        `schemas` need not name them.
    config : Mapping, optional
        Settings as for ``submit``, such as ``{"topology.state.provider": "rocksdb"}``.
    adopt : str or collection of str, optional
        As for ``submit``.

    Attributes
    ----------
    id : str
    recoveries : list of dict
        Transactions of a former client that were rolled forward or back at the start.

    Raises
    ------
    TopologyError, ConfigError
        A mistake; nothing was changed.
    CheckpointError, SinkError
        The checkpoint or a target can't be used by this application; nothing was changed. Or what a former client has
        left can't be ended now: nothing of it is lost, and the next client goes on with it.

    Contract
    --------
    * Several transactions may be open at one time, and are committed in any order; txids are in the order of commits.
    * A second client on the checkpoint, in any process, fences this one: its next call, a commit that is under way
      included, raises FencedError. The log is looked at for that, for a twentieth of the time at most; a call within a
      tenth of a second of the last look may still pass, and changes nothing that anybody sees.
    * After FencedError, or when it is not known what came of a commit, every further call is refused. The next client
      finds out, and ends it.

    Examples
    --------
    ::

        with TransactionalClient("checkpoints/payments", id="payments", sinks={"out": FileSink("payments")},
                                 schemas={"out": "account string, amount long"}, state=["balances"]) as client:
            for account, amount in payments:
                with client.transaction() as t:
                    t.send("out", [(account, amount)])
                    t.put("balances", account, t.get("balances", account, 0) + amount)
    """

    def __init__(
        self,
        checkpointLocation: str | os.PathLike[str],
        *,
        id: str,
        sinks: Mapping[str, Sink] | None = None,
        schemas: Mapping[str, Any] | None = None,
        state: Iterable[str] = (),
        queues: Mapping[str, Spout] | None = None,
        deadLetters: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        adopt: Adopt = None,
    ) -> None:
        self.id = id
        _check_config(config)
        sinks, schemas, state = sinks or {}, schemas or {}, state if isinstance(state, str) else list(state)
        # Copies, as tasks have: the caller may give the same objects to another client, and after a fork.
        queues = copy.deepcopy(queues) or {}
        acks = _sinks_of(queues)
        schemas = _with_letters(deadLetters or {}, queues, sinks, schemas)
        topology = _topology(id, sinks, schemas, state, acks)
        launch = Launch(topology, config, checkpointLocation, adopt, caller="TransactionalClient", dumps=None)
        if launch.settings.ui_port is not None:
            raise ConfigError(
                "topology.ui.port: a client serves no page: leave it out, and run statefx ui "
                f"{launch.folders.location}, which shows what the client writes there",
                key="topology.ui.port",
            )
        served = launch.metrics_server()
        try:
            self._session = self._opened(launch)
        except BaseException:
            if served is not None:
                served.close()
            raise
        origin, txid = self._session.coordinator.log.state.origin, self.committed + 1
        self._session.dead_letters = dict(deadLetters or {})
        self._session.queues = {
            name: Receiver(name, spout, origin, self.generation, txid) for name, spout in queues.items()
        }
        self._outside = Outside(launch, self._session.coordinator, served)
        self._outside.start(self._session)
        self._session.outside = self._outside

    def _opened(self, launch: Launch) -> Session:
        return Session(launch)

    def __repr__(self) -> str:
        return f"<TransactionalClient {self.id!r}, generation {self.generation}, committed {self.committed}>"

    def transaction(self) -> OpenTransaction:
        """Return a transaction, for a ``with`` statement."""
        return OpenTransaction(self._session)

    def begin(self) -> OpenTransaction:
        """Return a transaction that is open; end it by its `commit` or `abort`.

        Raises
        ------
        FencedError
            Another client has taken over.
        TransactionError
            This client has ended.

        Examples
        --------
        ::

            t = client.begin()
            t.put("balances", "ann", 5)
            t.commit()
        """
        return OpenTransaction(self._session, self._session.open())

    @property
    def committed(self) -> int:
        """The last committed transaction; 0 if there is none."""
        return self._session.coordinator.log.state.committed

    @property
    def generation(self) -> int:
        """How many clients there have been on the checkpoint, with this one."""
        return self._session.coordinator.log.state.generation

    @property
    def recoveries(self) -> list[dict[str, Any]]:
        """Transactions of a former client that were rolled forward or back at the start of this one."""
        return list(self._session.coordinator.progress.recoveries)

    @property
    def status(self) -> dict[str, Any]:
        """Its status; ``stuck`` says since when and why a commit can't be carried out. Any thread may call it."""
        return self._session.coordinator.progress.status()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """All metrics now: each a dict of ``name``, as Prometheus shows it, ``kind``, ``labels``, ``value``.

        As `Query.metrics`; ``topology`` is the `id`. Any thread may call it.
        """
        return self._outside.metrics

    @property
    def metricsUrl(self) -> str | None:
        """Where Prometheus reads the metrics; None without ``topology.metrics.port``."""
        return self._outside.url

    @property
    def _registry(self) -> Registry:
        return self._outside.registry

    @property
    def _watchers(self) -> list[Callable[[Outcome], None]]:
        return self._session.coordinator.progress.watchers

    def close(self) -> None:
        """Roll back what is open, and release everything; for any thread, again is a no-op.

        A commit that can't be carried out now ends with an error in its own thread; the next client carries it out.
        """
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _sinks_of(queues: Any) -> dict[str, Sink]:
    """Return the sinks by which messages leave their queues."""
    if not isinstance(queues, Mapping):
        raise ConfigError(f"queues are given by name, such as {{'jobs': SqlQueueSpout(...)}}, not as {queues!r}")
    found = {}
    for name, queue in queues.items():
        sink = queue.acknowledging() if isinstance(queue, Spout) and hasattr(queue, "take") else None
        if sink is None:
            raise ConfigError(
                f"queues[{name!r}] is {queue!r}: a client receives from queues that are acknowledged in the "
                "transaction, such as SqlQueueSpout(..., exactlyOnce=True) or RedisStreamSpout(..., exactlyOnce=True)",
                component=name,
            )
        found[name + ACKS] = sink
    return found


def _with_letters(letters: Any, queues: Mapping[str, Any], sinks: Any, schemas: Any) -> Any:
    """Return the schemas with those of dead letters; ConfigError if there is no such queue or sink, or one differs."""
    if not isinstance(letters, Mapping):
        raise ConfigError(f"deadLetters are sinks by queue, such as {{'jobs': 'refused'}}, not {letters!r}")
    for queue, sink in letters.items():
        if queue not in queues:
            raise ConfigError(f"deadLetters names the queue {queue!r}, which is not in queues", component=queue)
        if not isinstance(sinks, Mapping) or sink not in sinks:
            raise ConfigError(
                f"deadLetters[{queue!r}] is {sink!r}, which is not in sinks: sinks={{{sink!r}: FileSink(...)}}",
                component=queue,
            )
        wanted = f"{to_ddl(queues[queue].schema)}, {DEAD_FIELDS}"
        given = schemas.get(sink) if isinstance(schemas, Mapping) else None
        if given is not None and parse_schema(given) != parse_schema(wanted):
            raise ConfigError(
                f"schemas[{sink!r}] does not fit the dead letters of queue {queue!r}: leave it out, or say {wanted!r}",
                component=sink,
            )
        if isinstance(schemas, Mapping):
            schemas = {**schemas, sink: wanted}
    return schemas


def _topology(id: Any, sinks: Any, schemas: Any, state: Any, acks: Mapping[str, Sink]) -> Topology:
    _check_names(sinks, schemas, state, acks)
    builder = TopologyBuilder(id)
    sinks, schemas = {**sinks, **acks}, {**schemas, **dict.fromkeys(acks, TAKEN_ROWS)}
    for name, sink in sinks.items():
        declared = builder.setSink(name, sink)
        given = schemas[name]
        try:
            schema = to_ddl(given if isinstance(given, pa.Schema) else parse_schema(given))
        except TopologyError as error:
            raise TopologyError(f"schemas[{name!r}]: {error.message}", **{**error.data, "component": name}) from None
        builder.setStream(f"{name}.rows", RowStream(schema, isStreaming=False))
        declared.globalGrouping(f"{name}.rows")
    for name in state:
        builder.setBolt(name, _Kept()).globalGrouping(f"{name}.rows")
        builder.setStream(f"{name}.rows", RowStream("nothing string", isStreaming=False))
    return builder.createTopology()


def _check_names(sinks: Any, schemas: Any, state: Any, acks: Mapping[str, Sink]) -> None:
    """Refuse what names no sinks, fields and components."""
    if not isinstance(sinks, Mapping):
        raise ConfigError(f"sinks are given by name, such as {{'out': FileSink('out')}}, not as {sinks!r}")
    if not isinstance(schemas, Mapping):
        raise ConfigError(f"schemas are given by the sink's name, such as {{'out': 'word string'}}, not as {schemas!r}")
    if isinstance(state, str):
        raise ConfigError(f"state is a list of names: state=[{state!r}]")
    if lacking := [name for name in sinks if name not in schemas]:
        raise ConfigError(
            f"schemas has no fields for the sink {lacking[0]!r}: schemas={{{lacking[0]!r}: 'account string, amount "
            "long'}",
            component=lacking[0],
        )
    if unknown := [name for name in schemas if name not in sinks]:
        raise ConfigError(f"schemas names {unknown[0]!r}, which is not in sinks", component=unknown[0])
    if clash := [name for name in acks if name in sinks or name in state]:
        raise ConfigError(f"{clash[0]!r} is the name by which messages leave a queue: call yours otherwise")
    if not sinks and not list(state) and not acks:
        raise ConfigError(
            "a client without sinks, state and queues has nothing to commit: give sinks=, state= or queues="
        )


def _check_config(config: Any) -> None:
    if isinstance(config, Mapping) and "topology.transactional.id" in config:
        raise ConfigError("topology.transactional.id is the argument id", key="topology.transactional.id")
