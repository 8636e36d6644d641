"""The durable steps of sinks, for tests that die or stop at each of them; and a machine that is quick at them."""

import sqlite3
import threading
from contextlib import contextmanager

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from statefx.testing.sink_contract import SinkContract


@contextmanager
def database_steps(step, *, unlocked=False):
    """Call `step` before every statement that changes a database, and before COMMIT.

    With `unlocked` before those alone at which a driver holds no lock of SQLite. A queue's messages are renewed when it
    is time to, also by a spout that a test before has let die and nobody has collected yet: that is no step.
    """

    def counted():
        return threading.current_thread().name != "statefx-renew"

    def before(connection, cursor, statement, *_):
        changes = statement.startswith("BEGIN") or not (unlocked or statement.lstrip().lower().startswith("select"))
        if changes and counted():
            step()

    def ending(connection):
        if not unlocked and counted():
            step()

    event.listen(Engine, "before_cursor_execute", before)
    event.listen(Engine, "commit", ending)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", before)
        event.remove(Engine, "commit", ending)


@contextmanager
def folder_and_database_steps(step, *, unlocked=False):
    """Call `step` before every change in a folder, and as `database_steps`."""
    with SinkContract().steps(step), database_steps(step, unlocked=unlocked):
        yield


@pytest.fixture
def fast(monkeypatch):
    """Thousands of files and databases are made durable by such tests, which none of them looks at."""

    def not_durable(connection, _):
        if isinstance(connection, sqlite3.Connection):
            connection.execute("pragma synchronous = off")

    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    event.listen(Engine, "connect", not_durable)
    yield
    event.remove(Engine, "connect", not_durable)
