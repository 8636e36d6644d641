"""Wires streams, spouts, bolts and sinks into a topology."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, Never

from statefx.config import Span
from statefx.errors import TopologyError
from statefx.operators.bolts import Bolt, Committer, keeps_state
from statefx.operators.context import DEFAULT_STREAM
from statefx.operators.hooks import overrides
from statefx.operators.joins import Input, Wired
from statefx.operators.sinks import Sink
from statefx.operators.spouts import (
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    ReplayingSpout,
    Spout,
    TransactionalSpout,
)
from statefx.operators.windows import WindowedBolt
from statefx.topology import checks
from statefx.topology.async_checks import check_async, check_keyed
from statefx.topology.features import (
    LATENESS,
    MAX_AHEAD,
    check_bad_rows,
    check_combiner,
    combined_schema,
    mode_of,
    timings,
    wire_windows,
    with_dead_letters,
)
from statefx.topology.graph import Component, ComponentKind, DeclaredInput, Edge, Grouping, Topology

_BASES = (Spout, TransactionalSpout, PartitionedTransactionalSpout, OpaquePartitionedTransactionalSpout)


def check_spout(id: str, spout: Any, parallelism: Any) -> None:
    """Refuse what isn't a spout, and a partitioned one of which nobody could tell who makes its metadata."""
    remedy = f"derive its class from {', '.join(base.__name__ for base in _BASES)}"
    checks.check_operator("spout", id, spout, _BASES, remedy, parallelism)
    name = type(spout).__name__
    if isinstance(spout, Committer):
        raise TopologyError(
            f"spout {id!r}: {name} is marked Committer, and a spout can be none: committers run when the transactions "
            "before are decided, and spouts emit before. What it has to do in their order, let a bolt do",
            component=id,
        )
    if spout.outputFields is None:
        raise TopologyError(
            f'spout {id!r}: {name} does not say what it emits: outputFields = "word string, count long"', component=id
        )
    if not isinstance(spout, PartitionedTransactionalSpout):
        return
    both = ("planPartitionBatch", "emitPartitionBatchNew")
    defined = [hook for hook in both if overrides(type(spout), hook)]
    if len(defined) != 1:
        found = "defines both" if defined else "defines none of them"
        raise TopologyError(
            f"spout {id!r}: {name} {found}: planPartitionBatch makes the metadata of a batch on the driver, "
            "emitPartitionBatchNew makes it in the task. Define the one that can tell how far there is to read",
            component=id,
        )


def check_not_mixed(components: Sequence[Component]) -> None:
    """Refuse spouts beside DataFrames."""
    spouts = [one.id for one in components if one.kind is ComponentKind.SPOUT]
    streams = [one.id for one in components if one.is_stream]
    if spouts and streams:
        raise TopologyError(
            f"spout {spouts[0]!r} and DataFrame {streams[0]!r} stand in one topology, and no transaction could have "
            "input of both: Spark decides when a DataFrame has its next rows. Read the DataFrame's source with a spout "
            "too, or make two topologies, and let one read what a sink of the other has written",
            components=(spouts[0], streams[0]),
        )


