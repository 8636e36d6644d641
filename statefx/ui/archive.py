"""What a page reads of the checkpoint itself, as plain data: its log, its state key by key, and what its driver saw.

All of it goes through `Checkpoint`, which changes nothing, and may be called while the topology runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice, product
from typing import Any

from statefx.admin import tables
from statefx.admin.columns import json_text
from statefx.admin.layouts import kept_names
from statefx.admin.looking import Transaction
from statefx.admin.narrowing import key_of
from statefx.checkpoint import Checkpoint
from statefx.log.observation import transaction_entry
from statefx.logs import iso
from statefx.protocol.log_state import GIVEN_UP
from statefx.state.contract.spaces import NameKind

STRIP = 60
"""How many attempts the strip of transactions shows."""

ATTEMPTS = 200
"""How many the table of the log shows."""

HELD_KEYS = 100
"""How many keys of dead letters are listed; there may be any number."""

VALUE_CHARS = 4_000
"""What is longer is cut: a value may have megabytes."""

_CHANGES = ("GENERATION", "RESCALED", "MIGRATED", "RESTORED", "PINNED", "UNPINNED")
"""Records of the log that are about more than one transaction."""


def observed(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what the driver of a checkpoint saw last, with the transactions that only the log knows of.

    A driver that was killed wrote its last observation up to 5 seconds before.
    """
    document = checkpoint.observation()
    logged = checkpoint.transactions()[-STRIP:]
    return {**document, "transactions": merged(document.get("transactions") or (), logged)}


def merged(seen: Iterable[Mapping[str, Any]], logged: Iterable[Transaction]) -> list[dict[str, Any]]:
    """Return attempts as a driver saw them, with their phases, and after them those of the log that it did not see."""
    found: dict[Any, dict[str, Any]] = {_name(each): dict(each) for each in seen}
    for each in logged:
        row = attempt(each)
        known = found.get(_name(row))
        is_over = known is not None and known.get("outcome") == "running" and each.ended_ms is not None
        if known is None or is_over or not known.get("durationMs"):
            found[_name(row)] = row
    ordered = sorted(
        found.values(), key=lambda each: (str(each.get("began") or each.get("ended") or ""), each.get("txid") or 0)
    )
    return ordered[-STRIP:]


def _name(row: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return what no other row has; one of a restore has the numbers of the transaction that was gone back to."""
    return row.get("txid"), row.get("attempt"), row.get("ended") if row.get("outcome") == "restored" else None


def attempt(one: Transaction) -> dict[str, Any]:
    """Return an attempt of the log in the form of an observation's; the log knows two phases."""
    began, decided, ended = one.prepared_ms, one.committing_ms, one.ended_ms
    phases = {}
    if began is not None and (decided or ended) is not None:
        phases["run"] = (decided or ended or 0) - began
    if decided is not None and ended is not None:
        phases["commit"] = ended - decided
    return transaction_entry(one, one.state) | {"generation": one.generation, "durationMs": phases}


def _time(ms: int | None) -> str | None:
    return None if ms is None else iso(ms / 1000)


def attempts(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the last attempts of the log, the newest first."""
    found = checkpoint.transactions()
    return {
        "attempts": [attempt(each) for each in reversed(found[-ATTEMPTS:])],
        "leftOut": max(0, len(found) - ATTEMPTS),
    }


def history(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return savepoints, generations, and what has changed the checkpoint itself, the newest first."""
    return {
        "savepoints": list(reversed(list(tables.savepoints(checkpoint.savepoints()).rows))),
        "generations": generations(checkpoint.transactions()),
        "changes": list(_changes(checkpoint)),
    }


def generations(found: Iterable[Transaction]) -> list[dict[str, Any]]:
    """Return what each start has done, as far as the log remembers, the newest first."""
    rows: dict[int, dict[str, Any]] = {}
    for each in found:
        row = rows.setdefault(
            each.generation,
            {"generation": each.generation, "first": each.txid, "last": each.txid, "began": _time(each.prepared_ms),
             "ended": None, "committed": 0, "rolledBack": 0, "rows": 0},
        )  # fmt: skip
        row["last"] = max(row["last"], each.txid)
        row["ended"] = _time(each.ended_ms) or row["ended"]
        row["committed"] += each.state in ("COMMITTED", GIVEN_UP)
        row["rolledBack"] += each.state == "ROLLED_BACK"
        row["rows"] += each.input_rows if each.state == "COMMITTED" else 0
    return [rows[generation] for generation in sorted(rows, reverse=True)]


def _changes(checkpoint: Checkpoint) -> Iterator[dict[str, Any]]:
    """Yield records of the log that are about more than one transaction, since the log was last folded."""
    listing = tables.log(checkpoint._folders)
    for row in reversed(list(listing.rows)):
        if row["kind"] in _CHANGES:
            yield {"at": _time(row["time_ms"]), "record": row["kind"], "says": str(listing.cells(row)[-1])[:500]}


def bolts(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the stateful bolts, as the log has them."""
    return {"bolts": [dict(row) for row in tables.bolts(checkpoint._folders).rows]}


def maps(checkpoint: Checkpoint, component: str) -> dict[str, Any]:
    """Return the names of the maps that a bolt keeps.

    Files are read block by block, and no store is opened: state that fits over all workers alone would be in the
    driver then.
    """
    table, found = checkpoint._table(component), set[str]()
    for moment, task in product(table.moments, () if table.own is not None else table.tasks):
        names = kept_names(table.reader(moment, task))
        found.update(*(names.get(kind, ()) for kind in (NameKind.MAP, NameKind.BROADCAST)))
    return {"component": component, "maps": sorted(found)}


def explained(checkpoint: Checkpoint, component: str, key: str, map: str | None, task: int | None) -> dict[str, Any]:
    """Return what state has of a key, and the files and transactions that it comes from; see `Checkpoint.explain`."""
    found = checkpoint.explain(component, key_of(key), map=map, task=task)
    rows = [{**row, "value": None if row["deleted"] else _text(row["value"])} for row in tables.explained(found).rows]
    return {"component": component, "key": _text(found.key), "txid": found.txid, "rows": rows}


def _text(value: Any) -> str:
    text = json_text(value)
    more = len(text) - VALUE_CHARS
    return text if more <= 0 else f"{text[:VALUE_CHARS]} ... and {more} characters more"


def held(checkpoint: Checkpoint, component: str) -> dict[str, Any]:
    """Return the first keys of a bolt whose rows are held back as dead letters, and whether there are more."""
    keys = checkpoint.quarantined(component)
    rows = [{**asdict(each), "key": _text(each.key), "error": each.error[:500]} for each in islice(keys, HELD_KEYS)]
    return {"component": component, "keys": rows, "more": next(keys, None) is not None}
