"""A hash for each row of an Arrow batch, of all its values: what two emissions of one batch are compared by.

It is of a row's values alone: not of the encoding of a column (a dictionary, an offset), nor of what stands under a
null. All of a batch is hashed in a few passes of numpy over each column: 15 ns for a row of a short text and a long,
40 ns for one of a text of 100 bytes. xxhash is called for each value, which takes 150 ns at least; to make a
dictionary, Arrow takes 15 to 50 ns, by how many values are equal.

A word is mixed in by ``(hash ^ word) * odd``, and what is above half is folded down: the steps of wyhash and its
like, without their 128 bits. No one is kept from finding two batches of one sum; they don't come up by chance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh64_intdigest

Hashes = npt.NDArray[np.uint64]

BLOCK_ROWS = 16_384
"""Hashed together: the passes over a column stay in the processor's second cache. Of 500,000 rows at once, each pass
would go to memory, which takes half as long again."""

_WORD_BYTES = 8
_LONG_BYTES = 256
"""Longer texts are hashed one by one, in 0.2 us each, which the words of 400 bytes take as well. It also bounds what a
long text among short ones costs, which are all made as long as the longest."""

_PADDED_BYTES = 400_000
"""Of texts that are made equally long together. Of more than a processor's second cache holds, a text takes three times
as long."""

_ODD = np.uint64(0x9E3779B97F4A7C15)
_OTHER_ODD = np.uint64(0xC2B2AE3D27D4EB4F)
_ODDS = np.array(
    [xxh64_intdigest(bytes([place])) >> 6 << 6 | place << 1 | 1 for place in range(_LONG_BYTES // _WORD_BYTES)],
    np.uint64,
)
"""One for each word of a text; any that have nothing to do with each other.

The last six bits are another odd number for each: no difference of two factors is divisible by more than 2^5, else
swapped words would lose that many bits of what tells them apart."""

_NULL = np.uint64(0x27D4EB2F165667C5)
_HALF = np.uint64(32)


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
    found = sizes.astype(np.uint64) * _OTHER_ODD
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    # Without its nulls, which come out shorter than the others; what stands under them is of no account here.
    texts = pa.Array.from_buffers(
        pa.large_string() if wide else pa.string(), len(column), [None, *column.buffers()[1:]], offset=column.offset
    )
    if len(long := np.flatnonzero(sizes > _LONG_BYTES)):
        data = memoryview(column.buffers()[2])[int(offsets[0]) :]
        spans = zip(start[long].tolist(), (start[long] + sizes[long]).tolist(), strict=True)
        found[long] += np.array([xxh64_intdigest(data[at:end]) for at, end in spans], np.uint64)
        short = np.flatnonzero(sizes <= _LONG_BYTES)
        found[short] += _of_words(texts.take(pa.array(short)), sizes[short])
    else:
        found += _of_words(texts, sizes)
    return found


def _of_words(texts: pa.Array, sizes: npt.NDArray[Any]) -> Hashes:
    """Return for each text the sum of its words of eight bytes, each with the factor of its place."""
    found = np.zeros(len(texts), np.uint64)
    words = -(-int(sizes.max(initial=0)) // _WORD_BYTES)
    if not words:
        return found
    step = _PADDED_BYTES // (words * _WORD_BYTES)
    for at in range(0, len(texts), step):
        few = texts.slice(at, step)
        # Zeros behind a text's end add nothing, so that its hash does not follow from how long others are. By its name,
        # the function is for ASCII: it counts bytes, and does not look at them.
        padded = pc.ascii_rpad(few, words * _WORD_BYTES, "\0").buffers()[2]
        values = np.frombuffer(padded, "<u8", len(few) * words).reshape(len(few), words)
        # Folded, else the highest bits of two words would cancel out; and first multiplied, else equal halves of a word
        # would: texts of such words had sums that differ in their highest byte alone.
        values = values * _ODD
        values ^= values >> _HALF
        found[at : at + step] = values @ _ODDS[:words]
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
