"""What must stay the same of a topology for it to go on with a checkpoint: a value, compared before a start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from statefx.protocol.jsonform import Json


@dataclass(frozen=True, slots=True)
class KeyFields:
    """By which fields rows come to a bolt from one of its inputs.

    Attributes
    ----------
    source, stream : str
        Where they come from.
    grouping : str
        Its kind.
    fields : tuple of str
        Those that are its key, in order.
    stream_fields : tuple of str
        All fields of the stream: they show whether a field was renamed, or replaced by another.
    """

    source: str
    stream: str
    grouping: str
    fields: tuple[str, ...]
    stream_fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StatefulIdentity:
    """How a stateful bolt keeps its state, and how its rows find it.

    Attributes
    ----------
    parallelism : int
    provider : str
        Reference of the state provider, ``module:Class``: two names of one are one.
    codec : str
        Name of what its bytes are.
    state_version : int
        May grow where `upgrades`.
    routing : tuple of tuple of str
        What decides which task a row goes to: the kind of each grouping, and the types of its fields.
    key_fields : tuple of KeyFields
        What `routing` can't tell, because it knows types alone. Fields may be renamed.
    upgrades : bool
        Whether the bolt upgrades values of older versions (``migrateState``). May change.
    rolls_back : bool
        Whether the bolt has to be told of a rollback (``preRollback``). May change.
    options : Mapping[str, Json] or None
        The provider's options, as far as they hold no secret; None: it does not say. For readers; may change.
    encoding : Mapping[str, str]
        The user's own classes that make the bytes, by option. For readers; may change.
    """

    parallelism: int
    provider: str
    codec: str
    state_version: int
    routing: tuple[tuple[str, ...], ...] = ()
    key_fields: tuple[KeyFields, ...] = ()
    upgrades: bool = False
    rolls_back: bool = False
    options: Mapping[str, Json] | None = field(default_factory=dict)
    encoding: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopologyIdentity:
    """The identity of a topology, as the log keeps it from one start to the next (rule 1.5).

    What is not here may change at any start: stateless bolts, settings, the code of bolts.

    Attributes
    ----------
    name : str
        The topology's.
    input : str
        ``stream``, ``batch`` or ``spout``: where its transactions come from.
    stateful : Mapping[str, StatefulIdentity]
        By the id of the bolt.
    """

    name: str
    input: str
    stateful: Mapping[str, StatefulIdentity] = field(default_factory=dict)

    def kept_by(self, provider: str, options: Mapping[str, Json] | None) -> TopologyIdentity:
        """Return the identity of the same topology whose state another provider keeps."""
        moved = {id: replace(bolt, provider=provider, options=options) for id, bolt in self.stateful.items()}
        return replace(self, stateful=moved)


NO_TOPOLOGY = TopologyIdentity("", "")
"""Of a checkpoint on which nothing has been started."""
