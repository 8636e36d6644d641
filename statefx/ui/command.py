"""``statefx ui CHECKPOINT``: the page of a checkpoint whose driver is dead, or runs elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from statefx import shell
from statefx.checkpoint import Checkpoint
from statefx.ui import check_installed


@click.command()
@shell.location
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="By default any that is free.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="0.0.0.0 lets other machines read the page, with a token: that of STATEFX_UI_TOKEN, or one that is made.",
)
@shell.config
@click.option("--json", "as_json", is_flag=True, help="Say where the page is in a line of JSON.")
def ui(checkpoint: str, port: int, host: str, config: Mapping[str, Any] | None, as_json: bool) -> None:
    """Show a topology in a browser.

    All that its driver saw last, and what the log says: also of one that stands still, has died, or runs on another
    machine. The page only reads. Ctrl-C ends it.
    """
    check_installed("statefx ui")
    from statefx.ui.serving import opened, standing  # noqa: PLC0415 - the extra

    found = Checkpoint(checkpoint, config)
    found.transactions()  # there is one, before a port is taken
    server = opened(host, port, "--port")
    standing(server, found)
    where = {"checkpoint": found.location, "url": server.url()}
    click.echo(json.dumps(where) if as_json else f"{found.location}: {server.url()} (Ctrl-C ends it)")
    server.run()
