"""A hash for each row of an Arrow batch, of all its values: what two emissions of one batch are compared by.

It is of a row's values alone: not of the encoding of a column (a dictionary, an offset), nor of what stands under a
null. All of a batch is hashed in a dozen passes of numpy over each column: 15 ns for a row of a short text and a
long. xxhash is called for each value, which takes ten times as long; to make a dictionary, Arrow takes 15 to 50 ns, by
how many values are equal.

A word is mixed in by ``(hash ^ word) * odd``, and what is above half is folded down: the steps of wyhash and its
like, without their 128 bits. No one is kept from finding two batches of one sum; they don't come up by chance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh64_intdigest

Hashes = npt.NDArray[np.uint64]

BLOCK_ROWS = 16_384
"""Hashed together: the passes over a column stay in the processor's second cache. Of 500,000 rows at once, each pass
would go to memory, which takes half as long again."""

_WORD_BYTES = 8
_LONG_BYTES = 128
"""Longer texts are hashed one by one, in 0.2 us each: a pass over the words at one place takes 10 us for a few rows, so
that a few long texts among short ones would cost more than all others."""

_ODD = np.uint64(0x9E3779B97F4A7C15)
_OTHER_ODD = np.uint64(0xC2B2AE3D27D4EB4F)
_ODDS = [np.uint64(xxh64_intdigest(bytes([place])) | 1) for place in range(_LONG_BYTES // _WORD_BYTES)]
"""One for each word of a text; any that have nothing to do with each other."""

_NULL = np.uint64(0x27D4EB2F165667C5)
_HALF = np.uint64(32)
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(_WORD_BYTES + 1)], np.uint64)


def row_hashes(batch: pa.RecordBatch) -> Hashes:
    """Return a hash for each row of a batch; equal rows have equal ones, in any batch of the same fields."""
    columns = [_in_blocks(column) for column in batch.columns]
    found = np.empty(batch.num_rows, np.uint64)
    for start in range(0, batch.num_rows, BLOCK_ROWS):
        size = min(BLOCK_ROWS, batch.num_rows - start)
        found[start : start + size] = _together([hashes(start, size) for hashes in columns], size)
    return found


def _in_blocks(column: pa.Array) -> Callable[[int, int], Hashes]:
    """Return what hashes so many values of a column from a place on; the values of a dictionary are hashed once."""
    if not pa.types.is_dictionary(column.type):
        return lambda start, size: _hashes(column.slice(start, size))
    of_values = _hashes(column.dictionary)
    return lambda start, size: _of_dictionary(column.slice(start, size), of_values)


def _together(columns: list[Hashes], rows: int) -> Hashes:
    """Return one hash for several of each row; which column has which counts."""
    found = np.full(rows, _NULL)
    for column in columns:
        _mix(found, column)
    found *= _OTHER_ODD
    found ^= found >> _HALF
    return found


def _mix(hashes: Hashes, words: Any) -> None:
    """Mix a word into each hash: each of its bits reaches those above it, and by the fold those below."""
    hashes ^= words
    hashes *= _ODD
    hashes ^= hashes >> _HALF


def _hashes(column: pa.Array) -> Hashes:
    """Return a hash for each value of a column."""
    if pa.types.is_dictionary(column.type):
        return _of_dictionary(column, _hashes(column.dictionary))
    return _without_nulls(column, next(of for fits, of in _OF_TYPES if fits(column.type))(column))


def _of_dictionary(column: pa.Array, of_values: Hashes) -> Hashes:
    if not len(of_values):
        return np.full(len(column), _NULL)
    return _without_nulls(column, of_values[column.indices.fill_null(0).to_numpy(zero_copy_only=False)])


def _without_nulls(column: pa.Array, found: Hashes) -> Hashes:
    """Give nulls their hash, whatever stands under them."""
    if column.null_count:
        found[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return found


def _buffer(column: pa.Array, number: int, kind: Any) -> npt.NDArray[Any]:
    buffer = column.buffers()[number]
    return np.empty(0, kind) if buffer is None else np.frombuffer(buffer, kind)


def _of_flags(column: pa.Array) -> Hashes:
    return _of_fixed(column.cast(pa.uint8()))


def _of_fixed(column: pa.Array) -> Hashes:
    bits = column.type.bit_width
    words = max(1, bits // 64)  # a decimal has two
    values = _buffer(column, 1, f"<u{min(bits, 64) // 8}")[
        column.offset * words : (column.offset + len(column)) * words
    ]
    if words == 1:  # a copy, also of longs: nulls are written into it
        return values.astype(np.uint64)
    return _together([values[place::words] for place in range(words)], len(column))


def _of_texts(column: pa.Array) -> Hashes:
    """Return hashes of texts and bytes: of their length, and of their words of eight bytes, each with a factor."""
    offsets, start, sizes = _spans(column)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + _LONG_BYTES, np.uint8)  # texts are read beyond their ends
    data[:-_LONG_BYTES] = _buffer(column, 2, np.uint8)[first:last]
    words = np.ndarray((len(data) - _WORD_BYTES + 1,), "<u8", data, strides=(1,))  # one begins at every byte
    found = sizes.astype(np.uint64) * _OTHER_ODD
    long = np.flatnonzero(sizes > _LONG_BYTES)
    left = sizes
    if len(long):
        view, begin = memoryview(data.data), start[long]
        ends = (begin + sizes[long]).tolist()
        found[long] += np.array(
            [xxh64_intdigest(view[at:end]) for at, end in zip(begin.tolist(), ends, strict=True)], np.uint64
        )
        left = np.where(sizes > _LONG_BYTES, 0, sizes)
    for place, odd in enumerate(_ODDS):
        rows: Any = slice(None)
        if place:
            left, start = left - _WORD_BYTES, start + _WORD_BYTES
            longer = np.flatnonzero(left > 0)
            if not len(longer):
                break
            if 4 * len(longer) < len(left):  # else it takes less time to add nothing to the others
                rows = longer
        found_words = words[start[rows]]
        found_words &= _MASKS.take(left[rows], mode="clip")
        found_words ^= found_words >> _HALF  # else the highest bits of two words would cancel out
        found_words *= odd
        found[rows] += found_words
    return found


def _spans(column: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the offsets of what has a length, and of each value where it begins behind the first, and its length."""
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    large = large or pa.types.is_large_list(column.type)
    offsets = _buffer(column, 1, np.int64 if large else np.int32)[column.offset : column.offset + len(column) + 1]
    if not len(offsets):  # of an empty array Arrow may leave them out
        offsets = np.zeros(len(column) + 1, np.int64)
    return offsets, (offsets[:-1] - offsets[0]).astype(np.int64), np.diff(offsets)


