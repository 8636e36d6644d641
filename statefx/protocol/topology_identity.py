"""The identity of a topology, which a checkpoint requires to stay the same: a value, compared before a start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from statefx.protocol.jsonform import Json


@dataclass(frozen=True, slots=True)
class KeyFields:
    """The fields by which rows of one input come to a bolt."""

    # source, stream: Where they come from.
    source: str
    stream: str
    grouping: str  # its kind
    fields: tuple[str, ...]  # those that are its key, in order
    # All fields of the stream: they show whether a field was renamed, or replaced by another.
    stream_fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StateLayout:
    """How a bolt of statefx's own keeps its state: tools go by it, which have no bolt to ask.

    A space is named by kind and name, as in ``map left``; ``""`` has the bolt's own keys. What is in none of these
    spaces is the user's.
    """

    form: str  # what an entry is made of: `statefx.admin.layouts` shows each form
    kept: str  # what there is in state, for messages
    # By space, for each field of the bolt's grouping, the way to it in a key: (1, 0) is key[1][0].
    keys: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    # By space, how many values of an entry's value make a row: `keys` are ways in a row then, and not in the key.
    rows: Mapping[str, int] = field(default_factory=dict)
    # By space, or space and key, what all tasks get of an entry that belongs to a task: the ``least`` that one of them
    # has, the ``greatest``, the ``longest``, or what is the ``same`` in all.
    together: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)  # what the form is understood by
    fixed: str = ""  # why its entries belong to their tasks; empty: other tasks may get them


@dataclass(frozen=True, slots=True)
class StatefulIdentity:
    """How a stateful bolt keeps its state, and how its rows find it."""

    parallelism: int
    provider: str  # reference of the state provider, ``module:Class``: two names of one are one
    codec: str  # name of what its bytes are
    state_version: int  # may grow where `upgrades`
    # What decides which task a row goes to: the kind of each grouping, and the types of its fields.
    routing: tuple[tuple[str, ...], ...] = ()
    # What `routing` can't tell, because it knows types alone. Fields may be renamed.
    key_fields: tuple[KeyFields, ...] = ()
    upgrades: bool = False  # whether the bolt upgrades values of older versions (``migrateState``). May change
    migrates_keys: bool = False  # whether keys of older versions get another form (``migrateKey``). May change
    rolls_back: bool = False  # whether the bolt has to be told of a rollback (``preRollback``). May change
    # The provider's options, as far as they hold no secret; None: it does not say. For readers; may change.
    options: Mapping[str, Json] | None = field(default_factory=dict)
    # The user's own classes that make the bytes, by option. For readers; may change.
    encoding: Mapping[str, str] = field(default_factory=dict)
    # What the bolt says of the types of its keys and values: of its own by "", of maps by their names. For readers; may
    # change.
    schemas: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    windows: str = ""  # which windows a windowed bolt has, and what is kept of them
    layout: StateLayout | None = None  # of what statefx keeps for it


@dataclass(frozen=True, slots=True)
class TopologyIdentity:
    """The identity of a topology, as the log keeps it from one start to the next (rule 1.5).

    What is not here may change at any start: stateless bolts, settings, the code of bolts.
    """

    name: str
    input: str  # ``stream``, ``batch`` or ``spout``: where its transactions come from
    stateful: Mapping[str, StatefulIdentity] = field(default_factory=dict)  # by the id of the bolt
    # By the id of each `Spout`, where bolts may hold tuples over transactions: its name in the trees that are open.
    tracked: Mapping[str, str] = field(default_factory=dict)
    # Of a topology with event time: how many tasks each component has, and which spouts read partitions. May change;
    # what was known of event time by task is then known of other rows (rule 14.10).
    in_time: Mapping[str, int] = field(default_factory=dict)
    by_partition: tuple[str, ...] = ()
    # The ids of streaming DataFrames, in the order in which Spark's query reads them, which stays as it was at first:
    # Spark knows sources by their places alone (rule 3.15).
    streams: tuple[str, ...] = ()

    def kept_by(self, provider: str, options: Mapping[str, Json] | None) -> TopologyIdentity:
        """Return the identity of the same topology whose state another provider keeps."""
        moved = {id: replace(bolt, provider=provider, options=options) for id, bolt in self.stateful.items()}
        return replace(self, stateful=moved)


NO_TOPOLOGY = TopologyIdentity("", "")
"""Of a checkpoint on which nothing has been started."""
