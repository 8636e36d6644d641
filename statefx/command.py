"""``statefx``, or ``python -m statefx``: looks at a checkpoint, asks the query that runs, or acts, with ``--yes``.

Only this module, `statefx.shell`, `statefx.top` and `statefx.ui.command` import click, and only this one and
`statefx.top` rich: programs that look at a checkpoint from Python pay for neither.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import wraps
from itertools import chain, islice
from typing import Any, BinaryIO, Literal

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from statefx import __version__, shell
from statefx.admin import reading, tables
from statefx.admin.damage import Repair, Verified
from statefx.admin.ending import Aborted, abort_plan
from statefx.admin.migration import Migration, migration_plan
from statefx.admin.narrowing import key_of
from statefx.admin.reading import counted
from statefx.admin.rekeying import Downgrade, downgrade_plan
from statefx.admin.rescaling import Rescaling, rescaling_plan
from statefx.admin.rewrite import check_changeable
from statefx.admin.routing import by_key as by_own_key
from statefx.admin.savepoints import SINKS, Renamed, Restoration, deletion_plan, renaming_plan, savepoint_plan
from statefx.admin.savepoints import delete_savepoint as drop_savepoint
from statefx.admin.savepoints import savepoint as take_savepoint
from statefx.admin.state_writing import MODES, Written
from statefx.checkpoint import Checkpoint
from statefx.errors import CheckpointError, ConfigError, StatefxError
from statefx.log.location import Folders, checkpoint_location
from statefx.log.pins import Savepoint
from statefx.log.requests import Answered, Silence
from statefx.log.takeover import read_checkpoint
from statefx.protocol.log_state import LogState
from statefx.shell import SettingsType
from statefx.state.encoding.options import load
from statefx.top import status, top, waiting, why
from statefx.ui.command import ui

PROGRAM = "statefx"

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
        sys.stderr.write(f"{PROGRAM}: {_in_shell(' '.join(str(error).split()))}\n")
        return 2 if isinstance(error, ConfigError) else 1


_ARGUMENT = re.compile(
    r"(?<![\w(.])(?:(sinks|unknown|map)='([^'\s]*)'|(at|txid|task)=(?=\d)"
    r"|(to|txid|task|map|sinks|unknown|origin|schema)=(?![\w'\"{(\[]))"
)
"""What messages say of arguments that a shell gives as options; not of those of a call that they show."""


def _in_shell(message: str) -> str:
    return _ARGUMENT.sub(_option, message)


def _option(found: re.Match[str]) -> str:
    name, value, numbered, bare = found.groups()
    if name:
        return f"--{name} {value or repr(value)}"
    return f"--{numbered} " if numbered else f"--{bare}"


class KeyType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 alone
    """A key of state: JSON, or a text."""

    name = "KEY"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return key_of(value)


class MomentType(click.ParamType):  # type: ignore[type-arg]  # as above
    """A transaction's number, or a savepoint's name."""

    name = "TXID|SAVEPOINT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        return int(value) if str(value).isdecimal() else str(value)


_BAR = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())

_task = click.option("--task", type=int, help="Of one task only.")
_map = click.option(
    "--map", "of_map", metavar="NAME", help="What is kept in this map (see `maps`), in place of the bolt's own keys."
)
_limit = click.option(
    "--limit", type=click.IntRange(0), metavar="N", help=f"At most N rows; 0: all; by default {SHOWN} in a table."
)


@click.group(name="statefx")
@click.version_option(__version__, prog_name="statefx")
def _cli() -> None:
    """Show what is in the checkpoint of a topology, or change it.

    CHECKPOINT is the checkpointLocation that was given to submit. What only shows something may be called while the
    topology runs. status, stop, pause, resume, loglevel and savepoint ask the query that runs. What else changes the
    checkpoint says what it would do, and does it with --yes: stop the topology first.
    """


def _command(function: Callable[..., object]) -> click.Command:
    """Make a command of a function that takes the `Checkpoint`; what it returns is printed."""

    @wraps(function)
    def run(
        checkpoint: str,
        config: Mapping[str, Any] | None,
        as_json: bool | None,
        limit: int | None = 0,
        **given: Any,
    ) -> int:
        is_json = shell.in_json(as_json)
        shown = SHOWN if limit is None and not is_json else limit or None
        return _print(function(Checkpoint(checkpoint, config), **given), is_json, shown)

    return shell.form(shell.config(_cli.command()(shell.location(run))))


for _each in (status, top, ui, why):
    _cli.add_command(_each)


def _completing(names: Callable[[LogState], Iterable[str]]) -> Callable[..., list[str]]:
    """Complete an argument by what the log of the checkpoint knows; by nothing, where that can't be read."""

    def complete(context: click.Context, param: click.Parameter, begun: str) -> list[str]:
        try:
            found = read_checkpoint(Folders(checkpoint_location(context.params["checkpoint"])))
        except (StatefxError, OSError, KeyError, TypeError):
            return []
        return sorted(name for name in names(found) if name.startswith(begun))

    return complete


