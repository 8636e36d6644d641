"""The base of all contracts: they hold as a whole."""

from __future__ import annotations

from typing import Any


class Contract:
    """Tests for pytest. A subclass gives them what they test; it overrides no test, and nothing that tests share."""

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        shipped = [vars(base) for base in cls.__mro__[1:] if base.__module__.startswith("statefx.testing.")]
        overridden = sorted(name for name in vars(cls) if _is_closed(name) and any(name in names for names in shipped))
        if overridden:
            raise TypeError(f"{cls.__name__} overrides {', '.join(overridden)}: the contract holds as a whole")


def _is_closed(name: str) -> bool:
    return name == "site" or name.startswith("test_") or (name.startswith("_") and not name.startswith("__"))
