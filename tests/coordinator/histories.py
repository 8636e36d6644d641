"""Lives of a topology, as records."""

from __future__ import annotations

from dataclasses import replace

from statefx.protocol.identity import FileRef, SnapshotRef, Version
from statefx.protocol.metadata import Metadata
from statefx.protocol.records import (
    BatchInput,
    Committed,
    Committing,
    Generation,
    Lineage,
    Migrated,
    Noted,
    Preparing,
    Processed,
    Record,
    RolledBack,
    SourceNotes,
    StreamInput,
)
from statefx.protocol.topology_identity import KeyFields, StatefulIdentity, TopologyIdentity

_WORDS = KeyFields("lines", "default", "fields", ("word",), ("n", "word"))
_COUNT = StatefulIdentity(2, "old:Old", "statefx-1", 1, (("fields", "string"),), (_WORDS,), options={"size": 0})
IDENTITY = TopologyIdentity("word-count", "stream", {"count": _COUNT})

BEGINNING: list[Record] = [Lineage("lineage-1"), Generation(1, "/data/check", IDENTITY)]


def offsets(txid: int) -> StreamInput:
    return StreamInput("query-1", txid - 1, f'v1\n{{"batchId":{txid - 1}}}\n{{"logOffset":{txid}}}')


def preparing(txid: int, attempt: int = 0, generation: int = 1) -> Preparing:
    return Preparing(txid, attempt, generation, offsets(txid))


def committing(txid: int, attempt: int = 0, generation: int = 1, **fields: object) -> Committing:
    tokens = {f"count/{task}": f"token-{txid}-{attempt}-{task}" for task in (0, 1)}
    sizes = dict.fromkeys(tokens, 10 * txid)
    given = {"hooks": ("count/0",), **fields}  # something is left to do: it does not commit by itself
    return Committing(txid, attempt, generation, tokens, prepared_bytes=sizes, **given)


def transaction(txid: int, generation: int = 1) -> list[Record]:
    return [preparing(txid, 0, generation), committing(txid, 0, generation), Committed(txid)]


def snapshot(txid: int, task: int = 0) -> SnapshotRef:
    return SnapshotRef(Version(txid, f"token-{txid}-0-{task}"), f"sum-{txid}", 100 * txid)


EVENTFUL: list[Record] = [
    *BEGINNING,
    *transaction(1),
    preparing(2),
    RolledBack(2, 0, "the feed is stale"),
    preparing(2, 1),
    Processed(2, 1, {"spout": Metadata({"0": [1, 2.5, None]})}),
    preparing(3),
    committing(2, 1, snapshots={"count/0": snapshot(1)}, hooks=("count/1",)),
    Generation(2, "/data/check", IDENTITY),
    Committed(2),
    RolledBack(3, 0, "restart"),
    Preparing(3, 1, 2, BatchInput(7)),
    Committing(3, 1, 2, {"count/0": "c"}, {}, {"count/0": 7}),  # nothing is left to do: it commits
    Generation(3, "/data/moved", IDENTITY),
    preparing(4, 0, 3),
]

MIGRATED: list[Record] = [
    Lineage("lineage-1"),
    Generation(1, "/data", IDENTITY),
    *transaction(1),
    preparing(2),
    committing(2, snapshots={"count/0": snapshot(1)}),
    Committed(2),
    Generation(2, "/data", IDENTITY),
    Migrated(2, "lineage-2", "new:New", {"count/0": "a", "count/1": "b"}, {"count/0": 7, "count/1": 8}, {"size": 1}),
    Generation(3, "/data", IDENTITY.kept_by("new:New", {"size": 1})),
    *transaction(3, generation=3),
]

LISTS = FileRef("sources/2-3-x", "sum", 70_000)


def reading(txid: int, attempt: int = 0, aside: tuple[FileRef, ...] = (), **files: str | None) -> Preparing:
    """A transaction that begins, and what its sources have written down."""
    given = {f"0/{name[1:]}": content for name, content in files.items()}
    return Preparing(txid, attempt, 1, replace(offsets(txid), notes=SourceNotes(given, aside)))


NOTED: list[Record] = [
    *BEGINNING,
    Noted(1, SourceNotes({"1/0": "began at 7"})),
    reading(1, _0="a"),
    RolledBack(1, 0, "the feed is stale"),
    reading(1, 1),
    committing(1, 1),
    Committed(1),
    reading(2, _1="b", _0=None),
    committing(2),
    Committed(2),
    reading(3, aside=(LISTS,)),
    committing(3),
    Committed(3),
    reading(4, _3="c", _1=None),
]
"""What sources have written down, over a rollback, and put aside."""
