"""``python -m statefx``: looks at a checkpoint from a shell, also beside a topology at work; ``resolve --yes`` acts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from statefx.admin import tables
from statefx.errors import ConfigError, StatefxError
from statefx.state.encoding.references import load

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
        prog=PROGRAM,
        description="Look at a checkpoint; its topology may be running. Nothing is changed, but by resolve --yes.",
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
    state.add_argument(
        "--map", metavar="NAME", help="what the bolt keeps in this map, in place of the state's own keys"
    )
    state.add_argument("--config", type=_settings, metavar="JSON", help="settings, where the provider has a secret")
    state.add_argument(
        "--limit", type=_count, metavar="N", help=f"at most N rows; 0: all; by default {SHOWN} in a table, all in JSON"
    )
    state.set_defaults(limit=None)
    resolve = add("resolve", _resolve, "what the checkpoint has left sealed in a queue, and what its log says of that")
    resolve.add_argument("queue", metavar="MODULE:CLASS", help="such as statefx.connectors.sql:SqlQueueSpout")
    resolve.add_argument("given", type=_settings, metavar="JSON", help="what it is made with, such as its url")
    resolve.add_argument("--yes", action="store_true", help="do it: acknowledge or release the messages")
    resolve.add_argument(
        "--unknown", choices=("release", "acknowledge"), help="what becomes of messages of which no log can tell"
    )
    resolve.add_argument("--origin", help="with --unknown, whose messages, where the checkpoint is gone")
    return parser


def _resolve(given: argparse.Namespace) -> tables.Listing:
    try:
        queue = load(given.queue)(**given.given)
    except TypeError as error:
        raise ConfigError(f"{given.queue} can't be made with {sorted(given.given)}: {error}") from error
    return tables.resolved(queue, given.checkpoint, yes=given.yes, unknown=given.unknown, origin=given.origin)


def _state(given: argparse.Namespace) -> tables.Listing:
    if given.component is not None:
        return tables.entries(given.checkpoint, given.component, given.task, given.config, given.map)
    if given.task is not None or given.config is not None or given.map is not None:
        raise ConfigError("--task, --map and --config are of one bolt's state: name the bolt behind the checkpoint")
    return tables.bolts(given.checkpoint)


def _settings(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError("a JSON object, of names and values")
    return found


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of rows")
    return int(text)
