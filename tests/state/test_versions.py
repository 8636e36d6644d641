"""Values tell which version of their bolt wrote them, and older ones are brought up to date as they are read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statefx.errors import StateCorruptedError
from statefx.state.encoding.codec import StandardCodec
from statefx.state.encoding.values import MARK, VERSION_MAX, unwrap, wrap
from tests.testing.codecs import Marked


def upgrade(version, key, value):
    return ("v", version, key, value)


def written(checkpoint, changes, version=None, **options):
    state = checkpoint.open(**({} if version is None else {"version": version}), **options)
    state.putAll(changes)
    txid = state.version.txid + 1
    state.prepareCommit(txid)
    state.commit(txid)
    state.close()
    return state.version


@pytest.mark.slow
@given(st.integers(1, VERSION_MAX), st.binary())
def test_an_envelope_is_unambiguous(version, data):
    assert unwrap(wrap(version, data)) == (version, data)
    assert (wrap(version, data) == data) == (version == 1 and data[:1] != MARK)


@pytest.mark.parametrize("data", [b"\xc1", b"\xc1\x80", b"\xc1\x80\x80", b"\xc1\x00x", b"\xc1\xff\xff\xff\xff\xff\x01"])
def test_a_damaged_envelope_is_told(data):
    with pytest.raises(StateCorruptedError, match="does not tell its version"):
        unwrap(data)


def test_values_of_version_1_lie_as_they_did(checkpoint_at, tmp_path):
    checkpoint = checkpoint_at(tmp_path)
    version = written(checkpoint, {"a": 1})
    key = b"u" + StandardCodec().encode_key("a")
    assert checkpoint.store(version).get([key]) == [b"\x01"]
    version = written(checkpoint, {"a": 1}, version, state_version=2)
    assert checkpoint.store(version).get([key]) == [b"\xc1\x02\x01"]


@pytest.mark.parametrize("codec", [StandardCodec, Marked])
def test_an_older_value_is_upgraded_wherever_it_is_read_and_stays_until_it_is_put(checkpoint_at, tmp_path, codec):
    checkpoint = checkpoint_at(tmp_path)
    version = written(checkpoint, {"a": 1, "b": [2]}, codec=codec())
    version = written(checkpoint, {"b": [3], "c": 4}, version, codec=codec(), state_version=2)
    now = {"codec": codec(), "state_version": 4, "upgrade": upgrade}
    upgraded = {"a": ("v", 1, "a", 1), "b": ("v", 2, "b", [3]), "c": ("v", 2, "c", 4)}

    state = checkpoint.open(version, **now)
    assert dict(state.items()) == upgraded
    assert [state.get(key) for key in "abc"] == list(upgraded.values())
    assert dict(state.getAll(list("abcd"))) == upgraded
    state.prefetch(list("abc"))
    assert [state.get(key) for key in "abc"] == list(upgraded.values())
    assert state.delete("c") == upgraded["c"]
    state.put("a", "new")
    assert dict(state.items()) == {"a": "new", "b": upgraded["b"]}
    state.prepareCommit(3)
    assert dict(state.items()) == {"a": "new", "b": upgraded["b"]}
    state.commit(3)
    assert [state.get(key) for key in "abc"] == ["new", upgraded["b"], None]

    state = checkpoint.open(state.version, codec=codec(), state_version=4)
    assert dict(state.items()) == {"a": "new", "b": [3]}, "without upgrade, as it was written"


def test_a_value_that_was_put_is_not_upgraded(checkpoint_at, tmp_path):
    state = checkpoint_at(tmp_path).open(state_version=2, upgrade=upgrade)
    state.putAll({"a": 1, "b": [2]})
    assert dict(state.items()) == {"a": 1, "b": [2]}
    assert (state.get("a"), state.get("b")) == (1, [2])
    state.prepareCommit(1)
    assert (state.get("a"), state.get("b")) == (1, [2])


@pytest.mark.parametrize("wanted", [1, 2])
@pytest.mark.parametrize("codec", [StandardCodec, Marked])
def test_a_value_of_a_newer_version_is_refused_with_its_key(checkpoint_at, tmp_path, codec, wanted):
    checkpoint = checkpoint_at(tmp_path)
    version = written(checkpoint, {"a": 1}, codec=codec(), state_version=3)
    state = checkpoint.open(version, codec=codec(), state_version=wanted, upgrade=upgrade)
    for read in (lambda: state.get("a"), lambda: list(state.items()), lambda: state.prefetch(["a"])):
        with pytest.raises(StateCorruptedError, match=r"the value of key 'a'.*(stateVersion 3|later stateVersion)"):
            read()


def test_what_upgrade_is_given_may_be_changed(checkpoint_at, tmp_path):
    checkpoint = checkpoint_at(tmp_path)
    version = written(checkpoint, {"a": [1]})

    def grow(version, key, value):
        value.append(2)
        return value

    state = checkpoint.open(version, state_version=2, upgrade=grow)
    for _ in range(3):
        assert state.get("a") == [1, 2]
        state.get("a").append(3)
