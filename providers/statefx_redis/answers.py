"""What a script answers when it refuses, and what is said of a key that statefx did not write."""

from __future__ import annotations

from typing import Any

from statefx.errors import FencedError, StateCorruptedError

REMEDY = (
    "restore the server from a backup that is as new as the checkpoint, or start again with a new "
    "checkpointLocation; keep persistence on and maxmemory-policy noeviction"
)


def sound(answer: Any) -> Any:
    """Return a script's answer, unless it has found a key damaged, or a newer generation."""
    if answer[0] == b"DAMAGED":
        raise damaged(text(answer[1]), text(answer[2]))
    if answer[0] == b"FENCED":
        raise fenced(text(answer[1]), answer[2], int(answer[3]))
    return answer


def fenced(key: str, newest: int, generation: int) -> FencedError:
    """Return the error for who has been replaced."""
    return FencedError(
        f"{key}: generation {newest} has taken over from generation {generation}; stop this driver",
        generation=generation,
        newest=newest,
    )


def damaged(key: str, what: str) -> StateCorruptedError:
    """Return the error for a key whose value statefx did not write."""
    return StateCorruptedError(f"{key}: {what}: someone overwrote it. To go on, {REMEDY}.", path=key, missing=False)


def text(found: bytes) -> str:
    """Return bytes of the server to be compared and shown; ours are ASCII, those of others may be anything."""
    return found.decode("utf-8", "backslashreplace")
