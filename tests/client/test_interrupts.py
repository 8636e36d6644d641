"""KeyboardInterrupt at every line of the client while a block is left; then whoever can goes on."""

import sys
import threading

import pytest

from statefx import StagedSink, TransactionalClient, openState
from statefx import client as package
from statefx.connectors import Target
from statefx.errors import TransactionError
from tests.testing.places import place

__all__ = ["place"]

LINES_MAX = 1000
"""More than leaving a block has; the test ends with the first line that is not reached."""


class Shelf(Target):
    """What was published, by the name of the shelf."""

    def __init__(self, shelves, name):
        self.rows, self.last = shelves.setdefault(name, ([], [None]))

    def marker(self):
        return self.last[0]

    def publish(self, marker, previous, rows):
        assert self.last[0] == previous
        self.rows += [word for (word,) in map(dict.values, rows.rows())]
        self.last[0] = marker


class ShelfSink(StagedSink):
    target = ""
    shelves: dict = {}

    def __init__(self, name):
        self.target = name

    def connect(self, schema):
        return Shelf(ShelfSink.shelves, self.target)


class Interrupt:
    """Raises KeyboardInterrupt at the n-th line of the client that this thread comes to."""

    def __init__(self, at):
        self.left, self.where = at, None

    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(package.__path__[0]):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def shelving(where):
    return TransactionalClient(
        where / "ck",
        id="shelf",
        sinks={"out": ShelfSink(str(where))},
        schemas={"out": "word string"},
        state=["seen"],
    )


def put_one(found, word, interrupt=None, error=None):
    with found.transaction() as t:
        t.send("out", [(word,)])
        t.put("seen", word, 1)
        if interrupt is not None:
            sys.settrace(interrupt)
        if error is not None:
            raise error()


def interrupted(where, at, error):
    """Leave a block with an interrupt at the n-th line; tell where that was, and what went wrong."""
    found, interrupt, left, goes_on = shelving(where), Interrupt(at), None, True
    try:
        put_one(found, "first", interrupt, error)
    except BaseException as raised:  # noqa: BLE001 - it is looked at below
        left = raised
    finally:
        sys.settrace(None)
    committed = found.committed
    try:
        put_one(found, "second")
    except TransactionError:
        goes_on = False
        found.close()
        found = shelving(where)
        put_one(found, "second")
    found.close()
    published = ShelfSink.shelves[str(where)][0]
    with openState(where / "ck", "seen") as state:
        kept = {key for key, _ in state.items()}
    wrong = None
    if published not in (["second"], ["first", "second"]) or kept != set(published):
        wrong = f"{published} were published, and the state has {kept}"
    elif error is not None and "first" in published:
        wrong = "what was rolled back was published"
    elif left is None and "first" not in published:
        wrong = "the block was left as committed, and nothing was published"
    elif error is None and goes_on and "first" in published and not committed:
        wrong = "the client went on, and has committed later what was undecided"
    return interrupt.where, wrong


@pytest.mark.slow
@pytest.mark.parametrize("error", [None, ValueError], ids=["committed", "rolled_back"])
def test_an_interrupt_at_any_line_commits_nothing_that_was_rolled_back_or_undecided(place, error, stride):
    found, lines = [], []

    def run():
        for at in range(1 + bool(error), LINES_MAX, stride):
            where, wrong = interrupted(place / str(at), at, error)
            if where is None:
                return
            lines.append(where)
            if wrong is not None:
                found.append(f"{where}: {wrong}")

    thread = threading.Thread(target=run)  # tracing is the thread's: whoever measures coverage keeps its own
    thread.start()
    thread.join()
    assert len(lines) > 20 // stride, "the block was left without any line of the client"
    assert not found, "\n".join(found)


def test_an_interrupt_before_the_session_took_a_block_up_rolls_it_back(place, monkeypatch):
    with shelving(place) as found:
        with monkeypatch.context() as interrupting, pytest.raises(KeyboardInterrupt), found.transaction() as t:
            t.send("out", [("a",)])
            interrupting.setattr(type(found._session), "check_usable", _interrupted)
        with pytest.raises(TransactionError, match="rolled back"):
            t.commit()
        put_one(found, "b")
    assert ShelfSink.shelves[str(place)][0] == ["b"]


def _interrupted(session):
    raise KeyboardInterrupt
