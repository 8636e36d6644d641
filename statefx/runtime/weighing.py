"""About how many bytes a value needs, which is asked for every row that is emitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

Weigh = Callable[[Any], int]
"""Returns about how many bytes a fitted value needs."""

FIXED_BYTES = 8
"""Of a number, and of anything else whose size does not depend on the value."""


def weigher(kind: pa.DataType) -> Weigh | None:
    """Return the function that weighs a fitted value of a type whose values differ in size; None for any other."""
    if is_text(kind):
        return lambda value: len(value or "")
    if pa.types.is_list(kind):
        return _every(kind.value_type)
    if pa.types.is_map(kind):
        key, item = weigher(kind.key_type) or fixed, weigher(kind.item_type) or fixed
        return lambda value: sum(key(k) + item(v) for k, v in value or ())
    if pa.types.is_struct(kind):
        return _all_fields(kind)
    return None


def fixed(value: Any) -> int:
    """Weigh a value of a type whose values are all of one size."""
    return FIXED_BYTES


def _every(kind: pa.DataType) -> Weigh:
    weigh = weigher(kind)
    if weigh is None:
        return lambda value: FIXED_BYTES * len(value or ())
    if not is_text(kind):
        return lambda value: sum(map(weigh, value or ()))

    def weigh_texts(value: Any) -> int:
        try:
            return sum(map(len, value or ()))
        except TypeError:  # a None among them
            return sum(map(weigh, value))

    return weigh_texts


def _all_fields(kind: pa.DataType) -> Weigh:
    parts = [(field.name, weigh) for field in kind if (weigh := weigher(field.type)) is not None]
    fixed_bytes = FIXED_BYTES * (kind.num_fields - len(parts))

    def weigh_struct(value: Any) -> int:
        found: int = fixed_bytes
        if value is not None:
            for name, weigh in parts:
                found += weigh(value[name])
        return found

    return weigh_struct


def is_text(kind: pa.DataType) -> bool:
    """Tell whether values of a type are texts or bytes."""
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))
