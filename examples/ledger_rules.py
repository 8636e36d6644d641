"""What the ledgers have in common: what a transfer does, where its entries go, and what must not be found there."""

import csv
import sqlite3
from contextlib import closing

import pyarrow.dataset

from statefx.connectors.files import FileSink, committedFiles
from statefx.connectors.sql import SqlSink

TRANSFER = "transfer long, currency string, source string, target string, amount long"
ENTRY = "transfer long, currency string, account string, amount long, balance long"
OPENING = 100  # what every account begins with


def move(balances, transfer, currency, source, target, amount):
    """Return the entries of a transfer, having changed the balances; of one that is refused, None."""
    has = balances.get((currency, source), OPENING)
    if has < amount or source == target:
        return None
    gets = balances.get((currency, target), OPENING)
    balances.put((currency, source), has - amount)
    balances.put((currency, target), gets + amount)
    return [(transfer, currency, source, -amount, has - amount), (transfer, currency, target, amount, gets + amount)]


def transfers_of(path):
    """Return the transfers of a file."""
    return [(int(n), *others, int(amount)) for n, *others, amount in csv.reader(path.read_text().splitlines())]


def sinks(work):
    """Return where entries and refusals go."""
    return {
        "entries": FileSink(work / "entries"),
        "refused": SqlSink(f"sqlite:///{work}/refused.db", "refused", key="transfer"),
    }


CHECKS = {
    "transfers that were applied not once": """
        select transfer from entries group by transfer having count(*) <> 2 or sum(amount) <> 0
        or count(distinct account) <> 2""",
    "transfers that are missing": """
        select transfer from transfers where transfer not in (select transfer from entries)
        and transfer not in (select transfer from refused)""",
    "transfers that were both applied and refused": """
        select transfer from refused where transfer in (select transfer from entries)""",
    "transfers that nobody made": """
        select transfer from (select transfer from entries union select transfer from refused)
        where transfer not in (select transfer from transfers)""",
    "transfers that were changed": """
        select transfer from transfers join entries using (transfer)
        where entries.currency <> transfers.currency or abs(entries.amount) <> transfers.amount
        or entries.account <> iif(entries.amount < 0, source, target)""",
    "accounts below zero": "select account from entries where balance < 0",
    "balances that are not the sum of their entries": f"""
        select currency, account from (
            select currency, account, transfer, balance,
            {OPENING} + sum(amount) over (partition by currency, account order by rowid) as added from entries)
        where balance <> added""",
    "money that was made or lost": "select currency from entries group by currency having sum(amount) <> 0",
}
"""What must not be found; each is a query over what the sinks have published."""


def check(work):
    """Ask `CHECKS`; return what was found, and how many transfers were applied and refused."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("create table transfers (transfer, currency, source, target, amount)")
        database.execute("create table entries (transfer, currency, account, amount, balance)")
        for path in (work / "transfers").glob("*.csv"):
            database.executemany("insert into transfers values (?, ?, ?, ?, ?)", transfers_of(path))
        for file in committedFiles(work / "entries"):
            rows = [tuple(row.values()) for row in pyarrow.dataset.dataset(file).to_table().to_pylist()]
            database.executemany("insert into entries values (?, ?, ?, ?, ?)", rows)
        database.execute("attach ? as published", [str(work / "refused.db")])
        wrong = {name: found for name, query in CHECKS.items() if (found := database.execute(query).fetchall())}
        (applied,), (refused,) = (
            database.execute(query).fetchone()
            for query in ("select count(distinct transfer) from entries", "select count(*) from refused")
        )
    return wrong, applied, refused
