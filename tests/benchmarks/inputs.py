"""The input that every system reads: files of words, one file-set a batch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES = 2  # a batch, one for each core


@dataclass(frozen=True)
class Shape:
    """How much input: `rows` a batch, drawn evenly from `keys` distinct words, as Parquet, CSV without a header, or
    lines of JSON."""

    keys: int
    rows: int
    format: str = "parquet"


def make(folder: Path, shape: Shape, batches: int) -> Path:
    """Write `batches` batches below `folder`; return their folder.

    Batch b is the same in every run. Spark's file source takes the oldest files first, so the files' modification
    times are set one second apart, whatever the time at which they were written.
    """
    target = folder / f"{shape.keys}-keys-{shape.rows}-rows-{shape.format}"
    target.mkdir(parents=True)
    words = pa.array([f"word-{i:07d}" for i in range(shape.keys)])
    for batch in range(batches):
        drawn = np.random.default_rng([shape.keys, batch]).integers(0, shape.keys, shape.rows)
        for part, indices in enumerate(np.array_split(drawn, FILES)):
            path = target / _name(batch, part)
            _write(pa.table({"word": words.take(pa.array(indices))}), path, shape.format)
            os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))
    return target


def select(source: Path, batches: int, target: Path) -> Path:
    """Link the first `batches` batches of `source` into `target`, for a system that is given fewer."""
    target.mkdir(parents=True)
    for batch in range(batches):
        for part in range(FILES):
            os.link(source / _name(batch, part), target / _name(batch, part))
    return target


def _write(table: pa.Table, path: Path, form: str) -> None:
    if form == "parquet":
        pq.write_table(table, path)
        return
    before, behind = ('{"word":"', '"}\n') if form == "json" else ("", "\n")
    path.write_text("".join(f"{before}{word}{behind}" for word in table.column(0).to_pylist()), encoding="utf-8")


def _name(batch: int, part: int) -> str:
    return f"batch-{batch:05d}-{part}"
