"""What the process under test dies of."""

from __future__ import annotations

from collections.abc import Iterator

from statefx.runtime.bolts import ProcessGone

_STEPS_MAX = 500


class Crash(ProcessGone):
    """The process is gone: no handler of the code under test may take it for an error."""


def every_crash() -> Iterator[int]:
    """Yield 1, 2, ... for ``crash_at``; the caller stops at the first that was not hit."""
    yield from range(1, _STEPS_MAX)
    raise AssertionError(f"more than {_STEPS_MAX} durable steps")
