"""What the tasks of one process share, such as a model: made by the first that asks, closed when the last one ends."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from statefx.errors import BoltError

logger = logging.getLogger("statefx")


@dataclass(eq=False)
class _Shared:
    """One object; `lock` is held while it is made, all else belongs to the lock of `SharedObjects`."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    maker: int | None = None
    """The thread that makes it at the moment."""
    is_made: bool = False
    value: Any = None
    close: Callable[[Any], object] | None = None
    holders: set[Hashable] = field(default_factory=set)
    asking: int = 0
    """How many are about to be holders."""


class SharedObjects:
    """Objects by run and key. A holder is a task: it holds what it has asked for until `release`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, Any], _Shared] = {}
        self._awaited: dict[int, _Shared] = {}
        """By thread, what it waits for."""

    def get(
        self,
        holder: Hashable,
        run: str,
        key: Any,
        make: Callable[[], Any],
        close: Callable[[Any], object] | None = None,
    ) -> Any:
        """Return what is shared under a key; made now if nobody holds it. What `make` raises is raised here alone."""
        name, own = (run, _checked(key, make, close)), threading.get_ident()
        with self._lock:
            kept = self._kept.setdefault(name, _Shared())
            self._refuse_circle(kept, key, own)
            kept.asking += 1
            self._awaited[own] = kept
        try:
            with kept.lock:
                with self._lock:
                    del self._awaited[own]
                    kept.maker = None if kept.is_made else own
                if not kept.is_made:
                    try:
                        kept.value = _made(key, make)
                    finally:
                        with self._lock:
                            kept.maker = None
                    kept.close, kept.is_made = close, True
        except BaseException:
            with self._lock:
                self._awaited.pop(own, None)
                kept.asking -= 1
                if not kept.is_made and not kept.asking:
                    self._kept.pop(name, None)
            raise
        with self._lock:
            kept.asking -= 1
            kept.holders.add(holder)
        return kept.value

    def _refuse_circle(self, kept: _Shared, key: Any, own: int) -> None:
        """Refuse what a thread could only wait for for ever: whoever makes it waits for what this thread makes."""
        if kept.maker == own:
            raise BoltError(f"context.shared({key!r}, ...): its make asks for {key!r} itself")
        maker = kept.maker
        while maker is not None and (awaited := self._awaited.get(maker)) is not None:
            maker = awaited.maker
            if maker == own:
                raise BoltError(
                    f"context.shared({key!r}, ...): the make that asks for it is waited for by the make of {key!r}: "
                    "each would wait for the other for ever. Make one of them without the other"
                )

    def release(self, holder: Hashable) -> None:
        """Let a holder hold nothing; what nobody else holds is closed. Nothing is raised."""
        unheld = []
        with self._lock:
            for name, kept in list(self._kept.items()):
                if holder in kept.holders:
                    kept.holders.discard(holder)
                    if not kept.holders and not kept.asking:
                        unheld.append(self._kept.pop(name))
        for kept in unheld:
            if kept.close is None:
                continue
            try:
                kept.close(kept.value)
            except Exception:
                logger.exception("what tasks have shared could not be closed; ignored")


def _checked(key: Any, make: object, close: object) -> Any:
    try:
        hash(key)
    except TypeError:
        raise BoltError(f"context.shared({key!r}, ...): a key is a text, a number or a tuple of such") from None
    if not callable(make):
        raise BoltError(
            f"context.shared({key!r}, {make!r}): make is called, without arguments, if nothing is shared yet: write "
            f"context.shared({key!r}, lambda: ...)"
        )
    if close is not None and not callable(close):
        raise BoltError(f"context.shared({key!r}, ..., close={close!r}): close is called with what is shared")
    return key


def _made(key: Any, make: Callable[[], Any]) -> Any:
    made = make()
    if inspect.iscoroutine(made):
        made.close()
        raise BoltError(
            f"context.shared({key!r}, make): make is async def. A task has an event loop of its own, and what belongs "
            "to one can't be shared: make such clients in open, and share what a plain function makes"
        )
    return made
