"""Who owns a FileSink's folder, and how far that owner has come."""

from __future__ import annotations

from dataclasses import dataclass

from statefx.connectors.files.layout import Layout
from statefx.operators.sinks import UNFENCED, Marker, Owner


@dataclass(frozen=True, slots=True)
class Fence:
    """Who owns the folder, and which number stands for which transaction.

    Attributes
    ----------
    owner : Owner
    number, txid : int
        Manifest `number` is transaction `txid` of the owner.
    taken_on : bool
        Whether a former start of the same application has put `number` on top: there is nothing to seal.
    layout : Layout
        Of the files of all owners until now.
    """

    owner: Owner
    number: int
    txid: int
    taken_on: bool
    layout: Layout


@dataclass(frozen=True, slots=True)
class Look:
    """What the folder says at one moment.

    Attributes
    ----------
    at : int
        Number of the newest fence; 0 if there is none.
    fence : Fence or None
    sealed : bool
        Whether its owner may publish.
    newest : int or None
        The newest manifest.
    """

    at: int
    fence: Fence | None
    sealed: bool
    newest: int | None

    @property
    def is_cut_short(self) -> bool:
        """Whether manifests are missing that were there."""
        return self.fence is not None and self.sealed and (self.newest is None or self.newest < self.fence.number)

    @property
    def marker(self) -> Marker | None:
        """Whose it is and what was published last; None if nobody has written here."""
        if self.fence is None:
            return None
        if not self.sealed or self.newest is None:
            return Marker.of(self.fence.owner, UNFENCED)
        return Marker.of(self.fence.owner, self.fence.txid + self.newest - self.fence.number)
