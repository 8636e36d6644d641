"""Who owns a FileSink's folder, and which transaction that owner has published last."""

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
        Whether a former start of the same application has sealed `number`, so that this one has nothing to seal.
    layout : Layout
        Of the files of all owners until now.
    """

    owner: Owner
    number: int
    txid: int
    taken_on: bool
    layout: Layout


@dataclass(frozen=True, slots=True)
class FolderState:
    """What stands in the folder at one moment.

    Attributes
    ----------
    fences : int
        The number of the newest fence; 0 if there is none.
    fence : Fence or None
    sealed : bool
        Whether its owner may publish.
    newest : int or None
        The newest manifest.
    """

    fences: int
    fence: Fence | None
    sealed: bool
    newest: int | None

    @property
    def is_cut_short(self) -> bool:
        """Whether manifests are missing that were there."""
        return self.fence is not None and self.sealed and (self.newest is None or self.newest < self.fence.number)

    @property
    def marker(self) -> Marker | None:
        """The owner, and what it has published last; None if nobody has written here."""
        if self.fence is None:
            return None
        if not self.sealed or self.newest is None:
            return Marker.of(self.fence.owner, UNFENCED)
        return Marker.of(self.fence.owner, self.fence.txid + self.newest - self.fence.number)
