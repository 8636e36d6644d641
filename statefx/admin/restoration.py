"""What going back to an earlier transaction gives up, and what becomes of rows that sinks have published since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from statefx.admin.reading import check_idle, counted
from statefx.coordinator.location import Folders
from statefx.errors import CheckpointError, ConfigError
from statefx.protocol.log_state import LogState
from statefx.protocol.records import Pin

APPEND = "append"
REWIND = "rewind"
SINKS = (APPEND, REWIND)


@dataclass(frozen=True)
class Restoration:
    """What `restore` has done.

    Attributes
    ----------
    location : str
        The folder that goes on.
    txid : int
        The transaction whose state and sources it goes on from.
    given_up : int
        How many transactions after it were given up; what was read then comes again.
    next_txid : int
        The next transaction. Numbers are never used twice.
    published : Mapping[str, int]
        By sink, the rows of those transactions, as far as the log still knows and the sink tells. They stay where they
        are, and the rows that come again are published behind them; but not those of `taken_back`.
    taken_back : Mapping[str, str]
        Sinks, with their targets, that take back what they have published after `txid`: when the topology starts the
        next time, before its first transaction.
    """

    location: str
    txid: int
    given_up: int
    next_txid: int
    published: Mapping[str, int]
    taken_back: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        said = f"{self.location} goes on from transaction {self.txid}, with transaction {self.next_txid}"
        if self.given_up:
            verb = "was" if self.given_up == 1 else "were"
            past = counted(self.given_up, "transaction")
            said += f"; {past} after it {verb} given up, and what was read then comes again"
        return said + self._of_sinks()

    @property
    def plan(self) -> str:
        """What `restore` would do, before it is done."""
        said = f"let {self.location} go on from transaction {self.txid}"
        if self.given_up:
            which = _transactions(self.txid + 1, self.txid + self.given_up)
            said += f", and give up {which}: what was read then comes again"
        return said + self._of_sinks()

    def _of_sinks(self) -> str:
        said = ""
        for sink, target in self.taken_back.items():
            said += f"; the next start takes back what sink {sink!r} has published since, from {target}"
        stays = {sink: count for sink, count in self.published.items() if sink not in self.taken_back}
        rows = ", ".join(f"{counted(count, 'row')} of {sink!r}" for sink, count in stays.items())
        return f"{said}; published in these, and still there: {rows}" if rows else said


def _transactions(first: int, last: int) -> str:
    return f"transaction {first}" if first == last else f"transactions {first} to {last}"


def check_sinks(sinks: str | None) -> None:
    """Refuse what can't be said of rows that were published."""
    if sinks not in (None, *SINKS):
        raise ConfigError(f"sinks must be 'append' or 'rewind', or left out, got {sinks!r}")


def planned(folders: Folders, found: LogState, pin: Pin, sinks: str | None) -> Restoration:
    """Return what going back to a pin would do; refuse what does not go."""
    check_idle(found, folders, "restore it")
    taken_back = _to_take_back(found, folders, pin, sinks)
    txid, given_up = pin.state_txid, max(0, found.state_txid - pin.state_txid)
    published = _published_since(found, txid)
    return Restoration(folders.location, txid, given_up, found.committed + 1, published, taken_back)


def _published_since(found: LogState, txid: int) -> dict[str, int]:
    rows: dict[str, int] = {}
    for past in found.past():
        if past.state == "COMMITTED" and past.txid > txid:
            for volume in past.sinks:
                if volume.rows:
                    rows[volume.sink] = rows.get(volume.sink, 0) + volume.rows
    return rows


def _already_published(found: LogState, pin: Pin) -> str:
    published = _published_since(found, pin.state_txid)
    shown = ", ".join(f"{rows} of sink {sink!r}" for sink, rows in published.items())
    past = _transactions(pin.state_txid + 1, found.committed)
    targets = ", ".join(f"{sink!r} ({target})" for sink, target in sorted(found.targets.items()))
    rows = f"rows ({shown})" if shown else "rows"
    return (
        f"{past} may have published {rows} to {targets}. What was read then "
        "would come again, and be published once more behind that. Say sinks='append' if that is right, or "
        "remove these rows there by hand and say it then; or sinks='rewind' where all these sinks can take them back; "
        "or call restore with to=, into another checkpoint, whose sinks "
        "have other targets"
    )


def _to_take_back(found: LogState, folders: Folders, pin: Pin, sinks: str | None) -> Mapping[str, str]:
    """Return which sinks have to take back what, where it was published; refuse what does not go (rule 3.14)."""
    if sinks == APPEND:
        return {}
    txid, due = pin.state_txid, found.taking_back
    for past in found.taken_back:
        # Where no driver has started since, RESTORED gives up what nobody has begun.
        if past.after < txid <= past.until and not (past is due and found.generation == past.generation):
            raise CheckpointError(
                f"transaction {txid} was given up once, and rows of transactions {past.after + 1} to {past.until} were "
                "taken back from the targets of sinks, or may have been: they would be lacking there, for what "
                f"they came from is not read again. Go back to a transaction up to {past.after}; or call restore "
                "with to=, into another checkpoint, whose sinks have other targets; or say sinks='append' if that is "
                "right",
                path=folders.location,
                txid=txid,
            )
    if sinks == REWIND:
        return _rewound(found, folders, txid)
    # Not by `txid`: what was restored before has the number of what was given up then. The newest state of all has
    # seen all that was published, but for what was given up before it, with the user's consent.
    if found.targets and txid not in (found.state_txid, found.committed):
        raise CheckpointError(_already_published(found, pin), path=folders.location, txid=txid)
    return due.targets if due is not None and txid == found.state_txid else {}


def _rewound(found: LogState, folders: Folders, txid: int) -> Mapping[str, str]:
    """Return the sinks that have published something after a transaction; all of them can take it back."""
    since = {sink: found.targets[sink] for sink, each in sorted(found.published.items()) if each.last > txid}
    can_not = {sink: target for sink, target in since.items() if found.published[sink].fixed > txid}
    if can_not:
        shown = ", ".join(f"{sink!r} ({target})" for sink, target in can_not.items())
        raise CheckpointError(
            f"what was published after transaction {txid} can't be taken back by {shown}: of these sinks, or as they "
            "were set up or wrote elsewhere then, or since they were taken over, nobody can tell which rows are a "
            "transaction's. Nothing was changed. Remove these rows by hand and say sinks='append', or say it if they "
            "may come once more; or call restore with to=, into another checkpoint, whose sinks have other targets",
            path=folders.location,
            txid=txid,
            sinks=sorted(can_not),
        )
    return since
