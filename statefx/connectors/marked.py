"""What the bases of a user's own sinks share: a place with a marker, and who publishes there by it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, Self, TypeVar

from statefx.errors import SinkError
from statefx.operators.sinks import (
    Committable,
    CommitterContext,
    Marker,
    Reached,
    SinkCommitter,
    is_published,
    refuse_twin,
    starting_point,
)
from statefx.protocol.identity import TransactionAttempt

_FENCE_TRIES = 10

Content = TypeVar("Content")
"""What is published: rows, or the files that hold them."""


class Place(ABC, Generic[Content]):
    """Where transactions are published, beside a marker.

    Every method may raise anything; the error is shown in ``query.status`` and the call is repeated.
    """

    @abstractmethod
    def marker(self) -> Marker | None:
        """Return the marker; None if nobody has ever written here."""

    @abstractmethod
    def publish(self, marker: Marker, previous: Marker | None, content: Content) -> None:
        """Publish `content` and write `marker` in one atomic act.

        Must do nothing and raise if the marker there is not `previous` any more: another driver was here (rule 10.8).
        At the start of a driver there is no content, and only the owner in the marker changes.
        """

    def check(self) -> None:
        """Look whether the place can take rows of the schema; changes nothing. Called before anything is started."""

    def close(self) -> None:
        """Close connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


AnyPlace = TypeVar("AnyPlace", bound=Place)  # type: ignore[type-arg]  # of whatever content


class MarkedCommitter(SinkCommitter, Generic[AnyPlace]):
    """Publishes what a transaction has prepared, unless the marker says that it is there.

    Parameters
    ----------
    name : str
        The target's.
    context : CommitterContext
    connect : callable
        Opens the place.
    """

    def __init__(self, name: str, context: CommitterContext, connect: Callable[[], AnyPlace]) -> None:
        self._name = name
        self._context = context
        self._connect = connect
        self._place: AnyPlace | None = None

    def check(self, reached: Reached, *, takeover: bool) -> None:
        with self._opened() as place:
            place.check()
            starting_point(place.marker(), self._context.owner, reached, self._name, takeover=takeover)

    def fence(self, reached: Reached, *, takeover: bool) -> None:
        owner, name = self._context.owner, self._name
        with self._connected() as place:
            found = place.marker()
            refuse_twin(found, owner, name)
            for tries_left in reversed(range(_FENCE_TRIES)):
                txid = starting_point(found, owner, reached, name, takeover=takeover)
                try:
                    place.publish(Marker.of(owner, txid), found, self._content({}))
                except Exception:
                    # A zombie may have published what is decided since we looked: look again (rule 10.8).
                    before, found = found, place.marker()
                    if found == before or not tries_left:
                        raise
                    # The user has seen another owner than the one that came meanwhile (rule 10.10).
                    takeover = takeover and found is not None and before is not None and found.is_of(before)
                else:
                    return

    def commit(self, attempt: TransactionAttempt, committables: Mapping[int, Committable]) -> None:
        with self._connected() as place:
            found = place.marker()
            while not is_published(found, self._context.owner, attempt.txid, self._name):
                try:
                    place.publish(Marker.of(self._context.owner, attempt.txid), found, self._content(committables))
                except Exception:
                    # Who has moved the marker meanwhile has published it, or is to be given way to (rule 10.8).
                    before, found = found, place.marker()
                    if found == before:
                        raise
                else:
                    return

    def close(self) -> None:
        if self._place is not None:
            self._place.close()
            self._place = None

    def _opened(self) -> AnyPlace:
        place: AnyPlace | None = self._connect()
        if place is None:
            raise SinkError(f"connect() of the sink to {self._name} returned None: return what rows are published to")
        return place

    @contextmanager
    def _connected(self) -> Iterator[AnyPlace]:
        """Yield the place; after an error the next call opens it again."""
        place = self._place = self._place or self._opened()
        try:
            yield place
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _content(self, committables: Mapping[int, Committable]) -> object:
        """Return what `Place.publish` is given for what tasks have prepared."""