def _of_lists(column: pa.Array) -> Hashes:
    """Return hashes of lists: of their elements, each with its place."""
    offsets, start, sizes = _spans(column)
    inner = _hashes(column.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])))
    places = np.arange(len(inner)) - np.repeat(start, sizes)
    return _sums(_together([inner, places.astype(np.uint64)], len(inner)), start, sizes)


def _of_maps(column: pa.Array) -> Hashes:
    """Return hashes of maps: of their entries, in any order."""
    offsets, start, sizes = _spans(column)
    entries = slice(int(offsets[0]), int(offsets[-1]))
    pairs = [_hashes(part.slice(entries.start, entries.stop - entries.start)) for part in (column.keys, column.items)]
    return _sums(_together(pairs, entries.stop - entries.start), start, sizes)


def _of_structs(column: pa.Array) -> Hashes:
    return _together([_hashes(part) for part in column.flatten()], len(column))


def _sums(values: Hashes, start: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> Hashes:
    """Return for each row the sum of its values, with their number."""
    until = np.concatenate([np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)])
    found: Hashes = until[start + sizes] - until[start]
    return found + sizes.astype(np.uint64) * _ODD


def _is_text(kind: pa.DataType) -> bool:
    return any(
        fits(kind)
        for fits in (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
    )


_OF_TYPES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], Hashes]], ...] = (
    (_is_text, _of_texts),
    (pa.types.is_boolean, _of_flags),
    (pa.types.is_map, _of_maps),
    (pa.types.is_list, _of_lists),
    (pa.types.is_large_list, _of_lists),
    (pa.types.is_struct, _of_structs),
    (lambda kind: True, _of_fixed),
)