_component = click.argument("component", shell_complete=_completing(lambda found: found.topology.stateful))


@_command
def log(checkpoint: Checkpoint) -> tables.Listing:
    """Show the records of the transaction log."""
    return tables.log(checkpoint._folders)


@_command
def transactions(checkpoint: Checkpoint) -> tables.Listing:
    """Show the last attempts of transactions."""
    return tables.transactions(checkpoint.transactions())


@_command
@click.argument("component", required=False, shell_complete=_completing(lambda found: found.topology.stateful))
@_task
@_map
@_limit
@click.option("--at", "moment", type=MomentType(), help="As it was then.")
@click.option("--since", type=MomentType(), help="What has changed since then: op, key, before, after.")
def state(
    checkpoint: Checkpoint,
    component: str | None,
    task: int | None,
    of_map: str | None,
    moment: int | str | None,
    since: int | str | None,
) -> tables.Listing:
    """Show the stateful bolts, or the state of one.

    COMPONENT is the id of the bolt whose committed state is shown; without it all stateful bolts are listed.
    """
    if component is None:
        if any(each is not None for each in (task, of_map, moment, since)):
            raise ConfigError(
                "--task, --map, --at and --since are of one bolt's state: name the bolt behind the checkpoint"
            )
        return tables.bolts(checkpoint._folders)
    if moment is None and since is None:
        return tables.entries(checkpoint.state(component, task, map=of_map, byTask=True))
    moments: dict[str, Any] = {"at": moment} if since is None else {"diff": (since, moment)}
    return tables.at(checkpoint._table(component, task=task, map=of_map, schema={}, **moments))


@_command
@_component
def maps(checkpoint: Checkpoint, component: str) -> tables.Listing:
    """Show the maps, lists and values of a bolt by name.

    Of the bolt COMPONENT; those of kind statefx are kept for it, such as its open windows. --map shows one.
    """
    with checkpoint.state(component) as view:
        return tables.maps(view)


@_command
@_component
@click.argument("key", type=KeyType())
@_task
@_map
def explain(checkpoint: Checkpoint, component: str, key: Any, task: int | None, of_map: str | None) -> tables.Listing:
    """Show where a key lies, and what has changed it.

    Which tasks of the bolt COMPONENT have KEY, which files hold it, and which transactions changed it.

    KEY is JSON, an array for a tuple; what is no JSON is a text.
    """
    found = checkpoint.explain(component, key, task=task, map=of_map)
    if not found.tasks:
        with checkpoint.state(component, task, map=of_map, byTask=True) as view:
            first = [own for _, own in islice(view, KEYS_NAMED)]
            there = f"the first keys there are {first}" if first else tables.why_empty(view)
        where = "" if of_map is None else f"in map {of_map!r} "
        raise CheckpointError(f"{found} {where}of {checkpoint.location}; {there}")
    return tables.explained(found)


@_command
@_component
@_limit
def quarantined(checkpoint: Checkpoint, component: str) -> tables.Listing:
    """Show the keys whose rows are held back.

    Of the bolt COMPONENT, which has onError="quarantineKey"; with how many rows of each key wait, and for which error.
    """
    return tables.quarantined(component, checkpoint.quarantined(component))


@_command
def verify(checkpoint: Checkpoint) -> Verified:
    """Read all files that are needed; show damaged ones.

    The exit code is 1 if something is damaged.
    """
    with _bar("verify") as progress:
        return checkpoint.verify(progress=progress)


