"""``python -m statefx``: looks at a checkpoint from a shell; changes nothing, also beside a topology at work."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from statefx.admin import tables
from statefx.errors import ConfigError, StatefxError

PROGRAM = "python -m statefx"

SHOWN = 100
"""How many keys a table shows, unless it is told otherwise: a screen or two."""

Command = Callable[[argparse.Namespace], tables.Listing]


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say; return 0, 1: the checkpoint can't be read, or 2: the command is wrong."""
    given = _parser().parse_args(arguments)
    command: Command = given.command
    try:
        listing = command(given)
        limit = given.limit if given.limit is not None or given.json else SHOWN
        for line in listing.json(limit or None) if given.json else listing.table(limit or None):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has all it wanted; Python would flush once more at its end, and complain
        with suppress(BrokenPipeError):
            sys.stdout.close()
    except (StatefxError, OSError) as error:
        sys.stderr.write(f"{PROGRAM}: {' '.join(str(error).split())}\n")
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Look at a checkpoint; it is not changed, and its topology may be running."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Command, text: str) -> argparse.ArgumentParser:
        each = commands.add_parser(name, help=text, description=text)
        each.add_argument("checkpoint", metavar="CHECKPOINT", help="checkpointLocation, as given to submit")
        each.add_argument("--json", action="store_true", help="a line of JSON for each row, for programs")
        each.set_defaults(command=command, limit=0)
        return each

    add("log", lambda given: tables.log(given.checkpoint), "the records of the transaction log")
    add("transactions", lambda given: tables.transactions(given.checkpoint), "the last attempts of transactions")
    state = add("state", _state, "the stateful bolts, or the committed state of one of them")
    state.add_argument("component", nargs="?", help="the id of a stateful bolt")
    state.add_argument("--task", type=int, help="of one task only")
    state.add_argument("--config", type=_settings, metavar="JSON", help="settings, where the provider has a secret")
    state.add_argument(
        "--limit", type=_count, metavar="N", help=f"at most N rows; 0: all; by default {SHOWN} in a table, all in JSON"
    )
    state.set_defaults(limit=None)
    return parser


def _state(given: argparse.Namespace) -> tables.Listing:
    if given.component is not None:
        return tables.entries(given.checkpoint, given.component, given.task, given.config)
    if given.task is not None or given.config is not None:
        raise ConfigError("--task and --config are of one bolt's state: name the bolt behind the checkpoint")
    return tables.bolts(given.checkpoint)


def _settings(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError("a JSON object, as given to submit")
    return found


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of rows")
    return int(text)
