"""What the server says of a namespace, and whether that is what the transaction log says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from statefx.errors import StateCorruptedError
from statefx.state.contract.store import EMPTY, Namespace, Version
from statefx_redis.answers import REMEDY, sound, text
from statefx_redis.names import Names
from statefx_redis.prepared import Entry

AHEAD = "open it again; if that does not help, the checkpoint is older than the server: restore the newer one"


@dataclass(frozen=True, slots=True)
class Stored:
    """A namespace on the server, at one moment.

    `committing` is the commit that is under way: what it changes is decided, though not all of it is among the data
    yet. `entry` is how the token that was asked for is registered, if it is prepared; `complete`: with all its chunks.
    """

    generation: int
    version: Version
    committing: Version | None
    entry: Entry | None
    complete: bool

    def same(self, other: Stored) -> bool:
        """Tell whether nothing began or ended between the two, so that what was read between them is of one version."""
        return (self.version, self.committing) == (other.version, other.committing)

    def can_become(self, version: Version) -> bool:
        """Tell whether `version` is prepared, on top of what is committed."""
        return self.complete and self.entry is not None and self.entry.base == self.version


def parse(answer: Sequence[Any], namespace: Namespace, names: Names) -> Stored:
    """Read what `scripts.LOOK` answered.

    Raises StateCorruptedError: fields are missing or too many, or a key is someone else's.
    """
    meta, fields, ordered, entry, chunks = sound(answer)[:5]
    txid, token, count, next_txid, next_token = meta[1:6]
    if not fields == ordered == int(count or 0):
        raise corrupted(
            namespace,
            names,
            f"there are {fields} values and {ordered} ordered keys, where {int(count or 0)} were committed: "
            "some were evicted, deleted or added",
        )
    lineage = meta[7]
    if lineage is not None and text(lineage) != namespace.lineage:
        raise corrupted(namespace, names, f"it is of lineage {text(lineage)}")
    found_entry = None if entry is None else Entry(entry[0], entry[1], entry[2], text(entry[3]), entry[4])
    return Stored(
        generation=int(meta[0] or 0),
        version=EMPTY if txid is None else Version(int(txid), text(token)),
        committing=None if next_token is None else Version(int(next_txid), text(next_token)),
        entry=found_entry,
        complete=found_entry is not None and chunks == found_entry.chunks + 1,
    )


def corrupted(
    namespace: Namespace, names: Names, what: str, *, missing: bool = False, remedy: str = REMEDY
) -> StateCorruptedError:
    """Return the error for a namespace that is not as it was left."""
    return StateCorruptedError(
        f"state of {namespace.component}/{namespace.task} at {names.meta}: {what}. To go on, {remedy}.",
        namespace=namespace,
        path=names.meta,
        missing=missing,
    )


def mismatch(namespace: Namespace, names: Names, log: Version, server: Version) -> StateCorruptedError:
    """Return the error for a server that is not at the log's version."""
    ahead, gone = server.txid > log.txid, server == EMPTY
    why = "the server has gone on" if ahead else "the server was emptied, restored from an older dump, or failed over"
    if gone:
        why += "; or this was opened before a tool wrote the state anew, under another name: then open it again"
    return corrupted(
        namespace,
        names,
        f"the transaction log says transaction {log.txid} (token {log.token or 'none'}), the server holds "
        f"transaction {server.txid} (token {server.token or 'none'}): {why}",
        missing=ahead or gone,
        remedy=AHEAD if ahead else REMEDY,
    )
