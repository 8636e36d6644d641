"""``python -m statefx``: looks at a checkpoint from a shell, also beside a topology at work; with ``--yes`` it acts.

Only this module imports click and rich: programs that look at a checkpoint from Python pay for neither.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, islice
from typing import Any, BinaryIO, Literal

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from statefx.admin import reading, tables
from statefx.admin.narrowing import as_key
from statefx.admin.reading import counted
from statefx.admin.savepoints import SINKS
from statefx.admin.state_writing import MODES
from statefx.checkpoint import Checkpoint
from statefx.errors import CheckpointError, ConfigError, StatefxError
from statefx.state.encoding.options import load

PROGRAM = "python -m statefx"

SHOWN = 100
"""How many keys a table shows, unless it is told otherwise: a screen or two."""

KEYS_NAMED = 5
"""How many keys the error lists for one that is not there."""

CELL_CHARS = 100
"""What is longer is cut in a table, never in JSON: what a COMMITTING record says fits, values of state may have MBs."""

UNCUT = ("problem", "reason")
"""Columns that are shown whole: people need all of an error."""

_NO_TERMINAL_COLUMNS = 10_000
"""How wide a table may be that no terminal shows: as wide as what is in it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say; return the exit code.

    0: it was done, or shown. 1: the checkpoint is damaged, can't be read, or is not in a state for it. 2: the command
    is wrong, or lacks --yes.
    """
    try:
        return _cli.main(arguments, PROGRAM, standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130  # as shells say it of what Ctrl-C has ended
    except (StatefxError, OSError) as error:
        sys.stderr.write(f"{PROGRAM}: {_ARGUMENT.sub(_option, ' '.join(str(error).split()))}\n")
        return 2 if isinstance(error, ConfigError) else 1


_ARGUMENT = re.compile(r"\b(?:(sinks)='(\w+)'|(to)=(?!['\"])|(at|txid)=(?=\d))")
"""What errors say of arguments that a shell gives as options."""


def _option(found: re.Match[str]) -> str:
    if found[1]:
        return f"--{found[1]} {found[2]}"
    return f"--{found[3]}" if found[3] else f"--{found[4]} "


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


class KeyType(click.ParamType):  # type: ignore[type-arg]  # as above
    """A key of state: JSON, or a text."""

    name = "KEY"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return as_key(json.loads(value))
        except ValueError:
            return value


class MomentType(click.ParamType):  # type: ignore[type-arg]  # as above
    """A transaction's number, or a savepoint's name."""

    name = "TXID|SAVEPOINT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        return int(value) if str(value).isdecimal() else str(value)


_BAR = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())

_checkpoint = click.argument("checkpoint")
_task = click.option("--task", type=int, help="Of one task only.")
_map = click.option(
    "--map", "of_map", metavar="NAME", help="What is kept in this map (see `maps`), in place of the bolt's own keys."
)
_config = click.option(
    "--config",
    type=SettingsType(),
    help="Settings as given to submit, a JSON object. Needed only if the state provider has a secret, such as a "
    "password: the checkpoint does not keep it.",
)
_form = click.option(
    "--json/--table", "as_json", default=None, help="A line of JSON for each row, or a table; by default a table on a "
    "terminal, and JSON for whatever else reads it."
)  # fmt: skip


@click.group(name="statefx")
def _cli() -> None:
    """Show what is in the checkpoint of a topology, or change it.

    CHECKPOINT is the checkpointLocation that was given to submit. What only shows something may be called while the
    topology runs. What changes the checkpoint says what it would do, and does it with --yes. Stop the topology first.
    """


@_cli.command()
@_checkpoint
@_form
def log(checkpoint: str, as_json: bool | None) -> None:
    """Show the records of the transaction log."""
    _show(tables.log(Checkpoint(checkpoint)._folders), as_json)


@_cli.command()
@_checkpoint
@_form
def transactions(checkpoint: str, as_json: bool | None) -> None:
    """Show the last attempts of transactions."""
    _show(tables.transactions(Checkpoint(checkpoint).transactions()), as_json)


@_cli.command()
@_checkpoint
@click.argument("component", required=False)
@_task
@_map
@_config
@click.option(
    "--limit", type=click.IntRange(0), metavar="N", help=f"At most N rows; 0: all; by default {SHOWN} in a table."
)
@click.option("--at", "moment", type=MomentType(), help="As it was then.")
@click.option("--since", type=MomentType(), help="What has changed since then: op, key, before, after.")
@_form
def state(
    checkpoint: str,
    component: str | None,
    task: int | None,
    of_map: str | None,
    config: Mapping[str, Any] | None,
    limit: int | None,
    moment: int | str | None,
    since: int | str | None,
    as_json: bool | None,
) -> None:
    """Show the stateful bolts, or the state of one.

    COMPONENT is the id of the bolt whose committed state is shown; without it all stateful bolts are listed.
    """
    found = Checkpoint(checkpoint, config)
    if component is not None and moment is None and since is None:
        listing = tables.entries(found.state(component, task, map=of_map, byTask=True))
    elif component is not None:
        moments: dict[str, Any] = {"at": moment} if since is None else {"diff": (since, moment)}
        listing = tables.at(found._table(component, task=task, map=of_map, schema={}, **moments))
    elif any(each is not None for each in (task, config, of_map, moment, since)):
        raise ConfigError(
            "--task, --map, --at, --since and --config are of one bolt's state: name the bolt behind the checkpoint"
        )
    else:
        listing = tables.bolts(found._folders)
    _show(listing, as_json, SHOWN if limit is None and not _in_json(as_json) else limit or None)


@_cli.command()
@_checkpoint
@click.argument("component")
@_config
@_form
def maps(checkpoint: str, component: str, config: Mapping[str, Any] | None, as_json: bool | None) -> None:
    """Show the maps, lists and values of a bolt by name.

    Of the bolt COMPONENT; those of kind statefx are kept for it, such as its open windows. --map shows one.
    """
    with Checkpoint(checkpoint, config).state(component) as view:
        _show(tables.maps(view), as_json)


@_cli.command()
@_checkpoint
@click.argument("component")
@click.argument("key", type=KeyType())
@_task
@_map
@_config
@_form
def explain(
    checkpoint: str,
    component: str,
    key: Any,
    task: int | None,
    of_map: str | None,
    config: Mapping[str, Any] | None,
    as_json: bool | None,
) -> None:
    """Show where a key lies, and what has changed it.

    Which tasks of the bolt COMPONENT have KEY, which files hold it, and which transactions changed it.

    KEY is JSON, an array for a tuple; what is no JSON is a text.
    """
    asked = Checkpoint(checkpoint, config)
    found = asked.explain(component, key, task=task, map=of_map)
    if not found.tasks:
        with asked.state(component, task, map=of_map, byTask=True) as view:
            first = [own for _, own in islice(view, KEYS_NAMED)]
        where = "" if of_map is None else f"in map {of_map!r} "
        raise CheckpointError(f"{found} {where}of {checkpoint}; the first keys there are {first or 'none'}")
    _show(tables.explained(found), as_json)


@_cli.command()
@_checkpoint
@click.argument("component")
@_config
@click.option(
    "--limit", type=click.IntRange(0), metavar="N", help=f"At most N rows; 0: all; by default {SHOWN} in a table."
)
@_form
def quarantined(
    checkpoint: str, component: str, config: Mapping[str, Any] | None, limit: int | None, as_json: bool | None
) -> None:
    """Show the keys whose rows are held back.

    Of the bolt COMPONENT, which has onError="quarantineKey"; with how many rows of each key wait, and for which error.
    """
    listing = tables.quarantined(Checkpoint(checkpoint, config).quarantined(component))
    _show(listing, as_json, SHOWN if limit is None and not _in_json(as_json) else limit or None)


@_cli.command()
@_checkpoint
@_config
@_form
def verify(checkpoint: str, config: Mapping[str, Any] | None, as_json: bool | None) -> int:
    """Read all files that are needed; show damaged ones.

    The exit code is 1 if something is damaged.
    """
    with _bar("verify") as progress:
        found = Checkpoint(checkpoint, config).verify(progress=progress)
    if not _in_json(as_json):
        sys.stdout.write(f"{str(found).splitlines()[0]}\n")
    if found.damaged:
        _show(tables.damaged(found), as_json)
    return 0 if found.ok else 1


@contextmanager
def _bar(what: str) -> Iterator[reading.Progress]:
    """Show on stderr, if that is a terminal, how far something has come."""
    with Progress(*_BAR, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@_cli.command()
@_checkpoint
@click.argument("queue", metavar="MODULE:CLASS")
@click.argument("given", type=SettingsType(), metavar="JSON")
@click.option("--yes", is_flag=True, help="Do it: acknowledge or release the messages.")
@click.option(
    "--unknown",
    type=click.Choice(["release", "acknowledge"]),
    help="What becomes of messages of which no log can tell.",
)
@click.option("--origin", help="With --unknown, whose messages, where the checkpoint is gone.")
@_form
def resolve(
    checkpoint: str,
    queue: str,
    given: Mapping[str, Any],
    yes: bool,
    unknown: Literal["acknowledge", "release"] | None,
    origin: str | None,
    as_json: bool | None,
) -> None:
    """Acknowledge or release what is left in a queue.

    A topology that is gone may have left messages sealed in a queue; its log says what becomes of them. Without --yes
    they are only shown.

    MODULE:CLASS is the queue's spout, such as statefx.connectors.sql:SqlQueueSpout, and JSON what it is made with.
    """
    found = Checkpoint(checkpoint).resolve(_made(queue, given), yes=yes, unknown=unknown, origin=origin)
    _show(tables.resolved(found), as_json)


def _made(reference: str, given: Mapping[str, Any]) -> Any:
    try:
        return load(reference)(**given)
    except TypeError as error:
        raise ConfigError(f"{reference} can't be made with {sorted(given)}: {error}") from error


_by_key = click.option(
    "--by-key",
    is_flag=True,
    help="The keys of the bolt's state are what its rows are grouped by. Needed if too few keys are there to show it.",
)
_yes = click.option("--yes", is_flag=True, help="Do it. A topology that still runs ends.")
_savepoint = click.argument("savepoint", metavar="[SAVEPOINT]", required=False)
_sinks = click.option(
    "--sinks",
    type=click.Choice(SINKS),
    help="What becomes of rows that sinks have published since then. append: they stay, and the same rows come once "
    "more behind them. rewind: the next start takes them back.",
)
_txid = click.option("--txid", type=int, help="In place of a savepoint, a transaction that the log still knows.")


def _check_yes(yes: bool, what: str) -> None:
    if not yes:
        raise ConfigError(f"{what}. Nothing was changed: stop the topology, and say --yes")


@_cli.command()
@_checkpoint
@_form
def savepoints(checkpoint: str, as_json: bool | None) -> None:
    """Show the savepoints."""
    _show(tables.savepoints(Checkpoint(checkpoint).savepoints()), as_json)


@_cli.command("savepoint")
@_checkpoint
@click.argument("name")
@_config
@_yes
@_form
def _take(checkpoint: str, name: str, config: Mapping[str, Any] | None, yes: bool, as_json: bool | None) -> None:
    """Take a savepoint.

    It keeps, under NAME, where the last transaction has left state, timers and sources. Stop the topology first; in a
    program whose topology runs, call query.savepoint(name).
    """
    _check_yes(yes, f"this would keep the last transaction of {checkpoint} as {name!r}, and fence a driver that runs")
    _tell(Checkpoint(checkpoint, config).savepoint(name), as_json)


@_cli.command("delete-savepoint")
@_checkpoint
@click.argument("name")
@_yes
def _delete(checkpoint: str, name: str, yes: bool) -> None:
    """Delete a savepoint.

    Stop the topology first; in a program whose topology runs, call query.deleteSavepoint(name).
    """
    _check_yes(yes, f"this would delete the savepoint {name!r} of {checkpoint}, and fence a driver that runs")
    Checkpoint(checkpoint).deleteSavepoint(name)


@_cli.command()
@_checkpoint
@_savepoint
@_txid
@click.option("--to", type=click.Path(), help="Make a checkpoint of its own there, and leave this one as it is.")
@_sinks
@_config
@_yes
@_form
def restore(
    checkpoint: str,
    savepoint: str | None,
    txid: int | None,
    to: str | None,
    sinks: Literal["append", "rewind"] | None,
    config: Mapping[str, Any] | None,
    yes: bool,
    as_json: bool | None,
) -> None:
    """Go back to a savepoint, or to a transaction.

    State, timers, and how far sources were read are again what they were then. Without --yes it says what would be
    given up.

    With --to, CHECKPOINT stays as it is, so --yes is not needed, and without SAVEPOINT and --txid the last transaction
    is copied. While the topology runs, copy a SAVEPOINT.
    """
    found = Checkpoint(checkpoint, config)
    if to is None and not yes:
        _check_yes(yes, f"this would {found._restoration(savepoint, txid, sinks).plan}")
    with _bar("restore") as progress:
        done = found.restore(savepoint, txid=txid, to=to, sinks=sinks, progress=progress)
    _tell(done, as_json)


@_cli.command()
@_checkpoint
@_sinks
@_config
@_yes
@_form
def repair(
    checkpoint: str,
    sinks: Literal["append", "rewind"] | None,
    config: Mapping[str, Any] | None,
    yes: bool,
    as_json: bool | None,
) -> int:
    """Go on from the newest state that is whole.

    Without --yes it only says what that is; as for verify, the exit code is 1 then if something is damaged.
    """
    with _bar("verify") as progress:
        found = Checkpoint(checkpoint, config).repair(yes=yes, sinks=sinks, progress=progress)
    _tell(found, as_json)
    return 0 if found.done or not found.damaged else 1


@_cli.command()
@_checkpoint
@click.argument("names", metavar="OLD=NEW...", nargs=-1)
@click.option("--drop", multiple=True, metavar="ID", help="Give up what this bolt or spout keeps.")
@_yes
@_form
def rename(checkpoint: str, names: Sequence[str], drop: Sequence[str], yes: bool, as_json: bool | None) -> None:
    """Give stateful bolts and spouts other ids.

    OLD=NEW is written as in count=tally.
    """
    given: dict[str, str] = {}
    for each in names:
        old, _, new = each.partition("=")
        if not old or not new:
            raise ConfigError(f"{each!r} says no new id: write it as in count=tally")
        given[old] = new
    said = [f"call {old} {new}" for old, new in given.items()] + [f"give up what {one} keeps" for one in drop]
    _check_yes(yes, f"this would {', '.join(said) or 'do nothing'} in {checkpoint}")
    _tell(Checkpoint(checkpoint).rename(given, drop=drop), as_json)


@_cli.command()
@_checkpoint
@click.argument("tasks", metavar="BOLT=TASKS...", nargs=-1, required=True)
@_by_key
@_config
@_yes
@_form
def rescale(
    checkpoint: str,
    tasks: Sequence[str],
    by_key: bool,
    config: Mapping[str, Any] | None,
    yes: bool,
    as_json: bool | None,
) -> None:
    """Give stateful bolts another number of tasks.

    BOLT=TASKS is written as in count=8.
    """
    given = dict(_numbered(each, "number of tasks", "count=8") for each in tasks)
    _check_yes(yes, f"this would give other tasks to {', '.join(given)} of {checkpoint}")
    keys = dict.fromkeys(given, _itself) if by_key else None
    with _bar("rescale") as progress:
        done = Checkpoint(checkpoint, config).rescale(given, groupingKey=keys, progress=progress)
    _tell(done, as_json)


@_cli.command()
@_checkpoint
@click.argument("to", metavar="BOLT=VERSION")
@click.argument("operator", metavar="MODULE:CLASS")
@click.argument("given", type=SettingsType(), metavar="[JSON]", required=False)
@_by_key
@_config
@_yes
@_form
def downgrade(
    checkpoint: str,
    to: str,
    operator: str,
    given: Mapping[str, Any] | None,
    by_key: bool,
    config: Mapping[str, Any] | None,
    yes: bool,
    as_json: bool | None,
) -> None:
    """Write state as an older version of a bolt did.

    BOLT=VERSION is written as in count=1.

    MODULE:CLASS is the bolt of the newer version, which has downgradeState, and JSON what it is made with.
    """
    bolt, version = _numbered(to, "version", "count=1")
    made = _made(operator, given or {})
    _check_yes(yes, f"this would write {bolt} of {checkpoint} as version {version} of it did")
    key = _itself if by_key else None
    with _bar("downgrade") as progress:
        done = Checkpoint(checkpoint, config).downgrade(bolt, made, version, groupingKey=key, progress=progress)
    _tell(done, as_json)


def _numbered(given: str, what: str, example: str) -> tuple[str, int]:
    bolt, _, number = given.partition("=")
    if not bolt or not number.isdecimal():
        raise ConfigError(f"{given!r} says no {what}: write it as in {example}")
    return bolt, int(number)


def _itself(key: Any) -> Any:
    return key


@_cli.command("write-state")
@_checkpoint
@click.argument("component")
@click.argument("file", type=click.File("rb"))
@click.option("--mode", type=click.Choice(MODES), default=MODES[0], help="merge: other keys stay. overwrite: they go.")
@_by_key
@click.option("--schema", type=SettingsType(), help="Of Parquet: the types of key and value.")
@_config
@_yes
@_form
def write_state(
    checkpoint: str,
    component: str,
    file: BinaryIO,
    mode: str,
    by_key: bool,
    schema: Mapping[str, Any] | None,
    config: Mapping[str, Any] | None,
    yes: bool,
    as_json: bool | None,
) -> None:
    """Write rows into the state of a bolt.

    COMPONENT is the bolt's id. FILE is Parquet, or lines of JSON as `state --json` writes them, with "key" and "value";
    "-" reads them from standard input. All of them are held in memory.
    """
    rows, form = tables.read_rows(file, schema)
    key = _itself if by_key else None
    writer = Checkpoint(checkpoint, config)._writer(component, mode=mode, schema=form, grouping_key=key)
    _check_yes(yes, f"this would write {counted(rows.num_rows, 'row')} to {component!r} of {checkpoint}")
    with _bar("write-state") as progress:
        done = writer.write_table(rows, progress)
    _tell(done, as_json)


def _in_json(asked: bool | None) -> bool:
    return not sys.stdout.isatty() if asked is None else asked


def _tell(done: object, as_json: bool | None) -> None:
    """Print what a call has done."""
    click.echo(tables.json_line(tables.row_of(done)) if _in_json(as_json) else str(done))


def _show(listing: tables.Listing, as_json: bool | None, limit: int | None = None) -> None:
    """Print rows; of more than `limit` only the first. Where there are none, a note on stderr says what there is."""
    rows = iter(listing.rows)
    first = list(islice(rows, 1))
    if not first and listing.note is not None:
        click.echo(listing.note(), err=True)
    listing = replace(listing, rows=chain(first, rows))
    try:
        if _in_json(as_json):
            for row in islice(listing.rows, limit):
                sys.stdout.write(f"{tables.json_line(row)}\n")
        else:
            sys.stdout.write(_table(listing, limit))
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has all it wanted; Python would flush once more at its end, and complain
        with suppress(BrokenPipeError):
            sys.stdout.close()


def _table(listing: tables.Listing, limit: int | None) -> str:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in listing.header:
        whole = name in UNCUT
        table.add_column(
            name, no_wrap=not whole, overflow="fold" if whole else "ellipsis", max_width=None if whole else CELL_CHARS
        )
    rows = iter(listing.rows)
    for row in islice(rows, limit):
        table.add_row(
            *(
                _cell(value, cut=name not in UNCUT)
                for name, value in zip(listing.header, listing.cells(row), strict=True)
            )
        )
    terminal = sys.stdout.isatty()
    console = Console(file=io.StringIO(), force_terminal=terminal, width=None if terminal else _NO_TERMINAL_COLUMNS)
    with console.capture() as printed:
        console.print(table)
    more = f"... and more than these {limit}\n" if next(rows, None) is not None else ""
    return "".join(f"{line.rstrip()}\n" for line in printed.get().splitlines()) + more


def _cell(value: object, *, cut: bool = True) -> Text:
    """One line, whatever it is, with nothing that a terminal would obey."""
    text = "" if value is None else str(value)[: CELL_CHARS + 1 if cut else None]
    return Text("".join(each if each.isprintable() else repr(each)[1:-1] for each in text))
