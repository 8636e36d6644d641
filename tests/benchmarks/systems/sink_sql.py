"""What SqlSink costs beside the plain way: the same rows into the same table, in one transaction of the database.

Both are given Arrow batches. ``plain`` makes tuples of them and runs ``executemany``, or on PostgreSQL without a key
COPY, and COMMIT. ``statefx`` is all that a sink does: rows staged in the checkpoint and made durable, read back and
verified, published with the marker. SQLite is durable at COMMIT; PostgreSQL is that of the tests, which is in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from measuring import arguments, latency

from statefx.connectors.sql import SqlSink
from statefx.operators.sinks import CheckpointPosition, CommitterContext, Owner, WriterContext
from statefx.protocol.identity import TransactionAttempt
from statefx.storage import FolderStorage
from tests.sinks.postgres_server import PostgresServer

BATCH_ROWS = 10_000  # Spark's default for batches of Arrow
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64()), ("at", pa.timestamp("us"))])
START_US = 1_700_000_000_000_000
Batches = Sequence[pa.RecordBatch]


def rows_of(transaction: int, rows: int, *, upserts: bool) -> Batches:
    """Return a transaction's rows; where rows are replaced, half of them are of the one before."""
    first = transaction * rows // (2 if upserts else 1)
    found = []
    for start in range(first, first + rows, BATCH_ROWS):
        ids = range(start, min(start + BATCH_ROWS, first + rows))
        columns = {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array([f"name-{id:09d}" for id in ids]),
            "amount": pa.array([id / 7 for id in ids]),
            "at": pa.array([START_US + id for id in ids], pa.timestamp("us")),
        }
        found.append(pa.RecordBatch.from_pydict(columns, schema=SCHEMA))
    return found


def plain(url: str, *, upserts: bool) -> Callable[[int, Batches], None]:
    """Return what writes a transaction by hand."""
    engine = sa.create_engine(url)
    connection: Any = engine.raw_connection()
    cursor, lite = connection.cursor(), engine.dialect.name == "sqlite"
    kind = "double precision" if not lite else "double"
    cursor.execute(
        f"create table rows (id bigint not null {'primary key' * upserts}, name text, amount {kind}, at timestamp)"
    )
    connection.commit()
    mark = "?" if lite else "%s"
    statement = f"insert into rows values ({mark}, {mark}, {mark}, {mark})"
    if upserts:
        statement += " on conflict (id) do update set name = excluded.name, amount = excluded.amount, at = excluded.at"

    def write(_: int, batches: Batches) -> None:
        columns = ([column.to_pylist() for column in batch] for batch in batches)
        if lite:
            texts = ((ids, names, amounts, [at.isoformat(" ", "microseconds") for at in moments])
                     for ids, names, amounts, moments in columns)  # fmt: skip
            cursor.executemany(statement, (row for part in texts for row in zip(*part, strict=True)))
        elif upserts:
            cursor.executemany(statement, (row for part in columns for row in zip(*part, strict=True)))
        else:
            with cursor.copy("copy rows from stdin") as copy:
                for part in columns:
                    for row in zip(*part, strict=True):
                        copy.write_row(row)
        connection.commit()

    return write


def sunk(url: str, work: Path, *, upserts: bool) -> Callable[[int, Batches], None]:
    """Return what writes a transaction through SqlSink."""
    sink = SqlSink(url, "rows", key="id" if upserts else ())
    storage = FolderStorage(work / "checkpoint")
    committer = sink.committer(CommitterContext("out", Owner("bench", "origin", 1), SCHEMA, storage))
    committer.fence(CheckpointPosition(0, 0), takeover=False)

    def write(txid: int, batches: Batches) -> None:
        attempt = TransactionAttempt(txid, 0)
        writer = sink.writer(WriterContext("out", 0, 1, attempt, "token", SCHEMA, storage))
        for batch in batches:
            writer.write(batch)
        prepared = writer.prepare(txid)
        writer.close()
        committer.commit(attempt, {0: prepared} if prepared is not None else {})
        committer.sweep(txid)

    return write


def main() -> None:
    """Write transactions one after the other."""
    parser = arguments(__doc__)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], required=True)
    parser.add_argument("--what", choices=["plain", "statefx"], required=True)
    parser.add_argument("--upserts", action="store_true")
    args = parser.parse_args()
    server = PostgresServer() if args.database == "postgresql" else None
    try:
        url = f"sqlite:///{args.work}/db" if server is None else server.url()
        write = plain(url, upserts=args.upserts) if args.what == "plain" else sunk(url, args.work, upserts=args.upserts)
        spans = []
        for transaction in range(args.warmup + args.batches):
            batches = rows_of(transaction, args.rows, upserts=args.upserts)
            started = time.perf_counter()
            write(transaction + 1, batches)
            spans.append((time.perf_counter() - started) * 1000)
    finally:
        if server is not None:
            server.close()
    latency(args, spans, database=args.database, what=args.what, upserts=args.upserts)


if __name__ == "__main__":
    main()