@contextmanager
def _bar(what: str) -> Iterator[reading.Progress]:
    """Show on stderr, if that is a terminal, how far something has come."""
    with Progress(*_BAR, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@_command
@click.argument("queue", metavar="MODULE:CLASS")
@click.argument("given", type=SettingsType(), metavar="JSON")
@click.option("--yes", is_flag=True, help="Do it: acknowledge or release the messages.")
@click.option(
    "--unknown",
    type=click.Choice(["release", "acknowledge"]),
    help="What becomes of messages of which no log can tell.",
)
@click.option("--origin", help="With --unknown, whose messages, where the checkpoint is gone.")
def resolve(
    checkpoint: Checkpoint,
    queue: str,
    given: Mapping[str, Any],
    yes: bool,
    unknown: Literal["acknowledge", "release"] | None,
    origin: str | None,
) -> tables.Listing:
    """Acknowledge or release what is left in a queue.

    A topology that is gone may have left messages sealed in a queue; its log says what becomes of them. Without --yes
    they are only shown.

    MODULE:CLASS is the queue's spout, such as statefx.connectors.sql:SqlQueueSpout, and JSON what it is made with.
    """
    return tables.resolved(checkpoint.resolve(_made(queue, given), yes=yes, unknown=unknown, origin=origin))


def _made(reference: str, given: Mapping[str, Any]) -> Any:
    try:
        made = load(reference)
    except ConfigError as error:
        if error.__cause__ is None:
            raise
        raise ConfigError(
            f"{reference} can't be imported: {type(error.__cause__).__name__}: {error.__cause__}; say the command "
            "where Python finds it: in the folder of your program, or with that folder in PYTHONPATH"
        ) from error
    try:
        return made(**given)
    except TypeError as error:
        raise ConfigError(f"{reference} can't be made with {sorted(given)}: {error}") from error


_by_key = click.option(
    "--by-key",
    is_flag=True,
    help="The keys of the bolt's state, and of its maps, are what its rows are grouped by. Needed if too few keys are "
    "there to show it.",
)
_yes = click.option("--yes", is_flag=True, help="Do it. A topology that still runs ends.")
_yes_if_none_runs = click.option(
    "--yes", is_flag=True, help="Do it where no query answers. If one runs all the same, it ends."
)
_savepoint = click.argument(
    "savepoint", metavar="[SAVEPOINT]", required=False, shell_complete=_completing(lambda found: found.pinned)
)
_sinks = click.option(
    "--sinks",
    type=click.Choice(SINKS),
    help="What becomes of rows that sinks have published since then. append: they stay, and the same rows come once "
    "more behind them. rewind: the next start takes them back.",
)
_txid = click.option("--txid", type=int, help="In place of a savepoint, a transaction that the log still knows.")


def _check_yes(yes: bool, plan: Callable[[], str | None], asked: Silence | None = None) -> None:
    """Refuse what `plan` says without --yes; it raises what would be refused, and says None of what changes nothing.

    `asked` says why no query that runs has done it.
    """
    if not yes and (what := plan()) is not None:
        because, remedy = ("", "stop the topology, and say") if asked is None else (f"{asked.reason}: ", "say")
        fences = "" if asked is None or asked.is_over else ", and fence that driver if it still runs"
        raise ConfigError(f"{because}this would {what}{fences}. Nothing was changed: {remedy} --yes")


@_command
def savepoints(checkpoint: Checkpoint) -> tables.Listing:
    """Show the savepoints."""
    return tables.savepoints(checkpoint.savepoints())


@_command
@click.argument("name")
@_yes_if_none_runs
def savepoint(checkpoint: Checkpoint, name: str, yes: bool) -> Savepoint:
    """Take a savepoint.

    It keeps, under NAME, where the last transaction has left state, timers and sources. The query that runs is asked to
    do it, and goes on. Without one --yes is needed.
    """
    asked = checkpoint._ask_for_savepoint(name)
    if isinstance(asked, Savepoint):
        return asked
    _check_yes(yes, lambda: savepoint_plan(checkpoint._folders, checkpoint._config, name), asked)
    return take_savepoint(checkpoint._folders, checkpoint._config, name)


@_command
@click.argument("name", shell_complete=_completing(lambda found: found.pinned))
@_yes_if_none_runs
def delete_savepoint(checkpoint: Checkpoint, name: str, yes: bool) -> Mapping[str, str]:
    """Delete a savepoint.

    The query that runs is asked to do it, and goes on. Without one --yes is needed.
    """
    asked = checkpoint._ask_to_delete(name)
    if asked is not None:
        _check_yes(yes, lambda: deletion_plan(checkpoint._folders, name), asked)
        drop_savepoint(checkpoint._folders, name)
    return {"deleted": name}


@_command
@click.option("--timeout", type=click.FloatRange(0), default=60.0, show_default=True, metavar="SECS", help="How long "
    "the running transaction may take to end; then it is rolled back.")  # fmt: skip
@waiting
def stop(checkpoint: Checkpoint, timeout: float, wait: float) -> Answered:
    """Stop the query that runs.

    The running transaction ends, no further one begins, and the program goes on behind awaitTermination.
    """
    return checkpoint.stop(timeout, wait=wait)


@_command
@waiting
def pause(checkpoint: Checkpoint, wait: float) -> Answered:
    """Have the query that runs begin no transaction.

    The running ones end. The tasks stay, with their state, until `resume`. A query that is started anew is not paused.
    """
    return checkpoint.pause(wait=wait)


@_command
@waiting
def resume(checkpoint: Checkpoint, wait: float) -> Answered:
    """Have a query go on that was paused."""
    return checkpoint.resume(wait=wait)


@_command
@click.argument("level", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], case_sensitive=False))
@click.argument("logger", default="statefx")
@waiting
def loglevel(checkpoint: Checkpoint, level: str, logger: str, wait: float) -> Answered:
    """Set the level of a logger.

    On the driver and its workers. LOGGER is the logger's name, by default statefx. It is so until the program ends.
    """
    return checkpoint.loglevel(level, logger, wait=wait)


