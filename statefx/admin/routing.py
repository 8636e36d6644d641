"""Finds the task of every entry of a bolt's state, and proves that it is the right one.

Which task a key belongs to is never believed: the fields that its grouping hashes are taken from the key, and have to
name the very task that the key lies in, for every key. What can't be proved so is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statefx.admin.columns import quick_keys
from statefx.admin.layouts import OwnEntries, own_entries
from statefx.admin.reading import codec_of
from statefx.errors import CheckpointError, ConfigError, SchemaError
from statefx.operators.quarantine import GroupKeys
from statefx.operators.schema import parse_type
from statefx.operators.user_errors import cause_of
from statefx.operators.waiting import LAYOUT, group_of, parts_of
from statefx.plan.hashing import hashes_of, row_hasher
from statefx.protocol.topology_identity import StatefulIdentity
from statefx.state.contract.spaces import NameKind, Space, head_of, name_of
from statefx.state.encoding.codec import Codec, StandardCodec
from statefx.state.view.changes import OWN_KEYS
from statefx.state.view.time_index import index_part, indexed_keys, timer_key

GroupingKey = Callable[[Any], Any]
"""Returns the grouping's field of a key of state, or a tuple of its fields."""


def by_key(key: Any) -> Any:
    """Return a key itself: a `GroupingKey` that is given the keys of a map, too, without the map's name."""
    return key


Group = tuple[bytes, str | None]
"""Keys of one kind: those of the state itself, of one map, or of timers."""

_OF_TIMERS: Group = (Space.TIMERS.value, None)

MOVED = "given other tasks"

PROOF_BITS = 20
"""Keys that have nothing to do with the grouping lie right by chance: 20 of them in two tasks once in a million."""


class Taker(Protocol):
    """What takes entries one by one."""

    def add(self, key: bytes, value: bytes) -> None:
        """Take an entry."""


@dataclass
class _Keys:
    """Takes the keys of entries."""

    keys: list[bytes] = field(default_factory=list)

    def add(self, key: bytes, value: bytes) -> None:
        """Take a key."""
        self.keys.append(key)


class BlockTaker(Taker, Protocol):
    """What takes entries one by one, and many at a time."""

    def extend(self, keys: list[bytes], values: list[bytes]) -> None:
        """Take entries, which come in order behind those that it has."""


class _Nowhere:
    """Takes entries that are not needed, or that another piece of work writes."""

    def add(self, key: bytes, value: bytes) -> None:
        pass

    def extend(self, keys: list[bytes], values: list[bytes]) -> None:
        pass


NOWHERE = _Nowhere()


@dataclass
class Proof:
    """What shows that keys lie in the task that their grouping's fields name, and not by chance.

    Attributes
    ----------
    shown : dict
        Hashes of different keys that name the task in which they lie, no more of each group than are needed.
    own : set
        Those of a few timers that a key of the state itself has as well.
    """

    shown: dict[Group, set[int]] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)

    def add(self, other: Proof) -> None:
        """Take what was found in other tasks."""
        for group, hashes in other.shown.items():
            self.shown.setdefault(group, set()).update(hashes)
        self.own |= other.own


