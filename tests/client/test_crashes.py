"""A crash of a plain program at every durable step, and clients that wake up: the end is that of a run without one."""

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from statefx import Checkpoint, TransactionalClient
from statefx import client as package
from statefx.connectors import StagedSink, Target
from statefx.errors import CheckpointError, FencedError, SinkError, TransactionError
from statefx.testing import Crash
from tests.client.ledgers import OPENING, TRANSFERS, client, entries, expected, refused, work
from tests.providers.redis_server import RedisServer
from tests.sinks.durable_steps import folder_and_database_steps
from tests.testing.lives import seeds

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unseen")]

SOME = TRANSFERS[2:4]
"""One that is refused, one that goes through."""

STEPS_MAX = 500


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """Collecting garbage after each crash would look at everything that was ever imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class At:
    """Does something at the n-th step; or crashes there, and at each one from there on, as who is dead.

    Steps are counted of the thread that the program runs in. Those that renew the claims of clients take theirs when
    the clock says so: of a program that is dead they end, without a word.
    """

    def __init__(self, at, do=None):
        self.left, self.do = at, do
        self.hit = False
        self._thread = threading.current_thread()

    def __call__(self):
        if threading.current_thread() is not self._thread:
            if self.hit and self.do is None:
                raise SystemExit
            return
        self.left -= 1
        if self.left > 0 or (self.do and self.hit):
            return
        self.hit = True
        if self.do is None:
            raise Crash
        self.do()


def program(where, config=None, abort_at=None):
    """Do what is left; nothing is closed by a program that dies."""
    found = client(where, config)
    work(found, SOME, abort_at)
    found.close()


def crashed(at, where, config, abort_at=None):
    """Run the program with a crash; tell whether it came."""
    step = At(at)
    try:
        with folder_and_database_steps(step):
            program(where, config, abort_at)
    except Exception:  # SQLAlchemy makes others of a crash in the middle of a statement
        if not step.hit:
            raise
    except Crash:
        pass
    gc.collect()  # the connections of who is dead
    return step.hit


def check_between(where):
    """Whole transactions only are there, and no money has been made or lost."""
    found = entries(where)
    assert len(found) % 2 == 0
    assert sum(amount for _, _, amount in found) == 0
    try:
        with Checkpoint(where / "ck").state("accounts") as state:
            balances = OPENING | dict(state.items())
    except CheckpointError:
        return
    assert sum(balances.values()) == sum(OPENING.values())


def check_end(where, config=None):
    done, not_done, balances = expected(SOME)
    assert (entries(where), refused(where)) == (done, not_done)
    with Checkpoint(where / "ck", config).state("accounts") as state:
        assert OPENING | dict(state.items()) == balances


def steps_to_try(stride: int) -> range:
    """Return every `stride`-th step; each run begins at another one."""
    return range(1 + next(seeds(0)) % stride, STEPS_MAX, stride)


@pytest.mark.daily(1)
@pytest.mark.parametrize("provider", ["memory", "rocksdb"])
def test_a_crash_at_any_step(place, provider, stride):
    config = {"topology.state.provider": provider}
    for at in steps_to_try(stride if provider == "rocksdb" else min(stride, 2)):
        where = place / str(at)
        where.mkdir()
        if not crashed(at, where, config, abort_at=0):
            assert at > 60
            return
        check_between(where)
        program(where, config)
        check_end(where)
    raise AssertionError("there are more steps")


def test_a_crash_in_the_recovery_from_a_crash(place):
    config = {"topology.state.provider": "memory"}
    double = 0
    for first in range(12, STEPS_MAX, 34):
        for second in range(1, STEPS_MAX, 13):
            where = place / f"{first}-{second}"
            where.mkdir()
            if not crashed(first, where, config):
                assert double > 5
                return
            hit = crashed(second, where, config)
            program(where, config)
            check_end(where)
            if not hit:
                break
            double += 1
    raise AssertionError("the sample did not end")


def test_state_on_a_server(place):
    with RedisServer(appendonly="no") as server:
        config = {"topology.state.provider": "redis", "topology.state.provider.config": {"url": server.url}}
        for at in steps_to_try(10):
            where = place / str(at)
            where.mkdir()
            if not crashed(at, where, config):
                return
            program(where, config)
            check_end(where, config)
    raise AssertionError("the sample did not end")


def test_a_client_that_another_replaces_at_any_step_is_fenced_and_changes_nothing(place, stride):
    """The other one does all the work, at a step of the first; then the first goes on."""
    fenced = 0
    for at in steps_to_try(stride):
        where = place / str(at)
        where.mkdir()
        step = At(at, lambda where=where: program(where))
        try:
            with folder_and_database_steps(step, unlocked=True):
                program(where)
        except FencedError:
            fenced += 1
        except (SinkError, CheckpointError):  # it had not taken its generation, and looks at what it has not read
            fenced += 1
        gc.collect()
        if not step.hit:
            break
        check_end(where)
    assert fenced >= 30 // stride


@pytest.mark.parametrize("state", ["PREPARING", "COMMITTING"])
def test_what_was_decided_is_committed_first_and_all_else_is_rolled_back(place, state):
    def dies() -> None:
        with suppress(CheckpointError):
            if [str(one.state) for one in Checkpoint(place / "ck").transactions()] == [state]:
                raise Crash

    with pytest.raises(Crash), folder_and_database_steps(dies):
        program(place)
    gc.collect()
    with client(place) as found:
        forward = state == "COMMITTING"
        assert found.recoveries == [{"txid": 1, "rolled": "forward" if forward else "back"}]
        assert found.committed == forward
        assert len(refused(place)) == forward


# ---- KeyboardInterrupt at every line of the client while a block is left; then whoever can goes on.


LINES_MAX = 1000
"""More than leaving a block has; the test ends with the first line that is not reached."""


class Shelf(Target):
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
        where / "ck", id="shelf", sinks={"out": ShelfSink(str(where))}, schemas={"out": "word string"}, state=["seen"]
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
    with Checkpoint(where / "ck").state("seen") as state:
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
