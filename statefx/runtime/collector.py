"""The collector of a bolt's results, in one task and one attempt."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from statefx.errors import BoltError, FailedException, SchemaError
from statefx.operators.acker import ACKS, ASKS
from statefx.operators.context import DEFAULT_STREAM, Collector
from statefx.operators.fitting import MISFITS, fitted_table, shown
from statefx.operators.schema import in_source, to_ddl
from statefx.operators.tuples import is_tuple
from statefx.protocol.identity import TransactionAttempt
from statefx.runtime.event_time import StreamTimes
from statefx.runtime.gathering import AnchoredGathering, Gathering
from statefx.runtime.guard import CallGuard, Guarded, GuardedAnchoredGathering, GuardedGathering
from statefx.runtime.outlets import Outlet
from statefx.runtime.trees import Trees

INTERNAL = {ACKS, ASKS}
"""Streams that statefx adds."""

_GATHERINGS: dict[tuple[bool, bool], type[Gathering]] = {
    (False, False): Gathering,
    (True, False): AnchoredGathering,
    (False, True): GuardedGathering,
    (True, True): GuardedAnchoredGathering,
}
"""By whether tuples are tracked, and calls guarded."""

_PLAIN = (tuple, list)
NO_ANCHORS = ()
"""What `emit` takes for anchors where none are given."""


class TaskCollector(Collector):
    """The collector of one task in one attempt."""

    def __init__(
        self,
        component: str,
        outputs: Mapping[str, pa.Schema],
        outlets: Sequence[Outlet],
        attempt: TransactionAttempt,
        kind: str = "bolt",
        *,
        anchoring: bool = False,
        trees: Trees | None = None,
        root_type: pa.DataType | None = None,
        times: Mapping[str, StreamTimes] = MappingProxyType({}),
        guard: CallGuard | None = None,
    ) -> None:
        self.guard = guard
        self._trees = trees
        self.outlets = tuple(outlets)
        self._component = component
        self._who = f"{kind} {component!r}"
        self._outputs = outputs
        self.attempt = attempt
        self.anchoring = anchoring
        self._closed, self._closed_with = False, 0
        self._late: BoltError | None = None
        self._tell_late: Callable[[BoltError], None] | None = None
        self._thread = threading.get_ident()
        self._failed: FailedException | None = None
        options: dict[str, Any] = {} if guard is None else {"guard": guard}
        if trees is not None and root_type is not None:
            options |= {"anchor": trees.anchor, "root_type": root_type}
        gathering = _GATHERINGS["anchor" in options, guard is not None]
        self._streams = {
            name: gathering(
                component, name, schema, [o for o in outlets if o.edge.stream == name], kind, times.get(name), **options
            )
            for name, schema in outputs.items()
        }
        self._direct_streams = {stream for stream, gathering in self._streams.items() if gathering.direct}
        # What `emit` needs for a plain row of the default stream, without a look at its gathering. It is a method and
        # no function made for the stream: Python finds methods the quick way, attributes that are called it does not.
        main = self._streams.get(DEFAULT_STREAM)
        self._plain_width = -1 if main is None else main.plain_width
        self._add_plain = None if main is None or not main.outlets else main.add

    def emit(
        self,
        values: Any = (),
        /,
        stream: str = DEFAULT_STREAM,
        task: int | None = None,
        anchors: Any = NO_ANCHORS,
        **fields: Any,
    ) -> None:
        if (
            type(values) is tuple
            and len(values) == self._plain_width
            and task is None
            and stream is DEFAULT_STREAM  # an equal text that is another object goes the long way
            and not fields
            and anchors is NO_ANCHORS
        ):
            add = self._add_plain
            if add is not None:
                add(values)
            return
        if anchors is NO_ANCHORS:
            self._emit(values, stream, task, fields)
            return
        trees = self._trees
        if trees is None:
            self.check_anchors(anchors)
            self._emit(values, stream, task, fields)
            return
        before, roots = trees.anchor.root, trees.open_roots(anchors)
        trees.anchor.root = trees.roots_of(self.check_anchors(anchors)) if roots is None else roots
        try:
            # As above: a plain row of the default stream goes the short way.
            plain = task is None and not fields and stream is DEFAULT_STREAM and self._add_plain is not None
            if plain and type(values) is tuple and len(values) == self._plain_width:
                self._add_plain(values)  # type: ignore[misc]
            else:
                self._emit(values, stream, task, fields)
        finally:
            trees.anchor.root = before

    def check_anchors(self, anchors: Any) -> Iterable[Any]:
        """Refuse anchors where they have no meaning, and what is no tuple of the bolt's input."""
        if not self.anchoring:
            remedy = "only a plain Bolt, and a BatchBolt in finishBatch, anchor by hand: leave anchors out"
            raise self.misused("emit(..., anchors=)", remedy)
        each = [anchors] if is_tuple(anchors) else anchors
        if isinstance(each, str) or not isinstance(each, Iterable) or not all(map(is_tuple, each := list(each))):
            raise self.misused(
                f"emit(..., anchors={shown(anchors)})", "anchors are the tuples that execute was given: anchors=tup"
            )
        return each

    def misused(self, call: str, remedy: str) -> BoltError:
        return BoltError(f"{self._who} called {call}: {remedy}", component=self._component)

    def _emit(self, values: Any, stream: str, task: int | None, fields: Mapping[str, Any]) -> None:
        gathering = self._gathering(stream, values)
        if type(values) is not tuple or fields:
            values = self.row(values, stream, fields)
        if task is not None or stream in self._direct_streams:
            gathering.take_for(task, values)
        else:
            gathering.take(values)

    def checked(self, values: Any, stream: str, fields: Mapping[str, Any], task: int | None = None) -> tuple[Any, ...]:
        """Return what is emitted as a row of the stream that can be emitted later, to that task."""
        plain = self._plain_width if task is None and stream is DEFAULT_STREAM and not fields else -1
        if type(values) is tuple and len(values) == plain:
            return values  # as in `emit`
        gathering = self._gathering(stream, values)
        gathering.check_task(task)
        if type(values) is not tuple or fields:
            values = self.row(values, stream, fields)
        return gathering.checked(values)

    def check_fit(self, row: tuple[Any, ...], stream: str) -> None:
        """Raise SchemaError if a row of `checked` has a value that does not fit."""
        gathering = self._streams[stream]
        if isinstance(gathering, Guarded):
            gathering.check_fit(row)

    def _gathering(self, stream: str, values: Any) -> Gathering:
        try:
            return self._streams[stream]
        except (KeyError, TypeError):  # a TypeError: what can't be hashed was given in its place
            raise self._no_such_stream(stream, values) from None

    @property
    def plain_width(self) -> int:
        """How many values a tuple has that the default stream takes as it is; -1 if it takes none so."""
        return self._plain_width

    @property
    def plain_add(self) -> Callable[[tuple[Any, ...]], None] | None:
        """What takes a tuple of `plain_width` values of the default stream; None if nobody reads that."""
        return self._add_plain

    @property
    def count(self) -> int:
        """Rows for the streams that have readers."""
        found = self._closed_with
        for gathering in self._streams.values():  # asked twice for each partition of a spout: `sum` takes twice as long
            found += gathering.count
        return found

    def rows_of(self, stream: str) -> int:
        return self._streams[stream].count

    def row(self, values: Iterable[Any], stream: str, fields: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return what is emitted by position or by name as a tuple in the order of the schema."""
        if fields:
            return self._by_name(values, stream, fields)
        if isinstance(values, _PLAIN):
            names = getattr(values, "_fields", None) or getattr(values, "__fields__", None)
            if names is not None:
                self._check_order(values, stream, list(names))
            return tuple(values)
        if hasattr(values, "columns"):  # pandas', Polars' and Arrow's tables: iteration is over names or columns
            raise self._not_a_row(
                values, stream, "emit its rows one by one, or a pyarrow.RecordBatch of it with emitBatch(batch)"
            )
        if isinstance(values, Mapping):
            raise self._not_a_row(values, stream, "write emit(**row) to emit by name")
        if isinstance(values, Set):
            raise self._not_a_row(values, stream, "a set has no order")
        if isinstance(values, str | bytes):
            raise self._not_a_row(values, stream, f"write emit(({shown(values)},))")
        if is_dataclass(values):
            names = [field.name for field in fields_of(values)]
            self._check_order(values, stream, names)
            return tuple([getattr(values, name) for name in names])
        if not isinstance(values, Iterable):
            raise self._not_a_row(values, stream, "of one value: emit((value,))")
        index = getattr(values, "index", None)
        if index is not None and not callable(index):  # a Series of pandas, which has a name for each value
            self._check_order(values, stream, list(index))
        return tuple(values)

    def _check_order(self, values: Any, stream: str, names: list[str]) -> None:
        """Refuse a namedtuple or Row that has fields of the stream in other places: they would change places.

        One that bears other names altogether is taken by position.
        """
        declared = self._outputs[stream].names
        if names == declared or len(names) != len(declared):
            return
        moved = [name for name, here in zip(names, declared, strict=True) if name != here and name in declared]
        if moved and set(names) != set(declared):
            raise self._not_a_row(
                values,
                stream,
                f"its field {moved[0]!r} stands in another place than in {', '.join(declared)}, and others have "
                f"other names: name each, emit({declared[0]}=...), or write emit(tuple(row)) if the order is right",
            )
        if moved:
            how = next(
                (f"emit(**row.{name}())" for name in ("_asdict", "asDict") if hasattr(values, name)), "emit(**row)"
            )
            raise self._not_a_row(
                values,
                stream,
                f"its fields stand in another order than {', '.join(declared)}: write {how} to emit by name",
            )

    def _not_a_row(self, values: Any, stream: str, remedy: str) -> SchemaError:
        return SchemaError(
            f"{self._who} emitted {shown(values)} on stream {stream!r}; emit takes a tuple of values: {remedy}",
            component=self._component,
            stream=stream,
        )

    def _by_name(self, values: Iterable[Any], stream: str, fields: Mapping[str, Any]) -> tuple[Any, ...]:
        names = self._outputs[stream].names
        if not fields.keys() <= set(names):  # a keyword in source is in NFKC, whatever was typed
            own = {in_source(name): name for name in names}
            fields = {own.get(name, name): value for name, value in fields.items()}
        if values != ():
            problem = "by position and by name at once: do either"
        elif unknown := [name for name in fields if name not in names]:
            near = difflib.get_close_matches(unknown[0], names, n=1, cutoff=0.0)[0]
            problem = f"the field {unknown[0]!r}, which it has not; the nearest is {near!r}"
        elif missing := [name for name in names if name not in fields]:
            problem = f"by name without {', '.join(missing)}: name every field, with None where it has no value"
        else:
            return tuple([fields[name] for name in names])
        raise SchemaError(
            f"{self._who} emitted on stream {stream!r} {problem}",
            component=self._component,
            stream=stream,
        )

    def emitBatch(self, batch: pa.RecordBatch | pa.Table, stream: str = "default") -> None:
        batch = self.checked_batch(batch, stream)
        for part in batch.to_batches() if isinstance(batch, pa.Table) else (batch,):
            self._streams[stream].take_batch(part)

    def checked_batch(self, batch: pa.RecordBatch | pa.Table, stream: str) -> pa.RecordBatch | pa.Table:
        """Return what is emitted as a batch that has the schema of the stream."""
        schema = self._outputs.get(stream)
        if schema is None:
            raise self._no_such_stream(stream)
        if not isinstance(batch, pa.RecordBatch | pa.Table):
            raise SchemaError(
                f"{self._who} emitted {shown(batch)} on stream {stream!r}; emitBatch takes a pyarrow.RecordBatch or "
                "Table: for a frame of pandas pyarrow.Table.from_pandas(frame), for single rows emit(values)",
                component=self._component,
                stream=stream,
            )
        return batch if batch.schema.equals(schema) else self._fitted(batch, schema, stream)

    def _fitted(self, batch: pa.RecordBatch | pa.Table, schema: pa.Schema, stream: str) -> pa.RecordBatch | pa.Table:
        try:
            if batch.schema.names != schema.names:
                raise ValueError(f"its fields are {batch.schema.names}")
            return fitted_table(batch, schema)
        except MISFITS as error:
            raise SchemaError(
                f"{self._who} emitted a batch on stream {stream!r}, whose outputFields declare "
                f"`{to_ddl(schema)}`: {error}",
                component=self._component,
                stream=stream,
            ) from error

    def ack(self, tup: Any) -> None:
        """Note that a plain bolt has dealt with a tuple, if that is tracked; the barrier closes all others."""
        self.check_tuple("ack", tup)
        if self._trees is not None:
            self._trees.ack(tup)

    def fail(self, tup: Any, reason: str = "") -> None:
        """Fail the trees of `tup`; the transaction that it is in, if it is not tracked."""
        if self._trees is not None:
            self.check_tuple("fail", tup)
            if self.guard is not None and self.guard.active:
                self.guard.journal.append(self._trees.failures_back())
            if self._trees.fail(tup, reason):
                return
        raise self.failed(tup, reason)

    def failed(self, tup: Any, reason: str) -> FailedException:
        """Return what fails the transaction; also if the bolt catches it, with other errors."""
        why = f": {reason}" if reason else ""
        self._failed = FailedException(f"it called collector.fail({shown(tup)}){why}", component=self._component)
        return self._failed

    def resetTimeout(self, tup: Any) -> None:
        """Restart the timeout of the trees of `tup`, if it is tracked; no other tuple has one of its own."""
        self.check_tuple("resetTimeout", tup)
        if self._trees is not None:
            self._trees.reset_timeout(tup)

    def check_tuple(self, method: str, tup: Any) -> None:
        if not is_tuple(tup):
            raise self.misused(f"{method}({shown(tup)})", "it takes a tuple that execute was given")

    def flush(self) -> None:
        if self._failed is not None:
            raise self._failed
        for gathering in self._streams.values():
            gathering.flush()

    def finish(self) -> None:
        """Send on everything, also what is held to be added up: from now on nothing can be emitted."""
        self.flush()
        for outlet in self.outlets:
            outlet.finish()
        self.close()

    def refuse_late(self, tell: Callable[[BoltError], None]) -> None:
        """Raise BoltError if something was emitted since `finish`; from now on `tell` is called for it, in any thread.

        A row that is emitted late is in no transaction. Only the thread that emits it learns of it.
        """
        self._tell_late = tell
        if self._late is not None:
            raise self._late

    def close(self) -> None:
        """Take no more: what a bolt emits after its barriers have left would be lost without a trace."""
        # Rule 5.2: the barriers say how many rows have gone, and are on their way.
        self._closed, self._closed_with = True, self.count
        self._plain_width = -1
        self._streams = {}
        self._outputs = {}

    def too_late(self, *, is_lost: bool = True) -> BoltError:
        """Return what whoever emits too late is told; if a row `is_lost` by it, the transaction fails as well."""
        late = BoltError(
            f"{self._who} emitted through a collector of transaction {self.attempt.txid} whose rows had left: the "
            "row is lost. Emit before execute, executeBatch, finishBatch or a spout's emit...Batch returns, by the "
            "collector it was given; wait there for threads that emit",
            component=self._component,
            txid=self.attempt.txid,
        )
        if is_lost:
            self._late = late
            if self._tell_late is not None and threading.get_ident() != self._thread:
                self._tell_late(late)
        return late

    def _no_such_stream(self, stream: Any, values: Any = ()) -> BoltError:
        if self._closed:
            return self.too_late()
        if not isinstance(stream, str):
            remedy = "emit takes one tuple of values: write emit((first, second)), or emit(values, stream='name')"
            if is_tuple(values) or is_tuple(stream) or (isinstance(values, list) and any(map(is_tuple, values))):
                named = f", stream={values!r}" if isinstance(values, str) else ""  # Storm's emit(stream, tup, values)
                by_hand = f"write emit(values{named}, anchors=tup)"
                remedy = by_hand if self.anchoring else f"write emit(values{named}), which is anchored by itself"
            return SchemaError(
                f"{self._who} called emit({shown(values)}, {shown(stream)}); {remedy}",
                component=self._component,
            )
        declared = set(self._outputs) - INTERNAL
        several = f"; for one row of two values write emit(({values!r}, {stream!r}))" if isinstance(values, str) else ""
        return SchemaError(
            f"{self._who} emitted on stream {stream!r}, which its outputFields do not declare: "
            f"declared are {sorted(declared) or 'none'}{several}"
            + ("" if declared else '. Say what it emits: outputFields = "word string, count long"'),
            component=self._component,
            stream=stream,
        )
