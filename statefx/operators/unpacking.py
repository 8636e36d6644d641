"""Values on their way out of Arrow: the same in every version of it, as bolts keep them and keys of calls hash them.

Arrow's own zone of a timestamp is one of pytz in some versions, of zoneinfo in others, and equal to no `datetime.UTC`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

_MICROS = pa.timestamp("us")
_EPOCHS = {"UTC": datetime(1970, 1, 1, tzinfo=UTC), None: datetime(1970, 1, 1)}  # noqa: DTZ001 - timestamp_ntz


def values_in(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return what ``to_pylist`` does, with `datetime.UTC` as the zone of timestamps; raises as it does."""
    kind = column.type
    if kind.id == _MICROS.id and kind.unit == "us" and (epoch := _EPOCHS.get(kind.tz)) is not None:
        # By way of spans, as Arrow takes thirty times as long to make the datetimes.
        spans = column.cast(_MICROS).to_numpy(zero_copy_only=False).view("m8[us]")
        if np.isnat(spans).sum() == column.null_count:  # NumPy's null is a number to Arrow, which refuses it
            return [None if span is None else epoch + span for span in spans.tolist()]
    values: list[Any] = column.to_pylist()
    in_utc = _in_utc(kind) if pa.types.is_nested(kind) or kind.id == _MICROS.id else None
    return values if in_utc is None else list(map(in_utc, values))


@lru_cache(maxsize=1024)
def _in_utc(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return what gives the timestamps in a value of this type their zone; None if there are none with one in it."""
    if pa.types.is_timestamp(kind):
        return None if kind.tz != "UTC" else lambda value: None if value is None else value.replace(tzinfo=UTC)
    if pa.types.is_struct(kind):
        inner = {field.name: change for field in kind if (change := _in_utc(field.type)) is not None}
        if not inner:
            return None
        return lambda value: (
            None if value is None else value | {name: change(value[name]) for name, change in inner.items()}
        )
    if pa.types.is_map(kind):  # a list of pairs
        key, item = (_in_utc(each) or _same for each in (kind.key_type, kind.item_type))
        if key is item is _same:
            return None
        return lambda value: None if value is None else [(key(one), item(other)) for one, other in value]
    change = _in_utc(kind.value_type) if pa.types.is_nested(kind) and kind.num_fields == 1 else None
    return None if change is None else lambda value: None if value is None else list(map(change, value))


def _same(value: Any) -> Any:
    return value