@_command
@_savepoint
@_txid
@click.option("--to", type=click.Path(), help="Make a checkpoint of its own there, and leave this one as it is.")
@_sinks
@_yes
def restore(
    checkpoint: Checkpoint,
    savepoint: str | None,
    txid: int | None,
    to: str | None,
    sinks: Literal["append", "rewind"] | None,
    yes: bool,
) -> Restoration:
    """Go back to a savepoint, or to a transaction.

    State, timers, and how far sources were read are again what they were then. Without --yes it says what would be
    given up.

    With --to, CHECKPOINT stays as it is, so --yes is not needed, and without SAVEPOINT and --txid the last transaction
    is copied. While the topology runs, copy a SAVEPOINT.
    """
    _check_yes(yes or to is not None, lambda: checkpoint._restoration(savepoint, txid, sinks).plan)
    with _bar("restore") as progress:
        return checkpoint.restore(savepoint, txid=txid, to=to, sinks=sinks, progress=progress)


@_command
@_sinks
@_yes
def repair(checkpoint: Checkpoint, sinks: Literal["append", "rewind"] | None, yes: bool) -> Repair:
    """Go on from the newest state that is whole.

    Without --yes it only says what that is; as for verify, the exit code is 1 then if something is damaged.
    """
    with _bar("verify") as progress:
        return checkpoint.repair(yes=yes, sinks=sinks, progress=progress)


@_command
@click.argument("names", metavar="OLD=NEW...", nargs=-1)
@click.option("--drop", multiple=True, metavar="ID", help="Give up what this bolt or spout keeps.")
@_yes
def rename(checkpoint: Checkpoint, names: Sequence[str], drop: Sequence[str], yes: bool) -> Renamed:
    """Give stateful bolts and spouts other ids.

    OLD=NEW is written as in count=tally.
    """
    given: dict[str, str] = {}
    for each in names:
        old, _, new = each.partition("=")
        if not old or not new:
            raise ConfigError(f"{each!r} says no new id: write it as in count=tally")
        if old in given:
            raise ConfigError(f"{old!r} is given two new ids, {given[old]!r} and {new!r}: give it one")
        given[old] = new
    _check_yes(yes, lambda: renaming_plan(checkpoint._folders, given, drop))
    return checkpoint.rename(given, drop=drop)


@_command
@click.argument("tasks", metavar="BOLT=TASKS...", nargs=-1, required=True)
@_by_key
@_yes
def rescale(checkpoint: Checkpoint, tasks: Sequence[str], by_key: bool, yes: bool) -> Rescaling:
    """Give stateful bolts another number of tasks.

    BOLT=TASKS is written as in count=8.
    """
    given: dict[str, int] = {}
    for bolt, number in (_numbered(each, "number of tasks", "count=8") for each in tasks):
        if bolt in given:
            raise ConfigError(f"{bolt!r} is given {given[bolt]} tasks, and {number}: say how many once")
        given[bolt] = number
    keys = dict.fromkeys(given, by_own_key) if by_key else None
    _check_yes(yes, lambda: rescaling_plan(checkpoint._folders, given, keys or {}))
    with _bar("rescale") as progress:
        return checkpoint.rescale(given, groupingKey=keys, progress=progress)


