"""What arguments of ``python -m statefx`` are read as."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from statefx.admin.narrowing import as_key


class SettingsType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 alone
    """A JSON object."""

    name = "JSON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Mapping[str, Any]:
        """Return what it holds."""
        try:
            found = json.loads(value)
        except ValueError as error:
            self.fail(f"no JSON: {error}", param, ctx)
        if not isinstance(found, dict):
            self.fail("a JSON object, of names and values", param, ctx)
        return found


class KeyType(click.ParamType):  # type: ignore[type-arg]  # as above
    """A key of state: JSON, or a text."""

    name = "KEY"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the key."""
        try:
            return as_key(json.loads(value))
        except ValueError:
            return value


class MomentType(click.ParamType):  # type: ignore[type-arg]  # as above
    """A transaction's number, or a savepoint's name."""

    name = "TXID|SAVEPOINT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return it."""
        return int(value) if str(value).isdecimal() else str(value)
