"""Wires streams, spouts, bolts and sinks into a topology."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from statefx.errors import TopologyError
from statefx.operators import (
    DEFAULT_STREAM,
    Bolt,
    Committer,
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    ReplayingSpout,
    Sink,
    Spout,
    Stateful,
    TransactionalSpout,
    overrides,
)
from statefx.topology import checks
from statefx.topology.combiners import check_combiner, combined_schema
from statefx.topology.graph import Component, ComponentKind, Edge, Topology
from statefx.topology.groupings import DeclaredInput, Grouping

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

    Raises
    ------
    TopologyError
        There is a cycle; the message has its path, and ``path`` too.
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


@dataclass(frozen=True, slots=True)
class BoltDeclarer:
    """Declares the inputs of one bolt; every method returns the declarer, to be chained.

    Every grouping takes the id of a stream or bolt, which may be declared later, and optionally one of its streams.
    A stream may be read by two different groupings, and its rows then come twice; by the same one twice it is refused.
    """

    id: str
    inputs: list[DeclaredInput] = field(default_factory=list)

    def shuffleGrouping(self, source: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Spread rows evenly over the tasks."""
        return self._add(source, stream, Grouping("shuffle"))

    def fieldsGrouping(self, source: str, *fields: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send rows that are equal in `fields` to the same task."""
        return self._add(source, stream, Grouping("fields", self._keys("fieldsGrouping", source, fields)))

    def globalGrouping(self, source: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send all rows to task 0; other tasks of the bolt get none of them."""
        return self._add(source, stream, Grouping("global"))

    def allGrouping(self, source: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send every row to every task."""
        return self._add(source, stream, Grouping("all"))

    def noneGrouping(self, source: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Say that it does not matter which task a row goes to."""
        return self._add(source, stream, Grouping("none"))

    def localOrShuffleGrouping(self, source: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Keep rows in the sender's own process where it has a task of this bolt, else spread them evenly."""
        return self._add(source, stream, Grouping("local"))

    def directGrouping(self, source: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send each row to the task that the sender names in ``collector.emit(..., task=n)``."""
        return self._add(source, stream, Grouping("direct"))

    def partialKeyGrouping(self, source: str, *fields: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send rows that are equal in `fields` to one of two tasks, the less loaded: evens out a few heavy keys."""
        return self._add(source, stream, Grouping("partialKey", self._keys("partialKeyGrouping", source, fields)))

    def _add(self, source: str, stream: str, grouping: Grouping) -> BoltDeclarer:
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
            raise TopologyError(
                f"bolt {self.id!r}: {name}({source!r}, ...) needs the names of one or more fields, as in "
                f'{name}({source!r}, "word")',
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

    def __repr__(self) -> str:
        return f"<TopologyBuilder {self.name!r} of {len(self._components)} components>"

    def setStream(self, id: str, dataframe: Any) -> None:
        """Add a DataFrame, streaming or batch, as a source of rows.

        Parameters
        ----------
        id : str
            Letters, digits, ``_``, ``-`` and ``.``; not used before.
        dataframe : pyspark.sql.DataFrame
            All of a topology's DataFrames are streaming or all are batch, and of one session.

        Raises
        ------
        TopologyError
            The id can't be used, it isn't a DataFrame, or a column's type can't travel to a bolt.
        """
        checks.check_id(id, self._components)
        schema = checks.stream_schema(id, dataframe)
        self._components[id] = Component(id, ComponentKind.STREAM, 0, {DEFAULT_STREAM: schema}, dataframe=dataframe)

    def setSpout(
        self, id: str, spout: ReplayingSpout | Spout, parallelism: int = 1, *, dedup: str | None = None
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
        dedup : str, optional
            For how long the ids of a `Spout`'s messages are kept in state, at least, such as ``"10 minutes"``: what its
            source delivers again meanwhile is acked, and goes no further. So an id is that of one message for all
            tasks, and is not used again within that time. Then a bolt that fails a message fails the
            transaction, which is tried again.

        Raises
        ------
        TopologyError
            The id or the parallelism can't be used, it isn't a spout, its ``outputFields`` is malformed, or `dedup` is
            no time or of no use.
        """
        checks.check_id(id, self._components)
        check_spout(id, spout, parallelism)
        streams = checks.streams_of("spout", id, spout)
        secs = None if dedup is None else checks.seconds_of(dedup, f"spout {id!r}: dedup")
        if secs is not None:
            if not isinstance(spout, Spout):
                raise TopologyError(f"spout {id!r} hands out nothing twice: leave out dedup", component=id)
            if spout.acknowledging() is not None:
                raise TopologyError(
                    f"the messages of spout {id!r} are acknowledged in the transaction, so none counts twice: leave "
                    "out dedup",
                    component=id,
                )
        self._components[id] = Component(id, ComponentKind.SPOUT, parallelism, streams, spout, dedup_secs=secs)

    def setBolt(self, id: str, bolt: Bolt, parallelism: int = 1) -> BoltDeclarer:
        """Add a bolt; declare its inputs on what is returned.

        Parameters
        ----------
        id : str
            Letters, digits, ``_``, ``-`` and ``.``; not used before. Names the bolt's state in the checkpoint.
        bolt : Bolt
            The object, not the class; it is pickled to the executors. One object may be added under several ids.
        parallelism : int
            The number of tasks, 1 or more. For a stateful bolt it is part of the checkpoint's identity.

        Raises
        ------
        TopologyError
            The id or the parallelism can't be used, it isn't a bolt, or its ``outputFields`` is malformed.
        """
        # Who keeps state is a committer without saying so: its state opens at the version before (rule 2.3).
        return self._set(id, bolt, parallelism, isinstance(bolt, (Committer, Stateful)))

    def setCommitterBolt(self, id: str, bolt: Bolt, parallelism: int = 1) -> BoltDeclarer:
        """Add a bolt whose effects are ordered by txid, as if it were marked ``Committer``; see `setBolt`."""
        return self._set(id, bolt, parallelism, committer=True)

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
        self._declarers[id] = BoltDeclarer(id)
        return self._declarers[id]

    def createTopology(self) -> Topology:
        """Check how everything is wired and return the topology.

        Raises
        ------
        TopologyError
            Names the component and what to do; nothing has been started.
        """
        components = self._components
        # Inputs are checked here and not when they are declared: a source may be declared after its readers.
        check_not_mixed(list(components.values()))
        checks.check_streams(self.name, list(components.values()))
        inputs = {id: declarer.inputs for id, declarer in self._declarers.items()}
        for id, given in inputs.items():
            checks.check_inputs(id, components, given)
            check_combiner(components, id, given)
        ordered = topological(list(components), {id: [one.source for one in given] for id, given in inputs.items()})
        declared = [(id, one) for id in ordered for one in inputs.get(id, ())]
        edges = tuple(
            Edge(number, one.source, one.stream, id, one.grouping) for number, (id, one) in enumerate(declared)
        )
        checks.check_edges(components, edges)
        checks.check_sinks(components, edges)
        checks.check_loops(components.values(), self._loops)
        return Topology(self.name, tuple(components[id] for id in ordered), edges)

    def _set(self, id: str, bolt: Bolt, parallelism: int, committer: bool) -> BoltDeclarer:
        checks.check_id(id, self._components)
        checks.check_bolt(id, bolt, parallelism)
        self._components[id] = Component(
            id,
            ComponentKind.BOLT,
            parallelism,
            checks.streams_of("bolt", id, bolt),
            bolt,
            committer=committer,
            combined=combined_schema(id, bolt),
        )
        self._declarers[id] = BoltDeclarer(id)
        return self._declarers[id]