@_command
@click.argument("to", metavar="BOLT=VERSION")
@click.argument("operator", metavar="MODULE:CLASS")
@click.argument("given", type=SettingsType(), metavar="[JSON]", required=False)
@_by_key
@_yes
def downgrade(
    checkpoint: Checkpoint,
    to: str,
    operator: str,
    given: Mapping[str, Any] | None,
    by_key: bool,
    yes: bool,
) -> Downgrade:
    """Write state as an older version of a bolt did.

    BOLT=VERSION is written as in count=1.

    MODULE:CLASS is the bolt of the newer version, which has downgradeState, and JSON what it is made with.
    """
    bolt, version = _numbered(to, "version", "count=1")
    made = _made(operator, given or {})
    key = by_own_key if by_key else None
    _check_yes(yes, lambda: downgrade_plan(checkpoint._folders, bolt, made, version, key))
    with _bar("downgrade") as progress:
        return checkpoint.downgrade(bolt, made, version, groupingKey=key, progress=progress)


def _numbered(given: str, what: str, example: str) -> tuple[str, int]:
    bolt, _, number = given.partition("=")
    if not bolt or not number.isdecimal():
        raise ConfigError(f"{given!r} says no {what}: write it as in {example}")
    return bolt, int(number)


@_command
@click.argument("to", metavar="PROVIDER")
@click.argument("given", type=SettingsType(), metavar="[JSON]", required=False)
@_yes
def migrate(checkpoint: Checkpoint, to: str, given: Mapping[str, Any] | None, yes: bool) -> Migration:
    """Move the state to another provider.

    PROVIDER is a registered name, such as rocksdb, or module:Class, and JSON its options. Then submit with it.
    """
    _check_yes(yes, lambda: migration_plan(checkpoint._folders, checkpoint._config, to, given))
    with _bar("migrate") as progress:
        return checkpoint.migrate(to, given, progress=progress)


@_command
@_yes
def abort(checkpoint: Checkpoint, yes: bool) -> Aborted:
    """End the open transactions of a driver that is gone.

    A start of the topology does the same by itself: this is for a topology that shall not be started now.
    """
    _check_yes(yes, lambda: abort_plan(checkpoint._folders))
    return checkpoint.abort()


@_command
@_component
@click.argument("file", type=click.File("rb"))
@click.option("--mode", type=click.Choice(MODES), default=MODES[0], help="merge: other keys stay. overwrite: they go.")
@_by_key
@click.option("--schema", type=SettingsType(), help="Of Parquet: the types of key and value.")
@_yes
def write_state(
    checkpoint: Checkpoint,
    component: str,
    file: BinaryIO,
    mode: str,
    by_key: bool,
    schema: Mapping[str, Any] | None,
    yes: bool,
) -> Written:
    """Write rows into the state of a bolt.

    COMPONENT is the bolt's id. FILE is Parquet, or lines of JSON as `state --json` writes them, with "key" and "value";
    "-" reads them from standard input. All of them are held in memory. Rows of a map are refused.
    """
    rows, form = tables.read_rows(file, schema)
    key = by_own_key if by_key else None
    writer = checkpoint._writer(component, mode=mode, schema=form, grouping_key=key)

    def plan() -> str:
        writer.check_columns(rows.column_names)
        check_changeable(writer.found, checkpoint._folders, "write")
        return f"write {counted(rows.num_rows, 'row')} to {component!r} of {checkpoint.location}"

    _check_yes(yes, plan)
    with _bar("write-state") as progress:
        return writer.write_table(rows, progress)


# Commands whose functions stand in other rooms: `_command(function)`, a line each. Such a function takes the
# `Checkpoint`, and what click's decorators give it; it returns a `Listing`, or an object with ``str`` for people and
# fields for JSON.


def _print(done: object, in_json: bool, limit: int | None) -> int:
    """Print what a command has returned; return the exit code."""
    if isinstance(done, tables.Listing):
        _show(done, in_json, limit)
    elif in_json:
        click.echo(tables.json_line(tables.row_of(done)))
    else:
        said = " ".join(map(str, chain(*done.items()))) if isinstance(done, Mapping) else str(done)
        click.echo(said.splitlines()[0] if isinstance(done, Verified) else _in_shell(said))
        if isinstance(done, Verified) and done.damaged:
            _show(tables.damaged(done), in_json, limit)
    left = isinstance(done, Verified | Repair) and done.damaged and not (isinstance(done, Repair) and done.done)
    return 1 if left or (isinstance(done, Answered) and done.result.get("ended") is False) else 0


def _show(listing: tables.Listing, in_json: bool, limit: int | None) -> None:
    """Print rows; of more than `limit` only the first. Where there are none, a note on stderr says what there is."""
    rows = iter(listing.rows)
    first = list(islice(rows, 1))
    if not first:
        click.echo(listing.note(), err=True)
    listing = replace(listing, rows=chain(first, rows))
    try:
        if in_json:
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
