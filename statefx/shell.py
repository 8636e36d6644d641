"""What commands of ``statefx`` share on their command line: the checkpoint, settings, and the form of what is shown.

Only programs that are a shell's import this: with it comes click.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import click


class SettingsType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 alone
    """A JSON object."""

    name = "JSON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Mapping[str, Any]:
        try:
            found = json.loads(value)
        except ValueError as error:
            self.fail(f"no JSON: {error}", param, ctx)
        if not isinstance(found, dict):
            self.fail("a JSON object, of names and values", param, ctx)
        return found


location = click.argument("checkpoint", type=click.Path(readable=False))  # completed by the shell
config = click.option(
    "--config", type=SettingsType(), help="Settings as given to submit, a JSON object. Needed only if the state "
    "provider has a secret, such as a password: the checkpoint does not keep it.",
)  # fmt: skip
form = click.option(
    "--json/--table", "as_json", default=None, help="A line of JSON for each row, or a table; by default a table on "
    "a terminal, and JSON for whatever else reads it.",
)  # fmt: skip


def in_json(as_json: bool | None) -> bool:
    """Return whether to print JSON, by what `form` was given."""
    return not sys.stdout.isatty() if as_json is None else as_json
