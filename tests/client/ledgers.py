"""A client that moves money between accounts, with sinks of two kinds; crashes at any step of it."""

import os
import sqlite3
from contextlib import closing

import pyarrow.parquet as pq

from statefx import TransactionalClient
from statefx.connectors.files import FileSink, committedFiles
from statefx.connectors.sql import SqlSink

SCHEMA = "n long, account string, amount long"
TRANSFERS = [("ann", "bob", 5), ("bob", "cid", 7), ("ann", "cid", 90), ("cid", "ann", 3), ("ann", "bob", 8)]
OPENING = {"ann": 20, "bob": 4, "cid": 0}


def client(place, config=None, cls=TransactionalClient, **options):
    return cls(
        place / "ck",
        id="ledger",
        sinks={"entries": FileSink(place / "entries"), "refused": SqlSink(f"sqlite:///{place}/db", "refused")},
        schemas={"entries": SCHEMA, "refused": "n long, account string, amount long"},
        state=["accounts", "progress"],
        config=config,
        **options,
    )


def transfer(t, n, source, target, amount):
    """Move money, or refuse to; what was done is counted in the same transaction."""
    balance = t.get("accounts", source, OPENING[source])
    if balance < amount:
        t.send("refused", [{"n": n, "account": source, "amount": amount}])
    else:
        t.put("accounts", source, balance - amount)
        t.put("accounts", target, t.get("accounts", target, OPENING[target]) + amount)
        t.send("entries", [(n, source, -amount), (n, target, amount)])
    t.put("progress", "done", n + 1)


def work(found, transfers=TRANSFERS, abort_at=None):
    while True:
        with found.transaction() as t:
            n = t.get("progress", "done", 0)
            if n == len(transfers):
                return
            transfer(t, n, *transfers[n])
            if n == abort_at:
                abort_at = None
                t.abort("tried once for nothing")


def entries(place):
    if not os.path.exists(place / "entries" / "_spark_metadata"):
        return []
    files = committedFiles(place / "entries")
    return sorted(tuple(row.values()) for file in files for row in pq.read_table(file).to_pylist())


def refused(place):
    with closing(sqlite3.connect(place / "db")) as connection, connection:
        return sorted(connection.execute("select n, account, amount from refused").fetchall())


def expected(transfers=TRANSFERS):
    """What a run without failure comes to: entries, refused, balances."""
    balances, done, not_done = dict(OPENING), [], []
    for n, (source, target, amount) in enumerate(transfers):
        if balances[source] < amount:
            not_done.append((n, source, amount))
        else:
            balances[source] -= amount
            balances[target] += amount
            done += [(n, source, -amount), (n, target, amount)]
    return sorted(done), not_done, balances
