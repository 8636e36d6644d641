"""A crash of a plain program at every durable step, and clients that wake up: the end is that of a run without one."""

import gc
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from statefx import openState, transactions
from statefx.errors import CheckpointError, FencedError, SinkError
from statefx.testing import Crash
from tests.client.ledgers import OPENING, TRANSFERS, client, entries, expected, refused, work
from tests.providers.redis_server import RedisServer
from tests.sinks.durable_steps import folder_and_database_steps
from tests.testing.lives import seeds
from tests.testing.places import place

__all__ = ["place"]

pytestmark = pytest.mark.slow

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
        with openState(where / "ck", "accounts") as state:
            balances = OPENING | dict(state.items())
    except CheckpointError:
        return
    assert sum(balances.values()) == sum(OPENING.values())


def check_end(where, config=None):
    done, not_done, balances = expected(SOME)
    assert (entries(where), refused(where)) == (done, not_done)
    with openState(where / "ck", "accounts", config=config) as state:
        assert OPENING | dict(state.items()) == balances


def steps_to_try(stride: int) -> range:
    """Return every `stride`-th step; each run begins at another one."""
    return range(1 + next(seeds(0)) % stride, STEPS_MAX, stride)


@pytest.mark.parametrize("provider", ["memory", "rocksdb"])
def test_a_crash_at_any_step(place: Path, provider: str, stride: int) -> None:
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


def test_a_crash_in_the_recovery_from_a_crash(place: Path) -> None:
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


def test_state_on_a_server(place: Path) -> None:
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


def test_a_client_that_another_replaces_at_any_step_is_fenced_and_changes_nothing(place: Path, stride: int) -> None:
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
def test_what_was_decided_is_committed_first_and_all_else_is_rolled_back(place: Path, state: str) -> None:
    def dies() -> None:
        with suppress(CheckpointError):
            if [str(one.state) for one in transactions(place / "ck")] == [state]:
                raise Crash

    with pytest.raises(Crash), folder_and_database_steps(dies):
        program(place)
    gc.collect()
    with client(place) as found:
        forward = state == "COMMITTING"
        assert found.recoveries == [{"txid": 1, "rolled": "forward" if forward else "back"}]
        assert found.committed == forward
        assert len(refused(place)) == forward
