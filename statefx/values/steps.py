"""What a map asks of its backend, step by step: tests put other attempts, and crashes, between any two of them."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from statefx.errors import FailedException
from statefx.values.backend import KeyValueBackend, Row

T = TypeVar("T")


class Get(NamedTuple):
    """Asks for rows; answered with those that are there."""

    keys: list[str]

    def on(self, backend: KeyValueBackend) -> Mapping[str, Row]:
        """Carry it out."""
        return backend.multiGet(self.keys)


class Put(NamedTuple):
    """Asks to write rows; answered with the keys that were refused."""

    rows: dict[str, Row]
    expected: dict[str, str | None]

    def on(self, backend: KeyValueBackend) -> list[str]:
        """Carry it out."""
        return list(backend.multiPut(self.rows, self.expected))


Steps = Generator[Get | Put, Any, T]


def carry_out(steps: Steps[T], backend: KeyValueBackend) -> T:
    """Run steps to their end; return what they return."""
    answer: Any = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = request.on(backend)


def version_of(row: Row | None) -> str | None:
    """Return what is expected of a key at which `row` was read."""
    return None if row is None else row.version


def refuse_stubborn(refused: Iterable[str], expected: Mapping[str, str | None], rows: Mapping[str, Row]) -> None:
    """Raise if a backend refuses keys of which none has changed: else the same would be tried for ever."""
    refused = list(refused)
    if refused and all(version_of(rows.get(key)) == expected[key] for key in refused):
        raise FailedException(
            f"multiPut has not written {refused[0]!r}, although the version there is the one that was expected"
        )


def encode(key: str, value: Any) -> str | None:
    """Return a value as JSON; None for None, which stands for no value.

    Raises
    ------
    TypeError
        JSON would give back something else.
    """
    if value is None:
        return None
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise TypeError(f"the value of {key!r} can't be kept as JSON: {error}") from None
    if json.loads(text) != value:
        raise TypeError(
            f"the value of {key!r} would not come back from JSON as it is: {value!r}. Use lists rather than tuples, "
            "and dicts whose keys are str"
        )
    return text


def decode(text: str | None) -> Any:
    """Read what `encode` wrote."""
    return None if text is None else json.loads(text)