@dataclass
class Router:
    """Finds the task of every entry of a bolt's state."""

    bolt: str
    fields: tuple[str, ...]
    schema: pa.Schema
    codec: Codec | None
    given: GroupingKey | None
    what: str
    """What is to be done with the bolt; messages name it."""
    own: OwnEntries | None = None
    """What statefx keeps for the bolt; None: all is the bolt's, or nobody asks for the rest."""
    remedy: str = ""
    """What to do where a key does not show which task it belongs to."""
    _hash: Callable[[Sequence[Any]], int] = field(init=False)
    _quarantined: GroupKeys = field(init=False)
    proof: Proof = field(default_factory=Proof, init=False)

    def __post_init__(self) -> None:
        self._hash = row_hasher(self.schema, self.schema.names)
        self._quarantined = GroupKeys(self.schema.types)

    def __reduce__(self) -> tuple[Any, ...]:
        # A codec stays where it is; whoever finds tasks of keys, and not of what is stored, needs none.
        return Router, (self.bolt, self.fields, self.schema, None, self.given, self.what, None, self.remedy)

    def check_proof(self, was: int) -> None:
        """Refuse what may be chance, once all tasks were read.

        Of keys that are not what is grouped by, each lies right with 1 in `was`.
        """
        if self.given is not None:
            return
        if was == 1 and self.proof.shown:
            raise self._refused(self.alone())
        for (space, name), shown in self.proof.shown.items():
            # The timer of a key of the state itself goes with it. A map's key may be the same and stand for another
            # thing: in a map of whom a user was invited by, for another user, whose task is not that of the entry.
            with_state = (space, name) == _OF_TIMERS and shown <= self.proof.own
            if len(shown) * math.log2(was) < PROOF_BITS and not with_state:
                keys, they = ("key", "it") if len(shown) == 1 else ("keys", "they")
                raise self._refused(
                    f"it has {len(shown)} {keys}{_of(name)}, in its {was} tasks as if {they} were its grouping's "
                    f"fields ({', '.join(self.fields)}); with so few that may be chance. {self.remedy}"
                )

    def alone(self) -> str:
        """Say why one task proves nothing."""
        return (
            "it has one task, which holds every key, so nothing proves that its keys are the grouping's fields "
            f"({', '.join(self.fields)}). {self.remedy}"
        )

    def route_blocks(
        self, blocks: Iterable[tuple[list[bytes], list[bytes]]], task: int, was: int, runs: Sequence[BlockTaker]
    ) -> None:
        """Do as `route` does, with no step for each key where a block's keys are all of one plain type."""
        self.route(self._slow(blocks, task, was, runs), task, was, runs)

    def _slow(
        self, blocks: Iterable[tuple[list[bytes], list[bytes]]], task: int, was: int, runs: Sequence[BlockTaker]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Route the blocks that can be routed as a whole; yield the entries of the others."""
        now = len(runs)
        for keys, values in blocks:
            plain = self._plain(keys)
            # One that lies wrong is left to the slow way, which names it.
            if plain is None or (plain[1] % was != task).any():
                yield from zip(keys, values, strict=True)
                continue
            group, hashes = plain
            self._show(group, hashes)
            if now == 1:
                runs[0].extend(keys, values)
                continue
            targets = hashes % now
            for target in np.flatnonzero(np.bincount(targets, minlength=now)).tolist():
                chosen = (targets == target).tolist()
                runs[target].extend(list(compress(keys, chosen)), list(compress(values, chosen)))

    def _plain(self, keys: list[bytes]) -> tuple[Group, npt.NDArray[np.int64]] | None:
        """Return of whom the keys are, and their hashes, if all are the one field of the grouping; None: look at each.

        Keys are in order: if the first and the last begin alike, all do.
        """
        if self.given is not None or len(self.schema) != 1 or type(self.codec) is not StandardCodec:
            return None
        if self.own is not None:  # the keys that statefx keeps need no proof, and stand within others
            return None
        first, name = keys[0], None
        head = first[:1]
        if head == Space.NAMED.value:
            kind, name = name_of(first)
            if kind is not NameKind.MAP:
                return None
            head = head_of(kind, name)
        elif head != Space.USER.value:
            return None
        column = quick_keys(keys, head, self.schema.types[0]) if keys[-1].startswith(head) else None
        return None if column is None else ((first[:1], name), hashes_of([column]))

    def _show(self, group: Group, hashes: npt.NDArray[np.int64]) -> None:
        """Note what is needed of keys that lie where they belong, as `route` does of each."""
        known = self.proof.shown.setdefault(group, set())
        if len(known) < PROOF_BITS:
            known.update(np.unique(hashes)[: PROOF_BITS - len(known)].tolist())
        if group[0] == Space.USER.value and (few := self.proof.shown.get(_OF_TIMERS)):  # the state itself comes last
            self.proof.own.update(hashes[np.isin(hashes, np.array(list(few), np.int64))].tolist())

    def route(self, entries: Iterator[tuple[bytes, bytes]], task: int, was: int, runs: Sequence[Taker]) -> None:
        """Give each entry of a task to the run of its new task; but for what `common` returns when all were read."""
        now, user = len(runs), Space.USER.value
        target = partial(self._target, task, was, now)
        for stored, value in entries:
            space, (kind, name) = stored[:1], (None, None)
            if space == Space.NAMED.value:
                kind, name = name_of(stored)
            elif space == Space.SYSTEM.value:
                self._route_times(stored, value, task, was, runs)
                continue
            if self._without_proof(stored, value, kind, task, was, runs):
                continue
            pieces = None if self.own is None else self.own.pieces(stored, value, target)
            if pieces is not None:
                for new, *piece in pieces:
                    runs[new].add(*piece)
                continue
            key = self._key_of(stored, kind, name)
            hashed = self._hash_of(key, name)
            if hashed % was != task:
                raise self._unproved(key, name, task, hashed % was)
            known = self.proof.shown.setdefault((space, name), set())
            if len(known) < PROOF_BITS:
                known.add(hashed)
            if space == user and hashed in self.proof.shown.get(_OF_TIMERS, ()):  # the state itself comes last
                self.proof.own.add(hashed)
            runs[hashed % now].add(stored, value)

    def _route_times(self, stored: bytes, value: bytes, task: int, was: int, runs: Sequence[Taker]) -> None:
        """Part an entry of the index by time: its keys go with their entries."""
        parts = [_Keys() for _ in runs]
        self.route(((key, b"") for key in indexed_keys(stored, value)), task, was, parts)
        whole = sum(1 for part in parts if part.keys) == 1
        for new, part in enumerate(parts):
            if part.keys:
                runs[new].add(*(stored, value) if whole else index_part(stored, part.keys, new))

    def _without_proof(
        self, stored: bytes, value: bytes, kind: NameKind | None, task: int, was: int, runs: Sequence[Taker]
    ) -> bool:
        """Give away an entry whose key is not the bolt's; tell whether it is one."""
        space, now = stored[:1], len(runs)
        # It goes to tasks that are the same modulo this, as keys do: a piece may read no others, and write no others.
        step = math.gcd(was, now)
        if kind is NameKind.BROADCAST:
            for run in runs[task::step] if task < step else ():  # all tasks hold the same
                run.add(stored, value)
            return True
        if space in (Space.QUARANTINE.value, Space.WAITING.value):
            # Its key is what is grouped by, whatever the bolt's own keys are.
            group = stored if space == Space.QUARANTINE.value else space + group_of(stored)
            # A tuple that waits, and was grouped by no fields when it came, may be in any task.
            to = self._hash(self._quarantined.fields(group)) if self.fields and group != space else parts_of(stored)[2]
            to %= now
            runs[to - to % step + task % step].add(stored, value)
            return True
        return False

    def common(self) -> list[tuple[bytes, bytes]]:
        """Return the entries that all new tasks get, in the order of keys."""
        return [] if self.own is None else self.own.common()

    def _target(self, task: int, was: int, now: int, row: Sequence[Any]) -> int:
        """Return the new task of an entry that statefx keeps, which lies in `task`, by the fields of its grouping."""
        try:
            hashed = self._hash(row)
        except SchemaError as error:
            raise self._refused(f"it keeps something of key {row!r}, which its grouping can't hash: {error}") from error
        if hashed % was != task:
            raise self._refused(
                f"what it keeps of key {row!r} lies in task {task}, and rows of that key come to task {hashed % was}: "
                "executeBatch must return the key that its rows have. Give its rows to a bolt of a new name"
            )
        return hashed % now

    def task_of(self, key: Any, tasks: int) -> int:
        """Return the task of a key of the state itself; CheckpointError if it does not say what is grouped by."""
        return 0 if tasks == 1 else self._hash_of(key, None) % tasks

    def _key_of(self, stored: bytes, kind: NameKind | None, name: str | None) -> Any:
        assert self.codec is not None
        if kind is None:
            timed = stored[:1] == Space.TIMERS.value
            key = self.codec.decode_key(timer_key(stored) if timed else stored[1:])
            if isinstance(key, str) and key.startswith(OWN_KEYS):
                raise self._refused(
                    "it keeps an OpaqueMap, whose values in the database belong to the tasks that wrote them. Give its "
                    "rows to a bolt of a new name, with a table of its own"
                )
            return key
        if kind is not NameKind.MAP:
            raise self._refused(
                f"it keeps state.{kind.value}({name!r}), which belongs to a task and to no key. Let the bolt, with the "
                "tasks of now, move what is in it into state.map, by keys that it is grouped by, and empty it "
                f"({'truncate(0)' if kind is NameKind.LIST else 'delete()'}). Rescale then"
            )
        return self.codec.decode_key(stored[len(head_of(kind, name or "")) :])

    def _hash_of(self, key: Any, name: str | None) -> int:
        found = key[: len(self.fields)] if isinstance(key, tuple) else key
        asked = key if name is None or self.given is by_key else (name, key)
        if self.given is not None:
            try:
                found = self.given(asked)
            except Exception as error:
                raise self._refused(
                    f"groupingKey has raised an error of its key {key!r}{_of(name)}: {cause_of(error)}. It is called "
                    f"as groupingKey({asked!r}), and returns what rows are grouped by ({', '.join(self.fields)}). "
                    "Nothing was changed"
                ) from error
        row = found if isinstance(found, tuple) else (found,)
        # A function without `return` would send all keys of a single task to one and the same of the new ones.
        forgotten = self.given is not None and found is None and key is not None
        if len(row) == len(self.fields) and not forgotten:
            try:
                return self._hash(row)
            except SchemaError:
                pass
        types = ", ".join(f"{name} {kind}" for name, kind in zip(self.fields, self.schema.types, strict=True))
        if found is key and self.given is not None:
            raise self._refused(f"its rows are grouped by ({types}), and its key {key!r}{_of(name)} does not fit that")
        if self.given is not None:
            wanted = "the field, or (None,) if that is null" if len(self.fields) == 1 else "a tuple of these fields"
            raise self._refused(
                f"groupingKey returns {found!r} for its key {key!r}{_of(name)}, and its rows are grouped by ({types}): "
                f"return {wanted}{_BY_KEY_OF_MAPS if name is not None and found is asked else ''}"
            )
        raise self._refused(
            f"its grouping is by ({types}), and its key {key!r}{_of(name)} gives {row!r} for that. {self.remedy}"
        )

    def _unproved(self, key: Any, name: str | None, task: int, hashed: int) -> CheckpointError:
        fields = ", ".join(self.fields)
        lies = f"its key {key!r}{_of(name)} lies in task {task}, and"
        if self.given is not None:
            return self._refused(
                f"{lies} by what groupingKey returns for it, it belongs to task {hashed}: return from a key what its "
                f"rows are grouped by ({fields})"
            )
        return self._refused(
            f"{lies} taken for ({fields}), by which its rows are grouped, it belongs to task {hashed}. {self.remedy}"
        )

    def _refused(self, why: str) -> CheckpointError:
        return CheckpointError(f"bolt {self.bolt!r} can't be {self.what}: {why}", component=self.bolt)


_BY_KEY_OF_MAPS = (
    ". Of a map it is given name and key. If rows are grouped by the keys themselves, and no key of the state is a "
    "tuple, say lambda key: key[1] if isinstance(key, tuple) else key; in a shell --by-key"
)


def _remedy(bolt: str, what: str) -> str:
    moved = what == MOVED
    function = f"{{{bolt!r}: lambda key: key}}" if moved else "lambda key: key"
    of_maps = (
        "; of a state.map it is given name and key, so say lambda key: key[1] if isinstance(key, tuple) else key where "
        "there are maps, and no key of the state is a tuple"
    )
    return (
        f"If rows are grouped by the key itself, say groupingKey={function}, or in a shell --by-key"
        f"{of_maps if moved else ''}. Else return from the key what they are grouped by. A bolt can define it as "
        "groupingKey(self, key)"
    )


def check_function(given: object, who: str) -> None:
    """Refuse a ``groupingKey`` that can't be called."""
    if given is not None and not callable(given):
        raise ConfigError(f"{who}: groupingKey must be a function of a key, such as lambda key: key, got {given!r}")


def _of(name: str | None) -> str:
    return "" if name is None else f" of state.map({name!r})"


def check_grouping(bolt: str, known: StatefulIdentity, what: str) -> None:
    """Refuse a bolt whose grouping does not say which task a key belongs to."""
    if known.layout == LAYOUT:  # what it keeps has the fields with it, or none, and may be in any task
        return
    keyed = [each for each in known.routing if each != ("broadcast",)]
    if len(keyed) != 1 or keyed[0][0] != "fields":
        shown = " and ".join(f"{kind}({', '.join(types)})" if types else kind for kind, *types in known.routing)
        raise CheckpointError(
            f"bolt {bolt!r} can't be {what}: it gets its rows by {shown}, and only fieldsGrouping, with the same "
            "types for all inputs, says which task a key belongs to",
            component=bolt,
        )


def router_of(
    bolt: str,
    known: StatefulIdentity,
    given: GroupingKey | None,
    codec: Codec | None = None,
    what: str = MOVED,
    remedy: str | None = None,
) -> Router:
    """Return what finds the task of a bolt's keys."""
    types = next((types for kind, *types in known.routing if kind == "fields"), [])
    fields = tuple(f"field {number + 1}" for number in range(len(types)))
    if types and known.key_fields:
        fields = known.key_fields[0].fields
    schema = pa.schema([pa.field(f"_{number}", parse_type(each)) for number, each in enumerate(types)])
    written = codec_of(bolt, known, codec)
    own = own_entries(known, written) if what == MOVED else None
    return Router(bolt, fields, schema, written, given, what, own, remedy or _remedy(bolt, what))