def topological(declared: Sequence[str], sources: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the ids so that each comes after its sources; ties in order of declaration. `sources` has what each reads.

    TopologyError, with the path in the message and in ``path``, if there is a cycle.
    """
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for id in declared:
        sorter.add(id, *sources.get(id, ()))
    try:
        sorter.prepare()
    except CycleError as error:
        path = list(error.args[1])
        raise TopologyError(
            f"the bolts form a cycle: {' -> '.join(path)}. Take one of these groupings away; rows can't come back "
            "to a bolt within one transaction.",
            path=path,
        ) from None
    # The sorter alone leaves ties open. The order numbers the edges and fills the levels, so the same program must come
    # to the same order each time: what Spark's pages show of two runs can then be compared.
    rank = {id: number for number, id in enumerate(declared)}
    ready: list[int] = []
    ordered: list[str] = []
    while sorter.is_active():
        for id in sorter.get_ready():
            heapq.heappush(ready, rank[id])
        ordered.append(declared[heapq.heappop(ready)])
        sorter.done(ordered[-1])
    return ordered


@dataclass(slots=True)
class BoltDeclarer:
    """Declares the inputs of one bolt or sink; every method returns the declarer, to be chained.

    Every grouping takes the id of a stream or bolt, which may be declared later, and optionally one of its streams.
    A stream may be read by two different groupings, and its rows then come twice; by the same one twice it is refused.
    """

    id: str
    inputs: list[DeclaredInput] = field(default_factory=list)
    kind: ComponentKind = ComponentKind.BOLT
    tick_secs: float | None = None

    def shuffleGrouping(self, source: str, *others: Never, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Spread rows evenly over the tasks."""
        return self._add(source, stream, Grouping("shuffle"), others)

    def fieldsGrouping(self, source: str, *fields: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send rows that are equal in `fields` to the same task."""
        return self._add(source, stream, Grouping("fields", self._keys("fieldsGrouping", source, fields)))

    def globalGrouping(self, source: str, *others: Never, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send all rows to task 0; other tasks of the bolt get none of them."""
        return self._add(source, stream, Grouping("global"), others)

    def allGrouping(self, source: str, *others: Never, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send every row to every task."""
        return self._add(source, stream, Grouping("all"), others)

    def broadcastGrouping(self, source: str, *others: Never, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send every row to every task, whose ``executeBroadcast`` has it before ``execute`` has any other row.

        In each transaction a task is given the rows of its broadcast inputs first, in the same order as all tasks of
        the bolt, and all other rows behind them. So all tasks have the same rules for all rows of a transaction. The
        bolt keeps them in ``state.broadcast(name)``. It needs state, and another input.
        """
        return self._add(source, stream, Grouping("broadcast"), others)

    def noneGrouping(self, source: str, *others: Never, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Say that it does not matter which task a row goes to."""
        return self._add(source, stream, Grouping("none"), others)

    def localOrShuffleGrouping(self, source: str, *others: Never, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Keep rows in the sender's own process where it has a task of this bolt, else spread them evenly."""
        return self._add(source, stream, Grouping("local"), others)

    def directGrouping(self, source: str, *others: Never, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send each row to the task that the sender names in ``collector.emit(..., task=n)``."""
        return self._add(source, stream, Grouping("direct"), others)

    def partialKeyGrouping(self, source: str, *fields: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send rows that are equal in `fields` to one of two tasks, the less loaded: evens out a few heavy keys."""
        return self._add(source, stream, Grouping("partialKey", self._keys("partialKeyGrouping", source, fields)))

    def setTicks(self, seconds: float) -> BoltDeclarer:
        """Give each task of the bolt a tick every so many seconds, as Storm's ``topology.tick.tuple.freq.secs`` does.

        A tick is a tuple with ``tup._source == "__system"``, ``tup._stream == "__tick"`` and the field ``rate_secs``;
        `isTick` tells it. It comes behind the task's input of a transaction, at most once in each.

        Parameters
        ----------
        seconds : int or float
            More than 0.

        Raises
        ------
        TopologyError
            It is no such number, or what is declared is a sink.
        """
        if self.kind is ComponentKind.SINK:
            raise TopologyError(
                f"sink {self.id!r} takes rows alone: let a bolt before it have setTicks({seconds!r})", component=self.id
            )
        checks.check_tick_secs(self.id, seconds)
        self.tick_secs = seconds
        return self

    def _add(self, source: str, stream: str, grouping: Grouping, others: Sequence[Any] = ()) -> BoltDeclarer:
        if others:
            call = f"{'localOrShuffle' if grouping.kind == 'local' else grouping.kind}Grouping"
            named = others[0] if isinstance(others[0], str) else "errors"
            raise TopologyError(
                f"{self.kind} {self.id!r}: {call}({', '.join(map(repr, (source, *others)))}) has an argument too many, "
                f'and a stream of {source!r} is given by its name: write {call}("{source}", stream="{named}")',
                component=self.id,
            )
        for what, value in (("source", source), ("stream", stream)):
            if not isinstance(value, str):
                raise TopologyError(
                    f"bolt {self.id!r}: the {what} of its {grouping.kind} grouping is an id, not {value!r}",
                    component=self.id,
                )
        self.inputs.append(DeclaredInput(source, stream, grouping))
        return self

    def _keys(self, name: str, source: str, fields: tuple[str, ...]) -> tuple[str, ...]:
        if not fields or not all(isinstance(one, str) for one in fields):
            names = [one for field in fields for one in (field if isinstance(field, list | tuple) else [field])]
            called = all(isinstance(one, str) for one in names) and names
            example = ", ".join(f'"{one}"' for one in called or ["word"])
            raise TopologyError(
                f"bolt {self.id!r}: {name}({source!r}, ...) takes the names of one or more fields, each as an "
                f'argument: write {name}("{source}", {example}), and a stream of its own as stream="errors"',
                component=self.id,
            )
        return fields


class TopologyBuilder:
    """Collects streams and bolts; ``createTopology`` checks them and freezes the result.

    Parameters
    ----------
    name : str
        The topology's name; part of what its checkpoint is recognised by.

    Examples
    --------
    ::

        builder = TopologyBuilder("word-count")
        builder.setStream("lines", spark.readStream.text("corpus/"))
        builder.setBolt("split", SplitSentence(), parallelism=2).shuffleGrouping("lines")
        builder.setBolt("count", WordCount(), parallelism=2).fieldsGrouping("split", "word")
        topology = builder.createTopology()
    """

    def __init__(self, name: str) -> None:
        checks.check_name(name)
        self.name = name
        self._components: dict[str, Component] = {}
        self._declarers: dict[str, BoltDeclarer] = {}
        self._loops: set[str] = set()
        self._times: dict[str, tuple[str | Mapping[str, str] | None, Span, Span, Span | None]] = {}
        """Event times declared for bolts' streams: some know their streams only with their inputs."""

    def __repr__(self) -> str:
        return f"<TopologyBuilder {self.name!r} of {len(self._components)} components>"

    def setStream(
        self,
        id: str,
        dataframe: Any,
        *,
        timestamp: str | None = None,
        lateness: Span = LATENESS,
        maxAhead: Span = MAX_AHEAD,
        idleAfter: Span | None = None,
    ) -> None:
        """Add a DataFrame, streaming or batch, as a source of rows.

        Parameters
        ----------
        id : str
            Letters, digits, ``_``, ``-`` and ``.``; not used before.
        dataframe : pyspark.sql.DataFrame
            All of a topology's DataFrames are streaming or all are batch, and of one session.
        timestamp : str, optional
            Which column, of type timestamp, has the event time of a row. Then ``context.watermark`` tells how far it
            has come: as in Spark, the latest time of all rows of the transactions before, less `lateness`.
        lateness, maxAhead, idleAfter : Duration, str or timedelta
            As of `setSpout`; the DataFrame is idle as a whole.

        Raises
        ------
        TopologyError
            The id can't be used, it isn't a DataFrame, a column's type can't travel to a bolt, or what is said of event
            time does not fit.
        """
        checks.check_id(id, self._components)
        schema = checks.stream_schema(id, dataframe)
        streams = {DEFAULT_STREAM: schema}
        times = timings(f"stream {id!r}", id, streams, timestamp, lateness, maxAhead, idleAfter)
        self._components[id] = Component(id, ComponentKind.STREAM, 0, streams, dataframe=dataframe, timings=times)

    def setSpout(
        self,
        id: str,
        spout: ReplayingSpout | Spout,
        parallelism: int = 1,
        *,
        dedup: Span | None = None,
        timestamp: str | Mapping[str, str] | None = None,
        lateness: Span = LATENESS,
        maxAhead: Span = MAX_AHEAD,
        idleAfter: Span | None = None,
    ) -> None:
        """Add a spout, which emits the topology's input.

        Parameters
        ----------
        id : str
            Letters, digits, ``_``, ``-`` and ``.``; not used before. Names what the spout has read in the checkpoint.
        spout : Spout, TransactionalSpout, PartitionedTransactionalSpout or OpaquePartitionedTransactionalSpout
            The object, not the class; each task has a copy, and for the last three kinds the driver too. A topology
            has spouts or DataFrames, not both.
        parallelism : int
            The number of tasks that emit, 1 or more. May change from run to run, unless there is `dedup`.
        dedup : Duration, str or timedelta, optional
            For how long the ids of a `Spout`'s messages are kept in state, at least, such as ``"10 minutes"``: what its
            source delivers again meanwhile is acked, and goes no further. So an id is that of one message for all
            tasks, and is not used again within that time. Then a bolt that fails a message fails the
            transaction, which is tried again.
        timestamp : str or Mapping of str to str, optional
            Which field of its rows, of type timestamp, has their event time: of the stream ``"default"``, or by stream.
            Then ``context.watermark`` tells how far it has come.
        lateness : Duration, str or timedelta
            How much earlier than the latest time so far a row may be without being late, such as ``"2 minutes"``.
        maxAhead : Duration, str or timedelta
            A time that is further ahead of the driver's clock does not move the watermark; a warning tells of it.
        idleAfter : Duration, str or timedelta, optional
            After so long without a row, a task, or a partition if the spout has partitions, does not hold the watermark
            back; by default it always does.

        Raises
        ------
        TopologyError
            The id or the parallelism can't be used, it isn't a spout, its ``outputFields`` is malformed, `dedup` is no
            time or of no use, or what is said of event time does not fit.
        """
        checks.check_id(id, self._components)
        check_spout(id, spout, parallelism)
        streams = checks.streams_of("spout", id, spout)
        secs = None if dedup is None else checks.check_micros(dedup, f"spout {id!r}: dedup") / 1e6
        if secs is not None:
            if not isinstance(spout, Spout):
                raise TopologyError(f"spout {id!r} hands out nothing twice: leave out dedup", component=id)
            if spout.acknowledging() is not None:
                raise TopologyError(
                    f"the messages of spout {id!r} are acknowledged in the transaction, so none counts twice: leave "
                    "out dedup",
                    component=id,
                )
        times = timings(f"spout {id!r}", id, streams, timestamp, lateness, maxAhead, idleAfter)
        self._components[id] = Component(
            id, ComponentKind.SPOUT, parallelism, streams, spout, dedup_secs=secs, timings=times
        )

    def setBolt(
        self,
        id: str,
        bolt: Bolt,
        parallelism: int = 1,
        *,
        onError: str = "fail",
        timestamp: str | Mapping[str, str] | None = None,
        lateness: Span = LATENESS,
        maxAhead: Span = MAX_AHEAD,
        idleAfter: Span | None = None,
    ) -> BoltDeclarer:
        """Add a bolt; declare its inputs on what is returned.

        Parameters
        ----------
        id : str
            Letters, digits, ``_``, ``-`` and ``.``; not used before. Names the bolt's state in the checkpoint.
        bolt : Bolt
            The object, not the class; it is pickled to the executors. One object may be added under several ids.
        parallelism : int
            The number of tasks, 1 or more. For a stateful bolt it is part of the checkpoint's identity.
        onError : {"fail", "skip", "deadLetter", "quarantineKey"}
            What becomes of a row of which ``execute`` or ``executeBatch`` raises an error. By default it ends the
            query. Else what that call has changed in state and what it has emitted is undone, and the others go on:
            ``"skip"`` leaves the row at that, and ``"deadLetter"`` emits it to the bolt's stream ``"deadLetter"``.
            ``"quarantineKey"`` does so with all later rows of the row's key too, the fields of the bolt's
            ``fieldsGrouping``, until the letters were replayed.
        timestamp : str or Mapping of str to str, optional
            Which field of what it emits has the event time, as of `setSpout`: as for a bolt that parses. What reads
            from the bolt goes by these times, and no longer by those of the bolt's own input.
        lateness, maxAhead, idleAfter : Duration, str or timedelta
            As of `setSpout`, of each task of the bolt.

        Raises
        ------
        TopologyError
            The id or the parallelism can't be used, it isn't a bolt, its ``outputFields`` is malformed, or what is said
            of event time or of bad rows does not fit.
        """
        checks.check_id(id, self._components)
        checks.check_bolt(id, bolt, parallelism)
        mode = mode_of(id, bolt, onError)
        check_async(id, bolt, mode)
        streams = with_dead_letters(id, mode, checks.streams_of("bolt", id, bolt))
        times = (timestamp, lateness, maxAhead, idleAfter)
        self._components[id] = Component(
            id,
            ComponentKind.BOLT,
            parallelism,
            streams,
            bolt,
            # A bolt with state is a committer without the marker: its state opens at the version before (rule 2.3).
            committer=isinstance(bolt, Committer) or keeps_state(bolt),
            combined=combined_schema(id, bolt),
            on_error=mode,
            timings={} if isinstance(bolt, Wired) else timings(f"bolt {id!r}", id, streams, *times),
        )
        self._times[id] = times
        self._declarers[id] = BoltDeclarer(id)
        return self._declarers[id]

    def setSink(self, id: str, sink: Sink, parallelism: int = 1, *, loop: bool = False) -> BoltDeclarer:
        """Add a sink, which takes rows out of the topology exactly once; declare its inputs on what is returned.

        Parameters
        ----------
        id : str
            Letters, digits, ``_``, ``-`` and ``.``; not used before. Names what it has staged in the checkpoint.
        sink : Sink
            The object, not the class; it is pickled to the executors.
        parallelism : int
            The number of tasks that write, 1 or more. May change from run to run.
        loop : bool
            Whether a spout of this topology may read what the sink writes.

        Raises
        ------
        TopologyError
            The id or the parallelism can't be used, or it isn't a sink.
        """
        checks.check_id(id, self._components)
        remedy = "pass one, such as FileSink('results'), or derive a class from StagedSink"
        checks.check_operator("sink", id, sink, (Sink,), remedy, parallelism)
        self._components[id] = Component(id, ComponentKind.SINK, parallelism, {}, sink, committer=True)
        if loop:
            self._loops.add(id)
        self._declarers[id] = BoltDeclarer(id, kind=ComponentKind.SINK)
        return self._declarers[id]

    def createTopology(self) -> Topology:
        """Check how everything is wired and return the topology.

        Raises
        ------
        TopologyError
            Names the component and what to do; nothing has been started.
        """
        components = dict(self._components)
        # Inputs are checked here and not when they are declared: a source may be declared after its readers.
        check_not_mixed(list(components.values()))
        checks.check_streams(self.name, list(components.values()))
        inputs = {id: declarer.inputs for id, declarer in self._declarers.items()}
        for id, given in inputs.items():
            checks.check_sources(id, components, given)
        ordered = topological(list(components), {id: [one.source for one in given] for id, given in inputs.items()})
        begun: dict[tuple[str, str], str] = {}
        for id in [id for id in ordered if id in inputs]:
            given = inputs[id]
            checks.check_inputs(id, components, given)
            check_combiner(components, id, given)
            checks.check_broadcast(components[id], given)
            check_keyed(components[id], given)
            if isinstance(components[id].operator, Wired):
                components[id] = self._wire(components[id], given, components)
            if isinstance(components[id].operator, WindowedBolt):
                wire_windows(id, components, inputs, begun)
                if self._declarers[id].tick_secs is not None:
                    raise TopologyError(f"bolt {id!r} has windows, and gets no ticks: leave out setTicks", component=id)
        declared = [(id, one) for id in ordered for one in inputs.get(id, ())]
        edges = tuple(
            Edge(number, one.source, one.stream, id, one.grouping) for number, (id, one) in enumerate(declared)
        )
        checks.check_edges(components, edges)
        check_bad_rows(components, edges)
        checks.check_sinks(components, edges)
        checks.check_loops(components.values(), self._loops)
        return Topology(self.name, tuple(self._with_ticks(components[id]) for id in ordered), edges)

    def _wire(
        self, component: Component, inputs: Sequence[DeclaredInput], components: Mapping[str, Component]
    ) -> Component:
        """Return a component whose bolt knows its inputs, and so what it emits."""
        id, bolt = component.id, component.operator
        assert isinstance(bolt, Wired)
        known = []
        for one in inputs:
            source = components[one.source]
            timing = source.timings.get(one.stream)
            known.append(
                Input(
                    one.source,
                    one.stream,
                    source.outputs[one.stream],
                    one.grouping.kind,
                    one.grouping.fields,
                    None if timing is None else timing.field,
                )
            )
        try:
            wired = bolt.wired(known, component.parallelism)
        except TopologyError as error:
            raise checks.of_component(error, f"bolt {id!r}", id) from None
        streams = checks.streams_of("bolt", id, wired)
        times = timings(f"bolt {id!r}", id, streams, *self._times[id])
        return replace(component, operator=wired, outputs=streams, timings=times)

    def _with_ticks(self, component: Component) -> Component:
        id = component.id
        secs = self._declarers[id].tick_secs if id in self._declarers else None
        return component if secs is None else replace(component, tick_secs=secs)
