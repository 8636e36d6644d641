"""What a task prepares is named by the token that its rows carry, or the transaction is not decided."""

import uuid
from pathlib import Path

import pytest

from statefx.errors import AttemptsExhaustedError, StateError
from statefx.state import KeyValueState
from statefx.state.contract.store import EMPTY, prepare_as
from statefx.testing.site import Site
from statefx_memory import MemoryStateProvider
from tests.testing.places import place
from tests.testing.topologies import Driver, lines, totals, words

__all__ = ["place"]


class NamesItself(MemoryStateProvider):
    """Keeps what it prepares under names of its own."""

    returns = staticmethod(lambda prepared: prepared)

    def newState(self, namespace, context):
        store = super().newState(namespace, context)
        prepare = store.prepare
        store.prepare = lambda txid, token, writes: self.returns(prepare(txid, self.named(token), writes))
        return store

    def named(self, token):
        return uuid.uuid4().hex


class ReturnsTheBareToken(NamesItself):
    returns = staticmethod(lambda prepared: prepared.token)

    def named(self, token):
        return token


def test_a_provider_that_ignores_its_token_commits_nothing_and_the_checkpoint_lives(place: Path, monkeypatch) -> None:
    work = [lines("to be"), lines("or not to be")]
    config = {"topology.state.provider": f"{__name__}:NamesItself", "topology.transaction.attempts.max": 2}
    with Driver(place) as driver:
        with monkeypatch.context() as mended:
            mended.setattr(NamesItself, "named", lambda self, token: token)
            driver.start(totals(), config=config).run(work[:1])
        with pytest.raises(AttemptsExhaustedError, match="must keep what is prepared under the token that it is given"):
            driver.start(totals(), config=config).run(work)
        monkeypatch.setattr(NamesItself, "named", lambda self, token: token)
        again = driver.start(totals(), config=config)
        assert again.txid == 1
        again.run(work)
        assert again.state("count") == words(work)


@pytest.mark.parametrize("kind", [NamesItself, ReturnsTheBareToken])
def test_what_comes_back_is_compared(kind: type[NamesItself], place: Path) -> None:
    site = Site(kind({}), place)
    site.start(1)
    with pytest.raises(StateError, match=r"prepare\(1, 'given', ...\) returned .* return Prepared\(token\)"):
        prepare_as(site.open(), 1, "given", [])
    state = site.state()
    state.put("a", 1)
    with pytest.raises(StateError, match="under the token that it is given"):
        state.prepareCommit(1, token="given")
    assert state.version == EMPTY
    site.close()


def test_prepare_commit_takes_a_token_and_makes_one_up_without(place: Path) -> None:
    site = Site(MemoryStateProvider({}), place)
    site.start(1)
    state: KeyValueState = site.state()
    assert state.prepareCommit(1, token="given") == state.token == "given"
    assert state.prepareCommit(1) == "given"
    state.commit(1)
    made = state.prepareCommit(2)
    assert made not in ("", "given")
    state.commit(2)
    assert site.state(state.version).version.token == made
    site.close()
