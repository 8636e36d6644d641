"""``statefx ui CHECKPOINT``: the page of a checkpoint whose driver is dead, or runs elsewhere."""

from __future__ import annotations

import json
from typing import Any

import click

from statefx.checkpoint import Checkpoint
from statefx.errors import ConfigError
from statefx.ui import check_installed


@click.command()
@click.argument("checkpoint", type=click.Path(readable=False))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="By default any that is free.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="0.0.0.0 lets other machines read the page, with a token: that of STATEFX_UI_TOKEN, or one that is made.",
)
@click.option("--config", metavar="JSON", help="As of the other commands: needed if the state provider has a secret.")
def ui(checkpoint: str, port: int, host: str, config: str | None) -> None:
    """Show a topology in a browser.

    All that its driver saw last, and what the log says: also of one that stands still, has died, or runs on another
    machine. The page only reads. Ctrl-C ends it.
    """
    check_installed("statefx ui")
    from statefx.ui.serving import opened, standing

    found = Checkpoint(checkpoint, _settings(config))
    found.transactions()  # there is one, before a port is taken
    server = opened(host, port, "--port")
    standing(server, found)
    click.echo(f"{found.location}: {server.url()} (Ctrl-C ends it)")
    server.run()


def _settings(config: str | None) -> dict[str, Any] | None:
    if config is None:
        return None
    try:
        found = json.loads(config)
    except ValueError as error:
        raise ConfigError(f"--config is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"--config is a JSON object of settings, not {config}")
    return found
