"""What a call of a bolt's changes in memory, written down so that it can be taken back.

An overlay's changes are entries of a few dicts. Who changes one of these puts what was there before into the journal
first, if there is one. A journal lives for one call: it is cleared after it, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statefx.state.view.pending import UNKNOWN

Undo = tuple[dict[Any, Any], Any, Any] | Callable[[], object]
"""(a dict, a key in it, what stood there before or `UNKNOWN`); or what is called to take something else back."""

Journal = list[Undo]


def take_back(journal: Journal) -> None:
    """Take back all that a journal has, the last first; it is empty then."""
    while journal:
        undo = journal.pop()
        if type(undo) is tuple:
            entries, key, before = undo
            if before is UNKNOWN:
                entries.pop(key, None)
            else:
                entries[key] = before
        else:
            undo()  # type: ignore[operator]  # no tuple
